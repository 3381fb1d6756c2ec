"""Wrong samplers that declare something unsupported and abuse it: a declaration must not hide a fault.

Each is the base class of the odd samplers with one fault, and the declarations that a correct one needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fairdraw._mutants._mutant import Mutant, mutant_as
from fairdraw.contracts import Capability, SamplingBatch
from odd import rejection, sampling

_OWN_TIES: dict[str, str] = {Capability.LOWEST_ID_TIES: "another of the equal ones may come"}

ABUSES: list[Mutant] = []
"""Each must be caught by the check that it names."""


def _abuse(code: str, declared: dict[str, str]) -> Callable[[type[Any]], type[Any]]:  # Any: of either base
    """Add a class that declares this, and must be caught by the check of this code."""

    def register(faulty: type[Any]) -> type[Any]:  # Any: as above
        faulty.unsupported = declared
        is_rejection = issubclass(faulty, rejection.VectorRejection)
        as_odd: Any = rejection.as_odd if is_rejection else sampling.as_odd  # Any: takes either base
        ABUSES.append(mutant_as(as_odd, code)(faulty))
        return faulty

    return register


def _lowest_within(scores: Tensor, factor: float) -> Tensor:  # [num_rows, vocab_size] -> [num_rows] int64
    """The lowest id whose score is at least the largest times `factor`."""
    return (scores >= scores.amax(-1, keepdim=True) * factor).int().argmax(-1)


@_abuse("REJ701", rejection.OWN_ROUNDING)
class RecoversTheSecondBestWithinOnePercent(rejection.VectorRejection):
    """Declares its own rounding, and calls a gap of one percent rounding."""

    def winner(self, scores: Tensor) -> Tensor:
        return _lowest_within(scores, 0.99)


@_abuse("REJ701", rejection.OWN_ROUNDING)
class ComputesInBfloat16(rejection.VectorRejection):
    """Declares its own rounding, and rounds to eight bits."""

    def target(self, logits: Tensor) -> Tensor:
        return logits.bfloat16().softmax(-1).float()


@_abuse("REJ701", rejection.OWN_ROUNDING)
class AcceptsOnePercentMore(rejection.VectorRejection):
    """Declares its own rounding, and accepts at ratios that are one percent too small."""

    def passes(self, target: Tensor, draft: Tensor, uniforms: Tensor) -> Tensor:
        return target / draft * 1.01 >= uniforms


@_abuse("REJ205", rejection.OWN_STREAM | _OWN_TIES)
class DecodesWhatIsNearlyTheArgmax(rejection.VectorRejection):
    """Declares its own choice among ties, and calls logits tied that are a tenth apart."""

    def best(self, logits: Tensor) -> Tensor:
        wide = logits.float()
        return (wide >= wide.amax(-1, keepdim=True) - 0.1).int().argmax(-1)


@_abuse("REJ401", rejection.OWN_STREAM | _OWN_TIES)
class GivesAFifthToTheLowestId(rejection.VectorRejection):
    """Declares its own choice among ties, and calls scores tied that are a fifth apart."""

    def winner(self, scores: Tensor) -> Tensor:
        return _lowest_within(scores, 0.8)


@_abuse("REJ401", rejection.OWN_STREAM)
class GuardsTheDivision(rejection.VectorRejection):
    """Does not support vLLM's stream, so may choose the race's operation, and adds a constant to the exponentials."""

    def scores(self, weights: Tensor, exponentials: Tensor) -> Tensor:
        return weights / (exponentials + 0.01)


@_abuse("REJ201", rejection.OWN_SCHEME)
class StopsGreedyRequestsAtTheRunnerUp(rejection.VectorRejection):
    """Declares a scheme of its own, which may accept less, and emits another token where it does."""

    def greedy_accepts(self, step: rejection.Step) -> Tensor:
        return torch.zeros_like(step.drafts, dtype=torch.bool)

    def best(self, logits: Tensor) -> Tensor:
        return logits.float().topk(min(2, logits.shape[1]), dim=-1).indices[:, -1]


@_abuse("REJ310", rejection.OWN_SCHEME)
class KeepsTheDraftWithoutItsToken(rejection.VectorRejection):
    """Declares a scheme of its own, rejects half of the drafts, and recovers from the residual of full acceptance."""

    def passes(self, target: Tensor, draft: Tensor, uniforms: Tensor) -> Tensor:
        return (target / draft).clamp(max=1) / 2 >= uniforms

    def recovered(self, step: rejection.Step, requests: Tensor, rows: Tensor) -> Tensor:
        drawn = super().recovered(step, requests, rows)
        return torch.where(drawn == step.drafts[rows], (drawn + 1) % step.target.shape[1], drawn)


@_abuse("DIST112", rejection.OWN_SCHEME)
class AcceptsMoreThanIsLossless(rejection.VectorRejection):
    """Declares a scheme of its own, and accepts with the square root of the ratio."""

    def passes(self, target: Tensor, draft: Tensor, uniforms: Tensor) -> Tensor:
        return (target / draft).sqrt() >= uniforms


@_abuse("SAM201", sampling.OWN_ROUNDING)
class DrawsTheSecondBestWithinOnePercent(sampling.VectorSampling):
    """Declares its own rounding, and calls a gap of one percent rounding."""

    def winner(self, scores: Tensor) -> Tensor:
        return _lowest_within(scores, 0.99)


@_abuse("SAM201", sampling.OWN_ROUNDING)
class RoundsTheTemperature(sampling.VectorSampling):
    """Declares its own rounding, and has the temperature in bfloat16, times 1.01."""

    def temperature(self, batch: SamplingBatch) -> Tensor:
        return (super().temperature(batch).bfloat16() * 1.01).float()


@_abuse("SAM201", sampling.OWN_STREAM | _OWN_TIES)
class TakesWhatIsNearlyTheLargest(sampling.VectorSampling):
    """Declares its own choice among ties, and calls logits tied that are a tenth apart."""

    def best(self, logits: Tensor) -> Tensor:
        return (logits >= logits.amax(-1, keepdim=True) - 0.1).int().argmax(-1)


@_abuse("SAM201", sampling.OWN_ROUNDING)
class KeepsAPercentMoreOfTheNucleus(sampling.VectorSampling):
    """Declares its own rounding, and has a nucleus one percent larger than was asked."""

    def top_p_keeps(self, logits: Tensor, top_p: Tensor) -> Tensor:
        return super().top_p_keeps(logits, (top_p + 0.01).clamp(max=1))


@_abuse("SAM201", sampling.OWN_ROUNDING)
class KeepsWhatIsNearlyTheKth(sampling.VectorSampling):
    """Declares its own rounding, and keeps tokens that are five percent less probable than the k-th."""

    def top_k_keeps(self, logits: Tensor, top_k: Tensor) -> Tensor:
        ascending = logits.sort(-1).values
        return ~(logits < ascending.gather(1, logits.shape[1] - top_k.long()) - 0.05)


@_abuse("SAM201", sampling.OWN_ROUNDING)
class KeepsBelowTheMinimum(sampling.VectorSampling):
    """Declares its own rounding, and keeps tokens down to four fifths of `min_p`."""

    def min_p_keeps(self, logits: Tensor, min_p: Tensor) -> Tensor:
        return super().min_p_keeps(logits, min_p * 0.8)
