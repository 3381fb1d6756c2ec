"""The logits-plan contract: a right planner, which keeps the parameters of each row from the step in which it enters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from exam.conditions import Feature, flag
from exam.planted import Effect, Fault, Lazy, Planted
from exam.scanners import FEATURES as LIVE
from exam.scanners import BudgetRows, PenaltyRows, Rows, State
from fairdraw.protocols import Capabilities, Markers

if TYPE_CHECKING:
    from torch import Tensor

    from fairdraw.protocols import AddedRow, LogitsBatch, LogitsParams, PlanSetup, RowOfRequest

_NEVER = np.float32(-np.inf)
_OTHERS = r"other requests|neighbour|beside|every pair|processor"
FEATURES = [
    *(one for one in LIVE if one.name != "token"),
    Feature("vocab_size", "size", "vocabulary", r"vocabular", 12, 2000),
    Feature("line", "index", "row of logits", r"row", 0, 200),
    flag("half", "layout", "logits are bfloat16", r"half|float16|dtype|precision"),
    flag("has_bias", "request", "the request has a logit bias", r"bias"),
    flag("has_min_tokens", "request", "the request has minimum tokens", r"min.?tokens|minimum|stop"),
    flag("has_bad_words", "request", "the request has bad words", r"bad.?word"),
    flag("has_allowed", "request", "the request has allowed ids", r"allowed"),
    flag("has_penalty", "request", "the request has penalties", r"penal"),
    flag("has_budget", "request", "the request has a thinking budget", r"budget|think|forced"),
    flag("has_min_p", "request", "the request has min-p", r"min.?p"),
    flag("has_top_k", "request", "the request has top-k", r"top.?k"),
    flag("has_top_p", "request", "the request has top-p", r"top.?p"),
    flag("greedy", "request", "the request is greedy", r"greedy|temperature"),
    flag("among_greedy", "neighbour", "another request is greedy", r"greedy|" + _OTHERS),
    flag("among_biased", "neighbour", "another request has a logit bias", r"bias|" + _OTHERS),
]
_LOGITS = r"logit|oracle|processor|equal"
EFFECTS = {
    "no allowed": Effect("allowed ids are not applied", r"allowed|" + _LOGITS, ("has_allowed",), rare=True),
    "no bad words": Effect("bad words are not applied", r"bad.?word|" + _LOGITS, ("has_bad_words",), rare=True),
    "min tokens": Effect("minimum tokens are one fewer", r"min.?tokens|minimum|stop|" + _LOGITS, ("has_min_tokens",)),
    "no bias": Effect("the logit bias is not applied", r"bias|" + _LOGITS, ("has_bias",), rare=True),
    "bias twice": Effect("the logit bias is applied twice", r"bias|" + _LOGITS, ("has_bias",)),
    "no penalties": Effect("penalties are not applied", r"penal|" + _LOGITS, ("has_penalty",), rare=True),
    "not forced": Effect("a token is not forced", r"budget|think|forced|" + _LOGITS, ("has_budget",)),
    "hot": Effect("the temperature is multiplied by {:.2f}", r"temperature|" + _LOGITS, ("random",), sizes=(1.05, 1.2)),
    "no min_p": Effect("min-p is not applied", r"min.?p|" + _LOGITS, ("has_min_p", "random"), rare=True),
    "no top_k": Effect("top-k is not applied", r"top.?k|" + _LOGITS, ("has_top_k", "random"), rare=True),
    "wide top_k": Effect("top-k keeps one token more", r"top.?k|" + _LOGITS, ("has_top_k", "random")),
    "no top_p": Effect("top-p is not applied", r"top.?p|" + _LOGITS, ("has_top_p", "random"), rare=True),
    "narrow top_p": Effect("top-p is multiplied by {:.2f}", r"top.?p|" + _LOGITS, ("has_top_p",), sizes=(0.7, 0.9)),
    "left over": Effect("a request that enters keeps the parameters of the row's former one", _LOGITS + "|former"),
    "not moved": Effect("the parameters do not follow a move", _LOGITS + "|mov|swap"),
    "neighbour": Effect("the parameters of the row before are used", _LOGITS + "|row", rare=True),
    "drafts unseen": Effect("a row does not see the drafts before it", _LOGITS + "|draft"),
    "input written": Effect("the logits that were given are halved", r"modif|written|wrote|input|chang|intact"),
}


@dataclass
class Compiled(State):
    """The parameters of one request, as arrays."""

    excluded: np.ndarray | None = None  # [vocab_size] bool
    stops: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # [n] int64


class Plan(Rows):
    """A session."""

    def __init__(self, scanner: Planted, setup: PlanSetup) -> None:
        super().__init__(scanner)
        self.setup, right = setup, Planted()
        self.penalties = PenaltyRows(right, setup.vocab_size)
        self.budgets = BudgetRows(right, Markers(setup.start_token_ids, setup.end_token_ids))
        self.half = False

    def about(self, row: int, **more: Any) -> Lazy:
        params = self.rows[row].params if row in self.rows else None

        def has(name: str, off: Any) -> bool:
            return params is not None and getattr(params, name) not in off

        others = [self.rows[one].params for one in self.rows if one != row]
        greedy = has("temperature", ()) and params.temperature < 1e-5
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
            for rows in (self, self.penalties, self.budgets):
                rows.sync(batch.change)
        self.half = batch.logits.dtype != torch.float32
        self.begin(batch.requests)
        processed = batch.logits.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        logits, rows = processed.numpy(), batch.rows()
        answers = self.budgets.answers(batch.requests)
        forced = {(row, place): token for row, answer in answers.items() for place, token in answer}
        for row, live in enumerate(batch.requests):
            self.penalties.follow(row, live.output_token_ids)
        for row in rows:
            self.before(logits[row.row], row, batch)
        self.custom(processed, rows, invariant=False)
        for row in rows:
            self.middle(logits[row.row], row, batch, forced)
        self.custom(processed, rows, invariant=True)
        for row in rows:
            if not self.own(row, batch)[0].params.temperature < 1e-5:
                self.filter(logits[row.row], row, batch)
        for row in range(batch.batch_size):
            if self.strikes("input written", row):
                batch.logits[batch.first_rows[row]] *= 0.5
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


class Planner(Planted):
    """The planner."""

    contract = "logits_plan"

    def __init__(self, fault: Fault | None = None) -> None:
        super().__init__(fault)
        nan = "NaN is caught before"
        self.capabilities = Capabilities.of(
            {"copy-free": "it always copies", "nan-logits": nan, "empty-rows": nan}
        )

    def open_plan(self, setup: PlanSetup) -> Plan:
        return Plan(self, setup)
