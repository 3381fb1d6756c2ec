"""Samplers that do it differently and are right, fast enough for the statistical suite: it must leave them in peace."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fairdraw._mutants._distribution_sampler import (
    DistributionSampler,
    Drawn,
    Floats,
    Tokens,
    by_inverse_cdf,
    places,
    right_distribution,
)
from fairdraw.protocols import Capability

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fairdraw.protocols import RejectionSampler, SpecDecodeBatch

__all__ = ["ODD_DISTRIBUTIONS", "BlockVerification"]


class BlockVerification(DistributionSampler):
    """Keeps the longest prefix that passes its own test, so that a late token can save an early one.

    The ratio of a prefix is `min(1, ratio before * target / draft)`, 1 for the empty one. A prefix passes with
    probability `spare / (spare + 1 - ratio)`, where `spare` is the mass of `(ratio * target - draft)_+` at the next
    position; the whole draft passes with its ratio. Recovery is from that excess.

    Reference:
        Sun et al. (2025), arXiv:2403.10444, algorithm 2, equations 4 and 5.
    """

    unsupported: ClassVar[dict[str, str]] = DistributionSampler.unsupported | {
        Capability.TOKEN_VERIFICATION: "verifies a block of drafts at once (Sun et al., 2025)"
    }

    def accept(
        self, batch: SpecDecodeBatch, target: Floats, draft: Floats, drafts: Tokens, drawn: Drawn
    ) -> tuple[Tokens, Floats]:
        place, num_draft = places(batch), np.array(batch.num_draft_tokens)
        ratio, longest_ratio = (np.ones(batch.batch_size, dtype=np.float32) for _ in range(2))
        num_accepted = np.zeros(batch.batch_size, dtype=np.int64)
        for position in range(batch.max_spec_len):
            own = np.flatnonzero(place[:, position] >= 0)
            rows = place[own, position]
            token = drafts[rows]
            ratio[own] = np.minimum(ratio[own] * target[rows, token] / draft[rows, token], 1)
            passing = ratio[own]
            before_last = num_draft[own] > position + 1
            passing[before_last] = self.passing(ratio[own][before_last], target, draft, rows[before_last] + 1)
            passed = own[drawn.uniforms[rows] < passing]
            num_accepted[passed], longest_ratio[passed] = position + 1, ratio[passed]
        return num_accepted, longest_ratio

    def passing(self, ratio: Floats, target: Floats, draft: Floats, next_rows: Tokens) -> Floats:
        """Probability that a prefix passes which is not the whole draft."""
        spare = np.maximum(ratio[:, None] * target[next_rows] - draft[next_rows], 0).sum(axis=1)
        total = spare + (1 - ratio)
        return np.asarray(np.divide(spare, total, out=np.ones_like(total), where=total > 0))


class ExactMatch(DistributionSampler):
    """Draws a token from the target at each position and keeps the draft if it is that token."""

    unsupported: ClassVar[dict[str, str]] = DistributionSampler.unsupported | {
        Capability.TOKEN_VERIFICATION: "accepts by exact match, so a draft distribution has no say"
    }

    def accept(
        self, batch: SpecDecodeBatch, target: Floats, draft: Floats, drafts: Tokens, drawn: Drawn
    ) -> tuple[Tokens, Floats]:
        accepted = by_inverse_cdf(target, drawn.uniforms) == drafts
        place = places(batch)
        kept = np.cumprod((place >= 0) & np.append(accepted, False)[place], axis=1)
        return np.asarray(kept.sum(axis=1)), np.ones(batch.batch_size, dtype=np.float32)

    def recover(self, target: Floats, draft: Floats, drawn: Drawn, requests: Tokens, rows: Tokens) -> Tokens:
        return by_inverse_cdf(target, drawn.uniforms[rows])


class OneExponentialRowPerRequest(DistributionSampler):
    """A token is recovered at every position before any is accepted, all with the same exponentials, as vLLM does."""

    def accept(
        self, batch: SpecDecodeBatch, target: Floats, draft: Floats, drafts: Tokens, drawn: Drawn
    ) -> tuple[Tokens, Floats]:
        owners = np.repeat(np.arange(batch.batch_size), batch.num_draft_tokens)
        self._recovered = super().recover(target, draft, drawn, owners, np.arange(batch.num_tokens))
        return super().accept(batch, target, draft, drafts, drawn)

    def recover(self, target: Floats, draft: Floats, drawn: Drawn, requests: Tokens, rows: Tokens) -> Tokens:
        return self._recovered[rows]


class Float64Uniforms(DistributionSampler):
    """Draws and compares in float64, where others have 24 bits."""

    def draw(self, batch: SpecDecodeBatch, seed: int) -> Drawn:
        drawn = super().draw(batch, seed)
        rng = np.random.default_rng([seed, 64])
        return Drawn(rng.random(batch.num_tokens), drawn.exponentials, seed)

    def acceptance(self, target: Floats, draft: Floats) -> NDArray[np.floating]:
        return np.asarray(target.astype(np.float64) / draft)


class InvertsTheCdf(DistributionSampler):
    """Recovers by one uniform per request instead of a race."""

    def recover(self, target: Floats, draft: Floats, drawn: Drawn, requests: Tokens, rows: Tokens) -> Tokens:
        return by_inverse_cdf(self.residual(target, draft), -np.expm1(-drawn.exponentials[requests, 0]))


ODD_DISTRIBUTIONS: tuple[RejectionSampler, ...] = tuple(
    right_distribution(odd)
    for odd in (BlockVerification, ExactMatch, OneExponentialRowPerRequest, Float64Uniforms, InvertsTheCdf)
)
"""Right samplers of other making."""
