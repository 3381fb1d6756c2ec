"""What the harness uses below the public API of our samplers and adapters. No other module of the suite does.

The import linter forbids the suite to import `sampler_impl` and exempts this module by name. Imports that load torch
are inside functions, because valgrind runs the rest of this module and would take minutes to import torch.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any
from unittest import mock

from fairdraw.perf_regression._named import NoVerdictError
from fairdraw.sampler_impl._scanners.history import History
from fairdraw.sampler_impl._scanners.penalty_rows import bonus_rows, changed_counts, draft_rows
from fairdraw.sampler_impl.thinking_budget import ThinkingBudget

if TYPE_CHECKING:
    from collections.abc import Callable
    from functools import partial
    from types import ModuleType

    from torch import Tensor

    from fairdraw.protocols import SpecDecodeBatch
    from fairdraw.sampler_impl.penalties import PaddedOutputs, Penalties
    from fairdraw.sampler_impl.step import StepInputs, StepOutput

__all__ = ["History", "ThinkingBudget", "bonus_rows", "changed_counts", "draft_rows"]

FAST_PATH = {"measure_kernel": 25, "accept_kernel": 8, "draw_kernel": 28}
"""Kernels of the verification step in the order of their launches, and the most barriers of each."""


def load_sampler(name: str, device: str | None = None) -> Any:  # Any: of some contract
    """A sampler by its name.

    Raises:
        NoVerdictError: If it cannot be made.
    """
    from fairdraw._adapters import SamplerNotFound, load

    try:
        return load(name, device)
    except SamplerNotFound as error:
        raise NoVerdictError(str(error)) from error


def fast_path(batch: SpecDecodeBatch, *, workspace: bool) -> partial[Tensor]:
    """One call of the Triton kernels with counter noise, as a server captures it in a CUDA graph.

    The partial holds every tensor that the graph reads; its workspace is `keywords["workspace"]`.
    """
    from fairdraw._adapters._rejection import captured_step

    return captured_step(batch, "triton", workspace=workspace)


def is_overlapping(arguments: dict[str, Any]) -> bool | None:  # Any: a launch's arguments
    """Whether a launch's kernel overlaps with the one before it; `None` where the kernel has no such mode."""
    return arguments.get("EAGER")


def takes_several_tiles(arguments: dict[str, Any]) -> bool:  # Any: a launch's arguments
    """Whether each program of a launch takes several tiles of the vocabulary."""
    return bool(arguments.get("STRIP", 0) > 1)


def penalties(vocab_size: int) -> Penalties:
    from fairdraw.sampler_impl.penalties import Penalties

    return Penalties(vocab_size)


def padded_outputs() -> PaddedOutputs:
    from fairdraw.sampler_impl.penalties import PaddedOutputs

    return PaddedOutputs()


def rejection_kernels() -> tuple[ModuleType, Callable[..., Any]]:  # Any: a checked step
    """The kernels with upstream's noise (`verify`), and the check of the arguments that they need."""
    from fairdraw.sampler_impl._rejection import kernels
    from fairdraw.sampler_impl._rejection.step import checked_step

    return kernels, checked_step


def whole_step(
    batch_size: int, max_spec_len: int, vocab_size: int, *, filters: bool, penalties: bool, apart: bool
) -> Callable[[], StepOutput]:
    """Return a step by a plan that was used before, in Triton: bfloat16 rows as of a model, and no draft is accepted.

    Rows that are `apart` have programs of their own, as in small batches; otherwise a program reads a request's rows,
    as in large ones. The size does not decide it here: large batches take minutes in the interpreter.
    """
    from fairdraw._core.interpreter import prepare_triton

    prepare_triton("cpu")
    from fairdraw.sampler_impl._step import launch
    from fairdraw.sampler_impl.step import Capacity, StepPlan

    capacity = Capacity(batch_size, max_spec_len, vocab_size, filters=filters, penalties=penalties)
    plan, inputs = StepPlan(capacity, "cpu", backend="triton"), _step_inputs(capacity)

    def step() -> StepOutput:
        with mock.patch.object(launch, "MOST_APART", sys.maxsize if apart else 0):
            return plan(inputs)

    step()
    return step


def _step_inputs(capacity: Any) -> StepInputs:  # Any: Capacity
    """Rows like Zipf's: T=0.6; with filters top-k 20 and top-p 0.95, with penalties presence 1.5 of half of all ids."""
    import torch

    from fairdraw.sampler_impl.step import Parameters, Penalties, StepInputs

    noise = torch.Generator().manual_seed(1)
    size, rows, vocab_size = capacity.batch_size, capacity.max_rows, capacity.vocab_size
    ranks = torch.rand(rows, vocab_size, generator=noise).argsort(-1)
    filters = (torch.full((size,), 20).int(), torch.full((size,), 0.95)) if capacity.filters else ()
    counts = torch.randint(0, 2, (size, vocab_size), generator=noise).int()
    prompt = torch.zeros(size, -(-vocab_size // 32), dtype=torch.int32)
    off, on = torch.zeros(size), torch.ones(size)
    return StepInputs(
        logits=(-1.5 * (1 + ranks).log()).bfloat16(),
        parameters=Parameters(0.6 * on, *filters),
        seeds=torch.arange(size),
        positions=torch.zeros(size, dtype=torch.int64),
        cu_num_rows=torch.arange(0, rows + 1, capacity.max_spec_len + 1).int(),
        draft_token_ids=ranks.argmax(-1).int(),
        penalties=Penalties(1.5 * on, off, on, counts, prompt) if capacity.penalties else None,
    )
