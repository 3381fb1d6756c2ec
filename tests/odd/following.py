"""Ways to follow a batch that scanners of both contracts may choose."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from fairdraw._mutants._lifecycle_scanners import Copy, Follower, FollowsLate, Scanner, combined
from fairdraw.contracts import Capabilities, RowChanges


class RecountsEverything(Follower):
    """Reads everything anew in each step."""

    def standing(self, copy: Copy) -> int:
        return 0


class ReadsSomeRows(Follower):
    """Leaves requests without penalties, or without a budget, unread."""

    def reads(self, copy: Copy) -> bool:
        return bool(copy.entered.params != type(copy.entered.params)())


class RebuildsAfterEveryChange(Follower):
    """Discards what it read whenever any row changes."""

    def sync(self, changes: RowChanges) -> None:
        super().sync(changes)
        self.rows = {row: Copy(copy.entered) for row, copy in self.rows.items()}


_RESCANS = Capabilities.of({"new-tokens-only": "reads everything anew when rows change"})
_WAYS = (
    ("recounts everything", RecountsEverything, _RESCANS),
    ("reads some rows", ReadsSomeRows, Capabilities()),
    ("follows late", FollowsLate, Capabilities()),
    ("rebuilds after every change", RebuildsAfterEveryChange, _RESCANS),
)


def scanners_of(follower: type[Follower], contract: Literal["penalties", "thinking_budget"]) -> Iterator[Scanner]:
    """Yield a scanner of each way, with the arithmetic of `follower`."""
    for name, way, can in _WAYS:
        yield Scanner(name, combined(way, follower), contract, capabilities=can)
