"""Host time of one call by sampler, on any machine: kernels are neither compiled nor launched.

    python tools/bench.py host                     # microseconds per call
    python tools/bench.py host rejection           # of names that begin so
    python tools/bench.py host --profile           # and where they go (under cProfile, which takes time itself)

A launch ends where Triton's launcher in C would begin. Triton's own dispatch is whole, for a card that only has a name.
Each whole step has new `StepInputs` with new tensors of the batch, as in an engine, and the same tensors by slot. The
others are the calls of `tensor_calls`. Some run operations of torch as well, of a batch so small that their arithmetic
takes next to nothing; `rejection_sample` also seeds torch.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

os.environ["TRITON_INTERPRET"] = "0"

import torch
import triton.compiler
from step_cases import make_case
from tensor_calls import calls
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from fairdraw.sampler_impl import rejection, rejection_counter, sampling, step
from fairdraw.sampler_impl._counter import step as of_counter
from fairdraw.sampler_impl._rejection import step as of_rejection
from fairdraw.sampler_impl._sampling import parameters as of_sampling
from fairdraw.sampler_impl.step import StepPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Call = Callable[[], object]

REQUESTS, DRAFTS, VOCAB_SIZE = 64, 3, 4096
"""Sizes of a whole step. The other calls are of a few requests: what the host does depends on their kind."""
CALLS, WINDOWS = 400, 15


class Stub:
    """A compiled kernel that does in Python what Triton's does, and launches nothing."""

    module = function = packed_metadata = None

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., None]:
        def runner(*arguments: Any, stream: int | None = None) -> None:  # Any: of a kernel
            metadata = self.launch_metadata(grid, stream, *arguments)
            hooks = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
            self.run(*grid, stream, self.function, self.packed_metadata, metadata, *hooks, *arguments)

        return runner

    def launch_metadata(self, *_: Any) -> None:  # Any: as above
        return None

    def run(self, *arguments: Any) -> None:  # Any: as above
        pass


class Card:
    """Triton's driver of a card that is not there."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


def always_triton(*_: object, **__: object) -> str:
    return "triton"


@contextmanager
def no_card() -> Iterator[None]:
    """Every launch is a stub's, and tensors of the CPU are launched for."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(triton.compiler, "compile", return_value=Stub()))
        for module in (rejection, rejection_counter, sampling, step):
            stack.enter_context(mock.patch.object(module, "choose_backend", always_triton))
        stack.enter_context(mock.patch.object(torch.cuda, "current_device", Card().get_current_device))
        active = driver.active if driver._active is not None else None
        driver.set_active(Card())  # type: ignore[arg-type]  # as much of one as is needed
        yield
        if active is not None:
            driver.set_active(active)


def whole_step(**sets: bool) -> Call:
    """Return a step of a plan, with tensors of its own for what belongs to the batch, as in an engine."""
    case = make_case(0, [DRAFTS] * REQUESTS, VOCAB_SIZE, kinds=("half",), dtype=torch.bfloat16, **sets)
    plan = StepPlan(case.capacity, "cpu", backend="triton")
    plan._index = 0  # of the card: a step looks whether it is the current one
    inputs = case.inputs
    names = ("logits", "positions", "cu_num_rows", "slots", "draft_token_ids", "grammar_mask")
    of_batch = {name: tensor for name in names if (tensor := getattr(inputs, name)) is not None}
    return lambda: plan(replace(inputs, **{name: tensor.detach() for name, tensor in of_batch.items()}))


def first_of_its_kind(call: Call) -> Call:
    """Return a call that finds no call of its sizes before it; what kernels are compiled for was seen."""

    def forget_and_call() -> object:
        for known in (of_counter.KNOWN, of_rejection.KNOWN, of_sampling.KNOWN):
            known.plans.clear()
        return call()

    return forget_and_call


def gathered() -> dict[str, Call]:
    """Return the calls by name: whole steps, and those of `tensor_calls`."""
    found: dict[str, Call] = {
        "step: no parameters": whole_step(filters=False),
        "step: filters": whole_step(),
        "step: everything": whole_step(edits=True),
    }
    for name, call in calls("triton").items():
        if name.startswith(("rejection", "sample", "verify_drafts", "draft_with")):
            found[name] = partial(call.function, **call.arguments)
            found[f"{name}, new sizes"] = first_of_its_kind(found[name])
    return found


def microseconds(call: Call) -> float:
    """The fastest of some windows, by this thread's own clock."""
    found = []
    for _ in range(WINDOWS):
        begin = time.thread_time_ns()
        for _ in range(CALLS):
            call()
        found.append((time.thread_time_ns() - begin) / CALLS / 1000)
    return min(found)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Host time of one call by sampler, without a GPU.")
    parser.add_argument("begin", nargs="?", default="", help="only names that begin so")
    parser.add_argument("--profile", action="store_true", help="by function, under cProfile")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with no_card():
        for name, call in gathered().items():
            if not name.startswith(options.begin):
                continue
            call()
            print(f"{name}: {microseconds(call):.1f} us", flush=True)
            if options.profile:
                with cProfile.Profile(time.thread_time) as profile:
                    for _ in range(CALLS):
                        call()
                pstats.Stats(profile).sort_stats("tottime").print_stats(16)
    return 0
