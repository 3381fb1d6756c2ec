"""Failures that a team knows about: an xfails file, written by people, and a baseline file, written by a run.

An xfails file is TOML: the code of a check, and the reason why the sampler fails it. Entries are strict: if the check
passes, the run is red until the line is removed. That takes a run that could have seen the failure: one that tries
at least as many cases as profile `ci` does for a sampler of that speed, or as the entry says. A smaller run says that
it did not see the failure, and stays green.

    REJ646 = "ties go to the highest id; https://example.org/issues/7"
    REJ116 = {reason = "in a row of NaN the first NaN wins", cases = 60}

A baseline is JSON and freezes how one sampler fails today, so that only new failures are red: those of another check,
and those of the same check that look different. Entries that pass are stale: they are named, and the run stays green.
The baseline of another sampler is refused; one of another release says so wherever it is used.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fairdraw import __version__
from fairdraw._core.checks import PROFILES, AnyCheck, Check, DrawnQuestion, Profile
from fairdraw._core.foreign import read_json
from fairdraw._run.loading import CannotStart, KnownFailure, all_checks, known_failure, left_out

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from fairdraw._core.failures import FailureReport
    from fairdraw._run.runner import CheckRecord
    from fairdraw.contracts import AnySampler

_FORMAT = "fairdraw-baseline"

UNSEEN = "known failure not seen"
"""The reason of a record begins with it if the run was too small to call the failure gone."""


STALE = "stale: in the baseline, and it passes"
"""The reason of a record that passes and need not be in the baseline any more."""


@dataclass(frozen=True)
class Baseline:
    """What failed when a baseline was written.

    Args:
        sampler: As given on the command line.
        failed: Code to how it failed (`kind_of_failure`); empty if anything is known.
        name, profile, suite_version: Of the run.
    """

    sampler: str
    failed: Mapping[str, str]
    name: str = ""
    profile: str = ""
    suite_version: str = __version__

    def entry(self, code: str, spec: str | None) -> str | None:
        """Return how a check of the sampler failed; `None` if the baseline does not know it."""
        return self.failed.get(code) if spec == self.sampler else None

    def worded(self, name: str) -> str:
        """Return the reason of a record that the baseline knows, with what has changed since it was written."""
        since = [f"fairdraw {self.suite_version}"] * (self.suite_version != __version__)
        since += [self.name] * (self.name not in ("", name))
        return "in the baseline" + (f", which is of {' and '.join(since)}" if since else "")

    def why_passed(self, profile: Profile) -> str:
        """Return the reason of a record that passes: it is stale only if the run is no smaller than the baseline's."""
        then = PROFILES.get(self.profile, profile)
        is_smaller = profile.examples < then.examples or profile.draws < then.draws
        return f"{UNSEEN}; too small a run to call it gone (the baseline is of {then.name})" if is_smaller else STALE


def kind_of_failure(report: FailureReport) -> str:
    """Return how a check failed, without what differs from case to case."""
    is_raised = " during " in report.title  # then the effect begins with the kind of the exception
    return f"{report.title}: {report.effect.partition(':')[0]}" if is_raised else report.title


@dataclass(frozen=True)
class Expected:
    """What is known to fail.

    Args:
        xfails: Code to what is known, of an xfails file.
        xfails_file: Its name.
        nothing_declared: What the sampler itself declares as known is a failure like any other.
        baseline: Content of a baseline file.
    """

    xfails: Mapping[str, KnownFailure] = field(default_factory=dict)
    baseline: Baseline = field(default_factory=lambda: Baseline("", {}))
    xfails_file: str = ""
    nothing_declared: bool = False


def read_expected(
    xfails: Path | None, baseline: Path | None, spec: str | None, contract: str | None = None
) -> Expected:
    """Return the content of both files; one that is not given is empty.

    Args:
        spec: The sampler that was named; `None` if none was.
        contract: Of that sampler; `None` if unknown.

    Raises:
        CannotStart: If a file cannot be read, is something else, names a check that does not exist, or is the baseline
            of another sampler or contract.
    """
    found = Expected(read_xfails(xfails, contract) if xfails is not None else {}, Baseline("", {}), str(xfails or ""))
    if baseline is not None:
        found = dataclasses.replace(found, baseline=read_baseline(baseline, contract))
        if spec not in (None, found.baseline.sampler):
            rule = f"this run is of {spec!r}, whose failures it does not know"
            remedy = "Write one of this sampler with --write-baseline"
            raise CannotStart(f"baseline {baseline}: sampler={found.baseline.sampler!r}, but {rule}. {remedy}.")
        if others := sorted(set(found.baseline.failed) - {check.code for check in all_checks(contract=contract)}):
            rule = f"{spec} is under the {contract} contract, which has no such checks"
            remedy = "Name an adapter for the other contract, or write a baseline of this one"
            raise CannotStart(f"baseline {baseline}: failed={', '.join(others)}, but {rule}. {remedy}.")
    return found


def read_xfails(path: Path, contract: str | None = None) -> dict[str, KnownFailure]:
    """Code to what is known about its failure; other contracts are loaded only if a code is not of `contract`."""
    try:
        content = tomllib.loads(_text(path, "xfails file"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise CannotStart(f'xfails file {path} is not TOML: {error}. Write lines like: REJ646 = "reason"') from None
    known = {}
    for code, value in content.items():
        try:
            known[code] = known_failure(value)
        except ValueError as error:
            remedy = f'Write: {code} = {{reason = "why", cases = 60}}'
            raise CannotStart(f"xfails file {path}: {code} {error}. {remedy}") from None
    _require_checks(path, "xfails file", known, contract)
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


def read_baseline(path: Path, contract: str | None = None) -> Baseline:
    """Return what a baseline file holds; `contract` as above.

    Raises:
        CannotStart: If it cannot be read, is something else, or names a check that does not exist.
    """
    try:
        content = read_json(_text(path, "baseline"))
    except ValueError as error:
        raise CannotStart(f"baseline {path} is not JSON: {error}. Write one with --write-baseline.") from None
    is_own = isinstance(content, dict) and content.pop("format", None) == _FORMAT
    failed = content.get("failed") if is_own else None
    names = {field.name for field in dataclasses.fields(Baseline)} - {"failed"}
    texts = {name: text for name, text in content.items() if name in names} if is_own else {}
    if not isinstance(failed, dict) or not all(isinstance(text, str) for text in (*failed.values(), *texts.values())):
        raise CannotStart(f"baseline {path} is no baseline of fairdraw. Write one with --write-baseline.")
    _require_checks(path, "baseline", failed, contract)
    return Baseline(**{"sampler": "", **texts, "failed": failed})


def require_new(path: Path) -> None:
    """Refuse to overwrite a baseline.

    Raises:
        CannotStart: If `path` exists.
    """
    if path.exists():
        raise CannotStart(f"baseline {path} exists and is not overwritten. Remove it first, or name another.")


def write_baseline(path: Path, spec: str, profile: str, records: Iterable[CheckRecord]) -> None:
    """Freeze what fails; an existing file is never overwritten.

    Raises:
        CannotStart: If it cannot be written.
    """
    broken = [record for record in records if record.status in ("failed", "error")]
    failed = {record.code: kind_of_failure(record.failure_report) for record in broken if record.failure_report}
    name = next((record.sampler for record in broken), "")
    content = {"format": _FORMAT, **dataclasses.asdict(Baseline(spec, dict(sorted(failed.items())), name, profile))}
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


def _require_checks(path: Path, what: str, codes: Iterable[str], contract: str | None) -> None:
    unknown = set(codes) - {check.code for check in all_checks(contract=contract)}
    unknown -= {check.code for check in all_checks()} if unknown else set()
    if unknown and not left_out():
        raise CannotStart(f"{what} {path} names {', '.join(sorted(unknown))}, which is no check. See: fairdraw list")
