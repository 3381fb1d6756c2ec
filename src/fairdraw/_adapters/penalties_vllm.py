"""vLLM's own penalties, with its own `InputBatch` driven as its model runner does, whatever release is importable.

It is meant as a reference: it rebuilds a padded tensor of everything at every step, and does not support
`new-tokens-only`.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fairdraw._adapters._runtime import default_device, quiet_floats, triton_is_interpreted
from fairdraw._adapters.logits_plan_vllm import _unpinned
from fairdraw._adapters.vllm import _quiet_upstream
from fairdraw.protocols import Capabilities, Capability, Rounding
from fairdraw.protocols._lifecycle import AddedRow, LiveBatch, Move, PenaltiesSession, RowChanges

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch import Tensor

__all__ = ["VllmPenalties", "make", "unpin"]

MOST_REQUESTS, LONGEST = 8, 2048

Upstream = Any  # Any: vLLM's modules and objects, of whatever release


def make(device: str | None = None) -> VllmPenalties:
    """Whatever vLLM is importable.

    Raises:
        ModuleNotFoundError: If vLLM, or a package that it imports, is missing.
        RuntimeError: If triton was imported for a GPU and there is none.
    """
    device = device or default_device()
    triton_is_interpreted(device)
    with _quiet_upstream():
        release = str(importlib.import_module("vllm").__version__).partition("+")[0]
        for name in ("v1.sample.rejection_sampler", "v1.worker.gpu_input_batch"):
            importlib.import_module(f"vllm.{name}")
    unpin(device)
    return VllmPenalties(device, release)


def unpin(device: str) -> None:
    """Without a GPU memory cannot be pinned, though vLLM's unspecified platform says that it can. Done once, for good:
    looking through all modules takes longer than a step."""
    if device == "cpu" and not _UNPINNED:
        _UNPINNED.extend(_unpinned())
        for patch in _UNPINNED:
            patch.__enter__()


_UNPINNED: list[AbstractContextManager[object]] = []


@dataclass(frozen=True)
class VllmPenalties:
    """vLLM's `apply_penalties` of plain and draft rows behind the suite's `open_penalties`."""

    device: str
    release: str
    contract: Literal["penalties"] = "penalties"

    @property
    def name(self) -> str:
        return f"vllm {self.release} penalties"

    @property
    def rounding(self) -> Rounding:
        return Rounding.VLLM_TORCH if self.device == "cpu" else Rounding.VLLM_CUDA

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            {
                Capability.NEW_TOKENS_ONLY: "pads and counts all outputs at every step",
                Capability.NOTICES_REWRITES: "its runner's own lists are all there is",
            }
        )

    def open_penalties(self, vocab_size: int) -> PenaltiesSession:
        return _Session(vocab_size, self.device)


class _Session:
    """One `InputBatch`."""

    def __init__(self, vocab_size: int, device: str) -> None:
        self.device = device
        self.batch = _input_batch(vocab_size, device)
        self.names: dict[int, str] = {}
        self.num_named = 0

    def sync(self, changes: RowChanges) -> None:
        """As `_update_states` of the runner: remove, add, condense, swap, refresh."""
        names = {row: name for row, name in self.names.items() if row not in changes.removed}
        entering = [(added, self._name()) for added in changes.added]
        names |= {added.row: name for added, name in entering}
        for source, target, direction in changes.moved:
            moving, replaced = names.pop(source), names.pop(target, None)
            names[target] = moving
            if direction is Move.SWAP and replaced is not None:
                names[source] = replaced
        self._update(changes, set(self.names.values()) - set(names.values()), entering)
        self.names = names
        if self.batch.req_ids != [names[row] for row in sorted(names)]:
            raise RuntimeError(f"sync: req_ids={self.batch.req_ids}, but vLLM must have the rows {names}. Report this.")

    def _update(self, changes: RowChanges, gone: set[str], entering: list[tuple[AddedRow, str]]) -> None:
        for name in gone:
            self.batch.remove_request(name)
        for added, name in entering:
            self.batch.add_request(_request_state(name, added))
        self.batch.condense()
        for source, target, direction in changes.moved:
            if direction is Move.SWAP:
                self.batch.swap_states(source, target)
        self.batch.refresh_metadata()

    def _name(self) -> str:
        self.num_named += 1
        return f"r{self.num_named}"

    def penalise(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [batch_size, vocab_size] float32, both
        metadata = self.batch.sampling_metadata
        if metadata.no_penalties:
            return logits
        sampler = importlib.import_module("vllm.v1.sample.sampler").Sampler
        combined = sampler._combine_outputs_with_spec_tokens(metadata.output_token_ids, batch.draft_token_ids)
        with quiet_floats():
            penalised: Tensor = sampler.apply_penalties(logits, metadata, combined)
        return penalised

    def penalise_drafts(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [num_tokens, vocab_size] float32, both
        import torch

        metadata = self.batch.sampling_metadata
        if metadata.no_penalties:
            return logits
        sampler = importlib.import_module("vllm.v1.sample.rejection_sampler").RejectionSampler
        drafts = batch.draft_token_ids
        combined = sampler._combine_outputs_with_spec_tokens(metadata.output_token_ids, drafts)
        request = torch.tensor([row for row, ids in enumerate(drafts) for _ in ids], device=self.device)
        with quiet_floats():
            penalised: Tensor = sampler.apply_penalties(logits, metadata, None, request, combined)
        return penalised


def _input_batch(vocab_size: int, device: str) -> Upstream:
    """An empty batch; releases differ in what they want to know, so each is given what it asks for."""
    import torch

    module = importlib.import_module("vllm.v1.worker.gpu_input_batch")
    offered: dict[str, Any] = {  # Any: one type each
        "max_num_reqs": MOST_REQUESTS,
        "max_model_len": LONGEST,
        "max_num_batched_tokens": LONGEST,
        "device": torch.device(device),
        "pin_memory": False,
        "vocab_size": vocab_size,
        "block_sizes": [16],
        "kernel_block_sizes": [16],
        "max_num_blocks_per_req": [LONGEST // 16],
    }
    asked = inspect.signature(module.InputBatch).parameters
    return module.InputBatch(**{name: value for name, value in offered.items() if name in asked})


def _request_state(name: str, added: AddedRow) -> Upstream:
    params = added.params
    return importlib.import_module("vllm.v1.worker.gpu_input_batch").CachedRequestState(
        req_id=name,
        prompt_token_ids=added.prompt_token_ids,
        mm_features=[],
        sampling_params=importlib.import_module("vllm").SamplingParams(
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            repetition_penalty=params.repetition_penalty,
        ),
        generator=None,
        block_ids=([],),
        num_computed_tokens=0,
        output_token_ids=added.output_token_ids,
    )
