"""Host time of a sampling step by function, on any machine: kernels are neither compiled nor launched.

    python tools/step_host.py                     # microseconds per step and parameter set
    python tools/step_host.py --profile           # and where they go (under cProfile, which takes time itself)

A launch ends where Triton's launcher in C would begin; there is no stream. Each step has new `StepInputs` with new
tensors of the batch, as in an engine, and the same tensors by slot.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import time
from typing import TYPE_CHECKING, Any
from unittest import mock

os.environ["TRITON_INTERPRET"] = "0"

import torch
from triton import knobs

from fairdraw.sampler_impl._step import launch
from fairdraw.sampler_impl._step.compiled import Compiled
from fairdraw.sampler_impl.step import (
    BadWords,
    Capacity,
    Parameters,
    Penalties,
    StepInputs,
    StepPlan,
    TokenEdits,
)

if TYPE_CHECKING:
    from collections.abc import Callable

REQUESTS, DRAFTS, VOCAB_SIZE = 64, 3, 4096
CALLS, WINDOWS = 400, 15
SETS: dict[str, tuple[bool, bool, bool]] = {  # filters, penalties, edits
    "none": (False, False, False),
    "filters": (True, False, False),
    "filters and penalties": (True, True, False),
    "everything": (True, True, True),
}


class Stub:
    """A compiled kernel that does in Python what Triton's does, and launches nothing."""

    module = function = packed_metadata = None

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., None]:
        def runner(*arguments: Any, stream: int | None = None) -> None:  # Any: of a kernel
            metadata = {"function": self.function, "stream": stream}
            hooks = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
            self.run(*grid, stream, metadata, *hooks, *arguments)

        return runner

    def run(self, *arguments: Any) -> None:  # Any: as above
        pass


class Source:
    """What `triton.jit` makes, of which a first launch makes a compiled kernel."""

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., Stub]:
        return lambda *_, **__: Stub()


def stubbed(kernel: Any, options: dict[str, int], **constants: Any) -> Compiled:  # Any: Triton's
    return Compiled(Source(), options, **constants)


def step_of(name: str) -> Callable[[], object]:
    """One step of a set of parameters, with tensors of its own."""
    filters, penalties, edits = SETS[name]
    capacity = Capacity(
        REQUESTS, DRAFTS, VOCAB_SIZE, filters=filters, penalties=penalties, edits=64 if edits else 0, grammar=edits
    )
    # A plan chooses PyTorch on a CPU: this one gets the launches by hand.
    plan = StepPlan(capacity, "cpu", backend="torch")
    with mock.patch.object(launch, "Compiled", stubbed):
        plan._run = launch.Launches(capacity, torch.device("cpu"))
    rows, words = capacity.max_rows, -(-VOCAB_SIZE // 32)
    logits = torch.zeros(rows, VOCAB_SIZE, dtype=capacity.dtype)
    mask = torch.full((rows, words), -1, dtype=torch.int32)
    ids, slots = torch.zeros(rows, dtype=torch.int32), torch.arange(REQUESTS, dtype=torch.int32)
    cu_num_rows = torch.arange(0, rows + 1, DRAFTS + 1, dtype=torch.int32)
    ones = torch.ones(REQUESTS)
    seeds = positions = torch.zeros(REQUESTS, dtype=torch.int64)
    counts = torch.zeros(REQUESTS, dtype=torch.int32)
    parameters = Parameters(ones, *((counts, ones, ones) if filters else ()))
    factors = Penalties(ones, ones, ones, counts.new_zeros(REQUESTS, VOCAB_SIZE), counts.new_zeros(REQUESTS, words))
    lists = counts.new_zeros(REQUESTS, 8)
    bad_words = BadWords(counts, lists, lists, lists, counts)
    listed = TokenEdits(counts, lists, lists.float(), counts, lists, counts, lists, counts, bad_words)

    def step() -> object:
        return plan(
            StepInputs(
                logits.detach(),
                parameters,
                seeds,
                positions.detach(),
                cu_num_rows.detach(),
                slots.detach(),
                ids.detach(),
                penalties=factors if penalties else None,
                edits=listed if edits else None,
                grammar_mask=mask.detach() if edits else None,
            )
        )

    return step


def no_stream() -> int:
    return 0


def microseconds(step: Callable[[], object]) -> float:
    """The fastest of some windows, by this thread's own clock."""
    found = []
    for _ in range(WINDOWS):
        begin = time.thread_time_ns()
        for _ in range(CALLS):
            step()
        found.append((time.thread_time_ns() - begin) / CALLS / 1000)
    return min(found)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Host time of a sampling step by function, without a GPU.")
    parser.add_argument("--profile", action="store_true", help="by function, under cProfile")
    options = parser.parse_args(arguments)
    with mock.patch.object(launch, "current_stream", no_stream):
        for name in SETS:
            step = step_of(name)
            step()
            print(f"{name}: {microseconds(step):.1f} us")
            if options.profile:
                with cProfile.Profile(time.thread_time) as profile:
                    for _ in range(CALLS):
                        step()
                pstats.Stats(profile).sort_stats("tottime").print_stats(16)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
