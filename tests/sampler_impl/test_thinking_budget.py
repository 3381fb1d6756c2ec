"""Our thinking budget on one request: what is forced where, refused and read. Needs no vLLM.

The checks of the suite compare it with a recount for any event trace (`test_lifecycle.py`).
"""

from types import SimpleNamespace

import pytest
import torch

from fairdraw.sampler_impl.thinking_budget import ForcedToken, ThinkingBudget


def added(row: int, budget: int | None, prompt: list[int] | None, output: list[int]) -> SimpleNamespace:
    """vLLM's `BatchUpdate` with one new request."""
    params = SimpleNamespace(thinking_token_budget=budget)
    return SimpleNamespace(removed=[], added=[(row, params, prompt, output)], moved=[])


def tracked(budget: int | None, prompt: list[int] | None, output: list[int], row: int = 0) -> ThinkingBudget:
    ours = ThinkingBudget([7], [8, 9])
    ours.sync_batch(added(row, budget, prompt, output))
    return ours


def forced_logits(ours: ThinkingBudget, num_rows: int, bonus: bool, drafts: list[list[int]]) -> list[list[int]]:
    logits = ours.apply_to_logits(torch.zeros(num_rows, 10), bonus, drafts)
    assert set(logits.unique().tolist()) <= {0.0, 1e9}
    return logits.nonzero().tolist()


def test_forced_tokens_are_set_in_the_rows_of_drafts_and_bonus() -> None:
    outputs, drafts = [[], [], [1]], [[1], [2, 3], [8, 9, 1]]
    ours = tracked(2, [7], outputs[2], row=2)
    ours.update_state(outputs, drafts)
    assert ours.forced == {2: [ForcedToken(1, 8)]}
    assert forced_logits(ours, 6, False, drafts) == [[4, 8]]
    assert forced_logits(ours, 3, True, drafts) == []
    drafts[2] = [1, 8]
    ours.update_state(outputs, drafts)
    assert forced_logits(ours, 5, False, drafts) == [[4, 8]]
    assert forced_logits(ours, 3, True, drafts) == [[2, 9]]


def test_step_without_drafts_forces_the_request_s_own_row() -> None:
    outputs: list[list[int]] = [[], [], [1, 1]]
    ours = tracked(2, [7], outputs[2], row=2)
    for drafts in ([[], [], []], []):
        ours.update_state(outputs, drafts)
        assert forced_logits(ours, 3, False, drafts) == [[2, 8]]


@pytest.mark.parametrize("budget", [None, -1])
def test_request_without_budget_is_not_tracked(budget: int | None) -> None:
    assert not tracked(budget, [7], []).has_tracked_requests()


@pytest.mark.parametrize("num_in_prompt", range(6))
def test_marker_may_span_prompt_and_output_at_any_place(num_in_prompt: int) -> None:
    start, output = [1, 2, 3, 4, 5], list[int]()
    ours = ThinkingBudget(start, [8])
    ours.sync_batch(added(0, 9, start[:num_in_prompt], output))
    output += start[num_in_prompt:]
    ours.update_state([output])
    assert ours.think_counts() == {0: 0}


def test_embedded_prompt_opens_no_section() -> None:
    ours = tracked(0, None, output := [7])
    ours.update_state([output])
    assert ours.think_counts() == {0: 0}
    assert ours.forced == {0: [ForcedToken(0, 8)]}


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match=r"start_token_ids=\[\], but it must be at least one token id"):
        ThinkingBudget([], [1])
    with pytest.raises(ValueError, match=r"end_token_ids=\[-1\], but"):
        ThinkingBudget([1], [-1])
    with pytest.raises(ValueError, match=r"start_token_ids=\[1\] equals end_token_ids"):
        ThinkingBudget([1], [1])
    with pytest.raises(ValueError, match="thinking_token_budget=-2, but it must be at least 0"):
        tracked(-2, [], [])
    ours = tracked(0, [7], output := [1])
    with pytest.raises(ValueError, match=r"update_state: output_token_ids\[0\] is not the list"):
        ours.update_state([[1]])
    ours.update_state([output])
    with pytest.raises(ValueError, match=r"logits are \[1, 8\], but row 0 and token 8 must be in it"):
        ours.apply_to_logits(torch.zeros(1, 8), False)
