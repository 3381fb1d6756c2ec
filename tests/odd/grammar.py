"""Maskers that are correct and unlike the specification. The checks must pass every one of them."""

import torch
from torch import Tensor

from fairdraw import contracts
from fairdraw._oracles.grammar import GrammarOracle
from fairdraw.contracts import BitmaskBatch, Capability, FunctionGrammarMasker, GrammarRequest, grammar_masker


def _in_place(batch: BitmaskBatch) -> Tensor:  # [num_rows, vocab_size] as the logits
    """The tensor that was given, written."""
    return batch.logits.copy_(GrammarOracle().apply_bitmask(batch))


def _column_by_column(batch: BitmaskBatch) -> Tensor:  # [num_rows, vocab_size] as the logits
    """An answer with other strides."""
    return GrammarOracle().apply_bitmask(batch).t().contiguous().t()


def _through_float32(batch: BitmaskBatch) -> Tensor:  # [num_rows, vocab_size] as the logits
    """Half precision is widened and narrowed again: exact, but for the payload of NaN."""
    return GrammarOracle().apply_bitmask(batch.replace(logits=batch.logits.float())).to(batch.logits.dtype)


def _slice_of_wider(batch: BitmaskBatch) -> Tensor:  # [num_rows, vocab_size] as the logits
    """A part of a padded buffer."""
    num_rows, vocab_size = batch.logits.shape
    return batch.logits.new_zeros(num_rows, vocab_size + 7)[:, :vocab_size].copy_(GrammarOracle().apply_bitmask(batch))


def _from_the_last_row(batch: BitmaskBatch) -> Tensor:  # [num_rows, vocab_size] as the logits
    """Rows in another order, each masked alone."""
    masked = GrammarOracle().apply_bitmask(batch)
    return torch.stack([masked[row] for row in reversed(range(len(masked)))]).flip(0) if len(masked) else masked


class ForbidsBeyond(GrammarOracle):
    def beyond(self) -> bool:
        return False


class KeepsTheLastMask(GrammarOracle):
    """Rows that nobody reads get the mask of the last that is read, as vLLM 0.33.0 does where a draft is refused."""

    def masks(self, request: GrammarRequest, width: int) -> Tensor:  # [num_draft_tokens + 1, num_words] int32
        masks = super().masks(request, width)
        read = int((masks != -1).any(dim=1).sum())
        masks[read:] = masks[max(read - 1, 0)].clone()
        return masks


class CopiesBeforeItWalks(GrammarOracle):
    """Each row has a walk of its own: the grammar is advanced by its prefix, and rolled back at once."""

    def masks(self, request: GrammarRequest, width: int) -> Tensor:  # [num_draft_tokens + 1, num_words] int32
        return torch.cat([self._row(request, place, width) for place in range(len(request.draft_token_ids) + 1)])

    def _row(self, request: GrammarRequest, place: int, width: int) -> Tensor:  # [1, num_words] int32
        grammar, prefix = request.grammar, request.draft_token_ids[:place]
        row = torch.full((1, width), -1, dtype=torch.int32)
        if grammar is None:
            return row
        accepted = 0
        while accepted < place and not grammar.is_terminated and grammar.accept(prefix[accepted]):
            accepted += 1
        if accepted == place and not grammar.is_terminated:
            grammar.fill(row[0])
        self.take_back(request, accepted)
        return row


def _drafts_in_place(batch: contracts.GrammarBatch) -> Tensor:  # [num_rows, vocab_size] as the logits
    return batch.logits.copy_(CopiesBeforeItWalks().mask_drafts(batch))


_forbids, _keeps = ForbidsBeyond(), KeepsTheLastMask()

ODD: tuple[FunctionGrammarMasker, ...] = (
    grammar_masker(_in_place, drafts=_drafts_in_place, name="in place, a walk per row"),
    grammar_masker(_column_by_column, name="column by column"),
    grammar_masker(_through_float32, name="through float32"),
    grammar_masker(_slice_of_wider, name="a slice of a wider tensor"),
    grammar_masker(_from_the_last_row, name="from the last row"),
    grammar_masker(_forbids.apply_bitmask, columns_beyond="forbidden", name="forbids columns beyond"),
    grammar_masker(
        _keeps.apply_bitmask,
        drafts=_keeps.mask_drafts,
        name="keeps the last mask",
        unsupported={Capability.UNREACHED_ROWS.value: "it masks them by the last mask"},
    ),
)
"""Each is what a real engine does, or could do, without being wrong."""
