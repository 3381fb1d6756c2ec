"""From words to objects: the sampler under test, the reference, the checks."""

from __future__ import annotations

import importlib
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from fairdraw.protocols import RejectionSampler

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fairdraw.checks import AnyCheck

__all__ = [
    "DEFAULT_REFERENCE",
    "LENSES",
    "NO_REFERENCE",
    "RAISED_CODE",
    "CannotStart",
    "all_checks",
    "as_sampler",
    "known_defects",
    "last_line",
    "load_reference",
    "load_sampler",
]

LENSES: dict[str, tuple[str, ...]] = {
    "properties": ("fairdraw.properties.rejection",),
    "statistical": ("fairdraw.statistical.lens",),
}
"""Lens to the modules whose `CHECKS` it is made of."""

NO_REFERENCE = "none"
"""The word that switches differential checks off."""

DEFAULT_REFERENCE = "vllm"
"""Whom differential checks compare with if nobody was named: the real vLLM, if there is one."""

RAISED_CODE = "REJ100"
"""Code of an exception where an answer was due."""

_ADAPTERS = Path(__file__).parent / "adapters"


class CannotStart(Exception):
    """The run cannot start: an unknown sampler, a factory that raises, not a sampler. One sentence says why."""


def all_checks(only: str | None = None) -> tuple[AnyCheck, ...]:
    """The shipped checks, of one lens or of all, in the order of their codes."""
    names = [module for lens, modules in LENSES.items() if only in (None, lens) for module in modules]
    checks: Iterable[AnyCheck] = (check for name in names for check in importlib.import_module(name).CHECKS)
    return tuple(sorted(checks, key=lambda check: check.code))


def load_sampler(spec: str) -> RejectionSampler:
    """The sampler called `spec`: a built-in or registered name, or `pkg.module:factory`.

    Raises:
        CannotStart: If there is none, its factory raises, or it makes something else.
    """
    # By name, not by an import statement: no layer of the suite depends on the adapters.
    adapters = importlib.import_module("fairdraw.adapters")
    try:
        sampler = adapters.load(spec)
    except adapters.SamplerNotFound as error:
        raise CannotStart(f"{error}{_where(error.__cause__)}") from error
    except (Exception, SystemExit) as error:
        raise CannotStart(f"sampler {spec!r} could not be made: {last_line(error)}") from error
    return as_sampler(sampler)


def load_reference(name: str | None, checks: Iterable[AnyCheck]) -> tuple[RejectionSampler | None, str]:
    """The sampler that differential checks compare with, and a word about it for the header.

    Args:
        name: A sampler; `none` for no reference; `None` for the real vLLM if it can be loaded.
        checks: Nothing is loaded unless one of them is a differential: importing vLLM takes seconds.

    Raises:
        CannotStart: If a sampler was named and cannot be loaded.
    """
    if name == NO_REFERENCE:
        return None, "none, as asked"
    if not any(check.differential for check in checks):
        return None, "not needed by these checks"
    try:
        reference = load_sampler(name or DEFAULT_REFERENCE)
    except CannotStart as error:
        if name is not None:
            raise
        return None, f"none ({error})"
    return reference, reference.name


def as_sampler(value: object) -> RejectionSampler:
    """`value`, if it has what a sampler has.

    Raises:
        CannotStart: If an attribute is missing, or a known defect belongs to no check.
    """
    if not isinstance(value, RejectionSampler):
        missing = [name for name in ("name", "device", "capabilities", "verify") if not hasattr(value, name)]
        raise CannotStart(
            f"sampler={type(value).__name__} has no {', '.join(missing)}, but a sampler must have one. "
            "Wrap a function with fairdraw.rejection_sampler(function)."
        )
    unknown = sorted(set(known_defects(value)) - {check.code for check in all_checks()})
    if unknown:
        raise CannotStart(
            f"sampler {value.name}: known_defects={unknown}, but keys must be codes of checks. See: fairdraw list"
        )
    return value


def known_defects(sampler: RejectionSampler) -> Mapping[str, str]:
    """Check code to the reason why the sampler is known to fail it; empty if it declares none."""
    declared: Mapping[str, str] = getattr(sampler, "known_defects", {})
    return declared


def last_line(error: BaseException) -> str:
    """The exception as Python prints it, and where it was raised."""
    return "".join(traceback.format_exception_only(error)).strip().splitlines()[0] + _where(error)


def _where(error: BaseException | None) -> str:
    """` (file:line in function)` of the frame that raised, if it is in somebody's file and not in the adapters."""
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    if not frames or not Path(frames[-1].filename).is_file() or Path(frames[-1].filename).parent == _ADAPTERS:
        return ""
    path = Path(frames[-1].filename)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f" ({shown}:{frames[-1].lineno} in {frames[-1].name})"
