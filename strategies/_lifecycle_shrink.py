"""Make a failing event trace small: drop events, then simplify their fields, as long as it fails in the same way.

Events are plain data and any sequence of them is valid, so little else needs to be known. Hypothesis shrinks the
choices that led to the events instead; that takes a hundred times as many tries and leaves events that do nothing.
"""

import dataclasses
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, cast

from fairdraw._core.budget import BudgetEnded
from fairdraw.strategies._lifecycle_events import Add, Decode, Draft, Event

Events = tuple["Event", ...]


MOST_WORK = 30_000
"""Events that are played at most to make one trace smaller; a trace of 500 events allows 60 tries."""


def shrunk(events: Events, fails: Callable[[Events], bool]) -> Events:
    """A subset or simplification of `events` that still fails, and that no single step makes smaller.

    Raises:
        BudgetEnded: If that takes more than `MOST_WORK`; the last trace for which `fails` was true is the smallest.
    """
    work = 0

    def counted(tried: Events) -> bool:
        nonlocal work
        work += len(tried)
        if work > MOST_WORK:
            raise BudgetEnded
        return fails(tried)

    before: Events | None = None
    while before != events:
        before = events
        events = _without_rows(_dropped(events, counted), counted)
        events = _simplified(_plain(events, counted), counted)
    return events


def _plain(events: Events, fails: Callable[[Events], bool]) -> Events:
    """Each field at its default in all events at once, for batches of hundreds of requests."""
    for name in dict.fromkeys(f.name for event in events for f in dataclasses.fields(event)):
        plain = tuple(_with_default(event, name) for event in events)
        events = plain if plain != events and fails(plain) else events
    return events


def _with_default(event: Event, name: str) -> Event:
    found = next((f for f in dataclasses.fields(event) if f.name == name), None)
    return event if found is None else dataclasses.replace(event, **{name: cast("Any", found.default)})


def _dropped(events: Events, fails: Callable[[Events], bool]) -> Events:
    """Without runs of events, the longest first; a hundred events take a hundred tries, not thousands."""
    size = (len(events) + 1) // 2
    while size:
        begin = len(events) - size
        while begin > -size:
            rest = events[: max(0, begin)] + events[begin + size :]
            events = rest if fails(rest) else events
            begin -= size
        size //= 2
    return events


def _without_rows(events: Events, fails: Callable[[Events], bool]) -> Events:
    """Without requests whose row is only a place in the tokens and drafts of later events; those close up."""
    for place in range(len(events) - 1, -1, -1):
        if isinstance(events[place], Add):
            row = sum(isinstance(event, Add) for event in events[:place])
            rest = (*events[:place], *(_without_row(event, row) for event in events[place + 1 :]))
            events = rest if fails(rest) else events
    return events


def _without_row(event: Event, row: int) -> Event:
    """The event of a batch without that row: its element is gone, and the rows behind it have other numbers."""
    changed: dict[str, Any] = {}  # Any: fields of the event
    for f in dataclasses.fields(event):
        value = getattr(event, f.name)
        if f.name in ("row", "other") and value > row:
            changed[f.name] = value - 1
        if f.name in ("tokens", "accepted", "drafts") and isinstance(event, (Decode, Draft)):
            changed[f.name] = (*value[:row], *value[row + 1 :])
    return dataclasses.replace(event, **changed)


def _simplified(events: Events, fails: Callable[[Events], bool]) -> Events:
    """The same events, each as simple as it can be."""
    for place in range(len(events)):
        found: Event | None = events[place]
        while found is not None:
            others = events[:place], events[place + 1 :]
            found = next((e for e in _simpler_event(found) if fails((*others[0], e, *others[1]))), None)
            events = events if found is None else (*others[0], found, *others[1])
    return events


def _simpler_event(event: Event) -> Iterator[Event]:
    for f in dataclasses.fields(event):
        value, default = getattr(event, f.name), f.default
        simpler_ones = _simpler(value, default)
        for simpler in islice(simpler_ones, 1) if f.name == "seed" else simpler_ones:
            yield dataclasses.replace(event, **{f.name: simpler})


def _simpler(value: Any, default: Any) -> Iterator[Any]:  # Any: a field's value
    """The default, then shorter tuples and smaller numbers."""
    if value == default:
        return
    yield default
    if isinstance(value, tuple):
        if any(value) and all(isinstance(element, int) for element in value):
            yield (0,) * len(value)
        size = len(value) // 2
        while size:
            yield from (value[:i] + value[i + size :] for i in range(len(value) - size, -1, -1))
            size //= 2
        for place, element in enumerate(value):
            for simpler in _simpler(element, () if isinstance(element, tuple) else 0):
                yield (*value[:place], simpler, *value[place + 1 :])
    elif isinstance(value, int) and not isinstance(value, bool) and value > 1:
        step = value // 2
        while step:
            yield value - step
            step //= 2
