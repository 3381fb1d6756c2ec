"""The Triton backend of `rejection_counter`: which kernels run, on what, in what order. None writes probabilities.

    rows of one request      tiles of 1024 entries
    draft row 0   [ sum | sum | ... | sum ]       1. `measure_kernel`, a program per row and strip of tiles: reads the
    draft row 1   [ sum | sum | ... | sum ]          logits of draft tokens once and writes 8 bytes per tile; skips rows
    draft row 2   [     |     |     |     ]          behind a token that is known rejected
                             |
            accept, REJECT                        2. `accept_kernel`, a program per request: softmax statistics of the
                             |                       rows from their partial sums, and the first rejected row
                             v
    draft row 1   [ sums of target - draft ]      3. `draw_kernel`, a program per request and strip: reads that one row
                             |                       of target and draft, or the bonus row if all were accepted; one
                             v                       program samples a tile, and an entry of it
                           token

On Hopper and later each kernel is launched while the one before it still runs (programmatic dependent launch), does
what does not depend on it, and waits: for the whole kernel, or, with a workspace, only for the slots that it needs.
Then a request is drawn for while rows of others are still read:

    1. [ row 0 of all ][ row 1 of most ][ row 2 of some ]
    2.                 accept ....... accept ... accept
    3.                        [ draw ][ draw ]    [ draw ]

That cannot deadlock: programs of a kernel start when all of the one before have started, so what they spin on runs.

No integer but `vocab_size` and the strides is specialised on, and those only on being multiples of 16, which allows
128-bit loads; tiles and positions are padded to a power of two.
"""

# pyright: reportCallIssue=false, reportArgumentType=false
# (A kernel is launched with numbers where its definition has tl.constexpr, and with options.)

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from .._shared.compiled import Compiled, Given, Grid, LaunchPlan, compiled, launches_overlap, part
from .._shared.kernels import INTERPRETED
from .._shared.sizes import cdiv, next_power_of_2
from .accept import accept_kernel
from .draw import draw_kernel
from .measure import measure_kernel
from .slots import BOUND_WORDS, LOGITS, ONE_HOT, PROBS, SNAPSHOT, STATUS_WORDS
from .step import ALIGNED_WORDS, KNOWN, TILE_SIZE, WARPS, CounterStep, row_words, workspace_words

RUN_BYTES = 512
"""Bytes that a warp reads at once: a load of 128 bits per thread."""

MEASURE_STRIPS = {3: 16384, 2: 3072}
DRAW_STRIPS = {2: 1024}
"""Blocks per program, from so many blocks on; else each program takes one. Tuned on an H200."""

LONGEST_SIDE = (1 << 15) - 1
"""Requests side by side in a grid, whose second and third side end at 65535 programs; more are folded."""

WORDS_PER_WARP = 256
"""Words of a request's slots, which `accept_kernel` loads together: with fewer warps a poll takes longer."""

REGISTERS = {2: 72, 4: 96}
"""Most registers, by bytes per logit, of a program that draws from several blocks: with 72, 7 of them fit a
multiprocessor and nothing is spilled. Bonus rows take 8 more."""

ONE_HOT_REGISTERS = 56
"""Registers of a program that measures several blocks: 9 of them fit. With 10 or 7, one-hot drafts take longer."""

MORE_REGISTERS = 128
"""Most registers where the card is not full anyway, and where rows do not begin at multiples of 16 entries: with fewer
the masks of single loads are spilled."""


def verify(step: CounterStep) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    """Launch the kernels: two for one-hot drafts with given bonus tokens, else three; nothing waits for the device."""
    if step.batch_size == 0:
        return torch.empty((0, step.max_spec_len + 1), dtype=torch.int32, device=step.device)
    step = _of_one_type(step)
    plan = _Plan(step) if INTERPRETED else KNOWN.find_or_make(step, lambda: _Plan(step))
    return plan(step)


class _Plan(LaunchPlan):
    """The kernels of steps of one kind, and the memory through which they pass on what they found."""

    def __init__(self, step: CounterStep) -> None:
        super().__init__(step.device)
        self.batch_size, self.num_tokens, self.max_spec_len = step.batch_size, step.num_tokens, step.max_spec_len
        self.output_shape = (step.batch_size, step.max_spec_len + 1)
        draft = step.draft_logits if step.draft_probs is None else step.draft_probs
        self.kind = (ONE_HOT if draft is None else LOGITS if step.draft_probs is None else PROBS).value
        self.has_bonus_rows = step.bonus_token_ids is None
        self.draws = self.has_bonus_rows or (draft is not None and step.num_tokens > 0)
        # The draft's softmax statistics are measured as the target's are, unless they are given.
        self.measured_rows = 2 if step.draft_logits is not None and step.draft_logsumexp is None else 1
        self.overlap = launches_overlap(step.device)
        self.folds = cdiv(step.batch_size, LONGEST_SIDE)
        self.bytes_per_logit, vocab_size = step.logits.element_size(), step.vocab_size
        self.num_tiles = cdiv(vocab_size, TILE_SIZE)
        logits_stride, draft_stride = step.logits.stride(0), 0 if draft is None else draft.stride(0)
        self.aligned = all(stride % 16 == 0 for stride in (vocab_size, logits_stride, draft_stride))
        self.num_blocks = cdiv(self.num_tiles, WARPS)
        self.strip = _strip(step.num_tokens * self.measured_rows * self.num_blocks, MEASURE_STRIPS)
        self.eager = step.workspace is not None
        self._cut_workspace(vocab_size)
        # Programs that measure are numbered by request and position, unless too many requests lack too many of these.
        self.ragged = self.batch_size * self.max_spec_len > 2 * self.num_tokens
        self.sizes = {
            "batch_size": self.batch_size,
            "num_tokens": self.num_tokens,
            "folds": 0 if self.ragged else self.folds,
            "vocab_size": vocab_size,
            "logits_stride": logits_stride,
            "draft_stride": draft_stride,
            "num_tiles": self.num_tiles,
            "row_words": self.row_words,
            "max_spec_len": self.max_spec_len,
        }
        measured = [self._measure()] if step.num_tokens > 0 else []
        self.launches = [*measured, self._accept(), *([self._draw()] if self.draws else [])]

    def __call__(self, step: CounterStep) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        output_token_ids = torch.empty(self.output_shape, dtype=torch.int32, device=self.device)
        words = step.workspace
        if words is None:
            words = torch.empty(self.num_words, dtype=torch.int64, device=self.device)
        draft = step.draft_logits if step.draft_probs is None else step.draft_probs
        requests = step.cu_num_draft_tokens, step.temperature, step.seeds, step.positions
        drafts = step.draft_token_ids, draft, step.draft_logsumexp, step.bonus_token_ids
        self.launch((output_token_ids, words, step.logits, *drafts, *requests))
        return output_token_ids

    def named(self, given: Given) -> dict[str, Any]:  # Any: as given, and numbers
        output_token_ids, words, logits, ids, draft, logsumexp, bonus, cu_num_draft_tokens, *counters = given
        temperature, seeds, positions = counters
        partial_sums, status, draw_sums = (part(words, *place) for place in self.places)
        return {
            "output_token_ids_ptr": output_token_ids,
            "exit_bounds_ptr": None if self.bounds_place is None else part(words, *self.bounds_place, torch.float32),
            "partial_sums_ptr": partial_sums,
            "status_ptr": status,
            "draw_sums_ptr": draw_sums if self.draws else None,
            "logits_ptr": logits,
            "draft_ptr": draft,
            "draft_logsumexp_ptr": logsumexp,
            "draft_token_ids_ptr": ids,
            "cu_num_draft_tokens_ptr": cu_num_draft_tokens,
            "bonus_token_ids_ptr": bonus,
            "temperature_ptr": temperature,
            "seeds_ptr": seeds,
            "positions_ptr": positions,
            **self.sizes,
        }

    def _cut_workspace(self, vocab_size: int) -> None:
        """Note where each part begins, and its size; a compiler can load 128 bits there, if it can at the beginning."""
        self.num_words = workspace_words(self.batch_size, self.max_spec_len, vocab_size)
        self.row_words = row_words(self.max_spec_len, vocab_size)
        num_lines = self.batch_size * self.max_spec_len
        sizes = (
            num_lines * self.measured_rows * self.row_words,
            self.batch_size * STATUS_WORDS.value,
            self.batch_size * self.num_tiles,
            num_lines * BOUND_WORDS.value // 2,
        )
        starts = accumulate((cdiv(size, ALIGNED_WORDS) * ALIGNED_WORDS for size in sizes), initial=0)
        *self.places, bounds_place = zip(starts, sizes, strict=False)
        # Early exit needs zeros to begin with, which only a workspace has, and the draft's statistics beforehand. And
        # in a batch that fits the card all rows are read at the same time.
        exits = self.eager and self.strip > 1 and self.measured_rows == 1
        self.bounds_place = bounds_place if exits else None

    def _measure(self) -> tuple[Compiled, Grid]:
        minor, major = self.max_spec_len * self.folds, cdiv(self.batch_size, self.folds)
        if self.ragged:
            minor = min(self.num_tokens, LONGEST_SIDE)
            major = cdiv(self.num_tokens, minor)
        elif self.bounds_place is not None:
            minor, major = major, minor
        kernel = compiled(
            measure_kernel,
            {"num_warps": WARPS, **self._measure_registers()},
            DRAFT=self.kind,
            BONUS=self.has_bonus_rows,
            CHUNKS=self.row_words // 32,
            OVERLAP=self.overlap,
            STRIP=self.strip,
            RUN=RUN_BYTES // self.bytes_per_logit,
        )
        return kernel, (cdiv(self.num_blocks, self.strip), minor, major * self.measured_rows)

    def _accept(self) -> tuple[Compiled, Grid]:
        positions = next_power_of_2(self.max_spec_len + 1)
        warps = min(max(positions * self.row_words // WORDS_PER_WARP, WARPS), 4 * WARPS)
        # A step's first kernel waits for what comes before the step, as for its logits.
        early = {"launch_pdl": True} if self.overlap and self.num_tokens > 0 else {}
        kernel = compiled(
            accept_kernel,
            {"num_warps": warps, **early},
            DRAFT=self.kind,
            EAGER=self.eager,
            OVERLAP=self.overlap,
            POSITIONS=positions,
            TILES=self.row_words,
        )
        return kernel, (self.batch_size, 1, 1)

    def _draw(self) -> tuple[Compiled, Grid]:
        strip = _strip(self.batch_size * self.num_blocks, DRAW_STRIPS)
        early = {"launch_pdl": True} if self.overlap else {}
        kernel = compiled(
            draw_kernel,
            {"num_warps": WARPS, **early, **self._draw_registers(strip)},
            DRAFT=self.kind,
            BONUS=self.has_bonus_rows,
            EAGER=self.eager,
            OVERLAP=self.overlap,
            STRIP=strip,
            TILES=max(next_power_of_2(self.num_tiles), SNAPSHOT.value),
        )
        return kernel, (cdiv(self.num_blocks, strip), cdiv(self.batch_size, self.folds), self.folds)

    def _measure_registers(self) -> dict[str, int]:
        """Return options as `_draw_registers` does; but of two bytes per logit and several blocks the compiler takes
        fewer by itself, 64 at most."""
        narrow = self.aligned and self.bytes_per_logit == 2
        if narrow and self.strip > 1:
            return _registers(ONE_HOT_REGISTERS) if self.kind == ONE_HOT.value else {}
        return _registers(REGISTERS[2] if narrow else MORE_REGISTERS)

    def _draw_registers(self, strip: int) -> dict[str, int]:
        if strip == 1 or not self.aligned:
            return _registers(MORE_REGISTERS)
        return _registers(REGISTERS[self.bytes_per_logit] + 8 * self.has_bonus_rows)


def _registers(most: int) -> dict[str, int]:
    """Return the bound as an option of a launch, where there is one."""
    return {} if torch.version.hip is not None else {"maxnreg": most}


def _of_one_type(step: CounterStep) -> CounterStep:
    """Return the step with rows of one type, if one kernel measures them."""
    if step.draft_logits is None or step.draft_logsumexp is not None or step.draft_logits.dtype == step.logits.dtype:
        return step
    return step._replace(logits=step.logits.float(), draft_logits=step.draft_logits.float())


def _strip(num_blocks: int, strips: dict[int, int]) -> int:
    """Return how many blocks a program takes: as many as leave programs enough to keep the card busy, else one."""
    return next((strip for strip, busy in strips.items() if num_blocks >= busy), 1)
