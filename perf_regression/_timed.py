"""What is timed, by name: each function makes the rounds of one case, in this process or in a fresh one.

Arms are samplers or sizes. On a CPU, our own limits are timed in the time of one thread (`thread_clock`) with one torch
thread; on a GPU, events are timed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from fairdraw.perf_regression import _internals
from fairdraw.perf_regression._device import replay_of, require_gpu
from fairdraw.perf_regression._device_time import event_clock, gpu_watches, roofline_rounds
from fairdraw.perf_regression._named import NoVerdictError
from fairdraw.perf_regression._rejection import RejectionWorld, bytes_that_must_move, fast_path_steps, rejection_batch
from fairdraw.perf_regression._rounds import Rounds
from fairdraw.perf_regression._world import Sizes
from fairdraw.perf_regression._worlds import contract_of, make_world, steps_of_both

Step = Callable[[], object]


SETTLING_BYTES = (32 << 20) - (64 << 10)
"""Just below glibc's largest threshold: once a tensor of this size is freed, the threshold stays raised."""
SIZES: dict[str, dict[str, tuple[int, ...]]] = {
    "scanner": {"L": (1_000, 2_000, 4_000, 8_000, 16_000), "B": (32, 64, 128, 256), "K": (1, 2, 4, 8)},
    "rejection": {"B": (2, 4, 8, 16), "K": (1, 2, 4, 8), "V": (8_000, 16_000, 32_000, 64_000)},
}
AXES = {"B": "batch_size", "K": "max_spec_len", "L": "length", "V": "vocab_size"}
DEVICE_SIZE = {"batch_size": 64, "max_spec_len": 3, "vocab_size": 128_256}
DEVICE_SIZES = {"B": (64, 128, 256), "K": (2, 4, 8), "V": (64_000, 100_003, 128_256, 151_936, 202_048)}
"""All are large enough for programs of several tiles. With K=1 or V=32000, 64 requests take another path."""


def pair(world: str, ours: str, reference: str, device: str = "cpu", **sizes: int) -> Rounds:
    """Return one step of two samplers in a world, by their names.

    Raises:
        NoVerdictError: If a time here would mean nothing.
    """
    if contract_of(world) != "rejection":
        torch.set_num_threads(1)
        # Make glibc's malloc keep freed blocks of up to 32 MB, as it does in a server that has run for a while. A young
        # process may return large tensors to the system at every step and pay for fresh pages at the next one: the
        # ratio of `logits_plan.busy` was between 0.27 and 0.80 from process to process.
        torch.empty(SETTLING_BYTES, dtype=torch.int8).fill_(0)
    samplers = [_internals.load_sampler(name) for name in (ours, reference)]
    for sampler in samplers:
        if sampler.device != device:
            raise NoVerdictError(f"{sampler.name} is on {sampler.device}, but times are taken on {device}")
        if sampler.capabilities.slow and contract_of(world) == "rejection":
            raise NoVerdictError(f"{sampler.name} runs in an interpreter, whose time says nothing: needs a GPU")
    made = make_world(world, device, **sizes)
    return made.rounds(steps_of_both(made, *samplers))


def growth(world: str, ours: str, axis: str, **standard: int) -> Rounds:
    """Return the step of a sampler of ours at several sizes, which name the arms; other sizes are `standard`."""
    torch.set_num_threads(1)
    subject = _internals.load_sampler(ours, "cpu")
    sizes = SIZES["rejection" if contract_of(world) == "rejection" else "scanner"][axis]
    worlds = {str(size): make_world(world, "cpu", **{**standard, AXES[axis]: size}) for size in sizes}
    steps = {name: made.step(subject) for name, made in worlds.items()}
    clocks = {steps[name]: made.clock() for name, made in worlds.items()}
    return Rounds(steps, clock=lambda step, inner: clocks[step](step, inner), drop_switched=False)


def rejection_roofline(ours: str, sizes: Sequence[int]) -> Rounds:
    """Return a sampler by its name, and a copy of the bytes that it must move."""
    sampler, at = _internals.load_sampler(ours), Sizes(*sizes)
    world = RejectionWorld(at, sampler.device)
    moved = bytes_that_must_move(at, world.batch.target_logits.element_size())
    return roofline_rounds(world.step(sampler), moved)


def device_growth(axis: str) -> Rounds:
    """Return our fast path with a workspace at several sizes, as graphs, with a cold L2.

    Raises:
        NoVerdictError: As `steps_on_gpu`.
    """
    sizes = {str(size): Sizes(**{**DEVICE_SIZE, AXES[axis]: size}) for size in DEVICE_SIZES[axis]}
    return _replayed({name: steps_on_gpu(at)[True] for name, at in sizes.items()})


def workspace_pair(**sizes: int) -> Rounds:
    """Return our fast path with a workspace, and the same without, as graphs on the same batch, with a cold L2.

    Raises:
        NoVerdictError: As `steps_on_gpu`.
    """
    steps = steps_on_gpu(Sizes(**sizes))
    return _replayed({"ours": steps[True], "reference": steps[False]})


def flat_pair(**sizes: int) -> Rounds:
    """Return our whole step on flat rows full of ties, and on rows like a model's, as graphs, with a cold L2.

    Raises:
        NoVerdictError: Without a GPU.
    """
    require_gpu()
    flat = _internals.whole_step(Sizes(**sizes), "filters.flat", "cuda")
    return _replayed({"ours": flat, "reference": _internals.whole_step(Sizes(**sizes), "filters", "cuda")})


def _replayed(steps: Mapping[str, Step]) -> Rounds:
    replays = {name: replay_of(step) for name, step in steps.items()}
    return Rounds(replays, inner=5, clock=event_clock, watches=gpu_watches())


def device_roofline(*, workspace: bool, **sizes: int) -> Rounds:
    """Return our fast path as a graph, and a copy of the bytes that it must move.

    Raises:
        NoVerdictError: As `steps_on_gpu`.
    """
    step = replay_of(steps_on_gpu(Sizes(**sizes))[workspace])
    return roofline_rounds(step, bytes_that_must_move(Sizes(**sizes), 2))


def steps_on_gpu(sizes: Sizes) -> Mapping[bool, Step]:
    """Return our fast path with a workspace (`True`) and without: bfloat16 logits, dense draft probabilities.

    Raises:
        NoVerdictError: Without a GPU, or if the two give wrong or different answers.
    """
    require_gpu()
    return fast_path_steps(rejection_batch(sizes, "cuda", dtype=torch.bfloat16))
