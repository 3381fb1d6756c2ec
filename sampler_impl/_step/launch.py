"""The Triton backend of a step: which kernels run, on what, in what order. None writes anything of a row's size.

    edits    (if there are any) a program per row: ids that are edited, and their logits
    scan     a program per request and strip: every logit once; 8 bytes per tile of 1024
    settle   a program per row: what is kept, whether the draft token is accepted, the token instead
    emit     a program per request: accepted tokens, and the token of the first rejected row

`Launches` belongs to a plan: it owns the memory through which they pass on what they found, and what they return.
"""

# pyright: reportCallIssue=false, reportArgumentType=false
# (A kernel is launched with numbers where its definition has tl.constexpr, and with options.)

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from .._shared.kernels import quiet_numpy
from .edits import edit_kernel
from .emit import emit_kernel
from .inputs import RUN_SIZE, TILE_SIZE, Capacity, StepInputs, StepOutput, TokenEdits
from .processed import processed_kernel
from .scan import scan_kernel
from .settle import settle_kernel

RUNS = TILE_SIZE // RUN_SIZE
SCAN_OPTIONS={}
SCAN_BLOCK = 4
"""Tiles that a program of the scan has in flight: each of its four warps has one to itself."""
BLOCK = 8
"""Runs that other kernels have in flight."""
SETTLE_WARPS = {False: 4, True: 4}
SETTLE_OPTIONS = {'maxnreg': 128}
"""Without and with filters. Tuned on an H200, as everything here."""
MOST = 8192
"""Candidates of a row. More of them are found by reading the row again and again."""
SCAN_PROGRAMS = 1056
"""Programs that fill a card; a strip is as long as leaves so many, but at most LONGEST_STRIP blocks."""
LONGEST_STRIP = 1


class Launches:
    """The kernels of a plan and their memory."""

    def __init__(self, capacity: Capacity, device: torch.device) -> None:
        self.capacity = capacity
        self.all_tiles = capacity.num_tiles + capacity.edit_tiles
        self.num_blocks = triton.cdiv(self.all_tiles, SCAN_BLOCK)
        self.tiles = triton.next_power_of_2(max(self.all_tiles, 2))
        self.num_words = triton.cdiv(capacity.vocab_size, 32)
        self.edit_capacity = triton.next_power_of_2(max(capacity.max_edits, 16)) if capacity.max_edits else 0
        self._allocate(device)

    def _allocate(self, device: torch.device) -> None:
        capacity, rows = self.capacity, self.capacity.max_rows

        def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:  # [...] int32
            return torch.zeros(shape, dtype=dtype, device=device)

        self.words = empty(rows, self.all_tiles, dtype=torch.int64)
        self.reached = empty(rows, self.all_tiles, dtype=torch.int64) if capacity.filters else None
        logprobs = empty(rows, 2, dtype=torch.float32) if capacity.logprobs else None
        self.results = (empty(rows), empty(rows), empty(rows), empty(rows, 2, dtype=torch.float32), logprobs)
        candidates = rows if capacity.filters else 1
        self.scratch = (
            empty(candidates, self.tiles * RUNS),
            empty(candidates, MOST),
            empty(candidates, MOST, dtype=torch.float32),
        )
        edited = rows if self.edit_capacity else 0
        if self.edit_capacity:
            self.excluded = empty(edited, self.num_words)
            self.edit_ids, self.edit_kinds = empty(edited, self.edit_capacity), empty(edited, self.edit_capacity)
            self.edit_logits = empty(edited, self.edit_capacity, dtype=torch.float32)
            self.edit_values = empty(edited, self.edit_capacity, dtype=torch.float32)
            self.num_edits = empty(edited)
        width = capacity.max_spec_len + 1
        self.token_ids = empty(capacity.batch_size, width)
        self.num_tokens = empty(capacity.batch_size)
        self.logprobs = empty(capacity.batch_size, width, dtype=torch.float32) if capacity.logprobs else None

    def __call__(self, inputs: StepInputs) -> StepOutput:
        batch_size = inputs.batch_size
        if batch_size > 0:
            with quiet_numpy():
                common = self._common(inputs)
                self._edit(inputs, common)
                self._scan(inputs, common)
                self._settle(inputs, common)
                self._emit(inputs, common)
        logprobs = None if self.logprobs is None else self.logprobs[:batch_size]
        return StepOutput(self.token_ids[:batch_size], self.num_tokens[:batch_size], logprobs)

    def processed_logits(self, inputs: StepInputs) -> Tensor:  # [num_rows, vocab_size] float32
        shape = (inputs.num_rows, self.capacity.vocab_size)
        processed = torch.full(shape, -torch.inf, dtype=torch.float32, device=inputs.logits.device)
        if inputs.batch_size > 0:
            with quiet_numpy():
                common = self._common(inputs)
                self._edit(inputs, common)
                self._scan(inputs, common)
                self._settle(inputs, common)
                processed_kernel[(self.all_tiles, *self._rows(inputs))](
                    processed, self.results[2], **common, temperature_ptr=inputs.parameters.temperature, num_warps=4
                )
        return processed

    # The kernels.

    def _rows(self, inputs: StepInputs) -> tuple[int, int]:
        return inputs.batch_size, self.capacity.max_spec_len + 1

    def _common(self, inputs: StepInputs) -> dict[str, Any]:  # Any: arguments of kernels
        return {
            "inputs": self._row_inputs(inputs),
            "cu_num_rows_ptr": inputs.cu_num_rows,
            "slots_ptr": inputs.slots,
            "num_rows": inputs.num_rows,
            "max_spec_len": self.capacity.max_spec_len,
            "vocab_size": self.capacity.vocab_size,
            "all_tiles": self.all_tiles,
        }

    def _row_inputs(self, inputs: StepInputs) -> tuple[Any, ...]:  # Any: as above
        grammar = inputs.grammar_mask if self.capacity.grammar else None
        return (
            inputs.logits,
            inputs.logits.stride(0),
            grammar,
            self.num_words,
            self._edit_memory(),
            _penalties(inputs),
        )

    def _edit_memory(self) -> tuple[Any, ...]:  # Any: as above
        if not self.edit_capacity:
            return None, None, None, None, 0
        return self.excluded, self.edit_ids, self.edit_logits, self.num_edits, self.edit_capacity

    def _edit(self, inputs: StepInputs, common: dict[str, Any]) -> None:  # Any: as above
        if not self.edit_capacity:
            return
        groups, words, forced = _edit_groups(inputs.edits or TokenEdits())
        edit_kernel[self._rows(inputs)](
            self._edit_memory(),
            (self.edit_kinds, self.edit_values),
            inputs.logits,
            common["inputs"][2],
            inputs.cu_num_rows,
            inputs.slots,
            inputs.positions,
            inputs.draft_token_ids,
            common["inputs"][5],
            groups,
            words,
            forced,
            inputs.num_rows,
            self.capacity.max_spec_len,
            self.capacity.vocab_size,
            inputs.logits.stride(0),
            self.num_words,
            CAPACITY=self.edit_capacity,
            num_warps=8,
        )

    def _scan(self, inputs: StepInputs, common: dict[str, Any]) -> None:  # Any: as above
        strip = min(max(self.num_blocks * inputs.batch_size // SCAN_PROGRAMS, 1), LONGEST_STRIP)
        strip = 1 << (strip.bit_length() - 1)
        scan_kernel[(triton.cdiv(self.num_blocks, strip), inputs.batch_size)](
            self.words, self.reached, **common, temperature_ptr=inputs.parameters.temperature, STRIP=strip, BLOCK=SCAN_BLOCK, num_warps=4, **SCAN_OPTIONS
        )

    def _settle(self, inputs: StepInputs, common: dict[str, Any]) -> None:  # Any: as above
        parameters = inputs.parameters
        settle_kernel[self._rows(inputs)](
            self.results,
            self.words,
            None if self.reached is None else self.reached.view(torch.int16),
            self.scratch,
            **common,
            seeds_ptr=inputs.seeds,
            positions_ptr=inputs.positions,
            parameters=(parameters.temperature, parameters.top_k, parameters.top_p, parameters.min_p),
            drafts=_drafts(inputs),
            FILTERS=self.capacity.filters,
            EDITS=self.edit_capacity,
            LOGPROBS=self.capacity.logprobs,
            TILES=self.tiles,
            BLOCK=BLOCK,
            MOST=MOST,
            num_warps=SETTLE_WARPS[self.capacity.filters],
            **SETTLE_OPTIONS,
        )

    def _emit(self, inputs: StepInputs, common: dict[str, Any]) -> None:  # Any: as above
        emit_kernel[(inputs.batch_size,)](
            (self.token_ids, self.num_tokens, self.logprobs),
            self.results,
            self.words,
            **common,
            seeds_ptr=inputs.seeds,
            positions_ptr=inputs.positions,
            temperature_ptr=inputs.parameters.temperature,
            drafts=_drafts(inputs),
            LOGPROBS=self.capacity.logprobs,
            TILES=self.tiles,
            POSITIONS=triton.next_power_of_2(self.capacity.max_spec_len + 1),
            num_warps=4,
        )


def _penalties(inputs: StepInputs) -> tuple[Any, ...]:  # Any: as above
    penalties = inputs.penalties
    if penalties is None:
        return None, None, None, None, None, 0, 0
    counts, prompt = penalties.output_counts, penalties.prompt_mask
    factors = penalties.presence, penalties.frequency, penalties.repetition
    return *factors, counts, prompt, counts.stride(0), prompt.stride(0)


def _drafts(inputs: StepInputs) -> tuple[Any, ...]:  # Any: as above
    probs = inputs.draft_probs
    if probs is None:
        return inputs.draft_token_ids, None, 0, 0
    return inputs.draft_token_ids, probs, probs.stride(0), probs.stride(1)


def _edit_groups(edits: TokenEdits) -> tuple[tuple[Any, ...], tuple[Any, ...], Tensor | None]:  # Any: as above
    def stride(ids: Tensor | None) -> int:
        return 0 if ids is None else ids.stride(0)

    groups = (
        (edits.allowed_counts, edits.allowed_token_ids, stride(edits.allowed_token_ids)),
        (edits.bias_counts, edits.bias_token_ids, edits.bias_values, stride(edits.bias_token_ids)),
        (edits.stop_counts, edits.stop_token_ids, stride(edits.stop_token_ids), edits.min_lengths),
    )
    words = edits.bad_words
    if words is None:
        return groups, (None, None, None, None, None, 0, 0, 0), edits.forced_token_ids
    lists = words.offsets, words.token_ids, words.text
    strides = (tensor.stride(0) for tensor in lists)
    return groups, (words.counts, *lists, words.starts, *strides), edits.forced_token_ids
