"""vLLM's penalties, with its `InputBatch` driven as its model runner does, whatever release is importable.

It is meant as a reference: it rebuilds a padded tensor of everything at every step.
"""

import importlib
import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fairdraw.adapters import SamplerRow, quiet_floats
from fairdraw.contracts import AddedRow, LiveBatch, Move, Rounding, RowChanges, SessionSampler
from fairdraw_engines._others import USUAL_SIZES, Upstream, import_vllm, rows_after, sizes_for, unpin, vllm_module


def make(row: SamplerRow, device: str) -> SessionSampler:
    """Return vLLM's `apply_penalties` of plain and draft rows; the name carries the release."""
    release, _ = import_vllm(device, "sample.sampler", "sample.rejection_sampler", "worker.gpu_input_batch")
    unpin(device)
    name, rounding = f"vllm {release} penalties", Rounding.of_vllm(device)
    function = partial(_Session, device)
    return SessionSampler(name, function, row.contract, device, row.capabilities(), rounding)


class _Session:
    """One `InputBatch`."""

    def __init__(self, device: str, vocab_size: int) -> None:
        self.vocab_size, self.device = vocab_size, device
        self.batch = input_batch(vocab_size, device, USUAL_SIZES)
        self.names: dict[int, str] = {}
        self.num_named = 0

    def sync(self, changes: RowChanges) -> None:
        """Do as `_update_states` of the runner: remove, add, condense, swap, refresh."""
        if not self.names and sizes_for(changes) != USUAL_SIZES:
            self.batch = input_batch(self.vocab_size, self.device, sizes_for(changes))
        entering = [(added, self._name()) for added in changes.added]
        names = rows_after(self.names, changes, [name for _, name in entering])
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
        sampler = vllm_module("sample.sampler").Sampler
        combined = sampler._combine_outputs_with_spec_tokens(metadata.output_token_ids, batch.draft_token_ids)
        with quiet_floats():
            penalised: Tensor = sampler.apply_penalties(logits, metadata, combined)
        return penalised

    def penalise_drafts(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [num_tokens, vocab_size] float32, both
        metadata = self.batch.sampling_metadata
        if metadata.no_penalties:
            return logits
        sampler = vllm_module("sample.rejection_sampler").RejectionSampler
        drafts = batch.draft_token_ids
        combined = sampler._combine_outputs_with_spec_tokens(metadata.output_token_ids, drafts)
        request = torch.tensor([row for row, ids in enumerate(drafts) for _ in ids], device=self.device)
        with quiet_floats():
            penalised: Tensor = sampler.apply_penalties(logits, metadata, None, request, combined)
        return penalised


def input_batch(vocab_size: int, device: str, sizes: tuple[int, int], **more: object) -> Upstream:
    """Return an empty batch; releases differ in their parameters, so each is given those that it has."""
    module, (most_requests, longest) = vllm_module("worker.gpu_input_batch"), sizes
    offered: dict[str, Any] = {  # Any: one type each
        **more,
        "max_num_reqs": most_requests,
        "max_model_len": longest,
        "max_num_batched_tokens": longest,
        "device": torch.device(device),
        "pin_memory": False,
        "vocab_size": vocab_size,
        "block_sizes": [16],
        "kernel_block_sizes": [16],
        "max_num_blocks_per_req": [longest // 16],
    }
    asked = inspect.signature(module.InputBatch).parameters
    return module.InputBatch(**{name: value for name, value in offered.items() if name in asked})


def _request_state(name: str, added: AddedRow) -> Upstream:
    presence, frequency, repetition = added.params.factors
    params = importlib.import_module("vllm").SamplingParams(
        presence_penalty=presence, frequency_penalty=frequency, repetition_penalty=repetition
    )
    return cached_state(name, params, added.prompt_token_ids, added.output_token_ids)


def cached_state(
    name: str, params: Upstream, prompt: Sequence[int], output: Sequence[int], generator: torch.Generator | None = None
) -> Upstream:
    """Return a `CachedRequestState`; `output` is live."""
    return vllm_module("worker.gpu_input_batch").CachedRequestState(
        req_id=name,
        prompt_token_ids=prompt,
        mm_features=[],
        sampling_params=params,
        generator=generator,
        block_ids=([],),
        num_computed_tokens=0,
        output_token_ids=output,
    )
