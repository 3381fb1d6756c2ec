"""Every odd but correct sampler, by contract: what the tests and `tools/record.py odd` run."""

from __future__ import annotations

from typing import Any

from fairdraw._mutants import (
    filters,
    grammar,
    logits_plan,
    logprobs,
    masks,
    matchers,
    penalties,
    rejection,
    sampling,
    thinking_budget,
)
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

ODD: dict[str, tuple[Any, ...]] = {  # Any: of its contract
    "filters": (filters.right(), *ODD_FILTERS),
    "grammar": (grammar.right(), *ODD_MASKERS),
    "logits_plan": (logits_plan.right(), *ODD_PLANS),
    "logprobs": (logprobs.right(), *ODD_LOGPROBS),
    "masks": (masks.right(), *ODD_MASKS),
    "matchers": (matchers.right(), *ODD_MATCHERS),
    "penalties": (penalties.right(), *ODD_PENALTIES),
    "rejection": (rejection.right(), *ODD_REJECTION),
    "sampling": (sampling.right(), *ODD_SAMPLING),
    "thinking_budget": (thinking_budget.right(), *ODD_THINKING),
}
"""The specification itself comes first."""
