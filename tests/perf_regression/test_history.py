"""The history of measurements: what is written, and which changes of level are reported."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from fairdraw.perf_regression._decision import Verdict
from fairdraw.perf_regression._findings import Finding
from fairdraw.perf_regression._history import append_history, change_points, main

if TYPE_CHECKING:
    from pathlib import Path

TIMED = Finding("step", "time", Verdict.PASS, 0.5, 1.0, "measured", 0.45, 0.55)
COUNTED = Finding("step", "bytes", Verdict.PASS, 100, 200, "counted")


def runs(*values: float, processor: str = "one", case: str = "step") -> list[dict[str, Any]]:  # Any: JSON
    """A history of nightly runs; commits are numbered."""
    return [
        {"case": case, "what": "time", "value": value, "date": "2026-01-01", "commit": str(i)}
        | {"machine": {"processor": processor}}
        for i, value in enumerate(values)
    ]


def nightly_runs(level: float, count: int, seed: int, spread: float = 0.0065) -> list[float]:
    """Runs of the same code on a machine that is not busy."""
    rng = random.Random(seed)
    return [level * (1 + rng.gauss(0, spread)) for _ in range(count)]


def test_each_timed_finding_is_one_line_with_its_origin(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "perf.jsonl"
    assert append_history(path, [TIMED, COUNTED], "abc") == 1
    assert append_history(path, [TIMED], "def") == 1
    first, second = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    assert {"value": 0.5, "low": 0.45, "high": 0.55, "verdict": "PASS", "commit": "abc"}.items() <= first.items()
    assert {"machine", "versions", "date"} <= first.keys()
    assert second["commit"] == "def"


@pytest.mark.parametrize("seed", range(5))
def test_change_of_level_is_reported_where_it_began(seed: int) -> None:
    found = change_points(runs(*nightly_runs(1.0, 20, seed), *nightly_runs(1.05, 15, seed + 100)))
    assert [change.first["commit"] for change in found] == ["20"]
    assert found[0].after / found[0].before == pytest.approx(1.05, abs=0.01)
    assert "since 2026-01-01, commit 20" in str(found[0])
    improved = runs(*nightly_runs(1.0, 20, seed), *nightly_runs(0.9, 15, seed + 100))
    assert len(change_points(improved)) == 1


@pytest.mark.parametrize(
    "history",
    [
        *(runs(*nightly_runs(1.0, 60, seed)) for seed in range(5)),
        runs(*nightly_runs(1.0, 20, 1), 1.5, *nightly_runs(1.0, 20, 2)),
        runs(*[1.0] * 20, *[1.01] * 20),
        [*runs(*nightly_runs(1.0, 20, 1)), *runs(*nightly_runs(2.0, 20, 2), processor="two")],
    ],
    ids=[*(f"same code {seed}" for seed in range(5)), "one bad nightly run", "one per cent", "another machine"],
)
def test_no_change_is_reported(history: list[dict[str, Any]]) -> None:
    assert change_points(history) == []


def test_reader_prints_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "perf.jsonl"
    lines = runs(*nightly_runs(1.0, 10, 1), *nightly_runs(1.2, 10, 2))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    main([str(path)])
    assert capsys.readouterr().out.endswith("since 2026-01-01, commit 10\n")
    path.write_text("", encoding="utf-8")
    main([str(path)])
    assert capsys.readouterr().out == "no change in 0 measurements\n"
