"""A right sampler in vectorised NumPy, whose steps the mutants of the statistical suite override.

A million rows cost some seconds, so that mutants get the very budget that the sampler under test gets.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fairdraw._mutants._mutant import Mutant
from fairdraw.protocols import PLACEHOLDER_TOKEN_ID, Capability, Noise, SeededNoise, rejection_sampler

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from fairdraw.protocols import RejectionSampler, SpecDecodeBatch

__all__ = [
    "DistributionSampler",
    "Drawn",
    "Floats",
    "Tokens",
    "by_inverse_cdf",
    "in_words",
    "mutant_distribution",
    "places",
    "right_distribution",
]

Floats = NDArray[np.float32]
Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class Drawn:
    """The random numbers of one call."""

    uniforms: NDArray[np.floating]  # [num_tokens] float32 | float64
    exponentials: Floats  # [batch_size, vocab_size] float32
    seed: int


class DistributionSampler:
    """Token verification; greedy requests keep the drafts that equal the argmax."""

    unsupported: ClassVar[dict[str, str]] = {Capability.EXPLICIT_NOISE: "draws its own numbers"}

    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        if isinstance(noise, SeededNoise):
            drawn = self.draw(batch, noise.seed)
        else:
            drawn = Drawn(noise.uniforms.numpy(), noise.exponentials.numpy(), seed=0)
        drafts = batch.draft_token_ids.numpy().astype(np.int64)
        target, draft = self.distributions(batch, drafts)
        place = places(batch)
        num_accepted, scale = self.accept(batch, target, draft, drafts, drawn)
        last = self.bonus(batch, target, drafts, drawn)
        rejecting = np.flatnonzero(num_accepted < np.array(batch.num_draft_tokens))
        rows = place[rejecting, num_accepted[rejecting]]
        scaled = scale[rejecting, None] * target[self.offset(rows)]
        last[rejecting] = self.recover(scaled, draft[rows], drawn, rejecting, rows)
        kept = np.arange(batch.max_spec_len) < num_accepted[:, None]
        tokens = np.full((batch.batch_size, batch.max_spec_len + 1), PLACEHOLDER_TOKEN_ID, dtype=np.int32)
        tokens[:, :-1][kept] = drafts[place[kept]]
        tokens[np.arange(batch.batch_size), num_accepted] = last
        return torch.from_numpy(self.edit(tokens))

    def accept(
        self, batch: SpecDecodeBatch, target: Floats, draft: Floats, drafts: Tokens, drawn: Drawn
    ) -> tuple[Tokens, Floats]:  # each [batch_size]
        """How many drafts each request keeps, and the factor of its target distribution in the residual (1: none)."""
        every = np.arange(batch.num_tokens)
        with np.errstate(divide="ignore", invalid="ignore"):
            accepted = drawn.uniforms < self.acceptance(target[every, drafts], draft[every, drafts])
        place = places(batch)
        kept = np.cumprod((place >= 0) & np.append(accepted, False)[place], axis=1)
        return np.asarray(kept.sum(axis=1)), np.ones(batch.batch_size, dtype=np.float32)

    def draw(self, batch: SpecDecodeBatch, seed: int) -> Drawn:
        rng = np.random.default_rng(seed)
        uniforms = rng.random(batch.num_tokens, dtype=np.float32)
        exponentials = rng.standard_exponential((batch.batch_size, batch.vocab_size), dtype=np.float32)
        return Drawn(uniforms, np.maximum(exponentials, np.finfo(np.float32).tiny), seed)

    def distributions(self, batch: SpecDecodeBatch, drafts: Tokens) -> tuple[Floats, Floats]:
        """Target and draft distributions of every position; greedy and one-hot ones are certain."""
        target = self.target(batch)
        greedy = np.repeat(batch.is_greedy.numpy(), batch.num_draft_tokens)
        best = target[greedy].argmax(axis=1)
        target[greedy] = 0
        target[np.flatnonzero(greedy), best] = 1
        certain = np.flatnonzero(greedy | (batch.draft_probs is None))
        draft = np.zeros_like(target) if batch.draft_probs is None else self.draft(batch.draft_probs.numpy().copy())
        draft[certain] = 0
        draft[certain, drafts[certain]] = 1
        return target, draft

    def target(self, batch: SpecDecodeBatch) -> Floats:
        return np.asarray(batch.target_probs().numpy())

    def draft(self, draft: Floats) -> Floats:
        return draft

    def acceptance(self, target: Floats, draft: Floats) -> NDArray[np.floating]:
        return np.asarray(target / draft)

    def offset(self, rows: Tokens) -> Tokens:
        """Where the target distribution of each rejected position is read."""
        return rows

    def recover(self, target: Floats, draft: Floats, drawn: Drawn, requests: Tokens, rows: Tokens) -> Tokens:
        """A token for each rejected position: a race over the residual."""
        return np.asarray(np.argmax(self.residual(target, draft) / drawn.exponentials[requests], axis=1))

    def residual(self, target: Floats, draft: Floats) -> Floats:
        return np.asarray(np.maximum(target - draft, 0))

    def bonus(self, batch: SpecDecodeBatch, target: Floats, drafts: Tokens, drawn: Drawn) -> Tokens:
        return np.asarray(batch.bonus_token_ids.numpy()[:, 0], dtype=np.int64)

    def edit(self, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        return tokens


def places(batch: SpecDecodeBatch) -> Tokens:  # [batch_size, max_spec_len] int64
    """The flattened row of each draft, -1 where a request has none."""
    place = np.full((batch.batch_size, batch.max_spec_len), -1)
    place[np.arange(batch.max_spec_len) < np.array(batch.num_draft_tokens)[:, None]] = np.arange(batch.num_tokens)
    return place


def by_inverse_cdf(weights: Floats, uniforms: Floats) -> Tokens:
    """One token per row from unnormalised weights; a uniform that rounds to 1 takes the last token with weight."""
    cumulative = np.cumsum(weights, axis=1)
    below = (uniforms[:, None] * cumulative[:, -1:] >= cumulative).sum(axis=1)
    last = weights.shape[1] - 1 - (weights[:, ::-1] > 0).argmax(axis=1)
    return np.asarray(np.minimum(below, last))


def mutant_distribution(*caught_by: str, min_draws: int = 0) -> Callable[[type[DistributionSampler]], Mutant]:
    """Make a mutant of a distribution sampler with one step overridden; class name and docstring are name and
    failure_report.
    """

    def make_mutant(faulty: type[DistributionSampler]) -> Mutant:
        return Mutant(
            in_words(faulty),
            inspect.cleandoc(faulty.__doc__ or ""),
            caught_by,
            lambda: right_distribution(faulty),
            min_draws,
        )

    return make_mutant


def right_distribution(sampler: type[DistributionSampler]) -> RejectionSampler:
    """A distribution sampler as a sampler, under the name of its class."""
    return rejection_sampler(sampler().verify, name=in_words(sampler), unsupported=sampler.unsupported)


def in_words(sampler: type[DistributionSampler]) -> str:
    """The name of a class, as a sentence would have it."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", sampler.__name__).lower()
