"""Records: what was measured, on which machine, at which commit. Programs write them as JSON, with one row per line."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from fairdraw.perf_regression._findings import Finding

PACKAGES = ("torch", "triton", "numpy", "vllm")


def provenance(of_tree: str = "") -> dict[str, Any]:  # Any: JSON
    """Machine, versions, date and commit.

    Args:
        of_tree: The commit of the tree that runs, where git cannot be run.
    """
    return {
        "date": datetime.date.today().isoformat(),
        "commit": of_tree or commit(),
        "machine": {
            "platform": platform.platform(),
            "processor": processor(),
            "cores": os.cpu_count(),
            "load_per_core": round(os.getloadavg()[0] / (os.cpu_count() or 1), 2),
        },
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
    }


def write_record(path: Path, record: dict[str, Any]) -> None:  # Any: JSON
    """Write a record, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_laid_out(record, "\n") + "\n", encoding="utf-8")


def append_history(path: Path, findings: Iterable[Finding]) -> int:
    """Append a JSON line for each finding that was timed, and return their number."""
    origin, fields = provenance(), ("case", "what", "value", "low", "high", "limit")
    timed = [finding for finding in findings if finding.low is not None]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for finding in timed:
            measured = {name: getattr(finding, name) for name in fields}
            file.write(json.dumps({**measured, "verdict": finding.verdict.value, **origin}) + "\n")
    return len(timed)


def _laid_out(value: Any, newline: str) -> str:  # Any: JSON
    """Lay out one line per row of a list of rows; dictionaries that hold such lists have one line per key."""
    inner = newline + " "
    if isinstance(value, list) and any(isinstance(row, (dict, list)) for row in value):
        return f"[{inner}{f',{inner}'.join(map(json.dumps, value))}{newline}]"
    if isinstance(value, dict):
        members = {key: _laid_out(member, inner) for key, member in value.items()}
        if newline == "\n" or any("\n" in text for text in members.values()):
            lines = [f"{json.dumps(key)}: {text}" for key, text in members.items()]
            return f"{{{inner}{f',{inner}'.join(lines)}{newline}}}"
    return json.dumps(value)


def version(package: str) -> str | None:
    """Return the installed version; `None` if the package is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def processor() -> str:
    """Return the name of the CPU."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def commit() -> str:
    """Return the commit of the tree that runs, with `-dirty` if it was changed since; `unknown` outside of git.

    The variable `FAIRDRAW_COMMIT` takes precedence, for machines without git.
    """
    if "FAIRDRAW_COMMIT" in os.environ:
        return os.environ["FAIRDRAW_COMMIT"]
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty"]
    try:
        folder = Path(__file__).resolve().parent
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return ran.stdout.strip() or "unknown"
