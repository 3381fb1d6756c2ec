"""S9 at vocabularies that no table could list."""

import functools

import numpy as np
import pytest

from fairdraw._core.seeds import derive_seed
from fairdraw._mutants._distribution_sampler import DistributionSampler, right_distribution
from fairdraw.statistical._decision import weigh
from fairdraw.statistical._design import plan_tables
from fairdraw.statistical._production import DistributionPool, ProductionExperiment

VOCAB_SIZE, NUM_CALLS = 1025, 200


@functools.cache
def pool() -> DistributionPool:
    return DistributionPool.build(VOCAB_SIZE, num_distributions=12, seed=0)


def test_right_sampler_is_not_accused_by_any_table() -> None:
    """The mutants that DIST401 to DIST404 catch, and by which table, are in `_mutants/distributions.py`."""
    experiment = ProductionExperiment(pool())
    tables = experiment.tables(NUM_CALLS)
    counts = experiment.count(right_distribution(DistributionSampler), NUM_CALLS, derive_seed("production test"))
    found = {n: weigh(n, counts[n], plan, tables[n]) for n, plan in plan_tables(tables, 1, 1e-6).items()}
    assert len(found) >= 5
    assert all(table.num_impossible == 0 and table.log_e_value < np.log(1e3) for table in found.values())


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
