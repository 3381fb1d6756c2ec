"""vLLM's `ThinkingBudgetStateHolder` behind the thinking-budget contract, in any release that has one (from 0.21).

It is meant as a reference for the event traces on which vLLM is correct; `fairdraw.sampler_impl.thinking_budget` lists
the others.
"""

from functools import partial
from typing import Any

import torch

from fairdraw.adapters import SamplerRow, release_number
from fairdraw.contracts import LiveBatch, Markers, RowChanges, SessionSampler
from fairdraw_engines._others import Upstream, import_vllm, reasoning_config, session_sampler, unpin, vllm_module

MOST_REQUESTS, MOST_DRAFTS = 1040, 128
COMBINES_BEFORE = (0, 26)
"""Until then the sampler appends the drafts to copies of the output lists."""


def make(row: SamplerRow, device: str) -> SessionSampler:
    """Return thinking budgets of the importable vLLM, which are decided on the host; the name carries the release.

    From its first draft on a session is that of a server that speculates.
    """
    release, _ = import_vllm(device, "sample.thinking_budget_state", "sample.logits_processor.interface")
    unpin(device)
    combines = release_number(release) < COMBINES_BEFORE
    return session_sampler(row, release, device, "thinking budget", partial(_Session, combines))


class _Session:
    def __init__(self, combines: bool, markers: Markers) -> None:
        self.markers, self.combines = markers, combines
        self.holder: Upstream = None
        self.update: Upstream = None

    def sync(self, changes: RowChanges) -> None:
        self.update = batch_update(changes, [tuple(added) for added in changes.added])

    def forced(self, batch: LiveBatch) -> dict[int, list[tuple[int, int]]]:
        if self.holder is None or (batch.num_drafts and not self.holder.num_spec_tokens):
            state = self.holder._state if self.holder else {}
            self.holder = make_holder(self.markers, "cpu", MOST_DRAFTS if batch.num_drafts else 0)
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
        """Return forced tokens of rows of logits that stand for `places`."""
        width = max(*self.markers.start, *self.markers.end) + 1
        logits = self.holder.apply_to_logits(torch.zeros(len(places), width), bonus, drafts)
        return [(places[row], token_id) for row, token_id in logits.nonzero().tolist()]


def batch_update(changes: RowChanges, added: list[tuple[Any, ...]]) -> Upstream:  # Any: as vLLM's state reads them
    """Return vLLM's `BatchUpdate` of these changes."""
    interface = vllm_module("sample.logits_processor.interface")
    moved = [(source, target, interface.MoveDirectionality[how.name]) for source, target, how in changes.moved]
    return interface.BatchUpdate(changes.batch_size, list(changes.removed), added, moved)


def make_holder(markers: Markers, device: str, num_spec_tokens: int) -> Upstream:
    """Return vLLM's holder for `markers`, which expects as many drafts per request."""
    config, module = reasoning_config(markers), vllm_module("sample.thinking_budget_state")
    return module.ThinkingBudgetStateHolder(config, MOST_REQUESTS, num_spec_tokens, torch.device(device), False)
