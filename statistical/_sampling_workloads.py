"""What the statistical checks of the sampling contract draw from, and the tables that they fill.

Eight tokens, requests with different parameters side by side. Every support is settled: no correct sampler can disagree
about it (`_oracles.supports`), so the distribution is exact.

Distributions are those of the sampler's own `FilterPolicy`: orders of filters differ legitimately.

A request never uses a filter that the sampler does not support. It goes without, and its tokens are counted under the
distribution that is left (`supported_kinds`). So a sampler without filters is judged by the softmax of its logits.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairdraw._core.array_types import Row32, Row64
from fairdraw._core.seeds import derive_seed
from fairdraw._oracles.sampling import requests_of
from fairdraw._oracles.supports import support_of
from fairdraw.contracts import Capability, FilterPolicy, SamplingBatch
from fairdraw.contracts._sampling import sample_tokens
from fairdraw.statistical._count_tables import Counts, Table, count_codes
from fairdraw.statistical._sampling_requests import FILTERS, Kind, batch_of, noise_of
from fairdraw.statistical._workloads import NUM_CHECKPOINTS, SamplingPlan, Setting, Workload, checkpoints

Seeded = NDArray[np.bool_]  # [num_cycles, num_kinds]

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
"""Requests of a batch take them in turn."""


def supported_kinds(kinds: Sequence[Kind], supported: Collection[Capability]) -> tuple[Kind, ...]:
    """The kinds, as many and in their order, none with a filter that is not in `supported`.

    A kind that loses filters is renamed after what is left. Several that are left together are still all filters of the
    sampler.
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


def _exact_probs(batch: SamplingBatch, row: int, filters: FilterPolicy) -> Row64:
    """The exact distribution of a settled row."""
    support = support_of(requests_of(batch)[row], filters)
    assert support is not None
    return support.distribution()


@Workload.of("sampling: small distributions", "tokens", 1.0, 0.5, *(_FILTER_WORDS | {Capability.REQUEST_SEEDS}))
def small_distributions(setting: Setting) -> SamplingPlan:
    """Return every kind of request at a vocabulary of eight tokens; half of each kind have seeds of their own."""
    cycle = supported_kinds(KINDS, setting.supported)
    cycles = 1 << min(9, max(2, (setting.num_draws // (2 * NUM_CHECKPOINTS * len(cycle))).bit_length() - 1))
    kinds = list(cycle) * cycles
    logits = np.tile(_small_row(), (len(kinds), 1))
    num_checkpoints, num_calls = checkpoints(setting.num_draws, len(kinds))
    is_seeded = np.add.outer(np.arange(cycles), np.arange(len(cycle))) % 2 == 1
    is_seeded &= Capability.REQUEST_SEEDS in setting.supported

    def count(sampler: Any, seed: int) -> Counts:  # Any: under the sampling contract
        drawn = []
        for call in range(num_calls):
            batch = batch_of(kinds, logits, np.full(len(kinds), call, dtype=np.int64), setting.device)
            noise = noise_of(sampler, batch, derive_seed("call", seed, call), seeded=np.flatnonzero(is_seeded).tolist())
            drawn.append(sample_tokens(sampler, batch, noise).tokens)
        return _count_small(np.stack(drawn).reshape(num_calls, cycles, len(cycle)), is_seeded, cycle)

    tables = _small_tables(cycle, num_calls, is_seeded, setting.filters)
    return SamplingPlan(tables, count, num_checkpoints, num_calls * len(kinds))


def _small_row() -> Row32:
    """The logits of `_PROBS`."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.array(_PROBS)), dtype=np.float32)


def _small_tables(cycle: Sequence[Kind], num_calls: int, is_seeded: Seeded, filters: FilterPolicy) -> dict[str, Table]:
    """Return a table of the tokens of each kind, and of those with seeds if some have."""
    batch = batch_of(list(cycle), np.tile(_small_row(), (len(cycle), 1)), np.zeros(len(cycle), np.int64), "cpu")
    probs = [_exact_probs(batch, number, filters) for number in range(len(cycle))]
    return {
        name: Table(probs[number], label="token {}".format, num_draws=num_calls * int(rows.sum()))
        for name, number, rows in _rows_of_tables(cycle, is_seeded)
    }


def _rows_of_tables(cycle: Sequence[Kind], is_seeded: Seeded) -> Iterator[tuple[str, int, NDArray[np.bool_]]]:
    """Yield each table's name, its kind's number and its rows among those of the kind, `[num_cycles] bool`."""
    for number, kind in enumerate(cycle):
        own = is_seeded[:, number]
        yield f"T1 {kind.name}", number, ~own
        if own.any():
            yield f"T1 {kind.name}, with seeds", number, own


def _count_small(
    tokens: NDArray[np.int64],  # [num_calls, num_cycles, num_kinds] int64
    is_seeded: NDArray[np.bool_],  # [num_cycles, num_kinds] bool
    cycle: Sequence[Kind],
) -> dict[str, NDArray[np.int64]]:
    """Return how often each token was drawn in one checkpoint, by table."""
    size = len(_PROBS)
    known = np.where((tokens >= 0) & (tokens < size), tokens, -1)
    return {
        name: count_codes(known[:, rows, number].ravel(), size)
        for name, number, rows in _rows_of_tables(cycle, is_seeded)
    }
