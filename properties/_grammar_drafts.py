"""12x and 132: a grammar is forked over the drafts of its request."""

from functools import partial
from typing import Any

from fairdraw.contracts import Capability
from fairdraw.properties._grammar_asserts import check, follow, require_left_as_they_were
from fairdraw.strategies.grammar import WALKING, AutomatonCase, automaton_cases, wide_automaton_cases

_check = partial(check, needs=(Capability.GRAMMAR_DRAFTS,), weight=0.5)
# Any: a masker with `mask_drafts`.


def _require_read_rows(masker: Any, case: AutomatonCase) -> None:
    """Fail if a row that is read is masked in another way."""
    for step in follow(masker, case):
        step.require_read_rows()


_walked = partial(_check, body=_require_read_rows)


@_check("GRM121", lambda can: automaton_cases(can, min_drafts=1, without_grammar=False), weight=0.7)
def row_i_is_masked_after_the_first_i_drafts(masker: Any, case: AutomatonCase) -> None:
    """The row that draft `i` is verified with allows what the grammar allows after the drafts before it.

    Masks that are one position early or late; the mask of the first row for all; a grammar that is not advanced.
    """
    for step in follow(masker, case):
        for request in range(step.batch.batch_size):
            step.require(request, slice(0, step.batch.num_draft_tokens[request]))


@_check("GRM122", lambda can: automaton_cases(can, without_grammar=False))
def the_bonus_row_is_masked_after_all_drafts(masker: Any, case: AutomatonCase) -> None:
    """The last row of a request is that of its bonus token: all drafts were accepted when it is read.

    A loop over drafts that forgets the row behind them. Without speculation it is the only row.
    """
    for step in follow(masker, case):
        for request in range(step.batch.batch_size):
            if len(step.states(request)) == len(step.rows(request)):
                step.require(request, slice(-1, None))


@_check(
    "GRM124",
    lambda can: automaton_cases(can, min_drafts=1, drafts=("legal", "illegal", "last"), ends=True),
    needs=(Capability.GRAMMAR_DRAFTS, Capability.UNREACHED_ROWS),
)
def rows_that_nobody_reads_are_left_alone(masker: Any, case: AutomatonCase) -> None:
    """Rows behind a draft that is forbidden, or that ends the text, are as the model gave them.

    Nobody reads them; a masker may say that it masks them, too (`unreached-rows`).
    """
    for step in follow(masker, case):
        for request in range(step.batch.batch_size):
            step.require(request)


@_check("GRM126", lambda can: automaton_cases(can, min_drafts=1, drafts=("legal", "illegal", "last"), ends=True))
def grammars_are_left_as_they_were(masker: Any, case: AutomatonCase) -> None:
    """After the call every grammar is in the state in which it was: which drafts are accepted is not known yet.

    A fork that is not rolled back, or by one token too few: the next step begins in the state after rejected drafts.
    """
    walks = [case.replace(requests=WALKING, num_steps=41)] if case.seed % 4 == 0 else []
    for one in (case, *walks):
        for step in follow(masker, one):
            step.require_read_rows()
            require_left_as_they_were(step)


@_walked(
    "GRM127",
    lambda can: automaton_cases(
        can, num_steps=(4, 6), min_drafts=2, drafts=("legal", "illegal"), without_grammar=False
    ),
)
def masks_follow_texts_over_many_steps() -> None:
    """Steps follow each other: some drafts are accepted, others not, and their numbers change.

    A mask of the last step in a buffer that was not filled again, or a state that advanced by all drafts instead of by
    those that were accepted.
    """


@_walked(
    "GRM128", lambda can: automaton_cases(can, num_steps=(2, 4), min_drafts=1, drafts=("legal", "last"), ends=True)
)
def texts_may_end_within_the_drafts() -> None:
    """A draft that ends the text is verified like others; the grammar is not advanced beyond it, nor asked again.

    Engines raise here, or take the drafts behind the end for rejected ones and roll back too far.
    """


@_walked("GRM129", lambda can: automaton_cases(can, drafts=("legal", "illegal"), dead_ends=True))
def dead_ends_forbid_everything() -> None:
    """In a state in which no token may follow, the row is -inf throughout.

    A guard that takes an empty mask for no mask.
    """


@_check("GRM132", wide_automaton_cases, weight=0.15)
def many_requests_with_long_drafts_are_masked(masker: Any, case: AutomatonCase) -> None:
    """48 requests with 0 to 128 drafts each, step after step; each row that is read is right, and grammars go back.

    A roll-back, a window of drafts or a buffer of rows that is too short for the longest request; and rows of a buffer
    that keep what a larger step, or the request that was there, has left in them.
    """
    for step in follow(masker, case):
        step.require_read_rows()
        require_left_as_they_were(step)
