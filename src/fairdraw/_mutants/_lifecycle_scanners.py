"""Naive scanners that keep a copy of every history, in small overridable steps; and how one becomes a mutant.

They follow the lists by reading what is new, and leave all arithmetic to the oracle, which recounts their copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from fairdraw._core.policies import Policy
from fairdraw._mutants._mutant import Mutant, mutant_as, name_of
from fairdraw._oracles.penalties import PenalisedRow, PenaltiesOracle, PenaltyFactors
from fairdraw._oracles.thinking_budget import ThinkingBudgetOracle
from fairdraw.contracts import PLACEHOLDER_TOKEN_ID as PLACEHOLDER
from fairdraw.contracts import AddedRow, LiveBatch, LiveRequest, Markers, RowChanges, RowKeeper, SessionSampler


@dataclass(eq=False)
class Copy:
    """What a follower keeps of one request.

    Args:
        ids: What was read and is still valid; never ends with a placeholder.
        extra: Tokens that do not belong there; only mutants have any.
        edges: Lengths of `ids` at the end of each step.
    """

    entered: AddedRow
    ids: list[int] = field(default_factory=list)
    extra: list[int] = field(default_factory=list)
    edges: list[int] = field(default_factory=list)


class Follower(RowKeeper):
    """Follows rows and reads new tokens; a mutant overrides exactly one step."""

    rows: dict[int, Copy]

    def enter(self, added: AddedRow) -> Copy:
        return Copy(added)

    def follow(self, batch: LiveBatch) -> None:
        """Read what is new in every row.

        Raises:
            ValueError: If a row holds another list than it should.
        """
        for row, request in enumerate(batch.requests):
            self.recognise(row, request)
        for copy in filter(self.reads, self.rows.values()):
            self.advance(copy)

    def recognise(self, row: int, request: LiveRequest) -> None:
        if self.rows[row].entered.output_token_ids is not request.output_token_ids:
            raise ValueError(f"follow: output_token_ids[{row}] is another list, but it must be the one of the request.")

    def reads(self, copy: Copy) -> bool:
        """Whether new tokens of this request are read."""
        return True

    def advance(self, copy: Copy) -> None:
        live = copy.entered.output_token_ids
        del copy.ids[self.standing(copy) :]
        copy.ids += self.new(copy, live)
        while copy.ids and copy.ids[-1] == PLACEHOLDER:
            copy.ids.pop()
        copy.edges = [*(edge for edge in copy.edges if edge < len(copy.ids)), len(copy.ids)]

    def standing(self, copy: Copy) -> int:
        """How much of the copy is still valid: nothing if its end has changed; placeholders there are read again."""
        live = copy.entered.output_token_ids
        kept = min(len(copy.ids), len(live))
        while kept and copy.ids[kept - 1] == PLACEHOLDER:
            kept -= 1
        return kept if kept and live[kept - 1] == copy.ids[kept - 1] else 0

    def new(self, copy: Copy, live: Sequence[int]) -> list[int]:
        return list(live[len(copy.ids) :])

    def tokens(self, copy: Copy) -> list[int]:
        """The output as the follower knows it."""
        return [*copy.ids, *copy.extra, *self.placeholders(copy)]

    def placeholders(self, copy: Copy) -> list[int]:
        return [PLACEHOLDER] * (len(copy.entered.output_token_ids) - len(copy.ids))

    def end_step(self, batch: LiveBatch) -> None:
        """Called at the end of each step; only mutants use it."""

    def copies(self, batch: LiveBatch) -> list[tuple[Copy, LiveRequest]]:
        return [(self.rows[row], request) for row, request in enumerate(batch.requests) if row in self.rows]


class FollowsLate(Follower):
    """Changes of rows are queued until an answer is needed."""

    def __init__(self, *setting: object) -> None:
        super().__init__(*setting)
        self.queue: list[RowChanges] = []

    def sync(self, changes: RowChanges) -> None:
        self.queue.append(changes)

    def follow(self, batch: LiveBatch) -> None:
        while self.queue:
            super().sync(self.queue.pop(0))
        super().follow(batch)


class PenaltiesOf:
    """A penalties follower behind the protocol, whose `penalise` has other arguments than the oracle's."""

    def __init__(self, follower: PenaltiesFollower) -> None:
        self.follower, self.sync = follower, follower.sync

    def penalise(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [batch_size, vocab_size] float32, both
        follower = self.follower
        follower.follow(batch)
        rows = [follower.bonus_row(follower.seen(c, r), r.draft_token_ids) for c, r in follower.copies(batch)]
        if not batch.num_drafts:
            follower.end_step(batch)
        return self.penalised(logits, rows)

    def penalise_drafts(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [num_tokens, vocab_size] float32, both
        follower, rows = self.follower, list[PenalisedRow]()
        for copy, request in follower.copies(batch):
            rows += follower.draft_rows(follower.seen(copy, request), request.draft_token_ids)
        follower.end_step(batch)
        return self.penalised(logits, rows)

    def penalised(self, logits: Tensor, rows: list[PenalisedRow]) -> Tensor:  # [num_rows, vocab_size] float32, both
        for target, row in zip(logits, rows, strict=False):
            target.copy_(torch.from_numpy(self.follower.penalise(target.numpy().copy(), row)))
        return logits


class PenaltiesFollower(Follower, PenaltiesOracle):
    """A correct scanner of the penalties contract."""

    opens: ClassVar[type[PenaltiesOf]] = PenaltiesOf

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size

    def seen(self, copy: Copy, request: LiveRequest) -> PenalisedRow:
        """The tokens and factors that penalise one request."""
        factors = PenaltyFactors(*copy.entered.params.factors)
        return PenalisedRow(copy.entered.prompt_token_ids, self.tokens(copy), factors)

    def session(self) -> PenaltiesOf:
        return self.opens(self)


class ThinkingFollower(Follower, ThinkingBudgetOracle):
    """A correct scanner of the thinking-budget contract."""

    def __init__(self, markers: Markers) -> None:
        Follower.__init__(self)
        ThinkingBudgetOracle.__init__(self, markers.start, markers.end)

    def session(self) -> ThinkingOf:
        return ThinkingOf(self)

    def decide(self, copy: Copy, request: LiveRequest) -> list[tuple[int, int]]:
        """What is forced in one request."""
        budget = copy.entered.params.thinking_token_budget
        return self.forced(copy.entered.prompt_token_ids, self.tokens(copy), request.draft_token_ids, budget)

    def shown(self, copy: Copy) -> int | None:
        """Thinking tokens of one request."""
        prompt, budget = copy.entered.prompt_token_ids, copy.entered.params.thinking_token_budget
        if budget is None:
            return None
        return self.think_count(prompt, self.known(prompt, self.tokens(copy), budget))


class ThinkingOf:
    """A thinking follower behind the protocol."""

    def __init__(self, follower: ThinkingFollower) -> None:
        self.follower, self.sync = follower, follower.sync

    def forced(self, batch: LiveBatch) -> Any:  # Any: any form of a mapping from rows to pairs
        follower = self.follower
        follower.follow(batch)
        requests = enumerate(batch.requests)
        found = {row: follower.decide(follower.rows[row], r) for row, r in requests if row in follower.rows}
        follower.end_step(batch)
        return found

    def think_counts(self) -> dict[int, int | None]:
        return {row: self.follower.shown(copy) for row, copy in self.follower.rows.items()}


@dataclass(frozen=True)
class Scanner(SessionSampler):
    """A follower under the contract that its class is made for.

    Args:
        done: The policy of what it does, if that is not the one that it declares.
    """

    done: Policy | None = None

    def open_session(self, setting: Any) -> Any:  # Any: a vocabulary size or markers, and a session
        follower = self.function(setting)
        follower.policy = self.done or self.policy or follower.policy
        return follower.session()


def combined(way: type[Follower], base: type[Follower]) -> Any:  # Any: made from what `base` is made from
    """A follower of the contract of `base` that follows in the given `way`."""
    return type(way.__name__, (way, base), {"__doc__": way.__doc__})


def mutant_follower(*caught_by: str, **declared: Any) -> Callable[[type[Follower]], Mutant]:  # Any: fields of Scanner
    """Make a mutant of a follower with one step overridden; its class name is the name, its docstring the
    description. `declared`: the policy or the capabilities that it declares.
    """

    def make_mutant(faulty: type[Follower]) -> Mutant:
        contract = "penalties" if issubclass(faulty, PenaltiesFollower) else "thinking_budget"
        scanner = Scanner(name_of(faulty), faulty, contract, **declared)
        return mutant_as(lambda _: scanner, *caught_by)(faulty)

    return make_mutant


def against_its_policy(
    base: type[Follower], code: str, faults: Mapping[str, tuple[Policy, Policy]]
) -> tuple[Mutant, ...]:
    """Make mutants of one policy that declare another: name to what they declare, and what they do."""
    return tuple(
        mutant_follower(code, policy=declared, done=done)(
            type(name, (base,), {"__doc__": f"Declared: {declared}. Done: {done}."})
        )
        for name, (declared, done) in faults.items()
    )
