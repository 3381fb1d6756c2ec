"""The PyTorch backend of `rejection_counter`: the production path on a CPU, and the kernels' peer in tests.

The same counters give the same uniforms as in the kernels, and the same distributions decide. Only rounding differs: a
row is summed in float64 instead of by tiles in float32, and the inverse CDF has one level instead of two. The two
disagree only where a uniform is within some 2**-20, relative, of an edge between two outcomes; tests hold them to that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._shared.draws import VERIFY_STREAM, invert_cdf, philox_uniforms
from .._shared.grid import Grid, clamped_column, is_in_vocab, remove_entries

if TYPE_CHECKING:
    from .._shared.tensors import (
        Int64s,
        LogitRows,
        OutputUniforms,
        RejectedRows,
        RequestInts,
        RowFloats,
        TokenRows,
        Uniforms,
    )
    from .step import CounterStep

MAX_SCALE = 65536.0
LOG2_E = 1.4426950408889634
EMPTY = 2.0**-60


def verify(step: CounterStep) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    """Verify a step without a loop over requests, positions or vocabulary. Waits for the device, if it has one."""
    output_token_ids = step.draft_token_ids.new_full((step.batch_size, step.max_spec_len + 1), -1, dtype=torch.int32)
    if step.batch_size == 0:
        return output_token_ids
    grid = Grid(pad(step.cu_num_draft_tokens, (1, 0)), step.num_tokens, step.max_spec_len)
    owners = grid.owners
    positions = step.positions[:, None] + torch.arange(step.max_spec_len + 1, device=step.device)
    accept_uniforms, draw_uniforms = philox_uniforms(step.seeds[:, None], positions, VERIFY_STREAM)
    rows = torch.arange(step.num_tokens, device=step.device)
    if step.bonus_token_ids is None:
        rows += owners
    target_probs = _target_probs(step, rows, owners)
    accepted = _accepted(step, target_probs, rows, owners, accept_uniforms[owners, grid.places])
    num_accepted = grid.num_accepted(accepted)
    grid.write(output_token_ids, num_accepted, step.draft_token_ids)
    last = _last_tokens(step, grid, target_probs, num_accepted, draw_uniforms)
    return output_token_ids.scatter_(1, num_accepted[:, None], last[:, None].to(torch.int32))


def _scales(step: CounterStep) -> Tensor:  # [batch_size] float32
    """Return what logits are multiplied by to be exponents of 2."""
    return (LOG2_E / step.temperature).clamp(max=MAX_SCALE)


def _probs(logits: LogitRows, scales: RowFloats) -> Tensor:  # [num_rows, vocab_size] float32
    """Return the softmax of each row; zeros in an invalid row (NaN, an infinite logit, or nothing but -inf)."""
    exponents = logits.to(torch.float32) * scales[:, None]
    terms = exponents.sub_(exponents.amax(-1, keepdim=True).ceil()).exp2_()
    sums = terms.sum(-1, dtype=torch.float64)
    return (terms / sums.to(torch.float32)[:, None]).masked_fill_(~(sums > 0)[:, None], 0.0)


def _target_probs(step: CounterStep, row_ids: Int64s, owners: Int64s) -> Tensor:  # [num_tokens, vocab_size] float32
    logits = step.logits if len(row_ids) == step.num_rows else step.logits[row_ids]
    return _probs(logits, _scales(step)[owners])


def _draft_probs(step: CounterStep, row_ids: Int64s, owners: Int64s) -> Tensor:  # [...] float32
    """Return the draft distribution of these rows, dense; NaN where it is unknown."""
    if step.draft_probs is not None:
        return step.draft_probs[row_ids]
    assert step.draft_logits is not None
    scales = _scales(step)[owners]
    if step.draft_logsumexp is None:
        return _probs(step.draft_logits[row_ids], scales)
    offsets = step.draft_logsumexp[row_ids] * LOG2_E
    return (step.draft_logits[row_ids].to(torch.float32) * scales[:, None] - offsets[:, None]).exp2_()


def _accepted(
    step: CounterStep, target_probs: TokenRows, row_ids: Int64s, owners: Int64s, uniforms: Uniforms
) -> Tensor:  # [num_tokens] bool
    """Accept each token on its own; a greedy request's must be the argmax."""
    ids = clamped_column(step.draft_token_ids, step.vocab_size)
    ratios = target_probs.gather(-1, ids).squeeze(-1)
    accepted = ratios > 0
    if step.draft_probs is not None or step.draft_logits is not None:
        drafts = _draft_probs(step, torch.arange(step.num_tokens, device=step.device), owners)
        drafts = drafts.gather(-1, ids).squeeze(-1)
        accepted &= drafts > 0
        ratios = ratios / drafts
    accepted &= ratios >= uniforms
    greedy = (step.temperature == 0)[owners]
    if greedy.any():
        accepted = torch.where(greedy, step.logits[row_ids].argmax(-1) == step.draft_token_ids, accepted)
    return accepted & is_in_vocab(step.draft_token_ids, step.vocab_size)


def _last_tokens(
    step: CounterStep, grid: Grid, target_probs: TokenRows, num_accepted: RequestInts, draw_uniforms: OutputUniforms
) -> Tensor:  # [batch_size] int64
    """Return recovered and bonus tokens: after the accepted ones each request has exactly one of them."""
    complete = num_accepted == grid.counts
    greedy = step.temperature == 0
    draft_rows = grid.starts + num_accepted
    has_bonus_rows = step.bonus_token_ids is None
    rows = draft_rows + has_bonus_rows * torch.arange(step.batch_size, device=step.device)
    tokens = torch.zeros_like(num_accepted)
    if step.bonus_token_ids is not None:
        tokens = torch.where(complete, step.bonus_token_ids[:, 0].long(), tokens)
    from_row = complete & has_bonus_rows
    by_argmax = (greedy & (~complete | from_row)).nonzero()[:, 0]
    tokens[by_argmax] = step.logits[rows[by_argmax]].argmax(-1)
    uniforms = draw_uniforms.gather(1, num_accepted[:, None])[:, 0]
    bonus = (~greedy & from_row).nonzero()[:, 0]
    tokens[bonus] = invert_cdf(_target_probs(step, rows[bonus], bonus), uniforms[bonus])
    rejected = (~greedy & ~complete).nonzero()[:, 0]
    weights = _residual(step, target_probs[draft_rows[rejected]], draft_rows[rejected], rejected)
    tokens[rejected] = invert_cdf(weights, uniforms[rejected])
    return tokens


def _residual(
    step: CounterStep, targets: RejectedRows, row_ids: Int64s, owners: Int64s
) -> Tensor:  # [num_rejected, vocab_size] float32
    """Return `max(target - draft, 0)`, or the target's row where that is empty; one-hot drafts remove one entry."""
    if step.draft_probs is None and step.draft_logits is None:
        return remove_entries(targets, step.draft_token_ids[row_ids])
    weights = targets - _draft_probs(step, row_ids, owners)
    weights = torch.where(weights > 0, weights, 0.0)
    empty = weights.sum(-1) <= EMPTY
    return torch.where(empty[:, None], targets, weights)
