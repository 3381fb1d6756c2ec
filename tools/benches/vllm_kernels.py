"""vLLM's verification steps, called as they are called in production, for `bench_rejection.py`.

A machine with a GPU may have no network and no vLLM. Its verification steps are single files that need PyTorch and
Triton only, so `load_vllm` runs those files, unmodified, from an unpacked release, and puts a stub in place of every
other module of the package. FlashInfer's are those of the library that `python tools/gpu_kernels` builds.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
import types
from collections.abc import Collection, Iterable, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
from torch import Tensor

V1 = "vllm.v1.sample.rejection_sampler"
V2 = "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils"
KEPT = {
    V1,
    V2,
    "vllm.v1.spec_decode.fly",
    "vllm.v1.worker.gpu.sample.gumbel",
    "vllm.v1.worker.gpu.sample.watermark",
    "vllm.v1.watermarking.prfs.philox",
}


Contents = Mapping[str, Mapping[str, Any]]  # Any: whatever a module holds
"""Module to its names."""


class _Stub(types.ModuleType):
    """A module that has whatever is asked of it; nothing of it is called in a measurement."""

    __path__: Any = ()  # Any: marks a package, nothing is looked up in it

    def __getattr__(self, name: str) -> Any:  # Any: stands for any object
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *args, **kwargs: None})


class _Finder(MetaPathFinder, Loader):
    """Finds the kept files below `folder` and stubs the rest of the package.

    Args:
        contents: What stubs hold, by module.
    """

    def __init__(self, folder: Path, kept: Collection[str] = KEPT, contents: Contents | None = None) -> None:
        self.folder, self.kept, self.contents = folder, kept, contents or {}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # Any: unused
        if fullname.split(".")[0] != "vllm":
            return None
        if fullname in self.kept:
            file = self.folder.joinpath(*fullname.split(".")).with_suffix(".py")
            return spec_from_file_location(fullname, file)
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ == "vllm.triton_utils":
            import triton.language as tl
            from triton.language.extra import libdevice

            vars(module).update(triton=triton, tl=tl, tldevice=libdevice, HAS_TRITON=True)
        vars(module).update(self.contents.get(module.__name__, {}))


def load_vllm_modules(
    folder: Path, names: Iterable[str], kept: Collection[str], contents: Contents
) -> dict[str, Any]:  # Any: foreign modules
    """Several files that belong together. They stay loaded, since functions import others when they are called."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(folder, kept, contents))
    return {name: importlib.import_module(name) for name in names}


def load_vllm(folder: Path, name: str) -> tuple[Any, str]:  # Any: a foreign module
    """One file of the release unpacked in `folder`, and its SHA-256. Several releases can be loaded one by one."""
    finder = _Finder(folder)
    sys.meta_path.insert(0, finder)
    try:
        module = importlib.import_module(name)
    finally:
        sys.meta_path.remove(finder)
        for loaded in [key for key in sys.modules if key.split(".")[0] == "vllm"]:
            del sys.modules[loaded]
    assert module.__file__ is not None
    return module, hashlib.sha256(Path(module.__file__).read_bytes()).hexdigest()


def v1_metadata(batch_size: int) -> Any:  # Any: stands for vLLM's SamplingMetadata
    temperature = torch.ones(batch_size, device="cuda")
    return SimpleNamespace(all_greedy=False, all_random=True, temperature=temperature, generators={})


def v2_arguments(
    draft_token_ids: Tensor,  # [num_tokens] int32
    batch_size: int,
    max_spec_len: int,
    seeds: Tensor,  # [batch_size] int64
    positions: Tensor,  # [batch_size] int64
) -> tuple[Any, ...]:  # Any: positional arguments of several types
    """Everything after the logits: each request has `max_spec_len` drafts and a bonus row."""
    width = max_spec_len + 1
    # Row r verifies the token that row r + 1 was fed with.
    fed = torch.zeros(batch_size, width, dtype=torch.int32, device="cuda")
    fed[:, 1:] = draft_token_ids.view(batch_size, max_spec_len)
    requests = torch.arange(batch_size, dtype=torch.int32, device="cuda")
    steps = torch.arange(width, dtype=torch.int32, device="cuda")
    return (
        fed.flatten(),
        torch.arange(0, batch_size * width + 1, width, dtype=torch.int32, device="cuda"),
        (positions[:, None] + steps).flatten(),
        requests,
        requests.repeat_interleave(width),
        steps.repeat(batch_size),
        torch.ones(batch_size, device="cuda"),
        seeds,
        max_spec_len,
    )
