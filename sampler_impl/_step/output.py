"""What a step returns of a request: its accepted draft tokens, and the token of its first rejected row."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# (A kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def count_accepted(accepted_ptr, request, POSITIONS: tl.constexpr):  # [max_rows] int32
    """Return how many drafts of a request are accepted before the first that is not."""
    offsets = tl.arange(0, POSITIONS)
    is_draft = offsets + 1 < request.count
    # Another program wrote them a moment ago: read what it wrote, not what this multiprocessor remembers.
    accepted = tl.load(accepted_ptr + request.first + offsets, mask=is_draft, other=0, cache_modifier=".cg")
    return tl.min(tl.where(accepted != 0, POSITIONS, offsets))


@triton.jit
def write_tokens(memory, drafts, request, num_accepted, token, sizes, POSITIONS: tl.constexpr):
    """Write the tokens of a request, -1 behind the last. Takes `token`: that of its first rejected row."""
    req_idx, first, count = request
    output, row_logprobs_ptr = memory.output, memory.results.row_logprobs_ptr
    offsets = tl.arange(0, POSITIONS)
    # Where two requests lay claim to a row, only their ids are certain to be of the vocabulary.
    token = tl.where((count <= 0) | ((token >= 0) & (token < sizes.vocab_size)), token, 0)
    is_last = offsets == num_accepted
    drafted = tl.full((POSITIONS,), -1, tl.int32)
    if drafts.draft_token_ids_ptr is not None:
        drafted = tl.load(drafts.draft_token_ids_ptr + first + offsets, mask=offsets + 1 < count, other=-1).to(tl.int32)
    tokens = tl.where(offsets < num_accepted, drafted, tl.where(is_last, token, -1))
    width = sizes.max_spec_len + 1
    is_written = offsets < width
    tl.store(output.token_ids_ptr + req_idx.to(tl.int64) * width + offsets, tokens, mask=is_written)
    tl.store(output.num_tokens_ptr + req_idx, tl.where(count > 0, num_accepted + 1, 0))
    if row_logprobs_ptr is not None:
        which = 2 * (first + offsets) + is_last.to(tl.int32)
        has_token = (offsets <= num_accepted) & (offsets < count)
        of_token = tl.load(row_logprobs_ptr + which, mask=has_token, other=0.0, cache_modifier=".cg")
        tl.store(output.logprobs_ptr + req_idx.to(tl.int64) * width + offsets, of_token, mask=is_written)
