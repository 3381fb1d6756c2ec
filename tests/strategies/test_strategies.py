"""Sizes and rows: each kind has its documented shape in every dtype; wrong arguments are named when drawn."""

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from helpers import drawn, whole
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fairdraw import strategies as fst
from fairdraw.contracts._rejection import check_batch
from fairdraw.strategies import DraftRecipe, RejectionCase, RequestRecipe, rows
from fairdraw.strategies._cases import _drawn_token

SIZES = (1, 2, 3, 31, 1025)
SEEDS = range(4)
STEADY = settings(max_examples=60)

SPELLING = "Correct the word."
TARGETS = "it must be one of: flat, last-only, one-hot, tied, normal, zipf, peaked, half, wide, twins, denormal"
DRAFTS = (
    "it must be one of: uniform, elsewhere, same, reversed, rounded, dominating, independent, sparse, denormal. "
    "Correct the word."
)
ORDER = "they must satisfy {0} <= min_{1} <= max_{1}{2}. Swap or move them."

T = TypeVar("T")


def softmax(row: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:  # [vocab_size] float32, twice
    logits = torch.from_numpy(row).to(getattr(torch, dtype))
    return logits.softmax(-1, dtype=torch.float32).numpy()


# -- sizes


@given(fst.vocab_sizes(2, 200))
@STEADY
def test_vocab_sizes_stay_within_their_bounds(size: int) -> None:
    assert 2 <= size <= 200


def test_vocab_sizes_are_tiny_or_on_an_edge() -> None:
    sizes = Counter(drawn(fst.vocab_sizes(), 600))
    assert set(sizes) == {*range(1, 9), *fst.AWKWARD_VOCAB_SIZES}
    assert sum(sizes[edge] for edge in fst.AWKWARD_VOCAB_SIZES) < 0.4 * sizes.total()


def test_vocab_sizes_reach_every_size_of_the_design() -> None:
    named = {1, 2, 31, 100, 1023, 1024, 1025, 8191, 8192, 8193, 32000, 128256, 151936}
    assert named <= set(drawn(fst.vocab_sizes(1, 151936), 800))


def test_vocab_sizes_without_an_edge_in_reach_are_drawn_all_the_same() -> None:
    assert set(drawn(fst.vocab_sizes(40, 40), 5)) == {40}


@given(fst.num_draft_tokens(2, 3, min_drafts=1, max_drafts=5))
@STEADY
def test_num_draft_tokens_stay_within_their_bounds(counts: list[int]) -> None:
    assert 2 <= len(counts) <= 3
    assert all(1 <= count <= 5 for count in counts)


def test_num_draft_tokens_are_ragged_and_sometimes_zero() -> None:
    batches = drawn(fst.num_draft_tokens())
    assert any(len(set(counts)) > 1 for counts in batches)
    assert any(0 in counts and any(counts) for counts in batches)
    assert any(len(counts) > 1 and not any(counts) for counts in batches)


def _is_denormal_but_for_one(probs: NDArray[np.float32]) -> bool:  # [vocab_size] float32
    rest = np.sort(probs)[:-1]
    return bool((rest > 0).all() and (rest < np.finfo(np.float32).tiny).all())


SHAPES: dict[str, tuple[tuple[int, ...], Callable[[NDArray[np.float32]], bool]]] = {
    "flat": ((31,), lambda probs: np.unique(probs).size == 1),
    "last-only": (SIZES, lambda probs: np.flatnonzero(probs).tolist() == [probs.size - 1]),
    "one-hot": ((31,), lambda probs: np.sort(probs).tolist() == [0.0] * 30 + [1.0]),
    "tied": ((100,), lambda probs: np.unique(probs).size == 2),
    "half": ((1025,), lambda probs: 300 < (probs == 0).sum() < 725),
    "peaked": ((1025,), lambda probs: bool(probs.max() > 0.5)),
    "wide": ((1025,), lambda probs: bool((probs == 0).mean() > 0.5)),
    "zipf": ((100,), lambda probs: np.sort(probs)[-1] / np.sort(probs)[-10] == pytest.approx(10**1.1, rel=0.05)),
    "denormal": (SIZES[1:], _is_denormal_but_for_one),
}
"""Per kind: vocabulary sizes, and a property of the softmax of its rows."""


def test_kinds_that_draw_nothing_leave_the_generator_that_they_share_alone() -> None:
    """Else a row would depend on the rows before it."""
    before = rows._IDLE.bit_generator.state
    targets = [fst.target_row(kind, 31, 5) for kind in (*fst.TARGET_KINDS, *rows.INVALID_KINDS)]
    for kind in fst.DRAFT_KINDS:
        for target in targets:
            fst.draft_row(kind, softmax(target, "float32"), 5)
    assert rows._IDLE.bit_generator.state == before


@pytest.mark.parametrize("vocab_size", SIZES)
def test_drawn_token_is_that_of_numpys_choice(vocab_size: int) -> None:
    probs = fst.probability_row("half", vocab_size, 3)
    for seed in range(20):
        rng = rows.bulk_rng("token", seed, 7)
        rng.integers(vocab_size)
        exact = probs.astype(np.float64)
        assert _drawn_token(probs, probs, seed, 7) == rng.choice(vocab_size, p=exact / exact.sum())


@pytest.mark.parametrize("dtype", fst.DTYPES)
class TestRowsAreDistributions:
    @pytest.mark.parametrize("target", fst.TARGET_KINDS)
    def test_every_draft_distribution_beside_every_target_is_valid(self, target: str, dtype: str) -> None:
        drafts = tuple(DraftRecipe(target=target, draft=kind, token="drawn") for kind in fst.DRAFT_KINDS)
        for vocab_size in SIZES:
            for seed in SEEDS:
                case = RejectionCase(vocab_size, (RequestRecipe(drafts),), dense=True, dtype=dtype, seed=seed)
                batch = case.batch()
                check_batch(batch)
                assert torch.allclose(batch.target_probs().sum(-1), torch.tensor(1.0), atol=1e-5)
                drafted = batch.draft_probs[torch.arange(batch.num_tokens), batch.draft_token_ids.long()]
                assert (drafted > 0).all()

    @pytest.mark.parametrize("seed", SEEDS)
    @pytest.mark.parametrize(
        ("kind", "vocab_size"), [(kind, size) for kind, (sizes, _) in SHAPES.items() for size in sizes]
    )
    def test_row_has_the_shape_of_its_kind(self, kind: str, vocab_size: int, seed: int, dtype: str) -> None:
        _, has_shape = SHAPES[kind]
        assert has_shape(softmax(fst.target_row(kind, vocab_size, seed), dtype))

    @pytest.mark.parametrize("vocab_size", SIZES[1:])
    @pytest.mark.parametrize("seed", SEEDS)
    def test_twins_row_has_a_largest_logit_in_each_half(self, vocab_size: int, seed: int, dtype: str) -> None:
        logits = torch.from_numpy(fst.target_row("twins", vocab_size, seed)).to(getattr(torch, dtype))
        low, high = torch.nonzero(logits == logits.max()).flatten().tolist()
        assert low < vocab_size // 2 <= high

    def test_invalid_rows_have_no_distribution(self, dtype: str) -> None:
        for kind in fst.INVALID_KINDS:
            assert np.isnan(softmax(fst.target_row(kind, 31, 0), dtype)).all()


def draft_beside(draft: str, target: str, vocab_size: int = 31, **fields: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Target and draft distribution of one position."""
    request = RequestRecipe((DraftRecipe(target=target, draft=draft),))
    batch = RejectionCase(vocab_size, (request,), dense=True, **fields).batch()
    return batch.target_probs()[0], batch.draft_probs[0]


# -- draft distributions


@pytest.mark.parametrize("layout", fst.LAYOUTS)
@pytest.mark.parametrize("dtype", fst.DTYPES)
@pytest.mark.parametrize("target", fst.TARGET_KINDS)
def test_same_is_the_target_distribution_bit_for_bit(target: str, dtype: str, layout: str) -> None:
    target_probs, draft_probs = draft_beside("same", target, dtype=dtype, layout=layout)
    assert torch.equal(target_probs, draft_probs)


@pytest.mark.parametrize(
    ("draft", "target", "vocab_size", "holds"),
    [
        ("reversed", "normal", 31, lambda p, q: torch.equal(p.flip(0), q)),
        *(("elsewhere", kind, 31, lambda p, q: not ((p > 0) & (q > 0)).any()) for kind in ("one-hot", "half")),
        ("elsewhere", "last-only", 31, lambda p, q: not ((p > 0) & (q > 0)).any()),
        ("elsewhere", "normal", 31, lambda p, q: q.nonzero().flatten().tolist() == [int(p.argmin())]),
        ("elsewhere", "flat", 1, lambda p, q: q.tolist() == [1.0]),
        ("rounded", "normal", 31, lambda p, q: torch.equal(q, p.bfloat16().float()) and q.double().sum() != 1),
        *(("dominating", kind, 31, lambda p, q: (q > p).all()) for kind in fst.TARGET_KINDS),
        ("sparse", "normal", 31, lambda p, q: 0 < (q == 0).sum() < 31),
        ("denormal", "flat", 31, lambda p, q: (p / q).isinf().sum() == 30),
    ],
)
def test_draft_has_the_shape_of_its_kind(draft: str, target: str, vocab_size: int, holds: Any) -> None:
    assert holds(*draft_beside(draft, target, vocab_size))


@pytest.mark.parametrize("draft", fst.DRAFT_KINDS)
@pytest.mark.parametrize("target", fst.INVALID_KINDS)
def test_draft_distributions_beside_an_invalid_target_are_valid(target: str, draft: str) -> None:
    request = RequestRecipe((DraftRecipe(target=target, draft=draft, token="drawn"),))
    check_batch(RejectionCase(31, (request,), dense=True).batch())


# -- row strategies


@given(fst.logit_rows(2, 40))
@STEADY
def test_logit_rows_are_distributions_unless_others_are_named(row: NDArray[np.float32]) -> None:
    assert 2 <= row.size <= 40
    assert row.dtype == np.float32
    assert softmax(row, "float32").sum() == pytest.approx(1, abs=1e-5)


def test_invalid_logit_rows_can_be_named() -> None:
    rows = drawn(fst.logit_rows(kinds=("nan", "empty")), 30)
    assert any(np.isnan(row).any() for row in rows)
    assert any(np.isneginf(row).all() for row in rows)


@given(fst.probability_rows(1, 40))
@STEADY
def test_probability_rows_sum_to_one_within_their_rounding(row: NDArray[np.float32]) -> None:
    assert row.dtype == np.float32
    assert (row >= 0).all()
    assert row.sum(dtype=np.float64) == pytest.approx(1, abs=2.0**-8)


def test_probability_rows_have_every_shape() -> None:
    rows = drawn(fst.probability_rows(2, 40), 300)
    assert any(row.sum(dtype=np.float64) != 1 for row in rows)
    assert any((row == 0).any() for row in rows)
    assert any(((row > 0) & (row < np.finfo(np.float32).tiny)).any() for row in rows)
    assert any(np.unique(row).size == 1 for row in rows)


@pytest.mark.parametrize(
    "strategy",
    [fst.logit_rows(2), fst.logit_rows(1024), fst.probability_rows(2), fst.probability_rows(1024)],
    ids=["tiny logits", "logits", "tiny probabilities", "probabilities"],
)
def test_failing_row_prints_as_code_that_makes_it(strategy: st.SearchStrategy[NDArray[np.float32]]) -> None:
    rows: list[NDArray[np.float32]] = []

    @given(row=strategy)
    @settings(STEADY, phases=[Phase.generate, Phase.shrink])
    def fails(row: NDArray[np.float32]) -> None:
        rows.append(row)
        raise AssertionError

    with pytest.raises(AssertionError) as caught:
        fails()
    printed = "\n".join(caught.value.__notes__)
    pasted = printed.partition("row=")[2].rpartition("\n)")[0]
    names = {name: getattr(fst, name) for name in fst.__all__}
    (row,) = eval(pasted, {**names, "array": np.array, "float32": np.float32})
    assert np.array_equal(row, rows[-1])


# -- row functions


def test_row_depends_on_the_number_and_not_on_its_type() -> None:
    seven = np.int64(7)
    assert np.array_equal(fst.target_row("normal", 9, 7), fst.target_row("normal", 9, seven))  # type: ignore[arg-type]


def test_stored_recipes_build_the_numbers_they_always_did() -> None:
    expected = [-2.7392688, 0.5671018, -0.3867935]
    assert fst.target_row("normal", 3, 0).tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fst.target_row("bumpy", 3, 0), f"target_row: kind='bumpy', but {TARGETS}, empty, nan. {SPELLING}"),
        (lambda: fst.draft_row("bumpy", np.ones(1, np.float32), 0), f"draft_row: kind='bumpy', but {DRAFTS}"),
        (lambda: fst.probability_row("nan", 3, 0), f"probability_row: target='nan', but {TARGETS}. {SPELLING}"),
        (
            lambda: fst.target_row("flat", 0, 0),
            "target_row: vocab_size=0, but it must be at least 1. Use vocab_sizes().",
        ),
    ],
    ids=["target kind", "draft kind", "no distribution", "no vocabulary"],
)
def test_row_function_names_a_wrong_argument(call: Any, message: str) -> None:  # Any: a lambda
    with pytest.raises(ValueError, match=whole(message)):
        call()


def swapped(function: str, name: str, low: int, high: int) -> str:
    """The message about bounds that are not in order."""
    least, most = ("0", " <= 128") if name == "drafts" else ("1", "")
    return f"{function}: min_{name}={low}, max_{name}={high}, but {ORDER.format(least, name, most)}"


# -- arguments: Wrong arguments raise when the first value is drawn, so that a module of tests can still be imported.


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (fst.vocab_sizes(5, 3), swapped("vocab_sizes", "size", 5, 3)),
        (fst.vocab_sizes(0, 3), swapped("vocab_sizes", "size", 0, 3)),
        (fst.num_draft_tokens(0, 3), swapped("num_draft_tokens", "requests", 0, 3)),
        (fst.num_draft_tokens(max_drafts=129), swapped("num_draft_tokens", "drafts", 0, 129)),
        (fst.logit_rows(3, 2), swapped("logit_rows", "vocab_size", 3, 2)),
        (fst.rejection_cases(min_drafts=3, max_drafts=1), swapped("rejection_cases", "drafts", 3, 1)),
        (fst.probability_rows(targets=("empty",)), f"probability_rows: targets='empty', but {TARGETS}. {SPELLING}"),
        (
            fst.rejection_cases(tokens=()),
            "rejection_cases: tokens=(), but there must be a kind to draw. Use None for all of them.",
        ),
        (
            fst.rejection_cases(exponentials=("short",)),
            "rejection_cases: exponentials='short', but it must be one of: equal, random, coarse, tiny, denormal, "
            f"huge, twins. {SPELLING}",
        ),
        (
            fst.spec_decode_batches(dtypes=("int8",)),
            f"rejection_cases: dtypes='int8', but it must be one of: float32, bfloat16, float16. {SPELLING}",
        ),
    ],
    ids=lambda value: value.partition(", but")[0] if isinstance(value, str) else "",
)
def test_strategy_names_a_wrong_value(strategy: st.SearchStrategy[object], message: str) -> None:
    with pytest.raises(ValueError, match=whole(message)):
        drawn(strategy, 1)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (
            fst.rejection_cases(targets="flat"),
            "rejection_cases: targets='flat', but it must be a sequence of kinds. Use ('flat',).",
        ),
        (
            fst.vocab_sizes(1.5, 3),  # type: ignore[arg-type]
            "vocab_sizes: min_size=1.5, but it must be an integer. Use int(min_size).",
        ),
    ],
    ids=["one word", "fraction"],
)
def test_strategy_names_a_wrong_type(strategy: st.SearchStrategy[object], message: str) -> None:
    with pytest.raises(TypeError, match=whole(message)):
        drawn(strategy, 1)
