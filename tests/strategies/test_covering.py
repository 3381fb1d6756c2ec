"""Covering arrays hold every combination, in few rows, and follow from their seed."""

from itertools import combinations, product

import pytest

from fairdraw.strategies._covering import covering_rows, covering_settings


@pytest.mark.parametrize(("num_values", "strength"), [((4,) * 6, 2), ((6, 1, 3, 2), 2), ((3, 3, 2, 4), 3), ((5,), 1)])
def test_every_combination_occurs(num_values: tuple[int, ...], strength: int) -> None:
    rows = covering_rows(num_values, strength)
    for chosen in combinations(range(len(num_values)), strength):
        expected = set(product(*(range(num_values[parameter]) for parameter in chosen)))
        assert {tuple(row[parameter] for parameter in chosen) for row in rows} == expected


def test_rows_are_few() -> None:
    assert len(covering_rows((4,) * 10)) < 40  # of 4**10


def test_the_seed_gives_the_rows() -> None:
    assert covering_rows((3,) * 5, seed=1) == covering_rows((3,) * 5, seed=1) != covering_rows((3,) * 5, seed=2)


def test_settings_have_names_and_values() -> None:
    settings = covering_settings({"top_k": [-1, 3], "greedy": [False, True]})
    assert {(setting["top_k"], setting["greedy"]) for setting in settings} == set(product([-1, 3], [False, True]))


def test_a_parameter_without_values_is_refused() -> None:
    with pytest.raises(ValueError, match=r"num_values=\(2, 0\)"):
        covering_rows((2, 0))
