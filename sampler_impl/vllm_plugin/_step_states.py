"""What vLLM's model runner V2 keeps per request slot, as the inputs of a step: the same tensors, none copied.

    SamplingStates      temperature, top_k, top_p, min_p, seeds
    PenaltiesState      three factors, output_bin_counts [slots, vocab], prompt_bin_mask [slots, vocab / 32]
    LogitBiasState      allowed ids, biases, stop tokens with the length up to which they are excluded
    BadWordsState       words and offsets; the text is RequestState.all_token_ids, the output begins at prompt_len

Each is a buffer whose `gpu` is the view for kernels. vLLM takes turns between such views, so they are read anew at each
call. Beside them is the host's array `np`, which says what a batch uses, without a word to the device.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from ..step import BadWords, Parameters, Penalties, StepInputs, TokenEdits
from ._calls import NotOursError

if TYPE_CHECKING:
    import numpy as np

    from .._shared.tensors import AnyLogitRows, RequestBounds, RequestCounts, RequestInts, RowIds, SlotDraftRows

MODULE = "vllm.v1.worker.gpu.sample.sampler"

Sampler = Any
"""vLLM's `Sampler`."""
State = Any
"""One of vLLM's states, named in the head of this module."""


class Use(NamedTuple):
    """What a batch uses, all its requests together."""

    filters: bool
    penalties: bool
    bad_words: bool
    num_edits: int
    """Most listed ids of one request: allowed, biased, stop tokens, ends of bad words."""


def use_of(sampler: Sampler, slots: np.ndarray[Any, Any]) -> Use:
    """As vLLM's states decide whether they launch anything."""
    states = sampler.sampling_states
    lists, penalties, words = sampler.logits_processors
    filters = (states.top_k.np[slots] != states.vocab_size) | (states.top_p.np[slots] != 1.0)
    filters |= states.min_p.np[slots] != 0.0
    num_words = words.num_bad_words.np[slots]
    counts = lists.num_allowed_token_ids, lists.num_logit_bias, lists.num_stop_token_ids
    num_edits = num_words + sum(count.np[slots] for count in counts)
    use_penalties = bool(penalties.use_penalty[slots].any())
    return Use(bool(filters.any()), use_penalties, bool(num_words.any()), int(num_edits.max(initial=0)))


def require_neutral(sampler: Sampler, slots: np.ndarray[Any, Any], *, wants_logprobs: bool) -> None:
    """Nothing is on that ours does not give.

    Raises:
        NotOursError: If something is.
    """
    if type(sampler) is not sys.modules[MODULE].Sampler:  # one with watermarks, or a model's own
        raise NotOursError(f"a {type(sampler).__name__} instead of vLLM's Sampler")
    if len(sampler.logits_processors) != 3:
        raise NotOursError("custom logits processors")
    thinking, lists = sampler.thinking_budget_state, sampler.logits_processors[0]
    for reason, is_so in (
        ("float64 noise", sampler.use_fp64_gumbel),
        ("sampling masks", sampler.return_sampling_mask),
        ("processed log-probabilities", wants_logprobs and sampler.logprobs_mode.startswith("processed")),
        ("thinking budgets", thinking.enabled and thinking.use_thinking_budget[slots].any()),
        ("minimum tokens with a grammar", lists.restore_when_all_masked.np[slots].any()),
    ):
        if is_so:
            raise NotOursError(reason)


def step_inputs(
    sampler: Sampler,
    use: Use,
    *,
    logits: AnyLogitRows,
    slots: RequestCounts,
    cu_num_rows: RequestBounds,
    positions: RequestInts,
    draft_token_ids: RowIds | None,
    draft_logits: SlotDraftRows | None = None,
) -> StepInputs:
    """Of what the batch does not use, nothing is given. Draft logits are kept as the drafter's model gave them; it
    draws after dividing by the request's temperature, and by nothing else."""
    states = sampler.sampling_states
    lists, penalties, words = sampler.logits_processors
    filtered = use.filters or use.penalties or use.num_edits > 0
    filters = (states.top_k.gpu, states.top_p.gpu, states.min_p.gpu) if filtered else ()
    return StepInputs(
        logits=logits,
        parameters=Parameters(states.temperature.gpu, *filters),
        seeds=states.seeds.gpu,
        positions=positions,
        cu_num_rows=cu_num_rows,
        slots=slots,
        draft_token_ids=draft_token_ids,
        draft_logits=draft_logits,
        draft_temperature=None if draft_logits is None else states.temperature.gpu,
        penalties=_penalties(penalties) if use.penalties else None,
        edits=_edits(lists, words if use.bad_words else None) if use.num_edits > 0 else None,
    )


def _penalties(state: State) -> Penalties:
    """vLLM packs the prompt's ids and counts the output's as a step reads them: nothing is converted."""
    return Penalties(
        presence=state.presence_penalty.gpu,
        frequency=state.frequency_penalty.gpu,
        repetition=state.repetition_penalty.gpu,
        output_counts=state.output_bin_counts,
        prompt_mask=state.prompt_bin_mask,
    )


def _edits(lists: State, words: State | None) -> TokenEdits:
    return TokenEdits(
        bias_counts=lists.num_logit_bias.gpu,
        bias_token_ids=lists.logit_bias_token_ids.gpu,
        bias_values=lists.logit_bias.gpu,
        allowed_counts=lists.num_allowed_token_ids.gpu,
        allowed_token_ids=lists.allowed_token_ids.gpu,
        stop_counts=lists.num_stop_token_ids.gpu,
        stop_token_ids=lists.stop_token_ids.gpu,
        min_lengths=lists.min_lens.gpu,
        bad_words=None if words is None else _bad_words(words),
    )


def _bad_words(state: State) -> BadWords:
    return BadWords(
        counts=state.num_bad_words.gpu,
        offsets=state.bad_word_offsets.gpu,
        word_ids=state.bad_word_token_ids.gpu,
        text=state.req_states.all_token_ids.gpu,
        starts=state.req_states.prompt_len.gpu,
    )
