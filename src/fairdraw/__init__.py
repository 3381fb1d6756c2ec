"""fairdraw proves that a token sampler of an LLM inference engine is right, fair and fast."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from fairdraw.protocols import (
    PLACEHOLDER_TOKEN_ID,
    Capabilities,
    Capability,
    ExplicitNoise,
    Noise,
    RaceNoise,
    RejectionSampler,
    SamplingBatch,
    SeededNoise,
    SpecDecodeBatch,
    TokenSampler,
    rejection_sampler,
    token_sampler,
)

if TYPE_CHECKING:
    from fairdraw.pytest_plugin import SamplerTests, parametrize_with_checks
    from fairdraw.runner import check_sampler

__all__ = [
    "PLACEHOLDER_TOKEN_ID",
    "Capabilities",
    "Capability",
    "ExplicitNoise",
    "Noise",
    "RaceNoise",
    "RejectionSampler",
    "SamplerTests",
    "SamplingBatch",
    "SeededNoise",
    "SpecDecodeBatch",
    "TokenSampler",
    "__version__",
    "check_sampler",
    "parametrize_with_checks",
    "rejection_sampler",
    "token_sampler",
]

__version__ = "0.1.0"

_LAZY = {
    "SamplerTests": "fairdraw.pytest_plugin",
    "check_sampler": "fairdraw.runner",
    "parametrize_with_checks": "fairdraw.pytest_plugin",
}


def __getattr__(name: str) -> object:
    """What runs checks is imported when it is asked for; pytest may be absent until then."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
