"""Records: what was measured, on what, by whom; JSON written by programs and never by hand."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["provenance", "write_record"]

PACKAGES = ("torch", "triton", "numpy", "vllm")


def provenance(commit: str = "") -> dict[str, Any]:  # Any: JSON
    """Machine, versions, day and commit.

    Args:
        commit: Of the tree that runs, where there is no git to ask.
    """
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit or _commit(),
        "machine": {
            "platform": platform.platform(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "load_per_core": round(os.getloadavg()[0] / (os.cpu_count() or 1), 2),
        },
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
    }


def write_record(path: Path, record: dict[str, Any]) -> None:  # Any: JSON
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _commit() -> str:
    """`-dirty` if the tree was changed since; `unknown` outside of git."""
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty"]
    try:
        folder = Path(__file__).resolve().parent
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return ran.stdout.strip() or "unknown"
