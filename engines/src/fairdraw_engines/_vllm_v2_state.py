"""What vLLM's model runner V2 keeps for its requests: penalties, thinking budgets, and the processing of logits.

The classes are those of `vllm.v1.worker.gpu.sample` (PyPI `vllm`, 0.22.0 to 0.33.0; thinking budgets from 0.28.0), in
the slots of `_vllm_v2_slots.py`. A step is one call for all rows, draft rows and bonus rows alike. The contract of
penalties asks for them separately, so there each call lays out a step that has its rows, and returns those.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fairdraw.adapters import SamplerRow, quiet_floats
from fairdraw.contracts import PLACEHOLDER_TOKEN_ID, Markers, SessionSampler, ThinkingPolicy
from fairdraw_engines._others import session_sampler
from fairdraw_engines._vllm_v2_runtime import FIRST_RELEASE, call, import_v2
from fairdraw_engines._vllm_v2_slots import Slots

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from fairdraw.contracts import LiveBatch, LogitsBatch, PlanSetup, RowChanges
    from fairdraw_engines._others import Upstream

_BUDGETS_FROM = "0.28.0"
_POLICY = ThinkingPolicy(begun_end="finished")
_LIMITS = {"VLLM_MAX_NUM_BAD_WORDS": "512", "VLLM_MAX_BAD_WORDS_TOTAL_TOKENS": "4096"}
"""vLLM's own variables. Its defaults, 128 words of 1024 tokens in all, are less than a wide case has."""
_MODULES = "states", "input_batch", "sample.sampler", "sample.penalties"
_WITH_BUDGETS = *_MODULES, "sample.thinking_budget"


def penalties(row: SamplerRow, device: str) -> SessionSampler:
    """Return `PenaltiesState` of the importable vLLM; the name carries the release."""
    return _sampler(row, device, "penalties", lambda vocab_size: _Penalties(Slots(vocab_size, device)))


def thinking(row: SamplerRow, device: str) -> SessionSampler:
    """Return `ThinkingBudgetState` of the importable vLLM, 0.28.0 or later; the name carries the release."""

    def opened(markers: Markers) -> _Thinking:
        width = max(*markers.start, *markers.end) + 1
        return _Thinking(Slots(width, device, markers, counts=False))

    return _sampler(row, device, "thinking budget", opened, policy=_POLICY)


def plan(row: SamplerRow, device: str) -> SessionSampler:
    """Return `Sampler.apply_sampling_params` of the importable vLLM, from the release on that has thinking budgets: a
    plan has them."""
    for limit, most in _LIMITS.items():
        os.environ.setdefault(limit, most)

    def opened(setup: PlanSetup) -> _Plan:
        return _Plan(Slots(setup.vocab_size, device, Markers(setup.start_token_ids, setup.end_token_ids)))

    return _sampler(row, device, "processors", opened)


def _sampler(
    row: SamplerRow, device: str, what: str, function: Callable[[Any], Any], policy: ThinkingPolicy | None = None
) -> SessionSampler:  # Any: as the contract has it
    modules, first = (_MODULES, FIRST_RELEASE) if what == "penalties" else (_WITH_BUDGETS, _BUDGETS_FROM)
    release, interpreted = import_v2(device, *modules, first=first)
    return session_sampler(row, release, device, what, function, policy=policy, slow=interpreted)


@dataclass(frozen=True)
class _Followed:
    """Slots that follow the rows of a batch."""

    slots: Slots

    def sync(self, changes: RowChanges) -> None:
        self.slots.sync(changes)


# Penalties


class _Penalties(_Followed):
    def penalise(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [batch_size, vocab_size] float32, both
        return self._penalised(logits, batch, bonus=True)

    def penalise_drafts(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [num_tokens, vocab_size] float32, both
        return self._penalised(logits, batch, bonus=False)

    def _penalised(
        self,
        logits: Tensor,  # [num_rows, vocab_size] float32
        batch: LiveBatch,
        *,
        bonus: bool,
    ) -> Tensor:  # [num_rows, vocab_size] float32
        self.slots.put([_known(output) for output in batch.output_token_ids])
        drafts = [own if bonus else own[:-1] for own in batch.draft_token_ids]
        wanted = [
            place == len(own) if bonus else bool(own)
            for own, seen in zip(batch.draft_token_ids, drafts, strict=True)
            for place in range(len(seen) + 1)
        ]
        rows = torch.tensor(wanted, device=logits.device)
        step = logits.new_zeros(len(rows), logits.shape[1])
        step[rows] = logits
        state = self.slots.sampler.penalties_state
        with quiet_floats():
            call(_applying(state, "apply_penalties"), logits=step, **self.slots.step(drafts))
        return step[rows]


def _known(output: Sequence[int]) -> list[int]:
    """Return the known tokens; others count for no penalty, and come when they are known."""
    return [token_id for token_id in output if token_id != PLACEHOLDER_TOKEN_ID]


def _applying(state: Upstream, older: str) -> Upstream:
    """Return `apply` from 0.31 on; a name of its own before."""
    return getattr(state, "apply", None) or getattr(state, older)


# Thinking budget


class _Thinking(_Followed):
    def forced(self, batch: LiveBatch) -> dict[int, list[tuple[int, int]]]:
        """Return forced rows but those after a draft that cannot be accepted: these are forced too, but nobody reads
        them."""
        self._put(batch)
        drafts = batch.draft_token_ids
        found: dict[int, list[tuple[int, int]]] = {}
        for row, position, token_id in self._forced(drafts):
            before = found.setdefault(row, [])
            if all(drafts[row][place] == due for place, due in before):
                before.append((position, token_id))
        return found

    def _put(self, batch: LiveBatch) -> None:
        """Replace placeholders at the end by what the sampler draws there: forced tokens, or ones that nobody knows."""
        outputs = [list(output) for output in batch.output_token_ids]
        known = [output[: _length_without_placeholders(output)] for output in outputs]
        while True:
            self.slots.put(known)
            late = [row for row, output in enumerate(outputs) if len(known[row]) < len(output)]
            if not late:
                return
            forced = {row: token_id for row, _, token_id in self._forced([[] for _ in outputs])}
            for row in late:
                known[row] = [*known[row], forced.get(row, PLACEHOLDER_TOKEN_ID)]

    def _forced(self, drafts: Sequence[Sequence[int]]) -> list[tuple[int, int, int]]:
        """Return row, position and token id of each, in this order."""
        places = [(row, place) for row, own in enumerate(drafts) for place in range(len(own) + 1)]
        logits = torch.zeros(len(places), self.slots.vocab_size, device=self.slots.device)
        with quiet_floats():
            call(self.slots.sampler.thinking_budget_state.apply, logits=logits, **self.slots.step(drafts))
        return [(*places[index], token_id) for index, token_id in logits.nonzero().tolist()]


def _length_without_placeholders(output: Sequence[int]) -> int:
    """Return the length up to the last token that is known."""
    return max((i + 1 for i, token_id in enumerate(output) if token_id != PLACEHOLDER_TOKEN_ID), default=0)


# Logits plan


@dataclass(frozen=True)
class _Plan:
    slots: Slots

    def process(self, batch: LogitsBatch) -> Tensor:  # [num_rows, vocab_size] float32
        if batch.change is not None:
            self.slots.sync(batch.change)
        self.slots.put([request.output_token_ids for request in batch.requests])
        step = self.slots.step([request.draft_token_ids for request in batch.requests])
        with quiet_floats():
            processed: Tensor = call(self.slots.sampler.apply_sampling_params, logits=batch.logits, **step)
        return processed
