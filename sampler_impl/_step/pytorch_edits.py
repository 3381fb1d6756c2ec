"""Edits in PyTorch: grammar, allowed ids, bias, minimum tokens, penalties, bad words, forced token, in this order.

Each is a function of the rows' own inputs that changes a float32 copy of the logits. Ids are lists per slot; an id that
is not in the vocabulary is ignored.

Ids that are listed as allowed, biased or forced are *moved*: the draw comes to them after all others, in the
order of their mention. So it is in the kernels, and so both draw the same tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .._shared.grid import is_in_vocab

if TYPE_CHECKING:
    from .._shared.tensors import AnyRowLists, Bitmasks, RowIds, RowInts, RowListFlags, RowLists, WrittenRows
    from .inputs import BadWords, Penalties, StepInputs, TokenEdits
    from .pytorch import Layout

EXCLUDED = float("-inf")


def edited_logits(inputs: StepInputs, layout: Layout) -> Tensor:  # [num_rows, vocab_size] float32
    """Return a copy of all rows."""
    logits = inputs.logits.to(torch.float32, copy=True)
    edits = inputs.edits
    if inputs.grammar_mask is not None:
        logits.masked_fill_(~_bits(inputs.grammar_mask, logits.shape[1]), EXCLUDED)
    if edits is not None:
        _apply_lists(logits, edits, layout)
    if inputs.penalties is not None:
        _penalise(logits, inputs.penalties, layout)
    if edits is not None and edits.bad_words is not None:
        _exclude_bad_words(logits, edits.bad_words, inputs, layout)
    if edits is not None and edits.forced_token_ids is not None:
        forced = edits.forced_token_ids[:, None]
        is_forced = _listed(forced, forced >= 0, logits.shape[1])
        logits.masked_fill_(is_in_vocab(forced, logits.shape[1]), EXCLUDED).masked_fill_(is_forced, 0.0)
    return logits


def moved_ids(inputs: StepInputs, layout: Layout, vocab_size: int) -> Tensor | None:  # [num_rows, length] int64
    """Return the moved ids of each row, in order; some twice. Unused places have the id `vocab_size`."""
    edits, slots, lists = inputs.edits, layout.slots, []
    for name in ("allowed", "bias"):
        counts, ids = getattr(edits, f"{name}_counts", None), getattr(edits, f"{name}_token_ids", None)
        if counts is not None and ids is not None:
            lists.append(_columns(ids[slots], _is_counted(ids[slots], counts[slots]), vocab_size))
    if edits is not None and edits.forced_token_ids is not None:
        lists.append(_columns(edits.forced_token_ids, edits.forced_token_ids >= 0, vocab_size)[:, None])
    return torch.cat(lists, 1) if lists else None


def _bits(masks: Bitmasks, vocab_size: int) -> Tensor:  # [num_rows, vocab_size] bool
    shifts = torch.arange(32, dtype=torch.int32, device=masks.device)
    return ((masks[:, :, None] >> shifts) & 1).flatten(1)[:, :vocab_size].bool()


def _listed(listed_ids: AnyRowLists, is_listed: RowListFlags, vocab_size: int) -> Tensor:  # [num_rows, vocab_size] bool
    """Return which tokens the lists have."""
    found = listed_ids.new_zeros((len(listed_ids), vocab_size + 1), dtype=torch.bool)
    return found.scatter_(1, _columns(listed_ids, is_listed, vocab_size), True)[:, :vocab_size]


def _columns(listed_ids: AnyRowLists, is_listed: RowListFlags, vocab_size: int) -> Tensor:  # [num_rows, length] int64
    """Return where to write; one column behind the vocabulary takes what is not listed."""
    return torch.where(is_listed & is_in_vocab(listed_ids, vocab_size), listed_ids.long(), vocab_size)


def _is_counted(listed_ids: AnyRowLists, num_listed: RowIds) -> Tensor:  # [num_rows, length] bool
    """Whether a place is among the first `num_listed` of its list."""
    return torch.arange(listed_ids.shape[1], device=listed_ids.device) < num_listed[:, None]


def _apply_lists(edited: WrittenRows, edits: TokenEdits, layout: Layout) -> None:
    """Apply allowed ids, logit bias, and stop tokens of outputs that are too short."""
    slots, vocab_size = layout.slots, edited.shape[1]
    if edits.allowed_counts is not None and edits.allowed_token_ids is not None:
        ids, counts = edits.allowed_token_ids[slots], edits.allowed_counts[slots]
        allowed = _listed(ids, _is_counted(ids, counts), vocab_size)
        edited.masked_fill_(~allowed & (counts > 0)[:, None], EXCLUDED)
    if edits.bias_counts is not None and edits.bias_token_ids is not None and edits.bias_values is not None:
        ids = edits.bias_token_ids[slots]
        columns = _columns(ids, _is_counted(ids, edits.bias_counts[slots]), vocab_size)
        biases = edited.new_zeros((len(edited), vocab_size + 1)).scatter_add_(1, columns, edits.bias_values[slots])
        edited += biases[:, :vocab_size]
    if edits.stop_counts is not None and edits.stop_token_ids is not None and edits.min_lengths is not None:
        ids = edits.stop_token_ids[slots]
        is_short = layout.positions < edits.min_lengths[slots]
        stops = _is_counted(ids, edits.stop_counts[slots]) & is_short[:, None]
        edited.masked_fill_(_listed(ids, stops, vocab_size), EXCLUDED)


def _penalise(edited: WrittenRows, penalties: Penalties, layout: Layout) -> None:
    """Penalise by vLLM's operations in its order. A row also counts the drafts before it."""
    slots, vocab_size = layout.slots, edited.shape[1]
    before = layout.drafts_before
    counts = penalties.output_counts.new_zeros((len(edited), vocab_size + 1))
    counts.scatter_add_(1, _columns(before, before >= 0, vocab_size), torch.ones_like(before, dtype=counts.dtype))
    counts = counts[:, :vocab_size] + penalties.output_counts[slots]
    is_repeated = _bits(penalties.prompt_mask[slots], vocab_size) | (counts > 0)
    scale = torch.where(is_repeated, penalties.repetition[slots][:, None], 1.0)
    edited *= torch.where(edited > 0, 1 / scale, scale)
    edited -= penalties.frequency[slots][:, None] * counts
    edited -= torch.where(counts > 0, penalties.presence[slots][:, None], 0.0)


def _exclude_bad_words(edited: WrittenRows, words: BadWords, inputs: StepInputs, layout: Layout) -> None:
    """Exclude the last token of each word whose other tokens end the row's text."""
    slots = layout.slots
    ids, offsets = words.word_ids[slots].long(), words.offsets[slots].long()
    if min(ids.shape[1], words.text.shape[1]) == 0:  # no word, or a text of which nothing is known
        return
    is_inside = (offsets[:, :-1] >= 0) & (offsets[:, 1:] <= ids.shape[1])
    lengths = offsets.diff() * (_is_counted(offsets[:, 1:], words.counts[slots]) & is_inside)
    longest = int(lengths.amax()) if lengths.numel() else 0
    last_tokens, are_due = [], []
    for word in range(offsets.shape[1] - 1):
        begin, length = offsets[:, word], lengths[:, word]
        last = (begin + length - 1).clamp(0, ids.shape[1] - 1)
        is_due = (length > 0) & _ends_in(words, begin, length - 1, longest, ids, inputs, layout)
        last_tokens.append(ids.gather(1, last[:, None])[:, 0])
        are_due.append(is_due)
    if last_tokens:
        excluded = _listed(torch.stack(last_tokens, 1), torch.stack(are_due, 1), edited.shape[1])
        edited.masked_fill_(excluded, EXCLUDED)


def _ends_in(
    words: BadWords,
    begin: RowInts,
    length: RowInts,
    longest: int,
    row_ids: RowLists,
    inputs: StepInputs,
    layout: Layout,
) -> Tensor:  # [num_rows] bool
    """Whether the row's output ends in these row_ids. Drafts before the row belong to it, the prompt does not."""
    steps = torch.arange(longest, device=row_ids.device)
    due = row_ids.gather(1, (begin[:, None] + steps).clamp(0, row_ids.shape[1] - 1))
    places = layout.positions[:, None] - length[:, None] + steps
    in_drafts = places - inputs.positions[layout.owners][:, None]
    seen = words.text[layout.slots[:, None], places.clamp(0, words.text.shape[1] - 1)].long()
    if layout.max_spec_len > 0:
        of_drafts = layout.drafts_before.gather(1, in_drafts.clamp(0, layout.max_spec_len - 1))
        seen = torch.where(in_drafts >= 0, of_drafts, seen)
    has_room = layout.positions - length >= words.starts[layout.slots]
    return has_room & ((seen == due) | (steps >= length[:, None])).all(1)
