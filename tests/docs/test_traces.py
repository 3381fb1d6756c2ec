"""Serving traces (tools/traces): a correct sampler passes, and the slice of a fault is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from traces import sampling_draws, sampling_judges

from fairdraw._core.checks import PROFILES
from fairdraw._core.failures import CheckFailure
from fairdraw._run.loading import load_sampler
from fairdraw.protocols import token_sampler

if TYPE_CHECKING:
    from torch import Tensor

    from fairdraw.protocols import SamplingBatch, SamplingNoise

RIGHT = load_sampler("sampling/torch")
JUDGES = (*sampling_judges.TRACES, sampling_draws.SLICES)


def wide_batches_take_row_32(batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
    tokens = RIGHT.sample(batch, noise)
    if batch.batch_size > 40:
        tokens[32] = batch.logits[32].argmax()
    return tokens


@pytest.mark.parametrize("judge", JUDGES, ids=lambda judge: judge.code)
def test_right_sampler_passes(judge: object) -> None:
    judge.run(RIGHT, profile=PROFILES["smoke"], seed=1)


def test_slice_of_a_fault_is_named() -> None:
    wrong = token_sampler(wide_batches_take_row_32, unsupported={"counter-noise": "a test"})
    with pytest.raises(CheckFailure, match=r"the best: .* where row 32"):
        sampling_draws.SLICES.run(wrong, profile=PROFILES["smoke"], seed=1)
