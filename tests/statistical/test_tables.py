"""Counting and pooling."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairdraw._core.seeds import derive_seed
from fairdraw.statistical._count_tables import NO_CELL, count_codes, digit_label, joint_codes, sum_counts
from fairdraw.statistical._pooling import MIN_EXPECTED, TILE_SIZE, pool_cells


@given(st.lists(st.integers(-3, 12), min_size=1), st.integers(0, 20))
def test_counts_of_parts_add_up_to_the_counts_of_the_whole(codes: list[int], cut: int) -> None:
    whole = np.array(codes, dtype=np.int64)
    counts = count_codes(whole, 10)
    parts = [{"a": count_codes(part, 10)} for part in (whole[:cut], whole[cut:])]
    np.testing.assert_array_equal(sum_counts(parts)["a"], counts)
    assert counts.sum() == len(codes)
    assert counts[-1] == sum(not 0 <= code < 10 for code in codes)


def test_joint_code_is_row_major() -> None:
    codes = joint_codes(np.array([0, 1, 2]), np.array([3, 0, 9]), sizes=(3, 4))
    assert codes.tolist() == [3, 4, NO_CELL]


def test_cell_is_named_by_its_digits() -> None:
    assert digit_label((5, 5), ("rejected", "recovered"))(2 * 5 + 4) == "(rejected 2, recovered 4)"
    assert digit_label((5, 5), placeholder=4)(2 * 5 + 4) == "(2, -1)"


@given(seed=st.integers(0, 9999), num_cells=st.integers(1, 3000), num_samples=st.integers(1, 10**6))
@settings(max_examples=100)
def test_every_pool_expects_enough_or_is_the_only_one(seed: int, num_cells: int, num_samples: int) -> None:
    probs = np.random.default_rng(derive_seed(seed)).dirichlet(np.full(num_cells, 0.1))
    pooling = pool_cells(probs, num_samples)
    assert pooling.probs.sum() == pytest.approx(1)
    assert pooling.num_pools == 1 or pooling.probs.min() * num_samples >= MIN_EXPECTED
    for pool in range(pooling.num_pools):
        assert probs[pooling.members(pool)].sum() == pytest.approx(pooling.probs[pool])


def test_frequent_cells_stay_single() -> None:
    pooling = pool_cells([0.5, 0.003, 0.3, 0.003, 0.194], num_samples=1000)
    assert [pooling.members(pool).tolist() for pool in range(pooling.num_pools)] == [[0], [2], [4], [1, 3]]


def test_tail_is_pooled_by_octave_and_tile() -> None:
    """Two octaves of two tiles each: four pools, none of which mixes."""
    probs = np.repeat([1.0, 1.0, 0.4, 0.4], TILE_SIZE)
    probs /= probs.sum()
    pooling = pool_cells(probs, num_samples=70)
    assert [pooling.pool_of[cell] for cell in np.arange(4) * TILE_SIZE] == [0, 1, 2, 3]
    assert [pooling.members(pool).size for pool in range(4)] == [TILE_SIZE] * 4


def test_impossible_observations_are_counted_apart() -> None:
    counts = count_codes(np.array([0, 1, 1, 2, 7, -1]), 3)
    pooled, num_impossible = pool_cells([0.5, 0.0, 0.5], 1000).pool(counts)
    assert (pooled.sum(), num_impossible) == (2, 4)


def test_cell_that_rounding_may_reach_is_no_failure() -> None:
    pooling = pool_cells([0.5, 0.0, 0.5], 1000, possible=np.array([True, True, True]))
    pooled, num_impossible = pooling.pool(count_codes(np.array([0, 1, 2]), 3))
    assert (pooled.sum(), num_impossible) == (3, 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: count_codes(np.array([0]), 0), r"num_cells=0, but it must lie in \[1, "),
        (lambda: sum_counts([{"a": np.zeros(2, int)}, {"a": np.zeros(3, int)}]), "a table must keep its cells"),
        (lambda: pool_cells([0.5, 0.6], 100), "sums to 1.1, but it must sum to 1"),
        (lambda: pool_cells([0.5, 0.5], 0), "num_samples=0, but it must be at least 1"),
        (lambda: pool_cells([0.5, 0.5], 100).pool(np.zeros(2, int)), r"it must be \[3\]"),
    ],
    ids=["no cells", "other cells", "no distribution", "no plan", "other pooling"],
)
def test_invalid_table_is_refused(call, message: str) -> None:  # type: ignore[no-untyped-def]  # a lambda
    with pytest.raises(ValueError, match=message):
        call()
