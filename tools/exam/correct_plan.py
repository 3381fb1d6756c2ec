"""A correct logits planner, which compiles the parameters of a request once, when it enters, and keeps them by row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from exam.correct_scanners import BudgetRows, PenaltyRows, Rows
from fairdraw.protocols import Capabilities, Markers, RowOfRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fairdraw.protocols import AddedRow, LogitsBatch, LogitsParams, LogitsRequest, PlanSetup, RowChanges

_NEVER = np.float32(-np.inf)


@dataclass
class Compiled:
    """The parameters of one request, as arrays."""

    params: LogitsParams
    excluded: np.ndarray | None  # [vocab_size] bool
    words: list[list[int]]
    stops: np.ndarray  # [n] int64
    bias_ids: np.ndarray  # [n] int64
    biases: np.ndarray  # [n] float32

    @property
    def greedy(self) -> bool:
        return self.params.temperature < 1e-5


class Plan(Rows):
    """A session."""

    def __init__(self, setup: PlanSetup) -> None:
        super().__init__()
        self.setup, self.size = setup, setup.vocab_size
        self.penalties = self.penalty_rows()(setup.vocab_size)
        self.budgets = self.budget_rows()(Markers(setup.start_token_ids, setup.end_token_ids))

    def penalty_rows(self) -> type[PenaltyRows]:
        return PenaltyRows

    def budget_rows(self) -> type[BudgetRows]:
        return BudgetRows

    # -- rows

    def fresh(self, added: AddedRow) -> Compiled:
        params: LogitsParams = added.params
        bias = params.logit_bias or {}
        return Compiled(
            params,
            self.excluded(params),
            [list(word) for word in params.bad_words_token_ids or []],
            np.array(sorted(params.all_stop_token_ids), np.int64),
            np.array(list(bias), np.int64),
            np.array(list(bias.values()), np.float32),
        )

    def excluded(self, params: LogitsParams) -> np.ndarray | None:  # [vocab_size] bool
        if params.allowed_token_ids is None:
            return None
        mask = np.ones(self.size, bool)
        mask[np.array(params.allowed_token_ids, np.int64)] = False
        return mask

    def change(self, changes: RowChanges) -> None:
        for rows in (self, self.penalties, self.budgets):
            rows.sync(changes)

    # -- a step

    def process(self, batch: LogitsBatch) -> Tensor:  # [num_rows, vocab_size] float32
        if batch.change:
            self.change(batch.change)
        processed = batch.logits.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        logits, rows = processed.numpy(), batch.rows()
        forced = self.forced(batch)
        for request, live in enumerate(batch.requests):
            self.penalties.follow(self.penalties.rows[request], live.output_token_ids)
        for row in rows:
            self.before(logits[row.row], row, batch.requests[row.request])
        self.custom(processed, rows, False)
        for row in rows:
            self.middle(logits[row.row], row, batch.requests[row.request], forced)
        self.custom(processed, rows, True)
        for row in rows:
            if not self.rows[row.request].greedy:
                self.filter(logits[row.row], self.rows[row.request])
        return processed

    def forced(self, batch: LogitsBatch) -> dict[tuple[int, int], int]:
        """(request, position) to the token that must stand there."""
        found = {}
        for request, live in enumerate(batch.requests):
            state = self.budgets.rows[request]
            if state.budget is not None:
                self.budgets.follow(state, live.output_token_ids)
                for position, token in self.budgets.along(state, live.draft_token_ids):
                    found[request, position] = token
        return found

    def custom(self, logits: Tensor, rows: Sequence[RowOfRequest], invariant: bool) -> None:
        for processor in self.setup.custom_processors:
            if processor.is_argmax_invariant() != invariant:
                continue
            mine = [row for row in rows if processor.wants(self.rows[row.request].params)]
            if mine and not (invariant and all(self.rows[row.request].greedy for row in rows)):
                logits.copy_(processor.apply(logits, mine))

    # -- processors of one row, in place

    def before(self, logits: np.ndarray, row: RowOfRequest, live: LogitsRequest) -> None:
        own = self.rows[row.request]
        if own.excluded is not None:
            logits[own.excluded] = _NEVER
        self.bad_words(logits, own, row.token_ids)
        if len(row.token_ids) < own.params.min_tokens:
            logits[own.stops] = _NEVER
        logits[own.bias_ids] += own.biases

    def bad_words(self, logits: np.ndarray, own: Compiled, text: list[int]) -> None:
        for word in own.words:
            head = word[:-1]
            if len(head) <= len(text) and (not head or text[-len(head) :] == head):
                logits[word[-1]] = _NEVER

    def position(self, row: RowOfRequest, live: LogitsRequest) -> int:
        return len(row.token_ids) - len(live.output_token_ids)

    def middle(
        self, logits: np.ndarray, row: RowOfRequest, live: LogitsRequest, forced: dict[tuple[int, int], int]
    ) -> None:
        own, position = self.rows[row.request], self.position(row, live)
        if own.params.penalised:
            self.penalties.apply(logits, row.request, live, live.draft_token_ids[:position])  # type: ignore[arg-type]
        token = forced.get((row.request, position))
        if token is not None:
            logits[token] = np.float32(1e9)
        if not own.greedy:
            self.cool(logits, own)
            self.min_p(logits, own.params.min_p)

    def cool(self, logits: np.ndarray, own: Compiled) -> None:
        if own.params.temperature != 1:
            logits /= np.float32(own.params.temperature)

    def min_p(self, logits: np.ndarray, min_p: float) -> None:
        if min_p > 0:
            probs = softmax(logits)
            logits[probs < probs.max() * np.float32(min_p)] = _NEVER

    def filter(self, logits: np.ndarray, own: Compiled) -> None:
        self.top_k(logits, own.params.top_k)
        self.top_p(logits, own.params.top_p)

    def top_k(self, logits: np.ndarray, top_k: int) -> None:
        if 0 < top_k < len(logits):
            logits[logits < np.partition(logits, len(logits) - top_k)[len(logits) - top_k]] = _NEVER

    def top_p(self, logits: np.ndarray, top_p: float) -> None:
        if top_p < 1:
            ascending = np.argsort(logits, kind="stable")
            tail = np.cumsum(softmax(logits)[ascending], dtype=np.float64).astype(np.float32) <= 1 - np.float32(top_p)
            tail[-1] = False
            logits[ascending[tail]] = _NEVER


def softmax(logits: np.ndarray) -> np.ndarray:  # [vocab_size] float32, both
    return torch.from_numpy(logits).softmax(0).numpy()


class Planner:
    """The planner."""

    name, device = "correct", "cpu"
    contract: Literal["logits_plan"] = "logits_plan"
    plan: type[Plan] = Plan

    @property
    def capabilities(self) -> Capabilities:
        nan = "NaN is caught before"
        return Capabilities.of({"copy-free": "it always copies", "nan-logits": nan, "empty-rows": nan})

    def open_plan(self, setup: PlanSetup) -> Plan:
        return self.plan(setup)
