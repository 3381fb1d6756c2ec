"""vLLM's model runner V2 without a GPU, and calls of whatever its release names its arguments.

Its buffers are host memory that a GPU reads (UVA). On a CPU they are plain tensors, and a kernel sees what was written
without a copy, as on a GPU. Kernels run in Triton's interpreter, and top-k and top-p take vLLM's PyTorch code.

The shims are put in when the first adapter is made, and stay: vLLM imports its names into many modules.
"""

import dataclasses
import inspect
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairdraw.adapters import UnusableRelease, release_number
from fairdraw.contracts import Markers
from fairdraw_engines._others import Upstream, import_vllm, reasoning_config, unpin, vllm_module

FIRST_RELEASE, LAST_TRIED = "0.22.0", "0.33.0"
"""Adapters were written for the releases between them."""


def import_v2(device: str, *modules: str, first: str = FIRST_RELEASE) -> tuple[str, bool]:
    """Import `modules` of `vllm.v1.worker.gpu`; the release, and whether Triton interprets its kernels.

    Args:
        first: The first release that has all of them.

    Raises:
        UnusableRelease: If this release lacks one of the modules, or is older than `first`.
        ModuleNotFoundError: If vLLM, or a package that it imports, is missing.
    """
    release, interpreted = import_vllm(device)
    try:
        import_vllm(device, *(f"worker.gpu.{name}" for name in ("buffer_utils", *modules)))
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("vllm."):
            raise
        raise _lacks(release, f"the module {error.name}", first) from None
    if "dev" not in release and release_number(release) < release_number(first):
        raise _lacks(release, "these classes as they are called here", first)
    if device == "cpu":
        unpin(device)
        _use_plain_buffers()
        use_torch_filters()
        _use_small_blocks()
    return release, interpreted


def _lacks(release: str, what: str, first: str = FIRST_RELEASE) -> UnusableRelease:
    rule = f"vllm {release} has not got {what}, which this adapter of model runner V2 needs"
    remedy = f"Use a release from {first} to {LAST_TRIED}, for example python tools/install.py vllm {LAST_TRIED}"
    return UnusableRelease(rule, remedy)


class _PlainBuffer:
    """Stand-in for vLLM's `UvaBuffer`: host memory, and the view of it that kernels read. Here both are one tensor."""

    def __init__(self, size: int | Sequence[int], dtype: torch.dtype) -> None:
        self.cpu = torch.zeros(size, dtype=dtype)
        self.np = self.cpu.numpy()
        self._uva = self.cpu

    def uva(self, n: int | None = None) -> Tensor:  # [n, ...] of its dtype
        return self.cpu if n is None else self.cpu[:n]


class _OlderPlainBuffer(_PlainBuffer):
    """Buffer of releases until 0.28, whose view is an attribute."""

    def __init__(self, size: int | Sequence[int], dtype: torch.dtype) -> None:
        super().__init__(size, dtype)
        self.uva = self.cpu  # type: ignore[assignment, method-assign]


def _use_plain_buffers() -> None:
    module = vllm_module("worker.gpu.buffer_utils")
    if module.UvaBuffer not in (_PlainBuffer, _OlderPlainBuffer):
        module.UvaBuffer = _PlainBuffer if hasattr(module.UvaBuffer, "uva") else _OlderPlainBuffer
    module.is_uva_available = lambda: True


def use_torch_filters() -> None:
    """Filter in PyTorch instead of by vLLM's Triton kernel, which asks how many cores the GPU has, and searches where
    this one sorts."""
    filters = vllm_module("sample.ops.topk_topp_sampler")
    for name, module in list(sys.modules.items()):
        if name.startswith(("vllm.v1.worker.gpu.", "vllm.v1.watermarking.")) and "apply_top_k_top_p" in vars(module):
            vars(module)["apply_top_k_top_p"] = lambda logits, k, p, **_: filters.apply_top_k_top_p_pytorch(
                logits, k, p
            )


def _use_small_blocks() -> None:
    """Use small blocks as vLLM's own CPU worker does: the interpreter computes a whole block, however small the
    vocabulary is."""
    module = sys.modules.get("vllm.v1.worker.gpu.sample.penalties")
    if module is not None and "PENALTIES_BLOCK_SIZE" in vars(module):
        vars(module)["PENALTIES_BLOCK_SIZE"] = 1024


def call(function: Upstream, **offered: Any) -> Upstream:  # Any: one type each
    """Call with those of the arguments that `function` has, by their names: releases differ in them.

    Raises:
        UnusableRelease: If it needs another one.
    """
    asked = inspect.signature(function).parameters.values()
    missing = [p.name for p in asked if p.default is p.empty and p.kind is not p.VAR_KEYWORD and p.name not in offered]
    if missing:
        release = str(sys.modules["vllm"].__version__).partition("+")[0]
        name = getattr(function, "__qualname__", repr(function))
        raise _lacks(release, f"a {name} without the argument {', '.join(missing)}")
    return function(**{p.name: offered[p.name] for p in asked if p.name in offered})


def make_states(
    max_num_reqs: int, vocab_size: int, device: str, *, longest: int, num_drafts: int, markers: Markers | None = None
) -> tuple[Upstream, Upstream]:
    """Return a `RequestState` and the `Sampler` on it.

    Args:
        longest: Most tokens of a request.
        num_drafts: Most drafts of a request.
        markers: Of thinking sections; without them no request has a budget.
    """
    sizes = {"max_num_reqs": max_num_reqs, "vocab_size": vocab_size, "device": torch.device(device)}
    states = call(
        vllm_module("worker.gpu.states").RequestState,
        **sizes,
        max_model_len=longest,
        max_num_batched_tokens=max(longest, max_num_reqs),
        num_speculative_steps=num_drafts,
    )
    config = None if markers is None else reasoning_config(markers)
    made, whole = vllm_module("worker.gpu.sample.sampler").Sampler, SimpleNamespace(reasoning_config=config)
    return states, call(made, **sizes, req_states=states, vllm_config=whole, reasoning_config=config)


def make_verifier(sampler: Upstream, num_drafts: int, device: torch.device) -> Upstream:
    """Return a `RejectionSampler` around `sampler`, of the standard method."""
    config = SimpleNamespace(
        num_speculative_tokens=num_drafts,
        rejection_sample_method="standard",
        enable_adaptive_verification=False,
        fly_entropy_threshold=None,
        fly_entropy_top_k=None,
    )
    return vllm_module("worker.gpu.spec_decode.rejection_sampler").RejectionSampler(sampler, config, device)


def make_input_batch(
    names: list[str], slots: Any, rows: Any, lengths: Any, device: torch.device, **inputs: Tensor
) -> Upstream:  # Any: an integer per request
    """Return vLLM's own `InputBatch`; what a sampler does not read is `None`.

    Args:
        rows: Of logits, per request.
        inputs: Its `input_ids` and `positions`, one per row of logits.
    """
    slots, rows, ends = (np.array(one, np.int32) for one in (slots, rows, lengths))
    starts = np.concatenate([[0], rows.cumsum()]).astype(np.int32)
    num_rows = int(starts[-1])
    places = np.arange(num_rows, dtype=np.int32) - starts[:-1].repeat(rows)
    known: dict[str, Any] = {  # Any: one type each
        **inputs,
        "req_ids": names,
        "num_reqs": len(names),
        "num_tokens": num_rows,
        "num_draft_tokens": num_rows - len(names),
        "idx_mapping": torch.from_numpy(slots).to(device),
        "idx_mapping_np": slots,
        "expanded_idx_mapping": torch.from_numpy(slots.repeat(rows)).to(device),
        "expanded_local_pos": torch.from_numpy(places).to(device),
        "seq_lens": torch.from_numpy(ends).to(device),
        "seq_lens_cpu_upper_bound": torch.from_numpy(ends),
        "logits_indices": torch.arange(num_rows, device=device),
        "cu_num_logits": torch.from_numpy(starts).to(device),
        "cu_num_logits_np": starts,
    }
    made = vllm_module("worker.gpu.input_batch").InputBatch
    return made(**{one.name: known.get(one.name) for one in dataclasses.fields(made)})


def post_update(states: Upstream, counts: Upstream, **step: Tensor) -> None:  # the tensors of a step, by vLLM's names
    """Append what a step sampled to the requests in `states`, and count it in `counts` unless these are `None`."""
    call(
        vllm_module("worker.gpu.input_batch").post_update,
        num_computed_tokens=states.num_computed_tokens.gpu,
        last_sampled_tokens=states.last_sampled_tokens,
        output_bin_counts=counts,
        all_token_ids=states.all_token_ids.gpu,
        total_len=states.total_len.gpu,
        **step,
    )
