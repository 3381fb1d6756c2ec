"""13x and 14x: a plan follows its batch, and no request affects the rows of another."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from fairdraw._core.checks import check
from fairdraw._oracles.logits_bounds import logits_bounds
from fairdraw._oracles.logits_plan import LogitsPlanOracle
from fairdraw.properties._logits_asserts import (
    Answer,
    answered,
    as_float32,
    as_specified,
    follow,
    opened,
    same_logits,
)
from fairdraw.properties._rejection_asserts import broken
from fairdraw.protocols import Capabilities, Capability, Rounding, rounding_of
from fairdraw.protocols._lifecycle import all_added
from fairdraw.protocols._logits_plan import LogitsParams, RowOfRequest
from fairdraw.strategies.logits_plan import CUSTOM_PROCESSORS, PARAMETER_KINDS, EventRecipe, logits_cases

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fairdraw.protocols._logits_plan import CustomLogitsProcessor, LogitsBatch, LogitsPlanner
    from fairdraw.strategies.logits_plan import LogitsCase

_NEVER_MIXED = tuple(kind for kind in PARAMETER_KINDS if kind not in ("top-k", "top-p", "custom-random"))


_OF_TEXT = ("bad-words", "min-tokens", "penalties", "thinking")


def _living(
    can: Capabilities, *events: str, kinds: tuple[str, ...] | None = None, max_requests: int = 3
) -> st.SearchStrategy[LogitsCase]:
    return logits_cases(can, max_requests=max_requests, max_events=4, max_kinds=3, events=events, kinds=kinds)


def _every_step_equals_the_oracle(planner: LogitsPlanner, case: LogitsCase) -> None:
    for step, answer in enumerate(follow(planner, case)):
        as_specified(planner, case, answer, f"by the specification, in step {step}")


@check("PLAN130", lambda can: _living(can, "replace"), contract="logits_plan")
def the_plan_follows_changed_parameters(planner: LogitsPlanner, case: LogitsCase) -> None:
    """A row gets another request with other parameters: from that step on, its processors run and no others.

    A plan is kept because the batch has the same size, or because most of it is the same.
    """
    _every_step_equals_the_oracle(planner, case)


@check("PLAN131", lambda can: _living(can, "swap", "leave", "join"), contract="logits_plan")
def parameters_move_with_their_request(planner: LogitsPlanner, case: LogitsCase) -> None:
    """Requests join, leave and move between rows: each keeps its parameters and its history.

    Masks, biases and temperatures that stay in the old row.
    """
    _every_step_equals_the_oracle(planner, case)


_GROWS_AND_IS_CUT = (EventRecipe("grow"), EventRecipe("cut"))


def _growing(can: Capabilities) -> st.SearchStrategy[LogitsCase]:
    """Half of the cases are one request whose work begins and ends while its output grows and is cut.

    In freely drawn cases, kinds and events that fit together are rare.
    """
    freely = _living(can, "grow", "cut", kinds=_OF_TEXT, max_requests=2)
    one = logits_cases(
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


@check("PLAN132", _growing, contract="logits_plan")
def the_plan_follows_outputs_that_grow_and_shrink(planner: LogitsPlanner, case: LogitsCase) -> None:
    """From step to step outputs grow by accepted drafts and a token, or lose their end; drafts differ in number.

    Decisions for an earlier output, such as minima that are not checked again, or bad words of the last
    step.
    """
    _every_step_equals_the_oracle(planner, case)


@check(
    "PLAN140",
    lambda can: logits_cases(can, min_requests=2, kinds=_NEVER_MIXED, max_kinds=4),
    contract="logits_plan",
)
def rows_do_not_depend_on_other_requests(planner: LogitsPlanner, case: LogitsCase) -> None:
    """A request alone gives the same rows as in its batch.

    Top-k and top-p are excluded: as in vLLM, another request's top-p excludes tokens of probability 0 in every row. So
    are custom processors for random requests: they run for a greedy request only if a random one is in the batch.
    """
    (together,) = follow(planner, case)
    request = case.seed % len(case.requests)
    batch = together.batch
    first, count = batch.first_rows[request], batch.num_draft_tokens[request] + 1
    alone = _alone(batch.replace(logits=together.before), request)
    wanted = as_float32(together.processed).clone()
    wanted[first : first + count] = as_float32(answered(planner, opened(planner, case.setup()), alone).processed)
    same_logits(planner, case, together, wanted, f"as request {request} alone gives")


def _alone(batch: LogitsBatch, request: int) -> LogitsBatch:
    one = (dataclasses.replace(batch.requests[request]),)
    first, count = batch.first_rows[request], batch.num_draft_tokens[request] + 1
    return batch.replace(logits=batch.logits[first : first + count], requests=one, change=all_added(one))


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

    def apply(
        self,
        logits: Tensor,  # [num_rows, vocab_size] float32
        rows: Sequence[RowOfRequest],
    ) -> Tensor:  # [num_rows, vocab_size] float32
        self.calls.append([RowOfRequest(*row) for row in rows])
        return self.inner.apply(logits, rows)


def _with_customs(can: Capabilities) -> st.SearchStrategy[LogitsCase]:
    has_drafts = Capability.DRAFT_PROCESSORS in can
    kinds = ("custom", "custom-random", "bias", "temperature")
    return logits_cases(can, kinds=kinds, max_kinds=3, max_drafts=3 if has_drafts else 0, max_events=2)


@check("PLAN141", _with_customs, needs=(Capability.CUSTOM_PROCESSORS,), contract="logits_plan")
def custom_processors_are_called_once_with_the_right_rows(planner: LogitsPlanner, case: LogitsCase) -> None:
    """Once per step with every row that uses it, its request, and what the row sees; not at all if no row does.

    It is called per request, for rows of others, or for an all-greedy batch although it keeps the argmax.
    """
    recorders = [_Recorder(processor) for processor in CUSTOM_PROCESSORS]
    for answer in follow(planner, case, case.setup(tuple(recorders))):
        rows = LogitsPlanOracle().rows(answer.batch, case.setup())
        for name, recorder in zip(("custom", "custom_for_random"), recorders, strict=True):
            due = [seen for _, seen in LogitsPlanOracle().customs(name, rows, case.setup((recorder,)))]
            if [_in_order(rows) for rows in recorder.calls] != [_in_order(rows) for rows in due]:
                broken(f"the {recorder.name} processor was called with {recorder.calls}, expected {due}")
            recorder.calls.clear()


def _in_order(rows: Sequence[RowOfRequest]) -> list[RowOfRequest]:
    """The same rows by number: a call may have them in any order, and texts as any sequence."""
    return [row._replace(token_ids=list(row.token_ids)) for row in sorted(rows, key=lambda row: row.row)]


@check("PLAN150", lambda can: logits_cases(can, max_kinds=5, greedy=None), contract="logits_plan")
def greedy_tokens_are_those_before_temperature_and_filters(planner: LogitsPlanner, case: LogitsCase) -> None:
    """The argmax of a greedy request's processed row is that of the row after the thinking budget.

    So one pass serves greedy and random requests. Of tokens that tie, up to rounding if none is declared, any may be
    the greatest. Custom processors that keep the argmax are not checked.
    """
    for answer in follow(planner, case):
        greatest = _greatest(planner, case, answer)
        seen = as_float32(answer.processed)
        for who in answer.batch.rows():
            token = int(seen[who.row].argmax())
            if answer.batch.requests[who.request].params.temperature == 0 and token not in greatest[who.row]:
                broken(f"row {who.row} is greedy: argmax {token}, due {' or '.join(map(str, greatest[who.row]))}")


def _greatest(planner: LogitsPlanner, case: LogitsCase, answer: Answer) -> list[list[int]]:
    """Per row, the tokens that may be the greatest before temperature and filters."""
    given = answer.batch.replace(logits=answer.before.cpu())
    wanted = as_float32(_decisive().process(given, case.setup()))
    if rounding_of(planner) is not Rounding.FREE:
        return [[int(row.argmax())] for row in wanted]
    bounds = logits_bounds(given, case.setup(), _decisive())
    return [sorted({int(row.argmax()), *may.greatest()}) for row, may in zip(wanted, bounds, strict=True)]


def _decisive() -> LogitsPlanOracle:
    """The specification up to the thinking budget."""
    oracle = LogitsPlanOracle()
    oracle.order = oracle.order[: oracle.order.index("temperature")]
    return oracle
