"""What the harness uses below the public API of our samplers and adapters. No other module of the suite does.

The import linter forbids the suite to import `sampler_impl` and exempts this module by name. Imports that load torch
are inside functions, because valgrind runs the rest of this module and would take minutes to import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    """The kernels with upstream's noise (`accept`, `recover`), and the check of the arguments that they need."""
    from fairdraw.sampler_impl._rejection import kernels
    from fairdraw.sampler_impl._rejection.step import checked_step

    return kernels, checked_step
