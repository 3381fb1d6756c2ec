"""Experiments: the distributions of their tables, malformed and vacuous output, budgets. The right sampler is the
oracle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from fairdraw._core.harness import emit
from fairdraw._oracles.rejection import verify
from fairdraw.protocols import SeededNoise, rejection_sampler
from fairdraw.statistical._configurations import CONFIGURATIONS, DISAGREEING, RAGGED, Configuration
from fairdraw.statistical._count_tables import joint_codes
from fairdraw.statistical._decision import Verdict
from fairdraw.statistical._design import SamplePlan
from fairdraw.statistical._distributions import token_verification_distribution
from fairdraw.statistical._experiment import Experiment
from fairdraw.statistical._outcomes import Verification, enumerate_outcomes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fairdraw.protocols import SpecDecodeBatch
    from fairdraw.statistical._watching import Draw

    Tokens = NDArray[np.int32]


ORACLE = rejection_sampler(verify)


def num_impossible(draw: Draw, configuration: Configuration, table: str) -> int:
    """Observations outside the distribution of one table, in two calls of 64 requests."""
    experiment = Experiment(configuration, batch_size=64)
    plan = experiment.plan(discrepancy=0.3, false_fail_rate=1e-4, max_num_draws=10**6)[table]
    assert isinstance(plan, SamplePlan)
    return plan.pooling.pool(experiment.count(experiment.draw(draw, 2, seed=0))[table])[1]


def right_sampler(batch: SpecDecodeBatch, seed: int) -> Tokens:
    return emit(ORACLE, batch, SeededNoise(seed)).tokens


@pytest.mark.parametrize("verification", Verification)
def test_every_statistic_is_the_target_of_some_configuration(verification: Verification) -> None:
    codes = {t.statistic.code for c in CONFIGURATIONS for t in Experiment(c, verification).tables}

    assert codes == {"S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8"}


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=str)
def test_distribution_of_every_table_is_a_distribution(configuration: Configuration) -> None:
    for table in Experiment(configuration).tables:
        assert table.distribution.probs.sum() == pytest.approx(1)
        assert not (table.distribution.probs > 0)[~table.distribution.possible].any()


def test_distribution_of_output_rows_is_the_enumerated_distribution() -> None:
    """Two ways to the same distribution: by summing over given drafts, and in closed form."""
    request = DISAGREEING.requests[0]
    table = next(t for t in Experiment(DISAGREEING).tables if t.statistic.code == "S1")

    unsupported = token_verification_distribution(list(request.exact_target_probs()), list(request.exact_draft_probs()))

    np.testing.assert_allclose(table.distribution.probs, unsupported.row_probs(), atol=1e-15)
    code = joint_codes(*np.array([[2], [6], [6]]), sizes=(7, 7, 7))
    assert table.distribution.probs[code[0]] == 0, "token 2 is never recovered: target 0.15, draft 0.30"


def test_rejected_draft_and_recovered_token_are_independent_under_token_verification() -> None:
    table = next(t for t in Experiment(DISAGREEING).tables if t.statistic.code == "S3")
    joint = table.distribution.probs.reshape(6, 6)

    np.testing.assert_allclose(joint, np.outer(joint.sum(axis=1), joint.sum(axis=0)), atol=1e-15)


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=str)
def test_targeted_events_have_mass(configuration: Configuration) -> None:
    for table in Experiment(configuration).tables:
        assert table.distribution.event_prob >= 0.2


@pytest.mark.parametrize("output", ["all zeros", "uniform", "drafts", "argmax"])
def test_vacuous_sampler_is_caught_at_the_first_look(output: str) -> None:
    def draw(batch: SpecDecodeBatch, seed: int) -> Tokens:
        shape = batch.batch_size, batch.max_spec_len + 1
        rng = np.random.default_rng(seed)
        drafts = batch.draft_token_ids.numpy().reshape(batch.batch_size, -1)
        best = batch.target_logits.argmax(dim=-1).numpy().reshape(batch.batch_size, -1)
        return {
            "all zeros": np.zeros(shape, np.int32),
            "uniform": rng.integers(0, 6, shape, dtype=np.int32),
            "drafts": np.concatenate([drafts, batch.bonus_token_ids.numpy()], axis=1),
            "argmax": np.concatenate([best, batch.bonus_token_ids.numpy()], axis=1).astype(np.int32),
        }[output]

    experiment = Experiment(DISAGREEING, batch_size=1024)
    plans = experiment.plan(discrepancy=0.05, false_fail_rate=1e-6, max_num_draws=10**6)

    decision = experiment.run(draw, plans, false_fail_rate=1e-6, seed=0)

    assert decision.verdict is Verdict.FAIL
    assert decision.evidence[0].num_samples <= 2 * 1024


@pytest.mark.parametrize(
    "row", [[0, -1, 3], [-1, -1, -1], [6, -1, -1], [-2, 0, 1]], ids=["gap", "empty", "vocab_size", "below -1"]
)
def test_single_malformed_row_is_caught(row: list[int]) -> None:
    def draw(batch: SpecDecodeBatch, seed: int) -> Tokens:
        tokens = right_sampler(batch, seed)
        tokens[7] = row
        return tokens

    assert num_impossible(draw, DISAGREEING, "S1 output row") > 0


def test_token_after_the_end_of_a_short_request_is_caught() -> None:
    def draw(batch: SpecDecodeBatch, seed: int) -> Tokens:
        tokens = right_sampler(batch, seed)
        tokens[2::4, 1] = 0
        return tokens

    assert num_impossible(draw, RAGGED, "S1 output row, request 2") > 0


def test_same_seed_gives_the_same_decision() -> None:
    experiment = Experiment(DISAGREEING, batch_size=256)
    plans = experiment.plan(discrepancy=0.2, false_fail_rate=1e-4, max_num_draws=10**6)

    decisions = [experiment.run(right_sampler, plans, false_fail_rate=1e-4, seed=5) for _ in range(2)]

    assert decisions[0] == decisions[1]
    assert decisions[0] != experiment.run(right_sampler, plans, false_fail_rate=1e-4, seed=6)


def test_counts_of_two_shards_are_the_counts_of_the_whole() -> None:
    experiment = Experiment(DISAGREEING, batch_size=64)
    shards = [experiment.draw(right_sampler, 4, seed) for seed in (1, 2)]

    total = {name: counts + experiment.count(shards[1])[name] for name, counts in experiment.count(shards[0]).items()}

    assert {name: int(counts.sum()) for name, counts in total.items()}["S1 output row"] == 2 * 4 * 64
    assert total["S7 first tokens of consecutive calls"].sum() == 2 * 2 * 64


def test_run_that_is_out_of_time_is_inconclusive() -> None:
    experiment = Experiment(DISAGREEING, batch_size=256)
    plans = experiment.plan(discrepancy=0.2, false_fail_rate=1e-4, max_num_draws=10**6)
    answers = iter([False, True])

    decision = experiment.run(right_sampler, plans, false_fail_rate=1e-4, seed=5, out_of_time=lambda: next(answers))

    assert decision.verdict is Verdict.INCONCLUSIVE
    assert decision.reason.startswith("too few samples: S1 output row ")


def test_budget_too_small_for_the_distance_is_inconclusive() -> None:
    experiment = Experiment(DISAGREEING, batch_size=256)
    plans = experiment.plan(discrepancy=0.001, false_fail_rate=1e-4, max_num_draws=10**5)

    decision = experiment.run(right_sampler, plans, false_fail_rate=1e-4, seed=5)

    assert decision.verdict is Verdict.INCONCLUSIVE
    assert "has no power" in decision.reason


@pytest.mark.parametrize("shape", [(3, 3), (4, 2)], ids=["too few rows", "too narrow"])
def test_output_of_another_shape_is_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"tokens.shape=\[\d, \d\], but it must be \[4, 3\]"):
        Experiment(DISAGREEING, batch_size=4).draw(lambda batch, seed: np.zeros(shape, np.int32), 1, seed=0)


def test_draw_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="num_calls=0, but it must be at least 1"):
        Experiment(DISAGREEING).draw(right_sampler, 0, seed=0)


def test_batch_that_breaks_the_cycle_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size=6, but it must be a multiple of 4"):
        RAGGED.batch(6, seed=0)


def test_outcomes_of_a_request_sum_to_one() -> None:
    for request in RAGGED.requests:
        assert enumerate_outcomes(request, Verification.BLOCK).probs.sum() == pytest.approx(1)
