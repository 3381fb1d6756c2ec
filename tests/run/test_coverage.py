"""Coverage says what the sampler really got, how finely it was judged, and what nothing judged."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fairdraw._core.checks import PROFILES
from fairdraw._core.contracts import CONTRACTS
from fairdraw._report.coverage import _range, coverage_of
from fairdraw._run import coverage
from fairdraw._run.coverage import Drawn, Watch
from fairdraw._run.drawn_features import CATALOGUES
from fairdraw._run.loading import all_checks, load_sampler
from fairdraw._run.runner import CheckRecord, Session, run_check
from fairdraw.protocols import AddedRow, LiveBatch, LiveRequest, RequestParams, RowChanges, SeededNoise
from fairdraw.strategies.sampling import SampledRequest, SamplingCase

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairdraw.protocols import PenaltiesSession

SESSION = Session(profile=dataclasses.replace(PROFILES["smoke"], examples=4, draws=2_000), crash_folder=None)
CHECKS = {
    "rejection": ("REJ101", "REJ328", "DIST101", "DIST102", "DIST601"),
    "sampling": ("SAM101", "DIST701"),
    "logits_plan": ("PLAN101",),
    "penalties": ("PEN101",),
    "thinking_budget": ("THK101",),
    "logprobs": ("LPR101", "DIST951"),
    "filters": ("FIL101", "DIST981"),
    "grammar": ("GRM106", "GRM125", "DIST971"),
}


def records_of(contract: str) -> list[CheckRecord]:
    sampler = load_sampler(CONTRACTS[contract].default)
    chosen = [check for check in all_checks(contract=contract) if check.code in CHECKS[contract]]
    assert chosen
    return [run_check(check, sampler, SESSION) for check in chosen]


@pytest.mark.parametrize("contract", [name for name, contract in CONTRACTS.items() if contract.is_watched])
def test_everything_that_is_drawn_is_in_the_catalogue(contract: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And every call can be read; what may not be blamed on a sampler is silent otherwise."""
    monkeypatch.setattr(coverage, "_or_nothing", lambda read, arguments: read(arguments))
    catalogue = CATALOGUES[contract]
    judged = [record for record in records_of(contract) if record.drawn]
    assert judged
    for record in judged:
        drawn = record.drawn or Drawn("")
        assert drawn.total > 0
        assert set(drawn.pairs) <= set(catalogue.pairs)
        for area, values in drawn.features.items():
            assert set(values) <= set(catalogue.areas[area])
        plain = json.loads(json.dumps(record.to_json() | {"drawn": dataclasses.asdict(drawn)}))
        assert coverage_of([CheckRecord.from_json(plain)]) == coverage_of([record])  # as xdist sends it
    (one,) = coverage_of(judged)
    lines = one.lines()
    assert len(lines) <= 6
    assert max(map(len, lines)) <= 98
    assert any(line.startswith("NOT judged: ") for line in lines)


def test_a_call_is_described_in_plain_words(wide_batch: Callable[[int, int], Any]) -> None:
    watch = Watch("rejection", "properties", case_by_case=True)
    sampler = watch.wrap(load_sampler("rejection/torch"))
    watch.case()
    sampler.verify(wide_batch(300, 40), SeededNoise(0, {1: 5}))
    watch.case()
    drawn = watch.drawn()
    assert drawn.total == 1
    for area, value in {
        "requests per batch": "257-1024",
        "drafts per request": "6-10",
        "vocabulary": "1-64",
        "inputs": "one-hot drafts",
        "noise": "per-request seeds beside none",
        "temperature": "greedy beside random",
        "calls per case": "1",
    }.items():
        assert drawn.features[area][value] == 1
    assert drawn.pairs["per-request seed + over 256 requests"] == 1
    assert "greedy + per-request seed" not in drawn.pairs
    assert drawn.ranges["drafts per request"] == [(7, 7)]


def test_sizes_of_which_a_power_of_two_is_missing_are_no_range() -> None:
    some = [
        Drawn("properties", ranges={"vocabulary": [(1, 1), (3, 3)]}),
        Drawn("rows", ranges={"vocabulary": [(8, 9)]}),
    ]
    assert _range("vocabulary", some) == [(1, 3), (8, 9)]


@pytest.fixture
def wide_batch() -> Callable[[int, int], Any]:
    from fairdraw.protocols import SpecDecodeBatch

    def make(batch_size: int, vocab_size: int) -> SpecDecodeBatch:
        counts = [7] * batch_size
        return SpecDecodeBatch(
            torch.zeros(7 * batch_size, dtype=torch.int32),
            counts,
            torch.tensor(counts, dtype=torch.int32).cumsum(0, dtype=torch.int32),
            7,
            None,
            torch.zeros(7 * batch_size, vocab_size),
            torch.zeros(batch_size, 1, dtype=torch.int32),
            torch.tensor([0.0] + [1.0] * (batch_size - 1)),
        )

    return make


def test_requests_of_a_session_are_followed() -> None:
    watch = Watch("penalties", "properties", case_by_case=True)
    session: PenaltiesSession = watch.wrap(load_sampler("penalties")).open_penalties(8)
    first, late = ([1, 2, 3], [4])
    rows = [
        LiveRequest(str(i), RequestParams(presence_penalty=1.0), [1], output) for i, output in enumerate((first, late))
    ]

    def step(changes: RowChanges, requests: list[LiveRequest]) -> None:
        session.sync(changes)
        session.penalise(torch.zeros(len(requests), 8), LiveBatch(tuple(requests)))

    step(RowChanges(1, added=(AddedRow(0, rows[0].params, [1], first),)), rows[:1])
    del first[1:]
    step(RowChanges(2, added=(AddedRow(1, rows[1].params, [1], late),)), rows)
    first.append(7)
    step(RowChanges(2), rows)
    watch.case()
    drawn = watch.drawn()
    assert set(drawn.features["events"]) == {"added", "output cut", "output regrown after a cut"}
    assert drawn.pairs["presence penalty + joined later"] == 1


PROPERTY = CheckRecord("REJ101", "ids", "properties", "rejection", "passed", cases=10)
DIST = CheckRecord("DIST101", "rows", "statistical", "rejection", "passed", cases=6_000)


def test_what_checks_share_is_counted_once_and_a_rare_feature_is_judged_coarsely() -> None:
    half = {"dtype of the logits": {"float16": 250}}
    drawn = Drawn("w", 1000, half, {"greedy + per-request seed": 10}, tv=0.02)
    other = replace(DIST, code="DIST103", drawn=replace(drawn, tv=0.05))
    cases = Drawn("properties", 10, {"dtype of the logits": {"float16": 4}})
    (one,) = coverage_of([replace(PROPERTY, drawn=cases), replace(DIST, drawn=drawn), other, DIST])
    row = next(row for row in one.features if row.value == "float16")
    assert (row.cases, row.checks, row.draws, row.by) == (4, 1, 1500, "both")
    assert row.fault_rate == pytest.approx(1 - 0.05**0.25, abs=1e-6)
    assert (row.tv, row.tv_all) == (0.08, 0.2)
    pair = next(row for row in one.pairs if row.value == "greedy + per-request seed")
    assert (pair.draws, pair.tv, pair.by) == (60, None, "none")  # a hundredth of the rows: nothing is seen there
    assert one.draws == 6_000


def test_checks_that_came_to_no_result_judge_nothing() -> None:
    class Silent:
        name, device, contract = "silent", "cpu", "rejection"
        capabilities = load_sampler("rejection/torch").capabilities

        def verify(self, batch: object, noise: object) -> object:
            raise ValueError("no")

    check = next(check for check in all_checks() if check.code == "REJ101")
    record = run_check(check, Silent(), SESSION)  # type: ignore[arg-type]  # it answers nothing
    assert record.status == "error"
    assert coverage_of([record]) == []


def test_batches_of_one_kind_of_request_are_counted() -> None:
    requests = (SampledRequest(temperature=0.0), *[SampledRequest(temperature=0.7, top_k=2, top_p=0.9)] * 2)
    for case, expected in (
        (SamplingCase(5, requests), {"temperature", "top-k", "top-p", "every parameter"}),
        (SamplingCase(5, (*requests, SampledRequest(temperature=0.5, top_k=2))), {"top-k"}),
        (SamplingCase(5, requests[:2]), set()),
    ):
        watch = Watch("sampling", "properties", case_by_case=True)
        sampler = watch.wrap(load_sampler("sampling/torch"))
        watch.case()
        sampler.sample(case.batch(), case.noise())
        watch.case()
        assert set(watch.drawn().features.get("one value in the whole batch", {})) == expected
