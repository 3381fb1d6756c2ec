"""Verification with counter noise as three Triton kernels; none writes probabilities or noise.

    rows of one request      tiles of 4096 entries
    draft row 0   [ mass | mass | ... | mass ]    1. `tile_stats_kernel`, a program per row and strip of tiles: reads
    draft row 1   [ mass | mass | ... | mass ]       every logit behind a draft token, once, and writes 8 bytes per tile
    draft row 2   [ mass | mass | ... | mass ]
                             |
            accept, accept, REJECT                2. `judge_kernel`, a program per request: laws of the rows from their
                             |                       masses, draft tokens by gathers, the first rejected row
                             v
    draft row 2   [ masses of target - draft ]    3. `draw_kernel`, a program per request and strip: reads that one row
                             |                       of target and draft; the program that finishes last picks an eighth
                             v                       of a tile, and an entry of it
                           token

One-hot drafts need no third kernel: what is drawn from is the row itself without the drafted id, whose tile masses are
known, so that `judge_kernel` reads one tile and is done. Greedy requests keep in place of a mass the tile's highest
logit and its id, and are done there as well. A bonus row is needed only if every draft token was accepted, and nobody
reads it before that is known: then `draw_kernel` does.

On Hopper and later each kernel is launched while the one before it still runs (programmatic dependent launch), does
what does not depend on it, and waits. It waits for the whole kernel, or, if there is a workspace to count in (`EAGER`),
for what it needs of it: a request is judged when its own strips are measured, and drawn for when it is judged, while
rows of others are still read:

    1. [ request 0 ][ request 1 ][ request 2 ]        MEASURED counts strips; full: judge, set JUDGED
    2.             judge 0      judge 1      judge 2
    3.                      [ draw 0 ]   [ draw 1 ]    ARRIVED counts strips; full: pick, and all back to 0

That cannot lock up: programs of a kernel start when all of the one before have started, so what is waited for runs.

No integer but `vocab_size` and the strides is specialised on, and those only on being multiples of 16, which allows
128-bit loads; tiles and positions are padded to powers of two.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportUnboundVariable=false
# (All because a kernel is Triton's language in Python's syntax: its parameters are pointers and have no Python type.)

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ._counter_functions import (
    LOG2_E,
    NO_ID,
    exponent_scale,
    inverse,
    load_stats,
    load_tile,
    pick_from_tiles,
    reference_exponent,
    row_laws,
    tile_mass,
    tile_winner,
    uniforms_at,
)
from ._counter_handover import (
    ARRIVED,
    DONE,
    JUDGED,
    LOGITS,
    MEASURED,
    ONE_HOT,
    PROGRESS,
    end_after_predecessor,
    pack,
    wait_until,
)


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

    A tile's load is written down before the sum of the one ahead of it. The compiler moves it behind that sum to save
    registers, and to hold it in place is slower: what fills the time is the other programs that these make room for.
    """
    if temperature == 0:
        for tile in range(first_tile, tl.minimum(first_tile + STRIP, num_tiles)):
            tl.store(row_stats_ptr + tile, tile_winner(row_ptr, tile, vocab_size, LANES))
    else:
        scale = exponent_scale(temperature)
        reference, usable = reference_exponent(row_ptr, draft_token_id, scale, vocab_size)
        following = logits
        for step in tl.static_range(STRIP):
            tile = first_tile + step
            now = following
            if step + 1 < STRIP:
                following = load_tile(row_ptr, tile + 1, vocab_size, LANES)
            mass = tile_mass(now, row_ptr, draft_token_id, tile, scale, reference, usable, vocab_size, EXCLUDE, LANES)
            tl.store(row_stats_ptr + tile, mass, mask=tile < num_tiles)


@triton.jit(do_not_specialize=["batch_size", "num_tokens", "num_tiles", "num_strips", "max_spec_len"])
def tile_stats_kernel(
    tile_stats_ptr,  # [num_tokens, num_tiles] int64, written; twice as many rows if draft laws are needed
    progress_ptr,  # [batch_size, 4] int32, written, or None
    logits_ptr,  # [num_rows, vocab_size] float32
    draft_logits_ptr,  # [num_tokens, vocab_size] float32, or None: nobody needs their laws
    draft_token_ids_ptr,  # [num_tokens] int32
    cu_num_draft_tokens_ptr,  # [batch_size] int32
    temperature_ptr,  # [batch_size] float32
    batch_size,
    num_tokens,
    vocab_size,
    logits_stride,
    draft_stride,
    num_tiles,
    num_strips,
    max_spec_len,
    EXCLUDE: tl.constexpr,
    BONUS: tl.constexpr,
    OVERLAP: tl.constexpr,
    STRIP: tl.constexpr,
    LANES: tl.constexpr,
):
    if OVERLAP:
        gdc_launch_dependents()
    stats_row = tl.program_id(0) // num_strips
    first_tile = tl.program_id(0) % num_strips * STRIP
    is_draft = stats_row >= num_tokens
    draft_row = tl.where(is_draft, stats_row - num_tokens, stats_row)
    # Whose row it is. Mostly all requests have max_spec_len draft tokens; else those that end before it are counted.
    width = tl.maximum(max_spec_len, 1)
    req_idx = tl.minimum(draft_row // width, batch_size - 1)
    end = (req_idx + 1) * max_spec_len
    row = draft_row
    size = vocab_size
    if BONUS:  # ahead of it are other requests' bonus rows; how many, is known beforehand if all have as many drafts
        row += req_idx
        size = tl.where(is_draft | (num_tokens == batch_size * max_spec_len), vocab_size, 0)
    row_ptr = logits_ptr + row.to(tl.int64) * logits_stride
    # Loaded before anything else is known, as this is what the kernel waits for; converted only when it is needed.
    if draft_logits_ptr is None:
        logits = load_tile(row_ptr, first_tile, size, LANES)
    else:
        draft_row_ptr = draft_logits_ptr + draft_row.to(tl.int64) * draft_stride
        if is_draft:
            logits = load_tile(draft_row_ptr, first_tile, size, LANES).to(tl.float32)
        else:
            logits = load_tile(row_ptr, first_tile, size, LANES).to(tl.float32)
    draft_token_id = tl.load(draft_token_ids_ptr + draft_row, mask=draft_row < end, other=-1).to(tl.int32)
    temperature = tl.load(temperature_ptr + req_idx)
    if (tl.load(cu_num_draft_tokens_ptr + req_idx) != end) | (draft_row >= end):
        req_idx = 0
        for first in range(0, batch_size, 256):
            requests = first + tl.arange(0, 256)
            ends = tl.load(cu_num_draft_tokens_ptr + requests, mask=requests < batch_size, other=NO_ID >> 1)
            req_idx += tl.sum((ends <= draft_row).to(tl.int32))
        if req_idx >= batch_size:
            return
        draft_token_id = tl.load(draft_token_ids_ptr + draft_row).to(tl.int32)
        temperature = tl.load(temperature_ptr + req_idx)
        size = 0
    if BONUS:  # noqa: SIM102  # the outer one is decided when compiling
        if size == 0:
            row_ptr = logits_ptr + (draft_row + req_idx).to(tl.int64) * logits_stride
            if draft_logits_ptr is None:
                logits = load_tile(row_ptr, first_tile, vocab_size, LANES)
            elif not is_draft:
                logits = load_tile(row_ptr, first_tile, vocab_size, LANES).to(tl.float32)
    stats_ptr = tile_stats_ptr + stats_row.to(tl.int64) * num_tiles
    # fmt: off
    if draft_logits_ptr is None:
        _measure(stats_ptr, row_ptr, logits, draft_token_id, first_tile, temperature, vocab_size, num_tiles,
                 EXCLUDE, STRIP, LANES)
    elif is_draft:
        _measure(stats_ptr, draft_row_ptr, logits, draft_token_id, first_tile, temperature, vocab_size, num_tiles,
                 False, STRIP, LANES)
    else:
        _measure(stats_ptr, row_ptr, logits, draft_token_id, first_tile, temperature, vocab_size, num_tiles,
                 False, STRIP, LANES)
    # fmt: on
    if progress_ptr is not None:
        tl.debug_barrier()  # stored by many threads, announced by one
        tl.atomic_add(progress_ptr + req_idx * PROGRESS + MEASURED, 1, sem="release")


@triton.jit
def _draft_laws(
    tile_stats_ptr,  # [num_tokens, num_tiles] int64
    draft_logsumexp_ptr,  # [num_tokens] float32, or None
    draft_rows,  # [...] int64
    drafted,  # [...] bool
    temperature,
    num_tokens,
    num_tiles,
    TILES: tl.constexpr,
):
    """Tops and reciprocal totals of rows of draft logits, carried over or from their own tiles."""
    if draft_logsumexp_ptr is not None:
        tops = tl.load(draft_logsumexp_ptr + draft_rows, mask=drafted, other=0.0) * LOG2_E
        return tops, tl.zeros_like(tops) + 1.0
    stats = load_stats(tile_stats_ptr, draft_rows + num_tokens, drafted, temperature, num_tiles, TILES)
    tops, totals = row_laws(stats)
    return tops, inverse(totals)


@triton.jit(do_not_specialize=["num_tokens", "num_tiles", "num_strips", "max_spec_len"])
def judge_kernel(
    output_token_ids_ptr,  # [batch_size, max_spec_len + 1] int32, written
    verdicts_ptr,  # [batch_size, 3] int64, written
    progress_ptr,  # [batch_size, 4] int32, written
    tile_stats_ptr,  # [num_tokens, num_tiles] int64
    draft_token_ids_ptr,  # [num_tokens] int32
    cu_num_draft_tokens_ptr,  # [batch_size] int32
    draft_ptr,  # [num_tokens, vocab_size] float32, or None: one-hot
    draft_logsumexp_ptr,  # [num_tokens] float32, or None
    logits_ptr,  # [num_rows, vocab_size] float32
    bonus_token_ids_ptr,  # [batch_size, 1] int32, or None: there are bonus rows
    temperature_ptr,  # [batch_size] float32
    seeds_ptr,  # [batch_size] int64
    positions_ptr,  # [batch_size] int64
    num_tokens,
    vocab_size,
    logits_stride,
    draft_stride,
    num_tiles,
    num_strips,
    max_spec_len,
    DRAFT: tl.constexpr,
    EAGER: tl.constexpr,
    OVERLAP: tl.constexpr,
    POSITIONS: tl.constexpr,
    TILES: tl.constexpr,
):
    if OVERLAP:
        gdc_launch_dependents()
    req_idx = tl.program_id(0)
    progress_ptr += req_idx * PROGRESS
    start = tl.load(cu_num_draft_tokens_ptr + req_idx - 1, mask=req_idx > 0, other=0)
    count = tl.load(cu_num_draft_tokens_ptr + req_idx) - start
    temperature = tl.load(temperature_ptr + req_idx)
    position = tl.load(positions_ptr + req_idx)
    accept_uniforms, draw_uniforms = uniforms_at(tl.load(seeds_ptr + req_idx), position + tl.arange(0, POSITIONS))
    scale = exponent_scale(temperature)
    pos = tl.arange(0, POSITIONS)
    drafted = pos < count
    draft_rows = (start + pos).to(tl.int64)
    rows = draft_rows
    if bonus_token_ids_ptr is None:
        rows += req_idx
    # What the drafted tokens need, except their rows' laws.
    token_ids = tl.load(draft_token_ids_ptr + draft_rows, mask=drafted, other=-1).to(tl.int32)
    known = (token_ids >= 0) & (token_ids < vocab_size)
    logits = tl.load(logits_ptr + rows * logits_stride + token_ids, mask=known, other=float("-inf")).to(tl.float32)
    drafts = tl.zeros_like(logits) + 1.0
    if DRAFT != ONE_HOT:
        drafts = tl.load(draft_ptr + draft_rows * draft_stride + token_ids, mask=known, other=0.0).to(tl.float32)
    if EAGER:
        num_measured = tl.sum((drafted & (draft_rows < num_tokens)).to(tl.int32))
        if DRAFT == LOGITS and draft_logsumexp_ptr is None:
            num_measured += tl.sum(drafted.to(tl.int32))
        wait_until(progress_ptr + MEASURED, num_measured * num_strips)
        tl.store(progress_ptr + MEASURED, 0)
    else:
        if OVERLAP:
            gdc_wait()
        tl.store(progress_ptr + ARRIVED, 0)
    stats = load_stats(tile_stats_ptr, draft_rows, drafted, temperature, num_tiles, TILES)
    tops, totals = row_laws(stats)
    targets = tl.exp2(logits * scale - tops)
    if DRAFT == ONE_HOT:
        # The masses are without the drafted token. The bound keeps certainty finite.
        targets = tl.where(targets > 1e30, 1e30, targets)
        totals += tl.where(logits < float("inf"), targets, float("nan"))
    targets = tl.where(totals > 0, tl.div_rn(targets, totals), 0.0)
    if DRAFT == LOGITS:
        draft_tops, draft_inverses = _draft_laws(
            tile_stats_ptr, draft_logsumexp_ptr, draft_rows, drafted, temperature, num_tokens, num_tiles, TILES
        )
        drafts = tl.exp2(drafts * scale - draft_tops) * draft_inverses
    accepted = (targets > 0) & (drafts > 0) & (tl.div_rn(targets, drafts).to(tl.float64) >= accept_uniforms)
    best = ((tl.max(stats, axis=1) & NO_ID) ^ NO_ID).to(tl.int32)
    accepted = known & tl.where(temperature == 0, token_ids == best, accepted)
    # The first position that is not accepted; at the latest that after the drafts.
    num_accepted = tl.min(tl.where(accepted, POSITIONS, pos))
    complete = num_accepted == count
    stopped = pos == num_accepted
    row = start.to(tl.int64) + num_accepted
    # A rejected row without a law gives token 0, a greedy one its argmax.
    token_id = tl.where(temperature == 0, tl.sum(tl.where(stopped, best, 0)), 0)
    lawful = (temperature != 0) & (tl.sum(tl.where(stopped, totals, 0.0)) > 0)
    verdict = tl.full((), DONE, tl.int64)
    if complete:
        if bonus_token_ids_ptr is None:
            verdict = row
        else:
            token_id = tl.load(bonus_token_ids_ptr + req_idx).to(tl.int32)
    elif lawful:
        if DRAFT == ONE_HOT:
            if bonus_token_ids_ptr is None:
                row += req_idx
            token_id = pick_from_tiles(
                tl.sum(tl.where(stopped[:, None], stats, 0), axis=0),
                logits_ptr + row * logits_stride,
                tl.sum(tl.where(stopped, token_ids, 0)),
                tl.sum(tl.where(stopped, draw_uniforms, 0.0)),
                scale,
                vocab_size,
                TILES,
            )
        else:
            verdict = row
    if DRAFT != ONE_HOT or bonus_token_ids_ptr is None:
        tl.store(verdicts_ptr + req_idx * 3, verdict)
        tl.store(verdicts_ptr + req_idx * 3 + 1, tl.sum(tl.where(stopped, pack(tops, inverse(totals)), 0)))
        if DRAFT == LOGITS:
            tl.store(verdicts_ptr + req_idx * 3 + 2, tl.sum(tl.where(stopped, pack(draft_tops, draft_inverses), 0)))
        if EAGER:
            tl.debug_barrier()
            tl.atomic_xchg(progress_ptr + JUDGED, tl.where(verdict == DONE, 1, num_accepted + 2), sem="release")
    output = tl.where(pos < num_accepted, token_ids, tl.where(stopped, token_id, -1))
    width = max_spec_len + 1
    writes = (pos < width) & (pos != tl.where(verdict == DONE, -1, num_accepted))
    tl.store(output_token_ids_ptr + req_idx.to(tl.int64) * width + pos, output, mask=writes)
    if EAGER and OVERLAP:
        end_after_predecessor()
