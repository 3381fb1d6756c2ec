"""13x and 14x: a plan follows its batch, and no request affects the rows of another."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from fairdraw._core.failures import raised_by
from fairdraw._core.tensor_types import LogitRows
from fairdraw._oracles.logits_plan import LogitsPlanOracle
from fairdraw.contracts import Capabilities, Capability, LogitsParams, RowOfRequest, all_added
from fairdraw.properties import _logits_asserts as asserts
from fairdraw.properties._logits_asserts import check, equality
from fairdraw.properties._rejection_asserts import broken
from fairdraw.strategies import logits_plan as cases

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fairdraw.contracts import CustomLogitsProcessor, LogitsPlanner
    from fairdraw.strategies.logits_plan import LogitsCase


@equality(
    "PLAN130", lambda can: cases.logits_cases(can, max_requests=3, max_events=4, max_kinds=3, events=("replace",))
)
def the_plan_follows_changed_parameters() -> None:
    """A row gets another request with other parameters: from that step on, its processors run and no others.

    A plan is kept because the batch has the same size, or because most of it is the same.
    """


_OF_TEXT = ("bad-words", "min-tokens", "penalties", "thinking")
_GROWS_AND_IS_CUT = (cases.EventRecipe("grow"), cases.EventRecipe("cut"))


def _growing(can: Capabilities) -> st.SearchStrategy[LogitsCase]:
    """Half of the cases are one request whose work begins and ends while its output grows and is cut.

    In freely drawn cases, kinds and events that fit together are rare.
    """
    freely = cases.logits_cases(can, max_requests=2, max_events=4, max_kinds=3, events=("grow", "cut"), kinds=_OF_TEXT)
    one = cases.logits_cases(
        can,
        max_requests=1,
        max_drafts=1,
        min_kinds=1,
        max_kinds=2,
        kinds=("min-tokens", "bad-words"),
        idle=False,
        events=("grow", "cut"),
        max_events=2,
    )
    return st.one_of(freely, one.map(lambda case: case.replace(events=(*_GROWS_AND_IS_CUT, *case.events))))


@equality("PLAN132", _growing)
def the_plan_follows_outputs_that_grow_and_shrink() -> None:
    """From step to step outputs grow by accepted drafts and a token, or lose their end; drafts differ in number.

    Decisions for an earlier output, such as minima that are not checked again, or bad words of the last
    step.
    """


def _eventful_twice(can: Capabilities) -> st.SearchStrategy[LogitsCase]:
    """For checks whose steps PLAN133 has judged whole: a slow planner gets a third of the requests at a time."""
    return cases.eventful_cases(can, every=3 if can.slow else 1)


@equality("PLAN133", lambda can: cases.eventful_cases(can, most_drafts=2 if can.slow else 10), weight=0.1)
def every_processor_survives_every_event() -> None:
    """Requests with one parameter each, and every event to one row and to all: adding, moving and cutting in one step.
    The last tokens of some are not known yet, and each has up to ten drafts.

    A change that is followed only if no other happened in the same step; an output that is as long as before, and
    another; a request that comes again with other parameters.
    """


@check("PLAN134", _eventful_twice, weight=0.03)
def sessions_do_not_affect_each_other(planner: LogitsPlanner, case: LogitsCase) -> None:
    """Two batches of one planner, step by step in turns, and now and then a fresh session beside them.

    State of the class or module: caches, buffers, counters that sessions share.
    """
    other = case.replace(vocab_size=case.vocab_size + 7, requests=case.requests[::-1], seed=case.seed + 1)
    for step, (one, two) in enumerate(zip(asserts.follow(planner, case), asserts.follow(planner, other), strict=True)):
        if step % 5 == 4:
            fresh = one.batch.replace(logits=one.before.clone(), change=all_added(one.batch.requests))
            again = asserts.answered(planner, asserts.opened(planner, case.setup()), fresh)
            asserts.as_specified(planner, case, again, f"by the specification, in a fresh session in step {step}")
        asserts.as_specified(planner, case, one, f"by the specification, in step {step} of one of two sessions")
        asserts.as_specified(planner, other, two, f"by the specification, in step {step} of the other session")


_CALLS, _CALLS_IF_SLOW = 40, 6
"""Steps of one batch, which all have the same shapes."""


@check("PLAN135", _eventful_twice, weight=0.03)
def an_answer_does_not_change_later(planner: LogitsPlanner, case: LogitsCase) -> None:
    """What a step returned stays as it was when later steps are processed.

    A buffer that is returned twice, or several in turns: the sampler of an earlier step still reads it, or the client's
    log-probabilities do.
    """
    kept: list[tuple[Tensor, Tensor]] = []

    def keep(answer: asserts.Answer) -> None:
        for earlier, returned in kept:
            if asserts.differing_rows(returned, asserts.as_float32(earlier)):
                broken("a later call changed the logits that an earlier one had returned")
        if not answer.is_same:
            kept.append((answer.processed, asserts.as_float32(answer.processed).clone()))

    for answer in asserts.follow(planner, case):
        keep(answer)
    kept.clear()
    session, batch = asserts.opened(planner, case.setup()), case.batch(planner.device)
    for call in range(_CALLS_IF_SLOW if planner.capabilities.slow else _CALLS):
        others = batch.replace(logits=batch.logits + call, change=None if call else batch.change)
        keep(asserts.answered(planner, session, others))


@check("PLAN136", _eventful_twice, weight=0.03)
def a_call_leaves_parameters_and_texts_alone(planner: LogitsPlanner, case: LogitsCase) -> None:
    """Lists of ids, words, biases, prompts, outputs and drafts belong to the caller.

    Sorted in place, extended by drafts, emptied once they were read.
    """
    session = asserts.opened(planner, case.setup())
    for step, batch in enumerate(case.batches(planner.device)):
        before = copy.deepcopy([vars(request) for request in batch.requests])
        asserts.answered(planner, session, batch)
        after = [vars(request) for request in batch.requests]
        changed = [i for i, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
        if changed:
            names = [name for name in before[0] if before[changed[0]][name] != after[changed[0]][name]]
            broken(f"step {step} changed {', '.join(names)} of request {changed[0]}")


@check("PLAN137", _eventful_twice, weight=0.03)
def the_same_step_twice_gives_the_same(planner: LogitsPlanner, case: LogitsCase) -> None:
    """Without new tokens and without a change of rows, a second call gives the same logits, and later steps are right.

    Calls that are counted in place of tokens; a decision that the first call uses up.
    """
    session = asserts.opened(planner, case.setup())
    for step, batch in enumerate(case.batches(planner.device)):
        for change in (batch.change, None):
            given = batch.replace(logits=batch.logits.clone(), change=change)
            again = " again" if change is None else ""
            asserts.as_specified(
                planner, case, asserts.answered(planner, session, given), f"by the specification, in step {step}{again}"
            )


@equality("PLAN138", cases.long_cases, weight=0.02)
def long_services_equal_the_oracle() -> None:
    """Sixty steps of a few requests with several parameters each, any events, often several in one step; then 140 in
    which texts only grow. A slow planner takes the sixty.

    A cache that fills up, a number that grows with the steps, something that is forgotten after a while.
    """


@equality("PLAN139", cases.twin_cases, weight=0.25)
def requests_with_equal_parameters_keep_their_own_texts() -> None:
    """Most rows have the same parameters and other texts, while requests leave, enter, move into free rows and swap.

    Whether a row has changed is decided by its parameters, so the prompt, the counts or the last tokens of the request
    before it stay.
    """


class _Recorder:
    """A custom processor that records how it was called."""

    def __init__(self, inner: CustomLogitsProcessor) -> None:
        self.inner = inner
        self.calls: list[list[RowOfRequest]] = []

    @property
    def name(self) -> str:
        return self.inner.name

    def is_argmax_invariant(self) -> bool:
        return self.inner.is_argmax_invariant()

    def wants(self, params: LogitsParams) -> bool:
        return self.inner.wants(params)

    def apply(self, logits: LogitRows, rows: Sequence[RowOfRequest]) -> LogitRows:
        self.calls.append([RowOfRequest(*row) for row in rows])
        return self.inner.apply(logits, rows)


def _with_customs(can: Capabilities) -> st.SearchStrategy[LogitsCase]:
    has_drafts = Capability.DRAFT_PROCESSORS in can
    kinds = ("custom", "custom-random", "bias", "temperature")
    return cases.logits_cases(can, kinds=kinds, max_kinds=3, max_drafts=3 if has_drafts else 0, max_events=2)


_OF_IDS = ("allowed", "bad-words", "min-tokens", "bias")


def _with_id(params: LogitsParams, token_id: int) -> LogitsParams:
    """The parameters with one more id wherever they have some."""
    allowed, words = params.allowed_token_ids, params.bad_words_token_ids
    return dataclasses.replace(
        params,
        allowed_token_ids=allowed and [*allowed, token_id],
        bad_words_token_ids=words and [*words, [token_id]],
        all_stop_token_ids=params.all_stop_token_ids and params.all_stop_token_ids | {token_id},
        logit_bias=params.logit_bias and {**params.logit_bias, token_id: 5.0},
    )


def _of_ids(can: Capabilities) -> st.SearchStrategy[LogitsCase]:
    return cases.logits_cases(can, kinds=_OF_IDS, min_kinds=1, max_kinds=4, idle=False, max_events=0, min_requests=2)


@check("PLAN142", _of_ids, weight=0.3)
def ids_beyond_the_vocabulary_are_refused_or_ignored(planner: LogitsPlanner, case: LogitsCase) -> None:
    """A list with one more id, which is beyond the vocabulary, raises an exception or means the same as without it.

    The tokenizer is larger than the model's head, or the id is another model's. Ids that are wrapped or clamped change
    another token; a flat index changes the next row.
    """
    plain = case.batch(planner.device)
    wanted = asserts.as_float32(asserts.answered(planner, asserts.opened(planner, case.setup()), plain).processed)
    for beyond in (0, 1, case.vocab_size - 1, 1 << 20):
        requests = [
            dataclasses.replace(one, params=_with_id(one.params, case.vocab_size + beyond)) for one in plain.requests
        ]
        given = case.batch(planner.device).replace(requests=tuple(requests), change=all_added(requests))
        try:
            answer = asserts.answered(planner, asserts.opened(planner, case.setup()), given)
        except Exception as error:
            if raised_by(error) is not planner:
                raise
            continue
        asserts.same_logits(planner, case, answer, wanted, f"as without the id {case.vocab_size + beyond}")


@check("PLAN141", _with_customs, needs=(Capability.CUSTOM_PROCESSORS,))
def custom_processors_are_called_once_with_the_right_rows(planner: LogitsPlanner, case: LogitsCase) -> None:
    """Once per step with every row that uses it, its request, and what the row sees; not at all if no row does.

    It is called per request, for rows of others, or for an all-greedy batch although it keeps the argmax.
    """
    recorders = [_Recorder(processor) for processor in cases.CUSTOM_PROCESSORS]
    for answer in asserts.follow(planner, case, case.setup(tuple(recorders))):
        rows = LogitsPlanOracle().rows(answer.batch, case.setup())
        for name, recorder in zip(("custom", "custom_for_random"), recorders, strict=True):
            due = [seen for _, seen in LogitsPlanOracle().customs(name, rows, case.setup((recorder,)))]
            if [_in_order(rows) for rows in recorder.calls] != [_in_order(rows) for rows in due]:
                broken(f"the {recorder.name} processor was called with {recorder.calls}, expected {due}")
            recorder.calls.clear()


def _in_order(rows: Sequence[RowOfRequest]) -> list[RowOfRequest]:
    """The same rows by number: a call may have them in any order, and texts as any sequence."""
    return [row._replace(token_ids=list(row.token_ids)) for row in sorted(rows, key=lambda row: row.row)]
