"""Our plain sampler beside the real vLLM `Sampler`, and the adapters of both under the checks that name them best."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairdraw._core.checks import Check, Profile
from fairdraw.adapters import load
from fairdraw.contracts import TokenDrafter, TokenSampler
from fairdraw.properties.sampling import CHECKS

if TYPE_CHECKING:
    from fairdraw_engines._vllm import VllmTokenSampler

BY_CODE = {check.code: check for check in CHECKS}
PROFILE = Profile("few", 60, 4)


@pytest.fixture(scope="module")
def vllm() -> VllmTokenSampler:
    return load("sampling/vllm", "cpu")


def test_adapters_are_samplers_of_the_contract(vllm: VllmTokenSampler) -> None:
    made = [load(f"sampling/{form}", "cpu") for form in ("torch", "counter", "oracle", "triton")]
    assert [one.name for one in made] == ["sampling/torch", "sampling/counter", "sampling/oracle", "sampling/triton"]
    assert all(isinstance(sampler, TokenDrafter) and sampler.contract == "sampling" for sampler in made)
    assert isinstance(vllm, TokenSampler)
    assert vllm.name == "vllm 0.22.0"


@pytest.mark.parametrize("check", [check for check in CHECKS if check.differential], ids=str)
def test_sampler_draws_what_vllm_draws(check: Check, vllm: VllmTokenSampler) -> None:
    assert check.run(load("sampling/torch", "cpu"), profile=PROFILE, seed=5, reference=vllm) > 0


@pytest.mark.parametrize("code", ["SAM102", "SAM111", "SAM141", "SAM143", "SAM144"])
def test_vllm_draws_what_the_oracle_draws(code: str, vllm: VllmTokenSampler) -> None:
    assert BY_CODE[code].run(vllm, profile=PROFILE, seed=6) > 0
