"""`StepPlan.processed_logits` of `fairdraw.sampler_impl.step`: the rows that a step draws from, and never writes.

Everything by slot is written anew at each step, from prompts, outputs and parameters; the request of row `i` has the
`i`-th slot from the end. Thinking budgets are those of our scanner, which says which rows are forced.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from fairdraw.adapters._step import Backend, by_row, capabilities_of, cumulative, plan_for, rounded_up, words_of
from fairdraw.contracts import LogitsBatch, LogitsParams, LogitsRequest, PlanSetup, SessionSampler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fairdraw._core.tensor_types import AnyLogitRows, LogitRows
    from fairdraw.adapters._catalogue import SamplerRow
    from fairdraw.sampler_impl.step import BadWords, Parameters, Penalties, StepInputs, TokenEdits
    from fairdraw.sampler_impl.thinking_budget import ThinkingBudget

GREEDY_BELOW = 1e-5
"""Temperature of the contract; a plan's greedy requests have temperature 0."""


def make(row: SamplerRow, device: str, *, backend: Backend) -> SessionSampler:
    """Return the step behind the suite's `open_plan`."""
    function, capabilities = partial(_open, backend), capabilities_of(row, backend, device)
    return SessionSampler(row.name, function, row.contract, device, capabilities)


def _open(backend: Backend, setup: PlanSetup) -> _Session:
    from fairdraw.sampler_impl.thinking_budget import ThinkingBudget

    return _Session(ThinkingBudget(setup.start_token_ids, setup.end_token_ids), backend)


@dataclass(frozen=True)
class _Session:
    thinking: ThinkingBudget
    backend: Backend

    def process(self, batch: LogitsBatch) -> LogitRows:
        from fairdraw.sampler_impl.step import Capacity, Drafts

        inputs, most = self._inputs(batch), max(batch.num_draft_tokens)
        num_edits = max(_num_edits(request.params) for request in batch.requests)
        capacity = Capacity(
            batch_size=rounded_up(batch.batch_size),
            max_spec_len=rounded_up(most) if most else 0,
            vocab_size=batch.logits.shape[1],
            dtype=batch.logits.dtype,
            drafts=Drafts.ONE_HOT if most else Drafts.NONE,
            filters=inputs.parameters.top_k is not None,
            penalties=inputs.penalties is not None,
            edits=rounded_up(num_edits) if inputs.edits is not None else 0,
        )
        return plan_for(capacity, batch.logits.device, self.backend).processed_logits(inputs)

    def _inputs(self, batch: LogitsBatch) -> StepInputs:
        from fairdraw.sampler_impl.step import StepInputs

        device, by_slot = batch.logits.device, batch.requests[::-1]
        counts = _ints([count + 1 for count in batch.num_draft_tokens], device)
        drafts = [i for request in batch.requests for i in (*request.draft_token_ids, 0)]
        lengths = [len(request.prompt_token_ids) + len(request.output_token_ids) for request in batch.requests]
        return StepInputs(
            logits=by_row(batch.logits),
            parameters=_parameters([request.params for request in by_slot], device),
            seeds=torch.zeros(batch.batch_size, dtype=torch.int64, device=device),
            positions=_ints(lengths, device).long(),
            cu_num_rows=cumulative(counts),
            slots=_ints(range(batch.batch_size)[::-1], device),
            draft_token_ids=_ints(drafts, device) if any(batch.num_draft_tokens) else None,
            penalties=_penalties(by_slot, batch.logits) if any(r.params.penalised for r in by_slot) else None,
            edits=_edits(by_slot, self._forced(batch), device),
        )

    def _forced(self, batch: LogitsBatch) -> list[int]:  # [num_rows]
        """Return what each row must be, or -1."""
        if batch.change is not None:
            update: Any = batch.change  # Any: its sequences behave like the lists that it asks for
            self.thinking.sync_batch(update)
        outputs = [request.output_token_ids for request in batch.requests]
        self.thinking.update_state(outputs, [request.draft_token_ids for request in batch.requests])
        rows = [-1] * batch.logits.shape[0]
        for request, tokens in self.thinking.forced.items():
            for token in tokens:
                rows[batch.first_rows[request] + token.position] = token.token_id
        return rows


def _parameters(params: Sequence[LogitsParams], device: torch.device) -> Parameters:
    """Return parameters, without filters if no request of the batch has any: a plan without them reads rows once."""
    from fairdraw.sampler_impl.step import Parameters

    temperature = _floats([0 if p.temperature < GREEDY_BELOW else p.temperature for p in params], device)
    if not any(p.top_k > 0 or p.top_p < 1 or p.min_p > 0 for p in params):
        return Parameters(temperature)
    return Parameters(
        temperature,
        _ints([p.top_k for p in params], device),
        _floats([p.top_p for p in params], device),
        _floats([p.min_p for p in params], device),
    )


def _penalties(requests: Sequence[LogitsRequest], logits: AnyLogitRows) -> Penalties:
    """Return counts as an engine keeps them; here they are counted anew."""
    from fairdraw.sampler_impl.step import Penalties

    device, vocab_size = logits.device, logits.shape[1]
    factors = zip(*(request.params.factors for request in requests), strict=True)
    presence, frequency, repetition = (_floats(one, device) for one in factors)
    prompts = torch.stack([_counted(request.prompt_token_ids, vocab_size) for request in requests]) > 0
    outputs = torch.stack([_counted(request.output_token_ids, vocab_size) for request in requests])
    return Penalties(presence, frequency, repetition, outputs.int().to(device), words_of(prompts).to(device))


def _counted(token_ids: Sequence[int], vocab_size: int) -> Tensor:  # [vocab_size] int64
    """Count tokens but placeholders and the pad id `vocab_size`."""
    known = [i for i in token_ids if 0 <= i < vocab_size]
    return torch.tensor(known, dtype=torch.int64).bincount(minlength=vocab_size)


def _num_edits(params: LogitsParams) -> int:
    """Return ids that one row may mention; one more for a forced token."""
    lists = params.allowed_token_ids, params.bad_words_token_ids, params.all_stop_token_ids, params.logit_bias
    return 1 + sum(len(ids or ()) for ids in lists)


def _edits(requests: Sequence[LogitsRequest], forced: list[int], device: torch.device) -> TokenEdits | None:
    """Return each kind that a request of the batch has; `None` if none has any."""
    from fairdraw.sampler_impl.step import TokenEdits

    params = [request.params for request in requests]
    groups: dict[str, Any] = {}  # Any: one type each
    if any(p.allowed_token_ids for p in params):
        names = ("allowed_counts", "allowed_token_ids")
        groups |= zip(names, _lists([p.allowed_token_ids or () for p in params], device), strict=True)
    if any(p.logit_bias for p in params):
        biases = [p.logit_bias or {} for p in params]
        names = ("bias_counts", "bias_token_ids")
        groups |= zip(names, _lists([list(bias) for bias in biases], device), strict=True)
        groups["bias_values"] = _lists([list(bias.values()) for bias in biases], device)[1].float()
    if any(p.min_tokens and p.all_stop_token_ids for p in params):
        names = ("stop_counts", "stop_token_ids")
        groups |= zip(names, _lists([sorted(p.all_stop_token_ids) for p in params], device), strict=True)
        lengths = [len(request.prompt_token_ids) + request.params.min_tokens for request in requests]
        groups["min_lengths"] = _ints(lengths, device)
    if any(p.bad_words_token_ids for p in params):
        groups["bad_words"] = _bad_words(requests, device)
    if max(forced) >= 0:
        groups["forced_token_ids"] = _ints(forced, device)
    return TokenEdits(**groups) if groups else None


def _bad_words(requests: Sequence[LogitsRequest], device: torch.device) -> BadWords:
    from fairdraw.sampler_impl.step import BadWords

    words = [request.params.bad_words_token_ids or [] for request in requests]
    ends = [[sum(map(len, own[:i])) for i in range(len(own) + 1)] for own in words]
    texts = [[*request.prompt_token_ids, *request.output_token_ids] for request in requests]
    return BadWords(
        counts=_ints([len(own) for own in words], device),
        offsets=_lists(ends, device)[1],
        word_ids=_lists([[i for word in own for i in word] for own in words], device)[1],
        text=_lists(texts, device)[1],
        starts=_ints([len(request.prompt_token_ids) for request in requests], device),
    )


def _lists(
    numbers: Sequence[Sequence[float]], device: torch.device
) -> tuple[Tensor, Tensor]:  # [num_slots] int32, [num_slots, length] int32
    """Return lists padded with whatever was in memory: here with ones. Numbers that are no ids stay as they are."""
    length = max(1, *map(len, numbers)) if numbers else 1
    padded = [[*own, *[1] * (length - len(own))] for own in numbers]
    is_ids = all(isinstance(number, int) for own in padded for number in own)
    table = torch.tensor(padded, dtype=torch.int32 if is_ids else torch.float32, device=device)
    return _ints([len(own) for own in numbers], device), table


def _ints(numbers: Sequence[int], device: torch.device) -> Tensor:  # [length] int32
    return torch.tensor(numbers, dtype=torch.int32, device=device)


def _floats(numbers: Sequence[float], device: torch.device) -> Tensor:  # [length] float32
    return torch.tensor(numbers, dtype=torch.float32, device=device)
