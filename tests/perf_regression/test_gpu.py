"""The gate is tested on a GPU: what must fail fails there, and the rest passes."""

from collections.abc import Callable

import pytest
import torch

from fairdraw.perf_regression._decision import Gate, Verdict, decide
from fairdraw.perf_regression._device import count_on_device, graph_of
from fairdraw.perf_regression._device_time import (
    copy_of,
    decide_roofline,
    event_clock,
    require_cold_clock,
    roofline_rounds,
    warm_clock,
)
from fairdraw.perf_regression._named import NoVerdictError
from fairdraw.perf_regression._rounds import Rounds

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="NO VERDICT: no GPU")
LARGE_COPY = 1 << 30


def verdict(step: Callable[[], object]) -> Verdict:
    """Against a copy of 1 GiB, limit 1.03."""
    rounds = Rounds({"ours": step, "reference": copy_of(LARGE_COPY)}, clock=event_clock)
    rounds.run(40)
    gate = Gate(1.03, floor=3e-6, alpha=1e-4, looks=(40,))
    return decide(rounds.pairs("ours", "reference"), gate, num_dropped=rounds.num_dropped).verdict


def roofline_verdict(step: Callable[[], object]) -> Verdict:
    """As if the step had to move 1 GiB, at 0.9 of the copy bandwidth."""
    return decide_roofline(roofline_rounds(step, LARGE_COPY), 0.9, 1e-4).verdict


def test_same_work_does_not_fail() -> None:
    assert verdict(copy_of(LARGE_COPY)) is not Verdict.FAIL


def test_ten_per_cent_more_work_is_detected() -> None:
    assert verdict(copy_of(LARGE_COPY * 11 // 10)) is Verdict.FAIL


def test_copy_reaches_its_own_roofline_and_a_step_of_two_copies_does_not() -> None:
    copy = copy_of(LARGE_COPY)

    def twice() -> None:
        copy()
        copy()

    assert roofline_verdict(copy) is Verdict.PASS
    assert roofline_verdict(twice) is Verdict.FAIL


def test_warm_cache_is_detected() -> None:
    require_cold_clock(event_clock)
    with pytest.raises(NoVerdictError, match="L2 was warm"):
        require_cold_clock(warm_clock)


def test_bytes_that_were_not_moved_have_no_verdict() -> None:
    assert roofline_verdict(copy_of(1 << 20)) is Verdict.NO_VERDICT


def test_needless_wait_is_detected() -> None:
    x = torch.ones(8, device="cuda")
    right, wrong = count_on_device(lambda: x.add_(1)), count_on_device(lambda: x.sum().item())
    assert (right.syncs, right.is_capturable) == (0, True)
    assert wrong.syncs == 1
    assert right.graph_nodes == 1
    assert not wrong.is_capturable


def test_needless_launch_is_detected_in_the_graph() -> None:
    x = torch.ones(8, device="cuda")
    assert count_on_device(lambda: x.add_(1).mul_(2)).graph_nodes == 2


def test_needless_allocation_is_detected() -> None:
    kept: list[torch.Tensor] = []
    grows = count_on_device(lambda: kept.append(torch.ones(64 << 20, dtype=torch.int8, device="cuda")))
    assert grows.allocator_calls == 1


def test_graph_replay_repeats_the_step() -> None:
    x = torch.zeros(1, device="cuda")
    graph = graph_of(lambda: x.add_(1))
    before = int(x)
    graph.replay()
    assert int(x) == before + 1
