"""The real vLLM 0.22.0 in the worlds, called as its model runner calls it, without our adapters.

Adapters open the batch at every call and patch what needs a GPU. Neither is vLLM's work, so both are done once here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from fairdraw.contracts import SeededNoise, all_added
from fairdraw.perf_regression._named import NoVerdictError, load, release
from fairdraw.perf_regression._world import END_ID, PROMPT, START_ID
from fairdraw.perf_regression._worlds import HostWorld, LogitsWorld, PenaltiesWorld, SamplingWorld, ThinkingWorld

Step = Callable[[], Any]  # Any: an answer of the contract's kind

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
            "without a GPU, python tools/install.py vllm in a clone of fairdraw."
        )
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
    load("fairdraw.adapters._runtime:prepare_triton")("cpu")
    with load("fairdraw_engines._others:quiet_upstream")():
        penalise = load("vllm.v1.sample.ops.penalties:apply_all_penalties")
    penalise.__globals__["is_pin_memory_available"] = lambda: False


def sampling_step(subject: Any, world: SamplingWorld) -> Step:  # Any: the suite's adapter
    """Return `Sampler.forward`. It casts bfloat16 logits to a copy, so the batch's logits are never written."""
    metadata = subject.make_metadata(world.batch, SeededNoise(1))
    return lambda: subject.forward(world.batch.logits, metadata)


def logits_plan_step(subject: Any, world: LogitsWorld) -> Step:  # Any: the suite's adapter
    """Return `Sampler.forward` up to the draw: processors, temperature, and top-k and top-p in PyTorch."""
    require_upstream()
    load("fairdraw_engines._others:unpin")("cpu")
    session, first = subject.open_plan(world.setup), world.first
    session._sync(first.change, False)
    processors = session.processors[False]
    make_metadata = load("fairdraw_engines._vllm_plan:_metadata")
    metadata = make_metadata(first, world.setup, processors, session.holders[False])
    sampler = load("vllm.v1.sample.sampler:Sampler")()
    cut = load("vllm.v1.sample.ops.topk_topp_sampler:apply_top_k_top_p_pytorch")

    def step() -> Tensor:  # [batch_size, vocab_size] float32
        for processor in processors.all:
            processor.update_state(None)
        logits = sampler.apply_logits_processors(world.logits.to(torch.float32), metadata, False)
        logits = sampler.apply_temperature(logits, metadata.temperature, metadata.all_random)
        for processor in processors.argmax_invariant:
            logits = processor.apply(logits)
        cut_logits: Tensor = cut(logits, metadata.top_k, metadata.top_p)
        return cut_logits

    return step


def penalties_step(subject: Any, world: PenaltiesWorld) -> Step:  # Any: the suite's adapter
    """Return `apply_all_penalties`: it pads the lists, counts tokens and applies the penalties."""
    require_upstream()
    penalise = load("vllm.v1.sample.ops.penalties:apply_all_penalties")
    presence, frequency, repetition = world.batch.factors()
    prompt = torch.tensor([PROMPT] * len(world.batch.requests))
    return lambda: penalise(world.logits, prompt, presence, frequency, repetition, world.batch.output_token_ids)


def penalties_host(subject: Any, world: HostWorld) -> Step:  # Any: as above
    """Return the padding of the lists: with drafts once for the bonus row and once for the rows of drafts."""
    require_upstream()
    convert = load("vllm.v1.sample.ops.penalties:apply_all_penalties").__globals__["_convert_to_tensors"]
    outputs, vocab_size = world.outputs, world.sizes.vocab_size
    if not world.sizes.max_spec_len:
        return lambda: convert(outputs.lists, vocab_size, "cpu")
    samplers = ("vllm.v1.sample.sampler:Sampler", "vllm.v1.sample.rejection_sampler:RejectionSampler")
    combining = [load(sampler)._combine_outputs_with_spec_tokens for sampler in samplers]

    def step() -> None:
        for combine in combining:
            convert(combine(outputs.lists, outputs.drafts), vocab_size, "cpu")

    return step


def thinking_budget_step(subject: Any, world: ThinkingWorld) -> Step:  # Any: as above
    """Return `update_state` of the holder."""
    holder = _holder(world)
    return lambda: holder.update_state(world.outputs.lists, world.outputs.drafts)


def thinking_budget_host(subject: Any, world: HostWorld) -> Step:  # Any: as above
    """Return the same after lists with drafts were copied; that its rejection sampler copies again is not charged."""
    holder, outputs = _holder(world), world.outputs
    combine = load("vllm.v1.sample.sampler:Sampler")._combine_outputs_with_spec_tokens

    def step() -> None:
        holder.update_state(combine(outputs.lists, outputs.drafts), outputs.drafts)

    step()  # finds the start marker, once for all steps
    return step


def _holder(world: ThinkingWorld | HostWorld) -> Any:  # Any: loaded by name
    """Return vLLM's holder with the requests of the world."""
    require_upstream()
    config = SimpleNamespace(reasoning_start_token_ids=[START_ID], reasoning_end_token_ids=[END_ID])
    make = load("vllm.v1.sample.thinking_budget_state:ThinkingBudgetStateHolder")
    holder = make(config, world.sizes.batch_size, world.sizes.max_spec_len, torch.device("cpu"), False)
    holder.sync_batch(all_added(world.batch.requests))
    return holder
