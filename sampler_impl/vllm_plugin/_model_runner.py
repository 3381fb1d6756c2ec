"""vLLM's model runner V2 has none of the paths that the plugin replaces; say so where it is in use."""

from __future__ import annotations

import os
import sys

from ._log import logger

MODULE = "vllm.v1.worker.gpu.model_runner"
"""Imported by a worker that has chosen V2."""

SWITCH = "VLLM_USE_V2_MODEL_RUNNER"


def is_asked_for() -> bool:
    """By the environment; else vLLM decides by the model."""
    return os.environ.get(SWITCH, "").strip() not in ("", "0")


def is_declined() -> bool:
    """V2's module was imported for another reason: the configuration in force says V1."""
    current = getattr(sys.modules.get("vllm.config"), "get_current_vllm_config_or_none", None)
    config = current() if current else None
    return config is not None and getattr(config, "use_v2_model_runner", None) is False


def tell_idle(pieces: list[str]) -> None:
    logger.warning(
        "fairdraw: model runner V2 is in use, and %s %s for V1 only: idle. %s=0 chooses V1.",
        ", ".join(pieces),
        "is" if len(pieces) == 1 else "are",
        SWITCH,
    )
