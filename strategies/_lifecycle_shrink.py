"""Make a failing event trace small: drop events, then simplify their fields, as long as it fails in the same way.

Events are plain data and any sequence of them is valid, so nothing else needs to be known. Hypothesis shrinks the
choices that led to the events instead; that takes a hundred times as many tries and leaves events that do nothing.
"""

from __future__ import annotations

import dataclasses
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairdraw.strategies._lifecycle_events import Event


Events = tuple["Event", ...]


def shrunk(events: Events, fails: Callable[[Events], bool]) -> Events:
    """A subset or simplification of `events` that still fails, and that no single step makes smaller."""
    while True:
        fewer = _dropped(events, fails)
        simpler = next(filter(fails, _simplified(fewer)), fewer)
        if simpler == events:
            return events
        events = simpler


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


def _simplified(events: Events) -> Iterator[Events]:
    """The same events, one of them simpler."""
    for place, event in enumerate(events):
        for simpler in _simpler_event(event):
            yield (*events[:place], simpler, *events[place + 1 :])


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
