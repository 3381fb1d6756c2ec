"""Tokens of a server's requests as draws with features: what `_slices` weighs, for the server contract."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fairdraw._core.array_types import Float64s, Ints
from fairdraw._core.budget import guarded
from fairdraw._core.checks import OutOfTime, Profile, Resolution
from fairdraw._core.failures import CapabilityUnsupported, CheckFailure
from fairdraw._core.looks import Look
from fairdraw._core.seeds import derive_seed
from fairdraw._oracles.server import IMPOSSIBLE
from fairdraw.contracts import Answer, Claims, GenerationRequest, Server
from fairdraw.statistical._server_numbers import NAMED, ORDERS, WAYS, known_of, numbers_of
from fairdraw.statistical._slice_check import SliceCheck
from fairdraw.statistical._slices import Event, Slices
from fairdraw.statistical._trace_draws import EIGHTHS, eighths_of, level, same_eighth
from fairdraw.strategies._server_claims import claims_of
from fairdraw.strategies._server_requests import CHANGES, MODES, TOKENS_EACH, Kind, Pool, modes_of, num_tokens, pool_of

_CROSSED = (
    *MODES, "temperature", "setting", "number of choices", "choice", "max_tokens", "position",
    "setting of the request before", "requests", "request modulo 2",
)  # fmt: skip
"""Features whose levels are looked at two at a time."""

_LEAST_JUDGED = 0.2
"""Share of the planned tokens about which lists must say something."""

_AT_ONCE = 32
"""Requests between two looks at the clock."""


def _words(request: GenerationRequest, *, has_list: bool = True) -> dict[str, str]:
    """Return what a request asks for, in the words of a report."""
    changes = (f"{name}={getattr(request, name)}" for name in CHANGES if getattr(request, name))
    return {
        **dict(zip(MODES, modes_of(request, has_list=has_list), strict=True)),
        "temperature": f"{request.temperature:g}",
        "setting": next(changes, "none"),
        "number of choices": str(request.n),
        "max_tokens": str(request.max_tokens),
    }


class _Collected:
    """Draws of requests of one kind, answer after answer."""

    def __init__(self, slices: Slices, claims: Claims, kind: Kind, judged: list[tuple[str, ...]]) -> None:
        self.slices, self.claims, self.kind, self.judged = slices, claims, kind, judged
        self._before = _words(GenerationRequest(""))
        self._first: list[Ints] = []
        self._num_answers = 0

    def add(self, answer: Answer, seed: int) -> None:
        """Add the tokens of an answer about which its lists say something."""
        words, above = _words(answer.request, has_list=self.kind.has_lists), self._first
        first: list[Ints] = []
        before = {f"{name} of the request before": word for name, word in self._before.items()}
        levels = {name: level(name, word) for name, word in (words | before | {"requests": self.kind.name}).items()}
        levels["request modulo 2"] = self._num_answers % 2
        known = [one.named for one in known_of(answer, self.claims)]
        for choice, numbers in enumerate(numbers_of(answer, self.claims, seed)):
            if (numbers[:, 0] == IMPOSSIBLE).any():
                raise _impossible(answer, choice, int(np.flatnonzero(numbers[:, 0] == IMPOSSIBLE)[0]), words)
            is_judged = ~np.isnan(numbers[:, 0])
            eighths = [eighths_of(column, is_judged) for column in np.nan_to_num(numbers[:, : len(ORDERS)]).T]
            events = _events(numbers) | _beside(eighths, above) | _named(known[choice])
            whole = np.ones(len(numbers), dtype=np.int64)
            features = {name: whole * one for name, one in levels.items()}
            features |= {"choice": whole * choice, "position": np.arange(len(numbers))}
            self.slices.add(
                {name: one[is_judged] for name, one in features.items()},
                {name: Event(one.hit[is_judged], one.chance[is_judged]) for name, one in events.items()},
            )
            self.judged += [tuple(words[name] for name in MODES)] * int(is_judged.sum())
            above, first = eighths, first or eighths
        self._before, self._first, self._num_answers = words, first, self._num_answers + 1


def _impossible(answer: Answer, choice: int, at: int, words: dict[str, str]) -> CheckFailure:
    """Return the failure of a token that its request rules out."""
    said = ", ".join(f"{name} {word}" for name, word in words.items())
    token = answer.choices[choice].tokens[at]
    error = CheckFailure(f"token {token!r} came at position {at}, which the request rules out: {said}")
    error.remarks = (f"the request: {answer.curl}",) if answer.curl else ()
    return error


def _named(known: Float64s) -> dict[str, Event]:  # [num_tokens, 2, num_named] float64
    """Return whether a token came that the choice emitted before, one that a bias names, or the best."""
    return {name: Event(hit > 0, chance) for name, (hit, chance) in zip(NAMED, known.T, strict=True)}


def _events(numbers: Float64s) -> dict[str, Event]:  # [num_tokens, num_ways] float64
    """Return halves and eighths of the numbers, which are uniform if tokens follow their distributions."""
    half, eighth = np.full(len(numbers), 0.5), np.full(len(numbers), 1 / EIGHTHS)
    columns = dict(zip(WAYS, np.nan_to_num(numbers).T, strict=True))
    found = {f"the upper half by {way}": Event(column >= 0.5, half) for way, column in columns.items()}
    parts = {order: (columns[order] * EIGHTHS).astype(np.int64) for order in ORDERS}
    return found | {
        f"eighth {part} by {order}": Event(own == part, eighth)
        for order, own in parts.items()
        for part in range(EIGHTHS)
    }


def _beside(eighths: list[Ints], above: list[Ints]) -> dict[str, Event]:
    """Return whether a token drew in the eighth of an earlier one, or in the opposite one, which mirrored noise gives.

    Args:
        eighths: Those of a choice's tokens, by each order.
        above: The same of the choice before, or of the request before; empty if there is none.
    """
    events = {}
    for number, (order, own) in enumerate(zip(ORDERS, eighths, strict=True)):
        other = above[number] if above else own[:0]
        earlier = {"position": _behind(own[:-1], own, 1), "choice or request": _behind(other, own, 0)}
        for name, known in earlier.items():
            opposite = np.where(known < 0, -1, EIGHTHS - 1 - known)
            events[f"the eighth by {order} of the {name} before"] = same_eighth(own, known)
            events[f"the opposite eighth by {order} of the {name} before"] = same_eighth(own, opposite)
    return events


def _behind(eighths: Ints, like: Ints, by: int) -> Ints:  # [num_tokens] int64
    """Return the eighths `by` places later; -1 where there is none."""
    found = np.full_like(like, -1)
    known = eighths[: max(0, len(like) - by)]
    found[by : by + len(known)] = known
    return found


@dataclass(frozen=True)
class ServerSlices(SliceCheck):
    """A check of a server's answers to some kinds of requests.

    Args:
        kinds: Each has slices of its own, too.
        part: Of the run's tokens, for all kinds together.
    """

    kinds: tuple[Kind, ...]
    part: float
    crossed: tuple[str, ...] = field(default=_CROSSED, kw_only=True)
    tokens_each = TOKENS_EACH

    def num_draws(self, sampler: Server, profile: Profile) -> int:
        return max(1, round(num_tokens(sampler, profile) * self.part))

    def num_requests(self, server: Server, profile: Profile) -> int:
        """Return how many of each kind there are."""
        return -(-self.num_draws(server, profile) // (self.tokens_each * len(self.kinds)))

    def claims(self, server: Server, pool: Pool) -> Claims:
        """Return what the lists stand for."""
        return claims_of(server, pool)

    def answers(self, server: Server, pool: Pool, kind: Kind, first: int, end: int) -> list[Answer]:
        """Return answers of a kind, whose tokens have lists."""
        return pool.take(server, kind, end)[first:]

    def drawn(self, slices: Slices, sampler: Any, profile: Profile, seed: int, out_of_time: OutOfTime) -> None:
        """Add the tokens of all answers.

        Raises:
            CapabilityUnsupported: If lists say too little about them.
            NoAnswer: If the server does not answer.
        """
        server, pool = guarded(sampler, out_of_time), pool_of(sampler, seed)
        claims, refusals = self.claims(server, pool), list[str]()
        judged = pool.judged[self.code] = []
        for kind in (one for one in self.kinds if one.is_supported(server.capabilities)):
            collected = _Collected(slices, claims, kind, judged)
            try:
                self._collect(collected, kind, server, pool, profile)
            except CapabilityUnsupported as error:
                refusals.append(str(error))
            refusals += [one.refused for one in pool.answers.get(kind.name, ()) if one.refused]
        if slices.num_draws < _LEAST_JUDGED * self.num_draws(server, profile):
            decided = f"lists of {server.settings.logprobs} entries decide {slices.num_draws} tokens"
            refused = f"; it refuses some requests: {refusals[0]}" if refusals else ""
            raise CapabilityUnsupported(f"top-logprobs is unsupported here: {decided}{refused}")

    def _collect(self, collected: _Collected, kind: Kind, server: Server, pool: Pool, profile: Profile) -> None:
        """Add the tokens of the answers of a kind."""
        planned = self.num_requests(server, profile)
        for first in range(0, planned, _AT_ONCE):
            answers = self.answers(server, pool, kind, first, min(planned, first + _AT_ONCE))
            for number, answer in enumerate(answers, first):
                collected.add(answer, derive_seed("numbers", pool.seed, kind.name, number))

    def seen(self, sampler: Server, seed: int) -> Look | None:
        """Return the modes of the requests whose tokens were judged."""
        judged = pool_of(sampler, seed).judged.get(self.code, [])
        found = Look(len(judged))
        for (name, words), levels in zip(MODES.items(), zip(*judged, strict=True), strict=False):
            found.each(name, levels, words)
        return found.add_pairs() if judged else None

    def resolution(self, sampler: Server, profile: Profile, seed: int, num_draws: int) -> Resolution:
        """Return as `SliceCheck` does; each mode is a slice, and so are two together."""
        return replace(super().resolution(sampler, profile, seed, num_draws), sliced=(*MODES, ""))
