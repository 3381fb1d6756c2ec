"""Bitmask kernels of xgrammar, llguidance and SGLang.

Tried: `xgrammar` 0.2.8, `llguidance` 1.9.1, `sglang` 0.5.23. Each is called with the batch's tensors and writes in
place. Kernels in Triton run interpreted without a GPU; xgrammar's asks CUDA for its number of processors, which a shim
answers then.
"""

import importlib
import warnings
from importlib import metadata
from types import SimpleNamespace
from typing import Any, Literal
from unittest import mock

import torch
from torch import Tensor

from fairdraw.adapters import SamplerRow, quiet_imports, triton_is_interpreted
from fairdraw.contracts import BitmaskBatch, FunctionGrammarMasker
from fairdraw_engines._bare import Stubs, import_bare, release_of


def xgrammar(
    row: SamplerRow, device: str, *, backend: Literal["cpu", "torch_native", "triton"] = "cpu"
) -> FunctionGrammarMasker:
    """Return `apply_token_bitmask_inplace`; it leaves columns beyond the bitmask, as documented, and warns of them."""
    slow = backend == "triton" and triton_is_interpreted(device)
    with quiet_imports():
        library = importlib.import_module("xgrammar")

    def apply(batch: BitmaskBatch) -> Tensor:  # [num_rows, vocab_size] as the logits
        indices = None if batch.indices is None else batch.indices.tolist()
        with warnings.catch_warnings(), _as_on_a_gpu(slow):
            warnings.simplefilter("ignore")
            library.apply_token_bitmask_inplace(batch.logits, batch.bitmask, indices=indices, backend=backend)
        return batch.logits

    return FunctionGrammarMasker(function=apply, **row.facts(metadata.version("xgrammar"), device, slow=slow))


def _as_on_a_gpu(is_needed: bool) -> Any:  # Any: a context
    """Pretend a GPU of two processors, so that their loops over work are run, too."""
    properties = SimpleNamespace(multi_processor_count=2, gcnArchName="")
    if not is_needed:
        return mock.patch.dict({})
    return mock.patch.object(torch.cuda, "get_device_properties", return_value=properties)


def llguidance(row: SamplerRow, device: str, *, numpy: bool = False) -> FunctionGrammarMasker:
    """Return `apply_token_bitmask_inplace` of `llguidance.torch`, or of `llguidance.numpy`; columns beyond are
    forbidden."""
    with quiet_imports():
        module = importlib.import_module(f"llguidance.{'numpy' if numpy else 'torch'}")

    def apply(batch: BitmaskBatch) -> Tensor:  # [num_rows, vocab_size] as the logits
        given = (batch.logits, batch.bitmask)
        if numpy:
            module.apply_token_bitmask_inplace(*(tensor.numpy() for tensor in given))
        else:
            with torch.compiler.set_stance(
                "force_eager"
            ):  # its kernel is compiled by a decorator; the code is the same
                module.apply_token_bitmask_inplace(*given)
        return batch.logits

    facts = row.facts(metadata.version("llguidance"), device)
    return FunctionGrammarMasker(function=apply, columns_beyond="forbidden", **facts)


_SGLANG_FILE = "sglang.kernels.ops.grammar.bitmask_ops"


def sglang(row: SamplerRow, device: str) -> FunctionGrammarMasker:
    """Return `apply_token_bitmask_inplace_triton`, an older copy of xgrammar's; its file is imported by itself."""
    slow = triton_is_interpreted(device)
    stubs: Stubs = {"sglang.srt.utils": {"get_device_core_count": lambda: 2 if slow else 132}}
    kernel = import_bare(_SGLANG_FILE, stubs=stubs)[0].apply_token_bitmask_inplace_triton

    def apply(batch: BitmaskBatch) -> Tensor:  # [num_rows, vocab_size] as the logits
        kernel(batch.logits, batch.bitmask, None if batch.indices is None else batch.indices.tolist())
        return batch.logits

    return FunctionGrammarMasker(function=apply, **row.facts(release_of("sglang"), device, slow=slow))
