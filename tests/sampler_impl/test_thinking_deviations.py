"""Where our thinking budget deviates from the real vLLM 0.22.0, and why it should.

The names are those at the top of `sampler_impl/thinking_budget.py`. Each test shows what vLLM does and what ours does,
so that a release that does better is noticed.
"""

from typing import Any

import pytest

from fairdraw.adapters import load
from fairdraw.adapters._runtime import quiet_imports
from fairdraw.contracts import Markers, RequestParams
from fairdraw.strategies._lifecycle_checkers import OpenSession
from fairdraw.strategies._serving_batch import ServedRequest, ServingBatch

with quiet_imports():
    vllm = pytest.importorskip("vllm")

if vllm.__version__ != "0.22.0":
    pytest.skip("the defects are those of vLLM 0.22.0", allow_module_level=True)

S, E1, E2, E3 = 1, 3, 4, 5
Forced = dict[int, list[tuple[int, int]]]
"""Row to position and token."""
NOTHING: Forced = {}


class Both:
    """vLLM's holder and ours on the same batch."""

    def __init__(self, start: tuple[int, ...] = (S,), end: tuple[int, ...] = (E1,)) -> None:
        scanners = (load("thinking_budget/vllm", "cpu"), load("thinking_budget/torch"))
        self.sessions = [OpenSession.of_thinking(scanner, Markers(start, end)) for scanner in scanners]
        self.batch = ServingBatch(40)

    def add(self, budget: int | None, output: list[int], prompt: tuple[int, ...] = ()) -> ServedRequest:
        request = self.batch.add(RequestParams(thinking_token_budget=budget), prompt, output)
        return request

    def step(self, *drafts: list[int]) -> tuple[Forced, Forced]:
        """What each of them forces in this step, theirs first."""
        changes = self.batch.take_changes()
        for row, request in enumerate(self.batch.requests):
            request.draft_token_ids = drafts[row] if drafts else []
        for session in self.sessions:
            session.sync(changes)
        theirs, ours = (session.forced(self.batch.batch()) for session in self.sessions)
        return theirs, ours

    def after(self, token_ids: list[int]) -> tuple[list[int], list[int]]:
        """The only request's forced token after each of these is emitted, 0 for none; theirs and ours."""
        steps = []
        for token_id in token_ids:
            self.batch.requests[0].output_token_ids.append(token_id)
            steps.append([forced[0][0][1] if forced else 0 for forced in self.step()])
        return [theirs for theirs, _ in steps], [ours for _, ours in steps]


def one(
    budget: int, output: list[int], *, prompt: tuple[int, ...] = (), end: tuple[int, ...] = (E1,)
) -> tuple[Both, list[int]]:
    """A batch of one request, and its live output, which the test changes."""
    both = Both(end=end)
    live = both.add(budget, output, prompt).output_token_ids
    assert isinstance(live, list)
    return both, live


def test_no_draft_step_forces_another_request_upstream() -> None:
    both = Both()
    *_, last = (both.add(budget, output) for budget, output in ((None, [9]), (None, [9]), (2, [S])))
    assert both.step([], [], [10]) == (NOTHING, NOTHING)
    last.output_token_ids += [10, 10]
    assert both.step() == ({0: [(0, E1)]}, {2: [(0, E1)]})


def test_re_entry_is_not_watched_upstream() -> None:
    both, _ = one(2, [])
    assert both.after([S, 10, E1, 11, S, 10, 10]) == ([0] * 7, [0, 0, 0, 0, 0, 0, E1])


def test_stray_end_makes_upstream_force_an_end_into_the_answer() -> None:
    both, _ = one(3, [])
    assert both.after([E1, S, 10, E1, 11, 11]) == ([0, 0, 0, 0, E1, E1], [0] * 6)


def test_cut_start_is_remembered_upstream() -> None:
    both, live = one(2, [10, S])
    assert both.step() == (NOTHING, NOTHING)
    del live[1:]
    assert both.after([10, 10, 10]) == ([0, 0, E1], [0, 0, 0])


def test_cut_while_forcing_makes_upstream_force_early_and_again() -> None:
    both, live = one(3, [S])
    assert both.after([10, 10, 10]) == ([0, 0, E1], [0, 0, E1])
    del live[2:]
    assert both.step() == ({0: [(0, E1)]}, NOTHING)
    assert both.after([E1, E1]) == ([E1, E1], [0, 0])


END = {"end": (E1, E2)}
ONE_STEP: dict[str, tuple[Any, dict[str, Any], list[list[int]], Forced, Forced]] = {
    "draft markers: a drafted end is forced again": ((3, [S, 10]), {}, [[10, E1, 11]], {0: [(2, E1)]}, NOTHING),
    "draft markers: a section in them overspends": ((0, [10]), {}, [[S, 10, 10]], NOTHING, {0: [(1, E1)]}),
    "draft of the end is not followed up": (
        (2, [S, 10]), END, [[10, E1, 11]], {0: [(1, E1)]}, {0: [(1, E1), (2, E2)]}
    ),
    "resume within an end marker starts it again": ((2, [S, 10, 10, E1]), END, [], {0: [(0, E1)]}, {0: [(0, E2)]}),
    "second start of one step renews the budget": ((3, [S, 10, S, 10]), {}, [], NOTHING, {0: [(0, E1)]}),
    "resume after a spent prompt forces the rest of an end": (
        (1, [E1, E2, 11]), {"prompt": (S, 10)} | END, [], {0: [(0, E2)]}, NOTHING
    ),
}  # fmt: skip
"""Budget and output, prompt and end, drafts; what vLLM forces, and what ours does."""


@pytest.mark.parametrize(("request_of", "more", "drafts", "theirs", "ours"), ONE_STEP.values(), ids=ONE_STEP)
def test_one_step_differs_upstream(
    request_of: Any, more: dict[str, Any], drafts: list[list[int]], theirs: Forced, ours: Forced
) -> None:
    both, _ = one(*request_of, **more)
    assert both.step(*drafts) == (theirs, ours)


def test_draft_of_the_end_is_left_to_chance_upstream() -> None:
    both, live = one(1, [S, 10], end=(E1, E2, E3))
    assert both.step([11]) == ({0: [(0, E1)]}, {0: [(0, E1)]})
    live.append(E1)
    assert both.step([E2]) == ({0: [(1, E3)]}, {0: [(0, E2), (1, E3)]})
    live.append(12)  # upstream the draft E2 may be rejected
    assert both.step([11]) == (NOTHING, {0: [(0, E1)]})


def test_draft_of_the_end_before_the_forced_position_is_taken_for_it_upstream() -> None:
    both, live = one(3, [S, 10], end=(E1, E2))
    assert both.step([E1, 11, 10]) == ({0: [(2, E1)]}, {0: [(2, E1)]})
    live += [E1, 12]
    assert both.step([10]) == ({0: [(0, E2)]}, {0: [(0, E1)]})


def test_late_ids_make_upstream_force_the_end_twice() -> None:
    both, _ = one(1, [S, 10])
    assert both.step() == ({0: [(0, E1)]}, {0: [(0, E1)]})
    assert both.after([-1]) == ([E1], [0])


def test_repeat_in_the_drafts_is_forgotten_upstream() -> None:
    both, _ = one(4, [S, 10, 10])
    assert both.step() == (NOTHING, NOTHING)
    assert both.step([10, 10, 10]) == (NOTHING, {0: [(2, E1)]})


def test_repeat_at_the_bonus_position_is_forgotten_upstream() -> None:
    both, live = one(3, [S, 10])
    both.step([10])
    live.append(10)
    assert both.step([10]) == ({0: [(1, E1)]}, {0: [(1, E1)]})
    assert both.step([10]) == (NOTHING, {0: [(1, E1)]})


def test_resume_after_a_second_start_renews_the_budget_upstream() -> None:
    both, _ = one(3, [])
    assert both.after([S, 10, S, 10]) == ([0, 0, 0, E1], [0, 0, 0, E1])
    both.batch.preempt(0)
    both.batch.resume(same_list=True)
    assert both.step() == (NOTHING, {0: [(0, E1)]})


def test_long_start_in_a_prompt_overspends_upstream() -> None:
    both = Both(start=(S, 2, 2))
    both.add(3, [], (S, 2, 2, 10))
    assert both.after([10, 10, 10, 10]) == ([0, 0, 0, E1], [0, E1, E1, E1])


def test_spanning_end_is_missed_upstream() -> None:
    both, _ = one(3, [], prompt=(S, 10, E1), end=(E1, E2))
    assert both.after([E2, 11, 11]) == ([E1, E1, E1], [0, 0, 0])


def test_nested_marker_is_read_as_the_shorter_one_upstream() -> None:
    both = Both(end=(2, S))
    both.add(1, [])
    assert both.after([2, S, 11]) == ([0, 0, 2], [0, 0, 0])


def one_of_two_is_tracked() -> Both:
    both = Both()
    both.add(1, [S, 10], (10,))
    both.add(None, [S, 10], (10,))
    assert both.step() == ({0: [(0, E1)]}, {0: [(0, E1)]})
    return both


def test_left_behind_state_of_a_finished_request_is_inherited_upstream() -> None:
    both = one_of_two_is_tracked()
    both.batch.remove(0)
    assert both.step() == ({0: [(0, E1)]}, NOTHING)


def test_swap_with_an_untracked_request_gives_both_rows_the_state_upstream() -> None:
    both = one_of_two_is_tracked()
    both.batch.swap(0, 1)
    assert both.step() == ({0: [(0, E1)], 1: [(0, E1)]}, {1: [(0, E1)]})
