"""Faults of the draw: its noise, its counters, its place in the batch, and what a drafter says of it."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairdraw._core.seeds import derive_seed
from fairdraw._mutants._sampling_mutant import mutant_sampler
from fairdraw._oracles.sampling import Request, SamplingOracle, softmax
from fairdraw.protocols import Capability, Drafted, SamplingBatch, SamplingNoise, SeededNoise
from fairdraw.strategies.rows import bulk_rng

__all__ = ["CountingOracle"]

Row = NDArray[np.float32]

# Where a request stands, and what it leaves behind.


@mutant_sampler("SAM101")
class LeavesTheVocabulary(SamplingOracle):
    """A padded lane of the last tile wins where the last token would."""

    def race(self, probs: Row, exponentials: Row) -> int:
        token = super().race(probs, exponentials)
        return token + (token == probs.size - 1)


@mutant_sampler("SAM107")
class FiltersWhereTheLogitsLie(SamplingOracle):
    """In place: log-probabilities that are computed afterwards are those of another distribution."""

    def sample(self, batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
        tokens = super().sample(batch, noise)
        batch.logits.mul_(0.5)
        return tokens


@mutant_sampler("SAM108")
class TheLastTokenForNan(SamplingOracle):
    """Comparisons with NaN are false, so the search runs to the end."""

    def token(self, request: Request, exponentials: Row) -> int:
        if np.isnan(request.logits).any():
            return int(request.logits.size - 1)
        return super().token(request, exponentials)


@mutant_sampler("SAM109")
class TheLastTokenForEmptyRows(SamplingOracle):
    """A cumulative sum of zeros never reaches its goal."""

    def token(self, request: Request, exponentials: Row) -> int:
        if (request.logits == -np.inf).all():
            return int(request.logits.size - 1)
        return super().token(request, exponentials)


@mutant_sampler("SAM110")
class NanSpreads(SamplingOracle):
    """A maximum over the batch is subtracted before the softmax."""

    def sample(self, batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
        shift = batch.logits.float().amax() * 0
        return super().sample(batch.replace(logits=batch.logits + torch.where(shift.isnan(), shift, 0.0)), noise)


@mutant_sampler("SAM138", "SAM132", "SAM131", "SAM169")
class TheRowNumberEnters(SamplingOracle):
    """An offset in bytes where elements were meant: each row reads its exponentials shifted by its number."""

    def exponentials(self, batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size, vocab_size] float32
        given = super().exponentials(batch, noise)
        return torch.stack([row.roll(number) for number, row in enumerate(given)])


@mutant_sampler("SAM135", "SAM136")
class NeverDrawsTheLastToken(SamplingOracle):
    """`range(vocab_size - 1)`: nobody misses the last token, which is often a special one."""

    def race(self, probs: Row, exponentials: Row) -> int:
        kept = probs.copy()
        kept[-1] = 0 if probs.size > 1 else kept[-1]
        return super().race(kept, exponentials)


@mutant_sampler("SAM136", "SAM146")
class PrefersLowIds(SamplingOracle):
    """Scores in eight bits: whatever is nearly tied goes to the lower id."""

    def race(self, probs: Row, exponentials: Row) -> int:
        with np.errstate(divide="ignore"):
            return super().race(np.exp2(np.round(np.log2(probs / exponentials))), np.ones_like(exponentials))


@mutant_sampler("SAM139")
class ReadsStridedLogitsAsContiguous(SamplingOracle):
    """A pointer and `vocab_size`, and no word about strides."""

    def sample(self, batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
        logits = batch.logits.as_strided((batch.batch_size, batch.vocab_size), (batch.vocab_size, 1))
        return super().sample(batch.replace(logits=logits), noise)


@mutant_sampler("SAM142")
class TiesGoToTheLastId(SamplingOracle):
    """`>=` in the race between tiles."""

    def race(self, probs: Row, exponentials: Row) -> int:
        return int(probs.size - 1 - super().race(probs[::-1], exponentials[::-1]))


# Noise: whose it is, how much, in which order.


@mutant_sampler("SAM161")
class DrawsFromTheOperatingSystem(SamplingOracle):
    """A generator seeded by entropy: no bug report can ever be reproduced."""

    def draw(self, batch: SamplingBatch, noise: SeededNoise) -> Tensor:  # [batch_size, vocab_size] float32
        drawn = np.random.default_rng().exponential(size=(batch.batch_size, batch.vocab_size)) + 1e-9
        return torch.tensor(drawn, dtype=torch.float32, device=batch.device)


@mutant_sampler("SAM163")
class IgnoresTheSeed(SamplingOracle):
    """A constant left over from debugging: every step rolls the same dice."""

    def draw(self, batch: SamplingBatch, noise: SeededNoise) -> Tensor:  # [batch_size, vocab_size] float32
        torch.manual_seed(0)
        return super().draw(batch, noise)


@mutant_sampler("SAM162")
class RequestsShareTheirNoise(SamplingOracle):
    """One row of exponentials for the batch: everybody says the same word at the same time."""

    def draw(self, batch: SamplingBatch, noise: SeededNoise) -> Tensor:  # [batch_size, vocab_size] float32
        drawn = super().draw(batch, noise)
        return drawn[:1].expand_as(drawn)


@mutant_sampler("SAM164")
class RoundsRequestSeeds(SamplingOracle):
    """Seeds pass through a hash with few bits: neighbours get the same numbers."""

    def draw(self, batch: SamplingBatch, noise: SeededNoise) -> Tensor:  # [batch_size, vocab_size] float32
        rounded = {i: seed >> 8 for i, seed in noise.request_seeds.items()}
        return super().draw(batch, dataclasses.replace(noise, request_seeds=rounded))


@mutant_sampler("SAM165")
class IgnoresRequestSeeds(SamplingOracle):
    """`seed=` is accepted, and forgotten: every request draws from the default generator."""

    def draw(self, batch: SamplingBatch, noise: SeededNoise) -> Tensor:  # [batch_size, vocab_size] float32
        return super().draw(batch, SeededNoise(noise.seed))


@mutant_sampler("SAM143", "SAM151", "SAM152")
class DrawsOwnRowsTwice(SamplingOracle):
    """A warm-up draw from each request's generator: the distribution is right, upstream's tokens are others."""

    def draw(self, batch: SamplingBatch, noise: SeededNoise) -> Tensor:  # [batch_size, vocab_size] float32
        for generator in noise.generators(batch.device).values():
            torch.rand(1, generator=generator, device=batch.device)
        return super().draw(batch, noise)


@mutant_sampler("SAM144", "SAM153")
class DrawsForTheBatchThoughAllAreSeeded(SamplingOracle):
    """Upstream leaves the default generator alone if every request has its own; here it moves."""

    def draw(self, batch: SamplingBatch, noise: SeededNoise) -> Tensor:  # [batch_size, vocab_size] float32
        if len(noise.request_seeds) == batch.batch_size and not bool(batch.is_greedy.all()):
            torch.rand(1, device=batch.device)
        return super().draw(batch, noise)


@mutant_sampler("SAM145", "SAM144")
class GreedyBatchesDraw(SamplingOracle):
    """Noise is drawn before anybody asks who needs it."""

    def draw(self, batch: SamplingBatch, noise: SeededNoise) -> Tensor:  # [batch_size, vocab_size] float32
        torch.rand(batch.batch_size, device=batch.device)
        return super().draw(batch, noise)


# Counters.


class CountingOracle(SamplingOracle):
    """Right: exponentials hashed from a request's seed and position, in place of generators."""

    def draw(self, batch: SamplingBatch, noise: SeededNoise) -> Tensor:  # [batch_size, vocab_size] float32
        rows = [
            self.row(noise.request_seeds.get(i, derive_seed("row", noise.seed, i)), position, i, batch.vocab_size)
            for i, position in enumerate(batch.positions.tolist())
        ]
        return torch.tensor(np.stack(rows), dtype=torch.float32, device=batch.device)

    def row(self, seed: int, position: int, number: int, size: int) -> NDArray[np.float64]:  # [vocab_size] float64
        return np.maximum(bulk_rng("counter", seed, position).exponential(size=size), 1e-8)


_COUNTS = {
    Capability.UPSTREAM_STREAM.value: "uses no torch generator",
    Capability.EXPLICIT_NOISE.value: "hashes its numbers from seed and position",
}


@mutant_sampler("SAM167", unsupported=_COUNTS)
class ForgetsThePosition(CountingOracle):
    """The counter is the seed alone: a request says one word again and again."""

    def row(self, seed: int, position: int, number: int, size: int) -> NDArray[np.float64]:  # [vocab_size] float64
        return super().row(seed, 0, number, size)


@mutant_sampler("SAM168", unsupported=_COUNTS)
class CountsRows(CountingOracle):
    """The row number is part of the counter: texts depend on the place in the batch."""

    def row(self, seed: int, position: int, number: int, size: int) -> NDArray[np.float64]:  # [vocab_size] float64
        return super().row(seed + number, position, number, size)


@mutant_sampler("SAM166", unsupported=_COUNTS)
class AdvancesGeneratorsBesideItsCounters(CountingOracle):
    """A seed for the counters is drawn at every step: restarts then give other texts."""

    def draw(self, batch: SamplingBatch, noise: SeededNoise) -> Tensor:  # [batch_size, vocab_size] float32
        for generator in noise.generators(batch.device).values():
            torch.rand(1, generator=generator, device=batch.device)
        return super().draw(batch, noise)


# Drafters.


@mutant_sampler("SAM172")
class SaysTheDistributionAtTemperatureOne(SamplingOracle):
    """The distribution of raw logits, for a draft at another temperature: speculative decoding is then lossy."""

    def said_distribution(self, request: Request, token: int) -> Row:
        if not request.is_greedy:
            request.temperature = np.float32(1)
        return super().said_distribution(request, token)


@mutant_sampler("SAM171")
class SaysADistributionThatIsNotNormalised(SamplingOracle):
    """The softmax before the filters, with what they removed set to 0."""

    def said_distribution(self, request: Request, token: int) -> Row:
        distribution = super().said_distribution(request, token)
        return (
            distribution
            if request.is_greedy
            else np.where(distribution > 0, softmax(self.scaled(request)), np.float32(0))
        )


@mutant_sampler("SAM174", "SAM172")
class SaysTheDistributionBeforeTheFilters(SamplingOracle):
    """The softmax before the filters, as it is."""

    def said_distribution(self, request: Request, token: int) -> Row:
        return super().said_distribution(request, token) if request.is_greedy else softmax(self.scaled(request))


@mutant_sampler("SAM175")
class SaysTheSoftDistributionOfGreedyDrafts(SamplingOracle):
    """Greedy drafts with the distribution at temperature 1: a verifier accepts too many of them."""

    def said_distribution(self, request: Request, token: int) -> Row:
        return self.distribution(request) if request.is_greedy else super().said_distribution(request, token)


@mutant_sampler("SAM173", "SAM176")
class DraftsAnotherToken(SamplingOracle):
    """Tokens of one row, distributions of the next."""

    def draft(self, batch: SamplingBatch, noise: SamplingNoise) -> Drafted:
        right = super().draft(batch, noise)
        return Drafted((right.token_ids + 1) % batch.vocab_size, right.draft_probs)
