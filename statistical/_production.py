"""S9: production vocabularies, where no distribution is enumerated and no two rows need be alike.

A pool of distributions, as different as traffic is (near-greedy to flat, some truncated), is dealt to the drafted
positions of ragged batches. Every decision of the sampler is then transformed to a uniform number (`pit`) and pooled:

* each emitted token under its target distribution, by rank and by id: losslessness, whatever the verifier;
* each acceptance under its probability, and each recovered token under its residual distribution: token verification.

Catches: wrong temperature or filter, lost tail, lost vocabulary tile, offset errors in ragged batches, ignored draft
distributions. Blind to: dependence between rows, calls, drafter and sampler, which leaves all of these distributions
intact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from fairdraw._core.seeds import derive_seed
from fairdraw.protocols import PLACEHOLDER_TOKEN_ID, SpecDecodeBatch
from fairdraw.statistical._count_tables import merge_counts
from fairdraw.statistical._decision import SequentialCheck
from fairdraw.statistical._design import plan_samples
from fairdraw.statistical._distributions import ROUNDING, acceptance_probs, residual_probs, softmax_probs
from fairdraw.statistical._outcomes import Verification
from fairdraw.statistical._pit import IMPOSSIBLE, Order, PitCells, starting_mass
from fairdraw.statistical._validation import check_probs, refuse
from fairdraw.statistical._watching import NUM_LOOKS, num_draws, watch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray
    from torch import Tensor

    from fairdraw.statistical._decision import Decision
    from fairdraw.statistical._design import NoPower, SamplePlan
    from fairdraw.statistical._watching import Draw

__all__ = ["DistributionPool", "ProductionExperiment"]

RAGGED_DRAFTS: tuple[int, ...] = (3, 0, 1, 5)
EQUAL_DRAFTS: tuple[int, ...] = (3, 3, 3, 3)
"""Draft tokens per request, in a cycle: of an engine, and for samplers that do not support ragged batches."""


@dataclass(frozen=True, eq=False)
class PitDistributions:
    """A pool of distributions, ready to transform tokens by look-up."""

    probs: NDArray[np.float64]  # [num_distributions, vocab_size] float64
    starts: NDArray[np.float64]  # [num_distributions, vocab_size] float64
    possible: NDArray[np.bool_]  # [num_distributions, vocab_size] bool

    def transform(
        self,
        distribution_ids: NDArray[np.int64],  # [num_samples] int64
        token_ids: NDArray[np.int32],  # [num_samples] int32
        uniforms: NDArray[np.float64],  # [num_samples] float64
        left_out: NDArray[np.int32] | None = None,  # [num_samples] int32
    ) -> NDArray[np.float64]:  # [num_samples] float64
        """As `pit.randomised_pit`.

        Args:
            left_out: A token per sample that its distribution leaves to the others, as a rejected one-hot draft is.
        """
        known = (token_ids >= 0) & (token_ids < self.probs.shape[1])
        cells = distribution_ids, np.where(known, token_ids, 0)
        starts, probs, possible = self.starts[cells], self.probs[cells], known & self.possible[cells]
        if left_out is not None:
            lost, before = self.probs[distribution_ids, left_out], self.starts[distribution_ids, left_out] < starts
            scale = 1 / np.maximum(1 - lost, np.finfo(np.float64).tiny)
            starts, probs = (starts - np.where(before, lost, 0.0)) * scale, probs * scale
            possible &= token_ids != left_out
        values = np.clip(starts + uniforms * probs, 0.0, np.nextafter(1.0, 0.0))
        return np.asarray(np.where(possible, values, IMPOSSIBLE))


@dataclass(frozen=True, eq=False)
class DistributionPool:
    """Pairs of target and draft distributions, as the sampler gets them and as they are.

    Args:
        one_hot: The sampler is not told the draft distributions: drafts are accepted with their target probability, and
            a rejected one is left out of the recovery.
    """

    target_logits: NDArray[np.float32]  # [num_distributions, vocab_size] float32
    draft_probs: NDArray[np.float32]  # [num_distributions, vocab_size] float32
    target: NDArray[np.float64]  # [num_distributions, vocab_size] float64
    draft: NDArray[np.float64]  # [num_distributions, vocab_size] float64
    draft_cumulative: NDArray[np.float64]  # [num_distributions, vocab_size] float64
    acceptance: NDArray[np.float64]  # [num_distributions, vocab_size] float64
    emitted: dict[Order, PitDistributions]
    recovered: dict[Order, PitDistributions]
    one_hot: bool = False

    @classmethod
    def build(cls, vocab_size: int, num_distributions: int, seed: int, *, one_hot: bool = False) -> DistributionPool:
        """Normal logits at scales 1 to 6; drafts are the same, disturbed. It takes 110 bytes per distribution and
        token.

        Every fourth distribution forbids a random half of the vocabulary, and its drafter does not know; every fourth
        drafter cannot draw a random tenth.
        """
        rng = np.random.default_rng(derive_seed("distribution pool", vocab_size, num_distributions, seed))
        base = rng.normal(size=(num_distributions, vocab_size)) * np.geomspace(1, 6, num_distributions)[:, None]
        logits, draft_logits = base.copy(), base + 0.7 * rng.normal(size=base.shape)
        logits[::4][rng.random(logits[::4].shape) < 0.5] = -np.inf
        draft_logits[1::4][rng.random(draft_logits[1::4].shape) < 0.1] = -np.inf
        return cls.of(logits.astype(np.float32), softmax_probs(draft_logits).astype(np.float32), one_hot=one_hot)

    @classmethod
    def of(
        cls,
        target_logits: NDArray[np.float32],  # [num_distributions, vocab_size] float32
        draft_probs: NDArray[np.float32],  # [num_distributions, vocab_size] float32
        *,
        one_hot: bool = False,
    ) -> DistributionPool:
        """The pool of given distributions."""
        target, draft = softmax_probs(target_logits), check_probs("DistributionPool.of", "draft_probs", draft_probs)
        residual = residual_probs(target, draft)
        recoverable = (target > 0) & (target > (1 - ROUNDING) * draft)
        cumulative = np.cumsum(draft, axis=1)
        emitted = {order: PitDistributions(target, starting_mass(target, order), target > 0) for order in Order}
        return cls(
            target_logits=target_logits,
            draft_probs=draft_probs,
            target=target,
            draft=draft,
            draft_cumulative=cumulative / cumulative[:, -1:],
            acceptance=target if one_hot else acceptance_probs(target, draft),
            emitted=emitted,
            recovered=emitted
            if one_hot
            else {order: PitDistributions(residual, starting_mass(residual, order), recoverable) for order in Order},
            one_hot=one_hot,
        )

    def step_acceptance(self) -> float:
        """Probability that a draft, drawn from its distribution, is accepted: the mean over the pool."""
        if self.one_hot:
            return float((self.draft * self.target).sum(axis=1).mean())
        return float(
            np.mean([np.minimum(*distributions).sum() for distributions in zip(self.target, self.draft, strict=True)])
        )


@lru_cache(maxsize=2)
def _pool_on(pool: DistributionPool, device: str) -> tuple[Tensor, Tensor]:
    """Target logits and draft probabilities of a pool, each `[num_distributions, vocab_size] float32`."""
    import torch

    return torch.from_numpy(pool.target_logits).to(device), torch.from_numpy(pool.draft_probs).to(device)


def _draw_from_pool(
    cumulative: NDArray[np.float64],  # [num_distributions, vocab_size] float64
    distribution_ids: NDArray[np.int64],  # [num_tokens] int64
    uniforms: NDArray[np.float64],  # [num_tokens] float64
) -> NDArray[np.int32]:  # [num_tokens] int32
    """A token of the distribution of each row: one search per distribution, because rows of a distribution share its
    sums.
    """
    drawn = np.empty(distribution_ids.size, dtype=np.int32)
    for distribution, sums in enumerate(cumulative):
        own = distribution_ids == distribution
        drawn[own] = np.searchsorted(sums, uniforms[own], "right")
    return drawn


@dataclass(frozen=True)
class ProductionExperiment:
    """Calls at a production vocabulary, and the tables that they fill.

    Args:
        batch_size: Requests per call; a multiple of 4, the cycle of draft lengths.
        cycle: Draft tokens per request, in turn.
        verification: Acceptance and recovery are looked at under token verification only.
    """

    pool: DistributionPool
    batch_size: int = 64
    verification: Verification = Verification.TOKEN
    cells: PitCells = PitCells()  # noqa: RUF009  immutable
    device: str = "cpu"
    cycle: tuple[int, ...] = RAGGED_DRAFTS

    def __post_init__(self) -> None:
        cycle = len(self.cycle)
        if self.batch_size < cycle or self.batch_size % cycle:
            given = f"batch_size={self.batch_size}"
            raise refuse("ProductionExperiment", given, f"it must be a multiple of {cycle}", "Use 64.")

    @property
    def num_draft_tokens(self) -> list[int]:  # [batch_size]
        """Draft tokens of each request."""
        return list(self.cycle) * (self.batch_size // len(self.cycle))

    def batch(self, distribution_ids: NDArray[np.int64], seed: int) -> SpecDecodeBatch:
        """A ragged batch whose drafted position `i` has the distributions `distribution_ids[i]`.

        Randomness:
            Drafts and bonus tokens from a stream hashed from `seed`.
        """
        import torch

        rng = np.random.default_rng(derive_seed("drafts", seed))
        drafts = _draw_from_pool(self.pool.draft_cumulative, distribution_ids, rng.random(distribution_ids.size))
        counts, vocab_size = self.num_draft_tokens, self.pool.target_logits.shape[1]
        # Rows are gathered where the sampler is: a call moves a gigabyte.
        target_logits, draft_probs = _pool_on(self.pool, self.device)
        rows = torch.from_numpy(distribution_ids).to(self.device)
        return SpecDecodeBatch(
            draft_token_ids=torch.from_numpy(drafts).to(self.device),
            num_draft_tokens=counts,
            cu_num_draft_tokens=torch.tensor(counts, dtype=torch.int32).cumsum(0, dtype=torch.int32).to(self.device),
            max_spec_len=max(counts),
            draft_probs=None if self.pool.one_hot else draft_probs[rows],
            target_logits=target_logits[rows],
            bonus_token_ids=torch.tensor(
                rng.integers(0, vocab_size, (self.batch_size, 1)), dtype=torch.int32, device=self.device
            ),
            temperature=torch.ones(self.batch_size, device=self.device),
            origin=f"<production batch, vocab_size={vocab_size}, seed={seed}>",
        )

    def event_probs(self) -> dict[str, float]:
        """Per table, the probability that a drafted position is an observation (under token verification)."""
        step = self.pool.step_acceptance()
        positions = np.concatenate([np.arange(count) for count in self.cycle])
        reached = float(np.mean(step**positions))
        found = {f"S9 emitted token by {order}": reached for order in Order}
        if self.verification is Verification.TOKEN:
            found |= {f"S9 recovered token by {order}": reached * (1 - step) for order in Order}
            found["S9 acceptance"] = reached
        return found

    def plan(
        self, *, discrepancy: float, false_fail_rate: float, max_num_draws: int, false_pass_rate: float = 1e-3
    ) -> dict[str, SamplePlan | NoPower]:
        """The plan of every table.

        Args:
            discrepancy: Total-variation distance that each table shall see, over the cells of the unit interval.
            false_fail_rate: Of the experiment; each table is planned with its share.
            max_num_draws: Drafted positions that the budget allows.

        Error rates:
            See `SequentialCheck` and `SamplePlan`.
        """
        event_probs = self.event_probs()
        return {
            name: plan_samples(
                self.cells.probs,
                discrepancy=discrepancy,
                false_fail_rate=false_fail_rate / len(event_probs),
                false_pass_rate=false_pass_rate,
                max_num_draws=max_num_draws,
                event_prob=event_prob,
            )
            for name, event_prob in event_probs.items()
        }

    def run(
        self,
        draw: Draw,
        plans: Mapping[str, SamplePlan | NoPower],
        *,
        false_fail_rate: float,
        seed: int,
        out_of_time: Callable[[], bool] = lambda: False,
    ) -> Decision:
        """Draw, count and look until the verdict is known, or time is out.

        Error rates:
            See `SequentialCheck`.
        """
        check = SequentialCheck(plans, false_fail_rate, dict.fromkeys(plans, self.cells.label))
        num_calls = -(-num_draws(plans) // sum(self.num_draft_tokens))
        per_look = max(1, num_calls // NUM_LOOKS)

        def count(look: int) -> dict[str, NDArray[np.int64]]:
            return self.count(draw, per_look, derive_seed("look", seed, look))

        return watch(check, count, num_looks=-(-num_calls // per_look), out_of_time=out_of_time)

    def count(self, draw: Draw, num_calls: int, seed: int) -> dict[str, NDArray[np.int64]]:
        """The count tables of `num_calls` calls; each has the distribution `cells.probs`, and tables of several seeds
        add up.

        Raises:
            ValueError: If there is no call.

        Randomness:
            Everything follows from `seed` and the number of the call.
        """
        if num_calls < 1:
            raise refuse("count", f"num_calls={num_calls}", "it must be at least 1", "Nothing drawn is not a pass.")
        tables: dict[str, list[NDArray[np.int64]]] = {}
        for call in range(num_calls):
            call_seed = derive_seed("production", seed, call)
            rng = np.random.default_rng(derive_seed("distributions", call_seed))
            distribution_ids = rng.integers(0, len(self.pool.target_logits), sum(self.num_draft_tokens))
            batch = self.batch(distribution_ids, call_seed)
            for name, values in self._transforms(batch, draw(batch, call_seed), distribution_ids, rng).items():
                tables.setdefault(name, []).append(self.cells.count(values))
        return {name: merge_counts(parts) for name, parts in tables.items()}

    def _transforms(
        self,
        batch: SpecDecodeBatch,
        tokens: NDArray[np.int32],  # [batch_size, max_spec_len + 1] int32
        distribution_ids: NDArray[np.int64],  # [num_tokens] int64
        rng: np.random.Generator,
    ) -> dict[str, NDArray[np.float64]]:
        """The transforms of every drafted position that was reached."""
        counts = np.array(self.num_draft_tokens)
        request = np.repeat(np.arange(self.batch_size), counts)
        position = np.arange(distribution_ids.size) - np.repeat(np.cumsum(counts) - counts, counts)
        num_emitted = (tokens != PLACEHOLDER_TOKEN_ID).sum(axis=1)[request]
        reached, accepted = position < num_emitted, position + 1 < num_emitted
        emitted = tokens[request, position]

        def transforms(
            distributions: PitDistributions, where: NDArray[np.bool_], left_out: NDArray[np.int32] | None = None
        ) -> NDArray[np.float64]:
            without = None if left_out is None else left_out[where]
            return distributions.transform(
                distribution_ids[where], emitted[where], rng.random(int(where.sum())), without
            )

        found = {
            f"S9 emitted token by {order}": transforms(distributions, reached)
            for order, distributions in self.pool.emitted.items()
        }
        if self.verification is Verification.TOKEN:
            recovered, drafts = reached & ~accepted, batch.draft_token_ids.cpu().numpy()
            left_out = drafts if self.pool.one_hot else None
            found |= {
                f"S9 recovered token by {order}": transforms(distributions, recovered, left_out)
                for order, distributions in self.pool.recovered.items()
            }
            acceptance, uniforms = self.pool.acceptance[distribution_ids, drafts], rng.random(distribution_ids.size)
            decided = np.where(accepted, uniforms * acceptance, acceptance + uniforms * (1 - acceptance))
            found["S9 acceptance"] = np.minimum(decided[reached], np.nextafter(1.0, 0.0))
        return found
