"""Event traces as data, and how one is played."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from fairdraw._core.failures import raised_by
from fairdraw.contracts import PLACEHOLDER_TOKEN_ID, Markers
from fairdraw.strategies import _lifecycle_checkers as checkers
from fairdraw.strategies import _lifecycle_events as lifecycle
from fairdraw.strategies._lifecycle_company import CompanyChecker, arguments, require_unchanged
from fairdraw.strategies._lifecycle_events import Event
from fairdraw.strategies._recipe import Recipe
from fairdraw.strategies._serving_batch import MOST_REQUESTS, ServingBatch

Watch = Literal["answer", "state", "reading", "company"]


@dataclass(frozen=True, repr=False)
class EventTrace(Recipe):
    """An event trace: everything that happens to one batch, as a recipe.

    Args:
        watch: What is checked: the `answer`, the `state` that a session shows, how many tokens it reads (`reading`), or
            the answers beside another session of the scanner and a fresh one (`company`).
        rows: Most requests of the batch.
        names_taken: Rows that another request takes over are also reported as removed, which the protocol allows.
        one_token: Every step brings each request one token, which is known, and there are no drafts: what a scanner
            without `several-tokens` is shown. A step begins with its `Decode`, of zeros if none is written.
    """

    tag = "trace"
    events: tuple[Event, ...] = ()
    vocab_size: int = field(default=8, kw_only=True)
    watch: Watch = field(default="answer", kw_only=True)
    rows: int = field(default=MOST_REQUESTS, kw_only=True)
    names_taken: bool = field(default=False, kw_only=True)
    one_token: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.one_token:
            object.__setattr__(self, "events", tuple(map(with_one_token, self.events)))

    def checker(self, scanner: Any, reference: Any = None) -> checkers.Checker:  # Any: scanners of the trace's contract
        raise NotImplementedError

    def build(self) -> tuple[Event, ...]:
        """The events; an event trace has nothing else to build."""
        return self.events

    def play(self, scanner: Any, reference: Any = None) -> int:  # Any: as `checker`
        """Play it once and check after every event; returns the number of events.

        Raises:
            CheckFailure: At the first difference.
        """
        playing = Playing(self, scanner, reference)
        for event in self.events:
            playing.apply(event)
        return len(self.events)


@dataclass(frozen=True, repr=False)
class PenaltiesTrace(EventTrace):
    """An event trace of a batch whose logits are penalised."""

    def checker(self, scanner: Any, reference: Any = None) -> checkers.Checker:  # Any: PenaltiesScanner
        if self.watch == "reading":
            return checkers.ReadingChecker(checkers.OpenSession.of_penalties(scanner, self.vocab_size), self.vocab_size)
        if self.watch == "company":
            return CompanyChecker(lambda: checkers.PenaltiesChecker(scanner, self.vocab_size))
        return checkers.PenaltiesChecker(scanner, self.vocab_size, reference)


@dataclass(frozen=True, repr=False)
class ThinkingTrace(EventTrace):
    """An event trace of requests that think: sections open after `start` and close after `end`."""

    start: tuple[int, ...] = (1,)
    end: tuple[int, ...] = (2,)

    def checker(self, scanner: Any, reference: Any = None) -> checkers.Checker:  # Any: ThinkingScanner
        markers = Markers(self.start, self.end)
        if self.watch == "reading":
            return checkers.ReadingChecker(checkers.OpenSession.of_thinking(scanner, markers))
        if self.watch == "company":
            return CompanyChecker(lambda: checkers.ThinkingChecker(scanner, markers))
        return checkers.ThinkingChecker(scanner, markers, reference, state=self.watch == "state")


EventTrace.others = (PenaltiesTrace, ThinkingTrace)


def with_one_token(event: Event) -> Event:
    """The event as it is if every step brings one known token. A `Draft` is a `Decode` of the first drafts instead, and
    late or lost tokens are one of zeros."""
    if isinstance(event, lifecycle.Add):
        return event.replace(output=tuple(i for i in event.output if i != PLACEHOLDER_TOKEN_ID))
    if isinstance(event, lifecycle.Decode):
        return lifecycle.Decode(tuple(token_id or 0 for token_id in event.tokens), held=event.held)
    if isinstance(event, lifecycle.Draft):
        return lifecycle.Decode(tuple(max((0, *own[:1])) for own in event.drafts), held=event.held)
    if isinstance(event, (lifecycle.Cut, lifecycle.Regrow, lifecycle.Repair)):
        return lifecycle.Decode(held=event.held)
    return event


class EventfulBatch:
    """A batch to which events happen; `step` is what is done when a scanner would run."""

    def __init__(self, batch: ServingBatch, *, one_token: bool = False) -> None:
        self.batch, self.one_token = batch, one_token
        self._pending = False
        """Events were held since the last step."""

    def apply(self, event: Event) -> None:
        """Apply `event` to the batch, and run a step unless it is held."""
        event = with_one_token(event) if self.one_token else event
        if self.needs_step_before(event):
            self.step()
        if self.one_token and not self._pending and not isinstance(event, lifecycle.Decode):
            self.change(lifecycle.Decode())
        self.change(event)
        self._pending = True
        if not event.held or isinstance(event, lifecycle.Regrow):
            self.step()

    def needs_step_before(self, event: Event) -> bool:
        """A server removes requests before it adds some; then it may swap rows and draft. A `Regrow` stands alone."""
        early = self.batch.has_added and not isinstance(
            event, (lifecycle.Add, lifecycle.Resume, lifecycle.Swap, lifecycle.Draft)
        )
        alone = isinstance(event, lifecycle.Decode) if self.one_token else isinstance(event, lifecycle.Regrow)
        return early or (self._pending and alone)

    def change(self, event: Event) -> None:
        event.apply(self.batch)

    def step(self) -> None:
        """No scanner runs here: the rows close up."""
        self._pending = False
        self.batch.take_changes()


class Playing(EventfulBatch):
    """An event trace that is being played: the batch, and the checker that runs after each event."""

    def __init__(self, trace: EventTrace, scanner: Any, reference: Any = None) -> None:  # Any: as `EventTrace.checker`
        counted = trace.watch == "reading"
        super().__init__(
            ServingBatch(trace.vocab_size, most_requests=trace.rows, counted=counted, names_taken=trace.names_taken),
            one_token=trace.one_token,
        )
        self.scanner = scanner
        self.checker = trace.checker(scanner, reference)
        self.refused = False
        """The trace is over: the scanner has noticed a list that was rewritten without a report."""
        self._replaced = self._rewritten = False
        self._trace, self._reference = trace, reference
        self._past: list[Event] = []

    def apply(self, event: Event) -> None:
        """Apply `event` to the batch, and check."""
        if not self.refused:
            self._past.append(event)
            super().apply(event)

    def change(self, event: Event) -> None:
        super().change(event)
        self._replaced = self._replaced or (isinstance(event, lifecycle.Replace) and not event.reported)
        self._rewritten = self._rewritten or self._replaced or isinstance(event, lifecycle.Regrow)

    def fails_for_unreported_lists_only(self) -> bool:
        """Whether the check that just failed passes if every list that was replaced is reported.

        If no list was replaced, or the scanner fails all the same, the fault is another one than not to notice.
        """
        if not self._replaced:
            return False
        reported = tuple(
            dataclasses.replace(e, reported=True) if isinstance(e, lifecycle.Replace) else e for e in self._past
        )
        try:
            self._trace.replace(events=reported).play(self.scanner, self._reference)
        except Exception:  # any error has another cause than the missing report
            return False
        return True

    def step(self) -> None:
        """Check."""
        self._pending = False
        num_new, self.batch.num_new = self.batch.num_new, 0
        changes, batch = self.batch.take_changes(), self.batch.batch()
        before = None if self._trace.watch == "reading" else arguments(changes, batch)
        try:
            self.checker.check(changes, batch, num_new)
        except ValueError as error:
            if not self._rewritten or raised_by(error) is not self.scanner:
                raise
            self.refused = True  # the scanner noticed; an engine would let its own code do the step
        if before is not None:
            require_unchanged(before, arguments(changes, batch))
