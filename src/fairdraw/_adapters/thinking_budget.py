"""Our thinking budget behind the thinking-budget protocol."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from fairdraw.protocols import Capabilities

if TYPE_CHECKING:
    from fairdraw.protocols._lifecycle import LiveBatch, Markers, RowChanges, ThinkingSession
    from fairdraw.sampler_impl.thinking_budget import ThinkingBudget

__all__ = ["OurThinkingBudget", "make"]


def make(device: str | None = None) -> OurThinkingBudget:
    """`fairdraw.sampler_impl.thinking_budget.ThinkingBudget`; what is decided is decided on the host."""
    return OurThinkingBudget(device or "cpu")


@dataclass(frozen=True)
class OurThinkingBudget:
    """Our watermark scan; one object per session."""

    device: str
    name: str = "thinking budget"
    capabilities: Capabilities = field(default_factory=Capabilities)
    contract: Literal["thinking_budget"] = "thinking_budget"

    def open_thinking(self, markers: Markers) -> ThinkingSession:
        from fairdraw.sampler_impl.thinking_budget import ThinkingBudget

        return _Session(ThinkingBudget(markers.start, markers.end))


class _Session:
    def __init__(self, thinking: ThinkingBudget) -> None:
        self.thinking = thinking
        self.think_counts = thinking.think_counts

    def sync(self, changes: RowChanges) -> None:
        update: Any = changes  # Any: its sequences behave like the lists that it asks for
        self.thinking.sync_batch(update)

    def forced(self, batch: LiveBatch) -> dict[int, list[tuple[int, int]]]:
        outputs: Any = batch.output_token_ids  # Any: sequences that behave like the lists it asks for
        self.thinking.update_state(outputs, batch.draft_token_ids)
        return {row: list(tokens) for row, tokens in self.thinking.forced.items()}
