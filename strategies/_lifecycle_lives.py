"""Lives as data, and how one is lived."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from fairdraw._core.failures import raised_by
from fairdraw.protocols._lifecycle import Markers
from fairdraw.strategies._lifecycle_events import Add, Event, Replace, Resume, event_from_json
from fairdraw.strategies._lifecycle_harness import open_penalties, open_thinking
from fairdraw.strategies._lifecycle_judges import Judge, PenaltiesJudge, ReadingJudge, ThinkingJudge
from fairdraw.strategies._lifecycle_world import World
from fairdraw.strategies._recipe import Recipe

__all__ = ["EventTrace", "PenaltiesTrace", "Playing", "ThinkingTrace"]

Watch = Literal["answer", "state", "reading"]


@dataclass(frozen=True, repr=False)
class EventTrace(Recipe):
    """A recipe: everything that happens to one batch.

    Args:
        watch: What is judged: the `answer`, the `state` that a session shows, or how many tokens it reads (`reading`).
    """

    events: tuple[Event, ...] = ()
    vocab_size: int = field(default=8, kw_only=True)
    watch: Watch = field(default="answer", kw_only=True)

    def judge(self, scanner: Any, reference: Any = None) -> Judge:  # Any: scanners of the trace's contract
        raise NotImplementedError

    def build(self) -> tuple[Event, ...]:
        """The events; a trace has nothing else to build."""
        return self.events

    def play(self, scanner: Any, reference: Any = None) -> int:  # Any: as `judge`
        """Live it once and compare after every event: the number of events.

        Raises:
            CheckFailure: At the first difference.
        """
        playing = Playing(self, scanner, reference)
        for event in self.events:
            playing.happen(event)
        return len(self.events)

    def replace(self, **changes: Any) -> Any:  # Any: fields of the trace; the same trace with them
        return dataclasses.replace(self, **changes)

    def to_json(self) -> dict[str, Any]:  # Any: JSON
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {"trace": type(self).__name__, **plain, "events": [event.to_json() for event in self.events]}

    @staticmethod
    def from_json(plain: dict[str, Any]) -> EventTrace:  # Any: JSON
        """The trace that `to_json` wrote.

        Raises:
            ValueError: If its kind, or that of an event, is unknown.
        """
        fields = {key: tuple(value) if isinstance(value, list) else value for key, value in plain.items()}
        name = str(fields.pop("trace", None))
        kind: Any = {known.__name__: known for known in (PenaltiesTrace, ThinkingTrace)}.get(
            name
        )  # Any: its fields vary
        if kind is None:
            raise ValueError(
                f"EventTrace.from_json: trace={name!r}, but it must be one of PenaltiesTrace, ThinkingTrace."
            )
        fields["events"] = tuple(map(event_from_json, plain["events"]))
        trace: EventTrace = kind(**fields)
        return trace


@dataclass(frozen=True, repr=False)
class PenaltiesTrace(EventTrace):
    """A trace whose batch is penalised."""

    def judge(self, scanner: Any, reference: Any = None) -> Judge:  # Any: PenaltiesScanner
        if self.watch == "reading":
            return ReadingJudge(open_penalties(scanner, self.vocab_size), self.vocab_size, scanner.device)
        return PenaltiesJudge(scanner, self.vocab_size, reference)


@dataclass(frozen=True, repr=False)
class ThinkingTrace(EventTrace):
    """A trace whose requests think: sections open after `start` and close after `end`."""

    start: tuple[int, ...] = (1,)
    end: tuple[int, ...] = (2,)

    def judge(self, scanner: Any, reference: Any = None) -> Judge:  # Any: ThinkingScanner
        markers = Markers(self.start, self.end)
        if self.watch == "reading":
            return ReadingJudge(open_thinking(scanner, markers))
        return ThinkingJudge(scanner, markers, reference, state=self.watch == "state")


class Playing:
    """A trace that is being lived: the world, and the judge who looks at it."""

    def __init__(self, trace: EventTrace, scanner: Any, reference: Any = None) -> None:  # Any: as `EventTrace.judge`
        self.world = World(trace.vocab_size, counted=trace.watch == "reading")
        self.scanner = scanner
        self.judge = trace.judge(scanner, reference)
        self.refused = False
        self._replaced = False
        self._life, self._reference = trace, reference
        self._past: list[Event] = []

    def happen(self, event: Event) -> None:
        """Let `event` happen, and compare."""
        if self.refused:
            return
        self._past.append(event)
        if self.world.has_added and not isinstance(event, (Add, Resume)):
            self._look()  # a server removes requests before it adds some
        event.happen(self.world)
        self._replaced = self._replaced or (isinstance(event, Replace) and not event.told)
        if not event.held:
            self._look()

    def owes_to_secrets(self) -> bool:
        """Whether the promise that was just broken is kept if the scanner is told of every list that was replaced.

        If none was, or the scanner errs all the same, the fault is another one than not to notice.
        """
        if not self._replaced:
            return False
        told = tuple(dataclasses.replace(e, told=True) if isinstance(e, Replace) else e for e in self._past)
        try:
            self._life.replace(events=told).play(self.scanner, self._reference)
        except Exception:  # whatever it is, it has nothing to do with secrets
            return False
        return True

    def _look(self) -> None:
        num_new, self.world.num_new = self.world.num_new, 0
        try:
            self.judge.look(self.world.take_changes(), self.world.batch(), num_new)
        except ValueError as error:
            if not self._replaced or raised_by(error) is not self.scanner:
                raise
            self.refused = True  # noticed what was done behind its back: the engine's own code takes over
