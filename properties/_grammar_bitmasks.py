"""10x, 11x, 161 and 201: bitmasks are applied to rows of logits, bit by bit."""

from __future__ import annotations

from functools import partial

import numpy as np
from hypothesis import strategies as st

from fairdraw.contracts import Capabilities, Capability, GrammarMasker
from fairdraw.contracts._grammar import bits_of
from fairdraw.properties._grammar_asserts import check, differential, first_fault, masked, require_masked
from fairdraw.properties._rejection_asserts import broken, unless_refused
from fairdraw.properties._traces import WrongRow, trace_check
from fairdraw.strategies._cases import require_far_memory
from fairdraw.strategies.grammar import LOGIT_KINDS, MASK_LAYOUTS, BitmaskCase, MaskTrace, bitmask_cases

_masked = partial(check, body=require_masked)


@_masked("GRM101", bitmask_cases)
def forbidden_tokens_are_minus_infinity_and_others_keep_their_bits() -> None:
    """Bit 0 makes a logit -inf, bit 1 leaves it as it is: float32, every row masked, any vocabulary.

    A large negative number instead of -inf lets a logit bias bring a forbidden token back. An addition of 0 or -inf is
    no copy: -0.0 becomes 0.0. A vocabulary that is no multiple of 32, or of the kernel's block, loses its end.
    """


@check(
    "GRM107",
    lambda can: bitmask_cases(
        can, layouts=("transposed", "sliced"), indices=("none", "subset"), min_rows=2, max_vocab_size=300
    ),
    needs=(Capability.STRIDED_INPUTS,),
    weight=0.5,
)
def strided_logits_are_masked_or_refused(masker: GrammarMasker, case: BitmaskCase) -> None:
    """Logits that are a part of a wider tensor, or a transposed one: the same result, and nothing between the rows.

    A kernel that takes the number of columns for the stride masks other rows than it should, and writes beyond them.
    """
    _, effect = _fault_unless_refused(masker, case)
    if effect:
        broken(effect)


@_masked(
    "GRM108",
    lambda can: bitmask_cases(can, mask_layouts=MASK_LAYOUTS[1:], min_rows=2, max_rows=8, max_vocab_size=300),
    needs=(Capability.STRIDED_BITMASK,),
    weight=0.5,
)
def strided_bitmasks_are_read_right() -> None:
    """A bitmask that is a part of a wider buffer, or lies word by word.

    Engines keep one buffer for the largest batch and slice it. A kernel that takes the number of words for the stride
    reads the mask of another row.
    """


@check(
    "GRM112",
    lambda can: bitmask_cases(can, indices=("none", "subset", "reversed"), max_rows=5, max_vocab_size=129),
    weight=0.5,
)
def bitmask_and_indices_are_not_modified(masker: GrammarMasker, case: BitmaskCase) -> None:
    """An engine fills a bitmask once, and may apply it again: to chunks, or after a failed step.

    A mask that is inverted or shifted in place, or indices that are sorted in place.
    """
    masked(masker, case.batch(masker.device))


@_masked(
    "GRM116",
    lambda can: bitmask_cases(
        can, max_vocab_size=129, masks=("all", "random", "last"), logits=("normal",), tails=("zeros", "random")
    ),
    weight=0.5,
)
def bits_beyond_the_vocabulary_mean_nothing() -> None:
    """The last word may have bits for tokens that are not there, 0 or 1: nothing is written behind a row.

    Behind a row there is the first token of the next request, or memory of something else. A loop over zeros, or over
    words, that is not bounded by the vocabulary writes there.
    """


def _far_rows(can: Capabilities) -> st.SearchStrategy[BitmaskCase]:
    require_far_memory()
    return bitmask_cases(can, layouts=("huge-stride",), min_rows=2, max_rows=2, masks=("random", "none", "last"))


@_masked("GRM118", _far_rows, needs=(Capability.STRIDED_INPUTS,), weight=0.1)
def rows_may_be_far_apart() -> None:
    """The second row begins beyond 2**31 elements: rows times columns of a large batch are as many.

    An offset, or a stride, of 32 bits.
    """


def every_row_of_a_trace_is_masked(masker: GrammarMasker, trace: MaskTrace) -> None:
    """In calls of every size and vocabulary, one after the other, each row has the bits that its own mask leaves.

    Id `i` is bit `i % 32` of word `i // 32`, counted from below. NaN, infinities, -0.0 and denormals stay as they are,
    and so does half precision; a row in which nothing is allowed is -inf; only rows that indices name are masked, each
    by its own bitmask. Words beyond the vocabulary mean nothing, and columns without a word are as declared. All this
    changes from call to call, in every pair.

    Suspect a grid that was made for fewer rows, a block that is masked by the words of the first, a partial word that
    is skipped, ids of 16 bits, and a bitmask in a buffer that is filled for some rows only.
    """
    for number, case in trace.cases():
        row, effect = _fault_unless_refused(masker, case)
        if effect:
            raise WrongRow(effect, number, row)


def _fault_unless_refused(masker: GrammarMasker, case: BitmaskCase) -> tuple[int, str]:
    """Return the first fault, as `first_fault`; strided logits may be refused by name instead."""
    if case.layout == "contiguous":
        return first_fault(masker, case)
    names, what = ("logits", "stride", "contiguous"), "logits, without naming them"
    return unless_refused(lambda: first_fault(masker, case), names, what) or (0, "")


TRACES = (trace_check("GRM201", "grammar", MaskTrace.of, every_row_of_a_trace_is_masked),)


@differential(
    "GRM161",
    lambda can: bitmask_cases(can, logits=tuple(LOGIT_KINDS), dtypes=("float32", "bfloat16", "float16"), max_rows=8),
    weight=0.5,
)
def masked_logits_equal_the_reference(masker: GrammarMasker, case: BitmaskCase, reference: GrammarMasker) -> None:
    """Two maskers give the same bits, whatever the logits are.

    There is nothing to round: any difference is a fault of one of the two. The other checks say of which.
    """
    one, other = (masked(masking, case.batch(masking.device)) for masking in (masker, reference))
    wrong = np.argwhere(bits_of(one) != bits_of(other))
    if wrong.size:
        row, token_id = map(int, wrong[0])
        here, there = float(one[row, token_id]), float(other[row, token_id])
        broken(f"row {row}, token {token_id}: {here}, and {there} of {reference.name} ({len(wrong)} differ)")
