"""Checks of the tokens that a server emits, under the distribution that it returns with each of them.

The transform of `_pit` makes a uniform number of each token, whatever its distribution, so that all prompts, positions
and settings count together. Numbers of a choice are uniform given all before them.

Projections of the id (`_projections`) judge a token given that it is listed; one that is not listed says nothing about
lanes, and its number is a fresh one. A server that returns texts and no ids is judged by hashes of the texts alone.

The answers come from the pool that all checks of a run share. A check goes on until its plan is fulfilled: answers that
end early, and positions about which the list says nothing, are made up for by more requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
from fairdraw.strategies._server_requests import TOKENS_EACH, Kind, Pool, num_tokens, pool_of

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
    """A check of the tokens of some kinds of requests.

    Args:
        kinds: Each has a table of its own.
        part: Of the run's tokens, for all kinds together.
        share: Of the run's false-fail rate.
    """

    kinds: tuple[Kind, ...]
    part: float
    share: float = 1.0

    def num_samples(self, server: Server, profile: Profile) -> int:
        """Planned, of each kind."""
        return max(1, round(num_tokens(server, profile) * self.part / len(self.kinds)))

    def num_draws(self, sampler: Server, profile: Profile) -> int:
        return self.num_samples(sampler, profile) * len(self.kinds)

    def num_requests(self, server: Server, profile: Profile) -> int:
        """Planned, of each kind."""
        return -(-self.num_samples(server, profile) // TOKENS_EACH)

    def tables(self, server: Server, profile: Profile) -> dict[str, Table]:
        """Return those of each kind, in every way."""
        number, found = self.num_samples(server, profile), dict[str, Table]()
        for one in self.kinds:
            found |= TokenTables(one.name, (), _PIT, projected=PROJECTIONS).tables(number)
        has_ids = Capability.TOKEN_IDS in server.capabilities
        return {name: table for name, table in found.items() if has_ids or table.seen_by in (*ORDERS, "hashed halves")}

    def planned(self, server: Server, profile: Profile, seed: int) -> Plans:
        """The plan of each table."""
        return plan_tables(self.tables(server, profile), 1, self.share * false_fail_rate(seed))

    def count(self, one: Kind, answers: Sequence[Answer], claims: Claims, seed: int) -> dict[str, NDArray[np.int64]]:
        """The counts of some answers of a kind, each `[num_cells + 1] int64`."""
        counted = TokenTables(one.name, (), _PIT, projected=PROJECTIONS)
        return counted.count(dict(zip(WAYS, single(answers, claims, seed).T, strict=True)))

    def checkpoints(self, server: Server, profile: Profile, seed: int, ended: list[BaseException]) -> Iterator[Counts]:
        """Counts of fresh answers, until there are three times as many requests as planned.

        Args:
            ended: What ended them early is put here.
        """
        pool, planned = pool_of(server, seed), self.num_requests(server, profile)
        step = max(2, -(-planned // _MOST_CHECKPOINTS) // 2 * 2, min(planned, _FIRST // len(self.kinds)) // 2 * 2)
        try:
            claims = claims_of(server, pool)
            for first in range(0, _MOST_REQUESTS * planned, step):
                parts = [self._of(server, pool, one, first, step, claims) for one in self.kinds]
                counts = {name: found for part in parts for name, found in part.items()}
                if first == 0:
                    self._require_judged(server, pool, claims, step)
                yield counts
        except (BudgetEnded, NoAnswer, Inconclusive) as error:
            ended.append(error)

    def _require_judged(self, server: Server, pool: Pool, claims: Claims, num_requests: int) -> None:
        """Give up early if answers say too little, which more requests would not change."""
        for one in self.kinds:
            answers = pool.take(server, one, num_requests)
            most = max((len(answer.choices) for answer in answers), default=0)
            if most < answers[0].request.n:
                raise CapabilityUnsupported(f"n-choices is unsupported: its answers hold {most} choices; see SRV144")
            total = sum(len(choice.positions) for answer in answers for choice in answer.choices)
            judged = len(single(answers, claims, 0))
            if judged < _LEAST_JUDGED * total:
                raise CapabilityUnsupported(
                    f"top-logprobs is unsupported for this: lists of {server.settings.logprobs} entries decide "
                    f"{judged} of {total} positions of {one.name!r}"
                )

    def _of(
        self, server: Server, pool: Pool, one: Kind, first: int, step: int, claims: Claims
    ) -> dict[str, NDArray[np.int64]]:  # each [num_cells + 1] int64
        answers = pool.take(server, one, first + step)[first:]
        return self.count(one, answers, claims, derive_seed("numbers", pool.seed, one.name, first))

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
