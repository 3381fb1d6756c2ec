"""Our fast path on a GPU: what it asks of the device besides its work, and how near it comes to the copy bandwidth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from fairdraw.perf_regression.bench import bytes_that_must_move
from fairdraw.perf_regression.cases import Sizes, rejection_batch
from fairdraw.perf_regression.decision import Verdict
from fairdraw.perf_regression.device import count_on_device, event_clock, graph_of, require_gpu, warm_clock
from fairdraw.perf_regression.findings import Finding, compare_counts, from_decision
from fairdraw.perf_regression.limits import read_limits
from fairdraw.perf_regression.named import NoVerdictError, load
from fairdraw.perf_regression.roofline import SMALL_COPY, measure_roofline, why_warm

if TYPE_CHECKING:
    from collections.abc import Callable

    Note = Callable[[list[Finding]], None]

pytestmark = pytest.mark.timing
ALPHA = 0.01 / 2
"""One-sided, for each of two rooflines: 1 % for the run."""
NAME = "rejection.counter_triton"
SIZES = {f"{NAME}.B64": Sizes(64, 3, 128_256), f"{NAME}.B256": Sizes(256, 3, 128_256)}


def step_on_gpu(sizes: Sizes) -> Callable[[], object]:
    """The function itself, without the adapter's seeds: bfloat16 logits, dense draft probabilities."""
    require_gpu()
    batch = rejection_batch(sizes, "cuda", dtype=torch.bfloat16)
    sample = load("fairdraw.sampler_impl.rejection_counter:rejection_sample")
    seeds = torch.arange(sizes.batch_size, device="cuda")
    return lambda: sample(
        batch.draft_token_ids,
        batch.cu_num_draft_tokens,
        batch.max_spec_len,
        batch.target_logits,
        batch.temperature,
        seeds,
        seeds,
        draft_probs=batch.draft_probs,
        bonus_token_ids=batch.bonus_token_ids,
    )


def test_step_neither_waits_nor_compiles_and_can_be_captured(verdicts: Note) -> None:
    try:
        counts = count_on_device(step_on_gpu(Sizes(64, 3, 32_000)))
    except NoVerdictError as error:
        verdicts([Finding(NAME, "device counts", Verdict.NO_VERDICT, reason=str(error))])
        return
    row = {"syncs": counts.syncs, "recompiles": counts.compilations}
    captured = Verdict.PASS if counts.is_capturable else Verdict.FAIL
    capture = Finding(NAME, "graph capture", captured, reason=counts.why_not_capturable)
    verdicts([*compare_counts(row, read_limits().cases[f"{NAME}.B64"]), capture])


@pytest.mark.parametrize("name", SIZES)
def test_step_reaches_its_part_of_the_copy_bandwidth(name: str, verdicts: Note) -> None:
    """Graph replay, cold L2."""
    limit = read_limits().cases[name].roofline_min
    assert limit is not None
    verdicts([_judged(name, SIZES[name], limit)])


def _judged(name: str, sizes: Sizes, limit: float) -> Finding:
    what = "part of the copy bandwidth"
    try:
        step = graph_of(step_on_gpu(sizes)).replay
        problem = why_warm(event_clock, warm_clock, SMALL_COPY)
        if problem:
            raise NoVerdictError(problem)
        decision, _ = measure_roofline(step, bytes_that_must_move(sizes, 2), limit, ALPHA)
    except NoVerdictError as error:
        return Finding(name, what, Verdict.NO_VERDICT, limit=limit, reason=str(error))
    return from_decision(name, decision, limit, what)
