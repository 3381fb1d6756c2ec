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
    row = {"syncs": counts.syncs, "recompiles": counts.compilations}
    if counts.graph_nodes is not None:
        row["graph_nodes"] = counts.graph_nodes
    captured = Verdict.PASS if counts.is_capturable else Verdict.FAIL
    capture = Finding(name, "graph capture", captured, reason=counts.why_not_capturable)
    verdicts([*compare_counts(row, read_limits().cases[name]), capture])


def test_workspace_costs_no_time(benchmark: Any, verdicts: Note) -> None:
    sizes, _ = CASES[EAGER]
    timed = Timed("fairdraw.perf_regression._timed:workspace_pair", vars(sizes))
    verdicts([judge_ratio(benchmark, EAGER, timed, "gpu")])


def test_time_of_a_step_depends_on_its_rows_within_limits(benchmark: Any, verdicts: Note) -> None:
    timed = Timed("fairdraw.perf_regression._timed:flat_pair", vars(CASES[ALONE][0]))
    verdicts([judge_ratio(benchmark, "step.flat", timed, "gpu")])


@pytest.mark.parametrize("name", CASES)
def test_step_reaches_its_part_of_the_copy_bandwidth(name: str, verdicts: Note) -> None:
    """Graph replay, cold L2."""
    limits, (sizes, workspace) = read_limits(), CASES[name]
    limit = limits.cases[name].roofline_min
    assert limit is not None
    timed = Timed("fairdraw.perf_regression._timed:device_roofline", {**vars(sizes), "workspace": workspace})
    verdicts([judge_roofline(name, timed, limit, limits.alpha, limits.confirm_processes)])
