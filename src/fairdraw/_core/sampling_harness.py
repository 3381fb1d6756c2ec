"""How the suite calls a token sampler: one border for every suite, with batch, noise and answer checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from fairdraw._core.failures import AdapterError, calling
from fairdraw.protocols import Drafted, RaceNoise, SamplingBatch, SamplingNoise, SeededNoise, TokenSampler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from numpy.typing import NDArray

    from fairdraw.protocols import TokenDrafter

    T = TypeVar("T")

__all__ = ["Sampled", "check_sampling_batch", "check_sampling_noise", "draft_tokens", "sample_tokens"]

_DTYPES = {
    "logits": ("float32", "bfloat16", "float16"),
    "temperature": ("float32",),
    "top_k": ("int32",),
    "top_p": ("float32",),
    "min_p": ("float32",),
    "positions": ("int64",),
}
_RANGES = {
    "temperature": (0.0, float("inf"), "finite and at least 0", "Use 0 for greedy"),
    "top_p": (2.0**-149, 1.0, "in (0, 1]", "Use 1 to keep all"),
    "min_p": (0.0, 1.0, "in [0, 1]", "Use 0 to keep all"),
    "positions": (0, 2**62, "at least 0", "Count the tokens of the request's text"),
}


@dataclass(frozen=True)
class Sampled:
    """What one call of a token sampler left behind.

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
        AdapterError: If the answer is not of the contract's type (a fault of the adapter).
        Exception: Whatever the sampler raises, marked as its own (`fairdraw._core.failures.raised_by`).

    Randomness:
        With `SeededNoise`, torch's default generators are seeded with `noise.seed` just before the call. Their states
        are put back afterwards.
    """

    def call() -> tuple[torch.Tensor, None]:
        with calling(sampler):
            answer, name = sampler.sample(batch, noise), sampler.name
        return _checked_tokens(batch, answer, name), None

    return _called(sampler, batch, noise, call)


def draft_tokens(sampler: TokenDrafter, batch: SamplingBatch, noise: SamplingNoise) -> Sampled:
    """Call `sampler.draft` once; everything else is as in `sample_tokens`."""

    def call() -> tuple[torch.Tensor, torch.Tensor]:
        with calling(sampler):
            answer, name = sampler.draft(batch, noise), sampler.name
        if not isinstance(answer, Drafted):
            raise AdapterError(
                f"draft: sampler={name} returned {type(answer).__name__}, but it must return a Drafted. "
                "Return Drafted(token_ids, draft_probs)."
            )
        tokens = _checked_tokens(batch, answer.token_ids, name)
        return tokens, _checked_answer("draft_probs", answer.draft_probs, batch, ("float32",), name, 2)

    return _called(sampler, batch, noise, call)


def _called(
    sampler: object,
    batch: SamplingBatch,
    noise: SamplingNoise,
    call: Callable[[], tuple[torch.Tensor, torch.Tensor | None]],
) -> Sampled:
    check_sampling_batch(batch)
    check_sampling_noise(batch, noise)
    device = batch.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        if isinstance(noise, SeededNoise):
            torch.manual_seed(noise.seed)
        tokens, probs = call()
        with calling(sampler):  # the error of a kernel of theirs surfaces where its result is waited for
            copied = tokens.cpu().numpy().astype(np.int64)
        default_state = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
        states = {} if isinstance(noise, RaceNoise) else noise.generators(device)
        return Sampled(
            copied,
            {i: generator.get_state().numpy().tobytes() for i, generator in states.items()},
            default_state.numpy().tobytes(),
            None if probs is None else probs.cpu().numpy().copy(),
        )


def check_sampling_batch(batch: SamplingBatch) -> None:
    """Refuse a batch that no sampler could be asked about.

    Raises:
        TypeError: If it is none.
        ValueError: If shapes, dtypes, devices or parameters disagree with `SamplingBatch`.
    """
    if not isinstance(batch, SamplingBatch):
        raise TypeError(
            f"check_sampling_batch: batch={type(batch).__name__}, but it must be a SamplingBatch. Build one."
        )
    if batch.logits.ndim != 2 or 0 in batch.logits.shape:
        raise _refusal(
            f"logits.shape={list(batch.logits.shape)}",
            "it must be [batch_size, vocab_size] with a request and a token",
            "Do not call without requests",
        )
    for name, tensor in batch.tensors().items():
        _check_tensor(batch, name, tensor)
    if batch.top_k is not None:
        _check_range("top_k", batch.top_k, 1, batch.vocab_size, f"in [1, {batch.vocab_size}]", "Use vocab_size")
    for name, (low, high, rule, remedy) in _RANGES.items():
        if getattr(batch, name) is not None:
            _check_range(name, getattr(batch, name), low, high, rule, remedy)


def _refusal(given: str, rule: str, remedy: str) -> ValueError:
    return ValueError(f"check_sampling_batch: {given}, but {rule}. {remedy}.")


def _check_tensor(batch: SamplingBatch, name: str, tensor: torch.Tensor) -> None:
    given = str(tensor.dtype).removeprefix("torch.")
    if given not in _DTYPES[name]:
        rule = f"it must be {' or '.join(_DTYPES[name])}"
        raise _refusal(f"{name}.dtype={given}", rule, f"Use {name}.to(torch.{_DTYPES[name][0]})")
    if name != "logits" and list(tensor.shape) != [batch.batch_size]:
        rule = f"it must be [{batch.batch_size}], one per row of logits"
        raise _refusal(f"{name}.shape={list(tensor.shape)}", rule, "Give each request one value")
    if tensor.device != batch.device:
        rule = f"it must be where logits is, {batch.device}"
        raise _refusal(f"{name}.device={tensor.device}", rule, f"Use {name}.to({str(batch.device)!r})")


def _check_range(name: str, values: torch.Tensor, low: float, high: float, rule: str, remedy: str) -> None:
    right = (values >= low) & (values <= high) & values.isfinite()
    if not bool(right.all()):
        place = int((~right).nonzero()[0])
        raise _refusal(f"{name}[{place}]={values[place].item()!r}", f"it must be {rule}", remedy)


def check_sampling_noise(batch: SamplingBatch, noise: SamplingNoise) -> None:
    """Refuse noise that does not belong to `batch`.

    Raises:
        TypeError: If it is neither a race's nor seeded.
        ValueError: If a shape, dtype or device is wrong, an exponential is not positive, or a request that the batch
            does not have is given a seed.
    """
    if isinstance(noise, SeededNoise):
        strangers = [request for request in noise.request_seeds if request not in range(batch.batch_size)]
        if strangers:
            given, rule = f"request_seeds has request {strangers[0]}", f"requests lie in [0, {batch.batch_size})"
            raise _refusal(given, rule, "Number requests by their rows")
    elif isinstance(noise, RaceNoise):
        values = noise.exponentials
        expected = [batch.batch_size, batch.vocab_size]
        if list(values.shape) != expected or values.dtype != torch.float32 or values.device != batch.device:
            given = f"exponentials={values.dtype} {list(values.shape)} on {values.device}"
            raise _refusal(
                given, f"they must be torch.float32 {expected} on {batch.device}", "Draw them for this batch"
            )
        if not bool((values > 0).all()):
            raise _refusal("exponentials <= 0", "they must be positive", "Use Tensor.exponential_()")
    else:
        raise TypeError(
            f"check_sampling_noise: noise={type(noise).__name__}, but it must be RaceNoise or SeededNoise. "
            "Use SeededNoise(seed)."
        )


def _checked_tokens(batch: SamplingBatch, output: object, sampler: str) -> torch.Tensor:  # [batch_size] int
    return _checked_answer("token_ids", output, batch, ("int64", "int32"), sampler, 1)


def _checked_answer(
    name: str, output: object, batch: SamplingBatch, dtypes: Sequence[str], sampler: str, num_dims: int
) -> torch.Tensor:
    """The sampler's answer, if it is one."""
    shape = list(batch.logits.shape[:num_dims])
    returned = f"sampling: sampler={sampler} returned {name}"
    if not isinstance(output, torch.Tensor):
        raise AdapterError(f"{returned} {type(output).__name__}, but it must be a tensor. Return {shape}.")
    given = str(output.dtype).removeprefix("torch.")
    if list(output.shape) != shape or given not in dtypes:
        raise AdapterError(
            f"{returned} {given} {list(output.shape)}, but it must be {' or '.join(dtypes)} {shape}. "
            f"Return one token per request."
        )
    if output.device != batch.device:
        raise AdapterError(
            f"{returned} on {output.device}, but the batch is on {batch.device}. Declare the sampler's device."
        )
    return output
