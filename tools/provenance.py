"""What figures were taken on: machine, versions, commit. For the scripts beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fairdraw.perf_regression._records import commit
from fairdraw_engines._vllm_validation.validate import machine

__all__ = ["ROOT", "commit", "gpu", "machine", "rows_as_json", "with_section"]

ROOT = Path(__file__).resolve().parents[1]


def gpu() -> dict[str, object]:
    """The current GPU and its CUDA; empty without one."""
    import torch

    if not torch.cuda.is_available():
        return {}
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "L2_MiB": properties.L2_cache_size >> 20,
        "cuda": torch.version.cuda,
    }


def rows_as_json(plain: Any) -> str:  # Any: JSON
    """JSON of a record: every object of a list has a line of its own, so that a diff shows which rows changed."""
    return f"{_rows(plain)}\n"


def _rows(plain: Any) -> str:  # Any: JSON
    if isinstance(plain, list) and plain and all(isinstance(row, dict) for row in plain):
        return "[\n" + ",\n".join(map(_rows, plain)) + "\n]"
    if isinstance(plain, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {_rows(value)}" for key, value in plain.items()) + "}"
    return json.dumps(plain, ensure_ascii=False)


def with_section(page: str, name: str, text: str) -> str:
    """A page of the manual whose section between the markers of `name` is `text`.

    Raises:
        ValueError: If the page has no such markers.
    """
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    if begin not in page or end not in page:
        raise ValueError(f"with_section: name={name!r}, but the page has no such markers. Add {begin.strip()}.")
    return page.partition(begin)[0] + begin + text + end + page.partition(end)[2]
