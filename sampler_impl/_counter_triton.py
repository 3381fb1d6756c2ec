"""The counter backend in Triton: which kernels run, on what, in what order. None writes probabilities or noise.

    rows of one request      tiles of 1024 entries
    draft row 0   [ mass | mass | ... | mass ]    1. `measure_kernel`, a program per row and strip of tiles: reads
    draft row 1   [ mass | mass | ... | mass ]       the logits behind a draft token, once, and writes 8 bytes per tile;
    draft row 2   [      |      |     |      ]       nothing of rows behind one that is known to be rejected
                             |
            accept, REJECT                        2. `judge_kernel`, a program per request: laws of the rows from their
                             |                       masses, draft tokens by gathers, the first rejected row
                             v
    draft row 1   [ masses of target - draft ]    3. `draw_kernel`, a program per request and strip: reads that one row
                             |                       of target and draft, or the bonus row if all were accepted; one
                             v                       program picks a tile, and an entry of it
                           token

On Hopper and later each kernel is launched while the one before it still runs (programmatic dependent launch), does
what does not depend on it, and waits. It waits for the whole kernel, or, if there is a workspace to leave words in, for
what it needs of it, so that a request is drawn for while rows of others are still read:

    1. [ row 0 of all ][ row 1 of most ][ row 2 of some ]
    2.                 judge ....... judge ... judge
    3.                        [ draw ][ draw ]    [ draw ]

That cannot lock up: programs of a kernel start when all of the one before have started, so what is waited for runs.

No integer but `vocab_size` and the strides is specialised on, and those only on being multiples of 16, which allows
128-bit loads; tiles and positions are padded to powers of two.
"""

# pyright: reportCallIssue=false, reportArgumentType=false
# (Both because a kernel is launched with numbers where its definition has tl.constexpr, and with options.)

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import triton
from torch import Tensor

from ._counter_draw import draw_kernel
from ._counter_functions import TILE
from ._counter_handover import EVIDENCE, LOGITS, ONE_HOT, PROBS, SEEN, VERDICT
from ._counter_judge import judge_kernel
from ._counter_measure import measure_kernel
from ._counter_step import ALIGNED_WORDS, row_words, workspace_words
from ._rejection_kernels import INTERPRETED, _silent

if TYPE_CHECKING:
    from ._counter_step import CounterStep

WARPS = 4
"""Of a program, each of which has a tile of every block to itself."""
RUN = 512
"""Bytes that a warp reads at once: a load of 128 bits per thread."""

MEASURE_STRIPS = {3: 16384, 2: 3072}
DRAW_STRIPS = {2: 1024}
"""Blocks per program, from so many blocks on; else each program takes one. Tuned on an H200."""

LONGEST_SIDE = (1 << 15) - 1
"""Requests side by side in a grid, whose second and third side end at 65535 programs; more are folded."""

WORDS_PER_WARP = 256
"""Of a request's rows, which `judge_kernel` looks at together: with fewer warps a look takes longer."""

REGISTERS = {2: 72, 4: 96}
"""At most, by bytes per logit, of a program that draws from several blocks: with 72, 7 of them fit a multiprocessor and
nothing is spilled. Bonus rows take 8 more."""

ONE_HOT_REGISTERS = 56
"""Of a program that measures several blocks: 9 of them fit. With 10 or 7, one-hot drafts take longer."""

MORE_REGISTERS = 128
"""At most, where the card is not full anyway, and where rows do not begin at multiples of 16 entries: with fewer the
masks of single loads are spilled."""


def verify(step: CounterStep) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    """Launch the kernels: two for one-hot drafts with given bonus tokens, else three; nothing waits for the device."""
    output_token_ids = torch.empty((step.batch_size, step.max_spec_len + 1), dtype=torch.int32, device=step.device)
    if step.batch_size > 0:
        launches = _Launches(step, output_token_ids)
        with _silent():
            if step.num_tokens > 0:
                launches.measure()
            launches.judge()
            if launches.draws:
                launches.draw()
    return output_token_ids


class _Launches:
    """One step's kernels with what they hand on to each other."""

    def __init__(
        self,
        step: CounterStep,
        output_token_ids: Tensor,  # [batch_size, max_spec_len + 1] int32, written
    ) -> None:
        step = _of_one_type(step)
        self.step, self.output_token_ids = step, output_token_ids
        self.draft = step.draft_logits if step.draft_probs is None else step.draft_probs
        self.draft_stride = 0 if self.draft is None else self.draft.stride(0)
        self.kind = (ONE_HOT if self.draft is None else LOGITS if step.draft_probs is None else PROBS).value
        self.has_bonus_rows = step.bonus_token_ids is None
        self.needs_draft_laws = step.draft_logits is not None and step.draft_logsumexp is None
        self.num_tiles = triton.cdiv(step.vocab_size, TILE.value)
        self.overlap = _launches_overlap(step.device)
        strides = (step.vocab_size, step.logits.stride(0), self.draft_stride)
        self.aligned = all(stride % 16 == 0 for stride in strides)
        self.draws = self.has_bonus_rows or (self.draft is not None and step.num_tokens > 0)
        rows_of_both = 1 + self.needs_draft_laws
        num_blocks = triton.cdiv(self.num_tiles, WARPS)
        self.strip = _strip(step.num_tokens * rows_of_both * num_blocks, MEASURE_STRIPS)
        self.num_strips = triton.cdiv(num_blocks, self.strip)
        self.draw_strip = _strip(step.batch_size * num_blocks, DRAW_STRIPS)
        self.num_draw_strips = triton.cdiv(num_blocks, self.draw_strip)
        self.folds = triton.cdiv(step.batch_size, LONGEST_SIDE)
        self.positions = triton.next_power_of_2(step.max_spec_len + 1)
        self.pitch = row_words(step.max_spec_len, step.vocab_size)
        self.eager = step.workspace is not None
        words = step.workspace
        if words is None:
            size = workspace_words(step.batch_size, step.max_spec_len, step.vocab_size)
            words = torch.empty(size, dtype=torch.int64, device=step.device)
        num_lines = step.batch_size * step.max_spec_len
        self.stats, words = _cut(words, num_lines * rows_of_both * self.pitch)
        self.verdicts, words = _cut(words, step.batch_size * VERDICT.value)
        self.masses, words = _cut(words, step.batch_size * self.num_tiles)
        evidence, _ = _cut(words, num_lines * EVIDENCE.value // 2)
        # Without a workspace there are no zeros to begin with, a target law alone proves nothing of two, and the rows
        # of a batch that fits the card are all read at the same time.
        proves = self.eager and self.strip > 1 and not self.needs_draft_laws
        self.evidence = evidence.view(torch.float32) if proves else None

    def measure(self) -> None:
        step = self.step
        # Programs are numbered by request and position, unless too many requests lack too many of these.
        ragged = step.batch_size * step.max_spec_len > 2 * step.num_tokens
        minor, major = step.max_spec_len * self.folds, triton.cdiv(step.batch_size, self.folds)
        if ragged:
            minor = min(step.num_tokens, LONGEST_SIDE)
            major = triton.cdiv(step.num_tokens, minor)
        elif self.evidence is not None:
            minor, major = major, minor
        measure_kernel[(self.num_strips, minor, major * (1 + self.needs_draft_laws))](
            self.evidence,
            self.stats,
            step.logits,
            self.draft,
            step.draft_logsumexp,
            step.draft_token_ids,
            step.cu_num_draft_tokens,
            step.temperature,
            step.seeds,
            step.positions,
            step.batch_size,
            step.num_tokens,
            0 if ragged else self.folds,
            step.vocab_size,
            step.logits.stride(0),
            self.draft_stride,
            self.num_tiles,
            step.max_spec_len,
            DRAFT=self.kind,
            BOTH=self.needs_draft_laws,
            BONUS=self.has_bonus_rows,
            CHUNKS=self.pitch // 32,
            OVERLAP=self.overlap,
            STRIP=self.strip,
            BLOCK=WARPS,
            RUN=RUN // step.logits.element_size(),
            num_warps=WARPS,
            **self.measure_bound(),
        )

    def judge(self) -> None:
        step = self.step
        judge_kernel[(step.batch_size,)](
            self.output_token_ids,
            self.verdicts,
            self.evidence,
            self.stats,
            step.logits,
            self.draft,
            step.draft_logsumexp,
            step.draft_token_ids,
            step.cu_num_draft_tokens,
            step.bonus_token_ids,
            step.temperature,
            step.seeds,
            step.positions,
            self.masses if self.draws else None,
            step.num_tokens,
            step.vocab_size,
            step.logits.stride(0),
            self.draft_stride,
            self.num_tiles,
            self.pitch,
            step.max_spec_len,
            DRAFT=self.kind,
            BOTH=self.needs_draft_laws,
            EAGER=self.eager,
            OVERLAP=self.overlap,
            POSITIONS=self.positions,
            TILES=self.pitch,
            num_warps=min(max(self.positions * self.pitch // WORDS_PER_WARP, WARPS), 4 * WARPS),
            # A step's first kernel waits for what comes before the step, as for its logits.
            **({"launch_pdl": True} if self.overlap and step.num_tokens > 0 else {}),
        )

    def draw(self) -> None:
        step = self.step
        draw_kernel[(self.num_draw_strips, triton.cdiv(step.batch_size, self.folds), self.folds)](
            self.output_token_ids,
            self.masses,
            self.verdicts,
            step.cu_num_draft_tokens,
            self.draft,
            step.logits,
            step.temperature,
            step.seeds,
            step.positions,
            step.batch_size,
            step.vocab_size,
            step.logits.stride(0),
            self.draft_stride,
            self.num_tiles,
            step.max_spec_len,
            DRAFT=self.kind,
            BONUS=self.has_bonus_rows,
            EAGER=self.eager,
            OVERLAP=self.overlap,
            STRIP=self.draw_strip,
            TILES=max(triton.next_power_of_2(self.num_tiles), SEEN.value),
            BLOCK=WARPS,
            RUN=RUN // 2,
            num_warps=WARPS,
            **({"launch_pdl": True} if self.overlap else {}),
            **self.bound(self.draw_strip),
        )

    def measure_bound(self) -> dict[str, int]:
        """As below; but of two bytes per logit and several blocks the compiler takes fewer by itself, 64 at most."""
        narrow = self.aligned and self.step.logits.element_size() == 2
        if torch.version.hip is not None:
            return {}
        if narrow and self.strip > 1:
            return {"maxnreg": ONE_HOT_REGISTERS} if self.kind == ONE_HOT.value else {}
        return {"maxnreg": REGISTERS[2] if narrow else MORE_REGISTERS}

    def bound(self, strip: int) -> dict[str, int]:
        """Registers as an option of a launch, where there is one."""
        if torch.version.hip is not None:
            return {}
        if strip == 1 or not self.aligned:
            return {"maxnreg": MORE_REGISTERS}
        return {"maxnreg": REGISTERS[self.step.logits.element_size()] + 8 * self.has_bonus_rows}


def _of_one_type(step: CounterStep) -> CounterStep:
    """Rows of logits that one kernel measures have one type."""
    if step.draft_logits is None or step.draft_logsumexp is not None or step.draft_logits.dtype == step.logits.dtype:
        return step
    return replace(step, logits=step.logits.float(), draft_logits=step.draft_logits.float())


def _cut(
    space: Tensor,  # [num_words] int64
    size: int,
) -> tuple[Tensor, Tensor]:  # [num_words] int64, [num_words] int64
    """Off the beginning; the rest begins where a compiler can load 128 bits, as the beginning did."""
    return space[:size], space[triton.cdiv(size, ALIGNED_WORDS) * ALIGNED_WORDS :]


def _strip(num_blocks: int, strips: dict[int, int]) -> int:
    """How many blocks a program takes: as many as leave programs enough to keep the card busy, else one."""
    return next((strip for strip, busy in strips.items() if num_blocks >= busy), 1)


def _launches_overlap(device: torch.device) -> bool:
    """Whether the device has programmatic dependent launch: NVIDIA from Hopper on."""
    if INTERPRETED or device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device)[0] >= 9
