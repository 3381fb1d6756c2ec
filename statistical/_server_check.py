"""Checks of the tokens that a server emits, under the distribution that it returns with each of them.

The transform of `_pit` makes a uniform number of each token, whatever its distribution, so that all prompts, positions
and settings count together. Numbers of a choice are uniform given all before them.

Projections of the id (`_projections`) judge a token given that it is listed; one that is not listed says nothing about
lanes, and its number is a fresh one. A server that returns texts and no ids is judged by hashes of the texts alone.

The answers come from the pool that all checks of a run share. A check goes on until its plan is fulfilled: answers that
end early, and positions about which the list says nothing, are made up for by more requests.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fairdraw._core.budget import BudgetEnded, cut_short, guarded
from fairdraw._core.checks import AnyCheck, Conditions, DrawnQuestion, Profile
from fairdraw._core.failures import CapabilityUnsupported, Ended, Inconclusive
from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import Answer, Capability, Claims, NoAnswer, Server
from fairdraw.statistical._count_tables import Counts, Table
from fairdraw.statistical._decision import Decision, Verdict, decide
from fairdraw.statistical._design import FALSE_PASS_RATE, Plans, SamplePlan, plan_tables
from fairdraw.statistical._distribution_check import decision_failure, false_fail_rate
from fairdraw.statistical._pit import PitCells
from fairdraw.statistical._projections import LANES, TokenTables
from fairdraw.statistical._server_numbers import ORDERS, PROJECTIONS, WAYS, single
from fairdraw.statistical._slice_check import SliceCheck
from fairdraw.strategies._server_claims import claims_of
from fairdraw.strategies._server_requests import TOKENS_EACH, Kind, num_tokens, pool_of

_FIRST = 48
"""Requests before the first checkpoint: a server that is silently greedy is seen there."""

_MOST_CHECKPOINTS = 16
_MOST_REQUESTS = 3
"""Times as many requests as planned, at most, before a check gives up."""

_LEAST_JUDGED = 0.4
"""Share of the positions about which lists must say something."""

_PIT = PitCells(16, 6)


@dataclass(frozen=True)
class ServerDistributionCheck(DrawnQuestion):
    """A check of the tokens of a kind of requests.

    Args:
        kinds: The kind.
        part: Of the run's tokens.
        share: Of the run's false-fail rate.
    """

    kinds: tuple[Kind]
    part: float
    share: float = 1.0

    def num_draws(self, sampler: Server, profile: Profile) -> int:
        return max(1, round(num_tokens(sampler, profile) * self.part))

    def num_requests(self, server: Server, profile: Profile) -> int:
        """Planned."""
        return -(-self.num_draws(server, profile) // TOKENS_EACH)

    @property
    def _tables(self) -> TokenTables:
        return TokenTables(self.kinds[0].name, (), _PIT, projected=PROJECTIONS)

    def tables(self, server: Server, profile: Profile) -> dict[str, Table]:
        """Return those of every way."""
        found = self._tables.tables(self.num_draws(server, profile))
        has_ids = Capability.TOKEN_IDS in server.capabilities
        return {name: table for name, table in found.items() if has_ids or table.seen_by in (*ORDERS, "hashed halves")}

    def planned(self, server: Server, profile: Profile, seed: int) -> Plans:
        """The plan of each table."""
        return plan_tables(self.tables(server, profile), 1, self.share * false_fail_rate(seed))

    def count(self, answers: Sequence[Answer], claims: Claims, seed: int) -> Counts:
        """The counts of some answers, each `[num_cells + 1] int64`."""
        return self._tables.count(dict(zip(WAYS, single(answers, claims, seed).T, strict=True)))

    def checkpoints(self, server: Server, profile: Profile, seed: int, ended: list[BaseException]) -> Iterator[Counts]:
        """Counts of fresh answers, until there are three times as many requests as planned.

        Args:
            ended: What ended them early is put here.
        """
        pool, planned, (one,) = pool_of(server, seed), self.num_requests(server, profile), self.kinds
        step = max(2, -(-planned // _MOST_CHECKPOINTS) // 2 * 2, min(planned, _FIRST) // 2 * 2)
        try:
            claims = claims_of(server, pool)
            for first in range(0, _MOST_REQUESTS * planned, step):
                answers = pool.take(server, one, first + step)[first:]
                counts = self.count(answers, claims, derive_seed("numbers", pool.seed, one.name, first))
                if first == 0:
                    _require_judged(server, answers, claims)
                yield counts
        except (BudgetEnded, NoAnswer, Inconclusive) as error:
            ended.append(error)

    def judge(self, sampler: Server, under: Conditions) -> int:
        """Judge tokens as `DistributionCheck.run` judges samples.

        Raises:
            NoAnswer: If the server does not answer before that is decided.
        """
        under.require_time()
        chosen, seed, ended = under.profile, under.seed, list[BaseException]()
        server = guarded(sampler, under.out_of_time)
        drawn = self.checkpoints(server, chosen, seed, ended)
        rate = self.share * false_fail_rate(seed)
        decision = decide(self.tables(server, chosen), self.planned(server, chosen, seed), drawn, rate)
        seen = sum(int(counts.sum()) for name, counts in decision.counts.items() if name.endswith(f" by {ORDERS[0]}"))
        if decision.verdict is Verdict.PASS:
            return seen
        error = self._ended(decision, ended, seen)
        if isinstance(error, NoAnswer):
            raise NoAnswer(f"{error}; {seen} tokens were judged until then") from error
        if not isinstance(error, Ended):
            raise error
        error.case, error.tried = self.case(server, chosen), seen
        raise error

    def _ended(self, decision: Decision, ended: Sequence[BaseException], seen: int) -> BaseException:
        if decision.verdict is Verdict.FAIL:
            return decision_failure(decision)
        if any(isinstance(one, BudgetEnded) for one in ended):
            return cut_short(decision.reason, seen)
        return ended[0] if ended else Inconclusive(f"the server's answers show too little: {decision.reason}")


def _require_judged(server: Server, answers: Sequence[Answer], claims: Claims) -> None:
    """Give up early if answers say too little, which more requests would not change."""
    total = sum(len(choice.positions) for answer in answers for choice in answer.choices)
    judged = len(single(answers, claims, 0))
    if judged < _LEAST_JUDGED * total:
        lists = f"lists of {server.settings.logprobs} entries decide {judged} of {total} positions"
        raise CapabilityUnsupported(f"top-logprobs is unsupported for this: {lists} at temperature 1")


def _seen_in(by_way: Mapping[str, float], group: str) -> str:
    """Return the largest distance of a group in words, with that of every order and family of projections.

    Args:
        by_way: The distance by `Table.seen_by`. Cells of single tokens, or of whole rows, have no name.
    """
    lanes = {way.removeprefix(LANES): distance for way, distance in by_way.items() if way.startswith(LANES)}
    ways = {way: distance for way, distance in by_way.items() if way and not way.startswith(LANES)}
    ways |= {LANES + ", ".join(lanes): max(lanes.values())} if lanes else {}
    named = ", ".join(f"{distance:.2g} by {way}" for way, distance in ways.items())
    return f"{max(by_way.values()):.2g} ({group}{': ' * bool(named)}{named})"


def server_fairness(checks: Iterable[AnyCheck], server: Server, profile: Profile, seed: int) -> str:
    """What the run can see, for the header: alpha, total variation and power."""
    able = [one for one in checks if one.why_not(server) is None]
    drawing = [one for one in able if isinstance(one, ServerDistributionCheck)]
    if not drawing:
        return "the server returns nothing that distributions can be judged by"
    worst: dict[str, float] = {}
    powerless = 0
    for one in drawing:
        tables = one.tables(server, profile)
        for name, plan in one.planned(server, profile, seed).items():
            if isinstance(plan, SamplePlan):
                worst[tables[name].seen_by] = max(worst.get(tables[name].seen_by, 0.0), plan.discrepancy)
            else:
                powerless += 1
    seen = _seen_in(worst, "plain tokens") if worst else "nothing"
    words = f"alpha {false_fail_rate(seed):.0e} over {round(1 / drawing[0].share)} checks"
    words += f"; sees TV >= {seen} with power {1 - FALSE_PASS_RATE:g}"
    sliced = [one for one in able if isinstance(one, SliceCheck)]
    found = [one.resolution(server, profile, seed, one.num_draws(server, profile)).bias or 1.0 for one in sliced]
    if found:
        words += f"; in slices, halves that are off by {max(found):.2g} in all tokens of a check, with power 0.9"
    if Capability.TOKEN_IDS not in server.capabilities:
        words += "; lanes of ids are not judged, as answers hold texts and no ids"
    return words + (f"; {powerless} tables have no power" if powerless else "")
