"""Event traces of a live batch, for scanners that keep state: requests come, go and move; tokens come late or are lost.

A simulated serving batch is the ground truth, in plain Python. *Events* change it; after each one a *checker* compares
the scanner under test with it. `PenaltiesMachine` and `ThinkingMachine` are Hypothesis state machines with a rule for
every event. Give them a scanner (its protocol is in `fairdraw.contracts`), and they search for a small event
trace in which it fails:

    >>> from fairdraw import Capabilities
    >>> class Forgetful:
    ...     name, device, capabilities, contract = "forgetful", "cpu", Capabilities(), "penalties"
    ...     def open_penalties(self, vocab_size):
    ...         return self
    ...     def sync(self, changes):
    ...         pass
    ...     def penalise(self, logits, batch):
    ...         return logits
    ...     def penalise_drafts(self, logits, batch):
    ...         return logits
    >>> found = PenaltiesMachine.search(Forgetful(), examples=20)
    >>> len(found.lifecycle.events)
    1

The event trace is data. It prints as code that can be pasted into a test, and it is played without Hypothesis:

    >>> PenaltiesTrace(events=(Add(presence=0.5), Decode(tokens=(3,)))).play(Forgetful())  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    fairdraw._core.failures.CheckFailure: bonus row 0, token 3: -0.0752097145, but the recount has -0.575209737 ...
    >>> PenaltiesTrace(events=(Add(), Decode(tokens=(3,)))).play(Forgetful())
    2

In a test module of your own:

    class MyMachine(PenaltiesMachine):
        scanner = my_scanner

    TestMine = MyMachine.TestCase
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from fairdraw._core.budget import SHRINKING_WAS_CUT, BudgetEnded
from fairdraw._core.checks import no_constants_of_modules
from fairdraw._core.failures import raised_by
from fairdraw.strategies._lifecycle_events import (
    Add,
    CarryOn,
    Cut,
    Decode,
    Draft,
    Event,
    Finish,
    Preempt,
    Regrow,
    Renew,
    Repair,
    Replace,
    Resume,
    Swap,
)
from fairdraw.strategies._lifecycle_shrink import shrunk
from fairdraw.strategies._lifecycle_traces import EventTrace, PenaltiesTrace, Playing, ThinkingTrace
from fairdraw.strategies._serving_batch import MOST_REQUESTS

__all__ = [
    "MOST_DRAFTS", "MOST_REQUESTS", "Add", "AnyTraceMachine", "CarryOn", "Cut", "Decode", "Draft", "Event",
    "EventTrace", "Finish", "Found", "LifecycleMachine", "PenaltiesMachine", "PenaltiesTrace", "PlannedTraces",
    "Playing", "Preempt", "Regrow", "Renew", "Repair", "Replace", "Resume", "Swap", "ThinkingMachine", "ThinkingTrace",
]  # fmt: skip

MOST_DRAFTS = 3
"""Most drafts of a request in one step."""
STEPS = 30
"""Events of one trace, at most."""


class Found(NamedTuple):
    """What a search found: the smallest failing event trace, and its error."""

    lifecycle: EventTrace
    error: BaseException
    remarks: tuple[str, ...] = ()
    """Notes for the reader of the example."""


class LifecycleMachine(RuleBasedStateMachine):
    """Event traces of one scanner; subclasses have the rules. Set `scanner` (and `reference`), or use `search`."""

    trace: ClassVar[EventTrace]
    scanner: ClassVar[Any]  # Any: a scanner of the trace's contract
    reference: ClassVar[Any] = None
    seen: ClassVar[Any] = None  # Any: a static method, which mypy takes for a bound one
    """Called with every event trace that ended, by error or not, in the order of trial."""
    free: ClassVar[bool] = True
    """Any sequence of events is valid for this machine. If not, Hypothesis shrinks what its rules draw."""
    on_event: ClassVar[Callable[[Playing, Event], None]] = Playing.apply

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.begun: Any = self.trace  # Any: the subclass knows which kind

    @property
    def playing(self) -> Playing:
        if not hasattr(self, "_playing"):
            self._playing = Playing(self.begun, self.scanner, self.reference)
        return self._playing

    def do(self, event: Event) -> None:
        self.events.append(event)
        type(self).on_event(self.playing, event)

    def teardown(self) -> None:
        if self.seen is not None:
            self.seen(self.begun.replace(events=tuple(self.events)))

    @property
    def num_requests(self) -> int:
        return len(self.playing.batch.requests)

    def ids(self, drawn: Sequence[int]) -> tuple[int, ...]:
        """Token ids for the integers that a rule drew."""
        return tuple(drawn)

    @classmethod
    def search(
        cls,
        scanner: Any,  # Any: a scanner of this machine's contract
        *,
        reference: Any = None,
        examples: int = 100,
        seed: int = 0,
        seen: Callable[[EventTrace], None] | None = None,
        **members: Any,  # Any: of the subclass that is searched
    ) -> Found | None:
        """Try event traces until one ends in an error, and shrink it; `None` if none does.

        Args:
            examples: Number of event traces, of about 20 events each.
            seen: Called with every event trace that was tried.

        Randomness:
            The event traces follow from `seed` alone.
        """
        members |= {"scanner": scanner, "reference": reference}
        machine: Any = type(cls.__name__, (cls,), members)  # Any: a subclass of cls
        found: Found | None = machine._searched(examples, seed, seen or (lambda trace: None))
        return found

    @classmethod
    def _searched(cls, examples: int, seed: int, seen: Callable[[EventTrace], None]) -> Found | None:
        """Search with this class alone, which is made for one search."""
        ended: list[EventTrace] = []

        def remember(trace: EventTrace) -> None:
            ended[:] = [trace]
            seen(trace)

        cls.seen = staticmethod(remember)
        try:
            with no_constants_of_modules():
                run_state_machine_as_test(hypothesis.seed(seed)(cls), settings=_limits(examples, cls.free))
        except (Exception, SystemExit) as error:
            return cls._smallest(ended[0], error) if cls.free else Found(ended[0], error)
        return None

    @classmethod
    def _smallest(cls, trace: EventTrace, error: BaseException) -> Found:
        """The smallest trace that ends in an error of the same class, raised by the same side."""
        last, smallest = error, trace.events

        def fails(events: tuple[Event, ...]) -> bool:
            nonlocal last, smallest
            try:
                playing = Playing(trace.replace(events=events), cls.scanner, cls.reference)
                for event in events:
                    cls.on_event(playing, event)
            except (Exception, SystemExit) as again:
                if not isinstance(again, type(error)) or raised_by(again) is not raised_by(error):
                    return False
                last, smallest = again, events
                return True
            return False

        try:
            if not fails(trace.events):
                return Found(trace, error)
            shrunk(trace.events, fails)
        except BudgetEnded:
            return Found(trace.replace(events=smallest), last, (SHRINKING_WAS_CUT,))
        return Found(trace.replace(events=smallest), last)


class PlannedTraces(LifecycleMachine):
    """Event traces that are planned instead of drawn: the same parts in every run, in an order from the seed."""

    EXAMPLES_PER_ROUND = 25

    @classmethod
    def of(cls, trace: EventTrace) -> Callable[[Callable[[int, int], Iterator[EventTrace]]], type[PlannedTraces]]:
        """Make a machine of the function that plans its traces; `trace` says what is checked, and how."""
        return lambda plan: type(plan.__name__, (cls,), {"trace": trace, "plan": staticmethod(plan)})

    @staticmethod
    def plan(seed: int, num_rounds: int) -> Iterator[EventTrace]:
        """The traces; a round has everything that every run must have."""
        raise NotImplementedError

    @classmethod
    def _searched(cls, examples: int, seed: int, seen: Callable[[EventTrace], None]) -> Found | None:
        """Play the planned traces until one ends in an error, and shrink it; `None` if none does."""
        for planned in cls.plan(seed, max(1, examples // cls.EXAMPLES_PER_ROUND)):
            trace = planned.replace(one_token=cls.trace.one_token)
            past: list[Event] = []
            failure: BaseException | None = None
            try:
                playing = Playing(trace, cls.scanner, cls.reference)
                for event in trace.events:
                    past.append(event)
                    cls.on_event(playing, event)
            except (Exception, SystemExit) as error:
                failure = error
            finally:
                seen(trace.replace(events=tuple(past)))  # the time for making it smaller begins here
            if failure is not None:
                return cls._smallest(trace.replace(events=tuple(past)), failure)
        return None


ROWS = st.integers(0, MOST_REQUESTS - 1)


def has_requests(machine: LifecycleMachine) -> bool:
    """Whether somebody is in the batch."""
    return machine.num_requests > 0


def has_waiting(machine: LifecycleMachine) -> bool:
    """Whether somebody was preempted."""
    return bool(machine.playing.batch.waiting)


def rule_of(
    event: type[Event], when: Callable[[Any], bool], **fields: Any
) -> Callable[[Any], None]:  # Any: a machine, strategies, and the values that they draw
    """Make a rule: the event happens, with drawn fields, where that is possible."""

    def body(self: LifecycleMachine, **drawn: Any) -> None:
        self.do(event(**drawn))

    body.__name__ = re.sub(r"(?<!^)(?=[A-Z])", "_", event.__name__).lower()  # Hypothesis puts rules in order of names
    decorators: Any = rule(**fields), precondition(when)
    found: Callable[[Any], None] = decorators[0](decorators[1](body))
    return found


class AnyTraceMachine(LifecycleMachine):
    """A rule for every event of any batch, but for `Add`, which depends on the contract."""

    finish = rule_of(Finish, has_requests, row=ROWS, held=st.booleans())
    preempt = rule_of(Preempt, has_requests, row=ROWS, held=st.booleans())
    resume = rule_of(Resume, has_waiting, same_list=st.booleans())
    carry_on = rule_of(CarryOn, has_requests, row=ROWS)
    renew = rule_of(Renew, has_requests, row=ROWS, same_list=st.booleans())
    swap = rule_of(Swap, lambda machine: machine.num_requests > 1, row=ROWS, other=ROWS)
    cut = rule_of(Cut, has_requests, row=ROWS, count=st.integers(1, 4))
    repair = rule_of(Repair, lambda machine: any(r.late_token_ids for r in machine.playing.batch.requests))

    @rule(drafts=st.lists(st.lists(st.integers(-1, 7), max_size=MOST_DRAFTS).map(tuple), max_size=MOST_REQUESTS))
    @precondition(has_requests)
    def draft(self, drafts: list[tuple[int, ...]]) -> None:
        self.do(Draft(tuple(self.ids(own)[:MOST_DRAFTS] for own in drafts)))

    @rule(tokens=st.lists(st.one_of(st.integers(0, 7), st.none()), max_size=MOST_REQUESTS), late=st.booleans())
    @precondition(has_requests)
    def decode(self, tokens: list[int | None], late: bool) -> None:
        self.do(Decode(tuple(tokens), late=late))

    @rule(
        tokens=st.lists(st.integers(0, 7), max_size=MOST_REQUESTS),
        accepted=st.lists(st.integers(0, MOST_DRAFTS), max_size=MOST_REQUESTS),
        late=st.booleans(),
    )
    @precondition(lambda self: self.playing.batch.batch().num_drafts > 0)
    def verify(self, tokens: list[int], accepted: list[int], late: bool) -> None:
        self.do(Decode(tuple(tokens), tuple(accepted), late=late))


def _limits(examples: int, free: bool) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        phases=(Phase.generate,) if free else (Phase.generate, Phase.shrink),  # `shrunk` does better
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=hypothesis.Verbosity.quiet,
        suppress_health_check=(HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.too_slow),
    )


_IDS = st.integers(0, 7)
_OUTPUTS = st.lists(st.integers(-1, 7), max_size=6).map(tuple)
_PROMPTS = st.lists(_IDS, max_size=5).map(tuple)


class PenaltiesMachine(AnyTraceMachine):
    """Requests with and without penalties, each with its own."""

    trace = PenaltiesTrace()

    @initialize(vocab_size=st.sampled_from((8, 1, 3, 300)))
    def begin(self, vocab_size: int) -> None:
        self.begun = self.trace.replace(vocab_size=vocab_size)

    @rule(
        prompt=_PROMPTS,
        output=_OUTPUTS,
        presence=st.sampled_from((0.0, 0.5, -1.25, 2.0, -0.1)),
        frequency=st.sampled_from((0.0, 0.25, -0.5, -2.0, 0.1)),
        repetition=st.sampled_from((1.0, 1.25, 0.75, 1.1, 2.0)),
        again=st.booleans(),
        held=st.booleans(),
    )
    @precondition(lambda self: self.num_requests < MOST_REQUESTS)
    def add(self, **fields: Any) -> None:  # Any: those of Add
        self.do(Add(**fields))


class ThinkingMachine(AnyTraceMachine):
    """Requests with budgets (also 0), prompts that end inside a section, and markers of up to 6 tokens."""

    trace = ThinkingTrace()

    @initialize(
        start=st.sampled_from(((1,), (1, 2), (1, 1, 2), (0, 1), (1, 2, 1, 1, 2, 1))),
        end=st.sampled_from(((2,), (3,), (3, 4), (3, 3, 4), (2, 2), (3, 3, 4, 3, 3), (1, 2, 3), (4, 1), (3, 1, 2))),
    )
    def begin(self, start: tuple[int, ...], end: tuple[int, ...]) -> None:
        self.begun = self.trace.replace(start=start, end=end)

    @rule(
        prompt=_PROMPTS,
        output=_OUTPUTS,
        budget=st.one_of(st.integers(0, 6), st.none()),
        again=st.booleans(),
        held=st.booleans(),
    )
    @precondition(lambda self: self.num_requests < MOST_REQUESTS)
    def add(self, prompt: tuple[int, ...], output: tuple[int, ...], **fields: Any) -> None:  # Any: others of Add
        self.do(Add(self.ids(prompt), self.ids(output), **fields))

    def ids(self, drawn: Sequence[int]) -> tuple[int, ...]:
        """6 and 7 stand for whole markers, which would be rare otherwise."""
        trace = self.begun
        parts = (trace.start if i == 6 else trace.end if i == 7 else (i,) for i in drawn)
        return tuple(chain.from_iterable(parts))
