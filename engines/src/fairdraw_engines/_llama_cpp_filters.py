"""llama.cpp's filters (PyPI `xllamacpp`), through their C interface, in the order of `common_sampler_init`.

Every sampler of the chain is made for every row, as the server does: those that are off are llama.cpp's empty ones. A
row with mirostat gets a temperature and mirostat alone. DRY is made by `llama_sampler_init_dry_testing`, which
llama.cpp's own tests call, because its public function takes breakers as texts, and a vocabulary; it is left out
where it is off.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_size_t, c_uint32, c_void_p
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from fairdraw.adapters import SamplerRow, derive_seed
from fairdraw.contracts import FilterBatch, FilterChain, FilterParams, FilterResult, FunctionLogitsFilterer, SeededNoise
from fairdraw_engines import _llama_cpp as llama_cpp
from fairdraw_engines._bare import release_of
from fairdraw_engines._llama_cpp import _TOKEN, _declare, _Sampler, _Tokens

_ARGUMENTS: dict[str, tuple[type, ...]] = {
    "typical": (c_float, c_size_t),
    "top_n_sigma": (c_float,),
    "temp_ext": (c_float, c_float, c_float),
    "xtc": (c_float, c_float, c_size_t, c_uint32),
    "mirostat": (c_int32, c_uint32, c_float, c_float, c_int32),
    "mirostat_v2": (c_uint32, c_float, c_float),
}
"""Arguments of `llama_sampler_init_NAME`."""
_DRY = "_Z30llama_sampler_init_dry_testingffiiRKSt6vectorIS_IiSaIiEESaIS1_EE"
_NO_BREAKER = 2**31 - 1
"""An id that no text has: without any breaker the function writes a warning."""


_MIN_KEEP, _TOP = 0, 100
_CHAIN = FilterChain(
    (
        *("dry", "top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc"),
        *("temperature", "dynatemp", "mirostat_v1", "mirostat_v2"),
    ),
    mirostat_surprise="kept",
    mirostat_top=_TOP,
)


def make(row: SamplerRow, device: str) -> FunctionLogitsFilterer:
    """Return the filters of the installed xllamacpp; the name carries its release. They run on the CPU.

    Raises:
        ModuleNotFoundError: If xllamacpp is missing.
        UnusableRelease: If it has no such functions.
    """
    facts = row.facts(release_of("xllamacpp"), "cpu", {"it has none": tuple(_CHAIN.unsupported())})
    return FunctionLogitsFilterer(function=partial(_filter, _library()), chain=_CHAIN, **facts)


@cache
def _library() -> ctypes.CDLL:
    library = llama_cpp.load_library()
    with llama_cpp.declaring("filter"):
        llama_cpp.declare_samplers(library, _ARGUMENTS)
        _declare(getattr(library, _DRY), c_float, c_float, c_int32, c_int32, c_void_p, result=c_void_p)
        _declare(library.llama_sampler_accept, c_void_p, c_int32)
    return library


def _filter(library: ctypes.CDLL, batch: FilterBatch, noise: SeededNoise) -> FilterResult:
    rows = [_row(library, batch, noise, number) for number in range(batch.batch_size)]
    return FilterResult(torch.stack([row for row, _ in rows]), torch.tensor([token for _, token in rows]))


def _row(library: ctypes.CDLL, batch: FilterBatch, noise: SeededNoise, number: int) -> tuple[torch.Tensor, int]:
    """Return logits [vocab_size] float32 of a row, and the token that mirostat selected."""
    logits = batch.logits[number].numpy()
    data = np.empty(len(logits), _TOKEN)
    data["id"], data["logit"] = np.arange(len(logits)), logits
    tokens = _Tokens(data.ctypes.data, len(logits), -1, False)
    for sampler in _chain(library, batch, noise, number):
        sampler.apply(tokens)
    first = ((tokens.data or data.ctypes.data) - data.ctypes.data) // _TOKEN.itemsize
    left = data[first : first + tokens.size]  # XTC moves the beginning
    found = np.full(len(logits), -np.inf, np.float32)
    found[left["id"]] = left["logit"]
    return torch.from_numpy(found), int(left["id"][tokens.selected]) if tokens.selected >= 0 else 0


def _chain(library: ctypes.CDLL, batch: FilterBatch, noise: SeededNoise, number: int) -> list[_Sampler]:
    params, sampler = batch.params[number], partial(_Sampler, library)
    seed = derive_seed("llama.cpp filters", noise.seed, number) % (2**32 - 1)

    def kept(name: str, *arguments: float) -> _Sampler:
        """Return a filter that goes on from step to step."""
        found: Any = noise.kept.setdefault(f"{name} {number}", _LAZY)  # Any: a sampler
        if found is _LAZY:
            found = noise.kept[f"{name} {number}"] = sampler(name, *arguments)
        return found  # type: ignore[no-any-return]

    low, high = params.dynatemp_low, params.dynatemp_high
    middle, reach = ((low + high) / 2, (high - low) / 2) if high else (params.temperature, 0.0)
    temperature = sampler("temp_ext", middle, reach, params.dynatemp_exponent)
    if params.mirostat_v1_tau:
        learns = params.mirostat_v1_tau, params.mirostat_eta
        return [temperature, kept("mirostat", batch.vocab_size, seed, *learns, _TOP)]
    if params.mirostat_v2_tau:
        return [temperature, kept("mirostat_v2", seed, params.mirostat_v2_tau, params.mirostat_eta)]
    text = [*batch.prompt_token_ids[number], *batch.output_token_ids[number]]
    return [
        *([_dry(library, params, text)] if params.dry_multiplier else []),
        sampler("top_n_sigma", params.top_n_sigma),
        sampler("top_k", params.top_k),
        sampler("typical", params.typical_p, _MIN_KEEP),
        sampler("top_p", params.top_p, _MIN_KEEP),
        sampler("min_p", params.min_p, _MIN_KEEP),
        kept("xtc", params.xtc_probability, params.xtc_threshold, _MIN_KEEP, seed),
        temperature,
    ]


_LAZY = object()


class _Vector(ctypes.Structure):
    """`std::vector`, of the C++ libraries of Linux and macOS."""

    _fields_ = (("first", c_void_p), ("last", c_void_p), ("end", c_void_p))

    @classmethod
    def of(cls, values: ctypes.Array[Any]) -> _Vector:  # Any: of integers, or of vectors
        start = ctypes.addressof(values)
        return cls(start, start + ctypes.sizeof(values), start + ctypes.sizeof(values))


def _dry(library: ctypes.CDLL, params: FilterParams, tokens: list[int]) -> _Sampler:
    ids = [(c_int32 * 1)(one) for one in params.dry_breakers or (_NO_BREAKER,)]
    inner = (_Vector * len(ids))(*map(_Vector.of, ids))
    reach = params.dry_range or max(1, len(tokens))
    settings = params.dry_multiplier, params.dry_base, params.dry_allowed_length, reach
    found = _Sampler.__new__(_Sampler)
    found.library, found.pointer = library, getattr(library, _DRY)(*settings, ctypes.byref(_Vector.of(inner)))
    for token in tokens:
        library.llama_sampler_accept(found.pointer, token)
    return found
