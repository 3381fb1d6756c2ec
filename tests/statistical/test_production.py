"""S9 at vocabularies that no table could list."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from fairdraw._core.seeds import derive_seed
from fairdraw._mutants._distribution_sampler import DistributionSampler, Floats, right_distribution
from fairdraw.statistical._decision import weigh
from fairdraw.statistical._design import plan_tables
from fairdraw.statistical._production import DistributionPool, ProductionExperiment

VOCAB_SIZE, NUM_CALLS = 1025, 200
RANK, ID = "S9 emitted token by rank", "S9 emitted token by id"
ACCEPTANCE, RECOVERED, RECOVERED_ID = "S9 acceptance", "S9 recovered token by rank", "S9 recovered token by id"


@functools.cache
def pool() -> DistributionPool:
    return DistributionPool.build(VOCAB_SIZE, num_distributions=12, seed=0)


def evidence(sampler: type[DistributionSampler]) -> dict[str, float]:
    """log E of each table; infinite if it has impossible tokens."""
    experiment = ProductionExperiment(pool())
    tables = experiment.tables(NUM_CALLS)
    counts = experiment.count(right_distribution(sampler), NUM_CALLS, derive_seed("production test"))
    found = {}
    for name, plan in plan_tables(tables, 1, 1e-6).items():
        table = weigh(name, counts[name], plan, tables[name])
        found[name] = np.inf if table.num_impossible else table.log_e_value
    return found


class TemperatureOffByTenPercent(DistributionSampler):
    """Divides the logits by 1.1."""

    def target(self, batch) -> Floats:  # type: ignore[no-untyped-def]  # as the base class
        return np.asarray((batch.target_logits / 1.1).softmax(dim=-1).numpy())


class LosesItsTail(DistributionSampler):
    """Tokens below 1 / (6 * vocab_size) are flushed to zero: some percent of the mass, more in flat distributions."""

    def target(self, batch) -> Floats:  # type: ignore[no-untyped-def]  # as the base class
        probs = super().target(batch)
        return np.where(probs < 1 / (6 * VOCAB_SIZE), np.float32(0), probs)


class AcceptsHalf(DistributionSampler):
    """Half of what should be accepted is rejected."""

    def acceptance(self, target: Floats, draft: Floats) -> Floats:
        return np.float32(0.5) * target / draft


class ReadsTheRowBefore(DistributionSampler):
    """An offset by one, in the recovery alone."""

    def offset(self, rows):  # type: ignore[no-untyped-def]  # as the base class
        return np.maximum(rows - 1, 0)


class LosesItsLastTile(DistributionSampler):
    """The last 64 tokens are never recovered."""

    def residual(self, target: Floats, draft: Floats) -> Floats:
        weights = super().residual(target, draft)
        weights[:, 961:] = 0
        return weights


@pytest.mark.parametrize(
    ("sampler", "seen", "unseen"),
    [
        (DistributionSampler, [], [RANK, ID, ACCEPTANCE, RECOVERED, RECOVERED_ID]),
        (TemperatureOffByTenPercent, [RANK], [ID]),
        (LosesItsTail, [RANK], [ID]),
        (LosesItsLastTile, [RECOVERED_ID], [ACCEPTANCE]),
        (AcceptsHalf, [ACCEPTANCE], []),
        (ReadsTheRowBefore, [RANK, RECOVERED], [ACCEPTANCE]),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_fault_at_a_production_vocabulary_is_caught(
    sampler: type[DistributionSampler], seen: list[str], unseen: list[str]
) -> None:
    found = evidence(sampler)
    assert all(found[name] > np.log(5e6) for name in seen), found
    assert all(found[name] < np.log(1e3) for name in unseen), found


def test_events_occur_as_often_as_planned() -> None:
    experiment = ProductionExperiment(pool())
    counts = experiment.count(right_distribution(DistributionSampler), 100, seed=2)
    for name, table in experiment.tables(100).items():
        assert counts[name].sum() == pytest.approx(table.event_prob * table.num_draws, rel=0.1)
        assert counts[name].sum() > 0.9 * table.observed_per_draw * table.num_draws


def test_drafts_are_drawn_from_the_distribution_of_their_row() -> None:
    rng = np.random.default_rng(2)
    distribution_ids, uniforms = rng.integers(0, 12, 300), rng.random(300)
    cumulative = np.cumsum(pool().draft, axis=1)[distribution_ids]
    expected = (cumulative / cumulative[:, -1:] <= uniforms[:, None]).sum(axis=1)
    assert pool().draw_drafts(distribution_ids, uniforms).tolist() == expected.tolist()


def test_nothing_to_draw_is_refused() -> None:
    with pytest.raises(ValueError, match="num_calls=0, but it must be at least 1"):
        ProductionExperiment(pool()).count(right_distribution(DistributionSampler), 0, seed=0)
    with pytest.raises(ValueError, match="batch_size=6, but it must be a multiple of 4"):
        ProductionExperiment(pool(), batch_size=6)
