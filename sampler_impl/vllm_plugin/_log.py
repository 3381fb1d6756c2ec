"""The plugin's logger: a child of vLLM's own, so that its handler and level apply in every process."""

from __future__ import annotations

import logging

logger = logging.getLogger("vllm.fairdraw")
