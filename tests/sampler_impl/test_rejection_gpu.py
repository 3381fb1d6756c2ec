"""What only a GPU can show of our rejection sampler: no waiting for the device, no compilation as batches vary."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

import triton
import triton.knobs
import triton.language as tl

from fairdraw.sampler_impl import rejection


def make_arguments(batch_size: int, max_spec_len: int, vocab_size: int, dense: bool = True) -> dict[str, Any]:
    num_tokens = batch_size * max_spec_len
    counts = [max_spec_len] * batch_size
    temperature = torch.arange(batch_size, device="cuda").remainder(2).float()
    return {
        "draft_token_ids": torch.randint(vocab_size, (num_tokens,), dtype=torch.int32, device="cuda"),
        "num_draft_tokens": counts,
        "max_spec_len": max_spec_len,
        "cu_num_draft_tokens": torch.tensor(counts, device="cuda").cumsum(0).int(),
        "draft_probs": torch.randn(num_tokens, vocab_size, device="cuda").softmax(-1) if dense else None,
        "target_logits": torch.randn(num_tokens, vocab_size, device="cuda"),
        "bonus_token_ids": torch.randint(vocab_size, (batch_size, 1), dtype=torch.int32, device="cuda"),
        "sampling_metadata": SimpleNamespace(
            all_greedy=False, all_random=False, temperature=temperature, generators={0: torch.Generator("cuda")}
        ),
    }


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_call_does_not_wait_for_the_device() -> None:
    arguments = make_arguments(5, 3, 32000)
    rejection.rejection_sample(**arguments)
    torch.cuda.set_sync_debug_mode("error")
    try:
        rejection.rejection_sample(**arguments)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@triton.jit  # type: ignore[untyped-decorator]  # Triton ships no types
def _nothing_kernel(VARIANT: tl.constexpr) -> None:
    pass


_variants = itertools.count()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by one with every kernel that is compiled; seen to do so."""
    names: list[str] = []
    monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", lambda **about: names.append(about["repr"]))
    _nothing_kernel[(1,)](VARIANT=next(_variants))  # pyright: ignore[reportArgumentType]
    assert names
    names.clear()
    return names


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "one-hot"])
def test_new_sizes_compile_nothing(dense: bool, compiled: list[str]) -> None:
    # One vocabulary that is a multiple of 16 and one that is not: the race has a variant for each.
    for vocab_size in (32000, 32001):
        rejection.rejection_sample(**make_arguments(4, 4, vocab_size, dense))
    compiled.clear()
    for batch_size, max_spec_len, vocab_size in ((1, 1, 32000), (16, 16, 128256), (7, 128, 9001), (33, 5, 151936)):
        rejection.rejection_sample(**make_arguments(batch_size, max_spec_len, vocab_size, dense))
    assert compiled == []


def test_helpers_run_compiled() -> None:
    temperature = torch.tensor([0.5, 0.0], device="cuda")
    metadata: Any = SimpleNamespace(all_greedy=False, all_random=False, temperature=temperature, generators={})
    logits = torch.ones(131, 3, device="cuda")
    ends = torch.tensor([130, 131], dtype=torch.int32, device="cuda")
    assert rejection.apply_temperature_(logits, ends, metadata)[:, 0].tolist() == [2.0] * 130 + [1.0]
