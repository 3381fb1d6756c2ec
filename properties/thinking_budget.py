"""The checks of the thinking-budget contract, each made after every event of a live batch."""

from collections.abc import Iterator
from functools import partial

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from fairdraw._core.checks import Check
from fairdraw.contracts import Capability
from fairdraw.properties._lifecycle_check import LifecycleCheck, RewritingMachine, apply_unreported, lifecycle_check
from fairdraw.properties._thinking_upstream import SoundUpstreamMachine
from fairdraw.strategies import lifecycle
from fairdraw.strategies._lifecycle_steps import long_rewrites
from fairdraw.strategies._lifecycle_tours import MARKERS, TourWorld, steps, walk
from fairdraw.strategies._lifecycle_wide import wide_thinking

__all__ = ["CHECKS"]

_check = partial(lifecycle_check, contract="thinking_budget")


class _StateMachine(lifecycle.ThinkingMachine):
    trace = lifecycle.ThinkingTrace(watch="state")


class _ReadingMachine(lifecycle.ThinkingMachine):
    """Some requests enter with long outputs."""

    trace = lifecycle.ThinkingTrace(watch="reading", vocab_size=100)

    @rule(length=st.sampled_from((64, 200, 4096)), budget=st.sampled_from((10_000, 5)))
    @precondition(lambda self: self.num_requests < 4)
    def add_long(self, length: int, budget: int) -> None:
        self.do(lifecycle.Add(prompt=self.begun.start, more_output=length, seed=length, budget=budget))


class _RewritingMachine(RewritingMachine, lifecycle.ThinkingMachine):
    @rule(row=st.integers(0, 3), length=st.integers(0, 6))
    @precondition(lambda self: self.num_requests > 0)
    def replace_by_thoughts(self, row: int, length: int) -> None:
        """Another list that ends inside a section: if the request has a budget, the list decides what is forced."""
        self.do(lifecycle.Replace(row, (*self.begun.start, *(5,) * length)))


class _MarkerMachine(lifecycle.ThinkingMachine):
    """Markers are also emitted token by token, or only begun: they span several steps, and may arrive late."""

    @rule(begins=st.booleans(), late=st.booleans(), missing=st.sampled_from((0, 0, 1, 2)))
    @precondition(lambda self: self.num_requests > 0)
    def emit_marker(self, begins: bool, late: bool, missing: int) -> None:
        marker = self.begun.start if begins else self.begun.end
        for token in marker[: max(1, len(marker) - missing)]:
            self.do(lifecycle.Decode((token,) * lifecycle.MOST_REQUESTS, late=late))
            if late:
                self.do(lifecycle.Repair())


_planned = lifecycle.PlannedTraces.of(lifecycle.ThinkingTrace())
_wide = _planned(wide_thinking)


@_planned
def _tours(seed: int, num_rounds: int) -> Iterator[lifecycle.EventTrace]:
    """With three pairs of markers in each round."""
    for number in range(seed % len(MARKERS), seed % len(MARKERS) + 3 * num_rounds):
        yield walk(TourWorld.of_thinking(number), seed + number)
        yield steps(TourWorld.of_thinking(number), seed + number)


@_planned
def _company(seed: int, num_rounds: int) -> Iterator[lifecycle.EventTrace]:
    """Every pair of events of a step, with two pairs of markers in each round."""
    for number in range(seed % len(MARKERS), seed % len(MARKERS) + 2 * num_rounds):
        yield steps(TourWorld.of_thinking(number, watch="company"), seed + number)
    yield walk(TourWorld.of_thinking(seed, watch="company"), seed)


@_planned
def _regrowing(seed: int, num_rounds: int) -> Iterator[lifecycle.EventTrace]:
    """Lists regrow after, and before, every other event; long ones from the middle."""
    for number in range(seed % len(MARKERS), seed % len(MARKERS) + num_rounds + 1):
        yield walk(TourWorld.of_thinking(number), seed + number, rewrites=True)
    yield long_rewrites(TourWorld.of_thinking(seed, 1000), seed)


@_check("THK101", _MarkerMachine, weight=2.5)
def forced_tokens_equal_a_recount_after_every_event() -> None:
    """Whatever happened to the batch, what is forced where follows from prompts, outputs, drafts and budgets alone.

    The last event of the smallest trace shows the cause. After `Decode`: a marker that spans the edge between old and
    new tokens, a second section, or tokens that were accepted together. After `Repair`: the placeholder was taken for
    the token. After `Cut`: a marker that was cut off is remembered. After `Swap`, `Finish` or `Preempt`: state stayed
    in a row when its request moved. After `Draft`: drafts are tokens, too; they spend the budget and may hold markers,
    and nothing is forced after a draft that cannot be accepted. If a single `Add` is enough: a prompt that ends inside
    a section, a budget of 0, or an end marker of several tokens of which some have been emitted.
    """


@_check("THK102", _StateMachine, needs=(Capability.VISIBLE_STATE,), weight=0.5)
def shown_thinking_tokens_equal_a_recount_after_every_event() -> None:
    """The number of thinking tokens that a session shows for each open section is that of a recount.

    If the number is wrong and `THK101` passes, the fault will show once a budget is spent. A session without
    `think_counts` shows nothing; only its forced tokens are checked.
    """


@_check("THK103", _ReadingMachine, needs=(Capability.NEW_TOKENS_ONLY,), weight=0.5)
def a_step_reads_new_tokens_only() -> None:
    """What a step reads from the output lists is at most twice what is new, and as much per row as a marker is long.

    New is also what no earlier step has read, and a placeholder until it is a token. Reads are counted, not timed. A
    scanner that fails searches the whole output for its markers in every step, as vLLM 0.21 to 0.33 do except 0.25:
    hundreds of milliseconds at long outputs. If that is intended, declare `new-tokens-only` as unsupported.
    """


@_check("THK104", _RewritingMachine, needs=(Capability.NOTICES_REWRITES,), weight=0.5, body=apply_unreported)
def rows_changed_behind_its_back_are_refused_or_recounted() -> None:
    """A row that holds another list than the reported one raises `ValueError`, or gets the forced tokens of that list.

    Compare the row's list with the known one by identity, which costs nothing. A scanner that silently goes on with the
    old list forces the end of another request's section.
    """


@_check("THK110", _wide, depends_on=("THK101",))
def forced_tokens_equal_a_recount_at_the_sizes_of_production() -> None:
    """What is forced where is what a recount forces at every size, with every pair of budget, prompt and output.

    Batches grow row by row past 32, 64, 128 and 256, and have 1030 rows; budgets, sections and prompts have thousands
    of tokens and pass 256, 1024 and 4096; outputs have hundreds of sections; markers have one to six tokens, or up to
    33, overlap themselves, share tokens, begin alike, and lie beyond 2^16. Outputs stop before the budget, at it,
    behind it and at every token of a marker. A step has up to 128 drafts of a request, 2100 new tokens of a request or
    as many that are cut, and chains of moves. Prompts of one length differ in one place. If `THK101` passes, look for
    a buffer of a fixed size, a window of the text, a count or an id of too few bits, moves that are not followed one
    after the other, or a prompt that is known by a part of it. The sizes that are left in the smallest trace say which.
    """


@_check("THK111", _tours, depends_on=("THK101",))
def forced_tokens_equal_a_recount_after_every_pair_of_events() -> None:
    """Every event is followed by every other one, and each pair of events happens in one step, in one long trace.

    Half of all tokens belong to markers, whole or begun. Requests also come back under an old name, are removed and
    added again in one step, unchanged or with another budget, and move in the step in which they enter. If `THK101`
    passes, the fault needs two events, or a marker that arrives over several steps: look at what the first event leaves
    behind in a row, a name or a list.
    """


@_check("THK112", _company, depends_on=("THK101", "THK111"))
def sessions_of_one_scanner_do_not_disturb_each_other() -> None:
    """A session answers as if it were alone, beside a session of another batch and a fresh one of the same batch.

    The other batch has requests of the same names in other rows. The fresh session begins in the middle of the trace,
    with every request added at once. The usual cause is state that belongs to the scanner, its class or its module
    instead of the session, such as a cache by row, by name or by the length of a text.
    """


@_check("THK113", _regrowing, needs=(Capability.NOTICES_REWRITES,), depends_on=("THK101", "THK111"))
def tokens_cut_and_grown_again_between_two_steps_are_noticed() -> None:
    """If tokens at the end of an output are lost and others follow before the next step, the new ones count.

    The list may be as long as before. Compare the last token that was read with the one that stands there now; on a
    difference read the row anew, or raise `ValueError`. A scanner that compares lengths alone remembers a marker that
    was lost, or never sees the one that replaced it.
    """


@_check("THK401", SoundUpstreamMachine, weight=0.7, differential=True, any_policy=True)
def forced_tokens_equal_upstream_where_upstream_is_sound() -> None:
    """What is forced where is what the reference forces, by default the real vLLM's `ThinkingBudgetStateHolder`.

    Only event traces in which vLLM 0.22.0 is correct are drawn: requests think once, emit what is forced, and are not
    disturbed while they end. `fairdraw.properties._thinking_upstream` lists the defects that are kept out, and the
    production scanner's documentation says what vLLM does there. `THK101` covers all event traces.
    """


CHECKS: tuple[Check, ...] = tuple(value for value in list(globals().values()) if isinstance(value, LifecycleCheck))
