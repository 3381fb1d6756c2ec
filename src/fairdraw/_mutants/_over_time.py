"""Faults of rejection samplers that take more than one call: what is kept, and shows in a later one.

Each function stands for one step of the oracle, with that step's arguments. First comes `right`, the correct
steps, or `answer`, that of the correct step; `kept` is the mutant's memory.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from fairdraw._mutants._mutant import STREAM, Memory, patched
from fairdraw._oracles.rejection import RejectionOracle as Oracle
from fairdraw.contracts import PLACEHOLDER_TOKEN_ID, ExplicitNoise, Noise, SeededNoise
from fairdraw.contracts import SpecDecodeBatch as Batch


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


@patched(Oracle, "draw_noise", "REJ701")
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
