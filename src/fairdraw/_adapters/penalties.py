"""Our penalties behind the penalties protocol: counts that are kept, and the padded tensor that is built anew."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from fairdraw._adapters._runtime import default_device
from fairdraw.protocols import Capabilities, Rounding

if TYPE_CHECKING:
    from torch import Tensor

    from fairdraw.protocols._lifecycle import LiveBatch, PenaltiesSession, RowChanges
    from fairdraw.sampler_impl.penalties import Penalties

__all__ = ["OurPenalties", "make"]


def make(device: str | None = None) -> OurPenalties:
    """`fairdraw.sampler_impl.penalties.Penalties`."""
    return OurPenalties(device or default_device())


@dataclass(frozen=True)
class OurPenalties:
    """Our counts; one object per session."""

    device: str
    name: str = "penalties"
    capabilities: Capabilities = field(default_factory=Capabilities)
    contract: Literal["penalties"] = "penalties"

    @property
    def rounding(self) -> Rounding:
        return Rounding.VLLM_TORCH if self.device == "cpu" else Rounding.VLLM_CUDA

    def open_penalties(self, vocab_size: int) -> PenaltiesSession:
        from fairdraw.sampler_impl.penalties import Penalties

        return _Session(Penalties(vocab_size, self.device))


class _Session:
    def __init__(self, penalties: Penalties) -> None:
        self.penalties = penalties

    def sync(self, changes: RowChanges) -> None:
        update: Any = changes  # Any: its sequences behave like the lists that it asks for
        self.penalties.sync_batch(update)

    def penalise(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [batch_size, vocab_size] float32, both
        outputs: Any = batch.output_token_ids  # Any: sequences that behave like the lists it asks for
        self.penalties.update(outputs)
        return self.penalties.apply(logits, *batch.factors(self.penalties.device.type), batch.draft_token_ids)

    def penalise_drafts(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [num_tokens, vocab_size] float32, both
        return self.penalties.apply_to_drafts(logits, *batch.factors(self.penalties.device.type), batch.draft_token_ids)
