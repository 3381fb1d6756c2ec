"""Randomised probability integral transform: tokens of unrelated rows become one uniform sample.

A token `y` of a row with distribution `probs`, its tokens put in some order, becomes `u = F(y-) + w * probs[y]`: the
mass before it, and a uniform share `w` of its own. If every token follows its row's distribution, all `u` are
independent and uniform on [0, 1], *whatever the distributions*: ragged batches, temperatures per request, and 151936
tokens all pool exactly. Rows may even depend on earlier tokens: each `u` is uniform given
everything before it, so an e-process over the pooled counts keeps its error rate.

The order decides what can be seen, and one order is not enough. By rank (most probable first) a wrong temperature or a
lost tail moves all rows the same way. By id a lost vocabulary tile does. Losing 1 % of tail mass is invisible by id.

Limits:
    `u` tests each token given its prefix. A dependence that leaves those distributions intact (rows that share noise)
    is invisible here; `_dependence` and `_slices` see it.
"""

from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairdraw.statistical._count_tables import NO_CELL, Table, count_codes
from fairdraw.statistical._validation import check_probs, refuse

IMPOSSIBLE = -1.0
"""The transform of a token that its row cannot draw."""


class Order(StrEnum):
    """How a row's tokens are put in order."""

    RANK = "rank"
    ID = "id"


def randomised_pit(
    probs: ArrayLike,  # [num_samples, vocab_size] float64
    token_ids: NDArray[np.integer],  # [num_samples] int32
    uniforms: NDArray[np.float64],  # [num_samples] float64, in [0, 1)
    order: Order,
) -> NDArray[np.float64]:  # [num_samples] float64
    """The transform of one token per row; -1 for a token that its row cannot draw (or that is no token).

    Args:
        probs: The distribution of each row.
        uniforms: From the harness, independent of the sampler.
        order: Ties in rank are ordered by id.

    Raises:
        ValueError: If a row is not a distribution, or lengths disagree.
    """
    rows = check_probs("randomised_pit", "probs", probs)
    if not rows.shape[0] == token_ids.shape[0] == uniforms.shape[0]:
        given = f"{rows.shape[0]} rows, {token_ids.shape[0]} tokens, {uniforms.shape[0]} uniforms"
        raise refuse("randomised_pit", given, "there must be as many of each", "One token and one uniform per row.")
    return pit_of_rows(rows, token_ids, uniforms, order)


def pit_of_rows(
    probs: NDArray[np.float64],  # [num_samples, vocab_size] float64
    token_ids: NDArray[np.integer],  # [num_samples] int
    uniforms: NDArray[np.float64],  # [num_samples] float64, in [0, 1)
    order: Order,
) -> NDArray[np.float64]:  # [num_samples] float64
    """The same of rows that are distributions, or hold nothing at all; nothing is checked."""
    ids = np.arange(probs.shape[1])
    known = (token_ids >= 0) & (token_ids < ids.size)
    tokens = np.where(known, token_ids, 0)[:, None]
    own = np.take_along_axis(probs, tokens, axis=1)
    before = ids < tokens
    if order is Order.RANK:
        before = (probs > own) | ((probs == own) & before)
    transform = probs.sum(axis=1, where=before) + uniforms * own[:, 0]
    return np.where(known & (own[:, 0] > 0), np.minimum(transform, np.nextafter(1.0, 0.0)), IMPOSSIBLE)


def starting_mass(
    probs: NDArray[np.float64],  # [num_distributions, vocab_size] float64
    order: Order,
) -> NDArray[np.float64]:  # [num_distributions, vocab_size] float64
    """The mass before each token, for rows that are used many times."""
    if order is Order.ID:
        return np.asarray(np.cumsum(probs, axis=1) - probs)
    ranked = np.argsort(-probs, axis=1, kind="stable")
    sorted_probs = np.take_along_axis(probs, ranked, axis=1)
    starts = np.empty_like(probs)
    np.put_along_axis(starts, ranked, np.cumsum(sorted_probs, axis=1) - sorted_probs, axis=1)
    return starts


class PitCells:
    """Cells of the unit interval: equal ones, the last of them halved again and again towards 1.

    In rank order the end of the interval is the tail of the vocabulary. Halving makes "all tokens too rare to count,
    together" a cell of its own, where a loss is large in relation to what is expected.

    Args:
        num_equal: Equal cells.
        num_halvings: How often the last one is halved.
    """

    def __init__(self, num_equal: int = 32, num_halvings: int = 8) -> None:
        tail = 1 - 0.5 ** np.arange(1, num_halvings + 1) / num_equal
        self._edges = np.concatenate([np.arange(num_equal) / num_equal, tail])

    def table(self, num_draws: int, observed_per_draw: float = 1.0, event_prob: float | None = None) -> Table:
        """The table of these cells. Which impossible tokens were seen is not kept: every row has its own distribution.

        Args:
            event_prob: `observed_per_draw` if `None`.
        """
        return Table(
            np.diff(np.append(self._edges, 1.0)),
            label=self._label,
            num_draws=num_draws,
            observed_per_draw=observed_per_draw,
            event_prob=observed_per_draw if event_prob is None else event_prob,
            outside="a token of probability 0 in its own row, or outside of the vocabulary,",
        )

    def _label(self, cell: int) -> str:
        """The interval of a cell, for reports."""
        high = 1.0 if cell + 1 == self._edges.size else self._edges[cell + 1]
        return f"mass {self._edges[cell]:.5g} to {high:.5g}"

    def count(self, transform: NDArray[np.float64]) -> NDArray[np.int64]:  # [num_cells + 1] int64
        """The count table of transformed tokens; impossible ones are counted in the last entry."""
        cells = np.searchsorted(self._edges, transform, side="right") - 1
        return count_codes(np.where(transform < 0, NO_CELL, cells), self._edges.size)
