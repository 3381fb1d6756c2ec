"""vLLM's model runner V2: releases that cannot be called are refused in one sentence, and what stands in for Triton."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from fairdraw.adapters import SamplerNotFound, load
from fairdraw.adapters._runtime import triton_is_interpreted
from fairdraw.contracts import SeededNoise
from fairdraw.contracts._rejection import emit
from fairdraw.strategies import DraftRecipe, RejectionCase, RequestRecipe
from fairdraw_engines._vllm_v2_kernels import _Log1p

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="python tools/install.py vllm")

MODULE = "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils"


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A release 9.9.9 of vLLM whose `rejection_sample` is another function."""
    load("rejection/vllm-v2", "cpu")

    def replace(function: Callable[..., Any]) -> None:  # Any: raises or is never called
        function.__name__ = "rejection_sample"
        monkeypatch.setattr(importlib.import_module(MODULE), "rejection_sample", function)
        monkeypatch.setattr(importlib.import_module("vllm"), "__version__", "9.9.9+cpu")

    return replace


def refusal(name: str = "rejection/vllm-v2") -> str:
    """The sentences of the refusal, which must hide the other project's traceback."""
    with pytest.raises(SamplerNotFound) as caught:
        load(name, "cpu")
    assert caught.value.__cause__ is None
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_changed_signature_is_named(pretend: Callable[..., None]) -> None:
    def changed(target_logits: object, seeds: object, *, temperature: object = None) -> None: ...

    pretend(changed)

    said = refusal()
    assert "rejection_sample of vLLM 9.9.9 takes no cu_num_logits and takes no draft_logits" in said
    assert "and needs seeds. Install one that was tried: python tools/install.py vllm 0.33.0" in said


def test_kernel_that_cannot_be_interpreted_is_refused_without_its_traceback(pretend: Callable[..., None]) -> None:
    real = importlib.import_module(MODULE).rejection_sample

    def fails(*args: object, **kwargs: object) -> None:
        raise RuntimeError("'NoneType' object has\nno attribute 'handle'")

    fails.__signature__ = importlib.import_module("inspect").signature(real)  # type: ignore[attr-defined]
    pretend(fails)

    assert (
        "vLLM 9.9.9 cannot be called in Triton's interpreter (RuntimeError: 'NoneType' object has no attribute "
        "'handle'). Run on a GPU. Install one that was tried" in refusal()
    )


def test_release_without_model_runner_v2_is_named(
    pretend: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(lambda: None)
    monkeypatch.setitem(sys.modules, MODULE, None)

    assert f"vLLM 9.9.9 has no {MODULE} as it is called here. Install one that was tried" in refusal()


def test_mode_that_a_release_lacks_is_named(pretend: Callable[..., None]) -> None:
    pretend(lambda: None)

    assert "vLLM 9.9.9 has no use_block_verification. Install a newer release" in refusal("rejection/vllm-v2-block")


def test_whole_step_equals_its_kernels_in_chunks_or_not() -> None:
    """The step halves the temperature of every other request and is given its logits halved."""
    drafts = (DraftRecipe(target="normal", draft="uniform", token="last"),) * 3
    requests = tuple(RequestRecipe(drafts[:count], greedy=count == 1) for count in (2, 3, 0, 1, 3, 2))
    batch, noise = RejectionCase(vocab_size=7, requests=requests, explicit=False).batch("cpu"), SeededNoise(3, {1: -7})

    tokens = [emit(load("rejection/vllm-v2", "cpu"), batch, noise).tokens.tolist()]
    tokens.append(emit(load("rejection/vllm-v2-step", "cpu"), batch, noise).tokens.tolist())
    if hasattr(importlib.import_module("vllm.v1.worker.gpu.spec_decode.rejection_sampler"), "MAX_CHUNK_BYTES"):
        tokens.append(emit(load("rejection/vllm-v2-chunks", "cpu"), batch, noise).tokens.tolist())
    else:
        assert "verifies all logits at once, 0.27.0 brought chunks" in refusal("rejection/vllm-v2-chunks")

    assert tokens[1:] == tokens[:1] * (len(tokens) - 1)
    assert -1 in tokens[0][4]  # something is rejected


def test_log1p_for_the_interpreter_is_exact_where_the_noise_has_its_tail() -> None:
    triton_is_interpreted("cpu")
    triton, tl = importlib.import_module("triton"), importlib.import_module("triton.language")

    def kernel(values: Any, results: Any) -> None:  # Any: Triton's pointers
        lanes = tl.arange(0, 8)
        tl.store(results + lanes, _Log1p.log1p(tl.load(values + lanes)))

    kernel.__globals__.update(tl=tl)
    values = torch.tensor([-4.66e-10, -1e-7, -0.25, -0.5, -0.999, -1.0, 0.0, 1e-8])
    results = torch.empty(8)
    with np.errstate(all="ignore"):
        triton.jit(kernel)[(1,)](values, results)

    torch.testing.assert_close(results, values.log1p(), rtol=1e-6, atol=0.0)
