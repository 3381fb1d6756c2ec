"""What a step is given: tensors by slot (as an engine keeps them), by request, and by row. And their checks.

slots    [batch_size]          3   0   7          where parameters of each request lie
rows     cu_num_rows           0   3   4   8      request 0 has two drafts, request 1 none, request 2 three
         draft_token_ids       a b . | . | c d e .     the draft token *behind* each row; a last row has none
         positions            117    9    30           of the token that the request's first row is about
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from operator import gt
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .._shared.checks import (
    FLOAT32,
    FLOATS_OF_MODELS,
    IDS,
    INT32,
    INT64,
    MAX_SPEC_LEN,
    check_all,
    check_dimensions,
    check_tensor,
    is_plain,
)
from .known import BySlot, Known, Tensors, seen_before, tensors_by_slot

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .._shared.tensors import SlotFlags

RUN_SIZE = 256
"""Vocabulary entries whose largest is kept: what one warp loads at once."""
TILE_SIZE = 1024
"""Vocabulary entries whose sum is one number; constant, because a draw must not depend on the batch."""
MAX_BATCH_SIZE = 1 << 20
MAX_VOCAB_SIZE = 1 << 19
SCAN_BLOCK = 4
"""Tiles that a program of the scan has in flight: each of its four warps has one to itself."""
BLOCK_MASK_WORDS = MAX_VOCAB_SIZE // (SCAN_BLOCK * TILE_SIZE) // 32
"""Words of a mask with a bit per block of any vocabulary. (A stride of 1, in a tuple, is None for Triton 3.6.)"""
MIN_TEMPERATURE = 1e-5
"""The lowest of a random request; a lower one counts as this. Requests of vLLM below it are greedy."""


class Drafts(Enum):
    """Kinds of what a drafter gives beside its tokens."""

    NONE = 0  # no drafts: plain sampling
    ONE_HOT = 1  # tokens alone (n-gram, greedy drafters)
    PROBS = 2  # and the distributions that they were drawn from
    LOGITS = 3  # and logits, whose softmax is those


@dataclass(frozen=True)
class Capacity:
    """The largest batch of a plan, and what its requests may use. What they do not use costs nothing.

    Args:
        batch_size: Most requests.
        max_spec_len: Most draft tokens of a request; 0 for plain sampling.
        vocab_size: Of the logits.
        dtype: Of the logits.
        drafts: What comes with draft tokens.
        filters: Whether min-p, top-k or top-p may be on.
        penalties: Whether penalties may be on.
        grammar: Whether there are grammar masks.
        edits: Most ids of one row that are allowed, biased, stopped, forced or ends of bad words, together. 0: none.
        logprobs: Whether log-probabilities of the emitted tokens are returned.
    """

    batch_size: int
    max_spec_len: int
    vocab_size: int
    dtype: torch.dtype = torch.bfloat16
    drafts: Drafts = Drafts.ONE_HOT
    filters: bool = True
    penalties: bool = False
    grammar: bool = False
    edits: int = 0
    logprobs: bool = False

    @property
    def max_rows(self) -> int:
        return self.batch_size * (self.max_spec_len + 1)

    @property
    def num_tiles(self) -> int:
        return -(-self.vocab_size // TILE_SIZE)

    @property
    def edit_tiles(self) -> int:
        """Return the number of tiles of edited entries, which follow those of the vocabulary."""
        return -(-self.edits // TILE_SIZE)


@dataclass(frozen=True, eq=False)
class Parameters:
    """Parameters by slot. `None`: off for all; the value that is off for one request is given beside each."""

    temperature: Tensor  # [num_slots] float32; 0 is greedy, 1e-5 the lowest other
    top_k: Tensor | None = None  # [num_slots] int32; off: at most 0, or at least vocab_size
    top_p: Tensor | None = None  # [num_slots] float32; off: 1
    min_p: Tensor | None = None  # [num_slots] float32; off: 0


@dataclass(frozen=True, eq=False)
class Penalties:
    """Penalties by slot. A draft row also counts the drafts before it."""

    presence: Tensor  # [num_slots] float32; off: 0
    frequency: Tensor  # [num_slots] float32; off: 0
    repetition: Tensor  # [num_slots] float32; off: 1
    output_counts: Tensor  # [num_slots, vocab_size] int32: how often the output has each id
    prompt_mask: Tensor  # [num_slots, num_words] int32: bit `id % 32` of word `id // 32`: the prompt has it


@dataclass(frozen=True, eq=False)
class BadWords:
    """Bad words by slot: sequences of tokens whose last token is excluded where the output ends in the others."""

    counts: Tensor  # [num_slots] int32
    offsets: Tensor  # [num_slots, length] int32: where each word begins in `word_ids`
    word_ids: Tensor  # [num_slots, length] int32
    text: Tensor  # [num_slots, length] int32: prompt and output of each slot; the first row sees `positions` of it
    starts: Tensor  # [num_slots] int32: where the output begins in `text`; no word begins before, as in vLLM


@dataclass(frozen=True, eq=False)
class TokenEdits:
    """Edits by slot: a few ids each. Any of the groups may be missing."""

    bias_counts: Tensor | None = None  # [num_slots] int32
    bias_token_ids: Tensor | None = None  # [num_slots, length] int32, distinct
    bias_values: Tensor | None = None  # [num_slots, length] float32
    allowed_counts: Tensor | None = None  # [num_slots] int32; 0: all are
    allowed_token_ids: Tensor | None = None  # [num_slots, length] int32
    stop_counts: Tensor | None = None  # [num_slots] int32
    stop_token_ids: Tensor | None = None  # [num_slots, length] int32: excluded at positions below `min_lengths`
    min_lengths: Tensor | None = None  # [num_slots] int32
    bad_words: BadWords | None = None
    forced_token_ids: Tensor | None = None  # [num_rows] int32: the only token that is left; -1: none


@dataclass(frozen=True, eq=False)
class StepInputs:
    """One step. Rows behind the last request are padding."""

    logits: Tensor  # [num_rows, vocab_size] any; the capacity's dtype; rows may be strided
    parameters: Parameters
    seeds: Tensor  # [num_slots] int64
    positions: Tensor  # [batch_size] int64: of the token that each request's first row is about
    cu_num_rows: Tensor  # [batch_size + 1] int32, from 0; a request has one row more than drafts
    slots: Tensor | None = None  # [batch_size] int32; None: request i has slot i
    draft_token_ids: Tensor | None = None  # [num_rows] int32: behind each row; -1 is a placeholder, never accepted
    draft_probs: Tensor | None = None  # [num_slots, max_spec_len, vocab_size] float32
    draft_logits: Tensor | None = None  # [num_slots, max_spec_len, vocab_size] any, of bfloat16, float16 and float32
    draft_temperature: Tensor | None = None  # [num_slots] float32: draft_logits are divided by it; None: 1
    draft_logsumexp: Tensor | None = None  # [num_slots, max_spec_len] float32, of the quotients; None: computed
    penalties: Penalties | None = None
    edits: TokenEdits | None = None
    grammar_mask: Tensor | None = None  # [num_rows, num_words] int32: bit 1 is allowed

    @property
    def batch_size(self) -> int:
        return int(self.cu_num_rows.shape[0]) - 1

    @property
    def num_rows(self) -> int:
        return int(self.logits.shape[0])


@dataclass(frozen=True, eq=False)
class StepOutput:
    """Views of the plan's own memory."""

    token_ids: Tensor  # [batch_size, max_spec_len + 1] int32: accepted drafts, one more token, then -1
    num_tokens: Tensor  # [batch_size] int32: accepted drafts and one
    logprobs: Tensor | None  # [batch_size, max_spec_len + 1] float32: of processed rows; 0 if greedy, NaN if invalid


# Checks on the host: shapes and types of every call, in microseconds.


def check_capacity(function: str, capacity: Capacity) -> None:
    """Check that sizes are in their ranges, and drafts agree with `max_spec_len`."""
    for name, least, most in (
        ("batch_size", 1, MAX_BATCH_SIZE),
        ("max_spec_len", 0, MAX_SPEC_LEN),
        ("vocab_size", 1, MAX_VOCAB_SIZE),
        ("edits", 0, MAX_VOCAB_SIZE),
    ):
        value = getattr(capacity, name)
        if not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"{function}: {name}={value!r}, but it must be an int in [{least}, {most}]. Correct it.")
    if (capacity.drafts is Drafts.NONE) != (capacity.max_spec_len == 0):
        raise ValueError(
            f"{function}: drafts={capacity.drafts.name} and max_spec_len={capacity.max_spec_len}, but there are drafts "
            f"exactly if max_spec_len is above 0. Use Drafts.NONE for plain sampling."
        )
    if capacity.dtype not in FLOATS_OF_MODELS:
        known = " or ".join(str(dtype) for dtype in FLOATS_OF_MODELS)
        raise ValueError(f"{function}: dtype={capacity.dtype}, but it must be {known}. Convert the logits.")


class Checked(NamedTuple):
    """Sizes of inputs that passed, and their tensors by slot."""

    batch_size: int
    num_rows: int
    num_slots: int
    by_slot: BySlot


def check_inputs(function: str, capacity: Capacity, inputs: StepInputs, device: torch.device, known: Known) -> Checked:
    """Check kind, shape, type, device and strides of every tensor. The first one that is wrong is named.

    Args:
        known: Tensors by slot that passed before; these are added.
    """
    check_dimensions(function, "logits", inputs.logits, 2)
    check_dimensions(function, "cu_num_rows", inputs.cu_num_rows, 1)
    batch_size, num_rows = inputs.batch_size, inputs.num_rows
    if not (0 <= batch_size <= capacity.batch_size and num_rows <= capacity.max_rows):
        is_batch = not 0 <= batch_size <= capacity.batch_size
        name, size = ("batch_size", batch_size) if is_batch else ("num_rows", num_rows)
        most = capacity.batch_size if is_batch else capacity.max_rows
        raise ValueError(f"{function}: {name}={size}, but the plan holds {most}. Build one of a larger capacity.")
    tensors = tensors_by_slot(inputs)
    seen = seen_before(known, tensors)
    any_index = device.index is None
    for name, tensor, shape, dtypes in _expected(capacity, inputs, batch_size, num_rows, seen):
        # The quick tests first: a step has a dozen tensors, and 40 us.
        good = isinstance(tensor, Tensor) and tensor.shape == shape and tensor.dtype in dtypes and is_plain(tensor)
        if not good or not (tensor.device == device or (any_index and tensor.device.type == device.type)):
            check_tensor(function, name, tensor, shape, dtypes, device, reference="the plan and the other tensors")
        if not tensor.is_contiguous() and tensor.stride(-1) != 1 and shape[-1] > 1:
            raise ValueError(
                f"{function}: {name}.stride(-1)={tensor.stride(-1)}, but it must be 1. Use {name}.contiguous()."
            )
    _check_groups(function, capacity, inputs)
    if inputs.edits is not None and seen.edits is None:
        _check_edits(function, inputs.edits)
    num_slots = inputs.seeds.shape[0]
    if num_slots < (batch_size if inputs.slots is None else min(batch_size, 1)):
        raise ValueError(
            f"{function}: seeds.shape[0]={num_slots}, but {batch_size} requests with slots="
            f"{'None' if inputs.slots is None else '...'} need more. Give each slot its parameters."
        )
    return Checked(batch_size, num_rows, num_slots, _remembered(known, tensors, seen, num_slots))


def _remembered(
    known: Known, tensors: tuple[Tensors, Tensors | None, Tensors | None], seen: BySlot, num_slots: int
) -> BySlot:
    """Return all groups, those that are new among them."""
    if all(group is not None or new is None for group, new in zip(seen, tensors, strict=True)):
        return seen
    return BySlot(
        *(
            group if group is not None or new is None else groups.add(new, num_slots)
            for groups, new, group in zip(known, tensors, seen, strict=True)
        )
    )


Expected = tuple[str, Tensor, tuple[int, ...], "Sequence[torch.dtype]"]


def _expected(
    capacity: Capacity, inputs: StepInputs, batch_size: int, num_rows: int, seen: BySlot
) -> Iterator[Expected]:
    """Yield name, tensor, shape and types of whatever is given, but for what was seen before."""
    vocab_size = capacity.vocab_size
    if seen.parameters is not None:
        num_slots = seen.parameters.num_slots
    else:
        num_slots = inputs.seeds.shape[0] if isinstance(inputs.seeds, Tensor) and inputs.seeds.ndim else batch_size
    num_words = -(-vocab_size // 32)
    yield "logits", inputs.logits, (num_rows, vocab_size), (capacity.dtype,)
    if seen.parameters is None:
        yield "seeds", inputs.seeds, (num_slots,), INT64
    yield "positions", inputs.positions, (batch_size,), INT64
    yield "cu_num_rows", inputs.cu_num_rows, (batch_size + 1,), INT32
    if seen.parameters is None:
        yield from _expected_by_slot(inputs.parameters, num_slots)
    if inputs.slots is not None:
        yield "slots", inputs.slots, (batch_size,), IDS
    if inputs.draft_token_ids is not None:
        yield "draft_token_ids", inputs.draft_token_ids, (num_rows,), IDS
    if inputs.draft_probs is not None:
        yield "draft_probs", inputs.draft_probs, (num_slots, capacity.max_spec_len, vocab_size), FLOAT32
    if inputs.draft_logits is not None:
        of_drafts = (num_slots, capacity.max_spec_len)
        yield "draft_logits", inputs.draft_logits, (*of_drafts, vocab_size), FLOATS_OF_MODELS
        if inputs.draft_temperature is not None:
            yield "draft_temperature", inputs.draft_temperature, (num_slots,), FLOAT32
        if inputs.draft_logsumexp is not None:
            yield "draft_logsumexp", inputs.draft_logsumexp, of_drafts, FLOAT32
    if inputs.grammar_mask is not None:
        yield "grammar_mask", inputs.grammar_mask, (num_rows, num_words), INT32
    if inputs.penalties is not None and seen.penalties is None:
        yield from _expected_by_slot(inputs.penalties, num_slots, output_counts=vocab_size, prompt_mask=num_words)
    if inputs.edits is not None:
        if inputs.edits.forced_token_ids is not None:
            yield "forced_token_ids", inputs.edits.forced_token_ids, (num_rows,), INT32
        if seen.edits is None:
            yield from _expected_by_slot(inputs.edits, num_slots)
            if inputs.edits.bad_words is not None:
                yield from _expected_by_slot(inputs.edits.bad_words, num_slots)


_FLOATS = {"temperature", "top_p", "min_p", "presence", "frequency", "repetition", "bias_values"}
"""Members of a group that are float32; all others are int32."""
_EDIT_LISTS = {"bias_token_ids", "bias_values", "allowed_token_ids", "stop_token_ids", "offsets", "word_ids", "text"}
"""Edits of which a slot has a list, of any width; else it has one number."""


def _expected_by_slot(group: object, num_slots: int, **widths: int) -> Iterator[Expected]:
    """Yield the tensors of a group by slot; `widths` are those of lists that cannot be of any width."""
    for name, tensor in vars(group).items():
        is_off = tensor is getattr(type(group), name, group)  # None, by default; what has no default must be given
        if is_off or name in ("bad_words", "forced_token_ids"):
            continue
        if name in _EDIT_LISTS:
            widths[name] = tensor.shape[1] if isinstance(tensor, Tensor) and tensor.ndim == 2 else 1
        shape = (num_slots, widths[name]) if name in widths else (num_slots,)
        yield name, tensor, shape, FLOAT32 if name in _FLOATS else INT32


def _check_groups(function: str, capacity: Capacity, inputs: StepInputs) -> None:
    """Check that what is given was declared, and what was declared and belongs together is given."""
    parameters, drafts = inputs.parameters, capacity.drafts
    filters = parameters.top_k is not None or parameters.top_p is not None or parameters.min_p is not None
    drafted, probs = inputs.draft_token_ids is not None, inputs.draft_probs is not None
    logits = inputs.draft_logits is not None
    edits, penalties, grammar = inputs.edits is not None, inputs.penalties is not None, inputs.grammar_mask is not None
    given = filters, penalties, grammar, edits, drafted, probs, logits
    has_drafts, has_probs, has_logits = drafts is not Drafts.NONE, drafts is Drafts.PROBS, drafts is Drafts.LOGITS
    of_drafts = has_drafts, has_probs, has_logits
    declared = capacity.filters, capacity.penalties, capacity.grammar, capacity.edits > 0, *of_drafts
    if not logits and (inputs.draft_logsumexp is not None or inputs.draft_temperature is not None):
        name = "draft_temperature" if inputs.draft_logsumexp is None else "draft_logsumexp"
        raise ValueError(f"{function}: {name} is given, but draft_logits=None. Pass both, or neither.")
    if given == declared:
        return
    for name, is_more in zip(_GROUPS, map(gt, given, declared), strict=True):
        if is_more:
            raise ValueError(
                f"{function}: {name} are given, but the plan was built without. Build it with a Capacity that has them."
            )
    if has_drafts and not drafted:
        raise ValueError(f"{function}: draft_token_ids=None, but the plan has drafts. Use -1 where there is none.")
    if has_probs and not probs:
        raise ValueError(f"{function}: draft_probs=None, but the plan has Drafts.PROBS. Pass them, or plan ONE_HOT.")
    if has_logits and not logits:
        raise ValueError(f"{function}: draft_logits=None, but the plan has Drafts.LOGITS. Pass them, or plan ONE_HOT.")


_GROUPS = ("filters", "penalties", "grammar", "edits", "drafts", "drafts", "draft_logits")


def _check_edits(function: str, edits: TokenEdits) -> None:
    """Check that tensors of one kind of edit come together, and a bias has an id."""
    for names in (
        ("bias_counts", "bias_token_ids", "bias_values"),
        ("allowed_counts", "allowed_token_ids"),
        ("stop_counts", "stop_token_ids", "min_lengths"),
    ):
        missing = [name for name in names if getattr(edits, name) is None]
        if 0 < len(missing) < len(names):
            raise ValueError(
                f"{function}: {missing[0]}=None, but {', '.join(names)} must come together. Pass all or none."
            )
    if edits.bias_token_ids is not None and edits.bias_values is not None:
        num_ids, num_values = edits.bias_token_ids.shape[1], edits.bias_values.shape[1]
        if num_ids != num_values:
            raise ValueError(
                f"{function}: bias_values.shape[1]={num_values}, but bias_token_ids.shape[1]={num_ids}. "
                f"Make them equally long."
            )


def check_values(function: str, capacity: Capacity, inputs: StepInputs) -> None:
    """Check values that a step would read; waits for the device."""
    counts = inputs.cu_num_rows.diff()
    rows = f"of a cumulative sum from 0 in steps of 1 to {capacity.max_spec_len + 1}, up to num_rows={inputs.num_rows}"
    starts = torch.cat([inputs.cu_num_rows[:1] == 0, (counts >= 1) & (counts <= capacity.max_spec_len + 1)])
    ends = inputs.cu_num_rows <= inputs.num_rows
    check_all(function, "cu_num_rows", inputs.cu_num_rows, starts & ends, f"{rows}. Use (num_drafts + 1).cumsum(0).")
    num_slots = inputs.seeds.shape[0]
    slots = torch.arange(inputs.batch_size, device=counts.device) if inputs.slots is None else inputs.slots
    rule = f"in [0, {num_slots}). Name a slot that has parameters."
    check_all(function, "slots", slots, (slots >= 0) & (slots < num_slots), rule)
    is_unused = torch.ones(num_slots, dtype=torch.bool, device=slots.device).index_fill(0, slots.long(), False)
    parameters, penalties = inputs.parameters, inputs.penalties
    temperature = parameters.temperature
    check_all(function, "temperature", temperature, temperature >= 0, "at least 0. Use 0 for a greedy request.")
    if parameters.top_p is not None:
        good = (parameters.top_p > 0) & (parameters.top_p <= 1)
        check_all(function, "top_p", parameters.top_p, good, "in (0, 1]. Use 1 to keep all.")
    if parameters.min_p is not None:
        good = (parameters.min_p >= 0) & (parameters.min_p <= 1)
        check_all(function, "min_p", parameters.min_p, good, "in [0, 1]. Use 0 to keep all.")
    if penalties is not None:
        good = penalties.repetition > 0
        check_all(function, "repetition", penalties.repetition, good, "above 0. Use 1 for no penalty.")
        for name, values in (("presence", penalties.presence), ("frequency", penalties.frequency)):
            check_all(function, name, values, values.isfinite() | is_unused, "finite. Use 0 for no penalty.")
    if inputs.draft_token_ids is not None:
        ids = inputs.draft_token_ids
        good = (ids >= -1) & (ids < capacity.vocab_size)
        check_all(function, "draft_token_ids", ids, good, f"in [0, {capacity.vocab_size}), or -1 for a placeholder.")
    # What other slots hold does not matter, and neither does what lies behind a request's drafts.
    num_drafts = counts.new_zeros(num_slots).index_put((slots.long(),), counts - 1)  # [num_slots] int32
    places = torch.arange(capacity.max_spec_len, device=counts.device)
    is_no_draft = places >= num_drafts[:, None]  # [num_slots, max_spec_len] bool
    if inputs.draft_probs is not None:
        probs = inputs.draft_probs
        good = (probs >= 0) & (probs < torch.inf) | is_no_draft[..., None]
        check_all(function, "draft_probs", probs, good, "at least 0 and finite. Use draft_logits.softmax(-1).")
    if inputs.draft_logits is not None:
        _check_draft_logits(function, inputs, inputs.draft_logits, is_no_draft)
    if inputs.edits is not None:
        _check_edit_values(function, capacity, inputs, inputs.edits, is_unused)


def _check_draft_logits(
    function: str,
    inputs: StepInputs,
    draft_logits: Tensor,  # [num_slots, max_spec_len, vocab_size] any
    is_no_draft: Tensor,  # [num_slots, max_spec_len] bool
) -> None:
    """Check that rows of this batch's drafts have a distribution."""
    good = is_no_draft[..., None] | (draft_logits < torch.inf)  # NaN is not
    check_all(function, "draft_logits", draft_logits, good, "below infinity. Use -inf for a token that is not drawn.")
    largest = draft_logits.amax(-1)  # [num_slots, max_spec_len] any
    rule = "above -inf. Leave each draft row a token."
    check_all(function, "draft_logits.amax(-1)", largest, is_no_draft | (largest > -torch.inf), rule)
    temperature = inputs.draft_temperature
    if temperature is not None:
        check_all(function, "draft_temperature", temperature, temperature >= 0, "at least 0. Use 1 for no scaling.")
    if inputs.draft_logsumexp is not None:
        good = is_no_draft | inputs.draft_logsumexp.isfinite()
        rule = "finite. Use (draft_logits.float() / temperature).logsumexp(-1)."
        check_all(function, "draft_logsumexp", inputs.draft_logsumexp, good, rule)


def _check_edit_values(
    function: str, capacity: Capacity, inputs: StepInputs, edits: TokenEdits, is_unused: SlotFlags
) -> None:
    """Check counts and ids of lists, of the slots of this batch."""
    vocab_size, of_unused = capacity.vocab_size, is_unused[:, None]
    for kind in ("bias", "allowed", "stop"):
        counts, ids = getattr(edits, f"{kind}_counts"), getattr(edits, f"{kind}_token_ids")
        if counts is not None and ids is not None:
            _check_counts(function, f"{kind}_counts", counts, ids.shape[1], is_unused)
            places = torch.arange(ids.shape[1], device=ids.device)
            good = (ids >= 0) & (ids < vocab_size) | (places >= counts[:, None]) | of_unused
            check_all(function, f"{kind}_token_ids", ids, good, f"in [0, {vocab_size}). Drop what is no token.")
            if kind == "bias" and edits.bias_values is not None:
                good = (edits.bias_values < torch.inf) | (places >= counts[:, None]) | of_unused
                check_all(function, "bias_values", edits.bias_values, good, "below infinity. Use -inf to exclude.")
    if edits.bad_words is not None:
        _check_bad_words(function, vocab_size, edits.bad_words, is_unused)
    if edits.forced_token_ids is not None:
        forced = edits.forced_token_ids
        rule = f"in [0, {vocab_size}), or -1. Use -1 where no token is forced."
        check_all(function, "forced_token_ids", forced, (forced >= -1) & (forced < vocab_size), rule)
    _check_number_of_edits(function, capacity, edits)


def _check_counts(
    function: str,
    name: str,
    counts: Tensor,  # [num_slots] int32
    length: int,
    is_unused: Tensor,  # [num_slots] bool
) -> None:
    good = (counts >= 0) & (counts <= length) | is_unused
    check_all(function, name, counts, good, f"in [0, {length}], the length of the list. Use 0 for none.")


def _check_bad_words(function: str, vocab_size: int, words: BadWords, is_unused: SlotFlags) -> None:
    """Check that each word that counts lies inside its slot's list and has known tokens."""
    of_unused, ids = is_unused[:, None], words.word_ids
    _check_counts(function, "counts", words.counts, words.offsets.shape[1] - 1, is_unused)
    begins, ends = words.offsets[:, :-1], words.offsets[:, 1:]
    is_more = torch.arange(begins.shape[1], device=begins.device) >= words.counts[:, None]
    good = (begins >= 0) & (ends > begins) & (ends <= ids.shape[1]) | is_more | of_unused
    rule = f"at least 0, below the next one, and that at most {ids.shape[1]}. Use the cumulative sum of lengths."
    check_all(function, "offsets", begins, good, rule)
    behind = words.offsets.masked_fill(of_unused, 0).gather(1, words.counts.clamp(0, begins.shape[1]).long()[:, None])
    is_more = torch.arange(ids.shape[1], device=ids.device) >= behind
    good = (ids >= 0) & (ids < vocab_size) | is_more | of_unused
    check_all(function, "word_ids", ids, good, f"in [0, {vocab_size}). Drop words that cannot be said.")
    good = (words.starts >= 0) | is_unused
    check_all(function, "starts", words.starts, good, "at least 0. Use the length of the prompt.")


def _check_number_of_edits(function: str, capacity: Capacity, edits: TokenEdits) -> None:
    """Check the number of mentions: more than the plan holds would be dropped, the last ones first."""
    words = None if edits.bad_words is None else edits.bad_words.counts
    counts = [
        count for count in (edits.bias_counts, edits.allowed_counts, edits.stop_counts, words) if count is not None
    ]
    if counts:
        together = torch.stack(counts).sum(0) + (edits.forced_token_ids is not None)
        rule = f"at most edits={capacity.edits} with those of the slot's other edits. Plan for more."
        check_all(function, "edits", together, together <= capacity.edits, rule)
