"""The decision of the gate: on artificial numbers, and on rounds recorded on a machine with all cores busy."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairdraw.perf_regression._decision import Gate, Verdict, decide, interval, rank

ROOT = Path(__file__).parents[2]
RECORDED = json.loads((ROOT / "perf_regression" / "records" / "samples_busy.json").read_text(encoding="utf-8"))
GATE = Gate(limit=1.03, floor=0.0, alpha=0.01 / 10)

Pairs = list[tuple[float, float]]


def verdict_of(pairs: Pairs, gate: Gate = GATE, num_dropped: int = 0) -> Verdict:
    """The verdict at the checkpoint that stops."""
    verdict = Verdict.NO_VERDICT
    for look in gate.looks:
        verdict = decide(pairs[:look], gate, num_dropped=num_dropped).verdict
        if verdict in (Verdict.PASS, Verdict.FAIL):
            break
    return verdict


def recorded(kind: str) -> list[Pairs]:
    return [[(ours, other) for ours, other in series["pairs"]] for series in RECORDED["series"][kind]]


@given(num_rounds=st.integers(1, 120), alpha=st.floats(1e-6, 0.4))
def test_rank_is_the_greatest_that_keeps_its_error(num_rounds: int, alpha: float) -> None:
    """P(fewer than j of n fair coins) <= alpha, and not for j + 1."""

    def error(j: int) -> float:
        return sum(math.comb(num_rounds, i) for i in range(j)) / 2**num_rounds

    j = rank(num_rounds, alpha)
    assert error(j) <= alpha * (1 + 1e-9)
    assert error(j + 1) > alpha * (1 - 1e-9)


@given(values=st.lists(st.floats(-9, 9), min_size=20, max_size=90))
def test_interval_holds_the_median(values: list[float]) -> None:
    found = interval(values, 0.001)
    assert found.low <= found.middle <= found.high


@pytest.mark.parametrize(
    ("pairs", "gate", "verdict"),
    [
        ([(1.0, 1.0)] * 20, GATE, Verdict.PASS),
        ([(1.1, 1.0)] * 20, GATE, Verdict.FAIL),
        ([(1.0, 1.0), (1.1, 1.0)] * 20, GATE, Verdict.INCONCLUSIVE),
        ([(1.1e-6, 1e-6)] * 40, Gate(1.03, floor=1e-6), Verdict.INCONCLUSIVE),
        ([(1.1e-6, 1e-6)] * 40, Gate(1.03, floor=1e-9), Verdict.FAIL),
    ],
    ids=["clear pass", "clear failure", "limit within the interval", "excess below the floor", "above the floor"],
)
def test_interval_and_floor_decide(pairs: Pairs, gate: Gate, verdict: Verdict) -> None:
    assert decide(pairs, gate).verdict is verdict


@pytest.mark.parametrize(
    ("pairs", "num_dropped", "reason"),
    [
        ([(1.0, 1.0)] * 5, 0, "5 rounds are too few"),
        ([], 0, "0 rounds are too few"),
        ([(1.0, 1.0)] * 20, 10, "10 of 30 rounds were disturbed"),
        ([(0.0, 1.0)] * 20, 0, "took no time"),
    ],
    ids=["too few", "a missing arm", "disturbed", "coarse clock"],
)
def test_what_was_not_measured_has_no_verdict(pairs: Pairs, num_dropped: int, reason: str) -> None:
    decision = decide(pairs, GATE, num_dropped=num_dropped)
    assert decision.verdict is Verdict.NO_VERDICT
    assert reason in decision.reason


def test_recorded_samples_were_taken_with_busy_cores() -> None:
    assert RECORDED["machine"]["load_per_core"] > 0.5
    kinds = {f"{kind} {clock}" for kind in ("aa", "slower") for clock in ("wall", "thread")}
    assert {kind: len(series) for kind, series in RECORDED["series"].items()} == dict.fromkeys(kinds, 10)


@pytest.mark.parametrize("clock", ["wall", "thread"])
@pytest.mark.parametrize("limit", [1.0, 1.03])
def test_same_work_on_a_busy_machine_does_not_fail(limit: float, clock: str) -> None:
    gate = Gate(limit, alpha=GATE.alpha)
    assert Verdict.FAIL not in {verdict_of(pairs, gate) for pairs in recorded(f"aa {clock}")}


def test_ten_per_cent_more_work_on_a_busy_machine_fails() -> None:
    """At limit 1.03, in every series, in the time of the thread."""
    assert {verdict_of(pairs) for pairs in recorded("slower thread")} == {Verdict.FAIL}


def test_ten_per_cent_more_work_never_passes_by_the_wall() -> None:
    """With all cores busy the wall clock detects ten per cent in some series only; the others are inconclusive."""
    assert Verdict.PASS not in {verdict_of(pairs) for pairs in recorded("slower wall")}


def test_ten_per_cent_less_work_passes_the_limit_of_one() -> None:
    """The same rounds with their arms exchanged."""
    swapped = [[(other, ours) for ours, other in pairs] for pairs in recorded("slower thread")]
    assert {verdict_of(pairs, Gate(1.0, alpha=GATE.alpha)) for pairs in swapped} == {Verdict.PASS}
