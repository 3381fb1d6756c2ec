"""Drafters with verifiers: wrong in what the two share, each caught by the checks of pairs.

`Pair` draws by counters: a number is a hash of the request's seed, the position of its token, a stream, and the token
of the vocabulary. The mutants change which stream, seed or position is taken. That is how such faults come about.
A mutant that is a function stands for one step of `Pair`; `right` has the correct steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairdraw._mutants._distribution_sampler import Call, DistributionSampler, Drawn, Floats, Tokens, by_inverse_cdf
from fairdraw._mutants._mutant import Mutant, mutants_in, patching
from fairdraw._mutants.distributions import BlockVerification, mutant_distribution
from fairdraw.contracts import Drafted, DraftStep, Noise, SeededNoise, SpecDecodeBatch

Key = tuple[NDArray[np.uint64], Tokens, int]
"""Seed and position of each row, and a stream."""

_DRAFTS, _ACCEPTANCE, _LAST = 1, 2, 3
"""Streams: of the drafter, of the acceptance test, and of the token that ends a row."""


@dataclass(frozen=True)
class Keyed(Drawn):
    """The random numbers of a call, and the keys that they were made of."""

    seeds: NDArray[np.uint64]  # [batch_size] uint64
    positions: Tokens  # [num_tokens] int64


class Pair(DistributionSampler):
    """A Gumbel-max drafter and a verifier, both keyed by (seed, position), in streams of their own."""

    draft_stream, acceptance_stream, recovery_stream, bonus_stream = _DRAFTS, _ACCEPTANCE, _LAST, _LAST

    # the drafter

    def propose(self, step: DraftStep, noise: SeededNoise) -> Drafted:
        """A draft token per request, and its distribution."""
        seeds = self.seeds_of(noise.seed, noise.request_seeds, step.batch_size)
        probs = self.draft_probs(step)
        ids = self.choose(probs, self.draft_key(seeds, step), step)
        return Drafted(torch.from_numpy(ids.astype(np.int32)), self.reported(probs, step))

    def draft_probs(self, step: DraftStep) -> Floats:
        """What drafts are drawn from, `[batch_size, vocab_size]`; a greedy request is all but certain of the best."""
        return np.asarray((step.draft_logits / step.temperature.clamp(min=1e-6)[:, None]).softmax(dim=-1).numpy())

    def draft_key(self, seeds: NDArray[np.uint64], step: DraftStep) -> Key:
        """Seed, position and stream of each request's draft."""
        return seeds, step.positions.numpy(), self.draft_stream

    def choose(self, probs: Floats, key: Key, step: DraftStep) -> Tokens:
        """One token per row."""
        return race(probs, key)

    def reported(self, probs: Floats, step: DraftStep) -> Any:  # Any: a tensor or None
        """The distribution that the verifier gets."""
        return torch.from_numpy(np.ascontiguousarray(probs, dtype=np.float32))

    # the verifier

    def seeds_of(self, seed: int, own: Mapping[int, int], batch_size: int) -> NDArray[np.uint64]:
        """A seed per request; without one of its own, made of the call's and its row."""
        seeds = hashed(np.uint64(seed % 2**64), np.arange(batch_size, dtype=np.uint64))
        for request, one in own.items():
            seeds[request] = one % 2**64
        return seeds

    def draw(self, batch: SpecDecodeBatch, seed: int) -> Drawn:
        """Numbers of requests without seeds; `seed_requests` replaces all."""
        return Drawn(np.empty(0, np.float32), np.empty((0, 0), np.float32), seed)

    def seeds_of_step(self, noise: SeededNoise) -> Mapping[int, int]:
        return noise.request_seeds

    def seed_requests(self, drawn: Drawn, batch: SpecDecodeBatch, request_seeds: Mapping[int, int]) -> Drawn:
        seeds = self.seeds_of(drawn.seed, request_seeds, batch.batch_size)
        counts, places = np.array(batch.num_draft_tokens), np.arange(batch.num_tokens)
        first = np.zeros(batch.batch_size, np.int64) if batch.positions is None else batch.positions.numpy()
        positions = np.repeat(first - (np.cumsum(counts) - counts), counts) + places
        requests = np.repeat(np.arange(batch.batch_size), counts)
        key = (seeds[requests], positions, self.acceptance_stream)
        return Keyed(uniforms(key, 1)[:, 0], np.empty((0, 0), np.float32), drawn.seed, seeds, positions)

    def recover(self, weights: Floats, drawn: Drawn, requests: Tokens, rows: Tokens) -> Tokens:
        assert isinstance(drawn, Keyed)
        return race(weights, (drawn.seeds[requests], drawn.positions[rows], self.recovery_stream))

    def bonus(self, call: Call) -> Tokens:
        """Drawn from the bonus logits where the batch has them."""
        batch, drawn = call.batch, call.drawn
        if batch.bonus_logits is None or batch.positions is None:
            return super().bonus(call)
        assert isinstance(drawn, Keyed)
        probs = np.asarray(batch.bonus_logits.softmax(dim=-1).numpy())
        return race(probs, (drawn.seeds, self.bonus_positions(batch), self.bonus_stream))

    def bonus_positions(self, batch: SpecDecodeBatch) -> Tokens:
        """Where each request's bonus token will stand."""
        assert batch.positions is not None
        return np.asarray(batch.positions.numpy() + np.array(batch.num_draft_tokens))


def hashed(key: Any, value: Any) -> NDArray[np.uint64]:  # Any: uint64, arrays or one
    """A step of splitmix64 over both."""
    with np.errstate(over="ignore"):
        word = (key ^ (value * np.uint64(0x9E3779B97F4A7C15))) + np.uint64(0x9E3779B97F4A7C15)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(word ^ (word >> np.uint64(31)), dtype=np.uint64)


def uniforms(key: Key, count: int) -> Floats:  # [num_rows, count]
    """Numbers in (0, 1) of each row's key."""
    seeds, positions, stream = key
    rows = hashed(hashed(hashed(seeds, np.uint64(7)), positions.astype(np.uint64)), np.uint64(stream))
    words = hashed(rows[:, None], np.arange(count, dtype=np.uint64))
    return np.asarray(((words >> np.uint64(41)).astype(np.float32) + np.float32(0.5)) * np.float32(2**-23))


def race(weights: Floats, key: Key) -> Tokens:
    """One token per row: the argmax of log-weight plus Gumbel noise."""
    with np.errstate(divide="ignore"):
        noisy = np.log(weights) - np.log(-np.log(uniforms(key, weights.shape[1]).astype(np.float64)))
    return np.asarray(noisy.argmax(axis=1))


_patched = patching(mutant_distribution, Pair)


# The verifier draws with the drafter's noise.


@mutant_distribution("DIST803", "DIST806")
class RecoversWithTheGumbelNoiseOfTheDraft(Pair):
    """Both are keyed by (seed, position): what has just lost against the draft loses again (vLLM #54282)."""

    recovery_stream = _DRAFTS


@_patched("recover", "DIST803", min_draws=50_000)
def recovers_with_the_noise_of_the_draft_at_one_position(
    right: Pair, weights: Floats, drawn: Drawn, requests: Tokens, rows: Tokens
) -> Tokens:
    """The salt is forgotten at the fourth draft position."""
    assert isinstance(drawn, Keyed)
    shared = race(weights, (drawn.seeds[requests], drawn.positions[rows], _DRAFTS))
    first = np.flatnonzero(np.append(True, np.diff(drawn.positions) != 1))
    place = rows - first[np.searchsorted(first, rows, side="right") - 1]
    return np.where(place == 3, shared, right.recover(weights, drawn, requests, rows))


class _SharesForSome(Pair):
    """Requests with a seed of their own take another path than others; the key of one of them has no salt."""

    with_seeds = True

    def __init__(self) -> None:
        self._own: Mapping[int, int] = {}

    def seed_requests(self, drawn: Drawn, batch: SpecDecodeBatch, request_seeds: Mapping[int, int]) -> Drawn:
        self._own = request_seeds
        return super().seed_requests(drawn, batch, request_seeds)

    def recover(self, weights: Floats, drawn: Drawn, requests: Tokens, rows: Tokens) -> Tokens:
        assert isinstance(drawn, Keyed)
        shared = race(weights, (drawn.seeds[requests], drawn.positions[rows], _DRAFTS))
        is_shared = np.isin(requests, list(self._own)) == self.with_seeds
        return np.where(is_shared, shared, super().recover(weights, drawn, requests, rows))


@mutant_distribution("DIST803")
class RecoversSeededRequestsWithTheNoiseOfTheDraft(_SharesForSome):
    """The salt is forgotten where requests have seeds of their own."""


@mutant_distribution("DIST803")
class RecoversOtherRequestsWithTheNoiseOfTheDraft(_SharesForSome):
    """The salt is forgotten where requests have no seed of their own."""

    with_seeds = False


class DraftsByInverseCdf(Pair):
    """One uniform per draft."""

    def choose(self, probs: Floats, key: Key, step: DraftStep) -> Tokens:
        return by_inverse_cdf(probs, uniforms(key, 1)[:, 0])


@mutant_distribution("DIST802", "DIST806")
class AcceptsWithTheUniformThatDrafted(DraftsByInverseCdf):
    """The first uniform of (seed, position) draws the draft and decides about it."""

    acceptance_stream = _DRAFTS


@mutant_distribution("DIST804", "DIST806")
class DrawsTheBonusWithTheNoiseOfTheLastDraft(Pair):
    """The bonus token is keyed by the last draft's position, without the salt."""

    bonus_stream = _DRAFTS

    def bonus_positions(self, batch: SpecDecodeBatch) -> Tokens:
        return super().bonus_positions(batch) - 1


@_patched("draft_key", "DIST805", "DIST806")
def drafts_with_the_noise_of_the_token_before(right: Pair, seeds: NDArray[np.uint64], step: DraftStep) -> Key:
    """Drafter and verifier share a stream, and the drafter counts from the input token: its first draft has the noise
    of the bonus or recovered token that ended the step before."""
    return seeds, step.positions.numpy() - 1, _LAST


@_patched("draft_key", "DIST805")
def begins_the_drafters_stream_anew_in_every_step(right: Pair, seeds: NDArray[np.uint64], step: DraftStep) -> Key:
    """Drafts are keyed by their number within the step."""
    return seeds, np.full(step.batch_size, step.step), _DRAFTS


@_patched("draft_key", "DIST801", "DIST802")
def drafts_of_a_step_share_their_noise(right: Pair, seeds: NDArray[np.uint64], step: DraftStep) -> Key:
    """Drafts are keyed by the position of the first of them."""
    return seeds, step.positions.numpy() - step.step, _DRAFTS


@mutant_distribution("DIST806", min_draws=50_000)
class RecoversAfterABlockWithTheNoiseOfTheDraft(Pair, BlockVerification):
    """The drafts are verified jointly; the recovered token has the draft's noise."""

    recovery_stream = _DRAFTS
    unsupported: ClassVar[dict[str, str]] = BlockVerification.unsupported


class _OtherPositions(Pair):
    """The verifier keys its noise by something else than the positions."""

    def verified_at(self, positions: Tokens) -> Tokens:  # [batch_size] int64, and the same
        """What it keys by."""
        return positions

    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:
        if batch.positions is not None:
            batch = batch.replace(positions=torch.from_numpy(self.verified_at(batch.positions.numpy())))
        return super().verify(batch, noise)


_elsewhere = patching(mutant_distribution, _OtherPositions)


@_elsewhere("verified_at", "REJ659", "DIST805", "DIST806")
def verifies_every_step_with_the_same_noise(answer: Tokens, positions: Tokens) -> Tokens:
    """The key has the seed and the place in the step, and not where the request is."""
    return np.zeros_like(answer)


@_elsewhere("verified_at", "REJ659")
def keeps_positions_in_sixteen_bits(answer: Tokens, positions: Tokens) -> Tokens:
    """A long text repeats its noise."""
    return answer % 2**16


@_patched("bonus_positions", "REJ659")
def keys_the_bonus_by_the_number_of_drafts(right: Pair, batch: SpecDecodeBatch) -> Tokens:
    """The key of the bonus token has its place in the step instead of its place in the text."""
    return np.array(batch.num_draft_tokens)


@_patched("draft_key", "REJ659")
def drafts_of_a_lone_request_share_their_noise(right: Pair, seeds: NDArray[np.uint64], step: DraftStep) -> Key:
    """A batch of one keys all drafts of a step by the position of the first."""
    return seeds, step.positions.numpy() - step.step * (step.batch_size == 1), _DRAFTS


@_patched("draft_key", "REJ659")
def drafts_by_seed_plus_position(right: Pair, seeds: NDArray[np.uint64], step: DraftStep) -> Key:
    """The drafter's key is a sum: a request says what its neighbour says a step later."""
    return seeds + step.positions.numpy().astype(np.uint64), np.zeros(step.batch_size, np.int64), _DRAFTS


# The drafter reports what it did not draw from.


@_patched("choose", "DIST801", "DIST806")
def drafts_at_another_temperature(right: Pair, probs: Floats, key: Key, step: DraftStep) -> Tokens:
    """Draws at 1.2 times the temperature and reports the softmax at the request's own."""
    return race(probs ** np.float32(1 / 1.2), key)


@_patched("choose", "DIST801", "DIST806")
def drafts_greedily_and_reports_the_softmax(right: Pair, probs: Floats, key: Key, step: DraftStep) -> Tokens:
    """Takes the most probable token and says that it was drawn."""
    return np.asarray(probs.argmax(axis=1))


@_patched("reported", "DIST801", "DIST806")
def reports_the_row_of_the_next_request(right: Pair, probs: Floats, step: DraftStep) -> Any:
    """Probabilities and tokens are gathered by other indices."""
    return right.reported(np.roll(probs, -1, axis=0), step)


@_patched("choose", "DIST801")
def reports_the_softmax_at_the_third_position(right: Pair, probs: Floats, key: Key, step: DraftStep) -> Tokens:
    """Draws at the request's temperature but at the third draft position, where it draws at 1.4 times that."""
    return race(probs ** np.float32(1 / 1.4) if step.step == 2 else probs, key)


PAIR_MUTANTS: tuple[Mutant, ...] = mutants_in(vars())
