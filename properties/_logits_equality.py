"""11x to 16x: the specification, step by step, and the real vLLM.

Planners that declare a `rounding` are compared bit for bit. Others may differ by float32 arithmetic in another order,
by ties at the edge of a filter, and by the way of forcing a token; `fairdraw._oracles.logits_bounds` defines how much.
"""

from functools import partial

from hypothesis import strategies as st

from fairdraw.contracts import Capabilities, Capability, LogitsBatch, LogitsPlanner
from fairdraw.properties import _logits_asserts as asserts
from fairdraw.properties._logits_asserts import check, equality
from fairdraw.strategies import logits_plan as cases
from fairdraw.strategies._narrowing import INVALID_ROW_NEEDS

_HISTORY = ("bad-words", "min-tokens", "penalties", "thinking")
_UNTHINKING = tuple(kind for kind in cases.PARAMETER_KINDS if kind != "thinking")
_SPECULATIVE = tuple(kind for kind in _UNTHINKING if kind not in ("bias", "min-p", "custom", "custom-random"))


@check("PLAN110", lambda can: cases.sets_of_kinds(can, size=1), weight=0.3)
def every_processor_alone_equals_the_oracle(planner: LogitsPlanner, case: cases.LogitsCase) -> None:
    """One parameter per request: equal to the specification, all of them in one batch, and each in a batch of its own.

    The processor itself is wrong: inverted masks, added twice, the wrong row, another dtype. If it is right beside
    others, look at what is left out when nothing else has work, such as a copy or a cast.
    """
    asserts.equal_to_the_oracle(planner, case)
    if not planner.capabilities.slow:
        for kinds in dict.fromkeys(request.kinds for request in case.requests):
            own = tuple(request for request in case.requests if request.kinds == kinds)
            asserts.equal_to_the_oracle(planner, case.replace(requests=own))


@equality("PLAN111", lambda can: cases.sets_of_kinds(can, size=2, copies=1 if can.slow else 7), weight=0.1)
def every_pair_of_processors_equals_the_oracle() -> None:
    """Two parameters per request, all pairs in one batch of a thousand. The order matters: processors do not commute.

    vLLM's order is allowed ids, bad words, min tokens, logit bias, custom, penalties, thinking budget, temperature,
    min-p, custom for random requests, top-k, top-p.
    """


@equality("PLAN112", lambda can: cases.logits_cases(can, max_kinds=8))
def any_mix_of_parameters_equals_the_oracle() -> None:
    """Up to eight parameters per request, different ones for each: equal to always copying, in vLLM's order.

    Masks or numbers of one request on another's rows; greedy requests together with random ones.
    """


def _invalid(can: Capabilities) -> st.SearchStrategy[cases.LogitsCase]:
    """Half of the cases have every parameter on every kind of row without a distribution."""
    words = {**INVALID_ROW_NEEDS, "nans": Capability.NAN_LOGITS}
    rows = [kind for kind, word in words.items() if word in can]
    return st.one_of(cases.invalid_cases(can, logits=rows), cases.logits_cases(can, logits=rows, max_kinds=3))


@equality("PLAN114", _invalid, needs_one_of=(tuple(INVALID_ROW_NEEDS.values()),), weight=0.5)
def rows_without_a_distribution_equal_the_oracle() -> None:
    """Rows with NaN or of -inf only pass all processors and stay in their row.

    If NaN reaches another row, the cause is arithmetic over the whole batch, such as `0 * mask`.
    """


@equality("PLAN115", cases.value_cases, weight=0.1)
def every_pair_of_values_equals_the_oracle() -> None:
    """Each parameter off, at its least, at its most and between, in pairs, in one batch of many requests.

    With them go up to 64 drafts, 5000 prompt and 4200 output tokens, a hundred stop ids, and bad words of six tokens
    by the hundred. A buffer that is too small for rows, drafts, words or ids; a number that saturates; a value at the
    edge taken for off.
    """


@equality("PLAN116", cases.large_cases, needs=(Capability.LARGE_VOCAB,), weight=0.04)
def large_vocabularies_equal_the_oracle() -> None:
    """Ids above 2**16 and 2**17 in every parameter and in long texts; filters over the whole vocabulary.

    Ids in 16 bits, a mask or a sort that ends before the vocabulary does, a prompt that is cut.
    """


@equality("PLAN117", cases.small_cases, weight=0.3)
def small_vocabularies_equal_the_oracle() -> None:
    """One token, two, or a few: top-k of all but one is off, and an allowed list may name everything.

    A dimension of 1 that is squeezed away or broadcast, a second-largest logit that does not exist.
    """


@check("PLAN118", cases.inside_cases, weight=0.04)
def values_just_inside_their_range_equal_the_oracle(planner: LogitsPlanner, case: cases.LogitsCase) -> None:
    """Top-p 0.003 and 0.99995, min-p 0.00003 and 0.9995, top-k of all but two, penalties of 0.00002 and others.

    Each acts alone, at vocabularies of 33 to 1031, in rows in which it matters. What float32 sums leave open is open:
    top-p below 0.002 or above 0.99995. Suspect a value near its end that is taken for off or for greedy.
    """
    for size in cases.INSIDE_SIZES:
        asserts.equal_to_the_oracle(planner, case.replace(vocab_size=size))


@check(
    "PLAN121", lambda can: cases.logits_cases(can, min_drafts=1, min_kinds=1, max_kinds=2, kinds=_HISTORY, idle=False)
)
def the_bonus_row_sees_all_drafts(planner: LogitsPlanner, case: cases.LogitsCase) -> None:
    """It is used only if all drafts are accepted, so it sees `output + drafts`.

    One draft too few (the row of the last draft taken for it), or none: vLLM's min tokens count the
    output alone.
    """
    for answer in asserts.follow(planner, case):
        counts = zip(answer.batch.first_rows, answer.batch.num_draft_tokens, strict=True)
        asserts.as_specified(planner, case, answer, "by the specification of bonus rows", {sum(one) for one in counts})


def _equal_to(planner: LogitsPlanner, case: cases.LogitsCase, reference: LogitsPlanner) -> None:
    theirs = asserts.opened(reference, case.setup())
    for step, answer in enumerate(asserts.follow(planner, case)):
        given = answer.batch.replace(logits=answer.before.to(reference.device))
        rows = set(range(len(answer.before))) - _rows_of_pending_minima(answer.batch)
        wanted = asserts.as_float32(theirs.process(given))
        asserts.same_logits(planner, case, answer, wanted, f"by {reference.name}, in step {step}", rows)


_upstream = partial(asserts.differential, body=_equal_to)


@_upstream("PLAN160", lambda can: cases.logits_cases(can, max_drafts=0, max_kinds=8))
def plain_steps_equal_upstream() -> None:
    """One step without drafts, any parameters: the logits that vLLM's `Sampler` draws from.

    The specification equals vLLM 0.22.0 here, so a difference is this implementation's.
    """


@_upstream(
    "PLAN161",
    lambda can: cases.logits_cases(
        can,
        max_drafts=0,
        max_kinds=4,
        max_events=4,
        kinds=_UNTHINKING,
        idle=False,
        events=("grow", "replace", "join", "leave", "swap"),
    ),
)
def live_batches_equal_upstream() -> None:
    """Several steps of a batch whose requests come, go and move: vLLM's logits in each.

    State that moved with the wrong row, or a plan made for an earlier batch.
    """


@_upstream(
    "PLAN162",
    lambda can: cases.logits_cases(
        can, min_drafts=1, max_kinds=4, max_events=1, kinds=_SPECULATIVE, idle=False, events=("grow", "replace")
    ),
)
def speculative_steps_equal_upstream() -> None:
    """Steps with drafts: the logits that vLLM's `RejectionSampler` verifies with and draws bonus tokens from.

    Parameters that vLLM drops or refuses with drafts are excluded.
    """


def _rows_of_pending_minima(batch: LogitsBatch) -> set[int]:
    """Bonus rows of requests that reach their minimum through their drafts."""
    return {
        first + len(request.draft_token_ids)
        for request, first in zip(batch.requests, batch.first_rows, strict=True)
        if request.draft_token_ids and len(request.output_token_ids) < request.params.min_tokens
    }
