"""Sizes and rows: each kind is what its docstring says, in every dtype; wrong arguments are named once drawn."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fairdraw import strategies as fst
from fairdraw._core.validation import check_batch
from fairdraw.strategies import DraftRecipe, RejectionCase, RequestRecipe

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIZES = (1, 2, 3, 31, 1025)
SEEDS = range(4)
STEADY = settings(derandomize=True, database=None, deadline=None, max_examples=60)

SPELLING = "Correct the word."
TARGETS = "it must be one of: flat, last-only, one-hot, tied, normal, zipf, peaked, half, wide, twins, denormal"
DRAFTS = (
    "it must be one of: uniform, elsewhere, same, reversed, rounded, dominating, independent, sparse, denormal. "
    "Correct the word."
)
ORDER = "they must satisfy {0} <= min_{1} <= max_{1}{2}. Swap or move them."

T = TypeVar("T")


def drawn(strategy: st.SearchStrategy[T], count: int = 200) -> list[T]:
    """About `count` values, the same at every run."""
    values: list[T] = []

    def collect(value: T) -> None:
        values.append(value)

    limits = settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    limits(hypothesis.seed(0)(given(strategy)(collect)))()
    return values


def whole(message: str) -> str:
    """The message and nothing but; Hypothesis adds notes on lines of their own."""
    return rf"^{re.escape(message)}(\n|$)"


def softmax(row: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:  # [vocab_size] float32, twice
    logits = torch.from_numpy(row).to(getattr(torch, dtype))
    return logits.softmax(-1, dtype=torch.float32).numpy()


class TestSizes:
    @given(fst.vocab_sizes(2, 200))
    @STEADY
    def test_vocab_sizes_stay_within_their_bounds(self, size: int) -> None:
        assert 2 <= size <= 200

    def test_vocab_sizes_are_tiny_or_on_an_edge(self) -> None:
        sizes = Counter(drawn(fst.vocab_sizes(), 600))
        assert set(sizes) == {*range(1, 9), *fst.AWKWARD_VOCAB_SIZES}
        assert sum(sizes[edge] for edge in fst.AWKWARD_VOCAB_SIZES) < 0.4 * sizes.total()

    def test_vocab_sizes_reach_every_size_of_the_design(self) -> None:
        named = {1, 2, 31, 100, 1023, 1024, 1025, 8191, 8192, 8193, 32000, 128256, 151936}
        assert named <= set(drawn(fst.vocab_sizes(1, 151936), 800))

    def test_vocab_sizes_without_an_edge_in_reach_are_drawn_all_the_same(self) -> None:
        assert set(drawn(fst.vocab_sizes(40, 40), 5)) == {40}

    @given(fst.num_draft_tokens(2, 3, min_drafts=1, max_drafts=5))
    @STEADY
    def test_num_draft_tokens_stay_within_their_bounds(self, counts: list[int]) -> None:
        assert 2 <= len(counts) <= 3
        assert all(1 <= count <= 5 for count in counts)

    def test_num_draft_tokens_are_ragged_and_sometimes_zero(self) -> None:
        batches = drawn(fst.num_draft_tokens())
        assert any(len(set(counts)) > 1 for counts in batches)
        assert any(0 in counts and any(counts) for counts in batches)
        assert any(len(counts) > 1 and not any(counts) for counts in batches)


@pytest.mark.parametrize("dtype", fst.DTYPES)
class TestRowsAreDistributions:
    @pytest.mark.parametrize("target", fst.TARGET_KINDS)
    def test_every_draft_distribution_beside_every_target_distribution_is_legal(self, target: str, dtype: str) -> None:
        drafts = tuple(DraftRecipe(target=target, draft=kind, token="drawn") for kind in fst.DRAFT_KINDS)
        for vocab_size in SIZES:
            for seed in SEEDS:
                case = RejectionCase(vocab_size, (RequestRecipe(drafts),), dense=True, dtype=dtype, seed=seed)
                batch = case.batch()
                check_batch(batch)
                assert batch.draft_probs is not None
                assert torch.allclose(batch.target_probs().sum(-1), torch.tensor(1.0), atol=1e-5)
                drafted = batch.draft_probs[torch.arange(batch.num_tokens), batch.draft_token_ids.long()]
                assert (drafted > 0).all()

    def test_flat_row_is_flat(self, dtype: str) -> None:
        assert np.unique(softmax(fst.target_row("flat", 31, 0), dtype)).size == 1

    @pytest.mark.parametrize("vocab_size", SIZES)
    def test_last_only_row_has_its_mass_on_the_last_id(self, vocab_size: int, dtype: str) -> None:
        probs = softmax(fst.target_row("last-only", vocab_size, 0), dtype)
        assert np.flatnonzero(probs).tolist() == [vocab_size - 1]

    @pytest.mark.parametrize("seed", SEEDS)
    def test_one_hot_row_has_its_mass_on_one_id(self, seed: int, dtype: str) -> None:
        assert np.sort(softmax(fst.target_row("one-hot", 31, seed), dtype)).tolist() == [0.0] * 30 + [1.0]

    @pytest.mark.parametrize("seed", SEEDS)
    def test_tied_row_has_two_values(self, seed: int, dtype: str) -> None:
        assert np.unique(softmax(fst.target_row("tied", 100, seed), dtype)).size == 2

    @pytest.mark.parametrize("seed", SEEDS)
    def test_half_row_masks_about_half(self, seed: int, dtype: str) -> None:
        assert 300 < (softmax(fst.target_row("half", 1025, seed), dtype) == 0).sum() < 725

    @pytest.mark.parametrize("seed", SEEDS)
    def test_peaked_row_has_most_mass_on_one_id(self, seed: int, dtype: str) -> None:
        assert softmax(fst.target_row("peaked", 1025, seed), dtype).max() > 0.5

    @pytest.mark.parametrize("seed", SEEDS)
    def test_wide_row_underflows_for_most_ids(self, seed: int, dtype: str) -> None:
        probs = softmax(fst.target_row("wide", 1025, seed), dtype)
        assert (probs == 0).mean() > 0.5

    @pytest.mark.parametrize("seed", SEEDS)
    def test_zipf_row_falls_by_rank(self, seed: int, dtype: str) -> None:
        probs = np.sort(softmax(fst.target_row("zipf", 100, seed), dtype))[::-1]
        assert probs[0] / probs[9] == pytest.approx(10**1.1, rel=0.05)

    @pytest.mark.parametrize("vocab_size", SIZES[1:])
    @pytest.mark.parametrize("seed", SEEDS)
    def test_twins_row_has_a_largest_logit_in_each_half(self, vocab_size: int, seed: int, dtype: str) -> None:
        logits = torch.from_numpy(fst.target_row("twins", vocab_size, seed)).to(getattr(torch, dtype))
        low, high = torch.nonzero(logits == logits.max()).flatten().tolist()
        assert low < vocab_size // 2 <= high

    @pytest.mark.parametrize("vocab_size", SIZES[1:])
    @pytest.mark.parametrize("seed", SEEDS)
    def test_denormal_row_is_denormal_but_for_one_id(self, vocab_size: int, seed: int, dtype: str) -> None:
        probs = np.sort(softmax(fst.target_row("denormal", vocab_size, seed), dtype))
        assert (probs[:-1] > 0).all()
        assert (probs[:-1] < np.finfo(np.float32).tiny).all()

    def test_invalid_rows_have_no_distribution(self, dtype: str) -> None:
        for kind in fst.INVALID_KINDS:
            assert np.isnan(softmax(fst.target_row(kind, 31, 0), dtype)).all()


def draft_beside(draft: str, target: str, vocab_size: int = 31, **fields: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Target and draft distribution of one position."""
    request = RequestRecipe((DraftRecipe(target=target, draft=draft),))
    batch = RejectionCase(vocab_size, (request,), dense=True, **fields).batch()
    assert batch.draft_probs is not None
    return batch.target_probs()[0], batch.draft_probs[0]


class TestDraftDistributions:
    @pytest.mark.parametrize("layout", fst.LAYOUTS)
    @pytest.mark.parametrize("dtype", fst.DTYPES)
    @pytest.mark.parametrize("target", fst.TARGET_KINDS)
    def test_same_is_the_target_distribution_bit_for_bit(self, target: str, dtype: str, layout: str) -> None:
        target_probs, draft_probs = draft_beside("same", target, dtype=dtype, layout=layout)
        assert torch.equal(target_probs, draft_probs)

    def test_reversed_is_the_target_distribution_backwards(self) -> None:
        target_probs, draft_probs = draft_beside("reversed", "normal")
        assert torch.equal(target_probs.flip(0), draft_probs)

    @pytest.mark.parametrize("target", ["one-hot", "last-only", "half"])
    def test_elsewhere_is_disjoint_from_a_masked_target(self, target: str) -> None:
        target_probs, draft_probs = draft_beside("elsewhere", target)
        assert not ((target_probs > 0) & (draft_probs > 0)).any()

    def test_elsewhere_is_the_least_likely_token_if_no_other_is_masked(self) -> None:
        target_probs, draft_probs = draft_beside("elsewhere", "normal")
        assert draft_probs.nonzero().flatten().tolist() == [int(target_probs.argmin())]

    def test_elsewhere_in_a_vocabulary_of_one_is_that_token(self) -> None:
        assert draft_beside("elsewhere", "flat", vocab_size=1)[1].tolist() == [1.0]

    def test_rounded_is_bfloat16_and_misses_one(self) -> None:
        target_probs, draft_probs = draft_beside("rounded", "normal")
        assert torch.equal(draft_probs, target_probs.bfloat16().float())
        assert draft_probs.double().sum() != 1

    @pytest.mark.parametrize("target", fst.TARGET_KINDS)
    def test_dominating_is_above_the_target_everywhere(self, target: str) -> None:
        target_probs, draft_probs = draft_beside("dominating", target)
        assert (draft_probs > target_probs).all()

    def test_sparse_leaves_tokens_out(self) -> None:
        assert 0 < (draft_beside("sparse", "normal")[1] == 0).sum() < 31

    def test_denormal_makes_the_quotient_overflow(self) -> None:
        target_probs, draft_probs = draft_beside("denormal", "flat")
        assert (target_probs / draft_probs).isinf().sum() == 30

    @pytest.mark.parametrize("draft", fst.DRAFT_KINDS)
    @pytest.mark.parametrize("target", fst.INVALID_KINDS)
    def test_draft_distributions_beside_a_target_without_distribution_are_legal(self, target: str, draft: str) -> None:
        request = RequestRecipe((DraftRecipe(target=target, draft=draft, token="drawn"),))
        check_batch(RejectionCase(31, (request,), dense=True).batch())


class TestRowStrategies:
    @given(fst.logit_rows(2, 40))
    @STEADY
    def test_logit_rows_are_distributions_unless_others_are_named(self, row: NDArray[np.float32]) -> None:
        assert 2 <= row.size <= 40
        assert row.dtype == np.float32
        assert softmax(row, "float32").sum() == pytest.approx(1, abs=1e-5)

    def test_logit_rows_without_a_distribution_can_be_named(self) -> None:
        rows = drawn(fst.logit_rows(kinds=("nan", "empty")), 30)
        assert any(np.isnan(row).any() for row in rows)
        assert any(np.isneginf(row).all() for row in rows)

    @given(fst.probability_rows(1, 40))
    @STEADY
    def test_probability_rows_sum_to_one_within_their_rounding(self, row: NDArray[np.float32]) -> None:
        assert row.dtype == np.float32
        assert (row >= 0).all()
        assert row.sum(dtype=np.float64) == pytest.approx(1, abs=2.0**-8)

    def test_probability_rows_have_every_shape(self) -> None:
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
    def test_failing_row_prints_as_code_that_makes_it(self, strategy: st.SearchStrategy[NDArray[np.float32]]) -> None:
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


class TestRowFunctions:
    def test_row_depends_on_the_number_and_not_on_its_type(self) -> None:
        seven = np.int64(7)
        assert np.array_equal(fst.target_row("normal", 9, 7), fst.target_row("normal", 9, seven))  # type: ignore[arg-type]

    def test_stored_recipes_build_the_numbers_they_always_did(self) -> None:
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
    def test_row_function_names_a_wrong_argument(self, call: Any, message: str) -> None:  # Any: a lambda
        with pytest.raises(ValueError, match=whole(message)):
            call()


class TestArguments:
    """Wrong arguments raise when the first value is drawn, so that a module of tests can still be imported."""

    @pytest.mark.parametrize(
        ("strategy", "message"),
        [
            (fst.vocab_sizes(5, 3), f"vocab_sizes: min_size=5, max_size=3, but {ORDER.format('1', 'size', '')}"),
            (fst.vocab_sizes(0, 3), f"vocab_sizes: min_size=0, max_size=3, but {ORDER.format('1', 'size', '')}"),
            (
                fst.num_draft_tokens(0, 3),
                f"num_draft_tokens: min_requests=0, max_requests=3, but {ORDER.format('1', 'requests', '')}",
            ),
            (
                fst.num_draft_tokens(max_drafts=129),
                f"num_draft_tokens: min_drafts=0, max_drafts=129, but {ORDER.format('0', 'drafts', ' <= 128')}",
            ),
            (
                fst.logit_rows(3, 2),
                f"logit_rows: min_vocab_size=3, max_vocab_size=2, but {ORDER.format('1', 'vocab_size', '')}",
            ),
            (
                fst.probability_rows(targets=("empty",)),
                f"probability_rows: targets='empty', but {TARGETS}. {SPELLING}",
            ),
            (
                fst.request_recipes(min_drafts=3, max_drafts=1),
                f"request_recipes: min_drafts=3, max_drafts=1, but {ORDER.format('0', 'drafts', ' <= 128')}",
            ),
            (
                fst.draft_recipes(tokens=()),
                "draft_recipes: tokens=(), but there must be a kind to draw. Use None for all of them.",
            ),
            (
                fst.request_recipes(exponentials=("short",)),
                "request_recipes: exponentials='short', but it must be one of: equal, random, coarse, tiny, denormal, "
                f"huge, twins. {SPELLING}",
            ),
            (
                fst.spec_decode_batches(dtypes=("int8",)),
                f"rejection_cases: dtypes='int8', but it must be one of: float32, bfloat16, float16. {SPELLING}",
            ),
        ],
        ids=[
            "sizes swapped",
            "no vocabulary",
            "no requests",
            "too many drafts",
            "row sizes swapped",
            "distribution of an empty row",
            "drafts swapped",
            "no tokens",
            "exponentials",
            "dtype",
        ],
    )
    def test_strategy_names_a_wrong_value(self, strategy: st.SearchStrategy[object], message: str) -> None:
        with pytest.raises(ValueError, match=whole(message)):
            drawn(strategy, 1)

    @pytest.mark.parametrize(
        ("strategy", "message"),
        [
            (
                fst.draft_recipes(targets="flat"),
                "draft_recipes: targets='flat', but it must be a sequence of kinds. Use ('flat',).",
            ),
            (
                fst.vocab_sizes(1.5, 3),  # type: ignore[arg-type]
                "vocab_sizes: min_size=1.5, but it must be an integer. Use int(min_size).",
            ),
        ],
        ids=["one word", "fraction"],
    )
    def test_strategy_names_a_wrong_type(self, strategy: st.SearchStrategy[object], message: str) -> None:
        with pytest.raises(TypeError, match=whole(message)):
            drawn(strategy, 1)
