"""Crash files: one failing case as JSON, to be replayed after a fix or on another machine.

The case of a property is the smallest batch that broke it; that of a distribution is how much was drawn, from the
stored seed. A file names a sampler, and a name is code: `fairdraw replay` imports it only if the user says so.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairdraw import __version__
from fairdraw._core.checks import DistributionCase
from fairdraw._core.contracts import CONTRACTS, load_part
from fairdraw._core.foreign import read_json

FORMAT = "fairdraw-crash"
FORMAT_VERSION = 1
"""Raised when a reader of the old number would misread the file."""


NUM_REPEATS = 20
"""Tries of a case that was found, which tell whether its failure depends on chance."""


class CrashFileError(Exception):
    """A file that cannot be replayed. The message is one sentence."""


@dataclass(frozen=True)
class Crash:
    """What it takes to reproduce one failure.

    Args:
        sampler: As given to `--sampler`; `None` if it was an object of a test.
        reference: Name of the sampler compared with, of differential checks.
        case: `to_json()` of the case.
        seed: Of the session that found it; statistical checks draw from it; the case of a property needs no seed.
        repeats: Of the tries right after the case was found, how many failed, and their number; `None` if all failed.
    """

    sampler: str | None
    reference: str | None
    check: str
    contract: str
    case: dict[str, Any]  # Any: JSON
    seed: int
    effect: str
    suite_version: str = field(default=__version__)
    repeats: list[int] | None = None

    def text(self) -> str:
        """Return the file's text; without `repeats` if all failed."""
        fields = dataclasses.asdict(self)
        if self.repeats is None:
            del fields["repeats"]
        return json.dumps({"format": FORMAT, "format_version": FORMAT_VERSION, **fields}, indent=1)

    def rebuild(self, suite: str = "properties") -> Any:  # Any: a case of the contract, or a `DistributionCase`
        """The case, after building what it describes once.

        Args:
            suite: Of the check.

        Raises:
            CrashFileError: If the recipe is none of this release.
        """
        if self.contract not in CONTRACTS:
            raise CrashFileError(f"fairdraw {__version__} knows no contract {self.contract!r}")
        try:
            kind = DistributionCase if suite == "statistical" else load_part(CONTRACTS[self.contract].case)
            case = kind.from_json(self.case)
            case.build()
        except Exception as error:
            why = f"it was written by fairdraw {self.suite_version}, this is {__version__}"
            raise CrashFileError(f"its case cannot be built ({type(error).__name__}: {error}); {why}") from error
        return case


def write_crash(folder: Path, crash: Crash) -> Path:
    """Write `crash` into `folder` under a name made of its content. An existing file is never overwritten.

    Raises:
        OSError: If it cannot be written.
    """
    text = crash.text()
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{crash.check}-{digest}.json"
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text + "\n")
    except FileExistsError:
        if path.read_bytes() != (text + "\n").encode():
            raise
    return path


def read_crash(path: Path) -> Crash:
    """The crash stored in `path`.

    Raises:
        CrashFileError: If it cannot be read, is not a crash file, is damaged, or is of a newer format.
    """
    content = _parse(path)
    version = content.pop("format_version", None)
    if content.pop("format", None) != FORMAT or not isinstance(version, int):
        raise CrashFileError("it is not a crash file of fairdraw")
    if version > FORMAT_VERSION:
        now, then = f"which fairdraw {__version__} reads", f"it was written by fairdraw {content.get('suite_version')}"
        raise CrashFileError(f"its format is {version}, newer than {FORMAT_VERSION}, {now}; {then}")
    try:
        return _typed(Crash(**content))
    except TypeError as error:
        raise CrashFileError(f"it is damaged: {str(error).removeprefix('Crash.__init__() ')}") from error


def _parse(path: Path) -> dict[str, Any]:  # Any: JSON
    try:
        content = read_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CrashFileError(f"it cannot be read: {error.strerror}") from error
    except ValueError as error:  # not UTF-8, or not JSON
        raise CrashFileError(f"it is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise CrashFileError("it is not a crash file of fairdraw")
    return content


def _typed(crash: Crash) -> Crash:
    """`crash`, if its fields have the types that they should have."""
    wanted: dict[str, Any] = {  # Any: types, and unions of them
        **dict.fromkeys(("check", "contract", "effect", "suite_version"), str),
        **dict.fromkeys(("sampler", "reference"), str | None),
        **{"case": dict, "seed": int, "repeats": list | None},
    }
    if isinstance(crash.repeats, list) and not (
        len(crash.repeats) == 2
        and all(type(count) is int for count in crash.repeats)
        and 0 <= crash.repeats[0] <= crash.repeats[1] <= NUM_REPEATS
    ):
        raise TypeError(f"repeats={crash.repeats!r} are not two counts")
    for name, types in wanted.items():
        if not isinstance(getattr(crash, name), types):
            raise TypeError(f"{name}={getattr(crash, name)!r} is of the wrong type")
    return crash
