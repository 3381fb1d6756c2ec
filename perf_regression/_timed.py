"""What is timed, by name: each function makes the rounds of one case, in this process or in a fresh one.

Arms are samplers or sizes. On a CPU, our own limits are timed in the time of one thread (`thread_clock`) with one torch
thread; on a GPU, events are timed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fairdraw.perf_regression import _internals
from fairdraw.perf_regression import _scanner_arms as arms
from fairdraw.perf_regression._cases import (
    Sizes,
    bytes_that_must_move,
    fast_path_steps,
    rejection_batch,
    rejection_step,
)
from fairdraw.perf_regression._device import replay_of, require_gpu
from fairdraw.perf_regression._device_time import event_clock, gpu_watches, roofline_rounds
from fairdraw.perf_regression._named import NoVerdictError
from fairdraw.perf_regression._rounds import Rounds, after_own_step, calibrate, cpu_clock, thread_clock
from fairdraw.perf_regression._scanner_steps import Outputs
from fairdraw.perf_regression._worlds import WORLDS, steps_of_both

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fairdraw.protocols import RejectionSampler

    Step = Callable[[], object]


PAIRS = {"penalties": arms.penalties_arms, "thinking": arms.thinking_arms}
OURS = {"penalties": arms.our_penalties_step, "thinking": arms.our_thinking_step}
BATCH_SIZE, LENGTH, NUM_DRAFTS = 64, 4_000, 3
SHORTEST_SAMPLE = {"cpu": 5e-4, "cuda": 2e-4}
SETTLING_BYTES = (32 << 20) - (64 << 10)
"""Just below glibc's largest threshold: once a tensor of this size is freed, the threshold stays raised."""
SCANNER_SIZES = {"L": (1_000, 2_000, 4_000, 8_000, 16_000), "B": (32, 64, 128, 256), "K": (1, 2, 4, 8)}
REJECTION_SIZES = {"B": (2, 4, 8, 16), "K": (1, 2, 4, 8), "V": (8_000, 16_000, 32_000, 64_000)}
DEVICE_SIZES = {"B": (64, 128, 256), "K": (2, 4, 8), "V": (64_000, 100_003, 128_256, 151_936, 202_048)}
"""All are large enough for programs of several tiles. With K=1 or V=32000, 64 requests take another path."""


def rejection_pair(ours: str, reference: str, sizes: Sequence[int]) -> Rounds:
    """Verification steps of two samplers by their names."""
    return rejection_rounds(_internals.load_sampler(ours), _internals.load_sampler(reference), Sizes(*sizes))


def rejection_rounds(ours: RejectionSampler, reference: RejectionSampler, sizes: Sizes) -> Rounds:
    """Verification steps of two samplers, as the arms `ours` and `reference`.

    Raises:
        NoVerdictError: If a time here would mean nothing.
    """
    if ours.device != reference.device:
        raise NoVerdictError(f"{ours.name} is on {ours.device} and {reference.name} on {reference.device}")
    for sampler in (ours, reference):
        if sampler.capabilities.slow:
            raise NoVerdictError(f"{sampler.name} runs in an interpreter, whose time says nothing: needs a GPU")
    batch = rejection_batch(sizes, ours.device)
    steps = {"ours": rejection_step(ours, batch), "reference": rejection_step(reference, batch)}
    on_cpu = ours.device == "cpu"
    clock = cpu_clock if on_cpu else event_clock
    inner = calibrate(steps, SHORTEST_SAMPLE[ours.device], clock)
    return Rounds(steps, inner=inner, clock=clock, watches=[] if on_cpu else gpu_watches())


def rejection_roofline(ours: str, sizes: Sequence[int]) -> Rounds:
    """A sampler by its name, and a copy of the bytes that it must move."""
    sampler, at = _internals.load_sampler(ours), Sizes(*sizes)
    batch = rejection_batch(at, sampler.device)
    return roofline_rounds(rejection_step(sampler, batch), bytes_that_must_move(at, batch.target_logits.element_size()))


def scanner_pair(scanner: str, num_drafts: int) -> Rounds:
    """Host work of one decode step, ours and vLLM's, 64 requests with 4000 output tokens.

    Raises:
        NoVerdictError: If vLLM 0.22.0 is not installed.
    """
    arms.require_upstream()
    outputs = _grown(BATCH_SIZE, LENGTH, num_drafts)
    both = PAIRS[scanner](outputs)
    clock = after_own_step(outputs.advance, thread_clock)
    return Rounds({name: both[name] for name in ("ours", "vllm")}, clock=clock, drop_switched=False)


def world_pair(world: str, ours: str, reference: str) -> Rounds:
    """One step of two samplers in a world of `worlds`, by their names, on the CPU."""
    make, sizes = WORLDS[world]
    torch.set_num_threads(1)
    _settle_allocator()
    made = make(sizes, "cpu")
    samplers = [_internals.load_sampler(name) for name in (ours, reference)]
    clock = after_own_step(made.advance, thread_clock)
    return Rounds(steps_of_both(made, *samplers), clock=clock, drop_switched=False)


def _settle_allocator() -> None:
    """Make glibc's malloc keep freed blocks of up to 32 MB, as it does in a server that has run for a while.

    A young process may return large tensors to the system at every step and pay for fresh pages at the next one. The
    ratio of `logits_plan.busy` was therefore between 0.27 and 0.80 from process to process.
    """
    torch.empty(SETTLING_BYTES, dtype=torch.int8).fill_(0)


def scanner_growth(scanner: str, axis: str) -> Rounds:
    """Our host work at several sizes: of the output (L), of the batch (B), or drafts per request and step (K)."""
    batches = {}
    for size in SCANNER_SIZES[axis]:
        at = {"B": BATCH_SIZE, "L": 1_000, "K": 0} | {axis: size}
        batches[size] = _grown(at["B"], at["L"], at["K"])
    steps = {str(size): OURS[scanner](outputs) for size, outputs in batches.items()}
    clocks = {steps[str(size)]: after_own_step(outputs.advance, thread_clock) for size, outputs in batches.items()}
    return Rounds(steps, clock=lambda step, inner: clocks[step](step, inner), drop_switched=False)


def rejection_growth(axis: str) -> Rounds:
    """The PyTorch backend at several sizes."""
    torch.set_num_threads(1)
    sampler = _internals.load_sampler("rejection/torch", "cpu")
    steps = {}
    for size in REJECTION_SIZES[axis]:
        batch = rejection_batch(_sizes({"B": 4, "K": 3, "V": 16_000}, axis, size))
        steps[str(size)] = rejection_step(sampler, batch)
    return Rounds(steps, clock=thread_clock, drop_switched=False)


def device_growth(axis: str) -> Rounds:
    """Our fast path with a workspace at several sizes, as graphs, with a cold L2.

    Raises:
        NoVerdictError: As `steps_on_gpu`.
    """
    steps = {}
    for size in DEVICE_SIZES[axis]:
        at = _sizes({"B": 64, "K": 3, "V": 128_256}, axis, size)
        steps[str(size)] = replay_of(steps_on_gpu(at)[True])
    return Rounds(steps, inner=5, clock=event_clock, watches=gpu_watches())


def workspace_pair(batch_size: int, max_spec_len: int, vocab_size: int) -> Rounds:
    """Our fast path with a workspace, and the same without, as graphs on the same batch, with a cold L2.

    Raises:
        NoVerdictError: As `steps_on_gpu`.
    """
    steps = steps_on_gpu(Sizes(batch_size, max_spec_len, vocab_size))
    replays = {"ours": replay_of(steps[True]), "reference": replay_of(steps[False])}
    return Rounds(replays, inner=5, clock=event_clock, watches=gpu_watches())


def device_roofline(batch_size: int, max_spec_len: int, vocab_size: int, *, workspace: bool) -> Rounds:
    """Our fast path as a graph, and a copy of the bytes that it must move.

    Raises:
        NoVerdictError: As `steps_on_gpu`.
    """
    sizes = Sizes(batch_size, max_spec_len, vocab_size)
    step = replay_of(steps_on_gpu(sizes)[workspace])
    return roofline_rounds(step, bytes_that_must_move(sizes, 2))


def steps_on_gpu(sizes: Sizes) -> Mapping[bool, Step]:
    """Our fast path with a workspace (`True`) and without: bfloat16 logits, dense draft probabilities.

    Raises:
        NoVerdictError: Without a GPU, or if the two give wrong or different answers.
    """
    require_gpu()
    return fast_path_steps(rejection_batch(sizes, "cuda", dtype=torch.bfloat16))


def _sizes(standard: dict[str, int], axis: str, size: int) -> Sizes:
    at = standard | {axis: size}
    return Sizes(at["B"], at["K"], at["V"])


def _grown(batch_size: int, length: int, num_drafts: int) -> Outputs:
    outputs = Outputs(batch_size, num_drafts, max_length=2 * length)
    outputs.grow(length - 1)
    outputs.advance()
    return outputs
