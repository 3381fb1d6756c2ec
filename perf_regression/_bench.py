"""`fairdraw bench`: one sampler against another, by exact counts and by the ratio of their times in paired rounds.

Growth, compilations and memory that is never freed have limits of their own (`_costs`). Both samplers are compared in
the worlds of their contract, on a CPU; the verification step at several vocabularies, and on a GPU as well. A ratio
that fails is measured again in fresh processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from typing import Any

from fairdraw._core.contracts import contract_name
from fairdraw.perf_regression._benching import decided, judge_roofline, measured
from fairdraw.perf_regression._confirmation import Timed
from fairdraw.perf_regression._costs import costs
from fairdraw.perf_regression._decision import Gate, Verdict
from fairdraw.perf_regression._findings import Finding, counted_finding
from fairdraw.perf_regression._named import NoVerdictError
from fairdraw.perf_regression._rejection import RejectionWorld
from fairdraw.perf_regression._world import Sizes
from fairdraw.perf_regression._worlds import WORLDS, contract_of, count_world, make_world

COUNTED = Sizes(2, 3, 5001)
CPU_SIZES = tuple(Sizes(4, 3, vocab_size) for vocab_size in (8_000, 32_000, 128_256))
GPU_SIZES = tuple(Sizes(64, 3, vocab_size) for vocab_size in (32_000, 128_256, 151_936, 202_048))
"""Sizes of verification steps on a GPU."""
FAMILY_ALPHA = 0.01
FLOORS = {"cpu": 20e-6, "cuda": 3e-6}
MEASURED = ("rejection", *dict.fromkeys(map(contract_of, WORLDS)))
"""The contracts whose cost is measured."""
NUM_PROCESSES = 3
"""Fresh processes that must all repeat a FAIL."""
Places = list[tuple[str, Sizes]]
"""Worlds by name, and sizes."""


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
    report: Callable[[str], None],
    *,
    roofline_min: float | None = None,
) -> Bench:
    """Compare two samplers of one contract, on the device of `ours`.

    Args:
        limit: Most time of `ours`, as a part of the reference's; 1 for "not slower".
        report: Called with a line for each finding as soon as it is known.
        roofline_min: Least part of the copy bandwidth, on the bytes that must move; needs a GPU. `None`: no roofline.

    Error rates:
        All ratios together fail a sampler that keeps the limit everywhere with probability at most `FAMILY_ALPHA`.
        Counts have no error.
    """
    found = Bench([], [])
    for finding in _everything(ours, reference, limit, roofline_min, found):
        found.findings.append(finding)
        report(f"{finding.verdict.value:12} {finding.case}: {finding.what}: {finding.reason}")
    return found


def _everything(
    ours: Contender, reference: Contender, limit: float, roofline_min: float | None, found: Bench
) -> Iterator[Finding]:
    device, contract = ours.sampler.device, str(contract_name(ours.sampler))
    places = [(name, sizes) for name, (_, sizes) in WORLDS.items() if contract_of(name) == contract]
    counted = places
    if contract == "rejection":
        places = [("rejection.step", sizes) for sizes in (CPU_SIZES if device == "cpu" else GPU_SIZES)]
        counted = [("rejection.step", COUNTED)]
    elif (device, reference.sampler.device) != ("cpu", "cpu"):
        yield Finding(places[0][0], "time", Verdict.NO_VERDICT, reason="this contract is measured on a CPU only")
        return
    if device == "cpu":
        yield from costs(ours.sampler, reference.sampler)
        for name, sizes in counted:
            yield from _counts(name, sizes, ours.sampler, reference.sampler)
    else:
        yield from _device_counts(ours.sampler)
    yield from _times(ours, reference, limit, places, found)
    if roofline_min is not None:
        yield from _roofline(ours, roofline_min)


def _counts(name: str, sizes: Sizes, *samplers: Any) -> Iterator[Finding]:  # Any: two of one contract
    """Compare logical bytes, copies, allocations and waits of a step, each at most the reference's."""
    case = f"{name} {sizes}"
    try:
        worlds = [make_world(name, **vars(sizes)) for _ in samplers]
        counts = [count_world(one, one.step(sampler)) for one, sampler in zip(worlds, samplers, strict=True)]
    except NoVerdictError as error:
        yield Finding(case, "bytes", Verdict.NO_VERDICT, reason=str(error))
        return
    for sampler, one in zip(samplers, counts, strict=True):
        if one.waits["numpy"] or (contract_of(name) == "rejection" and not one.bytes_read["target_logits"]):
            reason = f"{sampler.name} works with something other than torch and Triton, which is not metered"
            yield Finding(case, "bytes", Verdict.NO_VERDICT, reason=reason)
            return
    own, other = (one.as_row() for one in counts)
    for what in ("bytes", "copies", "allocations", "syncs"):
        yield counted_finding(case, what, own[what], other[what], f"{own[what]}, {samplers[1].name} {other[what]}")


def _device_counts(ours: Any) -> Iterator[Finding]:  # Any: a rejection sampler
    """Count waits, compilations, driver allocations and refused captures: none after warm-up."""
    from fairdraw.perf_regression._device import count_on_device

    found = count_on_device(RejectionWorld(GPU_SIZES[0], ours.device).step(ours))
    for what, value in found.as_row().items():
        reason = found.why_not_capturable if what == "captures refused" else "counted on the device"
        yield counted_finding(f"device {GPU_SIZES[0]}", what, value, 0, reason or "captured")


def _times(ours: Contender, reference: Contender, limit: float, places: Places, found: Bench) -> Iterator[Finding]:
    """Compare the times of a step in every world."""
    device = ours.sampler.device
    gate = Gate(limit, FLOORS[device], FAMILY_ALPHA / len(places))
    what = f"time of {ours.sampler.name} / {reference.sampler.name}"
    for name, sizes in places:
        who = {"world": name, "ours": ours.spec, "reference": reference.spec, "device": device}
        timed = Timed("fairdraw.perf_regression._timed:pair", {**who, **vars(sizes)})
        finding, rounds = decided(
            f"{name} {sizes}", what, timed, limit, lambda rounds: measured(rounds, gate), num_processes=NUM_PROCESSES
        )
        if rounds is not None:
            medians = rounds.medians()
            found.times.append((sizes, medians["ours"], medians["reference"]))
        yield finding


def _roofline(ours: Contender, limit: float) -> Iterator[Finding]:
    """Measure the part of the copy bandwidth at every size; there is no verdict with a warm cache."""
    for sizes in GPU_SIZES:
        arguments = {"ours": ours.spec, "sizes": astuple(sizes)}
        timed = Timed("fairdraw.perf_regression._timed:rejection_roofline", arguments)
        yield judge_roofline(f"rejection.step {sizes}", timed, limit, FAMILY_ALPHA / len(GPU_SIZES), NUM_PROCESSES)
