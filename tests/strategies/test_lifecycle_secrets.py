"""Checks about lists that are replaced without a report fail because of that alone."""

from __future__ import annotations

import dataclasses

import pytest
from helpers import CHECKS
from torch import Tensor

from fairdraw._core.checks import PROFILES
from fairdraw._core.failures import CheckFailure
from fairdraw._mutants import penalties, thinking_budget
from fairdraw._mutants._mutant import Mutant
from fairdraw.contracts import Capabilities, LiveBatch, RowChanges
from fairdraw.strategies.lifecycle import Add, Decode, Finish, PenaltiesTrace, Playing, Replace

MUTANTS = {
    f"{code} {mutant.name}": (code, mutant)
    for code, module in (("PEN104", penalties), ("THK104", thinking_budget))
    for mutant in module.MUTANTS
}


def failure_of(code: str, scanner: object) -> CheckFailure | None:
    try:
        CHECKS[code].run(scanner, profile=PROFILES["smoke"])
    except CheckFailure as error:
        return error
    return None


@pytest.mark.parametrize(("code", "mutant"), MUTANTS.values(), ids=MUTANTS)
def test_only_an_unnoticed_list_fails(code: str, mutant: Mutant) -> None:
    """A mutant that fails does not notice a list, whatever else is wrong with it: with a report it passes."""
    scanner = mutant.make()
    error = failure_of(code, scanner)
    assert error is not None or code not in mutant.caught_by
    if error is not None:
        trace = vars(error)["case"]
        assert any(isinstance(event, Replace) for event in trace.events)
        reported = (dataclasses.replace(e, reported=True) if isinstance(e, Replace) else e for e in trace.events)
        trace.replace(events=tuple(reported)).play(scanner)


class Ignores:
    """Changes nothing: wrong in every event trace with a penalty."""

    name, device, capabilities, contract = "ignores", "cpu", Capabilities(), "penalties"

    def open_penalties(self, vocab_size: int) -> Ignores:
        return self

    def sync(self, changes: RowChanges) -> None: ...

    def penalise(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [batch_size, vocab_size] float32, both
        return logits

    def penalise_drafts(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [num_tokens, vocab_size] float32, both
        return logits


def test_scanner_that_is_wrong_anyway_fails_the_check_of_all_traces() -> None:
    assert failure_of("PEN101", Ignores()) is not None
    assert failure_of("PEN104", Ignores()) is None


def test_trace_with_reported_lists_passes_for_a_correct_scanner() -> None:
    """Also where a reported list meets other changes of the same step."""
    right, add = penalties.right(), Add(output=(3,), presence=0.5)
    for held in (False, True):
        replaced = Replace(0, (1, 1), reported=True, held=held)
        for later in ((Decode(),), (Finish(0),), (add, Finish(1)), (replaced, Decode((2,)))):
            PenaltiesTrace(events=(add, add, replaced, *later)).play(right)


def test_cause_is_an_unreported_list_only_if_there_is_one() -> None:
    for events, owes in (((Add(output=(3,), presence=0.5),), False), ((Add(), Replace(0, (1,))), True)):
        playing = Playing(PenaltiesTrace(), penalties.right())
        for event in events:
            playing.apply(event)
        assert playing.fails_for_unreported_lists_only() == owes
