"""Samplers by name: `load("rejection/triton")`, `load("mypkg.kernels:make_sampler")`.

The built-in ones are the rows of `samplers.toml`. Others are found by entry point, or by the path of a factory:

    [project.entry-points."fairdraw.samplers"]
    mine = "mypkg.kernels:make_sampler"

Importing this package imports the standard library only; a sampler is imported when it is loaded.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, TypeGuard

from fairdraw._adapters._table import ALIASES, BUILT_IN, BuiltIn, UnusableRelease
from fairdraw._core.contracts import contract_of, missing_parts
from fairdraw._core.interpreter import speed_up_interpreter
from fairdraw.protocols import AnySampler, Capabilities

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairdraw._adapters._inject import InjectedNoise, NoiseNotInjected, inject_noise

__all__ = [
    "ALIASES",
    "BUILT_IN",
    "ENTRY_POINT_GROUP",
    "InjectedNoise",
    "NoiseNotInjected",
    "SamplerNotFound",
    "inject_noise",
    "known_names",
    "load",
]

_INSTALL = {
    "vllm": "pip install vllm, or, without a GPU, python tools/install.py vllm in a clone of fairdraw",
    "mlx": "pip install 'mlx-lm[cpu]'",
    "mlx_lm": "pip install 'mlx-lm[cpu]'",
    "sglang": "pip install --no-deps sglang",
    **dict.fromkeys(
        ("tpu-inference", "tpu_inference", "lmdeploy", "aphrodite", "aphrodite-engine"),
        "python tools/install.py others --all in a clone",
    ),
}
"""Packages that `pip install NAME` does not install as they are needed here."""

ENTRY_POINT_GROUP = "fairdraw.samplers"


class SamplerNotFound(ValueError):
    """No sampler could be had under the given name; one sentence says why and what to do."""


def __getattr__(name: str) -> object:
    """Noise injection imports torch, so it is imported when it is asked for."""
    if name not in ("InjectedNoise", "NoiseNotInjected", "inject_noise"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("fairdraw._adapters._inject"), name)


def known_names() -> list[str]:
    """Every name that `load` knows: the built-in ones, then those registered by installed packages."""
    return [*BUILT_IN, *sorted({entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)} - set(BUILT_IN))]


def load(spec: str, device: str | None = None) -> AnySampler:
    """Make the sampler called `spec`.

    Args:
        spec: A built-in name (`rejection/torch`) or its alias (`rejection`), a registered name, or
            `pkg.module:factory`, where `factory` is a callable without arguments that returns a sampler, or a sampler.
            The current directory is importable.
        device: For built-in samplers: `cpu` or `cuda`; `None` takes the GPU if there is one. Other samplers choose
            their own.

    Raises:
        SamplerNotFound: If there is no such sampler, if it cannot be imported or made, or if it is something else.

    Example:
        >>> load("rejection/oracel")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fairdraw._adapters.SamplerNotFound: load: sampler='rejection/oracel', but it ... Did you mean rejection/oracle?
    """
    built_in = BUILT_IN.get(ALIASES.get(spec, spec))
    sampler = _checked(spec, _made(spec, _found(spec))) if built_in is None else _make_built_in(built_in, device)
    speed_up_interpreter()  # its kernels, if any, are imported now
    if built_in is None and device not in (None, sampler.device):
        raise _refusal(
            spec,
            f"it runs on device={sampler.device!r} and not on {device!r}",
            "Omit the device, or change it in the sampler's factory",
        )
    return sampler


def _make_built_in(row: BuiltIn, device: str | None) -> AnySampler:
    module, _, function = row.factory.partition(":")
    try:
        from fairdraw._adapters._runtime import default_device

        _prepare(device)
        factory = getattr(importlib.import_module(f"{__name__}.{module}"), function)
        sampler: AnySampler = factory(row, device or ("cpu" if row.host else default_device()), **row.options)
    except ModuleNotFoundError as error:
        release = _vllm_without(str(error.name))
        if release is not None:
            raise _refusal(row.name, *release) from error
        missing = "vllm" if "/vllm" in row.name else str(error.name)
        command = _INSTALL.get(missing.partition(".")[0], f"pip install {error.name}")
        rule = f"it needs the package {error.name}, which is not installed"
        raise _refusal(row.name, rule, f"Run {command}") from error
    except UnusableRelease as error:
        raise _refusal(row.name, error.rule, error.remedy) from None  # its traceback is the other project's
    except Exception as error:
        raise _refusal(row.name, f"making it raised {_brief(error)}", "The traceback above says where") from error
    return sampler


def _vllm_without(module: str) -> tuple[str, str] | None:
    """What is wrong and what to do if vLLM is here and has no such module; `None` if it is something else."""
    vllm = sys.modules.get("vllm")
    if vllm is None or not module.startswith("vllm."):
        return None
    release, _, local = str(getattr(vllm, "__version__", "")).partition("+")
    if local == "single.file":  # made by tools/install.py vllm
        rule = f"of vLLM {release}, which cannot be installed, only the file of rejection/vllm is here"
        return rule, "Install 0.11.2 or later: python tools/install.py vllm RELEASE --target FOLDER"
    rule = f"vLLM {release} has no module {module}"
    return rule, "Put another release on PYTHONPATH: python tools/install.py vllm RELEASE --target FOLDER"


def _prepare(device: str | None = None) -> None:
    """Triton's mode is chosen before any sampler imports triton, so that third-party kernels run interpreted, too."""
    from fairdraw._adapters._runtime import prepare_triton

    prepare_triton(device)


def _found(spec: str) -> object:
    """The factory or sampler that `spec` names."""
    module_name, colon, attribute = spec.partition(":")
    if not colon:
        entry = _registered(spec)
        module_name, attribute = entry.module, entry.attr
    if not (module_name and attribute):
        raise _refusal(spec, "a path must be pkg.module:factory", "Name both, for instance my_sampler:make")
    _prepare()
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as python -m does; the pytest command does not
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        remedy = f"Make python -c 'import {module_name}' work in {os.getcwd()}"
        raise _refusal(spec, f"importing {module_name} raised {_brief(error)}", remedy) from error
    return _attribute(spec, module, attribute)


def _attribute(spec: str, module: object, path: str) -> object:
    value = module
    for name in path.split("."):
        if not hasattr(value, name):
            remedy = _did_you_mean(name, dir(value)) or "Name a factory or a sampler"
            raise _refusal(spec, f"{getattr(value, '__name__', value)} has no attribute {name}", remedy)
        value = getattr(value, name)
    return value


def _registered(name: str) -> EntryPoint:
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        if entry.name == name:
            return entry
    names = known_names()
    remedy = _did_you_mean(name, names) or "Give the path of a factory, or install the package that registers the name"
    raise _refusal(name, f"it must be one of {', '.join(names)}, or a path pkg.module:factory", remedy)


def _made(spec: str, found: object) -> object:
    """The sampler itself: `found`, or what it returns when called."""
    if _is_sampler(found) and not isinstance(found, type):
        return found
    if not callable(found):
        return found
    try:
        return found()
    except Exception as error:
        raise _refusal(spec, f"calling it raised {_brief(error)}", "It is called without arguments") from error


def _is_sampler(value: object) -> TypeGuard[AnySampler]:
    """Whether it has what every sampler has, and the method of a contract."""
    return isinstance(value, AnySampler) and (c := contract_of(value)) is not None and hasattr(value, c.method)


def _checked(spec: str, sampler: object) -> AnySampler:
    if _is_sampler(sampler):
        if not isinstance(sampler.capabilities, Capabilities):
            given = type(sampler.capabilities).__name__
            raise _refusal(spec, f"its capabilities are {given}, not Capabilities", "Use fairdraw.Capabilities()")
        return sampler
    raise _refusal(
        spec,
        f"it gave {type(sampler).__name__}, which has no {missing_parts(sampler)}",
        "Return fairdraw.rejection_sampler(function)",
    )


def _refusal(spec: str, rule: str, remedy: str) -> SamplerNotFound:
    return SamplerNotFound(f"load: sampler={spec!r}, but {rule}. {remedy}{'' if remedy.endswith('?') else '.'}")


def _brief(error: Exception) -> str:
    """The exception on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(" :.")


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    """The nearest name; without a contract, the samplers of every contract whose origin is nearest."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    if not near:
        origin = difflib.get_close_matches(name, [one.rpartition("/")[2] for one in names], n=1)
        near = [one for one in names if one.rpartition("/")[2] in origin]
    return f"Did you mean {' or '.join(near)}?" if near else ""
