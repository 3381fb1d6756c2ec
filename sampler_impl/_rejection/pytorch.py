"""The PyTorch backend of `rejection`: the production path on a CPU, and the kernels' peer in tests.

How its time grows with requests, draft tokens and vocabulary has limits (`rejection.torch` in
`perf_regression/limits.toml`). On a GPU it runs too, but waits for the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._shared.grid import Grid, clamped_column, is_in_vocab, remove_entries
from .step import GREEDY_TEMPERATURE, PLACEHOLDER_TOKEN_ID, VerifyStep

if TYPE_CHECKING:
    from .._shared.tensors import RejectedRows, RequestCounts, RequestRows, TokenInts, TokenRows, Uniforms, WrittenIds


def verify(
    step: VerifyStep,
    target_argmax: TokenInts | None,
    target_probs: TokenRows | None,
    uniforms: Uniforms | None,
    exponentials: RequestRows | None,
) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    """Verify a step as `kernels.verify` does."""
    shape = (step.batch_size, step.max_spec_len + 1)
    output_token_ids = torch.full(shape, PLACEHOLDER_TOKEN_ID, dtype=torch.int32, device=step.device)
    if step.batch_size == 0:
        return output_token_ids
    grid = Grid(pad(step.cu_num_draft_tokens, (1, 0)), len(step.draft_token_ids), step.max_spec_len)
    recover_rows = _accept(step, grid, target_argmax, target_probs, uniforms, output_token_ids)
    if target_probs is not None and exponentials is not None:
        _recover(step, grid, target_probs, exponentials, recover_rows, output_token_ids)
    return output_token_ids


def _accept(
    step: VerifyStep,
    grid: Grid,
    target_argmax: TokenInts | None,
    target_probs: TokenRows | None,
    uniforms: Uniforms | None,
    output_token_ids: WrittenIds,
) -> Tensor:  # [batch_size] int32
    """Write everything but recovered tokens: accepted drafts, a greedy request's argmax at the first mismatch, bonus.

    Returns:
        The first rejected row of each random request, -1 if there is none.
    """
    counts = grid.counts
    greedy = torch.full_like(counts, step.has_greedy, dtype=torch.bool)
    if step.temperature is not None:
        greedy = step.temperature == GREEDY_TEMPERATURE
    emitted, accepted = step.draft_token_ids, torch.zeros_like(step.draft_token_ids, dtype=torch.bool)
    if step.synthetic_rates is not None:
        assert uniforms is not None  # check_noise
        rates = step.synthetic_rates[grid.places]
        accepted = is_in_vocab(step.draft_token_ids, step.vocab_size) & (uniforms < rates)
    elif target_probs is not None:
        assert uniforms is not None
        accepted = _accepted(step, target_probs, uniforms)
    if target_argmax is not None:
        of_greedy = greedy[grid.owners]
        if step.synthetic_rates is None:
            accepted = torch.where(of_greedy, emitted == target_argmax, accepted)
        # A greedy request replaces the first mismatch by the argmax.
        emitted = torch.where(of_greedy & ~accepted, target_argmax, emitted)
    num_accepted = grid.num_accepted(accepted)
    grid.write(output_token_ids, torch.minimum(num_accepted + greedy, counts), emitted)
    complete = num_accepted == counts
    requests = complete.nonzero().squeeze(-1)
    output_token_ids[requests, counts[requests]] = step.bonus_token_ids[requests, 0].to(torch.int32)
    return torch.where(complete | greedy, -1, grid.starts + num_accepted).to(torch.int32)


def _recover(
    step: VerifyStep,
    grid: Grid,
    target_probs: TokenRows,
    exponentials: RequestRows,
    recover_rows: RequestCounts,
    output_token_ids: WrittenIds,
) -> None:
    """Write one recovered token per request that has a rejected row."""
    requests = (recover_rows >= 0).nonzero().squeeze(-1)
    rows = recover_rows[requests]
    if len(requests) == 0:
        return
    reciprocals = exponentials[requests].reciprocal_()
    targets = target_probs[rows]
    if step.draft_probs is None:
        residual = remove_entries(targets, step.draft_token_ids[rows])
    else:
        residual = targets - step.draft_probs[rows]  # not clamped: only entries above 0 take part in the race
    token_ids, found = _race(residual, reciprocals)
    if not found.all():
        raced, _ = _race(targets, reciprocals)
        token_ids = torch.where(found, token_ids, raced)
    output_token_ids[requests, rows - grid.starts[requests]] = token_ids.to(torch.int32)


def expand(
    x: Tensor,  # [batch_size] any
    cu_num_draft_tokens: Tensor,  # [batch_size] int32
    num_tokens: int,
    replace_from: float,
    replace_to: float,
) -> Tensor:  # [num_tokens] any
    """Repeat each request's value for its tokens, with one value replaced."""
    replaced = x.masked_fill(x == replace_from, replace_to)
    return replaced[Grid(pad(cu_num_draft_tokens, (1, 0)), num_tokens, num_tokens).owners]


def _accepted(step: VerifyStep, target_probs: TokenRows, uniforms: Uniforms) -> Tensor:  # [num_tokens] bool
    """Accept each token on its own: `target_prob / draft_prob >= uniform`, in float32, compared in float64."""
    ids = clamped_column(step.draft_token_ids, step.vocab_size)
    ratios = target_probs.gather(-1, ids).squeeze(-1)
    accepted = is_in_vocab(step.draft_token_ids, step.vocab_size) & (ratios > 0)
    if step.draft_probs is not None:
        drafts = step.draft_probs.gather(-1, ids).squeeze(-1)
        accepted &= drafts > 0
        ratios = ratios / drafts
    return accepted & (ratios >= uniforms)


def _race(
    weights: RejectedRows, reciprocals: RejectedRows
) -> tuple[Tensor, Tensor]:  # [num_rejected] int64, [num_rejected] bool
    """Return the highest `weight * (1 / exponential)`, lowest id on ties, among entries of positive weight; and whether
    any is.

    -1 stands for an entry that does not take part, and so beats neither 0 nor infinity. If none does, the id is 0.
    """
    scores = weights * reciprocals
    scores.masked_fill_(~((weights > 0) & (scores >= 0)), -1.0)
    token_ids = scores.argmax(-1)
    best = scores.gather(-1, token_ids[:, None]).squeeze(-1)
    return token_ids, best >= 0
