"""What figures were taken on: machine, versions, commit. For the scripts beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fairdraw._vllm_validation.validate import machine
from fairdraw.perf_regression._records import commit

__all__ = ["ROOT", "commit", "gpu", "machine", "rows_as_json"]

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
