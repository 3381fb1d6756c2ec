"""10x to 20x: each filter alone, filters with a text, over steps, and in traces of every size, with every setting."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fairdraw._core.checks import Check
from fairdraw._core.seeds import derive_seed
from fairdraw._oracles.filters import FiltersOracle, RowContext, logits_of, without_mirostat
from fairdraw.contracts import LOGIT_FILTERS, Capabilities, Capability, LogitsFilterer, SeededNoise, capability_of
from fairdraw.contracts._filters import call_filters
from fairdraw.properties import _filters_asserts as asserts
from fairdraw.properties._filters_asserts import broken, check
from fairdraw.properties._traces import trace_check
from fairdraw.strategies.filters import FilterCase, FilterRow, FilterTrace, filter_cases
from fairdraw.strategies.rows import bulk_rng

_DRY = (Capability.DRY,)
_MIROSTAT = ((Capability.MIROSTAT_V1, Capability.MIROSTAT_V2),)
_TEMPERATURES = (1.0, 0.6, 1.3, 0.3)
_NUM_STEPS = 6
_MANY_STEPS, _FEWER_STEPS = 150, 20


# -- single filters ---------------------------------------------------------------------------------------------------


def alone(name: str) -> Check:
    """Return the check of one filter: the docstring of its step is its title, what is required, and usual causes."""
    said = inspect.getdoc(getattr(FiltersOracle, name)) or ""
    title, _, meaning = said.partition("\n\nExample:")[0].partition(".\n\n")
    title = title if title[:3].isupper() else title[0].lower() + title[1:]
    fields: dict[str, Any] = {"title": title, "meaning": meaning, "needs": (capability_of(name),)}  # Any: of a check
    return check(LOGIT_FILTERS[name].code, lambda can: filter_cases(can, filters=(name,)), **fields)(
        asserts.require_rows
    )


SINGLE = tuple(map(alone, LOGIT_FILTERS))


# -- traces -----------------------------------------------------------------------------------------------------------


def every_row_of_a_trace_follows_the_specification(filterer: LogitsFilterer, trace: FilterTrace) -> None:
    """In calls of every size and vocabulary, beside any others, each row follows its own filters, in their order.

    Every two filters are on together in one row, at usual settings and at any number of their range; each is also on
    alone, and plain rows keep their bits. Suspect flags in a word of bits, programs for a number of rows at once,
    parameters looked up by another row, state that an earlier call left, and filters in another order than declared.
    """
    library = trace.library().batch(filterer.device)
    given, oracle = library.logits.cpu().numpy(), FiltersOracle(filterer.chain)
    rows = asserts.Specified.of(list(oracle.rows(library)), filterer.chain, library.params)
    for one, batch in trace.batches(library):
        params, seed = list(batch.params), derive_seed("call", trace.seed, one.number)
        found = asserts.call(filterer, batch, seed)
        asserts.require_specified(params, rows.taken(one.places), given[one.places], found, one.number)


TRACES = (trace_check("FIL201", "filters", FilterTrace.of, every_row_of_a_trace_follows_the_specification),)


# -- DRY --------------------------------------------------------------------------------------------------------------


def _texts(can: Capabilities, **changes: object) -> st.SearchStrategy[FilterCase]:
    """Texts that repeat themselves; `changes` of the parameters of every row."""

    def changed(case: FilterCase) -> FilterCase:
        rows = (row.replace(params=dataclasses.replace(row.params, **changes)) for row in case.rows)  # type: ignore[arg-type]
        return case.replace(rows=tuple(rows))

    kinds = ("any", "echo", "loop")
    return filter_cases(can, filters=("dry",), texts=kinds, logits=("ladder", "grid"), min_vocab_size=5).map(changed)


@check(
    "FIL151", lambda can: _texts(can, dry_breakers=(1, 3), dry_allowed_length=1), needs=_DRY, body=asserts.require_rows
)
def repetitions_end_at_breakers() -> None:
    """No repetition extends over a sequence breaker, and a breaker itself is never penalised.

    Breakers that are looked up as text, or only at the end; a quotation mark or a new line that becomes impossible.
    """


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
    asserts.require_rows(filterer, case)


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
    asserts.require_rows(filterer, case.replace(rows=tuple(rows)))


# -- mirostat ---------------------------------------------------------------------------------------------------------


def _speakers(can: Capabilities, max_rows: int) -> st.SearchStrategy[FilterCase]:
    """Rows with mirostat; with a temperature beside it, if there is one."""

    def warmed(case: FilterCase) -> FilterCase:
        heat = bulk_rng("temperatures", case.seed).choice(_TEMPERATURES, len(case.rows)).tolist()
        params = (dataclasses.replace(row.params, temperature=t) for row, t in zip(case.rows, heat, strict=True))
        return case.replace(rows=tuple(row.replace(params=one) for row, one in zip(case.rows, params, strict=True)))

    filters, logits = ("mirostat_v1", "mirostat_v2"), ("zipf", "normal")
    found = filter_cases(can, filters=filters, logits=logits, min_vocab_size=30, max_vocab_size=300, max_rows=max_rows)
    return found.map(warmed) if Capability.TEMPERATURE in can else found


def _require_steps(filterer: LogitsFilterer, case: FilterCase, num_steps: int = _NUM_STEPS) -> None:
    """Every step keeps what follows from the tokens of the steps before it."""
    oracle, noise = FiltersOracle(filterer.chain), SeededNoise(case.seed)
    context = [oracle.context(case.batch(), number) for number in range(len(case.rows))]
    for step in range(num_steps):
        batch = case.replace(seed=case.seed + step).batch(filterer.device)
        found = call_filters(filterer, batch, noise)
        if found.token_ids is None:
            broken("a row with mirostat comes back without its token")
        for number, (given, token) in enumerate(zip(logits_of(batch), found.token_ids.tolist(), strict=True)):
            if context[number].mu:
                where = f"row {number}, {context[number].params!r}, step {step}"
                context[number] = _follow(filterer, given, context[number], found.logits[number], token, where)


def _follow(
    filterer: LogitsFilterer, given: asserts.Logits, context: RowContext, found: asserts.Logits, token: int, where: str
) -> RowContext:
    """Compare one step of a row; what it is asked next."""
    oracle, params = FiltersOracle(filterer.chain), context.params
    row, before = oracle.row(given, context), oracle.row(given, without_mirostat(context))
    if not row.possible[token]:
        broken(f"{where}: token {token} was drawn, and mu = {context.mu:.6g} excludes it")
    rows = asserts.Specified.of([row], filterer.chain, [params])
    asserts.require_specified([params], rows, given[None], found[None])
    stays = row if asserts.is_one_hot(params, filterer.chain) else dataclasses.replace(row, kept=np.isfinite(found))
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
