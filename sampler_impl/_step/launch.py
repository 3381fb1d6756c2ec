"""The Triton backend of a step: which kernels run, on what, in what order. None writes anything of a row's size.

    edits    (if there are any) a program per row: ids that are edited, and their logits
    scan     a program per request and strip: each logit at most once, none behind a draft token that is surely
             rejected; 8 bytes per tile of 1024
    settle   a program per row: what is kept, whether the draft token is accepted, the token instead; the last program
             of a request emits: accepted tokens, and the token of the first rejected row
    settle   (if there are filters) once more, for rows whose candidates fit no list, with more warps for each
    emit     (with draft probabilities or logits) a program per request and block: draws what is left, and emits

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

from .._shared.compiled import (
    Compiled,
    Key,
    described,
    described_batch,
    launches_overlap,
    num_multiprocessors,
    number_of,
    stream_of,
)
from .._shared.kernels import INTERPRETED, quiet_numpy
from . import named
from .edits import edit_kernel
from .emit import emit_kernel
from .inputs import BLOCK_MASK_WORDS, RUN_SIZE, SCAN_BLOCK, TILE_SIZE, Drafts, StepOutput, TokenEdits
from .named import Constants, EditLists, Filters, Lists, Memory, Mentions, Output, Results, Scanned, Shape, Sizes
from .processed import processed_kernel
from .rows import NOTHING
from .scan import scan_kernel
from .settle import settle_kernel

if TYPE_CHECKING:
    from .._shared.tensors import Bitmasks, LogitRows
    from .inputs import Capacity, Checked, StepInputs
    from .known import Group

RUNS = TILE_SIZE // RUN_SIZE
BLOCK, LARGE_BLOCK = 8, 16
"""Runs that a program has in flight where it searches for candidates; the larger one for the fewer rows."""
FLAT_WARPS, FLAT_BLOCK = 16, 32
"""Warps and runs for flat rows: each of their programs has a multiprocessor to itself. They are the same in all plans,
because what a sample says is a sum in float32."""
FLAT_PROGRAMS = 264
"""Most of them: each is some 0.9 us of a multiprocessor, and in most steps has nothing to do."""
SETTLE_REGISTERS = 168
"""Registers for three programs per multiprocessor: 256 requests with top-p alone take 173 us, with two 220 and with
four 181."""
FEW_ROWS, FEWER_ROWS = 256, 128
"""Rows of a plan that settles each with eight warps and all the registers they want: no other program needs them. With
penalties these are more, so that it is for the fewer: 64 requests take 97 us with eight warps, 75 with four."""
SCAN_REGISTERS = 128
"""Registers with penalties, for four programs per multiprocessor: 256 requests take 221 us, with three 246 and with
five 234."""
LISTED, MOST = 1024, 8192
"""Candidates that fit a list, and those in the bracket of a flat row's threshold."""
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


SHORT_STRIPS, LONG_STRIPS, ROWS_APART = Shape(1, False), Shape(2, False), Shape(1, True)
SHAPES = SHORT_STRIPS, LONG_STRIPS, ROWS_APART


class Owned(NamedTuple):
    """Memory of a plan, as kernels take it. None is for what its steps do not need."""

    scanned: Scanned
    memory: Memory
    edits: EditLists
    mentions: Mentions
    row_words: Any  # [max_rows, all_tiles] int64
    whole: Scanned  # for steps whose rows are all read
    silent: Memory  # for steps that emit no tokens


Given = dict[str, tuple[Any, ...]]  # Any: tensors, or their addresses, and numbers
"""Inputs of a step by the names of kernels' parameters, members in the order of their names in `named`."""


class Launches:
    """The kernels of a plan and their memory. They are launched on the plan's device, which must be the current one."""

    def __init__(self, capacity: Capacity, device: torch.device) -> None:
        self.capacity, self.index = capacity, device.index
        self.all_tiles = capacity.num_tiles + capacity.edit_tiles
        self.num_blocks = triton.cdiv(capacity.num_tiles, SCAN_BLOCK)
        self.num_words = triton.cdiv(capacity.vocab_size, 32)
        self.edit_capacity = triton.next_power_of_2(max(capacity.edits, 16)) if capacity.edits else 0
        self.width = capacity.max_spec_len + 1
        self.sizes = Sizes(capacity.max_spec_len, capacity.vocab_size, self.all_tiles)
        self.tiles = triton.next_power_of_2(max(self.all_tiles, 2))
        self._allocate(device)
        self._choose_kernels(device)

    def _allocate(self, device: torch.device) -> None:
        capacity, rows = self.capacity, self.capacity.max_rows

        def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:  # [...] int32
            return torch.zeros(shape, dtype=dtype, device=device)

        reached = empty(rows, self.all_tiles, dtype=torch.int64) if capacity.filters else None
        statistics = empty(rows, 2, dtype=torch.float32)
        logprobs = empty(rows, 2, dtype=torch.float32) if capacity.logprobs else None
        is_dense, has_logits = capacity.drafts in (Drafts.PROBS, Drafts.LOGITS), capacity.drafts is Drafts.LOGITS
        row_words = empty(rows, self.all_tiles, dtype=torch.int64) if has_logits else None
        listed = rows if capacity.filters else 1
        lists = Lists(empty(listed, self.tiles * RUNS), empty(listed, MOST), empty(listed, MOST, dtype=torch.float32))
        edits, mentions = EditLists(None, None, None, None, 0, None), Mentions(None, None, None)
        if self.edit_capacity:
            ids, kinds = (empty(rows, self.edit_capacity) for _ in range(2))
            edited, values = (empty(rows, self.edit_capacity, dtype=torch.float32) for _ in range(2))
            excluded, blocks = empty(rows, self.num_words), empty(rows, BLOCK_MASK_WORDS)
            edits = EditLists(excluded, ids, edited, empty(rows), self.edit_capacity, blocks)
            mentions = Mentions(ids, kinds, values)
        self.token_ids = empty(capacity.batch_size, self.width)
        self.num_tokens = empty(capacity.batch_size)
        self.logprobs = empty(capacity.batch_size, self.width, dtype=torch.float32) if capacity.logprobs else None
        scanned = Scanned(empty(rows, self.all_tiles, dtype=torch.int64), reached, empty(capacity.batch_size))
        memory = Memory(
            Output(self.token_ids, self.num_tokens, self.logprobs),
            scanned.arrivals_ptr,
            Results(
                empty(rows), empty(rows), empty(rows), statistics, logprobs, empty(self.width, capacity.batch_size)
            ),
            scanned.words_ptr,
            empty(capacity.batch_size, self.all_tiles, dtype=torch.int64) if is_dense else None,
            None if reached is None else reached.view(torch.int16),
            lists,
        )
        whole, silent = scanned._replace(arrivals_ptr=None), memory._replace(output=Output(None, None, None))
        self.owned = Owned(scanned, memory, edits, mentions, row_words, whole, silent)
        self.addresses: Owned
        _, self.addresses = described(self.owned)
        self.views: dict[int, StepOutput] = {}
        self.known: dict[Key, int] = {}
        self.numbers = count()

    def _choose_kernels(self, device: torch.device) -> None:
        capacity, first = self.capacity, {"num_warps": 4, **EACH_ROUNDED}
        # Where rows are filtered it costs: programs that come early share multiprocessors while others are idle.
        can_start_early = launches_overlap(device)
        overlaps, early = can_start_early and not capacity.filters, {"launch_pdl": True}
        follows = first | (early if overlaps else {})
        limits = torch.version.hip is None
        of_settle, block = self._settle_options(limits=limits)
        # The scan may come early: it first reads counts, which take longer than lists.
        waits = can_start_early and self.edit_capacity > 0
        self.edit_kernel = Compiled(edit_kernel, first, CAPACITY=self.edit_capacity, OVERLAPS=waits)
        positions, batch = triton.next_power_of_2(self.width), capacity.batch_size
        plan = Constants(self.edit_capacity, self.tiles, positions, block, LISTED, batch, False, overlaps, False, 1, 0)
        plans = {skips: plan._replace(skips=skips) for skips in (False, True)}
        options = follows | of_settle
        self.settle_kernels = {skips: Compiled(settle_kernel, options, PLAN=plan) for skips, plan in plans.items()}
        self.emit_kernel = Compiled(emit_kernel, follows, PLAN=plan)
        places = triton.next_power_of_2(triton.cdiv(capacity.max_rows, FLAT_PROGRAMS))
        plan = plan._replace(block=FLAT_BLOCK, most=MOST, skips=True, overlaps=False, flat=True, places=places)
        plan = plan._replace(at_once=num_multiprocessors(device))
        self.flat_kernel = Compiled(settle_kernel, first | {"num_warps": FLAT_WARPS}, PLAN=plan)
        self.requests_at = int(batch <= LONGEST_SIDE)
        # Instructions of a card, not choices: `mov` is NVIDIA's, and programs that overlap wait by another one.
        of_scan = (self.requests_at, waits, overlaps, device.type == "cuda" and limits)
        options = first | (early if waits else {})
        if capacity.penalties and limits:
            options = options | {"maxnreg": SCAN_REGISTERS}
        self.scan_kernels = {
            shape: Compiled(scan_kernel, options, SHAPE=Shape(shape.strip, shape.apart, *of_scan)) for shape in SHAPES
        }

    def _settle_options(self, *, limits: bool) -> tuple[dict[str, int], int]:
        """Return options of the kernel that settles rows, and its block."""
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
        """Return the output of so many requests; made once, as three views take microseconds."""
        if batch_size not in self.views:
            logprobs = None if self.logprobs is None else self.logprobs[:batch_size]
            self.views[batch_size] = StepOutput(self.token_ids[:batch_size], self.num_tokens[:batch_size], logprobs)
        return self.views[batch_size]

    def whole(
        self,
        inputs: StepInputs,
        checked: Checked,
        processed: LogitRows | None,
        kept_words: Bitmasks | None,
        *,
        emits: bool,
    ) -> StepOutput:
        """Write what whole rows keep, of a step that is drawn, or, without `emits`, of one that is not."""
        for written, nothing in ((processed, -torch.inf), (kept_words, 0)):
            if written is not None:
                written.fill_(nothing)
        if checked.batch_size > 0:
            with quiet_numpy():
                self._launch(inputs, checked, emits=emits)
                given, (stride, step) = self._given(inputs), (0, 0) if kept_words is None else kept_words.stride()
                processed_kernel[checked.batch_size, self.all_tiles, self.width](
                    processed_ptr=processed,
                    kept_words_ptr=kept_words,
                    words_stride=stride,
                    words_step=step,
                    kept_ptr=self.owned.memory.results.kept_ptr,
                    inputs=given["inputs"],
                    requests=given["requests"],
                    num_rows=checked.num_rows,
                    num_slots=checked.num_slots,
                    sizes=self.sizes,
                    **EACH_ROUNDED,
                )
        return self._views_of(checked.batch_size)

    def _launch(self, inputs: StepInputs, checked: Checked, *, emits: bool) -> None:
        """Launch all kernels; without `emits`, no token is written."""
        shape = self._shape_of(self.num_blocks * checked.batch_size)
        facts, addresses = self._described(inputs, checked)
        key = (facts, shape, emits)
        number = self.known.get(key)
        if number is not None:
            self._launch_kernels(number, checked, self.addresses, addresses, shape, emits=emits)
            return
        number = next(self.numbers)  # a launch that fails leaves its number behind
        self._launch_kernels(number, checked, self.owned, self._given(inputs), shape, emits=emits)
        if not INTERPRETED:
            self.known[key] = number

    def _shape_of(self, num_blocks: int) -> Shape:
        """Return the shape of the scan, for so many blocks of all requests."""
        if self.width > 1 and num_blocks * self.width <= MOST_APART:
            return ROWS_APART
        return LONG_STRIPS if num_blocks >= LONG_STRIPS_FROM else SHORT_STRIPS

    def _described(self, inputs: StepInputs, checked: Checked) -> tuple[Key, Given]:
        """Return `described(self._given(inputs))`; for tensors by slot, that is done once."""
        parameters, penalties, edits = checked.by_slot
        assert parameters is not None
        kind, by_slot = parameters.described or self._describe(parameters, _parameters(inputs))
        of_penalties, penalised, of_edits, edited = None, NO_PENALTIES, None, NO_EDITS
        if penalties is not None:
            of_penalties, penalised = penalties.described or self._describe(penalties, _penalties(inputs))
        if edits is not None and inputs.edits is not None:
            of_edits, edited = edits.described or self._describe(edits, _edits(inputs.edits))
        tensors, strides = _batch(inputs)
        facts, addresses = described_batch(tensors, strides)
        groups = self._grouped(self.addresses, addresses, strides, by_slot, penalised, edited)
        return (kind, of_penalties, of_edits, facts), groups

    def _describe(self, group: Group, given: tuple[Any, ...]) -> tuple[int, Any]:  # Any: as `Given`
        """Give what kernels are compiled for a number: a key has that instead of dozens of facts."""
        facts, addresses = described(given)
        group.described = number_of(facts), addresses
        return group.described

    def _given(self, inputs: StepInputs) -> Given:
        """Return what a step is given, for Triton to compile: its members have names."""
        edited = NO_EDITS if inputs.edits is None else _edits(inputs.edits)
        tensors, strides = _batch(inputs)
        groups = self._grouped(self.owned, tensors, strides, _parameters(inputs), _penalties(inputs), edited)
        return {name: GROUPS[name]._make(group) for name, group in groups.items()}

    def _grouped(
        self, owned: Owned, batch: Any, strides: tuple[int, ...], by_slot: Any, penalties: Any, edits: Any
    ) -> Given:  # Any: tensors, or their addresses, and numbers
        """Return plain tuples: with names, and arguments by keyword, each step took the host 3 us more. Only its first
        launch reads them."""
        logits, grammar, cu_num_rows, positions, logsumexp, temperature, forced, slots, ids, dense = batch
        stride, words, slot_stride, position_stride, step = strides
        seeds, heat, filters = by_slot
        counted, own = ids if self.capacity.penalties else None, owned.row_words
        return {
            "inputs": (logits, stride, grammar, self.num_words, owned.edits, penalties, counted, words),
            "requests": (cu_num_rows, slots, seeds, positions, heat),
            "filters": filters,
            "drafts": (ids, dense, slot_stride, position_stride, logsumexp, step, temperature, own),
            "edits": (*edits, forced),
        }

    def _launch_kernels(
        self, number: int, checked: Checked, owned: Owned, given: Given, shape: Shape, *, emits: bool
    ) -> None:
        """Launch with `owned` and `given`: tensors, or their addresses once all kernels are compiled for `number`."""
        ids, dense, _, _, logsumexp, *_ = given["drafts"]
        batch_size, stream = checked.batch_size, stream_of(self.index)
        by_row, is_last = (batch_size, self.width, 1), emits and dense is None
        arguments: dict[str, Any] = {
            **given,
            "draft_token_ids_ptr": ids,
            "mentions": owned.mentions,
            "num_rows": checked.num_rows,
            "num_slots": checked.num_slots,
            "sizes": self.sizes,
        }
        if self.edit_capacity:
            arguments["scanned"] = owned.scanned
            self.edit_kernel.launch(number, stream, by_row, arguments)
        if not (emits or self.capacity.filters):  # then `edits` alone decides what is processed
            self.owned.memory.results.kept_ptr.fill_(KEEPS_ALL)
            return
        sides = (-(-self.num_blocks // shape.strip), batch_size)
        # Rows of draft logits have programs of their own, too, if their logsumexp is not given.
        measured = self.width - 1 if owned.row_words is not None and logsumexp is None else 0
        grid = (sides[1 - self.requests_at], sides[self.requests_at], (self.width if shape.apart else 1) + measured)
        arguments["scanned"] = owned.scanned if is_last and ids is not None else owned.whole
        self.scan_kernels[shape].launch(number, stream, grid, arguments)
        arguments["memory"] = owned.memory if is_last else owned.silent
        self.settle_kernels[not shape.apart].launch(number, stream, by_row, arguments)
        if self.capacity.filters:
            programs = min(self.capacity.max_rows, FLAT_PROGRAMS)
            self.flat_kernel.launch(number, stream, (programs, 1, 1), arguments)
        if emits and not is_last:
            arguments["memory"] = owned.memory
            self.emit_kernel.launch(number, stream, (batch_size, -(-self.all_tiles // SCAN_BLOCK), 1), arguments)


def _parameters(inputs: StepInputs) -> tuple[Any, Any, Filters]:  # Any: as `Given`
    """Return seeds, temperature and filters."""
    parameters = inputs.parameters
    filters = Filters(parameters.top_k, parameters.top_p, parameters.min_p)
    return inputs.seeds, parameters.temperature, filters


def _penalties(inputs: StepInputs) -> Any:  # Any: as above
    """Return penalties by slot."""
    penalties = inputs.penalties
    if penalties is None:
        return NO_PENALTIES
    counts, prompt = penalties.output_counts, penalties.prompt_mask
    factors = penalties.presence, penalties.frequency, penalties.repetition
    return named.Penalties(*factors, counts, prompt, counts.stride(0), prompt.stride(0))


def _batch(inputs: StepInputs) -> tuple[tuple[Tensor | None, ...], tuple[int, ...]]:  # [...] any, each
    """Return tensors that are new at every step, and from where to where their rows are."""
    logits, grammar, logsumexp = inputs.logits, inputs.grammar_mask, inputs.draft_logsumexp
    dense = inputs.draft_probs if inputs.draft_logits is None else inputs.draft_logits
    forced = None if inputs.edits is None else inputs.edits.forced_token_ids
    temperature, of_drafts = inputs.draft_temperature, (0, 0, 0)
    if dense is None:
        logsumexp = temperature = None
    else:
        of_drafts = dense.stride(0), dense.stride(1), 0 if logsumexp is None else logsumexp.stride(0)
    of_requests = inputs.cu_num_rows, inputs.positions, logsumexp, temperature
    tensors = logits, grammar, *of_requests, forced, inputs.slots, inputs.draft_token_ids, dense
    return tensors, (logits.stride(0), 0 if grammar is None else grammar.stride(0), *of_drafts)


def _edits(edits: TokenEdits) -> tuple[Any, ...]:  # Any: as above
    """Return `named.Edits` but for forced tokens, which have no slot."""
    allowed = named.Counted(edits.allowed_counts, *_list_of(edits.allowed_token_ids))
    biased = named.Counted(edits.bias_counts, *_list_of(edits.bias_token_ids))
    stop = named.Counted(edits.stop_counts, *_list_of(edits.stop_token_ids))
    values, values_stride, _ = _list_of(edits.bias_values)
    words = edits.bad_words
    bad_words = named.BadWords._make([None] * 5 + [0] * 6)
    if words is not None:
        lists, strides, lengths = zip(*map(_list_of, (words.offsets, words.word_ids, words.text)), strict=True)
        bad_words = named.BadWords._make((words.counts, *lists, words.starts, *strides, *lengths))
    return allowed, biased, values, values_stride, stop, edits.min_lengths, bad_words


def _list_of(
    tensor: Tensor | None,  # [...] any
) -> tuple[Any, int, int]:  # Any: as above
    """Return a list per slot, from one slot's to the next one's, and its length."""
    return (None, 0, 0) if tensor is None else (tensor, tensor.stride(0), tensor.shape[1])


GROUPS: dict[str, Any] = {  # Any: types of `named`
    "inputs": named.RowInputs,
    "requests": named.Requests,
    "filters": named.Filters,
    "drafts": named.Drafts,
    "edits": named.Edits,
}
NO_PENALTIES: Any = named.Penalties._make([None] * 5 + [0, 0])  # Any: what kernels take
NO_EDITS = _edits(TokenEdits())
