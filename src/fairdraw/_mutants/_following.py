"""Ways to follow a live batch wrongly; each becomes a mutant of both contracts.

None of them compares the lists by identity: that alone would turn most of these faults into refusals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairdraw._mutants._lifecycle_scanners import Copy, Follower, combined, mutant_follower
from fairdraw.protocols import PLACEHOLDER_TOKEN_ID
from fairdraw.protocols._lifecycle import AddedRow, Move

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairdraw._mutants._mutant import Mutant
    from fairdraw.protocols._lifecycle import LiveBatch, LiveRequest, MovedRow


class Trusting(Follower):
    """Reads the list that a request entered with, and never compares it with the row's."""

    def recognise(self, row: int, request: LiveRequest) -> None:
        pass


class AppendsOnlyTheLastToken(Trusting):
    """Of several accepted tokens only the last one is read, as if every step yielded one."""

    def new(self, copy: Copy, live: Sequence[int]) -> list[int]:
        new = super().new(copy, live)
        return [PLACEHOLDER_TOKEN_ID] * (len(new) - 1) + new[-1:]


class CountsRejectedDrafts(Trusting):
    """Drafts are taken for tokens when they are proposed, and never taken back."""

    def end_step(self, batch: LiveBatch) -> None:
        for copy, request in self.copies(batch):
            copy.extra += request.draft_token_ids


class ForgetsTheRepair(Trusting):
    """A placeholder is read once, and not again when it has become a token."""

    def advance(self, copy: Copy) -> None:
        live = copy.entered.output_token_ids
        del copy.ids[len(live) :]
        copy.ids += self.new(copy, live)


class AliasesRowsOnSwap(Trusting):
    """After a swap both rows share the state of one request."""

    def move(self, moved: MovedRow) -> None:
        super().move(moved)
        if moved.direction is Move.SWAP:
            self.rows[moved.source] = self.rows[moved.target]


class IgnoresASwap(Trusting):
    """Swaps are not followed; they are rarer than moves."""

    def move(self, moved: MovedRow) -> None:
        if moved.direction is not Move.SWAP:
            super().move(moved)


class LeavesARowBehindOnCondense(Trusting):
    """A request that moves into the row of a finished one finds that one's state there, and inherits it."""

    def move(self, moved: MovedRow) -> None:
        finished = self.rows.get(moved.target) if moved.direction is Move.UNIDIRECTIONAL else None
        super().move(moved)
        if finished is not None:
            self.rows[moved.target] = finished


class PreemptionKeepsItsTokens(Trusting):
    """The tokens of a request that leaves stay in its row, and the next one there begins with them."""

    def remove(self, row: int) -> None:
        pass

    def sync(self, changes: object) -> None:
        before = {row: self.tokens(copy) for row, copy in self.rows.items()}
        super().sync(changes)  # type: ignore[arg-type]  # as in the base
        for copy in self.rows.values():
            if not copy.edges and not copy.extra:
                copy.extra = before.get(copy.entered.row, [])


class KeepsItsStateInANewSession(Trusting):
    """A known list that is added again is not read anew, though a streaming session has emptied it."""

    def enter(self, added: AddedRow) -> Copy:
        known = (c for c in self.rows.values() if c.entered.output_token_ids is added.output_token_ids)
        return next(known, None) or super().enter(added)


class ResumeCountsTwice(Trusting):
    """The output of a request that returns is read when it enters, and again in its first step."""

    def enter(self, added: AddedRow) -> Copy:
        return Copy(added, extra=[i for i in added.output_token_ids if i != PLACEHOLDER_TOKEN_ID])


class DoesNotTakeBackACut(Trusting):
    """Tokens that were lost with their KV cache still count; so do those that an optimistic step expected."""

    def advance(self, copy: Copy) -> None:
        if len(copy.entered.output_token_ids) >= len(copy.ids):
            super().advance(copy)


class RescansFromTheStart(Trusting):
    """Nothing is wrong but the cost: every step reads the whole output again."""

    def standing(self, copy: Copy) -> int:
        return 0


_OTHER_CHECK = {RescansFromTheStart: "103", Trusting: "104"}


def following_mutants(base: type[Follower], prefix: str) -> tuple[Mutant, ...]:
    """Every way to follow wrongly, under the contract of `base`; codes of its checks begin with `prefix`."""
    ways: list[type[Trusting]] = [Trusting, *Trusting.__subclasses__()]
    own = [way for way in ways if way.__module__ == __name__]  # not those that `combined` has made
    return tuple(mutant_follower(prefix + _OTHER_CHECK.get(way, "101"))(combined(way, base)) for way in own)
