"""Stratified noise: the distribution that a sampler implies, with a bound and without chance. Right is the oracle."""

from __future__ import annotations

import numpy as np
import pytest

from fairdraw._core.failures import CapabilityUnsupported
from fairdraw._mutants.rejection import MUTANTS, ODD_BUT_RIGHT
from fairdraw._oracles.rejection import verify
from fairdraw.protocols import Capability, RejectionSampler, rejection_sampler
from fairdraw.statistical._configurations import (
    AGREEING,
    CONFIGURATIONS,
    DISAGREEING,
    ONE_HOT,
    RAGGED,
    RequestDistributions,
)
from fairdraw.statistical._stratified import implied_distribution, stratified_exponentials, stratified_uniforms

ORACLE = rejection_sampler(verify, name="oracle")
REQUESTS = {
    f"{configuration.name} {number}": request
    for configuration in CONFIGURATIONS
    for number, request in enumerate(configuration.requests)
    if request.num_draft > 0
}
TAKES_NOISE = {
    sampler.name: sampler
    for sampler in ODD_BUT_RIGHT
    if sampler.capabilities.why_unsupported((Capability.EXPLICIT_NOISE, Capability.REFERENCE_RACE)) is None
}


@pytest.mark.parametrize("request_distributions", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("num_strata", [4, 15])
def test_implied_distribution_of_a_right_sampler_is_within_its_bound(
    request_distributions: RequestDistributions, num_strata: int
) -> None:
    implied = implied_distribution(ORACLE, request_distributions, num_strata)

    assert implied.is_fair, implied
    assert implied.distribution.row_probs().sum() == pytest.approx(1)


@pytest.mark.parametrize("name", TAKES_NOISE)
def test_odd_sampler_that_is_right_is_within_the_bound(name: str) -> None:
    assert implied_distribution(TAKES_NOISE[name], RAGGED.requests[1], 4).is_fair


def test_implied_acceptance_is_exact_to_half_a_stratum() -> None:
    implied = implied_distribution(ORACLE, DISAGREEING.requests[0], 64)

    accepted = 1 - implied.distribution.num_accepted_probs()[0]
    assert accepted == pytest.approx(1 - implied.expected.num_accepted_probs()[0], abs=0.5 / 64 + 1e-6)


def test_implied_distribution_is_nearer_than_random_draws_can_show() -> None:
    """As many random draws leave a mean distance of `sum(sqrt(p (1 - p) / (2 pi n)))`, here ten times as much."""
    implied = implied_distribution(ORACLE, DISAGREEING.requests[0], 64)
    probs = implied.expected.row_probs()

    by_chance = float(np.sqrt(probs * (1 - probs) / (2 * np.pi * implied.num_draws)).sum())

    assert implied.distance < by_chance / 10


def test_error_bound_falls_like_the_number_of_strata() -> None:
    bounds = [implied_distribution(ORACLE, RAGGED.requests[1], num_strata).error_bound for num_strata in (32, 128)]

    assert bounds[1] == pytest.approx(bounds[0] / 4, rel=0.1)


def test_strata_have_the_moments_of_their_distributions() -> None:
    assert stratified_uniforms(1000).mean() == pytest.approx(0.5)
    assert stratified_exponentials(1000).mean() == pytest.approx(1, abs=1e-3)


# Faults of what is done with given noise, by the distance (or the impossible answers) that give them away.
FAULTS = {
    "accepts by the target alone": DISAGREEING,
    "takes the root of the ratio": DISAGREEING,
    "accepts by the exponentials": DISAGREEING,
    "accepts jointly": DISAGREEING,
    "recovers from the target": DISAGREEING,
    "keeps the rejected draft in the race": ONE_HOT,
    "never recovers the last token": DISAGREEING,
    "recovers with the rejecting uniform": ONE_HOT,
    "recovers the runner up": DISAGREEING,
    "prefers low ids": DISAGREEING,
    "the row number enters the race": ONE_HOT,
    "takes the distribution of the last position": DISAGREEING,
    "normalises over the padded vocabulary": DISAGREEING,
    "takes the next requests bonus token": AGREEING,
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_in_the_use_of_noise_is_caught(name: str) -> None:
    mutant = next(found for found in MUTANTS if found.name == name)

    implied = implied_distribution(mutant.make(), FAULTS[name].requests[0], 32)

    assert not implied.is_fair, implied


def test_single_wrong_answer_is_caught() -> None:
    """One of 1,000 and some draws is not random at all: statistics would need millions of them."""
    calls = []

    def nearly_right(*arguments: object) -> object:
        calls.append(arguments)
        tokens = verify(*arguments)  # type: ignore[arg-type]  # as they came
        if len(calls) == 12:
            tokens[3] = 5
        return tokens

    implied = implied_distribution(rejection_sampler(nearly_right), DISAGREEING.requests[0], 16)  # type: ignore[arg-type]

    assert not implied.is_fair
    assert implied.num_strange > 0
    assert "impossible answers" in str(implied)


@pytest.mark.parametrize("capability", [Capability.EXPLICIT_NOISE, Capability.REFERENCE_RACE])
def test_sampler_that_does_not_race_with_given_noise_is_closed(capability: Capability) -> None:
    sampler: RejectionSampler = rejection_sampler(verify, unsupported={capability: "draws inside"})

    with pytest.raises(CapabilityUnsupported, match="is unsupported: draws inside"):
        implied_distribution(sampler, DISAGREEING.requests[0])


def test_request_without_drafts_is_refused() -> None:
    with pytest.raises(ValueError, match=r"request\.num_draft=0, but it must be at least 1"):
        implied_distribution(ORACLE, RAGGED.requests[2])


def test_too_few_strata_are_refused() -> None:
    with pytest.raises(ValueError, match="num_strata=3, but it must be at least 4"):
        implied_distribution(ORACLE, DISAGREEING.requests[0], 3)
