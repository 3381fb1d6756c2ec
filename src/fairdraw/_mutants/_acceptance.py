"""Faults of the acceptance test, for random, synthetic and greedy requests."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch
from torch import Tensor

from fairdraw._mutants._mutant import as_mutant
from fairdraw._oracles.rejection import DraftStep, RejectionOracle
from fairdraw.protocols import GREEDY_TEMPERATURE, ExplicitNoise, Noise, SpecDecodeBatch


def _distributions(step: DraftStep) -> tuple[float, float]:
    """Target and draft probability of the drafted token."""
    draft_prob = 1.0 if step.draft_probs is None else float(step.draft_probs[step.draft_token_id])
    return float(step.target_probs[step.draft_token_id]), draft_prob


def _ratio(step: DraftStep) -> float:
    """The float32 quotient; 0 where there is none."""
    target_prob, draft_prob = _distributions(step)
    if not (step.is_token and target_prob > 0 and draft_prob > 0):
        return 0.0
    with np.errstate(over="ignore"):
        return float(np.float32(target_prob) / np.float32(draft_prob))


@as_mutant("REJ402")
class AcceptsStrictlyAboveTheUniform(RejectionOracle):
    """`>` for `>=`: shows only where uniform and ratio are equal."""

    def accepts(self, step: DraftStep) -> bool:
        return super().accepts(step) and (step.synthetic_rate is not None or _ratio(step) > step.uniform)


@as_mutant("REJ402")
class RoundsUniformsToFloat32(RejectionOracle):
    """vLLM before 0.10.2: the threshold moves by half a float32 step, and one uniform in 2**24 is exactly 0."""

    def accepts(self, step: DraftStep) -> bool:
        return super().accepts(dataclasses.replace(step, uniform=float(np.float32(step.uniform))))


@as_mutant("REJ310", "REJ311", "REJ108")
class DividesDraftByTarget(RejectionOracle):
    """The ratio upside down: papers disagree on which distribution is called p."""

    def accepts(self, step: DraftStep) -> bool:
        if step.synthetic_rate is not None:
            return super().accepts(step)
        target_prob, draft_prob = _distributions(step)
        return step.is_token and draft_prob >= step.uniform * target_prob


@as_mutant("REJ309", "REJ422")
class AcceptsByTheTargetAlone(RejectionOracle):
    """The draft distribution is left out of the acceptance test: right for n-gram drafts, far too strict for others."""

    def accepts(self, step: DraftStep) -> bool:
        return super().accepts(dataclasses.replace(step, draft_probs=None))


@as_mutant("REJ402", "REJ401", "REJ421", "REJ422")
class TakesTheRootOfTheRatio(RejectionOracle):
    """A relaxed acceptance for speed, left on: more drafts pass, and the output follows neither distribution."""

    def accepts(self, step: DraftStep) -> bool:
        squared = step.uniform if step.synthetic_rate is not None else step.uniform**2
        return super().accepts(dataclasses.replace(step, uniform=squared))


@as_mutant("REJ321", "REJ322", "REJ323")
class AcceptsAgainstOneMinusTheUniform(RejectionOracle):
    """The distribution is right, for 1 - u is uniform too. The contract with the caller's noise is not."""

    def accepts(self, step: DraftStep) -> bool:
        return super().accepts(dataclasses.replace(step, uniform=1 - 2.0**-53 - step.uniform))


@as_mutant("REJ111")
class AcceptsTheImpossibleAtUniformZero(RejectionOracle):
    """`0 / draft >= 0` is true: a masked token gets through once in 2**24 draws of a float32 uniform."""

    def accepts(self, step: DraftStep) -> bool:
        at_zero = step.is_token and step.uniform == 0 and step.synthetic_rate is None
        return super().accepts(step) or (at_zero and _distributions(step)[1] > 0)


@as_mutant("REJ112")
class AcceptsWhatTheDrafterCannotDraw(RejectionOracle):
    """`target / 0` is infinite and passes every test; drafts and distributions of different requests go unnoticed."""

    def accepts(self, step: DraftStep) -> bool:
        return super().accepts(step) or (step.is_token and _distributions(step)[1] == 0 < _distributions(step)[0])


@as_mutant("REJ310", "REJ108", "REJ311", "REJ309")
class AcceptsBelowTheUniform(RejectionOracle):
    """The comparison is turned round: certain drafts are rejected, impossible ones accepted."""

    def accepts(self, step: DraftStep) -> bool:
        if step.synthetic_rate is not None:
            return super().accepts(step)
        return step.is_token and _ratio(step) < step.uniform


@as_mutant("REJ324")
class AcceptsByTheExponentials(RejectionOracle):
    """One buffer of noise for both purposes: the uniform is made of the race's first exponential."""

    def accepts(self, step: DraftStep) -> bool:
        return super().accepts(dataclasses.replace(step, uniform=-math.expm1(-float(step.exponentials[0]))))


@as_mutant("REJ314", "REJ315")
class AcceptsJointly(RejectionOracle):
    """All drafts or none, by the product of their ratios: block verification, half done."""

    def random_request(self, steps: list[DraftStep], bonus_token_id: int) -> list[int]:
        if steps and math.prod(min(1.0, _ratio(step)) for step in steps) < steps[0].uniform:
            return [self.recovered_token(steps[0])]
        return [*(step.draft_token_id for step in steps), bonus_token_id]


@as_mutant("REJ110", "REJ408")
class AcceptsPlaceholders(RejectionOracle):
    """A placeholder draft is taken for accepted, and -1 is emitted as a token."""

    def accepts(self, step: DraftStep) -> bool:
        return not step.is_token or super().accepts(step)


@as_mutant("REJ110", "REJ407")
class ReadsBeforeTheRowForPlaceholders(RejectionOracle):
    """vLLM before 0.25.0: `probs[row, -1]`, which is some other token's probability, decides on a placeholder draft."""

    def accepts(self, step: DraftStep) -> bool:
        read = step.draft_token_id % step.target_probs.size
        return super().accepts(dataclasses.replace(step, draft_token_id=read))


@as_mutant("REJ116")
class AcceptsNan(RejectionOracle):
    """`not (ratio < uniform)` is true for NaN: a row without a distribution accepts any draft."""

    def accepts(self, step: DraftStep) -> bool:
        return super().accepts(step) or (step.is_token and bool(np.isnan(step.target_probs).any()))


@as_mutant("REJ329", "REJ328")
class AcceptsAtTheSyntheticRate(RejectionOracle):
    """`<=` for `<`: rate 0 accepts at uniform 0."""

    def accepts(self, step: DraftStep) -> bool:
        at_rate = step.synthetic_rate is not None and step.uniform == float(step.synthetic_rate)
        return super().accepts(step) or at_rate


@as_mutant("REJ329", "REJ410", "REJ425")
class UsesTheFirstSyntheticRateEverywhere(RejectionOracle):
    """Rates are given per position, and read without one."""

    def steps(self, batch: SpecDecodeBatch, noise: ExplicitNoise) -> list[DraftStep]:
        steps = super().steps(batch, noise)
        return [dataclasses.replace(step, synthetic_rate=steps[0].synthetic_rate) for step in steps]


@as_mutant("REJ410", "REJ328", "REJ425")
class GreedyIgnoresSyntheticRates(RejectionOracle):
    """The synthetic mode was added to one of two kernels."""

    def greedy_request(self, steps: list[DraftStep], bonus_token_id: int) -> list[int]:
        return super().greedy_request([dataclasses.replace(s, synthetic_rate=None) for s in steps], bonus_token_id)


@as_mutant("REJ201", "REJ208", "REJ203")
class GreedyAcceptsByChance(RejectionOracle):
    """Greedy requests take the random path: fast, fluent, and another text at every run."""

    def greedy_request(self, steps: list[DraftStep], bonus_token_id: int) -> list[int]:
        return self.random_request(steps, bonus_token_id)


@as_mutant("REJ202", "REJ201")
class GreedyTakesTheHighestIdOnTies(RejectionOracle):
    """`>=` in the scan for the maximum; bfloat16 logits tie often."""

    def greedy_token(self, step: DraftStep) -> int:
        return step.target_logits.size - 1 - int(np.argmax(step.target_logits[::-1]))


@as_mutant("REJ205")
class GreedyTakesTheArgmaxOfProbabilities(RejectionOracle):
    """vLLM before 0.16.0: two logits whose probabilities round to the same number tie."""

    def greedy_token(self, step: DraftStep) -> int:
        return int(np.argmax(step.target_probs))


@as_mutant("REJ206", "REJ205")
class GreedyRoundsToBfloat16(RejectionOracle):
    """Logits pass through a buffer of half precision on their way to the argmax."""

    def greedy_token(self, step: DraftStep) -> int:
        return int(torch.from_numpy(step.target_logits).to(torch.bfloat16).argmax())


@as_mutant("REJ204")
class GreedyTakesTheArgmaxOfTheResidual(RejectionOracle):
    """Greedy recovery reuses the random path's weights: the draft distribution gets a vote."""

    def greedy_token(self, step: DraftStep) -> int:
        return int(np.argmax(step.target_logits if step.draft_probs is None else self.residual(step)))


@as_mutant("REJ209", "REJ210")
class GreedyPadsTheVocabularyWithAFiniteLogit(RejectionOracle):
    """Lanes beyond the vocabulary hold -2 for -inf: they win wherever every logit is lower."""

    def greedy_token(self, step: DraftStep) -> int:
        lanes = 1 << (step.target_logits.size - 1).bit_length()
        padding = np.full(lanes - step.target_logits.size, -2, np.float32)
        return int(np.argmax(np.concatenate([step.target_logits, padding])))


@as_mutant("REJ210")
class GreedyPadsTheTilesWithAFiniteLogit(RejectionOracle):
    """Three tiles are compared as four, and the fourth has -2 and no token: our own kernel with counter noise, once."""

    TILE = 4096
    NO_TOKEN = 2**31 - 1

    def greedy_token(self, step: DraftStep) -> int:
        num_tiles = -(-step.target_logits.size // self.TILE)
        is_padded = num_tiles & (num_tiles - 1) != 0
        return self.NO_TOKEN if is_padded and step.target_logits.max() < -2 else super().greedy_token(step)


@as_mutant("REJ207", "REJ303", "REJ301", "REJ423")
class OneGreedyRequestMakesAllGreedy(RejectionOracle):
    """The fast path asks `any` where it should ask `all`: a neighbour with temperature 0 takes the randomness away."""

    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        if bool(batch.is_greedy.any()):
            batch = batch.replace(temperature=torch.full_like(batch.temperature, GREEDY_TEMPERATURE))
        return super().verify(batch, noise)
