"""The releases and the source of each function that the suite has validated: `validated.json`.

`tools/record.py plugin` writes it. A release has an entry per function, and the evidence. `fairdraw validate-vllm`
writes such a table for the vLLM of its user, a patched one, say; `FAIRDRAW_VLLM_VALIDATED` names it to the plugin.
"""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._log import logger
from ._source import UnknownSourceError, source_hash

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TABLE = Path(__file__).with_name("validated.json")
OWN_TABLE = "FAIRDRAW_VLLM_VALIDATED"
"""The variable that names a second table."""

Entry = dict[str, Any]  # Any: JSON


class NotValidatedError(Exception):
    """This vLLM was not validated; the message says what to do."""


def check(release: str, package: Path, piece: str, targets: Iterable[str]) -> None:
    """`piece` was validated for this release, by us or by the user, and none of `targets` has changed since.

    Args:
        release: vLLM's version; local parts as in `0.22.0+cu129` are ignored; the hashes decide.
        package: The folder of the importable vLLM.

    Raises:
        NotValidatedError: If not.
    """
    public, targets = release.partition("+")[0], list(targets)
    changes = [_change(entry, package, targets, public) for entry in _entries(public, piece)]
    if not changes:
        raise NotValidatedError(f"vLLM {release} is not validated for it. {_remedy(package)}")
    if all(changes):
        raise NotValidatedError(f"{changes[-1]}. {_remedy(package)}")


def _change(entry: Entry, package: Path, targets: Iterable[str], release: str) -> str:
    """What differs from the validated source; empty if nothing does."""
    for target in targets:
        expected = entry["functions"].get(target)
        try:
            found = source_hash(package, target)
        except UnknownSourceError as error:
            return f"in this vLLM {release}, {error}"
        if found != expected:
            return f"the source of {target} has hash {found}, but the one validated for vLLM {release} has {expected}"
    return ""


def _entries(release: str, piece: str) -> Iterator[Entry]:
    """Of every table that has validated `piece` for this release."""
    for table in (TABLE, os.environ.get(OWN_TABLE)):
        entry = _read(Path(table)).get(release) if table else None
        if entry is not None and piece in entry["pieces"]:
            yield entry


def _read(table: Path) -> dict[str, Entry]:
    try:
        entries: dict[str, Entry] = json.loads(table.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        logger.warning("fairdraw: %s=%s, but it cannot be read (%s). It is ignored.", OWN_TABLE, table, error)
        return {}
    return entries


def _remedy(package: Path) -> str:
    """The command that validates this very source."""
    folder = shlex.quote(str(package.parent))
    return f"Validate this source with `python -m fairdraw validate-vllm --folder {folder}`."
