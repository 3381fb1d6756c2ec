"""S1 to S4: their nulls, the faults that each of them sees, and what none may accuse."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor

from fairdraw._core.checks import PROFILES
from fairdraw._core.seeds import derive_seed
from fairdraw._mutants._distribution_sampler import DistributionSampler, right_distribution
from fairdraw._run.runner import Session, run_check
from fairdraw.contracts import Noise, RejectionSampler, SpecDecodeBatch, rejection_sampler
from fairdraw.statistical import _rejection_statistics as rejection
from fairdraw.statistical._configurations import CONFIGURATIONS, DISAGREEING, RAGGED, Configuration
from fairdraw.statistical._count_tables import joint_codes
from fairdraw.statistical._decision import TableEvidence, weigh
from fairdraw.statistical._design import SamplePlan, plan_tables
from fairdraw.statistical._experiment import Experiment
from fairdraw.statistical._outcomes import RowCodes, Rows
from fairdraw.statistical._rejection_statistics import Statistic
from fairdraw.statistical._token_draws import Uniforms, draw_one, draw_tokens
from fairdraw.statistical.rejection import CHECKS
from odd.rejection_draws import ODD_DISTRIBUTIONS

RIGHT = right_distribution(DistributionSampler)
EXPERIMENTS = {configuration.name: Experiment(configuration, 2048) for configuration in CONFIGURATIONS}
TABLES = {(name, t): table for name, found in EXPERIMENTS.items() for t, table in found.tables(50).items()}


# The nulls.


def test_every_statistic_is_the_target_of_some_configuration() -> None:
    assert {name.split()[0] for _, name in TABLES} == {f"S{number}" for number in (1, 2, 3, 4)} | {"SD"}


@pytest.mark.parametrize("key", TABLES, ids=" ".join)
def test_null_of_every_table_is_a_distribution_of_a_frequent_event(key: tuple[str, str]) -> None:
    table = TABLES[key]
    assert table.probs.sum() == pytest.approx(1)
    assert not (table.probs > 0)[~table.possible].any()
    assert table.event_prob >= 0.2


def test_rejected_draft_and_recovered_token_are_independent() -> None:
    joint = TABLES["disagreeing", "S3 rejected draft x recovered token at position 0"].probs.reshape(6, 6)
    np.testing.assert_allclose(joint, np.outer(joint.sum(axis=1), joint.sum(axis=0)), atol=1e-15)


def test_token_with_less_target_than_draft_probability_is_never_recovered() -> None:
    code = joint_codes(*np.array([[2], [6], [6]]), sizes=(7, 7, 7))
    assert TABLES["disagreeing", "S1 output row"].probs[code[0]] == 0


def test_p_values_of_a_correct_sampler_are_uniform() -> None:
    """150 samples of 4096 rows; for every table a Kolmogorov-Smirnov test at 1e-3. No e-value reaches 10 000."""
    p_values: dict[str, list[float]] = {}
    for seed in range(150):
        for name, table in evidence(RIGHT, DISAGREEING, 2, derive_seed("null", seed)).items():
            p_values.setdefault(name, []).append(table.p_value)
            assert table.num_impossible == 0
            assert table.log_e_value < np.log(1e4)
    uniformity = {name: kstest(values, "uniform").pvalue for name, values in p_values.items()}
    assert len(uniformity) == 6
    assert min(uniformity.values()) > 1e-3, uniformity


# What each statistic sees.


def evidence(
    sampler: RejectionSampler, configuration: Configuration, num_calls: int, seed: int
) -> dict[str, TableEvidence]:
    """What every table shows after calls of 2048 rows."""
    experiment = EXPERIMENTS[configuration.name]
    tables, counts = experiment.tables(num_calls), experiment.count(sampler, num_calls, seed)
    plans = plan_tables(tables, 1, 1e-4)
    return {n: weigh(n, counts[n], plan, tables[n]) for n, plan in plans.items() if isinstance(plan, SamplePlan)}


def least_p(tables: dict[str, TableEvidence], code: str) -> float:
    """Smallest p-value of a statistic's tables, Bonferroni-corrected; 0 if there were impossible observations."""
    found = [table for name, table in tables.items() if name.startswith(code)]
    if any(table.num_impossible for table in found):
        return 0.0
    return min(1.0, len(found) * min(table.p_value for table in found))


def test_other_verification_than_declared_is_caught_by_acceptance_alone() -> None:
    """What else a statistic sees, the mutants say that name its check."""
    found = evidence(next(odd for odd in ODD_DISTRIBUTIONS if odd.name == "exact match"), DISAGREEING, 50, 1)
    assert least_p(found, "S4") == 0
    assert least_p(found, "S2") > 1e-4


# Rows.


@pytest.mark.parametrize(
    "row", [[0, -1, 3], [-1, -1, -1], [6, -1, -1], [-2, 0, 1]], ids=["gap", "empty", "vocab_size", "below -1"]
)
def test_single_malformed_row_is_impossible(row: list[int]) -> None:
    assert evidence(edited(7, row), DISAGREEING, 2, 0)["S1 output row"].num_impossible == 2


def test_token_after_the_end_of_a_short_request_is_impossible() -> None:
    assert evidence(edited(2, [0, 0, -1]), RAGGED, 2, 0)["S1 output row, request 2"].num_impossible == 2


def edited(request: int, row: list[int]) -> RejectionSampler:
    """Correct but for one row of each call, which is this."""

    def verify(batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        output = RIGHT.verify(batch, noise)
        output[request] = output.new_tensor(row)
        return output

    return rejection_sampler(verify, unsupported={"explicit-noise": "draws its own numbers"})


ONE_ROW = (
    rejection.output_row(),
    rejection.completed_row(2),
    rejection.recovered_by_draft(1),
    rejection.accepted_draft(0),
)


@pytest.mark.parametrize("statistic", ONE_ROW, ids=lambda statistic: statistic.title)
def test_distinct_rows_give_the_counts_of_all_rows(statistic: Statistic) -> None:
    """Tokens below, at and beyond the vocabulary among them."""
    rng = np.random.default_rng(3)
    tokens = rng.integers(-3, 7, (4, 500, 3)).astype(np.int32)
    drafts, fill = (rng.integers(0, 5, (4, 500, width)).astype(np.int32) for width in (2, 3))
    rows = Rows(tokens, drafts, fill, 5)
    seen, weights = RowCodes.of(*map(torch.from_numpy, (tokens, drafts, fill)), 5).distinct()
    assert weights.sum() == 2000
    np.testing.assert_array_equal(statistic.count(seen, weights), statistic.count(rows))


def test_tokens_of_columns_are_those_of_each_distribution() -> None:
    probs, uniforms = np.random.default_rng(5).dirichlet(np.ones(6), 3), Uniforms(1, "cpu").draw(1000, 3)
    drawn = draw_tokens(probs, uniforms).numpy()
    for column, row in enumerate(probs):
        np.testing.assert_array_equal(drawn[:, column], draw_one(row, uniforms[:, column].numpy()))


def test_token_of_probability_zero_is_never_drawn() -> None:
    probs = np.array([0.0, 0.3, 0.0, 0.2, 0.5, 0.0])
    edges = np.array([0.0, np.nextafter(0.3, 0), 0.3, np.nextafter(0.5, 0), 0.5, np.nextafter(1.0, 0)])
    assert draw_one(probs, edges).tolist() == [1, 1, 3, 3, 4, 4]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RAGGED.batch(6, seed=0), "batch_size=6, but it must be a multiple of 4"),
        (lambda: Experiment(DISAGREEING).count(RIGHT, 0, seed=0), "num_calls=0, but it must be at least 1"),
    ],
    ids=["batch", "no call"],
)
def test_nothing_to_draw_is_refused(call, message: str) -> None:  # type: ignore[no-untyped-def]  # a lambda
    with pytest.raises(ValueError, match=message):
        call()


# Correct samplers of other making.

EMITTED = {"DIST102", "DIST112"}
"""Checks that hold for every lossless verifier."""


@pytest.mark.parametrize("sampler", ODD_DISTRIBUTIONS, ids=lambda sampler: sampler.name)
def test_odd_but_correct_sampler_passes(sampler: RejectionSampler) -> None:
    """The check of all slices takes as long as all others: it looks at every third sampler."""
    left_out = "" if sampler in ODD_DISTRIBUTIONS[2::3] else "DIST691"
    session = Session(profile=PROFILES["smoke"].scaled(0.2), crash_folder=None)
    records = [run_check(check, sampler, session) for check in CHECKS if check.code != left_out]
    assert {record.status for record in records} <= {"passed", "skipped"}
    assert {record.code for record in records if record.status == "passed"} >= EMITTED
