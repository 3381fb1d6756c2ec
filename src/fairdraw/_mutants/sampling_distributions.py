"""Token samplers with a wrong distribution, one fault each; vectorised, for the budget of a fast sampler."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax

from fairdraw._mutants._lanes import lane_mutants, racing
from fairdraw._mutants._mutant import Mutant, mutant_as, name_of
from fairdraw.protocols import Capability, Drafted, FilterPolicy, FunctionTokenSampler, RaceNoise, token_sampler

if TYPE_CHECKING:
    from torch import Tensor

    from fairdraw.protocols import SamplingBatch, SamplingNoise, SeededNoise

Floats = NDArray[np.float64]
Tokens = NDArray[np.int64]


_STRIDE = 0x9E3779B97F4A7C15
"""Between the seeds of a request's positions."""


class DistributionTokenSampler:
    """Correct: temperature, min-p, top-k, top-p and a race in NumPy, on seeds."""

    def sample(self, batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
        """One call: a token per request."""
        return torch.from_numpy(self.race(self.distribution(batch), self.drawn(batch, noise)))

    def draft(self, batch: SamplingBatch, noise: SamplingNoise) -> Drafted:
        """The same with the probabilities that the tokens were drawn from."""
        distribution = self.distribution(batch)
        tokens = self.race(distribution, self.drawn(batch, noise))
        return Drafted(
            torch.from_numpy(tokens), torch.from_numpy(self.returned(batch, distribution).astype(np.float32))
        )

    def drawn(self, batch: SamplingBatch, noise: SamplingNoise) -> Floats:
        """The exponentials of the call."""
        assert not isinstance(noise, RaceNoise), "explicit noise is not supported"
        return self.draw(batch, noise)

    def draw(self, batch: SamplingBatch, noise: SeededNoise) -> Floats:
        """Exponentials of the call; those of requests with seeds from their seeds."""
        drawn = np.random.default_rng(noise.seed % 2**64).standard_exponential((batch.batch_size, batch.vocab_size))
        for request, seed in noise.request_seeds.items():
            drawn[request] = self.own_row(seed + int(batch.positions[request]) * _STRIDE, batch.vocab_size)
        return drawn

    def own_row(self, seed: int, size: int) -> Floats:
        """The exponentials of a request with a seed."""
        return np.random.default_rng(seed % 2**64).standard_exponential(size)

    def distribution(self, batch: SamplingBatch) -> Floats:
        """The distribution of each row after temperature and filters."""
        probs = self.softmax(batch)
        if batch.min_p is not None:
            probs = _kept(probs, self.min_p_support(probs, _column(batch.min_p)))
        if batch.top_k is not None:
            probs = _kept(probs, self.top_k_support(probs, _column(batch.top_k).astype(np.int64)))
        if batch.top_p is not None:
            probs = _kept(probs, self.top_p_support(probs, _column(batch.top_p)))
        return probs

    def temperature(self, given: Floats) -> Floats:
        """The temperatures as the sampler applies them."""
        return given

    def softmax(self, batch: SamplingBatch) -> Floats:
        """Probabilities before the filters."""
        greedy = batch.is_greedy.numpy()
        divisor = np.where(greedy[:, None], 1.0, self.temperature(_column(batch.temperature)))
        probs = np.asarray(softmax(batch.logits.double().numpy() / divisor, axis=1))
        best = probs[greedy].argmax(axis=1)
        probs[greedy] = 0
        probs[np.flatnonzero(greedy), best] = 1
        return probs

    def min_p_support(self, probs: Floats, min_p: Floats) -> NDArray[np.bool_]:
        """Tokens that min-p keeps."""
        return np.asarray(probs >= min_p * probs.max(axis=1, keepdims=True) * (1 - 1e-9))

    def top_k_support(self, probs: Floats, top_k: Tokens) -> NDArray[np.bool_]:
        """Tokens that top-k keeps."""
        descending = -np.sort(-probs, axis=1)
        return np.asarray(probs >= np.take_along_axis(descending, top_k - 1, axis=1))

    def top_p_support(self, probs: Floats, top_p: Floats) -> NDArray[np.bool_]:
        """Tokens that top-p keeps."""
        descending = -np.sort(-probs, axis=1)
        before = np.cumsum(descending, axis=1) - descending
        last = (before < top_p).sum(axis=1, keepdims=True) - 1
        return np.asarray(probs >= np.take_along_axis(descending, self.edge(last), axis=1))

    def edge(self, last: Tokens) -> Tokens:
        """The rank of the last token that top-p keeps."""
        return last

    def race(self, probs: Floats, exponentials: Floats) -> Tokens:
        """A token per row by an exponential race."""
        return np.asarray((probs / exponentials).argmax(axis=1))

    def returned(self, batch: SamplingBatch, distribution: Floats) -> Floats:
        """The probabilities that the drafter returns."""
        return distribution


def _column(values: Tensor) -> Floats:  # [batch_size] any
    """Parameters as a column."""
    return values.double().numpy()[:, None]


def _kept(probs: Floats, support: NDArray[np.bool_]) -> Floats:
    """Probabilities given that the token is in the support."""
    kept = np.where(support, probs, 0.0)
    return np.asarray(kept / kept.sum(axis=1, keepdims=True))


UNSUPPORTED = {
    Capability.EXPLICIT_NOISE.value: "draws its own numbers",
    Capability.NAN_LOGITS.value: "NaN is caught before",
    Capability.EMPTY_ROWS.value: "rows that are masked whole are caught before",
    Capability.REFERENCE_ROUNDING.value: "computes in float64",
}
"""Capabilities that these samplers lack, and why."""


def right_distribution(
    sampler: type[DistributionTokenSampler] = DistributionTokenSampler, filters: FilterPolicy | None = None
) -> FunctionTokenSampler:
    """A class as a sampler and drafter, under its name."""
    made = sampler()
    return token_sampler(
        made.sample, drafting=made.draft, name=name_of(sampler), unsupported=UNSUPPORTED, filters=filters
    )


_as_mutant = partial(mutant_as, right_distribution)


@_as_mutant("DIST701", min_draws=10_000_000)
class TemperatureTwoPercentOff(DistributionTokenSampler):
    """Temperature in half precision: 0.7 is 0.714."""

    def temperature(self, given: Floats) -> Floats:
        return given * 1.02


@_as_mutant("DIST701", "DIST721", min_draws=500_000)
class TemperatureTenPercentOff(DistributionTokenSampler):
    """Makes the text livelier."""

    def temperature(self, given: Floats) -> Floats:
        return given * 1.1


@_as_mutant("DIST791")
class RowsBeyondTheFortiethAreWarmer(DistributionTokenSampler):
    """The second block of rows reads another temperature."""

    def temperature(self, given: Floats) -> Floats:
        return np.where(np.arange(len(given))[:, None] < 40, given, given * 1.5)


@_as_mutant("DIST701", min_draws=50_000)
class AppliesTheTemperatureAgain(DistributionTokenSampler):
    """The logits were divided before they came here."""

    def temperature(self, given: Floats) -> Floats:
        return given**2


@_as_mutant("DIST721", min_draws=500_000)
class LosesItsTail(DistributionTokenSampler):
    """Small probabilities are flushed to zero."""

    def distribution(self, batch: SamplingBatch) -> Floats:
        probs = super().distribution(batch)
        return _kept(probs, probs >= 1 / (2 * batch.vocab_size)) if batch.vocab_size > 1000 else probs


@_as_mutant("DIST722", min_draws=50_000)
class LosesAQuarterOfTheVocabulary(DistributionTokenSampler):
    """The last tile of 8192 takes no part."""

    def race(self, probs: Floats, exponentials: Floats) -> Tokens:
        part = probs.copy()
        part[:, probs.shape[1] * 3 // 4 :] *= probs.shape[1] < 1000
        return super().race(part, exponentials)


@_as_mutant("DIST701", min_draws=500_000)
class DrawsWithSixBits(DistributionTokenSampler):
    """An inverse CDF with uniforms of six bits."""

    def race(self, probs: Floats, exponentials: Floats) -> Tokens:
        uniforms = np.floor(64 * np.exp(-exponentials[:, :1])) / 64
        return np.asarray(np.minimum((np.cumsum(probs, axis=1) <= uniforms).sum(axis=1), probs.shape[1] - 1))


@_as_mutant("DIST701", min_draws=50_000)
class KeepsOneTokenMoreThanTopK(DistributionTokenSampler):
    """The threshold is the next logit."""

    def top_k_support(self, probs: Floats, top_k: Tokens) -> NDArray[np.bool_]:
        return super().top_k_support(probs, np.minimum(top_k + 1, probs.shape[1]))


@_as_mutant("DIST701", min_draws=50_000)
class KeepsOneTokenMoreThanTopP(DistributionTokenSampler):
    """The token behind the edge stays."""

    def edge(self, last: Tokens) -> Tokens:
        return np.minimum(last + 1, 7)


@_as_mutant("DIST701", min_draws=50_000)
class StopsOneTokenBeforeTopP(DistributionTokenSampler):
    """The token that reaches `top_p` is left out."""

    def edge(self, last: Tokens) -> Tokens:
        return np.maximum(last - 1, 0)


@_as_mutant("DIST701", min_draws=50_000)
class MinPRelativeToOne(DistributionTokenSampler):
    """`prob < min_p` instead of `prob < min_p * largest`."""

    def min_p_support(self, probs: Floats, min_p: Floats) -> NDArray[np.bool_]:
        return np.asarray((probs >= min_p) | (probs == probs.max(axis=1, keepdims=True)))


class FiltersTopPFirst(DistributionTokenSampler):
    """top-p, min-p, top-k: correct if that is declared."""

    def distribution(self, batch: SamplingBatch) -> Floats:
        for alone in ({"top_k": None, "min_p": None}, {"top_k": None, "top_p": None}, {"top_p": None, "min_p": None}):
            probs = super().distribution(batch.replace(**alone))
            with np.errstate(divide="ignore"):
                logits = torch.from_numpy(np.log(probs))
            batch = batch.replace(logits=logits, temperature=torch.ones_like(batch.temperature))
        return probs


class TempersLast(DistributionTokenSampler):
    """Filters are applied before the temperature: correct if that is declared."""

    def distribution(self, batch: SamplingBatch) -> Floats:
        as_given = super().distribution(batch.replace(temperature=torch.ones_like(batch.temperature)))
        return _kept(self.softmax(batch), as_given > 0)


_top_p_first_unsaid = _as_mutant("DIST701", min_draws=50_000)(FiltersTopPFirst)
_tempers_last_unsaid = _as_mutant("DIST701", "DIST721", min_draws=50_000)(TempersLast)


@_as_mutant("SAM202")
class OneNoiseRowForTheBatch(DistributionTokenSampler):
    """All requests have the numbers of the first."""

    def draw(self, batch: SamplingBatch, noise: SeededNoise) -> Floats:
        drawn = super().draw(batch, noise)
        return np.repeat(drawn[:1], len(drawn), axis=0)


@_as_mutant("SAM202")
class BlocksOfEightShareTheirNoise(DistributionTokenSampler):
    """Noise is indexed by lane: rows eight apart draw alike."""

    def draw(self, batch: SamplingBatch, noise: SeededNoise) -> Floats:
        return super().draw(batch, noise)[np.arange(batch.batch_size) % 8]


class _DrawsByANumber(DistributionTokenSampler):
    """Requests without a seed draw by the call's seed and one number, made of row and position."""

    def number(self, rows: Tokens, positions: Tokens) -> Tokens:
        raise NotImplementedError

    def draw(self, batch: SamplingBatch, noise: SeededNoise) -> Floats:
        drawn = super().draw(batch, noise)
        numbers = self.number(np.arange(batch.batch_size), batch.positions.numpy())
        for row in np.setdiff1d(np.arange(batch.batch_size), list(noise.request_seeds)):
            drawn[row] = np.random.default_rng((noise.seed, int(numbers[row]))).standard_exponential(drawn.shape[1])
        return drawn


@_as_mutant("DIST761", min_draws=50_000)
class MixesRowAndPositionByExclusiveOr(_DrawsByANumber):
    """`hash(seed, row ^ position)`: requests whose positions differ as their rows do draw alike."""

    def number(self, rows: Tokens, positions: Tokens) -> Tokens:
        return rows ^ positions


@_as_mutant("DIST761", min_draws=50_000)
class CountsPositionsFromTheLastRow(_DrawsByANumber):
    """A counter of `position - row`: right as long as no two requests are at rising positions."""

    def number(self, rows: Tokens, positions: Tokens) -> Tokens:
        return positions - rows + 2**20


@_as_mutant("SAM202")
class CallsShareTheirNoise(DistributionTokenSampler):
    """Every second call finds the noise of the call before still in its buffer."""

    _kept: Floats | None = None

    def draw(self, batch: SamplingBatch, noise: SeededNoise) -> Floats:
        kept, self._kept = self._kept, None
        if kept is not None and kept.shape == tuple(batch.logits.shape):
            return kept
        self._kept = super().draw(batch, noise)
        return self._kept


@_as_mutant("DIST701", min_draws=500_000)
class SeededRequestsTakeUniforms(DistributionTokenSampler):
    """Requests with seeds race with uniforms instead of exponentials: nearly right for probable tokens alone."""

    def own_row(self, seed: int, size: int) -> Floats:
        return np.random.default_rng(seed % 2**64).random(size)


@_as_mutant("SAM203")
class FoldsSeedsIntoFourBits(DistributionTokenSampler):
    """Sixteen streams for all users."""

    def own_row(self, seed: int, size: int) -> Floats:
        return super().own_row(seed % 16, size)


@_as_mutant("SAM201")
class SaysTheDistributionAtAnotherTemperature(DistributionTokenSampler):
    """Returns the softmax of the raw logits; drafts were drawn at each request's temperature."""

    def returned(self, batch: SamplingBatch, distribution: Floats) -> Floats:
        return self.distribution(batch.replace(temperature=torch.ones_like(batch.temperature)))


@_as_mutant("SAM201")
class SaysATileTwice(DistributionTokenSampler):
    """The first half of the vocabulary weighs a tenth more in the returned probabilities."""

    def returned(self, batch: SamplingBatch, distribution: Floats) -> Floats:
        heavy = distribution.copy()
        heavy[:, : distribution.shape[1] // 2] *= 1.1
        return np.asarray(heavy / heavy.sum(axis=1, keepdims=True))


# Combinations of parameters.


def _at_one(batch: SamplingBatch) -> SamplingBatch:
    return batch.replace(temperature=torch.ones_like(batch.temperature))


def _off(batch: SamplingBatch, name: str, off: float) -> NDArray[np.bool_]:
    """Which requests do not use a filter."""
    values = getattr(batch, name)
    return np.asarray(np.ones(batch.batch_size, bool) if values is None else (values == off).numpy())


class _FiltersEarly(DistributionTokenSampler):
    """One filter sees the distribution before the temperature; the others are right."""

    filter_name: ClassVar[str]

    def distribution(self, batch: SamplingBatch) -> Floats:
        given = getattr(batch, self.filter_name)
        off = {name: None for name in ("top_k", "top_p", "min_p") if name != self.filter_name}
        right = super().distribution(batch.replace(**{self.filter_name: None}))
        early = super().distribution(_at_one(batch.replace(**off))) > 0
        return right if given is None else _kept(right + 1e-300 * early, early)


@_as_mutant("SAM201")
class FindsTopPBeforeTheTemperature(_FiltersEarly):
    """The nucleus is that of the raw logits; the draw is at the temperature."""

    filter_name = "top_p"


@_as_mutant("SAM201")
class FindsMinPBeforeTheTemperature(_FiltersEarly):
    """The threshold is that of the raw logits; the draw is at the temperature."""

    filter_name = "min_p"


@_as_mutant("SAM201")
class ForgetsTheTemperatureOfTopK(DistributionTokenSampler):
    """A fast path for top-k alone sorts raw logits, and draws from them."""

    def distribution(self, batch: SamplingBatch) -> Floats:
        alone = ~_off(batch, "top_k", batch.vocab_size) & _off(batch, "top_p", 1) & _off(batch, "min_p", 0)
        temperature = torch.where(torch.from_numpy(alone), 1.0, batch.temperature)
        return super().distribution(batch.replace(temperature=temperature))


class _FiltersInOrder(DistributionTokenSampler):
    """The filters in another order than declared."""

    order: ClassVar[tuple[str, ...]]

    def distribution(self, batch: SamplingBatch) -> Floats:
        probs = self.softmax(batch)
        for name in self.order:
            given = getattr(batch, name)
            if given is not None:
                values = _column(given)
                support = getattr(self, f"{name}_support")
                probs = _kept(probs, support(probs, values.astype(np.int64) if name == "top_k" else values))
        return probs


@_as_mutant("SAM201")
class FiltersTopPBeforeTopK(_FiltersInOrder):
    """Min-p, top-p, top-k: the nucleus counts mass that top-k takes away."""

    order = ("min_p", "top_p", "top_k")


@_as_mutant("SAM201")
class FiltersMinPLast(_FiltersInOrder):
    """Top-k, top-p, min-p, as transformers has it, and not declared."""

    order = ("top_k", "top_p", "min_p")


@_as_mutant("SAM201")
class FiltersInAnotherOrderIfThereAreThree(DistributionTokenSampler):
    """A fused kernel for requests with all filters, which begins with top-p."""

    def distribution(self, batch: SamplingBatch) -> Floats:
        fused = _FiltersInOrder()
        fused.order = ("top_p", "min_p", "top_k")  # type: ignore[misc]  # of this instance
        off = _off(batch, "top_k", batch.vocab_size) | _off(batch, "top_p", 1) | _off(batch, "min_p", 0)
        return np.where(off[:, None], super().distribution(batch), fused.distribution(batch))


def _is_one(values: Tensor | None) -> bool:  # [batch_size] any
    """Six rows at least, and one value in all of them."""
    return values is not None and values.numel() > 5 and bool((values == values[0]).all())


@_as_mutant("SAM201")
class FiltersInAnotherOrderIfAllAreAlike(DistributionTokenSampler):
    """One sort for the batch if its requests have one top-p and one min-p: the nucleus is found first."""

    def distribution(self, batch: SamplingBatch) -> Floats:
        fused = _FiltersInOrder()
        fused.order = ("top_p", "min_p", "top_k")  # type: ignore[misc]  # of this instance
        is_alike = _is_one(batch.top_p) and _is_one(batch.min_p)
        return fused.distribution(batch) if is_alike else super().distribution(batch)


@_as_mutant("SAM201")
class ForgetsATemperatureThatAllHave(DistributionTokenSampler):
    """`logits / temperature[0]` in a path for batches of one temperature, which holds 1 in a greedy row."""

    def softmax(self, batch: SamplingBatch) -> Floats:
        greedy = batch.is_greedy
        is_alike = bool(greedy[0]) and _is_one(batch.temperature[~greedy])
        return super().softmax(batch.replace(temperature=torch.where(greedy, 0.0, 1.0)) if is_alike else batch)


@_as_mutant("SAM201")
class TakesASmallTopPForOff(DistributionTokenSampler):
    """`if top_p > 1e-6`: what means one token keeps all."""

    def distribution(self, batch: SamplingBatch) -> Floats:
        if batch.top_p is not None:
            batch = batch.replace(top_p=torch.where(batch.top_p < 1e-6, 1.0, batch.top_p))
        return super().distribution(batch)


@_as_mutant("SAM201")
class TakesAllButOneForAll(DistributionTokenSampler):
    """`if top_k < vocab_size - 1`: the least probable token stays."""

    def top_k_support(self, probs: Floats, top_k: Tokens) -> NDArray[np.bool_]:
        return super().top_k_support(probs, np.where(top_k >= probs.shape[1] - 1, probs.shape[1], top_k))


@_as_mutant("DIST701", min_draws=50_000)
class UnseededRequestsTakeUniformsBesideSeededOnes(DistributionTokenSampler):
    """Two ways to draw in one batch: the rows between those with seeds are filled by another generator."""

    def draw(self, batch: SamplingBatch, noise: SeededNoise) -> Floats:
        drawn = super().draw(batch, noise)
        others = np.setdiff1d(np.arange(batch.batch_size), list(noise.request_seeds))
        if noise.request_seeds:
            drawn[others] = np.random.default_rng(noise.seed % 2**64).random((others.size, batch.vocab_size))
        return drawn


@_as_mutant("SAM201")
class ForgetsTheTemperatureOfHalfLogits(DistributionTokenSampler):
    """Another kernel for half precision, without the temperature."""

    def softmax(self, batch: SamplingBatch) -> Floats:
        return super().softmax(batch if batch.logits.dtype == torch.float32 else _at_one(batch))


@_as_mutant("DIST723", min_draws=50_000)
class FindsTheNucleusInAPartOfTheVocabulary(DistributionTokenSampler):
    """Top-p sorts 2**17 tokens; those behind them have no part in its mass, and stay."""

    def top_p_support(self, probs: Floats, top_p: Floats) -> NDArray[np.bool_]:
        support = np.ones(probs.shape, bool)
        support[:, : 2**17] = super().top_p_support(probs[:, : 2**17], top_p)
        return support


@_as_mutant("DIST723", min_draws=50_000)
class FoldsIdsIntoSeventeenBits(DistributionTokenSampler):
    """An id and a tile share a word: ids from 2**17 on lose their highest bit."""

    def race(self, probs: Floats, exponentials: Floats) -> Tokens:
        return super().race(probs, exponentials) % 2**17


@_as_mutant("DIST772", min_draws=500_000)
class RacesOnProbabilitiesInBfloat16(DistributionTokenSampler):
    """Probabilities are kept in bfloat16 on the way to the race: 0.4 % at most, and 0.2 % of TV."""

    def race(self, probs: Floats, exponentials: Floats) -> Tokens:
        return super().race(torch.from_numpy(probs).bfloat16().double().numpy(), exponentials)


DISTRIBUTION_MUTANTS: tuple[Mutant, ...] = (
    *(value for value in list(vars().values()) if isinstance(value, Mutant)),
    *lane_mutants(
        lambda fault: right_distribution(racing(DistributionTokenSampler, fault)),
        "DIST722",
        "DIST722",
        min_draws=500_000,
    ),
)
