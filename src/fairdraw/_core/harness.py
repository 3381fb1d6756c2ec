"""How the suite calls a rejection sampler: the same way everywhere, with batch, noise and output checked."""

from __future__ import annotations

import random
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fairdraw._core.failures import calling
from fairdraw._core.rows import seat_others
from fairdraw._core.validation import check_batch, check_noise, check_output, check_proposal, check_trim
from fairdraw.protocols import (
    PLACEHOLDER_TOKEN_ID,
    DraftingSampler,
    DraftStep,
    Noise,
    ProposedDrafts,
    RejectionSampler,
    SeededNoise,
    SpecDecodeBatch,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True)
class Emission:
    """The result of one call of a sampler.

    Args:
        tokens: A copy of the output: a sampler may use its buffer again.
        generator_states: Request to the final state of its own generator (seeded noise only).
        default_state: Final state of torch's default generator on the sampler's device.
    """

    tokens: NDArray[np.int32]  # [batch_size, max_spec_len + 1] int32
    generator_states: dict[int, bytes]
    default_state: bytes

    def emitted(self, request: int) -> list[int]:
        """The request's tokens: everything before the trailing placeholders."""
        row = self.tokens[request]
        kept = np.flatnonzero(row != PLACEHOLDER_TOKEN_ID)
        return [int(token) for token in row[: kept[-1] + 1]] if kept.size else []


def emit(sampler: RejectionSampler, batch: SpecDecodeBatch, noise: Noise) -> Emission:
    """Call `sampler` once, with the batch and the output checked.

    The batch must already be on the sampler's device.

    Raises:
        ValueError, TypeError: If batch or noise break the contract (a fault of the caller).
        AdapterError: If the sampler's output is not of the contract's type (a fault of the adapter).
        Exception: Whatever the sampler raises, marked as its own (`fairdraw._core.failures.raised_by`).

    Randomness:
        With `SeededNoise`, the global generators (torch's, NumPy's, Python's) are seeded with `noise.seed` just before
        the call. `seeded` says when their states are put back.
    """
    check_batch(batch)
    check_noise(batch, noise)
    with seeded(noise, batch.device):
        tokens = _verified(sampler, batch, noise)
        return Emission(tokens, generator_states(noise, batch.device), default_state(batch.device))


def emit_next(
    sampler: RejectionSampler, batch: SpecDecodeBatch, noise: Noise
) -> NDArray[np.int32]:  # [batch_size, max_spec_len + 1] int32
    """The tokens of a call within `seeded`: torch's default generators go on from where the call before left them."""
    check_batch(batch)
    check_noise(batch, noise)
    return _verified(sampler, batch, noise)


def emit_on_device(
    sampler: RejectionSampler, batch: SpecDecodeBatch, noise: Noise
) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    """A copy of the output of `emit`, where the batch lies. Here the batch must be right; it is not checked."""
    check_noise(batch, noise)
    with seeded(noise, batch.device):
        output = _output(sampler, batch, noise)
        with calling(sampler):  # as in `_verified`
            copied = output.clone()
            if batch.device.type == "cuda":
                torch.cuda.synchronize(batch.device)
    return copied


def _verified(
    sampler: RejectionSampler, batch: SpecDecodeBatch, noise: Noise
) -> NDArray[np.int32]:  # [batch_size, max_spec_len + 1] int32
    output = _output(sampler, batch, noise)
    with calling(sampler):  # the error of an asynchronous kernel surfaces where its result is waited for
        tokens = output.cpu()
    return tokens.numpy().copy()


def _output(
    sampler: RejectionSampler, batch: SpecDecodeBatch, noise: Noise
) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    seat_others(sampler, batch.batch_size, noise)
    with calling(sampler):
        answer, name = sampler.verify(batch, noise), sampler.name
    return check_output(batch, answer, name)


@dataclass(frozen=True)
class Proposal:
    """The result of one call of a drafter; copies."""

    token_ids: NDArray[np.int64]  # [batch_size] int64
    draft_probs: NDArray[np.float32] | None  # [batch_size, vocab_size] float32


def propose_next(sampler: DraftingSampler, step: DraftStep, noise: SeededNoise) -> Proposal:
    """Call the drafter once, within `seeded`.

    Raises:
        AdapterError: If the answer is not of the contract's type, or its rows are no distributions.
        Exception: Whatever the drafter raises, marked as its own.
    """
    seat_others(sampler, step.batch_size, noise)
    with calling(sampler):
        answer, name = sampler.propose(step, noise), sampler.name
    checked = check_proposal(step, answer, name)
    with calling(sampler):
        token_ids = checked.token_ids.cpu().numpy().astype(np.int64)
        probs = None if checked.draft_probs is None else checked.draft_probs.cpu().numpy().copy()
    return Proposal(token_ids, probs)


def num_kept(sampler: Any, drafts: ProposedDrafts) -> NDArray[np.int64]:  # [batch_size] int64
    """How many drafts of each request the sampler's `trim` keeps. Any: a rejection sampler with that method.

    Raises:
        AdapterError: If the answer is no tensor of such numbers.
        Exception: Whatever the sampler raises, marked as its own.
    """
    with calling(sampler):
        answer, name = sampler.trim(drafts), sampler.name
    return check_trim(drafts, answer, name).cpu().numpy().astype(np.int64)


@contextmanager
def seeded(noise: object, device: torch.device) -> Iterator[None]:
    """Seed every global generator with the seed of `SeededNoise`: torch's of all devices, NumPy's and Python's.

    The states of torch's generators are put back afterwards; those of the others at the end of the check, since to keep
    them takes as long as a small call (`fairdraw._core.isolation.suite_state`).
    """
    on_gpus = device.type == "cuda" or torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if on_gpus else []):
        if isinstance(noise, SeededNoise):
            random.seed(noise.seed & (1 << 64) - 1)  # the sign is lost otherwise
            np.random.seed((noise.seed ^ noise.seed >> 32) & 0xFFFFFFFF)
            # `torch.manual_seed` formats three stack traces, too, for devices that may wake later: a third of a call.
            (torch.manual_seed if on_gpus else torch.default_generator.manual_seed)(noise.seed)
        yield


def generator_states(noise: object, device: torch.device) -> dict[int, bytes]:
    """Request to the state of its own generator; empty unless the noise is `SeededNoise`."""
    generators = noise.generators(device) if isinstance(noise, SeededNoise) else {}
    return {request: generator.get_state().numpy().tobytes() for request, generator in generators.items()}


def default_state(device: torch.device) -> bytes:
    """The state of torch's default generator on `device`."""
    state = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
    return state.numpy().tobytes()
