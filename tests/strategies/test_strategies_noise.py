"""Noise for any batch: valid, printed as code, and exactly where comparisons flip."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from helpers import plain_batch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairdraw import strategies as fst
from fairdraw._oracles.rejection import RejectionOracle
from fairdraw.contracts import ExplicitNoise, SeededNoise, SpecDecodeBatch
from fairdraw.contracts._rejection import check_noise
from fairdraw.strategies import DraftRecipe, NoiseRecipe, RejectionCase, RequestRecipe

pytestmark = pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
STEADY = settings(max_examples=60)


def one_request(*drafts: DraftRecipe, vocab_size: int = 31, **fields: Any) -> RejectionCase:  # Any: fields of the case
    return RejectionCase(vocab_size, (RequestRecipe(drafts),), **fields)


def foreign_batch() -> SpecDecodeBatch:
    """A batch that no recipe built: two requests, one without drafts."""
    return plain_batch([2, 0], 4, draft_token_ids=torch.tensor([1, 2], dtype=torch.int32))


# -- strategies


@given(st.data())
@STEADY
def test_explicit_noises_belong_to_their_batch_and_print_as_code(data: st.DataObject) -> None:
    batch = data.draw(fst.spec_decode_batches())
    noise = data.draw(fst.explicit_noises(batch))
    check_noise(batch, noise)
    again = eval(repr(noise), {**{name: getattr(fst, name) for name in fst.__all__}, "batch": batch})
    assert torch.equal(again.uniforms, noise.uniforms)
    assert torch.equal(again.exponentials, noise.exponentials)


@given(st.data())
@STEADY
def test_seeded_noises_belong_to_their_batch_and_print_as_code(data: st.DataObject) -> None:
    batch = data.draw(fst.spec_decode_batches())
    noise = data.draw(fst.seeded_noises(batch))
    check_noise(batch, noise)
    assert eval(repr(noise), {"SeededNoise": SeededNoise}) == noise


@given(fst.explicit_noises(foreign_batch(), uniforms=("zero",), exponentials=("equal",)))
@STEADY
def test_explicit_noises_keep_to_the_kinds_asked_for(noise: ExplicitNoise) -> None:
    assert noise.uniforms.tolist() == [0, 0]
    assert (noise.exponentials == 1).all()


@pytest.mark.parametrize(("request_seed", "seeded"), [(True, {0, 1}), (False, set())])
def test_seeded_noises_give_all_or_no_request_a_seed(request_seed: bool, seeded: set[int]) -> None:
    @given(fst.seeded_noises(foreign_batch(), request_seed=request_seed))
    @STEADY
    def all_do(noise: SeededNoise) -> None:
        assert noise.request_seeds.keys() == seeded
        assert len({noise.seed, *noise.request_seeds.values()}) == 1 + len(seeded)

    all_do()


@pytest.mark.parametrize("strategy", [fst.explicit_noises, fst.seeded_noises])
def test_noise_for_something_else_than_a_batch_is_refused(strategy: Any) -> None:  # Any: a strategy function
    message = (
        f"{strategy.__name__}: batch=list, but it must be a SpecDecodeBatch. "
        "Draw one first: batch = data.draw(spec_decode_batches())."
    )

    @given(strategy([1, 2]))
    @STEADY
    def never(noise: object) -> None:
        raise NotImplementedError

    with pytest.raises(TypeError, match=rf"^{re.escape(message)}(\n|$)"):
        never()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"uniforms": ()}, "NoiseRecipe: uniforms=(), but there must be a kind to draw. Use None for all of them."),
        (
            {"exponentials": ("flat",)},
            "NoiseRecipe: exponentials='flat', but it must be one of: equal, random, coarse, tiny, denormal, huge, "
            "twins. Correct the word.",
        ),
    ],
    ids=["no kind", "unknown kind"],
)
def test_noise_recipe_refuses_words_it_does_not_know(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        NoiseRecipe(**fields)


def test_kinds_are_used_in_turn() -> None:
    batch = foreign_batch().select([0, 0, 1])
    noise = NoiseRecipe(uniforms=("zero", "half", "largest"), exponentials=("equal", "huge")).noise(batch)
    assert noise.uniforms.tolist() == [0, 0.5, 1 - 2.0**-53, 0]
    assert [bool((row == 1).all()) for row in noise.exponentials] == [True, False, True]


def uniforms_of(case: RejectionCase) -> list[float]:
    noise = case.noise()
    return noise.uniforms.tolist()


# -- uniforms


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("zero", 0.0),
        ("half", 0.5),
        ("smallest", 2.0**-53),
        ("denormal", 2.0**-1074),
        ("largest", float(np.nextafter(1.0, 0.0))),
        ("largest-float32", float(np.nextafter(np.float32(1), np.float32(0)))),
    ],
)
def test_fixed_kinds_are_what_they_say(kind: str, value: float) -> None:
    assert uniforms_of(one_request(DraftRecipe(uniform=kind))) == [value]


@pytest.mark.parametrize("dtype", fst.DTYPES)
@pytest.mark.parametrize("dense", [False, True], ids=["one-hot", "dense"])
@pytest.mark.parametrize("seed", range(5))
def test_ratio_is_the_last_uniform_that_accepts(seed: int, dense: bool, dtype: str) -> None:
    """No token is less likely than the least likely one: with the reversed target as draft the ratio is below 1."""
    draft = DraftRecipe("normal", "reversed", "unlikely")
    batch = one_request(draft, vocab_size=30, dense=dense, dtype=dtype, seed=seed).batch().select([0, 0, 0])
    noise = NoiseRecipe(uniforms=("below", "ratio", "above")).noise(batch)
    below, ratio, above = noise.uniforms.tolist()
    assert 0 < below < ratio < above < 1
    assert np.nextafter(below, 1) == ratio == np.nextafter(above, 0)
    oracle = RejectionOracle()
    assert [oracle.accepts(step) for step in oracle.steps(batch, noise)] == [True, True, False]


@pytest.mark.parametrize("kind", ["ratio", "above", "below"])
def test_ratio_kinds_are_uniforms_where_there_is_no_ratio(kind: str) -> None:
    """Placeholder, impossible and certain drafts, and quotients that overflow."""
    drafts = [
        DraftRecipe("normal", "independent", "placeholder", kind),
        DraftRecipe("last-only", "uniform", "first", kind),
        DraftRecipe("last-only", "uniform", "last", kind),
        DraftRecipe("wide", "denormal", "likely", kind),
        DraftRecipe("nan", "uniform", "first", kind),
    ]
    for dense in (False, True):
        case = one_request(*drafts, dense=dense)
        check_noise(case.batch(), case.noise())


def exponentials_of(kind: str, vocab_size: int = 1025, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    noise = RejectionCase(vocab_size, (RequestRecipe(exponentials=kind),), seed=seed).noise()
    return np.asarray(noise.exponentials.numpy()[0])


# -- exponentials


@pytest.mark.parametrize(
    ("kind", "holds"),
    [
        ("equal", lambda e: (e == 1).all()),
        ("coarse", lambda e: set(e) == {0.5, 1, 2}),
        ("tiny", lambda e: (1 / e > 1e27).all() and np.isfinite(1 / e).all()),
        ("denormal", lambda e: (e > 0).all() and np.isinf(1 / e).any()),
        ("huge", lambda e: np.isfinite(e).all() and (np.float32(1e-20) * (1 / e) == 0).any()),
    ],
)
def test_exponentials_have_the_values_of_their_kind(kind: str, holds: Any) -> None:  # Any: a predicate
    assert holds(exponentials_of(kind))


@pytest.mark.parametrize("vocab_size", [2, 3, 1024, 1025])
@pytest.mark.parametrize("seed", range(4))
def test_twins_have_one_winner_in_each_half(vocab_size: int, seed: int) -> None:
    low, high = np.flatnonzero(exponentials_of("twins", vocab_size, seed) == 0.5).tolist()
    assert low < vocab_size // 2 <= high


def test_twins_in_a_vocabulary_of_one_are_one() -> None:
    assert exponentials_of("twins", 1).tolist() == [0.5]


@pytest.mark.parametrize("kind", fst.EXPONENTIAL_KINDS)
def test_every_kind_is_positive_in_a_large_vocabulary(kind: str) -> None:
    exponentials = exponentials_of(kind, 151936)
    assert (exponentials > 0).all()
    assert np.isfinite(exponentials).all()
