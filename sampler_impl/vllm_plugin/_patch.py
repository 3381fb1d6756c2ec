"""Replace a function wherever it is known by name, and restore it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial, wraps
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from ._log import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class ForeignFunctionError(Exception):
    """Another plugin has replaced the function before."""


@dataclass(frozen=True)
class Patch:
    """One attribute of a module or class.

    Args:
        original: The value before, `staticmethod` included.
        replacement: The value now.
    """

    target: str
    owner: Any  # Any: vLLM's module or class
    attribute: str
    original: Any  # Any: function or staticmethod
    replacement: Any  # Any: as original

    def remove(self) -> None:
        """Restore the original, here and in every module that holds ours under any name."""
        if vars(self.owner).get(self.attribute) is not self.replacement:
            logger.warning("fairdraw: %s was replaced by somebody else since and is left so.", self.target)
        for owner, name in list(self._places(self.replacement)):
            setattr(owner, name, self.original)

    def apply(self) -> None:
        for owner, name in list(self._places(self.original)):
            setattr(owner, name, self.replacement)

    def _places(self, value: object) -> Iterator[tuple[Any, str]]:
        """Where `value` is: its owner, and for a module's function also the modules that imported it by name."""
        if vars(self.owner).get(self.attribute) is value:
            yield self.owner, self.attribute
        if isinstance(self.owner, ModuleType):
            for module in list(sys.modules.values()):
                for name, held in list(getattr(module, "__dict__", {}).items()):
                    if held is value and (module, name) != (self.owner, self.attribute):
                        yield module, name


def make_patch(target: str, function: Callable[..., Any]) -> Patch:
    """A patch for `module:function` or `module:Class.method` that is not applied yet.

    Args:
        function: Called with the original, which has the arguments of the call already, then with these.

    Raises:
        ForeignFunctionError: If the value is not what the module's source defines.
    """
    module_name, _, name = target.partition(":")
    module = sys.modules[module_name]
    owner: Any = module
    *outer, attribute = name.split(".")
    for part in outer:
        owner = getattr(owner, part)
    original = vars(owner).get(attribute)
    is_static = isinstance(original, staticmethod)
    upstream = original.__func__ if isinstance(original, staticmethod) else original
    if not _is_defined_in(upstream, module, name):
        raise ForeignFunctionError(f"{target} was replaced by somebody else before")

    @wraps(upstream)
    def replacement(*args: Any, **kwargs: Any) -> Any:  # Any: whatever vLLM passes and expects
        return function(partial(upstream, *args, **kwargs), *args, **kwargs)

    return Patch(target, owner, attribute, original, staticmethod(replacement) if is_static else replacement)


def _is_defined_in(function: object, module: ModuleType, name: str) -> bool:
    return (
        isinstance(function, FunctionType)
        and function.__qualname__ == name
        and function.__code__.co_filename == module.__file__
        and not hasattr(function, "__wrapped__")
    )
