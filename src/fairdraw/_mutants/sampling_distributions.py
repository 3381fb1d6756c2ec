"""Token samplers with a wrong distribution, one fault each; vectorised, for the budget of a fast sampler.

Each function stands for one step of the correct sampler, with that step's arguments. First comes `right`, the correct
steps, or `answer`, that of the correct step.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from scipy.special import softmax

from fairdraw._core.array_types import Flags, Float64s, Ints
from fairdraw._mutants._lanes import LaneFault, lane_mutants, racing
from fairdraw._mutants._mutant import Memory, Mutant, as_token_sampler, mutant_as, mutants_in, name_of, patching
from fairdraw.contracts import Capability, Drafted, FilterPolicy, FunctionTokenSampler, RaceNoise, SeededNoise

if TYPE_CHECKING:
    from torch import Tensor

    from fairdraw.contracts import SamplingBatch as Batch
    from fairdraw.contracts import SamplingNoise

Tokens = Ints


_STRIDE = 0x9E3779B97F4A7C15
"""Between the seeds of a request's positions."""


class DistributionTokenSampler:
    """Correct: temperature, min-p, top-k, top-p and a race in NumPy, on seeds."""

    order: ClassVar = ("min_p", "top_k", "top_p")

    def sample(self, batch: Batch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
        """One call: a token per request."""
        return torch.from_numpy(self.race(self.distribution(batch), self.drawn(batch, noise)))

    def draft(self, batch: Batch, noise: SamplingNoise) -> Drafted:
        """The same with the probabilities that the tokens were drawn from."""
        distribution = self.distribution(batch)
        tokens = self.race(distribution, self.drawn(batch, noise))
        return Drafted(
            torch.from_numpy(tokens), torch.from_numpy(self.returned(batch, distribution).astype(np.float32))
        )

    def drawn(self, batch: Batch, noise: SamplingNoise) -> Float64s:
        """The exponentials of the call."""
        assert not isinstance(noise, RaceNoise), "explicit noise is not supported"
        return self.draw(batch, noise)

    def draw(self, batch: Batch, noise: SeededNoise) -> Float64s:
        """Exponentials of the call; those of requests with seeds from their seeds."""
        drawn = np.random.default_rng(noise.seed % 2**64).standard_exponential((batch.batch_size, batch.vocab_size))
        for request, seed in noise.request_seeds.items():
            drawn[request] = self.own_row(seed + int(batch.positions[request]) * _STRIDE, batch.vocab_size)
        return drawn

    def own_row(self, seed: int, size: int) -> Float64s:
        """The exponentials of a request with a seed."""
        return np.random.default_rng(seed % 2**64).standard_exponential(size)

    def distribution(self, batch: Batch) -> Float64s:
        """The distribution of each row after temperature and filters."""
        probs = self.softmax(batch)
        for name in self.order:
            given = getattr(batch, name)
            if given is not None:
                probs = _kept(probs, getattr(self, f"{name}_support")(probs, _column(given)))
        return probs

    def temperature(self, given: Float64s) -> Float64s:
        """The temperatures as the sampler applies them."""
        return given

    def softmax(self, batch: Batch) -> Float64s:
        """Probabilities before the filters."""
        greedy = batch.is_greedy.numpy()
        divisor = np.where(greedy[:, None], 1.0, self.temperature(_column(batch.temperature)))
        probs = np.asarray(softmax(batch.logits.double().numpy() / divisor, axis=1))
        best = probs[greedy].argmax(axis=1)
        probs[greedy] = 0
        probs[np.flatnonzero(greedy), best] = 1
        return probs

    def min_p_support(self, probs: Float64s, min_p: Float64s) -> Flags:
        """Tokens that min-p keeps."""
        return np.asarray(probs >= min_p * probs.max(axis=1, keepdims=True) * (1 - 1e-9))

    def top_k_support(self, probs: Float64s, top_k: Float64s) -> Flags:
        """Tokens that top-k keeps."""
        descending = -np.sort(-probs, axis=1)
        return np.asarray(probs >= np.take_along_axis(descending, top_k.astype(np.int64) - 1, axis=1))

    def top_p_support(self, probs: Float64s, top_p: Float64s) -> Flags:
        """Tokens that top-p keeps."""
        descending = -np.sort(-probs, axis=1)
        before = np.cumsum(descending, axis=1) - descending
        last = (before < top_p).sum(axis=1, keepdims=True) - 1
        return np.asarray(probs >= np.take_along_axis(descending, self.edge(last), axis=1))

    def edge(self, last: Tokens) -> Tokens:
        """The rank of the last token that top-p keeps."""
        return last

    def race(self, probs: Float64s, exponentials: Float64s) -> Tokens:
        """A token per row by an exponential race."""
        return np.asarray((probs / exponentials).argmax(axis=1))

    def returned(self, batch: Batch, distribution: Float64s) -> Float64s:
        """The probabilities that the drafter returns."""
        return distribution


def _column(values: Tensor) -> Float64s:  # [batch_size] any
    """Parameters as a column."""
    return values.double().numpy()[:, None]


def _kept(probs: Float64s, support: Flags) -> Float64s:
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
    return as_token_sampler(sampler(), name_of(sampler), UNSUPPORTED, filters)


_as_mutant = partial(mutant_as, right_distribution)
_patched = patching(_as_mutant, DistributionTokenSampler)
Sampler = DistributionTokenSampler


@_patched("temperature", "DIST701", min_draws=10_000_000)
def temperature_two_percent_off(right: Sampler, given: Float64s) -> Float64s:
    """Temperature in half precision: 0.7 is 0.714."""
    return given * 1.02


@_patched("temperature", "DIST701", min_draws=500_000)
def temperature_ten_percent_off(right: Sampler, given: Float64s) -> Float64s:
    """Makes the text livelier."""
    return given * 1.1


@_patched("temperature", "DIST791")
def rows_beyond_the_fortieth_are_warmer(right: Sampler, given: Float64s) -> Float64s:
    """The second block of rows reads another temperature."""
    return np.where(np.arange(len(given))[:, None] < 40, given, given * 1.5)


@_patched("temperature", "DIST701", min_draws=50_000)
def applies_the_temperature_again(right: Sampler, given: Float64s) -> Float64s:
    """The logits were divided before they came here."""
    return given**2


@_patched("distribution", "SAM201")
def loses_its_tail(answer: Float64s, batch: Batch) -> Float64s:
    """Small probabilities are flushed to zero."""
    return _kept(answer, answer >= 1 / (2 * batch.vocab_size)) if batch.vocab_size > 1000 else answer


@_patched("race", "SAM201")
def loses_a_quarter_of_the_vocabulary(right: Sampler, probs: Float64s, exponentials: Float64s) -> Tokens:
    """The last tile of 8192 takes no part."""
    part = probs.copy()
    part[:, probs.shape[1] * 3 // 4 :] *= probs.shape[1] < 1000
    return right.race(part, exponentials)


@_patched("race", "DIST701", min_draws=500_000)
def draws_with_six_bits(right: Sampler, probs: Float64s, exponentials: Float64s) -> Tokens:
    """An inverse CDF with uniforms of six bits."""
    uniforms = np.floor(64 * np.exp(-exponentials[:, :1])) / 64
    return np.asarray(np.minimum((np.cumsum(probs, axis=1) <= uniforms).sum(axis=1), probs.shape[1] - 1))


@_patched("top_k_support", "DIST701", min_draws=50_000)
def keeps_one_token_more_than_top_k(right: Sampler, probs: Float64s, top_k: Float64s) -> Flags:
    """The threshold is the next logit."""
    return right.top_k_support(probs, np.minimum(top_k + 1, probs.shape[1]))


@_patched("edge", "DIST701", min_draws=50_000)
def keeps_one_token_more_than_top_p(right: Sampler, last: Tokens) -> Tokens:
    """The token behind the edge stays."""
    return np.minimum(last + 1, 7)


@_patched("edge", "DIST701", min_draws=50_000)
def stops_one_token_before_top_p(right: Sampler, last: Tokens) -> Tokens:
    """The token that reaches `top_p` is left out."""
    return np.maximum(last - 1, 0)


@_patched("min_p_support", "DIST701", min_draws=50_000)
def min_p_relative_to_one(right: Sampler, probs: Float64s, min_p: Float64s) -> Flags:
    """`prob < min_p` instead of `prob < min_p * largest`."""
    return np.asarray((probs >= min_p) | (probs == probs.max(axis=1, keepdims=True)))


class FiltersTopPFirst(DistributionTokenSampler):
    """top-p, min-p, top-k: correct if that is declared."""

    order = ("top_p", "min_p", "top_k")


class TempersLast(DistributionTokenSampler):
    """Filters are applied before the temperature: correct if that is declared."""

    def distribution(self, batch: Batch) -> Float64s:
        as_given = super().distribution(batch.replace(temperature=torch.ones_like(batch.temperature)))
        return _kept(self.softmax(batch), as_given > 0)


_top_p_first_unsaid = _as_mutant("DIST701", min_draws=50_000)(FiltersTopPFirst)
_tempers_last_unsaid = _as_mutant("DIST701", min_draws=50_000)(TempersLast)


@_patched("draw", "SAM202")
def one_noise_row_for_the_batch(answer: Float64s, batch: Batch, noise: SeededNoise) -> Float64s:
    """All requests have the numbers of the first."""
    return np.repeat(answer[:1], len(answer), axis=0)


@_patched("draw", "SAM202")
def blocks_of_eight_share_their_noise(right: Sampler, batch: Batch, noise: SeededNoise) -> Float64s:
    """Noise is indexed by lane: rows eight apart draw alike."""
    return right.draw(batch, noise)[np.arange(batch.batch_size) % 8]


@_patched("draw", "DIST791")
def shortens_seeds_beside_top_k(right: Sampler, batch: Batch, noise: SeededNoise) -> Float64s:
    """The path of requests with top-k keeps 8 bits of a seed: requests share their numbers there alone."""
    top_k = [batch.vocab_size] * batch.batch_size if batch.top_k is None else batch.top_k.tolist()
    short = {i: seed % 2**8 if top_k[i] < batch.vocab_size else seed for i, seed in noise.request_seeds.items()}
    return right.draw(batch, SeededNoise(noise.seed, short))


class _DrawsByANumber(DistributionTokenSampler):
    """Requests without a seed draw by the call's seed and one number, made of row and position."""

    def number(self, rows: Tokens, positions: Tokens) -> Tokens:
        raise NotImplementedError

    def draw(self, batch: Batch, noise: SeededNoise) -> Float64s:
        drawn = super().draw(batch, noise)
        numbers = self.number(np.arange(batch.batch_size), batch.positions.numpy())
        for row in np.setdiff1d(np.arange(batch.batch_size), list(noise.request_seeds)):
            drawn[row] = np.random.default_rng((noise.seed, int(numbers[row]))).standard_exponential(drawn.shape[1])
        return drawn


_numbered = patching(_as_mutant, _DrawsByANumber)


@_numbered("number", "DIST761", min_draws=50_000)
def mixes_row_and_position_by_exclusive_or(right: _DrawsByANumber, rows: Tokens, positions: Tokens) -> Tokens:
    """`hash(seed, row ^ position)`: requests whose positions differ as their rows do draw alike."""
    return rows ^ positions


@_numbered("number", "DIST761", min_draws=50_000)
def counts_positions_from_the_last_row(right: _DrawsByANumber, rows: Tokens, positions: Tokens) -> Tokens:
    """A counter of `position - row`: right as long as no two requests are at rising positions."""
    return positions - rows + 2**20


@_patched("draw", "SAM202")
def calls_share_their_noise(right: Sampler, batch: Batch, noise: SeededNoise, *, kept: Memory) -> Float64s:
    """Every second call finds the noise of the call before still in its buffer."""
    before: Float64s | None = kept.pop("drawn", None)
    if before is not None and before.shape == tuple(batch.logits.shape):
        return before
    drawn = kept["drawn"] = right.draw(batch, noise)
    return drawn


@_patched("own_row", "DIST701", min_draws=500_000)
def seeded_requests_take_uniforms(right: Sampler, seed: int, size: int) -> Float64s:
    """Requests with seeds race with uniforms instead of exponentials: nearly right for probable tokens alone."""
    return np.random.default_rng(seed % 2**64).random(size)


@_patched("own_row", "SAM203")
def folds_seeds_into_four_bits(right: Sampler, seed: int, size: int) -> Float64s:
    """Sixteen streams for all users."""
    return right.own_row(seed % 16, size)


@_patched("returned", "SAM201")
def says_the_distribution_at_another_temperature(right: Sampler, batch: Batch, distribution: Float64s) -> Float64s:
    """Returns the softmax of the raw logits; drafts were drawn at each request's temperature."""
    return right.distribution(batch.replace(temperature=torch.ones_like(batch.temperature)))


@_patched("returned", "SAM201")
def says_a_tile_twice(right: Sampler, batch: Batch, distribution: Float64s) -> Float64s:
    """The first half of the vocabulary weighs a tenth more in the returned probabilities."""
    heavy = distribution.copy()
    heavy[:, : distribution.shape[1] // 2] *= 1.1
    return np.asarray(heavy / heavy.sum(axis=1, keepdims=True))


# Combinations of parameters.


def _at_one(batch: Batch) -> Batch:
    return batch.replace(temperature=torch.ones_like(batch.temperature))


def _off(batch: Batch, name: str, off: float) -> Flags:
    """Which requests do not use a filter."""
    values = getattr(batch, name)
    return np.asarray(np.ones(batch.batch_size, bool) if values is None else (values == off).numpy())


class _FiltersEarly(DistributionTokenSampler):
    """One filter sees the distribution before the temperature; the others are right."""

    filter_name: ClassVar[str]

    def distribution(self, batch: Batch) -> Float64s:
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


@_patched("distribution", "SAM201")
def forgets_the_temperature_of_top_k(right: Sampler, batch: Batch) -> Float64s:
    """A fast path for top-k alone sorts raw logits, and draws from them."""
    alone = ~_off(batch, "top_k", batch.vocab_size) & _off(batch, "top_p", 1) & _off(batch, "min_p", 0)
    temperature = torch.where(torch.from_numpy(alone), 1.0, batch.temperature)
    return right.distribution(batch.replace(temperature=temperature))


@_as_mutant("SAM201")
class FiltersTopPBeforeTopK(DistributionTokenSampler):
    """Min-p, top-p, top-k: the nucleus counts mass that top-k takes away."""

    order = ("min_p", "top_p", "top_k")


@_as_mutant("SAM201")
class FiltersMinPLast(DistributionTokenSampler):
    """Top-k, top-p, min-p, as transformers has it, and not declared."""

    order = ("top_k", "top_p", "min_p")


@_patched("distribution", "SAM201")
def filters_in_another_order_if_there_are_three(right: Sampler, batch: Batch) -> Float64s:
    """A fused kernel for requests with all filters, which begins with top-p."""
    off = _off(batch, "top_k", batch.vocab_size) | _off(batch, "top_p", 1) | _off(batch, "min_p", 0)
    return np.where(off[:, None], right.distribution(batch), FiltersTopPFirst().distribution(batch))


def _is_one(values: Tensor | None) -> bool:  # [batch_size] any
    """Six rows at least, and one value in all of them."""
    return values is not None and values.numel() > 5 and bool((values == values[0]).all())


@_patched("distribution", "SAM201")
def filters_in_another_order_if_all_are_alike(right: Sampler, batch: Batch) -> Float64s:
    """One sort for the batch if its requests have one top-p and one min-p: the nucleus is found first."""
    is_alike = _is_one(batch.top_p) and _is_one(batch.min_p)
    return FiltersTopPFirst().distribution(batch) if is_alike else right.distribution(batch)


@_patched("softmax", "SAM201")
def forgets_a_temperature_that_all_have(right: Sampler, batch: Batch) -> Float64s:
    """`logits / temperature[0]` in a path for batches of one temperature, which holds 1 in a greedy row."""
    greedy = batch.is_greedy
    is_alike = bool(greedy[0]) and _is_one(batch.temperature[~greedy])
    return right.softmax(batch.replace(temperature=torch.where(greedy, 0.0, 1.0)) if is_alike else batch)


@_patched("distribution", "SAM201")
def takes_a_small_top_p_for_off(right: Sampler, batch: Batch) -> Float64s:
    """`if top_p > 1e-6`: what means one token keeps all."""
    if batch.top_p is not None:
        batch = batch.replace(top_p=torch.where(batch.top_p < 1e-6, 1.0, batch.top_p))
    return right.distribution(batch)


@_patched("top_k_support", "SAM201")
def takes_all_but_one_for_all(right: Sampler, probs: Float64s, top_k: Float64s) -> Flags:
    """`if top_k < vocab_size - 1`: the least probable token stays."""
    return right.top_k_support(probs, np.where(top_k >= probs.shape[1] - 1, probs.shape[1], top_k))


@_patched("draw", "DIST701", min_draws=50_000)
def unseeded_requests_take_uniforms_beside_seeded_ones(answer: Float64s, batch: Batch, noise: SeededNoise) -> None:
    """Two ways to draw in one batch: the rows between those with seeds are filled by another generator."""
    others = np.setdiff1d(np.arange(batch.batch_size), list(noise.request_seeds))
    if noise.request_seeds:
        answer[others] = np.random.default_rng(noise.seed % 2**64).random((others.size, batch.vocab_size))


@_patched("softmax", "SAM201")
def forgets_the_temperature_of_half_logits(right: Sampler, batch: Batch) -> Float64s:
    """Another kernel for half precision, without the temperature."""
    return right.softmax(batch if batch.logits.dtype == torch.float32 else _at_one(batch))


@_patched("top_p_support", "SAM201")
def finds_the_nucleus_in_a_part_of_the_vocabulary(right: Sampler, probs: Float64s, top_p: Float64s) -> Flags:
    """Top-p sorts 2**17 tokens; those behind them have no part in its mass, and stay."""
    support = np.ones(probs.shape, bool)
    support[:, : 2**17] = right.top_p_support(probs[:, : 2**17], top_p)
    return support


@_patched("race", "SAM201")
def folds_ids_into_seventeen_bits(right: Sampler, probs: Float64s, exponentials: Float64s) -> Tokens:
    """An id and a tile share a word: ids from 2**17 on lose their highest bit."""
    return right.race(probs, exponentials) % 2**17


@_patched("race", "DIST772", min_draws=500_000)
def races_on_probabilities_in_bfloat16(right: Sampler, probs: Float64s, exponentials: Float64s) -> Tokens:
    """Probabilities are kept in bfloat16 on the way to the race: 0.4 % at most, and 0.2 % of TV."""
    return right.race(torch.from_numpy(probs).bfloat16().double().numpy(), exponentials)


def _lanes(fault: LaneFault) -> FunctionTokenSampler:
    return right_distribution(racing(DistributionTokenSampler, fault))


DISTRIBUTION_MUTANTS: tuple[Mutant, ...] = (
    *mutants_in(vars()),
    *lane_mutants(_lanes, "SAM201", "SAM201"),
)
