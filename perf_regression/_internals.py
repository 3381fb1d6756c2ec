"""What the harness uses below the public API of our samplers and adapters. No other module of the suite does.

The import linter forbids the suite to import `sampler_impl` and exempts this module by name.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import torch

from fairdraw.contracts import SpecDecodeBatch, all_added
from fairdraw.perf_regression._named import NoVerdictError
from fairdraw.perf_regression._world import END_ID, START_ID, Outputs, Sizes
from fairdraw.sampler_impl._scanners.penalty_rows import bonus_rows, draft_rows
from fairdraw.sampler_impl.penalties import Penalties
from fairdraw.sampler_impl.thinking_budget import ThinkingBudget

if TYPE_CHECKING:
    from collections.abc import Callable
    from functools import partial

    from torch import Tensor

    from fairdraw.sampler_impl.step import StepInputs, StepOutput

FAST_PATH = {"measure_kernel": 25, "accept_kernel": 8, "draw_kernel": 28}
"""Kernels of the verification step in the order of their launches, and the most barriers of each."""


def load_sampler(name: str, device: str | None = None) -> Any:  # Any: of some contract
    """Load a sampler by its name.

    Raises:
        NoVerdictError: If it cannot be made.
    """
    from fairdraw.adapters import SamplerNotFound, load

    try:
        return load(name, device)
    except SamplerNotFound as error:
        raise NoVerdictError(str(error)) from error


def fast_path(batch: SpecDecodeBatch, *, workspace: bool) -> partial[Tensor]:
    """Return one call of the Triton kernels with counter noise, as a server captures it in a CUDA graph.

    The partial holds every tensor that the graph reads; its workspace is `keywords["workspace"]`.
    """
    from fairdraw.adapters._rejection import captured_step

    return captured_step(batch, "triton", workspace=workspace)


def is_overlapping(arguments: dict[str, Any]) -> bool | None:  # Any: a launch's arguments
    """Whether a launch's kernel overlaps with the one before it; `None` where the kernel has no such mode."""
    return arguments.get("EAGER")


def takes_several_tiles(arguments: dict[str, Any]) -> bool:  # Any: a launch's arguments
    """Whether each program of a launch takes several tiles of the vocabulary."""
    return bool(arguments.get("STRIP", 0) > 1)


def penalties_host(outputs: Outputs) -> Callable[[], None]:
    """Return what `Penalties` does on the host: reads the new tokens, and with drafts lays out their rows."""
    vocab_size, slots = outputs.vocab_size, np.arange(len(outputs.lists))
    ours: Any = Penalties(vocab_size)  # Any: its changes are vLLM's
    ours.sync_batch(all_added(outputs.requests))
    ours.update(outputs.lists)

    def step() -> None:
        ours.update(outputs.lists)
        for rows in (bonus_rows, draft_rows) if outputs.sizes.max_spec_len else ():
            rows(slots, outputs.drafts, vocab_size).seen_drafts(vocab_size)

    return step


def thinking_host(outputs: Outputs) -> Callable[[], None]:
    """Return `update_state`: the whole of what `ThinkingBudget` does on the host."""
    ours: Any = ThinkingBudget([START_ID], [END_ID])  # Any: as above
    ours.sync_batch(all_added(outputs.requests))

    def step() -> None:
        ours.update_state(outputs.lists, outputs.drafts)

    step()
    return step


def whole_step(sizes: Sizes, name: str, device: str = "cpu") -> Callable[[], StepOutput]:
    """Return a step by a plan that was used before, in Triton: bfloat16 rows, T=0.6, and no draft is accepted.

    Its name has words, with dots between: a `plain` one has no filters, others have top-k 20 and top-p 0.95; with
    `penalties` presence 1.5; on `flat` rows, which are full of ties, top-k is 5000. Other rows are like a model's.

    On a CPU rows have programs of their own, as in small batches, unless they have `penalties` alone: then a program
    reads a request's rows, as in large ones. On a GPU the size decides; large batches take minutes in the interpreter.
    """
    from fairdraw._core.interpreter import prepare_triton

    prepare_triton(device)
    from fairdraw.sampler_impl._step import launch
    from fairdraw.sampler_impl.step import Capacity, StepPlan

    filters, penalties = name != "plain", "penalties" in name
    capacity = Capacity(sizes.batch_size, sizes.max_spec_len, sizes.vocab_size, filters=filters, penalties=penalties)
    most_apart = launch.MOST_APART if device != "cpu" else 0 if name == "penalties" else sys.maxsize
    plan = StepPlan(capacity, device, backend="triton")
    with torch.device(device):
        inputs = _step_inputs(capacity, is_flat="flat" in name)

    def step() -> StepOutput:
        with mock.patch.object(launch, "MOST_APART", most_apart):
            return plan(inputs)

    step()
    return step


def _step_inputs(capacity: Any, *, is_flat: bool) -> StepInputs:  # Any: Capacity
    """Return rows like Zipf's, which fall by a slope per logarithm of the rank."""
    from fairdraw.sampler_impl.step import Parameters, Penalties, StepInputs

    noise = torch.Generator(torch.get_default_device()).manual_seed(1)
    size, rows, vocab_size = capacity.batch_size, capacity.max_rows, capacity.vocab_size
    slope, top_k = (0.05, 5_000) if is_flat else (1.5, 20)
    ranks = torch.rand(rows, vocab_size, generator=noise).argsort(-1)
    filters = (torch.full((size,), top_k).int(), torch.full((size,), 0.95)) if capacity.filters else ()
    counts = torch.randint(0, 2, (size, vocab_size), generator=noise).int()
    prompt = torch.zeros(size, -(-vocab_size // 32), dtype=torch.int32)
    off, on = torch.zeros(size), torch.ones(size)
    return StepInputs(
        logits=(-slope * (1 + ranks).log()).bfloat16(),
        parameters=Parameters(0.6 * on, *filters),
        seeds=torch.arange(size),
        positions=torch.zeros(size, dtype=torch.int64),
        cu_num_rows=torch.arange(0, rows + 1, capacity.max_spec_len + 1).int(),
        draft_token_ids=ranks.argmax(-1).int(),
        penalties=Penalties(1.5 * on, off, on, counts, prompt) if capacity.penalties else None,
    )
