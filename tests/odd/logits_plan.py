"""Correct planners that compute, break ties or force a token in another way than the specification."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from fairdraw._mutants._logits_mutant import OraclePlanner
from fairdraw._mutants._mutant import name_of
from fairdraw._oracles.logits_plan import EXCLUDED, FORCED, Edit, Logits, LogitsPlanOracle, Row
from fairdraw._oracles.thinking_budget import ThinkingBudgetOracle
from fairdraw.contracts import Capabilities, LogitsPolicy, PenaltyPolicy, ThinkingPolicy
from odd import penalties

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from fairdraw.contracts import CustomLogitsProcessor, LogitsBatch, PlanSetup, RowOfRequest


class AlwaysCopies(LogitsPlanOracle):
    """Computes every value correctly, and declares that it copies."""

    def untouched(self, logits: Tensor) -> Tensor:  # [num_rows, vocab_size] float32, both
        return self.copied(logits)


class WorksInPlace(LogitsPlanOracle):
    """Writes into float32 logits, and declares it."""

    def copied(self, logits: Tensor) -> Tensor:  # [num_rows, vocab_size] float32, both
        return logits.to(torch.float32).contiguous()


class GoesThroughRowsBackwards(LogitsPlanOracle):
    """The last row first: no row depends on another."""

    def edits(self, name: str, rows: Sequence[Row]) -> list[tuple[int, Edit]]:
        return super().edits(name, rows[::-1])


class ForcesInEveryRow(LogitsPlanOracle):
    """Each row alone, by its text: also in rows after a draft that is rejected since another token was forced."""

    def thinking_budget(self, row: Row) -> Edit | None:
        setup, source, budget = row.setup, row.source, row.params.thinking_token_budget
        oracle, prompt = ThinkingBudgetOracle(setup.start_token_ids, setup.end_token_ids), source.prompt_token_ids
        known = oracle.known(prompt, source.output_token_ids, budget or 0)
        token_id = None if budget is None else oracle.next_token(prompt, [*known, *row.seen[len(known) :]], budget)

        def force(logits: Logits) -> None:
            logits[token_id] = FORCED

        return None if token_id is None else force


class AllocatesThenCopies(LogitsPlanOracle):
    """A buffer of its own, filled by one `copy_`."""

    def copied(self, logits: Tensor) -> Tensor:  # [num_rows, vocab_size] float32, both
        return torch.empty(logits.shape, dtype=torch.float32).copy_(logits)


class Tempers(LogitsPlanOracle):
    """Divides by the temperature in `temper`."""

    def temperature(self, row: Row) -> Edit | None:
        return None if super().temperature(row) is None else partial(self.temper, row.params.temperature)

    def temper(self, temperature: float, logits: Logits) -> None:
        logits /= np.float32(temperature)


class MultipliesByReciprocals(Tempers):
    """The reciprocal of the temperature, and the quotient of the repetition penalty."""

    arithmetic = penalties.DividesByTheRepetition(0)

    def temper(self, temperature: float, logits: Logits) -> None:
        logits *= np.float32(1) / np.float32(temperature)


class AddsThePenaltiesUp(LogitsPlanOracle):
    """Presence and frequency are one number that is subtracted once."""

    arithmetic = penalties.SubtractsTheSumOfPenalties(0)


class AddsTheBiasInDouble(Tempers):
    """Penalties and temperature are computed in double, too."""

    arithmetic = penalties.ComputesInDouble(0)

    def logit_bias(self, row: Row) -> Edit | None:
        biases = row.params.logit_bias

        def add(logits: Logits) -> None:
            for token_id, bias in (biases or {}).items():
                logits[token_id] = np.float32(float(logits[token_id]) + bias)

        return add if biases else None

    def temper(self, temperature: float, logits: Logits) -> None:
        logits[:] = (logits.astype(np.float64) / temperature).astype(np.float32)


class TouchesSeenTokensOnly(LogitsPlanOracle):
    """A negative zero of a token that was not seen stays one."""

    arithmetic = penalties.TouchesSeenTokensOnly(0)


_OTHER = LogitsPolicy("text", PenaltyPolicy(counts_see="text", window=64), ThinkingPolicy("finished", "shared"))


class ForcesByExclusion(LogitsPlanOracle):
    """All other tokens become impossible, and the forced one gets a logit of 0."""

    def thinking_budget(self, row: Row) -> Edit | None:
        if (edit := super().thinking_budget(row)) is None:
            return None

        def force(logits: Logits) -> None:
            marks = np.zeros(len(logits), np.float32)
            edit(marks)
            logits[:] = np.where(marks > 0, np.float32(0), EXCLUDED)

        return force


class CutsInItsWay(LogitsPlanOracle):
    """Cuts by `cut`, which gets a top-k of 0 where the request has none."""

    def top_k_top_p(self, row: Row) -> Edit | None:
        top_k, top_p = row.params.top_k if 0 < row.params.top_k < row.vocab_size else 0, row.params.top_p
        return None if row.is_greedy or not (top_k or top_p < 1) else partial(self.cut, top_k, top_p)

    def cut(self, top_k: int, top_p: float, logits: Logits) -> None:
        raise NotImplementedError


class KeepsExactlyK(CutsInItsWay):
    """Keeps the lowest ids of those that tie with the last one kept; top-p goes down from the greatest."""

    def cut(self, top_k: int, top_p: float, logits: Logits) -> None:
        if top_k:
            logits[np.argsort(-logits, kind="stable")[top_k:]] = EXCLUDED
        if top_p < 1:
            descending = np.argsort(-logits, kind="stable")
            sums = np.cumsum(_softmax(logits)[descending])
            logits[descending[1:][sums[:-1] >= np.float32(top_p)]] = EXCLUDED


class KeepsAllThatTie(CutsInItsWay):
    """Cuts at a logit, like kernels that search for a threshold: tokens that equal it stay."""

    def cut(self, top_k: int, top_p: float, logits: Logits) -> None:
        if top_k:
            logits[logits < np.sort(logits)[-top_k]] = EXCLUDED
        if top_p < 1:
            probs = _softmax(logits)
            descending = np.sort(probs)[::-1]
            enough = np.cumsum(descending) >= top_p - 1e-7
            edge = descending[int(enough.argmax()) if enough.any() else -1]
            logits[probs < edge] = EXCLUDED


def _softmax(
    logits: Logits,  # [vocab_size] float32
) -> NDArray[np.float64]:  # [vocab_size] float64
    """In double; zeros and a one for a row without a distribution."""
    with np.errstate(invalid="ignore", over="ignore"):
        weights = np.exp(logits.astype(np.float64) - np.max(logits))
        probs: NDArray[np.float64] = weights / weights.sum()
    return probs if np.isfinite(probs).all() else np.eye(len(logits))[0]


class ComparesLogitsForMinP(LogitsPlanOracle):
    """No softmax: a logit is compared with the greatest one plus log(min_p)."""

    def min_p(self, row: Row) -> Edit | None:
        if row.is_greedy or row.params.min_p == 0:
            return None
        least = np.float32(math.log(row.params.min_p))

        def cut(logits: Logits) -> None:
            logits[logits < logits.max() + least] = EXCLUDED

        return cut


class FindsBadWordsInATrie(LogitsPlanOracle):
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


class CallsCustomsBackwards(LogitsPlanOracle):
    """The last row first, and texts as tuples."""

    def customs(
        self, name: str, rows: Sequence[Row], setup: PlanSetup
    ) -> list[tuple[CustomLogitsProcessor, list[RowOfRequest]]]:
        found = super().customs(name, rows, setup)
        backwards = [(p, [one._replace(token_ids=tuple(one.token_ids)) for one in seen[::-1]]) for p, seen in found]  # type: ignore[arg-type]  # a sequence, too
        return backwards


class KeepsBooks(LogitsPlanOracle):
    """Tensors of its own in every step, as large as the logits, whether or not there is work."""

    def process(self, batch: LogitsBatch, setup: PlanSetup) -> Tensor:  # [num_rows, vocab_size] float32
        temperatures = torch.tensor([request.params.temperature for request in batch.requests])
        counts = torch.zeros(batch.logits.shape, dtype=torch.int32)
        for row in batch.rows():
            known = torch.tensor([i for i in row.token_ids if i >= 0], dtype=torch.int64)
            counts[row.row].index_add_(0, known, torch.ones(len(known), dtype=torch.int32))
        self.books = temperatures.clone(), counts.to(torch.float32), batch.logits.detach()[:1]
        return super().process(batch, setup)


_PLANS: tuple[type[LogitsPlanOracle], ...] = (
    *(AllocatesThenCopies, MultipliesByReciprocals, AddsThePenaltiesUp, AddsTheBiasInDouble),
    *(TouchesSeenTokensOnly, ForcesByExclusion, KeepsExactlyK, KeepsAllThatTie, ComparesLogitsForMinP),
    *(FindsBadWordsInATrie, CallsCustomsBackwards, KeepsBooks),
)

_COPIES = Capabilities.of({"copy-free": "copies at every step"})
_IN_PLACE = Capabilities.of({"copy-free": "writes in place", "intact-logits": "writes in place"})
_UNREACHED = Capabilities.of({"unreached-rows": "forces in every row"})

ODD: tuple[OraclePlanner, ...] = (
    OraclePlanner("always copies", AlwaysCopies, capabilities=_COPIES),
    OraclePlanner("works in place", WorksInPlace, capabilities=_IN_PLACE),
    OraclePlanner("goes through rows backwards", GoesThroughRowsBackwards),
    OraclePlanner("forces in every row", ForcesInEveryRow, capabilities=_UNREACHED),
    *(OraclePlanner(name_of(kind), kind) for kind in _PLANS),
    OraclePlanner("finds bad words of the prompt", FindsBadWordsInATrie, policy=LogitsPolicy("text")),
    OraclePlanner("adds the bias in double, by its policy", AddsTheBiasInDouble, policy=_OTHER),
)
"""Correct planners of other making, with the capabilities that they do not support."""
