"""Samplers whose law is wrong, one fault each, and answers without any thought (`vacuous`): all must be caught."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fairdraw.mutants._law_sampler import Drawn, Floats, LawSampler, Tokens, by_inverse_cdf, planted_law
from fairdraw.mutants._odd_laws import BlockVerification
from fairdraw.mutants._planted import Mutant
from fairdraw.mutants._stratified_laws import STRATIFIED_MUTANTS
from fairdraw.seeds import derive_seed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fairdraw.protocols import SpecDecodeBatch

__all__ = ["LAW_MUTANTS"]

# Noise that serves twice.


@planted_law("LAW203", "LAW101")
class RecoversWithTheDraftersNoise(LawSampler):
    """Recovery draws with the very uniforms that the drafter used (vLLM #54282)."""

    def recover(self, target: Floats, draft: Floats, drawn: Drawn, requests: Tokens, rows: Tokens) -> Tokens:
        stream = np.random.default_rng(derive_seed("draft", drawn.seed)).random(drawn.uniforms.size)
        return by_inverse_cdf(self.residual(target, draft), stream[rows].astype(np.float32))


@planted_law("LAW201", "LAW203", "LAW211", "LAW213", min_draws=4_000)
class RecoversWithTheUniformThatRejected(LawSampler):
    """One uniform less to draw; but given a rejection it is large."""

    def recover(self, target: Floats, draft: Floats, drawn: Drawn, requests: Tokens, rows: Tokens) -> Tokens:
        return by_inverse_cdf(self.residual(target, draft), drawn.uniforms[rows])


@planted_law("LAW103", "LAW101", "LAW113", "LAW504", min_draws=500_000)
class OneUniformPerRequest(LawSampler):
    """Positions of a request share their uniform, so the second draft is accepted too often after the first."""

    def draw(self, batch: SpecDecodeBatch, seed: int) -> Drawn:
        drawn = super().draw(batch, seed)
        counts = np.array(batch.num_draft_tokens)
        first = np.repeat(np.cumsum(counts) - counts, counts)
        return Drawn(drawn.uniforms[first], drawn.exponentials, seed)


@planted_law("LAW301", "LAW504", min_draws=4_000)
class OneNoiseRowForTheBatch(LawSampler):
    """All requests have the numbers of the first."""

    def draw(self, batch: SpecDecodeBatch, seed: int) -> Drawn:
        drawn = super().draw(batch, seed)
        counts = np.array(batch.num_draft_tokens)
        positions = np.arange(batch.num_tokens) - np.repeat(np.cumsum(counts) - counts, counts)
        return Drawn(drawn.uniforms[positions], np.repeat(drawn.exponentials[:1], batch.batch_size, axis=0), seed)


@planted_law("LAW301", min_draws=50_000)
class NeighboursShareTheirExponentials(LawSampler):
    """Exponentials are indexed by `request // 2`."""

    def draw(self, batch: SpecDecodeBatch, seed: int) -> Drawn:
        drawn = super().draw(batch, seed)
        return Drawn(drawn.uniforms, drawn.exponentials[np.arange(batch.batch_size) // 2], seed)


@planted_law("LAW302", min_draws=4_000)
class CallsShareTheirNoise(LawSampler):
    """Every second call finds the noise of the call before still in its buffer."""

    def __init__(self) -> None:
        self._kept: Drawn | None = None

    def draw(self, batch: SpecDecodeBatch, seed: int) -> Drawn:
        kept, self._kept = self._kept, None
        if kept is not None and kept.exponentials.shape[0] == batch.batch_size:
            return kept
        self._kept = super().draw(batch, seed)
        return self._kept


@planted_law("LAW224", "LAW204", min_draws=4_000)
class BonusWithTheDraftersNoise(LawSampler):
    """The bonus token is the last draft, wherever the target could have drawn it: right by itself, and dependent."""

    def bonus(self, batch: SpecDecodeBatch, target: Floats, drafts: Tokens, drawn: Drawn) -> Tokens:
        given = super().bonus(batch, target, drafts, drawn)
        last = drafts[np.maximum(batch.cu_num_draft_tokens.numpy() - 1, 0)]
        return np.where(np.arange(given.size) % 4 == 0, last, given)


# The wrong law, or the law of somebody else.


@planted_law("LAW102", "LAW101", "LAW501", min_draws=4_000)
class RecoversFromTheTarget(LawSampler):
    """The draft law is not subtracted: drafts that were accepted already come once more."""

    def residual(self, target: Floats, draft: Floats) -> Floats:
        return target


@planted_law("LAW111", "LAW112", "LAW213", "LAW503")
class RecoversTheRejectedDraft(LawSampler):
    """Without draft probabilities, the rejected draft stays in the race."""

    def residual(self, target: Floats, draft: Floats) -> Floats:
        return np.where(draft.max(axis=1, keepdims=True) == 1, target, np.maximum(target - draft, 0))


@planted_law("LAW213", "LAW111")
class ForgetsToNormalise(LawSampler):
    """Inverse CDF over the residual as it is: what is missing to 1 goes to the last token."""

    def recover(self, target: Floats, draft: Floats, drawn: Drawn, requests: Tokens, rows: Tokens) -> Tokens:
        cumulative = np.cumsum(self.residual(target, draft), axis=1)
        uniforms = np.exp(-drawn.exponentials[requests, :1])
        return np.asarray(np.minimum((uniforms >= cumulative).sum(axis=1), target.shape[1] - 1))


@planted_law("LAW102", min_draws=50_000)
class WrongResidualInBlockVerification(BlockVerification):
    """Accepts blocks, and recovers as if tokens had been accepted one by one."""

    def accept(
        self, batch: SpecDecodeBatch, target: Floats, draft: Floats, drafts: Tokens, drawn: Drawn
    ) -> tuple[Tokens, Floats]:
        num_accepted, ratio = super().accept(batch, target, draft, drafts, drawn)
        return num_accepted, np.ones_like(ratio)


@planted_law("LAW121", "LAW401", "LAW502")
class ReadsTheRowBefore(LawSampler):
    """`cu_num_draft_tokens` is read as if it had a leading 0."""

    def offset(self, rows: Tokens) -> Tokens:
        return np.maximum(rows - 1, 0)


@planted_law("LAW204", "LAW214")
class BonusFromThePositionBefore(LawSampler):
    """The bonus token is drawn from the law of the last draft."""

    def bonus(self, batch: SpecDecodeBatch, target: Floats, drafts: Tokens, drawn: Drawn) -> Tokens:
        rows = np.maximum(batch.cu_num_draft_tokens.numpy() - 1, 0)
        drawn_there = np.argmax(target[rows] / drawn.exponentials, axis=1)
        given = super().bonus(batch, target, drafts, drawn)
        return np.where(np.array(batch.num_draft_tokens) > 0, drawn_there, given)


@planted_law("LAW113", "LAW111", min_draws=500_000)
class TemperatureTwoPercentOff(LawSampler):
    """Temperature is applied in half precision, or twice to a request at 1.02."""

    def target(self, batch: SpecDecodeBatch) -> Floats:
        return np.asarray((batch.target_logits / 1.02).softmax(dim=-1).numpy())


@planted_law("LAW502", "LAW512", min_draws=500_000)
class AppliesTheTemperatureAgain(LawSampler):
    """The sampler divides logits that are divided already."""

    def target(self, batch: SpecDecodeBatch) -> Floats:
        import torch

        counts = torch.tensor(batch.num_draft_tokens)
        divisor = torch.where(batch.is_greedy, torch.ones(()), batch.temperature).repeat_interleave(counts)
        return np.asarray((batch.target_logits / divisor[:, None]).softmax(dim=-1).numpy())


@planted_law("LAW401", min_draws=500_000)
class LosesItsTail(LawSampler):
    """Small probabilities are flushed to zero: 1 % of the mass, 2 % in wide laws."""

    def target(self, batch: SpecDecodeBatch) -> Floats:
        probs = super().target(batch)
        return np.where(probs < 1 / (8 * batch.vocab_size), np.float32(0), probs)


@planted_law("LAW404", "LAW402", min_draws=500_000)
class LosesTheLastTile(LawSampler):
    """The last 4096 of 32768 tokens take no part in the race."""

    def residual(self, target: Floats, draft: Floats) -> Floats:
        weights = super().residual(target, draft)
        weights[:, weights.shape[1] * 7 // 8 :] = 0
        return weights


# Acceptance.


@planted_law("LAW104", "LAW103", "LAW403", min_draws=4_000)
class AcceptsWithTheSquareRoot(LawSampler):
    """Somebody wanted longer drafts."""

    def acceptance(self, target: Floats, draft: Floats) -> Floats:
        return np.asarray(np.sqrt(target / draft))


@planted_law("LAW511", "LAW103", "LAW514", "LAW403", min_draws=4_000)
class IgnoresTheDraftLaw(LawSampler):
    """Accepts and recovers as if drafts were one-hot: the text is right, and decoding is slow."""

    def laws(self, batch: SpecDecodeBatch, drafts: Tokens) -> tuple[Floats, Floats]:
        return super().laws(batch.replace(draft_probs=None), drafts)


@planted_law("LAW113", "LAW513", min_draws=50_000)
class AcceptsNineInTen(LawSampler):
    """A tenth of what should be accepted is rejected; the residual knows nothing of it."""

    def acceptance(self, target: Floats, draft: Floats) -> Floats:
        return np.asarray(np.float32(0.9) * np.minimum(target / draft, 1))


@planted_law("LAW104", min_draws=500_000)
class DraftLawInEightBits(LawSampler):
    """The draft law was stored with three bits of mantissa, and drafts were drawn before."""

    def draft(self, draft: Floats) -> Floats:
        mantissa, exponent = np.frexp(draft)
        return np.asarray(np.ldexp(np.round(mantissa * 16) / 16, exponent))


@planted_law("LAW131")
class RejectsAtEqualProbability(LawSampler):
    """Compares with half of the ratio at a tie."""

    def acceptance(self, target: Floats, draft: Floats) -> Floats:
        return np.where(np.isclose(target, draft), np.float32(0.5), target / draft)


# Vacuous: a check that leaves these in peace checks nothing.


@planted_law("LAW101", "LAW401")
class AlwaysTheFirstToken(LawSampler):
    """Emits token 0 at every place."""

    def edit(self, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        return np.zeros_like(tokens)


@planted_law("LAW102", "LAW501", "LAW402")
class AnyTokenAlike(LawSampler):
    """Recovers from the uniform law."""

    def residual(self, target: Floats, draft: Floats) -> Floats:
        return np.ones_like(target)


@planted_law("LAW511", "LAW514", "LAW512", "LAW104")
class AcceptsEveryDraft(LawSampler):
    """Gives back what it was given."""

    def acceptance(self, target: Floats, draft: Floats) -> Floats:
        return np.full_like(target, 2)


@planted_law("LAW101", "LAW503", "LAW504")
class RecoversTheMostProbable(LawSampler):
    """Argmax instead of a draw."""

    def recover(self, target: Floats, draft: Floats, drawn: Drawn, requests: Tokens, rows: Tokens) -> Tokens:
        return np.asarray(np.argmax(self.residual(target, draft), axis=1))


LAW_MUTANTS: tuple[Mutant, ...] = (
    *(value for value in list(vars().values()) if isinstance(value, Mutant)),
    *STRATIFIED_MUTANTS,
)
