"""The API of our rejection sampler besides tokens: errors that name the argument, and the helpers."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from fairdraw import contracts
from fairdraw._oracles import logits_plan as oracle
from fairdraw.sampler_impl import rejection, sampling
from fairdraw.sampler_impl._logits import params as _logits_params
from fairdraw.sampler_impl._scanners import history as _history
from fairdraw.sampler_impl._shared import kernels

# Tensors are on the CPU here, so Triton can run only if it is interpreted.
BACKENDS: tuple[rejection.BackendName, ...] = ("torch", "triton") if kernels.INTERPRETED else ("torch",)


@dataclass
class Metadata:
    all_greedy: bool = False
    all_random: bool = False
    temperature: Tensor | None = None  # [batch_size] float32
    generators: dict[int, torch.Generator] = field(default_factory=dict)


def good_arguments() -> dict[str, Any]:
    """Two requests with 2 and 1 draft tokens, a vocabulary of 4, one request greedy."""
    return {
        "draft_token_ids": torch.tensor([0, -1, 3], dtype=torch.int32),
        "num_draft_tokens": [2, 1],
        "max_spec_len": 2,
        "cu_num_draft_tokens": torch.tensor([2, 3], dtype=torch.int32),
        "draft_probs": torch.full((3, 4), 0.25),
        "target_logits": torch.zeros(3, 4),
        "bonus_token_ids": torch.tensor([[1], [2]], dtype=torch.int32),
        "sampling_metadata": Metadata(temperature=torch.tensor([0.0, 1.0])),
        "synthetic_mode": False,
        "synthetic_conditional_rates": torch.tensor([0.5, 0.5]),
        "uniforms": torch.rand(3, dtype=torch.float64),
        "exponentials": torch.ones(2, 4),
        "backend": "torch",
    }


def ids(*token_ids: int) -> Tensor:  # [num_tokens] int32
    return torch.tensor(token_ids, dtype=torch.int32)


def metadata(**fields: Any) -> dict[str, Any]:  # Any: fields of `Metadata`, and arguments
    return {"sampling_metadata": Metadata(**fields)}


def rates(values: Tensor | None) -> dict[str, Any]:  # [max_spec_len] float32; Any: arguments
    return {"synthetic_mode": True, "synthetic_conditional_rates": values}


TWO = torch.tensor([0.0, 1.0])

ALWAYS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "counts as a tensor": ({"num_draft_tokens": torch.tensor([2, 1])}, TypeError, "num_draft_tokens=.* list of int"),
    "counts of floats": ({"num_draft_tokens": [2.0, 1.0]}, TypeError, "num_draft_tokens=.* list of int"),
    "negative count": ({"num_draft_tokens": [4, -1]}, ValueError, r"num_draft_tokens\[1\]=-1, .* at least 0"),
    "max_spec_len too small": ({"max_spec_len": 1}, ValueError, r"max_spec_len=1, .*max\(num_draft_tokens\)=2"),
    "max_spec_len too large": ({"max_spec_len": 129}, ValueError, "max_spec_len=129, .* at most 128"),
    "too few rows": ({"target_logits": torch.zeros(2, 4)}, ValueError, r"target_logits.shape=\[2, 4\], .* \[3, 4\]"),
    "no vocabulary": ({"target_logits": torch.zeros(3, 0)}, ValueError, "vocab_size=0, .* at least 1"),
    "logits as a list": ({"target_logits": [[0.0] * 4] * 3}, TypeError, "target_logits=.* must be a tensor"),
    "too few ids": ({"draft_token_ids": ids(0, 1)}, ValueError, r"draft_token_ids.shape=\[2\], .* \[3\]"),
    "too many offsets": ({"cu_num_draft_tokens": ids(0, 2, 3)}, ValueError, r"cu_num_draft_tokens.shape=\[3\]"),
    "draft vocabulary": ({"draft_probs": torch.ones(3, 5)}, ValueError, r"draft_probs.shape=\[3, 5\], .* \[3, 4\]"),
    "bonus of one request": ({"bonus_token_ids": ids(1)}, ValueError, r"bonus_token_ids.shape=\[1, 1\], .* \[2, 1\]"),
    "no bonus": ({"bonus_token_ids": None}, TypeError, "bonus_token_ids=None, .* must be a tensor"),
    "contradictory flags": (metadata(all_greedy=True, all_random=True), ValueError, "all_greedy=True and all_random="),
    "no temperature": ({"sampling_metadata": Metadata()}, TypeError, "temperature=None, .* must be a tensor"),
    "one temperature": (metadata(temperature=torch.ones(1)), ValueError, r"temperature.shape=\[1\], .* \[2\]"),
    "generator of no request": (
        metadata(temperature=TWO, generators={2: torch.Generator()}),
        ValueError,
        r"generators has key 2, .* \[0, 2\)",
    ),
    "no rates": (rates(None), TypeError, "synthetic_conditional_rates=None, .* must be a tensor"),
    "too few rates": (rates(torch.ones(1)), ValueError, r"synthetic_conditional_rates.shape=\[1\], .* \[2\]"),
    "unknown backend": ({"backend": "cuda"}, ValueError, "backend='cuda', .* 'triton' or 'torch'"),
}

NOISE: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no uniforms": ({"uniforms": None}, TypeError, "uniforms=None, .* must be a tensor"),
    "no exponentials": ({"exponentials": None}, TypeError, "exponentials=None, .* must be a tensor"),
    "exponentials per token": ({"exponentials": torch.ones(3, 4)}, ValueError, r"exponentials.shape=\[3, 4\]"),
}

VALUES: dict[str, tuple[dict[str, Any], str]] = {
    "offsets decrease": ({"cu_num_draft_tokens": ids(2, 1)}, r"cu_num_draft_tokens\[1\]=1, but it must be 3"),
    "offsets exclusive": ({"cu_num_draft_tokens": ids(0, 2)}, r"cu_num_draft_tokens\[0\]=0, but it must be 2"),
    "draft id too large": ({"draft_token_ids": ids(0, 4, 1)}, r"draft_token_ids\[1\]=4, .* \[0, 4\), or -1"),
    "draft id negative": ({"draft_token_ids": ids(0, 1, -2)}, r"draft_token_ids\[2\]=-2, .* \[0, 4\), or -1"),
    "bonus id negative": ({"bonus_token_ids": ids(0, -1)}, r"bonus_token_ids\[1, 0\]=-1, .* \[0, 4\)"),
    "bonus id too large": ({"bonus_token_ids": ids(4, 0)}, r"bonus_token_ids\[0, 0\]=4, .* \[0, 4\)"),
    "draft_probs negative": (
        {"draft_probs": torch.tensor([[0.5, 0.5, 0.0, 0.0]] * 2 + [[1.5, -0.5, 0.0, 0.0]])},
        r"draft_probs\[2, 1\]=-0.5, .* at least 0",
    ),
    "draft_probs nan": ({"draft_probs": torch.full((3, 4), torch.nan)}, r"draft_probs\[0, 0\]=nan, .* at least 0"),
    "draft sum": ({"draft_probs": torch.full((3, 4), 0.2)}, r"draft_probs.sum\(-1\)\[0\]=0.8.*, .* 1 within 0.001"),
    "negative temperature": (metadata(temperature=-TWO), r"temperature\[1\]=-1, .* at least 0"),
    "random though all_greedy": (metadata(all_greedy=True, temperature=TWO), r"temperature\[1\]=1, .* 0 as all_greedy"),
    "greedy though all_random": (metadata(all_random=True, temperature=TWO), r"temperature\[0\]=0, .* as all_random"),
    "rate above 1": (rates(torch.tensor([0.5, 1.5])), r"synthetic_conditional_rates\[1\]=1.5, .* \[0, 1\]"),
    "uniform of 1": ({"uniforms": torch.ones(3, dtype=torch.float64)}, r"uniforms\[0\]=1, .* \[0, 1\)"),
    "negative exponential": ({"exponentials": -torch.ones(2, 4)}, r"exponentials\[0, 0\]=-1, .* at least 0"),
}


@pytest.mark.parametrize(("changes", "error", "message"), ALWAYS.values(), ids=ALWAYS)
def test_wrong_argument_is_named_before_anything_is_drawn(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    arguments = {**good_arguments(), **changes}
    with pytest.raises(error, match=f"^verify_drafts: {message}"):
        rejection.verify_drafts(**arguments)
    del arguments["uniforms"], arguments["exponentials"]
    before = torch.get_rng_state()
    with pytest.raises(error, match=f"^rejection_sample: {message}"):
        rejection.rejection_sample(**arguments)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("changes", "error", "message"), NOISE.values(), ids=NOISE)
def test_wrong_noise_is_named(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^verify_drafts: {message}"):
        rejection.verify_drafts(**{**good_arguments(), **changes})


@pytest.mark.parametrize(("changes", "message"), VALUES.values(), ids=VALUES)
def test_wrong_value_is_named_by_validation(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^verify_drafts: {message}.*[.]$"):
        rejection.verify_drafts(**{**good_arguments(), **changes}, validate=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_good_arguments_pass_validation(backend: rejection.BackendName) -> None:
    arguments = {**good_arguments(), "synthetic_mode": True, "backend": backend}
    assert rejection.verify_drafts(**arguments, validate=True).shape == (2, 3)


def test_triton_without_gpu_and_interpreter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "INTERPRETED", False)
    with pytest.raises(ValueError, match=r"backend='triton' .* set TRITON_INTERPRET=1"):
        rejection.verify_drafts(**{**good_arguments(), "backend": "triton"})


def test_cpu_takes_torch_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "INTERPRETED", False)
    assert rejection.verify_drafts(**{**good_arguments(), "backend": None}).shape == (2, 3)


def test_parsed_output_has_no_placeholders() -> None:
    output = torch.tensor([[4, 2, -1], [7, -1, -1], [1, 2, 3], [5, 0, -1]], dtype=torch.int32)
    assert rejection.parse_output(output, 7) == [[4, 2], [], [1, 2, 3], [5, 0]]
    assert rejection.parse_output(output, 8, [0, 2]) == [[], [7], [], [5, 0]]
    assert rejection.parse_output(output[:0], 8) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_expanded_values_follow_their_tokens(backend: rejection.BackendName) -> None:
    values, ends = torch.tensor([0.5, 0.0, 2.0, 3.0]), torch.tensor([2, 3, 3, 203], dtype=torch.int32)
    expanded = rejection.expand_batch_to_tokens(values, ends, 203, 0, 1, backend=backend)
    assert expanded.tolist() == [0.5, 0.5, 1.0] + [3.0] * 200


@pytest.mark.parametrize("backend", BACKENDS)
def test_temperature_divides_the_rows_of_random_requests(backend: rejection.BackendName) -> None:
    metadata = Metadata(temperature=torch.tensor([0.7, 0.3, 0.0]))
    before = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
    logits = before.clone()
    assert rejection.apply_temperature_(logits, ids(2, 2, 5), metadata, backend=backend) is logits
    assert torch.equal(logits[:2], before[:2] / torch.tensor(0.7))
    assert torch.equal(logits[2:], before[2:])
    assert rejection.apply_temperature_(logits, ids(5), Metadata(all_greedy=True), backend=backend) is logits


def test_helpers_name_wrong_arguments() -> None:
    with pytest.raises(ValueError, match=r"^expand_batch_to_tokens: cu_num_tokens.shape=\[1\], .* \[2\]"):
        rejection.expand_batch_to_tokens(torch.zeros(2), ids(2), 2)
    with pytest.raises(ValueError, match=r"^apply_temperature_: temperature=None, .* unless all_greedy"):
        rejection.apply_temperature_(torch.zeros(2, 3), ids(2), Metadata())


def test_production_and_suite_define_the_same_numbers() -> None:
    """Neither imports the other, so what the contract fixes is defined in both."""
    for suite, production in (
        (contracts.PLACEHOLDER_TOKEN_ID, (rejection.PLACEHOLDER_TOKEN_ID, _history.PLACEHOLDER_TOKEN_ID)),
        (contracts.MAX_SPEC_LEN, (rejection.MAX_SPEC_LEN,)),
        (contracts.GREEDY_TEMPERATURE, (rejection.GREEDY_TEMPERATURE,)),
        (oracle.GREEDY_BELOW, (_logits_params.GREEDY_BELOW, sampling.GREEDY_BELOW)),
    ):
        assert set(production) == {suite}
