"""Faults of the recovered token: what the race runs over, and who wins it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fairdraw._mutants._mutant import as_mutant
from fairdraw._oracles.rejection import DraftStep, RejectionOracle

if TYPE_CHECKING:
    from fairdraw.protocols import ExplicitNoise, SpecDecodeBatch

Row = NDArray[np.float32]


@as_mutant("REJ109", "REJ422")
class RecoversFromTheTarget(RejectionOracle):
    """The commonest fault of all: tokens that the draft proposes too often are emitted too often still."""

    def residual(self, step: DraftStep) -> Row:  # [vocab_size] float32
        return step.target_probs


@as_mutant("REJ107", "REJ421")
class KeepsTheRejectedDraftInTheRace(RejectionOracle):
    """Without draft distributions there is nothing to subtract, so nothing is: the rejected n-gram gets a second
    chance.
    """

    def residual(self, step: DraftStep) -> Row:  # [vocab_size] float32
        return step.target_probs if step.draft_probs is None else super().residual(step)


@as_mutant("REJ109", "REJ108", "REJ311", "REJ107")
class RecoversFromTheDraft(RejectionOracle):
    """draft - target for target - draft: the output follows the draft model, masked tokens included."""

    def residual(self, step: DraftStep) -> Row:  # [vocab_size] float32
        one_hot = (np.arange(step.target_probs.size) == step.draft_token_id).astype(np.float32)
        draft_probs = one_hot if step.draft_probs is None else step.draft_probs
        weights: Row = np.maximum(draft_probs - step.target_probs, np.float32(0))
        return weights


@as_mutant("REJ306")
class TakesMissingDraftProbsForUniform(RejectionOracle):
    """`draft_probs=None` becomes a flat distribution: n-gram drafts pass whenever the target finds them above
    average.
    """

    def steps(self, batch: SpecDecodeBatch, noise: ExplicitNoise) -> list[DraftStep]:
        flat = np.full(batch.vocab_size, 1 / batch.vocab_size, np.float32)
        steps = super().steps(batch, noise)
        return [dataclasses.replace(s, draft_probs=flat if s.draft_probs is None else s.draft_probs) for s in steps]


@as_mutant("REJ113", "REJ403")
class AnswersZeroWithoutResidual(RejectionOracle):
    """An argmax over zeros is id 0, whatever its probability: vLLM up to 0.33.0."""

    def recovered_token(self, step: DraftStep) -> int:
        return self.race(self.residual(step), step.exponentials)


@as_mutant("REJ407")
class RemovesTheLastTokenForPlaceholders(RejectionOracle):
    """The drafted token is set to zero by index, and index -1 is the last token."""

    def residual(self, step: DraftStep) -> Row:  # [vocab_size] float32
        weights = super().residual(step).copy()
        weights[-1] *= step.is_token
        return weights


@as_mutant("REJ118", "REJ116", "REJ117")
class AnswersVocabSizeWithoutADistribution(RejectionOracle):
    """vLLM before 0.24.0, compiled: nothing beats -inf, so a lane beyond the end wins."""

    def recovered_token(self, step: DraftStep) -> int:
        return step.target_probs.size if np.isnan(step.target_probs).any() else super().recovered_token(step)


@as_mutant("REJ101", "REJ605", "REJ607", "REJ603", "REJ604")
class LanesBeyondTheVocabularyRace(RejectionOracle):
    """The last tile is padded to a power of two, and the padding has weight."""

    def race(self, weights: Row, exponentials: Row) -> int:
        lanes = 1 << (weights.size - 1).bit_length()
        scores = np.ones(lanes)
        with np.errstate(over="ignore"):
            scores[: weights.size] = weights / exponentials
        return int(np.argmax(scores))


@as_mutant("REJ621")
class NeverRecoversTheLastToken(RejectionOracle):
    """A mask with `<` against `vocab_size - 1`, or a loop over full tiles only."""

    def race(self, weights: Row, exponentials: Row) -> int:
        return super().race(weights[:-1], exponentials[:-1]) if weights.size > 1 else 0


@as_mutant("REJ404", "REJ405")
class RaceTiesGoToTheHighestId(RejectionOracle):
    """The reduction keeps the last of equal scores."""

    def race(self, weights: Row, exponentials: Row) -> int:
        return weights.size - 1 - super().race(weights[::-1], exponentials[::-1])


@as_mutant("REJ405")
class TheLastTileWinsTies(RejectionOracle):
    """Lowest id inside a tile, `>=` between tiles: right in every test with a small vocabulary."""

    def race(self, weights: Row, exponentials: Row) -> int:
        last, rest = slice(512, None), slice(None, 512)
        if weights.size <= 512:
            return super().race(weights, exponentials)
        finalists = [
            super().race(weights[rest], exponentials[rest]),
            512 + self.race(weights[last], exponentials[last]),
        ]
        return finalists[1 - super().race(weights[finalists[::-1]], exponentials[finalists[::-1]])]


@as_mutant("REJ406")
class LetsNanWinTheRace(RejectionOracle):
    """0 times an infinite reciprocal is NaN, and NaN wins an argmax."""

    def race(self, weights: Row, exponentials: Row) -> int:
        with np.errstate(over="ignore", invalid="ignore"):
            return int(np.argmax(weights * (np.float32(1) / exponentials)))


@as_mutant("REJ108")
class MasksWithZeroInLogSpace(RejectionOracle):
    """Scores became logarithms, the value of masked lanes stayed 0: larger than most logarithms."""

    def race(self, weights: Row, exponentials: Row) -> int:
        alive = weights > 0
        scores = np.zeros(weights.size)
        scores[alive] = np.log(weights[alive].astype(np.float64)) - np.log(exponentials[alive].astype(np.float64))
        return int(np.argmax(scores))


@as_mutant("REJ307")
class ClampsTheResidualAboveZero(RejectionOracle):
    """A guard against log(0): every token keeps a little weight, masked ones and padding too."""

    def race(self, weights: Row, exponentials: Row) -> int:
        return super().race(np.maximum(weights, np.float32(1e-6)), exponentials)


@as_mutant("REJ325")
class ClampsTheExponentials(RejectionOracle):
    """A guard against division by zero that is larger than many exponentials."""

    def race(self, weights: Row, exponentials: Row) -> int:
        return super().race(weights, np.maximum(exponentials, np.float32(1e-7)))


@as_mutant("REJ308", "REJ411")
class PrefersLowIds(RejectionOracle):
    """A bias towards low ids, as from a running sum that is rounded: the distribution is off by a little,
    everywhere.
    """

    def race(self, weights: Row, exponentials: Row) -> int:
        bias = np.float32(1) / np.arange(1, weights.size + 1, dtype=np.float32)
        return super().race((weights * bias).astype(np.float32), exponentials)


@as_mutant("REJ323")
class RecoversWithTheRejectingUniform(RejectionOracle):
    """Inverse CDF with the number that rejected the draft: it is known to be large, so late ids are preferred."""

    def recovered_token(self, step: DraftStep) -> int:
        sums = np.cumsum(self.residual(step).astype(np.float64))
        return int(np.searchsorted(sums, step.uniform * sums[-1], side="right").clip(0, sums.size - 1))


@as_mutant("REJ326")
class NeverRecoversTheBonusToken(RejectionOracle):
    """The bonus token is drawn before verification, and kept out of the race as if it were used up."""

    def random_request(self, steps: list[DraftStep], bonus_token_id: int) -> list[int]:
        without = [dataclasses.replace(s, target_probs=_without(s.target_probs, bonus_token_id)) for s in steps]
        emitted = super().random_request(steps, bonus_token_id)
        cut_short = len(emitted) <= len(steps)
        return [*emitted[:-1], self.recovered_token(without[len(emitted) - 1])] if cut_short else emitted


def _without(probs: Row, token: int) -> Row:  # [vocab_size] float32
    left = probs.copy()
    left[token] = 0
    return left


@as_mutant("REJ401", "REJ409", "REJ426", "REJ606", "REJ608", "REJ609", "REJ610", "REJ611", "REJ612", "REJ613")
class RecoversTheRunnerUp(RejectionOracle):
    """An off-by-one in a sorted list: always the second best."""

    def race(self, weights: Row, exponentials: Row) -> int:
        first = super().race(weights, exponentials)
        others = _without(weights, first)
        return super().race(others, exponentials) if (others > 0).any() else first


@as_mutant("REJ410", "REJ425")
class SyntheticRejectionSkipsRecovery(RejectionOracle):
    """A mode for benchmarks, where the text does not matter: until somebody serves it."""

    def recovered_token(self, step: DraftStep) -> int:
        return 0 if step.synthetic_rate is not None else super().recovered_token(step)
