"""Ways to follow a batch that fail in long steps, chains of moves, large batches and texts that are alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairdraw._mutants._following import Trusting
from fairdraw._mutants._lifecycle_scanners import Copy, Follower, combined, mutant_follower
from fairdraw.protocols._lifecycle import Move, RowChanges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairdraw._mutants._mutant import Mutant
    from fairdraw.protocols._lifecycle import AddedRow


class GathersMovesOfAStep(Trusting):
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


class ReadsSomeNewTokens(Trusting):
    """A step has room for 96 new tokens of a request; the next ones are read in the next step."""

    def new(self, copy: Copy, live: Sequence[int]) -> list[int]:
        new = super().new(copy, live)
        return new[:96] if copy.edges else new


class ReadsPartsOfALongOutput(Trusting):
    """An output that was begun elsewhere is read in parts of 1500 tokens, one in each step."""

    def new(self, copy: Copy, live: Sequence[int]) -> list[int]:
        return super().new(copy, live)[:1500]


class KeepsWhatADeepCutTook(Trusting):
    """Of a deep cut the last 200 tokens are taken back at once, and the others in the next step."""

    def standing(self, copy: Copy) -> int:
        kept = super().standing(copy)
        copy.extra = copy.ids[kept : len(copy.ids) - 200] if kept else []
        return kept


class SharesRowsBeyond512(Trusting):
    """A row is found by nine bits of its number."""

    def sync(self, changes: RowChanges) -> None:
        super().sync(changes)
        self.rows |= {row: self.rows[row % 512] for row in self.rows if row >= 512}


class KnowsAPromptByItsEnds(Trusting):
    """Prompts that are equally long, and begin and end alike, are taken for one."""

    def __init__(self, *setting: object) -> None:
        super().__init__(*setting)
        self.prompts: dict[tuple[int, ...], list[int]] = {}

    def enter(self, added: AddedRow) -> Copy:
        prompt = added.prompt_token_ids
        known = self.prompts.setdefault((len(prompt), *prompt[:8], *prompt[-8:]), prompt)
        return super().enter(added._replace(prompt_token_ids=known))


class KnowsAPromptByItsBeginning(KnowsAPromptByItsEnds):
    """Prompts that are equally long and begin alike are taken for one, as if they lay in one block of a cache."""

    def enter(self, added: AddedRow) -> Copy:
        prompt = added.prompt_token_ids
        known = self.prompts.setdefault((len(prompt), *prompt[: len(prompt) // 4]), prompt)
        return super(KnowsAPromptByItsEnds, self).enter(added._replace(prompt_token_ids=known))


def step_mutants(base: type[Follower], prefix: str) -> tuple[Mutant, ...]:
    """Each of them under the contract of `base`; codes of its checks begin with `prefix`."""
    ways = (
        *(GathersMovesOfAStep, ReadsSomeNewTokens, ReadsPartsOfALongOutput, KeepsWhatADeepCutTook),
        *(SharesRowsBeyond512, KnowsAPromptByItsEnds, KnowsAPromptByItsBeginning),
    )
    return tuple(mutant_follower(f"{prefix}110")(combined(way, base)) for way in ways)
