"""The API of our sampler with counter noise: what it launches, and its error messages."""

from typing import Any

import pytest
import torch

from fairdraw.sampler_impl import rejection_counter
from fairdraw.sampler_impl._shared.compiled import Compiled

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def make_arguments(dense: bool = True, bonus_rows: bool = False) -> dict[str, Any]:
    """Two requests with 2 drafts and 1, over 9 entries."""
    num_rows = 3 + 2 * bonus_rows
    arguments = {
        "draft_token_ids": torch.tensor([3, 4, 5], dtype=torch.int32),
        "cu_num_draft_tokens": torch.tensor([2, 3], dtype=torch.int32),
        "max_spec_len": 2,
        "logits": torch.arange(num_rows * 9.0).reshape(num_rows, 9).sin(),
        "temperature": torch.ones(2),
        "seeds": torch.tensor([1, 2]),
        "positions": torch.tensor([10, 20]),
        "draft_probs": torch.full((3, 9), 1 / 9) if dense else None,
        "bonus_token_ids": None if bonus_rows else torch.zeros(2, 1, dtype=torch.int32),
    }
    return {name: value.to(DEVICE) if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}


def test_launches_are_two_for_one_hot_drafts_and_three_for_dense_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    run = Compiled.launch

    def noted(self: Compiled, *given: Any) -> None:  # Any: key, stream, grid and arguments
        names.append(self.kernel.fn.__name__)
        run(self, *given)

    monkeypatch.setattr(Compiled, "launch", noted)
    rejection_counter.rejection_sample(**make_arguments(dense=False), backend="triton")
    assert names == ["measure_kernel", "accept_kernel"]
    names.clear()
    rejection_counter.rejection_sample(**make_arguments(bonus_rows=True), backend="triton")
    assert names == ["measure_kernel", "accept_kernel", "draw_kernel"]


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "two drafts": ({"draft_logits": torch.zeros(3, 9)}, r"draft_probs and draft_logits are both given, but .*\. Drop"),
    "sum alone": ({"draft_logsumexp": torch.zeros(3)}, r"draft_logsumexp is given, but it must come with draft_logits"),
    "no bonus": ({"bonus_token_ids": None}, r"logits\.shape=\[3, 9\], but it must be \[5, 9\]"),
    "float64": ({"logits": torch.zeros(3, 9, dtype=torch.float64)}, r"logits\.dtype=torch\.float64, but"),
    "no vocabulary": ({"logits": torch.zeros(3, 0)}, r"vocab_size=0, but it must be in \[1, 524288\]"),
    "too long": ({"max_spec_len": 129}, r"max_spec_len=129, but it must be in \[0, 128\]"),
    "not a tensor": ({"temperature": 1.0}, r"temperature=1\.0, but it must be a tensor"),
    "backend": ({"backend": "cuda"}, r"backend='cuda', but it must be 'triton' or 'torch'"),
    "decreasing": ({"cu_num_draft_tokens": torch.tensor([3, 1])}, r"cu_num_draft_tokens\[0\]=3, but .*cumsum"),
    "negative temperature": ({"temperature": torch.tensor([1.0, -1.0])}, r"temperature\[1\]=-1, but .* 0"),
    "space": ({"workspace": torch.zeros(97, dtype=torch.int64)}, r"workspace\.shape=\[97\], but it must be \[336\]"),
    "unknown id": ({"draft_token_ids": torch.tensor([0, 9, 1])}, r"draft_token_ids\[1\]=9, but .*placeholder"),
}


@pytest.mark.parametrize(("changes", "complaint"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistake_is_named(changes: dict[str, Any], complaint: str) -> None:
    moved = {name: value.to(DEVICE) if isinstance(value, torch.Tensor) else value for name, value in changes.items()}
    arguments: Any = {**make_arguments(), "validate": True, **moved}  # Any: keyword arguments
    with pytest.raises((TypeError, ValueError), match=complaint):
        rejection_counter.rejection_sample(**arguments)


def test_empty_batch_gives_an_empty_result() -> None:
    nothing = torch.zeros(0, dtype=torch.int64, device=DEVICE)
    for backend in ("torch", "triton"):
        rows, temperature = torch.zeros(0, 9, device=DEVICE), torch.zeros(0, device=DEVICE)
        given = nothing, nothing, 2, rows, temperature, nothing, nothing
        output = rejection_counter.rejection_sample(*given, backend=backend)  # type: ignore[arg-type]
        assert output.shape == (0, 3)
