"""Where our thinking budget deviates from the real vLLM 0.22.0, and why it should.

The names are those at the top of `sampler_impl/thinking_budget.py`. Each test says what vLLM does and what we do, so
that a release which does better is noticed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fairdraw._adapters._runtime import prepare_triton, quiet_imports
from fairdraw.sampler_impl.thinking_budget import ThinkingBudget

prepare_triton("cpu")
with quiet_imports():
    vllm = pytest.importorskip("vllm")
    from vllm.utils.torch_utils import async_tensor_h2d
    from vllm.v1.sample.logits_processor.interface import BatchUpdate, MoveDirectionality
    from vllm.v1.sample.logits_processor.state import LogitsProcessors
    from vllm.v1.sample.thinking_budget_state import ThinkingBudgetStateHolder
    from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

if vllm.__version__ != "0.22.0":
    pytest.skip("the defects are those of vLLM 0.22.0", allow_module_level=True)

VOCAB_SIZE = 40
Forced = list[tuple[int, int]]
"""Row and token."""


@pytest.fixture(autouse=True)
def _host_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_tensor_h2d, "__defaults__", (False,))


@dataclass
class Request:
    prompt: list[int]
    budget: int | None
    output: list[int] = field(default_factory=list)


class Both:
    """vLLM's holder and ours, told the same."""

    def __init__(self, start: list[int], end: list[int], num_spec_tokens: int = 0) -> None:
        config = SimpleNamespace(reasoning_start_token_ids=start, reasoning_end_token_ids=end)
        self.theirs = ThinkingBudgetStateHolder(config, 8, num_spec_tokens, torch.device("cpu"), False)
        self.ours = ThinkingBudget(start, end)
        self.rows: list[Request] = []

    def sync(self, removed: Any = (), added: Any = (), moved: Any = ()) -> None:
        update = BatchUpdate(
            batch_size=len(self.rows),
            removed=list(removed),
            added=[self.added(row) for row in added],
            moved=[(source, target, MoveDirectionality[name]) for source, target, name in moved],
        )
        self.theirs.sync_batch(update)
        self.ours.sync_batch(update)

    def added(self, row: int) -> tuple[int, Any, list[int], list[int]]:
        request = self.rows[row]
        return row, SimpleNamespace(thinking_token_budget=request.budget), request.prompt, request.output

    def add(self, request: Request) -> Request:
        self.rows.append(request)
        self.sync(added=[len(self.rows) - 1])
        return request

    def step(self, *drafts: list[int]) -> tuple[dict[str, Forced], dict[str, Forced]]:
        """What each of them forces in this step, theirs first: in plain rows, or in bonus and draft rows."""
        lists = list(drafts) or [[] for _ in self.rows]
        outputs = [request.output for request in self.rows]
        combined = [[*output, *ids] if ids else output for output, ids in zip(outputs, lists, strict=True)]
        self.theirs.update_state(combined, lists)
        self.ours.update_state(outputs, lists)
        return self.apply(self.theirs, lists), self.apply(self.ours, lists)

    def apply(self, holder: Any, drafts: list[list[int]]) -> dict[str, Forced]:
        num_tokens = sum(map(len, drafts))
        plan = (
            {"bonus": (len(drafts), True), "draft": (num_tokens, False)}
            if num_tokens
            else {"plain": (len(drafts), False)}
        )
        forced = {}
        for name, (num_rows, is_bonus) in plan.items():
            logits = holder.apply_to_logits(torch.zeros(num_rows, VOCAB_SIZE), is_bonus, drafts)
            assert set(logits.unique().tolist()) <= {0.0, 1e9}
            forced[name] = [(row, token) for row, token in logits.nonzero().tolist()]
        return {name: tokens for name, tokens in forced.items() if tokens}


S, E1, E2, E3 = 1, 3, 4, 5
NOTHING: dict[str, Forced] = {}


def one(
    budget: int, output: list[int], *, prompt: tuple[int, ...] = (), end: tuple[int, ...] = (E1,), k: int = 0
) -> Both:
    """A batch of one request, whose output is changed by the test."""
    both = Both([S], list(end), k)
    both.add(Request(list(prompt), budget, output))
    return both


def said(both: Both, token_ids: list[int]) -> tuple[list[Any], list[Any]]:
    """Tokens that are forced after each of these is emitted, theirs and ours."""
    steps = []
    for token_id in token_ids:
        both.rows[0].output.append(token_id)
        steps.append([[token for _, token in forced.get("plain", [])] for forced in both.step()])
    return [theirs for theirs, _ in steps], [ours for _, ours in steps]


def test_no_draft_step_forces_another_request_upstream() -> None:
    both = Both([S], [E1], num_spec_tokens=3)
    for budget, output in ((None, [9]), (None, [9]), (2, [S, 10, 10])):
        both.add(Request([], budget, output))
    assert both.step() == ({"plain": [(0, E1)]}, {"plain": [(2, E1)]})


def test_re_entry_is_not_watched_upstream() -> None:
    both = one(2, [])
    assert said(both, [S, 10, E1, 11, S, 10, 10]) == ([[]] * 7, [*[[]] * 6, [E1]])


def test_stray_end_makes_upstream_force_an_end_into_the_answer() -> None:
    both = one(3, [])
    assert said(both, [E1, S, 10, E1, 11, 11]) == ([*[[]] * 4, [E1], [E1]], [[]] * 6)


def test_cut_start_is_remembered_upstream() -> None:
    both = one(2, [10, S])
    assert both.step() == (NOTHING, NOTHING)
    del both.rows[0].output[1:]
    assert said(both, [10, 10, 10]) == ([[], [], [E1]], [[]] * 3)


def test_cut_while_forcing_makes_upstream_force_early_and_again() -> None:
    both = one(3, [S])
    assert said(both, [10, 10, 10]) == ([[], [], [E1]], [[], [], [E1]])
    del both.rows[0].output[2:]
    assert both.step() == ({"plain": [(0, E1)]}, NOTHING)
    assert said(both, [E1, E1]) == ([[E1], [E1]], [[], []])


def test_draft_markers_drafted_end_is_forced_again_upstream() -> None:
    both = one(3, [S, 10], k=3)
    assert both.step([10, E1, 11]) == ({"draft": [(2, E1)]}, NOTHING)


def test_draft_markers_section_within_the_drafts_overspends_upstream() -> None:
    both = one(0, [10], k=3)
    assert both.step([S, 10, 10]) == (NOTHING, {"draft": [(1, E1)]})


def test_draft_of_the_end_is_not_followed_up_upstream() -> None:
    both = one(2, [S, 10], end=(E1, E2), k=3)
    assert both.step([10, E1, 11]) == ({"draft": [(1, E1)]}, {"draft": [(1, E1), (2, E2)]})


def test_draft_of_the_end_is_left_to_chance_upstream() -> None:
    both = one(1, [S, 10], end=(E1, E2, E3), k=1)
    assert both.step([11]) == ({"draft": [(0, E1)]}, {"draft": [(0, E1)]})
    both.rows[0].output.append(E1)
    assert both.step([E2]) == ({"bonus": [(0, E3)]}, {"bonus": [(0, E3)], "draft": [(0, E2)]})
    both.rows[0].output.append(12)  # upstream the draft E2 may be rejected
    assert both.step([11]) == (NOTHING, {"draft": [(0, E1)]})


def test_draft_of_the_end_before_the_forced_position_is_taken_for_it_upstream() -> None:
    both = one(3, [S, 10], end=(E1, E2), k=3)
    assert both.step([E1, 11, 10]) == ({"draft": [(2, E1)]}, {"draft": [(2, E1)]})
    both.rows[0].output += [E1, 12]
    assert both.step([10]) == ({"draft": [(0, E2)]}, {"draft": [(0, E1)]})


def test_late_ids_make_upstream_force_the_end_twice() -> None:
    both = one(1, [S, 10])
    assert both.step() == ({"plain": [(0, E1)]}, {"plain": [(0, E1)]})
    assert said(both, [-1]) == ([[E1]], [[]])


def test_repeat_in_the_drafts_is_forgotten_upstream() -> None:
    both = one(4, [S, 10, 10], k=3)
    assert both.step() == (NOTHING, NOTHING)
    assert both.step([10, 10, 10]) == (NOTHING, {"draft": [(2, E1)]})


def test_repeat_at_the_bonus_position_is_forgotten_upstream() -> None:
    both = one(3, [S, 10], k=1)
    both.step([10])
    both.rows[0].output.append(10)
    assert both.step([10]) == ({"bonus": [(0, E1)]}, {"bonus": [(0, E1)]})
    assert both.step([10]) == (NOTHING, {"bonus": [(0, E1)]})


def test_resume_within_an_end_marker_starts_it_again_upstream() -> None:
    both = one(2, [S, 10, 10, E1], end=(E1, E2))
    assert both.step() == ({"plain": [(0, E1)]}, {"plain": [(0, E2)]})


def test_resume_after_a_second_start_renews_the_budget_upstream() -> None:
    both = one(3, [])
    assert said(both, [S, 10, S, 10]) == ([[], [], [], [E1]], [[], [], [], [E1]])
    both.sync(removed=[0])
    both.sync(added=[0])
    assert both.step() == (NOTHING, {"plain": [(0, E1)]})


def test_second_start_of_one_step_renews_the_budget_upstream() -> None:
    both = one(3, [S, 10, S, 10])
    assert both.step() == (NOTHING, {"plain": [(0, E1)]})


def test_resume_after_a_spent_prompt_forces_the_rest_of_an_end_upstream() -> None:
    both = one(1, [E1, E2, 11], prompt=(S, 10), end=(E1, E2))
    assert both.step() == ({"plain": [(0, E2)]}, NOTHING)


def test_long_start_in_a_prompt_overspends_upstream() -> None:
    both = Both([S, 2, 2], [E1])
    both.add(Request([S, 2, 2, 10], 3))
    assert said(both, [10, 10, 10, 10]) == ([[], [], [], [E1]], [[], [E1], [E1], [E1]])


def test_spanning_end_is_missed_upstream() -> None:
    both = one(3, [], prompt=(S, 10, E1), end=(E1, E2))
    assert said(both, [E2, 11, 11]) == ([[E1], [E1], [E1]], [[], [], []])


def test_nested_marker_is_read_as_the_shorter_one_upstream() -> None:
    both = Both([S], [2, S])
    both.add(Request([], 1))
    assert said(both, [2, S, 11]) == ([[], [], [2]], [[], [], []])


def make_batch(*budgets: int | None) -> tuple[InputBatch, ThinkingBudget]:
    """vLLM's own batch with its holder, and ours listening."""
    ours = ThinkingBudget([S], [E1])
    listener: Any = SimpleNamespace(is_argmax_invariant=lambda: False, update_state=ours.sync_batch)
    batch = InputBatch(
        max_num_reqs=4,
        max_model_len=64,
        max_num_batched_tokens=64,
        device=torch.device("cpu"),
        pin_memory=False,
        vocab_size=VOCAB_SIZE,
        block_sizes=[16],
        kernel_block_sizes=[16],
        logitsprocs=LogitsProcessors([listener]),
        reasoning_config=SimpleNamespace(reasoning_start_token_ids=[S], reasoning_end_token_ids=[E1]),
    )
    for row, budget in enumerate(budgets):
        state = CachedRequestState(
            req_id=str(row),
            prompt_token_ids=[10],
            mm_features=[],
            sampling_params=vllm.SamplingParams(thinking_token_budget=budget),
            generator=None,
            block_ids=([],),
            num_computed_tokens=0,
            output_token_ids=[S, 10],
        )
        batch.add_request(state)
    batch.refresh_metadata()
    return batch, ours


def forced_rows(holder: Any, batch: InputBatch) -> Forced:
    holder.update_state(batch.req_output_token_ids, None)
    logits = holder.apply_to_logits(torch.zeros(batch.num_reqs, VOCAB_SIZE), False, None)
    return [(row, token) for row, token in logits.nonzero().tolist()]


def test_left_behind_state_of_a_finished_request_is_inherited_upstream() -> None:
    batch, ours = make_batch(1, None)
    batch.remove_request("0")
    batch.condense()
    batch.refresh_metadata()
    assert forced_rows(batch.thinking_budget_state_holder, batch) == [(0, E1)]
    assert forced_rows(ours, batch) == []


def test_swap_with_an_untracked_request_gives_both_rows_the_state_upstream() -> None:
    batch, ours = make_batch(1, None)
    batch.swap_states(0, 1)
    batch.refresh_metadata()
    assert forced_rows(batch.thinking_budget_state_holder, batch) == [(0, E1), (1, E1)]
    assert forced_rows(ours, batch) == [(1, E1)]
