"""Ours, an always-copy reference and the specification, behind the logits-plan protocol."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from fairdraw._adapters._runtime import default_device
from fairdraw._oracles.logits_plan import LogitsPlanOracle
from fairdraw.protocols import Capabilities, Capability, Rounding
from fairdraw.protocols._logits_plan import (
    CustomLogitsProcessor,
    FunctionLogitsPlanner,
    LogitsBatch,
    LogitsParams,
    LogitsSession,
    PlanSetup,
    RowOfRequest,
    logits_planner,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fairdraw.sampler_impl.logits_plan import LogitsPlan, SeenBy

__all__ = ["OurPlanner", "make", "make_always_copy", "make_oracle"]


def make(device: str | None = None) -> OurPlanner:
    """`fairdraw.sampler_impl.logits_plan`."""
    return OurPlanner(device or default_device())


def make_always_copy(device: str | None = None) -> OurPlanner:
    """The same processors on a copy that is made whether or not one has work, as vLLM does."""
    reason = "copies at every step, needed or not"
    unsupported = Capabilities({Capability.COPY_FREE: reason})
    return OurPlanner(device or default_device(), "always copy", unsupported, always_copies=True)


def make_oracle(device: str | None = None) -> FunctionLogitsPlanner:
    """The executable specification, in NumPy on the host."""
    return logits_planner(LogitsPlanOracle().process, name="oracle", device=device or "cpu", rounding="vllm-torch")


@dataclass(frozen=True)
class OurPlanner:
    """Our plan; one per session."""

    device: str
    name: str = "logits plan"
    capabilities: Capabilities = field(default_factory=Capabilities)
    always_copies: bool = False
    contract: Literal["logits_plan"] = "logits_plan"

    @property
    def rounding(self) -> Rounding:
        return Rounding.VLLM_TORCH if self.device == "cpu" else Rounding.VLLM_CUDA

    def open_plan(self, setup: PlanSetup) -> LogitsSession:
        from fairdraw.sampler_impl.logits_plan import LogitsPlan
        from fairdraw.sampler_impl.thinking_budget import ThinkingBudget

        thinking = ThinkingBudget(setup.start_token_ids, setup.end_token_ids)
        customs = [_Custom(processor) for processor in setup.custom_processors]
        plan = LogitsPlan(setup.vocab_size, self.device, thinking=thinking, custom_processors=customs)
        return _OurSession(plan, self.always_copies)


@dataclass(frozen=True)
class _Custom:
    """The suite's custom processor, told of rows in the suite's words."""

    processor: CustomLogitsProcessor

    def is_argmax_invariant(self) -> bool:
        return self.processor.is_argmax_invariant()

    def wants(self, params: LogitsParams) -> bool:
        return self.processor.wants(params)

    def apply(
        self,
        logits: Tensor,  # [num_rows, vocab_size] float32
        rows: Sequence[SeenBy],
    ) -> Tensor:  # [num_rows, vocab_size] float32
        return self.processor.apply(logits, [RowOfRequest(*row) for row in rows])


@dataclass(frozen=True)
class _OurSession:
    plan: LogitsPlan
    always_copies: bool

    def process(self, batch: LogitsBatch) -> Tensor:  # [num_rows, vocab_size] float32
        self.plan.sync_batch(batch.change)
        outputs = [request.output_token_ids for request in batch.requests]
        drafts = [request.draft_token_ids for request in batch.requests]
        processed = self.plan.apply(batch.logits, outputs, drafts)
        return processed.float().clone() if self.always_copies else processed
