"""Our logits plan without an engine: what is planned, kept and refused. Needs no vLLM.

The checks of the suite compare its logits with the specification and with vLLM (`test_properties_logits_plan.py`).
"""

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fairdraw.contracts import LogitsParams
from fairdraw.sampler_impl.logits_plan import LogitsPlan, SeenBy
from fairdraw.sampler_impl.thinking_budget import ThinkingBudget

VOCAB_SIZE = 16
PROMPT = [5, 1]


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func.name()))
        return func(*args, **(kwargs or {}))


def update(removed: Sequence[int] = (), added: Any = (), moved: Any = ()) -> SimpleNamespace:
    return SimpleNamespace(removed=removed, added=added, moved=moved)


def plan_of(*params: LogitsParams, output: list[int] | None = None, **options: Any) -> tuple[LogitsPlan, list[Any]]:
    """A plan with these requests, and their live lists."""
    plan = LogitsPlan(VOCAB_SIZE, thinking=ThinkingBudget([1], [2, 3]), **options)
    outputs = [list(output or []) for _ in params]
    rows = enumerate(zip(params, outputs, strict=True))
    plan.sync_batch(update(added=[(row, one, PROMPT, live) for row, (one, live) in rows]))
    return plan, outputs


def logits_of(num_rows: int, seed: int = 0) -> Tensor:
    return torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed))


EVERYTHING = LogitsParams(
    temperature=0.7, top_k=9, top_p=0.9, min_p=0.01, presence_penalty=0.1, frequency_penalty=0.2,
    repetition_penalty=1.2, allowed_token_ids=list(range(12)), bad_words_token_ids=[[7]], min_tokens=5,
    all_stop_token_ids=frozenset({0}), logit_bias={4: 1.5}, thinking_token_budget=3, custom=("doubling",),
)  # fmt: skip


class Doubling:
    """A custom processor of no built-in kind."""

    def __init__(self, invariant: bool = False) -> None:
        self.invariant = invariant

    def is_argmax_invariant(self) -> bool:
        return self.invariant

    def wants(self, params: LogitsParams) -> bool:
        return "doubling" in params.custom

    def apply(self, logits: Tensor, rows: Sequence[SeenBy]) -> Tensor:
        for row in rows:
            logits[row.row] *= 2
        return logits


def test_engine_may_pass_no_outputs_where_no_tokens_are_read() -> None:
    plan, outputs = plan_of(LogitsParams(min_tokens=1, all_stop_token_ids=frozenset({0}), temperature=0.5))
    assert plan.apply(logits_of(1), [])[0, 0] == -torch.inf
    outputs[0].append(4)
    assert plan.apply(logits_of(1), [])[0, 0] > -torch.inf


def test_parameters_of_greedy_requests_plan_no_filters() -> None:
    plan, _ = plan_of(dataclasses.replace(EVERYTHING, temperature=0.0, custom=()))
    assert plan.processors == ("allowed ids", "bad words", "min tokens", "logit bias", "penalties", "thinking budget")


def test_processors_are_planned_in_the_order_of_upstream() -> None:
    custom = (Doubling(), type("Random", (Doubling,), {})(invariant=True))
    plan, _ = plan_of(EVERYTHING, custom_processors=custom)
    assert plan.processors == (
        "allowed ids", "bad words", "min tokens", "logit bias", "Doubling", "penalties", "thinking budget",
        "temperature", "min-p", "Random", "top-k/top-p",
    )  # fmt: skip


def test_tensors_of_a_plan_are_built_once() -> None:
    """The second step of a plan that does nothing but mask and scale makes no tensor from host data."""
    params = LogitsParams(temperature=0.5, logit_bias={3: 1.0}, allowed_token_ids=[3, 4], top_k=2)
    plan, outputs = plan_of(params, params)
    first = plan.apply(logits_of(2), outputs)
    with Operations() as operations:
        second = plan.apply(logits_of(2), outputs)
    assert torch.equal(first, second)
    made = [name for name in operations.names if name.startswith(("aten::lift_fresh", "aten::detach", "aten::_to"))]
    assert made == ["aten::_to_copy"]


def test_plan_is_made_anew_only_when_the_batch_changes() -> None:
    plan, outputs = plan_of(LogitsParams(temperature=0.5))
    plan.apply(logits_of(1), outputs)
    planned = plan._planned()
    plan.sync_batch(None)
    plan.apply(logits_of(1, seed=1), outputs)
    assert plan._planned() is planned
    plan.sync_batch(update(added=[(0, LogitsParams(), PROMPT, outputs[0])]))
    assert plan.processors == ()


def test_any_object_with_the_attributes_is_enough() -> None:
    names = ("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
    numbers = dict(zip(names, (1.0, 0, 1.0, 0.0, 0.0, 0.0, 1.0), strict=True))
    lists = {"allowed_token_ids": None, "bad_words_token_ids": None, "logit_bias": {2: 1.0}}
    rest = {"min_tokens": 0, "all_stop_token_ids": set(), "thinking_token_budget": None}
    plan, output = LogitsPlan(vocab_size=4), [1]
    params = SimpleNamespace(**numbers, **lists, **rest)
    plan.sync_batch(SimpleNamespace(removed=[], added=[(0, params, None, output)], moved=[]))
    assert plan.apply(torch.zeros(1, 4), [output]).tolist() == [[0.0, 0.0, 1.0, 0.0]]


# Bad input.


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"temperature": -0.5}, r"temperature=-0.5, but it must be at least 0"),
        ({"temperature": float("nan")}, r"temperature=nan, but it must be at least 0 and finite"),
        ({"top_k": -2}, r"top_k=-2, but it must be at least 1, or 0 or -1"),
        ({"top_p": 0.0}, r"top_p=0.0, but it must be in \(0, 1\]"),
        ({"min_p": 1.5}, r"min_p=1.5, but it must be in \[0, 1\]"),
        ({"repetition_penalty": 0.0}, r"repetition_penalty=0.0, but it must be positive"),
        ({"presence_penalty": float("inf")}, r"presence_penalty=inf, but it must be finite"),
        ({"allowed_token_ids": []}, r"allowed_token_ids=\[\], but it must be at least one id"),
        ({"allowed_token_ids": [3, 16]}, r"allowed_token_ids has 16, but it must be in \[0, 16\)"),
        ({"bad_words_token_ids": [[3], []]}, r"bad_words_token_ids\[1\]=\[\], but it must be at least one id"),
        ({"bad_words_token_ids": [[-1]]}, r"bad_words_token_ids\[0\] has -1, but it must be in \[0, 16\)"),
        ({"min_tokens": -1}, r"min_tokens=-1, but it must be at least 0"),
        ({"min_tokens": 1, "all_stop_token_ids": frozenset({16})}, r"all_stop_token_ids has 16"),
        ({"logit_bias": {16: 1.0}}, r"logit_bias has 16, but it must be in \[0, 16\)"),
        ({"logit_bias": {3: float("inf")}}, r"logit_bias\[3\]=inf, but it must be finite"),
        ({"thinking_token_budget": -2}, r"thinking_token_budget=-2, but it must be at least 0"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_parameters_out_of_range_are_refused(params: dict[str, Any], message: str) -> None:
    plan, outputs = plan_of(LogitsParams(logit_bias={3: 1.0}))
    with pytest.raises(ValueError, match=r"^LogitsPlan\.sync_batch: " + message):
        plan.sync_batch(update(added=[(0, LogitsParams(**params), PROMPT, [])]))
    assert plan.apply(torch.zeros(1, VOCAB_SIZE), outputs)[0, 3] == 1.0  # nothing has been changed


def test_prompt_outside_the_vocabulary_is_refused_where_it_counts() -> None:
    plan, _ = plan_of(LogitsParams())
    plan.sync_batch(update(added=[(0, LogitsParams(), [99], [])]))
    with pytest.raises(ValueError, match="prompt_token_ids has 99"):
        plan.sync_batch(update(added=[(0, LogitsParams(presence_penalty=1.0), [99], [])]))


def test_budget_without_markers_is_refused() -> None:
    plan = LogitsPlan(VOCAB_SIZE)
    with pytest.raises(ValueError, match="thinking_token_budget=5, but it must be None"):
        plan.sync_batch(update(added=[(0, LogitsParams(thinking_token_budget=5), PROMPT, [])]))


def test_marker_outside_the_vocabulary_is_refused_when_it_is_forced() -> None:
    plan = LogitsPlan(VOCAB_SIZE, thinking=ThinkingBudget([1], [99]))
    output: list[int] = []
    plan.sync_batch(update(added=[(0, LogitsParams(thinking_token_budget=0), PROMPT, output)]))
    with pytest.raises(ValueError, match="end_token_ids has 99"):
        plan.apply(logits_of(1), [output])


@pytest.mark.parametrize(
    ("outputs", "drafts", "message"),
    [
        (lambda live: live, [[]], r"len\(draft_token_ids\)=1, but it must be at least 2"),
        (lambda live: live, [[16], []], r"draft_token_ids has 16, but ids must be in \[0, 16\)"),
        (lambda live: [list(live[0]), live[1]], None, r"LogitsPlan\.apply: output_token_ids\[0\] is not the list"),
        (lambda live: [], None, r"len\(output_token_ids\)=0, but it must be more than 0"),
    ],
    ids=["missing drafts", "foreign drafts", "changed behind our back", "no outputs"],
)
def test_texts_that_are_not_the_batch_s_are_refused(outputs: Any, drafts: Any, message: str) -> None:
    plan, live = plan_of(LogitsParams(bad_words_token_ids=[[3]]), LogitsParams(), output=[4])
    with pytest.raises(ValueError, match=message):
        plan.apply(logits_of(2 + len(drafts or [])), outputs(live), drafts)


def test_rows_with_a_gap_are_refused() -> None:
    plan, outputs = plan_of(LogitsParams(), LogitsParams(), LogitsParams())
    plan.sync_batch(update(removed=[1]))
    with pytest.raises(ValueError, match=r"the batch has rows \[0, 2\], but they must be 0 to 1"):
        plan.apply(logits_of(2), outputs)


def test_vocabulary_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="vocab_size=0, but it must be at least 1"):
        LogitsPlan(0)
