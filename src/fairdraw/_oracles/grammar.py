"""The grammar contract, executable: bit by bit, and a fork of each grammar over its drafts."""

import torch
from torch import Tensor

from fairdraw._core.tensor_types import AnyLogitRows
from fairdraw.contracts import BITS_PER_WORD, BitmaskBatch, GrammarBatch, GrammarRequest, num_words

RowIds = Tensor  # [num_indices] int64
Words = Tensor  # [num_indices, num_words] int32
TokenIds = Tensor  # [num_ids] int64
Allowed = Tensor  # [num_indices, vocab_size] bool

ALL = -1
"""A word that allows every token."""


class GrammarOracle:
    """The specification as small overridable steps; a mutant overrides exactly one of them."""

    name = "oracle"

    def apply_bitmask(self, batch: BitmaskBatch) -> Tensor:  # [num_rows, vocab_size] as the logits
        """The masked logits, in new memory."""
        logits, rows = batch.logits.clone(memory_format=torch.contiguous_format), self.rows(batch)
        return self.write(logits, rows, self.allowed(self.words(batch, rows), batch.vocab_size))

    def rows(self, batch: BitmaskBatch) -> RowIds:
        """The rows that are masked."""
        return batch.rows

    def words(self, batch: BitmaskBatch, rows: RowIds) -> Words:
        """The bitmask of each of them."""
        return batch.bitmask[rows]

    def allowed(self, words: Words, vocab_size: int) -> Allowed:
        """The bits; columns beyond the words are left alone."""
        ids = torch.arange(min(vocab_size, words.shape[1] * BITS_PER_WORD), device=words.device)
        bits = self.bits(words, ids)
        return torch.nn.functional.pad(bits, (0, vocab_size - ids.numel()), value=self.beyond())

    def bits(self, words: Words, ids: TokenIds) -> Tensor:  # [num_indices, num_ids] bool
        """Bit `i % 32` of word `i // 32`."""
        return ((words[:, ids // BITS_PER_WORD] >> (ids % BITS_PER_WORD)) & 1).bool()

    def beyond(self) -> bool:
        """Whether tokens that the bitmask does not know are allowed."""
        return True

    def write(self, logits: AnyLogitRows, rows: RowIds, allowed: Allowed) -> AnyLogitRows:
        """-inf where a token is forbidden; nothing else is touched."""
        logits[rows] = logits[rows].masked_fill(~allowed, -torch.inf)
        return logits

    def mask_drafts(self, batch: GrammarBatch) -> Tensor:  # [num_rows, vocab_size] as the logits
        """The masked rows of a step."""
        return self.apply_bitmask(BitmaskBatch(batch.logits, self.fork(batch).to(batch.device)))

    def fork(self, batch: GrammarBatch) -> Tensor:  # [num_rows, num_words] int32
        """The bitmask of every row: all ones for requests without a grammar."""
        width = num_words(batch.vocab_size)
        return torch.cat([self.masks(request, width) for request in batch.requests])

    def masks(self, request: GrammarRequest, width: int) -> Tensor:  # [num_draft_tokens + 1, num_words] int32
        """The bitmasks of one request: row `i` is what its grammar allows after `i` drafts.

        Behind a draft that the grammar forbids, and behind one that ends the text, everything is allowed.
        """
        grammar, drafts = request.grammar, request.draft_token_ids
        masks = torch.full((len(drafts) + 1, width), ALL, dtype=torch.int32)
        if grammar is None:
            return masks
        accepted = 0
        for place in range(len(drafts) + 1):
            if grammar.is_terminated:
                break
            grammar.fill(masks[place])
            if place == len(drafts) or not grammar.accept(drafts[place]):
                break
            accepted += 1
        self.take_back(request, accepted)
        return masks

    def take_back(self, request: GrammarRequest, num_tokens: int) -> None:
        """Leave the grammar as it was."""
        if request.grammar is not None and num_tokens:
            request.grammar.rollback(num_tokens)
