"""How the suite calls a token sampler: the same way everywhere, with batch, noise and output checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fairdraw._core.failures import AdapterError, calling
from fairdraw._core.harness import default_state, generator_states, seeded
from fairdraw._core.rows import seat_others
from fairdraw._core.validation import Validator, check_answer
from fairdraw.protocols import Drafted, RaceNoise, SamplingBatch, SamplingNoise, SeededNoise, TokenSampler

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from numpy.typing import NDArray

    from fairdraw.protocols import TokenDrafter

_DTYPES = {
    "logits": ("float32", "bfloat16", "float16"),
    "temperature": ("float32",),
    "top_k": ("int32",),
    "top_p": ("float32",),
    "min_p": ("float32",),
    "positions": ("int64",),
}
_RANGES = {
    "temperature": (0.0, float("inf"), "finite and at least 0", "Use 0 for greedy."),
    "top_p": (2.0**-149, 1.0, "in (0, 1]", "Use 1 to keep all."),
    "min_p": (0.0, 1.0, "in [0, 1]", "Use 0 to keep all."),
    "positions": (0, 2**62, "at least 0", "Count the tokens of the request's text."),
}


@dataclass(frozen=True)
class Sampled:
    """The result of one call of a token sampler.

    Args:
        generator_states: Request to the final state of its own generator (seeded noise only).
        default_state: Final state of torch's default generator on the sampler's device.
        draft_probs: The distributions that a drafter returned.
    """

    tokens: NDArray[np.int64]  # [batch_size] int64
    generator_states: dict[int, bytes]
    default_state: bytes
    draft_probs: NDArray[np.float32] | None = None  # [batch_size, vocab_size] float32


def sample_tokens(sampler: TokenSampler, batch: SamplingBatch, noise: SamplingNoise) -> Sampled:
    """Call `sampler.sample` once. The batch must already be on the sampler's device.

    Raises:
        ValueError, TypeError: If batch or noise break the contract (a fault of the caller).
        AdapterError: If the output is not of the contract's type (a fault of the adapter).
        Exception: Whatever the sampler raises, marked as its own (`fairdraw._core.failures.raised_by`).

    Randomness:
        With `SeededNoise`, the global generators (torch's, NumPy's, Python's) are seeded with `noise.seed` just before
        the call. `seeded` says when their states are put back.
    """

    return _called(sampler, batch, noise, lambda: (_sample(sampler, batch, noise), None))


def sample_next(sampler: TokenSampler, batch: SamplingBatch, noise: SamplingNoise) -> NDArray[np.int64]:
    """The tokens of a call within `seeded`, `[batch_size]`: torch's default generators go on from where they are."""
    check_sampling_batch(batch)
    check_sampling_noise(batch, noise)
    tokens = _sample(sampler, batch, noise)
    with calling(sampler):
        return tokens.cpu().numpy().astype(np.int64)


def _sample(sampler: TokenSampler, batch: SamplingBatch, noise: SamplingNoise) -> torch.Tensor:  # [batch_size] int
    seat_others(sampler, batch.batch_size, noise)
    with calling(sampler):
        answer, name = sampler.sample(batch, noise), sampler.name
    return _checked("sample", name, "token_ids", answer, batch)


def draft_tokens(sampler: TokenDrafter, batch: SamplingBatch, noise: SamplingNoise) -> Sampled:
    """Call `sampler.draft` once; everything else is as in `sample_tokens`."""

    def call() -> tuple[torch.Tensor, torch.Tensor]:
        seat_others(sampler, batch.batch_size, noise)
        with calling(sampler):
            answer, name = sampler.draft(batch, noise), sampler.name
        if not isinstance(answer, Drafted):
            raise AdapterError(
                f"draft: sampler={name} returned {type(answer).__name__}, but it must return a Drafted. "
                "Return Drafted(token_ids, draft_probs)."
            )
        tokens = _checked("draft", name, "token_ids", answer.token_ids, batch)
        return tokens, _checked("draft", name, "draft_probs", answer.draft_probs, batch)

    return _called(sampler, batch, noise, call)


def _checked(method: str, sampler: str, name: str, output: object, batch: SamplingBatch) -> torch.Tensor:
    is_token = name == "token_ids"
    shape = list(batch.logits.shape[: 1 if is_token else 2])
    hint = "([batch_size]). Return one token per request." if is_token else "([batch_size, vocab_size])."
    dtypes = ("int64", "int32") if is_token else ("float32",)
    return check_answer(method, sampler, name, output, shape, dtypes, batch.device, hint)


def _called(
    sampler: object,
    batch: SamplingBatch,
    noise: SamplingNoise,
    call: Callable[[], tuple[torch.Tensor, torch.Tensor | None]],
) -> Sampled:
    check_sampling_batch(batch)
    check_sampling_noise(batch, noise)
    with seeded(noise, batch.device):
        tokens, probs = call()
        with calling(sampler):  # the error of an asynchronous kernel surfaces where its result is waited for
            copied = tokens.cpu().numpy().astype(np.int64)
        states = generator_states(noise, batch.device)
        return Sampled(
            copied, states, default_state(batch.device), None if probs is None else probs.cpu().numpy().copy()
        )


def check_sampling_batch(batch: SamplingBatch) -> None:
    """Refuse a batch that does not follow the contract.

    Raises:
        TypeError: If it is not a `SamplingBatch`.
        ValueError: If shapes, dtypes, devices or parameters disagree with `SamplingBatch`.
    """
    validator = Validator("check_sampling_batch")
    given, rule = f"batch={type(batch).__name__}", "it must be a SamplingBatch"
    validator.require(isinstance(batch, SamplingBatch), given, rule, "Build one.", TypeError)
    given, rule = f"logits.shape={list(batch.logits.shape)}", "it must be [batch_size, vocab_size], each at least 1"
    fits = batch.logits.ndim == 2 and 0 not in batch.logits.shape
    validator.require(fits, given, rule, "Do not call without requests.")
    for name, tensor in batch.tensors().items():
        validator.dtype(name, tensor, _DTYPES[name])
        if name != "logits":
            why = ", one per row of logits"
            validator.shape(name, tensor, [batch.batch_size], why, "Give each request one value.")
        validator.device(name, tensor, batch.device, "logits")
    top_k = {"top_k": (1, batch.vocab_size, f"in [1, {batch.vocab_size}]", "Use vocab_size.")}
    for name, (low, high, rule, remedy) in (top_k | _RANGES).items():
        values = getattr(batch, name)
        if values is not None:
            is_right = (values >= low) & (values <= high) & values.isfinite()
            validator.values(name, values, is_right, f"it must be {rule}", remedy)


def check_sampling_noise(batch: SamplingBatch, noise: SamplingNoise) -> None:
    """Refuse noise that does not belong to `batch`.

    Raises:
        TypeError: If it is neither a race's nor seeded.
        ValueError: If a shape, dtype or device is wrong, an exponential is not positive, or a request that the batch
            does not have is given a seed.
    """
    validator = Validator("check_sampling_noise")
    if isinstance(noise, SeededNoise):
        validator.request_seeds(noise, batch.batch_size)
        return
    given, rule = f"noise={type(noise).__name__}", "it must be RaceNoise or SeededNoise"
    validator.require(isinstance(noise, RaceNoise), given, rule, "Use SeededNoise(seed).", TypeError)
    values, shape = noise.exponentials, [batch.batch_size, batch.vocab_size]
    validator.shape("exponentials", values, shape, ", one row per request", "Draw them for this batch.")
    validator.dtype("exponentials", values, ("float32",))
    validator.device("exponentials", values, batch.device, "logits")
    validator.values("exponentials", values, values > 0, "they must be positive", "Use Tensor.exponential_().")
