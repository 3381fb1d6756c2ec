"""Hypothesis strategies: the inputs of a sampler. Reuse them with `from fairdraw import strategies as fst`.

From small to large: sizes (`vocab_sizes`, `num_draft_tokens`), rows (`logit_rows`, `probability_rows`), noise for any
batch (`explicit_noises`, `seeded_noises`), batches (`spec_decode_batches`), whole steps as recipes (`rejection_cases`),
and hundreds of steps of one sampler (`SamplingTrace`, `RejectionTrace`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairdraw.strategies._cases import TOKEN_KINDS, DraftRecipe, RejectionCase, RequestRecipe
    from fairdraw.strategies._recipe import DTYPES, LAYOUTS
    from fairdraw.strategies._rejection_traces import RejectionTrace
    from fairdraw.strategies._sampling_traces import SamplingTrace
    from fairdraw.strategies._sizes import AWKWARD_VOCAB_SIZES, LARGE_VOCAB_SIZES, num_draft_tokens, vocab_sizes
    from fairdraw.strategies.noise import EXPONENTIAL_KINDS, UNIFORM_KINDS, NoiseRecipe, explicit_noises, seeded_noises
    from fairdraw.strategies.rejection import rejection_cases, spec_decode_batches
    from fairdraw.strategies.rows import (
        DRAFT_KINDS,
        INVALID_KINDS,
        TARGET_KINDS,
        draft_row,
        logit_rows,
        probability_row,
        probability_rows,
        target_row,
    )
    from fairdraw.strategies.sampling import SampledRequest, SamplingCase, sampling_batches, sampling_cases

__all__ = [
    "AWKWARD_VOCAB_SIZES", "DRAFT_KINDS", "DTYPES", "EXPONENTIAL_KINDS", "INVALID_KINDS", "LARGE_VOCAB_SIZES",
    "LAYOUTS", "TARGET_KINDS", "TOKEN_KINDS", "UNIFORM_KINDS", "DraftRecipe", "NoiseRecipe", "RejectionCase",
    "RejectionTrace", "RequestRecipe", "SampledRequest", "SamplingCase", "SamplingTrace", "draft_row",
    "explicit_noises", "logit_rows", "num_draft_tokens", "probability_row", "probability_rows", "rejection_cases",
    "sampling_batches", "sampling_cases", "seeded_noises", "spec_decode_batches",
    "target_row", "vocab_sizes",
]  # fmt: skip

__dir__ = __all__.copy
_MODULES = "_cases _recipe _rejection_traces _sampling_traces _sizes noise rejection rows sampling"
"""Modules that define the names above, the private ones first."""


def __getattr__(name: str) -> object:
    """Import on first use: `_serving_batch` is also used by programs that must not import torch."""
    modules = (importlib.import_module(f"{__name__}.{module}") for module in _MODULES.split() if name in __all__)
    for found in (vars(module).get(name) for module in modules):
        if found is not None:
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
