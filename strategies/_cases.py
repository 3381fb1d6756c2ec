"""Recipes of the rejection contract: plain data that builds a batch and its noise.

A recipe prints as code, shrinks, is stored in a crash file, and builds its tensors anew at every call: bulk numbers
come from NumPy generators seeded by hashing the recipe's seed.
"""

import mmap
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import cycle
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fairdraw._core.batches import Batch
from fairdraw._core.failures import CapabilityUnsupported
from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import MAX_SPEC_LEN, PLACEHOLDER_TOKEN_ID, ExplicitNoise, Noise, SpecDecodeBatch
from fairdraw.strategies._recipe import BatchRecipe, PrintsAsCode, Recipe
from fairdraw.strategies.noise import EXPONENTIAL_KINDS, SEED_KINDS, UNIFORM_KINDS, NoiseRecipe, seeds_of_kinds
from fairdraw.strategies.rows import DRAFT_KINDS, INVALID_KINDS, TARGET_KINDS, bulk_rng, draft_row, target_row

AnyBatch = TypeVar("AnyBatch", bound="Batch")

Probs = NDArray[np.float32]
"""One row of probabilities, `[vocab_size] float32`."""


_DISTINCT_ROWS = 257
"""Beyond, rows have the bulk numbers of earlier ones. A prime: no power of two of rows looks like another."""


def _drawn_token(target_probs: Probs, draft_probs: Probs, *seeds: int) -> int:
    rng = bulk_rng("token", *seeds)
    rng.integers(target_probs.size)  # its place in the stream is part of every stored recipe
    probs = draft_probs.astype(np.float64)
    sums = (probs / probs.sum()).cumsum()
    sums /= sums[-1]
    return int(sums.searchsorted(rng.random(), side="right"))  # as `rng.choice`, which takes three times as long


_TOKENS: dict[str, Callable[..., int]] = {  # of target_probs, draft_probs, the case's seed, the row
    "likely": lambda target_probs, *others: int(np.argmax(target_probs)),
    "first": lambda *others: 0,
    "last": lambda target_probs, *others: target_probs.size - 1,
    "unlikely": lambda target_probs, *others: int(np.argmin(target_probs)),
    "drawn": _drawn_token,
    "any": lambda target_probs, _, *seeds: int(bulk_rng("token", *seeds).integers(target_probs.size)),
    "placeholder": lambda *others: PLACEHOLDER_TOKEN_ID,
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
        targets = {**TARGET_KINDS, **INVALID_KINDS}
        self._require_words(target=targets, draft=DRAFT_KINDS, token=TOKEN_KINDS, uniform=UNIFORM_KINDS)


@dataclass(frozen=True, repr=False)
class RequestRecipe(Recipe):
    """One request: its drafted positions and its own parameters.

    Args:
        exponentials: Its row of the race (`EXPONENTIAL_KINDS`; explicit noise only).
        request_seed: It has a per-request seed (seeded noise only).
        temperature: Of a request that is not greedy: positive, also as float32.
        seed_kind: Which per-request seed (`SEED_KINDS`).

    Raises:
        ValueError: If a kind is unknown, or the temperature is not positive and finite.
    """

    drafts: tuple[DraftRecipe, ...] = ()
    greedy: bool = False
    exponentials: str = "random"
    request_seed: bool = False
    temperature: float = 1.0
    seed_kind: str = "hashed"

    def __post_init__(self) -> None:
        self._require_words(exponentials=EXPONENTIAL_KINDS, seed_kind=SEED_KINDS)
        if not 0 < np.float32(self.temperature) < np.inf:
            raise ValueError(
                f"RequestRecipe: temperature={self.temperature!r}, but it must be positive and finite. "
                "Use greedy=True for 0."
            )


_FEW_RATES = 8
"""Positions with a rate of their own; of longer requests, about as many have one below 1."""


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
        temperature = [0.0 if request.greedy else request.temperature for request in self.requests]
        bonus = bulk_rng("bonus", self.seed).integers(self.vocab_size, size=len(counts))
        batch = _DrawnBatch(
            draft_token_ids=torch.tensor(drafting.draft_token_ids, dtype=torch.int32, device=device),
            num_draft_tokens=counts,
            cu_num_draft_tokens=torch.tensor(np.cumsum(counts), dtype=torch.int32, device=device),
            max_spec_len=self.max_spec_len,
            draft_probs=torch.tensor(drafting.draft_rows, device=device) if self.dense else None,
            target_logits=self._target_logits.to(device).clone(),
            bonus_token_ids=torch.tensor(bonus, dtype=torch.int32, device=device).reshape(-1, 1),
            temperature=torch.tensor(temperature, dtype=torch.float32, device=device),
            synthetic_rates=torch.tensor(self._rates, device=device) if self.synthetic else None,
            origin=f"{self._as_code}.batch({_argument(device)})",
        )
        return laid_out(batch, self.layout)

    def noise(self, device: str = "cpu") -> Noise:
        """Build fresh noise: explicit numbers, or seeds with generators in their initial state."""
        if not self.explicit:
            kinds = {i: request.seed_kind for i, request in enumerate(self.requests) if request.request_seed}
            return seeds_of_kinds(self.seed, kinds)
        if device not in self._noise_of_devices:
            recipe = NoiseRecipe(
                uniforms=tuple(draft.uniform for draft in self._drafts) or ("random",),
                exponentials=tuple(request.exponentials for request in self.requests),
                seed=self.seed,
            )
            origin = f"{self._as_code}.noise({_argument(device)})"
            self._noise_of_devices[device] = recipe.noise(self.batch(device), origin=origin)
        kept = self._noise_of_devices[device]
        return replace(kept, uniforms=kept.uniforms.clone(), exponentials=kept.exponentials.clone())

    @property
    def _rates(self) -> NDArray[np.float32]:  # [max_spec_len] float32
        rng = bulk_rng("rates", self.seed)
        rates = rng.choice([0.0, 0.25, 0.5, 1.0], size=self.max_spec_len)
        if self.max_spec_len > _FEW_RATES:  # else no long request would reach its end
            rates[rng.random(self.max_spec_len) * self.max_spec_len > _FEW_RATES] = 1.0
        return rates.astype(np.float32)

    @cached_property
    def _rows(self) -> tuple[list[tuple[DraftRecipe, int]], NDArray[np.int64], NDArray[np.int64]]:
        """The different rows: recipe and number of its bulk numbers; where each stands first; which one each row is."""
        keys = list(zip(self._drafts, cycle(range(_DISTINCT_ROWS)), strict=False))
        numbers: dict[tuple[DraftRecipe, int], int] = {}
        index = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
        first = np.unique(index, return_index=True)[1]
        return list(numbers), first, index

    @cached_property
    def _target_logits(self) -> torch.Tensor:  # [num_tokens, vocab_size] dtype
        """Cached for the next build; never given to a sampler, because it may write into its inputs."""
        different, _, index = self._rows
        rows = [target_row(draft.target, self.vocab_size, derive_seed(self.seed, row)) for draft, row in different]
        stacked = np.stack(rows)[index] if rows else np.zeros((0, self.vocab_size), np.float32)
        return torch.from_numpy(stacked).to(getattr(torch, self.dtype))

    @cached_property
    def _as_code(self) -> str:
        """Its repr; of a wide case that takes milliseconds."""
        return repr(self)

    @cached_property
    def _noise_of_devices(self) -> dict[str, ExplicitNoise]:
        """Copied for every call, as a sampler may write into it."""
        return {}

    @cached_property
    def _drafting_of_devices(self) -> dict[str, _Drafting]:
        return {}

    def _drafting(self, device: str) -> _Drafting:
        if device not in self._drafting_of_devices:
            softmax = self._target_logits.to(device).softmax(dim=-1, dtype=torch.float32)
            self._drafting_of_devices[device] = self._draft_beside(softmax.cpu().numpy())
        return self._drafting_of_devices[device]

    def _draft_beside(self, target_probs: NDArray[np.float32]) -> _Drafting:  # [num_tokens, vocab_size] float32
        different, first, index = self._rows
        draft_rows, tokens = np.empty((len(first), self.vocab_size), np.float32), []
        own = target_probs[first]
        known = np.nan_to_num(own)
        for number, (draft, row) in enumerate(different):
            draft_rows[number] = draft_row(draft.draft, own[number], derive_seed(self.seed, row))
            tokens.append(_TOKENS[draft.token](known[number], draft_rows[number], self.seed, row))
        return _Drafting(draft_rows[index], np.array(tokens, np.int64)[index].tolist())


def _argument(device: str) -> str:
    return "" if device == "cpu" else repr(device)


def strided_like(tensor: torch.Tensor, layout: str) -> torch.Tensor:  # [...] any, both
    """Return the same values with other strides, in new memory; what lies between them shows if it is read."""
    between = torch.inf if tensor.is_floating_point() else 0x55555555
    if layout == "transposed" and tensor.ndim == 1:
        columns = tensor.new_full((len(tensor), 2), between)
        columns[:, 0] = tensor
        return columns[:, 0]
    if layout == "transposed":
        return tensor.clone().transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "sliced":
        wide = tensor.new_full((*tensor.shape[:-1], tensor.shape[-1] + 3), between)
        wide[..., 1:-2] = tensor
        return wide[..., 1:-2]
    if layout == "huge-stride":
        return far_apart(tensor)
    return tensor.clone()


def laid_out(batch: AnyBatch, layout: str) -> AnyBatch:
    """Return a batch whose tensors all have other strides; a huge one have the logits alone."""
    if layout == "contiguous":
        return batch
    is_huge = layout == "huge-stride"
    named = {name: tensor for name, tensor in batch.tensors().items() if name.endswith("logits") or not is_huge}
    changed = {name: strided_like(tensor, layout) for name, tensor in named.items()}
    return batch.replace(**changed, origin=batch.origin)


_FAR = 2**31
"""Elements: the first offset that a signed integer of 32 bits cannot hold."""

_NARROWER_STRIDE = 2**16
"""Between rows, where memory for larger offsets cannot be reserved."""


def far_apart(rows: torch.Tensor) -> torch.Tensor:  # [num_tokens, vocab_size] any
    """The same values in rows so far apart that the later half of them begins beyond `2**31` elements.

    Pages that nobody touches cost nothing on a CPU. There `2**31` elements are reserved on either side as well, so that
    an offset that wraps round reads zeros and does not end the process. Where that much cannot be reserved, the rows
    are `2**16` elements apart.
    """
    num_rows, vocab_size = rows.shape
    stride = -(-_FAR // max(1, num_rows // 2)) + vocab_size
    room = num_rows * stride
    if rows.device.type == "cpu":
        store = reserved(room + 2 * _FAR, rows.dtype)
        store = None if store is None else store[_FAR:]
    else:
        free, _ = torch.cuda.mem_get_info(rows.device)
        store = rows.new_empty(room) if room * rows.element_size() < free // 2 else None
    if store is None:
        stride = _NARROWER_STRIDE + vocab_size
        store = rows.new_full((max(num_rows, 1) * stride,), torch.inf)
    far = store.as_strided((num_rows, vocab_size), (stride, 1), store.storage_offset())
    far.copy_(rows)
    return far


_RESERVED = 2**33
"""Elements, of the largest batch whose rows lie far apart."""


def require_far_memory() -> None:
    """Raise `CapabilityUnsupported` where rows cannot be put 2**31 elements apart; so the check counts as skipped."""
    on_host = reserved(_RESERVED, torch.float32) is not None
    on_device = not torch.cuda.is_available() or torch.cuda.mem_get_info()[0] > 2**36
    if not (on_host and on_device):
        raise CapabilityUnsupported("there is no room here for rows that lie 2**31 elements apart")


_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # of Linux; Python has the name since 3.13


def reserved(num_elements: int, dtype: torch.dtype) -> torch.Tensor | None:  # [num_elements] dtype
    """Zeros that cost memory only where they are touched; `None` if there is no such memory."""
    try:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        memory = mmap.mmap(-1, num_elements * dtype.itemsize, flags=flags)
    except (AttributeError, OSError, ValueError):  # not on this system, or not that much
        return None
    return torch.frombuffer(memory, dtype=dtype)
