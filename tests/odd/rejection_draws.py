"""Correct rejection samplers, drafters and rules that trim, fast enough for the statistical checks."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fairdraw._mutants import _distribution_sampler as sampler
from fairdraw._mutants._distribution_sampler import Call, DistributionSampler, Drawn, Floats, Tokens, by_inverse_cdf
from fairdraw._mutants._pairs import DraftsByInverseCdf, Pair
from fairdraw._mutants._trimming import Trims, best_half, own
from fairdraw._mutants.distributions import BlockVerification, DrawsByPositionAndMultinomial, DrawsWithTorch
from fairdraw.contracts import Capability, Drafted, DraftStep, RejectionSampler, SeededNoise, SpecDecodeBatch


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


ODD_DISTRIBUTIONS: tuple[RejectionSampler, ...] = (
    *map(sampler.right_distribution, (BlockVerification, ExactMatch, OneExponentialRowPerRequest, Float64Uniforms)),
    *map(sampler.right_distribution, (InvertsTheCdf, DrawsWithTorch, DrawsByPositionAndMultinomial)),
)
"""Verifiers."""


# Drafters with verifiers.


class DraftsGreedilyOneHot(Pair):
    """Takes the most probable token, and reports no distribution."""

    def choose(self, probs: Floats, key: tuple[NDArray[np.uint64], Tokens, int], step: DraftStep) -> Tokens:
        return np.asarray(probs.argmax(axis=1))

    def reported(self, probs: Floats, step: DraftStep) -> Any:
        return None


class DraftsFlatterAndSaysSo(Pair):
    """Draws at twice the temperature, and reports that."""

    def draft_probs(self, step: DraftStep) -> Floats:
        return np.asarray((step.draft_logits / (2 * step.temperature.clamp(min=1e-6)[:, None])).softmax(dim=-1).numpy())


class DraftsTheTopThree(Pair):
    """Filters before it draws, and reports what is left."""

    def draft_probs(self, step: DraftStep) -> Floats:
        probs = super().draft_probs(step)
        kept = np.where(probs >= np.sort(probs, axis=1)[:, -3:-2], probs, 0)
        return np.asarray(kept / kept.sum(axis=1, keepdims=True))


class DrawsWithOneGeneratorAfterTheOther(DistributionSampler):
    """Drafter and verifier draw from one stream in turn: a request without a seed from torch's default generator."""

    unsupported: ClassVar[dict[str, str]] = {
        Capability.EXPLICIT_NOISE: "draws its own numbers",
        Capability.REQUEST_SEEDS: "one generator serves the whole batch",
    }

    def propose(self, step: DraftStep, noise: SeededNoise) -> Drafted:
        """A race over the softmax."""
        probs = (step.draft_logits / step.temperature.clamp(min=1e-6)[:, None]).softmax(dim=-1)
        return Drafted((probs / torch.empty_like(probs).exponential_()).argmax(dim=-1), probs)

    def draw(self, batch: SpecDecodeBatch, seed: int) -> Drawn:
        uniforms, exponentials = torch.rand(batch.num_tokens), torch.empty(batch.batch_size, batch.vocab_size)
        return Drawn(uniforms.numpy(), exponentials.exponential_().numpy(), seed)


class VerifiesABlockOfItsDrafts(Pair, BlockVerification):
    """Sun et al. (2025) with a drafter."""

    unsupported: ClassVar[dict[str, str]] = BlockVerification.unsupported


ODD_PAIRS = (
    Pair, DraftsByInverseCdf, DraftsGreedilyOneHot, DraftsFlatterAndSaysSo, DraftsTheTopThree,
    DrawsWithOneGeneratorAfterTheOther, VerifiesABlockOfItsDrafts,
)  # fmt: skip
"""Classes of right drafters with verifiers; `as_rejection` makes samplers of them."""


# Rules that trim.


class KeepsNoDraft(Trims):
    """Every token is the target's own."""

    def num_kept(self, confidence: Floats) -> NDArray[np.int64]:
        return np.zeros(len(confidence), dtype=np.int64)


class SharesABudget(Trims):
    """Half of all drafts are verified, those of the largest survival; requests compete."""

    def num_kept(self, confidence: Floats) -> NDArray[np.int64]:
        return best_half(np.cumprod(confidence, axis=1))


class StopsBehindOneToken(Trims):
    """Nothing is verified behind a token that ends the text; the token itself is."""

    def confidence(self, probs: Floats, tokens: Tokens) -> Floats:
        return np.append(np.ones_like(own(probs, tokens)[:, :1]), tokens[:, :-1] != 0, axis=1)


class TrimsByTheTokensBefore(Trims):
    """A draft is kept if the token before it was probable."""

    def confidence(self, probs: Floats, tokens: Tokens) -> Floats:
        found = own(probs, tokens)
        return np.append(np.ones_like(found[:, :1]), found[:, :-1], axis=1)


ODD_TRIMS = (Trims, KeepsNoDraft, SharesABudget, StopsBehindOneToken, TrimsByTheTokensBefore)
"""Classes of verifiers that trim rightly; `as_rejection` makes samplers of them."""
