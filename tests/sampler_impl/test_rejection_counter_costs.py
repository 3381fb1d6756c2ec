"""What a step of our sampler with counter noise costs, counted by the interpreter and the wheel's compiler."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from fairdraw.perf_regression._compiled import compile_groups
from fairdraw.perf_regression._counts import counted
from fairdraw.sampler_impl import rejection_counter
from fairdraw.sampler_impl._counter import launch
from fairdraw.sampler_impl._counter.step import KNOWN

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="counts what the interpreter does")
BATCH_SIZE, SPEC_LEN = 4, 2


def make_step(
    kind: str, vocab_size: int, *, accepted: bool = False, **changes: Any  # Any: arguments
) -> Callable[[], object]:  # fmt: skip
    """Greedy requests with bonus rows, whose drafts are all the argmax, or all not."""
    num_rows, num_tokens = BATCH_SIZE * (SPEC_LEN + 1), BATCH_SIZE * SPEC_LEN
    logits = torch.zeros(num_rows, vocab_size, dtype=torch.bfloat16)
    logits[:, 7] = 5
    draft = torch.zeros(num_tokens, vocab_size, dtype=torch.bfloat16)
    drafts = {
        "probs": {"draft_probs": draft.float()},
        "logits": {"draft_logits": draft},
        "logits+lse": {"draft_logits": draft, "draft_logsumexp": torch.zeros(num_tokens)},
        "one-hot": {},
    }
    arguments: dict[str, Any] = {
        "draft_token_ids": torch.full((num_tokens,), 7 if accepted else 8, dtype=torch.int32),
        "cu_num_draft_tokens": (torch.arange(BATCH_SIZE, dtype=torch.int32) + 1) * SPEC_LEN,
        "max_spec_len": SPEC_LEN,
        "logits": logits,
        "temperature": torch.zeros(BATCH_SIZE),
        "seeds": torch.arange(BATCH_SIZE),
        "positions": torch.arange(BATCH_SIZE),
        "backend": "triton",
    }
    return partial(rejection_counter.rejection_sample, **{**arguments, **drafts[kind], **changes})


def bytes_of_logits(step: Callable[[], object]) -> int:
    with counted({"logits": step.keywords["logits"]}) as counts:  # type: ignore[attr-defined]  # a partial
        step()
    return counts.bytes_read["logits"]


@pytest.mark.parametrize("kind", ["probs", "one-hot"])
def test_bonus_rows_are_read_only_by_requests_that_accept_everything(kind: str) -> None:
    row = 2 * 5001
    rejected = bytes_of_logits(make_step(kind, 5001))
    accepted = bytes_of_logits(make_step(kind, 5001, accepted=True))
    num_tokens = BATCH_SIZE * SPEC_LEN
    gathered = 2 * num_tokens * 5  # by the program of either block, again as the request is greedy, and to accept
    assert rejected == num_tokens * 2 * row + gathered  # twice: that the request is greedy is known only then
    assert accepted - rejected == BATCH_SIZE * row


@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "random"])
@pytest.mark.parametrize("kind", ["probs", "logits+lse", "one-hot"])
def test_rows_behind_a_rejected_draft_are_not_read(kind: str, greedy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a workspace, of a batch that more than fills a card. The draft token has a probability of nearly 0."""
    monkeypatch.setattr(launch, "MEASURE_STRIPS", {2: 0})
    vocab_size = 4096 * 3
    changes: dict[str, Any] = {"temperature": torch.full((BATCH_SIZE,), 0.0 if greedy else 1.0)}  # Any: arguments
    if kind == "probs":
        changes["draft_probs"] = torch.full((BATCH_SIZE * SPEC_LEN, vocab_size), 0.5)
    workspace = rejection_counter.make_workspace(BATCH_SIZE, SPEC_LEN, vocab_size, "cpu")
    every, some = (
        bytes_of_logits(make_step(kind, vocab_size, workspace=space, **changes)) for space in (None, workspace)
    )
    assert not workspace.any()
    # A greedy request is known as such after a first block; the tile of a one-hot draft token is read twice.
    entries = vocab_size + (2 * 4096 if greedy else 1024 if kind == "one-hot" else 0)
    assert every - some == pytest.approx(BATCH_SIZE * (SPEC_LEN - 1) * 2 * entries, rel=0.001)


def test_no_kernel_spills_where_bonus_rows_are_drawn_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one tile per program, and with several. One process compiles all."""
    groups = {}
    for tiles in ("one", "several"):
        for kind in ("probs", "logits", "logits+lse", "one-hot"):
            workspace = rejection_counter.make_workspace(BATCH_SIZE, SPEC_LEN, 32000, "cpu")
            with counted(run_kernels=False) as counts:
                make_step(kind, 32000, workspace=workspace)()
            assert [one.kernel for one in counts.launches] == ["measure_kernel", "accept_kernel", "draw_kernel"]
            groups[f"{kind}, {tiles}"] = counts.launches
        KNOWN.plans.clear()
        monkeypatch.setattr(launch, "MEASURE_STRIPS", {3: 0})
        monkeypatch.setattr(launch, "DRAW_STRIPS", {2: 0})
    spills = {name: [kernel.spills for kernel in kernels] for name, kernels in compile_groups(groups).items()}
    assert spills == {name: [0, 0, 0] for name in groups}


def test_step_without_drafts_begins_when_its_logits_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step's first kernel must not be launched while what comes before the step still runs."""
    monkeypatch.setattr(launch, "launches_overlap", lambda device: True)
    vocab_size, workspace = 4096, rejection_counter.make_workspace(BATCH_SIZE, SPEC_LEN, 4096, "cpu")
    nothing_drafted = {
        "draft_token_ids": torch.zeros(0, dtype=torch.int32),
        "cu_num_draft_tokens": torch.zeros(BATCH_SIZE, dtype=torch.int32),
        "logits": torch.zeros(BATCH_SIZE, vocab_size, dtype=torch.bfloat16),
    }
    for changes in ({}, nothing_drafted):
        with counted(run_kernels=False) as counts:
            make_step("one-hot", vocab_size, workspace=workspace, **changes)()
        early = [one.options.get("launch_pdl", False) for one in counts.launches]
        assert early == [False, *[True] * (len(early) - 1)]
