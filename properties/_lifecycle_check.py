"""A check that runs a state machine over many event traces of the scanner under test."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from fairdraw._core.budget import BudgetEnded
from fairdraw._core.checks import Check, Conditions, Enough, Timed
from fairdraw._core.failures import CheckFailure, failed
from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import Capability
from fairdraw.strategies.lifecycle import Event, EventTrace, LifecycleMachine, PlannedTraces, Playing, Replace


def _by_machine(_: object) -> NoReturn:
    raise TypeError("cases: a LifecycleCheck draws by a state machine, but Check.cases was called. Use run.")


@dataclass(frozen=True)
class LifecycleCheck(Check):
    """A requirement that is checked after every event of a trace.

    Args:
        body: `(playing, event)`: applies the event, and raises `CheckFailure` if the requirement is broken then.
        machine: Draws the event traces; its `trace` says what is checked.
    """

    machine: type[LifecycleMachine] = field(default=LifecycleMachine, kw_only=True)

    def on_case(self, sampler: Any, case: EventTrace, reference: Any = None) -> None:  # Any: scanners of the contract
        """Play one event trace; raises `CheckFailure` if the requirement is broken."""
        playing = Playing(case, sampler, reference if self.differential else None)
        for event in case.events:
            self.body(playing, event)

    def judge(self, sampler: Any, under: Conditions) -> int:
        """Run the machine, and shrink the first event trace that breaks the requirement.

        Returns:
            The number of events.

        Raises:
            CapabilityUnsupported: If the scanner does not support what the check needs.
            Inconclusive: If time is out before any event trace failed.
            CheckFailure: If the requirement is broken. The exception carries the smallest event trace as `case`.

        Randomness:
            The event traces follow from (seed, code) alone.
        """
        under.require_time()
        reference: Any = under.reference if self.differential else None
        tried, traces, timed = 0, 0, Timed(under.out_of_time)
        last: Playing | None = None
        failing: list[BaseException] = []
        chosen, is_planned = under.profile, issubclass(self.machine, PlannedTraces)
        part, whole = (each.examples_for(sampler.capabilities, self.weight) for each in (chosen, chosen.whole))

        def seen(trace: EventTrace) -> None:
            nonlocal tried
            tried += len(trace.events)
            if failing:
                timed.failed(trace, failing.pop())

        def on_event(playing: Playing, event: Event) -> None:
            nonlocal traces, last
            if playing is not last and not is_planned:
                last, traces = playing, traces + 1
                timed.begin_case(traces - 1, part, whole)
            timed.require_time()
            try:
                self.body(playing, event)
            except (Exception, SystemExit) as error:
                failing[:] = [error]
                raise

        shown = (sampler, reference) if self.differential else (sampler,)
        one_token = any(Capability.SEVERAL_TOKENS not in scanner.capabilities for scanner in shown)
        try:
            found = self.machine.search(
                timed.guarded(sampler),
                reference=timed.guarded(reference),
                examples=part if is_planned else whole,
                seed=derive_seed("lives", under.seed, self.code),
                seen=seen,
                on_event=staticmethod(on_event),
                trace=self.machine.trace.replace(one_token=one_token),
            )
        except Enough:
            return tried - 1  # the event of a trace that was not begun
        except BudgetEnded:
            raise timed.ended(tried, f"the events of {part} event traces") from None
        if found is not None:
            raise failed(found.error, found.lifecycle, tried, found.remarks)
        return tried


class RewritingMachine(LifecycleMachine):
    """Lists are replaced without a report."""

    @rule(row=st.integers(0, 3), output=st.lists(st.integers(0, 7), max_size=4))
    @precondition(lambda self: self.num_requests > 0)
    def replace(self, row: int, output: list[int]) -> None:
        self.do(Replace(row, tuple(output)))


def apply_unreported(playing: Playing, event: Event) -> None:
    """Apply `event`, and fail only because of a list that was replaced without a report.

    Failures that also happen without that, or with a report, belong to the checks of all event traces; they end the
    trace here. So the smallest trace holds a list that was replaced, and the fault is not to have noticed.
    """
    try:
        playing.apply(event)
    except CheckFailure:
        if playing.fails_for_unreported_lists_only():
            raise
        playing.refused = True


def lifecycle_check(
    code: str, machine: type[LifecycleMachine], **fields: Any
) -> Callable[[Callable[[], None]], LifecycleCheck]:  # Any: other fields of a check
    """Make a check of a function whose docstring says what must be so; an event is applied, and compared, by `body`."""
    about = {"cases": _by_machine, "body": Playing.apply, "machine": machine, **fields}
    return lambda says: LifecycleCheck.named(says, code, **about)
