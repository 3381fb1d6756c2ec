"""Wide batches: every pair of what a request may have.

Hypothesis prefers small things, and a failure needs a small example. So a wide batch takes only a few draws: its shape,
a part of it, and one seed. All else follows from the seed by hashing, within what a check has asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairdraw._core.seeds import derive_seed
from fairdraw.protocols import MAX_SPEC_LEN
from fairdraw.strategies._cases import DraftRecipe, RequestRecipe
from fairdraw.strategies._covering import covering_rows, places_of_all
from fairdraw.strategies.noise import SEED_KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from hypothesis import strategies as st

    from fairdraw.strategies._narrowing import CaseSpace

    T = TypeVar("T")

Requests = tuple[RequestRecipe, ...]

FEW = "few"
"""The width of a batch whose requests Hypothesis draws one by one."""

TEMPERATURES = (1.0, 0.5, 2.0**-126, 1.5, 1e-6, 100.0, 0.999)
"""Of random requests. The smallest normal float32 is the edge of greedy, which is exactly 0."""

_COUNTS = (2, 0, 1, 3, 5, 8)

# How many different values each parameter of a request has: number of drafts, greedy, seed, temperature, exponentials,
# which drafts. The same for every check, so that the rows are computed once; a check with fewer values repeats them.
_VALUES = (len(_COUNTS), 2, len(SEED_KINDS) + 1, len(TEMPERATURES), 6, 5)
_ARRAYS = 3


class _Maker:
    """Requests of one space, by number. Equal numbers make equal requests."""

    def __init__(self, space: CaseSpace, seed: int) -> None:
        self.space, self.seed = space, seed
        self.rows = covering_rows(_VALUES, seed=seed % _ARRAYS)
        self.fixed_count = None if space.is_ragged else self.count(self.rows[seed % len(self.rows)][0])

    def count(self, number: int) -> int:
        """A number of drafts within what the sampler takes and the check needs."""
        low, high = self.space.num_drafts
        most = MAX_SPEC_LEN if self.space.takes_long_drafts else max(8, low)
        return min(max(_COUNTS[number % len(_COUNTS)], low, int(not self.space.is_ragged)), most if high else 0)

    def draft(self, *parts: object) -> DraftRecipe:
        """Any of the kinds that the check wants."""
        kinds = self.space.kinds
        words = (kinds.targets, kinds.drafts, kinds.tokens, kinds.uniforms)
        number = derive_seed("draft", self.seed, *parts)
        chosen = []
        for choices in words:
            number, place = divmod(number, len(choices))
            chosen.append(choices[place])
        return DraftRecipe(*chosen)

    def request(self, number: int) -> RequestRecipe:
        """A row of the covering array."""
        count, greedy, seed, temperature, exponentials, which = self.rows[number % len(self.rows)]
        length = self.count(count) if self.fixed_count is None else self.fixed_count
        drafts = tuple(self.draft(number, which, position) for position in range(length))
        return self._with(drafts, greedy, seed, temperature, exponentials)

    def _with(
        self, drafts: tuple[DraftRecipe, ...], greedy: int, seed: int, temperature: int, exponentials: int
    ) -> RequestRecipe:
        space = self.space
        is_seeded = _of(space.request_seed, min(seed, 1))
        return RequestRecipe(
            drafts,
            _of(space.greedy, greedy),
            _of(space.exponentials, exponentials),
            is_seeded,
            TEMPERATURES[temperature],
            tuple(SEED_KINDS)[max(seed - 1, 0)] if is_seeded else "hashed",
        )


CERTAIN = DraftRecipe(target="one-hot", draft="same", token="likely", uniform="half")
"""Accepted by every request, whatever the noise."""


def _of(choices: Sequence[T], number: int) -> T:
    return choices[number % len(choices)]


def _covering(draw: st.DrawFn, space: CaseSpace, seed: int) -> Requests:
    """All rows of a covering array; fewer of them while it shrinks."""
    maker = _Maker(space, seed)
    return tuple(map(maker.request, places_of_all(draw, len(maker.rows), space.num_requests[0])))


WIDTHS: dict[str, Callable[[st.DrawFn, CaseSpace, int], Requests]] = {"covering": _covering}
"""Batches of about 50 requests that have every pair of parameters."""


def most_tokens(width: str, space: CaseSpace) -> tuple[int, int]:
    """Bounds of the vocabulary of a batch of this width: a wide batch of a large vocabulary would take seconds."""
    low, high = space.vocab_sizes
    return low, high if width == FEW else max(low, min(high, 1025))
