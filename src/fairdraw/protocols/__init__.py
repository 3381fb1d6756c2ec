"""What fairdraw asks of a sampler: batches, noise, capabilities, protocols; a module per contract.

Importing this package is free: torch is needed only once a batch exists.
"""

from __future__ import annotations

from fairdraw.protocols._capabilities import Capabilities, Capability, Subject
from fairdraw.protocols._rejection import (
    GREEDY_TEMPERATURE,
    MAX_SPEC_LEN,
    PLACEHOLDER_TOKEN_ID,
    ExplicitNoise,
    FunctionSampler,
    Noise,
    RejectionSampler,
    SeededNoise,
    SpecDecodeBatch,
    VerifyFunction,
    rejection_sampler,
)

__all__ = [
    "GREEDY_TEMPERATURE",
    "MAX_SPEC_LEN",
    "PLACEHOLDER_TOKEN_ID",
    "Capabilities",
    "Capability",
    "ExplicitNoise",
    "FunctionSampler",
    "Noise",
    "RejectionSampler",
    "SeededNoise",
    "SpecDecodeBatch",
    "Subject",
    "VerifyFunction",
    "rejection_sampler",
]
