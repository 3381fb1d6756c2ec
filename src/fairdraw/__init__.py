"""fairdraw proves that a token sampler of an LLM inference engine is right, fair and fast."""

from __future__ import annotations

from fairdraw.protocols import (
    PLACEHOLDER_TOKEN_ID,
    Capabilities,
    Capability,
    ExplicitNoise,
    Noise,
    RejectionSampler,
    SeededNoise,
    SpecDecodeBatch,
    rejection_sampler,
)

__all__ = [
    "PLACEHOLDER_TOKEN_ID",
    "Capabilities",
    "Capability",
    "ExplicitNoise",
    "Noise",
    "RejectionSampler",
    "SeededNoise",
    "SpecDecodeBatch",
    "__version__",
    "rejection_sampler",
]

__version__ = "0.1.0"
