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

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import triton
from torch import Tensor

from .._shared.kernels import INTERPRETED, quiet_numpy
from .accept import accept_kernel
from .draw import draw_kernel
from .measure import measure_kernel
from .slots import BOUND_WORDS, LOGITS, ONE_HOT, PROBS, SNAPSHOT, STATUS_WORDS
from .step import ALIGNED_WORDS, TILE_SIZE, WARPS, row_words, workspace_words

if TYPE_CHECKING:
    from .step import CounterStep

RUN_BYTES = 512
"""What a warp reads at once: a load of 128 bits per thread."""

MEASURE_STRIPS = {3: 16384, 2: 3072}
DRAW_STRIPS = {2: 1024}
"""Blocks per program, from so many blocks on; else each program takes one. Tuned on an H200."""

LONGEST_SIDE = (1 << 15) - 1
"""Requests side by side in a grid, whose second and third side end at 65535 programs; more are folded."""

WORDS_PER_WARP = 256
"""Of a request's slots, which `accept_kernel` loads together: with fewer warps a poll takes longer."""

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
        with quiet_numpy():
            if step.num_tokens > 0:
                launches.measure()
            launches.accept()
            if launches.draws:
                launches.draw()
    return output_token_ids


class _Launches:
    """The kernels of one step, and the memory through which they pass on what they found."""

    def __init__(
        self,
        step: CounterStep,
        output_token_ids: Tensor,  # [batch_size, max_spec_len + 1] int32, written
    ) -> None:
        step = _of_one_type(step)
        self.step, self.output_token_ids = step, output_token_ids
        draft = step.draft_logits if step.draft_probs is None else step.draft_probs
        self.kind = (ONE_HOT if draft is None else LOGITS if step.draft_probs is None else PROBS).value
        self.has_bonus_rows = step.bonus_token_ids is None
        self.draws = self.has_bonus_rows or (draft is not None and step.num_tokens > 0)
        # The draft's softmax statistics are measured as the target's are, unless they are given.
        self.measured_rows = 2 if step.draft_logits is not None and step.draft_logsumexp is None else 1
        self.overlap = launches_overlap(step.device)
        self.folds = triton.cdiv(step.batch_size, LONGEST_SIDE)
        self.common: dict[str, Any] = {  # Any: arguments that all three kernels have
            "logits_ptr": step.logits,
            "draft_ptr": draft,
            "cu_num_draft_tokens_ptr": step.cu_num_draft_tokens,
            "temperature_ptr": step.temperature,
            "seeds_ptr": step.seeds,
            "positions_ptr": step.positions,
            "vocab_size": step.vocab_size,
            "logits_stride": step.logits.stride(0),
            "draft_stride": 0 if draft is None else draft.stride(0),
            "num_tiles": triton.cdiv(step.vocab_size, TILE_SIZE),
            "max_spec_len": step.max_spec_len,
            "DRAFT": self.kind,
            "OVERLAP": self.overlap,
        }
        self.aligned = all(self.common[name] % 16 == 0 for name in ("vocab_size", "logits_stride", "draft_stride"))
        self.num_blocks = triton.cdiv(self.common["num_tiles"], WARPS)
        self.strip = _strip(step.num_tokens * self.measured_rows * self.num_blocks, MEASURE_STRIPS)
        self._cut_workspace()

    def _cut_workspace(self) -> None:
        step = self.step
        self.row_words = row_words(step.max_spec_len, step.vocab_size)
        self.eager = step.workspace is not None
        words = step.workspace
        if words is None:
            size = workspace_words(step.batch_size, step.max_spec_len, step.vocab_size)
            words = torch.empty(size, dtype=torch.int64, device=step.device)
        num_lines = step.batch_size * step.max_spec_len
        self.partial_sums, words = _cut(words, num_lines * self.measured_rows * self.row_words)
        self.status, words = _cut(words, step.batch_size * STATUS_WORDS.value)
        self.draw_sums, words = _cut(words, step.batch_size * self.common["num_tiles"])
        bounds, _ = _cut(words, num_lines * BOUND_WORDS.value // 2)
        # Early exit needs zeros to begin with, which only a workspace has, and the draft's statistics beforehand. And
        # in a batch that fits the card all rows are read at the same time.
        exits = self.eager and self.strip > 1 and self.measured_rows == 1
        self.exit_bounds = bounds.view(torch.float32) if exits else None

    def measure(self) -> None:
        step = self.step
        # Programs are numbered by request and position, unless too many requests lack too many of these.
        ragged = step.batch_size * step.max_spec_len > 2 * step.num_tokens
        minor, major = step.max_spec_len * self.folds, triton.cdiv(step.batch_size, self.folds)
        if ragged:
            minor = min(step.num_tokens, LONGEST_SIDE)
            major = triton.cdiv(step.num_tokens, minor)
        elif self.exit_bounds is not None:
            minor, major = major, minor
        measure_kernel[(triton.cdiv(self.num_blocks, self.strip), minor, major * self.measured_rows)](
            **self.common,
            exit_bounds_ptr=self.exit_bounds,
            partial_sums_ptr=self.partial_sums,
            draft_logsumexp_ptr=step.draft_logsumexp,
            draft_token_ids_ptr=step.draft_token_ids,
            batch_size=step.batch_size,
            num_tokens=step.num_tokens,
            folds=0 if ragged else self.folds,
            BONUS=self.has_bonus_rows,
            CHUNKS=self.row_words // 32,
            STRIP=self.strip,
            RUN=RUN_BYTES // step.logits.element_size(),
            num_warps=WARPS,
            **self._measure_registers(),
        )

    def accept(self) -> None:
        step = self.step
        positions = triton.next_power_of_2(step.max_spec_len + 1)
        accept_kernel[(step.batch_size,)](
            **self.common,
            output_token_ids_ptr=self.output_token_ids,
            status_ptr=self.status,
            exit_bounds_ptr=self.exit_bounds,
            partial_sums_ptr=self.partial_sums,
            draft_logsumexp_ptr=step.draft_logsumexp,
            draft_token_ids_ptr=step.draft_token_ids,
            bonus_token_ids_ptr=step.bonus_token_ids,
            draw_sums_ptr=self.draw_sums if self.draws else None,
            num_tokens=step.num_tokens,
            row_words=self.row_words,
            EAGER=self.eager,
            POSITIONS=positions,
            TILES=self.row_words,
            num_warps=min(max(positions * self.row_words // WORDS_PER_WARP, WARPS), 4 * WARPS),
            # A step's first kernel waits for what comes before the step, as for its logits.
            **({"launch_pdl": True} if self.overlap and step.num_tokens > 0 else {}),
        )

    def draw(self) -> None:
        step = self.step
        strip = _strip(step.batch_size * self.num_blocks, DRAW_STRIPS)
        sides = triton.cdiv(step.batch_size, self.folds), self.folds
        draw_kernel[(triton.cdiv(self.num_blocks, strip), *sides)](
            **self.common,
            output_token_ids_ptr=self.output_token_ids,
            draw_sums_ptr=self.draw_sums,
            status_ptr=self.status,
            batch_size=step.batch_size,
            BONUS=self.has_bonus_rows,
            EAGER=self.eager,
            STRIP=strip,
            TILES=max(triton.next_power_of_2(self.common["num_tiles"]), SNAPSHOT.value),
            num_warps=WARPS,
            **({"launch_pdl": True} if self.overlap else {}),
            **self._draw_registers(strip),
        )

    def _measure_registers(self) -> dict[str, int]:
        """As below; but of two bytes per logit and several blocks the compiler takes fewer by itself, 64 at most."""
        narrow = self.aligned and self.step.logits.element_size() == 2
        if narrow and self.strip > 1:
            return _registers(ONE_HOT_REGISTERS) if self.kind == ONE_HOT.value else {}
        return _registers(REGISTERS[2] if narrow else MORE_REGISTERS)

    def _draw_registers(self, strip: int) -> dict[str, int]:
        if strip == 1 or not self.aligned:
            return _registers(MORE_REGISTERS)
        return _registers(REGISTERS[self.step.logits.element_size()] + 8 * self.has_bonus_rows)


def _registers(most: int) -> dict[str, int]:
    """The bound as an option of a launch, where there is one."""
    return {} if torch.version.hip is not None else {"maxnreg": most}


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


def launches_overlap(device: torch.device) -> bool:
    """Whether the device has programmatic dependent launch: NVIDIA from Hopper on."""
    if INTERPRETED or device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device)[0] >= 9
