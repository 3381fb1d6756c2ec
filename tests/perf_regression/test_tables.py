"""The page about scanners, and the record that it is made from."""

from __future__ import annotations

import json
from pathlib import Path

from fairdraw.perf_regression._records import provenance
from fairdraw.perf_regression._tables import scanners_page

ROOT = Path(__file__).parents[2]
RECORD = "perf_regression/records/scanners_cpu.json"


def test_page_is_the_one_made_from_the_record() -> None:
    record = json.loads((ROOT / RECORD).read_text(encoding="utf-8"))
    assert (ROOT / "docs" / "scanners.md").read_text(encoding="utf-8") == scanners_page(record, RECORD)


def test_record_keeps_every_promise() -> None:
    record = json.loads((ROOT / RECORD).read_text(encoding="utf-8"))
    assert {promise["verdict"] for promise in record["promises"]} == {"PASS"}
    assert len(record["promises"]) == 10


def test_records_name_no_path_of_a_machine() -> None:
    for path in (ROOT / "perf_regression" / "records").glob("*.json"):
        assert str(ROOT) not in path.read_text(encoding="utf-8"), path.name


def test_provenance_names_machine_versions_and_commit() -> None:
    found = provenance("abc")
    assert found["commit"] == "abc"
    assert {"processor", "cores", "load_per_core"} <= found["machine"].keys()
    assert found["versions"]["torch"]
