"""The cases of the sampling checks, their validation, and supports."""

import math
from typing import Any

import pytest
import torch

from fairdraw._core.checks import PROFILES
from fairdraw._core.failures import AdapterError
from fairdraw._core.seeds import DEFAULT_SEED
from fairdraw._mutants.sampling import right
from fairdraw._oracles.sampling import SamplingOracle, requests_of
from fairdraw._oracles.supports import support_of
from fairdraw._run.controls import sees
from fairdraw.contracts import FilterPolicy, TokenSampler, token_sampler
from fairdraw.contracts._sampling import check_sampling_batch, sample_tokens
from fairdraw.properties.sampling import CHECKS
from fairdraw.strategies.sampling import SampledRequest, SamplingCase

BY_CODE = {check.code: check for check in CHECKS}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -1.0}, "temperature=-1.0, but it must be at least 0"),
        ({"top_k": 0}, "top_k=0, but it must be at least 1"),
        ({"top_p": 0.0}, r"top_p=0.0, but it must be in \(0, 1\]"),
        ({"min_p": 2.0}, r"min_p=2.0, but it must be in \[0, 1\]"),
        ({"logits": "round"}, "logits='round', but it must be one of"),
    ],
    ids=["temperature", "top-k", "top-p", "min-p", "kind"],
)
def test_wrong_request_is_refused(fields: dict[str, Any], message: str) -> None:  # Any: one type each
    with pytest.raises(ValueError, match=message):
        SampledRequest(**fields)


def _broken_sampler(answer: Any) -> TokenSampler:  # Any: whatever a sampler may return
    return token_sampler(lambda batch, noise: answer, name="broken")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([0, 0], "returned list, but it must return a tensor. Return token_ids as int64"),
        (torch.zeros(2, 1, dtype=torch.int64), r"token_ids of shape \[2, 1\], but it must be \[2\]"),
        (torch.zeros(2), r"returned torch.float32, but it must be torch.int64 or torch.int32"),
    ],
    ids=["list", "column", "floats"],
)
def test_answer_of_another_type_is_caught(answer: Any, message: str) -> None:  # Any: as above
    case = SamplingCase(3, (SampledRequest(), SampledRequest()))
    with pytest.raises(AdapterError, match=message):
        sample_tokens(_broken_sampler(answer), case.batch(), case.noise())


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", torch.tensor([1.0, -1.0]), r"temperature\[1\]=-1.0, but it must be finite and at least 0"),
        ("top_k", torch.tensor([1, 4], dtype=torch.int32), r"top_k\[1\]=4, but it must be in \[1, 3\]"),
        ("top_p", torch.tensor([1.0, 0.0]), r"top_p\[1\]=0.0, but it must be in \(0, 1\]"),
        ("min_p", torch.zeros(3), r"min_p.shape=\[3\], but it must be \[2\]"),
        ("logits", torch.zeros(2, 3, dtype=torch.float64), "logits.dtype=float64, but it must be float32 or bfloat16"),
    ],
    ids=["temperature", "top-k", "top-p", "length", "dtype"],
)
def test_wrong_batch_is_refused_by_name(field: str, value: torch.Tensor, message: str) -> None:
    batch = SamplingCase(3, (SampledRequest(), SampledRequest())).batch().replace(**{field: value})
    with pytest.raises(ValueError, match=message):
        check_sampling_batch(batch)


def test_filter_policy_of_unknown_words_is_refused() -> None:
    with pytest.raises(ValueError, match="it must name min_p, top_k and top_p once each"):
        FilterPolicy(order=("top_k", "top_p"))


def test_temperature_of_an_unknown_place_is_refused() -> None:
    with pytest.raises(ValueError, match="temperature='middle', but it must be first or last"):
        FilterPolicy(temperature="middle")  # type: ignore[arg-type]


@pytest.mark.parametrize("code", ["SAM102", "SAM111", "SAM201"])
def test_temperature_before_filters_that_is_declared_last_is_caught(code: str) -> None:
    oracle = right()
    declares_last = token_sampler(
        oracle.function, drafting=oracle.drafting, name="last", filters=FilterPolicy(temperature="last")
    )
    assert sees(BY_CODE[code], declares_last, PROFILES["ci"], DEFAULT_SEED)[0]


def test_support_says_what_hangs_on_rounding() -> None:
    """Ten equal tokens at top_p 1/2: whether five or six stay, and which, no two engines agree about."""
    case = SamplingCase(10, (SampledRequest(top_p=0.5), SampledRequest(top_k=3), SampledRequest("normal", top_k=3)))
    by_top_p, by_top_k, settled = (
        support_of(request, FilterPolicy(top_k_ties="some")) for request in requests_of(case.batch())
    )
    assert not by_top_p.is_settled
    assert (by_top_k.required.sum(), by_top_k.allowed.sum()) == (0, 10)
    assert settled.is_settled
    assert (settled.distribution() > 0).sum() == 3


@pytest.mark.parametrize(
    ("min_p", "allowed"), [(2.0**-149, [True, True, True, False]), (1e-40, [True, True, False, False])]
)
def test_min_p_leaves_open_what_float32_rounds_to_its_least_number(min_p: float, allowed: list[bool]) -> None:
    """Beside the best token: three times 1e-40, seven tenths of the least number, and nothing."""
    logits = torch.tensor([[0.0, math.log(3e-40), math.log(0.7) - 149 * math.log(2), -200.0]])  # [1, 4] float32
    batch = SamplingCase(4, (SampledRequest(min_p=min_p),)).batch().replace(logits=logits)
    support = support_of(requests_of(batch)[0], FilterPolicy())
    assert support.allowed.tolist() == allowed
    assert support.required.tolist() == [True, False, False, False]


def test_greedy_draft_of_a_large_vocabulary_takes_one_row() -> None:
    """A million tokens: an identity matrix of that size has four terabytes."""
    batch = SamplingCase(10**6, (SampledRequest(temperature=0.0),)).batch()
    said = SamplingOracle().said_distribution(requests_of(batch)[0], 3)
    assert (said.sum(), said[3]) == (1, 1)
