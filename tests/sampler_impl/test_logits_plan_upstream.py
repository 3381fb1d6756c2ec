"""Our logits plan against the real vLLM 0.22.0: filters, samplers with and without drafts, a deviation."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairdraw._core.checks import Profile
from fairdraw.adapters import load
from fairdraw.adapters._runtime import quiet_imports
from fairdraw.contracts import AnySampler
from fairdraw.properties._logits_asserts import as_float32, differing_rows
from fairdraw.properties.logits_plan import CHECKS
from fairdraw.sampler_impl._shared.filters import apply_min_p, apply_top_k_top_p
from fairdraw.sampler_impl.logits_plan import LogitsPlan
from fairdraw.strategies.logits_plan import LogitsCase, LogitsRequestRecipe
from fairdraw.strategies.rows import TARGET_KINDS, target_row

pytestmark = pytest.mark.usefixtures("upstream")
BY_CODE = {check.code: check for check in CHECKS}


@pytest.fixture(scope="module")
def upstream() -> AnySampler:
    """The real vLLM, imported when a test of this file begins: collecting it would take seconds in every worker."""
    with quiet_imports():
        vllm = pytest.importorskip("vllm")
    if vllm.__version__ != "0.22.0":
        pytest.skip("the contract is that of vLLM 0.22.0")
    return load("logits_plan/vllm", "cpu")


@st.composite
def rows_and_filters(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, top-k and top-p of a few rows; bulk numbers follow from one drawn seed."""
    vocab_size = draw(st.sampled_from((1, 2, 31, 100, 1025)))
    kinds = draw(st.lists(st.sampled_from((*TARGET_KINDS, "empty", "nan")), min_size=1, max_size=5))
    seed = draw(st.integers(0, 4095))
    logits = np.stack([target_row(kind, vocab_size, seed + i) for i, kind in enumerate(kinds)])
    rng = np.random.default_rng(seed)
    top_k = rng.integers(1, vocab_size + 1, size=len(kinds)).astype(np.int32)
    top_p = rng.choice(np.array([1e-6, 0.1, 0.5, 0.9, 0.999, 1.0], np.float32), size=len(kinds))
    return torch.from_numpy(logits), torch.from_numpy(top_k), torch.from_numpy(top_p)


@settings(max_examples=150)
@given(rows_and_filters(), st.booleans(), st.booleans(), st.booleans())
def test_top_k_and_top_p_equal_upstream(
    drawn: tuple[Tensor, Tensor, Tensor], has_top_k: bool, has_top_p: bool, may_wait: bool
) -> None:
    """With and without waiting for the device, for which vLLM has two ways to top-k."""
    logits, top_k, top_p = drawn
    filters = (top_k if has_top_k else None, top_p if has_top_p else None)
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch

    theirs = apply_top_k_top_p_pytorch(logits.clone(), *filters, allow_cpu_sync=may_wait)
    assert not differing_rows(theirs, apply_top_k_top_p(logits.clone(), *filters))


@settings(max_examples=60)
@given(rows_and_filters())
def test_min_p_equals_upstream(drawn: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, _, min_p = drawn
    from vllm.v1.sample.logits_processor.builtin import MinPLogitsProcessor

    processor = object.__new__(MinPLogitsProcessor)
    processor.min_p_count, processor.min_p = 1, min_p.unsqueeze(1)
    assert not differing_rows(processor.apply(logits.clone()), apply_min_p(logits.clone(), min_p))


@pytest.mark.parametrize("code", ["PLAN160", "PLAN161", "PLAN162"])
def test_logits_of_the_specification_equal_upstream(code: str, upstream: AnySampler) -> None:
    """`make check` compares ours."""
    BY_CODE[code].run(load("logits_plan/oracle", "cpu"), profile=Profile("upstream", 60, 60), reference=upstream)


def test_minimum_in_the_bonus_row_counts_drafts_unlike_upstream(upstream: Any) -> None:
    """Named deviation: the drafts reach the minimum, so the bonus token may stop; vLLM bars it."""
    case = LogitsCase(33, (LogitsRequestRecipe(kinds=("min-tokens",), num_output=1, num_drafts=2),), seed=5)
    batch = case.batch()
    (request,) = batch.requests
    assert len(request.output_token_ids) < request.params.min_tokens <= 3
    ours = load("logits_plan/torch", "cpu").open_plan(case.setup()).process(batch)
    theirs = upstream.open_plan(case.setup()).process(batch)
    stops = sorted(request.params.all_stop_token_ids)
    assert differing_rows(as_float32(theirs), as_float32(ours)) == [2]
    assert bool((theirs[2, stops] == -torch.inf).all())
    assert bool((ours[2, stops] > -torch.inf).all())


def test_plan_follows_the_objects_of_upstream() -> None:
    """Real `SamplingParams` and `BatchUpdate`: a greedy request, one with filters, a swap."""
    from vllm import SamplingParams
    from vllm.v1.sample.logits_processor.interface import BatchUpdate, MoveDirectionality

    plan, outputs = LogitsPlan(vocab_size=20), [[4], [5, 5]]
    params = [
        SamplingParams(temperature=0.0, top_k=3, logit_bias={7: 100.0}),
        SamplingParams(temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, presence_penalty=1.0, allowed_token_ids=[5, 6]),
    ]
    added = [(row, one, [1], outputs[row]) for row, one in enumerate(params)]
    plan.sync_batch(BatchUpdate(batch_size=2, removed=[], added=added, moved=[]))
    assert plan.processors == ("allowed ids", "logit bias", "penalties", "temperature", "min-p", "top-k/top-p")
    plan.sync_batch(BatchUpdate(batch_size=2, removed=[], added=[], moved=[(0, 1, MoveDirectionality.SWAP)]))
    processed = plan.apply(torch.zeros(2, 20), outputs[::-1])
    assert processed[0].argmax() == 6
    assert processed[1].argmax() == 7
    assert (processed[0] > -torch.inf).nonzero().flatten().tolist() in ([6], [5, 6])
