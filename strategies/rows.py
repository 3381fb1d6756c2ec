"""Rows over a vocabulary: the shapes that target logits and draft laws take in the field and at its edges.

A row is named by a *kind* (a word that prints and shrinks) and one seed for its bulk numbers.
Kinds are ordered from simple to strange, so that Hypothesis shrinks towards the simple end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from fairdraw.seeds import derive_seed

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["DRAFT_KINDS", "LAWLESS_KINDS", "TARGET_KINDS", "bulk_rng", "draft_row", "target_row"]

Row = "NDArray[np.float32]"


def bulk_rng(*parts: object) -> np.random.Generator:
    """The generator of bulk numbers for one drawn value."""
    return np.random.default_rng(derive_seed(*parts))


def _flat(size: int, rng: np.random.Generator) -> NDArray[np.float32]:
    return np.zeros(size, np.float32)


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


def _one_hot(size: int, rng: np.random.Generator) -> NDArray[np.float32]:
    return _only(size, int(rng.integers(size)))


def _last_only(size: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """All mass on the last id: what a mishandled tail tile loses."""
    return _only(size, size - 1)


def _half(size: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """About half of the vocabulary filtered out (top-k, a grammar mask)."""
    logits = _normal(size, rng)
    dead = rng.random(size) < 0.5
    dead[rng.integers(size)] = False
    logits[dead] = -np.inf
    return logits


def _wide(size: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Logits so far apart that most probabilities are denormal or underflow to 0."""
    return rng.normal(0, 40, size).astype(np.float32)


def _empty(size: int, rng: np.random.Generator) -> NDArray[np.float32]:
    return np.full(size, -np.inf, np.float32)


def _nan(size: int, rng: np.random.Generator) -> NDArray[np.float32]:
    logits = _normal(size, rng)
    logits[rng.integers(size)] = np.nan
    return logits


TARGET_KINDS: dict[str, Callable[[int, np.random.Generator], NDArray[np.float32]]] = {
    "flat": _flat,
    "normal": _normal,
    "zipf": _zipf,
    "peaked": _peaked,
    "tied": _tied,
    "one-hot": _one_hot,
    "last-only": _last_only,
    "half": _half,
    "wide": _wide,
}
"""Logit rows that are laws."""

LAWLESS_KINDS: dict[str, Callable[[int, np.random.Generator], NDArray[np.float32]]] = {"empty": _empty, "nan": _nan}
"""Logit rows without a law (all -inf; one NaN): a documented result is expected, never an id out of range."""


def target_row(kind: str, vocab_size: int, seed: int) -> NDArray[np.float32]:  # [vocab_size] float32, logits
    """One row of target logits.

    Raises:
        ValueError: If `kind` is unknown or `vocab_size < 1`.
    """
    makers = {**TARGET_KINDS, **LAWLESS_KINDS}
    if kind not in makers:
        raise ValueError(f"target_row: kind={kind!r}, but it must be a row kind. Use one of: {', '.join(makers)}.")
    if vocab_size < 1:
        raise ValueError(f"target_row: vocab_size={vocab_size}, but it must be at least 1. Use vocab_sizes().")
    return makers[kind](vocab_size, bulk_rng("target", kind, seed))


def _normalised(weights: NDArray[np.float64]) -> NDArray[np.float32]:
    return (weights / weights.sum()).astype(np.float32)


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    wide = np.asarray(logits, np.float64)
    return _normalised(np.exp(wide - wide.max()))


def _same(target_probs: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """The target's own law, bit for bit (a flat row where the target has none)."""
    if not np.isfinite(target_probs).all():
        return _uniform(target_probs, rng)
    return target_probs.copy()


def _uniform(target_probs: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    return _normalised(np.ones(target_probs.size))


def _independent(target_probs: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    return _softmax(_normal(target_probs.size, rng))


def _reversed(target_probs: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """The target's probabilities in reverse order: many rejections."""
    return _same(target_probs, rng)[::-1].copy()


def _sparse(target_probs: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    return _softmax(_half(target_probs.size, rng))


def _elsewhere(target_probs: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """All draft mass where the target has none, or on its least likely token if it has mass everywhere."""
    dead = ~(target_probs > 0)
    if not dead.any():
        dead = np.arange(target_probs.size) == int(np.argmin(target_probs))
    return _normalised(dead.astype(np.float64))


def _rounded(target_probs: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """The target's law through bfloat16: sums to nearly 1, as a drafter in half precision returns it."""
    bits = _same(target_probs, rng).view(np.uint32)
    return ((bits + 0x8000) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def _dominating(target_probs: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """Never below the target (rounding made it so): a rejection then leaves no residual."""
    return np.nextafter(_same(target_probs, rng), np.float32(2)).astype(np.float32)


DRAFT_KINDS: dict[str, Callable[[NDArray[np.float32], np.random.Generator], NDArray[np.float32]]] = {
    "uniform": _uniform,
    "independent": _independent,
    "same": _same,
    "reversed": _reversed,
    "sparse": _sparse,
    "elsewhere": _elsewhere,
    "rounded": _rounded,
    "dominating": _dominating,
}
"""Draft laws, each given the target law of its position."""


def draft_row(
    kind: str,
    target_probs: NDArray[np.float32],  # [vocab_size] float32
    seed: int,
) -> NDArray[np.float32]:  # [vocab_size] float32
    """One row of draft probabilities beside a target law.

    Raises:
        ValueError: If `kind` is unknown.
    """
    if kind not in DRAFT_KINDS:
        raise ValueError(f"draft_row: kind={kind!r}, but it must be a draft kind. Use one of: {', '.join(DRAFT_KINDS)}.")
    return DRAFT_KINDS[kind](np.asarray(target_probs, np.float32), bulk_rng("draft", kind, seed))
