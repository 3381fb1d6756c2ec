"""Token samplers whose law is wrong, one fault each; vectorised: they get the budget of a sampler under test."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from fairdraw.mutants._planted import Mutant
from fairdraw.protocols import Capability, Drafted, FilterPolicy, FunctionTokenSampler, RaceNoise, token_sampler

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from fairdraw.protocols import SamplingBatch, SamplingNoise, SeededNoise

__all__ = ["LAW_MUTANTS", "ODD_LAWS", "LawTokenSampler", "right_law"]

Floats = NDArray[np.float64]
Tokens = NDArray[np.int64]


class LawTokenSampler:
    """Right: temperature, min-p, top-k, top-p and a race in NumPy, on seeds."""

    def sample(self, batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
        return torch.from_numpy(self.race(self.law(batch), self.drawn(batch, noise)))

    def draft(self, batch: SamplingBatch, noise: SamplingNoise) -> Drafted:
        law = self.law(batch)
        tokens = self.race(law, self.drawn(batch, noise))
        return Drafted(torch.from_numpy(tokens), torch.from_numpy(self.said(batch, law).astype(np.float32)))

    def drawn(self, batch: SamplingBatch, noise: SamplingNoise) -> Floats:
        assert not isinstance(noise, RaceNoise), "explicit noise is declined"
        return self.draw(batch, noise)

    def draw(self, batch: SamplingBatch, noise: SeededNoise) -> Floats:
        """Exponentials of the call; those of requests with seeds from their seeds."""
        drawn = np.random.default_rng(noise.seed).standard_exponential((batch.batch_size, batch.vocab_size))
        for request, seed in noise.request_seeds.items():
            drawn[request] = self.own_row(seed, batch.vocab_size)
        return drawn

    def own_row(self, seed: int, size: int) -> Floats:
        return np.random.default_rng(seed).standard_exponential(size)

    def law(self, batch: SamplingBatch) -> Floats:
        probs = self.softmax(batch)
        if batch.min_p is not None:
            probs = _kept(probs, self.min_p_support(probs, _column(batch.min_p)))
        if batch.top_k is not None:
            probs = _kept(probs, self.top_k_support(probs, _column(batch.top_k).astype(np.int64)))
        if batch.top_p is not None:
            probs = _kept(probs, self.top_p_support(probs, _column(batch.top_p)))
        return probs

    def temperature(self, batch: SamplingBatch) -> Floats:
        return _column(batch.temperature)

    def softmax(self, batch: SamplingBatch) -> Floats:
        scaled = batch.logits.double().numpy() / self.temperature(batch)
        weights = np.exp(scaled - scaled.max(axis=1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def min_p_support(self, probs: Floats, min_p: Floats) -> NDArray[np.bool_]:
        return np.asarray(probs >= min_p * probs.max(axis=1, keepdims=True) * (1 - 1e-9))

    def top_k_support(self, probs: Floats, top_k: Tokens) -> NDArray[np.bool_]:
        descending = -np.sort(-probs, axis=1)
        return np.asarray(probs >= np.take_along_axis(descending, top_k - 1, axis=1))

    def top_p_support(self, probs: Floats, top_p: Floats) -> NDArray[np.bool_]:
        descending = -np.sort(-probs, axis=1)
        before = np.cumsum(descending, axis=1) - descending
        last = (before < top_p).sum(axis=1, keepdims=True) - 1
        return np.asarray(probs >= np.take_along_axis(descending, self.edge(last), axis=1))

    def edge(self, last: Tokens) -> Tokens:
        """The rank of the last token that top-p keeps."""
        return last

    def race(self, probs: Floats, exponentials: Floats) -> Tokens:
        return np.asarray((probs / exponentials).argmax(axis=1))

    def said(self, batch: SamplingBatch, law: Floats) -> Floats:
        """The law that the drafter returns."""
        return law


def _column(values: Tensor) -> Floats:  # [batch_size] any
    return values.double().numpy()[:, None]


def _kept(probs: Floats, support: NDArray[np.bool_]) -> Floats:
    kept = np.where(support, probs, 0.0)
    return np.asarray(kept / kept.sum(axis=1, keepdims=True))


def right_law(
    sampler: type[LawTokenSampler] = LawTokenSampler, filters: FilterPolicy | None = None
) -> FunctionTokenSampler:
    """A law sampler as a sampler and drafter, under the name of its class."""
    made, name = sampler(), re.sub(r"(?<!^)(?=[A-Z])", " ", sampler.__name__).lower()
    closed = {Capability.EXPLICIT_NOISE.value: "draws its own numbers"}
    return token_sampler(made.sample, drafting=made.draft, name=name, closed=closed, filters=filters)


def _planted(*caught_by: str, min_draws: int = 0) -> Callable[[type[LawTokenSampler]], Mutant]:
    def make_mutant(faulty: type[LawTokenSampler]) -> Mutant:
        sampler = right_law(faulty)
        story = inspect.cleandoc(faulty.__doc__ or "")
        return Mutant(sampler.name, story, caught_by, lambda: right_law(faulty), min_draws)

    return make_mutant


@_planted("LAW702", min_draws=10_000_000)
class TemperatureTwoPercentOff(LawTokenSampler):
    """Temperature in half precision: 0.7 is 0.714."""

    def temperature(self, batch: SamplingBatch) -> Floats:
        return super().temperature(batch) * 1.02


@_planted("LAW702", "LAW701", "LAW721", min_draws=500_000)
class TemperatureTenPercentOff(LawTokenSampler):
    """Somebody wanted livelier text."""

    def temperature(self, batch: SamplingBatch) -> Floats:
        return super().temperature(batch) * 1.1


@_planted("LAW702", min_draws=50_000)
class AppliesTheTemperatureAgain(LawTokenSampler):
    """The logits were divided before they came here."""

    def temperature(self, batch: SamplingBatch) -> Floats:
        return np.asarray(super().temperature(batch) ** 2)


@_planted("LAW721", min_draws=500_000)
class LosesItsTail(LawTokenSampler):
    """Small probabilities are flushed to zero."""

    def law(self, batch: SamplingBatch) -> Floats:
        probs = super().law(batch)
        return _kept(probs, probs >= 1 / (2 * batch.vocab_size)) if batch.vocab_size > 1000 else probs


@_planted("LAW722", min_draws=50_000)
class LosesAQuarterOfTheVocabulary(LawTokenSampler):
    """The last tile of 8192 takes no part."""

    def race(self, probs: Floats, exponentials: Floats) -> Tokens:
        part = probs.copy()
        part[:, probs.shape[1] * 3 // 4 :] *= probs.shape[1] < 1000
        return super().race(part, exponentials)


@_planted("LAW701", min_draws=500_000)
class DrawsWithSixBits(LawTokenSampler):
    """An inverse CDF with uniforms of six bits."""

    def race(self, probs: Floats, exponentials: Floats) -> Tokens:
        uniforms = np.floor(64 * np.exp(-exponentials[:, :1])) / 64
        return np.asarray(np.minimum((np.cumsum(probs, axis=1) <= uniforms).sum(axis=1), probs.shape[1] - 1))


@_planted("LAW703", "LAW706", min_draws=50_000)
class KeepsOneTokenMoreThanTopK(LawTokenSampler):
    """The threshold is the next logit."""

    def top_k_support(self, probs: Floats, top_k: Tokens) -> NDArray[np.bool_]:
        return super().top_k_support(probs, np.minimum(top_k + 1, probs.shape[1]))


@_planted("LAW704", min_draws=50_000)
class KeepsOneTokenMoreThanTopP(LawTokenSampler):
    """The token behind the edge stays."""

    def edge(self, last: Tokens) -> Tokens:
        return np.minimum(last + 1, 7)


@_planted("LAW704", "LAW706", min_draws=50_000)
class StopsOneTokenBeforeTopP(LawTokenSampler):
    """The token that reaches `top_p` is left out."""

    def edge(self, last: Tokens) -> Tokens:
        return np.maximum(last - 1, 0)


@_planted("LAW705", min_draws=50_000)
class MinPRelativeToOne(LawTokenSampler):
    """`prob < min_p` instead of `prob < min_p * largest`."""

    def min_p_support(self, probs: Floats, min_p: Floats) -> NDArray[np.bool_]:
        return np.asarray((probs >= min_p) | (probs == probs.max(axis=1, keepdims=True)))


class FiltersTopPFirst(LawTokenSampler):
    """top-p, min-p, top-k: right if that is declared."""

    def law(self, batch: SamplingBatch) -> Floats:
        for alone in ({"top_k": None, "min_p": None}, {"top_k": None, "top_p": None}, {"top_p": None, "min_p": None}):
            probs = super().law(batch.replace(**alone))
            with np.errstate(divide="ignore"):
                logits = torch.from_numpy(np.log(probs))
            batch = batch.replace(logits=logits, temperature=torch.ones_like(batch.temperature))
        return probs


class TempersLast(LawTokenSampler):
    """Filters see the law before the temperature: right if that is declared."""

    def law(self, batch: SamplingBatch) -> Floats:
        as_given = super().law(batch.replace(temperature=torch.ones_like(batch.temperature)))
        return _kept(self.softmax(batch), as_given > 0)


ODD_LAWS = (
    right_law(FiltersTopPFirst, FilterPolicy(order=("top_p", "min_p", "top_k"))),
    right_law(TempersLast, FilterPolicy(temperature="last")),
)
"""Right, since they say how they filter."""

_top_p_first_unsaid = _planted("LAW706", min_draws=50_000)(FiltersTopPFirst)
_tempers_last_unsaid = _planted("LAW705", "LAW721", min_draws=50_000)(TempersLast)


@_planted("LAW711", min_draws=4_000)
class OneNoiseRowForTheBatch(LawTokenSampler):
    """All requests have the numbers of the first."""

    def draw(self, batch: SamplingBatch, noise: SeededNoise) -> Floats:
        drawn = super().draw(batch, noise)
        return np.repeat(drawn[:1], len(drawn), axis=0)


@_planted("LAW711", min_draws=50_000)
class BlocksOfEightShareTheirNoise(LawTokenSampler):
    """Noise is indexed by lane: rows eight apart draw alike."""

    def draw(self, batch: SamplingBatch, noise: SeededNoise) -> Floats:
        return super().draw(batch, noise)[np.arange(batch.batch_size) % 8]


@_planted("LAW712", min_draws=4_000)
class CallsShareTheirNoise(LawTokenSampler):
    """Every second call finds the noise of the call before still in its buffer."""

    def __init__(self) -> None:
        self._kept: Floats | None = None

    def draw(self, batch: SamplingBatch, noise: SeededNoise) -> Floats:
        kept, self._kept = self._kept, None
        if kept is not None and kept.shape == tuple(batch.logits.shape):
            return kept
        self._kept = super().draw(batch, noise)
        return self._kept


@_planted("LAW707", min_draws=500_000)
class SeededRequestsTakeUniforms(LawTokenSampler):
    """The race of requests with seeds is run with uniforms: right at the top, wrong below."""

    def own_row(self, seed: int, size: int) -> Floats:
        return np.random.default_rng(seed).random(size)


@_planted("LAW713", min_draws=50_000)
class FoldsSeedsIntoFourBits(LawTokenSampler):
    """Sixteen streams for all users."""

    def own_row(self, seed: int, size: int) -> Floats:
        return super().own_row(seed % 16, size)


@_planted("LAW731", min_draws=50_000)
class SaysTheLawAtAnotherTemperature(LawTokenSampler):
    """The law of the drafter's raw logits; drafts were drawn at each request's temperature."""

    def said(self, batch: SamplingBatch, law: Floats) -> Floats:
        other = torch.ones_like(batch.temperature)
        return self.law(batch.replace(temperature=other))


@_planted("LAW732", min_draws=500_000)
class SaysATileTwice(LawTokenSampler):
    """The first half of the vocabulary weighs a tenth more in the law that is said."""

    def said(self, batch: SamplingBatch, law: Floats) -> Floats:
        heavy = law.copy()
        heavy[:, : law.shape[1] // 2] *= 1.1
        return np.asarray(heavy / heavy.sum(axis=1, keepdims=True))


LAW_MUTANTS: tuple[Mutant, ...] = tuple(value for value in list(vars().values()) if isinstance(value, Mutant))
