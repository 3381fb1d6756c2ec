"""Everything that can come out of one request, with its exact probability; and observed rows in the same form.

A statistic is a function from (draft tokens, output tokens) to a cell. Applied to observed rows, it gives counts.
Applied to *all possible* rows, weighted by their probabilities, it gives the distribution of those counts. One
definition serves both, so a statistic and its null cannot disagree.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairdraw.contracts import PLACEHOLDER_TOKEN_ID
from fairdraw.statistical._configurations import RequestDistributions


@dataclass(frozen=True)
class Rows:
    """Requests of one kind, call after call.

    Args:
        tokens: Output rows, cut to the width of this kind.
        draft_token_ids: The drafts.
        fill_token_ids: Draws of the harness from the target distributions, to complete rows with.
    """

    tokens: NDArray[np.int32]  # [num_calls, num_rows, num_draft + 1] int32
    draft_token_ids: NDArray[np.int32]  # [num_calls, num_rows, num_draft] int32
    fill_token_ids: NDArray[np.int32]  # [num_calls, num_rows, num_draft + 1] int32
    vocab_size: int

    @property
    def num_draft(self) -> int:
        """Draft tokens per row."""
        return int(self.draft_token_ids.shape[-1])

    @property
    def num_emitted(self) -> NDArray[np.int64]:  # [num_calls, num_rows] int64
        """Tokens per row: accepted drafts and one more."""
        return np.asarray((self.tokens != PLACEHOLDER_TOKEN_ID).sum(axis=-1), dtype=np.int64)


@dataclass(frozen=True)
class RowCodes:
    """Rows of requests of one kind, each as one number, on the device that they were drawn on.

    Statistics see the rows that differ and how often each was seen: a few thousand instead of millions.

    Args:
        codes: Digits in base `vocab_size + 2`, lowest first: tokens and drafts, plus 1, and fill tokens.
    """

    codes: Tensor  # [num_calls, num_rows] int64
    num_draft: int
    vocab_size: int

    @classmethod
    def of(
        cls,
        tokens: Tensor,  # [num_calls, num_rows, num_draft + 1] int32
        draft_token_ids: Tensor,  # [num_calls, num_rows, num_draft] int32
        fill_token_ids: Tensor,  # [num_calls, num_rows, num_draft + 1] int32
        vocab_size: int,
    ) -> RowCodes:
        """What is no token and no placeholder becomes `vocab_size`, an id outside the vocabulary; fill tokens under
        emitted ones are dropped."""
        known = torch.where((tokens >= PLACEHOLDER_TOKEN_ID) & (tokens < vocab_size), tokens, vocab_size)
        fill = torch.where(known == PLACEHOLDER_TOKEN_ID, fill_token_ids, 0)
        columns = [*(known + 1).unbind(-1), *(draft_token_ids + 1).unbind(-1), *fill.unbind(-1)]
        codes = torch.zeros_like(columns[0], dtype=torch.int64)
        for column in reversed(columns):
            codes = codes * (vocab_size + 2) + column
        return cls(codes, draft_token_ids.shape[-1], vocab_size)

    def distinct(self) -> tuple[Rows, NDArray[np.int64]]:  # weights: [1, num_rows] int64
        """The rows that differ, as one call, and how often each was seen.

        Statistics that look at one row at a time give the same counts.
        """
        codes, weights = torch.unique(self.codes, return_counts=True)
        width = self.num_draft + 1
        digits = self._digits(codes, width + self.num_draft + width)[None]
        tokens, drafts, fill = np.split(digits, [width, width + self.num_draft], axis=-1)
        return Rows(tokens - 1, drafts - 1, fill, self.vocab_size), weights.cpu().numpy()[None]

    def _digits(self, codes: Tensor, num_digits: int) -> NDArray[np.int32]:  # [len(codes), num_digits] int32
        places = (self.vocab_size + 2) ** np.arange(num_digits, dtype=np.int64)
        return (codes.cpu().numpy()[:, None] // places % (self.vocab_size + 2)).astype(np.int32)


@dataclass(frozen=True)
class Outcomes:
    """All rows that one request can give.

    Args:
        rows: One call, one row per outcome. Rows that only rounding may reach are among them, with probability 0.
    """

    request: RequestDistributions
    rows: Rows
    probs: NDArray[np.float64]  # [num_outcomes] float64


def enumerate_outcomes(request: RequestDistributions) -> Outcomes:
    """All pairs of draft tokens and output rows under token verification, drafts being drawn from their distribution.

    Each draft is accepted with its probability. The first rejection ends the row with a recovered token; if there is
    none, the bonus token ends it.

    Reference:
        Leviathan, Kalman, Matias (2022), arXiv:2211.17192, algorithm 1; Chen et al. (2023), arXiv:2302.01318.
    """
    rows, probs, num_draft = [], [], request.num_draft
    bonus = request.exact_target_probs()[-1]
    for drafts in itertools.product(range(request.vocab_size), repeat=num_draft):
        reach = float(np.prod(request.exact_draft_probs()[np.arange(num_draft), drafts]))
        for position in range(num_draft + 1):
            if reach == 0:
                break
            if position == num_draft:
                accepted, last, possible = 0.0, bonus, bonus > 0
            else:
                accepted = float(request.acceptance(position)[drafts[position]])
                last, possible = request.residual(position, drafts[position]), request.recoverable(position)
            padding = (PLACEHOLDER_TOKEN_ID,) * (num_draft - position)
            for token in np.flatnonzero(possible | (last > 0)).tolist():
                rows.append((*drafts[:position], token, *padding, *drafts))
                probs.append(reach * (1 - accepted) * float(last[token]))
            reach *= accepted
    table = np.array([rows], dtype=np.int32)
    tokens, given = table[..., : num_draft + 1], table[..., num_draft + 1 :]
    seen = Rows(tokens, given, np.zeros_like(tokens), request.vocab_size)
    return Outcomes(request, seen, np.array(probs) / np.sum(probs))
