"""Our rejection sampler: each named deviation from vLLM 0.22.0, beside the real one; and what no check reaches.

The rest is shown by the suite's checks, which `make check` runs on both backends with vLLM as the reference.
"""

import warnings
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import plain_batch

from fairdraw.adapters import SamplerNotFound, load
from fairdraw.contracts import ExplicitNoise

TINY, INFINITE = [1e-40, 1.0, 1.0], [1.0, 1.0, torch.inf]
ROW, SURE = [0.2, 0.2, 0.6], [0.9, 0.05, 0.05]
FAVOURED, UNLIKELY = [0.1, 0.1, 0.8], [0.2, 0.6, 0.2]

# target, draft (None: one-hot), draft token ids, uniform, further options; then the tokens of ours and of vLLM 0.22.0.
DEVIATIONS: dict[str, tuple[tuple[Any, ...], dict[str, Any], list[int], list[int]]] = {
    # The entry before row 1, which upstream reads, is inside the tensor.
    "placeholder-draft dense": ((ROW, SURE, [2, -1], 0.0), {}, [2, 2, -1], [2, -1, 2]),
    "placeholder-draft one-hot": ((ROW, None, [2, -1], 0.0), {}, [2, 2, -1], [2, -1, 2]),
    "unknown-draft": ((ROW, None, [3, 0], 0.0), {}, [2, -1, -1], [3, 0, 2]),
    "synthetic-placeholder random": ((ROW, None, [-1], 0.0), {"synthetic": True}, [2, -1], [-1, 2]),
    "synthetic-placeholder greedy": ((ROW, None, [-1], 0.0), {"synthetic": True, "greedy": True}, [2, -1], [-1, 2]),
    "zero-uniform": (([0.0, 0.5, 0.5], [0.5, 0.25, 0.25], [0], 0.0), {}, [1, -1], [0, 2]),
    # The draft's sum is off, and its probability exceeds the target's everywhere.
    "empty-residual": (([0.0, 0.3, 0.7], [0.1, 0.4, 0.9], [1], 0.9), {}, [2, -1], [0, -1]),
    "zero-score": ((FAVOURED, UNLIKELY, [1], 0.9), {"exponentials": INFINITE}, [2, -1], [0, -1]),
    "infinite-reciprocal": ((FAVOURED, UNLIKELY, [1], 0.9), {"exponentials": TINY}, [2, -1], [0, -1]),
}


def emitted(
    sampler: Any,  # Any: whatever `load` gives
    target: list[float],
    draft: list[float] | None,
    draft_token_ids: list[int],
    uniform: float,
    *,
    exponentials: tuple[float, ...] = (1.0, 1.0, 1.0),
    synthetic: bool = False,
    greedy: bool = False,
) -> list[int]:
    """Tokens of one request with equal rows; its bonus token is the last id."""
    count, device = len(draft_token_ids), sampler.device
    batch = plain_batch(
        [count],
        len(target),
        draft_token_ids=torch.tensor(draft_token_ids, dtype=torch.int32),
        draft_probs=None if draft is None else torch.tensor([draft] * count),
        target_logits=torch.tensor([target] * count).log(),
        bonus_token_ids=torch.tensor([[len(target) - 1]], dtype=torch.int32),
        temperature=torch.tensor([0.0 if greedy else 1.0]),
        synthetic_rates=torch.ones(count) if synthetic else None,
    ).to(device)
    uniforms = torch.full((count,), uniform, dtype=torch.float64, device=device)
    noise = ExplicitNoise(uniforms, torch.tensor([exponentials], device=device))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the interpreter's NumPy, on 0 * inf
        return sampler.verify(batch, noise).tolist()[0]


@pytest.mark.parametrize(("arguments", "options", "ours", "theirs"), DEVIATIONS.values(), ids=DEVIATIONS)
def test_deviation(arguments: tuple[Any, ...], options: dict[str, Any], ours: list[int], theirs: list[int]) -> None:
    for name in ("rejection/torch", "rejection/triton"):
        assert emitted(load(name), *arguments, **options) == ours
    try:
        vllm = load("rejection/vllm")
    except SamplerNotFound as error:
        pytest.skip(str(error))
    if vllm.name != "vllm 0.22.0":
        pytest.skip(f"{vllm.name} is not vllm 0.22.0")
    if "exponentials" in options and vllm.device != "cpu":
        pytest.skip("compiled, it depends on the order of the reduction")
    assert emitted(vllm, *arguments, **options) == theirs


@pytest.mark.skipif(torch.cuda.is_available(), reason="the sparse file is on the host")
def test_row_offsets_pass_2_to_the_31(tmp_path: Path) -> None:
    load("rejection/triton")  # has Triton interpret
    from fairdraw.sampler_impl._rejection import kernels
    from fairdraw.sampler_impl._rejection.step import VerifyStep

    vocab_size, row = 8192, 2**18  # row * vocab_size == 2**31
    # A sparse file: 16 GiB of addresses, a few pages of memory. A wrapped offset lands in its first half, on zeros.
    file = torch.from_file(str(tmp_path / "probs"), shared=True, size=2**31 + (row + 1) * vocab_size)
    target_probs = file[2**31 :].view(row + 1, vocab_size)
    target_probs[row, [77, 99]] = torch.tensor([0.75, 0.25])
    step = VerifyStep(
        draft_token_ids=torch.full((row + 1,), 77, dtype=torch.int32),
        num_draft_tokens=[row, 1],
        max_spec_len=1,
        cu_num_draft_tokens=torch.tensor([row, row + 1], dtype=torch.int32),
        draft_probs=None,
        target_logits=torch.empty(0, vocab_size),
        bonus_token_ids=torch.zeros(2, 1, dtype=torch.int32),
        has_greedy=False,
        has_random=True,
        temperature=None,
        synthetic_rates=None,
    )
    for uniform, expected in ((0.7, [77, 0]), (0.8, [99, -1])):
        uniforms = torch.full((row + 1,), uniform, dtype=torch.float64)
        output = kernels.verify(step, None, target_probs, uniforms, torch.ones(2, vocab_size))
        assert output.tolist() == [[0, -1], expected]


def test_backends_have_equal_signatures() -> None:
    load("rejection/triton")
    from fairdraw.sampler_impl._rejection import kernels, pytorch

    for name in ("verify", "expand"):
        assert signature(getattr(kernels, name)) == signature(getattr(pytorch, name))
