"""Decisions of serving traces as draws with features: what `_slices` weighs, for the rejection contract.

Each verified draft is a draw (accepted or not, with a known chance), and so is each recovered token (with the residual
as its distribution), given everything that the sampler was handed. Of a sampler that verifies in a way of its own, each
token emitted at a drafted position is a draw from the target: losslessness, averaged over drafts of a known drafter.
"""

from typing import Any

import numpy as np

from fairdraw._core.array_types import Float64s, Ints
from fairdraw.contracts import Capability, ExplicitNoise
from fairdraw.contracts._rejection import emit
from fairdraw.statistical._slice_check import TraceSlices
from fairdraw.statistical._slices import Event, Slices, TokenKinds
from fairdraw.statistical._trace_draws import LAGS, Past, above, eighths_of, features_of_rows, same_eighth, with_bands
from fairdraw.strategies._rejection_traces import RejectionCall, RejectionTrace, Verified, read, rejection_trace_for
from fairdraw.strategies._serving import answered
from fairdraw.strategies.rows import bulk_rng

_CROSSED = (
    "dtype", "layout", "noise", "drafts", "lengths", "greedy requests", "alike", "a row without distribution",
    "placeholders", "seeded", "new request", "moved request", "band of place", "number of drafts", "draft distribution",
    "row modulo 8", "batch size modulo 8", "decision",
)  # fmt: skip
"""Features whose levels are looked at two at a time."""


def _drawn(
    call: RejectionCall, seen: Verified, past: Past, rng: np.random.Generator, *, by_token: bool
) -> tuple[dict[str, Ints], dict[str, Event]]:
    """Return features and projections of all drafts that were verified, and then of all tokens that were drawn.

    Args:
        by_token: Drafts are verified one by one. Otherwise no draft is judged, and all tokens emitted at drafted
            positions are, whatever was drafted there.
    """
    random = call.is_random[call.owner]
    chance, size = call.acceptance(), call.batch.batch_size
    verified = random & seen.reached & (call.drafts >= 0) & by_token
    spread = rng.random(len(chance))
    ranks = np.where(seen.accepted, spread * chance, chance + spread * (1 - chance))
    accepted_eighths = eighths_of(ranks, verified & (chance > 0) & (chance < 1))
    judged = np.flatnonzero(random & seen.reached & (~seen.accepted if by_token else call.is_lossless()))
    if by_token and judged.size:
        judged = judged[call.has_residual(judged)]
    emitted = seen.tokens[call.owner[judged], call.place[judged]].astype(np.int64)
    tokens = np.clip(emitted, 0, call.batch.vocab_size - 1)
    table, kinds = _residual_kinds(call, judged) if by_token else (TokenKinds(call.target_probs), call.kinds[judged])
    token_ranks = table.ranks(kinds, tokens, rng)
    drawn = np.full((2, size), -1, dtype=np.int64)  # token and eighth of each request: of its last one
    drawn[:, call.owner[judged]] = tokens, eighths_of(token_ranks, np.ones(len(tokens), dtype=bool))
    first = np.full(size, -1, dtype=np.int64)
    first[call.owner[call.place == 0]] = accepted_eighths[call.place == 0]

    of_drafts = _events_of_drafts(call, seen, past, chance, accepted_eighths, first)
    of_tokens = _events_of_tokens(call, past, table, kinds, tokens, token_ranks, judged, drawn, first)
    if not by_token:
        of_tokens["drafted too often"] = Event(*call.drafted_too_often(judged, tokens))
    features = _features(call, past) | (_features_of_drafts(call) if by_token else {})
    past.remember(call.setting, call.rows.request, {"token": drawn[0], "eighth": drawn[1], "first": first})
    chosen = np.concatenate([np.flatnonzero(verified), judged])
    levels = {name: values[chosen] for name, values in features.items()}
    levels["decision"] = np.repeat([0, 1], [int(verified.sum()), len(judged)])
    decided = {name: Event(one.hit[verified], one.chance[verified]) for name, one in of_drafts.items()}
    return levels, _side_by_side(decided, of_tokens, int(verified.sum()), len(judged))


def _residual_kinds(call: RejectionCall, rejected: Ints) -> tuple[TokenKinds, Ints]:
    """Return the residuals of these draft tokens, each different one once, and which one each has."""
    if not rejected.size:
        return TokenKinds(np.full((1, call.batch.vocab_size), 1 / call.batch.vocab_size)), rejected
    one_hot = call.draft_probs is None
    keys = call.kinds[rejected] * (call.batch.vocab_size + 1) + (call.drafts[rejected] + 1) * one_hot
    _, first, kinds = np.unique(keys, return_index=True, return_inverse=True)
    return TokenKinds(call.residuals(rejected[first])), kinds


def _events_of_drafts(
    call: RejectionCall, seen: Verified, past: Past, chance: Float64s, eighths: Ints, first: Ints
) -> dict[str, Event]:
    """Return the projections of each draft's acceptance, `[num_tokens]`."""
    is_first, size = call.place == 0, len(first)
    found = {"accepted": Event(seen.accepted, np.where((chance < 1e-6) | (chance > 1 - 1e-6), 0.0, chance))}
    for lag in LAGS:
        found[f"acceptance like the draft {lag} before"] = same_eighth(eighths, above(eighths, lag))
        of_request = np.where(is_first, above(first, lag)[call.owner], -1)
        found[f"acceptance like the request {lag} above"] = same_eighth(eighths, of_request)
    for name, other in (
        ("this row in the call before", past.of_row("first", size)),
        ("this request before", past.of_request("first", call.rows.request)),
    ):
        found[f"acceptance like {name}"] = same_eighth(eighths, np.where(is_first, other[call.owner], -1))
    return found


def _events_of_tokens(
    call: RejectionCall,
    past: Past,
    table: TokenKinds,
    kinds: Ints,
    tokens: Ints,
    ranks: Float64s,
    judged: Ints,
    drawn: Ints,  # [2, batch_size] int64
    first: Ints,
) -> dict[str, Event]:
    """Return the projections of each token, `[num_judged]`."""
    owner, requests, size = call.owner[judged], call.rows.request, drawn.shape[1]
    eighths = eighths_of(ranks, np.ones(len(tokens), dtype=bool))
    others = {
        "the request above": above(drawn[0], 1),
        "this row in the call before": past.of_row("token", size),
        "this request before": past.of_request("token", requests),
    }
    lagging = {f"the request {lag} above": above(drawn[1], lag) for lag in LAGS} | {
        "this row in the call before": past.of_row("eighth", size),
        "this request before": past.of_request("eighth", requests),
        "its first acceptance": first,
    }
    found = table.events(kinds, tokens, ranks)
    for name, end in (("token 0", 0), ("the vocabulary's last token", call.batch.vocab_size - 1)):
        found[name] = table.is_token(kinds, tokens, np.full(len(tokens), end))
    found |= {f"the token of {name}": table.is_token(kinds, tokens, other[owner]) for name, other in others.items()}
    found |= {f"the eighth of {name}": same_eighth(eighths, other[owner]) for name, other in lagging.items()}
    return found


def _side_by_side(
    drafts: dict[str, Event], tokens: dict[str, Event], num_drafts: int, num_tokens: int
) -> dict[str, Event]:
    """Return one set of projections for both; what a draw does not decide has chance 0 there."""
    no_draft, no_token = (Event(np.zeros(number, dtype=bool), np.zeros(number)) for number in (num_drafts, num_tokens))
    pairs = {name: (drafts.get(name, no_draft), tokens.get(name, no_token)) for name in (*drafts, *tokens)}
    return {
        name: Event(np.concatenate([one.hit, other.hit]), np.concatenate([one.chance, other.chance]))
        for name, (one, other) in pairs.items()
    }


def _features(call: RejectionCall, past: Past) -> dict[str, Ints]:
    """Return the level of every feature of each draft token, `[num_tokens]`."""
    lengths = np.array(call.batch.num_draft_tokens)
    of_rows = features_of_rows(call, past, is_odd=call.is_odd)
    of_rows |= {"no drafts above": above(lengths == 0, 1, 0), "no drafts below": above(lengths == 0, -1, 0)}
    found = {name: levels[call.owner] for name, levels in of_rows.items()}
    tokens = np.arange(len(call.owner))
    return with_bands(
        found
        | {f"draft token modulo {many}": tokens % many for many in (8, 32, 128)}
        | {
            "place": np.minimum(call.place, 130),
            "number of drafts": lengths[call.owner],
            "drafts behind": np.minimum(lengths[call.owner] - 1 - call.place, 16),
            "draft tokens of the call": np.minimum(len(tokens) + 0 * tokens, 4000),
            "tokens beyond tiles of 1024": _beyond_tiles(call.batch.vocab_size) + 0 * tokens,
            "draft distribution": call.variants,
            "logits": call.logit_rows,
        }
    )


def _beyond_tiles(size: int) -> int:
    """Return how many tokens the last tile has, if it is full (0), has one or lacks one; else 2."""
    return size % 1024 if size > 1024 and size % 1024 in (0, 1, 1023) else 2


def _features_of_drafts(call: RejectionCall) -> dict[str, Ints]:
    """Return levels that depend on what was drafted: given a draft, only single decisions have known chances."""
    return {
        "length of the draft's id in bits": np.array([int(one + 1).bit_length() for one in call.drafts.tolist()]),
        "draft's id modulo 8": call.drafts % 8,
        "draft again": (above(call.drafts, 1, -2) == call.drafts).astype(np.int64),
    }


@TraceSlices.of("DIST691", rejection_trace_for, contract="rejection", crossed=_CROSSED)
def decisions_of_serving_traces_follow_their_distributions_in_every_slice(
    sampler: Any, trace: RejectionTrace, slices: Slices
) -> None:  # Any: a rejection sampler
    """Every draft that hundreds of steps verify is accepted with a known chance, and every recovered token follows
    a known residual; under another lossless scheme every emitted token follows its target. Each is looked at in many
    ways: accepted or not, the token's rank, each bit of its id, whether it is the best one, or goes with a neighbour's,
    an earlier call's, its own acceptance. Each is counted in slices: by batch size, row, place, number of drafts,
    dtype, strides, seeds, the call before, and pairs.

    The report names the slice and what is too frequent or too rare there. Look for what is different in just that
    slice: a row counted from another request's beginning, a tile, noise that two places share.
    """
    rng, past, by_token = bulk_rng("ranks", trace.seed), Past(), Capability.TOKEN_VERIFICATION in sampler.capabilities
    for call in trace.played(sampler.device):
        if not isinstance(call.noise, ExplicitNoise):  # decisions of given noise are compared by the properties
            seen = read(call, answered(emit, sampler, call).tokens)
            slices.add(*_drawn(call, seen, past, rng, by_token=by_token))


SLICES = decisions_of_serving_traces_follow_their_distributions_in_every_slice
