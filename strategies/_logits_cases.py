"""Recipes of the logits-plan contract: a live batch, its logits, and the events between its steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from fairdraw.contracts import CustomLogitsProcessor, LogitsBatch, LogitsRequest, PlanSetup, RowChanges
from fairdraw.strategies._arguments import one_of
from fairdraw.strategies._cases import _argument, strided_like
from fairdraw.strategies._logits_requests import CUSTOM_PROCESSORS, END, START, LogitsRequestRecipe
from fairdraw.strategies._logits_values import MIN_VOCAB_SIZE, logits_row, ordinary_ids
from fairdraw.strategies._recipe import BatchRecipe, PrintsAsCode, Recipe
from fairdraw.strategies._serving_batch import ServedRequest, ServingBatch
from fairdraw.strategies.rows import bulk_rng

EVENT_KINDS = ("grow", "cut", "replace", "join", "leave", "swap")
"""Between two steps outputs grow and drafts are new. Beyond that: nothing; an output loses its end; a row gets another
request, with other parameters; a request joins; one leaves, and the last row takes its place; two rows swap."""
RARE_EVENT_KINDS = ("regrow", "renew", "burst", "cut-most")
"""An output loses its end and gets another, and is then as long as at the last step; a request is added again, with its
output list and other parameters; an output gets 300 tokens at once; it loses all tokens but two."""


@dataclass(frozen=True, repr=False)
class EventRecipe(Recipe):
    """An event between two steps.

    Args:
        kind: One of `EVENT_KINDS` or `RARE_EVENT_KINDS`; several, joined by `+`, happen in one step.
        row: The row it applies to, modulo the batch size.
        request: The request that enters, if one does.
        rows: The number of rows it applies to, from `row` on. If there are several, requests of the case enter again.

    Raises:
        ValueError: If the kind is unknown.
    """

    kind: str = "grow"
    row: int = 0
    request: LogitsRequestRecipe = field(default_factory=LogitsRequestRecipe)
    rows: int = 1

    def __post_init__(self) -> None:
        for kind in self.kinds:
            one_of("EventRecipe", "kind", kind, (*EVENT_KINDS, *RARE_EVENT_KINDS))

    @property
    def kinds(self) -> list[str]:
        """What happens, in this order."""
        return self.kind.split("+")


class _DrawnLogits(PrintsAsCode, LogitsBatch):
    """A batch that Hypothesis prints by its origin."""


@dataclass(frozen=True, repr=False)
class LogitsCase(BatchRecipe):
    """A live batch over one or more steps.

    Args:
        events: Between the steps, so there is one step more than events.
        dtype: Of the logits (`DTYPES`).
        layout: Strides of the logits (`LAYOUTS`).

    Raises:
        ValueError: If a size is too small or a word unknown.
    """

    vocab_size: int
    requests: tuple[LogitsRequestRecipe, ...]
    events: tuple[EventRecipe, ...] = ()
    dtype: str = "float32"
    layout: str = "contiguous"
    seed: int = 0

    def __post_init__(self) -> None:
        self._check("LogitsRequestRecipe()")
        thinking = any(request.thinks for request in (*self.requests, *(event.request for event in self.events)))
        if thinking and self.vocab_size < MIN_VOCAB_SIZE:
            raise ValueError(
                f"LogitsCase: vocab_size={self.vocab_size}, but it must be at least {MIN_VOCAB_SIZE} where a request "
                "thinks. Use a larger one."
            )

    def setup(self, custom_processors: tuple[CustomLogitsProcessor, ...] = CUSTOM_PROCESSORS) -> PlanSetup:
        """The arguments that a session is opened with."""
        last = self.vocab_size - 1
        markers = (START, END) if self.vocab_size >= MIN_VOCAB_SIZE else ((0,), (last, last))
        return PlanSetup(self.vocab_size, *markers, custom_processors)

    def batches(self, device: str = "cpu") -> Iterator[LogitsBatch]:
        """The steps in order. Outputs are live: a batch is valid until the next one is taken."""
        server = _Server(self)
        yield self._batch(0, server, server.batch.take_changes(), device)
        for step, event in enumerate(self.events, start=1):
            yield self._batch(step, server, server.apply(step, event), device)

    def batch(self, device: str = "cpu") -> LogitsBatch:
        """The first step."""
        return next(self.batches(device))

    def _batch(self, step: int, server: _Server, changes: RowChanges, device: str) -> LogitsBatch:
        live = server.batch.requests
        requests = tuple(
            LogitsRequest(r.params, r.prompt_token_ids, r.output_token_ids, r.draft_token_ids)  # type: ignore[arg-type]
            for r in live
        )
        kinds = [server.recipes[r.req_id].logits for r in live for _ in range(len(r.draft_token_ids) + 1)]
        numbers = [logits_row(kind, self.vocab_size, row_seed(self.seed, step, i)) for i, kind in enumerate(kinds)]
        logits = torch.from_numpy(np.stack(numbers)).to(getattr(torch, self.dtype))
        where = _argument(device)
        origin = f"{self!r}.batch({where})" if step == 0 else f"list({self!r}.batches({where}))[{step}]"
        return _DrawnLogits(strided_like(logits.to(device), self.layout), requests, changes or None, origin=origin)

    def build(self) -> None:
        """Build everything once; raises what a damaged recipe raises."""
        for _ in self.batches():
            pass


def row_seed(seed: int, step: int, row: int) -> int:
    """One seed per row of logits; rows of one step differ, as do steps."""
    return seed * 1000 + step * 100 + row


class _Server:
    """A serving batch whose requests and drafts follow from the recipes of a case."""

    def __init__(self, case: LogitsCase) -> None:
        self.case = case
        most = len(case.requests) + sum(event.rows * len(event.kinds) for event in case.events)
        self.batch = ServingBatch(case.vocab_size, most_requests=most)
        self.recipes: dict[str, LogitsRequestRecipe] = {}
        self.lengths: dict[str, int] = {}
        """Of the outputs at the last step."""
        for i, recipe in enumerate(case.requests):
            self._join(recipe, case.seed + i)

    def _join(self, recipe: LogitsRequestRecipe, seed: int) -> None:
        made = recipe.request(self.case.vocab_size, seed)
        entered = self.batch.add(made.params, made.prompt_token_ids, made.output_token_ids)
        assert entered is not None, "there is room for every event"
        entered.draft_token_ids = made.draft_token_ids
        entered.late_token_ids = ordinary_ids(bulk_rng("late", seed), self.case.vocab_size, int(recipe.is_late))
        self.recipes[entered.req_id] = recipe

    def apply(self, step: int, event: EventRecipe) -> RowChanges:
        """Outputs grow, the event happens, and every request has new drafts."""
        batch, case = self.batch, self.case
        self.lengths = {request.req_id: len(request.output_token_ids) for request in batch.requests}
        for request in batch.requests:
            rng = bulk_rng(case.seed, step, "emit", tuple(request.output_token_ids))
            drafts = request.draft_token_ids
            accepted = [i for i in drafts if i >= 0][: int(rng.integers(len(drafts) + 1))]
            emitted = [*accepted, *ordinary_ids(rng, case.vocab_size, 1)]
            batch.emit(request, emitted, num_late=len(emitted) if self.recipes[request.req_id].is_late else 0)
        for kind in event.kinds:
            for i in range(event.rows):
                entering = event.request if event.rows == 1 else case.requests[(step + i) % len(case.requests)]
                self._happen(kind, event.row + i, entering, case.seed + 100 * step + i)
        changes = batch.take_changes()
        for i, request in enumerate(batch.requests):
            rng = bulk_rng(case.seed, step, "drafts", i)
            request.draft_token_ids = self.recipes[request.req_id].drafts(rng, case.vocab_size, step + i)
        return changes

    def _happen(self, kind: str, place: int, entering: LogitsRequestRecipe, seed: int) -> None:
        """One event of one row."""
        batch, num_requests = self.batch, len(self.batch.requests)
        row, other = batch.at(place), batch.at(place + 1)
        assert row is not None, "the last request stays"
        assert other is not None
        if kind == "cut":
            batch.cut(batch.in_row(row), 2)
        if kind == "cut-most":
            batch.cut(batch.in_row(row), max(0, len(batch.in_row(row).output_token_ids) - 2))
        if kind == "burst":
            batch.emit(batch.in_row(row), ordinary_ids(bulk_rng("burst", seed), self.case.vocab_size, 300))
        if kind == "regrow":
            self._regrow(batch.in_row(row))
        if kind == "swap":
            batch.swap(row, other)
        if kind == "renew":
            self._renew(row, entering, seed)
        if kind == "replace" or (kind == "leave" and num_requests > 1):
            batch.remove(row)
        if kind in ("replace", "join"):
            self._join(entering, seed)

    def _regrow(self, request: ServedRequest) -> None:
        """The last two tokens that the last step saw are others now, and it is as long as it was then."""
        output = request.output_token_ids
        length = self.lengths.get(request.req_id, len(output))
        kept = max(0, length - 2)
        others = [self._another(token_id) for token_id in output[kept:length]]
        self.batch.cut(request, len(output) - kept)
        self.batch.emit(request, others)

    def _another(self, token_id: int) -> int:
        """The next of the ids that are no markers."""
        later = token_id + 1
        return later if later < self.case.vocab_size else 4 % self.case.vocab_size

    def _renew(self, row: int, entering: LogitsRequestRecipe, seed: int) -> None:
        batch = self.batch
        batch.preempt(row)
        request = batch.waiting[-1]
        own = self.recipes[request.req_id]
        if not (own.thinks or entering.thinks):  # where one thinks, the prompt would have to be another
            request.params = entering.request(self.case.vocab_size, seed).params
        batch.resume(same_list=True)
