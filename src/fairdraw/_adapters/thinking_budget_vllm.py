"""vLLM's own `ThinkingBudgetStateHolder` behind the thinking-budget protocol, whatever release has one (0.21 on).

It is meant as a reference for the lives in which vLLM is right; `fairdraw.sampler_impl.thinking_budget` names those in
which it is not.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

from fairdraw._adapters._runtime import triton_is_interpreted
from fairdraw._adapters.penalties_vllm import unpin
from fairdraw._adapters.vllm import _quiet_upstream
from fairdraw.protocols import Capabilities, Capability

if TYPE_CHECKING:
    from fairdraw.protocols._lifecycle import LiveBatch, Markers, RowChanges, ThinkingSession

__all__ = ["VllmThinkingBudget", "make"]

MOST_REQUESTS, MOST_DRAFTS = 8, 8
COMBINES_BEFORE = (0, 26)
"""Until then the sampler appends the drafts to copies of the output lists."""

Upstream = Any  # Any: vLLM's modules and objects, of whatever release


def make(device: str | None = None) -> VllmThinkingBudget:
    """Whatever vLLM is importable; what is decided is decided on the host.

    Raises:
        ModuleNotFoundError: If vLLM, or a package that it imports, is missing.
    """
    triton_is_interpreted(device or "cpu")
    with _quiet_upstream():
        release = str(importlib.import_module("vllm").__version__).partition("+")[0]
        for name in ("thinking_budget_state", "logits_processor.interface"):
            importlib.import_module(f"vllm.v1.sample.{name}")
    unpin(device or "cpu")
    return VllmThinkingBudget(device or "cpu", release)


@dataclass(frozen=True)
class VllmThinkingBudget:
    """vLLM's holder; one per session. From its first draft on a session is that of a server that speculates."""

    device: str
    release: str
    contract: Literal["thinking_budget"] = "thinking_budget"

    @property
    def name(self) -> str:
        return f"vllm {self.release} thinking budget"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            {
                Capability.NEW_TOKENS_ONLY: "searches the whole output for its markers at every step",
                Capability.NOTICES_REWRITES: "its runner's own lists are all there is",
                Capability.VISIBLE_STATE: "its counts are caches of earlier steps",
            }
        )

    def open_thinking(self, markers: Markers) -> ThinkingSession:
        return _Session(markers, tuple(int(part) for part in self.release.split(".")[:2]) < COMBINES_BEFORE)


class _Session:
    def __init__(self, markers: Markers, combines: bool) -> None:
        self.markers, self.combines = markers, combines
        self.holder: Upstream = None
        self.update: Upstream = None

    def sync(self, changes: RowChanges) -> None:
        interface = importlib.import_module("vllm.v1.sample.logits_processor.interface")
        moved = [(source, target, interface.MoveDirectionality[how.name]) for source, target, how in changes.moved]
        self.update = interface.BatchUpdate(
            changes.batch_size, list(changes.removed), [tuple(a) for a in changes.added], moved
        )

    def forced(self, batch: LiveBatch) -> dict[int, list[tuple[int, int]]]:
        if self.holder is None or (batch.num_drafts and not self.holder.num_spec_tokens):
            state = self.holder._state if self.holder else {}
            self.holder = _holder(self.markers, MOST_DRAFTS if batch.num_drafts else 0)
            self.holder._state = state
        self.holder.sync_batch(self.update)
        self.update, drafts, outputs = None, batch.draft_token_ids, batch.output_token_ids
        if self.combines:
            outputs = [[*ids, *own] if own else ids for ids, own in zip(outputs, drafts, strict=True)]
        self.holder.update_state(outputs, drafts)
        places = [(row, position) for row, own in enumerate(drafts) for position in range(len(own))]
        last = [(row, len(own)) for row, own in enumerate(drafts)]
        ones = self._ones(last, bool(places), drafts)  # bonus rows come first, as in vLLM
        ones += self._ones(places, False, drafts) if places else []
        found: dict[int, list[tuple[int, int]]] = {}
        for (row, position), token_id in sorted(ones):
            found.setdefault(row, []).append((position, token_id))
        return found

    def _ones(
        self, places: list[tuple[int, int]], bonus: bool, drafts: list[list[int]]
    ) -> list[tuple[tuple[int, int], int]]:
        """Forced tokens of rows of logits that stand for `places`."""
        import torch

        width = max(*self.markers.start, *self.markers.end) + 1
        logits = self.holder.apply_to_logits(torch.zeros(len(places), width), bonus, drafts)
        return [(places[row], token_id) for row, token_id in logits.nonzero().tolist()]


def _holder(markers: Markers, num_spec_tokens: int) -> Upstream:
    import torch

    config = SimpleNamespace(
        reasoning_start_token_ids=list(markers.start), reasoning_end_token_ids=list(markers.end), enabled=True
    )
    module = importlib.import_module("vllm.v1.sample.thinking_budget_state")
    return module.ThinkingBudgetStateHolder(config, MOST_REQUESTS, num_spec_tokens, torch.device("cpu"), False)
