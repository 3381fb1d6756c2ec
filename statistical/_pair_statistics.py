"""What is counted of a drafter and its verifier (P1 to P6), and why each null is exact whatever drafts are reported.

Given the distribution that the drafter reports, everything that a token verifier does has a known distribution:

    draft token                  draft
    acceptance                   min(1, target / draft)
    draft token, if rejected     max(draft - target, 0), normalised
    recovered token              max(target - draft, 0), normalised; independent of the draft
    last draft, if accepted      min(draft, target), normalised
    bonus token                  target; independent of the draft

The probability integral transform (`_pit`) makes a uniform number of each, so requests with other distributions count
together, and pairs of numbers fill a square evenly. Numbers of one step are uniform given all steps before it; a draft
behind a rejected one does not count, because nobody reads it, and the next step may draw it anew with the same noise.

How often something is rejected depends on the drafter. A table is planned for what the suite's draft logits give at
their temperature; where a drafter reports something that rejects less often, numbers of the suite's own make up for it
(`PairStatistic.codes`), so that plans are fulfilled, and such a drafter's tables see less.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairdraw._core.array_types import Flags, Float64s, Ints
from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import Capability
from fairdraw.statistical._count_tables import Counts, Table, count_codes, digit_label, joint_codes
from fairdraw.statistical._distributions import ROUNDING, recoverable, softmax_probs
from fairdraw.statistical._pair_steps import CYCLE, DRAFT, NUM_STEPS, TARGET, PairSteps, have_seeds, num_drafts
from fairdraw.statistical._pit import IMPOSSIBLE, Order, pit_of_rows
from fairdraw.statistical._token_draws import draw_one


@lru_cache(maxsize=1)
def target_probs() -> Float64s:  # [vocab_size] float64
    """The target distribution that the stored logits stand for, by kind of token."""
    with np.errstate(divide="ignore"):
        return softmax_probs(np.log(TARGET).astype(np.float32))


_REJECTED = float(np.maximum(DRAFT - TARGET, 0).sum())
"""How often a draft from the suite's own draft logits is rejected."""


class Numbers:
    """The uniform numbers of a set's steps, `[num_steps, batch_size]`, or `[..., max_spec_len]` for each draft;
    `IMPOSSIBLE` for what has probability 0.

    Args:
        rng: The suite's own.
    """

    def __init__(self, steps: PairSteps, rng: np.random.Generator) -> None:
        self._steps, self._rng = steps, rng
        places, emitted = np.arange(steps.drafts.shape[2]), steps.num_emitted
        self.is_right = emitted > 0
        self.has_draft = np.broadcast_to(places < steps.num_draft[:, None], steps.drafts.shape)
        self.is_reached = self.has_draft & (places < emitted[..., None])
        self.is_rejected = self.is_reached & (places == emitted[..., None] - 1)
        self.is_bonus = emitted == steps.num_draft + 1
        self.is_recovered = self.is_right & ~self.is_bonus
        self._end = np.minimum(np.maximum(emitted, 1), steps.num_draft) - 1
        self._last = np.take_along_axis(steps.tokens, np.maximum(emitted - 1, 0)[..., None], axis=2)[..., 0]

    @cached_property
    def draft(self) -> Float64s:
        return self._pit(self._steps.draft_probs, self._steps.drafts)

    @cached_property
    def acceptance(self) -> Float64s:
        """Rejected drafts lie at the upper end."""
        drafts, share = self._steps.drafts, self._rng.random(self._steps.drafts.shape)
        own = np.take_along_axis(self._steps.draft_probs, drafts[..., None], axis=3)[..., 0]
        ratio = np.divide(target_probs()[drafts], own, out=np.zeros_like(own), where=own > 0)
        chance = np.where(ratio > 1 + ROUNDING, 1.0, np.minimum(ratio, 1 - ROUNDING))
        found = np.where(self.is_rejected, chance + share * (1 - chance), share * chance)
        return np.where(np.where(self.is_rejected, chance == 1, chance == 0), IMPOSSIBLE, found)

    @cached_property
    def rejected(self) -> Float64s:
        """Of the last draft that was reached, if it was rejected."""
        return self._pit(np.maximum(self._at_end(self._steps.draft_probs) - target_probs(), 0), self._token_at_end)

    @cached_property
    def accepted(self) -> Float64s:
        """Of the last draft, if all were accepted."""
        return self._pit(np.minimum(self._at_end(self._steps.draft_probs), target_probs()), self._token_at_end)

    @cached_property
    def recovered(self) -> Float64s:
        """A token that only rounding may recover stands anywhere."""
        draft, target = self._at_end(self._steps.draft_probs), target_probs()
        found = self._pit(np.maximum(target - draft, 0), self._last)
        may = np.take_along_axis(recoverable(target, draft), np.maximum(self._last, 0)[..., None], axis=2)[..., 0]
        return np.where((found < 0) & may & (self._last >= 0), self._rng.random(found.shape), found)

    @cached_property
    def bonus(self) -> Float64s:
        return self._pit(np.broadcast_to(target_probs(), (*self._last.shape, TARGET.size)), self._last)

    @cached_property
    def reach_rate(self) -> Float64s:  # [num_steps, batch_size, max_spec_len] float64
        """How often each draft is reached, given what the drafter reports."""
        before = np.cumprod(1 - self.rejection_rate, axis=2)
        return (
            np.concatenate([np.ones_like(before[..., :1]), before[..., :-1]], axis=2).astype(np.float64)
            * self.has_draft
        )

    @cached_property
    def rejection_rate(self) -> Float64s:  # [num_steps, batch_size, max_spec_len] float64
        return np.asarray(np.maximum(self._steps.draft_probs - target_probs(), 0).sum(axis=3) * self.has_draft)

    @cached_property
    def bonus_rate(self) -> Float64s:
        return np.asarray(np.prod(1 - self.rejection_rate, axis=2))

    @property
    def _token_at_end(self) -> Ints:
        return self._at_end(self._steps.drafts)

    def _at_end(self, array: NDArray[Any]) -> NDArray[Any]:  # Any: tokens, or rows of probabilities
        """What belongs to the last draft that was reached: `[num_steps, batch_size, ...]`."""
        index = self._end.reshape(*self._end.shape, *[1] * (array.ndim - 2))
        return np.take_along_axis(array, index, axis=2)[:, :, 0]

    def _pit(self, weights: Float64s, tokens: Ints) -> Float64s:
        """The transform of `tokens` under rows of weights, which need not be normalised."""
        sums = weights.sum(axis=-1, keepdims=True)
        rows = np.divide(weights, sums, out=np.zeros_like(weights), where=sums > 0).reshape(-1, TARGET.size)
        return pit_of_rows(rows, tokens.ravel(), self._rng.random(tokens.size), Order.ID).reshape(tokens.shape)


@dataclass(frozen=True)
class Event:
    """Where something happened, how often it does given what the drafter reports, and the numbers that it brings.

    All are `[num_rows, batch_size]`; a row is a step, or a pair of steps.
    """

    happened: Flags
    rate: Float64s
    numbers: tuple[Float64s, ...]


@dataclass(frozen=True)
class PairStatistic:
    """Numbers of an event, each in so many equal parts.

    Args:
        words: What each number is, for reports.
        least: From the number of drafts of a request to how often the event happens with the suite's draft logits.
        steps: Of an observation: 1, or 2.
        place: The draft position that it is about, if it is about one.
    """

    name: str
    words: tuple[str, ...]
    parts: tuple[int, ...]
    event: Callable[[Numbers], Event]
    least: Callable[[Ints], Float64s]
    steps: int = 1
    place: int | None = None

    def table(self, num_draft: Ints, num_draws: int) -> Table:
        """The table of requests with these numbers of drafts, and so many steps of each."""
        num_cells, rate = int(np.prod(self.parts)), float(self.least(num_draft).mean())
        return Table(
            np.full(num_cells, 1 / num_cells),
            label=self._label,
            num_draws=num_draws // self.steps,
            observed_per_draw=rate,
            event_prob=rate,
            outside="what has probability 0",
        )

    def _label(self, cell: int) -> str:
        named = zip(self.words, np.unravel_index(cell, self.parts), self.parts, strict=True)
        return ", ".join(f"{word} in mass {d / size:.2g} to {(d + 1) / size:.2g}" for word, d, size in named)

    def codes(self, numbers: Numbers, num_draft: Ints, rng: np.random.Generator) -> Ints:
        """One code per request and step; `_NOT_SEEN` where nothing is counted. `[num_rows, batch_size]`"""
        event = self.event(numbers)
        least = np.broadcast_to(self.least(num_draft), event.happened.shape)
        missing = np.divide(least - event.rate, 1 - event.rate, out=np.zeros_like(least), where=least > event.rate)
        padded = ~event.happened & (rng.random(missing.shape) < missing)
        own = [np.where(padded, rng.random(one.shape), one) for one in event.numbers]
        pairs = zip(own, self.parts, strict=True)
        digits = [np.where(one < 0, -1, (one * size).astype(np.int64)) for one, size in pairs]
        return np.where(event.happened | padded, joint_codes(*digits, sizes=self.parts), _NOT_SEEN)


_NOT_SEEN = -2


def _reached(place: int) -> Callable[[Ints], Float64s]:
    return lambda num_draft: np.where(num_draft > place, (1 - _REJECTED) ** place, 0.0)


def _ends(*, rejected: bool) -> Callable[[Ints], Float64s]:
    """How often the suite's own drafts end with a recovered token, or a bonus token."""
    return lambda num_draft: np.abs(rejected - (1 - _REJECTED) ** num_draft)


def _at(place: int) -> tuple[PairStatistic, ...]:
    """What is counted of the drafts at one position, if it is reached."""
    least = _reached(place)

    def drawn(n: Numbers) -> Event:
        return Event(n.is_reached[..., place], n.reach_rate[..., place], (n.draft[..., place],))

    def accepted(n: Numbers) -> Event:
        numbers = (n.draft[..., place], n.acceptance[..., place])
        return Event(n.is_reached[..., place], n.reach_rate[..., place], numbers)

    def recovered(n: Numbers) -> Event:
        rate = n.reach_rate[..., place] * n.rejection_rate[..., place]
        return Event(n.is_rejected[..., place], rate, (n.recovered,))

    at = f"at position {place}"
    return (
        PairStatistic(f"P1 draft {at}", ("draft",), (8,), drawn, least, place=place),
        PairStatistic(f"P2 draft x acceptance {at}", ("draft", "acceptance"), (8, 3), accepted, least, place=place),
        PairStatistic(
            f"P3 recovered token {at}",
            ("recovered token",),
            (3,),
            recovered,
            lambda num_draft: least(num_draft) * _REJECTED,
            place=place,
        ),
    )


def _of_step() -> tuple[PairStatistic, ...]:
    """What is counted of the end of a step."""
    words = ("rejected draft", "recovered token")

    def recovered(n: Numbers) -> Event:
        return Event(n.is_recovered, 1 - n.bonus_rate, (n.recovered,))

    def rejected(n: Numbers) -> Event:
        return Event(n.is_recovered, 1 - n.bonus_rate, (n.rejected, n.recovered))

    def bonus(n: Numbers) -> Event:
        return Event(n.is_bonus, n.bonus_rate, (n.accepted, n.bonus))

    return (
        PairStatistic("P3 recovered token", words[1:], (3,), recovered, _ends(rejected=True)),
        PairStatistic("P3 rejected draft x recovered token", words, (3, 3), rejected, _ends(rejected=True)),
        PairStatistic(
            "P4 last draft x bonus token", ("last draft", "bonus token"), (4, 4), bonus, _ends(rejected=False)
        ),
    )


def _of_two_steps() -> tuple[PairStatistic, ...]:
    """What is counted of a step and the next, in pairs that do not overlap."""

    def next_to(
        words: tuple[str, str],
        end: Callable[[Numbers], tuple[Flags, Float64s, Float64s]],
        first: Callable[[Numbers], Float64s],
        least: Callable[[Ints], Float64s],
    ) -> PairStatistic:
        def event(n: Numbers) -> Event:
            happened, rate, numbers = end(n)
            return Event((happened & n.is_right)[0::2] & n.is_right[1::2], rate[0::2], (numbers[0::2], first(n)[1::2]))

        return PairStatistic(f"P5 {words[0]} x {words[1]}", words, (3, 3), event, least, steps=2)

    def recovered(n: Numbers) -> tuple[Flags, Float64s, Float64s]:
        return n.is_recovered, 1 - n.bonus_rate, n.recovered

    def bonus(n: Numbers) -> tuple[Flags, Float64s, Float64s]:
        return n.is_bonus, n.bonus_rate, n.bonus

    def first(n: Numbers) -> tuple[Flags, Float64s, Float64s]:
        return n.is_right, np.ones_like(n.bonus_rate), n.draft[..., 0]

    def last(n: Numbers) -> tuple[Flags, Float64s, Float64s]:
        return n.is_right, np.ones_like(n.bonus_rate), np.where(n.is_bonus, n.bonus, n.recovered)

    next_draft, always = "first draft of the next step", _reached(0)
    return (
        next_to(("bonus token", next_draft), bonus, lambda n: n.draft[..., 0], _ends(rejected=False)),
        next_to(("recovered token", next_draft), recovered, lambda n: n.draft[..., 0], _ends(rejected=True)),
        next_to(("first draft", next_draft), first, lambda n: n.draft[..., 0], always),
        next_to(("last token", "last token of the next step"), last, lambda n: last(n)[2], always),
    )


TEXT_LENGTH = 6
"""Tokens of a text that are counted, emitted or filled in; two by two."""


def _text(steps: PairSteps, rng: np.random.Generator) -> Ints:  # [batch_size, TEXT_LENGTH] int64
    """The first tokens of each request, by kind: what all steps emitted, completed with draws from the target.

    This follows the target for every lossless verifier. A malformed row is -1 from its place on.
    """
    batch_size = steps.num_draft.size
    drawn = draw_one(target_probs(), rng.random((batch_size, TEXT_LENGTH))).astype(np.int64)
    text, length, width = drawn.copy(), np.zeros(batch_size, dtype=np.int64), steps.tokens.shape[2]
    for tokens, emitted in zip(steps.tokens, steps.num_emitted, strict=True):
        for place in range(width):
            at = length + place
            own = np.flatnonzero((place < np.maximum(emitted, 1)) & (at < TEXT_LENGTH))
            text[own, at[own]] = np.where(emitted[own] > 0, tokens[own, place], -1)
        length += np.maximum(emitted, 1)
    return text


_WINDOWS = {"P6 text, two by two": 0, "P6 text, two by two from the second token": 1}


def _text_table(start: int, num_draws: int) -> Table:
    """The table of pairs of tokens; a request brings some, and a draw is a step."""
    probs, num_pairs = np.outer(target_probs(), target_probs()).ravel(), (TEXT_LENGTH - start) // 2
    label = digit_label((TARGET.size,) * 2, ("token of kind", "then of kind"))
    return Table(probs, label=label, num_draws=num_draws * num_pairs // NUM_STEPS)


class PairTables:
    """All tables of a sampler with these capabilities, and their counts."""

    def __init__(self, supported: Collection[Capability], num_cycles: int) -> None:
        self._num_draft, self._has_seed = num_drafts(supported), have_seeds(supported)
        places = [one for place in range(int(self._num_draft.max())) for one in _at(place)]
        whole = [*_of_step(), *_of_two_steps()]
        if Capability.TOKEN_VERIFICATION not in supported:
            # What a joint verification does with later drafts has no such distribution.
            places, whole = [one for one in places if one.place == 0 and one.name.startswith("P1")], []
        self._statistics = (*whole, *places)
        self._num_cycles = num_cycles

    def _groups(self, statistic: PairStatistic) -> dict[str, Flags]:
        """Words to the requests of a cycle that are counted under them."""
        everyone = np.ones(CYCLE, dtype=bool)
        by_seed = {", requests with a seed": self._has_seed, ", requests without a seed": ~self._has_seed}
        split = statistic.place in (None, 0) and self._has_seed.any()
        return {"": everyone, **(by_seed if split else {})}

    def tables(self, num_sets: int) -> dict[str, Table]:
        """One per statistic, and optional ones of requests with and without seeds; the draws of so many sets."""
        found = {}
        for statistic in self._statistics:
            for words, own in self._groups(statistic).items():
                num_draws = num_sets * NUM_STEPS * self._num_cycles * int(own.sum())
                table = statistic.table(self._num_draft[own], num_draws)
                is_optional = bool(words) or statistic.place not in (None, 0)
                found[statistic.name + words] = replace(table, is_optional=is_optional)
        draws = num_sets * NUM_STEPS * self._num_cycles * CYCLE
        return found | {name: _text_table(start, draws) for name, start in _WINDOWS.items()}

    def count(self, steps: PairSteps, seed: int) -> Counts:
        """The counts of one set. A malformed row counts as impossible in every table of all requests."""
        rng = np.random.default_rng(derive_seed("split", seed))
        numbers, found = Numbers(steps, rng), {}
        num_wrong = int((~numbers.is_right).sum())
        for statistic in self._statistics:
            codes = statistic.codes(numbers, steps.num_draft, rng)
            for words, own in self._groups(statistic).items():
                seen = codes[:, np.tile(own, self._num_cycles)]
                found[statistic.name + words] = count_codes(seen[seen != _NOT_SEEN], int(np.prod(statistic.parts)))
                found[statistic.name + words][-1] += 0 if words else num_wrong
        text = _text(steps, rng)
        return found | {name: _text_counts(text[:, start:]) for name, start in _WINDOWS.items()}


def _text_counts(text: Ints) -> Ints:  # [num_cells + 1] int64
    pairs = text[:, : text.shape[1] // 2 * 2]
    return count_codes(joint_codes(pairs[:, 0::2].ravel(), pairs[:, 1::2].ravel(), sizes=(TARGET.size,) * 2), 64)
