"""Call back when a module has been imported, without importing it."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING

from ._log import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class ImportHook(MetaPathFinder):
    """The first finder on `sys.meta_path`: lets the others find, and calls back after a watched module has run.

    Args:
        names: Modules to watch.
        loaded: Called with the name. Its errors are logged, so that an import never fails because of it.
    """

    def __init__(self, names: Iterable[str], loaded: Callable[[str], None]) -> None:
        self.names = frozenset(names)
        self.loaded = loaded

    def install(self) -> None:
        """Watch; modules that were imported before are reported at once."""
        sys.meta_path.insert(0, self)
        for name in sorted(self.names):
            if _is_ready(sys.modules.get(name)):
                self._tell(name)

    def remove(self) -> None:
        self.names = frozenset()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.names:
            return None
        finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path if finder is not self)
        specs = (find(fullname, path, target) for find in finders if find)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            self._tell_after(spec)
        return spec

    def _tell_after(self, spec: ModuleSpec) -> None:
        """Patch the loader of this one spec; its class, which debuggers and `inspect` use, stays."""
        loader = spec.loader
        assert loader is not None  # find_spec
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            self._tell(spec.name)

        loader.exec_module = exec_module  # type: ignore[method-assign]

    def _tell(self, name: str) -> None:
        try:
            if name in self.names:
                self.loaded(name)
        except Exception:
            logger.exception("fairdraw: vLLM's own code stays in place, as something went wrong after %s.", name)


def _is_ready(module: ModuleType | None) -> bool:
    """Imported, and not still being imported."""
    return module is not None and not getattr(module.__spec__, "_initializing", False)
