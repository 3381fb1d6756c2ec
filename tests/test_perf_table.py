"""The tables of docs/performance.md are those of the record, and say where a target is missed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def load_tool() -> Any:  # Any: a module that is no package's
    spec = importlib.util.spec_from_file_location("perf_table", ROOT / "tools" / "perf_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_is_made_from_the_record() -> None:
    tool = load_tool()
    page = tool.PAGE.read_text(encoding="utf-8")
    assert tool.with_tables(page, json.loads(tool.RECORD.read_text(encoding="utf-8"))) == page


def test_missed_target_is_caught() -> None:
    tool = load_tool()
    record = json.loads(tool.RECORD.read_text(encoding="utf-8"))
    record["equality"]["unequal"] = 1
    assert "| <= 0 | 1 | missed |" in tool.targets(record)
    record["equality"]["unequal"] = 0
    assert "| <= 0 | 0 | met |" in tool.targets(record)


def test_record_names_the_files_that_were_measured() -> None:
    record = json.loads(load_tool().RECORD.read_text(encoding="utf-8"))
    assert {"_counter_kernels.py", "_rejection_kernels.py"} <= set(record["sources"])
