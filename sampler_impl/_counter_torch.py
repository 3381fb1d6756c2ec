"""Verification with counter noise in vectorised PyTorch: the production path on a CPU, and the kernels' peer in tests.

The same counters give the same uniforms as in the kernels, and the same laws decide. What differs is rounding: a row is
summed in float64 instead of by tiles in float32, and the inverse CDF has one level instead of two. The two disagree
only where a uniform is within some 2**-20, relative, of an edge between two outcomes; tests hold them to that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ._counter_step import CounterStep

MAX_SCALE = 65536.0
LOG2_E = 1.4426950408889634
EMPTY = 2.0**-60
STREAM = 0x76657269
WORD = 0xFFFFFFFF
FIXED_POINT = 2.0**60


def verify(step: CounterStep) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    """There is no loop over requests, positions or vocabulary. Waits for the device, if it has one."""
    counts = step.cu_num_draft_tokens.diff(prepend=step.cu_num_draft_tokens.new_zeros(1))
    pos = torch.arange(step.max_spec_len, device=step.device)
    drafted = pos < counts[:, None]
    draft_requests = drafted.nonzero()[:, 0]
    accept_uniforms, draw_uniforms = uniforms_at(
        step.seeds[:, None], step.positions[:, None] + torch.arange(step.max_spec_len + 1, device=step.device)
    )
    rows = torch.arange(step.num_tokens, device=step.device)
    if step.bonus_token_ids is None:
        rows += draft_requests
    target_probs = _target_probs(step, rows, draft_requests)
    accepted = _accepted(step, target_probs, draft_requests, accept_uniforms[:, :-1][drafted])
    grid = torch.zeros_like(drafted).masked_scatter_(drafted, accepted)
    num_accepted = grid.cumprod(-1).sum(-1)
    output_token_ids = step.draft_token_ids.new_full((step.batch_size, step.max_spec_len + 1), -1, dtype=torch.int32)
    kept = pos < num_accepted[:, None]
    output_token_ids[:, :-1].masked_scatter_(kept, step.draft_token_ids[kept[drafted]].to(torch.int32))
    last = _last_tokens(step, target_probs, counts, num_accepted, draw_uniforms)
    return output_token_ids.scatter_(1, num_accepted[:, None], last[:, None].to(torch.int32))


def uniforms_at(
    seed: Tensor,  # [...] int64
    position: Tensor,  # [...] int64
) -> tuple[Tensor, Tensor]:  # [...] float64, [...] float64
    """Two numbers in [0, 1) for each: one to accept with, one to draw with. Philox 4x32, ten rounds, 53 bits each."""
    seed = seed.expand_as(position)
    keys = [seed & WORD, (seed >> 32) & WORD]
    words = [
        position & WORD,
        (position >> 32) & WORD,
        torch.full_like(position, STREAM),
        torch.zeros_like(position),
    ]
    for _ in range(10):
        # Products wrap, but their 64 bits are right.
        first, third = words[0] * 0xD2511F53, words[2] * 0xCD9E8D57
        words = [
            (third >> 32) & WORD ^ words[1] ^ keys[0],
            third & WORD,
            (first >> 32) & WORD ^ words[3] ^ keys[1],
            first & WORD,
        ]
        keys = [(keys[0] + 0x9E3779B9) & WORD, (keys[1] + 0xBB67AE85) & WORD]
    a, b, c, d = words
    return _unit(a, b), _unit(c, d)


def _unit(
    high: Tensor,  # [...] int64
    low: Tensor,  # [...] int64
) -> Tensor:  # [...] float64
    return ((high >> 5).double() * 2.0**26 + (low >> 6).double()) * 2.0**-53


def _scales(step: CounterStep) -> Tensor:  # [batch_size] float32
    """Logits times this are exponents of 2."""
    return (LOG2_E / step.temperature).clamp(max=MAX_SCALE)


def _probs(
    logits: Tensor,  # [num_rows, vocab_size] float32
    scales: Tensor,  # [num_rows] float32
) -> Tensor:  # [num_rows, vocab_size] float32
    """The law of each row; zeros where there is none (NaN, an infinite logit, or nothing but -inf)."""
    exponents = logits.to(torch.float32) * scales[:, None]
    powers = exponents.sub_(exponents.amax(-1, keepdim=True).ceil()).exp2_()
    totals = powers.sum(-1, dtype=torch.float64)
    lawful = totals > 0
    return (powers / totals.to(torch.float32)[:, None]).masked_fill_(~lawful[:, None], 0.0)


def _target_probs(
    step: CounterStep,
    row_ids: Tensor,  # [...] int64
    owners: Tensor,  # [...] int64
) -> Tensor:  # [num_tokens, vocab_size] float32
    logits = step.logits if len(row_ids) == step.num_rows else step.logits[row_ids]
    return _probs(logits, _scales(step)[owners])


def _draft_probs(
    step: CounterStep,
    row_ids: Tensor,  # [...] int64
    owners: Tensor,  # [...] int64
) -> Tensor:  # [...] float32
    """The draft law of these rows, dense; NaN where it is unknown."""
    if step.draft_probs is not None:
        return step.draft_probs[row_ids]
    assert step.draft_logits is not None
    scales = _scales(step)[owners]
    if step.draft_logsumexp is None:
        return _probs(step.draft_logits[row_ids], scales)
    tops = step.draft_logsumexp[row_ids] * LOG2_E
    return (step.draft_logits[row_ids].to(torch.float32) * scales[:, None] - tops[:, None]).exp2_()


def _accepted(
    step: CounterStep,
    target_probs: Tensor,  # [num_tokens, vocab_size] float32
    owners: Tensor,  # [...] int64
    uniforms: Tensor,  # [num_tokens] float64
) -> Tensor:  # [num_tokens] bool
    """Each token on its own; a greedy request's must be the argmax."""
    known = (step.draft_token_ids >= 0) & (step.draft_token_ids < step.vocab_size)
    ids = step.draft_token_ids.long().clamp(0, step.vocab_size - 1)[:, None]
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
        rows = torch.arange(step.num_tokens, device=step.device) + (step.bonus_token_ids is None) * owners
        best = step.logits[rows].argmax(-1)
        accepted = torch.where(greedy, best == step.draft_token_ids, accepted)
    return accepted & known


def _last_tokens(
    step: CounterStep,
    target_probs: Tensor,  # [num_tokens, vocab_size] float32
    counts: Tensor,  # [batch_size] int32
    num_accepted: Tensor,  # [batch_size] int64
    draw_uniforms: Tensor,  # [batch_size, max_spec_len + 1] float64
) -> Tensor:  # [batch_size] int64
    """Recovered and bonus tokens: after the accepted ones each request has exactly one of them."""
    complete = num_accepted == counts
    greedy = step.temperature == 0
    draft_rows = step.cu_num_draft_tokens - counts + num_accepted
    has_bonus_rows = step.bonus_token_ids is None
    rows = draft_rows + has_bonus_rows * torch.arange(step.batch_size, device=step.device)
    tokens = torch.zeros_like(num_accepted)
    if step.bonus_token_ids is not None:
        tokens = torch.where(complete, step.bonus_token_ids[:, 0].long(), tokens)
    from_row = complete if has_bonus_rows else torch.zeros_like(complete)
    by_argmax = (greedy & (~complete | from_row)).nonzero()[:, 0]
    tokens[by_argmax] = step.logits[rows[by_argmax]].argmax(-1)
    uniforms = draw_uniforms.gather(1, num_accepted[:, None])[:, 0]
    bonus = (~greedy & from_row).nonzero()[:, 0]
    tokens[bonus] = _pick(_target_probs(step, rows[bonus], bonus), uniforms[bonus])
    rejected = (~greedy & ~complete).nonzero()[:, 0]
    weights = _residual(step, target_probs[draft_rows[rejected]], draft_rows[rejected], rejected)
    tokens[rejected] = _pick(weights, uniforms[rejected])
    return tokens


def _residual(
    step: CounterStep,
    targets: Tensor,  # [num_rejected, vocab_size] float32
    row_ids: Tensor,  # [...] int64
    owners: Tensor,  # [...] int64
) -> Tensor:  # [num_rejected, vocab_size] float32
    """`max(target - draft, 0)`, or the target's row where that is empty; one-hot drafts remove one entry."""
    if step.draft_probs is None and step.draft_logits is None:
        removed = step.draft_token_ids[row_ids].long()[:, None]
        known = (removed >= 0) & (removed < step.vocab_size)
        clamped = removed.clamp(0, step.vocab_size - 1)
        return targets.scatter(-1, clamped, targets.gather(-1, clamped).masked_fill(known, 0))
    weights = targets - _draft_probs(step, row_ids, owners)
    weights = torch.where(weights > 0, weights, 0.0)
    empty = weights.sum(-1) <= EMPTY
    return torch.where(empty[:, None], targets, weights)


def _pick(
    weights: Tensor,  # [num_rejected, vocab_size] float32
    quantiles: Tensor,  # [num_rejected] float64
) -> Tensor:  # [num_rejected] int64
    """Inverse CDF in integers, which add up without rounding. A row without weight gives 0."""
    totals = weights.sum(-1, keepdim=True, dtype=torch.float64)
    shares = torch.where(totals > 0, weights / totals, 0.0).mul_(FIXED_POINT).long()
    cumulative = shares.cumsum_(-1)
    total = cumulative[:, -1:]
    goal = torch.minimum((quantiles[:, None] * total).long(), total - 1)
    return torch.searchsorted(cumulative, goal.contiguous(), right=True).squeeze(-1).where(total[:, 0] > 0, 0)
