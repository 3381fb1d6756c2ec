"""The samplers of llama.cpp (PyPI `xllamacpp`, tried: 2026.10.11549), through their C interface.

The package is an extension module that exports llama.cpp's C functions, so ctypes calls them and no model is loaded.
A request gets the samplers of `common_sampler_init`, in its order: top-k, top-p, min-p, temperature, `dist`; at
temperature 0 the largest logit alone is left. `dist` has the random numbers, and is kept from step to step.

llama.cpp's seeds have 32 bits, and the largest stands for a random one; a request's seed is hashed to one of the
others.
"""

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ctypes import POINTER, Structure, byref, c_bool, c_float, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from functools import cache, partial
from importlib import util
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fairdraw.adapters import SamplerRow, UnusableRelease, derive_seed
from fairdraw.contracts import FilterPolicy, FunctionTokenSampler, RaceNoise, SamplingBatch, SamplingNoise, SeededNoise
from fairdraw_engines._bare import release_of

_TOKEN = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
"""`llama_token_data`"""
_ARGUMENTS: dict[str, tuple[type, ...]] = {
    "top_k": (c_int32,),
    "top_p": (c_float, c_size_t),
    "min_p": (c_float, c_size_t),
    "temp": (c_float,),
    "dist": (c_uint32,),
}
"""Arguments of `llama_sampler_init_NAME`."""


class _Tokens(Structure):
    """`llama_token_data_array`"""

    _fields_ = (("data", c_void_p), ("size", c_size_t), ("selected", c_int64), ("sorted", c_bool))


class _Sampler:
    """A `llama_sampler`, freed with this object."""

    def __init__(self, library: ctypes.CDLL, name: str, *arguments: float) -> None:
        self.library, self.pointer = library, getattr(library, f"llama_sampler_init_{name}")(*arguments)

    def __del__(self) -> None:
        self.library.llama_sampler_free(self.pointer)

    def apply(self, tokens: _Tokens) -> None:
        self.library.llama_sampler_apply(self.pointer, byref(tokens))


def make(row: SamplerRow, device: str) -> FunctionTokenSampler:
    """Return the samplers of the installed xllamacpp; the name carries its release. They run on the CPU.

    Raises:
        ModuleNotFoundError: If xllamacpp is missing.
        UnusableRelease: If it has no such functions.
    """
    policy = FilterPolicy(("top_k", "top_p", "min_p"), temperature="last", top_k_ties="some")
    facts = row.facts(release_of("xllamacpp"), "cpu")
    return FunctionTokenSampler(function=partial(_sample, load_library()), filters=policy, **facts)


@cache
def load_library() -> ctypes.CDLL:
    """Return the package's shared library, with the types of the functions that are called; the package is not
    imported."""
    spec = util.find_spec("xllamacpp")
    folders = (spec and spec.submodule_search_locations) or ()
    path = next((path for folder in folders for path in Path(folder).glob("xllamacpp*.so")), None)
    with declaring("library"):
        library = ctypes.CDLL(str(path))
        declare_samplers(library, _ARGUMENTS)
        _declare(library.llama_sampler_apply, c_void_p, POINTER(_Tokens))
        _declare(library.llama_sampler_free, c_void_p)
    return library


@contextmanager
def declaring(what: str) -> Iterator[None]:
    """Say which release is needed where the library has not got what is declared."""
    try:
        yield
    except (OSError, AttributeError) as error:
        rule = f"xllamacpp {release_of('xllamacpp')} has no such {what}: {error}"
        raise UnusableRelease(rule, "Install the release of constraints.txt") from error


def declare_samplers(library: ctypes.CDLL, arguments: Mapping[str, tuple[type, ...]]) -> None:
    """Declare what makes each sampler, by what it takes."""
    for name, types in arguments.items():
        _declare(getattr(library, f"llama_sampler_init_{name}"), *types, result=c_void_p)


def _declare(function: Any, *types: type, result: type | None = None) -> None:  # Any: ctypes' function pointer
    function.argtypes, function.restype = types, result


def _sample(library: ctypes.CDLL, batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
    assert not isinstance(noise, RaceNoise)  # unsupported
    return torch.tensor([_token(library, batch, i, _dist(library, noise, i)) for i in range(batch.batch_size)])


def _dist(library: ctypes.CDLL, noise: SeededNoise, request: int) -> _Sampler:
    """Return each request's own sampler, by its seed or by one hashed from the call's; it goes on from step to step."""
    key = f"llama.cpp {request}"
    if key not in noise.kept:
        own = noise.request_seeds.get(request)
        seed = derive_seed("llama.cpp", noise.seed, request) if own is None else derive_seed("llama.cpp", own)
        noise.kept[key] = _Sampler(library, "dist", seed % (2**32 - 1))
    return cast("_Sampler", noise.kept[key])


def _token(library: ctypes.CDLL, batch: SamplingBatch, request: int, dist: _Sampler) -> int:
    data = np.empty(batch.vocab_size, _TOKEN)
    data["id"], data["logit"] = np.arange(batch.vocab_size), batch.logits[request].float().numpy()
    tokens = _Tokens(data.ctypes.data, batch.vocab_size, -1, False)
    for sampler in (*_filters(library, batch, request), dist):
        sampler.apply(tokens)
    return int(data["id"][tokens.selected])


def _filters(library: ctypes.CDLL, batch: SamplingBatch, request: int) -> list[_Sampler]:
    """Return the filters of the request's parameters; a filter that keeps at least one token, as llama.cpp's default
    says."""
    chain = []
    for name, least in (("top_k", ()), ("top_p", (1,)), ("min_p", (1,))):
        if (values := getattr(batch, name)) is not None:
            chain.append(_Sampler(library, name, values[request].item(), *least))
    temperature = 0.0 if bool(batch.is_greedy[request]) else float(batch.temperature[request])
    return [*chain, _Sampler(library, "temp", temperature)]
