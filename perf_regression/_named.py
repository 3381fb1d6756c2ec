"""What is measured is met by its name, as a stranger's would be: `package.module:attribute`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import fairdraw

__all__ = ["NoVerdictError", "import_path", "is_installed", "load", "release"]


class NoVerdictError(Exception):
    """Something that a measurement needs is missing: nothing is known, so nothing passes. One sentence says what."""


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


def import_path() -> str:
    """`PYTHONPATH` of a fresh process: this very suite, installed or not, and wherever the caller's modules are."""
    source = str(Path(fairdraw.__file__).absolute().parents[1])
    return os.pathsep.join([source, *filter(None, sys.path)])


def is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def release(package: str) -> str:
    """The installed version without local parts, as `0.22.0`; empty if there is none."""
    try:
        return metadata.version(package).partition("+")[0]
    except metadata.PackageNotFoundError:
        return ""
