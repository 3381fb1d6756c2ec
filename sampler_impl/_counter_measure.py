"""The first task of a counter step: masses of one strip of tiles, unless a draft token before is known to be rejected.

A draft token is rejected if `uniform * draft probability > target probability`, and the target probability is the
token's own power over the sum of all powers. So with every tile that has been added up the sum of

    evidence = uniform * draft probability * powers of the strip / power of the token

over the strips of a row can only grow, and from 1 on the token is rejected, whatever the rest of the row has. Programs
of later rows add up what earlier rows have left, and where it is enough with `PROOF` to spare for rounding, they read
nothing: what they would have measured nobody asks for. So tokens do not depend on who looked when.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false
# (All because a kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from ._counter_functions import (
    LOG2_E,
    NO_ID,
    TILE,
    exponent_scale,
    load_tile,
    mass_beside,
    reference_exponent,
    tile_mass,
    tile_winner,
    uniforms_at,
    winner_at,
)
from ._counter_handover import LOGITS, ONE_HOT, SEEN, SKIPPED, quotient

PROOF = tl.constexpr(1.002)
"""What evidence must add up to. Rounding of exponents below `PRECISE` moves it by 0.0003."""
PRECISE = tl.constexpr(2048)
CERTAIN = tl.constexpr(2.0)
"""As much as a strip's evidence counts at most."""


@triton.jit
def _request_of(
    draft_row,
    cu_num_draft_tokens_ptr,  # [batch_size] int32
    batch_size,
):
    """The number of requests that end before a row."""
    req_idx = 0
    for first in range(0, batch_size, 256):
        requests = first + tl.arange(0, 256)
        ends = tl.load(cu_num_draft_tokens_ptr + requests, mask=requests < batch_size, other=NO_ID >> 1)
        req_idx += tl.sum((ends <= draft_row).to(tl.int32))
    return req_idx


@triton.jit
def _is_settled(
    request_evidence_ptr,  # [max_spec_len, num_strips] float32, of one request
    position,
    EVIDENCE: tl.constexpr,
):
    """Whether a draft token before is known to be rejected. The rows that fit a snapshot are enough: what is settled by
    rows before them is written in these."""
    back: tl.constexpr = SEEN // EVIDENCE
    before = position - back + tl.arange(0, back)[:, None]
    at = before * EVIDENCE + tl.arange(0, EVIDENCE)[None, :]
    evidence = tl.load(request_evidence_ptr + at, mask=before >= 0, other=0.0, cache_modifier=".cg")
    return tl.max(tl.sum(tl.maximum(evidence - 1, 0), axis=1)) >= PROOF


@triton.jit
def _drafted_law(
    draft_ptr,  # [num_tokens, vocab_size] float32
    draft_logsumexp_ptr,  # [num_tokens] float32
    draft_row,
    draft_token_id,
    known,
    scale,
    draft_stride,
    DRAFT: tl.constexpr,
):
    """Draft probability of a drafted token."""
    draft = tl.full((), 1.0, tl.float32)
    if DRAFT != ONE_HOT:
        at = draft_row.to(tl.int64) * draft_stride + draft_token_id
        draft = tl.load(draft_ptr + at, mask=known, other=0.0).to(tl.float32)
    if DRAFT == LOGITS:
        draft = tl.exp2(draft * scale - tl.load(draft_logsumexp_ptr + draft_row) * LOG2_E)
    return draft


@triton.jit
def _first_tile(
    logits_ptr,  # [num_rows, vocab_size] float32
    draft_ptr,  # [num_tokens, vocab_size] float32, or None
    draft_row,
    row,
    is_draft,
    first_tile,
    size,
    logits_stride,
    draft_stride,
    BOTH: tl.constexpr,
    LANES: tl.constexpr,
):
    """A row's address and its first tile, of which `size` says how much of the row there is."""
    row_ptr = logits_ptr + row.to(tl.int64) * logits_stride
    if BOTH:
        draft_row_ptr = draft_ptr + draft_row.to(tl.int64) * draft_stride
        if is_draft:
            row_ptr = draft_row_ptr
    return row_ptr, load_tile(row_ptr, first_tile, size, LANES)


@triton.jit
def _measure(
    row_stats_ptr,  # [num_tiles] int64, written
    row_ptr,  # [vocab_size] any
    logits,  # [...] any
    draft_token_id,
    first_tile,
    temperature,
    vocab_size,
    num_tiles,
    EXCLUDE: tl.constexpr,
    STRIP: tl.constexpr,
    LANES: tl.constexpr,
):
    """Masses of a strip of tiles, or for a greedy request their winners. The first tile's logits are there already.

    Returns what evidence is made of: the strip's powers over that of the token, 0 if unknown. Of a greedy request it
    is certain or nothing.
    """
    ratio = tl.zeros((), tl.float32)
    if temperature == 0:
        drafted = winner_at(row_ptr, draft_token_id, vocab_size)
        for tile in range(first_tile, tl.minimum(first_tile + STRIP, num_tiles)):
            winner = tile_winner(row_ptr, tile, vocab_size, LANES)
            tl.store(row_stats_ptr + tile, winner)
            ratio = tl.where(winner > drafted, CERTAIN, ratio)
    else:
        scale = exponent_scale(temperature)
        reference, own, usable = reference_exponent(row_ptr, draft_token_id, scale, vocab_size)
        total = tl.zeros((), tl.float32)
        own_tile = -1
        if EXCLUDE:
            known = (draft_token_id >= 0) & (draft_token_id < vocab_size)
            own_tile = tl.where(known, draft_token_id // TILE, -1)
        following = logits
        for step in tl.static_range(STRIP):
            tile = first_tile + step
            now = following
            if step + 1 < STRIP:
                following = load_tile(row_ptr, tile + 1, vocab_size, LANES)
            mass, sum_of_powers = tile_mass(now, row_ptr, tile, scale, reference, usable, vocab_size, LANES)
            tl.store(row_stats_ptr + tile, mass, mask=(tile < num_tiles) & (tile != own_tile))
            total += sum_of_powers
        if EXCLUDE:  # noqa: SIM102  # the outer one is decided when compiling
            # To compare every id with the drafted one would cost more than to read one tile in 32 again.
            if (own_tile >= first_tile) & (own_tile < first_tile + STRIP):
                mass = mass_beside(row_ptr, draft_token_id, scale, reference, usable, vocab_size, LANES)
                tl.store(row_stats_ptr + own_tile, mass)
        ratio = tl.where(usable & (tl.abs(own) < PRECISE), total / tl.exp2(own - reference), 0.0)
    return ratio


@triton.jit(
    do_not_specialize=[
        "batch_size", "num_tokens", "num_lines", "num_tiles", "num_strips", "max_spec_len", "inverse_strips",
        "num_minor", "inverse_minor",
    ]
)  # fmt: skip
def measure_kernel(
    evidence_ptr,  # [batch_size, max_spec_len, num_strips] float32, written, or None: every row is measured
    stats_ptr,  # [batch_size, max_spec_len, num_tiles] int64, written; twice if draft laws are needed
    logits_ptr,  # [num_rows, vocab_size] float32
    draft_ptr,  # [num_tokens, vocab_size] float32, or None: one-hot
    draft_logsumexp_ptr,  # [num_tokens] float32, or None
    draft_token_ids_ptr,  # [num_tokens] int32
    cu_num_draft_tokens_ptr,  # [batch_size] int32
    temperature_ptr,  # [batch_size] float32
    seeds_ptr,  # [batch_size] int64
    positions_ptr,  # [batch_size] int64
    batch_size,
    num_tokens,
    num_lines,
    vocab_size,
    logits_stride,
    draft_stride,
    num_tiles,
    num_strips,
    max_spec_len,
    inverse_strips,
    num_minor,
    inverse_minor,
    DRAFT: tl.constexpr,
    BOTH: tl.constexpr,
    BONUS: tl.constexpr,
    OVERLAP: tl.constexpr,
    STRIP: tl.constexpr,
    LANES: tl.constexpr,
    EVIDENCE: tl.constexpr,
):
    if OVERLAP:
        gdc_launch_dependents()
    program = tl.program_id(0)
    line = quotient(program, num_strips, inverse_strips)
    strip = program - line * num_strips
    first_tile = strip * STRIP
    is_draft = False
    if BOTH:
        is_draft = line >= num_lines
        line -= tl.where(is_draft, num_lines, 0)
    ragged = num_lines < batch_size * max_spec_len
    if ragged:  # rows in the order of memory
        draft_row = line
        req_idx = tl.minimum(_request_of(line, cu_num_draft_tokens_ptr, batch_size), batch_size - 1)
        position = line * 0
    else:
        major = quotient(line, num_minor, inverse_minor)
        minor = line - major * num_minor
        if evidence_ptr is None:  # in the order of memory
            req_idx = major
            position = minor
        else:  # all first rows, then all second ones: the longer ago that was measured which they depend on, the better
            position = major
            req_idx = minor
        draft_row = req_idx * max_spec_len + position
    if evidence_ptr is not None:
        evidence_ptr += req_idx * max_spec_len * EVIDENCE
    start = tl.load(cu_num_draft_tokens_ptr + req_idx - 1, mask=req_idx > 0, other=0)
    end = tl.load(cu_num_draft_tokens_ptr + req_idx)
    temperature = tl.load(temperature_ptr + req_idx)
    seed = tl.load(seeds_ptr + req_idx)
    sequence_position = tl.load(positions_ptr + req_idx)
    # Loaded before anything else is known: what is needed if all have max_spec_len draft tokens.
    guess = draft_row - position
    guessed = (draft_row < num_tokens) & (not ragged)
    if evidence_ptr is not None:
        guessed &= position == 0
    size = tl.where(guessed, vocab_size, 0)
    # fmt: off
    row_ptr, logits = _first_tile(logits_ptr, draft_ptr, draft_row, draft_row + (req_idx if BONUS else 0), is_draft,
                                  first_tile, size, logits_stride, draft_stride, BOTH, LANES)
    # fmt: on
    if ragged:
        position = line - start
    settled = False
    if evidence_ptr is not None:  # noqa: SIM102  # the outer one is decided when compiling
        if position > 0:
            settled = _is_settled(evidence_ptr, position, EVIDENCE)
    draft_row = start + position
    if (draft_row < end) & (draft_row < num_tokens) & (position >= 0) & (position < max_spec_len):
        stats_row = req_idx * max_spec_len + position
        if BOTH:
            stats_row += tl.where(is_draft, batch_size * max_spec_len, 0)
        stats_ptr += stats_row.to(tl.int64) * num_tiles
        ratio = tl.full((), CERTAIN, tl.float32)
        if settled:
            for step in tl.static_range(STRIP):
                tl.store(stats_ptr + first_tile + step, SKIPPED, mask=first_tile + step < num_tiles)
        else:
            draft_token_id = tl.load(draft_token_ids_ptr + draft_row).to(tl.int32)
            if (not guessed) | (start != guess):
                # fmt: off
                row_ptr, logits = _first_tile(logits_ptr, draft_ptr, draft_row, draft_row + (req_idx if BONUS else 0),
                                              is_draft, first_tile, vocab_size, logits_stride, draft_stride, BOTH,
                                              LANES)
                # fmt: on
            # fmt: off
            ratio = _measure(stats_ptr, row_ptr, logits, draft_token_id, first_tile, temperature, vocab_size, num_tiles,
                             DRAFT == ONE_HOT, STRIP, LANES)
            # fmt: on
            if evidence_ptr is not None:  # noqa: SIM102  # the outer one is decided when compiling
                if temperature != 0:
                    accept, _ = uniforms_at(seed, sequence_position + position)
                    known = (draft_token_id >= 0) & (draft_token_id < vocab_size)
                    scale = exponent_scale(temperature)
                    draft = _drafted_law(
                        draft_ptr, draft_logsumexp_ptr, draft_row, draft_token_id, known, scale, draft_stride, DRAFT
                    )
                    ratio *= accept.to(tl.float32) * draft
        if evidence_ptr is not None:
            ratio = tl.where(ratio == ratio, tl.minimum(ratio, CERTAIN), 0.0)
            tl.store(evidence_ptr + position * EVIDENCE + strip, ratio + 1)
