"""What kernels of a step are given, and what they pass on to each other, by name.

A pointer is a tensor at the first launch of a kind and its address later, and None where a plan has no use for it.
"""

from __future__ import annotations

from collections import namedtuple
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
    """Rows and slots of requests, and what these draw by."""

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
    row_words_ptr: Any  # [max_rows, all_tiles] int64, the plan's own, of draft logits; None for probabilities


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


class Scanned(NamedTuple):
    """Memory that the scan writes."""

    words_ptr: Any  # [max_rows, all_tiles] int64
    reached_ptr: Any  # [max_rows, all_tiles] int64; None: nothing is filtered
    arrivals_ptr: Any  # [batch_size] int32, 0 before a step; None: every row is read


class Output(NamedTuple):
    """Tokens of requests; pointers are None if a step is not to emit."""

    token_ids_ptr: Any  # [batch_size, max_spec_len + 1] int32
    num_tokens_ptr: Any  # [batch_size] int32
    logprobs_ptr: Any  # [batch_size, max_spec_len + 1] float32


class Results(NamedTuple):
    """Findings about each row."""

    accepted_ptr: Any  # [max_rows] int32
    tokens_ptr: Any  # [max_rows] int32
    kept_ptr: Any  # [max_rows] int32
    statistics_ptr: Any  # [max_rows, 2] float32
    row_logprobs_ptr: Any  # [max_rows, 2] float32
    deferred_ptr: Any  # [max_spec_len + 1, batch_size] int32, 0 before and after a step


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
    shares_ptr: Any  # [batch_size, all_tiles] int64; None: drafts have no distributions
    run_reached_ptr: Any  # [max_rows, num_runs] int16; None: nothing is filtered
    lists: Any


class Constants(NamedTuple):
    """Constants of the kernels that settle the rows of a plan."""

    edits: int
    tiles: int
    positions: int
    block: int  # runs that are in flight where a row is read
    most: int  # candidates in a list
    batch: int  # most requests
    skips: bool  # whether a row is skipped behind one that is known to be rejected
    overlaps: bool
    flat: bool  # whether these are the programs of flat rows
    places: int  # of each of these programs
    at_once: int  # of them that run at the same time


class Shape(NamedTuple):
    """Division of a scan among programs, and what its device has: overlapping launches, and `mov`."""

    strip: int  # blocks of a program
    apart: bool  # whether the rows of a request have programs of their own
    requests_at: int = 1  # side of the grid
    waits: bool = False  # for the kernel that lists edits
    overlaps: bool = False
    pins: bool = False


# What kernels make themselves, of numbers and tensors that have no Python type.

Sizes = namedtuple("Sizes", "max_spec_len vocab_size all_tiles")
"""Sizes of a plan."""
Factors = namedtuple("Factors", "presence frequency repetition is_any")
"""Penalties of a slot."""
Place = namedtuple("Place", "row_idx slot num_edits factors offset")
"""Place of a row: its index, its slot, how many edits it has, its penalties, how many drafts are before it."""
Row = namedtuple("Row", "inputs place")
"""Row of logits."""
DraftRow = namedtuple("DraftRow", "drafts slot offset has_draft logsumexp temperature")
"""Row of a drafter; `has_draft`: whether there is a distribution to subtract."""
Given = namedtuple("Given", "inputs requests filters drafts")
"""Inputs of a step."""
Draft = namedtuple("Draft", "drafts token_id index is_before")
"""Draft token behind a row, its index, and whether it is one of the request."""
Request = namedtuple("Request", "req_idx first count")
"""Request, its first row, and how many it has."""
Noise = namedtuple("Noise", "seed_ptr position_ptr temperature")
"""Pointers to the seed of a slot and to the position of a request, and the temperature."""
Statistics = namedtuple("Statistics", "largest row_sum scale temperature")
"""Softmax of a row: its largest logit, the sum over that, and the factor that makes exponents of 2 of differences."""
Filtering = namedtuple("Filtering", "top_k top_p min_p")
"""Parameters of the filters of one row."""
Sample = namedtuple("Sample", "orders weights each")
"""Entries all over a row: their orders, their weights over the best token's, and how many entries each stands for."""
Candidates = namedtuple("Candidates", "runs_ptr indices_ptr logits_ptr temperature")
"""Lists of one row, and the temperature that its candidates are divided by."""
Found = namedtuple("Found", "token_id index kept size is_valid")
"""Findings about a row: its draft token and the index of it, the order of the least that is kept, how many candidates
are listed, and whether there is a distribution."""
