"""One sampler against another: the exact counts of both, and the ratio of their times in paired rounds.

Verification steps (the rejection contract) are compared at several vocabularies, on a CPU or a GPU; the other contracts
in the worlds of `worlds`, on a CPU. A ratio that fails is measured again in fresh processes.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from itertools import chain
from statistics import median
from typing import TYPE_CHECKING, Any

from fairdraw._core.contracts import contract_name
from fairdraw.perf_regression._cases import (
    Sizes,
    bytes_that_must_move,
    count_step,
    noise_for,
    rejection_batch,
    rejection_step,
)
from fairdraw.perf_regression._confirmation import Timed, confirmed
from fairdraw.perf_regression._decision import Decision, Gate, Verdict, decide
from fairdraw.perf_regression._findings import Finding, from_decision
from fairdraw.perf_regression._named import NoVerdictError, load
from fairdraw.perf_regression._rounds import Rounds, calibrate, cpu_clock
from fairdraw.perf_regression._worlds import WORLDS, count_world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fairdraw.perf_regression._counts import Counts
    from fairdraw.perf_regression._rounds import Clock
    from fairdraw.perf_regression._validity import Watch
    from fairdraw.protocols import AnySampler, RejectionSampler

__all__ = [
    "CPU_SIZES",
    "FAMILY_ALPHA",
    "GPU_SIZES",
    "Bench",
    "Contender",
    "bench",
    "measured",
    "rejection_rounds",
    "roofline_of",
]

COUNTED = Sizes(2, 3, 5001)
CPU_SIZES = tuple(Sizes(4, 3, vocab_size) for vocab_size in (8_000, 32_000, 128_256))
GPU_SIZES = tuple(Sizes(64, 3, vocab_size) for vocab_size in (32_000, 128_256, 151_936, 202_048))
FAMILY_ALPHA = 0.01
SHORTEST_SAMPLE = {"cpu": 5e-4, "cuda": 2e-4}
FLOORS = {"cpu": 20e-6, "cuda": 3e-6}
NOT_METERED = "{} works with something else than torch and Triton, which is not metered"
NUM_PROCESSES = 3
"""Fresh ones that must all repeat a FAIL."""


@dataclass(frozen=True)
class Contender:
    """A sampler, and the name under which a fresh process finds it."""

    spec: str
    sampler: Any  # Any: of some contract


@dataclass(frozen=True)
class Bench:
    """Findings, and the measured seconds per call for plots: `(sizes, ours, reference)`."""

    findings: list[Finding]
    times: list[tuple[Sizes, float, float]]


def bench(
    ours: Contender,
    reference: Contender,
    limit: float,
    tell: Callable[[str], None],
    *,
    roofline_min: float | None = None,
) -> Bench:
    """Compare two samplers of one contract, on the device of `ours`.

    Args:
        limit: Most time of `ours`, as a part of the reference's; 1 for "not slower".
        tell: Called with a line whenever something is known.
        roofline_min: Least part of the copy bandwidth, on the bytes that must move; needs a GPU. `None`: not asked.

    Error rates:
        All ratios together fail a sampler that keeps the limit everywhere with probability at most `FAMILY_ALPHA`.
        Counts have no error.
    """
    found = Bench([], [])
    for finding in _everything(ours, reference, limit, roofline_min, found):
        found.findings.append(finding)
        tell(f"{finding.verdict.value:12} {finding.case}: {finding.what}: {finding.reason}")
    return found


def _everything(
    ours: Contender, reference: Contender, limit: float, roofline_min: float | None, found: Bench
) -> Iterable[Finding]:
    if contract_name(ours.sampler) != "rejection":
        return _in_worlds(ours, reference, limit)
    return chain(
        _counts(ours.sampler, reference.sampler),
        _device_counts(ours.sampler),
        _times(ours, reference, limit, found),
        _roofline(ours, roofline_min),
    )


def _in_worlds(ours: Contender, reference: Contender, limit: float) -> Iterator[Finding]:
    """Counts and time of a contract's steps."""
    worlds = [name for name in WORLDS if name.partition(".")[0] == contract_name(ours.sampler)]
    if ours.sampler.device != "cpu" or reference.sampler.device != "cpu":
        yield Finding(worlds[0], "time", Verdict.NO_VERDICT, reason="this contract is measured on a CPU only")
        return
    gate = Gate(limit, FLOORS["cpu"], FAMILY_ALPHA / len(worlds))
    for world in worlds:
        case = f"{world} {WORLDS[world][1]}"
        try:
            yield from _world_counts(world, case, ours.sampler, reference.sampler)
            names = {"ours": ours.spec, "reference": reference.spec}
            timed = Timed("fairdraw.perf_regression._timed:world_pair", {"world": world, **names})
            decision, _ = measured(timed.rounds(), gate)
        except NoVerdictError as error:
            decision, timed = Decision(Verdict.NO_VERDICT, str(error)), None
        if timed is not None:
            decision = confirmed(decision, limit, timed.in_fresh_process, NUM_PROCESSES)
        yield from_decision(case, decision, limit, f"time of {ours.sampler.name} / {reference.sampler.name}")


def _world_counts(world: str, case: str, ours: AnySampler, reference: AnySampler) -> Iterator[Finding]:
    make, sizes = WORLDS[world]
    counts = [count_world(subject, make(sizes, "cpu")) for subject in (ours, reference)]
    yield from _compared(case, (ours, reference), counts)


def _counts(ours: RejectionSampler, reference: RejectionSampler) -> Iterator[Finding]:
    """Logical bytes and copies, each at most the reference's. Bytes can be seen where kernels are interpreted only."""
    if ours.device != "cpu":
        reason = "bytes are metered where kernels are interpreted: on a machine without a GPU"
        yield Finding("counts", "bytes", Verdict.NO_VERDICT, reason=reason)
        return
    counts = [count_step(sampler, COUNTED) for sampler in (ours, reference)]
    for sampler, counted in zip((ours, reference), counts, strict=True):
        if not counted.bytes_read["target_logits"]:
            yield Finding("counts", "bytes", Verdict.NO_VERDICT, reason=NOT_METERED.format(sampler.name))
            return
    yield from _compared(f"counts {_worded(COUNTED)}", (ours, reference), counts)


def _compared(case: str, subjects: tuple[AnySampler, AnySampler], counts: list[Counts]) -> Iterator[Finding]:
    for subject, counted in zip(subjects, counts, strict=True):
        if counted.waits["numpy"]:
            yield Finding(case, "bytes", Verdict.NO_VERDICT, reason=NOT_METERED.format(subject.name))
            return
    rows = [counted.as_row() for counted in counts]
    for what in ("bytes", "copies"):
        value, limit = rows[0][what], rows[1][what]
        verdict = Verdict.PASS if value <= limit else Verdict.FAIL
        yield Finding(case, what, verdict, value, limit, f"{value}, {subjects[1].name} {limit}")


def _device_counts(ours: RejectionSampler) -> Iterator[Finding]:
    """Waits, compilations, driver allocations and refused captures: none after warm-up."""
    if ours.device == "cpu":
        return
    from fairdraw.perf_regression._device import count_on_device

    batch = rejection_batch(GPU_SIZES[0], ours.device)
    found = count_on_device(rejection_step(ours, batch, noise_for(ours, batch)))
    for what, value in found.as_row().items():
        verdict = Verdict.PASS if value == 0 else Verdict.FAIL
        reason = found.why_not_capturable if what == "captures refused" else "counted on the device"
        yield Finding(f"device {_worded(GPU_SIZES[0])}", what, verdict, value, 0, reason or "captured")


def _roofline(ours: Contender, limit: float | None) -> Iterator[Finding]:
    """Fraction of the copy bandwidth at every size; a warm cache has no verdict."""
    if limit is None:
        return
    from fairdraw.perf_regression._device import event_clock, warm_clock
    from fairdraw.perf_regression._roofline import SMALL_COPY, measure_roofline, why_warm

    for sizes in GPU_SIZES:
        case, what = f"step {_worded(sizes)}", "part of the copy bandwidth"
        try:
            problem = why_warm(event_clock, warm_clock, SMALL_COPY)
            if problem:
                raise NoVerdictError(problem)
            arguments = {"ours": ours.spec, "sizes": list(astuple(sizes))}
            timed = Timed("fairdraw.perf_regression._bench:roofline_of", arguments)
            decision = measure_roofline(timed.rounds(), limit, FAMILY_ALPHA / len(GPU_SIZES))
            decision = confirmed(decision, limit, timed.in_fresh_process, NUM_PROCESSES, at_least=True)
            yield from_decision(case, decision, limit, what)
        except NoVerdictError as error:
            yield Finding(case, what, Verdict.NO_VERDICT, limit=limit, reason=str(error))


def roofline_of(ours: str, sizes: list[int]) -> Rounds:
    """A sampler by its name, and a copy of the bytes that it must move: what a fresh process measures."""
    from fairdraw.perf_regression._roofline import roofline_rounds

    sampler, at = load("fairdraw._adapters:load")(ours), Sizes(*sizes)
    batch = rejection_batch(at, sampler.device)
    step = rejection_step(sampler, batch, noise_for(sampler, batch))
    return roofline_rounds(step, bytes_that_must_move(at, batch.target_logits.element_size()))


def _times(ours: Contender, reference: Contender, limit: float, found: Bench) -> Iterator[Finding]:
    device = ours.sampler.device
    sweep = CPU_SIZES if device == "cpu" else GPU_SIZES
    gate = Gate(limit, FLOORS[device], FAMILY_ALPHA / len(sweep))
    for sizes in sweep:
        case = f"step {_worded(sizes)}"
        try:
            decision, times = measured(_pair(ours.sampler, reference.sampler, sizes), gate)
        except NoVerdictError as error:
            yield Finding(case, "time", Verdict.NO_VERDICT, limit=limit, reason=str(error))
            continue
        found.times.append((sizes, *times))
        arguments = {"ours": ours.spec, "reference": reference.spec, "sizes": list(astuple(sizes))}
        timed = Timed("fairdraw.perf_regression._bench:rejection_rounds", arguments)
        decision = confirmed(decision, limit, timed.in_fresh_process, NUM_PROCESSES)
        yield from_decision(case, decision, limit, f"time of {ours.sampler.name} / {reference.sampler.name}")


def measured(rounds: Rounds, gate: Gate) -> tuple[Decision, tuple[float, float]]:
    """Judge the first arm against the second: the decision, and median seconds of both."""
    rounds.warm_up()
    decision = Decision(Verdict.NO_VERDICT, "nothing was measured")
    for look in gate.looks:
        rounds.run(look - len(rounds.found))
        decision = decide(rounds.pairs(*rounds.steps), gate, num_dropped=rounds.num_dropped)
        if decision.verdict in (Verdict.PASS, Verdict.FAIL):
            break
    pairs = rounds.pairs(*rounds.steps) or [rounds.found[-1].pair(*rounds.steps)]
    return decision, (median(ours for ours, _ in pairs), median(other for _, other in pairs))


def rejection_rounds(ours: str, reference: str, sizes: list[int]) -> Rounds:
    """Verification steps of two samplers by their names: what a fresh process measures."""
    load_sampler = load("fairdraw._adapters:load")
    return _pair(load_sampler(ours), load_sampler(reference), Sizes(*sizes))


def _pair(ours: RejectionSampler, reference: RejectionSampler, sizes: Sizes) -> Rounds:
    """Arms `ours` and `reference`.

    Raises:
        NoVerdictError: If a time here would mean nothing.
    """
    _require_comparable(ours, reference)
    batch = rejection_batch(sizes, ours.device)
    both = {"ours": ours, "reference": reference}
    steps = {name: rejection_step(sampler, batch, noise_for(sampler, batch)) for name, sampler in both.items()}
    clock, watches = _clock_of(ours.device)
    inner = calibrate(steps, SHORTEST_SAMPLE[ours.device], clock)
    return Rounds(steps, inner=inner, clock=clock, watches=watches)


def _require_comparable(ours: RejectionSampler, reference: RejectionSampler) -> None:
    if ours.device != reference.device:
        raise NoVerdictError(f"{ours.name} is on {ours.device} and {reference.name} on {reference.device}")
    for sampler in (ours, reference):
        if sampler.capabilities.slow:
            raise NoVerdictError(f"{sampler.name} runs in an interpreter, whose time says nothing: needs a GPU")


def _clock_of(device: str) -> tuple[Clock, list[Watch]]:
    if device == "cpu":
        return cpu_clock, []
    from fairdraw.perf_regression._device import event_clock
    from fairdraw.perf_regression._validity import gpu_watches

    return event_clock, gpu_watches()


def _worded(sizes: Sizes) -> str:
    return f"B={sizes.batch_size} K={sizes.max_spec_len} V={sizes.vocab_size}"
