"""The whole step under the rejection contract, from raw logits: with parameters that lead to the batch's rows exactly.

The contract's logits are processed. Here requests get a temperature, penalties, biases, and a grammar or min-p where
tokens are excluded; and raw logits that become the batch's rows again, to the last bit. A request whose rows would be
rounded gets none of that. So the properties, whose batches are small, judge all that a step does to raw logits, with
penalties that count the drafts before a row. Distributions judge little of it: in a large batch there are biases alone,
which change the order of the draw, and with a vocabulary of more than 64 tokens or more than 16 drafts not even these.

A request's parameters follow from its drafts alone, since its tokens must not depend on the batch. Requests have slots
in another order, and what belongs to no request is NaN. Drafts have logits, with and without their logsumexp, or
probabilities.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from fairdraw.adapters import _step
from fairdraw.adapters._rejection import bonus_mask, draft_by_counter, draft_counts, rows_of
from fairdraw.contracts import FunctionSampler, Noise, SpecDecodeBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fairdraw._core import tensor_types as shapes
    from fairdraw.adapters._catalogue import SamplerRow
    from fairdraw.sampler_impl.step import Capacity, Parameters, Penalties, StepInputs, TokenEdits

TEMPERATURES = (1.0, 2.0, 0.5)
"""Powers of 2, as the repetition penalties are: they round nothing."""
REPETITIONS = (1.0, 2.0, 0.5)
ADDED = (0.0, 0.5, -2.0, 1.0)
"""Frequency and presence penalties: with a negative one a draft that comes again is more probable."""
BIASES = ((0.0, 0.0), (4.0, -1.0), (-2.0, 3.0))
NUM_BIASED, MOST_BIASED, MOST_DRAFTS = 2, 64, 16
"""Tokens of a request; and up to so many tokens of a vocabulary, and drafts of a request."""
MOST_ROWS, MOST_ENTRIES = 8192, 1 << 19
"""Limits of a batch whose requests have parameters. A plan with filters has 64 KiB of candidates per row, and in
Triton's interpreter a step of many rows takes seconds."""
BY_MIN_P, BY_GRAMMAR = 1, 2
"""Ways to exclude the tokens of a request whose logits are -inf; of every third one their raw logits are that, too."""
MOST_SPAN, LARGEST, GAP = 60.0, 2.0**16, 1.0
"""A request's min-p lets tokens stay that are as far below the best as any that its rows keep, and this gap. Those to
be excluded are half a gap further below: where a row keeps one token, they would be most of what is drawn. Requests
that keep a larger span, or have larger logits, have no min-p: rounding could close the gap."""
SHIFTS = (0.0, -3.0, 2.0, -1.0, 4.0)
"""Shifts of draft logits, from row to row: without them each logsumexp would be 0."""
FORBIDDEN = 50.0
"""A raw logit that a grammar excludes; it would often be the best."""


def make(row: SamplerRow, device: str, *, backend: _step.Backend) -> FunctionSampler:
    verify, capabilities = functools.partial(_verify, backend), _step.capabilities_of(row, backend, device)
    return FunctionSampler(row.name, verify, device, capabilities, propose=draft_by_counter)


def _verify(backend: _step.Backend, batch: SpecDecodeBatch, noise: Noise) -> shapes.OutputTokens:
    capacity, inputs = raw_step(batch, *_step.counters_of(batch, noise))
    return _step.tokens_of(batch, _step.plan_for(capacity, batch.device, backend)(inputs))


def raw_step(
    batch: SpecDecodeBatch, seeds: shapes.RequestInts, positions: shapes.RequestInts
) -> tuple[Capacity, StepInputs]:
    """Return a plan of what this batch uses and nothing else, and its step."""
    from fairdraw.sampler_impl.step import Capacity, Drafts, StepInputs

    step, width = _Step(batch), _step.rounded_up(max(batch.max_spec_len, 1))
    given = step.of_drafter(_step.draft_probs_of(batch, width))
    filters, grammar = (bool((step.hides == way).any()) for way in (BY_MIN_P, BY_GRAMMAR))
    penalties, edits = bool(step.is_changed.any()), bool(step.is_biased.any())
    inputs = StepInputs(
        logits=step.raw,
        parameters=step.parameters(filters=filters),
        seeds=step.by_slot(seeds, 7),
        positions=positions,
        cu_num_rows=_step.cumulative(draft_counts(batch) + 1),
        slots=step.slots.int(),
        draft_token_ids=step.drafts.int(),
        penalties=step.penalties() if penalties else None,
        edits=step.edits() if edits else None,
        grammar_mask=step.grammar_mask() if grammar else None,
        **given,
    )
    drafts = Drafts.LOGITS if "draft_logits" in given else Drafts.PROBS if given else Drafts.ONE_HOT
    sizes, num_edits = (_step.rounded_up(batch.batch_size), width, batch.vocab_size), NUM_BIASED if edits else 0
    return Capacity(*sizes, torch.float32, drafts, filters, penalties, grammar, num_edits), inputs


class _Step:
    """Parameters of each request, and the raw logits of its rows: one per draft, and a last one."""

    def __init__(self, batch: SpecDecodeBatch) -> None:
        size, is_last = batch.batch_size, bonus_mask(batch)
        self.batch, self.vocab_size = batch, batch.vocab_size
        rows = rows_of(batch, is_last).float()  # [num_rows, vocab_size] float32
        self.requests = is_last.cumsum(0) - is_last.long()  # [num_rows] int64
        first_rows = _step.cumulative(draft_counts(batch) + 1)[:-1].long()  # [batch_size] int64
        self.places = torch.arange(len(rows), device=batch.device) - first_rows[self.requests]  # [num_rows] int64
        self.slots = torch.arange(size, 0, -1, device=batch.device)  # [batch_size] int64; nobody has slot 0
        self.drafts = _step.drafts_of(batch.draft_token_ids.long(), is_last).masked_fill(is_last, 3)  # [num_rows] int64
        weights = ((self.drafts + 2) * (self.places + 1)).masked_fill(is_last, 1)
        number = torch.zeros(size, dtype=torch.int64, device=batch.device).index_add(0, self.requests, weights)
        self.number = number * 2654435761 % 2**32  # [batch_size] int64; its digits are a request's choices
        self.hides = (self.number >> 19) % 3  # [batch_size] int64
        self._choose(self.drafts[first_rows])
        self._bias(rows)
        self.is_changed = torch.zeros_like(self.is_biased)  # [batch_size] bool
        self.raw = rows - self.bias  # [num_rows, vocab_size] float32
        if len(rows) <= MOST_ROWS and rows.numel() <= MOST_ENTRIES:
            self._undo(rows)
        else:
            self.hides = torch.zeros_like(self.hides)

    def chosen(self, values: Sequence[Any], shift: int) -> Tensor:  # Any: numbers, or tuples of them
        """Return one of the values for each request, `[batch_size, ...]` float32."""
        return torch.tensor(values, device=self.number.device)[(self.number >> shift) % len(values)]

    def _choose(self, first_drafts: shapes.RequestInts) -> None:
        """Choose parameters of every request, and which tokens its prompt and its output have."""
        ids, number = torch.arange(self.vocab_size, device=self.number.device), self.number[:, None]
        self.temperature, self.heat = self.chosen(TEMPERATURES, 3), self.chosen(TEMPERATURES, 7)  # [batch_size] float32
        self.frequency, self.presence = self.chosen(ADDED, 9), self.chosen(ADDED, 11)  # [batch_size] float32
        self.repetition = self.chosen(REPETITIONS, 13)  # [batch_size] float32
        self.in_prompt = (ids * 3 + number) % 4 == 0  # [batch_size, vocab_size] bool
        self.output_counts = ((ids * 7 + number) % 5 == 0) * (1 + ids % 2)  # [batch_size, vocab_size] int64
        first = first_drafts.clamp(0, self.vocab_size - 1)
        self.biased = torch.stack([first, (first + 1) % self.vocab_size], 1)  # [batch_size, 2] int64
        self.biases = self.chosen(BIASES, 17)  # [batch_size, 2] float32

    def _bias(self, rows: shapes.LogitRows) -> None:
        """Bias tokens whatever the batch: biased tokens are drawn after the others."""
        by_request = self.biases.new_zeros((len(self.biases), self.vocab_size)).scatter_add(1, self.biased, self.biases)
        bias = by_request[self.requests]
        is_exact = ((rows - bias) + bias == rows) | rows.isnan()
        is_small = (draft_counts(self.batch) <= MOST_DRAFTS) & (1 < self.vocab_size <= MOST_BIASED)  # [batch_size] bool
        self.is_biased = self.of_all_rows(is_exact.all(-1)) & is_small  # [batch_size] bool
        self.bias = bias * self.is_biased[self.requests, None]  # [num_rows, vocab_size] float32

    def _undo(self, rows: shapes.LogitRows) -> None:
        """Undo all parameters to raw logits. If these are not exact for all rows of a request, they are off for it."""
        excluded, largest = rows == -torch.inf, rows.amax(-1, keepdim=True)
        self._choose_span(largest[:, 0] - rows.masked_fill(excluded, torch.inf).amin(-1), largest[:, 0])
        is_below = excluded & (self.hides == BY_MIN_P)[self.requests, None]
        wanted = torch.where(is_below, largest - self.span[self.requests, None] - GAP / 2, rows)
        raw = self.before(wanted)
        after = self.after(raw)
        is_exact = (after == wanted) | wanted.isnan() | (is_below & (after <= wanted + GAP / 4))
        self.is_changed = self.of_all_rows(is_exact.all(-1))  # [batch_size] bool
        raw = torch.where(self.is_changed[self.requests, None], raw, wanted - self.bias)
        self.is_forbidden = excluded & (self.hides == BY_GRAMMAR)[self.requests, None]  # [num_rows, vocab_size] bool
        self.raw = raw.masked_fill(self.is_forbidden, FORBIDDEN)  # [num_rows, vocab_size] float32

    def _choose_span(self, kept_spans: shapes.RowFloats, largest: shapes.RowFloats) -> None:
        """Choose how far below the best the min-p of each request begins, and whether it has one."""
        has_span = (largest.abs() <= LARGEST) & (kept_spans <= MOST_SPAN)
        self.hides = torch.where((self.hides == BY_MIN_P) & ~self.of_all_rows(has_span), 0, self.hides)
        most = torch.zeros_like(self.temperature).scatter_reduce(0, self.requests, kept_spans, "amax")
        self.span = most + GAP  # [batch_size] float32

    def of_all_rows(self, per_row: shapes.RowFlags) -> shapes.RequestFlags:
        whole = torch.ones_like(self.number, dtype=torch.int32)
        return whole.scatter_reduce(0, self.requests, per_row.int(), "amin").bool()

    def _times(self) -> Tensor:  # [num_rows, vocab_size] int64
        """Return how often outputs and the drafts before a row have each token."""
        times = self.output_counts[self.requests]
        for place in range(1, int(self.places.max()) + 1):
            rows = (self.places == place).nonzero()[:, 0]
            times[rows] = times[rows - 1]
            rows = rows[(self.drafts[rows - 1] >= 0) & (self.drafts[rows - 1] < self.vocab_size)]
            times[rows, self.drafts[rows - 1]] += 1
        return times

    def before(self, rows: shapes.LogitRows) -> shapes.LogitRows:
        """Return the inverse of `after`, up to rounding."""
        times = self._times()
        frequency, presence, repetition, temperature = self.of_rows()
        rows = rows * temperature + presence * (times > 0) + frequency * times
        is_repeated = (times > 0) | self.in_prompt[self.requests]
        rows = torch.where(is_repeated, torch.where(rows > 0, rows * repetition, rows / repetition), rows)
        return rows - self.bias

    def after(self, raw: shapes.LogitRows) -> shapes.LogitRows:
        """Return what a step makes of logits."""
        times = self._times()
        frequency, presence, repetition, temperature = self.of_rows()
        rows = raw + self.bias
        is_repeated = (times > 0) | self.in_prompt[self.requests]
        rows = torch.where(is_repeated, torch.where(rows > 0, rows / repetition, rows * repetition), rows)
        return (rows - frequency * times - presence * (times > 0)) / temperature

    def of_rows(self) -> list[Tensor]:  # [num_rows, 1] float32, each
        factors = self.frequency, self.presence, self.repetition, self.temperature
        return [factor[self.requests, None] for factor in factors]

    # By slot.

    def by_slot(self, by_request: Tensor, otherwise: float) -> Tensor:  # [batch_size, ...] and [num_slots, ...] any
        """Return values by slot; slot 0 has something else."""
        slots = by_request.new_full((len(self.slots) + 1, *by_request.shape[1:]), otherwise)
        slots[self.slots] = by_request
        return slots

    def changed_or(self, by_request: shapes.RequestFloats, neutral: float) -> Tensor:  # [num_slots] float32
        return self.by_slot(torch.where(self.is_changed, by_request, neutral), torch.nan)

    def parameters(self, *, filters: bool) -> Parameters:
        from fairdraw.sampler_impl.step import Parameters

        temperature = self.changed_or(self.temperature, 1.0)
        temperature[self.slots[self.batch.is_greedy]] = 0
        if not filters:
            return Parameters(temperature)
        min_p = torch.where(self.hides == BY_MIN_P, (-self.span).exp(), 0.0)
        return Parameters(temperature, min_p=self.by_slot(min_p, torch.nan))

    def penalties(self) -> Penalties:
        from fairdraw.sampler_impl.step import Penalties

        return Penalties(
            presence=self.changed_or(self.presence, 0.0),
            frequency=self.changed_or(self.frequency, 0.0),
            repetition=self.changed_or(self.repetition, 1.0),
            output_counts=self.by_slot(self.output_counts.int(), 9),
            prompt_mask=self.by_slot(_step.words_of(self.in_prompt), -1),
        )

    def edits(self) -> TokenEdits:
        from fairdraw.sampler_impl.step import TokenEdits

        return TokenEdits(
            bias_counts=self.by_slot(self.is_biased.int() * NUM_BIASED, NUM_BIASED),
            bias_token_ids=self.by_slot(self.biased.int(), 0),
            bias_values=self.by_slot(self.biases, torch.nan),
        )

    def grammar_mask(self) -> Tensor:  # [num_rows, num_words] int32
        return _step.words_of(~self.is_forbidden)

    def of_drafter(self, probs: shapes.DraftRows | None) -> dict[str, Any]:  # Any: fields of the inputs
        """Return the form that follows from the vocabulary, which is the same for all requests of a case."""
        if probs is None:
            return {}
        if self.vocab_size % 3 == 0:
            return {"draft_probs": self.by_slot(probs, torch.nan)}
        places = torch.arange(probs.shape[1], device=probs.device)
        shifts = torch.tensor(SHIFTS, device=probs.device)[((self.number >> 21)[:, None] + places) % len(SHIFTS)]
        rows = (probs.log() + shifts[..., None]) * self.heat[:, None, None]
        logits, heat = self.by_slot(rows, torch.nan), self.by_slot(self.heat, 0.0)
        given = {"draft_logits": logits, "draft_temperature": heat}
        if self.vocab_size % 2:
            given["draft_logsumexp"] = (logits / heat[:, None, None]).logsumexp(-1)
        return given
