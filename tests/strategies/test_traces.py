"""Serving traces: sizes are walked, requests keep what is theirs, and every pair of features occurs."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from fairdraw.strategies._rejection_traces import RejectionTrace
from fairdraw.strategies._sampling_traces import _NUM_TELLING, SamplingTrace, _parameter_sets
from fairdraw.strategies._serving import Serving, edges, sizes_of, vocabulary_walk
from fairdraw.strategies.rows import bulk_rng

TRACES = (SamplingTrace(3, 64, 40, "every"), RejectionTrace(3, 64, 40, "every"))


def test_every_size_is_walked() -> None:
    assert set(sizes_of("every", 1100, seed=5)) == set(range(1, 1101))
    near = {2**k + by for k in range(1, 11) for by in (-1, 0, 1)} | {
        32 * k + by for k in range(1, 34) for by in (-1, 1)
    }
    assert near <= set(edges(1100))
    assert {2**17 - 1, 2**17, 2**17 + 1, 3 * 2**9 + 1} <= set(vocabulary_walk(2**17 + 1))


@pytest.mark.parametrize("seed", range(3))
def test_requests_come_move_wait_and_go(seed: int) -> None:
    serving, calls = Serving(bulk_rng("test", seed)), {}
    seen = dict.fromkeys(("new", "moved", "resumed", "kept"), 0)
    before: list[int] = []
    for size in sizes_of("edges", 200, seed):
        rows = serving.step(size)
        requests = rows.request.tolist()
        assert len(set(requests)) == size
        for row, request in enumerate(requests):
            assert rows.age[row] == calls.get(request, 0)
            calls[request] = calls.get(request, 0) + 1
            assert rows.owner_before[row] == (before[row] if row < len(before) else -1)
        seen["new"] += int(rows.is_new.sum())
        seen["moved"] += int(rows.has_moved.sum())
        seen["resumed"] += int(rows.is_resumed.sum())
        seen["kept"] += int((rows.owner_before == rows.request).sum())
        before = requests
    assert all(seen.values()), seen


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: type(trace).__name__)
def test_every_pair_of_settings_occurs(trace: SamplingTrace | RejectionTrace) -> None:
    settings = [call.setting for call in trace.played()]
    for one, other in combinations(settings[0], 2):
        expected = {(a[one], b[other]) for a in settings for b in settings}
        assert {(setting[one], setting[other]) for setting in settings} == expected


def test_every_pair_of_parameters_occurs() -> None:
    sets = {name: column[1 + _NUM_TELLING :] for name, column in _parameter_sets(64, 3, ()).items()}
    values = {name: np.unique(column) for name, column in sets.items()}
    for one, other in combinations(sets, 2):
        assert len(set(zip(sets[one], sets[other], strict=True))) == len(values[one]) * len(values[other])
    without = _parameter_sets(64, 3, ("top-k", "min-p"))
    assert set(without["top_k"]) == {64}
    assert set(without["min_p"]) == {0}


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: type(trace).__name__)
def test_parts_of_a_trace_are_those_of_the_whole(trace: SamplingTrace | RejectionTrace) -> None:
    whole = list(trace.played())
    part = list(trace.replace(calls=(7, 20)).played())
    assert [call.number for call in part] == [7, 20]
    for call in part:
        for name, tensor in whole[call.number].batch.tensors().items():
            assert np.array_equal(tensor.float(), getattr(call.batch, name).float(), equal_nan=True), name
    alone = next(iter(trace.replace(calls=(7,), rows=(1,)).played()))
    assert alone.batch.batch_size == 1
    assert alone.rows.request[0] == whole[7].rows.request[1]
    assert type(trace).from_json(trace.to_json()) == trace


@pytest.mark.parametrize(("field", "value"), [("walk", "zigzag"), ("vocab_size", 0), ("most_rows", 0)])
@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: type(trace).__name__)
def test_impossible_trace_is_refused(trace: SamplingTrace | RejectionTrace, field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"{type(trace).__name__}: {field}"):
        trace.replace(**{field: value})
