"""Serving traces: sizes are walked, requests keep what is theirs, and every pair of features occurs."""

import dataclasses
from collections import Counter
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from fairdraw._core.checks import PROFILES
from fairdraw._core.rows import Owner, row_changes
from fairdraw._mutants.sampling import right
from fairdraw._oracles.rejection import verify
from fairdraw._run.loading import CannotStart, as_sampler
from fairdraw.contracts import RowKeeper, rejection_sampler, switch_sides, token_sampler
from fairdraw.strategies._cases import RejectionCase
from fairdraw.strategies._rejection_traces import RejectionTrace, rejection_trace_for
from fairdraw.strategies._sampling_traces import _FIRST_AIMED, _NUM_AIMED, SamplingTrace, _parameter_sets
from fairdraw.strategies._serving import Serving, edges, sizes_of, vocabulary_walk
from fairdraw.strategies._trace_plans import flat_traces, traces
from fairdraw.strategies.rows import bulk_rng
from fairdraw.strategies.sampling import SamplingCase

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


@pytest.mark.parametrize("seed", range(3))
def test_row_events_lead_from_each_call_to_the_next(seed: int) -> None:
    serving, keeper, seen = Serving(bulk_rng("test", seed)), RowKeeper(), set[str]()
    before: list[Owner] = []
    for size in sizes_of("edges", 200, seed):
        now = [Owner(request, request) for request in serving.step(size).request.tolist()]
        changes = row_changes(before, now)
        gone = [row for row, owner in enumerate(before) if owner not in now]
        assert [added.row for added in changes.added] == [*gone, *range(len(before), 300)][: len(changes.added)]
        keeper.sync(changes)
        assert [keeper.rows[row] for row in range(size)] == [owner.seed for owner in now]
        assert set(keeper.rows) == set(range(size))
        seen |= {name for name in ("removed", "added") if getattr(changes, name)}
        seen |= {moved.direction.name for moved in changes.moved}
        before = now
    assert seen == {"removed", "added", "UNIDIRECTIONAL", "SWAP"}


def test_both_sides_of_a_switch_are_walked() -> None:
    switches = {"vocabulary": (1000, 12_345, 2**20), "rows": (1777,), "drafts": (47, 128)}
    sampler = rejection_sampler(verify, size_switches=switches)
    assert switch_sides(sampler)[1][1] == "left out: vocabulary 1048576, as cases have at most 262144"
    wide, core = traces(rejection_trace_for, sampler, PROFILES["smoke"], 0)
    for found in (wide, flat_traces(rejection_trace_for, sampler, PROFILES["smoke"], 0)):
        assert {999, 1000, 1001, 12_344, 12_345, 12_346} <= {trace.vocab_size for trace in found}
    assert {1776, 1777, 1778} <= set(core[0].sizes())
    calls = [call for trace in core for call in trace.replace(most_rows=40, more_rows=()).played()]
    equal = {counts[0] for call in calls if len(set(counts := call.batch.num_draft_tokens)) == 1 < len(counts)}
    assert {46, 47, 48, 127, 128} <= equal


@pytest.mark.parametrize("wrong", [[3], {"drafts": (8,)}, *({"rows": w} for w in (3, (), (0,), (True,), range(1, 10)))])
def test_switches_that_are_none_are_refused(wrong: Any) -> None:  # Any: to be refused
    message = (
        r"size_switches.*=.*, but it must (give sizes for some of vocabulary, rows|be 1 to 8 whole numbers above 0)\. "
    )
    with pytest.raises(ValueError, match=f"token_sampler: {message}"):
        token_sampler(right().function, size_switches=wrong)
    with pytest.raises(CannotStart, match=f"sampler oracle: FunctionTokenSampler: {message}"):
        as_sampler(dataclasses.replace(right(), size_switches=wrong))


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: type(trace).__name__)
def test_every_pair_of_settings_occurs(trace: SamplingTrace | RejectionTrace) -> None:
    settings = [call.setting for call in trace.played()]
    for one, other in combinations(settings[0], 2):
        expected = {(a[one], b[other]) for a in settings for b in settings}
        assert {(setting[one], setting[other]) for setting in settings} == expected


def test_every_pair_of_parameters_occurs() -> None:
    sets = {name: column[_FIRST_AIMED + _NUM_AIMED :] for name, column in _parameter_sets(64, 3, ()).items()}
    counted = {name: Counter(column.tolist()) for name, column in sets.items()}
    often = {name: [value for value, count in counts.items() if count > 4] for name, counts in counted.items()}
    for one, other in combinations(sets, 2):  # other values are drawn for each set
        assert {*product(often[one], often[other])} <= {*zip(sets[one].tolist(), sets[other].tolist(), strict=True)}
    assert len(counted["temperature"]) > 2 * len(often["temperature"]) > 12
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
    case = SamplingCase if isinstance(trace, SamplingTrace) else RejectionCase
    assert case.from_json(trace.to_json()) == trace  # crash files of a contract name one class


@pytest.mark.parametrize(("field", "value"), [("walk", "zigzag"), ("vocab_size", 0), ("most_rows", 0)])
@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: type(trace).__name__)
def test_impossible_trace_is_refused(trace: SamplingTrace | RejectionTrace, field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"{type(trace).__name__}: {field}"):
        trace.replace(**{field: value})
