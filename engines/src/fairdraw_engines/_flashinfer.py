"""FlashInfer's samplers (PyPI `flashinfer-python`, tried: 0.7.2): its Python file as released, its kernels compiled.

FlashInfer compiles its kernels when they are called first, behind TVM's foreign function interface. Here
`flashinfer/sampling.py` runs unmodified, with the library of `python tools/gpu_kernels` in the place of that module: so
the seeds and offsets, the order of filters and the choice of kernels are FlashInfer's own. Not called: the short cut
for one top-k of the whole batch (a Python integer), and the `cake_sampling` kernels.

Random numbers are Philox's at (seed, row of the output, offset), by default from torch's CUDA generator.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from fairdraw.contracts import (
    ExplicitNoise,
    FilterPolicy,
    FunctionSampler,
    FunctionTokenSampler,
    RaceNoise,
)
from fairdraw_engines import _gpu_kernels as kernels
from fairdraw_engines._bare import import_bare
from fairdraw_engines._chains import Chains, verify_by_length

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from fairdraw.adapters import SamplerRow
    from fairdraw.contracts import Noise as RejectionNoise
    from fairdraw.contracts import SamplingBatch, SamplingNoise, SpecDecodeBatch

Sampling = Any  # Any: FlashInfer's module `sampling`
_TRACES = (
    *("chain_speculative_sampling", "min_p_sampling", "sampling_from_logits", "sampling_from_probs", "softmax"),
    *("top_k_mask_logits", "top_k_renorm_probs", "top_k_sampling", "top_k_top_p_sampling_from_logits"),
    *("top_k_top_p_sampling", "top_p_renorm_probs", "top_p_sampling"),
)


# Samplers


def sampling(row: SamplerRow, device: str, *, function: str) -> FunctionTokenSampler:
    """Return the functions `..._from_probs` or `..._from_logits`, or those that SGLang's backend `flashinfer` calls.

    Raises:
        UnusableRelease: Without a CUDA device or the library.
    """
    kernels.require(device)
    sample, policy = _SAMPLERS[function]
    facts = row.facts(kernels.versions()["flashinfer-python"], device)
    return FunctionTokenSampler(function=partial(sample, load()), filters=policy, **facts)


def rejection(row: SamplerRow, device: str) -> FunctionSampler:
    """Return `chain_speculative_sampling`.

    Raises:
        UnusableRelease: Without a CUDA device or the library.
    """
    kernels.require(device)
    facts = row.facts(kernels.versions()["flashinfer-python"], device)
    return FunctionSampler(function=partial(_verify, load()), **facts)


def _from_probs(fi: Sampling, batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int32
    """Return the function that fits what the batch filters by; with min-p the others' probabilities are renormalised
    first."""
    assert not isinstance(noise, RaceNoise)  # unsupported
    probs = fi.softmax(batch.logits.float(), batch.temperature)
    top_k, top_p, min_p = batch.top_k, batch.top_p, batch.min_p
    tokens: Tensor
    if min_p is not None:
        probs = probs if top_k is None else fi.top_k_renorm_probs(probs, top_k)
        probs = probs if top_p is None else fi.top_p_renorm_probs(probs, top_p)
        tokens = fi.min_p_sampling_from_probs(probs, min_p)
    elif top_k is not None and top_p is not None:
        tokens = fi.top_k_top_p_sampling_from_probs(probs, top_k, top_p)
    elif top_k is not None:
        tokens = fi.top_k_sampling_from_probs(probs, top_k)
    else:
        tokens = fi.sampling_from_probs(probs) if top_p is None else fi.top_p_sampling_from_probs(probs, top_p)
    return tokens


def _from_logits(fi: Sampling, batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int32
    """Draw by Gumbel noise where nothing is filtered, as vLLM calls it where top-k and top-p are."""
    assert not isinstance(noise, RaceNoise)  # unsupported
    logits = batch.logits.float() / batch.temperature[:, None]
    tokens: Tensor
    if batch.top_k is None and batch.top_p is None:
        tokens = fi.sampling_from_logits(logits)
        return tokens
    all_tokens = torch.full((batch.batch_size,), batch.vocab_size, dtype=torch.int32, device=batch.device)
    top_k = all_tokens if batch.top_k is None else batch.top_k
    top_p = torch.ones_like(batch.temperature) if batch.top_p is None else batch.top_p
    tokens = fi.top_k_top_p_sampling_from_logits(logits, top_k, top_p)
    return tokens


def as_sglang(fi: Sampling, batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int32
    """Draw as SGLang's `_sample_from_probs`: in turn if any request has a min-p, else top-k and top-p jointly."""
    assert not isinstance(noise, RaceNoise)  # unsupported
    probs = batch.logits.float().div(batch.temperature[:, None]).softmax(-1)
    one = torch.ones_like(batch.temperature)
    top_k = one.int() * (1 << 30) if batch.top_k is None else batch.top_k
    top_p = one if batch.top_p is None else batch.top_p
    tokens: Tensor
    if batch.min_p is not None and bool((batch.min_p > 0).any()):
        probs = fi.top_p_renorm_probs(fi.top_k_renorm_probs(probs, top_k), top_p)
        tokens = fi.min_p_sampling_from_probs(probs, batch.min_p)
    else:
        tokens = fi.top_k_top_p_sampling_from_probs(probs, top_k, top_p, filter_apply_order="joint")
    return tokens


_IN_TURN = FilterPolicy(("top_k", "top_p", "min_p"), top_p_ties="all")
_SAMPLERS: dict[str, tuple[Callable[[Sampling, SamplingBatch, SamplingNoise], Tensor], FilterPolicy]] = {
    "probs": (_from_probs, _IN_TURN),
    "logits": (_from_logits, _IN_TURN),
    "sglang": (as_sglang, FilterPolicy(("top_k", "top_p", "min_p"), joint=True, top_p_ties="all")),
}


def _verify(
    fi: Sampling, batch: SpecDecodeBatch, noise: RejectionNoise
) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    """Call the function once per number of drafts; n-gram drafts get one-hot rows."""
    assert not isinstance(noise, ExplicitNoise)  # unsupported
    draft_probs = batch.dense_draft_probs()

    def verify(chains: Chains) -> Tensor:  # [num_requests, num_drafts + 1] int32
        target_probs = chains.logits.softmax(-1, dtype=torch.float32)
        tokens: Tensor = fi.chain_speculative_sampling(draft_probs[chains.rows], chains.drafts, target_probs)[0]
        return tokens

    return verify_by_length(batch, verify)


# FlashInfer's module


@cache
def load() -> Sampling:
    """Return `flashinfer.sampling` as released, on our library.

    Raises:
        ModuleNotFoundError: If its file is missing.
        UnusableRelease: If another release has taken its place.
    """
    with mock.patch.object(sys, "path", [str(kernels.folder().resolve()), *sys.path]):  # its file lies there
        module: Sampling = import_bare("flashinfer.sampling", stubs=_stubs())[0]
    return module


def _stubs() -> dict[str, dict[str, Any]]:  # Any: see `_bare.Stubs`
    def undecorated(*_: object, **__: object) -> Callable[[Any], Any]:  # Any: a function, as it was
        return lambda function: function

    def generators(device: torch.device) -> torch.Generator:
        return torch.cuda.default_generators[torch.device(device).index or 0]

    return {
        "flashinfer.api_logging": {"flashinfer_api": undecorated},
        "flashinfer.jit.cake_blackwell_softmax": {"gen_blackwell_softmax_module": None},
        "flashinfer.jit.sampling": {"gen_sampling_module": lambda: SimpleNamespace(build_and_load=Module)},
        "flashinfer.trace.templates.sampling": {f"{name}_trace": None for name in _TRACES},
        "flashinfer.utils": {
            "_get_cache_buf": _buffer,
            "device_support_pdl": lambda _: True,
            "get_default_generators": generators,
            "register_custom_op": undecorated,
            "register_fake_op": undecorated,
        },
    }


_BUFFERS: dict[tuple[str, torch.device], Tensor] = {}


def _buffer(name: str, num_bytes: int, device: torch.device, zero_init: bool = False) -> Tensor:  # [num_bytes] uint8
    """Return a buffer that is kept for the process, as FlashInfer keeps it."""
    if (name, device) not in _BUFFERS:
        make = torch.zeros if zero_init else torch.empty
        _BUFFERS[name, device] = make(num_bytes, dtype=torch.uint8, device=device)
    return _BUFFERS[name, device]


class Noise(ctypes.Structure):
    """Structure of flashinfer_kernels.cu."""

    _fields_ = (
        ("seeds", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("seed_stride", ctypes.c_uint32),
        ("offset_stride", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("offset", ctypes.c_uint64),
    )


def noise_of(seeds: Tensor | None, seed: int, offsets: Tensor | None, offset: int) -> Any:  # Any: ctypes' reference
    """Return seeds and offsets per row (or one for all of them, `[1]`), or as numbers beside `None`."""
    strides = (int(one is not None and one.numel() > 1) for one in (seeds, offsets))
    addresses = (None if one is None else kernels.address(one) for one in (seeds, offsets))
    return ctypes.byref(Noise(*addresses, *strides, seed % 2**64, offset % 2**64))


class Module:
    """Module that FlashInfer would compile: the functions of csrc/flashinfer_sampling_binding.cu, with their arguments.

    A parameter of the filters comes as a tensor per row and a number that stands for it where the tensor is `None`.
    The last five arguments of a function that draws: whether it is deterministic, and those of `noise_of`.
    """

    def softmax(
        self, workspace: Tensor, logits: Tensor, probs: Tensor, temperatures: Tensor | None, *rest: Any
    ) -> None:
        temperature, enable_pdl = rest
        size, one = ctypes.c_uint64(workspace.numel()), ctypes.c_float(temperature)
        kernels.call("softmax", logits, probs, temperatures, one, *logits.shape, workspace, size, int(enable_pdl))

    def sampling_from_logits(self, logits: Tensor, output: Tensor, indices: Tensor | None, *noise: Any) -> None:
        _draw("sampling_from_logits", (logits, output, indices), noise)

    def sampling_from_probs(self, probs: Tensor, output: Tensor, *rest: Any) -> None:
        _draw("sampling_from_probs", (probs, output, *rest[:2]), rest[2:])

    def top_k_sampling_from_probs(self, probs: Tensor, output: Tensor, *rest: Any) -> None:
        _draw("top_k_sampling", (probs, output, *rest[:4]), rest[4:])

    def top_p_sampling_from_probs(self, probs: Tensor, output: Tensor, *rest: Any) -> None:
        _draw("top_p_sampling", (probs, output, *rest[:3], ctypes.c_float(rest[3])), rest[4:])

    def min_p_sampling_from_probs(self, probs: Tensor, output: Tensor, *rest: Any) -> None:
        _draw("min_p_sampling", (probs, output, *rest[:3], ctypes.c_float(rest[3])), rest[4:])

    def top_k_top_p_sampling_from_probs(self, probs: Tensor, output: Tensor, *rest: Any) -> None:
        valid, indices, top_ks, top_k, top_ps, top_p, *noise = rest
        filters = (top_ks, int(top_k), top_ps, ctypes.c_float(top_p))
        _draw("top_k_top_p_sampling", (probs, output, valid, indices, *filters), noise)

    def top_k_renorm_probs(self, probs: Tensor, output: Tensor, top_ks: Tensor | None, top_k: int, *rest: Any) -> None:
        deterministic, row_states = rest
        kernels.call("top_k_renorm", probs, output, top_ks, top_k, *probs.shape, row_states, int(deterministic))

    def top_k_mask_logits(self, logits: Tensor, output: Tensor, *rest: Any) -> None:
        top_ks, top_k, row_states = rest
        kernels.call("top_k_mask_logits", logits, output, top_ks, top_k, *logits.shape, row_states)

    def top_p_renorm_probs(
        self, probs: Tensor, output: Tensor, top_ps: Tensor | None, top_p: float, *rest: Any
    ) -> None:
        deterministic, workspace = rest
        one = ctypes.c_float(top_p)
        kernels.call("top_p_renorm", probs, output, top_ps, one, *probs.shape, workspace, int(deterministic))

    def chain_speculative_sampling(self, draft_probs: Tensor, *rest: Any) -> None:
        tensors, (deterministic, *noise) = rest[:5], rest[5:]
        counted = (*draft_probs.shape, int(deterministic), noise_of(*noise))
        kernels.call("chain_speculative_sampling", draft_probs, *tensors, *counted)


def _draw(name: str, arguments: tuple[Any, ...], noise: Sequence[Any]) -> None:  # Any: as in `Module`
    """Draw one token per row of the output, the second argument, from the rows of the first one."""
    rows, output = arguments[:2]
    deterministic, *numbers = noise
    kernels.call(name, *arguments, len(output), rows.shape[1], int(deterministic), noise_of(*numbers))
