"""The probability integral transform: tokens of unrelated rows become one uniform sample."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import kstest

from fairdraw._core.seeds import derive_seed
from fairdraw.statistical._distributions import softmax_probs
from fairdraw.statistical._evidence import log_e_value
from fairdraw.statistical._pit import Order, PitCells, randomised_pit

Rows = NDArray[np.float64]
CELLS = PitCells()
TABLE = CELLS.table(1)


def draw_tokens(probs: Rows, rng: np.random.Generator) -> NDArray[np.int32]:
    """One token per row, by inverse CDF."""
    cumulative = np.cumsum(probs, axis=1)
    cumulative[:, -1] = 1.0
    return (rng.random(len(probs))[:, None] >= cumulative).sum(axis=1).astype(np.int32)


def random_logits(num_rows: int, vocab_size: int, rng: np.random.Generator) -> Rows:
    """As different as rows get: temperatures from near-greedy to flat, some tokens forbidden."""
    logits = rng.normal(size=(num_rows, vocab_size)) * rng.uniform(0.3, 4, size=(num_rows, 1))
    return np.where(rng.random(logits.shape) < 0.1, -np.inf, logits)


def transform(probs: Rows, tokens: NDArray[np.int32], order: Order, rng: np.random.Generator) -> NDArray[np.float64]:
    return randomised_pit(probs, tokens, rng.random(len(tokens)), order)


@pytest.mark.parametrize("order", Order)
@given(seed=st.integers(0, 9999), vocab_size=st.integers(1, 12))
@settings(max_examples=50)
def test_transform_spreads_each_token_over_its_own_mass(order: Order, seed: int, vocab_size: int) -> None:
    """The intervals of all tokens tile [0, 1): each as long as its probability, in the declared order."""
    rng = np.random.default_rng(derive_seed(seed, vocab_size))
    distribution = softmax_probs(np.round(rng.normal(size=vocab_size)))
    rows, tokens = np.tile(distribution, (vocab_size, 1)), np.arange(vocab_size, dtype=np.int32)

    starts = randomised_pit(rows, tokens, np.zeros(vocab_size), order)
    ends = randomised_pit(rows, tokens, np.full(vocab_size, 1 - 1e-12), order)

    np.testing.assert_allclose(ends - starts, distribution, atol=1e-10)
    ranked = np.argsort(starts)
    np.testing.assert_allclose(starts[ranked][1:], ends[ranked][:-1], atol=1e-10)
    assert (np.diff(distribution[ranked]) <= 0).all() if order is Order.RANK else ranked.tolist() == tokens.tolist()


@pytest.mark.parametrize("order", Order)
def test_tokens_of_any_distributions_are_uniform(order: Order) -> None:
    """300 samples of 1000 rows, each row with its own distribution: their p-values are uniform, too."""
    rng = np.random.default_rng(derive_seed("uniform", order))
    p_values = []
    for _ in range(300):
        probs = softmax_probs(random_logits(1000, 20, rng))
        p_values.append(kstest(transform(probs, draw_tokens(probs, rng), order, rng), "uniform").pvalue)

    assert kstest(p_values, "uniform").pvalue > 1e-3


def evidence(probs: Rows, wrong: Rows, order: Order, *parts: object) -> float:
    """log E against `probs` of tokens that follow `wrong`."""
    rng = np.random.default_rng(derive_seed(*parts))
    counts = CELLS.count(transform(probs, draw_tokens(wrong, rng), order, rng))
    assert counts[-1] == 0
    return float(log_e_value(counts[:-1], TABLE.probs, int(counts.sum())))


@functools.cache
def many_rows() -> tuple[Rows, Rows]:
    rng = np.random.default_rng(derive_seed("rows"))
    logits = rng.normal(size=(200_000, 50)) * 2
    return logits, softmax_probs(logits)


def test_temperature_off_by_two_percent_is_caught() -> None:
    logits, probs = many_rows()

    assert evidence(probs, softmax_probs(logits, 1.02), Order.RANK, "temperature") > np.log(1e6)
    assert evidence(probs, probs, Order.RANK, "temperature") < np.log(100)


def without_tail(probs: Rows, mass: float) -> Rows:
    """The rarest tokens of each row, together of at most this mass, are never drawn."""
    order = np.argsort(probs, axis=1)
    dropped = np.take_along_axis(
        np.cumsum(np.take_along_axis(probs, order, axis=1), axis=1) <= mass, np.argsort(order), 1
    )
    kept = np.where(dropped, 0.0, probs)
    return kept / kept.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("mass", [0.01, 0.002])
def test_lost_tail_is_caught_by_rank_and_only_by_rank(mass: float) -> None:
    _, probs = many_rows()
    wrong = without_tail(probs, mass)

    assert evidence(probs, wrong, Order.RANK, "tail") > np.log(1e6)
    assert evidence(probs, wrong, Order.ID, "tail") < np.log(100)


def test_lost_vocabulary_tile_is_caught_by_id() -> None:
    _, probs = many_rows()
    wrong = probs.copy()
    wrong[:, 48:] *= 0.5
    wrong /= wrong.sum(axis=1, keepdims=True)

    assert evidence(probs, wrong, Order.ID, "tile") > np.log(1e6)


@pytest.mark.parametrize("token", [-1, 3, 7, 1], ids=["placeholder", "vocab_size", "far outside", "probability zero"])
@pytest.mark.parametrize("order", Order)
def test_token_that_its_row_cannot_draw_is_caught(token: int, order: Order) -> None:
    rows = np.array([[0.7, 0.0, 0.3]])

    counts = CELLS.count(randomised_pit(rows, np.array([token]), np.array([0.5]), order))

    assert counts[-1] == 1
    assert counts.sum() == 1


def test_cells_cover_the_unit_interval() -> None:
    assert TABLE.probs.sum() == pytest.approx(1, abs=1e-15)
    assert TABLE.probs.size == 40
    assert TABLE.probs[-1] == 2.0**-13
    assert TABLE.label(0) == "mass 0 to 0.03125"
    counts = CELLS.count(np.array([0.0, 0.03125, np.nextafter(1.0, 0)]))
    assert np.flatnonzero(counts).tolist() == [0, 1, 39]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: randomised_pit([[0.5, 0.6]], np.array([0]), np.array([0.5]), Order.ID), "it must sum to 1"),
        (lambda: randomised_pit([[0.5, 0.5]], np.array([0, 1]), np.array([0.5]), Order.ID), "1 rows, 2 tokens"),
    ],
    ids=["no distribution", "lengths"],
)
def test_transform_of_nothing_is_refused(call, message: str) -> None:  # type: ignore[no-untyped-def]  # a lambda
    with pytest.raises(ValueError, match=message):
        call()
