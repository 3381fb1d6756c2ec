"""A correct rejection sampler in vectorised NumPy, whose steps the mutants of distributions override.

A million rows cost some seconds, so that mutants get the same budget as the sampler under test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from fairdraw._core.seeds import derive_seed
from fairdraw._mutants._mutant import as_rejection
from fairdraw.contracts import PLACEHOLDER_TOKEN_ID, Capability, Noise, RejectionSampler, SeededNoise, SpecDecodeBatch

if TYPE_CHECKING:
    from torch import Tensor


Floats = NDArray[np.float32]
Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class Drawn:
    """The random numbers of one call."""

    uniforms: NDArray[np.floating]  # [num_tokens] float32 | float64
    exponentials: Floats  # [batch_size, vocab_size] float32
    seed: int


@dataclass(frozen=True)
class Call:
    """What one call of the sampler works on."""

    batch: SpecDecodeBatch
    drawn: Drawn
    drafts: Tokens  # [num_tokens] int64
    target: Floats  # [num_tokens, vocab_size] float32
    draft: Floats  # [num_tokens, vocab_size] float32

    @cached_property
    def places(self) -> Tokens:  # [batch_size, max_spec_len] int64
        """The flattened row of each draft, -1 where a request has none."""
        place = np.full((self.batch.batch_size, self.batch.max_spec_len), -1)
        has_draft = np.arange(self.batch.max_spec_len) < np.array(self.batch.num_draft_tokens)[:, None]
        place[has_draft] = np.arange(self.batch.num_tokens)
        return place

    def num_leading(self, accepted: NDArray[np.bool_]) -> Tokens:  # [batch_size] int64
        """How many drafts each request keeps, if `accepted` says which it would."""
        return np.asarray(np.cumprod((self.places >= 0) & np.append(accepted, False)[self.places], axis=1).sum(axis=1))


class DistributionSampler:
    """Token verification; greedy requests keep the drafts that equal the argmax."""

    unsupported: ClassVar[dict[str, str]] = {
        Capability.EXPLICIT_NOISE: "draws its own numbers",
        Capability.UPSTREAM_STREAM: "draws from NumPy's generators",
        Capability.NAN_LOGITS: "NaN is caught before",
        Capability.EMPTY_ROWS: "rows that are masked whole are caught before",
    }

    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        """One call: accept, recover, and put the rows together."""
        import torch  # here, as mutants of servers load this module, too

        if isinstance(noise, SeededNoise):
            drawn = self.seed_requests(self.draw(batch, noise.seed), batch, self.seeds_of_step(noise))
        else:
            drawn = Drawn(noise.uniforms.numpy(), noise.exponentials.numpy(), seed=0)
        drafts = batch.draft_token_ids.numpy().astype(np.int64)
        call = Call(batch, drawn, drafts, *self.distributions(batch, drafts))
        num_accepted, scale = self.accept(call)
        last = self.bonus(call)
        rejecting = np.flatnonzero(num_accepted < np.array(batch.num_draft_tokens))
        rows = call.places[rejecting, num_accepted[rejecting]]
        weights = self.residual(scale[rejecting, None] * call.target[self.offset(rows)], call.draft[rows]).copy()
        nothing = ~(weights > 0).any(axis=1)  # a draft that is certain, rejected at a rate
        weights[nothing] = call.target[rows[nothing]]
        last[rejecting] = self.recover(weights, drawn, rejecting, rows)
        kept = np.arange(batch.max_spec_len) < num_accepted[:, None]
        tokens = np.full((batch.batch_size, batch.max_spec_len + 1), PLACEHOLDER_TOKEN_ID, dtype=np.int32)
        tokens[:, :-1][kept] = drafts[call.places[kept]]
        tokens[np.arange(batch.batch_size), num_accepted] = last
        return torch.from_numpy(self.edit(tokens))

    def draw(self, batch: SpecDecodeBatch, seed: int) -> Drawn:
        """The random numbers of a call, from its seed."""
        rng = np.random.default_rng(seed % 2**64)
        uniforms = rng.random(batch.num_tokens, dtype=np.float32)
        return Drawn(uniforms, self.exponentials(rng, (batch.batch_size, batch.vocab_size)), seed)

    def exponentials(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """Drawn in float64: NumPy's own float32 ones are 0 once in 2**23 draws, which `DIST341` sees."""
        return rng.standard_exponential(shape).astype(np.float32)

    def seeds_of_step(self, noise: SeededNoise) -> Mapping[int, int]:
        """Other seeds at every call with one noise, as generators go on."""
        noise.kept["steps"] = step = int(str(noise.kept.get("steps", -1))) + 1
        return {one: derive_seed("step", seed, step) if step else seed for one, seed in noise.request_seeds.items()}

    def seed_requests(self, drawn: Drawn, batch: SpecDecodeBatch, request_seeds: Mapping[int, int]) -> Drawn:
        """The same numbers, with those of each seeded request from its own stream."""
        ends = np.cumsum(batch.num_draft_tokens)
        for request, seed in request_seeds.items():
            uniforms, exponentials = self.numbers_of_seed(seed, batch.num_draft_tokens[request], batch.vocab_size)
            drawn.uniforms[ends[request] - uniforms.size : ends[request]] = uniforms
            drawn.exponentials[request] = exponentials
        return drawn

    def numbers_of_seed(self, seed: int, num_draft: int, vocab_size: int) -> tuple[Floats, Floats]:
        """Uniforms and exponentials of a seeded request: `[num_draft]`, `[vocab_size]`."""
        rng = np.random.default_rng(seed % 2**64)
        exponentials = self.exponentials(rng, (vocab_size,))
        return rng.random(num_draft, dtype=np.float32), exponentials

    def distributions(self, batch: SpecDecodeBatch, drafts: Tokens) -> tuple[Floats, Floats]:
        """Target and draft distributions of every position; greedy and one-hot ones are certain."""
        target = self.target(batch)
        greedy = np.repeat(batch.is_greedy.numpy(), batch.num_draft_tokens)
        best = target[greedy].argmax(axis=1)
        target[greedy] = 0
        target[np.flatnonzero(greedy), best] = 1
        certain = np.flatnonzero((greedy | (batch.draft_probs is None)) & (drafts >= 0))
        draft = np.zeros_like(target) if batch.draft_probs is None else self.draft(batch.draft_probs.numpy().copy())
        draft[greedy] = 0
        draft[certain] = 0
        draft[certain, drafts[certain]] = 1
        return target, draft

    def target(self, batch: SpecDecodeBatch) -> Floats:
        """Target probabilities, `[num_tokens, vocab_size]`."""
        return np.asarray(batch.target_probs().numpy())

    def draft(self, draft: Floats) -> Floats:
        """Draft probabilities as the sampler uses them."""
        return draft

    def accept(self, call: Call) -> tuple[Tokens, Floats]:  # each [batch_size]
        """How many drafts each request keeps, and the factor of its target in the residual (1: none)."""
        own = np.arange(call.batch.num_tokens), call.drafts
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            chance = self.acceptance(call.target[own], call.draft[own])
        if call.batch.synthetic_rates is not None:
            chance = self.rates(call.batch.synthetic_rates.numpy(), call)
        accepted = (call.drawn.uniforms < chance) & (call.drafts >= 0)
        return call.num_leading(accepted), np.ones(call.batch.batch_size, dtype=np.float32)

    def acceptance(self, target: Floats, draft: Floats) -> NDArray[np.floating]:
        """The acceptance ratio of each draft token."""
        return np.asarray(target / draft)

    def rates(self, rates: Floats, call: Call) -> Floats:
        """The synthetic rate of each drafted position."""
        return np.asarray(rates[np.nonzero(call.places >= 0)[1]])

    def offset(self, rows: Tokens) -> Tokens:
        """Where the target distribution of each rejected position is read."""
        return rows

    def residual(self, target: Floats, draft: Floats) -> Floats:
        """Unnormalised weights of the recovered token."""
        return np.asarray(np.maximum(target - draft, 0))

    def recover(self, weights: Floats, drawn: Drawn, requests: Tokens, rows: Tokens) -> Tokens:
        """A token for each rejected position: a race over the residual."""
        return np.asarray(np.argmax(weights / drawn.exponentials[requests], axis=1))

    def bonus(self, call: Call) -> Tokens:
        """The bonus token of each request."""
        return np.asarray(call.batch.bonus_token_ids.numpy()[:, 0], dtype=np.int64)

    def edit(self, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        """The output rows as they leave the sampler."""
        return tokens


def by_inverse_cdf(weights: Floats, uniforms: NDArray[np.floating]) -> Tokens:
    """One token per row from unnormalised weights; a uniform that rounds to 1 takes the last token with weight."""
    cumulative = np.cumsum(weights, axis=1)
    below = (uniforms[:, None] * cumulative[:, -1:] >= cumulative).sum(axis=1)
    last = weights.shape[1] - 1 - (weights[:, ::-1] > 0).argmax(axis=1)
    return np.asarray(np.minimum(below, last))


def right_distribution(sampler: type[DistributionSampler]) -> RejectionSampler:
    """A class as a sampler, under its name."""
    return as_rejection(sampler())
