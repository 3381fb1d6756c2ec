"""Everything that is measured has a name, `package.module:attribute`: it is loaded here, or called in a fresh process.

`python -m fairdraw.perf_regression._named NAME` calls NAME with the JSON arguments on its stdin and prints its answer
as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import fairdraw


class NoVerdictError(Exception):
    """A measurement cannot be made, so there is no verdict. The message is one sentence that says why."""


def load(name: str) -> Any:  # Any: whatever has that name
    """The object called `package.module:attribute`.

    Raises:
        NoVerdictError: If there is no such module or attribute, or importing it raises.
    """
    module, colon, attribute = name.partition(":")
    if not colon:
        raise NoVerdictError(f"load: name={name!r}, but it must be package.module:attribute. Add the attribute.")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:
        raise NoVerdictError(f"{name} cannot be loaded: {type(error).__name__}: {error}") from error


def call_fresh(
    name: str,
    arguments: Mapping[str, Any],  # Any: JSON
    *,
    purpose: str,
    timeout: float,
    not_inherited: Collection[str] = (),
) -> list[str]:
    """Call a function in a fresh Python process that has this process's `sys.path`.

    Args:
        purpose: The subject of the error message, before "failed".
        timeout: Seconds after which the process is killed.
        not_inherited: Environment variables that the process starts without.

    Returns:
        The lines that were printed. The last line of the program itself is its answer as JSON.

    Raises:
        NoVerdictError: If the process fails, or does not end in time.
    """
    kept = {variable: value for variable, value in os.environ.items() if variable not in not_inherited}
    try:
        ran = subprocess.run(
            [sys.executable, "-m", __name__, name],
            input=json.dumps(arguments),
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
    return ran.stdout.splitlines()


def import_path() -> str:
    """Return `PYTHONPATH` of a fresh process: this very suite, installed or not, and the caller's `sys.path`."""
    source = str(Path(fairdraw.__file__).absolute().parents[1])
    return os.pathsep.join([source, *filter(None, sys.path)])


def release(package: str) -> str:
    """Return the installed version without local parts, as `0.22.0`; empty if the package is not installed."""
    try:
        return metadata.version(package).partition("+")[0]
    except metadata.PackageNotFoundError:
        return ""


if __name__ == "__main__":
    # Looked up under its real name: `NoVerdictError` of `__main__` would be another class.
    print(json.dumps(load(sys.argv[1])(**json.load(sys.stdin))))
