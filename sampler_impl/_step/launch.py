"""The Triton backend of a step: which kernels run, on what, in what order. None writes anything of a row's size.

    edits    (if there are any) a program per row: ids that are edited, and their logits
    scan     a program per request and strip: every logit once; 8 bytes per tile of 1024
    settle   a program per row: what is kept, whether the draft token is accepted, the token instead; the last program
             of a request emits: accepted tokens, and the token of the first rejected row
    emit     (with dense draft probabilities) a program per request: draws what is left, and emits

`Launches` belongs to a plan: it owns the memory through which they pass on what they found, and what they return.
"""

# pyright: reportCallIssue=false, reportArgumentType=false
# (A kernel is launched with numbers where its definition has tl.constexpr, and with options.)

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from .._shared.kernels import INTERPRETED, quiet_numpy
from .compiled import Compiled, Key, key_of
from .edits import edit_kernel
from .emit import emit_kernel
from .inputs import RUN_SIZE, TILE_SIZE, Capacity, StepInputs, StepOutput, TokenEdits
from .processed import processed_kernel
from .scan import scan_kernel
from .settle import settle_kernel

RUNS = TILE_SIZE // RUN_SIZE
SCAN_BLOCK = 4
"""Tiles that a program of the scan has in flight: each of its four warps has one to itself."""
BLOCK = 8
"""Runs that a program has in flight where it searches for candidates."""
SETTLE_REGISTERS = 128
"""With four programs per multiprocessor, 256 requests take 171 us instead of 220, and 64 take 71 instead of 70."""
MOST = 8192
"""Candidates of a row. More of them are found by reading the row again and again."""
EACH_ROUNDED = {"enable_fp_fusion": False}
"""`logit - frequency * count` in two operations, as in vLLM and PyTorch: fused, it has another last bit."""
STRIPS = (1, 2)
LONG_STRIPS_FROM = 1 << 14
"""Blocks of a batch from which on a program takes two. Tuned on an H200, as everything here."""


def can_overlap(device: torch.device) -> bool:
    """Whether a kernel may be started while the one before it runs: programmatic dependent launch, from Hopper on."""
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)


class Launches:
    """The kernels of a plan and their memory."""

    def __init__(self, capacity: Capacity, device: torch.device) -> None:
        self.capacity = capacity
        self.all_tiles = capacity.num_tiles + capacity.edit_tiles
        self.num_blocks = triton.cdiv(self.all_tiles, SCAN_BLOCK)
        self.num_words = triton.cdiv(capacity.vocab_size, 32)
        self.edit_capacity = triton.next_power_of_2(max(capacity.max_edits, 16)) if capacity.max_edits else 0
        self.width = capacity.max_spec_len + 1
        self.sizes = (capacity.vocab_size, self.all_tiles)
        self.tiles = triton.next_power_of_2(max(self.all_tiles, 2))
        self._allocate(device)
        self._choose_kernels(device)

    def _allocate(self, device: torch.device) -> None:
        capacity, rows = self.capacity, self.capacity.max_rows

        def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:  # [...] int32
            return torch.zeros(shape, dtype=dtype, device=device)

        self.words = empty(rows, self.all_tiles, dtype=torch.int64)
        self.reached = empty(rows, self.all_tiles, dtype=torch.int64) if capacity.filters else None
        self.reached_by_runs = None if self.reached is None else self.reached.view(torch.int16)
        logprobs = empty(rows, 2, dtype=torch.float32) if capacity.logprobs else None
        self.results = (empty(rows), empty(rows), empty(rows), empty(rows, 2, dtype=torch.float32), logprobs)
        listed = rows if capacity.filters else 1
        candidates = empty(listed, MOST), empty(listed, MOST, dtype=torch.float32)
        self.scratch = (empty(listed, self.tiles * RUNS), *candidates)
        self.edit_memory: tuple[Any, ...] = (None, None, None, None, 0)  # Any: arguments of kernels
        if self.edit_capacity:
            lists = [empty(rows, self.edit_capacity) for _ in range(2)]
            values = [empty(rows, self.edit_capacity, dtype=torch.float32) for _ in range(2)]
            excluded = empty(rows, self.num_words)
            self.edit_memory = (excluded, lists[0], values[0], empty(rows), self.edit_capacity)
            self.mentions = lists[1], values[1]
        self.token_ids = empty(capacity.batch_size, self.width)
        self.num_tokens = empty(capacity.batch_size)
        self.logprobs = empty(capacity.batch_size, self.width, dtype=torch.float32) if capacity.logprobs else None
        self.outputs = (self.token_ids, self.num_tokens, self.logprobs)
        self.arrivals = empty(capacity.batch_size)
        self.views: dict[int, StepOutput] = {}
        self.keys: dict[Key, int] = {}

    def _choose_kernels(self, device: torch.device) -> None:
        capacity, first = self.capacity, {"num_warps": 4, **EACH_ROUNDED}
        overlaps = not INTERPRETED and device.type == "cuda" and can_overlap(device)
        follows = first | ({"launch_pdl": True} if overlaps else {})
        limited = {"maxnreg": SETTLE_REGISTERS} if capacity.filters and torch.version.hip is None else {}
        self.edit_kernel = Compiled(edit_kernel, first, CAPACITY=self.edit_capacity, OVERLAPS=overlaps)
        positions = triton.next_power_of_2(self.width)
        self.settle_kernel = Compiled(
            settle_kernel,
            follows | limited,
            FILTERS=capacity.filters,
            EDITS=self.edit_capacity,
            LOGPROBS=capacity.logprobs,
            TILES=self.tiles,
            BLOCK=BLOCK,
            MOST=MOST,
            POSITIONS=positions,
            OVERLAPS=overlaps,
        )
        constants = {"LOGPROBS": capacity.logprobs, "TILES": self.tiles, "POSITIONS": positions, "OVERLAPS": overlaps}
        self.emit_kernel = Compiled(emit_kernel, follows, **constants)
        waits = overlaps and self.edit_capacity > 0
        scan_options, of_scan = follows if waits else first, {"WAITS": waits, "OVERLAPS": overlaps}
        self.scan_kernels = {
            strip: Compiled(scan_kernel, scan_options, STRIP=strip, BLOCK=SCAN_BLOCK, **of_scan) for strip in STRIPS
        }
        self.programs = {strip: triton.cdiv(self.num_blocks, strip) for strip in STRIPS}

    def __call__(self, inputs: StepInputs) -> StepOutput:
        batch_size = inputs.batch_size
        if batch_size > 0:
            with quiet_numpy():
                self._launch(inputs, emits=True)
        return self._views_of(batch_size)

    def _views_of(self, batch_size: int) -> StepOutput:
        """The output of so many requests; made once, as three views take microseconds."""
        if batch_size not in self.views:
            logprobs = None if self.logprobs is None else self.logprobs[:batch_size]
            self.views[batch_size] = StepOutput(self.token_ids[:batch_size], self.num_tokens[:batch_size], logprobs)
        return self.views[batch_size]

    def processed_logits(self, inputs: StepInputs) -> Tensor:  # [num_rows, vocab_size] float32
        shape = (inputs.num_rows, self.capacity.vocab_size)
        processed = torch.full(shape, -torch.inf, dtype=torch.float32, device=inputs.logits.device)
        if inputs.batch_size > 0:
            with quiet_numpy():
                row_inputs, requests = self._launch(inputs, emits=False)
                processed_kernel[(self.all_tiles, inputs.batch_size, self.width)](
                    processed,
                    self.results[2],
                    row_inputs,
                    *requests,
                    inputs.parameters.temperature,
                    inputs.num_rows,
                    self.capacity.max_spec_len,
                    *self.sizes,
                    **EACH_ROUNDED,
                )
        return processed

    def _launch(
        self, inputs: StepInputs, *, emits: bool
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:  # Any: arguments of kernels
        """All kernels; without the last, nothing is emitted. Returns what others are given."""
        batch_size, parameters = inputs.batch_size, inputs.parameters
        penalties = _penalties(inputs)
        grammar = inputs.grammar_mask if self.capacity.grammar else None
        rows = (inputs.logits, inputs.logits.stride(0), grammar, self.num_words, self.edit_memory, penalties)
        requests = (inputs.cu_num_rows, inputs.slots)
        noise = (inputs.seeds, inputs.positions)
        filters = (parameters.temperature, parameters.top_k, parameters.top_p, parameters.min_p)
        drafts = _drafts(inputs)
        sizes = (inputs.num_rows, self.capacity.max_spec_len, *self.sizes)
        facts = key_of(inputs.logits, inputs.logits.stride(0), grammar, penalties, requests, noise, filters, drafts)
        key = self.keys.setdefault(facts, len(self.keys))  # a number: long tuples are hashed once
        by_row = (batch_size, self.width, 1)
        if self.edit_capacity:
            edits = NO_EDITS if inputs.edits is None else _edit_groups(inputs.edits)
            self.edit_kernel.launch(
                key if inputs.edits is None else (key, key_of(edits)),
                by_row,
                self.edit_memory,
                self.mentions,
                inputs.logits,
                grammar,
                *requests,
                inputs.positions,
                inputs.draft_token_ids,
                penalties,
                *edits,
                inputs.num_rows,
                self.capacity.max_spec_len,
                self.capacity.vocab_size,
                inputs.logits.stride(0),
                self.num_words,
            )
        strip = STRIPS[-1] if self.num_blocks * batch_size >= LONG_STRIPS_FROM else STRIPS[0]
        grid = (self.programs[strip], batch_size, 1)
        self.scan_kernels[strip].launch(
            key, grid, self.words, self.reached, rows, *requests, parameters.temperature, *sizes
        )
        written = self.words, self.reached_by_runs
        is_last = emits and drafts[1] is None
        self.settle_kernel.launch(
            key if emits else -1 - key,
            by_row,
            self.outputs if is_last else NO_OUTPUT,
            self.arrivals,
            self.results,
            *written,
            self.scratch,
            rows,
            *requests,
            *noise,
            filters,
            drafts,
            *sizes,
        )
        if emits and not is_last:
            given = (rows, *requests, *noise, parameters.temperature, drafts)
            self.emit_kernel.launch(key, (batch_size, 1, 1), self.outputs, self.results, self.words, *given, *sizes)
        return rows, requests


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


def _edit_groups(edits: TokenEdits) -> tuple[Any, ...]:  # Any: as above
    allowed = edits.allowed_counts, *_list_of(edits.allowed_token_ids)
    biased = edits.bias_counts, *_list_of(edits.bias_token_ids), *_list_of(edits.bias_values)
    stop = edits.stop_counts, *_list_of(edits.stop_token_ids), edits.min_lengths
    groups = allowed, biased, stop
    words = edits.bad_words
    if words is None:
        return groups, (None, None, None, None, None, (0, 0, 0), (0, 0, 0)), edits.forced_token_ids
    lists = words.offsets, words.word_ids, words.text
    strides, lengths = (tuple(_list_of(one)[place] for one in lists) for place in (1, 2))
    return groups, (words.counts, *lists, words.starts, strides, lengths), edits.forced_token_ids


def _list_of(
    tensor: Tensor | None,  # [...] any
) -> tuple[Any, ...]:  # Any: as above
    """A list per slot, from one slot's to the next one's, and its length."""
    return (None, 0, 0) if tensor is None else (tensor, tensor.stride(0), tensor.shape[1])


NO_OUTPUT = (None, None, None)
NO_EDITS = _edit_groups(TokenEdits())
