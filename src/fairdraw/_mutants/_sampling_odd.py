"""Token samplers that do it differently and are right: the suite must leave them in peace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fairdraw._mutants._sampling_draws import CountingOracle
from fairdraw._mutants._sampling_mutant import GENERATORS, as_sampler
from fairdraw._oracles.sampling import Request, SamplingOracle, masked, softmax
from fairdraw.protocols import Capability, FilterPolicy, FunctionTokenSampler, SamplingBatch, SamplingNoise

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ODD_BUT_RIGHT"]

Row = NDArray[np.float32]
Mask = NDArray[np.bool_]

_OWN_RACE = GENERATORS | {
    Capability.REFERENCE_RACE.value: "draws by another method from the same numbers",
    Capability.UPSTREAM_STREAM.value: "tokens differ from upstream's",
}
_COUNTS = {
    Capability.EXPLICIT_NOISE.value: "hashes its numbers from seed and position",
    Capability.REFERENCE_RACE.value: "takes no noise",
    Capability.UPSTREAM_STREAM.value: "uses no torch generator",
}


class _AddsGumbelNoise(SamplingOracle):
    """Log-probabilities plus Gumbel noise, in float64."""

    def race(self, probs: Row, exponentials: Row) -> int:
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = np.log(probs.astype(np.float64)) - np.log(exponentials.astype(np.float64))
        return int(np.argmax(np.where(probs > 0, scores, -np.inf)))


class _InvertsTheCdf(CountingOracle):
    """One uniform per request, made of seed and position."""

    def race(self, probs: Row, exponentials: Row) -> int:
        if not (probs > 0).any():
            return 0
        sums = np.cumsum(probs.astype(np.float64))
        uniform = -np.expm1(-float(exponentials[0]))
        return min(int(np.searchsorted(sums, uniform * sums[-1], side="right")), int(np.flatnonzero(probs)[-1]))


class _KeepsSomeTies(SamplingOracle):
    """Exactly `top_k` tokens, the lowest ids among tied ones; in top-p all tied ones."""

    def top_k_support(self, logits: Row, top_k: int) -> Mask:
        if np.isnan(logits).any():
            return np.ones(logits.size, dtype=bool)
        support = np.zeros(logits.size, dtype=bool)
        support[np.argsort(-logits, kind="stable")[:top_k]] = True
        return support

    def top_p_support(self, logits: Row, top_p: float) -> Mask:
        support = super().top_p_support(logits, top_p)
        if np.isnan(logits).any():
            return support
        return np.asarray(logits >= logits[support].min())


class _IntersectsSupports(SamplingOracle):
    """Every filter looks at the unfiltered distribution."""

    def filtered(self, request: Request) -> Row:
        scaled = self.scaled(request)
        parts = (
            (request.min_p, self.min_p_support),
            (request.top_k, self.top_k_support),
            (request.top_p, self.top_p_support),
        )
        filtered = scaled
        for value, find in parts:
            if value is not None:
                filtered = masked(filtered, find(scaled, value))  # type: ignore[arg-type]  # top_k is an int
        return filtered


class _FiltersTopKFirst(SamplingOracle):
    """top-k, top-p, min-p: the order of other engines."""

    def filtered(self, request: Request) -> Row:
        logits = self.scaled(request)
        if request.top_k is not None:
            logits = masked(logits, self.top_k_support(logits, request.top_k))
        if request.top_p is not None:
            logits = masked(logits, self.top_p_support(logits, request.top_p))
        if request.min_p is not None:
            logits = masked(logits, self.min_p_support(logits, request.min_p))
        return logits


class _TempersLast(SamplingOracle):
    """Filters see the logits as given; what they leave is drawn at the temperature."""

    def filtered(self, request: Request) -> Row:
        temperature, request.temperature = request.temperature, np.float32(1)
        support = super().filtered(request) != -np.inf
        request.temperature = temperature
        return masked(self.scaled(request), support)


class _SumsTheSoftmaxInFloat64(SamplingOracle):
    """A softmax that rounds once, at the end."""

    def distribution(self, request: Request) -> Row:
        filtered = self.filtered(request).astype(np.float64)
        if not np.isfinite(filtered.max()):
            return softmax(filtered.astype(np.float32))
        weights = np.exp(filtered - filtered.max())
        return np.asarray(weights / weights.sum(), dtype=np.float32)


class _RefusesStridedLogits(SamplingOracle):
    def sample(self, batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
        if not batch.logits.is_contiguous():
            raise ValueError(
                f"sample: logits.stride()={batch.logits.stride()}, but they must be contiguous. Copy them."
            )
        return super().sample(batch, noise)


class _ReturnsInt32(SamplingOracle):
    def sample(self, batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int32
        return super().sample(batch, noise).int()


ODD_BUT_RIGHT: tuple[FunctionTokenSampler, ...] = (
    as_sampler(_AddsGumbelNoise(), "adds gumbel noise", _OWN_RACE),
    as_sampler(_InvertsTheCdf(), "inverts the CDF", _COUNTS),
    as_sampler(CountingOracle(), "counts", _COUNTS),
    as_sampler(_KeepsSomeTies(), "keeps some ties", GENERATORS, FilterPolicy(top_k_ties="some", top_p_ties="all")),
    as_sampler(_IntersectsSupports(), "intersects supports", GENERATORS, FilterPolicy(joint=True)),
    as_sampler(_FiltersTopKFirst(), "filters top-k first", GENERATORS, FilterPolicy(order=("top_k", "top_p", "min_p"))),
    as_sampler(_TempersLast(), "tempers last", GENERATORS, FilterPolicy(temperature="last")),
    as_sampler(_SumsTheSoftmaxInFloat64(), "sums the softmax in float64", _OWN_RACE),
    as_sampler(_RefusesStridedLogits(), "refuses strided logits by name", GENERATORS),
    as_sampler(_ReturnsInt32(), "returns int32", GENERATORS),
)
"""Right samplers of other making, with the capabilities that their making closes, and their own filter policies."""
