"""Right samplers that do it differently are green; wrong ones that declare the same freedom are caught."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from fairdraw.checks import PROFILES
from fairdraw.failures import CheckFailure
from fairdraw.loading import all_checks
from fairdraw.mutants.odd_abuses import ABUSES
from fairdraw.mutants.odd_rejection import ODD_REJECTION
from fairdraw.mutants.odd_sampling import ODD_SAMPLING
from fairdraw.protocols import Capability
from fairdraw.runner import check_sampler, one_torch_thread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairdraw.mutants._planted import Mutant

ODD = (*ODD_REJECTION, *ODD_SAMPLING)
ENOUGH = 34
CI_SEED = 0

# One of each kind of freedom is asked with the numbers of `ci`; tools/odd_samplers.py asks all of them.
AT_CI = ("matches exactly", "adds gumbel noise")


@pytest.fixture(autouse=True)
def _one_torch_thread() -> Iterator[None]:
    with one_torch_thread():
        yield


def accused(sampler: Any, profile: str, only: str | None) -> list[str]:  # Any: of either contract
    records = check_sampler(sampler, profile=profile, seed=CI_SEED, only=only)
    count = Counter(record.status for record in records)
    assert count["passed"] > (20 if only == "properties" else 3)
    return [f"{record.id}: {record.status}" for record in records if record.status not in ("passed", "skipped")]


def test_there_are_enough() -> None:
    assert len({(one.contract, one.name) for one in ODD}) == len(ODD) >= ENOUGH


@pytest.mark.parametrize("sampler", ODD, ids=lambda one: f"{one.contract}: {one.name}")
def test_properties_do_not_accuse_a_right_sampler(sampler: Any) -> None:  # Any: of either contract
    assert accused(sampler, "smoke", "properties") == []


@pytest.mark.parametrize("sampler", [one for one in ODD if one.name in AT_CI], ids=str)
def test_statistics_do_not_accuse_a_right_sampler(sampler: Any) -> None:  # Any: of either contract
    assert accused(sampler, "smoke", "statistical") == []


CHECKS = {check.code: check for check in (*all_checks(contract="rejection"), *all_checks(contract="sampling"))}


@pytest.mark.parametrize(("mutant", "code"), [(m, code) for m in ABUSES for code in m.caught_by], ids=str)
def test_declared_freedom_does_not_hide_a_fault(mutant: Mutant, code: str) -> None:
    check, sampler = CHECKS[code], mutant.make()
    assert check.why_not(sampler) is None
    with pytest.raises(CheckFailure):
        check.run(sampler, profile=PROFILES["smoke" if code.startswith("LAW") else "ci"], seed=CI_SEED)


def test_every_freedom_is_abused_by_a_mutant() -> None:
    declared = {word for one in ODD for word in one.capabilities.closed}
    free = {Capability.REFERENCE_ROUNDING, Capability.LOWEST_ID_TIES, Capability.UPSTREAM_STREAM}
    free |= {Capability.TOKEN_VERIFICATION}
    assert free <= declared
    assert free <= {word for mutant in ABUSES for word in mutant.make().capabilities.closed}
