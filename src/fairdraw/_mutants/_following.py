"""Ways to follow a live batch wrongly; each becomes a mutant of both contracts.

None of them compares the lists by identity: that alone would turn most of these faults into refusals.
"""

from collections.abc import Sequence
from typing import ClassVar

from fairdraw._mutants._lifecycle_scanners import Copy, Follower, FollowsLate, combined, mutant_follower
from fairdraw._mutants._mutant import Mutant
from fairdraw.contracts import PLACEHOLDER_TOKEN_ID, AddedRow, LiveBatch, LiveRequest, Move, MovedRow, RowChanges


class Trusting(Follower):
    """Reads the list that a request entered with, and never compares it with the row's."""

    caught_by = "104"
    """Code of the check that catches it first, without the letters of its contract."""

    def __init_subclass__(cls, caught_by: str = "101") -> None:
        cls.caught_by = caught_by

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


class AliasesRowsOnSwap(Trusting, caught_by="111"):
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


class LeavesARowBehindOnCondense(Trusting, caught_by="111"):
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

    def sync(self, changes: RowChanges) -> None:
        before = {row: self.tokens(copy) for row, copy in self.rows.items()}
        super().sync(changes)
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


class DoesNotTakeBackACut(Trusting, caught_by="111"):
    """Tokens that were lost with their KV cache still count; so do those that an optimistic step expected."""

    def advance(self, copy: Copy) -> None:
        if len(copy.entered.output_token_ids) >= len(copy.ids):
            super().advance(copy)


class RescansFromTheStart(Trusting, caught_by="103"):
    """Nothing is wrong but the cost: every step reads the whole output again."""

    def standing(self, copy: Copy) -> int:
        return 0


class ComparesLengthsAlone(Trusting, caught_by="113"):
    """A list of the same length is taken for the same list; tokens that were cut and grown again are missed."""

    def standing(self, copy: Copy) -> int:
        kept = min(len(copy.ids), len(copy.entered.output_token_ids))
        while kept and copy.ids[kept - 1] == PLACEHOLDER_TOKEN_ID:
            kept -= 1
        return kept


class HasRoomForSomeTokens(Trusting, caught_by="110"):
    """A buffer of 4096 output tokens; those beyond it are not read."""

    def tokens(self, copy: Copy) -> list[int]:
        tokens = super().tokens(copy)
        return tokens[:4096] + [PLACEHOLDER_TOKEN_ID] * (len(tokens) - 4096)


class ReadsAFewTokensOfAStep(Trusting, caught_by="110"):
    """At most eight tokens of a step are read: there were never more than seven drafts when it was written."""

    def new(self, copy: Copy, live: Sequence[int]) -> list[int]:
        new = super().new(copy, live)
        return new if not copy.edges else new[:8] + [PLACEHOLDER_TOKEN_ID] * (len(new) - 8)


class HasRoomForSomeRows(Trusting, caught_by="110"):
    """A buffer of 128 rows; requests beyond it are never read."""

    def follow(self, batch: LiveBatch) -> None:
        super().follow(batch)
        for row, copy in self.rows.items():
            copy.ids = [] if row >= 128 else copy.ids


class KnowsRequestsByName(ComparesLengthsAlone, caught_by="111"):
    """What was read of a request is kept by its name, and serves whoever has that name later."""

    def __init__(self, *setting: object) -> None:
        super().__init__(*setting)
        self.by_name: dict[str, list[int]] = {}

    def follow(self, batch: LiveBatch) -> None:
        for copy, request in self.copies(batch):
            if not copy.edges:
                copy.ids = self.by_name.get(request.req_id, [])[: len(request.output_token_ids)]
        super().follow(batch)
        self.by_name |= {request.req_id: [*copy.ids] for copy, request in self.copies(batch)}


class KeepsParametersOfARenewedRow(Trusting, caught_by="111"):
    """A request that is added again in its own row keeps the parameters of the first time."""

    def enter(self, added: AddedRow) -> Copy:
        copy, before = super().enter(added), self.rows.get(added.row)
        if before is not None and before.entered.prompt_token_ids is added.prompt_token_ids:
            copy.entered = added._replace(params=before.entered.params)
        return copy


class FollowsMovesBeforeNewRows(Trusting, caught_by="111"):
    """Rows are swapped before the new ones are there: the report is followed in another order."""

    def sync(self, changes: RowChanges) -> None:
        swaps = tuple(moved for moved in changes.moved if {moved.source, moved.target} <= set(self.rows))
        for moved in swaps:
            self.move(moved)
        others = tuple(moved for moved in changes.moved if moved not in swaps)
        super().sync(RowChanges(changes.batch_size, changes.removed, changes.added, others))


class SwapsOldRowsOnly(Trusting, caught_by="111"):
    """A swap with a request that entered in the same step is not followed."""

    def sync(self, changes: RowChanges) -> None:
        new = {added.row for added in changes.added}
        ignored = {m for m in changes.moved if m.direction is Move.SWAP and {m.source, m.target} & new}
        moved = tuple(moved for moved in changes.moved if moved not in ignored)
        super().sync(RowChanges(changes.batch_size, changes.removed, changes.added, moved))


class InheritsFromTheLastOneOfAll(Trusting, caught_by="111"):
    """When the batch becomes empty nothing is cleared; whoever enters next inherits the tokens of the last one."""

    last: Sequence[int] = ()

    def sync(self, changes: RowChanges) -> None:
        left, self.last = self.last, ()
        super().sync(changes)
        for copy in self.rows.values() if left else ():
            copy.extra = list(left)

    def remove(self, row: int) -> None:
        gone = self.rows.get(row)
        super().remove(row)
        if gone is not None and not self.rows:
            self.last = self.tokens(gone)


class ForgetsAfterManySteps(Trusting, caught_by="111"):
    """A ring of 500 steps: what was read in the step that is overwritten is lost, in one row."""

    num_steps = 0

    def follow(self, batch: LiveBatch) -> None:
        super().follow(batch)
        self.num_steps += 1
        for copy in [*self.rows.values()] if self.num_steps % 500 == 0 else ():
            copy.extra, copy.ids = [], [PLACEHOLDER_TOKEN_ID] * (len(copy.ids) - 1) + copy.ids[-1:]


class TakesReportsOfOtherSessions(FollowsLate, Trusting, caught_by="112"):
    """Reports wait in one queue of the scanner, and the session that is asked first takes all of them."""

    shared: ClassVar[list[RowChanges]]

    def __init__(self, *setting: object) -> None:
        super().__init__(*setting)
        if not hasattr(type(self), "shared") or len(self.shared) > 100:
            type(self).shared = []
        self.queue = self.shared

    def move(self, moved: MovedRow) -> None:
        if moved.source in self.rows:
            super().move(moved)


class EmptiesTheDrafts(Trusting):
    """The drafts of the caller are consumed: their list is empty afterwards."""

    def end_step(self, batch: LiveBatch) -> None:
        for request in batch.requests:
            request.draft_token_ids.clear()


class KeepsThePromptBeforeAShortOne(Trusting, caught_by="110"):
    """A prompt of three tokens or fewer does not overwrite that of a request that was removed from the row."""

    def sync(self, changes: RowChanges) -> None:
        self.gone = {row: self.rows[row] for row in changes.removed if row in self.rows}
        super().sync(changes)

    def enter(self, added: AddedRow) -> Copy:
        copy, gone = super().enter(added), self.gone.get(added.row)
        if gone is not None and len(added.prompt_token_ids) <= 3:
            copy.entered = added._replace(prompt_token_ids=gone.entered.prompt_token_ids)
        return copy


class KeepsTheParametersBeforeAPlainOne(Trusting, caught_by="110"):
    """A request without parameters does not overwrite those of the one whose row it takes."""

    def enter(self, added: AddedRow) -> Copy:
        copy, before = super().enter(added), self.rows.get(added.row)
        if before is not None and added.params == type(added.params)():
            copy.entered = added._replace(params=before.entered.params)
        return copy


class TakesThePromptOfAnEqual(Trusting, caught_by="110"):
    """A request that moves into the row of one with the same parameters finds its prompt there."""

    def move(self, moved: MovedRow) -> None:
        there = self.rows.get(moved.target)
        super().move(moved)
        copy = self.rows[moved.target]
        is_moved = moved.direction is Move.UNIDIRECTIONAL
        if is_moved and there is not None and there.entered.params == copy.entered.params:
            copy.entered = copy.entered._replace(prompt_token_ids=there.entered.prompt_token_ids)


class GathersMovesOfAStep(Trusting, caught_by="110"):
    """All moves of a step become one permutation, in which a row is where its last move says, seen from before."""

    def sync(self, changes: RowChanges) -> None:
        super().sync(RowChanges(changes.batch_size, changes.removed, changes.added))
        before = dict(self.rows)
        for source, target, direction in changes.moved:
            if direction is Move.SWAP and target in before:
                self.rows[source] = before[target]
            else:
                self.rows.pop(source, None)
            if source in before:
                self.rows[target] = before[source]


class ReadsSomeNewTokens(Trusting, caught_by="110"):
    """A step has room for 96 new tokens of a request; the next ones are read in the next step."""

    def new(self, copy: Copy, live: Sequence[int]) -> list[int]:
        new = super().new(copy, live)
        return new[:96] if copy.edges else new


class ReadsPartsOfALongOutput(Trusting, caught_by="110"):
    """An output that was begun elsewhere is read in parts of 1500 tokens, one in each step."""

    def new(self, copy: Copy, live: Sequence[int]) -> list[int]:
        return super().new(copy, live)[:1500]


class KeepsWhatADeepCutTook(Trusting, caught_by="110"):
    """A deep cut takes back the last 200 tokens at once, and the others in the next step."""

    def standing(self, copy: Copy) -> int:
        kept = super().standing(copy)
        copy.extra = copy.ids[kept : len(copy.ids) - 200] if kept else []
        return kept


class SharesRowsBeyond512(Trusting, caught_by="110"):
    """A row is found by nine bits of its number."""

    def sync(self, changes: RowChanges) -> None:
        super().sync(changes)
        self.rows |= {row: self.rows[row % 512] for row in self.rows if row >= 512}


class KnowsAPromptByItsEnds(Trusting, caught_by="110"):
    """Prompts that are equally long, and begin and end alike, are taken for one."""

    def __init__(self, *setting: object) -> None:
        super().__init__(*setting)
        self.prompts: dict[tuple[int, ...], list[int]] = {}

    def enter(self, added: AddedRow) -> Copy:
        prompt = added.prompt_token_ids
        known = self.prompts.setdefault((len(prompt), *self.key(prompt)), prompt)
        return super().enter(added._replace(prompt_token_ids=known))

    def key(self, prompt: list[int]) -> list[int]:
        return prompt[:8] + prompt[-8:]


class KnowsAPromptByItsBeginning(KnowsAPromptByItsEnds, caught_by="110"):
    """Prompts that are equally long and begin alike are taken for one, as if they lay in one block of a cache."""

    def key(self, prompt: list[int]) -> list[int]:
        return prompt[: len(prompt) // 4]


def following_mutants(base: type[Follower], prefix: str) -> tuple[Mutant, ...]:
    """Every way to follow wrongly, under the contract of `base`; codes of its checks begin with `prefix`."""
    return tuple(mutant_follower(prefix + way.caught_by)(combined(way, base)) for way in _ways(Trusting))


def _ways(way: type[Trusting]) -> list[type[Trusting]]:
    """It and its subclasses, without those that `combined` has made."""
    below = [found for kind in way.__subclasses__() if kind.__module__ == __name__ for found in _ways(kind)]
    return [way, *below]
