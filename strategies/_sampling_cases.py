"""Recipes of the sampling contract: plain data that builds a batch and its noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import GREEDY_BELOW, Capability, RaceNoise, SamplingBatch, SamplingNoise
from fairdraw.strategies._arguments import one_of
from fairdraw.strategies._cases import _argument, laid_out
from fairdraw.strategies._recipe import BatchRecipe, PrintsAsCode, Recipe
from fairdraw.strategies.noise import EXPONENTIAL_KINDS, _exponentials, hashed_seeds
from fairdraw.strategies.rows import INVALID_KINDS, TARGET_KINDS, bulk_rng, target_row

FILTER_NEEDS = {"top_k": Capability.TOP_K, "top_p": Capability.TOP_P, "min_p": Capability.MIN_P}
FILTERS: tuple[str, ...] = tuple(FILTER_NEEDS)
"""Names of the filters; each is a field of `SampledRequest`."""


@dataclass(frozen=True, repr=False)
class SampledRequest(Recipe):
    """One request: its row of logits and its parameters.

    Args:
        logits: Shape of the row (`TARGET_KINDS`, `INVALID_KINDS`).
        temperature: Below 1e-5 it is greedy.
        top_k: A larger number means the whole vocabulary; `None` filters nothing, also for `top_p` and `min_p`.
        exponentials: Its row of the race (`EXPONENTIAL_KINDS`; explicit noise only).
        request_seed: It has a per-request seed (seeded noise only).

    Raises:
        ValueError: If a kind is unknown or a parameter out of range.
    """

    logits: str = "flat"
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    exponentials: str = "random"
    request_seed: bool = False

    def __post_init__(self) -> None:
        one_of("SampledRequest", "logits", self.logits, {**TARGET_KINDS, **INVALID_KINDS})
        one_of("SampledRequest", "exponentials", self.exponentials, EXPONENTIAL_KINDS)
        rules = {
            "temperature": (self.temperature >= 0, "at least 0. Use 0 for greedy."),
            "top_k": (self.top_k is None or self.top_k >= 1, "at least 1. Use None for no filter."),
            "top_p": (self.top_p is None or 0 < self.top_p <= 1, "in (0, 1]. Use None for no filter."),
            "min_p": (self.min_p is None or 0 <= self.min_p <= 1, "in [0, 1]. Use None for no filter."),
        }
        for name, (is_valid, rule) in rules.items():
            if not is_valid:
                raise ValueError(f"SampledRequest: {name}={getattr(self, name)}, but it must be {rule}")

    @property
    def greedy(self) -> bool:
        return bool(np.float32(self.temperature) < np.float32(GREEDY_BELOW))


class _DrawnSamplingBatch(PrintsAsCode, SamplingBatch):
    """A batch that Hypothesis prints by its origin."""


@dataclass(frozen=True, repr=False, eq=False)
class _DrawnRace(PrintsAsCode, RaceNoise):
    """Explicit noise that prints as the code that makes it."""

    origin: str = ""

    def __repr__(self) -> str:
        return self.origin


@dataclass(frozen=True, repr=False)
class SamplingCase(BatchRecipe):
    """A batch of the sampling contract and its noise, as data.

    Args:
        explicit: Noise is handed in (`RaceNoise`); otherwise seeded (`SeededNoise`).
        seed: For every bulk number.
        num_rows: Requests of the batch: `requests` are taken in turn, each time with other bulk numbers. 0: once each.

    Raises:
        ValueError: If there is no request or no vocabulary, a word is unknown, or `num_rows` is negative.

    Example:
        >>> SamplingCase(vocab_size=3, requests=(SampledRequest(),)).batch().logits.tolist()
        [[0.0, 0.0, 0.0]]
    """

    vocab_size: int
    requests: tuple[SampledRequest, ...]
    explicit: bool = True
    dtype: str = "float32"
    layout: str = "contiguous"
    seed: int = 0
    num_rows: int = 0

    def __post_init__(self) -> None:
        self._check("SampledRequest()")
        if self.num_rows < 0:
            raise ValueError(f"SamplingCase: num_rows={self.num_rows}, but it must be at least 0. Use 0 for once each.")

    @property
    def rows(self) -> tuple[SampledRequest, ...]:
        """The request of each row of the batch."""
        size = self.num_rows or len(self.requests)
        return (self.requests * (1 + size // len(self.requests)))[:size]

    def batch(self, device: str = "cpu") -> SamplingBatch:
        """Build new tensors."""
        rows = [target_row(r.logits, self.vocab_size, derive_seed(self.seed, i)) for i, r in enumerate(self.rows)]
        logits = torch.from_numpy(np.stack(rows)).to(getattr(torch, self.dtype))
        positions = bulk_rng("positions", self.seed).integers(4096, size=len(rows))
        batch = _DrawnSamplingBatch(
            logits=logits.to(device),
            temperature=torch.tensor([r.temperature for r in self.rows], dtype=torch.float32, device=device),
            top_k=self._filter("top_k", self.vocab_size, torch.int32, device, lambda k: min(k, self.vocab_size)),
            top_p=self._filter("top_p", 1.0, torch.float32, device),
            min_p=self._filter("min_p", 0.0, torch.float32, device),
            positions=torch.tensor(positions, dtype=torch.int64, device=device),
            origin=f"{self!r}.batch({_argument(device)})",
        )
        return laid_out(batch, self.layout)

    def noise(self, device: str = "cpu") -> SamplingNoise:
        """Build fresh noise: exponentials, or seeds with generators in their initial state."""
        if not self.explicit:
            return hashed_seeds(self.seed, (i for i, request in enumerate(self.rows) if request.request_seed))
        rows = [
            _exponentials(request.exponentials, self.vocab_size, bulk_rng("exponential", self.seed, i))
            for i, request in enumerate(self.rows)
        ]
        origin = f"{self!r}.noise({_argument(device)})"
        return _DrawnRace(torch.from_numpy(np.stack(rows)).to(device), origin)

    def _filter(
        self,
        name: str,
        off: float,
        dtype: torch.dtype,
        device: str,
        change: Callable[[Any], Any] = lambda value: value,  # Any: an int or a float
    ) -> torch.Tensor | None:  # [batch_size] any
        """One parameter of all requests; `None` if no request uses it."""
        given = [getattr(request, name) for request in self.rows]
        if all(value is None for value in given):
            return None
        return torch.tensor([off if v is None else change(v) for v in given], dtype=dtype, device=device)
