"""Words that the checks of the logits-plan contract share: follow a case, compare bits, count copies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fairdraw.failures import AdapterError, calling
from fairdraw.oracles.logits_plan import process as oracle_process
from fairdraw.properties._asserts import broken

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from fairdraw.protocols._logits_plan import LogitsBatch, LogitsPlanner, LogitsSession, PlanSetup
    from fairdraw.strategies.logits_plan import LogitsCase

__all__ = [
    "Answer",
    "Counted",
    "answered",
    "as_float32",
    "differing_rows",
    "expected",
    "follow",
    "opened",
    "same_logits",
]

_COPYING = ("aten::_to_copy", "aten::clone", "aten::copy_")


class Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Names of the operations that were dispatched, and how many of them copied all logits."""

    def __init__(self, shape: torch.Size) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # nor here
        self.operations: list[str] = []
        self.num_copies = 0
        self._shape = shape

    def __torch_dispatch__(
        self,
        func: Any,  # Any: torch's own operator objects, values and arguments
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = str(func.name()).partition(".")[0]
        self.operations.append(name)
        is_logits = isinstance(result, torch.Tensor) and result.shape == self._shape and result.is_floating_point()
        self.num_copies += is_logits and name in _COPYING
        return result


@dataclass(frozen=True, eq=False)
class Answer:
    """What one step gave.

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
        """The very tensor that was given came back."""
        return self.processed is self.batch.logits


def answered(planner: LogitsPlanner, session: LogitsSession, batch: LogitsBatch) -> Answer:
    """One step, its operations counted, and its answer checked.

    Raises:
        AdapterError: If the answer is no tensor of logits.
    """
    before, counted = batch.logits.clone(), Counted(batch.logits.shape)
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
    """A session of the planner's; what it raises is marked as the planner's own."""
    with calling(planner):
        return planner.open_plan(setup)


def follow(planner: LogitsPlanner, case: LogitsCase, setup: PlanSetup | None = None) -> Iterator[Answer]:
    """All steps of a case in one session. An answer holds until the next one is taken, as output lists are live."""
    session = opened(planner, setup or case.setup())
    for batch in case.batches(planner.device):
        yield answered(planner, session, batch)


def expected(case: LogitsCase, answer: Answer) -> Tensor:  # [num_rows, vocab_size] float32
    """What the specification says of the same step."""
    return as_float32(oracle_process(answer.batch.replace(logits=answer.before.cpu()), case.setup()))


def as_float32(
    logits: Tensor,  # [num_rows, vocab_size] any
) -> Tensor:  # [num_rows, vocab_size] float32
    return logits.detach().to("cpu", torch.float32).contiguous()


def differing_rows(
    wanted: Tensor,  # [num_rows, vocab_size] float32
    seen: Tensor,  # [num_rows, vocab_size] float32
) -> list[int]:
    """Rows whose bits differ; any NaN equals any other."""
    same = (wanted.view(torch.int32) == seen.view(torch.int32)) | (wanted.isnan() & seen.isnan())
    return [int(row) for row in (~same).any(dim=1).nonzero().flatten()]


def same_logits(
    wanted: Tensor,  # [num_rows, vocab_size] float32
    answer: Answer,
    why: str,
    rows: set[int] | None = None,
) -> None:
    """Bits agree, in all rows or in `rows`; says where they first differ."""
    seen = as_float32(answer.processed)
    differing = [row for row in differing_rows(wanted, seen) if rows is None or row in rows]
    if not differing:
        return
    row = differing[0]
    token = int((wanted[row].view(torch.int32) != seen[row].view(torch.int32)).nonzero()[0])
    who = answer.batch.rows()[row]
    broken(
        f"row {row} (request {who.request}, which sees {who.token_ids}): token {token} has logit "
        f"{float(seen[row, token]):.9g}, expected {float(wanted[row, token]):.9g} {why}; given "
        f"{float(answer.before[row, token]):.9g}"
    )
