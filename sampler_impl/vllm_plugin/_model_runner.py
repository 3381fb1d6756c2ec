"""When vLLM makes a model runner V2: pieces for it are installed then, and those for V1 are logged as idle.

Only its construction proves that. A V1 worker imports V2's module, too (`gpu_worker` imports `gpu.warmup`, which needs
the class), before the configuration is known. The environment alone proves nothing: the worker for CPUs runs V1
whatever the variable says, and some features (watermarks in 0.33.0) choose V2 although it is 0.
"""

from __future__ import annotations

import os
from functools import wraps
from typing import TYPE_CHECKING, Any

from ._log import logger

if TYPE_CHECKING:
    from collections.abc import Callable

MODULE = "vllm.v1.worker.gpu.model_runner"
"""V2's module, in workers of both kinds."""

_CLASS = "GPUModelRunner"
_SWITCH = "VLLM_USE_V2_MODEL_RUNNER"


def watch(module: object, constructed: Callable[[], None]) -> Callable[[], None]:
    """Call `constructed` when a runner of `module` is made, before vLLM's own constructor.

    Returns:
        A function that removes the watch.
    """
    runner: Any = getattr(module, _CLASS, None)  # Any: vLLM's class, if this release has it
    original = vars(runner).get("__init__") if isinstance(runner, type) else None
    if original is None:
        return lambda: None

    @wraps(original)
    def init(self: object, *args: Any, **options: Any) -> None:  # Any: as vLLM's
        constructed()
        original(self, *args, **options)

    def remove() -> None:
        if vars(runner).get("__init__") is init:  # otherwise it was replaced by other code
            runner.__init__ = original

    runner.__init__ = init
    return remove


def tell_idle(pieces: list[str], *, serving: bool = False) -> None:
    """Log that V2 was made.

    Args:
        pieces: Those for V1 that are installed or wait for their modules; the refused ones were logged with their
            reason.
        serving: A piece for V2 is on; nobody has to choose V1 then.
    """
    idle = f"{', '.join(pieces)} {'is' if len(pieces) == 1 else 'are'} for V1 only: idle."
    if serving:
        if pieces:
            logger.info("fairdraw: model runner V2 is in use, and %s", idle)
        return
    logger.warning(
        "fairdraw: model runner V2 is in use, and %s %s",
        idle if pieces else "no piece of the plugin serves it.",
        f"{_SWITCH}=0 is set, but this configuration overrides it." if _is_zero() else f"{_SWITCH}=0 chooses V1.",
    )


def _is_zero() -> bool:
    """Whether the variable chooses V1, read as vLLM reads it: a number."""
    value = os.environ.get(_SWITCH, "").strip()
    return value.isdigit() and int(value) == 0
