"""Host time of one call by sampler, on any machine: kernels are neither compiled nor launched.

    python tools/bench.py host                     # microseconds per call
    python tools/bench.py host rejection           # of names that begin so
    python tools/bench.py host --profile           # and where they go (under cProfile, which takes time itself)

A launch ends where Triton's launcher in C would begin. Triton's own dispatch is whole, for a card that only has a name.
Each whole step has new `StepInputs` with new tensors of the batch, as in an engine, and the same tensors by slot. The
drop-in `rejection` also runs operations of torch: of a batch so small that their arithmetic takes next to nothing.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

os.environ["TRITON_INTERPRET"] = "0"

import torch
import triton.compiler
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from fairdraw.sampler_impl import rejection, rejection_counter, sampling, step
from fairdraw.sampler_impl._counter import step as of_counter
from fairdraw.sampler_impl._rejection import step as of_rejection
from fairdraw.sampler_impl._sampling import parameters as of_sampling
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
    from collections.abc import Callable, Iterator

    Call = Callable[[], object]

REQUESTS, DRAFTS, VOCAB_SIZE = 64, 3, 4096
FEW_REQUESTS, FEW_ENTRIES = 8, 16
"""Where operations of torch run."""
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


def whole_step(*, filters: bool = False, penalties: bool = False, edits: bool = False) -> Call:
    """One step of a plan, with tensors of its own."""
    capacity = Capacity(
        REQUESTS, DRAFTS, VOCAB_SIZE, filters=filters, penalties=penalties, edits=64 if edits else 0, grammar=edits
    )
    plan = StepPlan(capacity, "cpu")
    plan._index = 0  # of the card: a step looks whether it is the current one
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

    def call() -> object:
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

    return call


def with_counters(draft: str, *, bonus: bool = False, workspace: bool = True) -> Call:
    """`rejection_counter`, with one-hot drafts, probabilities or logits."""
    num_tokens = REQUESTS * DRAFTS
    rows = torch.zeros(num_tokens + REQUESTS * bonus, VOCAB_SIZE, dtype=torch.bfloat16)
    drafts = {
        "one-hot": {},
        "probs": {"draft_probs": torch.zeros(num_tokens, VOCAB_SIZE)},
        "logits": {"draft_logits": rows[:num_tokens]},
    }
    counters = torch.arange(REQUESTS)
    return partial(
        rejection_counter.rejection_sample,
        torch.zeros(num_tokens, dtype=torch.int32),
        torch.arange(DRAFTS, num_tokens + 1, DRAFTS, dtype=torch.int32),
        DRAFTS,
        rows,
        torch.ones(REQUESTS),
        counters,
        counters,
        bonus_token_ids=None if bonus else torch.zeros(REQUESTS, 1, dtype=torch.int32),
        workspace=rejection_counter.make_workspace(REQUESTS, DRAFTS, VOCAB_SIZE, "cpu") if workspace else None,
        **drafts[draft],
    )


def plain(*, min_p: bool = False) -> Call:
    """`sampling` with noise from counters."""
    counters, ones = torch.arange(REQUESTS), torch.ones(REQUESTS)
    parameters = sampling.SamplingParameters(ones, min_p=ones if min_p else None)
    logits = torch.zeros(REQUESTS, VOCAB_SIZE, dtype=torch.bfloat16)
    return partial(sampling.sample, logits, parameters, sampling.CounterNoise(counters, counters))


def drop_in(*, dense: bool = True, all_random: bool = False) -> Call:
    """`rejection`, which draws its noise as vLLM does."""
    num_tokens = FEW_REQUESTS * DRAFTS
    metadata: Any = SimpleNamespace(  # Any: as vLLM's
        all_greedy=False, all_random=all_random, temperature=torch.ones(FEW_REQUESTS), generators={}
    )
    return partial(
        rejection.rejection_sample,
        torch.zeros(num_tokens, dtype=torch.int32),
        [DRAFTS] * FEW_REQUESTS,
        DRAFTS,
        torch.arange(DRAFTS, num_tokens + 1, DRAFTS, dtype=torch.int32),
        torch.full((num_tokens, FEW_ENTRIES), 1 / FEW_ENTRIES) if dense else None,
        torch.zeros(num_tokens, FEW_ENTRIES),
        torch.zeros(FEW_REQUESTS, 1, dtype=torch.int32),
        metadata,
    )


def first_of_its_kind(make: Callable[[], Call]) -> Call:
    """As if no call of these sizes had been before; what kernels are compiled for was seen."""
    call = make()

    def forget_and_call() -> object:
        for known in (of_counter.KNOWN, of_rejection.KNOWN, of_sampling.KNOWN):
            known.plans.clear()
        return call()

    return forget_and_call


SETS: dict[str, Callable[[], Call]] = {
    "step: no parameters": whole_step,
    "step: filters": partial(whole_step, filters=True),
    "step: filters, penalties": partial(whole_step, filters=True, penalties=True),
    "step: everything": partial(whole_step, filters=True, penalties=True, edits=True),
    "rejection_counter: one-hot": partial(with_counters, "one-hot"),
    "rejection_counter: one-hot, bonus rows": partial(with_counters, "one-hot", bonus=True),
    "rejection_counter: probs": partial(with_counters, "probs"),
    "rejection_counter: probs, no workspace": partial(with_counters, "probs", workspace=False),
    "rejection_counter: logits": partial(with_counters, "logits"),
    "rejection_counter: probs, new sizes": partial(first_of_its_kind, partial(with_counters, "probs")),
    "sampling": plain,
    "sampling: min-p": partial(plain, min_p=True),
    "sampling: new sizes": partial(first_of_its_kind, plain),
    "rejection: probs": drop_in,
    "rejection: probs, all random": partial(drop_in, all_random=True),
    "rejection: one-hot": partial(drop_in, dense=False),
    "rejection: probs, new sizes": partial(first_of_its_kind, drop_in),
}


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
        for name in (name for name in SETS if name.startswith(options.begin)):
            call = SETS[name]()
            call()
            print(f"{name}: {microseconds(call):.1f} us", flush=True)
            if options.profile:
                with cProfile.Profile(time.thread_time) as profile:
                    for _ in range(CALLS):
                        call()
                pstats.Stats(profile).sort_stats("tottime").print_stats(16)
    return 0
