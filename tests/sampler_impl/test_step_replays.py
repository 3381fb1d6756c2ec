"""Which steps are captured and replayed; and on a GPU, that a replay gives the tokens of a launch."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from step_cases import Case, make_case

from fairdraw.sampler_impl._step.replays import OFTEN, REMEMBERED, Replays
from fairdraw.sampler_impl.step import Drafts, StepInputs, StepOutput, StepPlan

CPU = torch.device("cpu")
COUNTS = [3, 0, 1, 2]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="replays are CUDA graphs")


class Graph:
    """Stands in for a CUDA graph; counts what is done with it."""

    made: list[Graph]
    fails = False

    def __init__(self) -> None:
        self.is_capturing, self.replays = False, 0
        Graph.made.append(self)

    def capture_begin(self, capture_error_mode: str) -> None:
        assert capture_error_mode == "relaxed"
        if Graph.fails:
            raise RuntimeError("no capture today")
        self.is_capturing = True

    def capture_end(self) -> None:
        self.is_capturing = False

    def replay(self) -> None:
        assert not self.is_capturing
        self.replays += 1


@pytest.fixture(autouse=True)
def graphs(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> list[Graph]:
    if "gpu" in request.node.name:
        return []
    monkeypatch.setattr(Graph, "made", [], raising=False)
    monkeypatch.setattr(Graph, "fails", False)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return Graph.made


def case_of(seed: int = 0) -> Case:
    return make_case(seed, COUNTS, 40, edits=True, drafts=Drafts.PROBS)


def plan_with(case: Case, most: int = 2) -> StepPlan:
    """On a CPU, as if steps could be captured there."""
    plan = StepPlan(case.capacity, CPU)
    plan._replays = Replays(plan._known, CPU, most)
    return plan


def test_a_step_is_captured_when_it_comes_often_and_then_replayed(graphs: list[Graph]) -> None:
    """The first step is checked alone: only then are its tensors by slot known."""
    case = case_of()
    plan = plan_with(case)
    for _ in range(OFTEN):
        expected = plan(case.inputs)
    assert not graphs
    plan(case.inputs)
    assert [graph.replays for graph in graphs] == [0]
    for _ in range(3):
        assert plan(replace(case.inputs)).token_ids is not None  # other inputs, the same tensors
    assert [graph.replays for graph in graphs] == [3]
    assert torch.equal(plan(case.inputs).num_tokens, expected.num_tokens)


def other_memory(tensor: torch.Tensor) -> torch.Tensor:  # [...] any -> the same
    return tensor.clone()


def other_stride(logits: torch.Tensor) -> torch.Tensor:  # [num_rows, vocab_size] any -> the same
    """At the same address, each row further from the last."""
    return logits.as_strided((1, logits.shape[1]), (2 * logits.shape[1], 1))


BY_BATCH = ("logits", "positions", "cu_num_rows", "slots", "draft_token_ids", "draft_probs", "grammar_mask")


@pytest.mark.parametrize("name", BY_BATCH)
def test_a_tensor_that_lies_elsewhere_is_another_step(name: str) -> None:
    case = case_of()
    plan = plan_with(case)
    plan(case.inputs)
    key = plan._replays.key_of(case.inputs)
    assert key is not None
    assert key == plan._replays.key_of(replace(case.inputs))
    moved = replace(case.inputs, **{name: other_memory(getattr(case.inputs, name))})
    assert plan._replays.key_of(moved) not in (None, key)
    assert plan._replays.key_of(replace(case.inputs, **{name: None})) != key


def test_shape_stride_and_type_at_the_same_address_are_another_step() -> None:
    case = case_of()
    plan = plan_with(case)
    plan(case.inputs)
    logits, ids = case.inputs.logits, case.inputs.draft_token_ids
    assert ids is not None
    views: list[dict[str, Any]] = [
        {"logits": logits[:-1]},
        {"logits": logits[:1]},
        {"logits": other_stride(logits)},
        {"logits": logits.view(torch.int32)},
        {"draft_token_ids": ids[:-1]},
    ]
    keys = [plan._replays.key_of(replace(case.inputs, **view)) for view in [{}, *views]]
    assert len(set(keys)) == len(keys)


def test_tensors_by_slot_that_moved_are_checked_before_anything_is_replayed() -> None:
    case = case_of()
    plan = plan_with(case)
    plan(case.inputs)
    key = plan._replays.key_of(case.inputs)
    case.inputs.parameters.temperature.data = case.inputs.parameters.temperature.clone()
    assert plan._replays.key_of(case.inputs) is None
    plan(case.inputs)
    assert plan._replays.key_of(case.inputs) not in (None, key)


def test_what_is_no_tensor_is_left_to_the_checks() -> None:
    case = case_of()
    plan = plan_with(case)
    plan(case.inputs)
    wrong: Any = [1, 2, 3]
    with pytest.raises(TypeError, match=r"^StepPlan: slots"):
        plan(replace(case.inputs, slots=wrong))


def test_the_graph_that_was_not_used_for_longest_goes_first(graphs: list[Graph]) -> None:
    case = case_of()
    plan = plan_with(case, most=2)
    steps = [replace(case.inputs, logits=case.inputs.logits.clone()) for _ in range(3)]
    for step in (steps[0], steps[1]):
        for _ in range(OFTEN + 1):
            plan(step)
    plan(steps[0])
    for _ in range(OFTEN + 1):
        plan(steps[2])
    kept = [plan._replays.key_of(step) in plan._replays.graphs for step in steps]
    assert kept == [True, False, True]
    assert len(graphs) == 3


def test_steps_that_never_come_again_are_forgotten(graphs: list[Graph]) -> None:
    case = case_of()
    plan = plan_with(case)
    plan(case.inputs)
    for number in range(REMEMBERED + 40):
        plan._replays.note((number,), lambda: pytest.fail("captured"))
    assert len(plan._replays.sights) == REMEMBERED
    assert not graphs


def test_failed_capture_warns_once_and_steps_are_launched(graphs: list[Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Graph, "fails", True)
    case = case_of()
    plan = plan_with(case)
    for _ in range(OFTEN):
        expected = plan(case.inputs)
    with pytest.warns(UserWarning, match="could not be captured"):
        plan(case.inputs)
    for _ in range(2 * OFTEN):  # a second warning would be an error
        assert torch.equal(plan(case.inputs).token_ids, expected.token_ids)
    assert len(graphs) == 1


def test_callers_who_capture_or_validate_get_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of()
    plan = plan_with(case)
    for _ in range(2 * OFTEN):
        plan(case.inputs)
    (graph, _output) = next(iter(plan._replays.graphs.values()))
    before = graph.replays  # type: ignore[attr-defined]  # a Graph
    plan(case.inputs, validate=True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    plan(case.inputs)
    assert graph.replays == before  # type: ignore[attr-defined]  # as above


def test_a_plan_without_replays_and_one_on_a_cpu_capture_nothing(graphs: list[Graph]) -> None:
    case = case_of()
    for plan in (plan_with(case, most=0), StepPlan(case.capacity, CPU)):
        for _ in range(2 * OFTEN):
            plan(case.inputs)
    assert not graphs


# On a GPU


def tokens_of(output: StepOutput) -> list[list[int]]:
    rows: list[list[int]] = output.token_ids.tolist()
    return rows


def changed(inputs: StepInputs, seed: int) -> None:
    """Other contents at the same places."""
    noise = torch.Generator(inputs.logits.device).manual_seed(seed)
    inputs.logits.normal_(generator=noise)
    inputs.positions.add_(1)
    inputs.parameters.temperature.uniform_(0, 2, generator=noise)


@needs_gpu
@pytest.mark.parametrize("drafts", [Drafts.NONE, Drafts.ONE_HOT, Drafts.PROBS])
@pytest.mark.parametrize("edits", [False, True])
def test_gpu_replays_give_the_tokens_of_launches(drafts: Drafts, edits: bool) -> None:
    """Whatever changes in place, in batches of several sizes by turns."""
    counts = [0] * 4 if drafts is Drafts.NONE else COUNTS
    case = make_case(3, counts, 300, edits=edits, drafts=drafts)
    replayed, launched = StepPlan(case.capacity, "cuda"), StepPlan(case.capacity, "cuda", replays=0)
    steps = [make_case(seed, counts[:size], 300, edits=edits, drafts=drafts) for seed, size in ((3, 4), (4, 2), (5, 3))]
    batches = [one.on(torch.device("cuda")) for one in steps]
    for turn in range(3 * OFTEN):
        for batch in batches:
            changed(batch, turn)
            expected = tokens_of(launched(batch))
            assert tokens_of(replayed(replace(batch))) == expected
    assert len(replayed._replays.graphs) == len(batches)


@needs_gpu
def test_gpu_replays_follow_the_stream_and_survive_eviction() -> None:
    case = case_of()
    inputs = case.on(torch.device("cuda"))
    plan, launched = StepPlan(case.capacity, "cuda", replays=1), StepPlan(case.capacity, "cuda", replays=0)
    steps = [inputs, replace(inputs, logits=inputs.logits.clone())]
    side = torch.cuda.Stream()
    for turn in range(4 * OFTEN):
        step = steps[(turn // (OFTEN + 2)) % 2]
        changed(step, turn)
        expected = tokens_of(launched(step))
        torch.cuda.synchronize()
        with torch.cuda.stream(side if turn % 3 == 0 else torch.cuda.current_stream()):
            assert tokens_of(plan(step)) == expected
        torch.cuda.synchronize()
    assert len(plan._replays.graphs) == 1


@needs_gpu
def test_gpu_a_callers_graph_holds_launches() -> None:
    case = case_of()
    inputs = case.on(torch.device("cuda"))
    plan, launched = StepPlan(case.capacity, "cuda"), StepPlan(case.capacity, "cuda", replays=0)
    for _ in range(2 * OFTEN):
        plan(inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = plan(inputs)
    changed(inputs, 7)
    graph.replay()
    assert tokens_of(output) == tokens_of(launched(inputs))
