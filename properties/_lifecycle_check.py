"""A check that lets a state machine live many lives with the scanner under test."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from fairdraw._core.budget import BudgetEnded
from fairdraw._core.checks import PROFILES, Check, OutOfTime, Profile, Timed
from fairdraw._core.failures import CheckFailure, failed
from fairdraw._core.seeds import derive_seed
from fairdraw.strategies.lifecycle import LifecycleMachine, Playing

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairdraw.protocols import Capability
    from fairdraw.strategies.lifecycle import Event, EventTrace

__all__ = ["LifecycleCheck", "happen_in_secret", "lifecycle_check"]


def _by_machine(_: object) -> NoReturn:
    raise TypeError("cases: a LifecycleCheck draws its lives by a state machine, but Check.cases was asked. Use run.")


@dataclass(frozen=True)
class LifecycleCheck(Check):
    """A question put after every event of a trace.

    Args:
        body: `(playing, event)`: lets the event happen, and raises `CheckFailure` if the promise is broken then.
        machine: Its `trace` says what is watched.
    """

    machine: type[LifecycleMachine] = field(default=LifecycleMachine, kw_only=True)

    def on_case(self, sampler: Any, case: EventTrace, reference: Any = None) -> None:  # Any: scanners of the contract
        """Live one trace; raises `CheckFailure` if the promise is broken."""
        playing = Playing(case, sampler, reference if self.differential else None)
        for event in case.events:
            self.body(playing, event)

    def run(
        self,
        sampler: Any,  # Any: a scanner of the contract
        *,
        profile: Profile | None = None,
        seed: int = 0,
        reference: Any = None,
        out_of_time: OutOfTime = lambda: False,
    ) -> int:
        """Let the machine live, and shrink the first trace in which the promise is broken.

        Returns:
            The number of events.

        Raises:
            CapabilityUnsupported: If the scanner does not support what the check needs.
            Inconclusive: If time is out before a trace failed.
            CheckFailure: If the promise is broken. The exception carries the smallest trace as `case`.

        Randomness:
            Lives follow from (seed, code) alone.
        """
        self.begin(sampler, reference, out_of_time)
        tried, timed = 0, Timed(out_of_time)
        failing: list[BaseException] = []

        def seen(trace: EventTrace) -> None:
            nonlocal tried
            tried += len(trace.events)
            if failing:
                timed.failed(trace, failing.pop())

        def happen(playing: Playing, event: Event) -> None:
            timed.require_time()
            try:
                self.body(playing, event)
            except (Exception, SystemExit) as error:
                failing[:] = [error]
                raise

        examples = (profile or PROFILES["ci"]).examples_for(sampler.capabilities, self.weight)
        try:
            found = self.machine.search(
                timed.guarded(sampler),
                reference=timed.guarded(reference) if self.differential else None,
                examples=examples,
                seed=derive_seed("lives", seed, self.code),
                seen=seen,
                happen=staticmethod(happen),
            )
        except BudgetEnded:
            raise timed.ended(tried, f"the events of {examples} lives") from None
        if found is not None:
            raise failed(found.error, found.lifecycle, tried, found.remarks)
        return tried


def happen_in_secret(playing: Playing, event: Event) -> None:
    """Let `event` happen, and fail only because of what happened behind the scanner's back.

    Errors that a scanner makes without that, or would make had it been told, belong to the checks of all lives; they
    end the trace here. So the smallest trace holds a list that was replaced, and the fault is not to have noticed.
    """
    try:
        playing.happen(event)
    except CheckFailure:
        if playing.owes_to_secrets():
            raise
        playing.refused = True


def lifecycle_check(
    code: str,
    machine: type[LifecycleMachine],
    *,
    contract: str,
    needs: tuple[Capability, ...] = (),
    weight: float = 1.0,
    differential: bool = False,
) -> Callable[[Callable[[Playing, Event], None]], LifecycleCheck]:
    """Make a check of a function `(playing, event)`: its name becomes the title, its docstring the meaning."""

    def make(body: Callable[[Playing, Event], None]) -> LifecycleCheck:
        return LifecycleCheck(
            code=code,
            title=body.__name__.replace("_", " "),
            meaning=inspect.cleandoc(body.__doc__ or ""),
            contract=contract,
            suite="properties",
            needs=needs,
            cases=_by_machine,
            body=body,
            weight=weight,
            differential=differential,
            machine=machine,
        )

    return make
