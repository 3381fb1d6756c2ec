"""What only a GPU can show of the counter kernels: no waiting, no compilation as batches vary, capture in a graph."""

from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

import triton.knobs

from fairdraw.sampler_impl import rejection_counter

DRAFTS = ("probs", "logits", "logits+lse", "one-hot")


def make_arguments(
    batch_size: int, max_spec_len: int, vocab_size: int, draft: str, bonus: bool = False
) -> dict[str, Any]:
    noise = torch.Generator("cuda").manual_seed(batch_size + vocab_size)
    num_tokens = batch_size * max_spec_len
    logits = torch.randn(num_tokens, vocab_size, device="cuda", generator=noise).bfloat16()
    rows = torch.randn(num_tokens + batch_size, vocab_size, device="cuda", generator=noise).bfloat16()
    drafts = {
        "probs": {"draft_probs": logits.softmax(-1, dtype=torch.float32)},
        "logits": {"draft_logits": logits},
        "logits+lse": {"draft_logits": logits, "draft_logsumexp": logits.float().logsumexp(-1)},
        "one-hot": {},
    }
    ids = logits.softmax(-1, dtype=torch.float32).multinomial(1, generator=noise)[:, 0].int()
    return {
        "draft_token_ids": ids,
        "cu_num_draft_tokens": torch.arange(1, batch_size + 1, device="cuda", dtype=torch.int32) * max_spec_len,
        "max_spec_len": max_spec_len,
        "logits": rows if bonus else rows[:num_tokens],
        "temperature": torch.ones(batch_size, device="cuda"),
        "seeds": torch.randint(1 << 62, (batch_size,), device="cuda", generator=noise),
        "positions": torch.zeros(batch_size, dtype=torch.int64, device="cuda"),
        "bonus_token_ids": None if bonus else torch.zeros(batch_size, 1, dtype=torch.int32, device="cuda"),
        **drafts[draft],
    }


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("bonus", [False, True], ids=["bonus given", "bonus drawn"])
def test_workspace_changes_no_token_and_is_left_empty(draft: str, bonus: bool) -> None:
    """Large enough that kernels overlap; many times, because a race would show rarely."""
    workspace = rejection_counter.make_workspace(64, 3, 128256, "cuda")
    arguments = make_arguments(64, 3, 128256, draft, bonus)
    for _ in range(100):
        arguments["seeds"].add_(1)
        alone = rejection_counter.rejection_sample(**arguments)
        assert torch.equal(rejection_counter.rejection_sample(**arguments, workspace=workspace), alone)
        assert not workspace.any()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("draft", DRAFTS)
def test_call_does_not_wait_for_the_device(draft: str) -> None:
    arguments = make_arguments(5, 3, 32000, draft)
    rejection_counter.rejection_sample(**arguments)
    torch.cuda.set_sync_debug_mode("error")
    try:
        rejection_counter.rejection_sample(**arguments)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("draft", DRAFTS)
def test_new_sizes_of_a_bucket_compile_nothing(draft: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket: positions and tiles up to the same powers of two, vocabularies that are multiples of 16 or not.

    By the size of the batch programs take one tile, two or three: a small one, a larger and a large one compile all.
    """
    names: list[str] = []
    monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", lambda **about: names.append(about["repr"]))
    for batch_size in (4, 32, 64):
        rejection_counter.rejection_sample(**make_arguments(batch_size, 4, 151936, draft))
    names.clear()
    for batch_size, max_spec_len, vocab_size in ((1, 4, 151936), (16, 7, 202048), (33, 5, 139264)):
        rejection_counter.rejection_sample(**make_arguments(batch_size, max_spec_len, vocab_size, draft))
    assert names == []


@pytest.mark.parametrize("draft", DRAFTS)
def test_captured_graph_serves_other_numbers_of_drafts(draft: str) -> None:
    arguments = make_arguments(6, 3, 32000, draft, bonus=False)
    rejection_counter.rejection_sample(**arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = rejection_counter.rejection_sample(**arguments)
    arguments["cu_num_draft_tokens"].copy_(torch.tensor([3, 3, 5, 6, 9, 11], dtype=torch.int32))
    arguments["seeds"].add_(1)
    graph.replay()
    assert torch.equal(captured, rejection_counter.rejection_sample(**arguments))


@pytest.mark.parametrize("draft", DRAFTS)
def test_calls_that_come_again_draw_the_same_from_wherever_their_tensors_lie(draft: str) -> None:
    """Later calls launch by addresses, and tensors that are not aligned have kernels of their own."""
    arguments = make_arguments(7, 3, 32000, draft)
    expected = rejection_counter.rejection_sample(**arguments, backend="torch")
    for _ in range(3):
        assert torch.equal(rejection_counter.rejection_sample(**arguments), expected)
        for name, tensor in arguments.items():
            if isinstance(tensor, torch.Tensor):
                moved = tensor.new_empty(tensor.numel() + 1)[1:].view(tensor.shape).copy_(tensor)
                assert torch.equal(rejection_counter.rejection_sample(**{**arguments, name: moved}), expected)


def test_offsets_are_64_bit() -> None:
    """Row 20000 of 128256 entries begins past 2**31."""
    num_tokens, vocab_size = 20_000, 128_256
    logits = torch.zeros(num_tokens, vocab_size, dtype=torch.bfloat16, device="cuda")
    logits[-1, 5] = 60.0
    output = rejection_counter.rejection_sample(
        torch.zeros(num_tokens, dtype=torch.int32, device="cuda"),
        torch.arange(1, num_tokens + 1, dtype=torch.int32, device="cuda"),
        1,
        logits,
        torch.ones(num_tokens, device="cuda"),
        torch.arange(num_tokens, device="cuda"),
        torch.zeros(num_tokens, dtype=torch.int64, device="cuda"),
        bonus_token_ids=torch.zeros(num_tokens, 1, dtype=torch.int32, device="cuda"),
    )
    assert output[-1].tolist() == [5, -1]
