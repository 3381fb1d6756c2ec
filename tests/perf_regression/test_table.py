"""The pages about performance are those of the committed records."""

import re
from pathlib import Path

import pytest
from manual import performance as perf_table

from fairdraw.perf_regression._records import provenance


@pytest.mark.parametrize("name", perf_table.CHARTS)
def test_picture_is_drawn_and_shown_in_the_manual(name: str, tmp_path: Path) -> None:
    """With its own background and text, for readers who prefer light or dark."""
    pytest.importorskip("matplotlib")
    drawn = perf_table.CHARTS[name](tmp_path / name).read_text(encoding="utf-8")
    assert "fill: var(--paper)" in drawn
    assert "prefers-color-scheme: dark" in drawn
    pages = "".join(path.read_text(encoding="utf-8") for path in (perf_table.ROOT / "docs").glob("*.md"))
    assert re.search(rf"!\[[^\]]+\]\(pictures/{re.escape(name)}\)", pages)


def test_records_keep_every_limit_and_name_no_path_of_a_machine() -> None:
    limits = perf_table.record("scanners_cpu.json")["limits"]
    assert [one["verdict"] for one in limits] == ["PASS"] * 10
    assert any("measure.py" in name for name in perf_table.record("rejection_h200.json")["sources"])
    for path in perf_table.RECORDS.glob("*.json"):
        assert str(perf_table.ROOT) not in path.read_text(encoding="utf-8"), path.name


def test_provenance_names_machine_versions_and_commit() -> None:
    found = provenance("abc")
    assert found["commit"] == "abc"
    assert {"processor", "cores", "load_per_core"} <= found["machine"].keys()
    assert found["versions"]["torch"]
