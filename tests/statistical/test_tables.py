"""Counting and pooling."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairdraw._core.seeds import derive_seed
from fairdraw.statistical._count_tables import NO_CELL, count_codes, joint_codes, merge_counts
from fairdraw.statistical._pooling import pool_cells


@given(st.lists(st.integers(-3, 12), min_size=1), st.integers(0, 20))
@settings(derandomize=True)
def test_counts_of_parts_add_up_to_the_counts_of_the_whole(codes: list[int], cut: int) -> None:
    whole = np.array(codes, dtype=np.int64)

    counts = count_codes(whole, 10)

    parts = [count_codes(part, 10) for part in (whole[:cut], whole[cut:])]
    np.testing.assert_array_equal(merge_counts(parts), counts)
    assert counts.sum() == len(codes)
    assert counts[-1] == sum(not 0 <= code < 10 for code in codes)


def test_joint_code_is_row_major() -> None:
    codes = joint_codes(np.array([0, 1, 2]), np.array([3, 0, 9]), sizes=(3, 4))

    assert codes.tolist() == [3, 4, NO_CELL]


@given(
    seed=st.integers(0, 9999),
    num_cells=st.integers(1, 3000),
    num_samples=st.integers(1, 10**6),
    rehash_seed=st.none() | st.integers(0, 9),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_every_pool_expects_enough_or_is_the_only_one(
    seed: int, num_cells: int, num_samples: int, rehash_seed: int | None
) -> None:
    distribution = np.random.default_rng(derive_seed(seed)).dirichlet(np.full(num_cells, 0.1))
    pooling = pool_cells(distribution, num_samples, tile_size=64, rehash_seed=rehash_seed)

    assert pooling.probs.sum() == pytest.approx(1)
    assert pooling.num_pools == 1 or pooling.probs.min() * num_samples >= 5
    for pool in range(pooling.num_pools):
        assert distribution[pooling.pool_of[:-1] == pool].sum() == pytest.approx(pooling.probs[pool])


def test_frequent_cells_stay_single() -> None:
    pooling = pool_cells([0.5, 0.001, 0.3, 0.001, 0.198], num_samples=1000, min_expected=25)

    assert [pooling.members(pool) for pool in range(pooling.num_pools)] == [([0], 1), ([2], 1), ([1, 3, 4], 3)]


def test_tail_is_pooled_by_octave_and_tile() -> None:
    """Two octaves, two tiles: four pools, none of which mixes."""
    distribution = np.concatenate([np.full(100, 1.0), np.full(100, 1.0), np.full(100, 0.4), np.full(100, 0.4)])
    distribution /= distribution.sum()
    pooling = pool_cells(distribution, num_samples=1000, min_expected=100, tile_size=100)

    assert [pooling.pool_of[cell] for cell in (0, 150, 250, 350)] == [0, 1, 2, 3]
    assert len(set(pooling.pool_of[:100])) == 1


def test_rehashing_pools_other_tokens_together() -> None:
    distribution = np.full(1000, 1e-3)

    pools = [pool_cells(distribution, 1000, tile_size=50, rehash_seed=seed).pool_of for seed in (None, 1, 2)]

    assert not np.array_equal(pools[0], pools[1])
    assert not np.array_equal(pools[1], pools[2])


def test_impossible_observations_are_counted_apart() -> None:
    pooling = pool_cells([0.5, 0.0, 0.5], num_samples=1000)

    pooled, num_impossible = pooling.pool(count_codes(np.array([0, 1, 1, 2, 7, -1]), 3))

    assert pooled.sum() == 2
    assert num_impossible == 4


def test_cell_that_rounding_leaves_possible_is_no_failure() -> None:
    pooling = pool_cells([0.5, 0.0, 0.5], num_samples=1000, possible=np.array([True, True, True]))

    pooled, num_impossible = pooling.pool(count_codes(np.array([0, 1, 2]), 3))

    assert pooled.sum() == 3
    assert num_impossible == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: count_codes(np.array([0]), 0), r"num_cells=0, but it must lie in \[1, "),
        (lambda: merge_counts([]), r"shapes=\[\], but all tables must have the same cells"),
        (lambda: merge_counts([np.zeros(2, int), np.zeros(3, int)]), "all tables must have the same cells"),
        (lambda: pool_cells([0.5, 0.6], 100), "sums to 1.1, but it must sum to 1"),
        (lambda: pool_cells([0.5, 0.5], 0), "num_samples=0, but it must be at least 1"),
        (lambda: pool_cells([0.5, 0.5], 100).pool(np.zeros(2, int)), r"it must be \[3\]"),
    ],
    ids=["no cells", "no tables", "other cells", "no distribution", "no plan", "other pooling"],
)
def test_table_that_is_none_is_refused(call, message: str) -> None:  # type: ignore[no-untyped-def]  # a lambda
    with pytest.raises(ValueError, match=message):
        call()
