"""The logits-plan contract: a correct planner, which keeps what a row is parametrised by from its first step on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from exam.examined import Examined, Lazy
from exam.scanners import BudgetRows, PenaltyRows, Rows, State
from fairdraw.contracts import Capabilities, Markers

if TYPE_CHECKING:
    from torch import Tensor

    from fairdraw.contracts import AddedRow, LogitsBatch, LogitsParams, PlanSetup, RowOfRequest

_NEVER = np.float32(-np.inf)


@dataclass
class Compiled(State):
    """The parameters of one request, as arrays."""

    excluded: np.ndarray | None = None  # [vocab_size] bool
    stops: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # [n] int64


class Plan(Rows):
    """A session."""

    def __init__(self, scanner: Examined, setup: PlanSetup) -> None:
        super().__init__(scanner)
        self.setup, right = setup, Examined()
        self.penalties = PenaltyRows(right, setup.vocab_size)
        self.budgets = BudgetRows(right, Markers(setup.start_token_ids, setup.end_token_ids))
        self.half = False

    def about(self, row: int, **more: Any) -> Lazy:
        params = self.rows[row].params if row in self.rows else None

        def has(name: str, off: Any) -> bool:
            return params is not None and getattr(params, name) not in off

        others = [self.rows[one].params for one in self.rows if one != row]
        greedy = params is not None and params.temperature < 1e-5
        return super().about(
            row,
            **more,
            vocab_size=self.setup.vocab_size,
            half=self.half,
            has_bias=has("logit_bias", (None,)),
            has_min_tokens=has("min_tokens", (0,)),
            has_bad_words=has("bad_words_token_ids", (None, [])),
            has_allowed=has("allowed_token_ids", (None,)),
            has_penalty=params is not None and params.penalised,
            has_budget=has("thinking_token_budget", (None,)),
            has_min_p=has("min_p", (0,)),
            has_top_k=has("top_k", (0, -1)),
            has_top_p=has("top_p", (1,)),
            greedy=greedy,
            random=not greedy,
            among_greedy=any(one.temperature < 1e-5 for one in others),
            among_biased=any(one.logit_bias for one in others),
        )

    def fresh(self, added: AddedRow, former: Any) -> Compiled:
        params: LogitsParams = added.params
        state = Compiled(*self.base(added), stops=np.array(sorted(params.all_stop_token_ids), np.int64))
        if params.allowed_token_ids is not None:
            state.excluded = np.ones(self.setup.vocab_size, bool)
            state.excluded[np.array(params.allowed_token_ids, np.int64)] = False
        if former is not None:
            self.rows[added.row] = state  # features are those of the new request
            if self.strikes("left over", added.row):
                return Compiled(former.params, *self.base(added)[1:], excluded=former.excluded, stops=former.stops)
        return state

    def process(self, batch: LogitsBatch) -> Tensor:  # [num_rows, vocab_size] float32
        if batch.change:
            self.sync(batch.change)
            self.penalties.sync(batch.change)
            self.budgets.sync(batch.change)
        self.half = batch.logits.dtype != torch.float32
        self.begin(batch.requests)
        processed = batch.logits.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        logits, rows = processed.numpy(), batch.rows()
        answers = self.budgets.answers(batch.requests)
        forced = {(request, place): token for request, answer in answers.items() for place, token in answer}
        for request, live in enumerate(batch.requests):
            self.penalties.follow(request, live.output_token_ids)
        for row in rows:
            self.before(logits[row.row], row, batch)
        self.custom(processed, rows, invariant=False)
        for row in rows:
            self.middle(logits[row.row], row, batch, forced)
        self.custom(processed, rows, invariant=True)
        for row in rows:
            if not self.own(row, batch)[0].params.temperature < 1e-5:
                self.filter(logits[row.row], row, batch)
        for request in range(batch.batch_size):
            if self.strikes("input written", request):
                batch.logits[batch.first_rows[request]] *= 0.5
        self.end()
        return processed

    def own(self, row: RowOfRequest, batch: LogitsBatch) -> tuple[Compiled, dict[str, Any]]:
        """Return the parameters of a row, and where it is."""
        place = len(row.token_ids) - len(batch.requests[row.request].output_token_ids)
        where = {"place": place, "line": row.row}
        if row.request and self.strikes("neighbour", row.request, **where):
            return self.rows[row.request - 1], where
        return self.rows[row.request], where

    def custom(self, logits: Tensor, rows: list[RowOfRequest], *, invariant: bool) -> None:
        for processor in self.setup.custom_processors:
            if processor.is_argmax_invariant() == invariant:
                mine = [row for row in rows if processor.wants(self.rows[row.request].params)]
                if mine and not (invariant and all(self.rows[r.request].params.temperature < 1e-5 for r in rows)):
                    logits.copy_(processor.apply(logits, mine))

    # -- processors of one row, in place

    def before(self, logits: np.ndarray, row: RowOfRequest, batch: LogitsBatch) -> None:
        own, where = self.own(row, batch)
        params, text = own.params, row.token_ids
        if where["place"] and self.strikes("drafts unseen", row.request, **where):
            text = text[: -where["place"]]
        if own.excluded is not None and not self.strikes("no allowed", row.request, **where):
            logits[own.excluded] = _NEVER
        if not self.strikes("no bad words", row.request, **where):
            for word in params.bad_words_token_ids or []:
                head = list(word[:-1])
                if len(head) <= len(text) and (not head or text[-len(head) :] == head):
                    logits[word[-1]] = _NEVER
        if len(text) < params.min_tokens - self.strikes("min tokens", row.request, **where):
            logits[own.stops] = _NEVER
        times = 1 - self.strikes("no bias", row.request, **where) + self.strikes("bias twice", row.request, **where)
        for _ in range(times):
            for token, bias in (params.logit_bias or {}).items():
                logits[token] += np.float32(bias)

    def middle(
        self, logits: np.ndarray, row: RowOfRequest, batch: LogitsBatch, forced: dict[tuple[int, int], int]
    ) -> None:
        (own, where), live = self.own(row, batch), batch.requests[row.request]
        if self.rows[row.request].params.penalised and not self.strikes("no penalties", row.request, **where):
            self.penalties.apply(logits, row.request, live, where["place"])  # type: ignore[arg-type]  # it has drafts
        token = forced.get((row.request, where["place"]))
        if token is not None and not self.strikes("not forced", row.request, **where):
            logits[token] = np.float32(1e9)
        if own.params.temperature >= 1e-5:
            logits /= np.float32(own.params.temperature)
            if self.strikes("hot", row.request, **where):
                logits /= np.float32(self.scanner.size)
            if own.params.min_p > 0 and not self.strikes("no min_p", row.request, **where):
                probs = softmax(logits)
                logits[probs < probs.max() * np.float32(own.params.min_p)] = _NEVER

    def filter(self, logits: np.ndarray, row: RowOfRequest, batch: LogitsBatch) -> None:
        own, where = self.own(row, batch)
        top_k, top_p = own.params.top_k, own.params.top_p
        if 0 < top_k < len(logits) and not self.strikes("no top_k", row.request, **where):
            top_k = min(len(logits), top_k + self.strikes("wide top_k", row.request, **where))
            logits[logits < np.partition(logits, len(logits) - top_k)[len(logits) - top_k]] = _NEVER
        if top_p < 1 and not self.strikes("no top_p", row.request, **where):
            if self.strikes("narrow top_p", row.request, **where):
                top_p *= self.scanner.size
            ascending = np.argsort(logits, kind="stable")
            tail = np.cumsum(softmax(logits)[ascending], dtype=np.float64).astype(np.float32) <= 1 - np.float32(top_p)
            tail[-1] = False
            logits[ascending[tail]] = _NEVER


def softmax(logits: np.ndarray) -> np.ndarray:  # [vocab_size] float32, both
    return torch.from_numpy(logits).softmax(0).numpy()


class Planner(Examined):
    """The planner."""

    contract = "logits_plan"

    capabilities = Capabilities.of(dict.fromkeys(("copy-free", "nan-logits", "empty-rows"), "it has no such mode"))

    def open_plan(self, setup: PlanSetup) -> Plan:
        return Plan(self, setup)
