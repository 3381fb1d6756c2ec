"""Switches in the environment."""

from __future__ import annotations

import os

from ._log import logger

PLUGIN = "FAIRDRAW_VLLM_PLUGIN"
"""Switches the whole plugin on; everything is off without it."""

ON = ("1", "on", "true", "yes")
OFF = ("", "0", "off", "false", "no")


def is_on(name: str, *, default: bool) -> bool:
    """The switch `name`; a value that is neither on nor off is logged and counts as off."""
    value = os.environ.get(name, "1" if default else "0").strip().lower()
    if value not in ON + OFF:
        logger.warning(
            "fairdraw: %s=%s, but it must be 1 or 0; what it switches stays off.", name, os.environ.get(name)
        )
    return value in ON
