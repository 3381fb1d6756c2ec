"""Our scanners and the real vLLM 0.22.0 as arms on one batch of growing lists.

Each arm does the host work of its side for one step, from live lists to the point where logits are touched.
`arithmetic_arms` are what both sides then do to the logits.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from fairdraw.perf_regression._internals import (
    ThinkingBudget,
    padded_outputs,
    penalties,
)
from fairdraw.perf_regression._named import NoVerdictError, load, release
from fairdraw.perf_regression._scanner_steps import (
    END_ID,
    PARAMS,
    PROMPT,
    START_ID,
    VOCAB_SIZE,
    Outputs,
    lay_out_drafts,
)
from fairdraw.protocols._lifecycle import all_added

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    Step = Callable[[], object]


UPSTREAM = "0.22.0"


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
    load("fairdraw.adapters._runtime:prepare_triton")("cpu")
    with load("fairdraw_engines._others:quiet_upstream")():
        penalise = load("vllm.v1.sample.ops.penalties:apply_all_penalties")
    penalise.__globals__["is_pin_memory_available"] = lambda: False


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
    ours, slots = _penalties(outputs), np.arange(len(outputs.lists))

    def with_drafts() -> None:
        ours.update(outputs.lists)
        lay_out_drafts(slots, outputs.drafts)

    return with_drafts if outputs.num_drafts else lambda: ours.update(outputs.lists)


def _penalties(outputs: Outputs) -> Any:  # Any: loaded by name
    ours: Any = penalties(VOCAB_SIZE)
    ours.sync_batch(all_added(outputs.requests))
    ours.update(outputs.lists)
    return ours


def _padded_with_drafts(upstream: Any, outputs: Outputs) -> Step:  # Any: a module's names
    """vLLM copies each list once for the bonus row and once per draft, and pads both sets."""
    convert, combining = upstream["_convert_to_tensors"], _combining()

    def step() -> None:
        for combine in combining:
            convert(combine(outputs.lists, outputs.drafts), VOCAB_SIZE, "cpu")

    return step


def _combining() -> list[Any]:  # Any: loaded by name
    """vLLM's functions that append the drafts to the outputs, for bonus rows and for draft rows."""
    samplers = ("vllm.v1.sample.sampler:Sampler", "vllm.v1.sample.rejection_sampler:RejectionSampler")
    return [load(sampler)._combine_outputs_with_spec_tokens for sampler in samplers]


def _stage_one(outputs: Outputs) -> Callable[[], Tensor]:
    """Our builder reads the token buffer that the engine keeps anyway."""
    builder: Any = padded_outputs()
    lists = outputs.lists
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
    theirs.sync_batch(all_added(outputs.requests))
    combine = _combining()[0]

    def upstream() -> None:
        theirs.update_state(combine(outputs.lists, outputs.drafts), outputs.drafts)

    upstream()  # finds the start marker, once for all steps
    return {"ours": our_thinking_step(outputs), "vllm": upstream}


def our_thinking_step(outputs: Outputs) -> Step:
    """The whole of our `update_state`."""
    ours: Any = ThinkingBudget([START_ID], [END_ID])
    ours.sync_batch(all_added(outputs.requests))

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
    """The arithmetic on the logits: `vllm` has its padded tensors already, `ours` its counts.

    With drafts both do the bonus rows and the draft rows.

    Raises:
        NoVerdictError: If the arms disagree about one bit.
    """
    import torch

    ours, batch_size = _penalties(outputs), len(outputs.lists)
    generator = torch.Generator().manual_seed(0)
    num_rows = [batch_size, batch_size * outputs.num_drafts] if outputs.num_drafts else [batch_size]
    given = [torch.randn(count, VOCAB_SIZE, generator=generator) for count in num_rows]
    factors = [torch.full((batch_size,), value) for value in PARAMS.factors]
    work = {"ours": [logits.clone() for logits in given], "vllm": given}

    def on_logits() -> None:
        ours.apply(work["ours"][0], *factors, outputs.drafts)
        if outputs.num_drafts:
            ours.apply_to_drafts(work["ours"][1], *factors, outputs.drafts)

    steps = {"ours": on_logits, "vllm": _upstream_on_logits(outputs, work["vllm"], factors)}
    for step in steps.values():
        step()
    for mine, theirs in zip(work["ours"], work["vllm"], strict=True):
        if not torch.equal(mine.view(torch.int32), theirs.view(torch.int32)):
            raise NoVerdictError("ours and vllm give different logits: wrong arithmetic is fast. Run the tests.")
    return steps


def _upstream_on_logits(outputs: Outputs, work: list[Tensor], factors: list[Tensor]) -> Step:
    import torch

    convert = load("vllm.v1.sample.ops.penalties:_convert_to_tensors")
    penalise = load("vllm.model_executor.layers.utils:apply_penalties")
    rows = [outputs.lists]
    if outputs.num_drafts:
        rows = [combine(outputs.lists, outputs.drafts) for combine in _combining()]
    padded = [convert(lists, VOCAB_SIZE, torch.device("cpu")) for lists in rows]
    repeat = [torch.arange(len(outputs.lists)).repeat_interleave(len(logits) // len(outputs.lists)) for logits in work]
    prompt = torch.tensor([PROMPT] * len(outputs.lists))

    def step() -> None:
        for logits, output_tokens, request in zip(work, padded, repeat, strict=True):
            penalise(logits, prompt[request], output_tokens, *(factor[request] for factor in factors))

    return step
