"""The real vLLM, called as vLLM calls it: its own noise, injected noise, and the release in front of us."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from fairdraw import Capability, SpecDecodeBatch
from fairdraw import strategies as fst
from fairdraw._run.loading import all_checks
from fairdraw.adapters import SamplerNotFound, load
from fairdraw.adapters._catalogue import read_defects, read_rows
from fairdraw.contracts._rejection import emit
from fairdraw.strategies import DraftRecipe, RejectionCase, RequestRecipe
from fairdraw_engines._vllm import VllmSampler

ROOT = Path(__file__).parents[2]
ROW = read_rows("fairdraw_engines", "fairdraw-engines")["rejection/vllm"]

# Away from the known defects: no placeholder, no uniform 0, no empty residual, no denormal exponential.
SOUND: dict[str, Any] = {  # Any: arguments of one strategy
    "max_vocab_size": 8,
    "max_requests": 3,
    "targets": ("flat", "normal", "zipf", "tied"),
    "drafts": ("uniform", "independent", "reversed"),
    "tokens": ("likely", "drawn", "last"),
    "uniforms": ("random", "half", "above", "below", "largest"),
    "exponentials": ("random", "equal", "coarse", "huge"),
}


@pytest.fixture(scope="module")
def sampler() -> VllmSampler:
    """The importable vLLM. In CI there has to be one."""
    try:
        loaded = load("rejection/vllm")
    except SamplerNotFound as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    assert isinstance(loaded, VllmSampler)
    return loaded


def check_against_oracle(sampler: VllmSampler, **kinds: Any) -> None:  # Any: as above
    oracle, device = load("rejection/oracle", device=sampler.device), sampler.device

    @settings(max_examples=20)
    @given(fst.rejection_cases(**{**SOUND, **kinds}))
    def check(case: fst.RejectionCase) -> None:
        specified = emit(oracle, case.batch(device), case.noise(device))
        upstream = emit(sampler, case.batch(device), case.noise(device))

        assert specified.tokens.tolist() == upstream.tokens.tolist()
        assert specified.generator_states == upstream.generator_states
        if not case.explicit:
            assert specified.default_state == upstream.default_state

    check()


def test_injected_noise_decides_upstream_tokens(sampler: VllmSampler) -> None:
    check_against_oracle(sampler, explicit=True)


def test_upstream_draws_seeded_noise_in_the_documented_order(sampler: VllmSampler) -> None:
    check_against_oracle(sampler, explicit=False)


def test_upstream_takes_synthetic_rates(sampler: VllmSampler) -> None:
    if Capability.SYNTHETIC_RATES not in sampler.capabilities:
        pytest.skip(sampler.capabilities.unsupported[Capability.SYNTHETIC_RATES])
    # One-hot, because a draft that is rejected by its rate alone may leave no residual in a dense distribution.
    check_against_oracle(sampler, synthetic=True, dense=False)


def test_greedy_batch_needs_no_noise_and_is_verified(sampler: VllmSampler) -> None:
    drafts = (DraftRecipe(target="peaked", token="likely"), DraftRecipe(target="peaked", token="unlikely"))
    case = RejectionCase(vocab_size=5, requests=(RequestRecipe(drafts=drafts, greedy=True),))
    batch = case.batch(sampler.device)
    likely = batch.target_logits.argmax(-1).tolist()

    assert emit(sampler, batch, case.noise(sampler.device)).emitted(0) == likely


def test_name_carries_the_release(sampler: VllmSampler) -> None:
    import vllm

    assert sampler.name == f"vllm {vllm.__version__.partition('+')[0]}"


def test_upstream_is_imported_without_a_word(sampler: VllmSampler) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    code = "from fairdraw.adapters import load; print(load('rejection/vllm').name)"
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, env=environment, check=False
    )

    assert (finished.stdout, finished.stderr) == (f"{sampler.name}\n", "")


# Other releases, by their signatures


def capturing(release: str, signature: str) -> tuple[VllmSampler, dict[str, Any]]:  # Any: whatever is passed
    """A sampler around a function with another release's signature, and what that function was given."""
    given_arguments: dict[str, Any] = {}
    scope: dict[str, Any] = {"keep": given_arguments.update, "torch": torch}
    exec(f"def rejection_sample({signature}):\n    keep(locals())\n    return torch.zeros(1, 2)", scope)
    made = VllmSampler("cpu", True, release, scope["rejection_sample"], lambda batch, noise: SimpleNamespace())
    return made, given_arguments


BEFORE_0_16 = (
    "draft_token_ids, num_draft_tokens, max_spec_len, cu_num_draft_tokens, draft_probs, target_probs, "
    "bonus_token_ids, sampling_metadata"
)
SINCE_0_33 = (
    BEFORE_0_16.replace("target_probs", "target_logits") + ", synthetic_mode=False, synthetic_conditional_rates=None, "
    "use_fp64_gumbel=False, fly_window_size=None, fly_entropy_threshold=None, fly_entropy_top_k=3"
)


def greedy_batch(synthetic: bool = False) -> tuple[RejectionCase, SpecDecodeBatch]:
    request = RequestRecipe(drafts=(DraftRecipe(target="normal"),), greedy=not synthetic)
    case = RejectionCase(vocab_size=4, requests=(request,), synthetic=synthetic, explicit=False)
    return case, case.batch()


def test_release_before_0_16_is_given_probabilities() -> None:
    made, arguments = capturing("0.11.2", BEFORE_0_16)
    case, batch = greedy_batch()
    made.verify(batch, case.noise())

    assert torch.equal(batch.target_probs(), arguments["target_probs"])


def test_release_without_synthetic_mode_does_not_support_synthetic_rates() -> None:
    older, newer = capturing("0.11.2", BEFORE_0_16)[0], capturing("0.33.0", SINCE_0_33)[0]

    assert "vLLM 0.11.2 has no synthetic mode" in older.capabilities.unsupported[Capability.SYNTHETIC_RATES]
    assert not newer.capabilities.unsupported


def test_newer_release_keeps_its_own_defaults() -> None:
    made, arguments = capturing("0.33.0", SINCE_0_33)
    case, batch = greedy_batch(synthetic=True)
    made.verify(batch, case.noise())

    assert arguments["target_logits"] is batch.target_logits
    assert arguments["synthetic_mode"] is True
    assert arguments["synthetic_conditional_rates"] is batch.synthetic_rates
    assert (arguments["use_fp64_gumbel"], arguments["fly_window_size"]) == (False, None)


def test_interpreted_upstream_is_slow_and_compiled_upstream_is_not() -> None:
    def make(interpreted: bool) -> VllmSampler:
        return dataclasses.replace(capturing("0.33.0", SINCE_0_33)[0], interpreted=interpreted)

    assert make(True).capabilities.slow
    assert not make(False).capabilities.slow


# Known defects


def test_known_defects_name_checks_that_exist() -> None:
    named = {code for defect in read_defects("fairdraw_engines") for code in defect["checks"]}
    assert named <= {check.code for check in all_checks()}


def test_fixed_defect_is_known_in_older_releases_only() -> None:
    assert "REJ110" in ROW.known_defects("0.24.9")
    assert "REJ110" not in ROW.known_defects("0.25.0")
    assert "REJ110" not in ROW.known_defects("0.33.0.dev1")


def test_defect_that_a_release_brought_is_known_from_there_on() -> None:
    with_it = [release for release in ("0.10.2", "0.11.0", "0.11.1") if "REJ211" in ROW.known_defects(release)]
    assert with_it == ["0.11.0"]


def test_check_broken_by_two_defects_gives_both_reasons() -> None:
    reason = ROW.known_defects("0.11.0")["REJ701"]

    assert "placeholder-draft: " in reason
    assert "greedy-sentinel: " in reason
    assert "https://github.com/vllm-project/vllm/pull/46533" in reason
