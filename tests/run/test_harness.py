"""Every call of a sampler by the suite: inputs are validated, seeds set, the answer copied, generators read."""

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from fairdraw._oracles.rejection import verify
from fairdraw.contracts import Noise, SeededNoise, SpecDecodeBatch, rejection_sampler
from fairdraw.contracts._rejection import Emission, emit
from fairdraw.strategies import DraftRecipe, RejectionCase, RequestRecipe

ORACLE = rejection_sampler(verify, name="oracle")
DRAFTS = (DraftRecipe("normal"), DraftRecipe("normal"))
CASE = RejectionCase(5, (RequestRecipe(DRAFTS, request_seed=True), RequestRecipe(DRAFTS)), explicit=False)


DRAWS: dict[str, Callable[[int, int], object]] = {
    "torch": lambda below, count: torch.randint(below, (count,)),
    "numpy": lambda below, count: np.random.randint(0, below, count),
    "python": lambda below, count: [random.randrange(below) for _ in range(count)],
}
"""Samplers ignore `noise.seed` and draw from a global generator, as many do."""


# -- emit


@pytest.mark.parametrize("library", DRAWS)
def test_global_generators_are_seeded_for_the_sampler(library: str) -> None:
    def first_random_tokens(batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        shape = batch.batch_size, batch.max_spec_len + 1
        return torch.as_tensor(DRAWS[library](batch.vocab_size, math.prod(shape))).int().view(shape)

    sampler = rejection_sampler(first_random_tokens)
    first, again = (emit(sampler, CASE.batch(), SeededNoise(5)) for _ in range(2))
    other = emit(sampler, CASE.batch(), SeededNoise(6))
    assert np.array_equal(first.tokens, again.tokens)
    assert not np.array_equal(first.tokens, other.tokens)


def test_explicit_noise_leaves_the_default_generator_alone() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state().numpy().tobytes()
    case = CASE.replace(explicit=True)
    assert emit(ORACLE, case.batch(), case.noise()).default_state == before


def test_final_states_tell_what_was_drawn() -> None:
    noise = CASE.noise()
    emission = emit(ORACLE, CASE.batch(), noise)
    untouched = torch.Generator().manual_seed(noise.request_seeds[0]).get_state().numpy().tobytes()
    torch.manual_seed(noise.seed)
    assert emission.generator_states.keys() == {0}
    assert emission.generator_states[0] != untouched
    assert emission.default_state != torch.get_rng_state().numpy().tobytes()


def test_emission_keeps_its_tokens_when_the_sampler_uses_its_buffer_again() -> None:
    buffer = torch.zeros(2, 3, dtype=torch.int32)

    def counts_calls(batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        return buffer.add_(1)

    sampler = rejection_sampler(counts_calls)
    first, second = (emit(sampler, CASE.batch(), CASE.noise()) for _ in range(2))
    assert (first.tokens == 1).all()
    assert (second.tokens == 2).all()


def test_wrong_batch_is_refused_before_the_sampler_is_called() -> None:
    def never(batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        raise NotImplementedError

    batch = CASE.batch().replace(max_spec_len=1)
    with pytest.raises(ValueError, match=r"^check_batch: max_spec_len=1, but "):
        emit(rejection_sampler(never), batch, SeededNoise(0))


def test_noise_of_another_batch_is_refused_before_the_sampler_is_called() -> None:
    other = RejectionCase(4, (RequestRecipe(DRAFTS), RequestRecipe(DRAFTS)))
    with pytest.raises(ValueError, match=r"^check_noise: exponentials.shape=\[2, 4\], but it must be \[2, 5\]"):
        emit(ORACLE, CASE.batch(), other.noise())


def test_batch_without_any_draft_is_asked_too() -> None:
    case = RejectionCase(5, (RequestRecipe(), RequestRecipe(greedy=True)))
    batch = case.batch()
    noise = case.noise()
    assert emit(ORACLE, batch, noise).tokens.tolist() == batch.bonus_token_ids.tolist()


@pytest.mark.parametrize(
    ("row", "emitted"),
    [
        ([3, 1, -1, -1], [3, 1]),
        ([3, -1, 2, -1], [3, -1, 2]),
        ([-1, -1, -1, -1], []),
        ([0, 0, 0, 0], [0, 0, 0, 0]),
        ([-7, -1, -1, -1], [-7]),
    ],
    ids=["tokens", "gap", "nothing", "full", "nonsense"],
)
def test_emitted_tokens_are_those_before_the_last_placeholders(row: list[int], emitted: list[int]) -> None:
    assert Emission(np.array([row], np.int32), {}, b"").emitted(0) == emitted
