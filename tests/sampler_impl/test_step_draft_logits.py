"""The whole step with draft logits: their temperature, rows that have no distribution, odd layouts, and refusals.

Kernels and twin are compared in `test_interpreted_cases.py`, the twin with float64 in `test_step.py`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from step_cases import Case, make_case

from fairdraw.sampler_impl.step import Drafts, Parameters, StepInputs, StepPlan

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BACKENDS = ["torch", "triton"]


def tokens_of(case: Case, backend: str, **changes: Any) -> list[list[int]]:  # Any: fields of the inputs
    case = replace(case, inputs=replace(case.inputs, **changes))
    plan = StepPlan(case.capacity, DEVICE, backend=backend)  # type: ignore[arg-type]  # a word of the parameters
    found: list[list[int]] = plan(case.on(DEVICE)).token_ids.tolist()
    return found


def case_of(**options: Any) -> Case:  # Any: as make_case's
    return make_case(11, [2, 0, 2, 1], 40, **({"drafts": Drafts.LOGITS} | options))


def random_case(**options: Any) -> Case:  # Any: as make_case's
    """Without greedy requests."""
    case = case_of(**options)
    parameters = replace(case.inputs.parameters, temperature=torch.full_like(case.inputs.parameters.temperature, 0.8))
    return replace(case, inputs=replace(case.inputs, parameters=parameters))


@pytest.mark.parametrize("backend", BACKENDS)
def test_temperature_divides_logits(backend: str) -> None:
    """A float32 quotient: as if the caller had divided; one of 0 counts as the lowest."""
    case = random_case(draft_temperature=True)
    temperature = case.inputs.draft_temperature
    assert temperature is not None
    temperature[0] = 0.0
    divided = case.inputs.draft_logits / temperature.clamp(min=1e-5)[:, None, None]  # type: ignore[operator]  # given
    assert tokens_of(case, backend) == tokens_of(case, backend, draft_logits=divided, draft_temperature=None)


def fill(value: float) -> Callable[[Tensor], Tensor]:  # [num_slots, max_spec_len, vocab_size] float32, both
    return lambda rows: torch.full_like(rows, value)


def somewhere(value: float) -> Callable[[Tensor], Tensor]:  # [num_slots, max_spec_len, vocab_size] float32, both
    def changed(rows: Tensor) -> Tensor:  # [num_slots, max_spec_len, vocab_size] float32, both
        rows = rows.clone()
        rows[..., -1] = value
        return rows

    return changed


NO_DISTRIBUTION = {
    "nothing but -inf": fill(-torch.inf),
    "NaN": fill(torch.nan),
    "one NaN": somewhere(torch.nan),
    "one infinity": somewhere(torch.inf),
    "infinity": fill(torch.inf),
}


@pytest.mark.parametrize("filters", [False, True])
@pytest.mark.parametrize("name", NO_DISTRIBUTION)
def test_a_draft_row_without_a_distribution_is_that_of_no_draft(name: str, filters: bool) -> None:
    """Its draft is rejected, and the target drawn from, as behind a placeholder."""
    case = random_case(filters=filters)
    rows = NO_DISTRIBUTION[name](case.inputs.draft_logits)  # type: ignore[arg-type]  # given
    none = torch.full_like(case.inputs.draft_token_ids, -1)  # type: ignore[arg-type]  # given
    expected = tokens_of(case, "torch", draft_token_ids=none)
    for backend in BACKENDS:
        assert tokens_of(case, backend, draft_token_ids=none) == expected
        assert tokens_of(case, backend, draft_logits=rows) == expected


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_logsumexp_that_is_no_number_is_that_of_no_draft(backend: str, value: float) -> None:
    case = random_case(logsumexp=True)
    none = torch.full_like(case.inputs.draft_token_ids, -1)  # type: ignore[arg-type]  # given
    given = torch.full_like(case.inputs.draft_logsumexp, value)  # type: ignore[arg-type]  # given
    assert tokens_of(case, backend, draft_logsumexp=given) == tokens_of(case, backend, draft_token_ids=none)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf, 3e38])
def test_odd_entries_beside_a_logsumexp_give_ids_of_the_vocabulary(number: float, backend: str) -> None:
    """The step reads the entries that it needs, and cannot know that the others are odd."""
    case = random_case(logsumexp=True)
    rows = case.inputs.draft_logits.clone()  # type: ignore[union-attr]  # given
    rows[..., ::3] = number
    assert all(-1 <= i < 40 for row in tokens_of(case, backend, draft_logits=rows) for i in row)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_may_be_strided_and_other_slots_odd(backend: str) -> None:
    case = case_of(logsumexp=True)
    rows, logsumexp, slots = case.inputs.draft_logits, case.inputs.draft_logsumexp, case.inputs.slots
    assert rows is not None
    assert logsumexp is not None
    assert slots is not None
    wide, given = rows.new_full((*rows.shape[:2], 47), torch.nan), torch.full((len(rows), 5), torch.nan)
    wide[slots.long(), :, :40], given[slots.long(), :2] = rows[slots.long()], logsumexp[slots.long()]
    assert tokens_of(case, backend, draft_logits=wide[..., :40], draft_logsumexp=given[:, :2]) == tokens_of(
        case, backend
    )
    first = rows[:1, :1].expand_as(rows)  # every stride but the last is 0
    assert tokens_of(case, backend, draft_logits=first) == tokens_of(case, backend, draft_logits=first.contiguous())


def test_kernels_compute_the_logsumexp_of_rows_that_need_it() -> None:
    """Over several blocks, with -inf at their ends; greedy rows and rows without a draft are not read."""
    case = make_case(12, [1, 1, 1], 9000, drafts=Drafts.LOGITS, filters=False, kinds=("normal",))
    temperature = torch.ones_like(case.inputs.parameters.temperature)
    slots = case.inputs.slots.long()  # type: ignore[union-attr]  # given
    temperature[slots[2]] = 0.0
    rows = case.inputs.draft_logits.clone()  # type: ignore[union-attr]  # given
    rows[slots[1]] = -1e4  # far from 0, and equal
    rows[..., 4096:8192] = -torch.inf
    drafted = torch.zeros_like(case.inputs.draft_token_ids)  # type: ignore[arg-type]  # given
    parameters = Parameters(temperature=temperature)
    inputs = replace(case.inputs, draft_logits=rows, draft_token_ids=drafted, parameters=parameters)
    case = replace(case, inputs=inputs)
    plan = StepPlan(case.capacity, DEVICE, backend="triton")
    plan(case.on(DEVICE))
    words = plan._run.owned.row_words.cpu()  # type: ignore[union-attr]  # of the Triton backend
    orders, sums = (words >> 32).int(), words.int().view(torch.float32)
    largest = torch.where(orders < 0, orders ^ 0x7FFFFFFF, orders).view(torch.float32)
    found = (largest.double() + sums.double().log()).logsumexp(-1).float()
    expected = rows[slots[:2], 0].double().logsumexp(-1).float()
    torch.testing.assert_close(found[[0, 2]], expected, rtol=3e-7, atol=0)
    assert not words[[1, 3, 4, 5]].any()


# What is refused.


def changed(**changes: Any) -> StepInputs:  # Any: fields of the inputs, or functions of them
    inputs = case_of(logsumexp=True, draft_temperature=True).inputs
    given = {name: new(getattr(inputs, name)) if callable(new) else new for name, new in changes.items()}
    return replace(inputs, **given)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {  # Any: as above
    "missing": (
        {"draft_logits": None, "draft_logsumexp": None, "draft_temperature": None},
        "draft_logits=None, but the plan has Drafts.LOGITS. Pass them, or plan ONE_HOT.",
    ),
    "logsumexp alone": ({"draft_logits": None}, "draft_logsumexp is given, but draft_logits=None. Pass both, or"),
    "temperature alone": (
        {"draft_logits": None, "draft_logsumexp": None},
        "draft_temperature is given, but draft_logits=None. Pass both, or neither.",
    ),
    "probabilities, too": ({"draft_probs": torch.zeros(7, 2, 40)}, "drafts are given, but the plan was built without."),
    "other width": ({"draft_logits": torch.zeros(7, 2, 41)}, "draft_logits.shape=[7, 2, 41], but it must be [7, 2"),
    "sum of requests": ({"draft_logsumexp": torch.zeros(4, 2)}, "draft_logsumexp.shape=[4, 2], but it must be [7, 2]"),
    "temperatures": ({"draft_temperature": torch.ones(7, 2)}, "draft_temperature.shape=[7, 2], but it must be [7]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_inputs_that_do_not_fit_the_plan_are_refused(name: str) -> None:
    changes, message = REFUSED[name]
    with pytest.raises(ValueError, match=f"^StepPlan: {re.escape(message)}"):
        StepPlan(case_of().capacity, "cpu")(changed(**changes))


def test_draft_logits_that_were_not_planned_are_refused() -> None:
    capacity = replace(case_of().capacity, drafts=Drafts.ONE_HOT)
    with pytest.raises(ValueError, match=r"^StepPlan: draft_logits are given, but the plan was built without\."):
        StepPlan(capacity, "cpu")(changed())


BAD_VALUES: dict[str, tuple[dict[str, Any], str]] = {  # Any: as above
    "NaN": ({"draft_logits": somewhere(torch.nan)}, "39]=nan, but it must be below infinity. Use -inf for a token"),
    "infinity": ({"draft_logits": somewhere(torch.inf)}, "39]=inf, but it must be below infinity."),
    "nothing": ({"draft_logits": fill(-torch.inf)}, "]=-inf, but it must be above -inf. Leave each draft row a token."),
    "no logsumexp": ({"draft_logsumexp": fill(torch.nan)}, "]=nan, but it must be finite. Use (draft_logits.float()"),
    "cold": ({"draft_temperature": fill(-1.0)}, "[0]=-1, but it must be at least 0. Use 1 for no scaling."),
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_values_are_named_if_they_are_asked_for(name: str) -> None:
    changes, message = BAD_VALUES[name]
    with pytest.raises(ValueError, match=rf"^StepPlan: {next(iter(changes))}.*{re.escape(message)}"):
        StepPlan(case_of().capacity, "cpu")(changed(**changes), validate=True)


def test_values_of_other_slots_are_not_looked_at() -> None:
    inputs = changed()
    assert inputs.draft_logits is not None
    assert inputs.slots is not None
    others = [slot for slot in range(len(inputs.seeds)) if slot not in inputs.slots.tolist()]
    inputs.draft_logits[others] = torch.nan
    inputs.draft_logits[inputs.slots[1]] = torch.nan  # the request without drafts
    StepPlan(case_of().capacity, "cpu")(inputs, validate=True)
