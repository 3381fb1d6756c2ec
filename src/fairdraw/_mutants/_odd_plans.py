"""Planners that are correct and unlike the specification: other arithmetic, ties, or ways to force a token.

The checks must pass every one of them. Each is what a real engine does, or could do, without being wrong.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from fairdraw._mutants import _odd_scanners as odd_scanners
from fairdraw._mutants._logits_mutant import OraclePlanner
from fairdraw._oracles.logits_plan import EXCLUDED, GREEDY_BELOW, Edit, Logits, LogitsPlanOracle, Row
from fairdraw._oracles.thinking_budget import ThinkingBudgetOracle
from fairdraw.protocols._logits_plan import LogitsBatch, PlanSetup, RowOfRequest, logits_planner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from fairdraw.protocols._logits_plan import CustomLogitsProcessor, LogitsPlanner, LogitsRequest


class _AllocatesThenCopies(LogitsPlanOracle):
    """A buffer of its own, filled by one `copy_`."""

    def copied(self, logits: Tensor) -> Tensor:  # [num_rows, vocab_size] float32, both
        return torch.empty(logits.shape, dtype=torch.float32).copy_(logits)


class _MultipliesByReciprocals(LogitsPlanOracle):
    """The reciprocal of the temperature, and the quotient of the repetition penalty."""

    arithmetic = odd_scanners._DividesByTheRepetition(0)

    def temperature(self, row: Row) -> Edit | None:
        if super().temperature(row) is None:
            return None
        reciprocal = np.float32(1) / np.float32(row.params.temperature)

        def multiply(logits: Logits) -> None:
            logits *= reciprocal

        return multiply


class _AddsThePenaltiesUp(LogitsPlanOracle):
    """Presence and frequency are one number that is subtracted once."""

    arithmetic = odd_scanners._SubtractsTheSumOfPenalties(0)


class _AddsTheBiasInDouble(LogitsPlanOracle):
    """Penalties and temperature are computed in double, too."""

    arithmetic = odd_scanners._ComputesInDouble(0)

    def logit_bias(self, row: Row) -> Edit | None:
        biases = row.params.logit_bias

        def add(logits: Logits) -> None:
            for token_id, bias in (biases or {}).items():
                logits[token_id] = np.float32(float(logits[token_id]) + bias)

        return add if biases else None

    def temperature(self, row: Row) -> Edit | None:
        if super().temperature(row) is None:
            return None

        def divide(logits: Logits) -> None:
            logits[:] = (logits.astype(np.float64) / row.params.temperature).astype(np.float32)

        return divide


class _TouchesSeenTokensOnly(LogitsPlanOracle):
    """A negative zero of a token that was not seen stays one."""

    arithmetic = odd_scanners._TouchesSeenTokensOnly(0)


class _ForcesByExclusion(LogitsPlanOracle):
    """All other tokens become impossible, and the forced one gets a logit of 0."""

    def thinking_budget(self, row: Row) -> Edit | None:
        edit = super().thinking_budget(row)

        def force(logits: Logits) -> None:
            marks = np.zeros(len(logits), np.float32)
            (edit or _nothing)(marks)
            logits[:] = np.where(marks > 0, np.float32(0), EXCLUDED)

        return None if edit is None else force


def _nothing(logits: Logits) -> None:
    """An edit that is none."""


class _KeepsExactlyK(LogitsPlanOracle):
    """Of tokens that tie with the last one kept, the lowest ids stay; top-p goes down from the greatest."""

    def top_k_top_p(self, row: Row) -> Edit | None:
        params = row.params
        if row.is_greedy:
            return None

        def cut(logits: Logits) -> None:
            if 0 < params.top_k < row.vocab_size:
                logits[np.argsort(-logits, kind="stable")[params.top_k :]] = EXCLUDED
            if params.top_p < 1:
                descending = np.argsort(-logits, kind="stable")
                sums = np.cumsum(_softmax(logits)[descending])
                logits[descending[1:][sums[:-1] >= np.float32(params.top_p)]] = EXCLUDED

        return cut if 0 < params.top_k < row.vocab_size or params.top_p < 1 else None


class _KeepsAllThatTie(LogitsPlanOracle):
    """Cuts at a logit, like kernels that search for a threshold: tokens that equal it stay."""

    def top_k_top_p(self, row: Row) -> Edit | None:
        params = row.params
        if row.is_greedy or not (0 < params.top_k < row.vocab_size or params.top_p < 1):
            return None

        def cut(logits: Logits) -> None:
            if 0 < params.top_k < row.vocab_size:
                logits[logits < np.sort(logits)[-params.top_k]] = EXCLUDED
            if params.top_p < 1:
                probs = _softmax(logits)
                descending = np.sort(probs)[::-1]
                enough = np.cumsum(descending) >= params.top_p - 1e-7
                edge = descending[int(enough.argmax()) if enough.any() else -1]
                logits[probs < edge] = EXCLUDED

        return cut


def _softmax(
    logits: Logits,  # [vocab_size] float32
) -> NDArray[np.float64]:  # [vocab_size] float64
    """In double; zeros and a one for a row without a distribution."""
    with np.errstate(invalid="ignore", over="ignore"):
        weights = np.exp(logits.astype(np.float64) - np.max(logits))
        probs: NDArray[np.float64] = weights / weights.sum()
    return probs if np.isfinite(probs).all() else np.eye(len(logits))[0]


class _ComparesLogitsForMinP(LogitsPlanOracle):
    """No softmax: a logit is compared with the greatest one plus log(min_p)."""

    def min_p(self, row: Row) -> Edit | None:
        if row.is_greedy or row.params.min_p == 0:
            return None
        least = np.float32(math.log(row.params.min_p))

        def cut(logits: Logits) -> None:
            logits[logits < logits.max() + least] = EXCLUDED

        return cut


class _FindsBadWordsInATrie(LogitsPlanOracle):
    """All prefixes of bad words in one dict, looked up for every suffix of the text."""

    def bad_words(self, row: Row) -> Edit | None:
        ends: dict[tuple[int, ...], set[int]] = {}
        for word in row.params.bad_words_token_ids or ():
            ends.setdefault(tuple(word[:-1]), set()).add(word[-1])
        text = tuple(self.text_for_bad_words(row))
        found = {i for length in range(len(text) + 1) for i in ends.get(text[len(text) - length :], ())}

        def cut(logits: Logits) -> None:
            logits[list(found)] = EXCLUDED

        return cut if found else None


class _CallsCustomsBackwards(LogitsPlanOracle):
    """The last row first, and texts as tuples."""

    def customs(
        self, name: str, rows: Sequence[Row], setup: PlanSetup
    ) -> list[tuple[CustomLogitsProcessor, list[RowOfRequest]]]:
        found = super().customs(name, rows, setup)
        backwards = [(p, [one._replace(token_ids=tuple(one.token_ids)) for one in seen[::-1]]) for p, seen in found]  # type: ignore[arg-type]  # a sequence, too
        return backwards


class _KeepsBooks(LogitsPlanOracle):
    """Tensors of its own in every step, as large as the logits, whether or not there is work."""

    def process(self, batch: LogitsBatch, setup: PlanSetup) -> Tensor:  # [num_rows, vocab_size] float32
        temperatures = torch.tensor([request.params.temperature for request in batch.requests])
        counts = torch.zeros(batch.logits.shape, dtype=torch.int32)
        for row in batch.rows():
            known = torch.tensor([i for i in row.token_ids if i >= 0], dtype=torch.int64)
            counts[row.row].index_add_(0, known, torch.ones(len(known), dtype=torch.int32))
        self.books = temperatures.clone(), counts.to(torch.float32), batch.logits.detach()[:1]
        return super().process(batch, setup)


# An engine that shares no code with the specification.


def _vectorised(batch: LogitsBatch, setup: PlanSetup) -> Tensor:  # [num_rows, vocab_size] float32
    """Whole-batch torch operations, each of which makes a new tensor; there are no copies and no writes in place."""
    rows, logits = batch.rows(), batch.logits
    params = [batch.requests[row.request].params for row in rows]
    tables = _Tables(batch, rows, setup.vocab_size)
    if tables.excluded.any():
        logits = torch.where(tables.excluded, -torch.inf, logits.float())
    if any(p.logit_bias for p in params):
        logits = logits.float() + tables.biases
    logits = _customised(logits, batch, rows, setup, invariant=False)
    if any(p.penalised for p in params):
        logits = logits.float()
        repeated = torch.where(logits > 0, logits / tables.repetition, logits * tables.repetition)
        logits = repeated - tables.penalties
    forced = [_forced(batch.requests[row.request], row, batch, setup) for row in rows]
    if any(token is not None for token in forced):
        ids = torch.arange(setup.vocab_size)
        keep = torch.stack([ids == (ids if token is None else token) for token in forced])
        open_rows = torch.tensor([[token is None] for token in forced])
        logits = torch.where(keep, torch.where(open_rows, logits.float(), 0.0), -torch.inf)
    return _drawn_from(logits, batch, rows, setup)


class _Tables:
    """Dense tensors of the parameters that name tokens, each `[num_rows, vocab_size]`."""

    def __init__(self, batch: LogitsBatch, rows: list[RowOfRequest], vocab_size: int) -> None:
        shape = len(rows), vocab_size
        self.excluded = torch.zeros(shape, dtype=torch.bool)
        self.biases, self.penalties, self.repetition = torch.zeros(shape), torch.zeros(shape), torch.ones(shape)
        for row in rows:
            self._fill(row.row, batch.requests[row.request], row.token_ids)

    def _fill(self, row: int, request: LogitsRequest, text: list[int]) -> None:
        params = request.params
        if params.allowed_token_ids is not None:
            self.excluded[row] = True
            self.excluded[row, params.allowed_token_ids] = False
        for word in params.bad_words_token_ids or ():
            matches = text[len(text) - len(word) + 1 :] == word[:-1] and len(text) >= len(word) - 1
            self.excluded[row, word[-1]] |= matches
        if len(text) < params.min_tokens:
            self.excluded[row, list(params.all_stop_token_ids)] = True
        for token_id, bias in (params.logit_bias or {}).items():
            self.biases[row, token_id] = bias
        known = torch.tensor([i for i in text if i >= 0], dtype=torch.int64)
        self.repetition[row, [*known.tolist(), *request.prompt_token_ids]] = params.repetition_penalty
        self.penalties[row, known] = params.presence_penalty
        self.penalties[row].index_add_(0, known, torch.full((len(known),), params.frequency_penalty))


def _customised(
    logits: Tensor,  # [num_rows, vocab_size] any
    batch: LogitsBatch,
    rows: list[RowOfRequest],
    setup: PlanSetup,
    *,
    invariant: bool,
) -> Tensor:  # [num_rows, vocab_size] any
    for processor in setup.custom_processors:
        wanted = [row for row in rows if processor.wants(batch.requests[row.request].params)]
        if wanted and processor.is_argmax_invariant() == invariant:
            logits = processor.apply(logits.float() + 0.0, wanted)
    return logits


def _forced(request: LogitsRequest, row: RowOfRequest, batch: LogitsBatch, setup: PlanSetup) -> int | None:
    budget = ThinkingBudgetOracle(setup.start_token_ids, setup.end_token_ids)
    prompt, output, drafts = request.prompt_token_ids, request.output_token_ids, request.draft_token_ids
    forced = dict(budget.forced(prompt, output, drafts, request.params.thinking_token_budget))
    return forced.get(row.row - batch.first_rows[row.request])


def _drawn_from(
    logits: Tensor,  # [num_rows, vocab_size] any
    batch: LogitsBatch,
    rows: list[RowOfRequest],
    setup: PlanSetup,
) -> Tensor:  # [num_rows, vocab_size] any
    """Temperature and filters, where one of the rows is random."""
    params = [batch.requests[row.request].params for row in rows]
    if all(p.temperature < GREEDY_BELOW for p in params):
        return logits
    temperatures = torch.tensor([[1.0 if p.temperature < GREEDY_BELOW else p.temperature] for p in params])
    if (temperatures != 1).any():
        logits = logits.float() * (1 / temperatures)
    min_ps = torch.tensor([[0.0 if p.temperature < GREEDY_BELOW else p.min_p] for p in params])
    if (min_ps > 0).any():
        logits = logits.float()
        kept = logits >= logits.amax(1, keepdim=True) + min_ps.log()
        logits = torch.where(kept | (min_ps == 0), logits, -torch.inf)
    logits = _customised(logits, batch, rows, setup, invariant=True)
    random = [p.temperature >= GREEDY_BELOW for p in params]
    widths = [p.top_k if 0 < p.top_k < setup.vocab_size else setup.vocab_size for p in params]
    top_ks = [width if drawn else setup.vocab_size for width, drawn in zip(widths, random, strict=True)]
    top_ps = [p.top_p if drawn else 1.0 for p, drawn in zip(params, random, strict=True)]
    if min(top_ks) < setup.vocab_size or min(top_ps) < 1:
        logits = _filtered(logits.float(), torch.tensor(top_ks)[:, None], torch.tensor(top_ps)[:, None])
    return logits


def _filtered(
    logits: Tensor,  # [num_rows, vocab_size] float32
    top_k: Tensor,  # [num_rows, 1] int64
    top_p: Tensor,  # [num_rows, 1] float32
) -> Tensor:  # [num_rows, vocab_size] float32
    """By rank, the greatest first."""
    descending, order = logits.sort(dim=1, descending=True, stable=True)
    ranks = torch.arange(logits.shape[1]).expand(logits.shape)
    descending = torch.where(ranks < top_k, descending, -torch.inf)
    probs = descending.softmax(1)
    dropped = (ranks >= top_k) | ((probs.cumsum(1) - probs >= top_p) & (top_p < 1))
    return torch.where(dropped.gather(1, order.argsort(1)), -torch.inf, logits)


ODD_BUT_RIGHT: tuple[LogitsPlanner, ...] = (
    OraclePlanner("allocates, then copies", _AllocatesThenCopies),
    OraclePlanner("multiplies by reciprocals", _MultipliesByReciprocals),
    OraclePlanner("adds the penalties up", _AddsThePenaltiesUp),
    OraclePlanner("adds the bias in double", _AddsTheBiasInDouble),
    OraclePlanner("touches seen tokens only", _TouchesSeenTokensOnly),
    OraclePlanner("forces by exclusion", _ForcesByExclusion),
    OraclePlanner("keeps exactly k", _KeepsExactlyK),
    OraclePlanner("keeps all that tie", _KeepsAllThatTie),
    OraclePlanner("compares logits for min-p", _ComparesLogitsForMinP),
    OraclePlanner("finds bad words in a trie", _FindsBadWordsInATrie),
    OraclePlanner("calls customs backwards", _CallsCustomsBackwards),
    OraclePlanner("keeps books", _KeepsBooks),
    logits_planner(_vectorised, name="vectorised"),
)
"""Correct planners of other making."""
