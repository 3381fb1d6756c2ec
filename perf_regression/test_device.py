"""Our fast path on a GPU: what it costs besides its work, and which part of the copy bandwidth it reaches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairdraw.perf_regression._benching import judge_ratio, judge_roofline
from fairdraw.perf_regression._confirmation import Timed
from fairdraw.perf_regression._decision import Verdict
from fairdraw.perf_regression._device import count_on_device
from fairdraw.perf_regression._findings import Finding, compare_counts
from fairdraw.perf_regression._limits import read_limits
from fairdraw.perf_regression._named import NoVerdictError
from fairdraw.perf_regression._timed import steps_on_gpu
from fairdraw.perf_regression._world import Sizes

if TYPE_CHECKING:
    from collections.abc import Callable

    Note = Callable[[list[Finding]], None]

pytestmark = pytest.mark.timing
ALONE, EAGER = "rejection.counter_triton.B64", "rejection.counter_triton.B64.workspace"
CASES = {
    ALONE: (Sizes(64, 3, 128_256), False),
    EAGER: (Sizes(64, 3, 128_256), True),
    "rejection.counter_triton.B256": (Sizes(256, 3, 128_256), False),
}
"""Sizes, and whether there is a workspace."""


@pytest.mark.parametrize("name", [ALONE, EAGER])
def test_step_neither_waits_nor_compiles_and_can_be_captured(name: str, verdicts: Note) -> None:
    sizes, workspace = CASES[name]
    try:
        counts = count_on_device(steps_on_gpu(sizes)[workspace])
    except NoVerdictError as error:
        verdicts([Finding(name, "device counts", Verdict.NO_VERDICT, reason=str(error))])
        return
    found = {"syncs": counts.syncs, "recompiles": counts.compilations, "graph_nodes": counts.graph_nodes}
    row = {what: count for what, count in found.items() if count is not None}
    captured = Verdict.PASS if counts.is_capturable else Verdict.FAIL
    capture = Finding(name, "graph capture", captured, reason=counts.why_not_capturable)
    verdicts([*compare_counts(row, read_limits().cases[name]), capture])


@pytest.mark.parametrize(("name", "pair"), [(EAGER, "workspace_pair"), ("step.flat", "flat_pair")])
def test_ratio_of_two_steps_is_limited(name: str, pair: str, benchmark: Any, verdicts: Note) -> None:
    """The time of flat rows, and of a step with a workspace, as a part of another step's."""
    timed = Timed(f"fairdraw.perf_regression._timed:{pair}", vars(CASES[EAGER][0]))
    verdicts([judge_ratio(benchmark, name, timed, "gpu")])


@pytest.mark.parametrize("name", CASES)
def test_step_reaches_its_part_of_the_copy_bandwidth(name: str, verdicts: Note) -> None:
    """Graph replay, cold L2."""
    limits, (sizes, workspace) = read_limits(), CASES[name]
    limit = limits.cases[name].roofline_min
    assert limit is not None
    timed = Timed("fairdraw.perf_regression._timed:device_roofline", {**vars(sizes), "workspace": workspace})
    verdicts([judge_roofline(name, timed, limit, limits.alpha, limits.confirm_processes)])
