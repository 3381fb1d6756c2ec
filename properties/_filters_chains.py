"""14x to 16x: filters together, at the ends of their ranges, over wide vocabularies, with a text, and over steps."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from fairdraw._core.filters_harness import call_filters
from fairdraw._oracles.filters import FiltersOracle, logits_of, without_mirostat
from fairdraw.properties._filters_asserts import (
    broken,
    call,
    cases,
    check,
    is_one_hot,
    require_bits,
    require_row,
    require_rows,
)
from fairdraw.protocols import Capability, FilterParams, SeededNoise
from fairdraw.strategies.filters import FilterCase, FilterRow, filter_cases, many_filter_rows, wide_filter_cases

if TYPE_CHECKING:
    from hypothesis import strategies as st

    from fairdraw._oracles.filters import RowContext
    from fairdraw.protocols import Capabilities, FilterBatch, LogitsFilterer

_DRY, _XTC = (Capability.DRY,), (Capability.XTC,)
_MIROSTAT = ((Capability.MIROSTAT_V1, Capability.MIROSTAT_V2),)
_CLEAR = ("ladder", "normal", "zipf", "grid", "peaked", "half")
_NUM_STEPS = 6
_MANY_STEPS, _FEWER_STEPS = 150, 20


@check("FIL141", wide_filter_cases, weight=0.06)
def every_two_filters_together_follow_the_declared_order(filterer: LogitsFilterer, case: FilterCase) -> None:
    """In one batch, every two filters are on together in one row, with two settings each: all as declared.

    Filters in another order than the documentation says, or one that looks at the row before another one.
    """
    require_rows(filterer, case)


@check("FIL142", lambda can: filter_cases(can, together=(2, 2), logits=_CLEAR, max_rows=8))
def two_filters_follow_the_declared_order(filterer: LogitsFilterer, case: FilterCase) -> None:
    """Two filters in a row: the second one sees what the first one left, in the order of `chain`.

    Filters in another order, probabilities that are not renormalised in between, or a stale copy of the logits.
    """
    require_rows(filterer, case)


@check("FIL143", lambda can: filter_cases(can, settings="extreme", together=(1, 2)))
def extreme_settings_follow_the_specification(filterer: LogitsFilterer, case: FilterCase) -> None:
    """1, one step of float32 below it, 1e-30, more than the vocabulary: each as the formula says.

    `if not value` takes 0 for off; 1e-30 is rounded to 0 by a bfloat16 or a clamp; a k beyond the vocabulary.
    """
    require_rows(filterer, case)


@check(
    "FIL144",
    lambda can: filter_cases(
        can, min_vocab_size=60_000, max_vocab_size=152_000, max_rows=4, logits=("zipf", "normal", "peaked", "half")
    ),
    needs=(Capability.LARGE_VOCAB,),
    weight=0.1,
)
def wide_vocabularies_follow_the_specification(filterer: LogitsFilterer, case: FilterCase) -> None:
    """From 60,000 to 152,000 tokens, as from 10.

    Ids of 15 or 16 bits, a kernel that sorts its first tile only, a sum in float16.
    """
    require_rows(filterer, case)


@check(
    "FIL145", lambda can: filter_cases(can, logits=("one-hot", "last-only", "flat"), max_vocab_size=3, settings="any")
)
def a_single_token_stays(filterer: LogitsFilterer, case: FilterCase) -> None:
    """With one possible token, or a vocabulary of two or three, filters do what the formula says.

    An entropy of 0 that is divided by log(1), a deviation of one number over n - 1, a second difference of two.
    """
    require_rows(filterer, case)


@check("FIL146", many_filter_rows, weight=0.15)
def each_of_many_rows_has_its_own_filter(filterer: LogitsFilterer, case: FilterCase) -> None:
    """Up to 300 rows, one filter each: every row follows its own setting.

    Flags in a word of 32 or 64 bits, programs for a number of rows at once, and parameters that are looked up by the
    row modulo something.
    """
    require_rows(filterer, case)


# -- DRY --------------------------------------------------------------------------------------------------------------


def _texts(can: Capabilities, **changes: object) -> st.SearchStrategy[FilterCase]:
    """Texts that repeat themselves; `changes` of the parameters of every row."""

    def changed(case: FilterCase) -> FilterCase:
        rows = (row.replace(params=dataclasses.replace(row.params, **changes)) for row in case.rows)  # type: ignore[arg-type]
        return case.replace(rows=tuple(rows))

    kinds = ("any", "echo", "loop")
    return cases(can, filters=("dry",), texts=kinds, logits=("ladder", "grid"), min_vocab_size=5).map(changed)


@check("FIL151", lambda can: _texts(can, dry_breakers=(1, 3), dry_allowed_length=1), needs=_DRY)
def repetitions_end_at_breakers(filterer: LogitsFilterer, case: FilterCase) -> None:
    """No repetition extends over a sequence breaker, and a breaker itself is never penalised.

    Breakers that are looked up as text, or only at the end; a quotation mark or a new line that becomes impossible.
    """
    require_rows(filterer, case)


@check("FIL152", lambda can: _texts(can, dry_allowed_length=3, dry_breakers=()), needs=_DRY)
def short_repetitions_are_allowed(filterer: LogitsFilterer, case: FilterCase) -> None:
    """Repetitions shorter than `allowed_length` cost nothing; one of that length costs the multiplier.

    A penalty of `base` to a negative power for short ones, or a comparison that is one off.
    """
    require_rows(filterer, case)


@check(
    "FIL153",
    lambda can: filter_cases(
        can, filters=("dry",), texts=("one", "loop"), logits=("ladder",), min_vocab_size=3, max_tokens=400, max_rows=2
    ),
    needs=_DRY,
    weight=0.3,
)
def long_repetitions_do_not_overflow(filterer: LogitsFilterer, case: FilterCase) -> None:
    """Hundreds of repeated tokens make a penalty that float32 cannot hold; the logit is then very low or -inf, not NaN.

    inf - inf, an exponent that wraps around, or an integer power.
    """
    case = case.replace(rows=tuple(row.replace(num_tokens=max(200, row.num_tokens)) for row in case.rows))
    require_rows(filterer, case)


@check("FIL154", lambda can: _texts(can, dry_range=7, dry_breakers=(), dry_multiplier=0.5), needs=_DRY)
def prompt_and_output_are_one_text(filterer: LogitsFilterer, case: FilterCase) -> None:
    """Repetitions are looked for in the last `dry_range` tokens of the prompt and the output together.

    The output alone, a range of each, or the first tokens instead of the last.
    """
    require_rows(filterer, case)


@check(
    "FIL155",
    lambda can: filter_cases(
        can, filters=("dry",), texts=("far",), logits=("ladder",), min_vocab_size=60, max_vocab_size=300, max_rows=2
    ),
    needs=_DRY,
    weight=0.2,
)
def repetitions_are_found_at_any_distance(filterer: LogitsFilterer, case: FilterCase) -> None:
    """A phrase from the beginning of a text of 600 to 3200 tokens that comes again at its end is a repetition.

    A window of the last hundreds of tokens, where the range says all of them, and lengths that are cut at 20 or so.
    """
    first = 600 + case.seed % 1000
    rows = (
        row.replace(
            num_tokens=first * (1 + number),
            num_prompt=first * number,
            params=dataclasses.replace(row.params, dry_allowed_length=2, dry_breakers=(), dry_base=1.25, dry_range=0),
        )
        for number, row in enumerate(case.rows)
    )
    require_rows(filterer, case.replace(rows=tuple(rows)))


# -- XTC --------------------------------------------------------------------------------------------------------------


@check("FIL161", lambda can: cases(can, filters=("xtc",), max_rows=6), needs=_XTC)
def xtc_with_probability_0_does_nothing(filterer: LogitsFilterer, case: FilterCase) -> None:
    """A row with a threshold and probability 0 keeps its bits, beside rows in which XTC always fires.

    One coin for the batch, or a comparison that fires at a draw of exactly 0.
    """
    params = FilterParams(xtc_threshold=1e-6)
    rows = tuple(row.replace(params=params) if i % 2 == 0 else row for i, row in enumerate(case.rows))
    batch = case.replace(rows=rows).batch(filterer.device)
    before, found = batch.logits.cpu().numpy().copy(), call(filterer, batch, case.seed)
    for number in range(0, len(rows), 2):
        require_bits(f"row {number}, probability 0", before[number], found[number])


# -- mirostat ---------------------------------------------------------------------------------------------------------


def _speakers(can: Capabilities, **narrow: int) -> st.SearchStrategy[FilterCase]:
    filters = ("mirostat_v1", "mirostat_v2")
    return cases(can, filters=filters, logits=("zipf", "normal"), min_vocab_size=30, max_vocab_size=300, **narrow)


def _require_steps(filterer: LogitsFilterer, case: FilterCase, num_steps: int = _NUM_STEPS) -> None:
    """Every step keeps what follows from the tokens of the steps before it."""
    oracle, noise = FiltersOracle(filterer.chain), SeededNoise(case.seed)
    context = [oracle.context(case.batch(), number) for number in range(len(case.rows))]
    for step in range(num_steps):
        batch = case.replace(seed=case.seed + step).batch(filterer.device)
        found = call_filters(filterer, batch, noise)
        if found.token_ids is None:
            broken("a row with mirostat comes back without its token")
        for number, token in enumerate(found.token_ids.tolist()):
            if context[number].mu:
                context[number] = _follow(filterer, batch, number, context[number], found.logits[number], token, step)


def _follow(
    filterer: LogitsFilterer,
    batch: FilterBatch,
    number: int,
    context: RowContext,
    found: np.ndarray,  # [vocab_size] float32
    token: int,
    step: int,
) -> RowContext:
    """Compare one step of a row; what it is asked next."""
    oracle = FiltersOracle(filterer.chain)
    logits, params = logits_of(batch)[number], context.params
    row, before = oracle.row(logits, context), oracle.row(logits, without_mirostat(context))
    if not row.possible[token]:
        broken(f"row {number}, {params!r}, step {step}: token {token} was drawn, and mu = {context.mu:.6g} excludes it")
    if not is_one_hot(params, filterer.chain):
        require_row(number, params, row, found, filterer.chain)
    stays = row if is_one_hot(params, filterer.chain) else dataclasses.replace(row, kept=np.isfinite(found))
    return dataclasses.replace(context, mu=oracle.next_mu(context.mu, params, stays, before, token))


@check("FIL163", lambda can: _speakers(can, max_rows=1), needs_one_of=_MIROSTAT, weight=0.5)
def mirostat_follows_the_surprise_of_its_tokens(filterer: LogitsFilterer, case: FilterCase) -> None:
    """After each token mu falls by the learning rate times the error of its surprise, in bits; the next step uses it.

    An update of the wrong sign, in nats, by the surprise of another token, or none at all.
    """
    _require_steps(filterer, case)


@check("FIL164", lambda can: _speakers(can, max_rows=4), needs_one_of=_MIROSTAT, weight=0.3)
def each_row_has_its_own_mirostat(filterer: LogitsFilterer, case: FilterCase) -> None:
    """Rows with other aims, and rows without mirostat beside them, do not change what a row remembers.

    State by the number among the rows with mirostat, or one for all of them.
    """
    _require_steps(filterer, case.replace(rows=(FilterRow("zipf"), *case.rows)))


@check("FIL165", lambda can: _speakers(can, max_rows=2), needs_one_of=_MIROSTAT, weight=0.05)
def mirostat_remembers_over_a_long_text(filterer: LogitsFilterer, case: FilterCase) -> None:
    """150 steps of one text: mu is what follows from all of its tokens. A slow filterer takes 20.

    State in a ring of steps, a row's state that a cache drops, an error that adds up.
    """
    _require_steps(filterer, case, _FEWER_STEPS if filterer.capabilities.slow else _MANY_STEPS)
