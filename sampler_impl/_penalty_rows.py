"""The host's half of penalties: what a step adds to the counts, and which drafts each row of logits sees.

Imports NumPy and no torch, so that its instructions can be counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ._history import PLACEHOLDER_TOKEN_ID, History, read_changes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Ids = NDArray[np.int64]


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
        yield _flat_index(np.repeat(slots, num_added), np.array(added, np.int64), vocab_size), 1


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
    """Which request each row of logits belongs to, and which draft tokens it sees beside the output."""

    request: Ids  # [num_rows] int64
    draft_row: Ids  # [num_seen] int64, ascending: the row that sees a draft token
    draft_token_id: Ids  # [num_seen] int64


def bonus_rows(batch_size: int, draft_token_ids: Sequence[list[int]] | None, vocab_size: int) -> PenaltyRows:
    """One row per request, which sees all its drafts."""
    request = np.arange(batch_size)
    lengths, drafts = _flatten("Penalties.apply", draft_token_ids, batch_size)
    return _visible("Penalties.apply", request, np.repeat(request, lengths), drafts, vocab_size)


def draft_rows(batch_size: int, draft_token_ids: Sequence[list[int]], vocab_size: int) -> PenaltyRows:
    """One row per draft token, which sees the drafts of its request before it.

    Row `r` at position `j` of its request sees the flattened drafts `r - j` to `r - 1`: with lengths [3, 2],

        row       0  1  2 | 3  4
        position  0  1  2 | 0  1
        sees         0  0 |    3
                        1
    """
    lengths, drafts = _flatten("Penalties.apply_to_drafts", draft_token_ids, batch_size)
    row = np.arange(len(drafts))
    position = row - np.repeat(lengths.cumsum() - lengths, lengths)
    draft_row = np.repeat(row, position)
    nth = np.arange(len(draft_row)) - np.repeat(position.cumsum() - position, position)
    seen = drafts[np.repeat(row - position, position) + nth]
    request = np.repeat(np.arange(batch_size), lengths)
    return _visible("Penalties.apply_to_drafts", request, draft_row, seen, vocab_size)


def _flatten(
    function: str, draft_token_ids: Sequence[list[int]] | None, batch_size: int
) -> tuple[Ids, Ids]:  # [batch_size] int64, [num_tokens] int64
    """Lengths and flattened ids; lists beyond the batch are ignored, as vLLM keeps one per possible request."""
    if draft_token_ids is None:
        return np.zeros(batch_size, np.int64), np.empty(0, np.int64)
    if len(draft_token_ids) < batch_size:
        raise ValueError(
            f"{function}: len(draft_token_ids)={len(draft_token_ids)}, but it must be at least {batch_size}, the "
            f"number of requests. Use an empty list for a request without drafts."
        )
    drafts = draft_token_ids[:batch_size]
    lengths = np.fromiter(map(len, drafts), np.int64, batch_size)
    return lengths, np.fromiter(chain.from_iterable(drafts), np.int64, int(lengths.sum()))


def _visible(
    function: str,
    request: Ids,  # [num_rows] int64
    draft_row: Ids,  # [num_seen] int64
    draft_token_id: Ids,  # [num_seen] int64
    vocab_size: int,
) -> PenaltyRows:
    if not in_vocab(draft_token_id, vocab_size):
        counted = counting(draft_token_id, vocab_size, function, "draft_token_ids")
        draft_row, draft_token_id = draft_row[counted], draft_token_id[counted]
    return PenaltyRows(request, draft_row, draft_token_id)


def in_vocab(
    ids: Ids,  # [num_ids] int64
    vocab_size: int,
) -> bool:
    """All ids in `[0, vocab_size)`; one pass, as a negative id is a huge unsigned one."""
    return len(ids) == 0 or bool(ids.view(np.uint64).max() < vocab_size)


def counting(
    ids: Ids,  # [num_ids] int64
    vocab_size: int,
    function: str,
    name: str,
) -> NDArray[np.bool_]:  # [num_ids] bool
    """Which ids count: placeholders and the pad id do not."""
    wrong = ids[(ids < PLACEHOLDER_TOKEN_ID) | (ids > vocab_size)]
    if len(wrong) > 0:
        raise ValueError(
            f"{function}: {name} has {wrong[0]}, but ids must be in [0, {vocab_size}), or -1 for a placeholder. "
            f"Correct the caller, or let the engine's own code do it."
        )
    counted: NDArray[np.bool_] = (ids != PLACEHOLDER_TOKEN_ID) & (ids != vocab_size)
    return counted
