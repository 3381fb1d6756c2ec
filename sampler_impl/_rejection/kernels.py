"""The Triton backend of `rejection`: the production path on a GPU, and in Triton's interpreter on a CPU.

A random request passes through three launches, each of which reads only what the one before left to do:

    accept      one program per request             decides all positions at once, writes accepted tokens, the bonus
                                                    token and -1, and leaves the first rejected row (or -1)
    race        one program per request and tile    races the residual of that one row, over all SMs: at 64 requests a
                                                    program per request would leave half of an H200 idle
    recovered   one program per request             takes the best tile, writes the recovered token

Positions run along one vector of MAX_SPEC_LEN lanes, so neither the batch size nor `max_spec_len` is compiled in.
A tile's winner is one int64, so that the best of all tiles is a plain maximum and ties go to the lowest id:

    63                    32 31                     0
    0sssssss ssssssss ... s  0iiiiiii iiiiiiii ... i      s: bits of the float32 score (not negative: order is kept)
                                                          i: 2**31 - 1 - token id     (lower id: greater)

and any negative int64 means that no entry took part. `vocab_size` keeps Triton's specialisation on multiples of 16 in
the race, where it allows 128-bit loads; a server has one vocabulary. Row offsets are 64-bit, because
num_tokens * vocab_size passes 2**31.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false
# (A kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._shared.checks import MAX_SPEC_LEN
from .._shared.compiled import Given, LaunchPlan, compiled, part
from .._shared.kernels import INTERPRETED, NO_ID, argmax_token
from .._shared.sizes import cdiv, next_power_of_2
from . import step as arguments
from .step import KNOWN, VerifyStep

if TYPE_CHECKING:
    from .._shared.tensors import RequestRows, TokenInts, TokenRows, Uniforms

MAX_TILE = 2048
"""Vocabulary entries per program of the race, whose tokens do not depend on it. One step takes what `compatible` says
in `perf_regression/records/rejection_h200.json`; other widths have no record."""

NUM_LANES = 128
PLACEHOLDER = tl.constexpr(-1)
"""The id that fills a row behind its last token."""
GREEDY_TEMPERATURE = tl.constexpr(arguments.GREEDY_TEMPERATURE)


def verify(
    step: VerifyStep,
    target_argmax: TokenInts | None,
    target_probs: TokenRows | None,
    uniforms: Uniforms | None,
    exponentials: RequestRows | None,
) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    """Accept, then recover one token for each random request that has a rejected row.

    Args:
        target_argmax: `None` if no request is greedy.
        target_probs, exponentials: `None` if no request is random.
        uniforms: `None` if none is needed: all requests are greedy, and the mode is not synthetic.

    Traffic:
        Some 30 bytes per draft token and two gathered probabilities. Per request that recovers a token, one row each of
        target_probs, draft_probs (if dense) and exponentials: at most `12 * batch_size * vocab_size` bytes, whatever
        `max_spec_len` is. An empty residual reads two of them again.
    """
    plan = step.plan
    if plan is None:
        plan = _Plan(step) if INTERPRETED else KNOWN.find_or_make(step.kind(), lambda: _Plan(step))
    return plan(step, target_argmax, target_probs, uniforms, exponentials)


class _Plan(LaunchPlan):
    """The kernels of steps of one kind."""

    def __init__(self, step: VerifyStep) -> None:
        super().__init__(step.device)
        self.batch_size = step.batch_size
        self.output_shape = (self.batch_size, step.max_spec_len + 1)
        tile = min(MAX_TILE, next_power_of_2(step.vocab_size))
        self.num_tiles = cdiv(step.vocab_size, tile)
        num_tokens, width = step.draft_token_ids.shape[0], step.max_spec_len
        sizes = {"num_tokens": num_tokens, "max_spec_len": width, "vocab_size": step.vocab_size}
        self.sizes = {**sizes, "num_tiles": self.num_tiles}
        # The rows to recover, and behind them, where 128 bits can be stored, the winners of the tiles.
        self.winners_at = 2 * cdiv(self.batch_size, 4)
        self.num_words = self.winners_at + self.batch_size * self.num_tiles * step.has_random
        by_request = (self.batch_size, 1, 1)
        self.launches = [(compiled(_accept_kernel, {"num_warps": 1}, POSITIONS=MAX_SPEC_LEN), by_request)]
        if step.has_random:
            race = compiled(_race_kernel, {"num_warps": 8}, TILE=tile)
            recovered = compiled(_recovered_kernel, {}, LANES=NUM_LANES, TILE=min(tile, 1024))
            self.launches += [(race, (self.batch_size, self.num_tiles, 1)), (recovered, by_request)]

    def __call__(
        self,
        step: VerifyStep,
        target_argmax: TokenInts | None,
        target_probs: TokenRows | None,
        uniforms: Uniforms | None,
        exponentials: RequestRows | None,
    ) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        output_token_ids = torch.empty(self.output_shape, dtype=torch.int32, device=self.device)
        if self.batch_size > 0:
            words = torch.empty(self.num_words, dtype=torch.int64, device=self.device)
            drafts = step.draft_token_ids, step.cu_num_draft_tokens, step.draft_probs
            requests = step.bonus_token_ids, step.temperature, uniforms, step.synthetic_rates
            self.launch((output_token_ids, words, *drafts, target_probs, exponentials, target_argmax, *requests))
        return output_token_ids

    def named(self, given: Given) -> dict[str, Any]:  # Any: as given, and numbers
        output_token_ids, words, ids, cu_num_draft_tokens, draft_probs, target_probs, exponentials, *rest = given
        target_argmax, bonus_token_ids, temperature, uniforms, synthetic_rates = rest
        return {
            "output_token_ids_ptr": output_token_ids,
            "recover_rows_ptr": part(words, 0, self.winners_at, torch.int32),
            "tile_winners_ptr": part(words, self.winners_at, self.batch_size * self.num_tiles),
            "draft_token_ids_ptr": ids,
            "cu_num_draft_tokens_ptr": cu_num_draft_tokens,
            "draft_probs_ptr": draft_probs,
            "target_probs_ptr": target_probs,
            "exponentials_ptr": exponentials,
            "target_argmax_ptr": target_argmax,
            "bonus_token_ids_ptr": bonus_token_ids,
            "temperature_ptr": temperature,
            "uniforms_ptr": uniforms,
            "synthetic_rates_ptr": synthetic_rates,
            **self.sizes,
        }


def expand(
    x: Tensor,  # [batch_size] any
    cu_num_draft_tokens: Tensor,  # [batch_size] int32
    num_tokens: int,
    replace_from: float,
    replace_to: float,
) -> Tensor:  # [num_tokens] any
    """Repeat each request's value for its tokens, with one value replaced."""
    expanded = x.new_empty(num_tokens)
    if num_tokens == 0:
        return expanded
    with torch.cuda.device_of(x):
        _expand_kernel[(x.shape[0],)](
            expanded_ptr=expanded,
            x_ptr=x.contiguous(),
            cu_num_draft_tokens_ptr=cu_num_draft_tokens.contiguous(),
            num_tokens=num_tokens,
            replace_from=replace_from,
            replace_to=replace_to,
            LANES=NUM_LANES,
            num_warps=1,
        )
    return expanded


@triton.jit
def _drafts_of(
    cu_num_tokens_ptr,  # [batch_size] int32
    req_idx,
    num_tokens,
):
    """Return the first token of a request and the one behind its last: tokens that exist, whatever the sums say."""
    start = tl.load(cu_num_tokens_ptr + req_idx - 1, mask=req_idx > 0, other=0)
    start = tl.minimum(tl.maximum(start, 0), num_tokens).to(tl.int32)
    end = tl.load(cu_num_tokens_ptr + req_idx)
    # Not below the first: the difference of any two int32 is no int32.
    return start, tl.minimum(tl.maximum(end, start), num_tokens).to(tl.int32)


@triton.jit
def _race_winner(weights, exponentials, token_ids):
    """Return the highest `weight * (1 / exponential)` among entries of positive weight, as the int64 of the module's
    docstring.

    `div_rn` is the correctly rounded quotient; Triton's `/` is an approximation on NVIDIA. Two integer reductions,
    because those of floats treat NaN differently from one device to the next.

    Takes `weights` [TILE] float32; `exponentials` [TILE] float32; `token_ids` [TILE] int32."""
    scores = weights * tl.div_rn(1.0, exponentials)
    takes_part = (weights > 0) & (scores >= 0)
    bits = tl.where(takes_part, scores.to(tl.int32, bitcast=True), -1)
    best = tl.max(bits)
    winner = tl.min(tl.where(bits == best, token_ids, NO_ID))
    return (best.to(tl.int64) << 32) | (winner ^ NO_ID)


@triton.jit
def _accepts(
    draft_probs_ptr,  # [num_tokens, vocab_size] float32, or None: one-hot
    target_probs_ptr,  # [num_tokens, vocab_size] float32
    offsets,  # [POSITIONS] int64
    in_vocab,  # [POSITIONS] bool
    uniforms,  # [POSITIONS] float64
):
    """Whether `target / draft >= uniform` at each position: the quotient correctly rounded, compared in float64."""
    ratios = tl.load(target_probs_ptr + offsets, mask=in_vocab, other=0.0)
    accepted = ratios > 0
    if draft_probs_ptr is not None:
        draft_probs = tl.load(draft_probs_ptr + offsets, mask=in_vocab, other=0.0)
        accepted = (draft_probs > 0) & (ratios > 0)
        ratios = tl.div_rn(ratios, draft_probs)
    return accepted & (ratios.to(tl.float64) >= uniforms)


@triton.jit(do_not_specialize=["num_tokens", "max_spec_len", "vocab_size"])
def _accept_kernel(
    output_token_ids_ptr,  # [batch_size, max_spec_len + 1] int32, written
    recover_rows_ptr,  # [batch_size] int32, written
    draft_token_ids_ptr,  # [num_tokens] int32
    cu_num_draft_tokens_ptr,  # [batch_size] int32
    draft_probs_ptr,  # [num_tokens, vocab_size] float32, or None: one-hot
    target_probs_ptr,  # [num_tokens, vocab_size] float32, or None: all requests are greedy
    target_argmax_ptr,  # [num_tokens] int64, or None: no request is greedy
    bonus_token_ids_ptr,  # [batch_size, 1] int32
    temperature_ptr,  # [batch_size] float32, or None: all requests are of one kind
    uniforms_ptr,  # [num_tokens] float64, or None
    synthetic_rates_ptr,  # [max_spec_len] float32, or None
    num_tokens,
    max_spec_len,
    vocab_size,
    POSITIONS: tl.constexpr,
):
    # Load the request's draft tokens.
    req_idx = tl.program_id(0)
    is_greedy = target_probs_ptr is None
    if temperature_ptr is not None:
        # By way of integers: Triton's interpreter makes a float of a comparison of floats once it is spread.
        is_greedy = (tl.load(temperature_ptr + req_idx) == GREEDY_TEMPERATURE).to(tl.int32) != 0
    start, end = _drafts_of(cu_num_draft_tokens_ptr, req_idx, num_tokens)  # pyright: ignore[reportGeneralTypeIssues]
    num_draft_tokens = tl.minimum(end - start, max_spec_len)
    pos = tl.arange(0, POSITIONS)
    drafted = pos < num_draft_tokens
    draft_token_ids = tl.load(draft_token_ids_ptr + start + pos, mask=drafted, other=-1).to(tl.int64)
    in_vocab = (draft_token_ids >= 0) & (draft_token_ids < vocab_size)
    # Decide each position by itself.
    emitted = draft_token_ids
    if uniforms_ptr is not None:
        uniforms = tl.load(uniforms_ptr + start + pos, mask=drafted, other=1.0)
    if synthetic_rates_ptr is not None:
        rates = tl.load(synthetic_rates_ptr + pos, mask=drafted, other=0.0).to(tl.float64)
        accepted = in_vocab & (uniforms < rates)
    elif target_probs_ptr is not None:
        offsets = (start + pos).to(tl.int64) * vocab_size + draft_token_ids
        accepted = _accepts(draft_probs_ptr, target_probs_ptr, offsets, in_vocab, uniforms)
    else:
        accepted = tl.zeros((POSITIONS,), tl.int1)
    if target_argmax_ptr is not None:
        argmax = tl.load(target_argmax_ptr + start + pos, mask=drafted, other=0)
        if synthetic_rates_ptr is None:
            accepted = tl.where(is_greedy, drafted & (draft_token_ids == argmax), accepted)
        # A greedy request replaces the first mismatch by the argmax.
        emitted = tl.where(is_greedy & (accepted == 0), argmax, draft_token_ids)
    # The first lane that is not accepted is at the latest num_draft_tokens.
    num_accepted = tl.min(tl.where(accepted, POSITIONS, pos))
    complete = num_accepted == num_draft_tokens
    row_ptr = output_token_ids_ptr + req_idx * (max_spec_len + 1)
    last = tl.where(is_greedy, num_accepted, num_accepted - 1)
    token_ids = tl.where(drafted & (pos <= last), emitted.to(tl.int32), PLACEHOLDER)
    bonus_token_id = tl.load(bonus_token_ids_ptr + req_idx).to(tl.int32)
    bonus_at = tl.where(complete, num_draft_tokens, -1)
    # Write the whole row. Its last place may lie behind the lanes.
    tl.store(row_ptr + pos, tl.where(pos == bonus_at, bonus_token_id, token_ids), mask=pos < max_spec_len)
    tl.store(row_ptr + max_spec_len, tl.where(bonus_at == max_spec_len, bonus_token_id, PLACEHOLDER))
    tl.store(recover_rows_ptr + req_idx, tl.where(complete | is_greedy, -1, start + num_accepted))


@triton.jit
def _race_kernel(
    tile_winners_ptr,  # [batch_size, num_tiles] int64, written
    recover_rows_ptr,  # [batch_size] int32
    draft_token_ids_ptr,  # [num_tokens] int32
    draft_probs_ptr,  # [num_tokens, vocab_size] float32, or None: one-hot
    target_probs_ptr,  # [num_tokens, vocab_size] float32
    exponentials_ptr,  # [batch_size, vocab_size] float32
    vocab_size,
    TILE: tl.constexpr,
):
    req_idx = tl.program_id(0)
    tile = tl.program_id(1)
    row = tl.load(recover_rows_ptr + req_idx).to(tl.int64)
    if row < 0:
        return
    token_ids = tile * TILE + tl.arange(0, TILE)
    in_vocab = token_ids < vocab_size
    # The residual is not clamped at 0: only positive entries take part.
    weights = tl.load(target_probs_ptr + row * vocab_size + token_ids, mask=in_vocab, other=0.0)
    if draft_probs_ptr is not None:
        weights -= tl.load(draft_probs_ptr + row * vocab_size + token_ids, mask=in_vocab, other=0.0)
    else:
        weights = tl.where(token_ids == tl.load(draft_token_ids_ptr + row), 0.0, weights)
    offsets = req_idx.to(tl.int64) * vocab_size + token_ids
    exponentials = tl.load(exponentials_ptr + offsets, mask=in_vocab, other=1.0)
    tl.store(tile_winners_ptr + req_idx * tl.num_programs(1) + tile, _race_winner(weights, exponentials, token_ids))


@triton.jit(do_not_specialize=["num_tokens", "max_spec_len", "vocab_size", "num_tiles"])
def _recovered_kernel(
    output_token_ids_ptr,  # [batch_size, max_spec_len + 1] int32, written
    recover_rows_ptr,  # [batch_size] int32
    tile_winners_ptr,  # [batch_size, num_tiles] int64
    cu_num_draft_tokens_ptr,  # [batch_size] int32
    target_probs_ptr,  # [num_tokens, vocab_size] float32
    exponentials_ptr,  # [batch_size, vocab_size] float32
    num_tokens,
    max_spec_len,
    vocab_size,
    num_tiles,
    LANES: tl.constexpr,
    TILE: tl.constexpr,
):
    req_idx = tl.program_id(0)
    row = tl.load(recover_rows_ptr + req_idx).to(tl.int64)
    if row < 0:
        return
    winner = tl.full((), -1, tl.int64)
    for first in range(0, num_tiles, LANES):
        tile = first + tl.arange(0, LANES)
        offsets = req_idx * num_tiles + tile
        winner = tl.maximum(winner, tl.max(tl.load(tile_winners_ptr + offsets, mask=tile < num_tiles, other=-1)))
    if winner < 0:
        # The residual is empty: race over the target row instead. Rare, so one program does it alone.
        for first in range(0, vocab_size, TILE):
            token_ids = first + tl.arange(0, TILE)
            in_vocab = token_ids < vocab_size
            weights = tl.load(target_probs_ptr + row * vocab_size + token_ids, mask=in_vocab, other=0.0)
            offsets = req_idx.to(tl.int64) * vocab_size + token_ids
            exponentials = tl.load(exponentials_ptr + offsets, mask=in_vocab, other=1.0)
            winner = tl.maximum(winner, _race_winner(weights, exponentials, token_ids))
    token_id = tl.where(winner < 0, 0, argmax_token(winner)).to(tl.int32)
    start, _ = _drafts_of(cu_num_draft_tokens_ptr, req_idx, num_tokens)
    tl.store(output_token_ids_ptr + req_idx * (max_spec_len + 1) + (row - start), token_id)


@triton.jit(do_not_specialize=["num_tokens", "replace_from", "replace_to"])
def _expand_kernel(
    expanded_ptr,  # [num_tokens] any, written
    x_ptr,  # [batch_size] any
    cu_num_draft_tokens_ptr,  # [batch_size] int32
    num_tokens,
    replace_from,
    replace_to,
    LANES: tl.constexpr,
):
    req_idx = tl.program_id(0)
    start, end = _drafts_of(cu_num_draft_tokens_ptr, req_idx, num_tokens)  # pyright: ignore[reportGeneralTypeIssues]
    end = tl.where(req_idx == tl.num_programs(0) - 1, num_tokens, end)
    value = tl.load(x_ptr + req_idx)
    value = tl.where(value == replace_from, replace_to, value)
    for first in range(start, end, LANES):
        pos = first + tl.arange(0, LANES)
        tl.store(expanded_ptr + pos, value, mask=pos < end)
