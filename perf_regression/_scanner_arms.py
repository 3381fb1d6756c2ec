"""Our scanners and the real vLLM 0.22.0 as arms over one batch of growing lists.

Each arm does per step what its side does on the host, from live lists to the point where logits are touched. What both
sides then do to the logits is `arithmetic_arms`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from fairdraw.perf_regression._named import NoVerdictError, load, release
from fairdraw.perf_regression._scanner_steps import END_ID, MANY_TOKENS, PROMPT, START_ID, VOCAB_SIZE, Outputs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    Step = Callable[[], object]

__all__ = [
    "UPSTREAM",
    "arithmetic_arms",
    "our_penalties_step",
    "our_thinking_step",
    "penalties_arms",
    "require_upstream",
    "thinking_arms",
    "upstream_thinking",
]

UPSTREAM = "0.22.0"
PENALTIES = "fairdraw.sampler_impl.penalties:Penalties"
PADDED_OUTPUTS = "fairdraw.sampler_impl.penalties:PaddedOutputs"
THINKING = "fairdraw.sampler_impl.thinking_budget:ThinkingBudget"
FACTORS = {"presence_penalty": 1.5, "frequency_penalty": 0.2, "repetition_penalty": 1.1}


def require_upstream() -> None:
    """Make vLLM importable on a machine without a GPU, quietly.

    Raises:
        NoVerdictError: If another release is installed, or none.
    """
    found = release("vllm")
    if found != UPSTREAM:
        raise NoVerdictError(
            f"reference vllm=={UPSTREAM}, but installed is {found or 'none'}. Run pip install vllm=={UPSTREAM}, or, "
            "without a GPU, python tools/install_vllm.py in a clone of fairdraw."
        )
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
    load("fairdraw._adapters._runtime:prepare_triton")("cpu")
    with load("fairdraw._adapters._others:quiet_upstream")():
        penalties = load("vllm.v1.sample.ops.penalties:apply_all_penalties")
    penalties.__globals__["is_pin_memory_available"] = lambda: False


def penalties_arms(outputs: Outputs) -> Mapping[str, Step]:
    """`vllm`: the padded tensors of a step. `ours`: counts and rows. `stage 1`: the seed's builder, without drafts.

    Raises:
        NoVerdictError: If the arms disagree about what they build.
    """
    upstream = load("vllm.v1.sample.ops.penalties:apply_all_penalties").__globals__
    ours = our_penalties_step(outputs)
    if outputs.num_drafts:
        return {"ours": ours, "vllm": _padded_with_drafts(upstream, outputs)}
    build = _stage_one(outputs)

    def padded() -> Tensor:  # [num_rows, ...] int64
        tensor: Tensor = upstream["_convert_to_tensors"](outputs.lists, VOCAB_SIZE, "cpu")
        return tensor

    if not bool((padded() == build()).all()):
        raise NoVerdictError("stage 1 and vllm build different tensors: a wrong builder is fast. Run the tests.")
    return {"ours": ours, "vllm": padded, "stage 1": build}


def our_penalties_step(outputs: Outputs) -> Step:
    """Read the new tokens; with drafts also lay out their rows."""
    ours = _penalties(outputs)
    if outputs.num_drafts:
        return _ours_with_drafts(ours, outputs)
    return lambda: ours.update(outputs.lists)


def _penalties(outputs: Outputs) -> Any:  # Any: loaded by name
    ours = load(PENALTIES)(VOCAB_SIZE)
    ours.sync_batch(outputs.added(**FACTORS))
    ours.update(outputs.lists)
    return ours


def _ours_with_drafts(ours: Any, outputs: Outputs) -> Step:  # Any: loaded by name
    rows: Any = load("fairdraw.sampler_impl._scanners.penalty_rows:changed_counts").__globals__  # Any: a module's names
    slots = np.arange(len(outputs.lists))

    def step() -> None:
        ours.update(outputs.lists)
        rows["bonus_rows"](slots, outputs.drafts, VOCAB_SIZE).seen_drafts(VOCAB_SIZE)
        rows["draft_rows"](slots, outputs.drafts, VOCAB_SIZE).seen_drafts(VOCAB_SIZE)

    return step


def _padded_with_drafts(upstream: Any, outputs: Outputs) -> Step:  # Any: a module's names
    """vLLM copies each list once for the bonus row and once per draft, and pads both sets."""
    combine_bonus = load("vllm.v1.sample.sampler:Sampler")._combine_outputs_with_spec_tokens
    combine_drafts = load("vllm.v1.sample.rejection_sampler:RejectionSampler")._combine_outputs_with_spec_tokens

    def step() -> None:
        upstream["_convert_to_tensors"](combine_bonus(outputs.lists, outputs.drafts), VOCAB_SIZE, "cpu")
        upstream["_convert_to_tensors"](combine_drafts(outputs.lists, outputs.drafts), VOCAB_SIZE, "cpu")

    return step


def _stage_one(outputs: Outputs) -> Callable[[], Tensor]:
    """The builder reads the token buffer that the engine keeps anyway."""
    builder, lists = load(PADDED_OUTPUTS)(), outputs.lists
    num_prompt = np.full(len(lists), len(PROMPT), np.int32)

    def build() -> Tensor:  # [num_rows, ...] int64
        num_tokens = np.full(len(lists), len(PROMPT) + len(lists[0]), np.int32)
        tensor: Tensor = builder.build(lists, lists, outputs.token_ids_cpu, num_prompt, num_tokens, VOCAB_SIZE)
        return tensor

    return build


def thinking_arms(outputs: Outputs) -> Mapping[str, Step]:
    """`update_state` of both, in the middle of a section that began with the output.

    vLLM copies lists with drafts before it reads them; that its rejection sampler copies them once more is not charged.
    """
    theirs = upstream_thinking(outputs)
    theirs.sync_batch(outputs.added(thinking_token_budget=MANY_TOKENS))
    combine = load("vllm.v1.sample.sampler:Sampler")._combine_outputs_with_spec_tokens

    def upstream() -> None:
        theirs.update_state(combine(outputs.lists, outputs.drafts), outputs.drafts)

    upstream()  # finds the start marker, once for all steps
    return {"ours": our_thinking_step(outputs), "vllm": upstream}


def our_thinking_step(outputs: Outputs) -> Step:
    """The whole of our `update_state`."""
    ours = load(THINKING)([START_ID], [END_ID])
    ours.sync_batch(outputs.added(thinking_token_budget=MANY_TOKENS))

    def update() -> None:
        ours.update_state(outputs.lists, outputs.drafts)

    update()
    return update


def upstream_thinking(outputs: Outputs) -> Any:  # Any: loaded by name
    """vLLM's holder, with no request yet."""
    from types import SimpleNamespace

    import torch

    config = SimpleNamespace(reasoning_start_token_ids=[START_ID], reasoning_end_token_ids=[END_ID])
    holder = load("vllm.v1.sample.thinking_budget_state:ThinkingBudgetStateHolder")
    return holder(config, len(outputs.lists), outputs.num_drafts, torch.device("cpu"), False)


def arithmetic_arms(outputs: Outputs) -> Mapping[str, Step]:
    """What is done to the logits once everything is known: `vllm` has its padded tensors, `ours` its counts.

    With drafts both do the bonus rows and the draft rows.

    Raises:
        NoVerdictError: If the arms disagree about one bit.
    """
    import torch

    ours, batch_size = _penalties(outputs), len(outputs.lists)
    generator = torch.Generator().manual_seed(0)
    num_rows = [batch_size, batch_size * outputs.num_drafts] if outputs.num_drafts else [batch_size]
    given = [torch.randn(count, VOCAB_SIZE, generator=generator) for count in num_rows]
    factors = [torch.full((batch_size,), value) for value in FACTORS.values()]
    work = {"ours": [logits.clone() for logits in given], "vllm": given}
    steps = {
        "ours": _ours_on_logits(ours, outputs, work["ours"], factors),
        "vllm": _upstream_on_logits(outputs, work["vllm"], factors),
    }
    for step in steps.values():
        step()
    for mine, theirs in zip(work["ours"], work["vllm"], strict=True):
        if not torch.equal(mine.view(torch.int32), theirs.view(torch.int32)):
            raise NoVerdictError("ours and vllm give different logits: wrong arithmetic is fast. Run the tests.")
    return steps


def _ours_on_logits(ours: Any, outputs: Outputs, work: list[Tensor], factors: list[Tensor]) -> Step:  # Any: by name
    def step() -> None:
        ours.apply(work[0], *factors, outputs.drafts)
        if outputs.num_drafts:
            ours.apply_to_drafts(work[1], *factors, outputs.drafts)

    return step


def _upstream_on_logits(outputs: Outputs, work: list[Tensor], factors: list[Tensor]) -> Step:
    import torch

    convert = load("vllm.v1.sample.ops.penalties:_convert_to_tensors")
    penalise = load("vllm.model_executor.layers.utils:apply_penalties")
    rows = [outputs.lists]
    if outputs.num_drafts:
        combine = load("vllm.v1.sample.rejection_sampler:RejectionSampler")._combine_outputs_with_spec_tokens
        bonus = load("vllm.v1.sample.sampler:Sampler")._combine_outputs_with_spec_tokens
        rows = [bonus(outputs.lists, outputs.drafts), combine(outputs.lists, outputs.drafts)]
    padded = [convert(lists, VOCAB_SIZE, torch.device("cpu")) for lists in rows]
    repeat = [torch.arange(len(outputs.lists)).repeat_interleave(len(logits) // len(outputs.lists)) for logits in work]
    prompt = torch.tensor([PROMPT] * len(outputs.lists))

    def step() -> None:
        for logits, output_tokens, request in zip(work, padded, repeat, strict=True):
            penalise(logits, prompt[request], output_tokens, *(factor[request] for factor in factors))

    return step
