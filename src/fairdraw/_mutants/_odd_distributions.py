"""Samplers that work differently and are correct, fast enough for the statistical checks: none may be accused."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from fairdraw._mutants._distribution_sampler import (
    Call,
    DistributionSampler,
    Drawn,
    Floats,
    Tokens,
    by_inverse_cdf,
    right_distribution,
)
from fairdraw.protocols import Capability

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fairdraw.protocols import RejectionSampler, SpecDecodeBatch


class BlockVerification(DistributionSampler):
    """Keeps the longest prefix that passes its own test, so that a late token can save an early one.

    The ratio of a prefix is `min(1, ratio before * target / draft)`, 1 for the empty one. A prefix passes with
    probability `spare / (spare + 1 - ratio)`, where `spare` is the mass of `max(ratio * target - draft, 0)` at the next
    position; the whole draft passes with its ratio. Recovery is from that excess.

    Reference:
        Sun et al. (2025), arXiv:2403.10444, algorithm 2, equations 4 and 5.
    """

    unsupported: ClassVar[dict[str, str]] = DistributionSampler.unsupported | {
        Capability.TOKEN_VERIFICATION: "verifies a block of drafts at once (Sun et al., 2025)",
        Capability.PLACEHOLDER_DRAFTS: "its scheduler takes them out",
    }

    def accept(self, call: Call) -> tuple[Tokens, Floats]:
        num_draft, size = np.array(call.batch.num_draft_tokens), call.batch.batch_size
        ratio, longest_ratio = np.ones(size, dtype=np.float32), np.ones(size, dtype=np.float32)
        num_accepted = np.zeros(size, dtype=np.int64)
        for position in range(call.batch.max_spec_len):
            own = np.flatnonzero(call.places[:, position] >= 0)
            rows = call.places[own, position]
            token = call.drafts[rows]
            with np.errstate(over="ignore"):  # infinity is above 1, too
                ratio[own] = np.minimum(ratio[own] * call.target[rows, token] / call.draft[rows, token], 1)
            passing = ratio[own]
            before_last = num_draft[own] > position + 1
            passing[before_last] = self._passing(call, passing[before_last], rows[before_last] + 1)
            passed = own[call.drawn.uniforms[rows] < passing]
            num_accepted[passed], longest_ratio[passed] = position + 1, ratio[passed]
        return num_accepted, longest_ratio

    def _passing(self, call: Call, ratio: Floats, next_rows: Tokens) -> Floats:
        """Probability that a prefix passes which is not the whole draft."""
        spare = self.residual(ratio[:, None] * call.target[next_rows], call.draft[next_rows]).sum(axis=1)
        total = spare + (1 - ratio)
        return np.asarray(np.divide(spare, total, out=np.ones_like(total), where=total > 0))


class ExactMatch(DistributionSampler):
    """Draws a token from the target at each position and keeps the draft if it is that token."""

    unsupported: ClassVar[dict[str, str]] = DistributionSampler.unsupported | {
        Capability.TOKEN_VERIFICATION: "accepts by exact match and ignores draft probabilities"
    }

    def accept(self, call: Call) -> tuple[Tokens, Floats]:
        accepted = by_inverse_cdf(call.target, call.drawn.uniforms) == call.drafts
        return call.num_leading(accepted), np.ones(call.batch.batch_size, dtype=np.float32)

    def residual(self, target: Floats, draft: Floats) -> Floats:
        return target

    def recover(self, weights: Floats, drawn: Drawn, requests: Tokens, rows: Tokens) -> Tokens:
        return by_inverse_cdf(weights, drawn.uniforms[rows])


class OneExponentialRowPerRequest(DistributionSampler):
    """A token is recovered at every position before any is accepted, all with the same exponentials, as in vLLM."""

    def accept(self, call: Call) -> tuple[Tokens, Floats]:
        owners = np.repeat(np.arange(call.batch.batch_size), call.batch.num_draft_tokens)
        weights = self.residual(call.target, call.draft)
        self._recovered = super().recover(weights, call.drawn, owners, np.arange(call.batch.num_tokens))
        return super().accept(call)

    def recover(self, weights: Floats, drawn: Drawn, requests: Tokens, rows: Tokens) -> Tokens:
        return self._recovered[rows]


class Float64Uniforms(DistributionSampler):
    """Draws and compares in float64, where others have 24 bits; a seeded request has 24."""

    def draw(self, batch: SpecDecodeBatch, seed: int) -> Drawn:
        uniforms = np.random.default_rng([seed % 2**64, 64]).random(batch.num_tokens)
        return Drawn(uniforms, super().draw(batch, seed).exponentials, seed)

    def acceptance(self, target: Floats, draft: Floats) -> NDArray[np.floating]:
        return np.asarray(target.astype(np.float64) / draft)


class InvertsTheCdf(DistributionSampler):
    """Recovers by one uniform per request instead of a race."""

    def recover(self, weights: Floats, drawn: Drawn, requests: Tokens, rows: Tokens) -> Tokens:
        return by_inverse_cdf(weights, -np.expm1(-drawn.exponentials[requests, 0]))


class DrawsWithTorch(DistributionSampler):
    """Draws with torch's default generator, as most samplers do; numbers can be injected there."""

    def draw(self, batch: SpecDecodeBatch, seed: int) -> Drawn:
        exponentials = torch.empty(batch.batch_size, batch.vocab_size).exponential_()
        return Drawn(torch.rand(batch.num_tokens).numpy(), exponentials.numpy(), seed)


class DrawsByPositionAndMultinomial(DrawsWithTorch):
    """Uniforms position by position, for all requests; recovers with `torch.multinomial`."""

    def draw(self, batch: SpecDecodeBatch, seed: int) -> Drawn:
        columns = [torch.rand(batch.batch_size, dtype=torch.float64) for _ in range(batch.max_spec_len)]
        has_draft = torch.arange(batch.max_spec_len) < torch.tensor(batch.num_draft_tokens)[:, None]
        uniforms = torch.stack([*columns, torch.zeros(batch.batch_size, dtype=torch.float64)], dim=1)[:, :-1][has_draft]
        return Drawn(uniforms.numpy(), np.ones((batch.batch_size, batch.vocab_size), dtype=np.float32), seed)

    def recover(self, weights: Floats, drawn: Drawn, requests: Tokens, rows: Tokens) -> Tokens:
        if not len(weights):
            return np.zeros(0, dtype=np.int64)
        return np.asarray(torch.multinomial(torch.from_numpy(weights), 1)[:, 0].numpy())


ODD_DISTRIBUTIONS: tuple[RejectionSampler, ...] = tuple(
    right_distribution(odd)
    for odd in (
        BlockVerification,
        ExactMatch,
        OneExponentialRowPerRequest,
        Float64Uniforms,
        InvertsTheCdf,
        DrawsWithTorch,
        DrawsByPositionAndMultinomial,
    )
)
