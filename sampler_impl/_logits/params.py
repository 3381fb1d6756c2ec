"""Validation for the logits plan: a request's sampling parameters, checked once when it joins the batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from .._scanners.history import History
from ..penalties import PenaltyParams
from ..thinking_budget import NO_BUDGET, ThinkingParams

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


GREEDY_BELOW = 1e-5
"""Lower temperatures are greedy, as in vLLM's `SamplingParams`."""

_FUNCTION = "LogitsPlan.sync_batch"


class SamplingParams(PenaltyParams, ThinkingParams, Protocol):
    """Parameters that are read from vLLM's `SamplingParams`; any object with these attributes is accepted."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def min_p(self) -> float: ...
    @property
    def allowed_token_ids(self) -> Sequence[int] | None: ...
    @property
    def bad_words_token_ids(self) -> Sequence[Sequence[int]] | None: ...
    @property
    def min_tokens(self) -> int: ...
    @property
    def all_stop_token_ids(self) -> Collection[int]: ...
    @property
    def logit_bias(self) -> Mapping[int, float] | None: ...


@dataclass(frozen=True, eq=False)
class Request:
    """One request of the batch. A greedy one has no temperature and no filters: they cannot change its token."""

    params: SamplingParams
    history: History
    """The request's history, used for its live list only; nothing is read in advance."""
    is_greedy: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float


def checked_request(
    params: SamplingParams,
    prompt_token_ids: Sequence[int] | None,
    output_token_ids: list[int],
    vocab_size: int,
    has_markers: bool,
) -> Request:
    """Check everything that a processor relies on.

    Raises:
        ValueError: If a number is out of its range, an id is outside the vocabulary, or a bad word is empty.
    """
    _check_numbers(params)
    _check_ids("allowed_token_ids", params.allowed_token_ids, vocab_size)
    if params.allowed_token_ids is not None and not params.allowed_token_ids:
        raise _wrong("allowed_token_ids", [], "at least one id. Use None to allow all")
    for place, word in enumerate(params.bad_words_token_ids or ()):
        if not word:
            raise _wrong(f"bad_words_token_ids[{place}]", [], "at least one id. Drop words that became empty")
        _check_ids(f"bad_words_token_ids[{place}]", word, vocab_size)
    if params.min_tokens:
        _check_ids("all_stop_token_ids", params.all_stop_token_ids, vocab_size)
    _check_bias(params.logit_bias or {}, vocab_size)
    if is_penalised(params):
        _check_ids("prompt_token_ids", prompt_token_ids, vocab_size)
    _check_budget(params.thinking_token_budget, has_markers)
    is_greedy = params.temperature < GREEDY_BELOW
    return Request(
        params=params,
        history=History(output_token_ids),
        is_greedy=is_greedy,
        temperature=1.0 if is_greedy else params.temperature,
        top_k=params.top_k if 0 < params.top_k < vocab_size and not is_greedy else vocab_size,
        top_p=1.0 if is_greedy else params.top_p,
        min_p=0.0 if is_greedy else params.min_p,
    )


def is_penalised(params: SamplingParams) -> bool:
    """Whether a penalty changes anything. Only then ids of the prompt are checked; others may be those of images."""
    return not (params.presence_penalty == params.frequency_penalty == 0 and params.repetition_penalty == 1)


def _check_numbers(params: SamplingParams) -> None:
    finite = "finite. Use 0 for none"
    rules = {
        "temperature": (0 <= params.temperature < math.inf, "at least 0 and finite. Use 0 for a greedy request"),
        "top_k": (params.top_k >= -1, "at least 1, or 0 or -1 for all tokens. Use 0"),
        "top_p": (0 < params.top_p <= 1, "in (0, 1]. Use 1 for all tokens"),
        "min_p": (0 <= params.min_p <= 1, "in [0, 1]. Use 0 for all tokens"),
        "repetition_penalty": (0 < params.repetition_penalty < math.inf, "positive and finite. Use 1 for none"),
        "presence_penalty": (math.isfinite(params.presence_penalty), finite),
        "frequency_penalty": (math.isfinite(params.frequency_penalty), finite),
        "min_tokens": (params.min_tokens >= 0, "at least 0. Use 0 for no minimum"),
    }
    for name, (is_valid, rule) in rules.items():
        if not is_valid:
            raise _wrong(name, getattr(params, name), rule)


def _check_bias(logit_bias: Mapping[int, float], vocab_size: int) -> None:
    _check_ids("logit_bias", logit_bias, vocab_size)
    for token_id, bias in logit_bias.items():
        if not math.isfinite(bias):
            raise _wrong(f"logit_bias[{token_id}]", bias, "finite. Exclude tokens by bad words")


def _check_budget(budget: int | None, has_markers: bool) -> None:
    if budget is None or budget == NO_BUDGET:
        return
    if budget < 0:
        raise _wrong("thinking_token_budget", budget, "at least 0. Use None for a request without a budget")
    if not has_markers:
        rule = "None, as this plan knows no markers. Make it with thinking=ThinkingBudget(start_ids, end_ids)"
        raise _wrong("thinking_token_budget", budget, rule)


def _check_ids(name: str, ids: Collection[int] | None, vocab_size: int) -> None:
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        bad = next(token_id for token_id in ids if not 0 <= token_id < vocab_size)
        raise _wrong(f"{name} has", bad, f"in [0, {vocab_size}). Correct the ids, or the plan's vocab_size", sign=" ")


def _wrong(name: str, value: object, rule: str, sign: str = "=") -> ValueError:
    return ValueError(f"{_FUNCTION}: {name}{sign}{value}, but it must be {rule}.")
