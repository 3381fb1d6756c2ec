"""A scanner in company: another session of it, a fresh session beside an old one, and what it was given, afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairdraw._core.failures import CheckFailure
from fairdraw.contracts import LiveBatch, LiveRequest, RowChanges, all_added

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairdraw.strategies._lifecycle_checkers import ComparingChecker

_FRESH_EVERY = 5
"""Looks of a fresh session, before another one takes its place."""
_BEHIND = 3
"""How many looks the other batch is behind. It also lacks the first request, so that rows differ."""


class CompanyChecker:
    """Three sessions of one scanner, each of which must answer as if it were alone.

    The first follows the batch from its beginning. A fresh one begins in the middle, with every request added at once;
    after some looks a newer one replaces it. The third has another batch, with requests of the same names in other rows
    and with other texts; it runs between the reports and the questions of the first.
    """

    def __init__(self, opened: Callable[[], ComparingChecker]) -> None:
        self.opened = opened
        self.old, self.other = opened(), opened()
        self.fresh: ComparingChecker | None = None
        self.num_looks = self.num_other = 0
        self.past: list[LiveBatch] = []
        """Copies of the batch; the other batch is what this one was some looks ago."""

    def check(self, changes: RowChanges, batch: LiveBatch, num_new: int) -> None:
        """Each learns what changed, then each plays its step; the other batch comes between."""
        if self.fresh is None or self.num_looks % _FRESH_EVERY == 0:
            self.fresh = self.opened()
            self.fresh.report(all_added(batch.requests))
        else:
            self.fresh.report(changes)
        self.old.report(changes)
        other = self.other_batch(batch)
        in_order = [("", self.old, batch), ("another batch of the scanner: ", self.other, other)]
        in_order += [("a fresh session beside the old one: ", self.fresh, batch)]
        kept = []
        for place, checker, asked in in_order[self.num_looks % 3 :] + in_order[: self.num_looks % 3]:
            try:
                kept.append((place, checker, checker.look(asked)))
            except CheckFailure as error:
                raise CheckFailure(f"{place}{error}") from None
        self.num_looks += 1
        for place, checker, answers in kept:
            checker.require_kept(answers, place)

    def other_batch(self, batch: LiveBatch) -> LiveBatch:
        """What the other session is asked about; all of its rows were added anew."""
        self.past = [*self.past, copied(batch)][-_BEHIND - 1 :]
        other = LiveBatch(self.past[0].requests[1:])
        size, before = len(other.requests), self.num_other
        self.other.report(RowChanges(size, tuple(range(size, before)), all_added(other.requests).added))
        self.num_other = size
        return other


def copied(batch: LiveBatch) -> LiveBatch:
    """The batch with lists of its own."""
    requests = (
        LiveRequest(r.req_id, r.params, list(r.prompt_token_ids), list(r.output_token_ids), list(r.draft_token_ids))
        for r in batch.requests
    )
    return LiveBatch(tuple(requests))


def arguments(changes: RowChanges, batch: LiveBatch) -> tuple[Any, ...]:  # Any: of many types
    """A copy of everything that a scanner is shown, with the lists' identities."""
    rows = tuple(
        (r.req_id, r.params, id(r.output_token_ids), [*r.prompt_token_ids], [*r.output_token_ids], [*r.draft_token_ids])
        for r in batch.requests
    )
    return rows, changes.batch_size, changes.removed, tuple(map(id, changes.added)), changes.moved


_PARTS = ("name", "parameters", "list of output tokens", "prompt tokens", "output tokens", "drafts")


def require_unchanged(before: tuple[Any, ...], after: tuple[Any, ...]) -> None:  # Any: what `arguments` returns
    """Raise `CheckFailure` if the scanner wrote into what it was shown."""
    for row, (old, new) in enumerate(zip(before[0], after[0], strict=False)):
        for part, was, now in zip(_PARTS, old, new, strict=True):
            if was != now:
                raise CheckFailure(f"row {row}: the scanner changed the {part} of its request, from {was} to {now}")
    if before != after:
        raise CheckFailure("the scanner changed the batch or the report of changed rows that it was given")
