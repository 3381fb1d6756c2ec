"""FlashInfer's and SGLang's CUDA kernels as far as a CPU shows them: what is missing, what is passed to C, the arms.

The kernels themselves are asked by `fairdraw check` on a GPU.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from benches import flashinfer_step as flashinfer_step
from gpu_kernels import build

from fairdraw.adapters import SamplerNotFound, load
from fairdraw_engines import _flashinfer, _gpu_kernels, _sglang_tree

if TYPE_CHECKING:
    from collections.abc import Callable

ADAPTERS = (
    *("rejection/flashinfer", "rejection/sglang-tree"),
    *("sampling/flashinfer", "sampling/flashinfer-logits", "sampling/sglang-flashinfer"),
)
SOURCES = Path(build.__file__).parent


class FakeLibrary:
    """Keeps the arguments of each call and returns a status."""

    def __init__(self, status: int = 0) -> None:
        self.status, self.calls = status, dict[str, tuple[Any, ...]]()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def function(*arguments: Any) -> Any:
            self.calls[name] = arguments
            return b"too many resources" if name == "fd_error" else self.status

        return function


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    fake = FakeLibrary()
    monkeypatch.setattr(_gpu_kernels, "library", lambda: fake)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    return fake


def prototypes() -> dict[str, list[str]]:
    """C function to its parameters, of the sources that are compiled."""
    text = "".join((SOURCES / name).read_text() for name in build.FLAGS)
    found = re.findall(r"\bint (fd_\w+)\(([^)]*)\)", text)
    return {name: [one.strip() for one in parameters.split(",")] for name, parameters in found}


@pytest.mark.parametrize("name", ADAPTERS)
def test_without_a_gpu_one_sentence_says_what_is_needed(name: str) -> None:
    with pytest.raises(SamplerNotFound, match=r"needs a CUDA device and the library that `python tools/gpu_kernels`"):
        load(name, "cpu")


def test_without_the_library_one_sentence_says_how_it_is_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(_gpu_kernels.VARIABLE, str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    _gpu_kernels.library.cache_clear()

    with pytest.raises(SamplerNotFound, match=r"libfairdraw_gpu_kernels.so is missing. Run python tools/gpu_kernels"):
        load("sampling/flashinfer", "cuda")
    (tmp_path / _gpu_kernels.LIBRARY).write_text("no library")
    with pytest.raises(SamplerNotFound, match=r"cannot be loaded: .*Run python tools/gpu_kernels"):
        load("sampling/flashinfer", "cuda")


def test_compiler_of_another_cuda_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(build.BuildError, match=r"there is no nvcc. Install CUDA 13.0's compiler"):
        build.find_nvcc(None, lambda name: None)
    monkeypatch.setattr(build, "nvcc_release", lambda path: "12.4.131")
    with pytest.raises(build.BuildError, match=r"is of CUDA 12.4.131, but FlashInfer's wheel is for 13"):
        build.find_nvcc("nvcc")


def test_sources_are_compiled_with_the_flags_of_their_projects(tmp_path: Path) -> None:
    flashinfer, sglang, link = build.commands(tmp_path, "90a", "nvcc").values()

    assert "-use_fast_math" in flashinfer
    assert "-use_fast_math" not in sglang
    assert all("-gencode=arch=compute_90a,code=sm_90a" in one for one in (flashinfer, sglang, link))
    assert link[1:4] == ["-shared", "-cudart", "static"]


def module_calls() -> dict[str, tuple[str, tuple[Any, ...]]]:
    """C function to the method and the arguments by which flashinfer/sampling.py 0.7.2 calls it."""
    rows, ids, column = torch.rand(3, 8), torch.zeros(3, dtype=torch.int32), torch.rand(3)
    noise = (True, None, 2**63 + 5, torch.ones(3, dtype=torch.int64), 0)
    head, states, valid = (rows, ids), torch.zeros(9), ids.bool()
    chain = (torch.rand(3, 2, 8), torch.zeros(3, 2).int(), torch.rand(3, 3, 8), torch.zeros(3, 3).int(), ids, ids)
    return {
        "fd_softmax": ("softmax", (states, rows, rows, None, 0.5, True)),
        "fd_sampling_from_logits": ("sampling_from_logits", (*head, None, *noise)),
        "fd_sampling_from_probs": ("sampling_from_probs", (*head, valid, None, *noise)),
        "fd_top_k_sampling": ("top_k_sampling_from_probs", (*head, valid, None, ids, 0, *noise)),
        "fd_top_p_sampling": ("top_p_sampling_from_probs", (*head, valid, ids, None, 0.9, *noise)),
        "fd_min_p_sampling": ("min_p_sampling_from_probs", (*head, valid, None, column, 0, *noise)),
        "fd_top_k_top_p_sampling": (
            "top_k_top_p_sampling_from_probs",
            (*head, valid, None, ids, 0, None, 0.9, *noise),
        ),
        "fd_top_k_renorm": ("top_k_renorm_probs", (rows, rows, ids, 0, False, states)),
        "fd_top_k_mask_logits": ("top_k_mask_logits", (rows, rows, None, 20, states)),
        "fd_top_p_renorm": ("top_p_renorm_probs", (rows, rows, column, 0.0, True, states)),
        "fd_chain_speculative_sampling": ("chain_speculative_sampling", (*chain, *noise)),
    }


@pytest.mark.parametrize("function", module_calls())
def test_arguments_have_the_order_and_kinds_of_the_c_functions(function: str, library: FakeLibrary) -> None:
    method, arguments = module_calls()[function]

    getattr(_flashinfer.Module(), method)(*arguments)

    passed, parameters = library.calls[function], prototypes()[function]
    assert len(passed) == len(parameters)
    for argument, parameter in zip(passed, parameters, strict=True):
        assert kind_of(argument) == kind_in_c(parameter), parameter


def kind_of(argument: object) -> str:
    if isinstance(argument, ctypes.c_float):
        return "float"
    if isinstance(argument, ctypes.c_uint64):
        return "uint64"
    return "int" if isinstance(argument, int) else "pointer"


def kind_in_c(parameter: str) -> str:
    if "*" in parameter or parameter.startswith("cudaStream_t"):
        return "pointer"
    return {"float": "float", "uint64_t": "uint64"}.get(parameter.split()[0], "int")


def test_every_c_function_of_flashinfer_is_called() -> None:
    assert {*module_calls(), "fd_tree_speculative_sampling", "fd_error"} >= prototypes().keys()


def test_structures_have_the_fields_of_the_c_structures() -> None:
    for kind, source in ((_flashinfer.Noise, "flashinfer_kernels.cu"), (_sglang_tree.Tree, "sglang_kernels.cu")):
        body = re.search(rf"struct {kind.__name__} {{(.*?)}};", (SOURCES / source).read_text(), re.DOTALL)
        assert body
        lines = re.sub(r"//.*", "", body[1]).split(";")
        fields = [name for line in lines for name in re.findall(r"\*?(\w+)(?:,|$)", line.strip())]
        assert len(fields) == len(kind._fields_)


def test_seeds_are_broadcast_or_per_row() -> None:
    one, rows = torch.ones(1, dtype=torch.int64), torch.ones(3, dtype=torch.int64)
    noise = _flashinfer.noise_of(one, 0, rows, -1)._obj

    assert (noise.seed_stride, noise.offset_stride) == (0, 1)
    assert (noise.seeds, noise.offsets) == (one.data_ptr(), rows.data_ptr())
    assert noise.offset == 2**64 - 1


def test_tensor_that_is_not_contiguous_and_failed_launch_are_refused(library: FakeLibrary) -> None:
    with pytest.raises(ValueError, match=r"stride=\(1, 3\), but a tensor must be contiguous"):
        _gpu_kernels.call("softmax", torch.rand(4, 3).T)
    library.status = 701
    with pytest.raises(_gpu_kernels.KernelError, match="softmax: too many resources"):
        _gpu_kernels.call("softmax")


def test_chains_are_trees_whose_nodes_have_one_child(library: FakeLibrary) -> None:
    slots, probs = torch.arange(6).view(2, 3), torch.rand(2, 3, 8)
    _sglang_tree.verify_chains(
        predicts=slots.int(),
        accept_index=slots.int(),
        accept_token_num=torch.zeros(2, dtype=torch.int32),
        candidates=slots,
        retrive_index=slots,
        uniform_samples=torch.rand(2, 3),
        uniform_samples_for_final_sampling=torch.rand(2),
        target_probs=probs,
        threshold_single=1.0,
        threshold_acc=1.0,
    )

    tree = library.calls["fd_tree_speculative_sampling"][0]._obj
    assert (tree.requests, tree.depth, tree.nodes, tree.vocab) == (2, 3, 3, 8)
    assert tree.target_probs == probs.data_ptr()


class FakeFlashInfer:
    """Functions that return their first tensor, but for those that have several answers."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def function(rows: torch.Tensor, *arguments: Any, **noise: Any) -> Any:
            self.calls.append(name)
            return (rows, rows, rows[:, 0, 0]) if name == "chain_speculative_sampling" else rows.float()

        return function


@pytest.mark.parametrize(
    ("rows", "parameters", "arms", "last"),
    [
        (8, {}, ["flashinfer"], "chain_speculative_sampling"),
        (8, {"top_k": 2, "top_p": 0.9}, ["flashinfer", "flashinfer top-k", "flashinfer top-p"], "top_p_renorm_probs"),
        (8, {"min_p": 0.1}, [], "softmax"),
        (8, {"presence_penalty": 1.5}, [], "softmax"),
        (
            2,
            {"top_k": 2, "top_p": 0.9},
            ["flashinfer", "flashinfer joint", "flashinfer logits"],
            "top_k_top_p_sampling_from_logits",
        ),
        (2, {"min_p": 0.1}, ["flashinfer"], "min_p_sampling_from_probs"),
    ],
)
def test_bench_has_an_arm_where_flashinfer_has_the_kernels(
    rows: int, parameters: dict[str, Any], arms: list[str], last: str
) -> None:
    fake = FakeFlashInfer()
    made = flashinfer_step.arms(torch.rand(rows, 8), torch.zeros(rows, dtype=torch.int32), 2, parameters, fake)
    for arm in made.values():
        arm()

    assert list(made) == arms
    assert (fake.calls or ["softmax"])[-1] == last
