"""Recipes of the logits-plan contract: a live batch, its logits, and what happens to it between steps."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fairdraw.protocols._logits_plan import (
    BatchChange,
    CustomLogitsProcessor,
    LogitsBatch,
    LogitsParams,
    LogitsRequest,
    MoveDirection,
    PlanSetup,
)
from fairdraw.strategies._arguments import one_of
from fairdraw.strategies._cases import DTYPES, LAYOUTS, _laid_out
from fairdraw.strategies._logits_requests import (
    CUSTOM_PROCESSORS,
    END,
    MIN_VOCAB_SIZE,
    START,
    LogitsRequestRecipe,
    ordinary_ids,
)
from fairdraw.strategies._recipe import PrintsAsCode, Recipe
from fairdraw.strategies.rows import bulk_rng, target_row

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["EVENT_KINDS", "EventRecipe", "LogitsCase"]

EVENT_KINDS = ("grow", "cut", "replace", "join", "leave", "swap")
"""Between two steps: outputs grow and drafts are new; an output loses its end; a row gets another request, with other
parameters; a request joins; one leaves, and the last row takes its place; two rows swap."""


@dataclass(frozen=True, repr=False)
class EventRecipe(Recipe):
    """What happens between two steps.

    Args:
        kind: One of `EVENT_KINDS`.
        row: To whom, modulo the batch size.
        request: Who comes, where somebody does.

    Raises:
        ValueError: If the kind is unknown.
    """

    kind: str = "grow"
    row: int = 0
    request: LogitsRequestRecipe = field(default_factory=LogitsRequestRecipe)

    def __post_init__(self) -> None:
        one_of("EventRecipe", "kind", self.kind, EVENT_KINDS)


class _DrawnLogits(PrintsAsCode, LogitsBatch):
    """A batch that Hypothesis prints by its origin."""


@dataclass(frozen=True, repr=False)
class LogitsCase(Recipe):
    """A live batch over one or more steps.

    Args:
        events: Between the steps; there is one step more than events.
        dtype: Of the logits (`DTYPES`).
        layout: Strides of the logits (`LAYOUTS`).

    Raises:
        ValueError: If a size or a word is none.
    """

    vocab_size: int
    requests: tuple[LogitsRequestRecipe, ...]
    events: tuple[EventRecipe, ...] = ()
    dtype: str = "float32"
    layout: str = "contiguous"
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("LogitsCase", "dtype", self.dtype, DTYPES)
        one_of("LogitsCase", "layout", self.layout, LAYOUTS)
        if self.vocab_size < MIN_VOCAB_SIZE or not self.requests:
            raise ValueError(
                f"LogitsCase: vocab_size={self.vocab_size}, len(requests)={len(self.requests)}, but they must be at "
                f"least {MIN_VOCAB_SIZE} and 1. Use larger ones."
            )

    def setup(self, custom_processors: tuple[CustomLogitsProcessor, ...] = CUSTOM_PROCESSORS) -> PlanSetup:
        """What a session is opened with."""
        return PlanSetup(self.vocab_size, START, END, custom_processors)

    def batches(self, device: str = "cpu") -> Iterator[LogitsBatch]:
        """The steps, one after the other. Outputs are live: a batch holds until the next one is taken."""
        rows = [(r, r.request(self.vocab_size, self.seed + i)) for i, r in enumerate(self.requests)]
        everybody = [_added(i, request) for i, (_, request) in enumerate(rows)]
        yield self._batch(0, rows, BatchChange(added=everybody, batch_size=len(rows)), device)
        for step, event in enumerate(self.events, start=1):
            happening = _Happening(self, step, event)
            rows, change = happening.to(rows)
            yield self._batch(step, rows, change, device)

    def batch(self, device: str = "cpu") -> LogitsBatch:
        """The first step."""
        return next(self.batches(device))

    def _batch(
        self, step: int, rows: list[tuple[LogitsRequestRecipe, LogitsRequest]], change: BatchChange | None, device: str
    ) -> LogitsBatch:
        kinds = [recipe.logits for recipe, request in rows for _ in range(len(request.draft_token_ids) + 1)]
        numbers = [target_row(kind, self.vocab_size, row_seed(self.seed, step, i)) for i, kind in enumerate(kinds)]
        logits = torch.from_numpy(np.stack(numbers)).to(getattr(torch, self.dtype))
        where = "" if device == "cpu" else repr(device)
        origin = f"{self!r}.batch({where})" if step == 0 else f"list({self!r}.batches({where}))[{step}]"
        requests = tuple(request for _, request in rows)
        return _DrawnLogits(_laid_out(logits, self.layout).to(device), requests, change, origin)

    def build(self) -> None:
        """Make everything once: raises what a damaged recipe raises."""
        for _ in self.batches():
            pass

    def replace(self, **changes: Any) -> LogitsCase:  # Any: one field each, checked by the constructor
        """A copy with some fields replaced."""
        return dataclasses.replace(self, **changes)

    def to_json(self) -> dict[str, Any]:  # Any: JSON
        """Plain data for a crash file."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> LogitsCase:  # Any: JSON
        """The case that `to_json` described.

        Raises:
            TypeError: If a field is missing or unknown.
            ValueError: If a value is none that a case could have.
        """
        events = [{**event, "request": _request_from(event.get("request", {}))} for event in data.get("events", ())]
        requests = tuple(_request_from(request) for request in data.get("requests", ()))
        return LogitsCase(**{**data, "requests": requests, "events": tuple(EventRecipe(**event) for event in events)})


def _request_from(data: dict[str, Any]) -> LogitsRequestRecipe:  # Any: JSON
    return LogitsRequestRecipe(**{**data, "kinds": tuple(data.get("kinds", ()))})


def _added(row: int, request: LogitsRequest) -> tuple[int, LogitsParams, list[int] | None, list[int]]:
    return row, request.params, request.prompt_token_ids, request.output_token_ids


def row_seed(seed: int, step: int, row: int) -> int:
    """One seed per row of logits; rows of one step differ, as do steps."""
    return seed * 1000 + step * 100 + row


_Rows = list[tuple[LogitsRequestRecipe, LogitsRequest]]


@dataclass(frozen=True)
class _Happening:
    """One event, applied to the rows of a batch."""

    case: LogitsCase
    step: int
    event: EventRecipe

    def to(self, rows: _Rows) -> tuple[_Rows, BatchChange | None]:
        """The rows after it, with new drafts, and the change that a session is told of."""
        row = self.event.row % len(rows)
        for recipe, request in rows:
            self._emit(recipe, request)
        after, change = getattr(self, self.event.kind)(list(rows), row)
        drafted = [
            (recipe, dataclasses.replace(request, draft_token_ids=self._drafts(recipe, i)))
            for i, (recipe, request) in enumerate(after)
        ]
        return drafted, change

    def _rng(self, *parts: object) -> np.random.Generator:
        return bulk_rng(self.case.seed, self.step, *parts)

    def _emit(self, recipe: LogitsRequestRecipe, request: LogitsRequest) -> None:
        """Some drafts are accepted, and one token follows."""
        rng = self._rng("emit", tuple(request.output_token_ids))
        accepted = [i for i in request.draft_token_ids if i >= 0][: int(rng.integers(len(request.draft_token_ids) + 1))]
        request.output_token_ids.extend([*accepted, *ordinary_ids(rng, self.case.vocab_size, 1)])

    def _drafts(self, recipe: LogitsRequestRecipe, row: int) -> list[int]:
        return recipe.drafts(self._rng("drafts", row), self.case.vocab_size)

    def _comer(self) -> tuple[LogitsRequestRecipe, LogitsRequest]:
        recipe = self.event.request
        return recipe, recipe.request(self.case.vocab_size, self.case.seed + 100 * self.step)

    def grow(self, rows: _Rows, row: int) -> tuple[_Rows, BatchChange | None]:
        return rows, None

    def cut(self, rows: _Rows, row: int) -> tuple[_Rows, BatchChange | None]:
        del rows[row][1].output_token_ids[-2:]
        return rows, None

    def replace(self, rows: _Rows, row: int) -> tuple[_Rows, BatchChange | None]:
        """A row that is filled again is not reported as removed, as in vLLM."""
        rows[row] = self._comer()
        return rows, BatchChange([], [_added(row, rows[row][1])], [], len(rows))

    def join(self, rows: _Rows, row: int) -> tuple[_Rows, BatchChange | None]:
        rows.append(self._comer())
        return rows, BatchChange([], [_added(len(rows) - 1, rows[-1][1])], [], len(rows))

    def leave(self, rows: _Rows, row: int) -> tuple[_Rows, BatchChange | None]:
        if len(rows) == 1:
            return rows, None
        last = len(rows) - 1
        moved = [(last, row, MoveDirection.UNIDIRECTIONAL)] if row != last else []
        rows[row] = rows[last]
        return rows[:last], BatchChange([row], [], moved, last)

    def swap(self, rows: _Rows, row: int) -> tuple[_Rows, BatchChange | None]:
        other = (row + 1) % len(rows)
        if other == row:
            return rows, None
        rows[row], rows[other] = rows[other], rows[row]
        return rows, BatchChange([], [], [(row, other, MoveDirection.SWAP)], len(rows))
