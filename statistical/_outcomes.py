"""Everything that can come out of one request, with its exact probability; and what did come out, in the same form.

A statistic is a function from (draft tokens, output tokens) to a cell. Applied to observed rows it gives counts; given
*all possible* rows, weighted by their probabilities, it gives the distribution of those counts. One definition serves
both, so a statistic and its null distribution cannot disagree, whatever the verifier.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from fairdraw.protocols import PLACEHOLDER_TOKEN_ID
from fairdraw.statistical._distributions import (
    OutputDistribution,
    block_verification_distribution,
    exact_match_distribution,
    one_hot_probs,
    token_verification_distribution,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fairdraw.statistical._configurations import RequestDistributions

__all__ = ["Outcomes", "Rows", "Verification", "distinct_rows", "enumerate_outcomes"]


class Verification(StrEnum):
    """How a sampler accepts; all three are lossless, with different distributions of what is accepted."""

    TOKEN = "token"
    BLOCK = "block"
    EXACT_MATCH = "exact-match"


@dataclass(frozen=True)
class Rows:
    """Requests of one kind, call after call.

    Args:
        tokens: Output rows, cut to the width of this kind.
        draft_token_ids: What was drafted.
        fill_token_ids: Draws of the harness from the target distributions, to complete rows with.
    """

    tokens: NDArray[np.int32]  # [num_calls, num_rows, num_draft + 1] int32
    draft_token_ids: NDArray[np.int32]  # [num_calls, num_rows, num_draft] int32
    fill_token_ids: NDArray[np.int32]  # [num_calls, num_rows, num_draft + 1] int32
    vocab_size: int

    @property
    def num_draft(self) -> int:
        return int(self.draft_token_ids.shape[-1])

    @property
    def num_emitted(self) -> NDArray[np.int64]:  # [num_calls, num_rows] int64
        """Tokens per row: accepted drafts and one more."""
        return np.asarray((self.tokens != PLACEHOLDER_TOKEN_ID).sum(axis=-1), dtype=np.int64)


def distinct_rows(rows: Rows) -> tuple[Rows, NDArray[np.int64]]:  # weights: [1, num_rows] int64
    """The rows that differ, as one call, and how often each was seen: a few thousand instead of millions.

    Statistics that look at one row at a time give the same counts. What is no token and no placeholder becomes
    `vocab_size`, an id outside the vocabulary; fill tokens under emitted ones are dropped.
    """
    is_known = (rows.tokens >= PLACEHOLDER_TOKEN_ID) & (rows.tokens < rows.vocab_size)
    tokens = np.where(is_known, rows.tokens, rows.vocab_size)
    fill = np.where(tokens == PLACEHOLDER_TOKEN_ID, rows.fill_token_ids, 0)
    columns = np.concatenate([tokens + 1, rows.draft_token_ids + 1, fill], axis=-1)
    base = rows.vocab_size + 2
    codes = columns @ base ** np.arange(columns.shape[-1], dtype=np.int64)
    distinct, weights = np.unique(codes, return_counts=True)
    digits = distinct[:, None] // base ** np.arange(columns.shape[-1], dtype=np.int64) % base
    width, num_draft = tokens.shape[-1], rows.num_draft
    seen = Rows(
        (digits[None, :, :width] - 1).astype(np.int32),
        (digits[None, :, width : width + num_draft] - 1).astype(np.int32),
        digits[None, :, width + num_draft :].astype(np.int32),
        rows.vocab_size,
    )
    return seen, weights[None]


@dataclass(frozen=True)
class Outcomes:
    """All rows that one request can give.

    Args:
        rows: One call, one row per outcome; rows that only rounding leaves open are among them, with probability 0.
    """

    request: RequestDistributions
    rows: Rows
    probs: NDArray[np.float64]  # [num_outcomes] float64


def enumerate_outcomes(request: RequestDistributions, verification: Verification = Verification.TOKEN) -> Outcomes:
    """All pairs of draft tokens and output rows, drafts being drawn from the draft distribution.

    Under one-hot drafts token and block verification accept with the target probability of the draft: that is the
    distribution of exact match.
    """
    tokens, drafts, probs = [], [], []
    draft_probs = request.exact_draft_probs()
    for draft in itertools.product(range(request.vocab_size), repeat=request.num_draft):
        drawn = float(np.prod(draft_probs[np.arange(request.num_draft), list(draft)]))
        if drawn == 0:
            continue
        distribution = _distribution_of_given_draft(request, draft, verification)
        for num_accepted, (table, possible) in enumerate(
            zip(distribution.by_num_accepted, distribution.possible, strict=True)
        ):
            accepted = draft[:num_accepted]
            padding = (PLACEHOLDER_TOKEN_ID,) * (request.num_draft - num_accepted)
            for token in np.flatnonzero(possible[accepted] | (table[accepted] > 0)):
                tokens.append((*accepted, int(token), *padding))
                drafts.append(draft)
                probs.append(drawn * float(table[accepted][token]))
    shape = (1, len(probs), request.num_draft)
    rows = np.array([tokens], np.int32)
    return Outcomes(
        request,
        Rows(rows, np.array(drafts, np.int32).reshape(shape), np.zeros_like(rows), request.vocab_size),
        np.array(probs) / np.sum(probs),
    )


def _distribution_of_given_draft(
    request: RequestDistributions, draft: tuple[int, ...], verification: Verification
) -> OutputDistribution:
    target, draft_probs = list(request.exact_target_probs()), list(request.exact_draft_probs())
    given = list(one_hot_probs(draft, request.vocab_size))
    if request.one_hot or verification is Verification.EXACT_MATCH:
        return exact_match_distribution(target, given)
    if verification is Verification.BLOCK:
        return block_verification_distribution(target, draft_probs, given)
    return token_verification_distribution(target, draft_probs, given)
