"""A property of a server: some requests from the run's pool of answers, and what must be true of each answer."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fairdraw._core.budget import BudgetEnded, cut_short, guarded
from fairdraw._core.checks import AnyCheck, Conditions, DistributionCase, Profile
from fairdraw._core.failures import CheckFailure
from fairdraw._core.seeds import DEFAULT_SEED
from fairdraw.contracts import Answer, Capability, Choice, Claims, GenerationRequest, NoAnswer, Position, Server
from fairdraw.strategies._server_claims import claims_of
from fairdraw.strategies._server_requests import Kind, Pool, kind, num_tokens, pool_of


@dataclass
class Trial:
    """A server under a check: its answers, and how to fail with the request that shows it.

    Args:
        alpha: What a check may err by, where it needs a number.
        num_judged: Answers (or tokens) that the check looked at; it counts them itself.
    """

    server: Server
    reference: Server | None
    pool: Pool
    profile: Profile
    alpha: float
    num_judged: int = 0

    @cached_property
    def claims(self) -> Claims:
        """What its log-probabilities stand for."""
        return claims_of(self.server, self.pool)

    def take(self, kind: Kind, count: int) -> list[Answer]:
        """The first answers of a kind; counted as judged."""
        self.num_judged += count
        return self.pool.take(self.server, kind, count)

    def ask(self, name: str, requests: Sequence[GenerationRequest], *, alone: bool = False) -> list[Answer]:
        """Answers to these requests; counted as judged."""
        self.num_judged += len(requests)
        return self.pool.ask(self.server, name, requests, alone=alone)

    def earlier(self, answers: Sequence[Answer]) -> tuple[list[Answer], list[Answer]]:
        """Answers of an earlier run (`ServerSettings.against`), and of these the ones to the same requests.

        Raises:
            NoAnswer: If there was such a run, and fewer than half of these requests were answered in it.
        """
        earlier = getattr(self.server, "earlier", None)  # servers over HTTP have it
        if earlier is None or self.server.settings.against is None:
            return [], []
        before = earlier([answer.request for answer in answers])
        pairs = [(old, new) for old, new in zip(before, answers, strict=True) if old is not None and not old.refused]
        self.num_judged += len(pairs)
        if 2 * len(pairs) < len(answers):
            found = f"{self.server.settings.against} has answers to {len(pairs)} of {len(answers)} requests"
            raise NoAnswer(f"{found}: it must be of a whole run with this address, model, seed and these options")
        return [old for old, _ in pairs], [new for _, new in pairs]


def positions_of(answers: Sequence[Answer]) -> Iterator[tuple[Answer, int, Position]]:
    """Every position of every choice, with its number."""
    for answer in answers:
        for choice in answer.choices:
            for number, position in enumerate(choice.positions):
                yield answer, number, position


def require(condition: bool, answer: Answer, effect: str) -> None:
    """Fail with the request that shows it.

    Raises:
        CheckFailure: If `condition` is false.
    """
    if not condition:
        raise failure(answer, effect)


def failure(answer: Answer, effect: str, evidence: str = "") -> CheckFailure:
    """A failure with its request, as a line that can be pasted."""
    error = CheckFailure(effect, evidence=evidence)
    error.remarks = (f"the request: {answer.curl}",) if answer.curl else ()
    return error


LISTS = (Capability.TOP_LOGPROBS,)
"""What a property of log-probabilities needs."""

GREEDY = kind("greedy", temperature=0.0)


def count_of(choice: Choice) -> int | None:
    """Tokens of a choice, as far as the server shows them."""
    return len(choice.positions) or choice.num_tokens


Body = Callable[[Trial], None]


@dataclass(frozen=True)
class ServerCheck(AnyCheck):
    """A property of a server.

    Args:
        num_requests: That it makes, beside those that other checks make, too.
        num_alone: Of these, those that are made one after the other.
    """

    seed_alone = DEFAULT_SEED
    body: Body
    num_requests: int = 0
    num_alone: int = 0

    def judge(self, sampler: Server, under: Conditions) -> int:
        """Ask and compare.

        Raises:
            NoAnswer: If the server does not answer.
        """
        under.require_time()
        chosen, server = under.profile, guarded(sampler, under.out_of_time)
        trial = Trial(server, guarded(under.reference, under.out_of_time), pool_of(server, under.seed), chosen, ALPHA)
        try:
            self.body(trial)
        except BudgetEnded:
            raise cut_short(f"{trial.num_judged} answers judged", trial.num_judged) from None
        except CheckFailure as error:
            error.case = DistributionCase(chosen.name, num_tokens(server, chosen), chosen.scale)
            error.tried = trial.num_judged
            raise
        return trial.num_judged


ALPHA = 1e-9
"""Of a property that needs a probability: a correct server fails it so seldom that the run's own alpha is not used."""


def server_check(
    code: str, needs: tuple[Capability, ...] = (), **fields: Any
) -> Callable[[Body], ServerCheck]:  # Any: other fields of a check
    """Make a check of a function of `Trial`."""
    return lambda body: ServerCheck.named(body, code, contract="server", needs=needs, body=body, **fields)
