"""Rounds: which arm runs when, what disturbs a round, and how growth over sizes is decided."""

import gc
import random
import subprocess
from collections import Counter
from collections.abc import Callable
from itertools import count, islice, pairwise

import pytest

from fairdraw.perf_regression import _device_time as device_time
from fairdraw.perf_regression import _rounds as rounds_module
from fairdraw.perf_regression._decision import Gate, Verdict, decide
from fairdraw.perf_regression._device_time import GpuState, gpu_watches, read_gpu, watch_clock
from fairdraw.perf_regression._named import NoVerdictError
from fairdraw.perf_regression._rounds import Rounds, after_own_step, calibrate, orders, watch_garbage
from fairdraw.perf_regression._scaling import decide_exponent, decide_fixed_share, fixed_share, largest_exponent


class FakeClock:
    """Time that passes only inside steps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self, step: Callable[[], object], inner: int) -> float:
        begin = self.now
        for _ in range(inner):
            step()
        return (self.now - begin) / inner

    def step(self, seconds: Callable[[], float]) -> Callable[[], object]:
        def run() -> None:
            self.now += seconds()

        return run


def nothing() -> None: ...


def test_two_arms_run_as_abba() -> None:
    found = list(islice(orders(["A", "B"], seed=1), 40))
    blocks = list(pairwise(found))[::2]
    assert {frozenset(block) for block in blocks} == {frozenset({("A", "B"), ("B", "A")})}
    assert all(first[-1] == second[0] for first, second in blocks)


def test_three_arms_form_latin_squares_with_different_starts() -> None:
    found = list(islice(orders(["A", "B", "C"], seed=3), 300))
    for block in zip(*[iter(found)] * 3, strict=True):
        assert all(set(place) == {"A", "B", "C"} for place in zip(*block, strict=True))
    assert min(Counter(order[0] for order in found[::3]).values()) > 15


def test_drift_falls_on_both_arms() -> None:
    """A machine that gets slower all the time makes no arm look slow."""
    clock = FakeClock()
    later = count()
    step = clock.step(lambda: 1.01 ** next(later))
    rounds = Rounds({"ours": step, "reference": step}, clock=clock)
    rounds.run(40)
    assert decide(rounds.pairs("ours", "reference"), Gate(1.0)).verdict is not Verdict.FAIL


def test_calibrated_sample_is_long_enough_for_the_fastest_arm() -> None:
    clock = FakeClock()
    steps = {"fast": clock.step(lambda: 1e-5), "slow": clock.step(lambda: 1e-3)}
    assert 50 <= calibrate(steps, 5e-4, clock) <= 100


def test_step_after_its_own_step_is_run_twice_and_timed_once() -> None:
    calls: list[str] = []
    after_own_step(lambda: calls.append("advance"))(lambda: calls.append("step"), 1)
    assert calls == ["advance", "step", "advance", "step"]


@pytest.mark.parametrize(("seconds", "dropped"), [(1e-5, 1), (0.01, 0)], ids=["short sample", "long sample"])
def test_context_switch_drops_a_round_only_if_the_sample_is_short(
    seconds: float, dropped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    switches = iter([0, 0, 0, 1, 1, 1, 1, 1])
    monkeypatch.setattr(rounds_module, "involuntary_switches", lambda: next(switches))
    rounds = Rounds({"A": nothing, "B": nothing}, clock=lambda step, inner: seconds)
    rounds.run(2)
    assert rounds.num_dropped == dropped
    assert len(rounds.pairs("A", "B")) == 2 - dropped


def test_garbage_is_not_collected_within_rounds() -> None:
    enabled: list[bool] = []
    Rounds({"A": lambda: enabled.append(gc.isenabled()), "B": nothing}).run(3)
    assert not any(enabled)
    assert gc.isenabled()


def test_garbage_collection_within_a_round_disturbs_it() -> None:
    quiet = watch_garbage()
    assert quiet() == ""
    rounds = Rounds({"ours": lambda: gc.collect(0), "reference": list}, clock=lambda step, inner: float(step() or 1))
    assert [found.problem for found in rounds.run(2)] == ["garbage was collected"] * 2


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
def test_clock_of_a_gpu_disturbs_a_round(before: GpuState, after: GpuState, problem: str) -> None:
    states = iter([before, after])
    assert watch_clock(lambda: next(states))()() == problem


@pytest.mark.parametrize(
    ("answer", "num_watches"),
    [("1980, 0x0000000000000004\n", 1), ("[N/A], [N/A]\n", 0), ("", 0)],
    ids=["known", "not known", "nothing"],
)
def test_clock_is_watched_if_it_is_reported(answer: str, num_watches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, answer, "")

    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: type("", (), {"uuid": "1234-abcd"}))
    monkeypatch.setattr(device_time.subprocess, "run", run)
    assert len(gpu_watches()) == num_watches
    assert "--id=GPU-1234-abcd" in commands[0]
    if num_watches:
        assert read_gpu() == GpuState(1980.0, 4)


def sized(cost: Callable[[int], float], *sizes: int) -> Rounds:
    """Forty rounds in which `size` takes about `cost(size)` seconds."""
    clock = FakeClock()
    noise = random.Random(1)
    steps = {str(size): clock.step(lambda size=size: cost(size) * noise.gauss(1, 0.01)) for size in sizes}
    rounds = Rounds(steps, clock=clock)
    rounds.run(40)
    return rounds


@pytest.mark.parametrize(
    ("cost", "limit", "verdict", "largest"),
    [
        (lambda size: 1.0, 0.1, Verdict.PASS, 0.0),
        (float, 0.1, Verdict.FAIL, 1.0),
        (lambda size: size**0.1, 0.1, Verdict.INCONCLUSIVE, 0.1),
        (lambda size: 2.0 if size == 8000 else 1.0, 0.5, Verdict.FAIL, 1.0),
    ],
    ids=["flat", "linear", "at the limit", "a cost that sets in at the last doubling, of exponent 0.33 over all"],
)
def test_exponent_is_decided_by_its_interval(
    cost: Callable[[int], float], limit: float, verdict: Verdict, largest: float
) -> None:
    rounds = sized(cost, 1000, 2000, 4000, 8000)
    assert decide_exponent(rounds, limit, alpha=1e-3).verdict is verdict
    assert largest_exponent(rounds) == pytest.approx(largest, abs=0.05)


@pytest.mark.parametrize(
    ("num_rounds", "problem", "reason"), [(3, "", "too few"), (40, "no", "40 of 40")], ids=["few", "disturbed"]
)
def test_exponent_of_few_or_disturbed_rounds_has_no_verdict(num_rounds: int, problem: str, reason: str) -> None:
    watches = [lambda: lambda: problem]
    rounds = Rounds({"1000": nothing, "4000": nothing}, clock=lambda step, inner: 1.0, watches=watches)
    rounds.run(num_rounds)
    decision = decide_exponent(rounds, 0.1, alpha=1e-3)
    assert decision.verdict is Verdict.NO_VERDICT
    assert reason in decision.reason
    if problem:
        with pytest.raises(NoVerdictError, match="disturbed"):
            largest_exponent(rounds)


@pytest.mark.parametrize(
    ("fixed", "wanted"), [(10.0, Verdict.PASS), (90.0, Verdict.FAIL)], ids=["launches are cheap", "launches dominate"]
)
def test_fixed_share_is_decided_by_its_interval(fixed: float, wanted: Verdict) -> None:
    """A power distribution would call the second one flat, and so good."""
    rounds = sized(lambda size: fixed + size / 1000, 8_000, 32_000, 50_257, 64_000, 100_000)
    assert decide_fixed_share(rounds, 0.2, alpha=1e-3).verdict is wanted
    assert fixed_share(rounds) == pytest.approx(fixed / (fixed + 100), abs=0.05)
