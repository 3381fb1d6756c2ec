"""Planted performance faults: samplers that give the right tokens and cost too much. Exact counts must catch each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fairdraw.protocols import (
    ExplicitNoise,
    Noise,
    RejectionSampler,
    SpecDecodeBatch,
    VerifyFunction,
    rejection_sampler,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["FAULTS", "Fault"]


@dataclass(frozen=True)
class Fault:
    """What is done wrong around a right sampler.

    Args:
        caught_by: The limits that must be broken.
    """

    name: str
    caught_by: tuple[str, ...]
    plant: Callable[[VerifyFunction], VerifyFunction]

    def make(self, right: RejectionSampler) -> RejectionSampler:
        return rejection_sampler(self.plant(right.verify), name=self.name, device=right.device)


def _copy_logits(verify: VerifyFunction) -> VerifyFunction:
    def wrong(batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        return verify(batch.replace(target_logits=batch.target_logits.clone()), noise)

    return wrong


def _read_logits_twice(verify: VerifyFunction) -> VerifyFunction:
    def wrong(batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        batch.target_logits.amax()
        return verify(batch, noise)

    return wrong


def _launch_per_request(verify: VerifyFunction) -> VerifyFunction:
    def wrong(batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        assert isinstance(noise, ExplicitNoise)  # the right sampler of the mutants takes it
        requests = range(batch.batch_size)
        return torch.cat([verify(batch.select([i]), noise.select(batch, [i])) for i in requests])

    return wrong


def _wait_for_device(verify: VerifyFunction) -> VerifyFunction:
    def wrong(batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        output = verify(batch, noise)
        output.max().item()
        return output

    return wrong


def _scratch_of_the_size_of_the_logits(verify: VerifyFunction) -> VerifyFunction:
    def wrong(batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        torch.empty_like(batch.target_logits)
        return verify(batch, noise)

    return wrong


FAULTS = (
    Fault("copies the logits", ("bytes", "copies", "allocations"), _copy_logits),
    Fault("reads the logits twice", ("bytes",), _read_logits_twice),
    Fault("launches once per request", ("launches", "allocations"), _launch_per_request),
    Fault("waits for the device", ("syncs",), _wait_for_device),
    Fault("allocates scratch of the size of the logits", ("allocations",), _scratch_of_the_size_of_the_logits),
)
"""Every mutant."""
