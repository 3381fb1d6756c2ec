"""The Triton backend of a step: which kernels run, on what, in what order. None writes anything of a row's size.

    edits    (if there are any) a program per row: ids that are edited, and their logits
    scan     a program per request and strip: each logit at most once, none behind a draft token that is surely
             rejected; 8 bytes per tile of 1024
    settle   a program per row: what is kept, whether the draft token is accepted, the token instead; the last program
             of a request emits: accepted tokens, and the token of the first rejected row
    emit     (with draft probabilities or logits) a program per request: draws what is left, and emits

`Launches` belongs to a plan: it owns the memory through which they pass on what they found, and what they return.
"""

# pyright: reportCallIssue=false, reportArgumentType=false
# (A kernel is launched with numbers where its definition has tl.constexpr, and with options.)

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import triton
from torch import Tensor

from .._shared.compiled import Compiled, Key, described, described_batch, stream_of
from .._shared.kernels import INTERPRETED, quiet_numpy
from .edits import edit_kernel
from .emit import emit_kernel
from .inputs import (
    BLOCK_MASK_WORDS,
    RUN_SIZE,
    SCAN_BLOCK,
    TILE_SIZE,
    Capacity,
    Checked,
    Drafts,
    StepInputs,
    StepOutput,
    TokenEdits,
)
from .processed import processed_kernel
from .rows import NOTHING
from .scan import scan_kernel
from .settle import settle_kernel

if TYPE_CHECKING:
    from .known import Group

RUNS = TILE_SIZE // RUN_SIZE
BLOCK, LARGE_BLOCK = 8, 16
"""Runs that a program has in flight where it searches for candidates; the larger one for the fewer rows."""
SETTLE_REGISTERS = 168
"""Three programs per multiprocessor: 256 requests with top-p alone take 173 us, with two 220 and with four 181."""
FEW_ROWS, FEWER_ROWS = 256, 128
"""A plan for so few settles each with eight warps and all the registers they want: no other program needs them. With
penalties these are more, so that it is for the fewer: 64 requests take 97 us with eight warps, 75 with four."""
SCAN_REGISTERS = 128
"""With penalties: four programs per multiprocessor. 256 requests take 221 us, with three 246 and with five 234."""
MOST = 8192
"""Candidates of a row. More of them are found by reading the row again and again."""
EACH_ROUNDED = {"enable_fp_fusion": False}
"""`logit - frequency * count` in two operations, as in vLLM and PyTorch: fused, it has another last bit."""
KEEPS_ALL = NOTHING.value + 1
"""The least order that a row keeps without filters: of every number."""
LONG_STRIPS_FROM = 1 << 14
"""Blocks of a batch from which on a program takes two. Tuned on an H200, as everything here."""
MOST_APART = 3072
"""Blocks of all rows up to which each row has programs of its own: they all fit the GPU at once."""
LONGEST_SIDE = 65535
"""Programs on the second side of a grid, where requests are if it has room: the first side is for a request's strips,
which lie next to each other in memory."""


class Shape(NamedTuple):
    """How a scan is shared out among programs."""

    strip: int  # blocks of a program
    apart: bool  # whether the rows of a request have programs of their own


SHORT_STRIPS, LONG_STRIPS, ROWS_APART = Shape(1, False), Shape(2, False), Shape(1, True)
SHAPES = SHORT_STRIPS, LONG_STRIPS, ROWS_APART


class Memory(NamedTuple):
    """What a plan owns. None is for what its steps do not need."""

    words: Any  # [max_rows, all_tiles] int64
    reached: Any  # [max_rows, all_tiles] int64
    reached_by_runs: Any  # [max_rows, all_tiles * RUNS] int16: the same
    results: tuple[Any, ...]
    scratch: tuple[Any, ...]
    edits: tuple[Any, ...]
    mentions: tuple[Any, ...]
    outputs: tuple[Any, ...]
    arrivals: Any  # [batch_size] int32
    draft_logsumexp: Any  # [max_rows] float32


def can_overlap(device: torch.device) -> bool:
    """Whether a kernel may be started while the one before it runs: programmatic dependent launch, from Hopper on."""
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)


class Launches:
    """The kernels of a plan and their memory. They are launched on the plan's device, which must be the current one."""

    def __init__(self, capacity: Capacity, device: torch.device) -> None:
        self.capacity, self.index = capacity, device.index
        self.all_tiles = capacity.num_tiles + capacity.edit_tiles
        self.num_blocks = triton.cdiv(capacity.num_tiles, SCAN_BLOCK)
        self.num_words = triton.cdiv(capacity.vocab_size, 32)
        self.edit_capacity = triton.next_power_of_2(max(capacity.edits, 16)) if capacity.edits else 0
        self.width = capacity.max_spec_len + 1
        self.sizes = (capacity.vocab_size, self.all_tiles)
        self.tiles = triton.next_power_of_2(max(self.all_tiles, 2))
        self._allocate(device)
        self._choose_kernels(device)

    def _allocate(self, device: torch.device) -> None:
        capacity, rows = self.capacity, self.capacity.max_rows

        def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:  # [...] int32
            return torch.zeros(shape, dtype=dtype, device=device)

        reached = empty(rows, self.all_tiles, dtype=torch.int64) if capacity.filters else None
        logprobs = empty(rows, 2, dtype=torch.float32) if capacity.logprobs else None
        listed = rows if capacity.filters else 1
        candidates = empty(listed, MOST), empty(listed, MOST, dtype=torch.float32)
        edits: tuple[Any, ...] = (None, None, None, None, 0, None)  # Any: arguments of kernels
        mentions: tuple[Any, ...] = ()  # Any: as above
        if self.edit_capacity:
            lists = [empty(rows, self.edit_capacity) for _ in range(2)]
            values = [empty(rows, self.edit_capacity, dtype=torch.float32) for _ in range(2)]
            lists_of_rows = lists[0], values[0], empty(rows), self.edit_capacity
            edits = (empty(rows, self.num_words), *lists_of_rows, empty(rows, BLOCK_MASK_WORDS))
            mentions = lists[1], values[1]
        self.token_ids = empty(capacity.batch_size, self.width)
        self.num_tokens = empty(capacity.batch_size)
        self.logprobs = empty(capacity.batch_size, self.width, dtype=torch.float32) if capacity.logprobs else None
        self.memory = Memory(
            empty(rows, self.all_tiles, dtype=torch.int64),
            reached,
            None if reached is None else reached.view(torch.int16),
            (empty(rows), empty(rows), empty(rows), empty(rows, 2, dtype=torch.float32), logprobs),
            (empty(listed, self.tiles * RUNS), *candidates),
            edits,
            mentions,
            (self.token_ids, self.num_tokens, self.logprobs),
            empty(capacity.batch_size),
            empty(rows, dtype=torch.float32) if capacity.drafts is Drafts.LOGITS else None,
        )
        self.addresses = Memory(*described(tuple(self.memory))[1])
        self.views: dict[int, StepOutput] = {}
        self.known: dict[Key, int] = {}
        self.kinds: dict[Key, int] = {}
        self.numbers = count()

    def _choose_kernels(self, device: torch.device) -> None:
        capacity, first = self.capacity, {"num_warps": 4, **EACH_ROUNDED}
        # Where rows are filtered it costs: programs that come early share multiprocessors while others are idle.
        can_start_early = device.type == "cuda" and can_overlap(device)
        overlaps, early = can_start_early and not capacity.filters, {"launch_pdl": True}
        follows = first | (early if overlaps else {})
        limits = torch.version.hip is None
        of_settle, block = self._settle_options(limits=limits)
        # The scan may come early: it first reads counts, which take longer than lists.
        waits = can_start_early and self.edit_capacity > 0
        of_edits = {"BLOCK": SCAN_BLOCK, "CAPACITY": self.edit_capacity, "OVERLAPS": waits}
        self.edit_kernel = Compiled(edit_kernel, first, **of_edits)
        positions = triton.next_power_of_2(self.width)
        self.settle_kernels = {
            skips: Compiled(
                settle_kernel,
                follows | of_settle,
                FILTERS=capacity.filters,
                EDITS=self.edit_capacity,
                LOGPROBS=capacity.logprobs,
                TILES=self.tiles,
                BLOCK=block,
                MOST=MOST,
                POSITIONS=positions,
                SKIPS=skips,
                OVERLAPS=overlaps,
            )
            for skips in (False, True)
        }
        constants = {"LOGPROBS": capacity.logprobs, "TILES": self.tiles, "POSITIONS": positions, "OVERLAPS": overlaps}
        self.emit_kernel = Compiled(emit_kernel, follows, **constants)
        self.requests_at = int(capacity.batch_size <= LONGEST_SIDE)
        of_scan = {"BLOCK": SCAN_BLOCK, "REQUESTS": self.requests_at, "WAITS": waits}
        # Instructions of a card, not choices: `mov` is NVIDIA's, and programs that overlap wait by another one.
        of_scan |= {"PINS": device.type == "cuda" and limits, "OVERLAPS": overlaps}
        scan_options = first | (early if waits else {})
        if capacity.penalties and limits:
            scan_options = scan_options | {"maxnreg": SCAN_REGISTERS}
        self.scan_kernels = {
            shape: Compiled(scan_kernel, scan_options, STRIP=shape.strip, APART=shape.apart, **of_scan)
            for shape in SHAPES
        }

    def _settle_options(self, *, limits: bool) -> tuple[dict[str, int], int]:
        """Options of the kernel that settles rows, and its block."""
        capacity = self.capacity
        if not capacity.filters:
            return {}, BLOCK
        if capacity.max_rows <= (FEWER_ROWS if capacity.penalties else FEW_ROWS):
            return {"num_warps": 8}, LARGE_BLOCK if capacity.max_rows <= FEWER_ROWS else BLOCK
        return {"maxnreg": SETTLE_REGISTERS} if limits else {}, BLOCK

    def __call__(self, inputs: StepInputs, checked: Checked) -> StepOutput:
        if checked.batch_size > 0:
            with quiet_numpy():
                self._launch(inputs, checked, emits=True)
        return self._views_of(checked.batch_size)

    def _views_of(self, batch_size: int) -> StepOutput:
        """The output of so many requests; made once, as three views take microseconds."""
        if batch_size not in self.views:
            logprobs = None if self.logprobs is None else self.logprobs[:batch_size]
            self.views[batch_size] = StepOutput(self.token_ids[:batch_size], self.num_tokens[:batch_size], logprobs)
        return self.views[batch_size]

    def processed_logits(
        self, inputs: StepInputs, checked: Checked, *, draws: bool = False
    ) -> Tensor:  # [num_rows, vocab_size] float32
        """Of a step that is not drawn; with `draws`, of one that is, in the same launches."""
        shape = (checked.num_rows, self.capacity.vocab_size)
        processed = torch.full(shape, -torch.inf, dtype=torch.float32, device=inputs.logits.device)
        if checked.batch_size > 0:
            with quiet_numpy():
                self._launch(inputs, checked, emits=draws)
                processed_kernel[(checked.batch_size, self.all_tiles, self.width)](
                    processed,
                    self.memory.results[2],
                    self._rows(self.memory, self._given(inputs)),
                    inputs.cu_num_rows,
                    inputs.slots,
                    inputs.parameters.temperature,
                    checked.num_rows,
                    checked.num_slots,
                    self.capacity.max_spec_len,
                    *self.sizes,
                    **EACH_ROUNDED,
                )
        return processed

    def drafted(
        self, inputs: StepInputs, checked: Checked
    ) -> tuple[StepOutput, Tensor]:  # [num_rows, vocab_size] float32
        processed = self.processed_logits(inputs, checked, draws=True)
        return self._views_of(checked.batch_size), processed

    def _launch(self, inputs: StepInputs, checked: Checked, *, emits: bool) -> None:
        """All kernels; without `emits` all but the tokens."""
        shape = self._shape_of(self.num_blocks * checked.batch_size)
        facts, addresses = self._described(inputs, checked)
        key = (facts, shape, emits)
        number = self.known.get(key)
        if number is not None:
            self._launch_kernels(number, checked, self.addresses, addresses, shape, emits=emits)
            return
        number = next(self.numbers)  # a launch that fails leaves its number behind
        self._launch_kernels(number, checked, self.memory, self._given(inputs), shape, emits=emits)
        if not INTERPRETED:
            self.known[key] = number

    def _shape_of(self, num_blocks: int) -> Shape:
        """Of the scan, for so many blocks of all requests."""
        if self.width > 1 and num_blocks * self.width <= MOST_APART:
            return ROWS_APART
        return LONG_STRIPS if num_blocks >= LONG_STRIPS_FROM else SHORT_STRIPS

    def _described(self, inputs: StepInputs, checked: Checked) -> tuple[Key, tuple[Any, ...]]:  # Any: as `_given`
        """As `described(self._given(inputs))`; of tensors by slot, that is done once."""
        parameters, penalties, edits = checked.by_slot
        assert parameters is not None
        kind, (seeds, filters) = parameters.described or self._describe(parameters, _parameters(inputs))
        kinds, penalised, edited = (kind, 0, 0), NO_PENALTIES, NO_EDITS[:2]
        if penalties is not None or edits is not None:
            of_penalties, of_edits = 0, 0
            if penalties is not None:
                of_penalties, penalised = penalties.described or self._describe(penalties, _penalties(inputs))
            if edits is not None and inputs.edits is not None:
                of_edits, edited = edits.described or self._describe(edits, _edit_groups(inputs.edits)[:2])
            kinds = kind, of_penalties, of_edits
        of_rows = None if inputs.edits is None else inputs.edits.forced_token_ids
        logits, stride, grammar, words = self._logits(inputs)
        ids, dense, slot_stride, position_stride, logsumexp, step, temperature = _drafts(inputs)
        of_requests = inputs.cu_num_rows, inputs.positions, logsumexp, temperature
        tensors = logits, grammar, *of_requests, of_rows, inputs.slots, ids, dense
        facts, addresses = described_batch(tensors, (stride, words, slot_stride, position_stride, step))
        logits, grammar, cu_num_rows, positions, logsumexp, temperature, forced, slots, ids, dense = addresses
        return (kinds, facts), (
            (logits, stride, grammar, words),
            penalised,
            (cu_num_rows, slots),
            (seeds, positions),
            filters,
            (ids, dense, slot_stride, position_stride, logsumexp, step, temperature),
            (*edited, forced),
        )

    def _describe(self, group: Group, given: tuple[Any, ...]) -> tuple[int, tuple[Any, ...]]:  # Any: as `_given`
        """Number what kernels are compiled for, from 1, so that a key has one number instead of dozens of facts."""
        facts, addresses = described(given)
        group.described = self.kinds.setdefault(facts, len(self.kinds) + 1), addresses
        return group.described

    def _given(self, inputs: StepInputs) -> tuple[Any, ...]:  # Any: arguments of kernels
        """What a step is given, in the groups in which kernels take it."""
        seeds, filters = _parameters(inputs)
        return (
            self._logits(inputs),
            _penalties(inputs),
            (inputs.cu_num_rows, inputs.slots),
            (seeds, inputs.positions),
            filters,
            _drafts(inputs),
            NO_EDITS if inputs.edits is None else _edit_groups(inputs.edits),
        )

    def _logits(self, inputs: StepInputs) -> tuple[Any, ...]:  # Any: as above
        """The logits and the masks, each with its row stride."""
        grammar = inputs.grammar_mask
        return inputs.logits, inputs.logits.stride(0), grammar, 0 if grammar is None else grammar.stride(0)

    def _rows(self, memory: Memory, given: tuple[Any, ...]) -> tuple[Any, ...]:  # Any: as above
        """What kernels see rows by: `rows.locate`."""
        logits, stride, grammar, words = given[0]
        draft_token_ids = given[5][0] if self.capacity.penalties else None
        return logits, stride, grammar, self.num_words, memory.edits, given[1], draft_token_ids, words

    def _launch_kernels(
        self,
        number: int,
        checked: Checked,
        memory: Memory,
        given: tuple[Any, ...],  # Any: as above
        shape: Shape,
        *,
        emits: bool,
    ) -> None:
        """Takes `memory` and `given`: tensors, or their addresses once all kernels are compiled for `number`."""
        (logits, stride, grammar, words), penalties, requests, noise, filters, drafts, edits = given
        rows, max_spec_len = self._rows(memory, given), self.capacity.max_spec_len
        drafts = (*drafts, memory.draft_logsumexp)
        batch_size, sizes = checked.batch_size, (checked.num_rows, checked.num_slots, max_spec_len, *self.sizes)
        by_row, stream = (batch_size, self.width, 1), stream_of(self.index)
        if self.edit_capacity:
            self.edit_kernel.launch(
                number,
                stream,
                by_row,
                (memory.words, memory.reached, self.all_tiles),
                memory.edits,
                memory.mentions,
                logits,
                grammar,
                *requests,
                noise[1],
                drafts[0],
                penalties,
                *edits,
                filters[0],
                *sizes[:-1],
                stride,
                words,
                self.num_words,
            )
        if not (emits or self.capacity.filters):  # then `edits` alone decides what is processed
            self.memory.results[2].fill_(KEEPS_ALL)
            return
        sides = (-(-self.num_blocks // shape.strip), batch_size)
        grid = (sides[1 - self.requests_at], sides[self.requests_at], self.width if shape.apart else 1)
        is_last = emits and drafts[1] is None
        self.scan_kernels[shape].launch(
            number,
            stream,
            grid,
            memory.words,
            memory.reached,
            memory.arrivals if is_last and drafts[0] is not None else None,
            rows,
            *requests,
            *noise,
            filters[0],
            drafts[0],
            *sizes,
        )
        self.settle_kernels[not shape.apart].launch(
            number,
            stream,
            by_row,
            memory.outputs if is_last else NO_OUTPUT,
            memory.arrivals,
            memory.results,
            memory.words,
            memory.reached_by_runs,
            memory.scratch,
            rows,
            *requests,
            *noise,
            filters,
            drafts,
            *sizes,
        )
        if emits and not is_last:
            arguments = (rows, *requests, *noise, filters[0], drafts, *sizes)
            self.emit_kernel.launch(
                number, stream, (batch_size, 1, 1), memory.outputs, memory.results, memory.words, *arguments
            )


def _parameters(inputs: StepInputs) -> tuple[Any, ...]:  # Any: as above
    parameters = inputs.parameters
    return inputs.seeds, (parameters.temperature, parameters.top_k, parameters.top_p, parameters.min_p)


def _penalties(inputs: StepInputs) -> tuple[Any, ...]:  # Any: as above
    penalties = inputs.penalties
    if penalties is None:
        return NO_PENALTIES
    counts, prompt = penalties.output_counts, penalties.prompt_mask
    factors = penalties.presence, penalties.frequency, penalties.repetition
    return *factors, counts, prompt, counts.stride(0), prompt.stride(0)


def _drafts(inputs: StepInputs) -> tuple[Any, ...]:  # Any: as above
    """Without the plan's own logsumexp: see `draft_rows`."""
    dense = inputs.draft_probs if inputs.draft_logits is None else inputs.draft_logits
    logsumexp = inputs.draft_logsumexp
    if dense is None:
        return inputs.draft_token_ids, None, 0, 0, None, 0, None
    strides = dense.stride(0), dense.stride(1)
    step = 0 if logsumexp is None else logsumexp.stride(0)
    return inputs.draft_token_ids, dense, *strides, logsumexp, step, inputs.draft_temperature


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
NO_PENALTIES = (None, None, None, None, None, 0, 0)
NO_EDITS = _edit_groups(TokenEdits())
