"""The checks of the penalties contract, each made after every event of a live batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from fairdraw.properties._lifecycle_check import LifecycleCheck, RewritingMachine, apply_unreported, lifecycle_check
from fairdraw.protocols import Capability
from fairdraw.strategies.lifecycle import Add, PenaltiesMachine, PenaltiesTrace, Playing

if TYPE_CHECKING:
    from fairdraw._core.checks import Check
    from fairdraw.strategies.lifecycle import Event

__all__ = ["CHECKS"]


class _ReadingMachine(PenaltiesMachine):
    """Some requests enter with long outputs."""

    trace = PenaltiesTrace(watch="reading")

    @rule(length=st.sampled_from((64, 200)), frequency=st.sampled_from((0.25, 0.0)))
    @precondition(lambda self: self.num_requests < 4)
    def add_long(self, length: int, frequency: float) -> None:
        self.do(Add(output=tuple(i % 7 for i in range(length)), frequency=frequency))


class _RewritingMachine(RewritingMachine, PenaltiesMachine):
    pass


@lifecycle_check("PEN101", PenaltiesMachine, contract="penalties", weight=1.5)
def penalised_logits_equal_a_recount_after_every_event(playing: Playing, event: Event) -> None:
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
    playing.apply(event)


@lifecycle_check("PEN103", _ReadingMachine, contract="penalties", needs=(Capability.NEW_TOKENS_ONLY,), weight=0.5)
def a_step_reads_new_tokens_only(playing: Playing, event: Event) -> None:
    """What a step reads from the output lists is at most twice what is new, and a few tokens per row.

    New is also what no earlier step has read, and a placeholder until it is a token. Reads are counted, not timed: the
    lists count every token that is read. A scanner that fails rescans its outputs: its steps become slower with every
    token ever generated, and at long outputs slower than the sampling kernels. If that is intended, declare
    `new-tokens-only` as unsupported.
    """
    playing.apply(event)


@lifecycle_check("PEN104", _RewritingMachine, contract="penalties", needs=(Capability.NOTICES_REWRITES,), weight=0.5)
def rows_changed_behind_its_back_are_refused_or_recounted(playing: Playing, event: Event) -> None:
    """A row that holds another list than the reported one raises `ValueError`, or gets the logits of that list.

    Engines change batches in unexpected places. Compare the row's list with the known one by identity, which costs
    nothing; on a difference refuse, so that the engine's own code can do the step. A scanner that silently goes on with
    the old list penalises tokens of another request.
    """
    apply_unreported(playing, event)


@lifecycle_check("PEN401", PenaltiesMachine, contract="penalties", weight=0.7, differential=True)
def penalised_logits_equal_upstream_after_every_event(playing: Playing, event: Event) -> None:
    """The logits are those of the reference, by default the real vLLM with its own `InputBatch`.

    They agree bit for bit if the scanner declares a `rounding`, and up to rounding if not.

    If `PEN101` passes and this one fails, the reference and the specification disagree: check which release it is.
    """
    playing.apply(event)


CHECKS: tuple[Check, ...] = tuple(value for value in list(globals().values()) if isinstance(value, LifecycleCheck))
