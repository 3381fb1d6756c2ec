"""Modes that see every operation of torch, without the seconds that importing `torch._dynamo` takes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._compile import _disable_dynamo
from torch.utils._python_dispatch import TorchDispatchMode


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves its __init_subclass__ untyped
    """A mode whose `__torch_dispatch__` is kept from `torch.compile` only where something is compiled.

    Torch itself imports `torch._dynamo`, and with it triton, at the first operation under any mode.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]  # as above
        cls.__torch_dispatch__ = _hidden(cls.__torch_dispatch__)  # type: ignore[method-assign]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch's own wrapper; releases that do not ask wrap it, too, which costs the import alone


def _hidden(dispatch: Callable[..., Any]) -> Callable[..., Any]:  # Any: torch's operators and their results
    hidden = _disable_dynamo(dispatch)

    @functools.wraps(dispatch)
    def called(*arguments: Any, **options: Any) -> Any:  # Any: as above
        can_compile = hasattr(sys.modules.get("torch._dynamo"), "disable")  # it is imported, and not in part
        return (hidden if can_compile else dispatch)(*arguments, **options)

    return called


class RandomMode(DispatchMode):
    """A mode that sees random operations alone; all others are done as they are."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # Any: torch's
        options = dict(kwargs or {})
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        return self.draw(func, args, options) if is_random else func(*args, **options)

    def draw(self, func: torch._ops.OpOverload, args: tuple[Any, ...], options: dict[str, Any]) -> object:
        """Return what stands for the result of a random operation. Any: arguments of whatever is called."""
        raise NotImplementedError
