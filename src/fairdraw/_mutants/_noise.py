"""Faults of the random numbers, and of what is kept from one call to a later one.

Each function stands for one step of the oracle, with that step's arguments. First comes `right`, the correct
steps, or `answer`, that of the correct step; `kept` is the mutant's memory.
"""

import dataclasses

import numpy as np
import torch
from torch import Tensor

from fairdraw._mutants._mutant import DRAWN, STREAM, Memory, patched, reseeded
from fairdraw._oracles.rejection import RejectionOracle as Oracle
from fairdraw.contracts import PLACEHOLDER_TOKEN_ID, ExplicitNoise, Noise, SeededNoise
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
    return right.draw_noise(batch, reseeded(noise, lambda s: s if s < 2**31 else (s ^ noise.seed) % 2**63))


@patched(Oracle, "draw_noise", "REJ703")
def rounds_request_seeds(right: Oracle, batch: Batch, noise: SeededNoise) -> ExplicitNoise:
    """Seeds pass through a float, or a hash with few bits: neighbours get the same numbers."""
    return right.draw_noise(batch, reseeded(noise, lambda seed: seed >> 8))


@patched(Oracle, "draw_noise", "REJ701")
def requests_without_drafts_draw(answer: ExplicitNoise, batch: Batch, noise: SeededNoise) -> None:
    """A request without drafts takes exponentials it does not need: its text depends on how it was scheduled."""
    for request, generator in noise.generators(batch.device).items():
        if batch.num_draft_tokens[request] == 0:
            torch.rand(1, generator=generator, device=batch.device)


@patched(Oracle, "verify", "REJ701")
def writes_into_two_buffers_in_turn(answer: Tensor, batch: Batch, noise: Noise, *, kept: Memory) -> Tensor:
    """The output has two buffers, so that one can be copied away; they are cleared when they are made, not again."""
    buffers: list[Tensor] = kept.setdefault(tuple(answer.shape), [])
    buffers.append(buffers.pop(0) if len(buffers) == 2 else torch.full_like(answer, PLACEHOLDER_TOKEN_ID))
    buffers[-1][answer >= 0] = answer[answer >= 0]
    return buffers[-1]


@patched(Oracle, "verify", "REJ702")
def knows_logits_by_their_address(right: Oracle, batch: Batch, noise: Noise, *, kept: Memory) -> Tensor:
    """A softmax is kept by address and shape of the logits; a server writes other logits to the same place."""
    logits = batch.target_logits
    key = (logits.data_ptr(), *logits.shape)
    first, _ = kept.setdefault(key, (logits.clone(), logits))  # the second keeps the address in use
    return right.verify(batch.replace(target_logits=first), noise)


@patched(Oracle, "draw_noise", "REJ702")
def goes_on_with_the_seed_of_an_earlier_call(
    right: Oracle, batch: Batch, noise: SeededNoise, *, kept: Memory
) -> ExplicitNoise:
    """A generator for each seed, kept for ever: the same seed draws other numbers the second time."""
    torch.set_rng_state(kept.get(noise.seed, torch.get_rng_state()))
    drawn = right.draw_noise(batch, noise)
    kept[noise.seed] = torch.get_rng_state()
    return drawn


@patched(Oracle, "draw_noise", "REJ703", "REJ701")
def starts_generators_anew_at_every_call(right: Oracle, batch: Batch, noise: SeededNoise) -> ExplicitNoise:
    """The generator is seeded again from the seed of the request: a request has the same numbers at every step."""
    for generator in noise.generators(batch.device).values():
        generator.manual_seed(generator.initial_seed())
    return right.draw_noise(batch, noise)


@patched(Oracle, "draw_noise", "REJ701", needs=STREAM)
def keeps_generators_by_place(right: Oracle, batch: Batch, noise: SeededNoise, *, kept: Memory) -> ExplicitNoise:
    """Generators of its own, one for each place in the batch, seeded when another request comes to that place."""
    own = SeededNoise(noise.seed, noise.request_seeds)
    generators, given = own.generators(batch.device), noise.generators(batch.device)
    for place, seed in noise.request_seeds.items():
        is_new = given[place].get_state().equal(generators[place].get_state())
        if is_new or place not in kept or kept[place][0] != seed:
            kept[place] = seed, generators[place]
        generators[place] = kept[place][1]
    drawn = right.draw_noise(batch, own)
    right.draw_noise(batch, noise)  # the caller's generators advance, too
    return drawn


@patched(Oracle, "draw_noise", "REJ701", needs=STREAM)
def keeps_the_seed_of_a_row(right: Oracle, batch: Batch, noise: SeededNoise, *, kept: Memory) -> ExplicitNoise:
    """A request without a seed draws by the seed of the last request in its row that had one."""
    kept |= noise.request_seeds
    stale = {row: seed for row, seed in kept.items() if row < batch.batch_size}
    return right.draw_noise(batch, dataclasses.replace(noise, request_seeds=stale))


@patched(Oracle, "verify", "REJ701")
def swaps_two_requests_once_in_a_quarter_thousand_calls(
    answer: Tensor, batch: Batch, noise: Noise, *, kept: Memory
) -> Tensor:
    """A race between two programs, which one of them nearly always wins."""
    kept["calls"] = kept.get("calls", 0) + 1
    return answer.roll(1, 0) if kept["calls"] % 250 == 0 else answer
