"""A drafter and its verifier in the step loop of an engine: both draw from one noise, and positions advance.

Every request has the same two distributions at every place of its text, but for the ids of the tokens: these are moved
around by an amount of the request and the place. So a distribution of another row, or place, is a wrong one, and yet
all places can be counted together, by *kinds* of tokens (ids moved back).

Drafts are the sampler's own. Whatever distribution its drafter reports is taken at its word: all else is judged given
that distribution (`_pair_statistics`).

Randomness:
    Everything follows from one seed. The noise of a set of requests is one object; torch's default generator is seeded
    when the set begins and goes on from call to call. Bonus tokens, and the numbers that fill and split cells, are the
    suite's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fairdraw._core.array_types import Float32s, Ints, PerRequest
from fairdraw._core.noise import seeded
from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import PLACEHOLDER_TOKEN_ID, Capability, DraftStep, SeededNoise, SpecDecodeBatch
from fairdraw.contracts._rejection import emit_next, propose_next
from fairdraw.statistical._noise import noise_for, noise_kind
from fairdraw.statistical._token_draws import draw_one

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from fairdraw.contracts import DraftingSampler, Noise

Probs = Float32s  # [batch_size, max_spec_len, vocab_size]
Drafts = Ints  # [batch_size, max_spec_len]
Tokens = Ints  # [batch_size, max_spec_len + 1]

TARGET = np.array([0.1, 0.1, 0.375, 0.375, 0.05, 0.0, 0.0, 0.0])
DRAFT = np.array([0.0, 0.0, 0.325, 0.325, 0.15, 0.1, 0.1, 0.0])
"""By kind of token. Noise that drafter and recovery share shows best if some recovered tokens are never drafted and
others often: the former win the race, because the latter have just lost one. 30 % of drafts are rejected."""

NUM_STEPS = 4
"""Of a set of requests. Pairs of steps are counted once: steps 0 and 1, and steps 2 and 3."""

_DRAFTS = (1, 5, 3, 5, 4, 5, 2, 5, 4, 5)
"""Of the requests of a cycle. A drafter drafts for the longest of them, so most are long. The first half has seeds."""
CYCLE = len(_DRAFTS)

_TEMPERATURES = (1.0, 0.7, 1.6)
_GREEDY_FROM = 2
"""In this step and later ones a request is greedy in each cycle, beside those that are judged: a drafter often has
another path for a batch in which some requests are."""

_EQUAL_DRAFTS = 3
"""Of a sampler that does not take ragged batches."""
_FARTHEST = 5000
"""Places at which texts begin, at most."""


@dataclass(frozen=True, eq=False)
class PairSteps:
    """What the requests of a set did, step by step; tokens by kind.

    Args:
        draft_probs: As reported, in float64.
        num_emitted: 0 for malformed rows, and for all that follow one.
    """

    num_draft: Ints  # [batch_size] int64
    has_seed: NDArray[np.bool_]  # [batch_size] bool
    draft_probs: NDArray[np.float64]  # [num_steps, batch_size, max_spec_len, vocab_size] float64
    drafts: Ints  # [num_steps, batch_size, max_spec_len] int64
    tokens: Ints  # [num_steps, batch_size, max_spec_len + 1] int64
    num_emitted: Ints  # [num_steps, batch_size] int64


def num_drafts(supported: Collection[Capability]) -> Ints:  # [CYCLE] int64
    """Drafts of the requests of a cycle."""
    return np.array(_DRAFTS) if Capability.RAGGED in supported else np.full(CYCLE, _EQUAL_DRAFTS)


def have_seeds(supported: Collection[Capability]) -> NDArray[np.bool_]:  # [CYCLE] bool
    """Which requests of a cycle have seeds of their own."""
    return (np.arange(CYCLE) < CYCLE // 2) & (Capability.REQUEST_SEEDS in supported)


class PairLoop:
    """A set of requests, `num_cycles` times the cycle, and its steps.

    Args:
        supported: Of the capabilities that the set adapts to, those of the sampler.
    """

    def __init__(self, supported: Collection[Capability], num_cycles: int, device: str, seed: int) -> None:
        counts = num_drafts(supported)
        self._judged = slice(CYCLE * num_cycles)
        self._counts = np.append(np.tile(counts, num_cycles), np.full(num_cycles, counts.max()))
        self._has_seed = np.append(np.tile(have_seeds(supported), num_cycles), np.zeros(num_cycles, dtype=bool))
        self._takes_greedy = Capability.GREEDY in supported
        self._keeps_one_hot = Capability.ONE_HOT_DRAFTS in supported
        self._device, self._seed = device, seed
        self._rng = np.random.default_rng(derive_seed("pair", seed))
        batch_size = self._counts.size
        self._positions = self._rng.integers(1, _FARTHEST, batch_size)
        self._temperature = np.resize(np.array(_TEMPERATURES, dtype=np.float32), batch_size)
        own = np.flatnonzero(self._has_seed)
        seeds = dict(zip(own.tolist(), self._rng.integers(0, 2**62, own.size).tolist(), strict=True))
        self._noise = SeededNoise(derive_seed("noise", seed), seeds)

    @property
    def _width(self) -> int:
        return int(self._counts.max())

    def run(self, sampler: DraftingSampler) -> PairSteps:
        """All steps. A request whose row is malformed goes on, but counts no more."""
        parts, well_formed, judged = [], np.ones(self._counts.size, dtype=bool), self._judged
        with seeded(self._noise, torch.device(self._device)):
            for number in range(NUM_STEPS):
                if self._takes_greedy and number == _GREEDY_FROM:
                    self._temperature[judged.stop :] = 0
                probs, drafts = self._propose(sampler)
                batch = self._batch(probs, drafts)
                noise: Noise = self._noise  # that of the drafts, if the sampler takes seeds
                if noise_kind(sampler) is Capability.EXPLICIT_NOISE:
                    noise = noise_for(Capability.EXPLICIT_NOISE, batch, derive_seed("numbers", self._seed, number))
                tokens = self._by_kind(emit_next(sampler, batch, noise).astype(np.int64))
                kinds = self._by_kind(drafts)
                emitted = _num_emitted(tokens, kinds, self._counts) * well_formed
                well_formed = emitted > 0
                parts.append((self._probs_by_kind(probs), kinds[judged], tokens[judged], emitted[judged]))
                self._positions = self._positions + np.maximum(emitted, 1)
        steps = (np.stack(one) for one in zip(*parts, strict=True))
        return PairSteps(self._counts[judged], self._has_seed[judged], *steps)

    def _rolls(self, width: int) -> Ints:  # [batch_size, width] int64
        """By how much the ids are moved at the places from each request's next token on."""
        places = self._positions[:, None] + np.arange(width)
        return np.asarray((3 * np.arange(self._counts.size)[:, None] + 5 * places) % TARGET.size)

    def _by_kind(self, token_ids: Ints) -> Ints:  # both [batch_size, width] int64
        """Kinds of tokens; -1 where there is none, and `_NO_TOKEN` for what is no token."""
        kinds = (token_ids - self._rolls(token_ids.shape[1])) % TARGET.size
        is_token = (token_ids >= 0) & (token_ids < TARGET.size)
        return np.where(is_token, kinds, np.where(token_ids == PLACEHOLDER_TOKEN_ID, -1, _NO_TOKEN))

    def _probs_by_kind(self, probs: Probs) -> NDArray[np.float64]:  # [batch_size, max_spec_len, vocab_size] float64
        ids = (np.arange(TARGET.size) + self._rolls(probs.shape[1])[self._judged, :, None]) % TARGET.size
        exact = np.take_along_axis(probs[self._judged].astype(np.float64), ids, axis=2)
        return np.asarray(exact / exact.sum(axis=2, keepdims=True))

    def _logits(self, probs: NDArray[np.float64], width: int) -> Float32s:
        """Rows of logits `[batch_size, width, vocab_size]` of these probabilities by kind."""
        with np.errstate(divide="ignore"):
            logits = np.log(probs)
        return np.stack([np.roll(logits, roll) for roll in range(probs.size)])[self._rolls(width)].astype(np.float32)

    def _propose(
        self, sampler: DraftingSampler
    ) -> tuple[Float32s, Ints]:  # [batch_size, max_spec_len, vocab_size], without the last
        """Drafts of all places, asked for one place after the other, and what they were drawn from."""
        logits = self._logits(DRAFT, self._width) * np.where(self._temperature > 0, self._temperature, 1)[:, None, None]
        found = []
        for place in range(self._width):
            step = DraftStep(
                draft_logits=torch.from_numpy(np.ascontiguousarray(logits[:, place])).to(self._device),
                positions=torch.from_numpy(self._positions + place).to(self._device),
                temperature=torch.from_numpy(self._temperature.copy()).to(self._device),
                step=place,
                origin=f"<draft {place} of {self._counts.size} requests by statistical.PairLoop(seed={self._seed})>",
            )
            found.append(propose_next(sampler, step, self._noise))
        self._is_one_hot = all(one.draft_probs is None for one in found)
        one_hot = np.eye(TARGET.size, dtype=np.float32)
        probs = [one_hot[one.token_ids] if one.draft_probs is None else one.draft_probs for one in found]
        return np.stack(probs, axis=1), np.stack([one.token_ids for one in found], axis=1)

    def _batch(self, probs: Probs, drafts: Drafts) -> SpecDecodeBatch:
        """What is verified next; the bonus token is drawn from the suite's own stream."""
        batch_size, drafted = self._counts.size, np.arange(self._width) < self._counts[:, None]
        logits = self._logits(TARGET, self._width + 1)
        last = self._rolls(self._width + 1)[np.arange(batch_size), self._counts]
        bonus = (draw_one(TARGET, self._rng.random(batch_size)) + last) % TARGET.size
        arrays = {
            "draft_token_ids": drafts[drafted].astype(np.int32),
            "cu_num_draft_tokens": self._counts.cumsum().astype(np.int32),
            "draft_probs": None if self._is_one_hot and self._keeps_one_hot else probs[drafted],
            "target_logits": logits[:, :-1][drafted],
            "bonus_token_ids": bonus.astype(np.int32)[:, None],
            "temperature": self._temperature.copy(),
            "positions": self._positions.copy(),
            "bonus_logits": logits[np.arange(batch_size), self._counts],
        }
        tensors: dict[str, Any] = {
            name: None if array is None else torch.from_numpy(array).to(self._device) for name, array in arrays.items()
        }  # Any: one field each
        return SpecDecodeBatch(
            num_draft_tokens=self._counts.tolist(),
            max_spec_len=self._width,
            origin=f"<{batch_size} requests drafted by the sampler, by statistical.PairLoop(seed={self._seed})>",
            **tensors,
        )


_NO_TOKEN = -2


def _num_emitted(tokens: Tokens, drafts: Drafts, num_draft: PerRequest) -> PerRequest:
    """Tokens per row: accepted drafts and one more; 0 for a row that is not made so."""
    count = (tokens >= 0).sum(axis=1)
    places = np.arange(tokens.shape[1])
    ends = (tokens == PLACEHOLDER_TOKEN_ID) | (places < count[:, None])
    kept = (tokens[:, :-1] == drafts) | (places[:-1] >= count[:, None] - 1)
    is_right = ends.all(axis=1) & kept.all(axis=1) & (count > 0) & (count <= num_draft + 1)
    return np.where(is_right, count, 0)
