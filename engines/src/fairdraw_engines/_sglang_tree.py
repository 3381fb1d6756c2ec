"""SGLang's CUDA kernel that verifies trees of drafts (PyPI `sglang`, tried: 0.5.23), in the library of `_gpu_kernels`.

`tree_speculative_sampling_target_only` is what `eagle_utils.py` calls unless rejection sampling is asked for. It tests
a draft by its target probability alone, as if drafts were one-hot. Uniforms come from the caller, as for the chain
kernel of `_sglang`, whose adapter calls this one, too. A chain is a tree whose nodes have one child each.
"""

import ctypes
from functools import partial

import torch
from torch import Tensor

from fairdraw.adapters import SamplerRow
from fairdraw.contracts import FunctionSampler
from fairdraw_engines import _gpu_kernels as kernels
from fairdraw_engines._sglang import verify

_OUTPUTS = ("predicts", "accept_index", "accept_token_num")
_TREES = ("candidates", "retrive_index", "retrive_next_token", "retrive_next_sibling")
_NUMBERS = ("uniform_samples", "uniform_samples_for_final_sampling", "target_probs", "draft_probs")


class Tree(ctypes.Structure):
    """`Tree` of sglang_kernels.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*_OUTPUTS, *_TREES, *_NUMBERS)),
        *((name, ctypes.c_uint32) for name in ("requests", "depth", "nodes", "vocab")),
        *((name, ctypes.c_float) for name in ("threshold_single", "threshold_acc")),
    )


def make(row: SamplerRow, device: str) -> FunctionSampler:
    """Return the kernel on chains; its name carries the release.

    Raises:
        UnusableRelease: Without a CUDA device or the library.
    """
    kernels.require(device)
    return FunctionSampler(function=partial(verify, verify_chains), **row.facts(kernels.versions()["sglang"], device))


def verify_chains(
    *,
    predicts: Tensor,  # [batch_size, num_nodes] int32
    candidates: Tensor,  # [batch_size, num_nodes] int64
    target_probs: Tensor,  # [batch_size, num_nodes, vocab_size] float32
    threshold_single: float,
    threshold_acc: float,
    **given: Tensor | bool | None,
) -> None:
    """Call the kernel with SGLang's arguments; `draft_probs` are zeros, as `eagle_utils.py` has them."""
    batch_size, num_nodes, _ = target_probs.shape
    following = torch.arange(1, num_nodes + 1, device=candidates.device).repeat(batch_size, 1)
    following[:, -1] = -1
    made = {
        "predicts": predicts,
        "candidates": candidates,
        "target_probs": target_probs,
        "retrive_next_token": following,
        "retrive_next_sibling": torch.full_like(candidates, -1),
        "draft_probs": torch.zeros_like(target_probs),
    }
    call_tree({**given, **made}, threshold_single, threshold_acc)  # type: ignore[dict-item]  # tensors, if read


def call_tree(tensors: dict[str, Tensor], threshold_single: float = 1.0, threshold_acc: float = 1.0) -> None:
    """Launch the kernel once. The tensors have SGLang's names, are contiguous, and live until the call returns."""
    batch_size, num_nodes, vocab_size = tensors["target_probs"].shape
    depth = tensors["accept_index"].shape[1]
    addresses = (kernels.address(tensors[name]) for name in (*_OUTPUTS, *_TREES, *_NUMBERS))
    sizes = (batch_size, depth, num_nodes, vocab_size)
    kernels.call("tree_speculative_sampling", ctypes.byref(Tree(*addresses, *sizes, threshold_single, threshold_acc)))
