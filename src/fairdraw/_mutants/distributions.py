"""Samplers whose distribution is wrong, one fault each, and answers without any thought (`vacuous`): all must be
caught.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fairdraw._core.seeds import derive_seed
from fairdraw._mutants._distribution_sampler import (
    DistributionSampler,
    Drawn,
    Floats,
    Tokens,
    by_inverse_cdf,
    mutant_distribution,
)
from fairdraw._mutants._mutant import Mutant
from fairdraw._mutants._odd_distributions import BlockVerification
from fairdraw._mutants._stratified_distributions import STRATIFIED_MUTANTS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fairdraw.protocols import SpecDecodeBatch

__all__ = ["DISTRIBUTION_MUTANTS"]

# Noise that serves twice.


@mutant_distribution("DIST203", "DIST101")
class RecoversWithTheDraftersNoise(DistributionSampler):
    """Recovery draws with the very uniforms that the drafter used (vLLM #54282)."""

    def recover(self, target: Floats, draft: Floats, drawn: Drawn, requests: Tokens, rows: Tokens) -> Tokens:
        stream = np.random.default_rng(derive_seed("draft", drawn.seed)).random(drawn.uniforms.size)
        return by_inverse_cdf(self.residual(target, draft), stream[rows].astype(np.float32))


@mutant_distribution("DIST201", "DIST203", "DIST211", "DIST213", min_draws=4_000)
class RecoversWithTheUniformThatRejected(DistributionSampler):
    """One uniform less to draw; but given a rejection it is large."""

    def recover(self, target: Floats, draft: Floats, drawn: Drawn, requests: Tokens, rows: Tokens) -> Tokens:
        return by_inverse_cdf(self.residual(target, draft), drawn.uniforms[rows])


@mutant_distribution("DIST103", "DIST101", "DIST113", "DIST504", min_draws=500_000)
class OneUniformPerRequest(DistributionSampler):
    """Positions of a request share their uniform, so the second draft is accepted too often after the first."""

    def draw(self, batch: SpecDecodeBatch, seed: int) -> Drawn:
        drawn = super().draw(batch, seed)
        counts = np.array(batch.num_draft_tokens)
        first = np.repeat(np.cumsum(counts) - counts, counts)
        return Drawn(drawn.uniforms[first], drawn.exponentials, seed)


@mutant_distribution("DIST301", "DIST504", min_draws=4_000)
class OneNoiseRowForTheBatch(DistributionSampler):
    """All requests have the numbers of the first."""

    def draw(self, batch: SpecDecodeBatch, seed: int) -> Drawn:
        drawn = super().draw(batch, seed)
        counts = np.array(batch.num_draft_tokens)
        positions = np.arange(batch.num_tokens) - np.repeat(np.cumsum(counts) - counts, counts)
        return Drawn(drawn.uniforms[positions], np.repeat(drawn.exponentials[:1], batch.batch_size, axis=0), seed)


@mutant_distribution("DIST301", min_draws=50_000)
class NeighboursShareTheirExponentials(DistributionSampler):
    """Exponentials are indexed by `request // 2`."""

    def draw(self, batch: SpecDecodeBatch, seed: int) -> Drawn:
        drawn = super().draw(batch, seed)
        return Drawn(drawn.uniforms, drawn.exponentials[np.arange(batch.batch_size) // 2], seed)


@mutant_distribution("DIST302", min_draws=4_000)
class CallsShareTheirNoise(DistributionSampler):
    """Every second call finds the noise of the call before still in its buffer."""

    def __init__(self) -> None:
        self._kept: Drawn | None = None

    def draw(self, batch: SpecDecodeBatch, seed: int) -> Drawn:
        kept, self._kept = self._kept, None
        if kept is not None and kept.exponentials.shape[0] == batch.batch_size:
            return kept
        self._kept = super().draw(batch, seed)
        return self._kept


@mutant_distribution("DIST224", "DIST204", min_draws=4_000)
class BonusWithTheDraftersNoise(DistributionSampler):
    """The bonus token is the last draft, wherever the target could have drawn it: right by itself, and dependent."""

    def bonus(self, batch: SpecDecodeBatch, target: Floats, drafts: Tokens, drawn: Drawn) -> Tokens:
        given = super().bonus(batch, target, drafts, drawn)
        last = drafts[np.maximum(batch.cu_num_draft_tokens.numpy() - 1, 0)]
        return np.where(np.arange(given.size) % 4 == 0, last, given)


# The wrong distribution, or the distribution of somebody else.


@mutant_distribution("DIST102", "DIST101", "DIST501", min_draws=4_000)
class RecoversFromTheTarget(DistributionSampler):
    """The draft distribution is not subtracted: drafts that were accepted already come once more."""

    def residual(self, target: Floats, draft: Floats) -> Floats:
        return target


@mutant_distribution("DIST111", "DIST112", "DIST213", "DIST503")
class RecoversTheRejectedDraft(DistributionSampler):
    """Without draft probabilities, the rejected draft stays in the race."""

    def residual(self, target: Floats, draft: Floats) -> Floats:
        return np.where(draft.max(axis=1, keepdims=True) == 1, target, np.maximum(target - draft, 0))


@mutant_distribution("DIST213", "DIST111")
class ForgetsToNormalise(DistributionSampler):
    """Inverse CDF over the residual as it is: what is missing to 1 goes to the last token."""

    def recover(self, target: Floats, draft: Floats, drawn: Drawn, requests: Tokens, rows: Tokens) -> Tokens:
        cumulative = np.cumsum(self.residual(target, draft), axis=1)
        uniforms = np.exp(-drawn.exponentials[requests, :1])
        return np.asarray(np.minimum((uniforms >= cumulative).sum(axis=1), target.shape[1] - 1))


@mutant_distribution("DIST102", min_draws=50_000)
class WrongResidualInBlockVerification(BlockVerification):
    """Accepts blocks, and recovers as if tokens had been accepted one by one."""

    def accept(
        self, batch: SpecDecodeBatch, target: Floats, draft: Floats, drafts: Tokens, drawn: Drawn
    ) -> tuple[Tokens, Floats]:
        num_accepted, ratio = super().accept(batch, target, draft, drafts, drawn)
        return num_accepted, np.ones_like(ratio)


@mutant_distribution("DIST121", "DIST401", "DIST502")
class ReadsTheRowBefore(DistributionSampler):
    """`cu_num_draft_tokens` is read as if it had a leading 0."""

    def offset(self, rows: Tokens) -> Tokens:
        return np.maximum(rows - 1, 0)


@mutant_distribution("DIST204", "DIST214")
class BonusFromThePositionBefore(DistributionSampler):
    """The bonus token is drawn from the distribution of the last draft."""

    def bonus(self, batch: SpecDecodeBatch, target: Floats, drafts: Tokens, drawn: Drawn) -> Tokens:
        rows = np.maximum(batch.cu_num_draft_tokens.numpy() - 1, 0)
        drawn_there = np.argmax(target[rows] / drawn.exponentials, axis=1)
        given = super().bonus(batch, target, drafts, drawn)
        return np.where(np.array(batch.num_draft_tokens) > 0, drawn_there, given)


@mutant_distribution("DIST113", "DIST111", min_draws=500_000)
class TemperatureTwoPercentOff(DistributionSampler):
    """Temperature is applied in half precision, or twice to a request at 1.02."""

    def target(self, batch: SpecDecodeBatch) -> Floats:
        return np.asarray((batch.target_logits / 1.02).softmax(dim=-1).numpy())


@mutant_distribution("DIST502", "DIST512", min_draws=500_000)
class AppliesTheTemperatureAgain(DistributionSampler):
    """The sampler divides logits that are divided already."""

    def target(self, batch: SpecDecodeBatch) -> Floats:
        import torch

        counts = torch.tensor(batch.num_draft_tokens)
        divisor = torch.where(batch.is_greedy, torch.ones(()), batch.temperature).repeat_interleave(counts)
        return np.asarray((batch.target_logits / divisor[:, None]).softmax(dim=-1).numpy())


@mutant_distribution("DIST401", min_draws=500_000)
class LosesItsTail(DistributionSampler):
    """Small probabilities are flushed to zero: 1 % of the mass, 2 % in wide distributions."""

    def target(self, batch: SpecDecodeBatch) -> Floats:
        probs = super().target(batch)
        return np.where(probs < 1 / (8 * batch.vocab_size), np.float32(0), probs)


@mutant_distribution("DIST404", "DIST402", min_draws=500_000)
class LosesTheLastTile(DistributionSampler):
    """The last 4096 of 32768 tokens take no part in the race."""

    def residual(self, target: Floats, draft: Floats) -> Floats:
        weights = super().residual(target, draft)
        weights[:, weights.shape[1] * 7 // 8 :] = 0
        return weights


# Acceptance.


@mutant_distribution("DIST104", "DIST103", "DIST403", min_draws=4_000)
class AcceptsWithTheSquareRoot(DistributionSampler):
    """Somebody wanted longer drafts."""

    def acceptance(self, target: Floats, draft: Floats) -> Floats:
        return np.asarray(np.sqrt(target / draft))


@mutant_distribution("DIST511", "DIST103", "DIST514", "DIST403", min_draws=4_000)
class IgnoresTheDraftDistribution(DistributionSampler):
    """Accepts and recovers as if drafts were one-hot: the text is right, and decoding is slow."""

    def distributions(self, batch: SpecDecodeBatch, drafts: Tokens) -> tuple[Floats, Floats]:
        return super().distributions(batch.replace(draft_probs=None), drafts)


@mutant_distribution("DIST113", "DIST513", min_draws=50_000)
class AcceptsNineInTen(DistributionSampler):
    """A tenth of what should be accepted is rejected; the residual knows nothing of it."""

    def acceptance(self, target: Floats, draft: Floats) -> Floats:
        return np.asarray(np.float32(0.9) * np.minimum(target / draft, 1))


@mutant_distribution("DIST104", min_draws=500_000)
class DraftDistributionInEightBits(DistributionSampler):
    """The draft distribution was stored with three bits of mantissa, and drafts were drawn before."""

    def draft(self, draft: Floats) -> Floats:
        mantissa, exponent = np.frexp(draft)
        return np.asarray(np.ldexp(np.round(mantissa * 16) / 16, exponent))


@mutant_distribution("DIST131")
class RejectsAtEqualProbability(DistributionSampler):
    """Compares with half of the ratio at a tie."""

    def acceptance(self, target: Floats, draft: Floats) -> Floats:
        return np.where(np.isclose(target, draft), np.float32(0.5), target / draft)


# Vacuous: a check that leaves these in peace checks nothing.


@mutant_distribution("DIST101", "DIST401")
class AlwaysTheFirstToken(DistributionSampler):
    """Emits token 0 at every place."""

    def edit(self, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        return np.zeros_like(tokens)


@mutant_distribution("DIST102", "DIST501", "DIST402")
class AnyTokenAlike(DistributionSampler):
    """Recovers from the uniform distribution."""

    def residual(self, target: Floats, draft: Floats) -> Floats:
        return np.ones_like(target)


@mutant_distribution("DIST511", "DIST514", "DIST512", "DIST104")
class AcceptsEveryDraft(DistributionSampler):
    """Gives back what it was given."""

    def acceptance(self, target: Floats, draft: Floats) -> Floats:
        return np.full_like(target, 2)


@mutant_distribution("DIST101", "DIST503", "DIST504")
class RecoversTheMostProbable(DistributionSampler):
    """Argmax instead of a draw."""

    def recover(self, target: Floats, draft: Floats, drawn: Drawn, requests: Tokens, rows: Tokens) -> Tokens:
        return np.asarray(np.argmax(self.residual(target, draft), axis=1))


DISTRIBUTION_MUTANTS: tuple[Mutant, ...] = (
    *(value for value in list(vars().values()) if isinstance(value, Mutant)),
    *STRATIFIED_MUTANTS,
)
