"""The counter backend in Triton: which kernels run, on what, in what order."""

# pyright: reportCallIssue=false, reportArgumentType=false
# (Both because a kernel is launched with numbers where its definition has tl.constexpr, and with options.)

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
from torch import Tensor

from ._counter_draw import draw_kernel
from ._counter_functions import PARTS, TILE
from ._counter_handover import LOGITS, ONE_HOT, PROBS, PROGRESS
from ._counter_kernels import judge_kernel, tile_stats_kernel
from ._rejection_kernels import INTERPRETED, _silent

if TYPE_CHECKING:
    from ._counter_step import CounterStep

WARPS = 4
LANES = 256 * WARPS
"""Entries of a tile that are added side by side: 8 per thread, which is one load of 128 bits."""

STATS_STRIP = (3, 1024)
DRAW_STRIP = (2, 512)
"""Tiles per program, and how many programs there must still be; else each takes one tile. Tuned on an H200: with 3 and
2 tiles 64 requests of 3 drafts take 32 us, with one tile each 35, with 4 and 2 or 3 and 4 tiles 33."""

REGISTERS = {2: 64, 4: 96}
"""At most, by bytes per logit, of a program of several tiles. With 64, 8 of them fit a multiprocessor, and drawing is
up to 1 us faster. Measuring takes 48 by itself, and 53 to 64 where there are bonus rows: there it is kept from more."""

REGISTERS_OF_BOTH = 80
"""At most, where one kernel measures target and draft rows, and there are bonus rows: with 64 it spills."""

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
                launches.tile_masses()
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
        self.step, self.output_token_ids = step, output_token_ids
        self.draft = step.draft_logits if step.draft_probs is None else step.draft_probs
        self.draft_stride = 0 if self.draft is None else self.draft.stride(0)
        self.kind = (ONE_HOT if self.draft is None else LOGITS if step.draft_probs is None else PROBS).value
        self.has_bonus_rows = step.bonus_token_ids is None
        self.needs_draft_laws = step.draft_logits is not None and step.draft_logsumexp is None
        self.num_tiles = triton.cdiv(step.vocab_size, TILE.value)
        self.padded_tiles = triton.next_power_of_2(self.num_tiles)
        self.overlap = _launches_overlap(step.device)
        self.later = {"num_warps": WARPS, "launch_pdl": True} if self.overlap else {"num_warps": WARPS}
        strides = (step.vocab_size, step.logits.stride(0), self.draft_stride)
        self.aligned = all(stride % 16 == 0 for stride in strides)
        num_rows = step.num_tokens * (1 + self.needs_draft_laws)
        self.tile_stats = torch.empty((num_rows, self.num_tiles), dtype=torch.int64, device=step.device)
        self.verdicts = torch.empty((step.batch_size, 3), dtype=torch.int64, device=step.device)
        self.stats_strip = _strip(self.tile_stats.numel(), *STATS_STRIP)
        self.stats_strips = triton.cdiv(self.num_tiles, self.stats_strip)
        self.draws = self.has_bonus_rows or (self.draft is not None and step.num_tokens > 0)
        # A batch that fits the card at once, or has nothing to draw, leaves nothing to overlap with.
        overlaps = self.draws and step.num_tokens > 0 and self.stats_strip > 1
        workspace = step.workspace if overlaps else None
        self.eager = workspace is not None
        shape = (step.batch_size, PROGRESS.value)
        self.progress = torch.empty(shape, dtype=torch.int32, device=step.device) if workspace is None else workspace

    def tile_masses(self) -> None:
        step = self.step
        bound = {} if self.aligned and not self.has_bonus_rows else self.bound(self.stats_strip, self.needs_draft_laws)
        tile_stats_kernel[(len(self.tile_stats) * self.stats_strips,)](
            self.tile_stats,
            self.progress if self.eager else None,
            step.logits,
            step.draft_logits if self.needs_draft_laws else None,
            step.draft_token_ids,
            step.cu_num_draft_tokens,
            step.temperature,
            step.batch_size,
            step.num_tokens,
            step.vocab_size,
            step.logits.stride(0),
            self.draft_stride,
            self.num_tiles,
            self.stats_strips,
            step.max_spec_len,
            EXCLUDE=self.kind == ONE_HOT.value,
            BONUS=self.has_bonus_rows,
            OVERLAP=self.overlap,
            STRIP=self.stats_strip,
            LANES=LANES,
            num_warps=WARPS,
            **bound,
        )

    def judge(self) -> None:
        step = self.step
        judge_kernel[(step.batch_size,)](
            self.output_token_ids,
            self.verdicts,
            self.progress,
            self.tile_stats,
            step.draft_token_ids,
            step.cu_num_draft_tokens,
            self.draft,
            step.draft_logsumexp,
            step.logits,
            step.bonus_token_ids,
            step.temperature,
            step.seeds,
            step.positions,
            step.num_tokens,
            step.vocab_size,
            step.logits.stride(0),
            self.draft_stride,
            self.num_tiles,
            self.stats_strips,
            step.max_spec_len,
            DRAFT=self.kind,
            EAGER=self.eager,
            OVERLAP=self.overlap,
            POSITIONS=triton.next_power_of_2(step.max_spec_len + 1),
            TILES=self.padded_tiles,
            **self.later,
        )

    def draw(self) -> None:
        step = self.step
        shape = (step.batch_size, self.num_tiles, PARTS.value)
        part_masses = torch.empty(shape, dtype=torch.int64, device=step.device)
        strip = _strip(step.batch_size * self.num_tiles, *DRAW_STRIP)
        num_strips = triton.cdiv(self.num_tiles, strip)
        draw_kernel[(step.batch_size * num_strips,)](
            self.output_token_ids,
            part_masses,
            self.progress,
            self.verdicts,
            step.cu_num_draft_tokens,
            self.draft,
            step.logits,
            step.temperature,
            step.seeds,
            step.positions,
            step.vocab_size,
            step.logits.stride(0),
            self.draft_stride,
            self.num_tiles,
            num_strips,
            step.max_spec_len,
            DRAFT=self.kind,
            BONUS=self.has_bonus_rows,
            EAGER=self.eager,
            OVERLAP=self.overlap,
            STRIP=strip,
            TILES=self.padded_tiles,
            LANES=LANES,
            **self.later,
            **self.bound(strip),
        )

    def bound(self, strip: int, rows_of_two_kinds: bool = False) -> dict[str, int]:
        """Registers as an option of a launch, where there is one."""
        if torch.version.hip is not None:
            return {}
        if strip == 1 or not self.aligned:
            return {"maxnreg": MORE_REGISTERS}
        most = REGISTERS[self.step.logits.element_size()]
        return {"maxnreg": max(most, REGISTERS_OF_BOTH) if rows_of_two_kinds else most}


def _strip(num_tiles: int, most: int, busy: int) -> int:
    """How many tiles a program takes: as many as leave programs enough to keep the card busy, else one."""
    return most if num_tiles >= most * busy else 1


def _launches_overlap(device: torch.device) -> bool:
    """Whether the device has programmatic dependent launch: NVIDIA from Hopper on."""
    if INTERPRETED or device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device)[0] >= 9
