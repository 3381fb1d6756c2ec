"""What the bounds of scanners and planners allow, and that declared bits are compared.

`test_odd_samplers.py` shows that the odd ones pass.
"""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from fairdraw import Rounding
from fairdraw._core.checks import PROFILES
from fairdraw._core.failures import CheckFailure
from fairdraw._mutants.penalties import right as right_penalties
from fairdraw._oracles import penalties as specified
from fairdraw._oracles.intervals import Intervals, alike
from fairdraw._oracles.logits_bounds import RowBounds
from fairdraw._oracles.penalties import PenalisedRow, PenaltiesOracle, PenaltyFactors, penalised_intervals
from fairdraw._run.loading import CannotStart, as_sampler
from fairdraw.contracts import AnySampler, Capabilities, PenaltyPolicy, logits_planner, rounding_of
from fairdraw.properties import logits_plan, penalties
from fairdraw.properties._logits_asserts import Counted
from fairdraw.strategies.lifecycle import Add, Decode, PenaltiesTrace
from odd.logits_plan import ODD as ODD_PLANS
from odd.penalties import ODD as ODD_PENALTIES

ODD = (*ODD_PENALTIES, *ODD_PLANS)
BY_CODE = {check.code: check for check in (*penalties.CHECKS, *logits_plan.CHECKS)}


def _id(subject: AnySampler) -> str:
    return f"{getattr(subject, 'contract', '')} {subject.name}"


@pytest.mark.parametrize(
    ("contract", "name", "code"),
    [
        ("penalties", "divides by the repetition", "PEN101"),
        ("penalties", "computes in double", "PEN101"),
        ("penalties", "accumulates penalties", "PEN101"),
        ("logits_plan", "multiplies by reciprocals", "PLAN110"),
        ("logits_plan", "forces by exclusion", "PLAN110"),
        ("logits_plan", "keeps exactly k", "PLAN110"),
    ],
)
def test_declared_bits_are_compared(contract: str, name: str, code: str) -> None:
    odd = next(subject for subject in ODD if _id(subject) == f"{contract} {name}")
    declaring = dataclasses.replace(odd, rounding=Rounding.VLLM_TORCH)  # type: ignore[type-var]  # all are dataclasses
    with pytest.raises(CheckFailure):
        BY_CODE[code].run(declaring, profile=PROFILES["ci"])


def test_rows_after_a_rejected_draft_are_compared_unless_declared() -> None:
    odd = next(plan for plan in ODD_PLANS if plan.name == "forces in every row")
    assert BY_CODE["PLAN121"].run(odd, profile=PROFILES["ci"])
    with pytest.raises(CheckFailure):
        BY_CODE["PLAN121"].run(dataclasses.replace(odd, capabilities=Capabilities()), profile=PROFILES["ci"])


def test_declared_quotients_are_compared() -> None:
    odd = next(subject for subject in ODD_PENALTIES if subject.name == "divides by the repetition")
    BY_CODE["PEN101"].run(dataclasses.replace(odd, rounding=Rounding.VLLM_CUDA), profile=PROFILES["smoke"])


def test_both_signs_of_zero_are_correct_even_with_declared_bits() -> None:
    odd = next(subject for subject in ODD_PENALTIES if subject.name == "touches seen tokens only")
    trace = PenaltiesTrace(events=(Add(frequency=-0.5, output=(1,)), Decode(tokens=(3,))), vocab_size=300)
    trace.play(dataclasses.replace(odd, rounding=Rounding.VLLM_TORCH))


def test_unknown_rounding_is_refused() -> None:
    with pytest.raises(ValueError, match="rounding: 'exact', but it must be one of free, vllm-torch, vllm-cuda"):
        logits_planner(lambda batch, setup: batch.logits, name="mine", rounding="exact")
    assert rounding_of(logits_planner(lambda batch, setup: batch.logits, name="mine")) is Rounding.FREE


def test_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="repetition='later', but it must be first or last"):
        PenaltyPolicy(repetition="later")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="PenaltyPolicy: window=0, but it must be a number of tokens above 0 or None"):
        PenaltyPolicy(window=0)
    with pytest.raises(CannotStart, match="sampler oracle: policy: 'last', but it must be a PenaltyPolicy"):
        as_sampler(dataclasses.replace(right_penalties(), policy="last"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_scanner_of_another_policy_is_not_compared_with_the_reference() -> None:
    right, window = right_penalties(), PenaltyPolicy(window=64)
    odd = dataclasses.replace(right, name="odd", policy=window)
    assert BY_CODE["PEN401"].why_not(right, odd) == "odd has another policy: window of 64 tokens"
    assert BY_CODE["PEN401"].why_not(dataclasses.replace(right, policy=window), odd) is None


@pytest.mark.parametrize("order", ["first", "last"])
@pytest.mark.parametrize("power", ["one", "count"])
def test_intervals_hold_what_the_specification_computes_by_every_policy(power: Any, order: Any) -> None:
    policy, rng = PenaltyPolicy("output", order, power, "text", 20), np.random.default_rng(3)
    oracle = specified.penalties_oracle(Rounding.FREE, policy)
    for _ in range(50):
        logits = rng.normal(size=40).astype(np.float32)
        presence, frequency = rng.choice([0.0, 0.3, -1.9], 2).tolist()
        factors = PenaltyFactors(presence, frequency, float(rng.choice([1.0, 0.6, 10.0])))
        row = PenalisedRow(rng.integers(0, 40, 9).tolist(), rng.integers(0, 40, 30).tolist(), factors)
        may_be = penalised_intervals(Intervals.exactly(logits), row, policy)
        assert may_be.hold(oracle.penalise(logits, row)).all()
        assert (may_be.width < 1e-3 * (1 + np.abs(may_be.low))).all()


def test_interval_of_a_penalised_logit_is_a_few_ulps_wide() -> None:
    logits = np.array([1.7, -0.3, 5.0, np.inf, np.nan], np.float32)
    row = PenalisedRow([0], [0, 1, 1, 3, 4], PenaltyFactors(0.3, 0.7, 1.3))
    may_be = penalised_intervals(Intervals.exactly(logits), row)
    assert may_be.hold(PenaltiesOracle().penalise(logits, row)).all()
    assert may_be.low[2] == may_be.high[2] == 5.0
    assert (may_be.width[:2] < 2e-6).all()
    assert (may_be.width[:2] > 1e-7).all()


def test_zeros_and_nans_are_alike_and_neighbours_are_not() -> None:
    one = np.array([0.0, np.nan, 1.0, -np.inf], np.float32)
    other = np.array([-0.0, -np.nan, np.nextafter(np.float32(1), np.float32(2)), np.inf], np.float32)
    assert alike(one, other).tolist() == [True, True, False, False]
    assert alike(one, other, 2e-7).tolist() == [True, True, True, False]


def test_ties_at_the_edge_of_top_k_may_go_either_way_but_not_all() -> None:
    bounds = RowBounds.given(np.array([3, 1, 1, 1, 0], np.float32)).of_top_k(2)
    none = -np.inf
    for right in ([3, 1, 1, 1, none], [3, 1, none, none, none], [3, none, none, 1, none]):
        assert bounds.hold(np.array(right, np.float32)).all()
    for wrong in ([3, none, none, none, none], [none, 1, 1, 1, none], [3, 1, 1, 1, 0]):
        assert not bounds.hold(np.array(wrong, np.float32)).all()


def test_top_p_keeps_what_it_must() -> None:
    probs = np.array([0.5, 0.2, 0.2, 0.1])
    logits = np.log(probs).astype(np.float32)
    bounds = RowBounds.given(logits).of_top_p(0.6)

    def holds(*kept: int) -> bool:
        return bool(bounds.hold(np.where(np.isin(np.arange(4), kept), logits, np.float32(-np.inf))).all())

    assert holds(0, 1)
    assert holds(0, 2)
    assert holds(0, 1, 2)
    assert not holds(0)
    assert not holds(1, 2)
    assert not holds(0, 1, 3)
    assert not holds(0, 1, 2, 3)


def test_ties_that_are_torn_are_no_more_than_asked_for() -> None:
    bounds = RowBounds.given(np.zeros(10, np.float32)).of_top_k(2).of_top_p(0.35)

    def holds(num_kept: int) -> bool:
        return bool(bounds.hold(np.where(np.arange(10) < num_kept, 0, -np.inf).astype(np.float32)).all())

    assert [num_kept for num_kept in range(11) if holds(num_kept)] == [1, 2, 3, 4, 10]


@pytest.mark.parametrize(("other", "has_rule"), [(2.0, True), (float("nan"), False), (float("inf"), False)])
def test_filter_keeps_a_forced_token_unless_others_have_no_distribution(other: float, has_rule: bool) -> None:
    """Beside NaN a planner that keeps all ties lost the forced token by top-p, and was accused. No rule forbids it.
    The forced token's own NaN is gone: it has another logit now."""
    row = RowBounds.given(np.array([other, np.nan, 1], np.float32))
    filtered = dataclasses.replace(row, forced=1).forced_and_filtered()
    lost, kept = np.array([[-np.inf, -np.inf, 1], [-np.inf, 1e9, -np.inf]], np.float32)
    assert filtered.hold(kept).all()
    assert filtered.hold(lost).all() != has_rule


def test_only_operations_on_the_logits_are_counted() -> None:
    logits = torch.zeros(2, 12)
    with Counted(logits) as counted:
        torch.zeros(2, 12).clone().to(torch.float64)
        logits[:1].view(-1)
    assert (counted.operations, counted.num_copies) == ([], 0)
    with Counted(logits) as counted:
        logits.clone().clone()
        torch.empty(2, 12).copy_(logits)
    assert counted.operations == ["aten::clone", "aten::copy_"]
    assert counted.num_copies == 3
