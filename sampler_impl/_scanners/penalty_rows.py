"""The host's part of penalties: what a step adds to the counts, and which drafts each row of logits sees.

Imports NumPy but not torch, so that its instructions can be counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .history import PLACEHOLDER_TOKEN_ID, History, drafts_of_batch, read_changes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    Factors = tuple[Tensor, Tensor, Tensor]
    """Presence, frequency and repetition penalties, each `[batch_size] float32`."""

Ids = NDArray[np.int64]

IN_PROMPT = 1
IN_OUTPUT = 2
"""Bits of the token state: the prompt's, and the lowest one of the times in the output."""


def changed_counts(
    histories: Sequence[History],
    slots: Ids,  # [num_histories] int64
    vocab_size: int,
) -> Iterator[tuple[Ids, int]]:
    """Advance the histories: positions in the flattened counts `[num_slots, vocab_size]`, and what to add there.

    Raises:
        ValueError: If an id is neither in the vocabulary nor `vocab_size` or -1. The histories have advanced then.
    """
    added, num_added, dropped = read_changes(histories)
    for history, ids in dropped:
        yield _flat_index(slots[history], np.array(ids, np.int64), vocab_size), -1
    if added:
        one_each = num_added.count(1) == len(num_added)
        of_added = slots if one_each else np.repeat(slots, num_added)
        yield _flat_index(of_added, np.array(added, np.int64), vocab_size), 1


def _flat_index(
    slots: Ids | np.int64,  # [num_ids] int64, or one for all
    ids: Ids,  # [num_ids] int64
    vocab_size: int,
) -> Ids:  # [num_counted] int64
    if not in_vocab(ids, vocab_size):
        counted = counting(ids, vocab_size, "Penalties.update", "output_token_ids")
        slots, ids = np.broadcast_to(slots, ids.shape)[counted], ids[counted]
    return slots * vocab_size + ids


@dataclass(frozen=True, eq=False)
class PenaltyRows:
    """Requests that rows of logits belong to, and the draft tokens that they see after the output.

    Row `r` sees `draft_token_ids[first_draft[r] : first_draft[r] + num_drafts[r]]`. With 3 and 2 drafts d0 to d4:

        bonus rows     request  0          1             draft rows   request  0  0     0     1  1
                       sees     d0 d1 d2   d3 d4                      sees     -  d0    d0 d1 -  d3
    """

    request: Ids  # [num_rows] int64
    slots: Ids  # [num_rows] int64, -1 without penalties
    first_draft: Ids  # [num_rows] int64
    num_drafts: Ids  # [num_rows] int64
    draft_token_ids: Ids  # [num_tokens] int64

    def seen_drafts(self, vocab_size: int) -> tuple[Ids, Ids]:  # [num_seen] int64, [num_seen] int64
        """Return row and id of every draft token that a row sees and that is counted; rows ascend."""
        row = np.repeat(np.arange(len(self.request)), self.num_drafts)
        nth = np.arange(len(row)) - np.repeat(self.num_drafts.cumsum() - self.num_drafts, self.num_drafts)
        token_id = self.draft_token_ids[np.repeat(self.first_draft, self.num_drafts) + nth]
        counted = (token_id >= 0) & (token_id < vocab_size)
        return row[counted], token_id[counted]


def bonus_rows(
    slots: Ids,  # [batch_size] int64
    draft_token_ids: Sequence[list[int]] | None,
    vocab_size: int,
) -> PenaltyRows:
    """Return one row per request, which sees all of its drafts."""
    lengths, drafts = _flatten("Penalties.apply", draft_token_ids or [[]] * len(slots), len(slots), vocab_size)
    return PenaltyRows(np.arange(len(slots)), slots, lengths.cumsum() - lengths, lengths, drafts)


def draft_rows(
    slots: Ids,  # [batch_size] int64
    draft_token_ids: Sequence[list[int]],
    vocab_size: int,
) -> PenaltyRows:
    """Return one row per draft token, which sees the drafts of its request before it."""
    lengths, drafts = _flatten("Penalties.apply_to_drafts", draft_token_ids, len(slots), vocab_size)
    request = np.repeat(np.arange(len(slots)), lengths)
    first = np.repeat(lengths.cumsum() - lengths, lengths)
    return PenaltyRows(request, slots[request], first, np.arange(len(drafts)) - first, drafts)


def _flatten(
    function: str, draft_token_ids: Sequence[list[int]], batch_size: int, vocab_size: int
) -> tuple[Ids, Ids]:  # [batch_size] int64, [num_tokens] int64
    """Return lengths and flattened ids."""
    drafts = drafts_of_batch(function, draft_token_ids, batch_size)
    lengths = np.fromiter(map(len, drafts), np.int64, batch_size)
    flat = np.fromiter(chain.from_iterable(drafts), np.int64, int(lengths.sum()))
    if not in_vocab(flat, vocab_size):
        counting(flat, vocab_size, function, "draft_token_ids")
    return lengths, flat


def in_vocab(
    ids: Ids,  # [num_ids] int64
    vocab_size: int,
) -> bool:
    """Whether all ids are in `[0, vocab_size)`; one pass, as a negative id is a huge unsigned one."""
    return len(ids) == 0 or bool(ids.view(np.uint64).max() < vocab_size)


def counting(
    ids: Ids,  # [num_ids] int64
    vocab_size: int,
    function: str,
    name: str,
) -> NDArray[np.bool_]:  # [num_ids] bool
    """Return which ids are counted: all but placeholders and the pad id."""
    wrong = ids[(ids < PLACEHOLDER_TOKEN_ID) | (ids > vocab_size)]
    if len(wrong) > 0:
        raise ValueError(
            f"{function}: {name} has {wrong[0]}, but ids must be in [0, {vocab_size}), or -1 for a placeholder. "
            f"Correct the caller, or let the engine's own code do it."
        )
    counted: NDArray[np.bool_] = (ids != PLACEHOLDER_TOKEN_ID) & (ids != vocab_size)
    return counted
