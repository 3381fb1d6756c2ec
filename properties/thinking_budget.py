"""The checks of the thinking-budget contract, each made after every event of a live batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from fairdraw.properties._lifecycle_check import LifecycleCheck, RewritingMachine, apply_unreported, lifecycle_check
from fairdraw.properties._thinking_upstream import SoundUpstreamMachine
from fairdraw.protocols import Capability
from fairdraw.strategies.lifecycle import (
    MOST_REQUESTS,
    Add,
    Decode,
    Playing,
    Repair,
    Replace,
    ThinkingMachine,
    ThinkingTrace,
)

if TYPE_CHECKING:
    from fairdraw._core.checks import Check
    from fairdraw.strategies.lifecycle import Event

__all__ = ["CHECKS"]


class _StateMachine(ThinkingMachine):
    trace = ThinkingTrace(watch="state")


class _ReadingMachine(ThinkingMachine):
    """Some requests enter with long outputs."""

    trace = ThinkingTrace(watch="reading")

    @rule(length=st.sampled_from((64, 200)), budget=st.sampled_from((1000, 5)))
    @precondition(lambda self: self.num_requests < 4)
    def add_long(self, length: int, budget: int) -> None:
        self.do(Add(prompt=(1, 2), output=tuple(5 + i % 3 for i in range(length)), budget=budget))


class _RewritingMachine(RewritingMachine, ThinkingMachine):
    @rule(row=st.integers(0, 3), length=st.integers(0, 6))
    @precondition(lambda self: self.num_requests > 0)
    def replace_by_thoughts(self, row: int, length: int) -> None:
        """Another list that ends inside a section: if the request has a budget, the list decides what is forced."""
        self.do(Replace(row, (*self.begun.start, *(5,) * length)))


class _MarkerMachine(ThinkingMachine):
    """Markers are also emitted token by token: they begin in one step and end in another, and may arrive late."""

    @rule(begins=st.booleans(), late=st.booleans())
    @precondition(lambda self: self.num_requests > 0)
    def emit_marker(self, begins: bool, late: bool) -> None:
        for token in self.begun.start if begins else self.begun.end:
            self.do(Decode((token,) * MOST_REQUESTS, late=late))
            if late:
                self.do(Repair())


@lifecycle_check("THK101", _MarkerMachine, contract="thinking_budget", weight=2.5)
def forced_tokens_equal_a_recount_after_every_event(playing: Playing, event: Event) -> None:
    """Whatever happened to the batch, what is forced where follows from prompts, outputs, drafts and budgets alone.

    The last event of the smallest trace shows the cause. After `Decode`: a marker that spans the edge between old and
    new tokens, a second section, or tokens that were accepted together. After `Repair`: the placeholder was taken for
    the token. After `Cut`: a marker that was cut off is remembered. After `Swap`, `Finish` or `Preempt`: state stayed
    in a row when its request moved. After `Draft`: drafts are tokens, too; they spend the budget and may hold markers,
    and nothing is forced after a draft that cannot be accepted. If a single `Add` is enough: a prompt that ends inside
    a section, a budget of 0, or an end marker of several tokens of which some have been emitted.
    """
    playing.apply(event)


@lifecycle_check("THK102", _StateMachine, contract="thinking_budget", needs=(Capability.VISIBLE_STATE,), weight=0.5)
def shown_thinking_tokens_equal_a_recount_after_every_event(playing: Playing, event: Event) -> None:
    """The number of thinking tokens that a session shows for each open section is that of a recount.

    If the number is wrong and `THK101` passes, the fault will show once a budget is spent. A session without
    `think_counts` shows nothing; only its forced tokens are checked.
    """
    playing.apply(event)


@lifecycle_check("THK103", _ReadingMachine, contract="thinking_budget", needs=(Capability.NEW_TOKENS_ONLY,), weight=0.5)
def a_step_reads_new_tokens_only(playing: Playing, event: Event) -> None:
    """What a step reads from the output lists is at most twice what is new, and as much per row as a marker is long.

    New is also what no earlier step has read, and a placeholder until it is a token. Reads are counted, not timed. A
    scanner that fails searches the whole output for its markers in every step, as vLLM 0.21 to 0.33 do except 0.25:
    hundreds of milliseconds at long outputs. If that is intended, declare `new-tokens-only` as unsupported.
    """
    playing.apply(event)


@lifecycle_check(
    "THK104", _RewritingMachine, contract="thinking_budget", needs=(Capability.NOTICES_REWRITES,), weight=0.5
)
def rows_changed_behind_its_back_are_refused_or_recounted(playing: Playing, event: Event) -> None:
    """A row that holds another list than the reported one raises `ValueError`, or gets the forced tokens of that list.

    Compare the row's list with the known one by identity, which costs nothing. A scanner that silently goes on with the
    old list forces the end of another request's section.
    """
    apply_unreported(playing, event)


@lifecycle_check("THK401", SoundUpstreamMachine, contract="thinking_budget", weight=0.7, differential=True)
def forced_tokens_equal_upstream_where_upstream_is_sound(playing: Playing, event: Event) -> None:
    """What is forced where is what the reference forces, by default the real vLLM's `ThinkingBudgetStateHolder`.

    Only event traces in which vLLM 0.22.0 is correct are drawn: requests think once, emit what is forced, and are not
    disturbed while they end. `fairdraw.properties._thinking_upstream` lists the defects that are kept out, and the
    production scanner's documentation says what vLLM does there. `THK101` covers all event traces.
    """
    playing.apply(event)


CHECKS: tuple[Check, ...] = tuple(value for value in list(globals().values()) if isinstance(value, LifecycleCheck))
