"""Recipes of the rejection contract: plain data that builds a batch and its noise.

A recipe prints as code, shrinks, is stored in a crash file, and builds its tensors anew at every call: bulk numbers
come from NumPy generators seeded by hashing the recipe's seed.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fairdraw._core.seeds import derive_seed
from fairdraw.protocols import MAX_SPEC_LEN, PLACEHOLDER_TOKEN_ID, Noise, SpecDecodeBatch
from fairdraw.strategies._arguments import one_of
from fairdraw.strategies._recipe import BatchRecipe, PrintsAsCode, Recipe
from fairdraw.strategies.noise import EXPONENTIAL_KINDS, UNIFORM_KINDS, NoiseRecipe, hashed_seeds
from fairdraw.strategies.rows import DRAFT_KINDS, INVALID_KINDS, TARGET_KINDS, bulk_rng, draft_row, target_row

if TYPE_CHECKING:
    from collections.abc import Callable


Probs = NDArray[np.float32]
"""One row of probabilities, `[vocab_size] float32`."""


def _drawn_token(target_probs: Probs, draft_probs: Probs, rng: np.random.Generator) -> int:
    rng.integers(target_probs.size)  # its place in the stream is part of every stored recipe
    probs = draft_probs.astype(np.float64)
    return int(rng.choice(probs.size, p=probs / probs.sum()))


_TOKENS: dict[str, Callable[[Probs, Probs, np.random.Generator], int]] = {
    "likely": lambda target_probs, draft_probs, rng: int(np.argmax(target_probs)),
    "first": lambda target_probs, draft_probs, rng: 0,
    "last": lambda target_probs, draft_probs, rng: target_probs.size - 1,
    "unlikely": lambda target_probs, draft_probs, rng: int(np.argmin(target_probs)),
    "drawn": _drawn_token,
    "any": lambda target_probs, draft_probs, rng: int(rng.integers(target_probs.size)),
    "placeholder": lambda target_probs, draft_probs, rng: PLACEHOLDER_TOKEN_ID,
}

TOKEN_KINDS = tuple(_TOKENS)
"""Which token is drafted: the target's argmax, id 0, the last id, the target's argmin, one drawn from the draft
distribution, any, -1."""


@dataclass(frozen=True, repr=False)
class DraftRecipe(Recipe):
    """One drafted position.

    Args:
        target: Shape of its target logits (`TARGET_KINDS`, `INVALID_KINDS`).
        draft: The distribution that it was drafted from (`DRAFT_KINDS`).
        token: Which token was drafted (`TOKEN_KINDS`).
        uniform: Its acceptance uniform (`UNIFORM_KINDS`; explicit noise only).

    Raises:
        ValueError: If a kind is unknown.
    """

    target: str = "flat"
    draft: str = "uniform"
    token: str = "likely"
    uniform: str = "random"

    def __post_init__(self) -> None:
        one_of("DraftRecipe", "target", self.target, {**TARGET_KINDS, **INVALID_KINDS})
        one_of("DraftRecipe", "draft", self.draft, DRAFT_KINDS)
        one_of("DraftRecipe", "token", self.token, TOKEN_KINDS)
        one_of("DraftRecipe", "uniform", self.uniform, UNIFORM_KINDS)


@dataclass(frozen=True, repr=False)
class RequestRecipe(Recipe):
    """One request: its drafted positions and its own parameters.

    Args:
        exponentials: Its row of the race (`EXPONENTIAL_KINDS`; explicit noise only).
        request_seed: It has a per-request seed (seeded noise only).

    Raises:
        ValueError: If the kind of exponentials is unknown.
    """

    drafts: tuple[DraftRecipe, ...] = ()
    greedy: bool = False
    exponentials: str = "random"
    request_seed: bool = False

    def __post_init__(self) -> None:
        one_of("RequestRecipe", "exponentials", self.exponentials, EXPONENTIAL_KINDS)


@dataclass(frozen=True)
class _Drafting:
    """What depends on the target distribution as one device computes it."""

    draft_rows: NDArray[np.float32]  # [num_tokens, vocab_size] float32
    draft_token_ids: list[int]


class _DrawnBatch(PrintsAsCode, SpecDecodeBatch):
    """A batch that Hypothesis prints by its origin."""


@dataclass(frozen=True, repr=False)
class RejectionCase(BatchRecipe):
    """A batch and its noise, as data.

    Args:
        dense: Draft probabilities are given; otherwise drafts are one-hot (`draft_probs=None`).
        explicit: Noise is handed in (`ExplicitNoise`); otherwise seeded (`SeededNoise`).
        slack: By how much `max_spec_len` exceeds the longest draft.
        synthetic: Acceptance by given rates.
        seed: For every bulk number.

    Raises:
        ValueError: If there is no request or no vocabulary, a word is unknown, or `max_spec_len` is out of range.

    Limits:
        Draft distributions that copy the target's (`same`, `rounded`, ...) copy the softmax of the device that they are
        built for, bit for bit. Softmaxes of two devices, or two CPUs, may differ in the last bit.

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

    def __post_init__(self) -> None:
        for name in ("vocab_size", "slack", "seed"):
            object.__setattr__(self, name, operator.index(getattr(self, name)))
        self._check("RequestRecipe()")
        if self.slack < 0 or self.max_spec_len > MAX_SPEC_LEN:
            raise ValueError(
                f"RejectionCase: slack={self.slack}, but max_spec_len={self.max_spec_len} must lie between "
                f"max(num_draft_tokens)={max(self.num_draft_tokens)} and {MAX_SPEC_LEN}. Use slack=0."
            )

    @property
    def num_draft_tokens(self) -> list[int]:
        return [len(request.drafts) for request in self.requests]

    @property
    def max_spec_len(self) -> int:
        return max(self.num_draft_tokens) + self.slack

    @property
    def _drafts(self) -> list[DraftRecipe]:
        """Every drafted position, flattened over requests."""
        return [draft for request in self.requests for draft in request.drafts]

    def batch(self, device: str = "cpu") -> SpecDecodeBatch:
        """Build new tensors."""
        counts, drafting = self.num_draft_tokens, self._drafting(device)
        temperature = [0.0 if request.greedy else 1.0 for request in self.requests]
        bonus = bulk_rng("bonus", self.seed).integers(self.vocab_size, size=len(counts))
        return _DrawnBatch(
            draft_token_ids=torch.tensor(drafting.draft_token_ids, dtype=torch.int32, device=device),
            num_draft_tokens=counts,
            cu_num_draft_tokens=torch.tensor(np.cumsum(counts), dtype=torch.int32, device=device),
            max_spec_len=self.max_spec_len,
            draft_probs=torch.tensor(drafting.draft_rows, device=device) if self.dense else None,
            target_logits=_laid_out(self._target_logits.to(device), self.layout),
            bonus_token_ids=torch.tensor(bonus, dtype=torch.int32, device=device).reshape(-1, 1),
            temperature=torch.tensor(temperature, dtype=torch.float32, device=device),
            synthetic_rates=torch.tensor(self._rates, device=device) if self.synthetic else None,
            origin=f"{self!r}.batch({_argument(device)})",
        )

    def noise(self, device: str = "cpu") -> Noise:
        """Build fresh noise: explicit numbers, or seeds with generators in their initial state."""
        if not self.explicit:
            return hashed_seeds(self.seed, (i for i, request in enumerate(self.requests) if request.request_seed))
        recipe = NoiseRecipe(
            uniforms=tuple(draft.uniform for draft in self._drafts) or ("random",),
            exponentials=tuple(request.exponentials for request in self.requests),
            seed=self.seed,
        )
        return recipe.noise(self.batch(device), origin=f"{self!r}.noise({_argument(device)})")

    def build(self) -> None:
        """Build everything once; raises what a damaged recipe raises."""
        self.batch()
        self.noise()

    @staticmethod
    def from_json(data: dict[str, Any]) -> RejectionCase:  # Any: JSON
        """The case that `to_json` described.

        Raises:
            TypeError: If a field is missing or unknown.
            ValueError: If a value is invalid.
        """
        requests = tuple(
            RequestRecipe(**{**request, "drafts": tuple(DraftRecipe(**draft) for draft in request.get("drafts", ()))})
            for request in data.get("requests", ())
        )
        return RejectionCase(**{**data, "requests": requests})

    @property
    def _rates(self) -> NDArray[np.float32]:  # [max_spec_len] float32
        rates = bulk_rng("rates", self.seed).choice([0.0, 0.25, 0.5, 1.0], size=self.max_spec_len)
        return rates.astype(np.float32)

    @cached_property
    def _target_logits(self) -> torch.Tensor:  # [num_tokens, vocab_size] dtype
        """Cached for the next build; never given to a sampler, because it may write into its inputs."""
        kinds = [draft.target for draft in self._drafts]
        rows = [target_row(kind, self.vocab_size, derive_seed(self.seed, row)) for row, kind in enumerate(kinds)]
        stacked = np.stack(rows) if rows else np.zeros((0, self.vocab_size), np.float32)
        return torch.from_numpy(stacked).to(getattr(torch, self.dtype))

    @cached_property
    def _drafting_of_devices(self) -> dict[str, _Drafting]:
        return {}

    def _drafting(self, device: str) -> _Drafting:
        if device not in self._drafting_of_devices:
            softmax = self._target_logits.to(device).softmax(dim=-1, dtype=torch.float32)
            self._drafting_of_devices[device] = self._draft_beside(softmax.cpu().numpy())
        return self._drafting_of_devices[device]

    def _draft_beside(self, target_probs: NDArray[np.float32]) -> _Drafting:  # [num_tokens, vocab_size] float32
        draft_rows, tokens = np.empty_like(target_probs), []
        for row, draft in enumerate(self._drafts):
            draft_rows[row] = draft_row(draft.draft, target_probs[row], derive_seed(self.seed, row))
            token = _TOKENS[draft.token](
                np.nan_to_num(target_probs[row]), draft_rows[row], bulk_rng("token", self.seed, row)
            )
            tokens.append(token)
        return _Drafting(draft_rows, tokens)


def _argument(device: str) -> str:
    return "" if device == "cpu" else repr(device)


def _laid_out(logits: torch.Tensor, layout: str) -> torch.Tensor:  # [num_tokens, vocab_size]
    """The same values with other strides, in new memory; the elements between them are inf, which shows if read."""
    num_tokens, vocab_size = logits.shape
    if layout == "transposed":
        return logits.clone().t().contiguous().t()
    if layout == "sliced":
        wide = logits.new_full((num_tokens, vocab_size + 3), torch.inf)
        wide[:, 1 : vocab_size + 1] = logits
        return wide[:, 1 : vocab_size + 1]
    if layout == "huge-stride":
        # Far apart, yet small enough to allocate for a handful of rows.
        store = logits.new_full((max(num_tokens, 1), 2**16 + vocab_size), torch.inf)
        store[:num_tokens, :vocab_size] = logits
        return store[:num_tokens, :vocab_size]
    return logits.clone()
