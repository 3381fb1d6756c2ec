"""Catalogues: the samplers that each installed package says it has, read as data so that none is imported.

A package names itself under the entry point group `fairdraw.samplers`. In its folder lie `samplers.toml` and, if it
knows of defects, `known_defects.toml`; docs/publish.md explains both. fairdraw's own catalogue is read as they are.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from fairdraw._core.contracts import CONTRACTS
from fairdraw._core.foreign import one_line
from fairdraw.contracts import Capabilities, KnownDefect

API = 1
"""Number of the rules of `samplers.toml`, and of what a factory is called with; it rises when they change."""

GROUP = "fairdraw.samplers"
"""The entry point group."""

Reasons = Mapping[str, Sequence[str]]
"""Reason to the capabilities that are unsupported for it."""


class UnusableRelease(Exception):
    """A package that cannot be called: it is missing, or installed in another release than the adapter knows.

    Args:
        rule: What is missing, with the release: `vLLM 0.16.0 has no ...`.
        remedy: What to do.
    """

    def __init__(self, rule: str, remedy: str) -> None:
        super().__init__(f"{rule}. {remedy}.")
        self.rule, self.remedy = rule, remedy


class BadCatalogue(ValueError):
    """A catalogue that cannot be read; two sentences say what is wrong and what to do."""


class Defect(TypedDict):
    """One entry of `known_defects.toml`; the head of the file in `fairdraw_engines` describes the fields."""

    sampler: str
    checks: list[str]
    reason: str
    name: NotRequired[str]
    fixed: NotRequired[str]
    cases: NotRequired[int]
    link: NotRequired[str]
    since: NotRequired[str]


@dataclass(frozen=True)
class SamplerRow:
    """One sampler of a catalogue; the head of `samplers.toml` describes the fields.

    Args:
        package: The package that the catalogue lies in.
        install: Package to the command that installs it, of the catalogue.
    """

    name: str
    package: str
    install: Mapping[str, str]
    factory: str
    note: str
    unsupported: Reasons = field(default_factory=dict)
    slow: bool = False
    host: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)  # Any: one type each

    def capabilities(self, more: Reasons | None = None, *, slow: bool = False) -> Capabilities:
        """Return those of the row, without what is unsupported for the reasons in `more`."""
        reasons = {**self.unsupported, **(more or {})}
        return Capabilities.of({word: reason for reason, words in reasons.items() for word in words}, self.slow or slow)

    @property
    def contract(self) -> str:
        return self.name.partition("/")[0]

    def facts(self, release: str, device: str, more: Reasons | None = None, *, slow: bool = False) -> dict[str, Any]:
        """Return what every sampler of a release says of itself: its name, device, capabilities and known defects.

        They are fields of the samplers of `fairdraw.contracts`: `FunctionSampler(function=verify, **row.facts(...))`.
        """  # Any: one type each
        name, capabilities = f"{self.name.partition('/')[2]} {release}", self.capabilities(more, slow=slow)
        known = self.known_defects(release)
        return {"name": name, "device": device, "capabilities": capabilities, "known_defects": known}

    def known_defects(self, release: str = "0") -> dict[str, KnownDefect]:
        """Return check code to the reason why `release` fails it, with a link where there is one."""
        reasons: dict[str, list[str]] = {}
        cases: dict[str, int] = {}
        for defect in read_defects(self.package):
            if not is_affected(defect, self.name, release):
                continue
            name = f"{defect['name']}: " if "name" in defect else ""
            link = f" ({defect['link']})" if "link" in defect else ""
            for code in defect["checks"]:
                reasons.setdefault(code, []).append(f"{name}{defect['reason']}{link}")
                cases[code] = max(cases.get(code, 0), defect.get("cases", 0))
        joined = {code: "; ".join(found) for code, found in sorted(reasons.items())}
        return {code: {"reason": text, "cases": cases[code]} if cases[code] else text for code, text in joined.items()}


def is_affected(defect: Defect, sampler: str, release: str) -> bool:
    """Whether the entry is about `release` of `sampler`: from `since` on, until `fixed`."""
    number = release_number(release)
    if defect["sampler"] != sampler or ("since" in defect and number < release_number(defect["since"])):
        return False
    return "fixed" not in defect or number < release_number(defect["fixed"])


@cache
def read_defects(package: str) -> list[Defect]:
    """Return the entries of `known_defects.toml` in `package`; none if there is no such file.

    Raises:
        ValueError: If it is no such file, or an entry lacks a field.
    """
    file = _folder(package) / "known_defects.toml"
    found = tomllib.loads(file.read_text(encoding="utf-8")).get("defect", []) if file.is_file() else []
    for entry in found:
        if not {"sampler", "checks", "reason"} <= set(entry) <= {*Defect.__annotations__}:
            raise ValueError(f"an entry has {', '.join(entry)}, but it must have sampler, checks and reason")
    defects: list[Defect] = found
    return defects


def release_number(release: str) -> tuple[int, ...]:
    """Return the numbers of a release, for comparison; words in it (rc1, dev) count as nothing."""
    return tuple(int(part) for part in release.split(".") if part.isdigit())


@dataclass(frozen=True)
class Catalogues:
    """The samplers of every installed package.

    Args:
        rows: By name, fairdraw's own first.
        faults: A sentence for each package or name that is left out: what is wrong and what to do.
        packages: Those that were read.
    """

    rows: Mapping[str, SamplerRow]
    faults: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()


def find_catalogues() -> Catalogues:
    """Return fairdraw's own samplers, and those of every package under the entry point group.

    One that cannot be read, or is made for another fairdraw, is left out. So is a name that two packages claim; a name
    of fairdraw's own stays its own.
    """
    owners: dict[str, str] = dict.fromkeys(OWN_ROWS, "fairdraw")
    rows, faults, packages = dict(OWN_ROWS), [], []
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.value):
        owner = entry.dist.name if entry.dist is not None else entry.value
        try:
            found = read_rows(entry.value, owner)
        except BadCatalogue as error:
            faults.append(one_line(f"samplers of {owner}: {error}"))
            continue
        packages.append(entry.value)
        for name, row in found.items():
            if name in owners:
                both = f"{owners[name]} and {owner} have it, but a name stands for one sampler"
                faults.append(one_line(f"sampler {name}: {both}. Run pip uninstall {owner}, or rename the sampler."))
                if owners[name] != "fairdraw":
                    rows.pop(name, None)
            else:
                owners[name], rows[name] = owner, row
    return Catalogues(rows, tuple(faults), tuple(packages))


def read_rows(package: str, owner: str) -> dict[str, SamplerRow]:
    """Return the rows of `samplers.toml` in `package`, by name; `owner` is the distribution that it came with.

    Raises:
        BadCatalogue: If it cannot be read, is made for another fairdraw, or breaks a rule of the file.
    """
    path = f"{package}/samplers.toml"
    try:
        data = tomllib.loads((_folder(package) / "samplers.toml").read_text(encoding="utf-8"))
    except (Exception, SystemExit) as error:  # whatever importing what is above the package raises
        rule = f"an entry of {GROUP} must name a package with that file"
        remedy = f"Run pip install --force-reinstall {owner}, or uninstall it"
        raise BadCatalogue(f"reading {path} raised {brief(error)}, but {rule}. {remedy}.") from error
    api = data.get("api")
    if type(api) is not int or api != API:
        other = "a newer" if type(api) is int and api > API else "an older"
        stale, rule = "fairdraw" if other == "a newer" else owner, f"it was made for {other} one"
        raise BadCatalogue(f"{path} has api={api!r}, but this fairdraw reads {API}: {rule}. Install a newer {stale}.")
    if (problem := _problem(data) or _problem_of_defects(package, data["samplers"])) is not None:
        raise BadCatalogue(f"{package}: {problem}. Correct it, or run pip uninstall {owner}.")
    install = data.get("install", {})
    return {name: SamplerRow(name, package, install, **row) for name, row in data["samplers"].items()}


def _folder(package: str) -> Path:
    """Return the folder of a package, which is not imported.

    Raises:
        ModuleNotFoundError: If there is no such package.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"No package named {package!r}", name=package)
    return Path(spec.submodule_search_locations[0])


_FIELDS: dict[str, type] = {
    "factory": str, "note": str, "unsupported": dict, "slow": bool, "host": bool, "options": dict
}  # fmt: skip
"""A row's fields with their types; the first two are required."""


def _problem(data: Mapping[str, Any]) -> str | None:  # Any: whatever stands in the file
    """Return what breaks a rule of `samplers.toml`; `None` if nothing does."""
    samplers, install = data.get("samplers"), data.get("install", {})
    is_table = isinstance(install, dict) and all(isinstance(one, str) for one in install.values())
    if not isinstance(samplers, dict) or not is_table:
        return "samplers must be a table of samplers by name, and install a table of commands"
    for name, row in samplers.items():
        contract, _, origin = name.partition("/")
        if contract not in CONTRACTS or not origin:
            return f"sampler={name!r}, but a name is CONTRACT/ORIGIN with a contract of {', '.join(CONTRACTS)}"
        if not isinstance(row, dict) or not {"factory", "note"} <= set(row):
            return f"sampler={name!r} has no factory or no note, but it must have both"
        for key, value in row.items():
            if not isinstance(value, _FIELDS.get(key, ())):
                return f"sampler={name!r} has {key}={value!r}, but its fields are {', '.join(_FIELDS)}"
        try:
            SamplerRow(name, "", {}, **row).capabilities()
        except (ValueError, TypeError) as error:
            return f"sampler={name!r}: {error}".rstrip(".")
    return None


def _problem_of_defects(package: str, samplers: Mapping[str, object]) -> str | None:
    try:
        unknown = sorted({defect["sampler"] for defect in read_defects(package)} - set(samplers))
    except (ValueError, TypeError, AttributeError) as error:  # of TOML, or of other types than an entry has
        return f"known_defects.toml: {brief(error)}"
    return f"known_defects.toml names {', '.join(unknown)}, which samplers.toml has not" if unknown else None


def brief(error: BaseException) -> str:
    """Return the exception on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(" :.")


OWN_ROWS = read_rows("fairdraw.adapters", "fairdraw")
"""fairdraw's own samplers by name."""

ALIASES = {name.partition("/")[0]: name for name in OWN_ROWS if name.endswith("/torch")}
"""Contract to the sampler that its name alone stands for."""
