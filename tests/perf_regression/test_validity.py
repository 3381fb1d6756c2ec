"""What spoils a round, with fake clocks; and that spoiled rounds end in no verdict."""

from __future__ import annotations

import gc
import subprocess
from typing import TYPE_CHECKING

import pytest

from fairdraw.perf_regression import _validity as validity
from fairdraw.perf_regression._decision import Gate, Verdict, decide
from fairdraw.perf_regression._rounds import Rounds
from fairdraw.perf_regression._validity import GpuState, SmClock, gpu_watches, read_gpu, watch_garbage

if TYPE_CHECKING:
    from collections.abc import Callable


def reader(*states: GpuState) -> Callable[[], GpuState]:
    """Tells these states in turn."""
    coming = iter(states)
    return lambda: next(coming)


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        (GpuState(1980, 0), GpuState(1980, 0), ""),
        (GpuState(1980, 0), GpuState(1935, 0), ""),
        (GpuState(1980, 4), GpuState(1980, 4), ""),
        (GpuState(1980, 0), GpuState(1905, 0), "SM clock moved from 1980 to 1905 MHz"),
        (GpuState(1500, 0), GpuState(1980, 0), "SM clock moved from 1500 to 1980 MHz"),
        (GpuState(1980, 0), GpuState(1980, 0x20), "GPU throttled: thermal, software"),
        (GpuState(1980, 0x88), GpuState(1980, 0), "GPU throttled: hardware slowdown, power brake"),
    ],
    ids=["steady", "two per cent", "power cap, steady clock", "slower", "faster", "throttled", "throttled before"],
)
def test_clock_of_a_gpu_spoils_a_round(before: GpuState, after: GpuState, problem: str) -> None:
    assert SmClock(reader(before, after))()() == problem


def test_garbage_that_is_collected_spoils_a_round() -> None:
    quiet = watch_garbage()
    gc.disable()
    assert quiet() == ""
    gc.enable()
    gc.collect()
    assert quiet() == "garbage was collected"


def test_step_that_collects_garbage_is_caught() -> None:
    rounds = Rounds({"ours": gc.collect, "reference": list}, clock=lambda step, inner: float(bool(step()) or 1))
    rounds.run(2)
    assert rounds.num_dropped == 2
    assert {found.problem for found in rounds.found} == {"garbage was collected"}


def test_gpu_whose_clock_moves_in_a_third_of_the_rounds_has_no_verdict() -> None:
    """Whole rounds are dropped; the ratio of the others, a clear pass, is not told."""
    states = iter(
        [GpuState(1980, 0), GpuState(1980, 0), GpuState(1980, 0), GpuState(1200, 0), *[GpuState(1980, 0)] * 2] * 20
    )
    watch = SmClock(lambda: next(states))
    rounds = Rounds({"ours": list, "reference": tuple}, clock=lambda step, inner: 1.0, watches=[watch])
    rounds.run(60)
    assert len(rounds.pairs("ours", "reference")) == 40
    decision = decide(rounds.pairs("ours", "reference"), Gate(1.1), num_dropped=rounds.num_dropped)
    assert (decision.verdict, decision.reason) == (Verdict.NO_VERDICT, "20 of 60 rounds were disturbed")


def test_nvidia_smi_is_asked_for_the_current_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        uuid = "1234-abcd"

    asked: list[list[str]] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, "1980, 0x0000000000000004\n", "")

    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: Properties)
    monkeypatch.setattr(validity.subprocess, "run", run)
    assert read_gpu() == GpuState(1980.0, 4)
    assert "--id=GPU-1234-abcd" in asked[0]
    assert len(gpu_watches()) == 1


@pytest.mark.parametrize("answer", ["[N/A], [N/A]\n", ""], ids=["not known", "nothing"])
def test_clock_that_nobody_tells_is_not_watched(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: type("Properties", (), {"uuid": "1"}))
    done = subprocess.CompletedProcess([], 0, answer, "")
    monkeypatch.setattr(validity.subprocess, "run", lambda command, **options: done)
    assert gpu_watches() == []
