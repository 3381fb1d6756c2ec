"""Failures that a team knows about: an xfails file, written by people, and a baseline file, written by a run.

An xfails file is TOML: the code of a check, and the reason why the sampler fails it. Entries are strict: if the check
passes, the run is red until the line is removed. That takes a run that could have seen the failure: one that tries
at least as many cases as profile `ci` does for a sampler of that speed, or as the entry says. A smaller run says that
it did not see the failure, and stays green.

    REJ404 = "ties go to the highest id; https://example.org/issues/7"
    REJ116 = {reason = "in a row of NaN the first NaN wins", cases = 60}

A baseline is JSON and freezes what fails today, so that only new failures are red. Entries that pass are stale: they
are named, and the run stays green.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fairdraw import __version__
from fairdraw._core.checks import PROFILES, AnyCheck, Check, DrawnQuestion, Profile
from fairdraw._core.foreign import read_json
from fairdraw._run.loading import CannotStart, KnownFailure, all_checks, known_failure

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from fairdraw.protocols import AnySampler

_FORMAT = "fairdraw-baseline"

UNSEEN = "known failure not seen"
"""The reason of a record begins with it if the run was too small to call the failure gone."""


@dataclass(frozen=True)
class Expected:
    """What is known to fail.

    Args:
        xfails: Code to what is known, of an xfails file.
        xfails_file: Its name.
        nothing_declared: What the sampler itself declares as known is a failure like any other.
        baseline: Codes, of a baseline file.
    """

    xfails: Mapping[str, KnownFailure] = field(default_factory=dict)
    baseline: frozenset[str] = frozenset()
    xfails_file: str = ""
    nothing_declared: bool = False


def read_expected(xfails: Path | None, baseline: Path | None, *, nothing_declared: bool = False) -> Expected:
    """The content of both files; one that is not given is empty.

    Raises:
        CannotStart: If a file cannot be read, is something else, or names a check that does not exist.
    """
    return Expected(
        read_xfails(xfails) if xfails is not None else {},
        read_baseline(baseline) if baseline is not None else frozenset(),
        str(xfails or ""),
        nothing_declared,
    )


def read_xfails(path: Path) -> dict[str, KnownFailure]:
    """Code to what is known about its failure."""
    try:
        content = tomllib.loads(_text(path, "xfails file"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise CannotStart(f'xfails file {path} is not TOML: {error}. Write lines like: REJ404 = "reason"') from None
    known, wrong = {}, {}
    for code, value in content.items():
        try:
            known[code] = known_failure(value)
        except ValueError as error:
            wrong[code] = str(error)
    without = [code for code, why in sorted(wrong.items()) if why == "gives no reason"]
    if without:
        raise CannotStart(f"xfails file {path} gives no reason for {', '.join(without)}, but each entry must have one.")
    for code, why in wrong.items():
        raise CannotStart(f'xfails file {path}: {code} {why}. Write: {code} = {{reason = "why", cases = 60}}')
    _require_checks(path, "xfails file", known)
    return known


def why_unseen(known: KnownFailure, check: AnyCheck, sampler: AnySampler, profile: Profile, tried: int) -> str:
    """Why a known failure that did not show may still be there; empty if the run could have seen it.

    Args:
        tried: Cases or draws, as the record counts them.
    """
    needed, had = _asked(check, sampler, PROFILES["ci"]), _asked(check, sampler, profile)
    if known.cases:
        # Event traces are counted by their events, and a check with few different cases ends when all were tried.
        needed, had = known.cases, max(had, tried)
    if had >= needed:
        return ""
    word = "draws" if check.suite == "statistical" else "cases"
    return f"{UNSEEN} in {tried} {word}; too few to call it gone (it takes {needed}): {known.reason}"


def _asked(check: AnyCheck, sampler: AnySampler, profile: Profile) -> int:
    """Cases or draws of `profile`."""
    if isinstance(check, Check):
        return profile.examples_for(sampler.capabilities, check.weight)
    if isinstance(check, DrawnQuestion):
        return check.num_draws(sampler, profile)
    return profile.draws_for(sampler.capabilities)


def read_baseline(path: Path) -> frozenset[str]:
    """Codes of the checks that failed when it was written."""
    try:
        content = read_json(_text(path, "baseline"))
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
