"""The statistics of the rejection contract on samplers whose faults are known.

The samplers are vectorised NumPy, so that 100 000 rows cost half a second; each mutant differs from the right one in
the method that it overrides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import kstest

from fairdraw._core.seeds import derive_seed
from fairdraw.protocols import PLACEHOLDER_TOKEN_ID, SpecDecodeBatch
from fairdraw.statistical._configurations import (
    AGREEING,
    CONFIGURATIONS,
    DISAGREEING,
    ONE_HOT,
    RAGGED,
    Configuration,
    Drafter,
)
from fairdraw.statistical._decision import TableEvidence, Verdict, weigh
from fairdraw.statistical._design import SamplePlan
from fairdraw.statistical._distributions import softmax_probs
from fairdraw.statistical._experiment import Experiment
from fairdraw.statistical._outcomes import Verification

if TYPE_CHECKING:
    from fairdraw.statistical._watching import Draw

Floats = NDArray[np.float64]
Tokens = NDArray[np.int32]

BATCH_SIZE, NUM_CALLS = 2048, 50


@dataclass(frozen=True)
class Noise:
    uniforms: Floats  # [batch_size, max_spec_len] float64
    exponentials: Floats  # [batch_size, vocab_size] float64


class RightSampler:
    """Token verification; one row of exponentials per request, as vLLM has it."""

    def __call__(self, batch: SpecDecodeBatch, seed: int) -> Tokens:
        noise = self.noise(batch, np.random.default_rng(seed))
        row_of = np.full((batch.batch_size, batch.max_spec_len), -1)
        row_of[np.arange(batch.max_spec_len) < np.array(batch.num_draft_tokens)[:, None]] = np.arange(batch.num_tokens)
        target = softmax_probs(batch.target_logits.numpy())[row_of]
        drafts = batch.draft_token_ids.numpy()[row_of]
        draft = np.eye(batch.vocab_size)[drafts] if batch.draft_probs is None else batch.draft_probs.numpy()[row_of]
        return self.verify(batch, target, draft.astype(np.float64), np.where(row_of < 0, -1, drafts), noise)

    def noise(self, batch: SpecDecodeBatch, rng: np.random.Generator) -> Noise:
        shape = batch.batch_size, batch.max_spec_len
        return Noise(rng.random(shape), rng.exponential(size=(batch.batch_size, batch.vocab_size)))

    def verify(self, batch: SpecDecodeBatch, target: Floats, draft: Floats, drafts: Tokens, noise: Noise) -> Tokens:
        ids = np.maximum(drafts, 0)[..., None]
        own_target = np.take_along_axis(target, ids, axis=-1)[..., 0]
        own_draft = np.take_along_axis(draft, ids, axis=-1)[..., 0]
        accepted = (drafts >= 0) & (noise.uniforms < self.acceptance(own_target, own_draft))
        num_accepted = np.cumprod(accepted, axis=1).sum(axis=1)
        recovered = self.recover(self.residual(target, draft), noise).astype(np.int32)
        return self.rows(batch, drafts, num_accepted, recovered, self.bonus(batch, target, noise))

    def rows(
        self, batch: SpecDecodeBatch, drafts: Tokens, num: NDArray[np.int64], last: Tokens, bonus: Tokens
    ) -> Tokens:
        tokens = np.full((batch.batch_size, batch.max_spec_len + 1), PLACEHOLDER_TOKEN_ID, dtype=np.int32)
        kept = np.arange(batch.max_spec_len) < num[:, None]
        tokens[:, :-1][kept] = drafts[kept]
        all_rows, full = np.arange(batch.batch_size), num == np.array(batch.num_draft_tokens)
        tokens[all_rows, num] = np.where(full, bonus, np.pad(last, ((0, 0), (0, 1)))[all_rows, num])
        return tokens

    def acceptance(self, target: Floats, draft: Floats) -> Floats:
        return np.minimum(1, target / draft)

    def residual(self, target: Floats, draft: Floats) -> Floats:
        return np.where(draft == 1, np.where(draft > 0, 0, target), np.maximum(target - draft, 0))

    def recover(self, weights: Floats, noise: Noise) -> NDArray[np.int64]:
        return np.argmax(weights / noise.exponentials[:, None], axis=-1)

    def bonus(self, batch: SpecDecodeBatch, target: Floats, noise: Noise) -> Tokens:
        return batch.bonus_token_ids.numpy()[:, 0]


class OneUniformPerRow(RightSampler):
    def noise(self, batch: SpecDecodeBatch, rng: np.random.Generator) -> Noise:
        noise = super().noise(batch, rng)
        return Noise(np.repeat(noise.uniforms[:, :1], batch.max_spec_len, axis=1), noise.exponentials)


class RecoversFromTarget(RightSampler):
    def residual(self, target: Floats, draft: Floats) -> Floats:
        return target


class ForgetsToNormalise(RightSampler):
    """Inverse CDF over the residual as it is: what is missing to 1 goes to the last token."""

    def recover(self, weights: Floats, noise: Noise) -> NDArray[np.int64]:
        uniforms = np.exp(-noise.exponentials[:, :1])
        cumulative = np.cumsum(weights, axis=-1)
        return np.minimum((uniforms[..., None] >= cumulative).sum(axis=-1), weights.shape[-1] - 1)


class ReusesItsUniform(RightSampler):
    """Inverse CDF with the very uniform that rejected the draft."""

    def recover(self, weights: Floats, noise: Noise) -> NDArray[np.int64]:
        cumulative = np.cumsum(weights, axis=-1) / weights.sum(axis=-1, keepdims=True)
        return np.minimum((noise.uniforms[..., None] >= cumulative).sum(axis=-1), weights.shape[-1] - 1)


class AcceptsWithSquareRoot(RightSampler):
    def acceptance(self, target: Floats, draft: Floats) -> Floats:
        return np.sqrt(np.minimum(1, target / draft))


class IgnoresDraftProbs(RightSampler):
    """Accepts as if drafts were one-hot and recovers accordingly: fair to the reader, and slow."""

    def verify(self, batch: SpecDecodeBatch, target: Floats, draft: Floats, drafts: Tokens, noise: Noise) -> Tokens:
        return super().verify(batch, target, np.eye(batch.vocab_size)[drafts], drafts, noise)


class BonusFromThePositionBefore(RightSampler):
    def bonus(self, batch: SpecDecodeBatch, target: Floats, noise: Noise) -> Tokens:
        return np.argmax(target[:, -1] / noise.exponentials, axis=-1).astype(np.int32)


class BonusOfTheNextRequest(RightSampler):
    def bonus(self, batch: SpecDecodeBatch, target: Floats, noise: Noise) -> Tokens:
        return np.roll(batch.bonus_token_ids.numpy()[:, 0], -1)


class AllRowsShareExponentials(RightSampler):
    def noise(self, batch: SpecDecodeBatch, rng: np.random.Generator) -> Noise:
        noise = super().noise(batch, rng)
        return Noise(noise.uniforms, np.broadcast_to(noise.exponentials[:1], noise.exponentials.shape))


class NeighboursShareExponentials(RightSampler):
    def noise(self, batch: SpecDecodeBatch, rng: np.random.Generator) -> Noise:
        noise = super().noise(batch, rng)
        return Noise(noise.uniforms, noise.exponentials[np.arange(batch.batch_size) // 2])


class NeighboursShareUniforms(RightSampler):
    def noise(self, batch: SpecDecodeBatch, rng: np.random.Generator) -> Noise:
        noise = super().noise(batch, rng)
        return Noise(noise.uniforms[np.arange(batch.batch_size) // 2], noise.exponentials)


class EveryOtherCallRepeatsItsNoise(RightSampler):
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, batch: SpecDecodeBatch, seed: int) -> Tokens:
        self.calls += 1
        return super().__call__(batch, derive_seed((self.calls - 1) // 2))


class EightBitUniforms(RightSampler):
    def noise(self, batch: SpecDecodeBatch, rng: np.random.Generator) -> Noise:
        noise = super().noise(batch, rng)
        return Noise(np.floor(noise.uniforms * 256) / 256, noise.exponentials)


class DrawsLikeItsDrafter(RightSampler):
    """The exponentials of recovery are those that `gumbel_drafter` drew the (last) draft with."""

    def noise(self, batch: SpecDecodeBatch, rng: np.random.Generator) -> Noise:
        noise = super().noise(batch, rng)
        return Noise(noise.uniforms, self.shared[self.position :: batch.max_spec_len])

    def __init__(self, position: int) -> None:
        self.position = position

    def drafter(self, distributions: Floats, seed: int) -> Tokens:
        self.shared = np.random.default_rng(derive_seed("drafter", seed)).exponential(size=distributions.shape)
        return np.argmax(distributions / self.shared, axis=1).astype(np.int32)


class BonusLikeItsDrafter(DrawsLikeItsDrafter):
    def recover(self, weights: Floats, noise: Noise) -> NDArray[np.int64]:
        own = np.random.default_rng(derive_seed(noise.uniforms[0, 0])).exponential(size=weights.shape)
        return np.argmax(weights / own, axis=-1)

    def bonus(self, batch: SpecDecodeBatch, target: Floats, noise: Noise) -> Tokens:
        bonus_distribution = DISAGREEING.requests[0].exact_target_probs()[-1] if self.position == 0 else target[:, -1]
        return np.argmax(bonus_distribution / noise.exponentials, axis=-1).astype(np.int32)


class ExactMatchSampler(RightSampler):
    """Right, and odd: draws from the target and accepts drafts that happen to be the same."""

    def verify(self, batch: SpecDecodeBatch, target: Floats, draft: Floats, drafts: Tokens, noise: Noise) -> Tokens:
        own = np.random.default_rng(derive_seed(noise.uniforms[0, 0])).exponential(size=target.shape)
        drawn = np.argmax(target / own, axis=-1).astype(np.int32)
        num = np.cumprod(drawn == drafts, axis=1).sum(axis=1)
        return self.rows(batch, drafts, num, drawn, self.bonus(batch, target, noise))


class SinglePrecisionUniforms(RightSampler):
    def noise(self, batch: SpecDecodeBatch, rng: np.random.Generator) -> Noise:
        noise = super().noise(batch, rng)
        return Noise(rng.random(noise.uniforms.shape, dtype=np.float32).astype(np.float64), noise.exponentials)


class InverseCdfSampler(RightSampler):
    """Right, and odd: no exponential race."""

    def recover(self, weights: Floats, noise: Noise) -> NDArray[np.int64]:
        uniforms = np.exp(-noise.exponentials[:, 0])[:, None, None]
        cumulative = np.cumsum(weights, axis=-1)
        return (uniforms * cumulative[..., -1:] >= cumulative).sum(axis=-1)


class BlockSampler(RightSampler):
    """Right: block verification of two drafts."""

    def verify(self, batch: SpecDecodeBatch, target: Floats, draft: Floats, drafts: Tokens, noise: Noise) -> Tokens:
        rows = np.arange(batch.batch_size)
        ratios = [np.ones(batch.batch_size)]
        for i in range(batch.max_spec_len):
            ratios.append(np.minimum(1, ratios[-1] * target[rows, i, drafts[:, i]] / draft[rows, i, drafts[:, i]]))
        excess = np.maximum(self.scale(ratios) * target - draft, 0)
        spare = excess.sum(axis=-1)
        passes = np.stack([spare[:, 1] / (spare[:, 1] + 1 - ratios[1]), ratios[2]], axis=1)
        passed = noise.uniforms < passes
        num = np.where(passed[:, 1], 2, np.where(passed[:, 0], 1, 0))
        with np.errstate(invalid="ignore"):
            recovered = np.argmax(excess / noise.exponentials[:, None], axis=-1).astype(np.int32)
        return self.rows(batch, drafts, num, recovered, self.bonus(batch, target, noise))

    def scale(self, ratios: list[Floats]) -> Floats:
        return np.stack(ratios[:-1], axis=1)[..., None]


class BlockSamplerWithTokenResidual(BlockSampler):
    def verify(self, batch: SpecDecodeBatch, target: Floats, draft: Floats, drafts: Tokens, noise: Noise) -> Tokens:
        right = super().verify(batch, target, draft, drafts, noise)
        num = (right != PLACEHOLDER_TOKEN_ID).sum(axis=1) - 1
        recovered = self.recover(self.residual(target, draft), noise).astype(np.int32)
        return self.rows(batch, drafts, num, recovered, self.bonus(batch, target, noise))


def evidence(
    sampler: Draw,
    configuration: Configuration = DISAGREEING,
    *,
    verification: Verification = Verification.TOKEN,
    drafter: Drafter | None = None,
) -> dict[str, TableEvidence]:
    """What every table shows after 102 400 rows."""
    experiment = Experiment(configuration, verification, BATCH_SIZE, drafter=drafter)
    plans = experiment.plan(discrepancy=0.05, false_fail_rate=1e-4, max_num_draws=10**8)
    counts = experiment.count(experiment.draw(sampler, NUM_CALLS, derive_seed("evidence")))
    return {name: weigh(name, counts[name], plan) for name, plan in plans.items() if isinstance(plan, SamplePlan)}


def least_p(tables: dict[str, TableEvidence], code: str) -> float:
    """Smallest p-value of a statistic's tables, Bonferroni-corrected; 0 if there were impossible observations."""
    found = [table for name, table in tables.items() if name.startswith(code)]
    if any(table.num_impossible for table in found):
        return 0.0
    return min(1.0, len(found) * min(table.p_value for table in found))


RIGHT: dict[str, tuple[RightSampler, Configuration, Verification]] = {
    **{f"token, {c.name}": (RightSampler(), c, Verification.TOKEN) for c in CONFIGURATIONS},
    "block": (BlockSampler(), DISAGREEING, Verification.BLOCK),
    "exact match": (ExactMatchSampler(), DISAGREEING, Verification.EXACT_MATCH),
    "float32 uniforms": (SinglePrecisionUniforms(), DISAGREEING, Verification.TOKEN),
    "inverse CDF": (InverseCdfSampler(), DISAGREEING, Verification.TOKEN),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_sampler_passes_however_odd(name: str) -> None:
    sampler, configuration, verification = RIGHT[name]
    experiment = Experiment(configuration, verification, BATCH_SIZE)
    plans = experiment.plan(discrepancy=0.04, false_fail_rate=1e-6, max_num_draws=10**6)

    decision = experiment.run(sampler, plans, false_fail_rate=1e-6, seed=3)

    assert decision.verdict is Verdict.PASS, decision


def test_p_values_of_an_honest_sampler_are_uniform() -> None:
    """150 samples of 4096 rows; for every statistic a Kolmogorov-Smirnov test at 1e-3. No e-value reaches 10 000."""
    experiment = Experiment(DISAGREEING, batch_size=BATCH_SIZE)
    plans = experiment.plan(discrepancy=0.15, false_fail_rate=1e-4, max_num_draws=10**8)
    p_values: dict[str, list[float]] = {name: [] for name in plans}
    for seed in range(150):
        counts = experiment.count(experiment.draw(RightSampler(), 2, derive_seed("null", seed)))
        for name, plan in plans.items():
            assert isinstance(plan, SamplePlan)
            table = weigh(name, counts[name], plan)
            p_values[name].append(table.p_value)
            assert table.num_impossible == 0
            assert table.log_e_value < np.log(1e4)

    uniformity = {name: kstest(values, "uniform").pvalue for name, values in p_values.items()}
    assert len(uniformity) == 15
    assert min(uniformity.values()) > 1e-3, uniformity


# Which statistics see a fault at 100 000 rows, and which do not: the table of the documentation.
SEEN, UNSEEN = 1e-12, 1e-4
MUTANTS: dict[str, tuple[RightSampler, dict[str, bool]]] = {
    "one uniform per row": (OneUniformPerRow(), {"S1": True, "S2": True, "S4": True, "S6": False}),
    "recover from target": (RecoversFromTarget(), {"S1": True, "S2": True, "S3": True, "S4": False}),
    "not normalised": (ForgetsToNormalise(), {"S1": True, "S2": True, "S3": True, "S4": False}),
    "reused uniform": (ReusesItsUniform(), {"S1": True, "S2": True, "S3": True, "S4": False}),
    "accept with sqrt": (AcceptsWithSquareRoot(), {"S1": True, "S2": True, "S3": True, "S4": True, "S6": True}),
    "draft_probs ignored": (IgnoresDraftProbs(), {"S1": True, "S2": False, "S4": True, "S6": False}),
    "bonus one position early": (
        BonusFromThePositionBefore(),
        {"S1": True, "S2": True, "S3": False, "S4": False, "S5": True, "S6": False},
    ),
    "all rows share exponentials": (AllRowsShareExponentials(), {"S4": False, "S6": True}),
    "neighbours share exponentials": (
        NeighboursShareExponentials(),
        {"S1": False, "S2": False, "S3": False, "S4": False, "S6": True, "S7": False},
    ),
    "neighbours share uniforms": (NeighboursShareUniforms(), {"S1": False, "S2": False, "S6": True, "S7": False}),
    "calls repeat their noise": (EveryOtherCallRepeatsItsNoise(), {"S2": False, "S6": False, "S7": True}),
    "8-bit uniforms": (EightBitUniforms(), {"S2": False, "S6": False, "S7": False}),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_fault_is_caught_by_the_statistics_made_for_it(name: str) -> None:
    sampler, expected = MUTANTS[name]
    tables = evidence(sampler)

    p_values = {code: least_p(tables, code) for code in expected}

    for code, seen in expected.items():
        assert p_values[code] < SEEN if seen else p_values[code] > UNSEEN, p_values


@pytest.mark.parametrize("position", [0, 1])
def test_recovery_that_shares_noise_with_its_drafter_is_caught(position: int) -> None:
    sampler = DrawsLikeItsDrafter(position)
    tables = evidence(sampler, drafter=sampler.drafter)

    p_values = {code: least_p(tables, code) for code in ("S1", "S2", "S3", "S4", "S8")}

    assert max(p_values[code] for code in ("S1", "S2", "S3", "S8")) < 1e-12, p_values
    assert p_values["S4"] > UNSEEN


def test_bonus_that_shares_noise_with_its_drafter_is_caught_where_target_and_draft_agree() -> None:
    """Every marginal is right: only the joint distribution shows it."""
    sampler = BonusLikeItsDrafter(1)

    tables = evidence(sampler, AGREEING, drafter=sampler.drafter)

    assert least_p(tables, "S5") < 1e-300
    assert least_p(tables, "S1") < 1e-300


def test_bonus_of_the_next_request_is_caught_in_ragged_batches_only() -> None:
    sampler = BonusOfTheNextRequest()

    assert least_p(evidence(sampler, RAGGED), "S1") == 0
    assert least_p(evidence(sampler, DISAGREEING), "S") > UNSEEN


def test_token_residual_in_block_verification_is_caught() -> None:
    tables = evidence(BlockSamplerWithTokenResidual(), verification=Verification.BLOCK)

    assert least_p(tables, "S1") < SEEN
    assert least_p(tables, "S2") < SEEN
    assert least_p(tables, "S4 accepted") > UNSEEN


def test_one_hot_sampler_that_recovers_the_rejected_draft_is_caught() -> None:
    assert least_p(evidence(RecoversFromTarget(), ONE_HOT), "S3") == 0


def test_sampler_of_another_verification_than_declared_is_caught() -> None:
    tables = evidence(ExactMatchSampler(), verification=Verification.TOKEN)

    assert least_p(tables, "S4") == 0
    assert least_p(tables, "S2") > UNSEEN
