"""Faults of temperature and filters: which tokens are left for the draw."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairdraw._mutants._sampling_mutant import mutant_sampler
from fairdraw._oracles.sampling import Request, SamplingOracle, masked, softmax

if TYPE_CHECKING:
    from fairdraw.protocols import SamplingBatch, SamplingNoise

Row = NDArray[np.float32]
Mask = NDArray[np.bool_]


@mutant_sampler("SAM103", "SAM174")
class KeepsOneTokenMoreThanTopK(SamplingOracle):
    """`sorted[k]` where `sorted[k - 1]` is meant: the user asked for 40 and gets 41."""

    def top_k_support(self, logits: Row, top_k: int) -> Mask:
        return super().top_k_support(logits, min(top_k + 1, logits.size))


@mutant_sampler("SAM124", "SAM103")
class KeepsTwoAtLeast(SamplingOracle):
    """A guard against empty supports, one too high."""

    def top_k_support(self, logits: Row, top_k: int) -> Mask:
        return super().top_k_support(logits, min(max(top_k, 2), logits.size))


@mutant_sampler("SAM174")
class DropsTiesOfTopK(SamplingOracle):
    """A strict comparison with the k-th logit, and the k-th itself by its index; declared is that all ties stay."""

    def top_k_support(self, logits: Row, top_k: int) -> Mask:
        support = np.zeros(logits.size, dtype=bool)
        support[np.argsort(-logits, kind="stable")[:top_k]] = True
        return support


@mutant_sampler("SAM104", "SAM174")
class KeepsOneTokenMoreThanTopP(SamplingOracle):
    """The mass before the token is compared, instead of the mass with it."""

    def top_p_support(self, logits: Row, top_p: float) -> Mask:
        support = super().top_p_support(logits, top_p)
        dropped = np.where(support | (logits == -np.inf), -np.inf, logits)
        if dropped.max() > -np.inf:
            support[int(np.argmax(dropped))] = True
        return support


@mutant_sampler("SAM111", "SAM174")
class StopsOneTokenBeforeTopP(SamplingOracle):
    """The token that reaches `top_p` is left out: text gets more monotonous, and no test of ids sees it."""

    def top_p_support(self, logits: Row, top_p: float) -> Mask:
        support = super().top_p_support(logits, top_p)
        if support.sum() > 1:
            support[int(np.argmin(np.where(support, logits, np.inf)))] = False
        return support


@mutant_sampler("SAM104")
class AddsUpTheMassFromTheWrongEnd(SamplingOracle):
    """Sorted ascending where descending is meant: the rare tokens stay."""

    def top_p_support(self, logits: Row, top_p: float) -> Mask:
        order = np.argsort(logits, kind="stable")
        before = np.concatenate(([0.0], np.cumsum(softmax(logits)[order])[:-1]))
        support = np.zeros(logits.size, dtype=bool)
        support[order[before < top_p]] = True
        return support


@mutant_sampler("SAM134")
class LosesATokenAtTopPOne(SamplingOracle):
    """`<` for `<=` at the end of the sum: rows that do not filter lose their least probable token."""

    def sample(self, batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
        self.is_given = batch.top_p is not None
        return super().sample(batch, noise)

    def filtered(self, request: Request) -> Row:
        logits = super().filtered(request)
        alive = np.flatnonzero(logits > -np.inf)
        if self.is_given and request.top_p is None and alive.size > 1:
            logits = logits.copy()
            logits[alive[np.argmin(logits[alive])]] = -np.inf
        return logits


@mutant_sampler("SAM105", "SAM174")
class IgnoresMinP(SamplingOracle):
    """The parameter is parsed and never applied."""

    def filtered(self, request: Request) -> Row:
        request.min_p = None
        return super().filtered(request)


@mutant_sampler("SAM174")
class MinPOfTheDistributionBeforeTemperature(SamplingOracle):
    """The threshold is found on raw logits and used on scaled ones."""

    def filtered(self, request: Request) -> Row:
        if request.min_p is None:
            return super().filtered(request)
        support = self.min_p_support(request.logits, request.min_p)
        request.min_p = None
        return masked(super().filtered(request), support)


@mutant_sampler("SAM111", "SAM174")
class MinPRelativeToOne(SamplingOracle):
    """`prob < min_p` instead of `prob < min_p * largest`: flat rows are cut down to nothing but their mode."""

    def min_p_support(self, logits: Row, min_p: float) -> Mask:
        probs = softmax(logits)
        return np.asarray((probs >= min_p) | (probs == probs.max()))


@mutant_sampler("SAM174")
class FiltersTopPBeforeMinP(SamplingOracle):
    """Another order than declared: top-p counts mass that min-p takes away afterwards."""

    def filtered(self, request: Request) -> Row:
        min_p, request.min_p = request.min_p, None
        logits = super().filtered(request)
        return logits if min_p is None else masked(logits, self.min_p_support(self.scaled(request), min_p))


@mutant_sampler("SAM102", "SAM174")
class IgnoresTopPBesideTopK(SamplingOracle):
    """One filter or the other: a branch for each, and none for both."""

    def filtered(self, request: Request) -> Row:
        if request.top_k is not None:
            request.top_p = None
        return super().filtered(request)


@mutant_sampler("SAM104")
class FiltersBeforeTemperature(SamplingOracle):
    """The nucleus of the distribution at temperature 1, drawn from at another."""

    def top_p_support(self, logits: Row, top_p: float) -> Mask:
        return super().top_p_support((logits * self.temperature).astype(np.float32), top_p)

    def scaled(self, request: Request) -> Row:
        self.temperature = request.temperature
        return super().scaled(request)


@mutant_sampler("SAM106")
class AddsAnEpsilon(SamplingOracle):
    """`log(probs + 1e-8)` for safety: banned tokens are rare now, not impossible."""

    def distribution(self, request: Request) -> Row:
        return np.asarray(super().distribution(request) + np.float32(1e-8))


@mutant_sampler("SAM126", "SAM141", "SAM154")
class IgnoresTheTemperature(SamplingOracle):
    """The parameter is parsed and never applied."""

    def scaled(self, request: Request) -> Row:
        return request.logits


@mutant_sampler("SAM126", "SAM125")
class MultipliesByTheTemperature(SamplingOracle):
    """Creative requests become dull and the other way round."""

    def scaled(self, request: Request) -> Row:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(request.logits * request.temperature)


@mutant_sampler("SAM125")
class ClampsTheTemperature(SamplingOracle):
    """Clamped from below, against overflow, at 2 where 0.002 was meant."""

    def scaled(self, request: Request) -> Row:
        request.temperature = max(request.temperature, np.float32(2.0))
        return super().scaled(request)


@mutant_sampler("SAM133", "SAM131")
class UsesTheTemperatureOfTheFirstRequest(SamplingOracle):
    """One value for the batch: text changes with who else is served."""

    def sample(self, batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
        random = batch.temperature[~batch.is_greedy]
        first = random[0] if random.numel() else torch.ones(())
        return super().sample(batch.replace(temperature=torch.where(batch.is_greedy, 0.0, first)), noise)


@mutant_sampler("SAM137")
class DoesNotSubtractTheMaximum(SamplingOracle):
    """A softmax without its maximum: right until logits reach 88."""

    def distribution(self, request: Request) -> Row:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            weights = np.exp(self.filtered(request))
            return np.asarray(weights / weights.sum())


@mutant_sampler("SAM123")
class TakesTheArgmaxBehindTheFilters(SamplingOracle):
    """A filter that breaks ties by the highest id decides for greedy requests, too."""

    def token(self, request: Request, exponentials: Row) -> int:
        return self.greedy_token(self.filtered(request)) if request.is_greedy else super().token(request, exponentials)


@mutant_sampler("SAM121")
class GreedyTiesGoToTheLastId(SamplingOracle):
    """`>=` in the scan over tiles."""

    def greedy_token(self, logits: Row) -> int:
        return int(logits.size - 1 - np.argmax(logits[::-1]))


@mutant_sampler("SAM122", "SAM121", "SAM127")
class GreedyRequestsDraw(SamplingOracle):
    """Temperature 0 is replaced by 1, against a division by zero, and nobody takes the argmax."""

    def token(self, request: Request, exponentials: Row) -> int:
        return self.race(self.distribution(request), exponentials)
