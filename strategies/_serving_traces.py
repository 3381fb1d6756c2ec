"""What the serving traces of sampling and rejection have in common: their fields, their calls, seeds of requests."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fairdraw._core.array_types import Float32s, Ints
from fairdraw._core.rows import Owner
from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import Capability, RaceNoise, SamplingNoise, SeededNoise
from fairdraw.strategies._recipe import Recipe
from fairdraw.strategies._serving import TIMES, WALKS, ServedRows, Serving, mixed_seeds, of_request, sizes_of
from fairdraw.strategies.rows import bulk_rng

SETTINGS: dict[str, tuple[Any, ...]] = {  # Any: words and flags
    "dtype": ("float32", "bfloat16", "float16", "float32"),
    "layout": ("contiguous", "sliced", "contiguous", "transposed", "huge-stride"),
    "greedy": ("some", "none", "all", "one"),
    "odd row": ("none", "none", "NaN", "empty"),
}
"""Features of a call that both contracts have, with their values; the first is what every sampler takes."""

_STARTS = (0, 2**15, 2**16, 2**20, 2**24, 2**31, 2**32, 2**40)
"""Positions near which requests begin: numbers that fewer bits cannot count beyond."""


def needs_of(*needs: tuple[Any, ...]) -> dict[tuple[str, Any], Capability]:  # Any: a capability, a setting, its values
    """Return what values of settings need: those of both contracts, and more."""
    both: tuple[tuple[Any, ...], ...] = (
        (Capability.HALF_LOGITS, "dtype", "bfloat16", "float16"),
        (Capability.STRIDED_INPUTS, "layout", "sliced", "transposed", "huge-stride"),
        (Capability.REQUEST_SEEDS, "noise", "some seeds", "all seeds"),
        (Capability.EXPLICIT_NOISE, "noise", "explicit"),
        (Capability.GREEDY, "greedy", "some", "all", "one"),
        (Capability.NAN_LOGITS, "odd row", "NaN"),
        (Capability.EMPTY_ROWS, "odd row", "empty"),
    )
    return {(name, value): need for need, name, *values in (*both, *needs) for value in values}


@dataclass(frozen=True, repr=False)
class ServingTrace(Recipe):
    """Calls of one sampler, as data; `played` makes its calls.

    Args:
        walk: Which batch sizes (`WALKS`), up to `most_rows`.
        without: Capabilities that it must do without.
        calls: Those that are made, by number; all of them if empty.
        rows: Rows of the last of these calls; all of them if empty.
        flat: Every row gives every token the same probability, without parameters.
        followed: The sampler follows its rows, so that what becomes of them is reported to it.
        by_position: Seeds of requests stay from call to call, as samplers with counters draw by (seed, position).
        more_rows, more_drafts: Sizes of batches beside those of the walk, and drafts of requests beside the usual ones:
            both sides of what the sampler declares as its `size_switches`.

    Raises:
        ValueError: If a size is below 1, or the walk is unknown.
    """

    seed: int
    vocab_size: int
    most_rows: int = 1100
    walk: str = "edges"
    without: tuple[str, ...] = ()
    calls: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    flat: bool = False
    followed: bool = False
    by_position: bool = False
    more_rows: tuple[int, ...] = ()
    more_drafts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        kind = type(self).__name__
        self._require_words(walk=WALKS)
        for name in ("vocab_size", "most_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{kind}: {name}={getattr(self, name)}, but it must be at least 1. Use 1.")

    def sizes(self) -> list[int]:
        """Return the batch sizes, call after call."""
        return sizes_of(self.walk, self.most_rows, self.seed, 0 if self.flat else TIMES, self.more_rows)

    def played(self, device: str = "cpu") -> Iterator[Any]:  # Any: calls of the contract
        """Yield the calls; each is built when it is asked for."""
        raise NotImplementedError

    def build(self) -> None:
        """Build the first call; raises what a damaged recipe raises."""
        next(iter(self.played()))


class Player:
    """Builds the calls of one trace; a contract says how."""

    def __init__(self, trace: Any, device: str) -> None:  # Any: a `ServingTrace`
        self.trace, self.device = trace, device
        self.salt = np.int64(derive_seed("requests", trace.seed))

    def call(self, number: int, rows: ServedRows) -> Any:  # Any: of the contract
        """Return a call of the requests that stand in `rows`."""
        raise NotImplementedError

    def calls(self) -> Iterator[Any]:  # Any: as above; a call has `select`
        """Yield the calls of the trace that are asked for."""
        trace = self.trace
        serving, last = Serving(bulk_rng("serving", trace.seed)), max(trace.calls, default=-1)
        for number, size in enumerate(trace.sizes()):
            rows = serving.step(size)
            if trace.followed:
                rows = replace(rows, owners=self._owners(rows))
            if not trace.calls or number in trace.calls:
                call = self.call(number, rows)
                yield call.select(trace.rows) if trace.rows and number == last else call
            if number == last:
                return

    def of(self, what: int, request: Ints, modulus: int) -> Ints:
        """Return a number below `modulus` that belongs to each request."""
        return of_request(self.salt, what, request, modulus)

    def choices(self, settings: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:  # Any: words and flags
        """Return what settings may be: where rows are followed, a request keeps its seed, or has none."""
        return settings | {"noise": ("some seeds", "explicit")} if self._keeps_seeds else settings

    @property
    def _keeps_seeds(self) -> bool:
        trace = self.trace
        return trace.followed and trace.by_position and str(Capability.REQUEST_SEEDS) not in trace.without

    def _owners(self, rows: ServedRows) -> tuple[Owner, ...]:
        seeds = self.seeds_of_rows("some seeds", rows, 0) if self._keeps_seeds else {}
        names = [(int(self.salt), self.trace.vocab_size, request) for request in rows.request.tolist()]
        return tuple(Owner(name, seeds.get(row)) for row, name in enumerate(names))

    def positions(self, rows: ServedRows, step: int = 1) -> torch.Tensor:  # [batch_size] int64
        """Return where each request is in its text: `step` tokens further in each call, across powers of two."""
        pair = rows.request // 2
        start = np.array(_STARTS)[self.of(4, pair, len(_STARTS))]
        return torch.from_numpy(np.maximum(0, start - 3) + self.of(5, pair, 5) + rows.age * step)

    def exponentials(self, rng: np.random.Generator, num_rows: int) -> Float32s:  # [num_rows, vocab_size]
        """Return numbers to race with, none of which is 0."""
        drawn = rng.standard_exponential((num_rows, self.trace.vocab_size), dtype=np.float32)
        return np.maximum(drawn, np.float32(2.0**-25))

    def seeds_of_rows(self, how: str, rows: ServedRows, call: int) -> dict[int, int]:
        """Return row to seed: of no, some or all requests; others in each call, unless they stay.

        Seeds of requests that come in a pair differ in one bit. It is one of 32: torch's generator on a CPU takes no
        others.
        """
        call = 0 if self.trace.by_position else 1 + call
        if how == "call":
            return {}
        calls, salts = np.full_like(rows.request, call), np.full_like(rows.request, self.salt)
        bits = (rows.request % 2) << self.of(11, rows.request, 32)
        seeds = (mixed_seeds(rows.request // 2, calls, salts) ^ bits).tolist()
        has_seed = (self.of(6, rows.request, 2) == 0) | (how == "all seeds")
        return {place: seeds[place] for place in np.flatnonzero(has_seed).tolist()}


def kept_seeds(seeds: dict[int, int] | Any, rows: Any) -> dict[int, int]:  # Any: mappings and sequences
    """Return the seeds of these rows, by their new numbers."""
    return {new: seeds[old] for new, old in enumerate(rows) if old in seeds}


def noise_of_rows(noise: SamplingNoise, rows: Sequence[int]) -> SamplingNoise:
    """Return the noise of a batch that has these rows alone."""
    if isinstance(noise, RaceNoise):
        return noise.select(rows)
    return SeededNoise(noise.seed, kept_seeds(noise.request_seeds, rows))
