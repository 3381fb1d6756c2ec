"""What the plugin can replace: functions of vLLM, ours instead, and what ours relies on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

SAMPLE = "vllm.v1.sample"
SAMPLER = f"{SAMPLE}.sampler:Sampler"
VERIFIER = f"{SAMPLE}.rejection_sampler"
PENALTIES = f"{SAMPLE}.ops.penalties"
HOLDER = f"{SAMPLE}.thinking_budget_state:ThinkingBudgetStateHolder"
BATCH = "vllm.v1.worker.gpu_input_batch:InputBatch"

_REFRESH = {f"{BATCH}.refresh_metadata": "_batches:refresh_metadata"}
_COMBINE = {
    f"{SAMPLER}._combine_outputs_with_spec_tokens": "_rows:combine",
    f"{VERIFIER}:RejectionSampler._combine_outputs_with_spec_tokens": "_rows:combine",
}
_CALLERS = (f"{SAMPLER}.apply_logits_processors", f"{VERIFIER}:RejectionSampler.apply_logits_processors")
_ROWS = (
    f"{SAMPLE}.logits_processor.state:BatchUpdateBuilder",
    *(
        f"{BATCH}.{method}"
        for method in (
            "add_request",
            "remove_request",
            "swap_states",
            "condense",
            "update_req_spec_token_ids",
            "update_async_output_token_ids",
            "_make_sampling_metadata",
        )
    ),
)


@dataclass(frozen=True)
class Piece:
    """A part of the plugin that is switched, validated, installed and counted separately.

    Args:
        patched: vLLM's `module:name` to our `module:function` in this package. Pieces may share patches.
        relies_on: Functions that are not replaced: ours does their work, or relies on how they call it.
        listener: Our `module:function` that is called with the changes of every batch.
    """

    name: str
    switch: str
    patched: Mapping[str, str]
    relies_on: tuple[str, ...]
    listener: str = ""

    @property
    def modules(self) -> frozenset[str]:
        return frozenset(target.partition(":")[0] for target in self.patched)

    @property
    def functions(self) -> tuple[str, ...]:
        """All functions whose source is checked."""
        return (*self.patched, *self.relies_on)


PIECES = (
    Piece(
        name="rejection",
        switch="FAIRDRAW_VLLM_REJECTION",
        patched={f"{VERIFIER}:rejection_sample": "_rejection:rejection_sample"},
        relies_on=(
            f"{VERIFIER}:RejectionSampler.forward",
            f"{VERIFIER}:generate_uniform_probs",
            f"{VERIFIER}:sample_recovered_tokens",
            f"{VERIFIER}:rejection_greedy_sample_kernel",
            f"{VERIFIER}:rejection_random_sample_kernel",
            f"{VERIFIER}:sample_recovered_tokens_kernel",
        ),
    ),
    Piece(
        name="penalties tensor",
        switch="FAIRDRAW_VLLM_PENALTIES_TENSOR",
        patched={f"{PENALTIES}:_convert_to_tensors": "_penalties_tensor:convert_to_tensors", **_REFRESH},
        relies_on=(
            f"{PENALTIES}:apply_all_penalties",
            "vllm.utils.torch_utils:make_tensor_with_pad",
            *_CALLERS,
            *_ROWS,
        ),
        listener="_penalties_tensor:watch",
    ),
    Piece(
        name="penalties",
        switch="FAIRDRAW_VLLM_PENALTIES",
        patched={
            f"{SAMPLER}.apply_penalties": "_penalties:apply_penalties",
            f"{VERIFIER}:RejectionSampler.apply_penalties": "_penalties:apply_penalties_to_drafts",
            **_COMBINE,
            **_REFRESH,
        },
        relies_on=(
            f"{PENALTIES}:apply_all_penalties",
            f"{PENALTIES}:_convert_to_tensors",
            "vllm.model_executor.layers.utils:apply_penalties",
            "vllm.model_executor.layers.utils:get_token_bin_counts_and_mask",
            "vllm._custom_ops:apply_repetition_penalties",
            "vllm._custom_ops:apply_repetition_penalties_torch",
            "vllm._custom_ops:apply_repetition_penalties_cuda",
            *_CALLERS,
            *_ROWS,
        ),
        listener="_penalties:follow",
    ),
    Piece(
        name="thinking budget",
        switch="FAIRDRAW_VLLM_THINKING_BUDGET",
        patched={
            f"{HOLDER}.sync_batch": "_thinking_budget:sync_batch",
            f"{HOLDER}.update_state": "_thinking_budget:update_state",
            f"{HOLDER}.apply_to_logits": "_thinking_budget:apply_to_logits",
            **_COMBINE,
        },
        relies_on=(HOLDER, *_CALLERS),
    ),
)
