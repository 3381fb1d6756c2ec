"""What the statistical checks of the sampling contract draw from, and the tables that they fill.

* Small distributions: eight tokens, requests with different parameters side by side. Every support is settled: no
  correct sampler can disagree about it (`oracles.supports`), so the distribution is exact. Tokens are counted one by
  one, and in pairs.
* Production vocabulary: no two rows alike, temperatures and min-p per request; tokens become uniform numbers.
* Largest vocabularies: the same at 151936 and 262144 tokens, few draws, with each filter.
* Combinations: `_sampling_combinations`.
* Drafts: the same under the distribution that the drafter *returned*, whatever mask it used.

Distributions of the first two are those of the sampler's own `FilterPolicy`: orders of filters differ legitimately.

A request never uses a filter that the sampler does not support. It goes without, and its tokens are counted under the
distribution that is left (`supported_kinds`). So a sampler without filters is judged by the softmax of its logits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from fairdraw._core.sampling_harness import draft_tokens, sample_tokens
from fairdraw._core.seeds import derive_seed
from fairdraw._oracles.sampling import Request
from fairdraw._oracles.supports import support_of
from fairdraw.protocols import Capability, FilterPolicy, SamplingBatch
from fairdraw.statistical._count_tables import Counts, Table, count_codes, joint_codes, sum_counts
from fairdraw.statistical._pit import PitCells
from fairdraw.statistical._projections import PitDistributions, TokenTables, numbers_of_rows
from fairdraw.statistical._sampling_requests import FILTERS, Kind, batch_of, noise_of
from fairdraw.statistical._workloads import NUM_CHECKPOINTS, SamplingPlan, Setting, Workload, checkpoints

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

_FILTER_WORDS = frozenset(FILTERS.values())


KINDS = (
    Kind("plain"),
    Kind("at temperature 0.7", temperature=0.7),
    Kind("with top-k", top_k=4),
    Kind("with top-p", top_p=0.65),
    Kind("with min-p", temperature=2.0, min_p=0.5),
    Kind("with all filters", temperature=1.3, top_k=6, top_p=0.9, min_p=0.1),
    Kind("at temperature 2", temperature=2.0),
    Kind("plain, once more"),
)
"""Requests of a batch take them in turn. There is a power of two of them: pairs of equal kind are one apart, too."""


def supported_kinds(kinds: Sequence[Kind], supported: Collection[Capability]) -> tuple[Kind, ...]:
    """The kinds, as many and in their order, none with a filter that is not in `supported`.

    A kind that loses filters is renamed after what is left, so that the check of that judges its table. Several filters
    that are left together are still all filters of the sampler.
    """
    return tuple(_supported(kind, supported) for kind in kinds)


def _supported(kind: Kind, supported: Collection[Capability]) -> Kind:
    """One kind without the filters that are not supported, renamed if it lost some."""
    used = [name for name in FILTERS if getattr(kind, name) is not None]
    lost = [name for name in used if FILTERS[name] not in supported]
    if not lost:
        return kind
    left = [f"with {FILTERS[name]}" for name in used if name not in lost]
    words = left + [f"at temperature {kind.temperature:g}"] * (kind.temperature != 1)
    renamed = f"{' '.join(words) or 'plain'}, instead of {kind.name.removeprefix('with ')}"
    name = kind.name if len(left) > 1 else renamed
    without: dict[str, Any] = dict.fromkeys(lost)  # Any: keyword arguments
    return replace(kind, name=name, **without)


_PROBS = (0.09, 0.3, 0.05, 0.22, 0.0, 0.16, 0.06, 0.12)
"""Ids are not in order of probability; one token is impossible."""

STRIDES = (1, 4, 32)
"""Distances of pairs of rows, in cycles of kinds: 8, 32 and 256 rows; neighbours are the first and the last kind."""


def _exact_probs(batch: SamplingBatch, row: int, filters: FilterPolicy) -> NDArray[np.float64]:  # [vocab_size] float64
    """The exact distribution of a settled row."""
    support = support_of(Request(batch, row), filters)
    assert support is not None
    return support.distribution()


def _even_checkpoints(num_draws: int, per_call: int) -> tuple[int, int]:
    """As `checkpoints`, with an even number of calls, because calls are compared in pairs."""
    num_checkpoints, num_pairs = checkpoints(num_draws, 2 * per_call)
    return max(1, num_checkpoints), 2 * num_pairs


def small_distributions(share: float, slow_share: float, *, request_seeds: bool = False) -> Workload:
    """Every kind of request at a vocabulary of eight tokens.

    Args:
        request_seeds: Every request of every call has a per-request seed.
    """

    def prepare(setting: Setting) -> SamplingPlan:
        num_draws, cycle = setting.num_draws, supported_kinds(KINDS, setting.supported)
        cycles = 1 << min(9, max(2, (num_draws // (2 * NUM_CHECKPOINTS * len(cycle))).bit_length() - 1))
        kinds = list(cycle) * cycles
        logits = np.tile(_small_row(), (len(kinds), 1))
        num_checkpoints, num_calls = _even_checkpoints(num_draws, len(kinds))
        strides = [stride for stride in STRIDES if cycles % (2 * stride) == 0]
        seeded = range(len(kinds)) if request_seeds else ()

        def count(sampler: Any, seed: int) -> Counts:  # Any: under the sampling contract
            drawn = []
            for call in range(num_calls):
                batch = batch_of(kinds, logits, np.full(len(kinds), call, dtype=np.int64), setting.device)
                noise = noise_of(sampler, batch, derive_seed("call", seed, call), seeded=seeded)
                drawn.append(sample_tokens(sampler, batch, noise).tokens)
            return _count_small(np.stack(drawn).reshape(num_calls, cycles, len(cycle)), cycle, strides)

        tables = _small_tables(cycle, num_calls * cycles, strides, setting.filters)
        return SamplingPlan(tables, count, num_checkpoints, num_calls * len(kinds))

    name = "sampling: requests with seeds" if request_seeds else "sampling: small distributions"
    return Workload(name, "tokens", share, slow_share, prepare, _FILTER_WORDS)


def _small_row() -> NDArray[np.float32]:  # [vocab_size] float32
    """The logits of `_PROBS`."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.array(_PROBS)), dtype=np.float32)


def _small_tables(cycle: Sequence[Kind], rows: int, strides: list[int], filters: FilterPolicy) -> dict[str, Table]:
    """T1: tokens of each kind; T2: pairs of rows of a call; T3: one row in two calls.

    Args:
        rows: Of each kind, per checkpoint.
    """
    batch = batch_of(list(cycle), np.tile(_small_row(), (len(cycle), 1)), np.zeros(len(cycle), np.int64), "cpu")
    probs = [_exact_probs(batch, kind, filters) for kind in range(len(cycle))]
    neighbours, same = (np.outer(one, probs[0]).ravel() for one in (probs[1], probs[0]))
    pairs = Table(same, num_draws=rows // 2)
    return {
        **{
            f"T1 {kind.name}": Table(one, label="token {}".format, num_draws=rows)
            for kind, one in zip(cycle, probs, strict=True)
        },
        "T2 neighbours": Table(neighbours, num_draws=rows),
        **{f"T2 rows {stride * len(cycle)} apart": pairs for stride in strides},
        "T3 consecutive calls": pairs,
    }


def _count_small(
    tokens: NDArray[np.int64],  # [num_calls, cycles, kinds] int64
    cycle: Sequence[Kind],
    strides: list[int],
) -> dict[str, NDArray[np.int64]]:
    """The counts of T1, T2 and T3 for the tokens of one checkpoint."""
    size = len(_PROBS)
    known = np.where((tokens >= 0) & (tokens < size), tokens, -1)
    counts = {f"T1 {kind.name}": count_codes(known[..., k], size) for k, kind in enumerate(cycle)}
    plain, next_to_it = known[..., 0], known[..., 1]

    def pairs(left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.int64]:
        return count_codes(joint_codes(left.ravel(), right.ravel(), sizes=(size, size)), size * size)

    counts["T2 neighbours"] = pairs(next_to_it, plain)
    for stride in strides:
        left = np.flatnonzero(np.arange(plain.shape[1]) // stride % 2 == 0)
        counts[f"T2 rows {stride * len(cycle)} apart"] = pairs(plain[:, left], plain[:, left + stride])
    counts["T3 consecutive calls"] = pairs(plain[0::2], plain[1::2])
    return counts


_VOCAB_SIZE, _SMALLER_VOCAB_SIZE, _NUM_DISTRIBUTIONS = 32768, 1024, 16
"""The smaller vocabulary is for samplers that do not support a large one."""

_PRODUCTION_KINDS = (
    Kind("plain"),
    Kind("cool", temperature=0.6),
    Kind("warm", temperature=1.5, min_p=0.02),
    Kind("as it is, once more"),
)


@dataclass(frozen=True, eq=False)
class _Pool:
    """Rows of logits, the parameters of their requests, and their distributions ready for look-up."""

    logits: NDArray[np.float32]  # [num_distributions, vocab_size] float32
    kinds: tuple[Kind, ...]
    distributions: dict[str, PitDistributions]

    def batch(self, distribution_ids: NDArray[np.int64], positions: NDArray[np.int64], device: str) -> SamplingBatch:
        """A batch whose row `i` is row `distribution_ids[i]` of the pool."""
        return batch_of([self.kinds[i] for i in distribution_ids], self.logits[distribution_ids], positions, device)


@lru_cache(maxsize=2)
def _pool(filters: FilterPolicy, supported: frozenset[Capability]) -> _Pool:
    """Normal logits at scales 1 to 6; every fourth row forbids half of the vocabulary."""
    vocab_size = _VOCAB_SIZE if Capability.LARGE_VOCAB in supported else _SMALLER_VOCAB_SIZE
    rng = np.random.default_rng(derive_seed("sampling pool", vocab_size, _NUM_DISTRIBUTIONS))
    logits = rng.normal(size=(_NUM_DISTRIBUTIONS, vocab_size)) * np.geomspace(1, 6, _NUM_DISTRIBUTIONS)[:, None]
    logits[::4][rng.random(logits[::4].shape) < 0.5] = -np.inf
    cycle = supported_kinds(_PRODUCTION_KINDS, supported)
    return _as_pool(logits.astype(np.float32), cycle * (_NUM_DISTRIBUTIONS // len(cycle)), filters)


def _as_pool(logits: NDArray[np.float32], kinds: tuple[Kind, ...], filters: FilterPolicy) -> _Pool:
    """Rows and their kinds, with their distributions."""
    batch = batch_of(list(kinds), logits, np.zeros(len(kinds), np.int64), "cpu")
    supports = [support_of(Request(batch, i), filters) for i in range(len(kinds))]
    # Less than 1e-6 of all draws depend on a token that rounding keeps or drops: either is correct.
    probs = np.stack([np.where(s.allowed, s.probs, 0.0) for s in supports if s is not None])
    probs /= probs.sum(axis=1, keepdims=True)
    return _Pool(logits, kinds, PitDistributions.by_way(probs, probs > 0))


def production(share: float, slow_share: float) -> Workload:
    """Tokens at a vocabulary of 32768, or a smaller one, by the probability integral transform."""

    def prepare(setting: Setting) -> SamplingPlan:
        pool, batch_size = _pool(setting.filters, setting.supported), 16
        num_checkpoints, num_calls = _even_checkpoints(setting.num_draws, batch_size)
        seen = TokenTables("T4 token", (pool.logits.shape[1],))

        def count(sampler: Any, seed: int) -> Counts:  # Any: under the sampling contract
            rng, tokens = np.random.default_rng(derive_seed("distributions", seed)), []
            distribution_ids = rng.integers(0, _NUM_DISTRIBUTIONS, (num_calls, batch_size))
            for call in range(num_calls):
                batch = pool.batch(distribution_ids[call], np.full(batch_size, call, dtype=np.int64), setting.device)
                noise = noise_of(sampler, batch, derive_seed("call", seed, call))
                tokens.append(sample_tokens(sampler, batch, noise).tokens.astype(np.int32))
            uniforms = rng.random(distribution_ids.size)
            return seen.count_pool(pool.distributions, distribution_ids.ravel(), np.concatenate(tokens), uniforms)

        tables = seen.tables(num_calls * batch_size)
        return SamplingPlan(tables, count, num_checkpoints, num_calls * batch_size)

    adapts_to = frozenset({Capability.MIN_P, Capability.LARGE_VOCAB})
    return Workload("sampling: production", "production vocabulary", share, slow_share, prepare, adapts_to)


_LARGEST_VOCAB_SIZES = (151_936, 262_144)
_LARGEST_KINDS = (
    Kind("plain"),
    Kind("top-p", temperature=0.8, top_p=0.6),
    Kind("top-k", temperature=1.3, top_k=20_000),
    Kind("all filters", temperature=1.2, top_k=50_000, top_p=0.5, min_p=0.03),
)
"""Each filter takes much of the mass away, so that a wrong edge shows within a few draws."""

_FEWEST_LARGEST = 72
"""Draws that see whether half of the ids, or a filter, is lost."""


@lru_cache(maxsize=4)
def _largest_pool(vocab_size: int, filters: FilterPolicy, supported: frozenset[Capability]) -> _Pool:
    """Normal logits: every id above 2**16 and 2**17 is as probable as those below."""
    cycle = supported_kinds(_LARGEST_KINDS, supported)
    logits = np.random.default_rng(derive_seed("largest", vocab_size)).normal(size=(len(cycle), vocab_size))
    return _as_pool(logits.astype(np.float32), cycle, filters)


def largest(share: float, slow_share: float) -> Workload:
    """Tokens at vocabularies of 151936 and 262144, filters included, by the probability integral transform."""

    def prepare(setting: Setting) -> SamplingPlan:
        pools = [_largest_pool(size, setting.filters, setting.supported) for size in _LARGEST_VOCAB_SIZES]
        batch_size = len(_LARGEST_KINDS)
        seen = TokenTables("T7 token", _LARGEST_VOCAB_SIZES, PitCells(8, 2))
        per_checkpoint = batch_size * len(pools)
        num_checkpoints = max(setting.num_draws, _FEWEST_LARGEST) // per_checkpoint
        ids = np.arange(batch_size)

        def of_pool(sampler: Any, pool: _Pool, seed: int) -> Counts:  # Any: under the sampling contract
            rng = np.random.default_rng(derive_seed("uniforms", seed))
            batch = pool.batch(ids, np.full(batch_size, seed % 2**20, dtype=np.int64), setting.device)
            tokens = sample_tokens(sampler, batch, noise_of(sampler, batch, seed)).tokens.astype(np.int32)
            return seen.count_pool(pool.distributions, ids, tokens, rng.random(batch_size))

        def count(sampler: Any, seed: int) -> Counts:  # Any: under the sampling contract
            return sum_counts(of_pool(sampler, pool, derive_seed("pool", seed, i)) for i, pool in enumerate(pools))

        return SamplingPlan(seen.tables(per_checkpoint), count, num_checkpoints, per_checkpoint)

    return Workload("sampling: largest", "largest vocabularies", share, slow_share, prepare, _FILTER_WORDS)


_DRAFT_VOCAB_SIZE = 256
_DRAFT_KINDS = (
    Kind("plain"),
    Kind("cool", temperature=0.6),
    Kind("all filters", temperature=1.2, top_k=50, top_p=0.8, min_p=0.02),
    Kind("top-p", top_p=0.9),
)


def drafts(share: float, slow_share: float) -> Workload:
    """Drafted tokens under the distributions that came with them: rows of normal logits, no two of them alike."""

    def prepare(setting: Setting) -> SamplingPlan:
        batch_size = min(1024, max(16, setting.num_draws // (4 * NUM_CHECKPOINTS)))
        counted = TokenTables("T5 draft", (_DRAFT_VOCAB_SIZE,))
        num_checkpoints, num_calls = _even_checkpoints(setting.num_draws, batch_size)
        cycle = supported_kinds(_DRAFT_KINDS, setting.supported)
        kinds = [cycle[i % len(cycle)] for i in range(batch_size)]

        def count(sampler: Any, seed: int) -> Counts:  # Any: under the sampling contract
            rng, parts = np.random.default_rng(derive_seed("rows", seed)), []
            for call in range(num_calls):
                logits = (2 * rng.normal(size=(batch_size, _DRAFT_VOCAB_SIZE))).astype(np.float32)
                batch = batch_of(kinds, logits, np.full(batch_size, call, dtype=np.int64), setting.device)
                seen = draft_tokens(sampler, batch, noise_of(sampler, batch, derive_seed("call", seed, call)))
                assert seen.draft_probs is not None  # draft_tokens checked the output
                parts.append(counted.count(numbers_of_rows(seen.draft_probs, seen.tokens, rng.random(batch_size))))
            return sum_counts(parts)

        tables = counted.tables(num_calls * batch_size)
        return SamplingPlan(tables, count, num_checkpoints, num_calls * batch_size)

    return Workload("sampling: drafts", "drafts", share, slow_share, prepare, _FILTER_WORDS)
