"""Bad input is refused by name: what was given, what it must be, and what to do."""

from typing import Any

import numpy as np
import pytest
import torch
from helpers import plain_batch, whole

from fairdraw._core.failures import AdapterError
from fairdraw._core.validation import Answer
from fairdraw.contracts import ExplicitNoise, SeededNoise, SpecDecodeBatch
from fairdraw.contracts._rejection import check_batch, check_noise, check_output


def legal_batch(**changes: Any) -> SpecDecodeBatch:  # Any: fields
    """Three requests with 2, 0 and 1 drafts over 3 tokens, with every optional field."""
    fields = {
        "draft_token_ids": torch.tensor([0, 2, -1], dtype=torch.int32),
        "draft_probs": torch.tensor([[0.5, 0.25, 0.25], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]),
        "bonus_token_ids": torch.tensor([[0], [1], [2]], dtype=torch.int32),
        "temperature": torch.tensor([0.0, 1.0, 0.5]),
        "synthetic_rates": torch.tensor([1.0, 0.0]),
    }
    return plain_batch([2, 0, 1], 3, **{**fields, **changes})


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


RULES = {
    "negative": "counts must not be negative. Use 0 for no drafts.",
    "request": "there must be a request. Do not call without requests.",
    "sum": "it must be the inclusive cumulative sum of num_draft_tokens. "
    "Use torch.tensor(num_draft_tokens).cumsum(0, dtype=torch.int32).",
    "longest": "it must lie between max(num_draft_tokens)=2 and 128. Use max(num_draft_tokens).",
    "logits": "it must be [3, vocab_size] with at least one token in the vocabulary. "
    "Give each draft token a row of logits.",
    "shape": "it must be {} for 3 draft tokens of 3 requests. "
    "Flatten drafts over requests; give each request one bonus token.",
    "dtype": "it must be {1}. Use {0}.to(torch.{2}).",
    "device": "it must be where target_logits is, cpu. Use {}.to('cpu').",
    "draft": "ids must lie in [0, 3) or be -1. Use -1 for a placeholder draft.",
    "bonus": "ids must lie in [0, 3). Sample one bonus token per request from the target distribution.",
    "probability": "probabilities must be at least 0. Use softmax.",
    "row": "a row must sum to 1 within 0.0078125 (or be all 0). Use softmax(draft_logits, -1).",
    "temperature": "temperatures must be finite and at least 0. Use 0 for greedy.",
    "rate": "rates must lie in [0, 1]. Use synthetic_rates.clamp(0, 1).",
    "tensor": "it must be a tensor{1}. Use torch.as_tensor({0}).",
    "counts": "it must be a list of int. Use .tolist() on a tensor or array.",
    "width": "it must be an int. Use max(num_draft_tokens).",
    "noise shape": "it must be {}. Draw the noise for this batch.",
    "uniform": "uniforms must lie in [0, 1). Use torch.rand.",
    "exponential": "exponentials must be positive. Use Tensor.exponential_().",
    "seeds": "requests must lie in [0, 3). Number requests by their rows.",
}
"""What is required, and the remedy."""


def message(function: str, given: str, rule: str) -> str:
    """The whole message.

    Args:
        rule: A word of `RULES`, then what its text needs, each after a `|`.
    """
    word, *details = rule.split("|")
    return whole(f"{function}: {given}, but {RULES[word].format(*details)}")


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


HALF = [0.5, 0.25, 0.25]
WRONG_VALUES = [
    ("num_draft_tokens", [2, -1, 1], "=[2, -1, 1]", "negative"),
    ("num_draft_tokens", [], "=[]", "request"),
    ("cu_num_draft_tokens", ints(0, 2, 2), "[0]=0", "sum"),
    ("cu_num_draft_tokens", ints(0, 2, 2, 3), ".shape=[4]", "shape|[3]"),
    ("max_spec_len", 1, "=1", "longest"),
    ("max_spec_len", 129, "=129", "longest"),
    ("target_logits", torch.zeros(9), ".shape=[9]", "logits"),
    ("target_logits", torch.zeros(3, 0), ".shape=[3, 0]", "logits"),
    ("draft_probs", torch.ones(3, 4) / 4, ".shape=[3, 4]", "shape|[3, 3]"),
    ("bonus_token_ids", ints(0, 1, 2), ".shape=[3]", "shape|[3, 1]"),
    ("synthetic_rates", torch.ones(3), ".shape=[3]", "shape|[2]"),
    ("draft_token_ids", torch.tensor([0, 2, -1]), ".dtype=int64", "dtype|draft_token_ids|int32|int32"),
    (
        "target_logits",
        torch.zeros(3, 3).double(),
        ".dtype=float64",
        "dtype|target_logits|float32 or bfloat16 or float16|float32",
    ),
    ("draft_probs", torch.ones(3, 3).double(), ".dtype=float64", "dtype|draft_probs|float32|float32"),
    ("temperature", torch.ones(3, device="meta"), ".device=meta", "device|temperature"),
    ("draft_token_ids", ints(0, 3, 1), "[1]=3", "draft"),
    ("draft_token_ids", ints(0, 2, -2), "[2]=-2", "draft"),
    ("bonus_token_ids", ints([0], [-1], [2]), "[1, 0]=-1", "bonus"),
    ("bonus_token_ids", ints([0], [1], [3]), "[2, 0]=3", "bonus"),
    ("draft_probs", rows(HALF, [1.5, -0.5, 0], HALF), "[1, 1]=-0.5", "probability"),
    ("draft_probs", rows(HALF, HALF, [1, torch.nan, 0]), "[2, 1]=nan", "probability"),
    ("draft_probs", rows(HALF, [0.5, 0.25, 0], HALF), ".sum(-1)[1]=0.75", "row"),
    ("draft_probs", rows([torch.inf, 0, 0], HALF, HALF), ".sum(-1)[0]=inf", "row"),
    ("temperature", torch.tensor([1.0, -1.0, 1.0]), "[1]=-1.0", "temperature"),
    ("temperature", torch.tensor([1.0, 1.0, torch.nan]), "[2]=nan", "temperature"),
    ("temperature", torch.tensor([torch.inf, 1.0, 1.0]), "[0]=inf", "temperature"),
    ("synthetic_rates", torch.tensor([0.5, 1.5]), "[1]=1.5", "rate"),
    ("synthetic_rates", torch.tensor([torch.nan, 0.5]), "[0]=nan", "rate"),
]
WRONG_TYPES = [
    ("target_logits", np.zeros((3, 3), np.float32), "=ndarray", "tensor|target_logits|"),
    ("draft_probs", [[1.0, 0.0, 0.0]] * 3, "=list", "tensor|draft_probs| or None"),
    ("temperature", None, "=NoneType", "tensor|temperature|"),
    ("num_draft_tokens", (2, 0, 1), "=(2, 0, 1)", "counts"),
    ("num_draft_tokens", [2, 0, 1.0], "=[2, 0, 1.0]", "counts"),
    ("max_spec_len", 2.0, "=2.0", "width"),
]


@pytest.mark.parametrize(
    ("kind", "name", "value", "given", "rule"),
    [(ValueError, *case) for case in WRONG_VALUES] + [(TypeError, *case) for case in WRONG_TYPES],
    ids=[f"{name}{given}" for name, _, given, _ in (*WRONG_VALUES, *WRONG_TYPES)],
)
def test_wrong_batch_is_refused_by_name(kind: type[Exception], name: str, value: Any, given: str, rule: str) -> None:
    with pytest.raises(kind, match=message("check_batch", f"{name}{given}", rule)):
        check_batch(legal_batch(**{name: value}))


def test_something_else_than_a_batch_is_refused() -> None:
    text = "check_batch: batch=dict, but it must be a SpecDecodeBatch. Build one from your tensors."
    with pytest.raises(TypeError, match=whole(text)):
        check_batch({})  # type: ignore[arg-type]


def legal_noise(**changes: Any) -> ExplicitNoise:  # Any: fields
    fields = {"uniforms": torch.tensor([0.0, 0.5, 1 - 2.0**-53], dtype=torch.float64), "exponentials": torch.ones(3, 3)}
    return ExplicitNoise(**{**fields, **changes})


def test_legal_noise_is_taken() -> None:
    check_noise(legal_batch(), legal_noise())
    check_noise(legal_batch(), SeededNoise(0, {0: 1, 2: 1}))


def wide(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


ONES = [1.0, 1.0, 1.0]
WRONG_NOISE = [
    ("uniforms", wide(0, 0), ".shape=[2]", "noise shape|[3], one per draft token"),
    ("exponentials", torch.ones(1, 3), ".shape=[1, 3]", "noise shape|[3, 3], one row per request"),
    ("uniforms", torch.zeros(3), ".dtype=float32", "dtype|uniforms|float64|float64"),
    ("exponentials", torch.ones(3, 3).double(), ".dtype=float64", "dtype|exponentials|float32|float32"),
    ("exponentials", torch.ones(3, 3, device="meta"), ".device=meta", "device|exponentials"),
    ("uniforms", wide(0.0, 1.0, 0.5), "[1]=1.0", "uniform"),
    ("uniforms", wide(0.0, 0.5, torch.nan), "[2]=nan", "uniform"),
    ("uniforms", wide(-0.25, 0.5, 0.5), "[0]=-0.25", "uniform"),
    ("exponentials", rows(ONES, [1, 0, 1], ONES), "[1, 1]=0.0", "exponential"),
    ("exponentials", rows(ONES, ONES, [torch.nan, 1, 1]), "[2, 0]=nan", "exponential"),
]


@pytest.mark.parametrize(("name", "value", "given", "rule"), WRONG_NOISE, ids=[f"{c[0]}{c[2]}" for c in WRONG_NOISE])
def test_noise_that_does_not_belong_to_the_batch_is_refused(name: str, value: Any, given: str, rule: str) -> None:
    with pytest.raises(ValueError, match=message("check_noise", f"{name}{given}", rule)):
        check_noise(legal_batch(), legal_noise(**{name: value}))


def test_seed_of_a_request_that_is_not_in_the_batch_is_refused() -> None:
    with pytest.raises(ValueError, match=message("check_noise", "request_seeds has request 3", "seeds")):
        check_noise(legal_batch(), SeededNoise(0, {0: 1, 3: 1}))


@pytest.mark.parametrize(
    ("noise", "text"),
    [
        (42, "noise=int, but it must be ExplicitNoise or SeededNoise. Use SeededNoise(seed)."),
        (legal_noise(uniforms=[0.0]), "uniforms=list, but it must be a tensor. Use torch.as_tensor(uniforms)."),
    ],
    ids=["a seed", "lists"],
)
def test_noise_of_a_wrong_type_is_refused(noise: Any, text: str) -> None:  # Any: what a caller gets wrong
    with pytest.raises(TypeError, match=whole(f"check_noise: {text}")):
        check_noise(legal_batch(), noise)


def test_legal_output_is_returned_as_it_is() -> None:
    output = torch.full((3, 3), -1, dtype=torch.int32)
    assert check_output(legal_batch(), Answer(None, "verify", torch.device("cpu"), output, "mine")) is output


NO_TENSOR = "returned {}, but it must return a tensor. Return output_token_ids as int32 [3, 3]."


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ([[0, -1, -1]] * 3, NO_TENSOR.format("list")),
        (None, NO_TENSOR.format("NoneType")),
        (
            torch.zeros(3, 2, dtype=torch.int32),
            "returned output_token_ids of shape [3, 2], but it must be [3, 3] ([batch_size, max_spec_len + 1]). "
            "Fill the end of short rows with -1.",
        ),
        (
            torch.zeros(3, 3),
            "returned torch.float32, but it must be torch.int32. Return output_token_ids.to(torch.int32).",
        ),
        (
            torch.zeros(3, 3, dtype=torch.int32, device="meta"),
            "returned a tensor on meta, but the batch is on cpu. Declare the sampler's device, or move the result.",
        ),
    ],
    ids=["list", "nothing", "shape", "dtype", "device"],
)
def test_answer_that_is_no_output_is_an_error_of_the_adapter(output: object, text: str) -> None:
    with pytest.raises(AdapterError, match=whole(f"verify: sampler=mine {text}")):
        check_output(legal_batch(), Answer(None, "verify", torch.device("cpu"), output, "mine"))
