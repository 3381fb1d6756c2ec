"""Coverage says what the sampler really got, how finely it was judged, and what nothing judged."""

import dataclasses
import json
from dataclasses import replace

import pytest
import torch
from helpers import CHECKS, plain_batch

from fairdraw._core.checks import PROFILES, Check
from fairdraw._core.contracts import CONTRACTS
from fairdraw._report.coverage import coverage_of
from fairdraw._run import coverage
from fairdraw._run.controls import mutants_for
from fairdraw._run.coverage import Drawn, Watch
from fairdraw._run.loading import all_checks, load_sampler
from fairdraw._run.runner import CheckRecord, Session, run_check
from fairdraw.contracts import (
    AddedRow,
    LiveBatch,
    LiveRequest,
    PenaltiesSession,
    RequestParams,
    RowChanges,
    SeededNoise,
)
from fairdraw.strategies.lifecycle import Add, Decode, PenaltiesTrace

SESSION = Session(profile=dataclasses.replace(PROFILES["smoke"], examples=4, draws=2_000), crash_folder=None)
CODES = {
    "rejection": ("REJ101", "REJ701", "DIST101", "DIST102", "DIST601"),
    "sampling": ("SAM101", "DIST701"),
    "logits_plan": ("PLAN101",),
    "penalties": ("PEN101",),
    "thinking_budget": ("THK101",),
    "logprobs": ("LPR101", "DIST951"),
    "filters": ("FIL101", "DIST981"),
    "grammar": ("GRM108", "GRM132", "DIST971"),
    "matchers": ("MAT101",),
    "masks": ("MSK101", "MSK201"),
    "watermarks": ("WMK101", "DIST991"),
}


def records_of(contract: str) -> list[CheckRecord]:
    sampler = load_sampler(CONTRACTS[contract].default)
    chosen = [check for check in all_checks(contract=contract) if check.code in CODES[contract]]
    assert chosen
    return [run_check(check, sampler, SESSION) for check in chosen]


@pytest.mark.parametrize("contract", [name for name, contract in CONTRACTS.items() if not contract.is_remote])
def test_what_is_drawn_adds_up_to_a_short_block(contract: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And every call can be read; what may not be blamed on a sampler is silent otherwise."""
    monkeypatch.setattr(coverage, "_or_nothing", lambda read, arguments: read(arguments))
    judged = [record for record in records_of(contract) if record.drawn]
    assert judged
    for record in judged:
        drawn = record.drawn or Drawn("")
        assert drawn.total > 0
        plain = json.loads(json.dumps(record.to_json() | {"drawn": dataclasses.asdict(drawn)}))
        assert coverage_of([CheckRecord.from_json(plain)]) == coverage_of([record])  # as xdist sends it
    (one,) = coverage_of(judged)
    known = {row.value for row in one.pairs}
    assert {pair for record in judged if record.drawn for pair in record.drawn.pairs} <= known
    names = {name for record in judged if record.drawn for name in record.drawn.sliced}
    assert names <= {row.area for row in one.features}
    assert len(one.lines()) <= 12
    assert max(map(len, one.lines())) <= 98
    assert any(row.by == "none" for row in one.features)  # few checks: there are gaps


BATCH = plain_batch([7] * 300, 40, temperature=torch.tensor([0.0] + [1.0] * 299))


def test_a_call_is_described_in_plain_words() -> None:
    watch = Watch("rejection", "properties", case_by_case=True)
    sampler = watch.wrap(load_sampler("rejection/torch"))
    watch.case()
    sampler.verify(BATCH, SeededNoise(0, {1: 5}))
    watch.case()
    drawn = watch.drawn()
    assert drawn.total == 1
    for area, value in {
        "draft distributions": "one-hot drafts",
        "noise": "per-request seed",
        "temperature": "greedy",
        "dtype of the logits": "float32",
    }.items():
        assert drawn.features[area][value] == 1
    assert drawn.features["layout"]["strided"] == 0
    assert drawn.sizes["requests per batch"] == {"9": 1}
    assert drawn.sizes["calls per case"] == {"1": 1}
    assert drawn.ranges["drafts per request"] == [(7, 7)]
    assert drawn.pairs["one-hot drafts + per-request seed"] == 1
    assert "greedy + per-request seed" not in drawn.pairs


def test_gaps_show_as_gaps() -> None:
    """Issue 39: `vocabulary 1-262144` hid that nothing lay between 32,769 and 65,536."""
    sizes = [(1, 1), (2, 2), (3, 3), (5, 5), (32_768, 32_769), (65_536, 65_536)]
    cases = Drawn(
        "properties", 4, sizes={"vocabulary": {"1": 4, "2": 3, "3": 2, "16": 2, "17": 1}}, ranges={"vocabulary": sizes}
    )
    rows = Drawn("rows", 10, sizes={"vocabulary": {"3": 10}}, ranges={"vocabulary": [(5, 5)]}, tv=0.1)
    (one,) = coverage_of([replace(PROPERTY, drawn=cases), replace(DIST, drawn=rows)])
    assert [(row.value, row.cases, row.by) for row in one.features] == [
        ("1", 4, "properties"), ("2-3", 3, "properties"), ("4", 0, "none"), ("5", 2, "both"),
        ("6-32767", 0, "none"), ("32768-32769", 2, "properties"), ("32770-65535", 0, "none"),
        ("65536", 1, "properties"),
    ]  # fmt: skip
    assert "  vocabulary: 1-3; 5; 32,768-32,769; 65,536 (draws 5)" in one.lines()


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
    events, changes = drawn.features["events of a request"], drawn.features["changes of rows"]
    assert {word for word, count in events.items() if count} == {
        *("joined later", "output cut", "output regrown after a cut", "none")
    }
    assert {word for word, count in changes.items() if count} == {"added", "none"}
    assert drawn.pairs["joined later + presence penalty"] == 1


PROPERTY = CheckRecord("REJ101", "ids", "properties", "rejection", "passed", cases=10)
DIST = CheckRecord("DIST101", "rows", "statistical", "rejection", "passed", cases=6_000)


def test_what_checks_share_is_counted_once_and_a_rare_level_is_judged_coarsely() -> None:
    words = {"dtype of the logits": {"float32": 750, "float16": 250}, "layout": {"contiguous": 990, "strided": 10}}
    drawn = Drawn("w", 1000, words, pairs={"float16 + strided": 10}, tv=0.02)
    other = replace(DIST, code="DIST104", drawn=replace(drawn, tv=0.05))
    cases = Drawn("properties", 10, {"dtype of the logits": {"float32": 9, "float16": 4}})
    (one,) = coverage_of([replace(PROPERTY, drawn=cases), replace(DIST, drawn=drawn), other, DIST])
    row = next(row for row in one.features if row.value == "float16")
    assert (row.cases, row.checks, row.draws, row.by) == (4, 1, 1500, "both")
    assert row.fault_rate == pytest.approx(1 - 0.05**0.25, abs=1e-6)
    assert row.tv == 0.08
    pair = next(row for row in one.pairs if row.value == "float16 + strided")
    assert (pair.draws, pair.tv, pair.by) == (60, None, "none")  # a hundredth of the rows: nothing is seen there
    assert one.draws == 6_000


def test_bias_falls_with_the_root_of_a_slices_draws_and_is_of_all_draws_elsewhere() -> None:
    words = {"dtype of the logits": {"float32": 750, "float16": 250}, "layout": {"contiguous": 750, "strided": 250}}
    drawn = Drawn("w", 1000, words, bias=0.1, sliced=("dtype of the logits",))
    (one,) = coverage_of([replace(DIST, drawn=drawn)])
    assert {row.value: row.bias for row in one.features if row.draws == 1500} == {"float16": 0.2, "strided": 0.4}
    fewer = {"layout": {"contiguous": 900, "strided": 100}}
    (one,) = coverage_of([replace(DIST, drawn=replace(drawn, features=fewer))])
    assert next(row for row in one.features if row.value == "strided").by == "none"  # chance 1/2 is off by 1/2 at most


def test_nothing_is_left_to_chance_in_greedy_requests() -> None:
    watch = Watch("rejection", "rows", case_by_case=False)
    watch.wrap(load_sampler("rejection/torch")).verify(BATCH, SeededNoise(0, {}))
    found = watch.drawn().features["temperature"]
    assert (found["greedy"], found["temperature 1"]) == (0, 299)


def test_checks_that_came_to_no_result_judge_nothing() -> None:
    class Silent:
        name, device, contract = "silent", "cpu", "rejection"
        capabilities = load_sampler("rejection/torch").capabilities

        def verify(self, batch: object, noise: object) -> object:
            raise ValueError("no")

    record = run_check(CHECKS["REJ101"], Silent(), SESSION)  # type: ignore[arg-type]  # it answers nothing
    assert record.status == "error"
    assert coverage_of([record]) == []


def test_looking_at_a_call_reads_no_token_of_a_text() -> None:
    (check,) = (one for one in all_checks(contract="penalties") if isinstance(one, Check) and one.code == "PEN103")
    mutant = next(one for one in mutants_for("penalties") if one.name == "rescans from the start")
    case = PenaltiesTrace((Add(more_output=13), Decode()), vocab_size=3, watch="reading")  # one more is one too many
    check.on_case(Watch("penalties", "properties", case_by_case=True).wrap(mutant.make()), case)
