"""Faults of the random numbers: whose they are, how many, in which order, and how often they are used.

Each function stands for one step of the oracle, with that step's arguments. First comes `right`, the correct
steps, or `answer`, that of the correct step.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from fairdraw._mutants._mutant import DRAWN, STREAM, Memory, patched
from fairdraw._oracles.rejection import RejectionOracle as Oracle
from fairdraw.contracts import ExplicitNoise, SeededNoise
from fairdraw.contracts import SpecDecodeBatch as Batch


@patched(Oracle, "draw_noise", "REJ501")
def draws_from_the_operating_system(right: Oracle, batch: Batch, noise: SeededNoise) -> ExplicitNoise:
    """A generator seeded by entropy: no bug report can ever be reproduced."""
    drawn, rng = right.draw_noise(batch, noise), np.random.default_rng()
    uniforms = torch.tensor(rng.random(batch.num_tokens), dtype=torch.float64, device=batch.device)
    exponentials = torch.tensor(rng.exponential(size=drawn.exponentials.shape) + 1e-9, dtype=torch.float32)
    return ExplicitNoise(uniforms, exponentials.to(batch.device))


@patched(Oracle, "draw_noise", "REJ701", needs=STREAM)
def ignores_the_seed(right: Oracle, batch: Batch, noise: SeededNoise) -> ExplicitNoise:
    """A constant left over from debugging: every step of every request rolls the same dice."""
    torch.manual_seed(0)
    return right.draw_noise(batch, noise)


@patched(Oracle, "draw_noise", "REJ703", "REJ701")
def keeps_the_noise_of_the_first_call(
    answer: ExplicitNoise, batch: Batch, noise: SeededNoise, *, kept: Memory
) -> ExplicitNoise:
    """A buffer of noise that is filled when it is allocated, and allocated once: CUDA graphs make it easy."""
    first: ExplicitNoise = kept.setdefault((batch.num_tokens, answer.exponentials.numel()), answer)
    return first


@patched(Oracle, "draw_noise", "REJ701", needs=DRAWN)
def requests_share_their_exponentials(answer: ExplicitNoise, batch: Batch, noise: SeededNoise) -> ExplicitNoise:
    """One row of exponentials for the batch: all requests recover the same token at the same time."""
    return ExplicitNoise(answer.uniforms, answer.exponentials[:1].expand_as(answer.exponentials))


@patched(Oracle, "draw_noise", "REJ701", needs=DRAWN)
def requests_share_their_uniforms(answer: ExplicitNoise, batch: Batch, noise: SeededNoise) -> ExplicitNoise:
    """Uniforms are indexed by position alone: the batch accepts in step."""
    positions = [j for count in batch.num_draft_tokens for j in range(count)]
    return ExplicitNoise(answer.uniforms[positions], answer.exponentials)


@patched(Oracle, "draw_noise", "REJ701", needs=DRAWN)
def positions_share_their_uniforms(answer: ExplicitNoise, batch: Batch, noise: SeededNoise) -> ExplicitNoise:
    """One uniform per request: each token's distribution is right, their joint distribution is not."""
    firsts = [batch.token_slice(i).start for i, count in enumerate(batch.num_draft_tokens) for _ in range(count)]
    return ExplicitNoise(answer.uniforms[firsts], answer.exponentials)


@patched(Oracle, "draw_noise", "REJ701", "REJ421", needs=STREAM)
def draws_exponentials_first(right: Oracle, batch: Batch, noise: SeededNoise) -> ExplicitNoise:
    """The two draws are swapped. The distribution is the same, upstream's tokens are not."""
    exponentials = torch.empty(batch.batch_size, batch.vocab_size, device=batch.device).exponential_()
    drawn = right.draw_noise(batch, noise)
    return ExplicitNoise(drawn.uniforms, exponentials)


@patched(Oracle, "draw_noise", "REJ701", needs=STREAM)
def skips_the_default_generator_if_all_are_seeded(right: Oracle, batch: Batch, noise: SeededNoise) -> ExplicitNoise:
    """A saving that upstream does not make: the next unseeded batch draws other numbers."""
    before = torch.get_rng_state()
    drawn = right.draw_noise(batch, noise)
    if len(noise.request_seeds) == batch.batch_size:
        torch.set_rng_state(before)
    return drawn


@patched(Oracle, "draw_noise", "REJ701", needs=STREAM)
def draws_one_number_too_many(answer: ExplicitNoise, batch: Batch, noise: SeededNoise) -> None:
    """A uniform for the bonus token, which needs none: servers that rewind a generator rewind it to the wrong place."""
    torch.rand(1, dtype=torch.float64, device=batch.device)


@patched(Oracle, "draw_noise", "REJ701", needs=STREAM)
def greedy_batches_draw(right: Oracle, batch: Batch, noise: SeededNoise) -> ExplicitNoise:
    """Noise is drawn before it is known whether a request needs it."""
    torch.rand(batch.batch_size, device=batch.device)
    return right.draw_noise(batch, noise)


@patched(Oracle, "draw_noise", "REJ702")
def ignores_request_seeds(right: Oracle, batch: Batch, noise: SeededNoise) -> ExplicitNoise:
    """`seed=` is accepted, and forgotten: every request draws from the default generator."""
    return right.draw_noise(batch, SeededNoise(noise.seed))


@patched(Oracle, "draw_noise", "REJ702")
def advances_generators_by_the_batch(answer: ExplicitNoise, batch: Batch, noise: SeededNoise) -> ExplicitNoise:
    """Each generator gives a number more for every request: what it gives next depends on who stood beside it."""
    for generator in noise.generators(batch.device).values():
        torch.rand(batch.batch_size, generator=generator)
    return answer


@patched(Oracle, "draw_noise", "REJ702")
def takes_seeded_noise_by_place(right: Oracle, batch: Batch, noise: SeededNoise) -> ExplicitNoise:
    """One generator, the first request's, serves all seeded requests: each depends on the requests before it."""
    first = min(noise.request_seeds.values(), default=0)
    shared = {i: first + i for i in noise.request_seeds}
    return right.draw_noise(batch, SeededNoise(noise.seed, shared))


@patched(Oracle, "draw_noise", "REJ703")
def seed_zero_is_no_seed(right: Oracle, batch: Batch, noise: SeededNoise) -> ExplicitNoise:
    """`if seed:` for `if seed is not None:`."""
    others = {i: seed for i, seed in noise.request_seeds.items() if seed}
    return right.draw_noise(batch, SeededNoise(noise.seed, others))


@patched(Oracle, "draw_noise", "REJ703")
def seeds_beyond_31_bits_mix_with_the_calls(right: Oracle, batch: Batch, noise: SeededNoise) -> ExplicitNoise:
    """The seed of a request has room for 31 bits; another one is derived from the seed of the call."""
    seeds = {i: seed if seed < 2**31 else (seed ^ noise.seed) % 2**63 for i, seed in noise.request_seeds.items()}
    return right.draw_noise(batch, SeededNoise(noise.seed, seeds))


@patched(Oracle, "draw_noise", "REJ703")
def rounds_request_seeds(right: Oracle, batch: Batch, noise: SeededNoise) -> ExplicitNoise:
    """Seeds pass through a float, or a hash with few bits: neighbours get the same numbers."""
    rounded = {i: seed >> 8 for i, seed in noise.request_seeds.items()}
    return right.draw_noise(batch, dataclasses.replace(noise, request_seeds=rounded))


@patched(Oracle, "draw_noise", "REJ701")
def requests_without_drafts_draw(answer: ExplicitNoise, batch: Batch, noise: SeededNoise) -> None:
    """A request without drafts takes exponentials it does not need: its text depends on how it was scheduled."""
    for request, generator in noise.generators(batch.device).items():
        if batch.num_draft_tokens[request] == 0:
            torch.rand(1, generator=generator, device=batch.device)
