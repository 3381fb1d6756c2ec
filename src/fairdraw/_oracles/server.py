"""What a server's own log-probabilities claim about a token: its distribution over the tokens that were listed.

A list of the `N` most probable tokens stands for cells: one per listed token, and the rest of the vocabulary together.
What the server does after the stage of its log-probabilities (penalties, temperature, filters) is applied to them here.
Where the list is too short to do that exactly, the token is judged given that it is a listed one, or the position is
left out. Both follow from the list and never from which token was drawn, so that the null stays exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fairdraw._core.array_types import Float64s
from fairdraw.contracts import Choice, Claims, GenerationRequest, Position
from fairdraw.contracts._server import Token

ListedProbs = NDArray[np.float64]  # [num_listed + 1]
ListedFlags = NDArray[np.bool_]  # [num_listed]

TIE = 1e-4
"""Log-probabilities nearer than this may be equal: float32 rounds those of rare tokens by as much."""

_WHOLE = 1e-4
"""A list that is shorter than requested, and misses 1 by less, holds the whole vocabulary."""

_REPLACEMENT = "\ufffd"
"""Stands for incomplete UTF-8. Many tokens have such a text, so it names none of them."""

IMPOSSIBLE = -1
"""The cell of a token that the request forbids."""


@dataclass(frozen=True)
class Listed:
    """The list of one position, the most probable first.

    Args:
        tokens: Those that are cells of their own.
        logprobs: Theirs.
        is_whole: The list holds the whole vocabulary.
    """

    tokens: tuple[Token, ...]
    logprobs: NDArray[np.float64]  # [num_listed] float64
    is_whole: bool = False

    @property
    def rest(self) -> float:
        """The probability of all other tokens together."""
        return max(0.0, 1.0 - float(np.exp(self.logprobs).sum()))


def listed(position: Position, num_asked: int) -> Listed:
    """The list as cells: without a token that is listed only because it was drawn.

    Some servers add it to the list, others (vLLM's chat) put it in the place of the last one, so that the last place is
    not used. A list with a text that may be that of several tokens is empty: it may have lost entries, and whether it
    did must not depend on the token that was drawn.
    """
    ordered = sorted(position.top, key=lambda one: (-one[1], str(one[0])))[: max(num_asked - 1, 1)]
    known = dict(ordered) if not any(is_ambiguous(token) for token, _ in ordered) else {}
    logprobs = np.array(list(known.values()), dtype=np.float64)
    is_whole = len(position.top) < num_asked and abs(1.0 - float(np.exp(logprobs).sum())) < _WHOLE
    return Listed(tuple(known), logprobs, is_whole)


def is_ambiguous(token: Token) -> bool:
    """Whether it is a text that many tokens have."""
    return isinstance(token, str) and _REPLACEMENT in token


@dataclass(frozen=True)
class Cells:
    """What a position claims, and what was drawn.

    Args:
        probs: The most probable first; the rest of the vocabulary, if it is a cell, comes last.
        drawn: The cell of the emitted token; `IMPOSSIBLE` if the request forbids it.
        places: The place of each cell if tokens were ordered by id, or by text; the rest comes last here, too.
        tokens: Those of all cells but the rest.
        is_exact: What the filters leave is known, and not only tokens that they surely leave.
    """

    probs: NDArray[np.float64]  # [num_cells] float64
    drawn: int
    places: NDArray[np.int64]  # [num_cells] int64
    tokens: tuple[Token, ...]
    is_exact: bool = True


def cells(position: Position, request: GenerationRequest, claims: Claims, before: Sequence[Token] = ()) -> Cells | None:
    """The cells of one position; `None` if the list is too short to say anything about it.

    Args:
        before: Tokens that the choice emitted before; penalties count them.
    """
    found = listed(position, request.logprobs or 0)
    if request.is_greedy or not found.tokens or not np.isfinite(found.logprobs).any():
        return None
    is_edited = not claims.after_edits and edits_of(request)
    temperature = 1.0 if claims.after_temperature else request.temperature
    counts = Counter(before)
    logprobs = found.logprobs + (_shifts(found.tokens, request, counts) if is_edited else 0.0)
    is_changed = is_edited or temperature != 1.0
    rest = found.rest
    probs = np.append(np.exp(found.logprobs), rest)
    if is_changed:  # how much the rest weighs now is not known, so the token is judged given that it is listed
        weights = np.exp((logprobs - logprobs.max()) / temperature)
        probs = np.append(weights / weights.sum(), 0.0)
    filters = filters_of(request)
    if any(name in claims.unknown_filters for name in filters):
        return None
    if any(name not in claims.after_filters for name in filters):
        seen = _seen_by_filters(probs, found, request, claims, is_edited=is_edited)
        if seen is None:
            return None
        unlisted = tuple({*dict(request.logit_bias), *before} - {*found.tokens}) if is_edited else ()
        lift = float(_shifts(unlisted, request, counts).max(initial=0.0))
        is_bent = is_changed and seen is probs
        behind = _behind(found, logprobs, temperature, lift) if is_bent else Behind(float(seen[:-1].min()), rest)
        sure, possible = _kept(seen, request, Behind() if found.is_whole else behind)
        place = _place(found, position.token)
        if possible[place] and not sure[place]:
            return None
        probs = np.where(sure if sure.any() else possible, probs, 0.0)
        made = _ordered(probs / probs.sum(), found, position.token, rest_is_possible=False)
        return replace(made, is_exact=bool((sure == possible).all()))
    if is_changed and _place(found, position.token) == len(found.tokens):
        return None
    return _ordered(probs / probs.sum(), found, position.token, rest_is_possible=not is_changed)


@dataclass(frozen=True)
class Behind:
    """What the tokens behind a list weigh at most, relative to the listed ones: the best of them, and all together."""

    best: float = 0.0
    mass: float = 0.0


def _behind(found: Listed, logprobs: Float64s, temperature: float, lift: float) -> Behind:
    """Bound what lies behind a list once edits made `logprobs` of it and lifted none behind it by more than `lift`.

    Each token behind was at most as probable as the last of the list, so that a temperature below 1 makes all of them
    rarer. Above 1 there is no bound on their sum.
    """
    power, least = 1 / temperature, float(found.logprobs.min())
    whole = float(np.exp(logprobs * power).sum())
    mass = found.rest * np.exp(least * (power - 1) + lift * power) / whole if temperature <= 1 else float("inf")
    return Behind(float(np.exp((least + lift) * power) / whole), float(mass))


def _seen_by_filters(
    probs: ListedProbs, found: Listed, request: GenerationRequest, claims: Claims, *, is_edited: bool
) -> ListedProbs | None:
    """The probabilities that filters look at; `None` if that is not known. The order does not matter to top-k."""
    commute = request.top_p is None and request.min_p is None
    if commute or request.temperature == 1.0 or claims.filters_after_temperature:
        return probs
    if claims.filters_after_temperature is None or claims.after_temperature or is_edited:
        return None
    return np.append(np.exp(found.logprobs), found.rest)


def edits_of(request: GenerationRequest) -> bool:
    """Return whether something is added to its logits."""
    return any((request.logit_bias, request.presence_penalty, request.frequency_penalty))


def filters_of(request: GenerationRequest) -> list[str]:
    """Return the names of its filters."""
    return [name for name in ("top_k", "top_p", "min_p") if getattr(request, name) is not None]


def _shifts(tokens: Sequence[Token], request: GenerationRequest, counts: Mapping[Token, int]) -> Float64s:
    """What penalties and bias add to the logits."""
    seen = np.array([counts.get(token, 0) for token in tokens], dtype=np.float64)
    bias = dict(request.logit_bias)
    added = np.array([bias.get(token, 0.0) for token in tokens], dtype=np.float64)
    return np.asarray(added - request.frequency_penalty * seen - request.presence_penalty * (seen > 0))


def _place(found: Listed, token: Token) -> int:
    """The cell of a token; that behind the listed ones if it is not one of them."""
    return found.tokens.index(token) if token in found.tokens else len(found.tokens)


def _ordered(probs: NDArray[np.float64], found: Listed, token: Token, *, rest_is_possible: bool) -> Cells:
    """Cells in the order of rank; ties stay in the order of the list, and the rest comes last."""
    place, places = _place(found, token), np.arange(probs.size)
    places[np.argsort(np.array(found.tokens), kind="stable")] = np.arange(probs.size - 1)
    order = np.append(np.argsort(-probs[:-1], kind="stable"), probs.size - 1)
    drawn, ranked = int(np.flatnonzero(order == place)[0]), tuple(found.tokens[one] for one in order[:-1])
    is_possible = probs[place] > 0 or (place == probs.size - 1 and rest_is_possible)
    return Cells(probs[order], drawn if is_possible else IMPOSSIBLE, places[order], ranked)


Kept = tuple[ListedFlags, ListedFlags]
"""Listed tokens that a filter surely leaves, and those that it may leave: at an edge within rounding, or one that
depends on tokens behind the list. Those are no more probable than the last of the list, and may be left if that is."""


def _kept(probs: ListedProbs, request: GenerationRequest, behind: Behind) -> Kept:
    """What all filters leave of the listed tokens, and whether they may leave one behind the list."""
    own = probs[:-1]
    left = replace(behind, mass=0.0) if probs[-1] > 0 else behind
    filters = (
        _in_top_k(own, request.top_k, left),
        _in_top_p(own, request.top_p, left),
        _above_min_p(own, request.min_p, left),
    )
    sure, possible = (np.logical_and.reduce(flags) for flags in zip(*filters, strict=True))
    return np.append(sure, False), np.append(possible, left.best > 0 and possible[own >= left.best].all())


def _in_top_k(probs: Float64s, top_k: int | None, behind: Behind) -> Kept:
    """Without ties at the edge, which a server may cut."""
    if top_k is None:
        return _everything(probs)
    ranked = np.append(np.sort(probs)[::-1], 0.0)
    place = min(top_k, probs.size)
    edge = max(ranked[place], behind.best)
    return probs > edge * (1 + TIE), probs >= ranked[place - 1] * (1 - TIE)


def _in_top_p(probs: Float64s, top_p: float | None, behind: Behind) -> Kept:
    """By what is above each token at most, with its ties and tokens behind the list, and at least, without them."""
    if top_p is None or top_p >= 1:
        return _everything(probs)
    ranked = np.sort(probs)
    sums = np.append(np.cumsum(ranked[::-1])[::-1], 0.0)
    most = sums[np.searchsorted(ranked, probs * (1 - TIE))] - probs
    most = np.where(probs < behind.best, 1 - (1 - most) / (1 + behind.mass), most)
    least = sums[np.searchsorted(ranked, probs * (1 + TIE), side="right")] / (1 + behind.mass)
    return most < top_p - TIE, least < top_p + TIE


def _above_min_p(probs: Float64s, min_p: float | None, behind: Behind) -> Kept:
    if not min_p:
        return _everything(probs)
    low, high = min_p * probs.max(), min_p * max(probs.max(), behind.best)
    return probs > high * (1 + 10 * TIE), probs >= low * (1 - 10 * TIE)


def _everything(probs: Float64s) -> Kept:
    return np.ones(probs.size, dtype=bool), np.ones(probs.size, dtype=bool)


def edges(found: Cells | None) -> tuple[float, float, float]:
    """Where the drawn cell begins, with cells ordered by rank and by token, and its probability.

    The beginning plus a uniform share of the cell is uniform on [0, 1] if the claim is true. All are -1 if the cell is
    impossible, and NaN if nothing is known.
    """
    if found is None:
        return float("nan"), float("nan"), float("nan")
    if found.drawn == IMPOSSIBLE:
        return float(IMPOSSIBLE), float(IMPOSSIBLE), float(IMPOSSIBLE)
    by_rank = float(found.probs[: found.drawn].sum())
    by_token = float(found.probs[found.places < found.places[found.drawn]].sum())
    return by_rank, by_token, float(found.probs[found.drawn])


def choice_cells(choice: Choice, request: GenerationRequest, claims: Claims) -> list[Cells | None]:
    """The cells of each position of a choice."""
    tokens = choice.tokens
    return [cells(position, request, claims, tokens[:number]) for number, position in enumerate(choice.positions)]
