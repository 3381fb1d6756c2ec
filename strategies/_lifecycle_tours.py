"""Long traces that leave nothing to chance: every event after every other one, and every pair of events in one step.

A tour is an event trace like those that Hypothesis draws, but it is planned: a walk takes, at each event, one that has
not yet followed the last one, and a row whose parameters it has not met. So each run has every pair (event, next
event), and every event meets every kind of parameters. The seed decides on the order, and on all else.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import RequestParams
from fairdraw.strategies import _lifecycle_events as lifecycle
from fairdraw.strategies._covering import covering_settings
from fairdraw.strategies._lifecycle_events import Event
from fairdraw.strategies._lifecycle_traces import EventfulBatch, EventTrace, PenaltiesTrace, ThinkingTrace
from fairdraw.strategies._serving_batch import ServedRequest, ServingBatch, trailing_placeholders

Fields = dict[str, Any]  # Any: fields of Add
ROWS, MOST_DRAFTS = 6, 10

PENALTY_KINDS: dict[str, Fields] = {
    "off": {},
    "presence": {"presence": 0.5},
    "frequency": {"frequency": 0.25},
    "repetition": {"repetition": 1.3},
    "negative": {"presence": -2.0, "frequency": -0.1},
    "all": {"presence": 2.0, "frequency": 1.7, "repetition": 0.6},
}
"""One of each alone, together, and of the other sign."""
BUDGET_KINDS: dict[str, Fields] = {
    "none": {},
    "0": {"budget": 0},
    "1": {"budget": 1},
    "3": {"budget": 3},
    "7": {"budget": 7},
    "endless": {"budget": 100_000},
}
MARKERS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((1,), (3, 4)),
    ((1, 2), (3,)),
    ((1, 1, 2), (3, 3, 4, 3, 3)),
    ((1, 2, 1, 1, 2, 1), (1, 2, 3)),
    ((3,), (3, 4)),
    ((3, 4), (3,)),
    ((1, 2), (2, 1)),
    ((1, 2, 3, 4, 5, 6), (6, 5, 4, 3, 2, 1)),
    ((2,), (4,)),
    ((2,), (4, 2)),
    ((3, 3, 1), (3, 1)),
)
"""Of 1 to 6 tokens; overlapping themselves, sharing tokens with each other, one the beginning or end of the other."""


LONG_MARKERS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((1,), (3,) * 9 + (4,)),
    ((1, 2) * 6 + (1,), (3, 4) * 8 + (5,)),
    ((1, 2, 3, 4) * 8 + (5,), (1, 2, 3, 4) * 8 + (6,)),
    ((2, 3), tuple(range(1, 25))),
)
"""Sentences, such as vLLM's reasoning parsers have: of 10 to 33 tokens, periodic, alike, and one inside the other."""


@dataclass(frozen=True)
class TourWorld:
    """What a contract's requests are made of.

    Args:
        kinds: Of parameters, by name.
        pieces: Tokens that matter together: whole markers, and their beginnings.
    """

    trace: EventTrace
    kinds: Mapping[str, Fields]
    pieces: tuple[tuple[int, ...], ...] = ()

    @staticmethod
    def of_penalties(vocab_size: int = 12, **fields: Any) -> TourWorld:  # Any: of the trace
        """A small vocabulary, in which tokens come again."""
        return TourWorld(PenaltiesTrace(vocab_size=vocab_size, **fields), PENALTY_KINDS)

    @staticmethod
    def of_thinking(number: int, vocab_size: int = 12, shift: int = 0, **fields: Any) -> TourWorld:  # Any: of the trace
        """The markers of that number, whose ids may be shifted beyond 16 bits."""
        start, end = (tuple(i + shift for i in marker) for marker in MARKERS[number % len(MARKERS)])
        return TourWorld._of_markers(start, end, vocab_size + shift, **fields)

    @staticmethod
    def of_sentences(number: int, vocab_size: int = 36, **fields: Any) -> TourWorld:  # Any: of the trace
        """The long markers of that number."""
        return TourWorld._of_markers(*LONG_MARKERS[number % len(LONG_MARKERS)], vocab_size, **fields)

    @staticmethod
    def _of_markers(
        start: tuple[int, ...],
        end: tuple[int, ...],
        vocab_size: int,
        **fields: Any,  # Any: of the trace
    ) -> TourWorld:
        """Half of the pieces are whole markers, or both of a section, the others are begun."""
        begun = tuple(m[:n] for m in (start, end) for n in range(1, len(m)))
        whole = (start, end, start + end) * max(1, len(begun) // 3)
        trace = ThinkingTrace(start=start, end=end, vocab_size=vocab_size, **fields)
        return TourWorld(trace, BUDGET_KINDS, whole + begun)


class Planner:
    """Plans events for a batch that it simulates; all that happens is in `events`."""

    def __init__(self, world: TourWorld, seed: int, rows: int = ROWS) -> None:
        self.world, self.rows = world, rows
        self.rng = np.random.default_rng(derive_seed("tour", world.trace, seed))
        self.events: list[Event] = []
        batch = ServingBatch(world.trace.vocab_size, most_requests=rows, names_taken=world.trace.names_taken)
        self.eventful = EventfulBatch(batch)
        self.met: Counter[tuple[str, str]] = Counter()
        self.begun: dict[ServedRequest, tuple[int, ...]] = {}
        """What is left of a marker that a request emits token by token."""

    @property
    def trace(self) -> EventTrace:
        return self.world.trace.replace(events=tuple(self.events), rows=self.rows)

    @property
    def batch(self) -> ServingBatch:
        return self.eventful.batch

    @property
    def size(self) -> int:
        return self.batch.num_requests

    def do(self, *events: Event) -> None:
        for event in events:
            self.events.append(event)
            self.eventful.apply(event)

    def together(self, events: Sequence[Event]) -> None:
        """All of them happen in one step."""
        self.do(*(event.replace(held=place < len(events) - 1) for place, event in enumerate(events)))

    # What is drawn.

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def below(self, end: int) -> int:
        return int(self.rng.integers(end))

    def of(self, choices: Sequence[Any]) -> Any:  # Any: one of them
        return choices[self.below(len(choices))]

    def words(self, size: int) -> tuple[int, ...]:
        """`size` tokens; half of them belong to markers, whole or begun, if there are any."""
        tokens: list[int] = []
        while len(tokens) < size:
            piece = self.world.pieces and self.chance(0.5)
            tokens += self.of(self.world.pieces) if piece else [self.word()]
        return tuple(tokens[:size])

    def next_token(self, request: ServedRequest) -> int:
        """Half of the time one of a marker, which goes on at the next step."""
        rest = self.begun.get(request, ())
        if not rest:
            rest = self.of(self.world.pieces) if self.world.pieces and self.chance(0.4) else (self.word(),)
        self.begun[request] = rest[1:]
        return int(rest[0])

    def word(self) -> int:
        """One of the last tokens, or one that is equal to it in the lower 16 bits."""
        vocab_size = self.world.trace.vocab_size
        word = vocab_size - 1 - self.below(min(vocab_size, 12))
        return word % (1 << 16) if self.chance(0.5) else word

    def kind_of(self, params: RequestParams) -> str:
        """The name of a request's parameters."""
        known = {lifecycle.Add(**fields).params: name for name, fields in self.world.kinds.items()}
        return known.get(params, "")

    def row_for(self, event: str) -> int:
        """A row whose kind of parameters this event has met least."""
        kinds = [self.kind_of(request.params) for request in self.batch.requests]
        fewest = min(self.met[event, kind] for kind in kinds)
        row = self.of([row for row, kind in enumerate(kinds) if self.met[event, kind] == fewest])
        self.met[event, kinds[row]] += 1
        return int(row)

    def fields(self, event: str) -> Fields:
        """Parameters that this event has met least."""
        fewest = min(self.met[event, kind] for kind in self.world.kinds)
        kind = self.of([kind for kind in self.world.kinds if self.met[event, kind] == fewest])
        self.met[event, kind] += 1
        return dict(self.world.kinds[kind])

    def one_of(self, names: Sequence[str]) -> str:
        """One of these moves; those that fill the batch are likelier while there is room in it."""
        likely = ("add", "resume") if self.size < 4 else ("draft", "decode", "verify")
        weights = np.array([4.0 if name.startswith(likely) else 0.3 if name == "finish all" else 1.0 for name in names])
        return names[int(self.rng.choice(len(names), p=weights / weights.sum()))]

    def shuffled(self, values: Sequence[Any]) -> list[Any]:  # Any: whatever they are
        return [values[i] for i in self.rng.permutation(len(values))]

    # Events.

    def add(self, name: str = "add", *, begun: bool = False, again: bool = False, held: bool = False) -> lifecycle.Add:
        output = self.words(1 + self.below(9)) if begun else ()
        return lifecycle.Add(self.words(self.below(7)), output, **self.fields(name), again=again, held=held)

    def drafts(self, *, known: bool = True) -> lifecycle.Draft:
        """For most rows, mostly a few; the accepted ones are a beginning of these. Half go on with a begun marker."""
        drafts = []
        for request in self.batch.requests:
            rest = self.begun.get(request, ()) if self.chance(0.5) else ()
            size = self.of((0, 1, 2, 3, 3, MOST_DRAFTS))
            own = (*rest, *self.words(size))[:size]
            drafts.append(own if known else tuple(-1 if self.chance(0.3) else i for i in own))
        return lifecycle.Draft(tuple(drafts))

    def decode(self, *, accept: bool = False, late: bool = False, nothing: bool = False) -> lifecycle.Decode:
        """A token for each row, after some of its drafts."""
        requests = self.batch.requests
        accepted = tuple(self.below(len(r.draft_token_ids) + 1) if accept else 0 for r in requests)
        for request, count in zip(requests, accepted, strict=True):
            rest = self.begun.get(request, ())
            self.begun[request] = rest[count:] if tuple(request.draft_token_ids[:count]) == rest[:count] else ()
        tokens = tuple(None if nothing and self.chance(0.7) else self.next_token(request) for request in requests)
        return lifecycle.Decode(tokens, accepted if any(accepted) else (), late=late)

    def accept_all(self) -> lifecycle.Decode:
        """Every draft is accepted, and a token follows."""
        accepted = tuple(len(request.draft_token_ids) for request in self.batch.requests)
        return lifecycle.Decode(tuple(self.words(1)[0] for _ in accepted), accepted)

    def verify(self, drafts: lifecycle.Draft, *, late: bool = False, whole: bool = False) -> None:
        """A step with these drafts, and one in which some of them are accepted, or the `whole` of them."""
        self.do(drafts)
        self.do(self.accept_all() if whole else self.decode(accept=True, late=late))

    def renew(self, *, changed: bool) -> lifecycle.Renew:
        name = "renew changed" if changed else "renew"
        row, fields = self.row_for(name), self.fields(name) if changed else {}
        return lifecycle.Renew(row, same_list=self.chance(0.5), changed=changed, **fields)

    def regrow(self) -> lifecycle.Regrow:
        """As many tokens as were cut, or more, or fewer."""
        count = 1 + self.below(4)
        return lifecycle.Regrow(self.row_for("regrow"), count, self.words(max(1, count + self.of((-1, 0, 0, 1)))))

    def moves(self) -> dict[str, Callable[[], tuple[Event, ...]]]:
        """What can happen now, by name."""
        size, room, batch = self.size, self.rows - self.size, self.batch
        has_drafts = any(r.draft_token_ids for r in batch.requests)
        has_late = any(trailing_placeholders(r.output_token_ids) and r.late_token_ids for r in batch.requests)
        has_output = any(r.output_token_ids for r in batch.requests)
        row = self.row_for
        found: list[tuple[bool, str, Callable[[], tuple[Event, ...]]]] = [
            (room > 0, "add", lambda: (self.add(),)),
            (room > 0, "add begun", lambda: (self.add("add begun", begun=True),)),
            (room > 0, "add again", lambda: (self.add("add again", begun=True, again=True),)),
            (room > 0 and size > 1, "add, swap", lambda: (self.add(begun=True, held=True), lifecycle.Swap(0, size))),
            (size > 0, "finish", lambda: (lifecycle.Finish(row("finish")),)),
            (size > 0, "finish, add", lambda: (lifecycle.Finish(row("finish"), held=True), self.add(begun=True))),
            (size > 2, "finish two", lambda: (lifecycle.Finish(0, held=True), lifecycle.Finish(self.below(size)))),
            (
                size > 3,
                "finish two, add",
                lambda: (lifecycle.Finish(0, held=True), lifecycle.Finish(1, held=True), self.add()),
            ),
            (size > 1, "finish all", lambda: tuple(lifecycle.Finish(0, held=i > 0) for i in reversed(range(size)))),
            (size > 0, "preempt", lambda: (lifecycle.Preempt(row("preempt")),)),
            (size > 0, "preempt, add", lambda: (lifecycle.Preempt(row("preempt"), held=True), self.add())),
            (room > 0 and bool(batch.waiting), "resume", lambda: (lifecycle.Resume(),)),
            (room > 0 and bool(batch.waiting), "resume in another list", lambda: (lifecycle.Resume(same_list=False),)),
            (size > 0, "carry on", lambda: (lifecycle.CarryOn(row("carry on")),)),
            (size > 0, "renew", lambda: (self.renew(changed=False),)),
            (size > 0, "renew changed", lambda: (self.renew(changed=True),)),
            (size > 1, "swap", lambda: (lifecycle.Swap(row("swap"), self.below(size)),)),
            (size > 2, "finish, swap", lambda: (lifecycle.Finish(row("finish"), held=True), lifecycle.Swap(0, 1))),
            (has_output, "cut", lambda: (lifecycle.Cut(row("cut"), 1 + self.below(3)),)),
            (has_output, "cut all", lambda: (lifecycle.Cut(row("cut all"), 10_000),)),
            (has_late, "repair", lambda: (lifecycle.Repair(),)),
            (size > 0, "draft", lambda: (self.drafts(),)),
            (size > 0, "draft placeholders", lambda: (self.drafts(known=False),)),
            (size > 0, "decode", lambda: (self.decode(),)),
            (size > 0, "decode late", lambda: (self.decode(late=True),)),
            (size > 0, "decode nothing", lambda: (self.decode(nothing=True),)),
            (has_drafts, "verify", lambda: (self.decode(accept=True),)),
            (size > 0, "verify, draft", lambda: (self.decode(accept=True).replace(held=True), self.drafts())),
            (has_drafts, "verify late", lambda: (self.decode(accept=True, late=True),)),
        ]
        return {name: make for possible, name, make in found if possible}


_ENDS = 1100
"""Moves of a walk at most; some pairs cannot occur, as two repairs in a row."""


def walk(world: TourWorld, seed: int, *, rewrites: bool = False) -> EventTrace:
    """Every event after every other one, as far as it can follow it.

    Args:
        rewrites: Tokens are also lost and replaced by others between two looks.
    """
    planner, last, missed = Planner(world, seed), "", 0
    done: set[tuple[str, str]] = set()
    while len(done) < _ENDS and missed < 25:
        moves = planner.moves()
        if rewrites and planner.size:
            moves["regrow"] = lambda: (planner.regrow(),)
        new = [name for name in moves if (last, name) not in done]
        missed = 0 if new else missed + 1
        name = planner.one_of(new or [*moves])
        planner.do(*moves[name]())
        done.add((last, name))
        last = name
    return planner.trace


_STEP: dict[str, Sequence[str]] = {
    "tokens": ("nothing", "decode", "decode late", "repair", "verify", "verify late", "decode nothing", "cut"),
    "gone": ("nobody", "first", "last", "two", "preempt", "carry on", "renew", "renew changed", "all"),
    "come": ("nobody", "new", "begun", "two", "again", "resume", "resume in another list"),
    "swap": ("no", "newest", "ends", "chain"),
    "drafts": ("none", "some", "placeholders"),
}
"""What happens in one step of a server, in its order."""


def steps(world: TourWorld, seed: int, strength: int = 2) -> EventTrace:
    """Every pair of events within one step: tokens arrive, requests leave, others come, rows swap, and drafts follow.

    Args:
        strength: 3 for every triple.
    """
    planner = Planner(world, seed)
    planner.do(*(planner.add(begun=True, held=i < 3) for i in range(4)))
    settings = covering_settings(_STEP, strength, seed % 64)
    for place in planner.rng.permutation(len(settings)).tolist():
        for part, choice in settings[place].items():
            planner.do(*(event.replace(held=True) for event in _events(planner, part, choice)))
        drafts = settings[place]["drafts"]
        planner.do(lifecycle.Draft() if drafts == "none" else planner.drafts(known=drafts == "some"))
        if planner.size < 3:
            planner.do(planner.add(begun=True, held=True), planner.add())
    return planner.trace


def _events(planner: Planner, part: str, choice: str) -> Iterator[Event]:
    """The events of a part of a step; none where it cannot be."""
    size = planner.size
    if part == "tokens" and choice != "nothing" and size:
        if choice == "repair":
            yield lifecycle.Repair()
        elif choice == "cut":
            yield lifecycle.Cut(planner.row_for("cut"), 1 + planner.below(3))
        else:
            yield planner.decode(accept="verify" in choice, late="late" in choice, nothing="nothing" in choice)
    elif part == "gone" and size:
        yield from _leaving(planner, choice, size)
    elif part == "come" and choice.startswith("resume"):
        yield lifecycle.Resume(same_list=choice == "resume")
    elif part == "come" and choice != "nobody":
        for _ in range(2 if choice == "two" else 1):
            yield planner.add(choice, begun=choice != "new", again=choice == "again")
    elif part == "swap" and choice == "chain":
        rows = planner.shuffled(range(size))
        yield from (lifecycle.Swap(row, other) for row, other in itertools.pairwise(rows))
    elif part == "swap" and choice != "no" and size > 1:
        yield lifecycle.Swap(0, size - 1) if choice == "ends" else lifecycle.Swap(planner.below(size), size // 2)


def _leaving(planner: Planner, choice: str, size: int) -> Iterator[Event]:
    if choice in ("first", "last", "two"):
        yield lifecycle.Finish(size - 1 if choice == "last" else 0)
    if choice == "two" and size > 1:
        yield lifecycle.Finish(planner.below(size - 1))
    elif choice == "preempt":
        yield lifecycle.Preempt(planner.row_for("preempt"))
    elif choice == "carry on":
        yield lifecycle.CarryOn(planner.row_for("carry on"))
    elif choice.startswith("renew"):
        yield planner.renew(changed=choice != "renew")
    elif choice == "all":
        yield from (lifecycle.Finish(0) for _ in range(size))
