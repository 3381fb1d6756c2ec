"""Failures that a team knows about: an xfails file, written by people, and a baseline file, written by a run.

An xfails file is TOML: the code of a check, and the reason why the sampler fails it. Entries are strict: one that
passes makes the run red until the line is taken out.

    REJ404 = "ties go to the highest id; https://example.org/issues/7"

A baseline is JSON and freezes what fails today, so that only new failures are red. Entries that pass are stale: they
are named, and the run stays green.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fairdraw import __version__
from fairdraw.loading import CannotStart, all_checks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = ["Expected", "read_baseline", "read_expected", "read_xfails", "require_new", "write_baseline"]

_FORMAT = "fairdraw-baseline"


@dataclass(frozen=True)
class Expected:
    """What is known to fail.

    Args:
        xfails: Code to reason, of an xfails file.
        xfails_file: Its name.
        baseline: Codes, of a baseline file.
    """

    xfails: Mapping[str, str] = field(default_factory=dict)
    baseline: frozenset[str] = frozenset()
    xfails_file: str = ""


def read_expected(xfails: Path | None, baseline: Path | None) -> Expected:
    """What both files say; a file that is not given says nothing.

    Raises:
        CannotStart: If a file cannot be read, is something else, or names a check that does not exist.
    """
    return Expected(
        read_xfails(xfails) if xfails is not None else {},
        read_baseline(baseline) if baseline is not None else frozenset(),
        str(xfails or ""),
    )


def read_xfails(path: Path) -> dict[str, str]:
    """Code to reason."""
    try:
        content = tomllib.loads(_text(path, "xfails file"))
    except tomllib.TOMLDecodeError as error:
        raise CannotStart(f'xfails file {path} is not TOML: {error}. Write lines like: REJ404 = "reason"') from None
    reasons = {code: reason for code, reason in content.items() if isinstance(reason, str) and reason.strip()}
    if set(reasons) != set(content):
        without = ", ".join(sorted(set(content) - set(reasons)))
        raise CannotStart(f"xfails file {path} gives no reason for {without}, but each entry must have one.")
    _require_checks(path, "xfails file", reasons)
    return reasons


def read_baseline(path: Path) -> frozenset[str]:
    """Codes of the checks that failed when it was written."""
    try:
        content = json.loads(_text(path, "baseline"))
    except ValueError as error:
        raise CannotStart(f"baseline {path} is not JSON: {error}. Write one with --write-baseline.") from None
    codes = content.get("failed") if isinstance(content, dict) and content.get("format") == _FORMAT else None
    if not isinstance(codes, list) or not all(isinstance(code, str) for code in codes):
        raise CannotStart(f"baseline {path} is no baseline of fairdraw. Write one with --write-baseline.")
    _require_checks(path, "baseline", codes)
    return frozenset(codes)


def require_new(path: Path) -> None:
    """Refuse to overwrite a baseline.

    Raises:
        CannotStart: If `path` exists.
    """
    if path.exists():
        raise CannotStart(f"baseline {path} exists and is not overwritten. Remove it first, or name another.")


def write_baseline(path: Path, sampler: str, failed: Iterable[str]) -> None:
    """Freeze what fails; an existing file is never overwritten.

    Raises:
        CannotStart: If it cannot be written.
    """
    content: dict[str, Any] = {  # Any: JSON
        "format": _FORMAT,
        "suite_version": __version__,
        "sampler": sampler,
        "failed": sorted(failed),
    }
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(json.dumps(content, indent=1) + "\n")
    except FileExistsError:
        require_new(path)
    except OSError as error:
        raise CannotStart(f"baseline {path} cannot be written: {error.strerror}.") from None


def _text(path: Path, what: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CannotStart(f"{what} {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise CannotStart(f"{what} {path} is not text.") from None


def _require_checks(path: Path, what: str, codes: Iterable[str]) -> None:
    unknown = sorted(set(codes) - {check.code for check in all_checks()})
    if unknown:
        raise CannotStart(
            f"{what} {path} names {', '.join(unknown)}, which is no check of fairdraw. See: fairdraw list"
        )
