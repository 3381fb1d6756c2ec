"""The promises of the thinking-budget contract, each asked after every event in the trace of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from fairdraw.properties._lifecycle_check import LifecycleCheck, happen_in_secret, lifecycle_check
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
    """Some requests bring long outputs."""

    trace = ThinkingTrace(watch="reading")

    @rule(length=st.sampled_from((64, 200)), budget=st.sampled_from((1000, 5)))
    @precondition(lambda self: self.num_requests < 4)
    def add_long(self, length: int, budget: int) -> None:
        self.do(Add(prompt=(1, 2), output=tuple(5 + i % 3 for i in range(length)), budget=budget))


class _RewritingMachine(ThinkingMachine):
    """Lists are replaced without a word."""

    @rule(row=st.integers(0, 3), output=st.lists(st.integers(0, 7), max_size=4))
    @precondition(lambda self: self.num_requests > 0)
    def replace(self, row: int, output: list[int]) -> None:
        self.do(Replace(row, tuple(output)))

    @rule(row=st.integers(0, 3), length=st.integers(0, 6))
    @precondition(lambda self: self.num_requests > 0)
    def replace_by_thoughts(self, row: int, length: int) -> None:
        """Another list that stands inside of a section: where there is a budget, it decides what is forced."""
        self.do(Replace(row, (*self.begun.start, *(5,) * length)))


class _SayingMachine(ThinkingMachine):
    """Markers are said token by token, too: they begin in one step and end in another, and may arrive late."""

    @rule(begins=st.booleans(), late=st.booleans())
    @precondition(lambda self: self.num_requests > 0)
    def say_marker(self, begins: bool, late: bool) -> None:
        for token in self.begun.start if begins else self.begun.end:
            self.do(Decode((token,) * MOST_REQUESTS, late=late))
            if late:
                self.do(Repair())


@lifecycle_check("THK101", _SayingMachine, contract="thinking_budget", weight=2.5)
def forced_tokens_equal_a_recount_after_every_event(playing: Playing, event: Event) -> None:
    """Whatever happened to the batch, what is forced where follows from prompts, outputs, drafts and budgets alone.

    The last event of the smallest trace says what was missed. After `Decode`: a marker that spans the edge between old
    and new tokens, a second section, or tokens that were accepted together. After `Repair`: the placeholder was taken
    for the token. After `Cut`: a marker that was taken back is remembered. After `Swap`, `Finish` or `Preempt`: state
    stayed in a row when its request moved. After `Draft`: drafts are tokens, too; they spend the budget and may hold
    markers, and nothing is forced after a draft that cannot be accepted. If a single `Add` is enough: a prompt that
    stands inside of a section, a budget of 0, or an end marker of several tokens of which some have been said.
    """
    playing.happen(event)


@lifecycle_check("THK102", _StateMachine, contract="thinking_budget", needs=(Capability.VISIBLE_STATE,), weight=0.5)
def shown_thinking_tokens_equal_a_recount_after_every_event(playing: Playing, event: Event) -> None:
    """The number of thinking tokens that a session shows for each open section is that of a recount.

    A wrong number here and the right tokens in `THK101` is a fault that waits for its budget to be spent. A session
    without `think_counts` shows nothing, and is asked for forced tokens only.
    """
    playing.happen(event)


@lifecycle_check("THK103", _ReadingMachine, contract="thinking_budget", needs=(Capability.NEW_TOKENS_ONLY,), weight=0.5)
def a_step_reads_new_tokens_only(playing: Playing, event: Event) -> None:
    """What a step reads from the output lists is at most twice what is new, and as much per row as a marker is long.

    New is also what no earlier step has read, and a placeholder until it is a token. Reads are counted, not timed. A
    scanner that fails this searches the whole output for its markers in every step, as
    vLLM 0.21 to 0.33 do but for 0.25: hundreds of milliseconds at long outputs. If it is meant to, decline
    `new-tokens-only`.
    """
    playing.happen(event)


@lifecycle_check(
    "THK104", _RewritingMachine, contract="thinking_budget", needs=(Capability.NOTICES_REWRITES,), weight=0.5
)
def rows_changed_behind_its_back_are_refused_or_recounted(playing: Playing, event: Event) -> None:
    """A row that holds another list than it was told of raises `ValueError`, or is forced what that list calls for.

    Compare the row's list with the known one by identity, which costs nothing. Silently going on with the old one
    forces the end of somebody else's thoughts.
    """
    happen_in_secret(playing, event)


@lifecycle_check("THK401", SoundUpstreamMachine, contract="thinking_budget", weight=0.7, differential=True)
def forced_tokens_equal_upstream_where_upstream_is_sound(playing: Playing, event: Event) -> None:
    """What is forced where is what the reference forces, by default the real vLLM's `ThinkingBudgetStateHolder`.

    Asked only in lives in which vLLM 0.22.0 is right: requests think once, obey, and are not disturbed while they end.
    What is kept out has names; `fairdraw.properties._thinking_upstream` lists them, and the production scanner's
    documentation says what vLLM does there. `THK101` asks about all lives.
    """
    playing.happen(event)


CHECKS: tuple[Check, ...] = tuple(value for value in list(globals().values()) if isinstance(value, LifecycleCheck))
