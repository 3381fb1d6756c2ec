"""The whole step refuses what it cannot do, in one sentence, on the host; values are looked at with `validate=True`."""

from __future__ import annotations

import copy
import math
import pickle
import re
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pytest
import torch
from step_cases import Case, make_case
from tensor_calls import replaced

from fairdraw.sampler_impl._shared.compiled import Compiled
from fairdraw.sampler_impl._shared.kernels import INTERPRETED
from fairdraw.sampler_impl._step import known, launch
from fairdraw.sampler_impl.step import Capacity, Drafts, StepInputs, StepPlan

if TYPE_CHECKING:
    from collections.abc import Callable

DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
GOOD = Capacity(4, 2, 40, torch.float32)
CAPACITIES: dict[str, tuple[Capacity, str]] = {
    "no request": (replace(GOOD, batch_size=0), "batch_size=0, but it must be an int in [1, 1048576]. Correct it."),
    "half a request": (replace(GOOD, batch_size=1.5), "batch_size=1.5, but it must be an int"),  # type: ignore[arg-type]
    "too many drafts": (replace(GOOD, max_spec_len=129), "max_spec_len=129, but it must be an int in [0, 128]"),
    "no vocabulary": (replace(GOOD, vocab_size=0), "vocab_size=0, but it must be"),
    "large vocabulary": (replace(GOOD, vocab_size=2**20), "vocab_size=1048576, but it must be"),
    "edits": (replace(GOOD, edits=-1), "edits=-1, but it must be"),
    "drafts of no length": (replace(GOOD, max_spec_len=0), "drafts=ONE_HOT and max_spec_len=0, but there are drafts"),
    "length without drafts": (replace(GOOD, drafts=Drafts.NONE), "drafts=NONE and max_spec_len=2, but there are"),
    "double logits": (replace(GOOD, dtype=torch.float64), "dtype=torch.float64, but it must be torch.float32 or"),
}


@pytest.mark.parametrize("name", CAPACITIES)
def test_capacity_that_contradicts_itself_is_refused(name: str) -> None:
    capacity, message = CAPACITIES[name]
    with pytest.raises(ValueError, match=f"^StepPlan: {re.escape(message)}"):
        StepPlan(capacity, "cpu")


def case_with(capacity: dict[str, Any] | None = None, **changes: Any) -> Case:  # Any: a field each
    """A case with all groups, some fields replaced; `group__field` is a field of a group."""
    case = make_case(0, [2, 0, 1], 40, edits=True)
    inputs = case.inputs
    for name, value in changes.items():
        path = tuple(name.split("__"))
        inputs = replaced(inputs, path, value(attrgetter(".".join(path))(inputs)) if callable(value) else value)
    return replace(case, capacity=replace(case.capacity, **(capacity or {})), inputs=inputs)


def every_second(tensor: torch.Tensor) -> torch.Tensor:  # [..., length] any, both
    """The same numbers with a stride of 2."""
    return tensor.repeat_interleave(2, -1)[..., ::2]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no logits": ({"logits": None}, "logits=None, but it must be a tensor of 2 dimensions. Pass one."),
    "no rows": ({"cu_num_rows": [0, 1]}, "cu_num_rows=[0, 1], but it must be a tensor of 1 dimensions"),
    "empty cumulative sum": ({"cu_num_rows": torch.zeros(0).int()}, "batch_size=-1, but the plan holds 5"),
    "plan of fewer requests": ({"capacity": {"batch_size": 2}}, "batch_size=3, but the plan holds 2. Build one of"),
    "plan of fewer rows": ({"logits": torch.zeros(99, 40)}, "num_rows=99, but the plan holds 15. Build one"),
    "other vocabulary": ({"capacity": {"vocab_size": 41}}, "logits.shape=[8, 40], but it must be [8, 41]. Check it"),
    "other type": ({"logits": torch.Tensor.bfloat16}, "logits.dtype=torch.bfloat16, but it must be torch.float32"),
    "seeds of other slots": ({"seeds": torch.zeros(3).long()}, "temperature.shape=[6], but it must be [3]"),
    "seeds are a list": ({"seeds": [1, 2]}, "seeds=[1, 2], but it must be a tensor of shape"),
    "top-k of one request": ({"parameters__top_k": torch.ones(1).int()}, "top_k.shape=[1], but it must be [6]"),
    "drafts without rows": ({"draft_token_ids": torch.zeros(3).int()}, "draft_token_ids.shape=[3], but it must be [8]"),
    "narrow grammar": ({"grammar_mask": torch.zeros(8, 1).int()}, "grammar_mask.shape=[8, 1], but it must be [8, 2]"),
    "half an edit": ({"edits__bias_values": None}, "bias_values=None, but bias_counts, bias_token_ids, bias_values"),
    "short biases": ({"edits__bias_values": torch.ones(6, 2)}, "bias_values.shape[1]=2, but bias_token_ids.shape[1]=6"),
    "undeclared filters": ({"capacity": {"filters": False}}, "filters are given, but the plan was built without."),
    "undeclared penalties": ({"capacity": {"penalties": False}}, "penalties are given, but the plan was built"),
    "undeclared grammar": ({"capacity": {"grammar": False}}, "grammar are given, but the plan was built without"),
    "undeclared edits": ({"capacity": {"edits": 0}}, "edits are given, but the plan was built without."),
    "undeclared drafts": (
        {"capacity": {"drafts": Drafts.NONE, "max_spec_len": 0, "batch_size": 9}},
        "drafts are given, but the plan was built without.",
    ),
    "undeclared probabilities": ({"draft_probs": torch.zeros(6, 2, 40)}, "drafts are given, but the plan was built"),
    "missing drafts": ({"draft_token_ids": None}, "draft_token_ids=None, but the plan has drafts. Use -1 where"),
    "missing probabilities": ({"capacity": {"drafts": Drafts.PROBS}}, "draft_probs=None, but the plan has Drafts"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_inputs_that_do_not_fit_the_plan_are_refused(name: str) -> None:
    changes, message = REFUSED[name]
    case = case_with(**changes)
    plan = StepPlan(case.capacity, "cpu")
    for call in (plan, plan.processed_logits):
        with pytest.raises((TypeError, ValueError), match=f"^StepPlan: {re.escape(message)}"):
            call(case.inputs)


def test_penalties_that_passed_do_not_fit_other_slots() -> None:
    case = case_with()
    plan = StepPlan(case.capacity, "cpu")
    plan(case.inputs)
    parameters = first_slots(case.inputs.parameters, 4)
    slots = torch.arange(3, dtype=torch.int32)
    fewer = replace(case.inputs, seeds=case.inputs.seeds[:4], parameters=parameters, slots=slots)
    plan(replace(fewer, penalties=None, edits=None))
    with pytest.raises(ValueError, match=r"^StepPlan: presence.shape=\[6\], but it must be \[4\]"):
        plan(fewer)


def first_slots(group: Any, count: int) -> Any:  # Any: a group of tensors by slot
    return replace(group, **{name: tensor[:count] for name, tensor in vars(group).items()})


def test_a_plan_remembers_few_tensors_and_serves_them_in_turns() -> None:
    cases = [make_case(seed, [2, 0, 1], 40, edits=True) for seed in range(2 * known.MOST)]
    plan = StepPlan(cases[0].capacity, "cpu")
    expected = [StepPlan(case.capacity, "cpu")(case.inputs).token_ids for case in cases]
    for case, tokens in [*zip(cases, expected, strict=True)] * 2:
        assert torch.equal(plan(case.inputs).token_ids, tokens)
    assert [len(groups.by_places) for groups in plan._known] == [known.MOST] * 3


def test_views_of_the_same_memory_are_the_same_tensors() -> None:
    """vLLM's runner makes new views of its buffers at every step."""
    case = case_with()
    plan = StepPlan(case.capacity, "cpu")
    expected = plan(case.inputs).token_ids.clone()
    seeds, parameters = case.inputs.seeds[:], first_slots(case.inputs.parameters, case.inputs.seeds.shape[0])
    assert torch.equal(plan(replace(case.inputs, seeds=seeds, parameters=parameters)).token_ids, expected)
    assert len(plan._known.parameters.by_places) == 1


def first_launches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:  # Any: arguments of kernels
    """Return launches of plans made from now on, whose kernels do nothing."""
    launched: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        Compiled, "launch", lambda self, key, stream, grid, named: launched.append((grid, *self.in_order(named)))
    )
    monkeypatch.setattr(launch, "INTERPRETED", False)
    return launched


@pytest.mark.skipif(not INTERPRETED, reason="kernels are stood in for on a CPU")
def test_a_later_launch_takes_the_addresses_of_what_the_first_one_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first launch of a key takes tensors, later ones addresses: every argument in the same place."""
    launched = first_launches(monkeypatch)
    for drafts in (Drafts.ONE_HOT, Drafts.PROBS, Drafts.LOGITS):
        for edits in (False, True):
            case = make_case(1, [2, 0, 1], 40, edits=edits, drafts=drafts)
            plan = StepPlan(case.capacity, "cpu", backend="triton")
            plan(case.inputs)
            first = [addressed(launches) for launches in launched]
            launched.clear()
            plan(case.inputs)
            assert launched == first
            launched.clear()


def addressed(value: Any) -> Any:  # Any: arguments of kernels
    if isinstance(value, torch.Tensor):
        return value.data_ptr()
    return tuple(map(addressed, value)) if isinstance(value, tuple) else value


def other_memory(
    tensor: torch.Tensor,  # [...] any
    other: torch.Tensor,  # [...] any
) -> None:
    tensor.data = other


IN_PLACE: dict[str, Callable[[StepInputs], object]] = {
    "other type": lambda inputs: other_memory(inputs.penalties.presence, torch.zeros(6).half()),
    "strided text": lambda inputs: other_memory(inputs.edits.bad_words.text, torch.ones(6, 48).int()[:, ::2]),
    "resize_": lambda inputs: inputs.parameters.top_p.resize_(2),
    "t_": lambda inputs: inputs.penalties.output_counts.t_(),
    "set_": lambda inputs: inputs.seeds.set_(inputs.seeds[:-1]),
    "as_strided_": lambda inputs: inputs.edits.bias_values.as_strided_((6, 6), (6, 0)),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_tensor_that_changes_in_place_is_checked_again(name: str) -> None:
    """What passed by slot is not checked at every step; its address says nothing about its shape and strides."""
    case = case_with()
    plan = StepPlan(case.capacity, "cpu")
    plan(case.inputs)
    IN_PLACE[name](case.inputs)
    with pytest.raises(ValueError, match=r"^StepPlan: \w+\.(shape|dtype|stride\(-1\))="):
        plan(case.inputs)


def test_a_plan_is_not_copied_and_takes_one_step_at_a_time() -> None:
    case = case_with()
    plan = StepPlan(case.capacity, "cpu")
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"^StepPlan: it cannot be copied"):
            copied(plan)
    plan._run = lambda *_: plan(case.inputs)  # type: ignore[assignment]
    for _ in range(2):  # what was refused leaves no lock behind
        with pytest.raises(RuntimeError, match=r"^StepPlan: another step of this plan has not returned"):
            plan(case.inputs)


BAD_VALUES: dict[str, tuple[str, object, str]] = {
    "decreasing rows": ("cu_num_rows", [0, 3, 2, 6], "cu_num_rows[2]=2, but it must be of a cumulative sum from 0"),
    "too many drafts": ("cu_num_rows", [0, 4, 5, 6], "cu_num_rows[1]=4, but it must be of a cumulative sum"),
    "rows beyond": ("cu_num_rows", [0, 3, 6, 9], "cu_num_rows[3]=9, but it must be of a cumulative sum"),
    "late begin": ("cu_num_rows", [1, 3, 4, 6], "cu_num_rows[0]=1, but it must be of a cumulative sum"),
    "cold": ("parameters__temperature", -0.5, "temperature[0]=-0.5, but it must be at least 0. Use 0 for a greedy"),
    "no mass": ("parameters__top_p", 0.0, "top_p[0]=0, but it must be in (0, 1]. Use 1 to keep all."),
    "much mass": ("parameters__min_p", 1.5, "min_p[0]=1.5, but it must be in [0, 1]. Use 0 to keep all."),
    "nothing repeats": ("penalties__repetition", 0.0, "repetition[0]=0, but it must be above 0. Use 1 for no penalty."),
    "slot before the first": ("slots", -1, "slots[0]=-1, but it must be in [0, 6). Name a slot that has"),
    "slot behind the last": ("slots", 6, "slots[0]=6, but it must be in [0, 6)"),
    "endless bias": ("edits__bias_counts", 7, "bias_counts["),
    "negative count": ("edits__stop_counts", -1, "stop_counts["),
    "unknown allowed id": ("edits__allowed_token_ids", 40, "allowed_token_ids["),
    "unknown forced id": ("edits__forced_token_ids", 40, "forced_token_ids[0]=40, but it must be in [0, 40), or -1"),
    "endless word": ("edits__bad_words__offsets", 99, "offsets["),
    "unknown word": ("edits__bad_words__word_ids", 40, "word_ids["),
    "late begin of output": ("edits__bad_words__starts", -1, "starts["),
    "infinite penalty": ("penalties__presence", math.inf, "presence["),
    "unknown draft": ("draft_token_ids", 40, "draft_token_ids[0]=40, but it must be in [0, 40), or -1"),
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_values_are_named_if_they_are_asked_for(name: str) -> None:
    field, number, message = BAD_VALUES[name]

    def change(tensor: torch.Tensor) -> torch.Tensor:  # [length] any, both
        whole = isinstance(number, list)
        return torch.tensor(number, dtype=tensor.dtype) if whole else torch.full_like(tensor, number)  # type: ignore[arg-type]

    case = case_with(**{field: change})
    with pytest.raises(ValueError, match=f"^StepPlan: {re.escape(message)}"):
        StepPlan(case.capacity, "cpu")(case.inputs, validate=True)


@pytest.mark.parametrize("sums", [[0, 3, 2, 6], [0, 9, 9, 9], [5, 5, 5, 5], [-3, 99, -1, 2], [0, 3, 1, 4]])
@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_a_lying_cumulative_sum_gives_no_id_outside_the_vocabulary(backend: Any, sums: list[int]) -> None:
    case = case_with(cu_num_rows=torch.tensor(sums).int())
    tokens = StepPlan(case.capacity, DEVICE, backend=backend)(case.on(DEVICE)).token_ids
    assert ((tokens >= -1) & (tokens < 40)).all()


def test_there_is_no_other_backend() -> None:
    with pytest.raises(ValueError, match=r"^StepPlan: backend='cuda', but it must be 'triton' or 'torch'"):
        StepPlan(GOOD, "cpu", backend="cuda")  # type: ignore[arg-type]
