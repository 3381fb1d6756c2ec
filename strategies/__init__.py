"""Hypothesis strategies that generate the world a sampler lives in. Reuse them: `from fairdraw import strategies as fst`."""

from __future__ import annotations

from fairdraw.strategies._cases import (
    DTYPES,
    EXPONENTIAL_KINDS,
    LAYOUTS,
    TOKEN_KINDS,
    UNIFORM_KINDS,
    DraftRecipe,
    RejectionCase,
    RequestRecipe,
)
from fairdraw.strategies.rejection import (
    AWKWARD_VOCAB_SIZES,
    LARGE_VOCAB_SIZES,
    draft_recipes,
    rejection_cases,
    request_recipes,
    spec_decode_batches,
    vocab_sizes,
)
from fairdraw.strategies.rows import DRAFT_KINDS, LAWLESS_KINDS, TARGET_KINDS, draft_row, target_row

__all__ = [
    "AWKWARD_VOCAB_SIZES",
    "DRAFT_KINDS",
    "DTYPES",
    "EXPONENTIAL_KINDS",
    "LARGE_VOCAB_SIZES",
    "LAWLESS_KINDS",
    "LAYOUTS",
    "TARGET_KINDS",
    "TOKEN_KINDS",
    "UNIFORM_KINDS",
    "DraftRecipe",
    "RejectionCase",
    "RequestRecipe",
    "draft_recipes",
    "draft_row",
    "rejection_cases",
    "request_recipes",
    "spec_decode_batches",
    "target_row",
    "vocab_sizes",
]
