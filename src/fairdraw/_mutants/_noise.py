"""Faults of the random numbers: whose they are, how many, in which order, and how often they are used."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from fairdraw._mutants._mutant import as_mutant
from fairdraw._oracles.rejection import RejectionOracle
from fairdraw.protocols import ExplicitNoise, SeededNoise, SpecDecodeBatch


@as_mutant("REJ501", "REJ409")
class DrawsFromTheOperatingSystem(RejectionOracle):
    """A generator seeded by entropy: no bug report can ever be reproduced."""

    def draw_noise(self, batch: SpecDecodeBatch, noise: SeededNoise) -> ExplicitNoise:
        drawn, rng = super().draw_noise(batch, noise), np.random.default_rng()
        uniforms = torch.tensor(rng.random(batch.num_tokens), dtype=torch.float64, device=batch.device)
        exponentials = torch.tensor(rng.exponential(size=drawn.exponentials.shape) + 1e-9, dtype=torch.float32)
        return ExplicitNoise(uniforms, exponentials.to(batch.device))


@as_mutant("REJ505", "REJ409")
class IgnoresTheSeed(RejectionOracle):
    """A constant left over from debugging: every step of every request rolls the same dice."""

    def draw_noise(self, batch: SpecDecodeBatch, noise: SeededNoise) -> ExplicitNoise:
        torch.manual_seed(0)
        return super().draw_noise(batch, noise)


@as_mutant("REJ505")
class KeepsTheNoiseOfTheFirstCall(RejectionOracle):
    """A buffer of noise that is filled when it is allocated, and allocated once: CUDA graphs make it easy."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, int], ExplicitNoise] = {}

    def draw_noise(self, batch: SpecDecodeBatch, noise: SeededNoise) -> ExplicitNoise:
        drawn = super().draw_noise(batch, noise)
        return self.kept.setdefault((batch.num_tokens, drawn.exponentials.numel()), drawn)


@as_mutant("REJ502")
class RequestsShareTheirExponentials(RejectionOracle):
    """One row of exponentials for the batch: everybody recovers the same word at the same time."""

    def draw_noise(self, batch: SpecDecodeBatch, noise: SeededNoise) -> ExplicitNoise:
        drawn = super().draw_noise(batch, noise)
        return ExplicitNoise(drawn.uniforms, drawn.exponentials[:1].expand_as(drawn.exponentials))


@as_mutant("REJ503")
class RequestsShareTheirUniforms(RejectionOracle):
    """Uniforms are indexed by position alone: the batch accepts in step."""

    def draw_noise(self, batch: SpecDecodeBatch, noise: SeededNoise) -> ExplicitNoise:
        drawn = super().draw_noise(batch, noise)
        positions = [j for count in batch.num_draft_tokens for j in range(count)]
        return ExplicitNoise(drawn.uniforms[positions], drawn.exponentials)


@as_mutant("REJ504")
class PositionsShareTheirUniforms(RejectionOracle):
    """One uniform per request: each token's distribution is right, their joint distribution is not."""

    def draw_noise(self, batch: SpecDecodeBatch, noise: SeededNoise) -> ExplicitNoise:
        drawn = super().draw_noise(batch, noise)
        firsts = [batch.token_slice(i).start for i, count in enumerate(batch.num_draft_tokens) for _ in range(count)]
        return ExplicitNoise(drawn.uniforms[firsts], drawn.exponentials)


@as_mutant("REJ409", "REJ421", "REJ423")
class DrawsExponentialsFirst(RejectionOracle):
    """The two draws are swapped. The distribution is the same, upstream's tokens are not."""

    def draw_noise(self, batch: SpecDecodeBatch, noise: SeededNoise) -> ExplicitNoise:
        exponentials = torch.empty(batch.batch_size, batch.vocab_size, device=batch.device).exponential_()
        drawn = super().draw_noise(batch, noise)
        return ExplicitNoise(drawn.uniforms, exponentials)


@as_mutant("REJ510", "REJ424")
class SkipsTheDefaultGeneratorIfAllAreSeeded(RejectionOracle):
    """A saving that upstream does not make: the next unseeded batch draws other numbers."""

    def draw_noise(self, batch: SpecDecodeBatch, noise: SeededNoise) -> ExplicitNoise:
        before = torch.get_rng_state()
        drawn = super().draw_noise(batch, noise)
        if len(noise.request_seeds) == batch.batch_size:
            torch.set_rng_state(before)
        return drawn


@as_mutant("REJ510", "REJ424")
class DrawsOneNumberTooMany(RejectionOracle):
    """A uniform for the bonus token, which needs none: servers that rewind a generator rewind it to the wrong place."""

    def draw_noise(self, batch: SpecDecodeBatch, noise: SeededNoise) -> ExplicitNoise:
        drawn = super().draw_noise(batch, noise)
        torch.rand(1, dtype=torch.float64, device=batch.device)
        return drawn


@as_mutant("REJ509", "REJ510")
class GreedyBatchesDraw(RejectionOracle):
    """Noise is drawn before anybody asks who needs it."""

    def draw_noise(self, batch: SpecDecodeBatch, noise: SeededNoise) -> ExplicitNoise:
        torch.rand(batch.batch_size, device=batch.device)
        return super().draw_noise(batch, noise)


@as_mutant("REJ507", "REJ510")
class IgnoresRequestSeeds(RejectionOracle):
    """`seed=` is accepted, and forgotten: every request draws from the default generator."""

    def draw_noise(self, batch: SpecDecodeBatch, noise: SeededNoise) -> ExplicitNoise:
        return super().draw_noise(batch, SeededNoise(noise.seed))


@as_mutant("REJ507")
class TakesSeededNoiseByPlace(RejectionOracle):
    """One generator, the first request's, serves all seeded requests: each depends on who stands before it."""

    def draw_noise(self, batch: SpecDecodeBatch, noise: SeededNoise) -> ExplicitNoise:
        first = min(noise.request_seeds.values(), default=0)
        shared = {i: first + i for i in noise.request_seeds}
        return super().draw_noise(batch, SeededNoise(noise.seed, shared))


@as_mutant("REJ506")
class RoundsRequestSeeds(RejectionOracle):
    """Seeds pass through a float, or a hash with few bits: neighbours get the same numbers."""

    def draw_noise(self, batch: SpecDecodeBatch, noise: SeededNoise) -> ExplicitNoise:
        rounded = {i: seed >> 8 for i, seed in noise.request_seeds.items()}
        return super().draw_noise(batch, dataclasses.replace(noise, request_seeds=rounded))


@as_mutant("REJ508")
class RequestsWithoutDraftsDraw(RejectionOracle):
    """A request without drafts takes exponentials it does not need: its text depends on how it was scheduled."""

    def draw_noise(self, batch: SpecDecodeBatch, noise: SeededNoise) -> ExplicitNoise:
        drawn = super().draw_noise(batch, noise)
        for request, generator in noise.generators(batch.device).items():
            if batch.num_draft_tokens[request] == 0:
                torch.rand(1, generator=generator, device=batch.device)
        return drawn
