"""One sampler against another: the exact counts of both, and the ratio of their times in paired rounds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from statistics import median
from typing import TYPE_CHECKING

from fairdraw.perf_regression.cases import Sizes, count_step, noise_for, rejection_batch, rejection_step
from fairdraw.perf_regression.decision import Decision, Gate, Verdict, decide
from fairdraw.perf_regression.findings import Finding, from_decision
from fairdraw.perf_regression.named import NoVerdictError
from fairdraw.perf_regression.rounds import Rounds, calibrate, cpu_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairdraw.perf_regression.rounds import Clock
    from fairdraw.protocols import RejectionSampler

__all__ = ["CPU_SIZES", "FAMILY_ALPHA", "GPU_SIZES", "Bench", "bench", "bytes_that_must_move", "measure_pair"]

COUNTED = Sizes(2, 3, 5001)
CPU_SIZES = tuple(Sizes(4, 3, vocab_size) for vocab_size in (8_000, 32_000, 128_256))
GPU_SIZES = tuple(Sizes(64, 3, vocab_size) for vocab_size in (32_000, 128_256, 151_936, 202_048))
FAMILY_ALPHA = 0.01
SHORTEST_SAMPLE = {"cpu": 5e-4, "cuda": 2e-4}
FLOORS = {"cpu": 20e-6, "cuda": 3e-6}


@dataclass(frozen=True)
class Bench:
    """Findings, and the measured seconds per call for plots: `(sizes, ours, reference)`."""

    findings: list[Finding]
    times: list[tuple[Sizes, float, float]]


def bench(
    ours: RejectionSampler,
    reference: RejectionSampler,
    limit: float,
    tell: Callable[[str], None],
    *,
    roofline_min: float | None = None,
) -> Bench:
    """Compare on the device of `ours`.

    Args:
        limit: Most time of `ours`, as a part of the reference's; 1 for "not slower".
        tell: Called with a line whenever something is known.
        roofline_min: Least part of the copy bandwidth, on the bytes that must move; needs a GPU. `None`: not asked.

    Error rates:
        All ratios together fail a sampler that keeps the limit everywhere with probability at most `FAMILY_ALPHA`.
        Counts have no error.
    """
    found = Bench([], [])
    everything = chain(
        _counts(ours, reference),
        _device_counts(ours),
        _times(ours, reference, limit, found),
        _roofline(ours, roofline_min),
    )
    for finding in everything:
        found.findings.append(finding)
        tell(f"{finding.verdict.value:12} {finding.case}: {finding.what}: {finding.reason}")
    return found


def _counts(ours: RejectionSampler, reference: RejectionSampler) -> Iterator[Finding]:
    """Logical bytes and copies, each at most the reference's. Bytes can be seen where kernels are interpreted only."""
    if ours.device != "cpu":
        reason = "bytes are metered where kernels are interpreted: on a machine without a GPU"
        yield Finding("counts", "bytes", Verdict.NO_VERDICT, reason=reason)
        return
    counts = [count_step(sampler, COUNTED) for sampler in (ours, reference)]
    for sampler, counted in zip((ours, reference), counts, strict=True):
        if counted.waits["numpy"] or not counted.bytes_read["target_logits"]:
            reason = f"{sampler.name} works with something else than torch and Triton, which is not metered"
            yield Finding("counts", "bytes", Verdict.NO_VERDICT, reason=reason)
            return
    rows = [counted.as_row() for counted in counts]
    for what in ("bytes", "copies"):
        value, limit = rows[0][what], rows[1][what]
        verdict = Verdict.PASS if value <= limit else Verdict.FAIL
        yield Finding(f"counts {_worded(COUNTED)}", what, verdict, value, limit, f"{value}, {reference.name} {limit}")


def _device_counts(ours: RejectionSampler) -> Iterator[Finding]:
    """Waits, compilations, driver allocations and refused captures: none after warm-up."""
    if ours.device == "cpu":
        return
    from fairdraw.perf_regression.device import count_on_device

    batch = rejection_batch(GPU_SIZES[0], ours.device)
    found = count_on_device(rejection_step(ours, batch, noise_for(ours, batch)))
    for what, value in found.as_row().items():
        verdict = Verdict.PASS if value == 0 else Verdict.FAIL
        reason = found.why_not_capturable if what == "captures refused" else "counted on the device"
        yield Finding(f"device {_worded(GPU_SIZES[0])}", what, verdict, value, 0, reason or "captured")


def _roofline(ours: RejectionSampler, limit: float | None) -> Iterator[Finding]:
    """Fraction of the copy bandwidth at every size; a warm cache has no verdict."""
    if limit is None:
        return
    from fairdraw.perf_regression.device import event_clock, warm_clock
    from fairdraw.perf_regression.roofline import SMALL_COPY, measure_roofline, why_warm

    for sizes in GPU_SIZES:
        case, what = f"step {_worded(sizes)}", "part of the copy bandwidth"
        try:
            problem = why_warm(event_clock, warm_clock, SMALL_COPY)
            if problem:
                raise NoVerdictError(problem)
            batch = rejection_batch(sizes, ours.device)
            step = rejection_step(ours, batch, noise_for(ours, batch))
            must_move = bytes_that_must_move(sizes, batch.target_logits.element_size())
            decision, _ = measure_roofline(step, must_move, limit, FAMILY_ALPHA / len(GPU_SIZES))
            yield from_decision(case, decision, limit, what)
        except NoVerdictError as error:
            yield Finding(case, what, Verdict.NO_VERDICT, limit=limit, reason=str(error))


def bytes_that_must_move(sizes: Sizes, logit_bytes: int) -> int:
    """Target logits once; of each request's rejected row the target logits again, and the draft's float32 row."""
    rows = (sizes.max_spec_len + 1) * logit_bytes + 4
    return rows * sizes.batch_size * sizes.vocab_size


def _times(ours: RejectionSampler, reference: RejectionSampler, limit: float, found: Bench) -> Iterator[Finding]:
    sweep = CPU_SIZES if ours.device == "cpu" else GPU_SIZES
    gate = Gate(limit, FLOORS[ours.device], FAMILY_ALPHA / len(sweep))
    for sizes in sweep:
        case = f"step {_worded(sizes)}"
        try:
            decision, times = measure_pair(ours, reference, sizes, gate)
        except NoVerdictError as error:
            yield Finding(case, "time", Verdict.NO_VERDICT, limit=limit, reason=str(error))
            continue
        found.times.append((sizes, *times))
        yield from_decision(case, decision, limit, f"time of {ours.name} / {reference.name}")


def measure_pair(
    ours: RejectionSampler, reference: RejectionSampler, sizes: Sizes, gate: Gate, clock: Clock | None = None
) -> tuple[Decision, tuple[float, float]]:
    """Judge one size: the decision, and median seconds of both.

    Raises:
        NoVerdictError: If a time here would mean nothing.
    """
    _require_comparable(ours, reference)
    batch = rejection_batch(sizes, ours.device)
    steps = {
        "ours": rejection_step(ours, batch, noise_for(ours, batch)),
        "reference": rejection_step(reference, batch, noise_for(reference, batch)),
    }
    clock = clock or _clock_of(ours.device)
    rounds = Rounds(steps, inner=calibrate(steps, SHORTEST_SAMPLE[ours.device], clock), clock=clock)
    decision = Decision(Verdict.NO_VERDICT, "nothing was measured")
    for look in gate.looks:
        rounds.run(look - len(rounds.found))
        decision = decide(rounds.pairs("ours", "reference"), gate, num_dropped=rounds.num_dropped)
        if decision.verdict in (Verdict.PASS, Verdict.FAIL):
            break
    pairs = rounds.pairs("ours", "reference") or [rounds.found[-1].pair("ours", "reference")]
    return decision, (median(ours for ours, _ in pairs), median(other for _, other in pairs))


def _require_comparable(ours: RejectionSampler, reference: RejectionSampler) -> None:
    if ours.device != reference.device:
        raise NoVerdictError(f"{ours.name} is on {ours.device} and {reference.name} on {reference.device}")
    for sampler in (ours, reference):
        if sampler.capabilities.slow:
            raise NoVerdictError(f"{sampler.name} runs in an interpreter, whose time says nothing: needs a GPU")


def _clock_of(device: str) -> Clock:
    if device == "cpu":
        return cpu_clock
    from fairdraw.perf_regression.device import event_clock

    return event_clock


def _worded(sizes: Sizes) -> str:
    return f"B={sizes.batch_size} K={sizes.max_spec_len} V={sizes.vocab_size}"
