"""What a server's log-probabilities stand for, found from its answers: the stage at which they are taken.

Two requests of one token with the same prompt, at temperatures 1 and 1/2: log-probabilities before the temperature are
equal, those after it have twice the differences. A third request with a filter shows whether they are taken after it:
those of the tokens that stay are then larger. Numbers that do neither belong to no stage, and a check says so (SRV107).
"""

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairdraw._core.failures import CapabilityUnsupported
from fairdraw._oracles.server import IMPOSSIBLE, cells, listed
from fairdraw.contracts import Answer, Capability, Claims, Server
from fairdraw.strategies._server_requests import Pool, kind, supported

NUM_PROMPTS = 6
TOLERANCE = 0.05
"""Of a difference of log-probabilities: half precision and another batch move logits by as much."""

AT_ONE = kind("one token, temperature 1", max_tokens=1)
AT_HALF = kind("one token, temperature 1/2", max_tokens=1, temperature=0.5)
AT_TWO = kind("one token, temperature 2", max_tokens=1, temperature=2.0)
CUT_AT_HALF = kind("one token, temperature 1/2, top-p 0.7", max_tokens=1, temperature=0.5, top_p=0.7)
FILTERED = {
    "top_k": kind("one token, top-k 2", max_tokens=1, top_k=2),
    "top_p": kind("one token, top-p 1/2", max_tokens=1, top_p=0.5),
    "min_p": kind("one token, min-p 1/4", max_tokens=1, min_p=0.25),
}


def gaps(one: Answer, other: Answer) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # each [num_listed] float64
    """Of two answers to one prompt: how far each token that both list lies below the first of them."""
    rows = [first_list(answer) for answer in (one, other)]
    common = [token for token in rows[0] if token in rows[1]]
    found = [np.array([row[token] for token in common], dtype=np.float64) for row in rows]
    return (found[0] - found[0][:1], found[1] - found[1][:1]) if common else (np.zeros(0), np.zeros(0))


def first_list(answer: Answer) -> dict[object, float]:
    positions = answer.choices[0].positions if answer.choices else ()
    if not positions:
        return {}
    found = listed(positions[0], answer.request.logprobs or 0)
    pairs = zip(found.tokens, found.logprobs.tolist(), strict=True)
    return {token: logprob for token, logprob in pairs if np.isfinite(logprob) and logprob > _LEAST}


_LEAST = -30.0
"""Log-probabilities below this are what is left of a removed token."""


@dataclass(frozen=True)
class Powers:
    """How the differences of log-probabilities at another temperature relate to those at temperature 1.

    Args:
        equal: Largest deviation from being equal.
        scaled: Largest deviation from being divided by the temperature, relative to the largest difference.
        exponent: The power that fits best, by least squares.
    """

    equal: float
    scaled: float
    exponent: float
    num_pairs: int


def powers(plain: list[Answer], other: list[Answer]) -> Powers:
    """The relation over all prompts. `exponent` is 1 for raw log-probabilities and `1 / T` for processed ones."""
    pairs = [gaps(one, two) for one, two in zip(plain, other, strict=True)]
    base = np.concatenate([one for one, _ in pairs])
    seen = np.concatenate([two for _, two in pairs])
    temperature = other[0].request.temperature
    if not base.size or not np.abs(base).max() > 0:
        return Powers(0.0, 0.0, float("nan"), 0)
    scale = np.maximum(1.0, np.abs(base))
    return Powers(
        float((np.abs(seen - base) / scale).max()),
        float((np.abs(seen - base / temperature) / scale).max()),
        float((base * seen).sum() / (base * base).sum()),
        int(base.size),
    )


def claims_of(server: Server, pool: Pool) -> Claims:
    """What the server declares, or what its answers show; remembered with the answers.

    Raises:
        CapabilityUnsupported: If its log-probabilities belong to no stage that the suite knows.
        NoAnswer: If the server does not answer.
    """
    if server.claims is not None and server.claims.by == "declared":
        return server.claims
    plain, half = (pool.take(server, one, NUM_PROMPTS) for one in (AT_ONE, AT_HALF))
    found = powers(plain, half)
    if found.num_pairs == 0:
        raise CapabilityUnsupported("top-logprobs is unsupported: its lists hold one token at most, so show no stage")
    base = server.claims or Claims()
    if min(found.equal, found.scaled) > TOLERANCE:
        raise CapabilityUnsupported(
            f"its log-probabilities are of no known stage: from temperature 1 to 0.5 they change by the power "
            f"{found.exponent:.3g}, which should be 1 (raw) or 2 (processed); see SRV107"
        )
    is_processed, is_edited = found.scaled < found.equal, _are_edited(server, pool, plain)
    # What is raw is raw at every temperature: a list that is cut at temperature 1 alone is a fault (SRV132).
    filters = {name: _is_after(server, pool, plain, name) for name in FILTERED} if is_processed else {}
    if base.filters_after_temperature is None and not is_processed:
        base = dataclasses.replace(base, filters_after_temperature=_filter_last(server, pool))
    return dataclasses.replace(
        base,
        after_temperature=is_processed,
        after_filters=tuple(name for name, is_after in filters.items() if is_after),
        unknown_filters=tuple(name for name, is_after in filters.items() if is_after is None),
        after_edits=is_processed if is_edited is None else is_edited,
        by="found in its answers",
    )


def _are_edited(server: Server, pool: Pool, plain: list[Answer]) -> bool | None:
    """Whether a bias of 2 moves the log-odds of its token (mlx_lm.server: before the temperature); `None`: unknown."""
    if Capability.LOGIT_BIAS not in server.capabilities:
        return None
    rows = [(answer, list(first_list(answer))[:2]) for answer in plain if len(first_list(answer)) > 1]
    requests = [answer.request.replace(logit_bias=((tokens[1], 2.0),)) for answer, tokens in rows]
    try:
        biased = pool.ask(server, "bias +2, for the stage", requests)
    except CapabilityUnsupported:
        return None
    moved = [_odds(two, tokens) - _odds(one, tokens) for (one, tokens), two in zip(rows, biased, strict=True)]
    return float(np.nanmedian(moved)) > 1.0 if moved else None


def _filter_last(server: Server, pool: Pool) -> bool | None:
    """Whether filters see the distribution at the temperature, as the tokens have it; `None` if too few tell.

    At temperature 1/2 top-p leaves fewer tokens of that distribution than of the one at temperature 1.
    """
    gain = 0.0
    try:
        answers = pool.take(server, CUT_AT_HALF, _NUM_CUT) if Capability.TOP_P in server.capabilities else []
    except CapabilityUnsupported:
        return None
    for position, request in ((one.choices[0].positions[0], one.request) for one in answers if first_list(one)):
        seen = [cells(position, request, Claims(filters_after_temperature=one)) for one in (True, False)]
        exact = [one for one in seen if one is not None and one.is_exact]
        if len(exact) == len(seen):
            chances = [one.probs[one.drawn] if one.drawn != IMPOSSIBLE else 0.0 for one in exact]
            gain += float(np.log(np.maximum(chances, 1e-30)) @ [1, -1])
    return gain > 0 if abs(gain) > _LEAST_GAIN else None


_NUM_CUT = 96
_LEAST_GAIN = 16.0
"""Of the log-likelihoods of the two orders: a wrong one is found once in ten million runs."""


def _odds(answer: Answer, tokens: list[object]) -> float:
    """How far the second of two tokens lies above the first; NaN if one is not listed."""
    row = first_list(answer)
    return row.get(tokens[1], np.nan) - row.get(tokens[0], np.nan)


def _is_after(server: Server, pool: Pool, plain: list[Answer], name: str) -> bool | None:
    """Whether log-probabilities are those after a filter: the largest one then grows by what the filter removes.

    `None` if no answer shows it, as the filter removes nothing, or as the list does not say what it removes.
    """
    try:
        answers = pool.take(server, FILTERED[name], NUM_PROMPTS) if supported([{name: 1}], server.capabilities) else []
    except CapabilityUnsupported:
        return None
    votes = []
    for one, other in zip(plain, answers, strict=False):
        rows = [first_list(answer) for answer in (one, other)]
        left = cells(one.choices[0].positions[0], other.request, Claims()) if all(rows) else None
        if left is None or not left.is_exact:
            continue
        before, seen = (max(row.values()) for row in rows)
        after = float(np.log(left.probs.max()))
        if after - before > 4 * TOLERANCE:
            votes.append(abs(seen - after) < abs(seen - before))
    return 2 * sum(votes) > len(votes) if votes else None
