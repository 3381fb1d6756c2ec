"""What kernels of a step are given, and what they pass on to each other, by name.

A pointer is a tensor at the first launch of a kind and its address later, and None where a plan has no use for it.
"""

from __future__ import annotations

from typing import Any, NamedTuple  # Any: pointers and numbers of kernels


class Penalties(NamedTuple):
    """Penalties by slot."""

    presence_ptr: Any  # [num_slots] float32
    frequency_ptr: Any  # [num_slots] float32
    repetition_ptr: Any  # [num_slots] float32
    output_counts_ptr: Any  # [num_slots, vocab_size] int32
    prompt_mask_ptr: Any  # [num_slots, num_words] int32
    counts_stride: Any
    prompt_stride: Any


class EditLists(NamedTuple):
    """Lists that `edit_kernel` makes for each row: ids, their logits, how many; bits of the ids and of their blocks."""

    excluded_ptr: Any  # [max_rows, num_words] int32
    ids_ptr: Any  # [max_rows, max_edits] int32
    logits_ptr: Any  # [max_rows, max_edits] float32
    num_edits_ptr: Any  # [max_rows] int32; negative: the row has nothing else
    capacity: Any
    blocks_ptr: Any  # [max_rows, num_block_words] int32


class RowInputs(NamedTuple):
    """Tensors that logits of rows are made of."""

    logits_ptr: Any  # [num_rows, vocab_size] any
    logits_stride: Any
    grammar_mask_ptr: Any  # [num_rows, num_words] int32
    num_words: Any
    edits: Any
    penalties: Any
    draft_token_ids_ptr: Any  # [num_rows] int32; None without penalties, which count the drafts before a row
    grammar_stride: Any


class Requests(NamedTuple):
    """Where requests have their rows and slots, and what they draw by."""

    cu_num_rows_ptr: Any  # [batch_size + 1] int32
    slots_ptr: Any  # [batch_size] int32
    seeds_ptr: Any  # [num_slots] int64
    positions_ptr: Any  # [batch_size] int64
    temperature_ptr: Any  # [num_slots] float32


class Filters(NamedTuple):
    """Parameters of filters by slot."""

    top_k_ptr: Any  # [num_slots] int32
    top_p_ptr: Any  # [num_slots] float32
    min_p_ptr: Any  # [num_slots] float32


class Drafts(NamedTuple):
    """Draft tokens, and their rows of probabilities or logits."""

    draft_token_ids_ptr: Any  # [num_rows] int32
    dense_ptr: Any  # [num_slots, max_spec_len, vocab_size] any
    slot_stride: Any
    position_stride: Any
    draft_logsumexp_ptr: Any  # [num_slots, max_spec_len] float32; None: the step computes it
    logsumexp_stride: Any
    draft_temperature_ptr: Any  # [num_slots] float32; None: there is nothing to divide by
    row_logsumexp_ptr: Any  # [max_rows] float32, the plan's own; None for probabilities


class Counted(NamedTuple):
    """List of each slot with as many ids as its count says."""

    counts_ptr: Any  # [num_slots] int32
    ids_ptr: Any  # [num_slots, length] int32
    stride: Any
    length: Any


class BadWords(NamedTuple):
    """Bad words of each slot, and the text that they are looked for in."""

    counts_ptr: Any  # [num_slots] int32
    offsets_ptr: Any  # [num_slots, length] int32
    word_ids_ptr: Any  # [num_slots, length] int32
    text_ptr: Any  # [num_slots, length] int32
    starts_ptr: Any  # [num_slots] int32
    offsets_stride: Any
    word_ids_stride: Any
    text_stride: Any
    num_offsets: Any
    num_word_ids: Any
    text_length: Any


class Edits(NamedTuple):
    """Edits by slot, and forced tokens by row."""

    allowed: Any
    biased: Any
    bias_values_ptr: Any  # [num_slots, length] float32
    bias_stride: Any
    stop: Any
    min_lengths_ptr: Any  # [num_slots] int32
    bad_words: Any
    forced_token_ids_ptr: Any  # [num_rows] int32


class Mentions(NamedTuple):
    """Mentions of ids in a row's edits, as a list. Ids are those of the list of the row itself."""

    ids_ptr: Any  # [max_rows, max_edits] int32
    kinds_ptr: Any  # [max_rows, max_edits] int32
    values_ptr: Any  # [max_rows, max_edits] float32


class Sizes(NamedTuple):
    """Sizes of a plan."""

    max_spec_len: Any
    vocab_size: Any
    all_tiles: Any


class Scanned(NamedTuple):
    """What the scan writes."""

    words_ptr: Any  # [max_rows, all_tiles] int64
    reached_ptr: Any  # [max_rows, all_tiles] int64; None: nothing is filtered
    arrivals_ptr: Any  # [batch_size] int32, 0 before a step; None: every row is read


class Output(NamedTuple):
    """Tokens of requests; pointers are None if a step is not to emit."""

    token_ids_ptr: Any  # [batch_size, max_spec_len + 1] int32
    num_tokens_ptr: Any  # [batch_size] int32
    logprobs_ptr: Any  # [batch_size, max_spec_len + 1] float32


class Results(NamedTuple):
    """What was found out about each row."""

    accepted_ptr: Any  # [max_rows] int32
    tokens_ptr: Any  # [max_rows] int32
    kept_ptr: Any  # [max_rows] int32
    statistics_ptr: Any  # [max_rows, 2] float32
    row_logprobs_ptr: Any  # [max_rows, 2] float32


class Lists(NamedTuple):
    """Runs and candidates of rows."""

    runs_ptr: Any  # [max_rows, num_runs] int32
    indices_ptr: Any  # [max_rows, num_candidates] int32
    candidates_ptr: Any  # [max_rows, num_candidates] float32


class Memory(NamedTuple):
    """Memory of a plan through which kernels that settle rows and emit tokens pass on what they found."""

    output: Any
    arrivals_ptr: Any  # [batch_size] int32, 0 before and after a step
    results: Any
    words_ptr: Any  # [max_rows, all_tiles] int64
    run_reached_ptr: Any  # [max_rows, num_runs] int16; None: nothing is filtered
    lists: Any


class Constants(NamedTuple):
    """Constants that rows of a plan are settled by."""

    edits: int
    tiles: int
    positions: int
    block: int
    most: int


class Shape(NamedTuple):
    """How a scan is shared out among programs."""

    strip: int  # blocks of a program
    apart: bool  # whether the rows of a request have programs of their own


# What kernels make themselves.


class Factors(NamedTuple):
    """Penalties of a slot."""

    presence: Any
    frequency: Any
    repetition: Any
    is_any: Any


class Place(NamedTuple):
    """Place of a row: its index, its slot, how many edits it has, its penalties, how many drafts are before it."""

    row_idx: Any
    slot: Any
    num_edits: Any
    factors: Any
    offset: Any


class Row(NamedTuple):
    """Row of logits."""

    inputs: Any
    place: Any


class DraftRow(NamedTuple):
    """Row of a drafter, with `has_draft`: whether there is a distribution to subtract."""

    drafts: Any
    slot: Any
    offset: Any
    has_draft: Any
    logsumexp: Any
    temperature: Any


class Request(NamedTuple):
    """Request, its first row, and how many it has."""

    req_idx: Any
    first: Any
    count: Any


class Noise(NamedTuple):
    """What a row is drawn by."""

    seed_ptr: Any  # [1] int64, of a slot
    position_ptr: Any  # [1] int64, of a request
    temperature: Any


class Statistics(NamedTuple):
    """Softmax of a row: largest logit, sum over it, what logits are multiplied by in exponents of 2, and divided by."""

    largest: Any
    row_sum: Any
    scale: Any
    temperature: Any


class Filtering(NamedTuple):
    """Parameters of one row's filters."""

    top_k: Any
    top_p: Any
    min_p: Any


class Candidates(NamedTuple):
    """Lists of one row, and the temperature that its candidates are divided by."""

    runs_ptr: Any  # [num_runs] int32
    indices_ptr: Any  # [num_candidates] int32
    logits_ptr: Any  # [num_candidates] float32
    temperature: Any


class Found(NamedTuple):
    """What is known of a row: its draft token and the index of it, the order of the least that is kept, how many
    candidates are listed, and whether there is a distribution."""

    row_idx: Any
    token_id: Any
    index: Any
    kept: Any
    size: Any
    is_valid: Any
