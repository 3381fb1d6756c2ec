"""Where the plugin speaks: below vLLM's own logger, so that its handler and level apply in every process."""

from __future__ import annotations

import logging

logger = logging.getLogger("vllm.fairdraw")
