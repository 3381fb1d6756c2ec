"""The instrument for dependence and the quality of noise: every member of every family, and odd but correct ones."""

from dataclasses import replace

import numpy as np
import pytest

from fairdraw._core.checks import PROFILES
from fairdraw._core.failures import CheckFailure
from fairdraw._core.seeds import DEFAULT_SEED
from fairdraw._mutants import _dependence as mutants
from fairdraw._mutants._mutant import Mutant
from fairdraw.properties import rejection as rejection_properties
from fairdraw.properties import sampling as sampling_properties
from fairdraw.statistical import rejection, sampling
from fairdraw.statistical._dependence import gray_bits
from fairdraw.statistical._related_seeds import related_seeds, seed_words
from odd.sampling_draws import ODD_NOISE

CHECKS = {check.code: check for check in (*rejection.DISTRIBUTION_CHECKS, *sampling.CHECKS)}
ALL = CHECKS | {check.code: check for check in (*rejection_properties.CHECKS, *sampling_properties.CHECKS)}
OWN = [check for check in CHECKS.values() if check.code.startswith(("DIST32", "DIST34", "DIST76", "DIST77"))]
CONTROLS = (*mutants.REJECTION_MUTANTS, *mutants.SAMPLING_MUTANTS)
NO_CONTROLS = [mutant for mutant in (*mutants.ALL_REJECTION, *mutants.ALL_SAMPLING) if mutant not in CONTROLS]
"""Members that are no mutation controls: those run in `make check` and with `statistical/`."""
TWINS = [[one for one in NO_CONTROLS if one.name == name] for name in dict.fromkeys(one.name for one in NO_CONTROLS)]
OTHERS = [twins[place % len(twins)] for place, twins in enumerate(TWINS)]
"""Each under one of its contracts, in turn: both have the same instrument."""


@pytest.mark.parametrize("mutant", OTHERS, ids=[f"{mutant.caught_by[0]} {mutant}" for mutant in OTHERS])
def test_member_of_a_family_is_caught(mutant: Mutant) -> None:
    profile = PROFILES["ci" if mutant.min_draws else "smoke"]
    with pytest.raises(CheckFailure, match=r"noise|draws|calls|rows|seed|uniforms|exponentials"):
        ALL[mutant.caught_by[0]].run(mutant.make(), profile=profile, seed=DEFAULT_SEED)


def test_slow_sampler_that_is_fast_enough_draws_wide_rows() -> None:
    sampler = next(one for one in mutants.MEMBERS if one.name == "exponentials of 23 bits plus 1e-9").rejection()
    slow = replace(sampler, capabilities=replace(sampler.capabilities, slow=True))
    with pytest.raises(CheckFailure, match="tokens that hardly ever come do: exponentials that are 0"):
        CHECKS["DIST341"].run(slow, profile=PROFILES["ci"], seed=0)


@pytest.mark.parametrize(
    ("member", "contract"),
    [(member, ("rejection", "sampling")[place % 2]) for place, member in enumerate(ODD_NOISE)],
    ids=lambda one: getattr(one, "name", one),
)
def test_odd_but_right_noise_passes(member: mutants.Member, contract: str) -> None:
    """Each under one contract: plain and by inverse CDF, a kind of noise is under both."""
    sampler = member.rejection() if contract == "rejection" else member.sampling()  # one: checks share its draws
    for check in OWN:
        if check.contract == contract:
            assert check.run(sampler, profile=PROFILES["smoke"], seed=DEFAULT_SEED) > 0, check.code


@pytest.mark.parametrize("codes", [("REJ702", "DIST691"), ("SAM202", "DIST791")], ids=" ".join)
def test_member_without_its_fault_passes_the_judges_of_traces(codes: tuple[str, ...]) -> None:
    """Otherwise they would catch every member for what no member is about."""
    sampler = ODD_NOISE[0].rejection() if "REJ702" in codes else ODD_NOISE[0].sampling()
    for code in codes:
        assert ALL[code].run(sampler, profile=PROFILES["smoke"].scaled(0.1), seed=DEFAULT_SEED) > 0, code


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rows 17 apart share their noise", "rows 17 apart use the same noise"),
        ("opposite rows 5 apart", "rows 5 apart use opposite noise"),
        ("the last row is the first", r"rows 0 and \d+ use the same noise"),
        ("every third row is an xor", "rows 1 and 2 apart .* the third follows from the other two"),
        (
            "strata over the batch",
            r"draws are too even: the number of accepted drafts of a call has 0\.\d+ times the variance",
        ),
        ("a pool of noise for 23 calls", "calls 23 apart use the same noise"),
        ("races with 12 bits", "rare tokens never come"),
    ],
)
def test_failure_says_what_is_shared(name: str, words: str) -> None:
    mutant = next(one for one in mutants.ALL_REJECTION if one.name == name)
    with pytest.raises(CheckFailure, match=words):
        CHECKS[mutant.caught_by[0]].run(mutant.make(), profile=PROFILES["smoke"], seed=DEFAULT_SEED)


def test_bits_of_uniform_numbers_are_fair_and_independent() -> None:
    bits = gray_bits((np.arange(8) + 0.5) / 8, 3)
    assert sorted(map(tuple, bits.tolist())) == sorted(np.ndindex(2, 2, 2))
    assert (np.abs(np.diff(bits.astype(int), axis=0)).sum(axis=1) == 1).all()


@pytest.mark.parametrize("count", [8, 27, 96])
def test_related_seeds_differ_and_are_named(count: int) -> None:
    seeds = related_seeds(count, 5)
    assert len(set(seeds)) == count
    assert max(seeds) < 2**32
    assert [seed_words(count, number) for number in range(count)].count("t") == 1
