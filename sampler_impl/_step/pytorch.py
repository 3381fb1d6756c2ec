"""The PyTorch backend of `step`: the CPU path, and the readable twin of the kernels.

    layout        row -> request, slot, place among the request's rows, drafts before it
    edited        logits in float32, edited                                     (`pytorch_edits`)
    kept          scaled = edited / temperature, -inf outside of the kept set   (filters)
    verified      draft tokens accepted, by quotient and uniform
    drawn         one more token per request, by the inverse CDF

The grid [batch_size, max_spec_len + 1] has one cell per token that a request may get; the cells of its rows come first.
Sums whose rounding could depend on the batch are sums of integers, or run along a sorted row.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .._shared.draws import VERIFY_STREAM, philox_uniforms
from .._shared.grid import Grid, clamped_column, is_in_vocab, remove_entries
from .inputs import MIN_TEMPERATURE, Capacity, Checked, Parameters, StepInputs, StepOutput
from .pytorch_edits import edited_logits, moved_ids

if TYPE_CHECKING:
    from .._shared.tensors import (
        Bitmasks,
        LogitRows,
        LogitRows64,
        OutputUniforms,
        RequestInts,
        RowColumn,
        RowColumn64,
        RowInts,
        RowLists,
    )

EXCLUDED = float("-inf")
EMPTY = 2.0**-60
"""A residual of less weight is empty, and the target itself is drawn from."""
ONE = 2.0**43
"""The integer weight of a row's best token: 2**19 of them add up in an int64."""


class PyTorchStep:
    """The step of a plan. There is no loop over requests, positions or vocabulary, and no state."""

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity

    def __call__(self, inputs: StepInputs, _: Checked) -> StepOutput:
        """Draw the tokens of one step."""
        if inputs.batch_size == 0 or inputs.num_rows == 0:
            return _nothing(inputs, self.capacity)
        layout = Layout(inputs, self.capacity.max_spec_len)
        edited = edited_logits(inputs, layout)
        weights = _weights(_filtered(inputs, layout, edited))
        rows = Target(weights, (weights * ONE).long().sum(-1) / ONE, edited.argmax(-1))
        accept_uniforms, draw_uniforms = layout.uniforms()
        is_accepted = _accepted(inputs, layout, rows, accept_uniforms)
        num_accepted = (layout.laid_out(is_accepted) & layout.is_drafted).cumprod(-1).sum(-1)
        last = _last_tokens(inputs, layout, rows, num_accepted, draw_uniforms)
        tokens = torch.where(layout.cells(num_accepted), layout.laid_out(layout.drafts), last[:, None])
        num_tokens = torch.where(layout.counts > 0, num_accepted + 1, 0)
        is_token = layout.cells(num_tokens)
        logprobs = None
        if self.capacity.logprobs:
            logprobs = _logprobs(layout, rows, tokens).masked_fill_(~is_token, 0.0)
        return StepOutput(tokens.masked_fill(~is_token, -1).int(), num_tokens.int(), logprobs)

    def whole(
        self,
        inputs: StepInputs,
        checked: Checked,
        processed: LogitRows | None,
        kept_words: Bitmasks | None,
        *,
        emits: bool,
    ) -> StepOutput:
        """Write edited logits over temperature, -inf outside of the kept set, or bits of what is in it; a greedy row's
        are edited alone."""
        rows = inputs.logits.float()
        if inputs.batch_size > 0 and inputs.num_rows > 0:
            layout = Layout(inputs, self.capacity.max_spec_len)
            rows = _filtered(inputs, layout, edited_logits(inputs, layout))
        if processed is not None:
            processed.copy_(rows)
        if kept_words is not None:
            bits = torch.nn.functional.pad(rows != EXCLUDED, (0, -rows.shape[1] % 32)).view(len(rows), -1, 32)
            kept_words.copy_((bits.long() << torch.arange(32, device=kept_words.device)).sum(-1))
        return self(inputs, checked) if emits else _nothing(inputs, self.capacity)


class Target(NamedTuple):
    """Distributions that the rows of a step are drawn from, and the best token of each."""

    weights: Tensor  # [num_rows, vocab_size] float64
    totals: Tensor  # [num_rows] float64
    best: Tensor  # [num_rows] int64


class Layout(Grid):
    """Places where rows belong. Rows behind the last request are given to it, and nothing of them is read."""

    def __init__(self, inputs: StepInputs, max_spec_len: int) -> None:
        super().__init__(inputs.cu_num_rows, inputs.num_rows, max_spec_len + 1)
        self.inputs, self.max_spec_len = inputs, max_spec_len

    # As `rows.find_request`: rows and slots that exist, whatever the tensors say.

    @cached_property
    def slots_of_requests(self) -> Tensor:  # [batch_size] int64
        slots = self.inputs.slots
        if slots is None:
            return torch.arange(self.inputs.batch_size, device=self.inputs.logits.device)
        return torch.where(self.counts > 0, slots.long().clamp(0, self.inputs.seeds.shape[0] - 1), 0)

    @cached_property
    def slots(self) -> Tensor:  # [num_rows] int64
        return self.slots_of_requests[self.owners]

    @cached_property
    def positions(self) -> Tensor:  # [num_rows] int64
        """Return the position of the token that the row is about."""
        return self.inputs.positions[self.owners] + self.places

    @cached_property
    def drafts(self) -> Tensor:  # [num_rows] int64
        """Return the draft token behind each row."""
        given = self.inputs.draft_token_ids
        return torch.full_like(self.places, -1) if given is None else given.long()

    @cached_property
    def drafts_before(self) -> Tensor:  # [num_rows, max_spec_len] int64
        """Return the request's drafts that a row sees; -1 for those that it does not."""
        steps = self.columns[:-1]
        rows = (self.starts[self.owners, None] + steps).clamp(max=max(self.num_tokens - 1, 0))
        return self.drafts[rows].masked_fill(steps >= self.places[:, None], -1)

    @cached_property
    def temperature(self) -> Tensor:  # [num_rows] float32
        return self.inputs.parameters.temperature[self.slots]

    @property
    def is_greedy(self) -> Tensor:  # [num_rows] bool
        return self.temperature == 0

    @cached_property
    def is_drafted(self) -> Tensor:  # [batch_size, max_spec_len + 1] bool
        """Whether a cell is that of a draft token: all rows of a request but its last."""
        return self.cells(self.counts - 1)

    def uniforms(self) -> tuple[Tensor, Tensor]:  # [batch_size, max_spec_len + 1] float64, both
        """Return uniforms that accept, and uniforms that draw."""
        seeds = self.inputs.seeds[self.slots_of_requests]
        return philox_uniforms(seeds[:, None], self.inputs.positions[:, None] + self.columns, VERIFY_STREAM)


def _nothing(inputs: StepInputs, capacity: Capacity) -> StepOutput:
    """Return the output of a batch without rows."""
    shape = (inputs.batch_size, capacity.max_spec_len + 1)
    tokens = inputs.positions.new_full(shape, -1, dtype=torch.int32)
    logprobs = torch.zeros_like(tokens).float() if capacity.logprobs else None
    return StepOutput(tokens, tokens.new_zeros(shape[0]), logprobs)


# Filters


def _filtered(inputs: StepInputs, layout: Layout, edited: LogitRows) -> Tensor:  # [num_rows, vocab_size] float32
    """Return `scaled`, -inf outside of the kept set. Filters leave greedy rows, and those without a distribution."""
    scaled = edited / layout.temperature.masked_fill(layout.is_greedy, 1.0).clamp(min=MIN_TEMPERATURE)[:, None]
    parameters = inputs.parameters
    if parameters.min_p is None and parameters.top_k is None and parameters.top_p is None:
        return scaled
    largest = scaled.amax(-1, keepdim=True)
    least = torch.full_like(largest, EXCLUDED)
    if parameters.min_p is not None:
        least = largest + parameters.min_p[layout.slots].log()[:, None]
    if parameters.top_k is not None or parameters.top_p is not None:
        least = _least_left(scaled, least, parameters, layout.slots)
    filters = largest.isfinite() & ~layout.is_greedy[:, None]
    return scaled.masked_fill(filters & (scaled < least), EXCLUDED)


def _least_left(
    scaled: LogitRows, least: RowColumn, parameters: Parameters, row_slots: RowInts
) -> Tensor:  # [num_rows, 1] float32
    """Return the least scaled logit that top-k and top-p leave of those at or above `least`."""
    vocab_size = scaled.shape[1]
    descending = scaled.sort(-1, descending=True).values
    descending.masked_fill_(descending < least, EXCLUDED)
    if parameters.top_k is not None:
        top_k = parameters.top_k[row_slots].long()[:, None]
        top_k = torch.where((top_k <= 0) | (top_k > vocab_size), vocab_size, top_k)
        least = torch.maximum(least, descending.gather(-1, top_k - 1))
        descending.masked_fill_(descending < least, EXCLUDED)
    if parameters.top_p is not None:
        top_p = parameters.top_p[row_slots][:, None]
        sums = _weights(descending).cumsum(-1)
        # The first that reaches the share, with all before it. Rounding may leave none: then it is the last.
        reached = (sums < top_p * sums[:, -1:]).sum(-1, keepdim=True).clamp(max=vocab_size - 1)
        least = torch.where(top_p < 1, torch.maximum(least, descending.gather(-1, reached)), least)
    return least


def _weights(scaled: LogitRows) -> Tensor:  # [num_rows, vocab_size] float64
    """Return `exp(scaled - largest)`; zeros in a row without a distribution (NaN, inf, or nothing but -inf)."""
    largest = scaled.amax(-1, keepdim=True)
    return (scaled.double() - largest).exp_().masked_fill_(~largest.isfinite(), 0.0)


# Draft tokens


def _accepted(inputs: StepInputs, layout: Layout, rows: Target, uniforms: OutputUniforms) -> Tensor:  # [num_rows] bool
    """Accept each draft token on its own: by a float32 quotient, or in a greedy row as the argmax."""
    ids, vocab_size = layout.drafts, rows.weights.shape[1]
    target = (rows.weights.gather(-1, clamped_column(ids, vocab_size))[:, 0] / rows.totals).float()
    draft = torch.ones_like(target)
    if _has_draft_rows(inputs):
        every = torch.arange(len(ids), device=ids.device)
        draft = _draft_probs(inputs, layout, every, clamped_column(ids, vocab_size))[:, 0]
    is_lucky = target / draft >= uniforms[layout.owners, layout.places]
    is_accepted = torch.where(layout.is_greedy, rows.best == ids, is_lucky & (target > 0) & (draft > 0))
    return is_accepted & is_in_vocab(ids, vocab_size)


def _has_draft_rows(inputs: StepInputs) -> bool:
    """Whether drafts come with distributions, as probabilities or as logits."""
    return inputs.draft_probs is not None or inputs.draft_logits is not None


def _draft_probs(
    inputs: StepInputs, layout: Layout, row_indices: RowInts, columns: RowLists
) -> Tensor:  # [num_rows, length] float32
    """Return draft probabilities in some columns of some rows; of a row without a draft anything. NaN if a row of draft
    logits has no distribution."""
    slots, places = layout.slots[row_indices], layout.places[row_indices].clamp(max=layout.max_spec_len - 1)
    at = slots[:, None], places[:, None], columns
    if inputs.draft_probs is not None:
        return inputs.draft_probs[at]
    assert inputs.draft_logits is not None
    temperature = layout.places.new_ones((), dtype=torch.float32)
    if inputs.draft_temperature is not None:
        temperature = inputs.draft_temperature[slots, None].clamp(min=MIN_TEMPERATURE)
    if inputs.draft_logsumexp is not None:
        logsumexp = inputs.draft_logsumexp[slots, places]
    else:
        logsumexp = (inputs.draft_logits[slots, places].float() / temperature).double().logsumexp(-1).float()
    logsumexp = logsumexp.masked_fill(~logsumexp.isfinite(), torch.nan)
    return (inputs.draft_logits[at].float() / temperature - logsumexp[:, None]).exp()


# The last token


def _last_tokens(
    inputs: StepInputs, layout: Layout, target: Target, num_accepted: RequestInts, uniforms: OutputUniforms
) -> Tensor:  # [batch_size] int64
    """Return the token that each request has after the accepted drafts: of a residual if its draft was rejected."""
    cells = num_accepted[:, None]
    rows = layout.rows.gather(1, cells)[:, 0]
    is_rejected = layout.is_drafted.gather(1, cells)
    targets = target.weights[rows] / target.totals[rows, None]
    if inputs.draft_token_ids is not None:
        targets = torch.where(is_rejected, _residual(inputs, layout, targets, rows), targets)
    moved = moved_ids(inputs, layout, targets.shape[1])
    drawn = _draw(targets, uniforms.gather(1, cells), None if moved is None else moved[rows])
    return torch.where(layout.is_greedy[rows], target.best[rows], drawn)


def _residual(
    inputs: StepInputs,
    layout: Layout,
    targets: Tensor,  # [batch_size, vocab_size] float64
    rows: Tensor,  # [batch_size] int64
) -> Tensor:  # [batch_size, vocab_size] float64
    """Return `max(target - draft, 0)`, or the target's row where that is empty; one-hot drafts remove one entry."""
    if not _has_draft_rows(inputs):
        return remove_entries(targets, layout.drafts[rows])
    every = torch.arange(targets.shape[1], device=rows.device)[None, :]
    excess = targets.float() - _draft_probs(inputs, layout, rows, every)
    if inputs.draft_logits is not None:  # a placeholder stands for a draft that was never made
        excess = excess.masked_fill(~is_in_vocab(layout.drafts[rows], targets.shape[1])[:, None], 0.0)
    excess = torch.where(excess > 0, excess, 0.0).double()
    return torch.where(excess.sum(-1, keepdim=True) <= EMPTY, targets, excess)


def _shares(weights: LogitRows64) -> Tensor:  # [num_rows, vocab_size] int64
    """Return integers, `ONE` for the largest: they add up without rounding."""
    largest = weights.amax(-1, keepdim=True)
    return torch.where(largest > 0, weights / largest * ONE, 0.0).long()


def _draw(weights: LogitRows64, quantiles: RowColumn64, moved: RowLists | None) -> Tensor:  # [num_rows] int64
    """Return the first entry of each row whose cumulative share exceeds `quantile * total`; 0 if there is no weight."""
    shares = _shares(weights)
    ends = (shares if moved is None else _with_moved(shares, moved)).cumsum(-1)
    totals = ends[:, -1:]
    thresholds = torch.minimum((quantiles * totals).long(), totals - 1)
    drawn = torch.searchsorted(ends, thresholds, right=True)
    drawn = torch.where(totals > 0, drawn, 0)
    if moved is not None:
        behind = drawn - weights.shape[1]
        drawn = torch.where(behind < 0, drawn, moved.gather(1, behind.clamp(min=0)))
    return drawn[:, 0]


def _with_moved(
    row_shares: Tensor,  # [num_rows, vocab_size] int64
    moved: Tensor,  # [num_rows, length] int64
) -> Tensor:  # [num_rows, length] int64
    """Return shares in which those of moved ids stand behind the vocabulary, each at its first mention."""
    mentions = torch.arange(moved.shape[1], device=moved.device).expand_as(moved)
    with_unused = torch.nn.functional.pad(row_shares, (0, 1))
    first = torch.full_like(with_unused, moved.shape[1]).scatter_reduce_(1, moved, mentions, "amin").gather(1, moved)
    behind = torch.where(first == mentions, with_unused.gather(1, moved), 0)
    return torch.cat([with_unused.scatter(1, moved, 0)[:, :-1], behind], 1)


def _logprobs(
    layout: Layout,
    rows: Target,
    cell_tokens: Tensor,  # [batch_size, max_spec_len + 1] int64
) -> Tensor:  # [batch_size, max_spec_len + 1] float32
    """Return log-probabilities of the tokens of each cell, under the processed distribution of the cell's row; NaN
    where there is none."""
    found = rows.weights[layout.rows, cell_tokens.clamp(0, rows.weights.shape[1] - 1)] / layout.laid_out(rows.totals)
    found = found.log().float()
    return found.masked_fill(layout.laid_out(layout.is_greedy), 0.0)
