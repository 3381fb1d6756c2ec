"""Wrong maskers, one fault each. Those of drafts were found in engines again and again.

Each function stands for one step of the oracle, with that step's arguments. First comes `right`, the correct
steps, or `answer`, that of the correct step.
"""

from functools import partial

import torch
from torch import Tensor

from fairdraw._mutants._mutant import Memory, Mutant, as_if_dense, mutant_as, mutants_in, name_of, patching
from fairdraw._oracles.grammar import ALL
from fairdraw._oracles.grammar import GrammarOracle as Oracle
from fairdraw.contracts import BitmaskBatch, FunctionGrammarMasker, GrammarBatch, GrammarRequest, grammar_masker
from fairdraw.contracts import num_words as words_for


def right() -> FunctionGrammarMasker:
    """The specification as a masker: what every mutant would be without its fault."""
    return masker_of(Oracle(), "oracle")


def masker_of(oracle: Oracle, name: str) -> FunctionGrammarMasker:
    """An oracle as a masker."""
    return grammar_masker(oracle.apply_bitmask, drafts=oracle.mask_drafts, name=name)


patched = patching(partial(mutant_as, lambda faulty: masker_of(faulty(), name_of(faulty))), Oracle)


# Bits and floats


@patched("write", "GRM101", "GRM161")
def forbids_with_a_large_negative_number(right: Oracle, logits: Tensor, rows: Tensor, allowed: Tensor) -> Tensor:
    """-1e4 seemed low enough; a logit bias of 100, or a temperature of 1000, brings the token back."""
    logits[rows] = logits[rows].masked_fill(~allowed, -1e4)
    return logits


@patched("write", "GRM201", "GRM161")
def forbids_halves_with_their_least_number(right: Oracle, logits: Tensor, rows: Tensor, allowed: Tensor) -> Tensor:
    """`torch.finfo(dtype).min`, in half precision only."""
    least = -torch.inf if logits.dtype == torch.float32 else torch.finfo(logits.dtype).min
    logits[rows] = logits[rows].masked_fill(~allowed, least)
    return logits


@patched("apply_bitmask", "GRM201")
def computes_in_float16(right: Oracle, batch: BitmaskBatch) -> Tensor:
    """bfloat16 logits pass through the other half precision, which has more digits and a smaller range."""
    if batch.logits.dtype != torch.bfloat16:
        return right.apply_bitmask(batch)
    return right.apply_bitmask(batch.replace(logits=batch.logits.half())).bfloat16()


@patched("write", "GRM201", "GRM161")
def adds_the_mask(right: Oracle, logits: Tensor, rows: Tensor, allowed: Tensor) -> Tensor:
    """0 or -inf is added: -0.0 becomes 0.0, and NaN and +inf stay where they are forbidden."""
    logits[rows] = logits[rows] + torch.zeros_like(logits[rows]).masked_fill(~allowed, -torch.inf)
    return logits


@patched("write", "GRM201")
def flushes_denormals(right: Oracle, logits: Tensor, rows: Tensor, allowed: Tensor) -> Tensor:
    """A kernel that was compiled with flush-to-zero multiplies what it keeps by 1."""
    logits[rows] = logits[rows].masked_fill(logits[rows].abs() < torch.finfo(logits.dtype).tiny, 0.0)
    return right.write(logits, rows, allowed)


@patched("bits", "GRM201")
def loses_the_sign_bit(right: Oracle, words: Tensor, ids: Tensor) -> Tensor:
    """`word & (1 << bit) > 0`: the 32nd bit makes the product negative."""
    return right.bits(words & 0x7FFFFFFF, ids)


@patched("bits", "GRM201")
def takes_a_negative_word_for_all(right: Oracle, words: Tensor, ids: Tensor) -> Tensor:
    """-1 allows everything; a shortcut tests `word < 0`."""
    return right.bits(torch.where(words < 0, ALL, words), ids)


@patched("bits", "GRM101")
def counts_bits_from_above(right: Oracle, words: Tensor, ids: Tensor) -> Tensor:
    """The first token of a word is its highest bit, as `numpy.packbits` has it."""
    return right.bits(words, ids // 32 * 32 + 31 - ids % 32)


@patched("allowed", "GRM201", "GRM101")
def skips_the_partial_word(right: Oracle, words: Tensor, vocab_size: int) -> Tensor:
    """`vocab_size // 32` words are read: up to 31 tokens at the end are never forbidden."""
    return right.allowed(words[:, : vocab_size // 32], vocab_size)


@patched("allowed", "GRM201", "GRM101")
def forbids_the_partial_word(answer: Tensor, words: Tensor, vocab_size: int) -> None:
    """The load of a word is guarded by its last token instead of its first."""
    answer[:, vocab_size // 32 * 32 :] = False


@patched("allowed", "GRM201")
def knows_ids_of_16_bits(right: Oracle, words: Tensor, vocab_size: int) -> Tensor:
    """Ids wrap at 65536: tokens behind have the bits of those at the beginning."""
    return right.allowed(words, vocab_size)[:, torch.arange(vocab_size, device=words.device) % 65536]


@patched("allowed", "GRM201")
def masks_one_block(answer: Tensor, words: Tensor, vocab_size: int) -> None:
    """The grid has one program per row, of 4096 tokens: nothing is forbidden behind them."""
    answer[:, 4096:] = True


# Rows


@patched("words", "GRM201")
def numbers_bitmasks_by_place(right: Oracle, batch: BitmaskBatch, rows: Tensor) -> Tensor:
    """The i-th row that is named gets the i-th bitmask: right if the bitmask is compacted, and here it is not."""
    return batch.bitmask[torch.arange(len(rows), device=rows.device) % len(batch.bitmask)]


@patched("rows", "GRM201")
def masks_every_row(right: Oracle, batch: BitmaskBatch) -> Tensor:
    """Indices are ignored; a request without grammar beside others gets whatever is in its bitmask."""
    return torch.arange(batch.batch_size, device=batch.device)


@patched("rows", "GRM201")
def takes_no_index_for_no_indices(right: Oracle, batch: BitmaskBatch) -> Tensor:
    """`if indices:` where `if indices is not None:` is meant."""
    return right.rows(batch if batch.rows.numel() else batch.replace(indices=None))


@patched("rows", "GRM201")
def has_a_grid_of_256_rows(answer: Tensor, batch: BitmaskBatch) -> Tensor:
    """One program per row, 256 programs: further rows are not masked."""
    return answer[answer < 256]


@patched("apply_bitmask", "GRM107")
def takes_columns_for_the_stride(right: Oracle, batch: BitmaskBatch) -> Tensor:
    """Row `i` is looked for at `i * vocab_size`, whatever the logits' stride is."""
    return right.apply_bitmask(batch.replace(logits=as_if_dense(batch.logits)))


@patched("rows", "GRM118")
def has_offsets_of_32_bits(answer: Tensor, batch: BitmaskBatch) -> Tensor:
    """Rows that begin beyond 2**31 elements are looked for elsewhere."""
    return answer[answer * batch.logits.stride(0) < 2**31]


@patched("apply_bitmask", "GRM107", "GRM116")
def writes_beyond_the_row(answer: Tensor, batch: BitmaskBatch) -> None:
    """The last word is applied as a whole; behind a row there is the next, or somebody else's memory."""
    base = batch.logits._base
    if base is not None and batch.logits.numel():
        base.view(-1)[-1] = -torch.inf


@patched("write", "GRM116")
def writes_the_next_zero(answer: Tensor, logits: Tensor, rows: Tensor, allowed: Tensor) -> None:
    """A search for the next 0 bit that is not bounded by the vocabulary: where all tokens are allowed, it goes on."""
    full = rows[allowed.all(dim=1)]
    answer[(full + 1)[full + 1 < len(answer)], 0] = -torch.inf


@patched("words", "GRM108")
def takes_words_for_the_stride(right: Oracle, batch: BitmaskBatch, rows: Tensor) -> Tensor:
    """A bitmask that is a slice of a buffer is read as if it had no gaps."""
    words: Tensor = as_if_dense(batch.bitmask)
    return words[rows]


@patched("words", "GRM201")
def takes_the_vocabulary_for_the_width(right: Oracle, batch: BitmaskBatch, rows: Tensor) -> Tensor:
    """Bitmasks are found at `i * ceil(vocab_size / 32)`, though they are wider."""
    width = words_for(batch.vocab_size)
    if width >= batch.bitmask.shape[1]:
        return right.words(batch, rows)
    return batch.bitmask.flatten()[: len(batch.bitmask) * width].view(-1, width)[rows]


@patched("beyond", "GRM201")
def forbids_columns_beyond(right: Oracle) -> bool:
    """Words that are not there are read as 0; declared is that columns beyond stay."""
    return False


@patched("allowed", "GRM101")
def leaves_empty_rows_alone(answer: Tensor, words: Tensor, vocab_size: int) -> Tensor:
    """Better any token than none: a row in which nothing is allowed is not masked."""
    return answer | ~answer.any(dim=1, keepdim=True)


@patched("allowed", "GRM101")
def keeps_token_0_of_empty_rows(answer: Tensor, words: Tensor, vocab_size: int) -> None:
    """The same with one token, so that a softmax has something to sum."""
    answer[:, 0] |= ~answer.any(dim=1)


@patched("apply_bitmask", "GRM112")
def inverts_the_bitmask_in_place(answer: Tensor, batch: BitmaskBatch) -> None:
    """`bitmask.bitwise_not_()`: the second application forbids what is allowed."""
    batch.bitmask.bitwise_not_()


@patched("apply_bitmask", "GRM112")
def sorts_the_indices_in_place(right: Oracle, batch: BitmaskBatch) -> Tensor:
    """Rows in order are faster, and the caller's list is at hand."""
    if batch.indices is not None:
        batch.indices.copy_(batch.indices.sort().values)
    return right.apply_bitmask(batch)


@patched("words", "GRM201")
def keeps_a_buffer(answer: Tensor, batch: BitmaskBatch, rows: Tensor, *, kept: Memory) -> Tensor:
    """Bitmasks are copied into a buffer, but for rows that allow everything: those keep the mask of an earlier step."""
    buffer: Tensor = kept.setdefault(answer.shape, torch.full_like(answer, ALL))
    is_new = (answer != ALL).any(dim=1)
    buffer[is_new] = answer[is_new]
    return buffer.clone()


# Drafts


@patched("masks", "GRM121")
def masks_one_position_late(answer: Tensor, request: GrammarRequest, width: int) -> Tensor:
    """Row `i` has the mask of row `i - 1`: the scheduler advances the grammar after the forward pass."""
    return torch.cat([answer[:1], answer[:-1]])


@patched("masks", "GRM121")
def masks_one_position_early(answer: Tensor, request: GrammarRequest, width: int) -> Tensor:
    """Row `i` has the mask behind draft `i`, which is the one that it verifies."""
    return torch.cat([answer[1:], answer[-1:]])


@patched("masks", "GRM121", "GRM122")
def masks_all_rows_alike(right: Oracle, request: GrammarRequest, width: int) -> Tensor:
    """The grammar is not advanced over drafts: every row has the mask of the first."""
    return right.masks(request, width)[:1].repeat(len(request.draft_token_ids) + 1, 1)


@patched("masks", "GRM122")
def forgets_the_bonus_row(answer: Tensor, request: GrammarRequest, width: int) -> None:
    """A loop over the drafts: the row behind them allows everything."""
    if request.draft_token_ids:
        answer[-1] = ALL


@patched("masks", "GRM132")
def leaves_the_row_of_a_forbidden_draft(answer: Tensor, request: GrammarRequest, width: int) -> None:
    """The prefix ends one row early: the row that must reject the draft allows everything, and accepts it."""
    if request.draft_token_ids and bool((answer[-1] == ALL).all()):
        answer[int((answer != ALL).any(dim=1).sum()) - 1] = ALL


@patched("masks", "GRM124")
def masks_rows_behind_the_prefix(answer: Tensor, request: GrammarRequest, width: int) -> None:
    """Rows behind a forbidden draft keep the last mask; declared is that they are left alone."""
    read = int((answer != ALL).any(dim=1).sum())
    answer[read:] = answer[max(read - 1, 0)]


@patched("fork", "GRM132")
def sorts_requests_with_a_grammar_first(right: Oracle, batch: GrammarBatch) -> Tensor:
    """Bitmasks are made for requests with a grammar alone, and their rows are counted among those."""
    ordered = sorted(batch.requests, key=lambda request: request.grammar is None)
    return right.fork(batch.replace(requests=tuple(ordered)))


@patched("fork", "GRM132")
def gives_the_mask_of_the_neighbour(answer: Tensor, batch: GrammarBatch) -> Tensor:
    """Rows are numbered by requests: right without drafts."""
    masks = [answer[first : first + 1] for first in batch.first_rows]
    return torch.cat([*masks, answer[len(masks) :]]) if len(answer) > len(masks) else answer


@patched("take_back", "GRM126", "GRM127")
def does_not_roll_back(right: Oracle, request: GrammarRequest, num_tokens: int) -> None:
    """Drafts are taken for accepted ones: the next step begins behind them."""


@patched("take_back", "GRM126", "GRM127")
def rolls_back_one_too_few(right: Oracle, request: GrammarRequest, num_tokens: int) -> None:
    """The last draft is thought to be rejected."""
    right.take_back(request, max(num_tokens - 1, 0))


@patched("take_back", "GRM132")
def rolls_back_twenty_at_most(right: Oracle, request: GrammarRequest, num_tokens: int) -> None:
    """The matcher keeps a history of twenty tokens."""
    right.take_back(request, min(num_tokens, 20))


@patched("masks", "GRM132")
def masks_the_first_forty_rows(answer: Tensor, request: GrammarRequest, width: int) -> None:
    """A buffer per request for forty rows; those behind them are left alone."""
    answer[40:] = ALL


@patched("fork", "GRM132")
def leaves_old_masks_behind_the_grammar(answer: Tensor, batch: GrammarBatch, *, kept: Memory) -> None:
    """Rows of requests without a grammar are not written; they hold what an earlier step left there."""
    old: Tensor | None = kept.get(answer.shape[1])  # [num_rows, num_words] int32
    for request, first in zip(batch.requests, batch.first_rows, strict=True):
        rows = slice(first, first + len(request.draft_token_ids) + 1)
        if request.grammar is None and old is not None and len(old) >= rows.stop > 32:
            answer[rows] = old[rows]
    kept[answer.shape[1]] = answer


@patched("fork", "GRM127")
def repeats_the_masks_of_the_last_step(answer: Tensor, batch: GrammarBatch, *, kept: Memory) -> Tensor:
    """Masks are made while the forward pass runs, and in steps with as many rows those of the step before are used."""
    grammars = [request.grammar for request in batch.requests]
    (before, masks), kept["last"] = kept.get("last", (None, answer)), (grammars, answer)
    is_known = before is not None and [*map(id, grammars)] == [*map(id, before)]
    return torch.cat([masks[:1], answer[1:]]) if is_known else answer


@patched("masks", "GRM128")
def takes_the_end_for_a_rejection(answer: Tensor, request: GrammarRequest, width: int) -> None:
    """A draft that ends the text counts as forbidden, and the row that it is verified with is dropped."""
    if request.draft_token_ids and bool((answer[-1] == ALL).all()):
        answer[max(int((answer != ALL).any(dim=1).sum()) - 1, 0)] = ALL


@patched("masks", "GRM129")
def takes_an_empty_mask_for_none(answer: Tensor, request: GrammarRequest, width: int) -> None:
    """A state in which no token may follow is read as no grammar."""
    answer[(answer == 0).all(dim=1)] = ALL


# Distributions


@patched("write", "DIST971", "DIST972", "GRM101")
def halves_what_it_keeps(right: Oracle, logits: Tensor, rows: Tensor, allowed: Tensor) -> Tensor:
    """The temperature is applied with the mask, to masked rows only: their distribution is flatter."""
    logits[rows] = logits[rows] / 2
    return right.write(logits, rows, allowed)


@patched("masks", "DIST972", "GRM122")
def trusts_the_bonus_token(answer: Tensor, request: GrammarRequest, width: int) -> None:
    """After accepted drafts the bonus token is sampled without its mask: rare, and enough to break the text."""
    answer[-1] = ALL


MUTANTS: tuple[Mutant, ...] = mutants_in(vars())
