"""Right samplers that look odd: the statistical suite judges them by what they emit, and accuses none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairdraw._core.checks import PROFILES
from fairdraw._mutants._distribution_sampler import right_distribution
from fairdraw._mutants._odd_distributions import ODD_DISTRIBUTIONS, BlockVerification, ExactMatch
from fairdraw._run.runner import Session, run_check
from fairdraw.statistical._configurations import DISAGREEING, RAGGED, Configuration
from fairdraw.statistical._decision import Decision, Verdict
from fairdraw.statistical._experiment import Experiment
from fairdraw.statistical._outcomes import Verification
from fairdraw.statistical._sharding import drawing_from
from fairdraw.statistical.rejection import CHECKS

if TYPE_CHECKING:
    from fairdraw.protocols import RejectionSampler

EMITTED = {"DIST102", "DIST112", "DIST301", "DIST302", "DIST501", "DIST502", "DIST503", "DIST504"}
"""Checks that hold for every lossless verifier; production vocabularies are left to tools/measure_power.py."""


def judged(sampler: RejectionSampler, configuration: Configuration, verification: Verification) -> Decision:
    """Every statistic of a configuration against the distribution of a verification."""
    experiment = Experiment(configuration, verification=verification, batch_size=2048)
    plans = experiment.plan(discrepancy=0.06, false_fail_rate=1e-6, max_num_draws=200_000)
    return experiment.run(drawing_from(sampler), plans, false_fail_rate=1e-6, seed=5)


@pytest.mark.parametrize("sampler", ODD_DISTRIBUTIONS, ids=lambda sampler: sampler.name)
def test_odd_sampler_is_left_in_peace(sampler: RejectionSampler) -> None:
    session = Session(profile=PROFILES["smoke"], crash_folder=None)
    records = [run_check(check, sampler, session) for check in CHECKS if not check.code.startswith("DIST4")]

    assert {record.status for record in records} <= {"passed", "skipped"}
    assert {record.code for record in records if record.status == "passed"} >= EMITTED


@pytest.mark.parametrize("configuration", [DISAGREEING, RAGGED], ids=str)
@pytest.mark.parametrize(
    ("sampler", "verification"),
    [(BlockVerification, Verification.BLOCK), (ExactMatch, Verification.EXACT_MATCH)],
    ids=["block", "exact match"],
)
def test_verification_has_its_enumerated_distribution(
    sampler: type[BlockVerification | ExactMatch], verification: Verification, configuration: Configuration
) -> None:
    """Sun et al. (2025), equations 4 and 5: S1 to S8 of the sampler against the distribution by enumeration."""
    assert judged(right_distribution(sampler), configuration, verification).verdict is Verdict.PASS


def test_block_verification_taken_for_token_verification_is_caught() -> None:
    assert judged(right_distribution(BlockVerification), DISAGREEING, Verification.TOKEN).verdict is Verdict.FAIL
