"""What figures were taken on: machine, versions, commit. For the scripts beside it."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

__all__ = ["ROOT", "commit", "machine"]

ROOT = Path(__file__).resolve().parents[1]


def machine() -> dict[str, str]:
    """Processor, system, versions and day."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return {
        "platform": platform.platform(),
        "processor": next(names, platform.machine()),
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        **{name: metadata.version(name) for name in ("torch", "numpy", "scipy")},
    }


def commit() -> str:
    """The commit of the tree that runs; `-dirty` if it was changed since. A lent machine without git is told it."""
    if "FAIRDRAW_COMMIT" in os.environ:
        return os.environ["FAIRDRAW_COMMIT"]
    described = subprocess.run(
        ["git", "describe", "--always", "--abbrev=40", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return described.stdout.strip() or "unknown"
