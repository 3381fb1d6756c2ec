"""What the checks of the logits-plan contract share: follow a case, compare logits, count copies."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fairdraw._core import checks
from fairdraw._core.array_types import RowsFlags
from fairdraw._core.dispatch import DispatchMode
from fairdraw._core.failures import AdapterError, calling
from fairdraw._core.tensor_types import LogitRows
from fairdraw._oracles.intervals import alike
from fairdraw._oracles.logits_bounds import logits_bounds
from fairdraw._oracles.logits_plan import LogitsPlanOracle, plan_oracle
from fairdraw._oracles.thinking_budget import ThinkingBudgetOracle
from fairdraw.contracts import Capability, LogitsPolicy, Rounding, policy_of, rounding_of
from fairdraw.properties._rejection_asserts import broken

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray
    from torch import Tensor

    from fairdraw.contracts import LogitsBatch, LogitsPlanner, LogitsSession, PlanSetup
    from fairdraw.strategies.logits_plan import LogitsCase


check = partial(checks.check, contract="logits_plan")
differential = partial(checks.differential, contract="logits_plan")

_COPYING = ("aten::_to_copy", "aten::clone", "aten::copy_")


class Counted(DispatchMode):
    """Names of the operations on the logits, and how many of them copied all logits.

    Other operations are bookkeeping: tensors of parameters, counts and indices that a plan makes, on the host or on the
    device. A view is not an operation, and a copy of a copy is a copy of the logits.
    """

    def __init__(self, logits: Tensor) -> None:  # [num_rows, vocab_size] any
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self.operations: list[str] = []
        self.num_copies = 0
        self._shape = logits.shape
        self._given = _memory(logits)
        self._copies = {self._given}
        self._kept: list[Tensor] = []  # so that the memory of a copy is not reused for another tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # Any: torch's own
        result = func(*args, **(kwargs or {}))
        read = set(_memories((*args, *(kwargs or {}).values())))
        name = str(func.name()).partition(".")[0]
        if self._given in read and not func.is_view:
            self.operations.append(name)
        if name in _COPYING and result.shape == self._shape:
            source = args[1] if name == "aten::copy_" else args[0]
            if _memory(source) in self._copies:
                self.num_copies += 1
                self._copies.add(_memory(result))
                self._kept.append(result)
        return result


def _memories(values: Iterable[Any]) -> Iterator[int]:  # Any: arguments of an operator
    """Of the tensors among them. Operators take lists of tensors and nothing deeper: no need of torch's slow walk."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield _memory(value)
        elif isinstance(value, (list, tuple)):
            yield from _memories(value)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer of one step.

    Args:
        before: A copy of the logits, made before the call.
    """

    batch: LogitsBatch
    before: Tensor  # [num_rows, vocab_size] any
    processed: Tensor  # [num_rows, vocab_size] any
    operations: list[str] = field(default_factory=list)
    num_copies: int = 0

    @property
    def is_same(self) -> bool:
        """The very tensor that was given was returned."""
        return self.processed is self.batch.logits


def answered(planner: LogitsPlanner, session: LogitsSession, batch: LogitsBatch) -> Answer:
    """One step: its operations are counted, and its answer is checked.

    Raises:
        AdapterError: If the answer is not a tensor of logits.
    """
    before, counted = batch.logits.clone(), Counted(batch.logits)
    with calling(planner), counted:
        processed = session.process(batch)
    if not isinstance(processed, torch.Tensor) or processed.shape != batch.logits.shape:
        given = list(processed.shape) if isinstance(processed, torch.Tensor) else type(processed).__name__
        raise AdapterError(
            f"{planner.name}: process returned {given}, but it must return logits of shape "
            f"{list(batch.logits.shape)}. Process every row."
        )
    return Answer(batch, before, processed, counted.operations, counted.num_copies)


def opened(planner: LogitsPlanner, setup: PlanSetup) -> LogitsSession:
    """A session of the planner; whatever it raises is attributed to the planner."""
    with calling(planner):
        return planner.open_plan(setup)


def follow(planner: LogitsPlanner, case: LogitsCase, setup: PlanSetup | None = None) -> Iterator[Answer]:
    """All steps of a case in one session. An answer is valid until the next one is taken, as output lists are live."""
    session = opened(planner, setup or case.setup())
    for batch in case.batches(planner.device):
        yield answered(planner, session, batch)


def oracle_of(planner: LogitsPlanner) -> LogitsPlanOracle:
    """The specification by the rounding and the policy that the planner declares."""
    return plan_oracle(rounding_of(planner), policy_of(planner, LogitsPolicy))


def specified(planner: LogitsPlanner, case: LogitsCase, answer: Answer) -> LogitRows:
    """The specification's answer to the same step."""
    given = answer.batch.replace(logits=answer.before.cpu())
    return as_float32(oracle_of(planner).process(given, case.setup()))


def as_float32(
    logits: Tensor,  # [num_rows, vocab_size] any
) -> Tensor:  # [num_rows, vocab_size] float32
    return logits.detach().to("cpu", torch.float32).contiguous()


def differing_rows(wanted: LogitRows, seen: LogitRows) -> list[int]:
    """Rows whose bits differ; any NaN equals any other."""
    same = (wanted.view(torch.int32) == seen.view(torch.int32)) | (wanted.isnan() & seen.isnan())
    return [int(row) for row in (~same).any(dim=1).nonzero().flatten()]


def wrong_logits(
    planner: LogitsPlanner, case: LogitsCase, answer: Answer, wanted: LogitRows, *, is_specified: bool
) -> RowsFlags:
    """Where the answer differs from `wanted`: in bits, or beyond what rounding and ties explain if none is declared.

    Args:
        is_specified: `wanted` is the specification's answer, and not one that is itself up to rounding.
    """
    found, due, declared = as_float32(answer.processed).numpy(), wanted.numpy(), rounding_of(planner)
    wrong: NDArray[np.bool_] = ~alike(found, due)
    wrong[sorted(unread_rows(planner, case, answer))] = False
    if declared is not Rounding.VLLM_TORCH and wrong.any():
        differing = set(np.flatnonzero(wrong.any(axis=1)).tolist())
        given = answer.batch.replace(logits=answer.before.cpu())
        bounds = logits_bounds(given, case.setup(), oracle_of(planner), differing)
        for row in sorted(differing):
            right = bounds[row].hold(found[row]) if is_specified else bounds[row].agree(found[row], due[row])
            if (
                declared is Rounding.VLLM_CUDA
            ):  # a tie may be decided differently; the logits that are kept must have the same bits
                right = right & (np.isneginf(found[row]) ^ np.isneginf(due[row])) | ~wrong[row]
            wrong[row] = ~right
    return wrong


def unread_rows(planner: LogitsPlanner, case: LogitsCase, answer: Answer) -> set[int]:
    """Rows of which nothing is required: those after a draft that a budget forbids, unless the planner has a rule."""
    if Capability.UNREACHED_ROWS in planner.capabilities:
        return set()
    setup, unread = case.setup(), set[int]()
    policy = policy_of(planner, LogitsPolicy).thinking
    oracle = ThinkingBudgetOracle(setup.start_token_ids, setup.end_token_ids, policy)
    for request, first in zip(answer.batch.requests, answer.batch.first_rows, strict=True):
        drafts, budget = request.draft_token_ids, request.params.thinking_token_budget
        forced = oracle.forced(request.prompt_token_ids, request.output_token_ids, drafts, budget)
        forbidden = [place for place, token_id in forced if place < len(drafts) and drafts[place] != token_id]
        unread.update(first + place for last in forbidden for place in range(last + 1, len(drafts) + 1))
    return unread


def as_specified(
    planner: LogitsPlanner, case: LogitsCase, answer: Answer, why: str, rows: set[int] | None = None
) -> None:
    """Logits equal those of the specification, in all rows or in `rows`; fails with the first difference."""
    wanted = specified(planner, case, answer)
    _fail_at_first(answer, wanted, wrong_logits(planner, case, answer, wanted, is_specified=True), why, rows)


def equal_to_the_oracle(planner: LogitsPlanner, case: LogitsCase) -> None:
    """Every step of a case is as specified."""
    for step, answer in enumerate(follow(planner, case)):
        as_specified(planner, case, answer, f"by the specification, in step {step}")


equality = partial(check, body=equal_to_the_oracle)


def same_logits(
    planner: LogitsPlanner, case: LogitsCase, answer: Answer, wanted: LogitRows, why: str, rows: set[int] | None = None
) -> None:
    """Logits equal those of another answer, in all rows or in `rows`; fails with the first difference."""
    _fail_at_first(answer, wanted, wrong_logits(planner, case, answer, wanted, is_specified=False), why, rows)


def _shortened(token_ids: list[int]) -> str:
    """A long text by its length and its end."""
    return str(token_ids) if len(token_ids) <= 20 else f"{len(token_ids)} tokens that end with {token_ids[-10:]}"


def _fail_at_first(answer: Answer, wanted: LogitRows, wrong: RowsFlags, why: str, rows: set[int] | None) -> None:
    differing = [int(row) for row in np.flatnonzero(wrong.any(axis=1)) if rows is None or row in rows]
    if not differing:
        return
    row, seen = differing[0], as_float32(answer.processed)
    token = int(np.flatnonzero(wrong[row])[0])
    who = answer.batch.rows()[row]
    broken(
        f"row {row} (request {who.request}, which sees {_shortened(who.token_ids)}): token {token} has logit "
        f"{float(seen[row, token]):.9g}, expected {float(wanted[row, token]):.9g} {why}; given "
        f"{float(answer.before[row, token]):.9g}"
    )
