"""What fairdraw asks of a sampler: batches, noise, capabilities, protocols; a module per contract.

Importing this package is free: torch is needed only once a batch exists.
"""

from __future__ import annotations

from fairdraw.protocols._capabilities import AnySampler, Capabilities, Capability
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
from fairdraw.protocols._rounding import Rounding, rounding_of
from fairdraw.protocols._sampling import (
    GREEDY_BELOW,
    Drafted,
    FilterPolicy,
    FunctionTokenSampler,
    RaceNoise,
    SamplingBatch,
    SamplingNoise,
    TokenDrafter,
    TokenSampler,
    filter_policy,
    token_sampler,
)

__all__ = [
    "GREEDY_BELOW",
    "GREEDY_TEMPERATURE",
    "MAX_SPEC_LEN",
    "PLACEHOLDER_TOKEN_ID",
    "AnySampler",
    "Capabilities",
    "Capability",
    "Drafted",
    "ExplicitNoise",
    "FilterPolicy",
    "FunctionSampler",
    "FunctionTokenSampler",
    "Noise",
    "RaceNoise",
    "RejectionSampler",
    "Rounding",
    "SamplingBatch",
    "SamplingNoise",
    "SeededNoise",
    "SpecDecodeBatch",
    "TokenDrafter",
    "TokenSampler",
    "VerifyFunction",
    "filter_policy",
    "rejection_sampler",
    "rounding_of",
    "token_sampler",
]
