"""Register with vLLM, install each piece once its modules are imported, and remove everything again."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _batches, _calls, _model_runner, _switches, _validated
from ._hook import ImportHook
from ._log import logger
from ._memory import forget_all
from ._patch import ForeignFunctionError, Patch, make_patch
from ._pieces import PIECES, Piece
from ._source import forget_sources

if TYPE_CHECKING:
    from collections.abc import Callable


class _Registration:
    """The pieces that are switched on in this process, and the installed ones."""

    def __init__(self, pieces: list[Piece]) -> None:
        self.waiting = [piece for piece in pieces if piece.runner == "V1"]
        self.for_v2 = [piece for piece in pieces if piece.runner == "V2"]
        """Until a V2 runner is made."""
        self.installed: list[Piece] = []
        self.patches: dict[str, Patch] = {}
        self._runner_was_made = False
        self._unwatch: Callable[[], None] = lambda: None
        names = {name for piece in self.waiting for name in piece.modules} | {_model_runner.MODULE}
        self._missing = set(names)
        self._hook = ImportHook(names, self._loaded)

    def start(self) -> None:
        self._hook.install()

    def stop(self) -> None:
        self._hook.remove()
        self._unwatch()
        for patch in self.patches.values():
            patch.remove()
        _batches.listeners.clear()
        forget_all()

    def _loaded(self, name: str) -> None:
        self._missing.discard(name)
        if name == _model_runner.MODULE:
            self._unwatch = _model_runner.watch(sys.modules[name], self.runner_v2_made)
        ready = [piece for piece in self.waiting if not piece.modules & self._missing]
        self.waiting = [piece for piece in self.waiting if piece.modules & self._missing]
        for piece in ready:
            self._install(piece)
        if not self.waiting:
            forget_sources()

    def runner_v2_made(self) -> None:
        """Install the pieces for it, and log those for V1; once per process."""
        if self._runner_was_made:
            return
        self._runner_was_made = True
        idle = (*self.installed, *self.waiting)
        try:
            for piece in self.for_v2:
                self._install(piece)
        except Exception:  # nothing may stop a server from being made
            logger.exception("fairdraw: vLLM's own code stays in place, as a piece for V2 could not be installed.")
        forget_sources()
        serving = any(piece in self.installed for piece in self.for_v2)
        _model_runner.tell_idle([piece.name for piece in PIECES if piece in idle], serving=serving)

    def _install(self, piece: Piece) -> None:
        """All patches of `piece`, or none."""
        vllm = sys.modules["vllm"]
        release = str(vllm.__version__)
        try:
            _validated.check(release, Path(str(vllm.__file__)).parent, piece.name, piece.functions)
            new = [make_patch(t, _load(f)) for t, f in piece.patched.items() if t not in self.patches]
        except (_validated.NotValidatedError, ForeignFunctionError) as error:
            logger.warning("fairdraw: %s stays off, vLLM's own code runs: %s", piece.name, error)
            return
        for patch in new:
            patch.apply()
            self.patches[patch.target] = patch
        if piece.listener:
            _batches.listeners.append(_load(piece.listener))
        self.installed.append(piece)
        logger.info(
            "fairdraw: %s is on: vLLM %s, source of %d functions as validated, patched %s.%s",
            piece.name,
            release,
            len(piece.functions),
            ", ".join(target.partition(":")[2] for target in piece.patched),
            f" {piece.note}" if piece.note else "",
        )


def _load(name: str) -> Callable[..., Any]:  # Any: as vLLM's function
    """One of our functions, from `module:function` in this package; now its module may import torch."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(import_module(f".{module}", __package__), function)
    return found


_current: list[_Registration] = []
"""At most one: vLLM loads plugins once per process."""


def register() -> None:
    """vLLM's entry point: does nothing unless `FAIRDRAW_VLLM_PLUGIN=1`, and nothing when called again; never raises."""
    if _current:
        return
    try:
        if not _switches.is_on(_switches.PLUGIN, default=False):
            return
        pieces = [piece for piece in PIECES if _switches.is_on(piece.switch, default=True)]
        if pieces:
            _current.append(_Registration(pieces))
            _current[0].start()
    except Exception:
        logger.exception("fairdraw: the plugin stays off, as it could not be registered.")
        unpatch()


def unpatch() -> None:
    """Remove everything: vLLM's own functions are restored. `register` may be called again."""
    while _current:
        registration = _current.pop()
        registration.stop()
        logger.info("fairdraw: taken off; vLLM's own code runs in %d places.", len(registration.patches))
    _calls.reset()


def installed() -> list[str]:
    """Names of the pieces that are in place in this process."""
    return [piece.name for piece in PIECES for registration in _current if piece in registration.installed]
