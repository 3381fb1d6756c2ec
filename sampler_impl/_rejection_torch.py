"""The rejection contract in vectorised PyTorch: the production path on a CPU, and the kernels' peer in tests.

How its time grows with requests, draft tokens and vocabulary has limits (`rejection.torch` in
`perf_regression/limits.toml`). On a GPU it runs too, but waits for the device.

There is no loop over requests, positions or vocabulary. Flat per-token values are laid out as a grid with one row per
request; `drafted` marks the cells that hold a draft token. Boolean masks run in row-major order, which is the order of
the flat tensors, so `grid[drafted]` and `masked_scatter` convert between the two.

    num_draft_tokens = [2, 0, 3]      drafted = 1 1 0      flat tokens  a b c d e      grid = a b .
                                                0 0 0                                        . . .
                                                1 1 1                                        c d e
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ._checks import VerifyStep


def verify_greedy(
    step: VerifyStep,
    target_argmax: Tensor,  # [num_tokens] int64
    uniforms: Tensor | None,  # [num_tokens] float64
    output_token_ids: Tensor,  # [batch_size, max_spec_len + 1] int32, written
) -> None:
    """Write the rows of greedy requests: argmax tokens up to the first mismatch, or all of them and the bonus token."""
    counts = _counts(step.cu_num_draft_tokens)
    drafted = _positions(step) < counts[:, None]
    accepted = step.draft_token_ids == target_argmax
    if step.synthetic_rates is not None:
        assert uniforms is not None  # check_noise
        accepted = _in_vocab(step) & (uniforms < _rates(step, drafted))
    emitted = torch.where(accepted, step.draft_token_ids, target_argmax)
    wanted = torch.ones_like(counts, dtype=torch.bool) if step.is_greedy is None else step.is_greedy
    num_accepted = _prefix_length(drafted, accepted)
    _write(step, drafted & (_positions(step) <= num_accepted[:, None]), wanted, drafted, emitted, output_token_ids)
    _append_bonus(step, wanted & (num_accepted == counts), counts, output_token_ids)


def accept(
    step: VerifyStep,
    target_probs: Tensor,  # [num_tokens, vocab_size] float32
    uniforms: Tensor,  # [num_tokens] float64
    output_token_ids: Tensor,  # [batch_size, max_spec_len + 1] int32, written
) -> Tensor:  # [batch_size] int32
    """Write accepted draft tokens and bonus tokens of random requests.

    Returns:
        The first rejected row of each request, -1 if there is none.
    """
    counts = _counts(step.cu_num_draft_tokens)
    drafted = _positions(step) < counts[:, None]
    if step.synthetic_rates is None:
        accepted = _accepted(step, target_probs, uniforms)
    else:
        accepted = _in_vocab(step) & (uniforms < _rates(step, drafted))
    wanted = torch.ones_like(counts, dtype=torch.bool) if step.is_greedy is None else ~step.is_greedy
    num_accepted = _prefix_length(drafted, accepted)
    kept = _positions(step) < num_accepted[:, None]
    _write(step, kept, wanted, drafted, step.draft_token_ids, output_token_ids)
    complete = num_accepted == counts
    _append_bonus(step, wanted & complete, counts, output_token_ids)
    rows = step.cu_num_draft_tokens - counts + num_accepted
    return torch.where(wanted & ~complete, rows, -1).to(torch.int32)


def recover(
    step: VerifyStep,
    target_probs: Tensor,  # [num_tokens, vocab_size] float32
    exponentials: Tensor,  # [batch_size, vocab_size] float32
    recover_rows: Tensor,  # [batch_size] int32
    output_token_ids: Tensor,  # [batch_size, max_spec_len + 1] int32, written
) -> None:
    """Write one recovered token per request that has a rejected row."""
    requests = (recover_rows >= 0).nonzero().squeeze(-1)
    rows = recover_rows[requests]
    if len(requests) == 0:
        return
    reciprocals = exponentials[requests].reciprocal_()
    targets = target_probs[rows]
    token_ids, found = _race(_residual(step, targets, rows), reciprocals)
    if not found.all():
        token_ids = torch.where(found, token_ids, _race(targets, reciprocals)[0])
    starts = step.cu_num_draft_tokens - _counts(step.cu_num_draft_tokens)
    output_token_ids[requests, rows - starts[requests]] = token_ids.to(torch.int32)


def expand(
    x: Tensor,  # [batch_size] any
    cu_num_draft_tokens: Tensor,  # [batch_size] int32
    num_tokens: int,
    replace_from: float,
    replace_to: float,
) -> Tensor:  # [num_tokens] any
    """Repeat each request's value for its tokens, with one value replaced."""
    replaced = x.masked_fill(x == replace_from, replace_to)
    return replaced.repeat_interleave(_counts(cu_num_draft_tokens), output_size=num_tokens)


def _counts(
    cu_num_draft_tokens: Tensor,  # [batch_size] int32
) -> Tensor:  # [batch_size] int32
    return cu_num_draft_tokens.diff(prepend=cu_num_draft_tokens.new_zeros(1))


def _positions(step: VerifyStep) -> Tensor:  # [max_spec_len] int64
    return torch.arange(step.max_spec_len, device=step.device)


def _in_vocab(step: VerifyStep) -> Tensor:  # [num_tokens] bool
    """False for withdrawn draft tokens (-1) and for ids that the model does not have."""
    return (step.draft_token_ids >= 0) & (step.draft_token_ids < step.vocab_size)


def _rates(
    step: VerifyStep,
    drafted: Tensor,  # [batch_size, max_spec_len] bool
) -> Tensor:  # [num_tokens] float32
    """The synthetic acceptance rate of each token, by its position."""
    assert step.synthetic_rates is not None
    return step.synthetic_rates[: step.max_spec_len].expand(drafted.shape)[drafted]


def _accepted(
    step: VerifyStep,
    target_probs: Tensor,  # [num_tokens, vocab_size] float32
    uniforms: Tensor,  # [num_tokens] float64
) -> Tensor:  # [num_tokens] bool
    """Each token on its own: `target_prob / draft_prob >= uniform`, in float32, compared in float64."""
    ids = step.draft_token_ids.long().clamp(0, step.vocab_size - 1)[:, None]
    ratios = target_probs.gather(-1, ids).squeeze(-1)
    accepted = _in_vocab(step) & (ratios > 0)
    if step.draft_probs is not None:
        drafts = step.draft_probs.gather(-1, ids).squeeze(-1)
        accepted &= drafts > 0
        ratios = ratios / drafts
    return accepted & (ratios >= uniforms)


def _prefix_length(
    drafted: Tensor,  # [batch_size, max_spec_len] bool
    accepted: Tensor,  # [num_tokens] bool
) -> Tensor:  # [batch_size] int64
    """How many tokens each request keeps before the first that is not accepted."""
    grid = torch.zeros_like(drafted).masked_scatter_(drafted, accepted)
    return grid.cumprod(-1).sum(-1)


def _write(
    step: VerifyStep,
    cells: Tensor,  # [batch_size, max_spec_len] bool
    wanted: Tensor,  # [batch_size] bool
    drafted: Tensor,  # [batch_size, max_spec_len] bool
    token_ids: Tensor,  # [num_tokens] int32
    output_token_ids: Tensor,  # [batch_size, max_spec_len + 1] int32, written
) -> None:
    """Put the flat `token_ids` into these cells of the wanted requests; leave the rest as it is."""
    cells = cells & wanted[:, None]
    body = output_token_ids[:, : step.max_spec_len]
    body.masked_scatter_(cells, token_ids[cells[drafted]].to(torch.int32))


def _append_bonus(
    step: VerifyStep,
    complete: Tensor,  # [batch_size] bool
    counts: Tensor,  # [batch_size] int32
    output_token_ids: Tensor,  # [batch_size, max_spec_len + 1] int32, written
) -> None:
    requests = complete.nonzero().squeeze(-1)
    output_token_ids[requests, counts[requests]] = step.bonus_token_ids[requests, 0].to(torch.int32)


def _residual(
    step: VerifyStep,
    targets: Tensor,  # [num_rejected, vocab_size] float32
    rows: Tensor,  # [num_rejected] int32
) -> Tensor:  # [num_rejected, vocab_size] float32
    """`target - draft`, not clamped: only entries above 0 take part in the race. One-hot drafts remove one entry."""
    if step.draft_probs is not None:
        return targets - step.draft_probs[rows]
    removed = step.draft_token_ids[rows].long()[:, None]
    known = (removed >= 0) & (removed < step.vocab_size)
    kept = targets.gather(-1, removed.clamp(0, step.vocab_size - 1)).masked_fill(known, 0)
    return targets.scatter(-1, removed.clamp(0, step.vocab_size - 1), kept)


def _race(
    weights: Tensor,  # [num_rejected, vocab_size] float32
    reciprocals: Tensor,  # [num_rejected, vocab_size] float32
) -> tuple[Tensor, Tensor]:  # [num_rejected] int64, [num_rejected] bool
    """Highest `weight * (1 / exponential)`, lowest id on ties, among entries of positive weight; and whether any is.

    -1 stands for an entry that does not take part, and so beats neither 0 nor infinity. If none does, the id is 0.
    """
    scores = weights * reciprocals
    scores.masked_fill_(~((weights > 0) & (scores >= 0)), -1.0)
    token_ids = scores.argmax(-1)
    best = scores.gather(-1, token_ids[:, None]).squeeze(-1)
    return token_ids, best >= 0
