"""Calls of one sampler in an engine, as arrays: requests come, move, wait and go, call after call.

`ServingBatch` plays the same for contracts that receive every event. Here nobody does: a sampler sees one batch
after the other, so that all that matters is who stands in which row. A call of a thousand rows takes microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from fairdraw._core.array_types import Flags, Ints
from fairdraw._core.failures import AdapterError
from fairdraw._core.rows import Owner, seat
from fairdraw.contracts import Capability, follows_rows
from fairdraw.strategies._covering import covering_settings
from fairdraw.strategies.rows import bulk_rng

Answer = TypeVar("Answer")

_FINISH, _PREEMPT, _SWAP = 0.08, 0.02, 0.1
"""Chances per request and call: of leaving for good, of leaving for a while; and per call, that two requests swap."""


@dataclass(frozen=True)
class ServedRows:
    """Who stands in the rows of one call; all are `[batch_size] int64`.

    Args:
        request: Numbers of requests, counted from 0 in the order of their arrival.
        age: Calls in which the request was before.
        owner_before: The request that had this row in the call before; -1 if none had.
        is_resumed: 1 where the request waited in the call before.
        owners: The requests, for a sampler that follows its rows; empty if none does.
    """

    request: Ints
    age: Ints
    owner_before: Ints
    is_resumed: Ints
    owners: tuple[Owner, ...] = ()

    @property
    def is_new(self) -> Ints:
        """1 where this is the request's first call."""
        return np.asarray(self.age == 0, dtype=np.int64)

    @property
    def has_moved(self) -> Ints:
        """1 where the request was in the batch before, in another row."""
        return np.asarray((self.age > 0) & (self.owner_before != self.request), dtype=np.int64)

    def taken(self, rows: Ints) -> ServedRows:
        """Return some of the rows."""
        owners = tuple(self.owners[row] for row in rows.tolist()) if self.owners else ()
        return ServedRows(self.request[rows], self.age[rows], self.owner_before[rows], self.is_resumed[rows], owners)


class Serving:
    """A batch whose requests come and go; `step` says who is in it next.

    Args:
        rng: Everything that happens follows from it.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._rows = np.empty(0, dtype=np.int64)
        self._waiting = np.empty(0, dtype=np.int64)
        self._ages = np.zeros(1024, dtype=np.int64)
        self._num_requests = 0

    def step(self, size: int) -> ServedRows:
        """Return the rows of the next call, which has `size` of them."""
        before, resumed = self._rows, self._leave(size)
        self._close_up()
        if len(self._rows) > 1 and self._rng.random() < _SWAP:
            one, other = self._rng.choice(len(self._rows), 2, replace=False)
            self._rows[[one, other]] = self._rows[[other, one]]
        self._enter(resumed, size)
        owners = np.full(size, -1, dtype=np.int64)
        owners[: len(before)] = before[:size]
        ages = self._ages[self._rows].copy()
        self._ages[self._rows] += 1
        return ServedRows(self._rows.copy(), ages, owners, np.isin(self._rows, resumed).astype(np.int64))

    def _leave(self, size: int) -> Ints:
        """Mark rows of requests that leave as free (-1); returns those that may come back."""
        fate = self._rng.random(len(self._rows))
        gone, back = fate < _FINISH, fate > 1 - _PREEMPT
        resumed, self._waiting = self._waiting, self._rows[back]
        rows = self._rows.copy()
        rows[gone | back] = -1
        alive = np.flatnonzero(rows >= 0)
        if len(alive) > size:  # a smaller batch: some more must go
            rows[self._rng.choice(alive, len(alive) - size, replace=False)] = -1
        self._rows = rows
        return resumed

    def _close_up(self) -> None:
        """Move the last requests into free rows, as vLLM's batch does when it condenses."""
        alive = np.flatnonzero(self._rows >= 0)
        free = np.flatnonzero(self._rows[: len(alive)] < 0)
        last = alive[::-1][: len(free)]
        self._rows[free] = self._rows[last]
        self._rows = self._rows[: len(alive)]

    def _enter(self, resumed: Ints, size: int) -> None:
        """Fill the batch: those that waited first, then new ones."""
        missing = size - len(self._rows)
        back = resumed[:missing]
        new = np.arange(self._num_requests, self._num_requests + missing - len(back))
        self._num_requests += len(new)
        while self._num_requests > len(self._ages):
            self._ages = np.concatenate([self._ages, np.zeros_like(self._ages)])
        self._rows = np.concatenate([self._rows, back, new])


# -- sizes are walked, not drawn --------------------------------------------------------------------------------------

WALKS = ("every", "edges", "few")
"""Which batch sizes a trace walks through: every one, those at which kernels change, or three."""

_OFTEN, TIMES = 64, 3
"""Sizes up to this come so many times more: a small batch has few rows in which a fault of its size could show."""


def sizes_of(how: str, most: int, seed: int, times: int = TIMES, more: Sequence[int] = ()) -> list[int]:
    """Return the sizes of a trace's batches up to `most`, in an order that jumps: small after large.

    Args:
        times: Small sizes come so many times more.
        more: Sizes that come beside those of the walk.
    """
    if how == "few":
        return [most, max(1, most // 2), most, *more]
    sizes = list(range(1, most + 1)) if how == "every" else edges(most)
    sizes += [*more, *(size for size in range(1, min(most, _OFTEN) + 1) for _ in range(times))]
    return [int(size) for size in bulk_rng("sizes", seed).permutation(sizes)]


def edges(most: int, multiples: tuple[int, ...] = (32, 128)) -> list[int]:
    """Return the sizes up to `most` at which kernels change: around powers of two and around multiples, by one.

    Example:
        >>> edges(9, multiples=(5,))
        [1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    powers = [2**k for k in range(most.bit_length())]
    counted = [m * k for m in multiples for k in range(1, most // m + 1)]
    near = {size + by for size in (*powers, *counted) for by in (-1, 0, 1)}
    return sorted(size for size in near if 1 <= size <= most)


def vocabulary_walk(most: int) -> list[int]:
    """Return vocabularies up to `most` at powers of two and at three times such powers, and by one beside them."""
    middles = [factor * 2**k for k in range(most.bit_length()) for factor in (1, 3)]
    return sorted({size for middle in middles for size in (middle - 1, middle, middle + 1) if 1 <= size <= most})


# -- what belongs to a request or a call ------------------------------------------------------------------------------


def mixed_seeds(*parts: Ints) -> Ints:  # [n] int64
    """Return seeds of 64 bits, hashed element by element (splitmix64) from numbers."""
    state = np.zeros(len(parts[0]), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for part in parts:
            state = (state ^ part.astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state ^= state >> np.uint64(31)
    return state.astype(np.int64)


def of_request(salt: np.int64, what: int, request: Ints, modulus: int) -> Ints:  # [batch_size] int64
    """Return a number below `modulus` that belongs to each request, another one for each `what`."""
    hashed = mixed_seeds(request, np.full_like(request, what), np.full_like(request, salt))
    return (hashed & np.int64(2**62 - 1)) % modulus


def greedy_requests(how: str, is_one_of_some: Flags) -> Flags:  # [batch_size] bool
    """Return which requests are greedy: `none`, `all`, `one` in the middle, or `some`."""
    size = len(is_one_of_some)
    chosen = {"none": False, "all": True, "one": np.arange(size) == size // 2, "some": is_one_of_some}[how]
    return np.broadcast_to(np.asarray(chosen, dtype=bool), size)


def asked_first(
    ask: Callable[[Any, Any, Any], Any],  # Any: of any contract
    sampler: Any,
    trace: Any,
    is_asked: Callable[[Any], bool] = lambda _: True,
) -> Iterator[tuple[Any, Any, dict[int, int]]]:
    """Yield calls to be asked again, with their tokens and `states_of` their answers. All are made before if the
    sampler follows its rows: whoever is asked again stands in them, and what it kept of the others is gone."""

    def made() -> Iterator[tuple[Any, Any, dict[int, int]]]:  # Any: as above
        for call in filter(is_asked, trace.played(sampler.device)):
            answer = answered(ask, sampler, call)
            yield call, answer.tokens, states_of(answer)

    if follows_rows(sampler):
        answers = [(tokens, states) for _, tokens, states in made()]
        calls = filter(is_asked, trace.played(sampler.device))
        yield from ((call, *answer) for call, answer in zip(calls, answers, strict=True))
    else:
        yield from made()


def states_of(answer: Any) -> dict[int, int]:  # Any: of any contract
    """Return row to a number of the state in which a call left the generator of its request."""
    return {row: hash(state) for row, state in answer.generator_states.items()}


def answered(ask: Callable[[Any, Any, Any], Answer], sampler: Any, call: Any) -> Answer:  # Any: of any contract
    """Return the answer to a call; to contiguous copies of its tensors, if strided ones are refused by name."""
    batch = call.batch
    if call.rows.owners:
        seat(sampler, call.rows.owners, call.noise)
    try:
        return ask(sampler, batch, call.noise)
    except AdapterError:
        raise
    except Exception as refusal:
        copies = {name: one.contiguous() for name, one in batch.tensors().items() if not one.is_contiguous()}
        if not any(name in str(refusal) for name in copies):
            raise
        return ask(sampler, batch.replace(**copies), call.noise)


def settings_of_calls(
    choices: Mapping[str, Sequence[Any]],  # Any: words and flags
    needs: Mapping[tuple[str, Any], Capability],
    without: Sequence[str],
    seed: int,
) -> list[dict[str, Any]]:
    """Return settings of calls in which every pair of features occurs that the sampler supports.

    Args:
        choices: Feature to its values, the first of which every sampler takes.
        needs: Capability that a feature's value needs.
        without: Words of capabilities that there are not.
    """

    def is_possible(name: str, value: Any) -> bool:  # Any: a word or a flag
        need = needs.get((name, value))
        return need is None or str(need) not in without

    values = {name: [one for one in choice if is_possible(name, one)] for name, choice in choices.items()}
    values = {name: found or list(choices[name][:1]) for name, found in values.items()}
    if str(Capability.SEEDED_NOISE) in without and str(Capability.EXPLICIT_NOISE) not in without:
        values["noise"] = ["explicit"]
    found = covering_settings(values, 2, seed % 8)
    return [found[place] for place in bulk_rng("order of settings", seed).permutation(len(found))]
