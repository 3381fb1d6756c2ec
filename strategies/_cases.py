"""Recipes of the rejection contract: plain data that builds a batch and its noise.

A recipe prints as code, shrinks, is stored in a crash file, and builds the same tensors on every machine:
bulk numbers come from NumPy generators seeded by hashing the recipe's seed.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fairdraw.protocols import PLACEHOLDER_TOKEN_ID, ExplicitNoise, Noise, SeededNoise, SpecDecodeBatch
from fairdraw.seeds import derive_seed
from fairdraw.strategies.rows import bulk_rng, draft_row, target_row

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["EXPONENTIAL_KINDS", "TOKEN_KINDS", "UNIFORM_KINDS", "DraftRecipe", "RejectionCase", "RequestRecipe"]

TOKEN_KINDS = ("likely", "drawn", "unlikely", "first", "last", "any", "placeholder")
"""Which token is drafted: the target's argmax, one drawn from the draft law, the target's argmin, id 0, the last id, any, -1."""

UNIFORM_KINDS = ("random", "half", "zero", "smallest", "ratio", "above", "below", "largest")
"""The acceptance uniform: at random, 1/2, 0, 2**-53, exactly target/draft, one float64 ulp either side, 1 - 2**-53."""

EXPONENTIAL_KINDS = ("random", "equal", "coarse", "tiny", "denormal", "huge")
"""The race's exponentials: at random, all 1, powers of two (ties), near 1e-30, denormal (reciprocal overflows), near 1e30."""

LAYOUTS = ("contiguous", "transposed", "sliced", "huge-stride")
"""How target logits lie in memory."""

DTYPES = ("float32", "bfloat16", "float16")
"""Type of the target logits."""

_LARGEST_UNIFORM = 1 - 2.0**-53
_SMALLEST_UNIFORM = 2.0**-53


class _Brief:
    """A repr without the fields that have their default: the shortest code that builds the same value."""

    def __repr__(self) -> str:
        shown = [
            f"{f.name}={getattr(self, f.name)!r}"
            for f in fields(self)  # type: ignore[arg-type]  # every user of this mixin is a dataclass
            if f.default is dataclasses.MISSING or getattr(self, f.name) != f.default
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, repr=False)
class DraftRecipe(_Brief):
    """One drafted position."""

    target: str = "flat"
    draft: str = "uniform"
    token: str = "likely"
    uniform: str = "random"


@dataclass(frozen=True, repr=False)
class RequestRecipe(_Brief):
    """One request: its drafted positions and its own parameters."""

    drafts: tuple[DraftRecipe, ...] = ()
    greedy: bool = False
    exponentials: str = "random"
    own_seed: bool = False


@dataclass(frozen=True, repr=False)
class RejectionCase(_Brief):
    """A batch and its noise, as data.

    Args:
        dense: Draft probabilities are given; otherwise drafts are one-hot (`draft_probs=None`).
        explicit: Noise is handed in (`ExplicitNoise`); otherwise seeded (`SeededNoise`).
        slack: By how much `max_spec_len` exceeds the longest draft.
        synthetic: Acceptance by given rates.
        seed: For every bulk number.

    Example:
        >>> case = RejectionCase(vocab_size=3, requests=(RequestRecipe(drafts=(DraftRecipe(),)),))
        >>> case.batch().target_logits.tolist()
        [[0.0, 0.0, 0.0]]
    """

    vocab_size: int
    requests: tuple[RequestRecipe, ...]
    dense: bool = False
    explicit: bool = True
    dtype: str = "float32"
    layout: str = "contiguous"
    slack: int = 0
    synthetic: bool = False
    seed: int = 0

    @property
    def num_draft_tokens(self) -> list[int]:
        return [len(request.drafts) for request in self.requests]

    @property
    def _positions(self) -> list[tuple[int, DraftRecipe]]:
        """(row, recipe) of every drafted position, flattened over requests."""
        return list(enumerate(draft for request in self.requests for draft in request.drafts))

    def batch(self, device: str = "cpu") -> SpecDecodeBatch:
        """Build the tensors. The same recipe gives the same bits on every machine."""
        counts = self.num_draft_tokens
        width = max(counts, default=0) + self.slack
        temperature = [0.0 if request.greedy else 1.0 for request in self.requests]
        bonus = bulk_rng("bonus", self.seed).integers(self.vocab_size, size=len(counts))
        rates = bulk_rng("rates", self.seed).choice([0.0, 0.25, 0.5, 1.0], size=width) if self.synthetic else None
        batch = SpecDecodeBatch(
            draft_token_ids=torch.tensor(self._draft_token_ids, dtype=torch.int32),
            num_draft_tokens=counts,
            cu_num_draft_tokens=torch.tensor(np.cumsum(counts), dtype=torch.int32),
            max_spec_len=width,
            draft_probs=self._draft_probs,
            target_logits=self._target_logits,
            bonus_token_ids=torch.tensor(bonus, dtype=torch.int32).reshape(-1, 1),
            temperature=torch.tensor(temperature, dtype=torch.float32),
            synthetic_rates=None if rates is None else torch.tensor(rates, dtype=torch.float32),
        ).to(device)
        return batch.replace(target_logits=_laid_out(batch.target_logits, self.layout), origin=f"{self!r}.batch()")

    def noise(self, device: str = "cpu") -> Noise:
        """Build fresh noise: explicit numbers, or seeds with generators in their initial state."""
        if not self.explicit:
            own = {i: derive_seed("request", self.seed, i) for i, r in enumerate(self.requests) if r.own_seed}
            return SeededNoise(derive_seed("call", self.seed), own)
        return ExplicitNoise(self._uniforms(device), torch.from_numpy(self._exponentials).to(device))

    def replace(self, **changes: Any) -> RejectionCase:  # Any: one field each, checked by the constructor
        """A copy with some fields replaced."""
        return dataclasses.replace(self, **changes)

    def to_json(self) -> dict[str, Any]:  # Any: JSON
        """Plain data for a crash file."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> RejectionCase:  # Any: JSON
        """The case that `to_json` described.

        Raises:
            TypeError: If a field is missing or unknown.
        """
        requests = tuple(
            RequestRecipe(**{**request, "drafts": tuple(DraftRecipe(**draft) for draft in request["drafts"])})
            for request in data["requests"]
        )
        return RejectionCase(**{**data, "requests": requests})

    @cached_property
    def _target_logits(self) -> torch.Tensor:  # [num_tokens, vocab_size] dtype
        rows = [target_row(draft.target, self.vocab_size, derive_seed(self.seed, row)) for row, draft in self._positions]
        stacked = np.stack(rows) if rows else np.zeros((0, self.vocab_size), np.float32)
        return torch.from_numpy(stacked).to(getattr(torch, self.dtype))

    @cached_property
    def _target_probs(self) -> NDArray[np.float32]:  # [num_tokens, vocab_size] float32
        return np.asarray(self._target_logits.softmax(dim=-1, dtype=torch.float32).numpy())

    @cached_property
    def _draft_rows(self) -> NDArray[np.float32]:  # [num_tokens, vocab_size] float32
        rows = [
            draft_row(draft.draft, self._target_probs[row], derive_seed(self.seed, row)) for row, draft in self._positions
        ]
        return np.stack(rows) if rows else np.zeros((0, self.vocab_size), np.float32)

    @property
    def _draft_probs(self) -> torch.Tensor | None:  # [num_tokens, vocab_size] float32
        return torch.from_numpy(self._draft_rows.copy()) if self.dense else None

    @cached_property
    def _draft_token_ids(self) -> list[int]:
        return [self._draft_token(row, draft) for row, draft in self._positions]

    def _draft_token(self, row: int, draft: DraftRecipe) -> int:
        target_probs = np.nan_to_num(self._target_probs[row])
        rng = bulk_rng("token", self.seed, row)
        law = self._draft_rows[row].astype(np.float64)
        choices = {
            "likely": int(np.argmax(target_probs)),
            "unlikely": int(np.argmin(target_probs)),
            "first": 0,
            "last": self.vocab_size - 1,
            "any": int(rng.integers(self.vocab_size)),
            "drawn": int(rng.choice(self.vocab_size, p=law / law.sum())) if law.sum() > 0 else 0,
            "placeholder": PLACEHOLDER_TOKEN_ID,
        }
        return choices[draft.token]

    def _uniforms(self, device: str) -> torch.Tensor:  # [num_tokens] float64
        """Adversarial uniforms sit at the acceptance ratio as the sampler's own device computes it."""
        batch = self.batch(device)
        target_probs, values = batch.target_probs().cpu().numpy(), []
        for row, draft in self._positions:
            ratio = self._ratio(target_probs[row], row)
            values.append(_uniform(draft.uniform, ratio, bulk_rng("uniform", self.seed, row)))
        return torch.tensor(values, dtype=torch.float64, device=device)

    def _ratio(self, target_probs: NDArray[np.float32], row: int) -> float:
        """target / draft of the drafted token: 0 for a placeholder, capped below 1."""
        token = self._draft_token_ids[row]
        if token == PLACEHOLDER_TOKEN_ID:
            return 0.0
        draft_prob = self._draft_rows[row][token] if self.dense else np.float32(1)
        if not (draft_prob > 0 and target_probs[token] > 0):
            return 0.0
        return min(float(target_probs[token] / draft_prob), _LARGEST_UNIFORM)

    @cached_property
    def _exponentials(self) -> NDArray[np.float32]:  # [batch_size, vocab_size] float32
        rows = [
            _exponentials(request.exponentials, self.vocab_size, bulk_rng("exponential", self.seed, i))
            for i, request in enumerate(self.requests)
        ]
        return np.stack(rows) if rows else np.zeros((0, self.vocab_size), np.float32)


def _uniform(kind: str, ratio: float, rng: np.random.Generator) -> float:
    values = {
        "random": rng.random(),
        "half": 0.5,
        "zero": 0.0,
        "smallest": _SMALLEST_UNIFORM,
        "ratio": ratio,
        "above": min(float(np.nextafter(ratio, 1.0)), _LARGEST_UNIFORM),
        "below": float(np.nextafter(ratio, 0.0)),
        "largest": _LARGEST_UNIFORM,
    }
    return values[kind]


def _exponentials(kind: str, size: int, rng: np.random.Generator) -> NDArray[np.float32]:  # [size] float32
    random = np.maximum(rng.exponential(size=size), 1e-8)
    values = {
        "random": random,
        "equal": np.ones(size),
        "coarse": rng.choice([0.5, 1.0, 2.0], size=size),
        "tiny": random * 1e-30,
        "denormal": np.maximum(random, 0.01) * 1e-40,
        "huge": random * 1e30,
    }
    return values[kind].astype(np.float32)


def _laid_out(logits: torch.Tensor, layout: str) -> torch.Tensor:  # [num_tokens, vocab_size]
    """The same values with other strides."""
    num_tokens, vocab_size = logits.shape
    if layout == "transposed":
        return logits.t().contiguous().t()
    if layout == "sliced":
        wide = torch.full((num_tokens, vocab_size + 3), torch.inf, dtype=logits.dtype, device=logits.device)
        wide[:, 1 : vocab_size + 1] = logits
        return wide[:, 1 : vocab_size + 1]
    if layout == "huge-stride":
        # One row every 2**16 elements: far apart, yet small enough to allocate for a handful of rows.
        store = torch.full((max(num_tokens, 1), 2**16 + vocab_size), torch.inf, dtype=logits.dtype, device=logits.device)
        store[:num_tokens, :vocab_size] = logits
        return store[:num_tokens, :vocab_size]
    return logits
