"""The log-probabilities contract, executable: a log-softmax in float64, a sorted list, and a rank by counting.

Order and rank are those of the logits, which are exact numbers; log-probabilities are rounded once, at the end.
`tolerance` says how far float32 arithmetic may be from the exact value. It is the contract's, for every input dtype:
half-precision logits are float32 numbers, too.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from fairdraw._core.array_types import Row32, Rows32, Rows64
from fairdraw.contracts import NOT_EMITTED, LogprobsBatch, LogprobsResult, RankTies

_HALF_ULP = 2.0**-24
_OF_THE_SUM = 64
"""Half units in the last place by which `log(sum)` may be off: exponentials, and additions in any sensible order."""


def exact_logits(batch: LogprobsBatch) -> Rows32:
    """The logits that the stage names, as exact numbers."""
    return np.asarray(batch.stage_logits.detach().float().cpu().numpy())


def log_softmax(logits: Rows32) -> Rows64:
    """In float64; NaN for rows with a NaN and for rows that are all -inf."""
    if not logits.size:
        return logits.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True).astype(np.float64)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def exact_scores(batch: LogprobsBatch) -> Rows64:
    """What the stage returns, before it is rounded to float32."""
    logits = exact_logits(batch)
    return logits.astype(np.float64) if batch.wants_logits else log_softmax(logits)


def tolerance(logits: Rows32) -> Rows64:
    """How far a log-probability may be from the exact one; 0 where that is -inf."""
    distance = np.abs(logits.astype(np.float64) - logits.max(axis=1, keepdims=True, initial=-np.inf))
    finite = np.isfinite(distance)
    log_sum = np.log(np.where(finite, np.exp(-np.where(finite, distance, 0)), 0).sum(1, keepdims=True) + 2.0**-1074)
    return np.where(finite, _HALF_ULP * (_OF_THE_SUM + 2 * distance + 4 * np.abs(log_sum)), 0.0)


class LogprobsOracle:
    """The specification, step by step; a mutant overrides one."""

    rank_ties = RankTies.LAST

    def stage_logits(self, batch: LogprobsBatch) -> Rows32:
        return exact_logits(batch)

    def log_softmax(self, logits: Rows32) -> Rows64:
        return log_softmax(logits)

    def scores(self, batch: LogprobsBatch, logits: Rows32) -> Rows32:
        """What the stage returns."""
        return (logits if batch.wants_logits else self.log_softmax(logits)).astype(np.float32)

    def best(self, logits: Row32, number: int) -> NDArray[np.int64]:  # [number] int64
        """The ids of the largest logits, best first; of equal ones the lowest id first, NaN last."""
        return np.argsort(-logits, kind="stable")[:number]

    def rank(self, logits: Row32, token: int) -> int:
        if self.rank_ties is RankTies.LAST:
            return int((logits >= logits[token]).sum())
        return 1 + int((logits > logits[token]).sum())

    def ids(self, logits: Row32, token: int, number: int) -> NDArray[np.int64]:  # [1 + number] int64
        """The emitted token, and the best."""
        return np.concatenate([[token], self.best(logits, number)]).astype(np.int64)

    def values(self, scores: Row32, ids: NDArray[np.int64]) -> NDArray[np.float32]:  # both [1 + number]
        return np.asarray(scores[ids])

    def numbers(self, batch: LogprobsBatch) -> list[int | None]:
        """How many each row asks for."""
        return batch.row_logprobs

    def logprobs(self, batch: LogprobsBatch) -> LogprobsResult:
        """The answer for a batch; rows that nobody reads are zeros."""
        logits = self.stage_logits(batch)
        scores, width = self.scores(batch, logits), 1 + batch.most_logprobs
        token_ids, values = np.zeros((len(logits), width), np.int64), np.zeros((len(logits), width), np.float32)
        ranks = np.zeros(len(logits), np.int64)
        for row, (token, number) in enumerate(zip(batch.token_ids.tolist(), self.numbers(batch), strict=True)):
            if number is not None and token != NOT_EMITTED:
                ids = self.ids(logits[row], token, number)
                token_ids[row, : len(ids)], values[row, : len(ids)] = ids, self.values(scores[row], ids)
                ranks[row] = self.rank(logits[row], token)
        return LogprobsResult(*(torch.from_numpy(one).to(batch.device) for one in (token_ids, values, ranks)))
