"""Samplers by name: `load("rejection/triton")`, `load("mypkg.kernels:make_sampler")`; and what an adapter needs.

A name is a row of a catalogue: fairdraw's own, or that of an installed package, which says under the entry point group
`fairdraw.samplers` that it has one. docs/publish.md has a template.

Importing this package imports the standard library only; a sampler is imported when it is loaded.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import os
import sys
from typing import TYPE_CHECKING, NoReturn, cast

from fairdraw._core.contracts import what_lacks
from fairdraw._core.interpreter import default_device, prepare_triton, speed_up_interpreter
from fairdraw._core.release import install
from fairdraw._core.seeds import derive_seed
from fairdraw.adapters._catalogue import (
    ALIASES,
    OWN_ROWS,
    Catalogues,
    Reasons,
    SamplerRow,
    UnusableRelease,
    brief,
    find_catalogues,
    release_number,
)
from fairdraw.adapters._runtime import quiet_floats, quiet_imports, triton_is_interpreted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairdraw.adapters._inject import InjectedNoise, NoiseNotInjected, inject_noise
    from fairdraw.contracts import AnySampler

__all__ = [
    "InjectedNoise", "NoiseNotInjected", "Reasons", "SamplerNotFound", "SamplerRow", "UnusableRelease", "derive_seed",
    "inject_noise", "known_names", "load", "prepare_triton", "quiet_floats", "quiet_imports", "release_number",
    "triton_is_interpreted",
]  # fmt: skip

ENGINES = "fairdraw_engines"
"""The package of the second distribution of this repository; only a remedy names it."""


class SamplerNotFound(ValueError):
    """A sampler that could not be had under the given name; one sentence says why and what to do."""


def __getattr__(name: str) -> object:
    """Import noise injection, and torch with it, when it is first used."""
    if name not in ("InjectedNoise", "NoiseNotInjected", "inject_noise"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("fairdraw.adapters._inject"), name)


def known_names() -> list[str]:
    """Return every name that `load` knows: fairdraw's own, then those of other installed packages."""
    return list(find_catalogues().rows)


def load(spec: str, device: str | None = None) -> AnySampler:
    """Make the sampler called `spec`.

    Args:
        spec: A name of a catalogue (`rejection/torch`), an alias of fairdraw's own (`rejection`), or
            `pkg.module:factory`, where `factory` is a callable without arguments that returns a sampler, or a sampler.
            The current directory is importable.
        device: For names: `cpu` or `cuda`; `None` takes the GPU if there is one. What a path names chooses its own.

    Raises:
        SamplerNotFound: If there is no such sampler, if it cannot be imported or made, or if it is something else.

    Example:
        >>> load("rejection/oracel")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fairdraw.adapters.SamplerNotFound: load: sampler='rejection/oracel', but it ... Did you mean rejection/oracle?
    """
    row = None if ":" in spec else _row(spec)
    sampler = _checked(spec, _made(spec, find(spec)) if row is None else _make(row, device))
    speed_up_interpreter()  # its kernels, if any, are imported now
    if row is None and device not in (None, sampler.device):
        rule = f"it runs on device={sampler.device!r} and not on {device!r}"
        raise _refusal(spec, rule, "Omit the device, or change it in the sampler's factory")
    return sampler


def _row(name: str) -> SamplerRow:
    """Return the row of a name or an alias. Where it is fairdraw's own, no other catalogue is read."""
    if (own := OWN_ROWS.get(ALIASES.get(name, name))) is not None:
        return own
    found = find_catalogues()
    return found.rows[name] if name in found.rows else _refuse_name(name, found)


def _refuse_name(name: str, found: Catalogues) -> NoReturn:
    contract, _, origin = name.partition("/")
    same = [one for one in found.rows if one.partition("/")[0] == contract]
    names = f"one of {', '.join(same)}" if same else "a name that fairdraw list --samplers shows"
    rule = f"it must be {names}, or a path pkg.module:factory"
    near = _paths_of_file(name)
    if same:
        near = [f"{contract}/{one}" for one in _nearest(origin, [one.partition("/")[2] for one in same])]
    elif not near:
        near = _nearest(name, [*ALIASES, *found.rows])
    remedy = _did_you_mean(near) or "Give the path of a factory, or install the package that has it"
    if not near and ENGINES not in found.packages:
        remedy = f"Run {install('fairdraw-engines')}, with samplers of other projects, or give the path of a factory"
    raise _refusal(name, ". ".join([rule, *(f"Left out: {fault.rstrip('.')}" for fault in found.faults)]), remedy)


def _paths_of_file(name: str, attribute: str = "") -> list[str]:
    """Return the paths that may be meant by the name of a file, or of a module without a factory; none if it is none.

    Without an attribute they are those of functions that need no argument.
    """
    from pathlib import Path

    file = Path(name if name.endswith(".py") else f"{name.replace('.', '/')}.py").absolute()
    if not (file.is_file() and file.is_relative_to(Path.cwd())):
        return []
    try:
        body = ast.parse(file.read_text(encoding="utf-8")).body
    except (SyntaxError, ValueError):
        return []
    functions = [one for one in body if isinstance(one, ast.FunctionDef) and not one.name.startswith("_")]
    free = [one.name for one in functions if len(one.args.args) == len(one.args.defaults) and not one.args.posonlyargs]
    module = ".".join(file.relative_to(Path.cwd()).with_suffix("").parts)
    return [f"{module}:{one}" for one in ([attribute] if attribute else free)]


def _make(row: SamplerRow, device: str | None) -> object:
    module, _, function = row.factory.partition(":")
    prepare_triton(device)
    try:
        factory = getattr(importlib.import_module(f"{row.package}.{module}"), function)
        return factory(row, device or ("cpu" if row.host else default_device()), **row.options)
    except UnusableRelease as error:
        raise _refusal(row.name, error.rule, error.remedy) from None  # its traceback is the other project's
    except ModuleNotFoundError as error:
        command = row.install.get(str(error.name).partition(".")[0], f"pip install {error.name}")
        rule = f"it needs the package {error.name}, which is not installed"
        raise _refusal(row.name, rule, f"Run {command}") from error
    except Exception as error:
        raise _refusal(row.name, f"making it raised {brief(error)}", "The traceback above says where") from error


def find(spec: str) -> object:
    """Return the factory or sampler at the path `spec`."""
    module_name, _, attribute = spec.partition(":")
    if not (module_name and attribute):
        raise _refusal(spec, "a path must be pkg.module:factory", "Name both, for instance my_sampler:make")
    prepare_triton()  # third-party kernels run interpreted, too
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as python -m does; the pytest command does not
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        near = [one for one in _paths_of_file(module_name, attribute) if one != spec]
        remedy = _did_you_mean(near) or f"Make python -c 'import {module_name}' work in {os.getcwd()}"
        raise _refusal(spec, f"importing {module_name} raised {brief(error)}", remedy) from error
    return _attribute(spec, module, attribute)


def _attribute(spec: str, module: object, path: str) -> object:
    value = module
    for name in path.split("."):
        if not hasattr(value, name):
            remedy = _did_you_mean(_nearest(name, dir(value))) or "Name a factory or a sampler"
            raise _refusal(spec, f"{getattr(value, '__name__', value)} has no attribute {name}", remedy)
        value = getattr(value, name)
    return value


def _made(spec: str, found: object) -> object:
    """Return the sampler itself: `found`, or what it returns when called."""
    if not callable(found) or not (isinstance(found, type) or what_lacks(found)):
        return found
    try:
        return found()
    except Exception as error:
        raise _refusal(spec, f"calling it raised {brief(error)}", "It is called without arguments") from error


def _checked(spec: str, sampler: object) -> AnySampler:
    if lacks := what_lacks(sampler):
        remedy = "Return fairdraw.rejection_sampler(function), or what its contract asks for; fairdraw init writes it"
        raise _refusal(spec, f"it gave {lacks}", remedy)
    return cast("AnySampler", sampler)


def _refusal(spec: str, rule: str, remedy: str) -> SamplerNotFound:
    return SamplerNotFound(f"load: sampler={spec!r}, but {rule}. {remedy}{'' if remedy.endswith('?') else '.'}")


def _did_you_mean(near: Iterable[str]) -> str:
    return f"Did you mean {' or '.join(near)}?" if near else ""


def _nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return the nearest name; without a contract, the samplers of every contract whose origin is nearest."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    if not near:
        origin = difflib.get_close_matches(name, [one.rpartition("/")[2] for one in names], n=1)
        near = [one for one in names if one.rpartition("/")[2] in origin]
    return near
