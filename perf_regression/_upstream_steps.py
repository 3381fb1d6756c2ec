"""The real vLLM 0.22.0 with the workloads of `worlds`, called as its model runner calls it, without our adapters.

Adapters open the batch at every call and patch what needs a GPU. Neither is vLLM's work, so both are done once here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fairdraw.perf_regression import _scanner_arms as arms
from fairdraw.perf_regression._named import load
from fairdraw.perf_regression._scanner_steps import PROMPT
from fairdraw.protocols import SeededNoise
from fairdraw.protocols._lifecycle import all_added

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from fairdraw.perf_regression._worlds import LogitsWorld, PenaltiesWorld, SamplingWorld, ThinkingWorld

    Step = Callable[[], Any]  # Any: an answer of the contract's kind


def sampling_step(subject: Any, world: SamplingWorld) -> Step:  # Any: the suite's adapter
    """`Sampler.forward`. It casts bfloat16 logits to a copy, so the batch's logits are never written."""
    metadata = subject.make_metadata(world.batch, SeededNoise(1))
    return lambda: subject.forward(world.batch.logits, metadata)


def logits_plan_step(subject: Any, world: LogitsWorld) -> Step:  # Any: the suite's adapter
    """`Sampler.forward` up to the draw: processors, temperature, and top-k and top-p in PyTorch."""
    arms.require_upstream()
    load("fairdraw_engines._others:unpin")("cpu")
    session = subject.open_plan(world.setup)
    session._sync(world.first.change, False)
    processors = session.processors[False]
    make_metadata = load("fairdraw_engines._vllm_plan:_metadata")
    metadata = make_metadata(world.first, world.setup, processors, session.holders[False])
    sampler = load("vllm.v1.sample.sampler:Sampler")()
    cut = load("vllm.v1.sample.ops.topk_topp_sampler:apply_top_k_top_p_pytorch")

    def step() -> Tensor:  # [batch_size, vocab_size] float32
        for processor in processors.all:
            processor.update_state(None)
        logits = sampler.apply_logits_processors(world.first.logits.to(torch.float32), metadata, False)
        logits = sampler.apply_temperature(logits, metadata.temperature, metadata.all_random)
        for processor in processors.argmax_invariant:
            logits = processor.apply(logits)
        cut_logits: Tensor = cut(logits, metadata.top_k, metadata.top_p)
        return cut_logits

    return step


def penalties_step(subject: Any, world: PenaltiesWorld) -> Step:  # Any: the suite's adapter
    """`apply_all_penalties`: pads the lists, counts tokens and applies the penalties."""
    arms.require_upstream()
    penalise = load("vllm.v1.sample.ops.penalties:apply_all_penalties")
    presence, frequency, repetition = world.batch.factors()
    prompt = torch.tensor([PROMPT] * len(world.batch.requests))
    return lambda: penalise(world.logits, prompt, presence, frequency, repetition, world.batch.output_token_ids)


def thinking_budget_step(subject: Any, world: ThinkingWorld) -> Step:  # Any: the suite's adapter
    """`update_state` of the holder."""
    arms.require_upstream()
    holder = arms.upstream_thinking(world.outputs)
    holder.sync_batch(all_added(world.outputs.requests))
    return lambda: holder.update_state(world.outputs.lists, world.outputs.drafts)
