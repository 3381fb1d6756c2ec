"""The statistical checks of the server contract on the server that `--sampler` names, and its mutants."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fairdraw._mutants._mutant import Mutant
from fairdraw._mutants.server import MUTANTS as ALL
from fairdraw.statistical._server_check import ServerDistributionCheck
from fairdraw.statistical.server import CHECKS


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_server(check: ServerDistributionCheck, fairdraw_run: Callable[[ServerDistributionCheck], None]) -> None:
    fairdraw_run(check)


MUTANTS = [mutant for mutant in ALL if mutant.caught_by[0].startswith("DIST")]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[f"{mutant.caught_by[0]} {mutant}" for mutant in MUTANTS])
def test_mutant_is_caught(mutant: Mutant, fairdraw_control: Callable[[Mutant], None]) -> None:
    fairdraw_control(mutant)
