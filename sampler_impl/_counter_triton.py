"""The counter backend in Triton: which kernels run, on what, in what order."""

# pyright: reportCallIssue=false, reportArgumentType=false
# (Both because a kernel is launched with numbers where its definition has tl.constexpr, and with options.)

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
from torch import Tensor

from ._counter_functions import TILE
from ._counter_kernels import LOGITS, ONE_HOT, PARTS, PROBS, judge_kernel, residual_kernel, tile_stats_kernel
from ._rejection_kernels import INTERPRETED, _silent

if TYPE_CHECKING:
    from ._counter_step import CounterStep

STATS_LANES = 512
"""Entries of a tile that are added side by side, 8 per thread of 2 warps. On an H200, 256 requests of 3 drafts took
101.1 us in all, with 4 warps 102.1, with 8 warps 120."""


def verify(step: CounterStep) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    """Launch the kernels: two for one-hot drafts, else three; nothing waits for the device."""
    output_token_ids = torch.empty((step.batch_size, step.max_spec_len + 1), dtype=torch.int32, device=step.device)
    if step.batch_size > 0:
        launches = _Launches(step, output_token_ids)
        with _silent():
            if len(launches.tile_stats) > 0:
                launches.tile_masses()
            launches.judge()
            if launches.draft is not None and step.num_tokens > 0:
                launches.residual()
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
        self.later = {"num_warps": 4, "launch_pdl": True} if self.overlap else {"num_warps": 4}
        num_rows = step.num_rows + (step.num_tokens if self.needs_draft_laws else 0)
        self.tile_stats = torch.empty((num_rows, self.num_tiles), dtype=torch.int64, device=step.device)
        self.verdicts = torch.empty((step.batch_size, 3), dtype=torch.int64, device=step.device)
        self.num_arrived = torch.empty(step.batch_size, dtype=torch.int32, device=step.device)

    def tile_masses(self) -> None:
        step = self.step
        tile_stats_kernel[(self.tile_stats.numel(),)](
            self.tile_stats,
            step.logits,
            step.draft_logits if self.needs_draft_laws else None,
            step.draft_token_ids,
            step.cu_num_draft_tokens,
            step.temperature,
            step.batch_size,
            step.num_rows,
            step.vocab_size,
            step.logits.stride(0),
            self.draft_stride,
            self.num_tiles,
            step.max_spec_len,
            EXCLUDE=self.kind == ONE_HOT.value,
            BONUS=self.has_bonus_rows,
            OVERLAP=self.overlap,
            LANES=STATS_LANES,
            num_warps=2,
        )

    def judge(self) -> None:
        step = self.step
        judge_kernel[(step.batch_size,)](
            self.output_token_ids,
            self.verdicts,
            self.num_arrived,
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
            step.num_rows,
            step.vocab_size,
            step.logits.stride(0),
            self.draft_stride,
            self.num_tiles,
            step.max_spec_len,
            DRAFT=self.kind,
            OVERLAP=self.overlap,
            POSITIONS=triton.next_power_of_2(step.max_spec_len + 1),
            TILES=self.padded_tiles,
            **self.later,
        )

    def residual(self) -> None:
        step = self.step
        shape = (step.batch_size, self.num_tiles, PARTS.value)
        part_masses = torch.empty(shape, dtype=torch.float32, device=step.device)
        residual_kernel[(step.batch_size * self.num_tiles,)](
            self.output_token_ids,
            part_masses,
            self.num_arrived,
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
            step.max_spec_len,
            DRAFT=self.kind,
            BONUS=self.has_bonus_rows,
            OVERLAP=self.overlap,
            TILES=self.padded_tiles,
            **self.later,
        )


def _launches_overlap(device: torch.device) -> bool:
    """Whether the device has programmatic dependent launch: NVIDIA from Hopper on."""
    if INTERPRETED or device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device)[0] >= 9
