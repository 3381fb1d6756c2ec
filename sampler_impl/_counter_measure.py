"""The first task of a counter step: masses of one strip of tiles, unless a draft token before is known to be rejected.

A draft token is rejected if `uniform * draft probability > target probability`, and the target probability is the
token's own power over the sum of all powers. So with every tile that has been added up

    evidence = uniform * draft probability * sum of powers so far / power of the token

can only grow, and from 1 on the token is rejected, whatever the rest of the row has. Programs add what their strip says
to the sum of its row; programs of later rows look at the sums of earlier ones, and where one is enough, with `PROOF` to
spare for rounding, they read nothing: what they would have measured nobody asks for. So tokens do not depend on who
looked when. Where one probably will be enough, going by the strips that are there, they look again instead of reading.

    program    [ look at rows before ][ load a block of 4 tiles, one per warp  ][ add up ][ leave 4 words ]
                                      [ load the next one                                         ][ add up ][ ... ]

Powers are taken over that of the drafted token, which a gather knows before the tiles are there.
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
    FAR,
    LOG2_E,
    NO_ID,
    TILE,
    exponent_scale,
    fails,
    least_of,
    load_block,
    packed_finite,
    reference_of,
    store_by_warps,
    tile_mass,
    tile_sums,
    tile_winner,
    uniforms_at,
    winner_at,
    word_of_tile,
)
from ._counter_handover import EVIDENCE, LOGITS, ONE_HOT, SEEN

PROOF = tl.constexpr(1.002)
"""What evidence must add up to. Rounding of exponents below `PRECISE` moves it by 0.0003."""
PROBABLE = tl.constexpr(1.2)
"""What evidence is expected to add up to if it is worth waiting for; 1.0 to 1.5 made no difference."""
PROBABLE_FACTOR = tl.constexpr(0.6)
"""The factor from which on to wait while no strip has been added up. Of one-hot drafts the factor is the uniform."""
LOOKS = tl.constexpr(8)
"""At most, about a microsecond each. There is no harm in reading too much."""
WAITS = tl.constexpr(1)
REJECTED = tl.constexpr(2)
PRECISE = tl.constexpr(2048)
CERTAIN = tl.constexpr(1e30)
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
    request_evidence_ptr,  # [max_spec_len, 4] float32, of one request
    position,
    num_strips,
    most_looks,
):
    """Whether one of the draft tokens before is known to be rejected: by sums of powers, and the factors of these.

    If one probably is, going by the strips that have been added up, this looks again before it says no: to wait for the
    others takes less time than to read a row in vain."""
    rows = request_evidence_ptr + tl.arange(0, SEEN) * EVIDENCE
    is_before = tl.arange(0, SEEN) < position
    state = tl.full((), WAITS, tl.int32)
    looks = 0
    while (state == WAITS) & (looks < most_looks):
        looks += 1
        sums = tl.load(rows, mask=is_before, other=0.0, volatile=True)
        factors = tl.load(rows + 1, mask=is_before, other=0.0, volatile=True)
        counts = tl.load(rows + 2, mask=is_before, other=0.0, volatile=True)
        expected = sums * factors * num_strips >= counts * PROBABLE
        expected = tl.where(counts > 0, expected, factors > PROBABLE_FACTOR)
        waits = is_before & (counts < num_strips) & expected
        state = tl.max(tl.where(sums * factors >= PROOF, REJECTED, tl.where(waits, WAITS, 0)))
    return state == REJECTED


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
def _strip_masses(
    row_stats_ptr,  # [num_tiles] int64, written
    row_ptr,  # [vocab_size] any
    logits,  # [BLOCK, TILE // RUN, RUN] any
    reference,
    usable,
    excluded,
    first_tile,
    scale,
    vocab_size,
    num_tiles,
    CHUNKS: tl.constexpr,
    STRIP: tl.constexpr,
    BLOCK: tl.constexpr,
    RUN: tl.constexpr,
):
    """Masses of a strip of blocks but that of the excluded tile. Returns the sum of powers over `2**reference`, NaN if
    the reference fails a tile."""
    following = logits
    least = least_of(usable)
    total = tl.zeros((BLOCK,), tl.float32)
    failures = tl.zeros((BLOCK,), tl.int32)  # a bit for each step
    for step in tl.static_range(STRIP):
        tiles = first_tile + step * BLOCK + tl.arange(0, BLOCK)
        now = following
        if step + 1 < STRIP:
            following = load_block(row_ptr, first_tile + (step + 1) * BLOCK, vocab_size, BLOCK, RUN)
        sums = tile_sums(tl.exp2(now.to(tl.float32) * scale - reference))
        failed = (tiles < num_tiles) & fails(sums, least)
        words = tl.where(failed, 0, packed_finite(sums, reference))  # 0: not written yet
        stored = (tiles < num_tiles) & (tiles != excluded)
        store_by_warps(row_stats_ptr + word_of_tile(tiles, CHUNKS), words, stored)
        total += tl.where(failed, float("nan"), sums)
        failures |= tl.where(failed, 1 << step, 0)
    total = tl.sum(total)
    if total != total:
        # A reference that is too high or too low for a tile, or proves nothing: such tiles get one of their own.
        for tile in range(first_tile, tl.minimum(first_tile + STRIP * BLOCK, num_tiles)):
            at = tile - first_tile
            bits = tl.max(tl.where(tl.arange(0, BLOCK) == at % BLOCK, failures, 0))
            if (((bits >> (at // BLOCK)) & 1) != 0) & (tile != excluded):
                mass = tile_mass(row_ptr, -1, tile, scale, vocab_size, reference, usable)
                tl.store(row_stats_ptr + word_of_tile(tile, CHUNKS), mass)
    return total


@triton.jit
def _strip_winners(
    row_stats_ptr,  # [num_tiles] int64, written
    row_ptr,  # [vocab_size] any
    draft_token_id,
    first_tile,
    last_tile,
    vocab_size,
    CHUNKS: tl.constexpr,
):
    """Winners of a strip of tiles, for a greedy request. Returns whether the drafted token is none."""
    beaten = tl.zeros((), tl.float32)
    drafted = winner_at(row_ptr, draft_token_id, vocab_size)
    for tile in range(first_tile, last_tile):
        winner = tile_winner(row_ptr, tile, vocab_size)
        tl.store(row_stats_ptr + word_of_tile(tile, CHUNKS), winner)
        beaten = tl.where(winner > drafted, CERTAIN, beaten)
    return beaten


@triton.jit(do_not_specialize=["batch_size", "num_tokens", "folds", "num_tiles", "max_spec_len"])
def measure_kernel(
    evidence_ptr,  # [batch_size, max_spec_len, 4] float32, written, or None: every row is measured
    stats_ptr,  # [batch_size, max_spec_len, num_words] int64, written; twice if draft laws are needed
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
    folds,
    vocab_size,
    logits_stride,
    draft_stride,
    num_tiles,
    max_spec_len,
    DRAFT: tl.constexpr,
    BOTH: tl.constexpr,
    BONUS: tl.constexpr,
    CHUNKS: tl.constexpr,
    OVERLAP: tl.constexpr,
    STRIP: tl.constexpr,
    BLOCK: tl.constexpr,
    RUN: tl.constexpr,
):
    if OVERLAP:
        gdc_launch_dependents()
    strip = tl.program_id(0)
    minor = tl.program_id(1)
    major = tl.program_id(2)
    first_tile = strip * STRIP * BLOCK
    is_draft = False
    if BOTH:
        is_draft = major >= tl.num_programs(2) // 2
        major -= tl.where(is_draft, tl.num_programs(2) // 2, 0)
    line = major * tl.num_programs(1) + minor
    if folds == 0:  # rows in the order of memory
        req_idx = tl.minimum(_request_of(line, cu_num_draft_tokens_ptr, batch_size), batch_size - 1)
        position = line * 0
    else:
        if evidence_ptr is None:  # in the order of memory
            req_idx = major
            position = minor
        else:  # all first rows, then all second ones: the longer ago that was measured which they need, the better
            position = major
            req_idx = minor
        if folds > 1:
            req_idx += position % folds * tl.cdiv(batch_size, folds)
            position = tl.where(req_idx < batch_size, position // folds, max_spec_len)
            req_idx = tl.minimum(req_idx, batch_size - 1)
    if num_tokens == batch_size * max_spec_len:  # then all have as many, and nothing has to be loaded
        start = req_idx * max_spec_len
        end = start + max_spec_len
    else:
        start = tl.load(cu_num_draft_tokens_ptr + req_idx - 1, mask=req_idx > 0, other=0)
        end = tl.load(cu_num_draft_tokens_ptr + req_idx)
        end = tl.minimum(tl.minimum(end, num_tokens), start + max_spec_len)
    if folds == 0:
        position = line - start
    draft_row = start + position
    is_row = (position >= 0) & (draft_row < end)
    # What does not depend on rows before is under way while these are looked at.
    temperature = tl.load(temperature_ptr + req_idx)
    draft_token_id = tl.load(draft_token_ids_ptr + draft_row, mask=is_row, other=-1).to(tl.int32)
    known = (draft_token_id >= 0) & (draft_token_id < vocab_size)
    row_ptr = logits_ptr + (draft_row + (req_idx if BONUS else 0)).to(tl.int64) * logits_stride
    stats_row = req_idx * max_spec_len + position
    if BOTH:
        draft_row_ptr = draft_ptr + draft_row.to(tl.int64) * draft_stride
        if is_draft:
            row_ptr = draft_row_ptr
            stats_row += batch_size * max_spec_len
    if evidence_ptr is not None:
        request_evidence_ptr = evidence_ptr + req_idx * max_spec_len * EVIDENCE
        evidence_ptr = request_evidence_ptr + position * EVIDENCE
        if is_row & (position > 0):
            num_strips = tl.num_programs(0).to(tl.float32)
            # In the order of memory the rows before are read at the same time, and not done soon.
            is_row = not _is_settled(request_evidence_ptr, position, num_strips, tl.where(folds == 0, 1, LOOKS))
    if is_row:
        logits = load_block(row_ptr, first_tile, vocab_size, BLOCK, RUN)
        own = tl.load(row_ptr + draft_token_id, mask=known, other=float("nan")).to(tl.float32)
        scale = exponent_scale(temperature)
        exponent = own * scale
        usable = tl.abs(exponent) < FAR  # not if it is NaN
        reference = reference_of(exponent)
        own_tile = -1
        if DRAFT == ONE_HOT:
            own_tile = tl.where(known & (temperature != 0), draft_token_id // TILE, -1)
        stats_ptr += stats_row.to(tl.int64) * (CHUNKS * 32)
        if evidence_ptr is not None:  # noqa: SIM102  # the outer one is decided when compiling
            if strip == 0:  # what the row's sum is multiplied by, said once
                factor = tl.full((), 1.0, tl.float32)
                if temperature != 0:
                    accept, _ = uniforms_at(tl.load(seeds_ptr + req_idx), tl.load(positions_ptr + req_idx) + position)
                    # fmt: off
                    factor = accept.to(tl.float32) * _drafted_law(draft_ptr, draft_logsumexp_ptr, draft_row,
                                                                  draft_token_id, known, scale, draft_stride, DRAFT)
                    # fmt: on
                tl.store(evidence_ptr + 1, tl.where(factor == factor, tl.minimum(factor, CERTAIN), 0.0))
        if temperature == 0:
            last_tile = tl.minimum(first_tile + STRIP * BLOCK, num_tiles)
            ratio = _strip_winners(stats_ptr, row_ptr, draft_token_id, first_tile, last_tile, vocab_size, CHUNKS)
        else:
            # fmt: off
            total = _strip_masses(stats_ptr, row_ptr, logits, reference, usable, own_tile, first_tile, scale,
                                  vocab_size, num_tiles, CHUNKS, STRIP, BLOCK, RUN)
            # fmt: on
            ratio = tl.where(tl.abs(exponent) < PRECISE, total * tl.exp2(reference - exponent), 0.0)
        if evidence_ptr is not None:
            ratio = tl.where(ratio == ratio, tl.minimum(ratio, CERTAIN), 0.0)
            tl.atomic_add(evidence_ptr, ratio, sem="relaxed")
            tl.atomic_add(evidence_ptr + 2, 1.0, sem="relaxed")
        if DRAFT == ONE_HOT:  # noqa: SIM102  # the outer one is decided when compiling
            # To compare every id with the drafted one would cost more than to read one tile of a row again.
            if (own_tile >= first_tile) & (own_tile < first_tile + STRIP * BLOCK):
                mass = tile_mass(row_ptr, draft_token_id, own_tile, scale, vocab_size, reference, usable)
                tl.store(stats_ptr + word_of_tile(own_tile, CHUNKS), mass)
