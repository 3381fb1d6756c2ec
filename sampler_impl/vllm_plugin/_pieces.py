"""What the plugin can replace: functions of vLLM, ours instead, and what ours relies on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping


def _of(owner: str, *names: str) -> tuple[str, ...]:
    """The functions and classes of a module, or the methods of a class."""
    separator = "." if ":" in owner else ":"
    return tuple(f"{owner}{separator}{name}" for name in names)


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
    *_of(BATCH, "add_request", "remove_request", "swap_states", "condense", "update_req_spec_token_ids"),
    *_of(BATCH, "update_async_output_token_ids", "_make_sampling_metadata"),
)

V2 = "vllm.v1.worker.gpu"
V2_SAMPLER = f"{V2}.sample.sampler:Sampler"
V2_VERIFIER = f"{V2}.spec_decode.rejection_sampler"
V2_RULES = f"{V2_VERIFIER}_utils"
_V2_STEP = (
    *_of(V2_SAMPLER, "__init__", "add_request", "apply_staged_writes", "__call__", "apply_sampling_params"),
    f"{V2_SAMPLER}._sample_random",
    *_of(f"{V2_VERIFIER}:RejectionSampler", "__init__", "__call__", "_verify_in_chunks", "_get_logprobs_tensors"),
    *_of(V2_VERIFIER, "gather_draft_sampled", "_gather_draft_sampled_kernel", "_flatten_sampled_kernel"),
    *_of(f"{V2}.buffer_utils", "UvaBackedTensor", "StagedWriteTensor"),
    *_of(f"{V2}.input_batch", "_get_num_sampled_and_rejected_kernel", "_post_update_kernel"),
    *_of(f"{V2}.sample.bad_words", "BadWordsState", "_bad_words_kernel"),
    *_of(f"{V2}.sample.gumbel", "_temperature_kernel", "gumbel_block_argmax", "gumbel_noised_argmax", "gumbel_sample"),
    *_of(f"{V2}.sample.logit_bias", "LogitBiasState", "_bias_kernel"),
    f"{V2}.sample.min_p:_min_p_kernel",
    *_of(f"{V2}.sample.penalties", "PenaltiesState", "_penalties_kernel", "_bincount_kernel"),
    f"{V2}.sample.states:SamplingStates",
    *_of(f"{V2}.sample.thinking_budget:ThinkingBudgetState", "__init__", "add_request"),
    *_of(V2_RULES, "_compute_global_logprobs_and_logsumexp", "_compute_global_logsumexp"),
    *_of(V2_RULES, "_compute_local_logits_stats_kernel", "rejection_sample", "_rejection_kernel"),
    *_of(V2_RULES, "_resample_kernel", "_insert_resampled_kernel"),
    f"{V2}.states:RequestState",
    *_of(f"{SAMPLE}.ops.topk_topp_sampler", "apply_top_k_top_p", "apply_top_k_top_p_pytorch"),
)


@dataclass(frozen=True)
class Piece:
    """A part of the plugin that is switched, validated, installed and counted separately.

    Args:
        patched: vLLM's `module:name` to our `module:function` in this package. Pieces may share patches.
        relies_on: Functions that are not replaced: ours does their work, or relies on how they call it.
        listener: Our `module:function` that is called with the changes of every batch.
        runner: vLLM's model runner that has these functions in use. A piece for V2 is installed when a V2 runner is
            made: workers of V1 import V2's modules, too.
        note: What the log says of its results, if they are not vLLM's bit for bit.
    """

    name: str
    switch: str
    patched: Mapping[str, str]
    relies_on: tuple[str, ...]
    listener: str = ""
    runner: Literal["V1", "V2"] = "V1"
    note: str = ""

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
            *_of(VERIFIER, "RejectionSampler.forward", "generate_uniform_probs", "sample_recovered_tokens"),
            *_of(VERIFIER, "rejection_greedy_sample_kernel", "rejection_random_sample_kernel"),
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
            *_of(PENALTIES, "apply_all_penalties", "_convert_to_tensors"),
            *_of("vllm.model_executor.layers.utils", "apply_penalties", "get_token_bin_counts_and_mask"),
            *_of("vllm._custom_ops", "apply_repetition_penalties", "apply_repetition_penalties_torch"),
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
    Piece(
        name="step",
        switch="FAIRDRAW_VLLM_STEP",
        patched={f"{V2_VERIFIER}:RejectionSampler._verify": "_step:verify", f"{V2_SAMPLER}.sample": "_step:sample"},
        relies_on=_V2_STEP,
        runner="V2",
        note="Tokens follow vLLM's distributions; they are not vLLM's bit for bit.",
    ),
)
