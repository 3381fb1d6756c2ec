"""Noise for any batch: random, at the edges where comparisons flip, and with ties in the race.

Both strategies take a batch, so they serve tests that build their batches elsewhere.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray

from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import PLACEHOLDER_TOKEN_ID, ExplicitNoise, SeededNoise, SpecDecodeBatch
from fairdraw.strategies._arguments import check_kinds
from fairdraw.strategies._recipe import PrintsAsCode, Recipe
from fairdraw.strategies.rows import bulk_rng, bulk_seeds, twin_ids

T = TypeVar("T")

__all__ = ["EXPONENTIAL_KINDS", "UNIFORM_KINDS", "NoiseRecipe", "explicit_noises", "hashed_seeds", "seeded_noises"]

_LARGEST = 1 - 2.0**-53

_UNIFORMS: dict[str, Callable[[float, float], float]] = {  # of target/draft, and of a random number
    "half": lambda ratio, random: 0.5,
    "largest": lambda ratio, random: _LARGEST,
    "zero": lambda ratio, random: 0.0,
    "random": lambda ratio, random: random,
    "ratio": lambda ratio, random: ratio,
    "above": lambda ratio, random: min(float(np.nextafter(ratio, 1.0)), _LARGEST),
    "below": lambda ratio, random: float(np.nextafter(ratio, 0.0)),
    "smallest": lambda ratio, random: 2.0**-53,
    "largest-float32": lambda ratio, random: 1 - 2.0**-24,
    "denormal": lambda ratio, random: 2.0**-1074,
}
UNIFORM_KINDS = tuple(_UNIFORMS)
"""The acceptance uniform: 1/2, 1 - 2**-53, 0, at random, exactly target/draft, one float64 step above or below that,
2**-53 (the smallest that torch.rand draws), 1 - 2**-24, the smallest positive float64."""

_RACES: dict[str, Callable[[NDArray[np.float64], np.random.Generator], NDArray[np.float64]]] = {  # of random ones
    "equal": lambda random, rng: np.ones_like(random),
    "random": lambda random, rng: random,
    "coarse": lambda random, rng: rng.choice([0.5, 1.0, 2.0], size=random.size),
    "tiny": lambda random, rng: random * 1e-30,
    "denormal": lambda random, rng: np.maximum(random, 0.01) * 1e-40,
    "huge": lambda random, rng: random * 1e30,
    "twins": lambda random, rng: np.where(np.isin(np.arange(random.size), twin_ids(random.size, rng)), 0.5, 1.0),
}
EXPONENTIAL_KINDS = tuple(_RACES)
"""The race's exponentials: all 1, at random, powers of two (ties), near 1e-30, denormal (reciprocal overflows), near
1e30, two equal smallest ones far apart (a tie between kernel tiles)."""

# Beyond, numbers are used again. Primes, different ones: no block of rows has the same noise as another.
_DISTINCT_UNIFORMS = 263
_DISTINCT_EXPONENTIALS = 269


@dataclass(frozen=True, repr=False, eq=False)
class _DrawnNoise(PrintsAsCode, ExplicitNoise):
    """Explicit noise that prints as the code that makes it."""

    origin: str = ""

    def __repr__(self) -> str:
        return self.origin


@dataclass(frozen=True, repr=False)
class NoiseRecipe(Recipe):
    """Explicit noise for a batch, as data.

    Args:
        uniforms: Kinds of the acceptance uniforms (`UNIFORM_KINDS`), one per draft token; used in turn if there are
            fewer kinds than draft tokens.
        exponentials: Kinds of the race's exponentials (`EXPONENTIAL_KINDS`), one per request, likewise in turn.
        seed: For every bulk number.

    Raises:
        ValueError: If a kind is unknown, or there is none.
    """

    uniforms: tuple[str, ...] = ("random",)
    exponentials: tuple[str, ...] = ("random",)
    seed: int = 0

    def __post_init__(self) -> None:
        check_kinds("NoiseRecipe", "uniforms", self.uniforms, UNIFORM_KINDS)
        check_kinds("NoiseRecipe", "exponentials", self.exponentials, EXPONENTIAL_KINDS)
        object.__setattr__(self, "seed", operator.index(self.seed))

    def noise(self, batch: SpecDecodeBatch, *, origin: str | None = None) -> ExplicitNoise:
        """Build the tensors, on the batch's device.

        Args:
            origin: Code to be printed for the noise; by default this recipe, applied to a `batch`.
        """
        uniforms = torch.tensor(self._uniforms(batch), dtype=torch.float64, device=batch.device)
        exponentials = torch.from_numpy(self._exponentials(batch)).to(batch.device)
        return _DrawnNoise(uniforms, exponentials, origin or f"{self!r}.noise(batch)")

    def _uniforms(self, batch: SpecDecodeBatch) -> list[float]:
        kinds = [self.uniforms[row % len(self.uniforms)] for row in range(batch.num_tokens)]
        ratios = _ratios(batch) if {"ratio", "above", "below"}.intersection(kinds) else [0.0] * len(kinds)
        random = [
            bulk_rng("uniform", self.seed, row).random() if "random" in kinds[row::_DISTINCT_UNIFORMS] else 0.0
            for row in range(min(len(kinds), _DISTINCT_UNIFORMS))
        ]
        return [_UNIFORMS[kind](ratios[row], random[row % _DISTINCT_UNIFORMS]) for row, kind in enumerate(kinds)]

    def _exponentials(self, batch: SpecDecodeBatch) -> NDArray[np.float32]:  # [batch_size, vocab_size] float32
        kinds = [self.exponentials[i % len(self.exponentials)] for i in range(batch.batch_size)]
        keys = [(kind, i % _DISTINCT_EXPONENTIALS) for i, kind in enumerate(kinds)]
        rows = {
            key: _exponentials(key[0], batch.vocab_size, bulk_rng("exponential", self.seed, key[1]))
            for key in dict.fromkeys(keys)
        }
        return np.stack([rows[key] for key in keys])


def _ratios(batch: SpecDecodeBatch) -> list[float]:
    """target / draft of every drafted token, as the batch's own device computes it; 0 if it can't be accepted.

    The float32 quotient, kept below 1 so that it is a uniform.
    """
    rows, ids = np.arange(batch.num_tokens), batch.draft_token_ids.cpu().numpy()
    target = batch.target_probs().cpu().numpy()[rows, ids]
    draft = np.ones_like(target) if batch.draft_probs is None else batch.draft_probs.cpu().numpy()[rows, ids]
    is_possible = (ids != PLACEHOLDER_TOKEN_ID) & (draft > 0) & (target > 0)
    with np.errstate(over="ignore"):
        ratios = np.divide(target, draft, out=np.zeros_like(target), where=is_possible)
    return [min(float(ratio), _LARGEST) for ratio in ratios]


def _exponentials(kind: str, size: int, rng: np.random.Generator) -> NDArray[np.float32]:  # [size] float32
    return _RACES[kind](np.maximum(rng.exponential(size=size), 1e-8), rng).astype(np.float32)


SEED_KINDS: dict[str, Callable[[int, int], int]] = {
    "hashed": lambda seed, i: derive_seed("request", seed, i),
    "zero": lambda seed, i: 0,
    "equal": lambda seed, i: derive_seed("equal requests", seed),
    "counted": lambda seed, i: seed + i,
    "32-bit": lambda seed, i: 2**32 - 1 - i,
    "beyond-32-bits": lambda seed, i: 2**32 + i,
    "largest": lambda seed, i: 2**63 - 1 - i,
}
"""The per-request seed: hashed, 0, one for all requests of this kind, counted up from the case's seed, at most
2**32 - 1, at least 2**32, at most 2**63 - 1."""


def hashed_seeds(seed: int, requests: Iterable[int]) -> SeededNoise:
    """Seeded noise whose seeds follow from `seed`, with a per-request seed for each of `requests`."""
    return seeds_of_kinds(seed, dict.fromkeys(requests, "hashed"))


def seeds_of_kinds(seed: int, kinds: Mapping[int, str]) -> SeededNoise:
    """Seeded noise whose seeds follow from `seed`, with a per-request seed for each request that has a kind."""
    return SeededNoise(derive_seed("call", seed), {i: SEED_KINDS[kind](seed, i) for i, kind in kinds.items()})


# Longer patterns would cost a draw per token; used in turn, these reach every row of a batch of any size.
_LONGEST_PATTERN = 16


def _pattern(kinds: Sequence[T], length: int) -> st.SearchStrategy[list[T]]:
    return st.lists(st.sampled_from(kinds), min_size=1, max_size=min(max(length, 1), _LONGEST_PATTERN))


def _check_batch_argument(function: str, batch: object) -> None:
    if not isinstance(batch, SpecDecodeBatch):
        raise TypeError(
            f"{function}: batch={type(batch).__name__}, but it must be a SpecDecodeBatch. "
            "Draw one first: batch = data.draw(spec_decode_batches())."
        )


@st.composite
def explicit_noises(
    draw: st.DrawFn,
    batch: SpecDecodeBatch,
    *,
    uniforms: Sequence[str] | None = None,
    exponentials: Sequence[str] | None = None,
) -> ExplicitNoise:
    """Explicit noise for `batch`, adversarial kinds among it; prints as code over the name `batch`.

    Args:
        uniforms: Kinds of the acceptance uniforms (`UNIFORM_KINDS`, all of them if `None`).
        exponentials: Kinds of the race's exponentials (`EXPONENTIAL_KINDS`).

    Raises:
        TypeError, ValueError: If `batch` is no batch, or a kind is unknown; when the first noise is drawn.

    Example:
        >>> from hypothesis import given, strategies as st
        >>> @given(st.data())
        ... def test_mine(data):
        ...     batch = data.draw(spec_decode_batches())
        ...     noise = data.draw(explicit_noises(batch))
    """
    _check_batch_argument("explicit_noises", batch)
    of_tokens = check_kinds("explicit_noises", "uniforms", uniforms, UNIFORM_KINDS)
    of_requests = check_kinds("explicit_noises", "exponentials", exponentials, EXPONENTIAL_KINDS)
    recipe = NoiseRecipe(
        uniforms=tuple(draw(_pattern(of_tokens, batch.num_tokens))),
        exponentials=tuple(draw(_pattern(of_requests, batch.batch_size))),
        seed=draw(bulk_seeds()),
    )
    return recipe.noise(batch)


@st.composite
def seeded_noises(draw: st.DrawFn, batch: SpecDecodeBatch, *, request_seed: bool | None = None) -> SeededNoise:
    """Seeds for `batch`; prints as code.

    Args:
        request_seed: Every request has a per-request seed (`True`), none has (`False`), or some have (`None`).

    Raises:
        TypeError: If `batch` is no batch; when the first noise is drawn.
    """
    _check_batch_argument("seeded_noises", batch)
    pattern = draw(_pattern((False, True) if request_seed is None else (request_seed,), batch.batch_size))
    own = [i for i in range(batch.batch_size) if pattern[i % len(pattern)]]
    return hashed_seeds(draw(bulk_seeds()), own)
