"""10x: no unnecessary copy, no write to the inputs, and an answer of the documented form."""

from functools import partial

import torch

from fairdraw.contracts import Capability, LogitsPlanner
from fairdraw.properties._logits_asserts import check, follow, require_unwritten
from fairdraw.properties._rejection_asserts import broken
from fairdraw.strategies.logits_plan import LogitsCase, logits_cases


def _nothing_is_done(planner: LogitsPlanner, case: LogitsCase) -> None:
    for answer in follow(planner, case):
        if not answer.is_same:
            broken("another tensor came back, though no processor had work")
        if answer.operations:
            broken(f"no processor had work, but operations ran on the logits: {', '.join(answer.operations)}")


_idle = partial(check, needs=(Capability.COPY_FREE,), body=_nothing_is_done)


@_idle("PLAN101", lambda can: logits_cases(can, max_kinds=0))
def without_parameters_the_same_tensor_comes_back_without_any_operation() -> None:
    """Default parameters, greedy or random: the very tensor that was given, and not one operation on it.

    A cast, a clone "to be safe" or a mask of zeros costs a pass over the logits at every step of every server. Views,
    and tensors of parameters or counts that a plan makes for itself, are allowed.
    """


@_idle("PLAN102", lambda can: logits_cases(can, idle=True, min_kinds=1, max_drafts=0))
def parameters_without_work_leave_the_same_tensor() -> None:
    """Bad words that do not match, minima that are reached, budgets that are not spent, top-k of everything.

    A plan that checks whether a parameter is set, instead of whether it has work, copies until the request ends.
    """


@check("PLAN103", lambda can: logits_cases(can, max_events=2), needs=(Capability.COPY_FREE,))
def logits_are_copied_at_most_once_where_a_processor_has_work(planner: LogitsPlanner, case: LogitsCase) -> None:
    """One copy, however many processors run and whatever the dtype is; none if the same tensor is returned.

    A cast followed by a clone makes two copies; so does a copy per processor. A first processor that writes its results
    to a new tensor needs no copy.
    """
    for answer in follow(planner, case):
        allowed = 0 if answer.is_same else 1
        if answer.num_copies > allowed:
            broken(f"{answer.num_copies} copies of the logits, at most {allowed} may be")


@check("PLAN105", lambda can: logits_cases(can, max_events=2), needs=(Capability.INTACT_LOGITS,))
def the_logits_given_are_never_modified(planner: LogitsPlanner, case: LogitsCase) -> None:
    """They are the raw logits, from which log-probabilities are computed after sampling, also if that writes in place.

    In-place processors on float32 logits, for which `to(float32)` is not a copy; a view that is returned like a copy.
    """
    for answer in follow(planner, case):  # every step of every check fails if the call itself wrote
        if not answer.is_same:
            answer.processed.fill_(7.0)
            require_unwritten(answer.before, answer.batch.logits, "change when the processed ones are written")


@check("PLAN107", lambda can: logits_cases(can, max_events=1, min_kinds=1))
def processed_logits_are_contiguous_float32(planner: LogitsPlanner, case: LogitsCase) -> None:
    """Whatever the model's dtype and strides are: processors and samplers compute in float32.

    In bfloat16 a penalty or a temperature moves the logits by up to 0.4 %.
    """
    for answer in follow(planner, case):
        if not answer.is_same and (answer.processed.dtype != torch.float32 or not answer.processed.is_contiguous()):
            broken(f"the answer is {answer.processed.dtype} with strides {answer.processed.stride()}")
