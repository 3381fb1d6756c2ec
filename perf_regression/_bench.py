"""`fairdraw bench`: one sampler against another, by exact counts and by the ratio of their times in paired rounds.

Growth, compilations and memory that is never freed have limits of their own (`_costs`).

Verification steps (the rejection contract) are compared at several vocabularies, on a CPU or a GPU. The other contracts
are compared in the workloads of `worlds`, on a CPU. A ratio that fails is measured again in fresh processes.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from fairdraw._core.contracts import contract_name
from fairdraw.perf_regression._benching import decided, judge_roofline, measured
from fairdraw.perf_regression._cases import Sizes, count_step, rejection_batch, rejection_step
from fairdraw.perf_regression._confirmation import Timed
from fairdraw.perf_regression._costs import costs
from fairdraw.perf_regression._decision import Gate, Verdict
from fairdraw.perf_regression._findings import Finding
from fairdraw.perf_regression._named import NoVerdictError
from fairdraw.perf_regression._timed import rejection_rounds
from fairdraw.perf_regression._worlds import WORLDS, count_world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fairdraw.perf_regression._counts import Counts
    from fairdraw.perf_regression._rounds import Rounds
    from fairdraw.protocols import RejectionSampler


COUNTED = Sizes(2, 3, 5001)
CPU_SIZES = tuple(Sizes(4, 3, vocab_size) for vocab_size in (8_000, 32_000, 128_256))
GPU_SIZES = tuple(Sizes(64, 3, vocab_size) for vocab_size in (32_000, 128_256, 151_936, 202_048))
FAMILY_ALPHA = 0.01
FLOORS = {"cpu": 20e-6, "cuda": 3e-6}
MEASURED = ("rejection", *dict.fromkeys(world.partition(".")[0] for world in WORLDS))
"""The contracts whose cost is measured."""
NUM_PROCESSES = 3
"""Fresh processes that must all repeat a FAIL."""


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
) -> Iterable[Finding]:
    if contract_name(ours.sampler) != "rejection":
        return _in_worlds(ours, reference, limit)
    return chain(
        _counts(ours.sampler, reference.sampler),
        costs(ours.sampler, reference.sampler) if ours.sampler.device == "cpu" else (),
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
    yield from costs(ours.sampler, reference.sampler)
    gate = Gate(limit, FLOORS["cpu"], FAMILY_ALPHA / len(worlds))
    for world in worlds:
        make, sizes = WORLDS[world]
        case = f"{world} {sizes}"
        try:
            counts = [count_world(one.sampler, make(sizes, "cpu")) for one in (ours, reference)]
        except NoVerdictError as error:
            yield Finding(case, _ratio_of(ours, reference), Verdict.NO_VERDICT, limit=limit, reason=str(error))
            continue
        yield from _compared(case, (ours.sampler, reference.sampler), counts)
        yield _ratio(case, ours, reference, gate, "world_pair", {"world": world})[0]


def _ratio(
    case: str,
    ours: Contender,
    reference: Contender,
    gate: Gate,
    factory: str,
    arguments: dict[str, Any],  # Any: JSON
    make: Callable[[], Rounds] | None = None,
) -> tuple[Finding, Rounds | None]:
    names = {"ours": ours.spec, "reference": reference.spec}
    timed = Timed(f"fairdraw.perf_regression._timed:{factory}", {**arguments, **names})
    what = _ratio_of(ours, reference)
    return decided(
        case, what, timed, gate.limit, lambda rounds: measured(rounds, gate), num_processes=NUM_PROCESSES, make=make
    )


def _ratio_of(ours: Contender, reference: Contender) -> str:
    return f"time of {ours.sampler.name} / {reference.sampler.name}"


def _counts(ours: RejectionSampler, reference: RejectionSampler) -> Iterator[Finding]:
    """Logical bytes and copies, each at most the reference's. Bytes are metered only where kernels are interpreted."""
    if ours.device != "cpu":
        reason = "bytes are metered where kernels are interpreted: on a machine without a GPU"
        yield Finding("counts", "bytes", Verdict.NO_VERDICT, reason=reason)
        return
    both = (ours, reference)
    counts = [count_step(sampler, COUNTED) for sampler in both]
    metered = [one.bytes_read["target_logits"] > 0 for one in counts]
    yield from _compared(f"counts {COUNTED}" if all(metered) else "counts", both, counts, metered)


def _compared(
    case: str,
    samplers: tuple[Any, Any],  # Any: of one contract
    counts: list[Counts],
    metered: Iterable[bool] = (True, True),
) -> Iterator[Finding]:
    for sampler, counted, is_metered in zip(samplers, counts, metered, strict=True):
        if not is_metered or counted.waits["numpy"]:
            reason = f"{sampler.name} works with something other than torch and Triton, which is not metered"
            yield Finding(case, "bytes", Verdict.NO_VERDICT, reason=reason)
            return
    rows = [counted.as_row() for counted in counts]
    for what in ("bytes", "copies", "allocations", "syncs"):
        value, limit = rows[0][what], rows[1][what]
        verdict = Verdict.PASS if value <= limit else Verdict.FAIL
        yield Finding(case, what, verdict, value, limit, f"{value}, {samplers[1].name} {limit}")


def _device_counts(ours: RejectionSampler) -> Iterator[Finding]:
    """Waits, compilations, driver allocations and refused captures: none after warm-up."""
    if ours.device == "cpu":
        return
    from fairdraw.perf_regression._device import count_on_device

    found = count_on_device(rejection_step(ours, rejection_batch(GPU_SIZES[0], ours.device)))
    for what, value in found.as_row().items():
        verdict = Verdict.PASS if value == 0 else Verdict.FAIL
        reason = found.why_not_capturable if what == "captures refused" else "counted on the device"
        yield Finding(f"device {GPU_SIZES[0]}", what, verdict, value, 0, reason or "captured")


def _times(ours: Contender, reference: Contender, limit: float, found: Bench) -> Iterator[Finding]:
    """Time at every vocabulary."""
    device = ours.sampler.device
    sweep = CPU_SIZES if device == "cpu" else GPU_SIZES
    gate = Gate(limit, FLOORS[device], FAMILY_ALPHA / len(sweep))
    for sizes in sweep:
        arguments, make = {"sizes": astuple(sizes)}, partial(rejection_rounds, ours.sampler, reference.sampler, sizes)
        finding, rounds = _ratio(f"step {sizes}", ours, reference, gate, "rejection_pair", arguments, make)
        if rounds is not None:
            medians = rounds.medians()
            found.times.append((sizes, medians["ours"], medians["reference"]))
        yield finding


def _roofline(ours: Contender, limit: float | None) -> Iterator[Finding]:
    """Fraction of the copy bandwidth at every size; no verdict with a warm cache."""
    if limit is None:
        return
    for sizes in GPU_SIZES:
        arguments = {"ours": ours.spec, "sizes": astuple(sizes)}
        timed = Timed("fairdraw.perf_regression._timed:rejection_roofline", arguments)
        yield judge_roofline(f"step {sizes}", timed, limit, FAMILY_ALPHA / len(GPU_SIZES), NUM_PROCESSES)
