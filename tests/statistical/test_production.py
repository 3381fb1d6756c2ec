"""S9 at vocabularies that no table could list."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray

from fairdraw._core.seeds import derive_seed
from fairdraw.protocols import PLACEHOLDER_TOKEN_ID
from fairdraw.statistical._decision import Verdict, weigh
from fairdraw.statistical._design import SamplePlan
from fairdraw.statistical._outcomes import Verification
from fairdraw.statistical._pit import Order, randomised_pit
from fairdraw.statistical._production import DistributionPool, ProductionExperiment

if TYPE_CHECKING:
    from fairdraw.protocols import SpecDecodeBatch

Tokens = NDArray[np.int32]
Floats = NDArray[np.float32]

VOCAB_SIZE = 1025


@functools.cache
def pool() -> DistributionPool:
    return DistributionPool.build(VOCAB_SIZE, num_distributions=12, seed=0)


class RightSampler:
    """float32 throughout, as samplers are; one row of exponentials per request."""

    def __call__(self, batch: SpecDecodeBatch, seed: int) -> Tokens:
        rng = np.random.default_rng(seed)
        target, draft = self.target(batch), batch.draft_probs.numpy()  # type: ignore[union-attr]  # dense drafts
        drafts = batch.draft_token_ids.numpy()
        all_rows = np.arange(batch.num_tokens)
        accepted = rng.random(batch.num_tokens) < self.acceptance(target[all_rows, drafts], draft[all_rows, drafts])
        exponentials = rng.exponential(size=(batch.batch_size, batch.vocab_size)).astype(np.float32)
        tokens = np.full((batch.batch_size, batch.max_spec_len + 1), PLACEHOLDER_TOKEN_ID, dtype=np.int32)
        for request in range(batch.batch_size):
            rows = batch.token_slice(request)
            num_accepted = int(np.cumprod(accepted[rows]).sum())
            tokens[request, :num_accepted] = drafts[rows][:num_accepted]
            if num_accepted == batch.num_draft_tokens[request]:
                tokens[request, num_accepted] = batch.bonus_token_ids[request, 0]
            else:
                row = self.row(rows.start + num_accepted)
                weights = self.residual(target[row], draft[row])
                tokens[request, num_accepted] = np.argmax(weights / exponentials[request])
        return tokens

    def target(self, batch: SpecDecodeBatch) -> Floats:
        return batch.target_probs().numpy()

    def acceptance(self, target: Floats, draft: Floats) -> Floats:
        return target / draft

    def residual(self, target: Floats, draft: Floats) -> Floats:
        return np.maximum(target - draft, 0)

    def row(self, index: int) -> int:
        return index


class TemperatureOffByTenPercent(RightSampler):
    def target(self, batch: SpecDecodeBatch) -> Floats:
        return (batch.target_logits / 1.1).softmax(dim=-1).numpy()


class LosesItsTail(RightSampler):
    """Tokens below 1 / (6 * vocab_size) are flushed to zero: some percent of the mass, more in wide distributions."""

    def target(self, batch: SpecDecodeBatch) -> Floats:
        probs = super().target(batch)
        return np.where(probs < 1 / (6 * VOCAB_SIZE), 0, probs)


class LosesItsLastTile(RightSampler):
    """The last 64 tokens are never recovered."""

    def residual(self, target: Floats, draft: Floats) -> Floats:
        weights = super().residual(target, draft).copy()
        weights[961:] = 0
        return weights


class IgnoresDraftProbs(RightSampler):
    """Fair to the reader; accepts half as often."""

    def acceptance(self, target: Floats, draft: Floats) -> Floats:
        return 0.5 * super().acceptance(target, draft)


class ReadsTheRowBefore(RightSampler):
    def row(self, index: int) -> int:
        return max(index - 1, 0)


def evidence(sampler: RightSampler, num_calls: int = 200) -> dict[str, float]:
    """log E of each table; infinite if it holds impossible tokens."""
    experiment = ProductionExperiment(pool(), batch_size=64)
    plans = experiment.plan(discrepancy=0.1, false_fail_rate=1e-6, max_num_draws=10**6)
    counts = experiment.count(sampler, num_calls, derive_seed("production test"))
    found = {}
    for name, plan in plans.items():
        assert isinstance(plan, SamplePlan)
        table = weigh(name, counts[name], plan)
        found[name] = np.inf if table.num_impossible else table.log_e_value
    return found


RANK, ID = "S9 emitted token by rank", "S9 emitted token by id"
ACCEPTANCE, RECOVERED, RECOVERED_ID = "S9 acceptance", "S9 recovered token by rank", "S9 recovered token by id"


def test_look_up_equals_the_transform() -> None:
    target = pool().target
    rng = np.random.default_rng(1)
    distribution_ids, tokens, uniforms = (
        rng.integers(0, 12, 500),
        rng.integers(-1, VOCAB_SIZE + 1, 500),
        rng.random(500),
    )

    for order in Order:
        looked_up = pool().emitted[order].transform(distribution_ids, tokens.astype(np.int32), uniforms)
        np.testing.assert_allclose(
            looked_up, randomised_pit(target[distribution_ids], tokens, uniforms, order), atol=1e-12
        )


def test_right_sampler_passes() -> None:
    experiment = ProductionExperiment(pool(), batch_size=64)
    plans = experiment.plan(discrepancy=0.08, false_fail_rate=1e-6, max_num_draws=10**6)

    decision = experiment.run(RightSampler(), plans, false_fail_rate=1e-6, seed=1)

    assert decision.verdict is Verdict.PASS, decision


def test_events_occur_as_often_as_planned() -> None:
    experiment = ProductionExperiment(pool(), batch_size=64)

    counts = experiment.count(RightSampler(), 100, seed=2)

    for name, event_prob in experiment.event_probs().items():
        assert counts[name].sum() == pytest.approx(event_prob * 100 * 144, rel=0.1)


@pytest.mark.parametrize(
    ("sampler", "seen", "unseen"),
    [
        (RightSampler(), [], [RANK, ID, ACCEPTANCE, RECOVERED]),
        (TemperatureOffByTenPercent(), [RANK], [ID]),
        (LosesItsTail(), [RANK], [ID]),
        (LosesItsLastTile(), [RECOVERED_ID], [ACCEPTANCE]),
        (IgnoresDraftProbs(), [ACCEPTANCE], []),
        (ReadsTheRowBefore(), [RANK, RECOVERED], [ACCEPTANCE]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, RightSampler) else "",
)
def test_fault_at_a_production_vocabulary_is_caught(sampler: RightSampler, seen: list[str], unseen: list[str]) -> None:
    found = evidence(sampler)

    assert all(found[name] > np.log(5e6) for name in seen), found
    assert all(found[name] < np.log(1e3) for name in unseen), found


def test_other_verifiers_are_asked_for_losslessness_only() -> None:
    experiment = ProductionExperiment(pool(), verification=Verification.BLOCK)

    assert list(experiment.event_probs()) == [RANK, ID]
    assert list(experiment.count(RightSampler(), 1, seed=0)) == [RANK, ID]


def test_count_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="num_calls=0, but it must be at least 1"):
        ProductionExperiment(pool()).count(RightSampler(), 0, seed=0)


def test_batch_that_breaks_the_cycle_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size=6, but it must be a multiple of 4"):
        ProductionExperiment(pool(), batch_size=6)
