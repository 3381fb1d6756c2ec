"""Modules of a package whose own import needs more than is here: a GPU, a TPU, or dozens of packages.

The wanted files are imported as they are released. What stands above them, their packages' `__init__`, is not run, and
stubs stand for modules of which they need a name and never a call.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata, util
from types import ModuleType
from typing import Any

from fairdraw.adapters import UnusableRelease, quiet_imports

Stubs = dict[str, dict[str, Any]]  # Any: whatever the module's names stand for
"""Module to the names that are imported from it; a name that is not given is `object`."""


class _Stub(ModuleType):
    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return object


def release_of(distribution: str) -> str:
    """Return the version of an installed distribution.

    Raises:
        ModuleNotFoundError: If it is missing.
    """
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError as error:
        raise ModuleNotFoundError(f"No module named {distribution!r}", name=distribution) from error


def import_bare(*modules: str, stubs: Stubs | None = None) -> list[Any]:  # Any: modules of another project
    """Import `modules`, all of one package. Nothing of the package, and no stub, stays importable afterwards.

    Raises:
        ModuleNotFoundError: If the package, or another that the modules import, is missing.
        UnusableRelease: If the package has no such module, or a module of it has no such name.
    """
    package = modules[0].partition(".")[0]
    spec = util.find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    own = {package, *(name.partition(".")[0] for name in stubs or {})}
    root = spec.submodule_search_locations[0]
    attributes: Stubs = {name: {"__path__": []} for one in stubs or {} for name in _above(one)}
    attributes |= {name: {"__path__": [_folder(root, name)]} for one in modules for name in _above(one)}
    for name, names in (stubs or {}).items():
        attributes[name] = attributes.get(name, {}) | names
    with _restored(own), quiet_imports():
        for name, names in attributes.items():
            sys.modules[name] = (_Stub if name in (stubs or {}) else ModuleType)(name)
            vars(sys.modules[name]).update(names)
        try:
            return [importlib.import_module(name) for name in modules]
        except ImportError as error:
            if str(error.name).partition(".")[0] not in own:
                raise
            rule = f"of {package} its files {', '.join(modules)} are called, and they do not import: {error}"
            raise UnusableRelease(rule, "Install the release of constraints.txt") from error


def _above(module: str) -> list[str]:
    """Return the packages that a module is in, outermost first."""
    parts = module.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def _folder(root: str, package: str) -> str:
    return "/".join([root, *package.split(".")[1:]])


@contextmanager
def _restored(packages: set[str]) -> Iterator[None]:
    """Let `sys.modules` have of these packages afterwards what it had before."""

    def loaded() -> dict[str, ModuleType]:
        return {name: module for name, module in sys.modules.items() if name.partition(".")[0] in packages}

    before = loaded()
    for name in before:
        del sys.modules[name]
    try:
        yield
    finally:
        for name in loaded():
            del sys.modules[name]
        sys.modules.update(before)
