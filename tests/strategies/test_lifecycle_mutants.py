"""Every mutant of the stateful contracts is caught by the check that names it, and shrunk to a short event trace."""

import pytest

from fairdraw._core.checks import Profile
from fairdraw._core.failures import CheckFailure
from fairdraw._mutants import penalties as penalties_mutants
from fairdraw._mutants import thinking_budget as thinking_mutants
from fairdraw._mutants._mutant import Mutant
from fairdraw.properties import penalties, thinking_budget

CHECKS = {check.code: check for check in (*penalties.CHECKS, *thinking_budget.CHECKS)}
MUTANTS = (*penalties_mutants.MUTANTS, *thinking_mutants.MUTANTS)
MOST_EVENTS = 8
LONG = (  # they need hundreds of steps or rows
    "forgets after many steps", "has room for some rows", "has room for some draft rows",
    "loses a marker of three steps", "reads parts of a long output", "watches some sections",
    "keeps what a deep cut took",
)  # fmt: skip
PROFILE = Profile("mutants", 400, 400)


# tests/properties/test_mutants.py and the mutation controls run all of them, without shrinking.
@pytest.mark.parametrize("mutant", [mutant for mutant in MUTANTS[::6] if mutant.name not in LONG], ids=str)
def test_example_of_a_mutant_is_short(mutant: Mutant) -> None:
    check = CHECKS[mutant.caught_by[0]]
    with pytest.raises(CheckFailure) as caught:
        check.run(mutant.make(), profile=PROFILE)
    trace = caught.value.case
    assert len(trace.events) <= MOST_EVENTS, trace
