"""Interleaved rounds: which arm comes when, what is dropped, and how one whole run ends."""

from __future__ import annotations

import gc
from collections import Counter
from itertools import islice, pairwise
from typing import TYPE_CHECKING

import pytest

from fairdraw.perf_regression import _rounds as rounds_module
from fairdraw.perf_regression._decision import Gate, Verdict, decide
from fairdraw.perf_regression._named import NoVerdictError
from fairdraw.perf_regression._rounds import Rounds, after_another_arm, after_own_step, calibrate, orders
from fairdraw.perf_regression._samples import work
from fairdraw.perf_regression._scaling import affine, decide_exponent, decide_fixed_share, fixed_share, largest_exponent

if TYPE_CHECKING:
    from collections.abc import Callable


class FakeClock:
    """Time that passes only inside steps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self, step: Callable[[], object], inner: int) -> float:
        begin = self.now
        for _ in range(inner):
            step()
        return (self.now - begin) / inner

    def step(self, seconds: float) -> Callable[[], object]:
        def run() -> None:
            self.now += seconds

        return run


def nothing() -> None: ...


def test_two_arms_run_in_both_orders_within_each_block() -> None:
    found = list(islice(orders(["A", "B"], seed=1), 40))
    assert all(set(found[i : i + 2]) == {("A", "B"), ("B", "A")} for i in range(0, 40, 2))


def test_three_arms_form_latin_squares() -> None:
    for block in zip(*[islice(orders(["A", "B", "C"], seed=2), 30)] * 3, strict=True):
        assert all(set(place) == {"A", "B", "C"} for place in zip(*block, strict=True))


def test_blocks_start_at_different_arms() -> None:
    starts = [order[0] for order in islice(orders(["A", "B", "C"], seed=3), 0, 300, 3)]
    assert min(Counter(starts).values()) > 15


def test_drift_falls_on_both_arms() -> None:
    """A machine that gets slower all the time makes no arm look slow."""
    clock = FakeClock()
    cost = [1.0]

    def step() -> None:
        clock.now += cost[0]
        cost[0] *= 1.01

    rounds = Rounds({"ours": step, "reference": step}, clock=clock)
    rounds.run(40)
    assert decide(rounds.pairs("ours", "reference"), Gate(1.0)).verdict is not Verdict.FAIL


def test_calibrated_sample_is_long_enough_for_the_fastest_arm() -> None:
    clock = FakeClock()
    steps = {"fast": clock.step(1e-5), "slow": clock.step(1e-3)}
    inner = calibrate(steps, 5e-4, clock)
    assert 50 <= inner <= 100


def test_batch_advances_once_before_each_round() -> None:
    advanced: list[int] = []
    Rounds({"A": nothing, "B": nothing}, advance=lambda: advanced.append(1)).run(7)
    assert len(advanced) == 7


def test_step_after_its_own_step_is_run_twice_and_timed_once() -> None:
    calls: list[str] = []
    after_own_step(lambda: calls.append("advance"))(lambda: calls.append("step"), 1)
    after_another_arm(lambda: calls.append("advance"))(lambda: calls.append("step"), 1)
    assert calls == ["advance", "step", "advance", "step", "advance", "step"]


def test_round_with_a_context_switch_in_a_short_sample_is_dropped_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    switches = iter([0, 0, 0, 1, 1, 1, 1, 1])
    monkeypatch.setattr(rounds_module, "involuntary_switches", lambda: next(switches))
    rounds = Rounds({"A": nothing, "B": nothing}, clock=lambda step, inner: 1e-5)
    rounds.run(2)
    assert [bool(found.problem) for found in rounds.found] == [True, False]
    assert len(rounds.pairs("A", "B")) == 1


def test_long_sample_is_kept_in_spite_of_a_context_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    switches = iter(range(100))
    monkeypatch.setattr(rounds_module, "involuntary_switches", lambda: next(switches))
    rounds = Rounds({"A": nothing, "B": nothing}, clock=lambda step, inner: 0.01)
    rounds.run(2)
    assert rounds.num_dropped == 0


def test_garbage_is_not_collected_within_rounds() -> None:
    enabled: list[bool] = []
    Rounds({"A": lambda: enabled.append(gc.isenabled()), "B": nothing}).run(3)
    assert not any(enabled)
    assert gc.isenabled()


def test_live_gate_does_not_fail_the_same_work_and_fails_twice_the_work() -> None:
    """Once, with a real clock, whatever the neighbours do: alpha 1e-6 for each."""

    def verdict(passes: int) -> Verdict:
        rounds = Rounds({"ours": work(passes), "reference": work(5)}, inner=2)
        rounds.run(40)
        return decide(rounds.pairs("ours", "reference"), Gate(1.03, alpha=1e-6, looks=(40,))).verdict

    assert verdict(5) is not Verdict.FAIL
    assert verdict(10) is not Verdict.PASS


@pytest.mark.parametrize(("power", "wanted"), [(0.0, Verdict.PASS), (1.0, Verdict.FAIL), (0.1, Verdict.INCONCLUSIVE)])
def test_exponent_is_judged_by_its_interval(power: float, wanted: Verdict) -> None:
    clock = FakeClock()
    wobble = iter([1.0, 1.02, 0.98, 1.01] * 100)

    def step(size: int) -> Callable[[], object]:
        def run() -> None:
            clock.now += size**power * next(wobble)

        return run

    rounds = Rounds({str(size): step(size) for size in (1000, 2000, 4000)}, clock=clock)
    rounds.run(40)
    assert decide_exponent(rounds, 0.1, alpha=1e-3).verdict is wanted


def sized(cost: Callable[[int], float], *sizes: int) -> Rounds:
    """Forty rounds in which `size` takes `cost(size)` seconds."""
    clock = FakeClock()
    rounds = Rounds({str(size): clock.step(cost(size)) for size in sizes}, clock=clock)
    rounds.run(40)
    return rounds


def test_cost_that_sets_in_at_the_last_doubling_is_caught() -> None:
    """Over all sizes the exponent is 0.33 only."""
    rounds = sized(lambda size: 2.0 if size == 8000 else 1.0, 1000, 2000, 4000, 8000)
    decision = decide_exponent(rounds, 0.5, alpha=1e-3)
    assert decision.verdict is Verdict.FAIL
    assert largest_exponent(rounds) == pytest.approx(1.0)


def test_exponent_of_too_few_rounds_has_no_verdict() -> None:
    rounds = Rounds({"1000": nothing, "4000": nothing}, clock=lambda step, inner: 1.0)
    rounds.run(3)
    assert decide_exponent(rounds, 0.1, alpha=1e-3).verdict is Verdict.NO_VERDICT


def test_exponent_of_disturbed_rounds_has_no_verdict() -> None:
    rounds = Rounds({"1000": nothing, "4000": nothing}, clock=lambda step, inner: 1.0, watches=[lambda: lambda: "no"])
    rounds.run(40)
    assert "40 of 40" in decide_exponent(rounds, 0.1, alpha=1e-3).reason
    with pytest.raises(NoVerdictError, match="disturbed"):
        largest_exponent(rounds)


@pytest.mark.parametrize(
    ("fixed", "wanted"),
    [(10.0, Verdict.PASS), (90.0, Verdict.FAIL)],
    ids=["launches cost little", "launches cost most"],
)
def test_fixed_share_is_judged_by_its_interval(fixed: float, wanted: Verdict) -> None:
    """A power distribution would call the second one flat, and so good."""
    rounds = sized(lambda size: fixed + size / 1000, 8_000, 32_000, 50_257, 64_000, 100_000)
    decision = decide_fixed_share(rounds, 0.2, alpha=1e-3)
    assert decision.verdict is wanted
    assert fixed_share(rounds) == pytest.approx(fixed / (fixed + 100))


def test_fixed_cost_and_slope_are_told_apart() -> None:
    fixed, slope = affine({size: 12.5 + 0.25 * size for size in (8, 100, 1000, 4097)})
    assert (round(fixed, 9), round(slope, 9)) == (12.5, 0.25)


def test_orders_never_repeat_the_last_arm_first_with_two_arms_in_a_block() -> None:
    """ABBA: the arm that ends a round begins the next one of its block."""
    found = list(islice(orders(["A", "B"], seed=5), 20))
    assert all(first[-1] == second[0] for first, second in list(pairwise(found))[::2])
