"""Bad input is refused by name: what was given, what it must be, and what to do."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from fairdraw._core.failures import AdapterError
from fairdraw._core.validation import check_batch, check_noise, check_output
from fairdraw.protocols import ExplicitNoise, SeededNoise, SpecDecodeBatch


def legal_batch(**changes: Any) -> SpecDecodeBatch:  # Any: fields
    """Three requests with 2, 0 and 1 drafts over 3 tokens, with every optional field."""
    fields = {
        "draft_token_ids": torch.tensor([0, 2, -1], dtype=torch.int32),
        "num_draft_tokens": [2, 0, 1],
        "cu_num_draft_tokens": torch.tensor([2, 2, 3], dtype=torch.int32),
        "max_spec_len": 2,
        "draft_probs": torch.tensor([[0.5, 0.25, 0.25], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]),
        "target_logits": torch.zeros(3, 3),
        "bonus_token_ids": torch.tensor([[0], [1], [2]], dtype=torch.int32),
        "temperature": torch.tensor([0.0, 1.0, 0.5]),
        "synthetic_rates": torch.tensor([1.0, 0.0]),
    }
    return SpecDecodeBatch(**{**fields, **changes})


def whole(message: str) -> str:
    return f"^{re.escape(message)}$"


def first_words(value: object) -> str:
    """What the message complains about, as the id of a test."""
    return value.split(", but")[0] if isinstance(value, str) else "given"


def ints(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"draft_probs": None, "synthetic_rates": None},
        {"max_spec_len": 128, "synthetic_rates": torch.ones(128)},
        {"target_logits": torch.full((3, 3), torch.nan)},
        {"target_logits": torch.full((3, 3), -torch.inf, dtype=torch.float16)},
        {"target_logits": torch.zeros(3, 3, dtype=torch.bfloat16)},
        {"draft_probs": torch.tensor([[1 / 3] * 3] * 3).bfloat16().float()},
    ],
    ids=["everything", "nothing optional", "widest", "NaN logits", "empty rows", "bfloat16", "rounded distributions"],
)
def test_legal_batch_is_taken(changes: dict[str, Any]) -> None:  # Any: fields
    check_batch(legal_batch(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_draft_tokens": [2, -1, 1]},
            "num_draft_tokens=[2, -1, 1], but counts must not be negative. Use 0 for no drafts.",
        ),
        ({"num_draft_tokens": []}, "num_draft_tokens=[], but there must be a request. Do not call without requests."),
        (
            {"cu_num_draft_tokens": ints(0, 2, 2)},
            "cu_num_draft_tokens[0]=0, but it must be the inclusive cumulative sum of num_draft_tokens. "
            "Use torch.tensor(num_draft_tokens).cumsum(0, dtype=torch.int32).",
        ),
        (
            {"cu_num_draft_tokens": ints(0, 2, 2, 3)},
            "cu_num_draft_tokens.shape=[4], but it must be [3] for 3 draft tokens of 3 requests. "
            "Flatten drafts over requests; give each request one bonus token.",
        ),
        (
            {"max_spec_len": 1},
            "max_spec_len=1, but it must lie between max(num_draft_tokens)=2 and 128. Use max(num_draft_tokens).",
        ),
        (
            {"max_spec_len": 129},
            "max_spec_len=129, but it must lie between max(num_draft_tokens)=2 and 128. Use max(num_draft_tokens).",
        ),
        (
            {"target_logits": torch.zeros(9)},
            "target_logits.shape=[9], but it must be [3, vocab_size] with at least one token in the vocabulary. "
            "Give each draft token a row of logits.",
        ),
        (
            {"target_logits": torch.zeros(3, 0), "draft_probs": None},
            "target_logits.shape=[3, 0], but it must be [3, vocab_size] with at least one token in the vocabulary. "
            "Give each draft token a row of logits.",
        ),
        (
            {"draft_probs": torch.ones(3, 4) / 4},
            "draft_probs.shape=[3, 4], but it must be [3, 3] for 3 draft tokens of 3 requests. "
            "Flatten drafts over requests; give each request one bonus token.",
        ),
        (
            {"bonus_token_ids": ints(0, 1, 2)},
            "bonus_token_ids.shape=[3], but it must be [3, 1] for 3 draft tokens of 3 requests. "
            "Flatten drafts over requests; give each request one bonus token.",
        ),
        (
            {"synthetic_rates": torch.ones(3)},
            "synthetic_rates.shape=[3], but it must be [2] for 3 draft tokens of 3 requests. "
            "Flatten drafts over requests; give each request one bonus token.",
        ),
        (
            {"draft_token_ids": torch.tensor([0, 2, -1])},
            "draft_token_ids.dtype=int64, but it must be int32. Use draft_token_ids.to(torch.int32).",
        ),
        (
            {"target_logits": torch.zeros(3, 3, dtype=torch.float64)},
            "target_logits.dtype=float64, but it must be float32 or bfloat16 or float16. "
            "Use target_logits.to(torch.float32).",
        ),
        (
            {"draft_probs": legal_batch().draft_probs.double()},  # type: ignore[union-attr]
            "draft_probs.dtype=float64, but it must be float32. Use draft_probs.to(torch.float32).",
        ),
        (
            {"temperature": torch.ones(3, device="meta")},
            "temperature.device=meta, but it must be where target_logits is, cpu. Use temperature.to('cpu').",
        ),
        (
            {"draft_token_ids": ints(0, 3, 1)},
            "draft_token_ids[1]=3, but ids must lie in [0, 3) or be -1. Use -1 for a placeholder draft.",
        ),
        (
            {"draft_token_ids": ints(0, 2, -2)},
            "draft_token_ids[2]=-2, but ids must lie in [0, 3) or be -1. Use -1 for a placeholder draft.",
        ),
        (
            {"bonus_token_ids": ints([0], [-1], [2])},
            "bonus_token_ids[1, 0]=-1, but ids must lie in [0, 3). "
            "Sample one bonus token per request from the target distribution.",
        ),
        (
            {"bonus_token_ids": ints([0], [1], [3])},
            "bonus_token_ids[2, 0]=3, but ids must lie in [0, 3). "
            "Sample one bonus token per request from the target distribution.",
        ),
        (
            {"draft_probs": torch.tensor([[1.0, 0, 0], [1.5, -0.5, 0], [1, 0, 0]])},
            "draft_probs[1, 1]=-0.5, but probabilities must be at least 0. Use softmax.",
        ),
        (
            {"draft_probs": torch.tensor([[1.0, 0, 0], [1, 0, 0], [1, torch.nan, 0]])},
            "draft_probs[2, 1]=nan, but probabilities must be at least 0. Use softmax.",
        ),
        (
            {"draft_probs": torch.tensor([[1.0, 0, 0], [0.5, 0.25, 0], [1, 0, 0]])},
            "draft_probs.sum(-1)[1]=0.75, but a row must sum to 1 within 0.0078125 (or be all 0). "
            "Use softmax(draft_logits, -1).",
        ),
        (
            {"draft_probs": torch.tensor([[torch.inf, 0, 0], [1, 0, 0], [1, 0, 0]])},
            "draft_probs.sum(-1)[0]=inf, but a row must sum to 1 within 0.0078125 (or be all 0). "
            "Use softmax(draft_logits, -1).",
        ),
        (
            {"temperature": torch.tensor([1.0, -1.0, 1.0])},
            "temperature[1]=-1.0, but temperatures must be finite and at least 0. Use 0 for greedy.",
        ),
        (
            {"temperature": torch.tensor([1.0, 1.0, torch.nan])},
            "temperature[2]=nan, but temperatures must be finite and at least 0. Use 0 for greedy.",
        ),
        (
            {"temperature": torch.tensor([torch.inf, 1.0, 1.0])},
            "temperature[0]=inf, but temperatures must be finite and at least 0. Use 0 for greedy.",
        ),
        (
            {"synthetic_rates": torch.tensor([0.5, 1.5])},
            "synthetic_rates[1]=1.5, but rates must lie in [0, 1]. Use synthetic_rates.clamp(0, 1).",
        ),
        (
            {"synthetic_rates": torch.tensor([torch.nan, 0.5])},
            "synthetic_rates[0]=nan, but rates must lie in [0, 1]. Use synthetic_rates.clamp(0, 1).",
        ),
    ],
    ids=first_words,
)
def test_batch_with_a_wrong_value_is_refused_by_name(changes: dict[str, Any], message: str) -> None:  # Any: fields
    with pytest.raises(ValueError, match=whole(f"check_batch: {message}")):
        check_batch(legal_batch(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"target_logits": np.zeros((3, 3), np.float32)},
            "target_logits=ndarray, but it must be a tensor. Use torch.as_tensor(target_logits).",
        ),
        (
            {"draft_probs": [[1.0, 0.0, 0.0]] * 3},
            "draft_probs=list, but it must be a tensor or None. Use torch.as_tensor(draft_probs).",
        ),
        (
            {"temperature": None},
            "temperature=NoneType, but it must be a tensor. Use torch.as_tensor(temperature).",
        ),
        (
            {"num_draft_tokens": (2, 0, 1)},
            "num_draft_tokens=(2, 0, 1), but it must be a list of int. Use .tolist() on a tensor or array.",
        ),
        (
            {"num_draft_tokens": [2, 0, 1.0]},
            "num_draft_tokens=[2, 0, 1.0], but it must be a list of int. Use .tolist() on a tensor or array.",
        ),
        (
            {"max_spec_len": 2.0},
            "max_spec_len=2.0, but it must be an int. Use max(num_draft_tokens).",
        ),
    ],
    ids=first_words,
)
def test_batch_with_a_wrong_type_is_refused_by_name(changes: dict[str, Any], message: str) -> None:  # Any: fields
    with pytest.raises(TypeError, match=whole(f"check_batch: {message}")):
        check_batch(legal_batch(**changes))


def test_something_else_than_a_batch_is_refused() -> None:
    message = "check_batch: batch=dict, but it must be a SpecDecodeBatch. Build one from your tensors."
    with pytest.raises(TypeError, match=whole(message)):
        check_batch({})  # type: ignore[arg-type]


def legal_noise(**changes: Any) -> ExplicitNoise:  # Any: fields
    fields = {"uniforms": torch.tensor([0.0, 0.5, 1 - 2.0**-53], dtype=torch.float64), "exponentials": torch.ones(3, 3)}
    return ExplicitNoise(**{**fields, **changes})


def test_legal_noise_is_taken() -> None:
    check_noise(legal_batch(), legal_noise())
    check_noise(legal_batch(), SeededNoise(0, {0: 1, 2: 1}))


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        (
            legal_noise(uniforms=torch.zeros(2, dtype=torch.float64)),
            "uniforms.shape=[2], but it must be [3], one per draft token. Draw the noise for this batch.",
        ),
        (
            legal_noise(exponentials=torch.ones(1, 3)),
            "exponentials.shape=[1, 3], but it must be [3, 3], one row per request. Draw the noise for this batch.",
        ),
        (
            legal_noise(uniforms=torch.zeros(3)),
            "uniforms.dtype=float32, but it must be float64. Use uniforms.to(torch.float64).",
        ),
        (
            legal_noise(exponentials=torch.ones(3, 3, dtype=torch.float64)),
            "exponentials.dtype=float64, but it must be float32. Use exponentials.to(torch.float32).",
        ),
        (
            legal_noise(exponentials=torch.ones(3, 3, device="meta")),
            "exponentials.device=meta, but it must be where target_logits is, cpu. Use exponentials.to('cpu').",
        ),
        (
            legal_noise(uniforms=torch.tensor([0.0, 1.0, 0.5], dtype=torch.float64)),
            "uniforms[1]=1.0, but uniforms must lie in [0, 1). Use torch.rand.",
        ),
        (
            legal_noise(uniforms=torch.tensor([0.0, 0.5, torch.nan], dtype=torch.float64)),
            "uniforms[2]=nan, but uniforms must lie in [0, 1). Use torch.rand.",
        ),
        (
            legal_noise(uniforms=torch.tensor([-0.25, 0.5, 0.5], dtype=torch.float64)),
            "uniforms[0]=-0.25, but uniforms must lie in [0, 1). Use torch.rand.",
        ),
        (
            legal_noise(exponentials=torch.tensor([[1.0, 1, 1], [1, 0, 1], [1, 1, 1]])),
            "exponentials[1, 1]=0.0, but exponentials must be positive. Use Tensor.exponential_().",
        ),
        (
            legal_noise(exponentials=torch.tensor([[1.0, 1, 1], [1, 1, 1], [torch.nan, 1, 1]])),
            "exponentials[2, 0]=nan, but exponentials must be positive. Use Tensor.exponential_().",
        ),
        (
            SeededNoise(0, {0: 1, 3: 1}),
            "request_seeds has request 3, but requests must lie in [0, 3). Number requests by their rows.",
        ),
    ],
    ids=first_words,
)
def test_noise_that_does_not_belong_to_the_batch_is_refused(noise: ExplicitNoise | SeededNoise, message: str) -> None:
    with pytest.raises(ValueError, match=whole(f"check_noise: {message}")):
        check_noise(legal_batch(), noise)


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        (42, "noise=int, but it must be ExplicitNoise or SeededNoise. Use SeededNoise(seed)."),
        (
            legal_noise(uniforms=[0.0, 0.0, 0.0]),
            "uniforms=list, but it must be a tensor. Use torch.as_tensor(uniforms).",
        ),
    ],
    ids=["a seed", "lists"],
)
def test_noise_of_a_wrong_type_is_refused(noise: Any, message: str) -> None:  # Any: what a caller gets wrong
    with pytest.raises(TypeError, match=whole(f"check_noise: {message}")):
        check_noise(legal_batch(), noise)


def test_legal_output_is_returned_as_it_is() -> None:
    output = torch.full((3, 3), -1, dtype=torch.int32)
    assert check_output(legal_batch(), output, "mine") is output


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (
            [[0, -1, -1]] * 3,
            "returned list, but it must return a tensor. Return output_token_ids as int32 [3, 3].",
        ),
        (None, "returned NoneType, but it must return a tensor. Return output_token_ids as int32 [3, 3]."),
        (
            torch.zeros(3, 2, dtype=torch.int32),
            "returned shape [3, 2], but it must be [3, 3] ([batch_size, max_spec_len + 1]). "
            "Fill the end of short rows with -1.",
        ),
        (
            torch.zeros(3, 3),
            "returned torch.float32, but it must be torch.int32. Return output.to(torch.int32).",
        ),
        (
            torch.zeros(3, 3, dtype=torch.int32, device="meta"),
            "returned a tensor on meta, but the batch is on cpu. Declare the sampler's device, or move the result.",
        ),
    ],
    ids=["list", "nothing", "shape", "dtype", "device"],
)
def test_answer_that_is_no_output_is_an_error_of_the_adapter(output: object, message: str) -> None:
    with pytest.raises(AdapterError, match=whole(f"verify: sampler=mine {message}")):
        check_output(legal_batch(), output, "mine")
