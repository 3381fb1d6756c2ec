"""A fresh Python process of this very suite: it answers in time, or nothing is known."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from fairdraw.perf_regression._named import NoVerdictError, import_path

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ["run_fresh"]


def run_fresh(
    module: str,
    *arguments: str,
    purpose: str,
    timeout: float,
    stdin: str = "",
    not_inherited: Collection[str] = (),
    under: Sequence[str] = (),
) -> str:
    """What `python -m module` prints, with this process's `sys.path`.

    Args:
        purpose: What it is run for, as the subject of "failed".
        timeout: Seconds, after which the process is killed.
        not_inherited: Environment variables that it starts without.
        under: A command that starts it, with its options, and becomes it: `env`, `valgrind`.

    Raises:
        NoVerdictError: If the process fails, or does not end in time.
    """
    kept = {name: value for name, value in os.environ.items() if name not in not_inherited}
    try:
        ran = subprocess.run(
            [*under, sys.executable, "-m", module, *arguments],
            input=stdin,
            env={**kept, "PYTHONPATH": import_path()},
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired as error:
        raise NoVerdictError(f"{purpose} failed in a fresh process: no end after {timeout:g} s") from error
    if ran.returncode:
        last = ran.stderr.strip().splitlines()[-1:] or [f"exit status {ran.returncode}, no message"]
        raise NoVerdictError(f"{purpose} failed in a fresh process: {last[0]}")
    return ran.stdout
