"""vLLM 0.33.0's step of model runner V2, called as its runner calls it: `RejectionSampler._verify`, from raw logits.

The files in `KEPT` run unmodified: processors, filters, the rejection kernels, and the host code around them that
decides which kernels run. A machine with a GPU may have no network and no vLLM, and they need PyTorch and Triton only.
Stand-ins are what needs the rest of vLLM: the platform is this GPU, and buffers that vLLM maps into the GPU's address
space are device memory here, which is faster for it.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Mapping
from contextlib import nullcontext
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import triton

from fairdraw_engines._vllm_v2_runtime import make_verifier

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

GPU = "vllm.v1.worker.gpu"
VERIFY = f"{GPU}.spec_decode.rejection_sampler"
SAMPLER = f"{GPU}.sample.sampler"
KEPT = {
    VERIFY,
    SAMPLER,
    f"{GPU}.spec_decode.rejection_sampler_utils",
    "vllm.v1.spec_decode.fly",
    "vllm.v1.watermarking.prfs.philox",
    "vllm.model_executor.warmup.jit_warmup",
    "vllm.model_executor.warmup.jit_warmup_triton_helper",
    "vllm.v1.sample.ops.topk_topp_sampler",
    "vllm.v1.sample.ops.topk_topp_triton",
    f"{GPU}.sample.logits_processor.interface",
    *(f"{GPU}.sample.{name}" for name in ("bad_words", "gumbel", "logit_bias", "min_p", "penalties")),
    *(f"{GPU}.sample.{name}" for name in ("states", "thinking_budget", "watermark")),
}
OFF = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "seed": None,
    "logprobs": None,
    "allowed_token_ids": None,
    "logit_bias": None,
    "min_tokens": 0,
    "all_stop_token_ids": (),
    "bad_words_token_ids": None,
    "thinking_token_budget": None,
}
"""A request without parameters, under the names of `SamplingParams`."""


class _Buffer:
    """Stands for `UvaBackedTensor` and `StagedWriteTensor`: numbers on the host, and a copy on the device."""

    def __init__(self, size: Any, dtype: torch.dtype, device: Any = None, **_: Any) -> None:  # Any: vLLM's own types
        self.cpu = torch.zeros(size, dtype=dtype)
        self.np = self.cpu.numpy()
        self.gpu = self.cpu.to(device or _Platform.device_type)

    def copy_to_uva(self, *_: object) -> Tensor:  # [...] any
        self.gpu.copy_(self.cpu)
        return self.gpu

    apply_write = copy_to_uva

    def stage_write(self, index: int, start: int, numbers: list[float]) -> None:
        self.cpu[index, start : start + len(numbers)] = torch.tensor(numbers)


class _NoTokenIds:
    """Stands for the state of requests that ask for the log-probabilities of certain ids: none does."""

    def __init__(self, *_: object) -> None: ...
    def add_request(self, *_: object) -> None: ...
    def apply_staged_writes(self) -> None: ...


class _Platform:
    """Stands for `current_platform`."""

    device_type = "cuda"

    @classmethod
    def is_cuda_alike(cls) -> bool:
        return cls.device_type == "cuda"

    def __getattr__(self, name: str) -> Any:  # Any: a question about the platform
        if name.startswith("is_"):
            return lambda: False
        raise AttributeError(name)


def _num_compute_units(*_: object) -> int:
    on_gpu = _Platform.device_type == "cuda"
    return torch.cuda.get_device_properties(0).multi_processor_count if on_gpu else 4


Contents = Mapping[str, Mapping[str, Any]]  # Any: whatever a module holds
"""Module to its names."""


def _contents() -> Contents:
    """Of modules that the kept files import from."""

    def to_device(numbers: Any, dtype: torch.dtype, device: Any, **_: Any) -> Tensor:  # Any: vLLM's own types
        return torch.tensor(numbers, dtype=dtype, device=device)

    return {
        "vllm.envs": {"VLLM_MAX_BAD_WORDS_TOTAL_TOKENS": 1024, "VLLM_MAX_NUM_BAD_WORDS": 128},
        "vllm.platforms": {"current_platform": _Platform()},
        "vllm.utils.math_utils": {
            "cdiv": lambda a, b: -(-a // b),
            "next_power_of_2": lambda n: 1 << (n - 1).bit_length(),
        },
        "vllm.utils.platform_utils": {"num_compute_units": _num_compute_units},
        "vllm.utils.gpu_sync_debug": {"gpu_sync_allowed": nullcontext},
        "vllm.utils.torch_utils": {"async_tensor_h2d": to_device},
        "vllm.logger": {
            "init_logger": lambda _: SimpleNamespace(info_once=print, warning_once=print, debug_once=print)
        },
        f"{GPU}.buffer_utils": {"UvaBackedTensor": _Buffer, "StagedWriteTensor": _Buffer},
        f"{GPU}.sample.logprob": {"LogprobTokenIdsState": _NoTokenIds},
    }


class _Stub(types.ModuleType):
    """A module that has whatever is asked of it; nothing of it is called in a measurement."""

    __path__: Any = ()  # Any: marks a package, nothing is looked up in it

    def __getattr__(self, name: str) -> Any:  # Any: stands for any object
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *args, **kwargs: None})


class _Finder(MetaPathFinder, Loader):
    """Finds the kept files below `folder` and stubs the rest of the package; `contents` says what stubs hold."""

    def __init__(self, folder: Path, contents: Contents) -> None:
        self.folder, self.contents = folder, contents

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # Any: unused
        if fullname.split(".")[0] != "vllm":
            return None
        if fullname in KEPT:
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


def _load(folder: Path) -> Any:  # Any: a foreign module
    """Return the sampler's module. It stays loaded, as the verifier's does: functions import others when called."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(folder, _contents()))
    return importlib.import_module(SAMPLER)


class V2Step:
    """Requests in slots, and `step()` for the batch of all of them.

    Args:
        folder: Holds `vllm/`.
        parameters: Of each request; what is missing is off. `num_drafts` drafts each, and a bonus row.
    """

    def __init__(
        self,
        folder: Path,
        logits: Tensor,  # [num_rows, vocab_size] bfloat16
        draft_token_ids: Tensor,  # [num_rows] int32
        parameters: list[dict[str, Any]],
        outputs: Tensor,  # [batch_size, length] int64
        seeds: Tensor,  # [batch_size] int64
        positions: Tensor,  # [batch_size] int64
    ) -> None:
        _Platform.device_type = logits.device.type
        sampling = _load(folder)
        batch_size, num_drafts = len(parameters), len(logits) // len(parameters) - 1
        states = _request_states(outputs, logits.shape[1], logits.device)
        no_budget = SimpleNamespace(reasoning_config=None)
        sampler = sampling.Sampler(no_budget, batch_size, logits.shape[1], logits.device, states)
        for slot, given in enumerate(parameters):
            sampler.add_request(slot, SimpleNamespace(**{**OFF, **given, "seed": int(seeds[slot])}))
        sampler.apply_staged_writes()
        self._verify = make_verifier(sampler, num_drafts, logits.device)._verify
        self._arguments = _arguments(logits, draft_token_ids, batch_size, num_drafts, positions)

    def __call__(self) -> tuple[Tensor, Tensor]:  # [batch_size, max_spec_len + 1] int64, [batch_size] int32
        """Tokens, and how many of each request count."""
        _, tokens, lengths = self._verify(**self._arguments)
        return tokens, lengths


def _request_states(
    outputs: Tensor,  # [batch_size, length] int64
    vocab_size: int,
    device: torch.device,
) -> Any:  # Any: stands for vLLM's RequestState
    """Texts that consist of outputs alone."""
    batch_size, length = outputs.shape

    def lengths(number: int) -> _Buffer:
        buffer = _Buffer(batch_size, torch.int32, device)
        buffer.np[:] = number
        buffer.copy_to_uva()
        return buffer

    texts = _Buffer((batch_size, length), torch.int32, device)
    texts.gpu.copy_(outputs)
    return SimpleNamespace(
        device=device,
        max_num_reqs=batch_size,
        vocab_size=vocab_size,
        all_token_ids=texts,
        prompt_len=lengths(0),
        prefill_len=lengths(length),
        total_len=lengths(length),
    )


def _arguments(
    logits: Tensor,  # [num_rows, vocab_size] bfloat16
    draft_token_ids: Tensor,  # [num_rows] int32
    batch_size: int,
    num_drafts: int,
    positions: Tensor,  # [batch_size] int64
) -> dict[str, Any]:  # Any: tensors and arrays by vLLM's names
    width, device = num_drafts + 1, logits.device
    requests = torch.arange(batch_size, dtype=torch.int32, device=device)
    steps = torch.arange(width, dtype=torch.int32, device=device)
    # Row r verifies the token that row r + 1 was fed with; vLLM's position is that of the token before.
    fed = draft_token_ids.view(batch_size, width).roll(1, 1).flatten().contiguous()
    return {
        "logits": logits,
        "draft_logits": None,
        "draft_sampled": fed,
        "pos": (positions[:, None] - 1 + steps).flatten(),
        "cu_num_logits": torch.arange(0, batch_size * width + 1, width, dtype=torch.int32, device=device),
        "idx_mapping": requests,
        "idx_mapping_np": np.arange(batch_size, dtype=np.int32),
        "expanded_idx_mapping": requests.repeat_interleave(width),
        "expanded_local_pos": steps.repeat(batch_size),
        "seq_lens_upper_bound_np": np.full(batch_size, int(positions.max()) + num_drafts, np.int32),
        "verify_draft_sampled": fed,
    }
