"""Every combination of temperature and filters, on rows where a wrong order or a forgotten parameter shows at once.

A row is chosen so that what another order of filters keeps, or filters that see another temperature, has much mass
outside of the row's own support. One sighting of such a token decides. Kinds of requests stand in one batch in random
order, beside greedy requests and parameters at the edge of what is documented; half of the requests have seeds of
their own, and half of the calls have logits in half precision. The logits are such that every dtype holds them exactly.

Servers choose other paths for batches whose requests all have one temperature, top-k, top-p and min-p. So some calls of
each checkpoint hold one kind of request only, half of them beside a greedy request.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, permutations
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from fairdraw._core.sampling_harness import sample_tokens
from fairdraw._core.seeds import derive_seed
from fairdraw._oracles.sampling import Request
from fairdraw._oracles.supports import support_of
from fairdraw.protocols import Capability, FilterPolicy, SamplingBatch
from fairdraw.statistical._pit import Order, PitCells
from fairdraw.statistical._projections import PitDistributions, TokenTables
from fairdraw.statistical._sampling_requests import FILTERS, Kind, batch_of, noise_of
from fairdraw.statistical._workloads import NUM_CHECKPOINTS, SamplingPlan, Setting, Workload, checkpoints

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fairdraw.statistical._count_tables import Counts

    Floats = NDArray[np.float64]

_SIZE = 24
_STEP = 1 / 16
"""Between logits; multiples of it below 8 are exact in bfloat16 and float16."""

_TEMPERATURES = (0.5, 0.75, 1.5, 2.5)
_CANDIDATES = 512
_SLACK = 1e-3
"""No support hangs on less than this."""

SUBSETS = tuple(subset for size in (1, 2, 3) for subset in combinations(FILTERS, size))
"""The filters of one request."""

_ORDERS = tuple(permutations(FILTERS))


def _table_of(subset: tuple[str, ...]) -> str:
    """The table of requests with a temperature and these filters."""
    return f"T6 temperature and {len(subset)} of the filters: {', '.join(FILTERS[name] for name in subset)}"


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of logits, the parameters of their requests, their tables, and their distributions ready for look-up."""

    logits: NDArray[np.float32]  # [num_distributions, vocab_size] float32
    kinds: tuple[Kind, ...]
    tables: tuple[str, ...]
    distributions: dict[str, PitDistributions]


# -- rows on which policies differ ------------------------------------------------------------------------------------


def _num_kept(logits: Floats, kind: Floats, order: tuple[str, ...], *, late: bool, joint: bool) -> NDArray[np.int64]:
    """How many of the most probable tokens each candidate keeps.

    Args:
        logits: `[num_candidates, vocab_size]`, in falling order.
        kind: `[num_candidates, 4]`: temperature, top_k, top_p, min_p.
        late: Filters see the distribution before the temperature.
    """
    temperature, top_k, top_p, min_p = kind.T[:, :, None]
    weights = np.exp((logits - logits[:, :1]) / (1.0 if late else temperature))
    mass, kept = np.cumsum(weights, axis=1), np.full(len(logits), logits.shape[1])
    whole = kept
    for name in order:
        total = mass[np.arange(len(kept)), (whole if joint else kept) - 1][:, None]
        keeps = {
            "min_p": weights >= min_p,
            "top_k": np.arange(logits.shape[1]) < top_k,
            "top_p": (mass - weights) / total < top_p,
        }
        kept = np.minimum(kept, keeps[name].sum(axis=1))
    return np.asarray(kept)


def _outside(logits: Floats, kind: Floats, policy: FilterPolicy) -> Floats:  # [num_policies, num_candidates] float64
    """The mass that each other policy draws outside of the policy's own support, or takes away from it.

    The last one has the support, and forgets the temperature.
    """
    weights = np.exp((logits - logits[:, :1]) / kind[:, :1])
    mass, rows = np.cumsum(weights, axis=1), np.arange(len(logits))

    def kept_by(order: tuple[str, ...], late: bool, joint: bool) -> NDArray[np.int64]:
        return _num_kept(logits, kind, order, late=late, joint=joint)

    own = kept_by(policy.order, policy.temperature == "last", policy.joint)
    # Also judged: filters that leave out one of the tokens, or keep one more.
    others = [kept_by(order, late, False) for order in _ORDERS for late in (False, True)] + [own - 1, own + 1]
    counts = np.clip(np.stack(others), 1, logits.shape[1])
    apart = mass[rows, np.maximum(counts, own) - 1] - mass[rows, np.minimum(counts, own) - 1]
    inside = np.arange(logits.shape[1]) < own[:, None]
    right, forgot = (np.where(inside, w, 0) for w in (weights, np.exp(logits - logits[:, :1])))
    differences = np.abs(right / right.sum(1, keepdims=True) - forgot / forgot.sum(1, keepdims=True)).sum(1) / 2
    return np.vstack([apart / mass[rows, np.maximum(counts, own) - 1], differences])


def _candidates(subset: tuple[str, ...], temperature: float, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Rows in falling order, `[num_candidates, vocab_size]`, and parameters, `[num_candidates, 4]`."""
    grid = np.arange(-8 + _STEP, 8, _STEP)
    spread = rng.integers(2 * _SIZE, grid.size, _CANDIDATES)
    logits = np.stack([np.sort(rng.choice(grid[-n:], _SIZE, replace=False))[::-1] for n in spread])
    kind = np.column_stack(
        [
            np.full(_CANDIDATES, temperature),
            rng.integers(2, 10, _CANDIDATES) if "top_k" in subset else np.full(_CANDIDATES, _SIZE),
            rng.uniform(0.3, 0.95, _CANDIDATES) if "top_p" in subset else np.ones(_CANDIDATES),
            rng.uniform(0.05, 0.6, _CANDIDATES) if "min_p" in subset else np.zeros(_CANDIDATES),
        ]
    )
    return logits, kind.astype(np.float32).astype(np.float64)


def _chosen(
    subset: tuple[str, ...], policy: FilterPolicy, rng: np.random.Generator
) -> list[tuple[Kind, NDArray[np.float32]]]:
    """A row for each temperature, two for all filters. Each adds most to what the rows before it tell apart."""
    found, seen = [], np.zeros(2 * len(_ORDERS) + 3)
    for temperature in _TEMPERATURES * (1 + (len(subset) == len(FILTERS))):
        logits, parameters = _candidates(subset, temperature, rng)
        outside = _outside(logits, parameters, policy)
        gain = np.minimum(np.maximum(outside, seen[:, None]), 0.2).sum(axis=0) + 0.1 * np.minimum(outside, 0.2).sum(
            axis=0
        )
        best = next(i for i in np.argsort(-gain) if _is_settled(subset, logits[i], parameters[i], policy))
        seen = np.maximum(seen, outside[:, best])
        found.append((_kind(subset, parameters[best]), rng.permutation(logits[best]).astype(np.float32)))
    return found


def _kind(subset: tuple[str, ...], parameters: Floats) -> Kind:  # [4] float64
    temperature, top_k, top_p, min_p = parameters.tolist()
    given: dict[str, Any] = {"top_k": int(top_k), "top_p": top_p, "min_p": min_p}  # Any: one type each
    return Kind(_table_of(subset), temperature, **{name: given[name] for name in subset})


def _is_settled(subset: tuple[str, ...], logits: Floats, parameters: Floats, policy: FilterPolicy) -> bool:
    batch = batch_of([_kind(subset, parameters)], logits[None].astype(np.float32), np.zeros(1, np.int64), "cpu")
    support = support_of(Request(batch, 0), policy, _SLACK)
    return support is not None and support.is_settled


_ULP = 2.0**-24
_BORDERS = (
    Kind("plain"),
    Kind("greedy", temperature=0.0, top_k=3, top_p=0.5, min_p=0.2),
    Kind("nearly greedy", temperature=1.001e-5),
    Kind("hot", temperature=50.0),
    Kind("top-k of 1", temperature=2.0, top_k=1),
    Kind("all but one", top_k=_SIZE - 1),
    Kind("whole vocabulary", temperature=0.7, top_k=_SIZE),
    Kind("top-p towards 0", temperature=2.0, top_p=1e-7),
    Kind("top-p is denormal", temperature=2.0, top_p=2.0**-149),
    Kind("top-p below 1", top_p=1 - _ULP),
    Kind("min-p of 1", temperature=2.0, min_p=1.0),
    Kind("min-p towards 0", temperature=0.7, min_p=1e-7),
    Kind("filters that are off", top_k=_SIZE, top_p=1.0, min_p=0.0),
)
"""Parameters at off, minimum, maximum and just inside, one at a time."""


def _greedy_needs(kind: Kind) -> set[Capability]:
    return set() if kind.temperature else {Capability.GREEDY}


def _border_rows(supported: frozenset[Capability]) -> list[tuple[Kind, NDArray[np.float32]]]:
    """Logits near each other, so that every token is drawn; of every second row a third is masked."""
    rng, rows = np.random.default_rng(derive_seed("edges", _SIZE)), []
    for number, kind in enumerate(_BORDERS):
        used = [name for name in FILTERS if getattr(kind, name) is not None]
        if not {FILTERS[name] for name in used} | _greedy_needs(kind) <= supported:
            continue
        logits = rng.permutation(np.arange(_SIZE) * 2 * _STEP).astype(np.float32)
        if number % 2 and not used:
            logits[rng.choice(_SIZE, _SIZE // 3, replace=False)] = -np.inf
        rows.append((kind, logits))
    return rows


@lru_cache(maxsize=8)
def _rows(filters: FilterPolicy, supported: frozenset[Capability], *, is_fine: bool) -> _Rows:
    """All rows for a sampler that filters so and supports these filters.

    Args:
        is_fine: Every set of filters has a table; else every number of filters, which takes fewer draws.
    """
    rng = np.random.default_rng(derive_seed("combinations", _SIZE))
    subsets = [subset for subset in SUBSETS if all(FILTERS[name] in supported for name in subset)]
    found = [row for subset in subsets for row in _chosen(subset, filters, rng)]
    edges = [(kind, row) for kind, row in _border_rows(supported) if kind.temperature or Capability.GREEDY in supported]
    kinds, logits = zip(*found, *edges, strict=True)
    batch = batch_of(list(kinds), np.stack(logits), np.zeros(len(kinds), np.int64), "cpu")
    probs = np.stack([_distribution(batch, row, filters) for row in range(len(kinds))])
    names = [kind.name if is_fine else kind.name.partition(":")[0] for kind, _ in found]
    tables = (*names, *["T6 edges"] * len(edges))
    return _Rows(np.stack(logits), kinds, tables, PitDistributions.by_way(probs, probs > 0))


def _distribution(batch: SamplingBatch, row: int, filters: FilterPolicy) -> Floats:  # [vocab_size] float64
    request = Request(batch, row)
    if request.is_greedy:
        certain = np.zeros(request.logits.size)
        certain[int(np.argmax(request.logits))] = 1
        return certain
    support = support_of(request, filters)
    assert support is not None
    return support.distribution()


# -- the workload -----------------------------------------------------------------------------------------------------

_HALF = ("bfloat16", "float16")
_DTYPES = ("float32", "bfloat16", "float32", "float16")
"""Of the calls of a round."""

_MOST_ROWS = 1009
_NUM_ALIKE, _NUM_ALIKE_SLOW, _FEWEST_ALIKE = 8, 3, 8
"""Kinds of a checkpoint that have calls of their own, and the fewest requests of such a call."""

_FEWEST, _FEWEST_FINE = 540, 2000
"""Draws that give every table power: at all, and with a table for every set of filters."""


@dataclass(frozen=True, eq=False)
class _Batches:
    """Calls with all rows, in random order.

    Args:
        drawn: The rows of each call; no multiple of their number, so that parameters have no period.
        num_rounds: Of four calls per checkpoint; the second and the fourth have half logits, if supported.
        num_alike: Kinds that have a call of their own beyond those, other ones at each checkpoint.
    """

    rows: _Rows
    drawn: NDArray[np.int64]  # [batch_size] int64
    num_rounds: int
    num_alike: int
    has_seeds: bool
    has_half: bool
    device: str

    cells: ClassVar[PitCells] = PitCells(16, 2)

    def count(self, sampler: Any, seed: int) -> Counts:  # Any: under the sampling contract
        """Return the counts of one checkpoint."""
        rounds = [self.drawn] * (self.num_rounds * len(_DTYPES))
        calls = enumerate([*rounds, *self._alike(np.random.default_rng(derive_seed("alike", seed)))])
        drawn = [self._call(sampler, seed, call, ids) for call, ids in calls]
        ids, tokens, uniforms, own, dtypes = map(np.concatenate, zip(*drawn, strict=True))
        return self._count(ids, tokens, uniforms, own, dtypes)

    def _alike(self, rng: np.random.Generator) -> list[NDArray[np.int64]]:
        """The rows of calls of one kind; of four, one begins with a greedy request and one ends so."""
        kinds, size = self.rows.kinds, max(_FEWEST_ALIKE, len(self.drawn) // _NUM_ALIKE)
        random = [i for i, kind in enumerate(kinds) if kind.temperature]
        greedy = [i for i, kind in enumerate(kinds) if not kind.temperature]
        chosen = rng.permutation(random)[: self.num_alike]
        first, last = ([greedy[: number % 4 == place] for number in range(chosen.size)] for place in (2, 3))
        parts = zip(first, chosen, last, strict=True)
        return [np.array([*before, *[kind] * size, *behind]) for before, kind, behind in parts]

    def num_draws(self) -> dict[str, int]:
        """Of each table, per checkpoint, at least: calls of one kind bring more."""
        size, num_calls = len(self.drawn), self.num_rounds * len(_DTYPES)
        sizes = {table: num_calls * int(mine.sum()) for table, mine in self._by_table(self.drawn).items()}
        if self.has_seeds:
            sizes |= {"T6 seeded": num_calls * (size // 2), "T6 unseeded": num_calls * (size - size // 2)}
        return sizes | ({f"T6 {name}": self.num_rounds * size for name in _HALF} if self.has_half else {})

    def _by_table(self, ids: NDArray[np.int64]) -> dict[str, NDArray[np.bool_]]:
        """The rows of each table of parameters."""
        tables = np.array(self.rows.tables)[ids]
        return {table: tables == table for table in sorted(set(self.rows.tables))}

    def _call(
        self, sampler: Any, seed: int, call: int, drawn: NDArray[np.int64]
    ) -> tuple[NDArray[Any], ...]:  # Any: as above; drawn: [batch_size] int64
        """Return rows, tokens, uniforms of the suite, whether requests have seeds, and dtypes, each `[batch_size]`."""
        rng, size = np.random.default_rng(derive_seed("order", seed, call)), len(drawn)
        ids = rng.permutation(drawn) if call < self.num_rounds * len(_DTYPES) else drawn
        own = rng.permutation(size) < (size // 2 if self.has_seeds else 0)
        kinds, positions = [self.rows.kinds[i] for i in ids], np.full(size, call, dtype=np.int64)
        batch = batch_of(kinds, self.rows.logits[ids], positions, self.device)
        dtype = _DTYPES[call % len(_DTYPES)] if self.has_half else "float32"
        batch = batch.replace(logits=batch.logits.to(getattr(torch, dtype)))
        noise = noise_of(sampler, batch, derive_seed("call", seed, call), seeded=np.flatnonzero(own).tolist())
        tokens = sample_tokens(sampler, batch, noise).tokens.astype(np.int32)
        return ids, tokens, rng.random(size), own, np.full(size, dtype)

    def _count(
        self,
        ids: NDArray[np.int64],  # [num_samples] int64
        tokens: NDArray[np.int32],  # [num_samples] int32
        uniforms: Floats,  # [num_samples] float64
        own: NDArray[np.bool_],  # [num_samples] bool
        dtypes: NDArray[np.str_],  # [num_samples] str
    ) -> dict[str, NDArray[np.int64]]:
        numbers = {way: one.transform(ids, tokens, uniforms) for way, one in self.rows.distributions.items()}
        transform = numbers[Order.RANK]
        # A forgotten temperature makes cold rows flatter and hot rows steeper. Flipped, both err in one direction.
        is_cold = np.array([kind.temperature < 1 for kind in self.rows.kinds])[ids] & (transform >= 0)
        flipped = np.where(is_cold, np.nextafter(1.0, 0.0) - transform, transform)
        chosen = self._by_table(ids)
        chosen |= {f"T6 {name}": dtypes == name for name in _HALF} if self.has_half else {}
        counts = {table: self.cells.count(flipped[mine]) for table, mine in chosen.items()}
        own_noise = {"T6 seeded": own, "T6 unseeded": ~own} if self.has_seeds else {}
        counts |= {table: self.cells.count(transform[mine]) for table, mine in own_noise.items()}
        for group, mine in self._by_group(chosen | own_noise).items():
            counts |= _projected(group).count({way: one[mine] for way, one in numbers.items()})
        return counts

    @staticmethod
    def _by_group(chosen: dict[str, NDArray[np.bool_]]) -> dict[str, NDArray[np.bool_]]:
        """Return the rows of each group of tables: those of every set of as many filters are projected together."""
        found: dict[str, NDArray[np.bool_]] = {}
        for table, mine in chosen.items():
            group = table.partition(":")[0]
            found[group] = found.get(group, np.zeros_like(mine)) | mine
        return found


def combinations_of_parameters(share: float, slow_share: float) -> Workload:
    """Requests with every combination of temperature and filters in one batch."""

    def prepare(setting: Setting) -> SamplingPlan:
        supported = setting.supported & {*FILTERS.values(), Capability.GREEDY}
        rows = _rows(setting.filters, supported, is_fine=setting.num_draws >= _FEWEST_FINE)
        num_draws = max(setting.num_draws, _FEWEST)
        per_call = num_draws // (len(_DTYPES) * NUM_CHECKPOINTS)
        size = int(np.clip(per_call, len(rows.kinds), _MOST_ROWS))
        num_checkpoints, num_rounds = checkpoints(num_draws, len(_DTYPES) * size)
        drawn = np.resize(np.arange(len(rows.kinds)), size)
        has_seeds = {Capability.SEEDED_NOISE, Capability.REQUEST_SEEDS} <= setting.supported
        has_half = Capability.HALF_LOGITS in setting.supported
        num_alike = _NUM_ALIKE_SLOW if setting.slow else _NUM_ALIKE
        batches = _Batches(rows, drawn, num_rounds, num_alike, has_seeds, has_half, setting.device)
        num_draws_of = batches.num_draws()
        by_rank = {name: _Batches.cells.table(own) for name, own in num_draws_of.items()}
        tables = {name: replace(table, seen_by=Order.RANK) for name, table in by_rank.items()}
        for group in dict.fromkeys(name.partition(":")[0] for name in num_draws_of):
            own = sum(number for name, number in num_draws_of.items() if name.partition(":")[0] == group)
            tables |= _projected(group).tables(own)
        return SamplingPlan(tables, batches.count, num_checkpoints, num_rounds * len(_DTYPES) * size)

    adapts_to = frozenset({*FILTERS.values(), *_ALSO})
    return Workload("sampling: combinations", "combinations", share, slow_share, prepare, adapts_to)


@lru_cache(maxsize=16)
def _projected(group: str) -> TokenTables:
    return TokenTables(group, (_SIZE,), orders=())


_ALSO = (Capability.GREEDY, Capability.SEEDED_NOISE, Capability.REQUEST_SEEDS, Capability.HALF_LOGITS)
