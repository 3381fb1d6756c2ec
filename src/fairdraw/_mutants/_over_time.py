"""Faults of rejection samplers that take more than one call: what is kept, and shows in a later one."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from fairdraw._mutants._mutant import STREAM, as_mutant, patched
from fairdraw._oracles.rejection import RejectionOracle
from fairdraw.contracts import PLACEHOLDER_TOKEN_ID, ExplicitNoise, Noise, SeededNoise
from fairdraw.contracts import SpecDecodeBatch as Batch


@as_mutant("REJ701")
class WritesIntoTwoBuffersInTurn(RejectionOracle):
    """The output has two buffers, so that one can be copied away; they are cleared when they are made, not again."""

    def __init__(self) -> None:
        self.buffers: dict[tuple[int, ...], list[Tensor]] = {}

    def verify(self, batch: Batch, noise: Noise) -> Tensor:
        right = super().verify(batch, noise)
        buffers = self.buffers.setdefault(tuple(right.shape), [])
        buffers.append(buffers.pop(0) if len(buffers) == 2 else torch.full_like(right, PLACEHOLDER_TOKEN_ID))
        buffers[-1][right >= 0] = right[right >= 0]
        return buffers[-1]


@as_mutant("REJ702")
class KnowsLogitsByTheirAddress(RejectionOracle):
    """A softmax is kept by address and shape of the logits; a server writes other logits to the same place."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def verify(self, batch: Batch, noise: Noise) -> Tensor:
        logits = batch.target_logits
        key = (logits.data_ptr(), *logits.shape)
        kept, _ = self.kept.setdefault(key, (logits.clone(), logits))  # the second keeps the address in use
        return super().verify(batch.replace(target_logits=kept), noise)


@as_mutant("REJ702")
class GoesOnWithTheSeedOfAnEarlierCall(RejectionOracle):
    """A generator for each seed, kept for ever: the same seed draws other numbers the second time."""

    def __init__(self) -> None:
        self.states: dict[int, Tensor] = {}

    def draw_noise(self, batch: Batch, noise: SeededNoise) -> ExplicitNoise:
        torch.set_rng_state(self.states.get(noise.seed, torch.get_rng_state()))
        drawn = super().draw_noise(batch, noise)
        self.states[noise.seed] = torch.get_rng_state()
        return drawn


@patched(RejectionOracle, "draw_noise", "REJ701")
def starts_generators_anew_at_every_call(right: RejectionOracle, batch: Batch, noise: SeededNoise) -> ExplicitNoise:
    """The generator is seeded again from the seed of the request: a request has the same numbers at every step."""
    for generator in noise.generators(batch.device).values():
        generator.manual_seed(generator.initial_seed())
    return right.draw_noise(batch, noise)


@as_mutant("REJ701", needs=STREAM)
class KeepsGeneratorsByPlace(RejectionOracle):
    """Generators of its own, one for each place in the batch, seeded when another request comes to that place."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple[int, torch.Generator]] = {}

    def draw_noise(self, batch: Batch, noise: SeededNoise) -> ExplicitNoise:
        own = SeededNoise(noise.seed, noise.request_seeds)
        generators, given = own.generators(batch.device), noise.generators(batch.device)
        for place, seed in noise.request_seeds.items():
            is_new = given[place].get_state().equal(generators[place].get_state())
            if is_new or place not in self.kept or self.kept[place][0] != seed:
                self.kept[place] = seed, generators[place]
            generators[place] = self.kept[place][1]
        drawn = super().draw_noise(batch, own)
        super().draw_noise(batch, noise)  # the caller's generators advance, too
        return drawn


@as_mutant("REJ701", needs=STREAM)
class KeepsTheSeedOfARow(RejectionOracle):
    """A request without a seed draws by the seed of the last request in its row that had one."""

    def __init__(self) -> None:
        self.kept: dict[int, int] = {}

    def draw_noise(self, batch: Batch, noise: SeededNoise) -> ExplicitNoise:
        self.kept |= noise.request_seeds
        stale = {row: seed for row, seed in self.kept.items() if row < batch.batch_size}
        return super().draw_noise(batch, dataclasses.replace(noise, request_seeds=stale))


@as_mutant("REJ701")
class SwapsTwoRequestsOnceInAQuarterThousandCalls(RejectionOracle):
    """A race between two programs, which one of them nearly always wins."""

    def __init__(self) -> None:
        self.calls = 0

    def verify(self, batch: Batch, noise: Noise) -> Tensor:
        self.calls += 1
        right = super().verify(batch, noise)
        return right.roll(1, 0) if self.calls % 250 == 0 else right
