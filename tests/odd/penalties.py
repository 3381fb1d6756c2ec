"""Correct scanners of penalties that compute, count or answer in another way than the specification."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fairdraw._mutants._lifecycle_scanners import PenaltiesFollower, PenaltiesOf, Scanner
from fairdraw._mutants._mutant import name_of
from fairdraw._mutants.penalties import ONE_TOKEN, CountsTheLastToken
from fairdraw._oracles.penalties import Counts, Logits, PenalisedRow
from fairdraw.contracts import PLACEHOLDER_TOKEN_ID, LiveBatch, PenaltyPolicy
from odd.following import scanners_of


class DividesByTheRepetition(PenaltiesFollower):
    """A quotient instead of a product with the reciprocal."""

    def repeated(self, logits: Logits, repetition: np.float32) -> Logits:
        return np.where(logits > 0, logits / repetition, logits * repetition)


class SubtractsTheSumOfPenalties(PenaltiesFollower):
    """Frequency and presence are added up before they are subtracted."""

    def subtracted(self, logits: Logits, counts: Counts, row: PenalisedRow) -> Logits:
        frequency, presence = np.float32(row.factors.frequency), np.float32(row.factors.presence)
        logits -= frequency * counts.astype(np.float32) + presence * (counts > 0).astype(np.float32)
        return logits


class SubtractsPresenceFirst(PenaltiesFollower):
    """The two penalties in the other order."""

    def subtracted(self, logits: Logits, counts: Counts, row: PenalisedRow) -> Logits:
        logits -= np.float32(row.factors.presence) * (counts > 0).astype(np.float32)
        logits -= np.float32(row.factors.frequency) * counts.astype(np.float32)
        return logits


class AccumulatesPenalties(PenaltiesFollower):
    """One float per token, to which the frequency penalty is added each time the token is emitted, as in SGLang."""

    def subtracted(self, logits: Logits, counts: Counts, row: PenalisedRow) -> Logits:
        penalty = np.float32(row.factors.presence) * (counts > 0).astype(np.float32)
        for token_id in row.output_token_ids:
            if token_id != PLACEHOLDER_TOKEN_ID:
                penalty[token_id] += np.float32(row.factors.frequency)
        logits -= penalty
        return logits


class TouchesSeenTokensOnly(PenaltiesFollower):
    """A dict of counts: a token that was not seen is never read or written, so its zero keeps its sign."""

    def penalise(self, logits: Logits, row: PenalisedRow) -> Logits:
        counts = Counter(i for i in row.output_token_ids if i != PLACEHOLDER_TOKEN_ID)
        repetition, penalised = np.float32(row.factors.repetition), logits.copy()
        for token_id in {*counts, *row.prompt_token_ids}:
            one = logits[token_id : token_id + 1]
            penalised[token_id] = self.repeated(one, repetition)[0] if repetition != 1 else one[0]
        for token_id, count in counts.items():
            penalised[token_id] -= np.float32(row.factors.frequency) * np.float32(count)
            penalised[token_id] -= np.float32(row.factors.presence)
        return penalised


class AddsZeroToTheRest(PenaltiesFollower):
    """Adds a dense row of negated penalties, so that a negative zero elsewhere loses its sign."""

    def subtracted(self, logits: Logits, counts: Counts, row: PenalisedRow) -> Logits:
        penalties = np.zeros(len(logits), np.float32)
        penalties[counts > 0] -= np.float32(row.factors.presence)
        penalties -= np.where(counts > 0, np.float32(row.factors.frequency) * counts.astype(np.float32), np.float32(0))
        return logits + penalties


class KeepsSortedTokens(PenaltiesFollower):
    """Counts by bisection in a sorted list."""

    def count(self, token_ids: Sequence[int], vocab_size: int) -> Counts:
        known = sorted(i for i in token_ids if 0 <= i < vocab_size)
        return np.array([bisect_right(known, i) - bisect_left(known, i) for i in range(vocab_size)], np.int64)


class CountsInInt32OnTheHost(PenaltiesFollower):
    """Makes a small tensor of counts on the host for every row of every step."""

    def count(self, token_ids: Sequence[int], vocab_size: int) -> Counts:
        counts = torch.zeros(vocab_size, dtype=torch.int32)
        known = torch.tensor([i for i in token_ids if 0 <= i < vocab_size], dtype=torch.int64)
        counts.scatter_add_(0, known, torch.ones(len(known), dtype=torch.int32))
        return counts.numpy().astype(np.int64)


class ComputesInDouble(PenaltiesFollower):
    """Token by token, by any policy: one rounding at the end, from factors that were never rounded to float32."""

    def penalise(self, logits: Logits, row: PenalisedRow) -> Logits:
        policy, factors, found = self.policy, row.factors, logits.astype(np.float64)
        text = [*((i, False) for i in row.prompt_token_ids), *((i, True) for i in row.output_token_ids)]
        text = [pair for pair in text if 0 <= pair[0] < len(logits)][-(policy.window or 0) :]
        counts = Counter(i for i, is_new in text if is_new or policy.counts_see == "text")
        repeats = Counter(i for i, is_new in text if is_new or policy.repetition_sees == "text")
        for token_id in {*counts, *repeats}:
            times = repeats[token_id] if policy.repetition_power == "count" else min(1, repeats[token_id])
            lowered = factors.frequency * counts[token_id] + factors.presence * (counts[token_id] > 0)
            found[token_id] -= lowered * (policy.repetition == "last")
            for _ in range(times):
                one = found[token_id]
                found[token_id] = one / factors.repetition if one > 0 else one * factors.repetition
            found[token_id] -= lowered * (policy.repetition == "first")
        with np.errstate(over="ignore"):
            return found.astype(np.float32)


class DefersPenalties(PenaltiesFollower):
    """A row of sums and a row of factors grow token by token, and are applied in this order, as in SGLang."""

    def penalise(self, logits: Logits, row: PenalisedRow) -> Logits:
        sums, scales = np.zeros_like(logits), np.ones_like(logits)
        known = [token_id for token_id in row.output_token_ids if token_id != PLACEHOLDER_TOKEN_ID]
        for token_id in known:
            sums[token_id] -= np.float32(row.factors.frequency)
        for token_id in set(known):
            sums[token_id] -= np.float32(row.factors.presence)
            scales[token_id] = row.factors.repetition
        lowered = logits + sums
        return np.where(lowered < 0, lowered * scales, lowered / scales)


class ReturnsNewTensors(PenaltiesFollower):
    """Leaves the given logits unchanged, and answers with a view of a larger buffer of its own."""

    class Session(PenaltiesOf):
        def penalised(self, logits: Tensor, rows: list[PenalisedRow]) -> Tensor:  # [num_rows, vocab_size] float32, both
            buffer = torch.full((len(logits) + 1, logits.shape[1] + 3), 7.0)
            view = buffer[: len(logits), : logits.shape[1]]
            return view.copy_(super().penalised(logits.clone(), rows))

    opens = Session


class ReadsInBothCalls(PenaltiesFollower):
    """Reads repaired placeholders again before it penalises draft rows."""

    class Session(PenaltiesOf):
        def penalise_drafts(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [num_tokens, vocab_size] float32, both
            self.follower.follow(batch)
            return super().penalise_drafts(logits, batch)

    opens = Session


class GoesThroughRowsBackwards(PenaltiesFollower):
    """Reads the last row first."""

    def follow(self, batch: LiveBatch) -> None:
        self.rows = dict(sorted(self.rows.items(), reverse=True))
        super().follow(batch)


_PENALISERS: tuple[type[PenaltiesFollower], ...] = (
    *(GoesThroughRowsBackwards, ComputesInDouble, DividesByTheRepetition, SubtractsTheSumOfPenalties),
    *(SubtractsPresenceFirst, AccumulatesPenalties, TouchesSeenTokensOnly, AddsZeroToTheRest),
    *(KeepsSortedTokens, CountsInInt32OnTheHost, ReturnsNewTensors, ReadsInBothCalls),
)

ODD: tuple[Scanner, ...] = (
    *scanners_of(PenaltiesFollower, "penalties"),
    *(Scanner(name_of(kind), kind, "penalties") for kind in _PENALISERS),
    Scanner("repeats last", ComputesInDouble, "penalties", policy=PenaltyPolicy(repetition="last")),
    Scanner("repeats the output alone", ComputesInDouble, "penalties", policy=PenaltyPolicy("output")),
    Scanner("repeats by the count", ComputesInDouble, "penalties", policy=PenaltyPolicy(repetition_power="count")),
    Scanner("counts the prompt", ComputesInDouble, "penalties", policy=PenaltyPolicy(counts_see="text")),
    Scanner("looks back", ComputesInDouble, "penalties", policy=PenaltyPolicy(counts_see="text", window=64)),
    Scanner("defers penalties", DefersPenalties, "penalties", policy=PenaltyPolicy("output", "last")),
    Scanner("counts the last token", CountsTheLastToken, "penalties", capabilities=ONE_TOKEN),
)
