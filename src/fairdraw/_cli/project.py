"""The table `[tool.fairdraw]` of pyproject.toml: what `fairdraw check` takes where the command line says nothing.

It is looked for as ruff looks for its own: in the working folder, then in each folder above. The first pyproject.toml
that has the table counts; others are passed over. What is in its folder can be imported, and its baseline is there.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from fairdraw._core.checks import PROFILES
from fairdraw._core.spelling import did_you_mean
from fairdraw._run.loading import CannotStart
from fairdraw.contracts import Capability

Table = dict[str, Any]  # Any: TOML

_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {  # Any: as above
    "sampler": (lambda one: isinstance(one, str) and bool(one), 'a name, as in sampler = "pkg.module:factory"'),
    "profile": (lambda one: one in list(PROFILES), f"one of {', '.join(PROFILES)}"),
    "baseline": (lambda one: isinstance(one, str) and bool(one), 'a file, as in baseline = "known.json"'),
    "budget": (lambda one: type(one) in (int, float) and 0 < one <= 1e9, "a number of seconds, as in budget = 600"),
    "unsupported": (
        lambda one: isinstance(one, dict) and all(isinstance(why, str) and why.strip() for why in one.values()),
        'capabilities with a reason each, as in unsupported = {greedy = "verified elsewhere"}',
    ),
}
"""Key to whether a value is right, and the words that say what it must be."""


def find_table() -> tuple[Path, Table] | None:
    """Return the nearest table, with the file that has it; `None` if there is none.

    Raises:
        CannotStart: If a file on the way cannot be read, or the table is wrong.
    """
    here = Path.cwd()
    for file in (folder / "pyproject.toml" for folder in (here, *here.parents)):
        try:
            found = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}) if file.is_file() else {}
        except (OSError, ValueError) as error:
            raise CannotStart(f"{file} cannot be read: {error}. Mend it.") from None
        if "fairdraw" in found:
            _require_right(f"{file} [tool.fairdraw]", found["fairdraw"])
            return file, found["fairdraw"]
    return None


def _require_right(where: str, table: Any) -> None:  # Any: TOML
    if not isinstance(table, dict):
        raise CannotStart(f"{where}: {table!r}, but it must be a table. Write sampler = ... below [tool.fairdraw].")
    for key, value in table.items():
        if key not in _RULES:
            remedy = did_you_mean(key, _RULES) or "Remove it."
            raise CannotStart(f"{where}: key={key!r}, but it must be one of {', '.join(_RULES)}. {remedy}")
        is_right, words = _RULES[key]
        if not is_right(value):
            raise CannotStart(f"{where}: {key}={value!r}, but it must be {words}. Change it.")
    for word in set(table.get("unsupported", ())) - set(Capability):
        remedy = did_you_mean(word, Capability) or "See: fairdraw list"
        raise CannotStart(f"{where}: unsupported={word!r}, but that is no capability. {remedy}")


def from_project(specs: tuple[str, ...], options: dict[str, Any]) -> tuple[str, ...]:  # Any: click's
    """Return the samplers to be checked; `options` take from the table what the command line does not say.

    Baseline and unsupported words belong to the table's sampler: another one that the command line names gets neither.
    A baseline that is to be written need not be there.

    Raises:
        CannotStart: If no sampler is named anywhere, or the table is wrong.
    """
    file, table = find_table() or (Path(), {})
    if not specs and "sampler" not in table:
        where = "below [tool.fairdraw] in pyproject.toml"
        remedy = f'Name one, or write sampler = "pkg.module:factory" {where}'
        raise CannotStart(f"check: no SPEC, but a sampler must be named. {remedy}.")
    values = {"profile": table.get("profile"), "time_budget": table.get("budget")}
    if specs in ((), (table.get("sampler"),)):
        if options["write_baseline"] is None and "baseline" in table:
            values["baseline"] = file.parent / table["baseline"]
        values["unsupported"] = tuple(f"{word}={why}" for word, why in table.get("unsupported", {}).items())
        sys.path.append(str(file.parent))
    source = click.get_current_context().get_parameter_source
    chosen = {key: value for key, value in values.items() if value and source(key) is ParameterSource.DEFAULT}
    options.update(chosen)
    return specs or (table["sampler"],)
