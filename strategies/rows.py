"""Rows over a vocabulary: the shapes of target logits and draft distributions in practice and at the edges.

A row is named by a *kind* (a word that prints and shrinks) and one seed for its bulk numbers. Kinds are ordered from
simple to adversarial, and those that need no seed come first: Hypothesis shrinks towards them, and a failure that does
not depend on a random number keeps failing while everything else shrinks.
"""

import operator
from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from fairdraw._core.array_types import Row32
from fairdraw._core.seeds import derive_seed
from fairdraw.strategies._arguments import check_interval, check_kinds, one_of
from fairdraw.strategies._sizes import vocab_sizes

__all__ = [
    "DRAFT_KINDS", "INVALID_KINDS", "TARGET_KINDS", "bulk_rng", "bulk_seeds", "draft_row", "logit_rows",
    "probability_row", "probability_rows", "target_row", "twin_ids",
]  # fmt: skip


def bulk_rng(*parts: object) -> np.random.Generator:
    """The generator of bulk numbers for one drawn value.

    Limits:
        NumPy guarantees its streams for one release only: another NumPy may draw other numbers from the same parts.
    """
    return np.random.default_rng(derive_seed(*parts))


_DIGITS = st.integers(0, 63)


@st.composite
def bulk_seeds(draw: st.DrawFn) -> int:
    """Seeds of bulk numbers, 4096 of them, from two small draws.

    Hypothesis mixes integer constants of imported local modules into its draws of wide integers, so one wide draw would
    give a clone, an installed copy and a user's project different cases for the same seed. Small draws are not
    affected.
    """
    return 64 * draw(_DIGITS) + draw(_DIGITS)


def _normal(size: int, rng: np.random.Generator) -> NDArray[np.float32]:
    return rng.normal(0, 2, size).astype(np.float32)


def _zipf(size: int, rng: np.random.Generator) -> NDArray[np.float32]:
    ranks = rng.permutation(size) + 1
    return (-1.1 * np.log(ranks)).astype(np.float32)


def _peaked(size: int, rng: np.random.Generator) -> NDArray[np.float32]:
    logits = rng.normal(0, 1, size)
    logits[rng.integers(size)] += 12
    return logits.astype(np.float32)


def _tied(size: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Two values only, so that greedy and race ties are the rule."""
    return rng.integers(0, 2, size).astype(np.float32)


def _only(size: int, alive: int) -> NDArray[np.float32]:
    logits = np.full(size, -np.inf, np.float32)
    logits[alive] = 0
    return logits


def _half(size: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """About half of the vocabulary filtered out (top-k, a grammar mask)."""
    logits = _normal(size, rng)
    dead = rng.random(size) < 0.5
    dead[rng.integers(size)] = False
    logits[dead] = -np.inf
    return logits


def _wide(size: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Logits so far apart that most probabilities underflow to 0."""
    return rng.normal(0, 40, size).astype(np.float32)


def _twins(size: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Two equal largest logits, one in each half of the vocabulary: a tie between kernel tiles."""
    logits = _normal(size, rng)
    logits[twin_ids(size, rng)] = logits.max() + 1
    return logits


def twin_ids(size: int, rng: np.random.Generator) -> list[int]:
    """Two ids, one in each half of the vocabulary (the same one if it has one token)."""
    return [int(rng.integers(max(size // 2, 1))), int(rng.integers(size // 2, size))]


def _denormal(size: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """All but one token so far below that their probabilities are denormal: between 2**-149 and 2**-127."""
    logits = rng.uniform(-102, -89, size).astype(np.float32)
    logits[rng.integers(size)] = 0
    return logits


def _nan(size: int, rng: np.random.Generator) -> NDArray[np.float32]:
    logits = _normal(size, rng)
    logits[rng.integers(size)] = np.nan
    return logits


TARGET_KINDS: dict[str, Callable[[int, np.random.Generator], NDArray[np.float32]]] = {
    "flat": lambda size, rng: np.zeros(size, np.float32),
    "last-only": lambda size, rng: _only(size, size - 1),  # what a mishandled tail tile loses
    "one-hot": lambda size, rng: _only(size, int(rng.integers(size))),
    "tied": _tied,
    "normal": _normal,
    "zipf": _zipf,
    "peaked": _peaked,
    "half": _half,
    "wide": _wide,
    "twins": _twins,
    "denormal": _denormal,
}
"""Logit rows that have a distribution, in each of `DTYPES`."""

INVALID_KINDS: dict[str, Callable[[int, np.random.Generator], NDArray[np.float32]]] = {
    "empty": lambda size, rng: np.full(size, -np.inf, np.float32),
    "nan": _nan,
}
"""Logit rows without a distribution (all -inf; one NaN): a documented result is expected, never an id out of range."""


_ALL_TARGET_KINDS = {**TARGET_KINDS, **INVALID_KINDS}

_WITHOUT_NUMBERS = frozenset(
    ("flat", "last-only", "empty", "uniform", "elsewhere", "same", "reversed", "rounded", "dominating")
)
"""Kinds of rows that draw nothing. Most rows are of these, and a generator costs as much as such a row."""

_IDLE = np.random.default_rng(0)
"""Given to them."""


def _rng_of(what: str, kind: str, seed: int) -> np.random.Generator:
    return _IDLE if kind in _WITHOUT_NUMBERS else bulk_rng(what, kind, operator.index(seed))


def target_row(kind: str, vocab_size: int, seed: int) -> NDArray[np.float32]:  # [vocab_size] float32, logits
    """One row of target logits.

    Raises:
        ValueError: If `kind` is unknown or `vocab_size < 1`.
    """
    one_of("target_row", "kind", kind, _ALL_TARGET_KINDS)
    if vocab_size < 1:
        raise ValueError(f"target_row: vocab_size={vocab_size}, but it must be at least 1. Use vocab_sizes().")
    return _ALL_TARGET_KINDS[kind](vocab_size, _rng_of("target", kind, seed))


def _normalised(weights: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.asarray(weights / weights.sum(), np.float32)


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    wide = np.asarray(logits, np.float64)
    return _normalised(np.exp(wide - wide.max()))


def _same(target_probs: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """The target distribution, bit for bit (a flat row where the target has none)."""
    if not np.isfinite(target_probs).all():
        return _uniform(target_probs, rng)
    return target_probs.copy()


def _uniform(target_probs: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    return _normalised(np.ones(target_probs.size))


def _reversed(target_probs: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """The target's probabilities in reverse order: many rejections."""
    return _same(target_probs, rng)[::-1].copy()


def _elsewhere(target_probs: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """All draft probability where the target has none, or on its least likely token if all are possible."""
    dead = ~(target_probs > 0)
    if not dead.any():
        dead = np.arange(target_probs.size) == int(np.argmin(target_probs))
    return _normalised(dead.astype(np.float64))


def _rounded(target_probs: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """The target distribution through bfloat16: it sums to nearly 1, as returned by a drafter in half precision."""
    bits = _same(target_probs, rng).view(np.uint32)
    return ((bits + 0x8000) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def _dominating(target_probs: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """Never below the target (rounding made it so): a rejection then leaves no residual."""
    return np.nextafter(_same(target_probs, rng), np.float32(2)).astype(np.float32)


def _denormal_draft(target_probs: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """One token has nearly all probability, the others are denormal: target / draft overflows to inf."""
    probs = np.full(target_probs.size, 2.0**-140, np.float32)
    probs[rng.integers(target_probs.size)] = 1
    return probs


DRAFT_KINDS: dict[str, Callable[[NDArray[np.float32], np.random.Generator], NDArray[np.float32]]] = {
    "uniform": _uniform,
    "elsewhere": _elsewhere,
    "same": _same,
    "reversed": _reversed,
    "rounded": _rounded,
    "dominating": _dominating,
    "independent": lambda target_probs, rng: _softmax(_normal(target_probs.size, rng)),
    "sparse": lambda target_probs, rng: _softmax(_half(target_probs.size, rng)),
    "denormal": _denormal_draft,
}
"""Draft distributions, each made from the target distribution of its position; a row sums to 1 up to rounding."""


def draft_row(kind: str, target_probs: Row32, seed: int) -> Row32:
    """One row of draft probabilities for a target distribution.

    Raises:
        ValueError: If `kind` is unknown.
    """
    one_of("draft_row", "kind", kind, DRAFT_KINDS)
    return DRAFT_KINDS[kind](np.asarray(target_probs, np.float32), _rng_of("draft", kind, seed))


def probability_row(target: str, vocab_size: int, seed: int, draft: str = "same") -> Row32:
    """One row of probabilities: the distribution of a target row, or a draft distribution for it.

    Raises:
        ValueError: If `target` has no distribution or is unknown, `draft` is unknown, or `vocab_size < 1`.
    """
    one_of("probability_row", "target", target, TARGET_KINDS)
    return draft_row(draft, _softmax(target_row(target, vocab_size, seed)), seed)


@st.composite
def logit_rows(
    draw: st.DrawFn, min_vocab_size: int = 1, max_vocab_size: int = 1025, *, kinds: Sequence[str] | None = None
) -> Row32:
    """Rows of target logits. A failing row prints as code; unless tiny, as the call of `target_row` that makes it.

    Args:
        kinds: `TARGET_KINDS` if `None`; `INVALID_KINDS` (all -inf, NaN) only if named.

    Raises:
        TypeError, ValueError: If a kind is unknown or the bounds are not in order; when the first row is drawn.
    """
    check_interval("logit_rows", "min_vocab_size", min_vocab_size, "max_vocab_size", max_vocab_size, at_least=1)
    chosen = check_kinds("logit_rows", "kinds", kinds, tuple(TARGET_KINDS), also=tuple(INVALID_KINDS))
    size = vocab_sizes(min_vocab_size, max_vocab_size)
    return draw(st.builds(target_row, st.sampled_from(chosen), size, bulk_seeds()))


@st.composite
def probability_rows(
    draw: st.DrawFn,
    min_vocab_size: int = 1,
    max_vocab_size: int = 1025,
    *,
    targets: Sequence[str] | None = None,
    drafts: Sequence[str] | None = None,
) -> Row32:
    """Rows of probabilities, rounded ones whose sum is not 1 to the last bit among them.

    A failing row prints as code; unless tiny, as the call of `probability_row` that makes it.

    Args:
        targets: Shape of the target that the row belongs to (`TARGET_KINDS`).
        drafts: How the row differs from that target distribution (`DRAFT_KINDS`; `same` does not differ).

    Raises:
        TypeError, ValueError: If a kind is unknown or the bounds are not in order; when the first row is drawn.
    """
    check_interval("probability_rows", "min_vocab_size", min_vocab_size, "max_vocab_size", max_vocab_size, at_least=1)
    shapes = check_kinds("probability_rows", "targets", targets, tuple(TARGET_KINDS))
    changes = check_kinds("probability_rows", "drafts", drafts, ("same", *(k for k in DRAFT_KINDS if k != "same")))
    size = vocab_sizes(min_vocab_size, max_vocab_size)
    return draw(st.builds(probability_row, st.sampled_from(shapes), size, bulk_seeds(), st.sampled_from(changes)))
