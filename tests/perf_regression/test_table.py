"""The tables of docs/performance.md are those of the record, and say where a target is missed."""

from __future__ import annotations

import json

import perf_table


def test_page_is_made_from_the_record() -> None:
    page = perf_table.PAGE.read_text(encoding="utf-8")
    assert perf_table.with_tables(page, json.loads(perf_table.RECORD.read_text(encoding="utf-8"))) == page


def test_missed_target_is_caught() -> None:
    record = json.loads(perf_table.RECORD.read_text(encoding="utf-8"))
    record["equality"]["unequal"] = 1
    assert "| <= 0 | 1 | missed |" in perf_table.targets(record)
    record["equality"]["unequal"] = 0
    assert "| <= 0 | 0 | met |" in perf_table.targets(record)


def test_record_names_the_files_that_were_measured() -> None:
    record = json.loads(perf_table.RECORD.read_text(encoding="utf-8"))
    assert {"_counter_measure.py", "_rejection_kernels.py"} <= set(record["sources"])
