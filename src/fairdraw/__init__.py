"""fairdraw proves that a token sampler of an LLM inference engine is right, fair and fast."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from fairdraw.protocols import (
    PLACEHOLDER_TOKEN_ID,
    Capabilities,
    Capability,
    ExplicitNoise,
    FilterPolicy,
    Noise,
    RaceNoise,
    RejectionSampler,
    Rounding,
    SamplingBatch,
    SeededNoise,
    SpecDecodeBatch,
    TokenSampler,
    rejection_sampler,
    token_sampler,
)

if TYPE_CHECKING:
    from fairdraw._run.loading import CannotStart, all_checks
    from fairdraw._run.runner import CheckRecord, check_sampler
    from fairdraw.pytest_plugin import SamplerTests, parametrize_with_checks

__all__ = [
    "PLACEHOLDER_TOKEN_ID",
    "CannotStart",
    "Capabilities",
    "Capability",
    "CheckRecord",
    "ExplicitNoise",
    "FilterPolicy",
    "Noise",
    "RaceNoise",
    "RejectionSampler",
    "Rounding",
    "SamplerTests",
    "SamplingBatch",
    "SeededNoise",
    "SpecDecodeBatch",
    "TokenSampler",
    "__version__",
    "all_checks",
    "check_sampler",
    "parametrize_with_checks",
    "rejection_sampler",
    "token_sampler",
]

__version__ = "0.1.0"
"""Version of the suite, by semantic versioning; every report and crash file carries it."""

_LAZY = {
    "CannotStart": "fairdraw._run.loading",
    "CheckRecord": "fairdraw._run.runner",
    "SamplerTests": "fairdraw.pytest_plugin",
    "all_checks": "fairdraw._run.loading",
    "check_sampler": "fairdraw._run.runner",
    "parametrize_with_checks": "fairdraw.pytest_plugin",
}


def __getattr__(name: str) -> object:
    """What runs checks is imported when it is asked for; pytest may be absent until then."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
