"""State per vLLM object, kept as long as the object exists and the plugin is on."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

_all: list[WeakKeyDictionary[Any, Any]] = []


def memory() -> WeakKeyDictionary[Any, Any]:  # Any: vLLM's object to the state of one piece
    """A new dictionary that `forget_all` empties."""
    made: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
    _all.append(made)
    return made


def forget_all() -> None:
    """After this every object is unknown, as is necessary once events were missed."""
    for remembered in _all:
        remembered.clear()
