"""Tokens of a serving trace as draws with features: what `_slices` weighs, for the sampling contract."""

from typing import Any

import numpy as np
from torch import Tensor

from fairdraw._core.array_types import Ints, PerRequest
from fairdraw._core.failures import CheckFailure
from fairdraw.contracts import Capability, RaceNoise
from fairdraw.contracts._sampling import draft_tokens, sample_tokens
from fairdraw.statistical._slice_check import TraceSlices
from fairdraw.statistical._slices import Event, Slices, TokenKinds
from fairdraw.statistical._trace_draws import LAGS, Past, above, eighths_of, features_of_rows, same_eighth
from fairdraw.strategies._sampling_traces import SamplingCall, SamplingTrace, trace_for
from fairdraw.strategies._serving import answered
from fairdraw.strategies.rows import bulk_rng

_CROSSED = (
    "dtype", "layout", "noise", "filters", "greedy requests", "alike", "a row without distribution", "seeded",
    "new request", "moved request", "parameters", "logits", "row modulo 8", "batch size modulo 8", "first position",
)  # fmt: skip
"""Features whose levels are looked at two at a time."""


def _drawn(
    call: SamplingCall, tokens: PerRequest, past: Past, rng: np.random.Generator
) -> tuple[dict[str, Ints], dict[str, Event]]:
    """Return features and projections of the rows that are drawn from a known distribution."""
    size, requests = call.batch.vocab_size, call.rows.request
    judged = call.is_random & call.support.is_settled & (tokens >= 0) & (tokens < size)
    _, first, kinds = np.unique(call.kinds, return_index=True, return_inverse=True)
    probs = np.where(call.support.allowed[first], call.support.probs[first], 0.0)
    table = TokenKinds(probs / np.maximum(probs.sum(axis=1, keepdims=True), 1e-300))
    known = np.clip(tokens, 0, size - 1)
    ranks = table.ranks(kinds, known, rng)
    eighths, shown = eighths_of(ranks, judged), np.where(judged, tokens, -1)
    others = {
        "the row above": above(shown, 1),
        "row 0": np.where(np.arange(len(shown)) > 0, shown[0], -1),
        "this row in the call before": past.of_row("token", len(shown)),
        "this request before": past.of_request("token", requests),
    }
    lagging = {f"the row {lag} above": above(eighths, lag) for lag in LAGS} | {
        "this row in the call before": past.of_row("eighth", len(shown)),
        "this request before": past.of_request("eighth", requests),
    }
    events = table.events(kinds, known, ranks)
    events |= {f"the token of {name}": table.is_token(kinds, known, other) for name, other in others.items()}
    events |= {f"the eighth of {name}": same_eighth(eighths, other) for name, other in lagging.items()}
    features = _features(call, past)
    past.remember(call.setting, requests, {"token": shown, "eighth": eighths})
    return (
        {name: levels[judged] for name, levels in features.items()},
        {name: Event(event.hit[judged], event.chance[judged]) for name, event in events.items()},
    )


def _features(call: SamplingCall, past: Past) -> dict[str, Ints]:
    batch, positions = call.batch, call.batch.positions.cpu().numpy()
    ranges = {"temperature": (batch.temperature, 8), "top-p": (batch.top_p, 16), "min-p": (batch.min_p, 16)}
    return features_of_rows(call, past, is_odd=call.is_odd) | {
        "parameters": call.parameters,
        "logits": call.logit_rows,
        "first position": np.array([int(one).bit_length() for one in positions.tolist()]),
        "position modulo 8": positions % 8,
        "top-k": _parts(batch.top_k, 1, positions),
        **{name: _parts(given, by, positions) for name, (given, by) in ranges.items()},
        "same parameters as above": (above(call.parameters, 1) == call.parameters).astype(np.int64),
    }


def _parts(given: Tensor | None, by: int, like: Ints) -> Ints:  # [batch_size] any
    """Return in which part of its range each request's parameter lies, from 1; 0 if it is not given."""
    return np.zeros_like(like) if given is None else 1 + (given.double() * by).long().clamp(max=40).cpu().numpy()


@TraceSlices.of("DIST791", trace_for, needs=(), contract="sampling", crossed=_CROSSED)
def tokens_of_serving_traces_follow_their_distributions_in_every_slice(
    sampler: Any, trace: SamplingTrace, slices: Slices
) -> None:  # Any: a token sampler
    """Every token that hundreds of calls draw is looked at in many ways: its rank, each bit of its id, whether it
    is the best one, the token of a neighbour, of the call before or of its request before. Each is counted in
    slices: by batch size, row, dtype, strides, parameters, position, what stood in the call before, and pairs.

    The report names the slice and what is too frequent or too rare there. Look for what is different in just that
    slice: a tile, a size at which the kernel changes, a buffer that an earlier call filled.
    """
    rng, past = bulk_rng("ranks", trace.seed), Past()
    for call in trace.played(sampler.device):
        if not isinstance(call.noise, RaceNoise):  # tokens of given noise are compared exactly, by the properties
            drafts = Capability.DRAFT_DISTRIBUTION in sampler.capabilities and call.number % 2 == 1
            tokens = answered(draft_tokens if drafts else sample_tokens, sampler, call).tokens
            _require_legal(call, tokens)
            slices.add(*_drawn(call, tokens, past, rng))


def _require_legal(call: SamplingCall, tokens: PerRequest) -> None:
    """Raise for the first token that cannot be: one is enough, and flat rows have it once in hundreds of draws."""
    wrong = np.flatnonzero(call.are_illegal(tokens))
    if wrong.size:
        where = f"in call {call.number} row {wrong[0]} of {len(tokens)}, of {call.batch.vocab_size} tokens,"
        setting = ", ".join(f"{name} {value}" for name, value in call.setting.items())
        raise CheckFailure(f"{where} got token {tokens[wrong[0]]}, which its filters and its row rule out ({setting})")


SLICES = tokens_of_serving_traces_follow_their_distributions_in_every_slice
