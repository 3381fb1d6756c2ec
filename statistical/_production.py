"""S9: production vocabularies, where no distribution is enumerated and no two rows need be alike.

A pool of distributions, as different as traffic is (near-greedy to flat, some truncated), is dealt to the drafted
positions of ragged batches. Every decision of the sampler is then transformed to a uniform number (`_pit`) and pooled:

* each emitted token under its target distribution, by rank, by id and by projections of it (`_projections`):
  losslessness, whatever the verifier;
* each acceptance under its probability, and each recovered token under its residual: token verification.

Catches: wrong temperature or filter, lost tail, lost vocabulary tile, offset errors in ragged batches, ignored draft
probabilities. Blind to: dependence between rows, calls, drafter and sampler, which leaves these distributions intact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import PLACEHOLDER_TOKEN_ID, RejectionSampler, SpecDecodeBatch
from fairdraw.statistical._count_tables import Table, sum_counts
from fairdraw.statistical._distributions import acceptance_probs, recoverable, residual_probs, softmax_probs
from fairdraw.statistical._noise import draw_rows
from fairdraw.statistical._pit import PitCells
from fairdraw.statistical._projections import PitDistributions, TokenTables
from fairdraw.statistical._validation import check_probs, refuse

RAGGED_DRAFTS: tuple[int, ...] = (3, 0, 1, 5)
EQUAL_DRAFTS: tuple[int, ...] = (3, 3, 3, 3)
"""Draft tokens per request, in a cycle: as in an engine, and for samplers that do not support ragged batches."""


@dataclass(frozen=True, eq=False)
class DistributionPool:
    """Pairs of target and draft distributions, as the sampler gets them and in float64.

    Args:
        one_hot: The sampler gets no draft probabilities. Drafts are accepted with their target probability, and a
            rejected one is left out of the recovery.
    """

    target_logits: NDArray[np.float32]  # [num_distributions, vocab_size] float32
    draft_probs: NDArray[np.float32]  # [num_distributions, vocab_size] float32
    one_hot: bool = False

    @classmethod
    def build(cls, vocab_size: int, num_distributions: int, seed: int, *, one_hot: bool = False) -> DistributionPool:
        """Normal logits at scales 1 to 6; drafts are the same, disturbed. It takes 110 bytes per row and token.

        Every fourth row forbids a random half of the vocabulary, and its drafter does not know; every fourth drafter
        cannot draw a random tenth.
        """
        rng = np.random.default_rng(derive_seed("distribution pool", vocab_size, num_distributions, seed))
        base = rng.normal(size=(num_distributions, vocab_size)) * np.geomspace(1, 6, num_distributions)[:, None]
        logits, draft_logits = base.copy(), base + 0.7 * rng.normal(size=base.shape)
        logits[::4][rng.random(logits[::4].shape) < 0.5] = -np.inf
        draft_logits[1::4][rng.random(draft_logits[1::4].shape) < 0.1] = -np.inf
        return cls(logits.astype(np.float32), softmax_probs(draft_logits).astype(np.float32), one_hot)

    @cached_property
    def target(self) -> NDArray[np.float64]:  # [num_distributions, vocab_size] float64
        """The target distributions in float64."""
        return softmax_probs(self.target_logits)

    @cached_property
    def draft(self) -> NDArray[np.float64]:  # [num_distributions, vocab_size] float64
        """The draft distributions in float64."""
        return check_probs("DistributionPool", "draft_probs", self.draft_probs)

    @cached_property
    def acceptance(self) -> NDArray[np.float64]:  # [num_distributions, vocab_size] float64
        """The acceptance probability of each draft token."""
        return self.target if self.one_hot else acceptance_probs(self.target, self.draft)

    @cached_property
    def emitted(self) -> dict[str, PitDistributions]:
        """What emitted tokens follow, by way to count them."""
        return PitDistributions.by_way(self.target, self.target > 0)

    @cached_property
    def recovered(self) -> dict[str, PitDistributions]:
        """What recovered tokens follow, by way to count them."""
        if self.one_hot:
            return self.emitted
        return PitDistributions.by_way(residual_probs(self.target, self.draft), recoverable(self.target, self.draft))

    @cached_property
    def step_acceptance(self) -> float:
        """Probability that a draft, drawn from its distribution, is accepted: the mean over the pool."""
        shared = self.draft * self.target if self.one_hot else np.minimum(self.target, self.draft)
        return float(shared.sum(axis=1).mean())

    @cached_property
    def _draft_cumulative(self) -> NDArray[np.float64]:  # [num_distributions, vocab_size] float64
        """The CDF of each draft distribution."""
        cumulative = np.cumsum(self.draft, axis=1)
        return np.asarray(cumulative / cumulative[:, -1:])

    def draw_drafts(
        self,
        distribution_ids: NDArray[np.int64],  # [num_tokens] int64
        uniforms: NDArray[np.float64],  # [num_tokens] float64
    ) -> NDArray[np.int32]:  # [num_tokens] int32
        """A draft token for each row: one search per distribution, because its rows share the sums."""
        drawn = np.empty(distribution_ids.size, dtype=np.int32)
        for distribution_id, sums in enumerate(self._draft_cumulative):
            own = distribution_ids == distribution_id
            drawn[own] = np.searchsorted(sums, uniforms[own], "right")
        return drawn


@lru_cache(maxsize=6)
def _pool_on(pool: DistributionPool, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Target logits and draft probabilities of a pool, each `[num_distributions, vocab_size] float32`."""
    return torch.from_numpy(pool.target_logits).to(device), torch.from_numpy(pool.draft_probs).to(device)


Numbers = dict[str, "NDArray[np.float64]"]
"""Transforms by way to count, each `[num_samples] float64`."""


@dataclass(frozen=True)
class _Decisions:
    """Transformed decisions of one call; emitted tokens and acceptance at every position that was reached."""

    position: NDArray[np.int64]  # [num_reached] int64
    emitted: Numbers
    recovered: Numbers
    acceptance: NDArray[np.float64]  # [num_reached] float64


@dataclass(frozen=True)
class ProductionExperiment:
    """Calls at a production vocabulary, and the tables that they fill.

    Args:
        batch_size: Requests per call; a multiple of the cycle of draft lengths.
        cycle: Draft tokens per request, in turn.
    """

    pool: DistributionPool
    batch_size: int = 64
    device: str = "cpu"
    cycle: tuple[int, ...] = RAGGED_DRAFTS
    cells: PitCells = PitCells()  # noqa: RUF009  immutable

    @cached_property
    def _tokens(self) -> dict[str, TokenTables]:
        sizes = (self.pool.target_logits.shape[1],)
        return {what: TokenTables(f"S9 {what} token", sizes, self.cells) for what in ("emitted", "recovered")}

    def __post_init__(self) -> None:
        cycle = len(self.cycle)
        if self.batch_size < cycle or self.batch_size % cycle:
            given = f"batch_size={self.batch_size}"
            raise refuse("ProductionExperiment", given, f"it must be a multiple of {cycle}", "Use 64.")

    @property
    def num_draft_tokens(self) -> list[int]:  # [batch_size]
        """Draft tokens of each request."""
        return list(self.cycle) * (self.batch_size // len(self.cycle))

    def tables(self, num_calls: int) -> dict[str, Table]:
        """Every table, with the draws of so many calls; a draw is a drafted position."""
        step, num_draws = self.pool.step_acceptance, num_calls * sum(self.num_draft_tokens)
        reached = float(np.mean(np.concatenate([step ** np.arange(count) for count in self.cycle])))
        # A first position is always reached, so every verifier brings this many emitted tokens.
        at_least = np.count_nonzero(self.cycle) / sum(self.cycle)
        rejected = reached * (1 - step)
        tables = self._tokens["emitted"].tables(num_draws, at_least, reached)
        tables |= self._tokens["recovered"].tables(num_draws, rejected)
        return tables | {"S9 acceptance": self.cells.table(num_draws, reached)}

    def count(self, sampler: RejectionSampler, num_calls: int, seed: int) -> dict[str, NDArray[np.int64]]:
        """The count tables of `num_calls` calls.

        Raises:
            ValueError: If there is no call.

        Randomness:
            Everything follows from `seed` and the number of the call.
        """
        if num_calls < 1:
            raise refuse("count", f"num_calls={num_calls}", "it must be at least 1", "Nothing drawn is not a pass.")
        return sum_counts(self._count_call(sampler, derive_seed("production", seed, call)) for call in range(num_calls))

    def _count_call(self, sampler: RejectionSampler, seed: int) -> dict[str, NDArray[np.int64]]:
        """The count tables of one call."""
        rng = np.random.default_rng(derive_seed("distributions", seed))
        distribution_ids = rng.integers(0, len(self.pool.target_logits), sum(self.num_draft_tokens))
        batch = self._batch(distribution_ids, seed)
        return self._count_decisions(self._decisions(batch, draw_rows(sampler, batch, seed), distribution_ids, rng))

    def _count_decisions(self, found: _Decisions) -> dict[str, NDArray[np.int64]]:
        """Return the count tables of transformed decisions."""
        counts = self._tokens["emitted"].count(found.emitted) | self._tokens["recovered"].count(found.recovered)
        return counts | {"S9 acceptance": self.cells.count(found.acceptance)}

    def _batch(self, distribution_ids: NDArray[np.int64], seed: int) -> SpecDecodeBatch:
        """A ragged batch whose drafted position `i` has the distributions `distribution_ids[i]`.

        Randomness:
            Drafts and bonus tokens from a stream hashed from `seed`.
        """
        rng = np.random.default_rng(derive_seed("drafts", seed))
        drafts = self.pool.draw_drafts(distribution_ids, rng.random(distribution_ids.size))
        counts, vocab_size = self.num_draft_tokens, self.pool.target_logits.shape[1]
        # Rows are gathered on the sampler's device: a call moves a gigabyte.
        target_logits, draft_probs = _pool_on(self.pool, self.device)
        rows = torch.from_numpy(distribution_ids).to(self.device)
        bonus = torch.from_numpy(rng.integers(0, vocab_size, (self.batch_size, 1)))
        return SpecDecodeBatch(
            draft_token_ids=torch.from_numpy(drafts).to(self.device),
            num_draft_tokens=counts,
            cu_num_draft_tokens=torch.tensor(counts, dtype=torch.int32).cumsum(0, dtype=torch.int32).to(self.device),
            max_spec_len=max(counts),
            draft_probs=None if self.pool.one_hot else draft_probs[rows],
            target_logits=target_logits[rows],
            bonus_token_ids=bonus.to(self.device, torch.int32),
            temperature=torch.ones(self.batch_size, device=self.device),
            origin=f"<production batch, vocab_size={vocab_size}, seed={seed}>",
        )

    def _decisions(
        self,
        batch: SpecDecodeBatch,
        tokens: NDArray[np.int32],  # [batch_size, max_spec_len + 1] int32
        distribution_ids: NDArray[np.int64],  # [num_tokens] int64
        rng: np.random.Generator,
    ) -> _Decisions:
        """Transform what was decided at every drafted position that was reached."""
        counts, drafts = np.array(self.num_draft_tokens), batch.draft_token_ids.cpu().numpy()
        request = np.repeat(np.arange(self.batch_size), counts)
        position = np.arange(distribution_ids.size) - np.repeat(np.cumsum(counts) - counts, counts)
        num_emitted = (tokens != PLACEHOLDER_TOKEN_ID).sum(axis=1)[request]
        reached, accepted = position < num_emitted, position + 1 < num_emitted
        rejected, emitted = reached & ~accepted, tokens[request, position]

        def transformed(
            pool: dict[str, PitDistributions], own: NDArray[np.bool_], left_out: NDArray[np.int32] | None
        ) -> Numbers:
            given = distribution_ids[own], emitted[own], rng.random(np.count_nonzero(own)), left_out
            return {way: one.transform(*given) for way, one in pool.items()}

        left_out = drafts[rejected] if self.pool.one_hot else None
        acceptance, uniforms = self.pool.acceptance[distribution_ids, drafts], rng.random(distribution_ids.size)
        decided = np.where(accepted, uniforms * acceptance, acceptance + uniforms * (1 - acceptance))
        return _Decisions(
            position[reached],
            transformed(self.pool.emitted, reached, None),
            transformed(self.pool.recovered, rejected, left_out),
            np.minimum(decided[reached], np.nextafter(1.0, 0.0)),
        )


LONG_DRAFTS: tuple[int, ...] = (128, 37, 0, 100, 5)
"""Drafts per request, in a cycle: lengths up to the largest, none of them a multiple of another."""

_POSITIONS = ((0, 1), (1, 8), (8, 32), (32, 64), (64, 96), (96, 128))
"""Positions that are judged together, from the first to before the second."""

_SURELY_REACHED = 0.4
"""Of the requests that reach the end of such positions on average. Positions of a request are reached together, so
their number varies more than a binomial one: with 180 requests, fewer than this come once in a million runs."""


def long_draft_pool(*, one_hot: bool) -> DistributionPool:
    """Distributions of 8 tokens whose drafts are accepted in 99 %, so that first rejections fall on every position."""
    rng = np.random.default_rng(derive_seed("long draft pool"))
    logits = rng.normal(size=(16, 8)).astype(np.float32)
    if one_hot:
        logits[np.arange(16), np.arange(16) % 8] += np.float32(8.5)
    draft = softmax_probs(logits) * (1 + 0.025 * rng.choice([-1.0, 1.0], logits.shape))
    return DistributionPool(logits, (draft / draft.sum(axis=1, keepdims=True)).astype(np.float32), one_hot)


@dataclass(frozen=True)
class LongDraftExperiment(ProductionExperiment):
    """Acceptance and emitted tokens of drafts of up to 128 tokens, by their position in the request."""

    _acceptance_cells = PitCells(8, 5)

    @cached_property
    def _by_position(self) -> dict[int, TokenTables]:
        sizes = (self.pool.target_logits.shape[1],)
        return {first: TokenTables(_at("emitted token", first), sizes, PitCells(8, 0)) for first, _ in _POSITIONS}

    def tables(self, num_calls: int) -> dict[str, Table]:
        """Return the tables of each group of positions."""
        step, num_draws = self.pool.step_acceptance, num_calls * sum(self.num_draft_tokens)
        found = {}
        for first, end in _POSITIONS:
            own = sum(max(0, min(end, count) - first) for count in self.cycle) / sum(self.cycle)
            seen = own if end == 1 else own * step ** (end - 1) * _SURELY_REACHED
            found[_at("acceptance", first)] = self._acceptance_cells.table(num_draws, seen)
            found |= self._by_position[first].tables(num_draws, seen)
        return found

    def _count_decisions(self, found: _Decisions) -> dict[str, NDArray[np.int64]]:
        counts = {}
        for first, end in _POSITIONS:
            own = (found.position >= first) & (found.position < end)
            counts[_at("acceptance", first)] = self._acceptance_cells.count(found.acceptance[own])
            counts |= self._by_position[first].count({way: one[own] for way, one in found.emitted.items()})
        return counts


def _at(what: str, first: int) -> str:
    """The name of a table."""
    end = dict(_POSITIONS)[first]
    return f"S9 {what} at position {first}" if end == first + 1 else f"S9 {what} at positions {first} to {end - 1}"
