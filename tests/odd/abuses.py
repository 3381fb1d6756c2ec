"""Wrong samplers that declare something unsupported and abuse it: a declaration must not hide a fault.

Each is the base class of the odd samplers with one fault, and the declarations that a correct one needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fairdraw._mutants._mutant import Mutant, mutant_as
from fairdraw.contracts import Capability
from odd.rejection import OWN_ROUNDING as OWN_ROUNDING_OF_REJECTION
from odd.rejection import OWN_SCHEME, Step, VectorRejection
from odd.rejection import OWN_STREAM as OWN_STREAM_OF_REJECTION
from odd.rejection import as_odd as as_rejection
from odd.sampling import OWN_ROUNDING, OWN_STREAM, VectorSampling
from odd.sampling import as_odd as as_sampling

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from fairdraw.contracts import SamplingBatch

_OWN_TIES: dict[str, str] = {Capability.LOWEST_ID_TIES: "another of the equal ones may come"}

ABUSES: list[Mutant] = []
"""Each must be caught by every check that it names."""


def _abuse(*caught_by: str) -> Callable[[type[Any]], type[Any]]:  # Any: of either base
    def register(faulty: type[Any]) -> type[Any]:  # Any: as above
        is_rejection = issubclass(faulty, VectorRejection)
        as_odd: Any = as_rejection if is_rejection else as_sampling  # Any: takes either base
        ABUSES.append(mutant_as(as_odd, *caught_by)(faulty))
        return faulty

    return register


def _lowest_within(scores: Tensor, factor: float) -> Tensor:  # [num_rows, vocab_size] -> [num_rows] int64
    """The lowest id whose score is at least the largest times `factor`."""
    return (scores >= scores.amax(-1, keepdim=True) * factor).int().argmax(-1)


@_abuse("REJ701")
class RecoversTheSecondBestWithinOnePercent(VectorRejection):
    """Declares its own rounding, and calls a gap of one percent rounding."""

    unsupported = OWN_ROUNDING_OF_REJECTION

    def draw(self, weights: Tensor, exponentials: Tensor) -> Tensor:
        return _lowest_within(torch.where(weights > 0, self.scores(weights, exponentials), -1e-30), 0.99)


@_abuse("REJ701")
class ComputesInBfloat16(VectorRejection):
    """Declares its own rounding, and rounds to eight bits."""

    unsupported = OWN_ROUNDING_OF_REJECTION

    def target(self, logits: Tensor) -> Tensor:
        return logits.bfloat16().softmax(-1).float()


@_abuse("REJ701")
class AcceptsOnePercentMore(VectorRejection):
    """Declares its own rounding, and accepts at ratios that are one percent too small."""

    unsupported = OWN_ROUNDING_OF_REJECTION

    def passes(self, target: Tensor, draft: Tensor, uniforms: Tensor) -> Tensor:
        return target / draft * 1.01 >= uniforms


@_abuse("REJ205")
class DecodesWhatIsNearlyTheArgmax(VectorRejection):
    """Declares its own choice among ties, and calls logits tied that are a tenth apart."""

    unsupported = OWN_STREAM_OF_REJECTION | _OWN_TIES

    def best(self, logits: Tensor) -> Tensor:
        wide = logits.float()
        return (wide >= wide.amax(-1, keepdim=True) - 0.1).int().argmax(-1)


@_abuse("REJ401")
class GivesAFifthToTheLowestId(VectorRejection):
    """Declares its own choice among ties, and calls scores tied that are a fifth apart."""

    unsupported = OWN_STREAM_OF_REJECTION | _OWN_TIES

    def draw(self, weights: Tensor, exponentials: Tensor) -> Tensor:
        return _lowest_within(torch.where(weights > 0, self.scores(weights, exponentials), -1e-30), 0.8)


@_abuse("REJ401")
class GuardsTheDivision(VectorRejection):
    """Does not support vLLM's stream, so may choose the race's operation, and adds a constant to the exponentials."""

    unsupported = OWN_STREAM_OF_REJECTION

    def scores(self, weights: Tensor, exponentials: Tensor) -> Tensor:
        return weights / (exponentials + 0.01)


@_abuse("REJ201")
class StopsGreedyRequestsAtTheRunnerUp(VectorRejection):
    """Declares a scheme of its own, which may accept less, and emits another token where it does."""

    unsupported = OWN_SCHEME

    def greedy_accepts(self, step: Step) -> Tensor:
        return torch.zeros_like(step.drafts, dtype=torch.bool)

    def best(self, logits: Tensor) -> Tensor:
        return logits.float().topk(min(2, logits.shape[1]), dim=-1).indices[:, -1]


@_abuse("REJ310")
class KeepsTheDraftWithoutItsToken(VectorRejection):
    """Declares a scheme of its own, rejects half of the drafts, and recovers from the residual of full acceptance."""

    unsupported = OWN_SCHEME

    def passes(self, target: Tensor, draft: Tensor, uniforms: Tensor) -> Tensor:
        return (target / draft).clamp(max=1) / 2 >= uniforms

    def recovered(self, step: Step, requests: Tensor, rows: Tensor) -> Tensor:
        drawn = super().recovered(step, requests, rows)
        return torch.where(drawn == step.drafts[rows], (drawn + 1) % step.target.shape[1], drawn)


@_abuse("DIST112")
class AcceptsMoreThanIsLossless(VectorRejection):
    """Declares a scheme of its own, and accepts with the square root of the ratio."""

    unsupported = OWN_SCHEME

    def passes(self, target: Tensor, draft: Tensor, uniforms: Tensor) -> Tensor:
        return (target / draft).sqrt() >= uniforms


@_abuse("SAM146")
class DrawsTheSecondBestWithinOnePercent(VectorSampling):
    """Declares its own rounding, and calls a gap of one percent rounding."""

    unsupported = OWN_ROUNDING

    def draw(self, probs: Tensor, exponentials: Tensor) -> Tensor:
        return _lowest_within(torch.where(probs > 0, self.scores(probs, exponentials), -1e-30), 0.99)


@_abuse("SAM146")
class RoundsTheTemperature(VectorSampling):
    """Declares its own rounding, and has the temperature in bfloat16, times 1.01."""

    unsupported = OWN_ROUNDING

    def temperature(self, batch: SamplingBatch) -> Tensor:
        return (super().temperature(batch).bfloat16() * 1.01).float()


@_abuse("SAM201")
class TakesWhatIsNearlyTheLargest(VectorSampling):
    """Declares its own choice among ties, and calls logits tied that are a tenth apart."""

    unsupported = OWN_STREAM | _OWN_TIES

    def best(self, logits: Tensor) -> Tensor:
        return (logits >= logits.amax(-1, keepdim=True) - 0.1).int().argmax(-1)


@_abuse("SAM201")
class KeepsAPercentMoreOfTheNucleus(VectorSampling):
    """Declares its own rounding, and has a nucleus one percent larger than was asked."""

    unsupported = OWN_ROUNDING

    def top_p_keeps(self, logits: Tensor, top_p: Tensor) -> Tensor:
        return super().top_p_keeps(logits, (top_p + 0.01).clamp(max=1))


@_abuse("SAM201")
class KeepsWhatIsNearlyTheKth(VectorSampling):
    """Declares its own rounding, and keeps tokens that are five percent less probable than the k-th."""

    unsupported = OWN_ROUNDING

    def top_k_keeps(self, logits: Tensor, top_k: Tensor) -> Tensor:
        ascending = logits.sort(-1).values
        return ~(logits < ascending.gather(1, logits.shape[1] - top_k.long()) - 0.05)


@_abuse("SAM201")
class KeepsBelowTheMinimum(VectorSampling):
    """Declares its own rounding, and keeps tokens down to four fifths of `min_p`."""

    unsupported = OWN_ROUNDING

    def min_p_keeps(self, logits: Tensor, min_p: Tensor) -> Tensor:
        return super().min_p_keeps(logits, min_p * 0.8)
