"""Every odd but correct sampler, by contract: what the tests and `tools/record.py odd` run."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from odd.filters import ODD_FILTERS
from odd.grammar import ODD_MASKERS
from odd.logits_plan import ODD_PLANS
from odd.logprobs import ODD_LOGPROBS
from odd.masks import ODD_MASKS
from odd.matchers import ODD_MATCHERS
from odd.penalties import ODD_PENALTIES
from odd.rejection import ODD_REJECTION
from odd.sampling import ODD_SAMPLING
from odd.thinking_budget import ODD_THINKING
from odd.watermarks import ODD_WATERMARKS

_BY_CONTRACT: dict[str, tuple[Any, ...]] = {  # Any: of its contract
    "filters": ODD_FILTERS,
    "grammar": ODD_MASKERS,
    "logits_plan": ODD_PLANS,
    "logprobs": ODD_LOGPROBS,
    "masks": ODD_MASKS,
    "matchers": ODD_MATCHERS,
    "penalties": ODD_PENALTIES,
    "rejection": ODD_REJECTION,
    "sampling": ODD_SAMPLING,
    "thinking_budget": ODD_THINKING,
    "watermarks": ODD_WATERMARKS,
}
ODD = {name: (import_module(f"fairdraw._mutants.{name}").right(), *odd) for name, odd in _BY_CONTRACT.items()}
"""The specification itself comes first."""
