"""The checks of the penalties contract, each made after every event of a live batch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from fairdraw._core.checks import Check
from fairdraw.contracts import Capability
from fairdraw.properties._lifecycle_check import LifecycleCheck, RewritingMachine, apply_unreported, lifecycle_check
from fairdraw.strategies._lifecycle_steps import long_rewrites
from fairdraw.strategies._lifecycle_tours import TourWorld, steps, walk
from fairdraw.strategies._lifecycle_wide import wide_penalties
from fairdraw.strategies.lifecycle import Add, EventTrace, PenaltiesMachine, PenaltiesTrace, PlannedTraces

__all__ = ["CHECKS"]

_check = partial(lifecycle_check, contract="penalties")


class _ReadingMachine(PenaltiesMachine):
    """Some requests enter with long outputs."""

    trace = PenaltiesTrace(watch="reading")

    @rule(length=st.sampled_from((64, 200, 4096)), frequency=st.sampled_from((0.25, 0.0)))
    @precondition(lambda self: self.num_requests < 4)
    def add_long(self, length: int, frequency: float) -> None:
        self.do(Add(more_output=length, seed=length, frequency=frequency))


class _RewritingMachine(RewritingMachine, PenaltiesMachine):
    pass


_planned = PlannedTraces.of(PenaltiesTrace())
_wide = _planned(wide_penalties)


@_planned
def _tours(seed: int, num_rounds: int) -> Iterator[EventTrace]:
    """Walks in small vocabularies, where tokens come again, and in one of 300."""
    for turn in range(num_rounds):
        world = TourWorld.of_penalties((12, 300, 3)[turn % 3], names_taken=turn % 2 == 1)
        yield walk(world, seed + turn)
        yield steps(world, seed + turn, strength=3 if turn % 16 == 15 else 2)


@_planned
def _company(seed: int, num_rounds: int) -> Iterator[EventTrace]:
    """Every pair of events of a step, and walks in longer runs."""
    for turn in range(num_rounds):
        yield steps(TourWorld.of_penalties(watch="company"), seed + turn)
        if turn % 4 == 3:
            yield walk(TourWorld.of_penalties(watch="company"), seed + turn)


@_planned
def _regrowing(seed: int, num_rounds: int) -> Iterator[EventTrace]:
    """Lists regrow after, and before, every other event; long ones from the middle."""
    yield from (walk(TourWorld.of_penalties(), seed + turn, rewrites=True) for turn in range((num_rounds + 1) // 2))
    yield long_rewrites(TourWorld.of_penalties(1000), seed)


@_check("PEN101", PenaltiesMachine, weight=1.5)
def penalised_logits_equal_a_recount_after_every_event() -> None:
    """Whatever happened to the batch, the logits are those of a recount of every prompt and output.

    They may differ by what float32 arithmetic in another order explains, a few units in the last place, and by the sign
    of zero; tokens that are not penalised stay as they are. If the scanner declares a `rounding`, bits are compared.

    The last event of the smallest trace shows the cause. After `Decode` with several accepted drafts: only the last
    token was appended. After `Repair`: a placeholder was counted, or its token was not. After `Cut`: lost tokens still
    count. After `Swap`, `Finish` or `Preempt`: state stayed in a row when its request moved. After `Resume`: earlier
    tokens count twice. After `Draft`: a draft row must see the output and the drafts *before* it, the bonus row all
    drafts, and rejected drafts must leave no trace. If a single `Add` is enough, it is the arithmetic: repetition
    (prompt and output) first, then frequency times count and presence (both output only).
    """


@_check("PEN103", _ReadingMachine, needs=(Capability.NEW_TOKENS_ONLY,), weight=0.5)
def a_step_reads_new_tokens_only() -> None:
    """What a step reads from the output lists is at most twice what is new, and a few tokens per row.

    New is also what no earlier step has read, and a placeholder until it is a token. Reads are counted, not timed: the
    lists count every token that is read. A scanner that fails rescans its outputs: its steps become slower with every
    token ever generated, and at long outputs slower than the sampling kernels. If that is intended, declare
    `new-tokens-only` as unsupported.
    """


@_check("PEN104", _RewritingMachine, needs=(Capability.NOTICES_REWRITES,), weight=0.5, body=apply_unreported)
def rows_changed_behind_its_back_are_refused_or_recounted() -> None:
    """A row that holds another list than the reported one raises `ValueError`, or gets the logits of that list.

    Engines change batches in unexpected places. Compare the row's list with the known one by identity, which costs
    nothing; on a difference refuse, so that the engine's own code can do the step. A scanner that silently goes on with
    the old list penalises tokens of another request.
    """


@_check("PEN110", _wide, depends_on=("PEN101",))
def penalised_logits_equal_a_recount_at_the_sizes_of_production() -> None:
    """The logits are those of a recount at every size, with every pair of values of two penalties.

    Batches grow row by row past 32, 64, 128 and 256, and have 1030 rows; prompts and outputs have thousands of tokens
    and grow past 256, 1024 and 4096; one token occurs 32768 times; ids are beyond 2^16 and 2^17; penalties are off, at
    both ends of their range and just inside. A step has up to 128 drafts of a request and 2500 in all, 2100 new tokens
    of a request or as many that are cut, and chains of moves. Prompts of one length differ in one place. If `PEN101`
    passes, look for a buffer of a fixed size, a window of the text, a count or an id of too few bits, a penalty that is
    clamped at the end of its range, moves that are not followed one after the other, or a prompt that is known by a
    part of it. The sizes that are left in the smallest trace say which.
    """


@_check("PEN111", _tours, depends_on=("PEN101",))
def penalised_logits_equal_a_recount_after_every_pair_of_events() -> None:
    """Every event is followed by every other one, and each pair of events happens in one step, in one long trace.

    Requests also come back under an old name, are removed and added again in one step, unchanged or with other
    parameters, and move in the step in which they enter. If `PEN101` passes, the fault needs two events: look at what
    the first leaves behind in a row, a name or a list, and at the order in which a report is followed: removed rows,
    added ones, moves.
    """


@_check("PEN112", _company, depends_on=("PEN101", "PEN111"))
def sessions_of_one_scanner_do_not_disturb_each_other() -> None:
    """A session answers as if it were alone, beside a session of another batch and a fresh one of the same batch.

    The other batch has requests of the same names in other rows. The fresh session begins in the middle of the trace,
    with every request added at once. Answers stay as they are while others are asked. The usual cause is state that
    belongs to the scanner, its class or its module instead of the session: a cache by row or by name, a buffer that
    is returned twice.
    """


@_check("PEN113", _regrowing, needs=(Capability.NOTICES_REWRITES,), depends_on=("PEN101", "PEN111"))
def tokens_cut_and_grown_again_between_two_steps_are_noticed() -> None:
    """If tokens at the end of an output are lost and others follow before the next step, the new ones count.

    The list may be as long as before. Compare the last token that was read with the one that stands there now; on a
    difference read the row anew, or raise `ValueError`. A scanner that compares lengths alone keeps the lost tokens.
    """


@_check("PEN401", PenaltiesMachine, weight=0.7, differential=True)
def penalised_logits_equal_upstream_after_every_event() -> None:
    """The logits are those of the reference, by default the real vLLM with its own `InputBatch`.

    They agree bit for bit if the scanner declares a `rounding`, and up to rounding if not.

    If `PEN101` passes and this one fails, the reference and the specification disagree: check which release it is.
    """


CHECKS: tuple[Check, ...] = tuple(value for value in list(globals().values()) if isinstance(value, LifecycleCheck))
