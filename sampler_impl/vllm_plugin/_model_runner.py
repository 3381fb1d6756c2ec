"""vLLM's model runner V2 has none of the functions that the plugin replaces; log a warning where it is in use.

Only its construction proves that. A V1 worker imports V2's module, too (`gpu_worker` imports `gpu.warmup`, which needs
the class), before the configuration is known. The environment alone proves nothing: the worker for CPUs runs V1
whatever the variable says.
"""

from __future__ import annotations

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


def tell_idle(pieces: list[str]) -> None:
    logger.warning(
        "fairdraw: model runner V2 is in use, and %s %s for V1 only: idle. %s=0 chooses V1.",
        ", ".join(pieces),
        "is" if len(pieces) == 1 else "are",
        _SWITCH,
    )
