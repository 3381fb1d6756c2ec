"""Slices: correct samplers pass as often as the rate says, and the slice of a fault is named."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import CHECKS
from scipy.stats import binom
from torch import Tensor

from fairdraw._core.checks import PROFILES
from fairdraw._core.failures import CheckFailure
from fairdraw._run.loading import load_sampler
from fairdraw.contracts import Noise, SamplingBatch, SamplingNoise, SpecDecodeBatch, rejection_sampler, token_sampler
from fairdraw.statistical._slice_check import _SMALLEST_WEIGHT, distance_seen
from fairdraw.statistical._slices import Event, Slices, TokenKinds, _bet, _family

RIGHT = load_sampler("sampling/torch")
RIGHT_VERIFIER = load_sampler("rejection/torch")


def drawn(seed: int, spoil: Callable[..., None] | None = None) -> Slices:
    """Return draws of 9 distributions over 16 tokens, in calls of 1 to 30 rows."""
    rng = np.random.default_rng(seed)
    table = TokenKinds(rng.dirichlet(np.ones(16), size=9))
    slices = Slices(("size", "kind"))
    for size in range(1, 31):
        kinds = rng.integers(9, size=size)
        tokens = np.array([rng.choice(16, p=table.probs[kind]) for kind in kinds])
        if spoil:
            spoil(size, kinds, tokens)
        rows = np.arange(size)
        events = table.events(kinds, tokens, table.ranks(kinds, tokens, rng))
        slices.add({"size": rows * 0 + size, "row": rows, "kind": kinds}, events)
    return slices


def test_right_draws_reach_a_number_no_more_often_than_its_inverse() -> None:
    """By Markov's inequality; over 100 runs, at most as many as a binomial of 1 in 10 has once in a thousand."""
    values = np.array([drawn(seed).evidence().log_e_value for seed in range(100)])
    assert (values >= np.log(10)).sum() <= 20
    assert (values >= np.log(1000)).sum() <= 2


def test_fault_is_found_in_its_slice() -> None:
    def spoil(size: int, kinds: Any, tokens: Any) -> None:
        if size > 10:
            tokens[kinds == 4] = 3

    evidence = drawn(1, spoil).evidence()
    assert evidence.log_e_value > np.log(1e6)
    assert evidence.found[0].slice_of["kind"] == 4


def test_certain_and_impossible_events_are_no_evidence() -> None:
    slices = Slices()
    slices.add({"all": np.zeros(50, np.int64)}, {"e": Event(np.ones(50, dtype=bool), np.repeat([0.0, 1.0], 25))})
    assert slices.evidence().log_e_value <= 0


def takes_the_best_in_row_32(batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
    tokens = RIGHT.sample(batch, noise)
    if batch.batch_size > 40:
        tokens[32] = batch.logits[32].argmax()
    return tokens


def keeps_every_eighth_token_of_the_call_before() -> Callable[..., Tensor]:
    before: list[Tensor] = []

    def sample(batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
        tokens = RIGHT.sample(batch, noise)
        if before and batch.top_k is not None:
            old = before.pop()[: len(tokens)].clamp(max=batch.vocab_size - 1)
            tokens[: len(old) : 8] = old[::8]
        before[:] = [tokens.clone()]
        return tokens

    return sample


@pytest.mark.parametrize(
    ("code", "make", "words"),
    [
        ("DIST791", lambda: takes_the_best_in_row_32, r"the best: .* where row 32"),
        ("SAM201", keeps_every_eighth_token_of_the_call_before, r"in call \d+, row \d+ of \d+ got token"),
    ],
)
def test_report_names_the_slice(code: str, make: Callable[[], Any], words: str) -> None:
    wrong = token_sampler(make(), unsupported={"counter-noise": "a test", "draft-distribution": "a test"})
    with pytest.raises(CheckFailure, match=words):
        CHECKS[code].run(wrong, profile=PROFILES["smoke"], seed=1)


def loses_the_bonus_of_request_17(batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, width] int32
    tokens = RIGHT_VERIFIER.verify(batch, noise)
    if batch.batch_size == 33 and (tokens[17] >= 0).sum() > batch.num_draft_tokens[17]:
        tokens[17, batch.num_draft_tokens[17]] = -1
    return tokens


def test_failing_trace_is_made_small() -> None:
    """Only batches of 33 fail: their other requests must stay, and all other calls go."""
    with pytest.raises(CheckFailure, match="in call") as failure:
        CHECKS["REJ701"].run(rejection_sampler(loses_the_bonus_of_request_17), profile=PROFILES["smoke"], seed=1)
    assert len(failure.value.case.calls) == 1
    assert failure.value.case.rows == ()


@pytest.mark.parametrize("num_draws", [1_000, 10_000])
def test_fault_of_the_size_that_the_header_tells_is_seen_in_nine_of_ten_runs(num_draws: int) -> None:
    threshold = 9.2
    size = distance_seen(num_draws, threshold)
    family = _family({"row": np.zeros(num_draws, dtype=np.int32)}, ("row",))
    hits = np.arange(num_draws // 2, num_draws + 1)
    needed = next(
        count
        for count in hits
        if _bet("half", Event(np.arange(num_draws) < count, np.full(num_draws, 0.5)), family, np.arange(num_draws))
        .log_e_value + np.log(_SMALLEST_WEIGHT) >= threshold
    )  # fmt: skip
    assert 0.9 <= binom.sf(needed - 1, num_draws, 0.5 + size) < 0.999
