"""The decoding loop: its language models, its rounds, and its nulls."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from fairdraw import adapters
from fairdraw._run.runner import one_torch_thread
from fairdraw.protocols import rejection_sampler
from fairdraw.statistical._decode import DecodeSetup, decode
from fairdraw.statistical._decode_check import decode_scenarios
from fairdraw.statistical._decode_distributions import FirstTokens, FrequentContexts
from fairdraw.statistical._decode_models import models_on
from fairdraw.statistical._distributions import softmax_probs
from fairdraw.statistical._language_models import NGramModel, Vocabulary, read_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from torch import Tensor

    from fairdraw.protocols import Noise, SpecDecodeBatch

_, PARAMETERS, *_ = decode_scenarios(2, 2)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tensors are small: threads would only wait for each other."""
    with one_torch_thread():
        yield


@pytest.fixture(scope="module")
def small() -> DecodeSetup:
    """One prompt of a language with 8 symbols; penalties, two temperatures and a greedy one."""
    return replace(
        DecodeSetup.of_shipped_text(8, target_order=3, num_prompts=1),
        num_requests=60,
        num_tokens=3,
        max_spec_len=2,
        temperatures=(0.7, 0.0, 1.5),
        presence_penalty=0.5,
        frequency_penalty=0.25,
    )


def extended(
    prefixes: NDArray[np.int64],  # [num_prefixes, width] int64
    vocab_size: int,
) -> NDArray[np.int64]:  # [num_prefixes * vocab_size, width + 1] int64
    """Every prefix with every token appended."""
    tokens = np.tile(np.arange(vocab_size), len(prefixes))
    return np.column_stack([np.repeat(prefixes, vocab_size, axis=0), tokens])


def target_logits(
    setup: DecodeSetup,
    prefixes: NDArray[np.int64],  # [num_prefixes, width] int64
    requests: NDArray[np.int64],  # [num_prefixes] int64
) -> NDArray[np.float32]:  # [num_prefixes, vocab_size] float32
    return models_on(setup, "cpu").target_logits(torch.from_numpy(prefixes), torch.from_numpy(requests)).numpy()


# The language models.


def test_text_survives_its_vocabulary() -> None:
    vocabulary = Vocabulary.of_text(read_text(), 64)
    assert vocabulary.decode(vocabulary.encode(read_text())) == read_text()
    assert vocabulary.size < 64


def test_rare_characters_share_the_last_id() -> None:
    vocabulary = Vocabulary.of_text("aaabbc", 3)
    assert vocabulary.encode("abc").tolist() == [0, 1, 2]
    assert vocabulary.decode(np.array([0, 1, 2, -1])) == "ab#!"


def test_model_interpolates_with_the_shorter_context() -> None:
    model = NGramModel(np.array([0, 0, 1, 0, 0]), 2, 2, strength=2.0)
    single = (np.array([4, 1]) + 2 * 0.5) / (5 + 2)
    after_zero = (np.array([2, 1]) + 2 * single) / (3 + 2)
    after_one = (np.array([1, 0]) + 2 * single) / (1 + 2)
    assert np.exp(model.logits) == pytest.approx(np.array([after_zero, after_one]), rel=1e-6)


def test_every_context_leaves_every_token_possible() -> None:
    probs = np.exp(DecodeSetup.of_shipped_text().target.logits.astype(np.float64))
    assert probs.sum(axis=1) == pytest.approx(1, abs=1e-5)
    assert probs.min() > 0


def test_prefixes_are_read_from_their_ends() -> None:
    setup = DecodeSetup.of_shipped_text()
    text, lengths = setup.vocabulary.encode("the draw"), np.arange(4, 9)
    prefixes = np.where(np.arange(8) < lengths[:, None], text, -1)
    alone = np.stack([text[length - 3 : length] for length in lengths])
    assert np.array_equal(setup.target.contexts(prefixes), setup.target.contexts(alone))


def test_expected_visits_are_those_of_all_sequences(small: DecodeSetup) -> None:
    visits, prefixes, probs = np.zeros(len(small.target.logits)), small.prompts, np.ones(1)
    for _ in range(3):
        np.add.at(visits, small.target.contexts(prefixes), probs)
        probs = (probs[:, None] * softmax_probs(small.target.logits[small.target.contexts(prefixes)], 0.7)).ravel()
        prefixes = extended(prefixes, 8)
    assert small.target.context_visits(small.prompts, 3, 0.7) == pytest.approx(visits, abs=1e-12)


def test_models_refuse_what_they_cannot_be() -> None:
    with pytest.raises(ValueError, match="vocab_size=65, but it must lie in"):
        Vocabulary.of_text(read_text(), 65)
    with pytest.raises(ValueError, match=r"order=9, vocab_size=32, .* at most 16777216"):
        NGramModel(np.zeros(10, dtype=np.int64), 32, 9)
    with pytest.raises(ValueError, match="a prefix has 2 tokens, but it must have at least 3"):
        DecodeSetup.of_shipped_text().target.contexts(np.array([[1, 2, -1]]))


# The loop.


def test_processed_logits_follow_from_the_prefix(small: DecodeSetup) -> None:
    prefix = np.array([[*small.prompts[0], 4, 4, 5, -1]])
    expected = small.target.logits[small.target.contexts(prefix)][0].astype(np.float64)
    expected[4] -= 0.5 + 2 * 0.25
    expected[5] -= 0.5 + 0.25
    assert target_logits(small, prefix, np.array([0]))[0] == pytest.approx(expected / 0.7, rel=1e-6)
    assert target_logits(small, prefix, np.array([1]))[0] == pytest.approx(expected, rel=1e-6)


class Recorder:
    """Passes everything on to the torch sampler, and remembers the batches."""

    name, device = "recorder", "cpu"

    def __init__(self) -> None:
        self.inner = adapters.load("rejection/torch", "cpu")
        self.capabilities = self.inner.capabilities
        self.batches: list[SpecDecodeBatch] = []

    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        self.batches.append(batch)
        return self.inner.verify(batch, noise)


@pytest.mark.parametrize("dense", [True, False], ids=["dense drafts", "one-hot drafts"])
def test_distribution_of_accepted_drafts_is_a_chain_of_acceptances(small: DecodeSetup, dense: bool) -> None:
    setup, sampler = replace(small, dense_drafts=dense, ragged=True, temperatures=(0.7, 1.5)), Recorder()
    found, batch = decode(sampler, setup, seed=1).acceptance_distributions, sampler.batches[0]
    with_drafts = [i for i, count in enumerate(batch.num_draft_tokens) if count]
    for request, probs in zip(with_drafts, found, strict=False):
        rows = batch.token_slice(request)
        expected, reached = [], 1.0
        for row in range(rows.start, rows.stop):
            token = int(batch.draft_token_ids[row])
            draft = 1.0 if batch.draft_probs is None else float(batch.draft_probs[row, token])
            accepted = min(1.0, float(softmax_probs(batch.target_logits[row].numpy())[token]) / draft)
            expected.append(reached * (1 - accepted))
            reached *= accepted
        assert probs == pytest.approx(np.pad([*expected, reached], (0, 2 - len(expected))), abs=3e-6)


def test_loop_offers_what_the_setup_says(small: DecodeSetup) -> None:
    sampler = Recorder()
    decode(sampler, replace(small, ragged=True), seed=1)
    batch = sampler.batches[0]
    assert set(batch.num_draft_tokens) == {0, 1, 2}
    assert batch.temperature.tolist()[:3] == [pytest.approx(0.7), 0.0, 1.5]
    assert all(batch.batch_size >= later.batch_size for batch, later in pairwise(sampler.batches))


def test_same_noise_decodes_the_same_through_any_reference_race() -> None:
    setup, unsupported = decode_scenarios(64)[PARAMETERS].setup, {"seeded-noise": "takes numbers"}
    first, second = (
        decode(rejection_sampler(adapters.load(name, "cpu").verify, unsupported=unsupported), setup, seed=7).tokens
        for name in ("rejection/oracle", "rejection/torch")
    )
    assert np.array_equal(first, second)
    assert (first >= 0).all()


def test_seed_decides_everything(small: DecodeSetup) -> None:
    sampler = adapters.load("rejection/torch", "cpu")
    first, again, other = (decode(sampler, small, seed).tokens for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_greedy_requests_decode_the_argmax(small: DecodeSetup) -> None:
    tokens = decode(adapters.load("rejection/torch", "cpu"), small, seed=1).tokens
    prefix = small.prompts
    for _ in range(small.num_tokens):
        best = target_logits(small, prefix, np.array([1])).argmax(axis=1)
        prefix = np.column_stack([prefix, best])
    assert (tokens[1::3] == prefix).all()


def test_setups_refuse_what_cannot_be_decoded(small: DecodeSetup) -> None:
    with pytest.raises(ValueError, match="num_tokens=0, but it must be at least 1"):
        replace(small, num_tokens=0)
    with pytest.raises(ValueError, match=r"temperatures=\(-1.0,\), but each must be at least 0"):
        replace(small, temperatures=(-1.0,))
    with pytest.raises(ValueError, match="FrequentContexts: the setup has penalties"):
        FrequentContexts(small)
    with pytest.raises(ValueError, match="FirstTokens: 64 prompts, but there must be one"):
        FirstTokens(DecodeSetup.of_shipped_text())


# The nulls.


def test_sequences_have_the_product_of_next_token_distributions(small: DecodeSetup) -> None:
    tables = FirstTokens(small, num_tokens=2).tables
    assert list(tables) == ["first tokens at temperature 0.7", "first tokens at temperature 1.5"]
    for group, table in zip((0, 2), tables.values(), strict=True):
        request, after_five = np.array([group]), np.array([[*small.prompts[0], 5]])
        first = softmax_probs(target_logits(small, small.prompts, request))[0]
        second = softmax_probs(target_logits(small, after_five, request))[0]
        assert table.probs.reshape(8, 8)[5] == pytest.approx(first[5] * second)
        assert table.probs.sum() == pytest.approx(1)
        assert table.num_draws == 20


def test_tables_count_every_request_once(small: DecodeSetup) -> None:
    statistic = FirstTokens(small, num_tokens=3)
    decoding = decode(adapters.load("rejection/torch", "cpu"), small, seed=1)
    counts = statistic.count(decoding)["first tokens at temperature 1.5"]
    own = decoding.tokens[2::3, small.prompt_size :] @ np.array([64, 8, 1])
    assert np.array_equal(counts[:-1], np.bincount(own, minlength=512))
    assert counts[-1] == 0
