"""The draft row that is subtracted from a target is that of the rejected draft: of its slot and its place.

Random rows hardly show another row. Most requests are rejected at their first draft, and what two draft rows leave of a
target has many tokens in common. Here targets are flat, and a draft row is flat as well, but for a quarter of the ids,
which it excludes: they alone are left. They differ from place to place, and of each request another quarter is first.
"""

from __future__ import annotations

import pytest
import torch
from step_cases import Case, cumulative

from fairdraw.sampler_impl.step import Capacity, Drafts, Parameters, StepInputs, StepPlan

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
COUNTS = [3, 2, 3, 1, 3, 3] * 4
WIDTH, NUM_SLOTS = 3, len(COUNTS) + 1


def case_of(vocab_size: int, *, logits: bool, logsumexp: bool = False, filters: bool = False) -> Case:
    """Three of four drafts are accepted. Filters keep all of a row, as a list."""
    quarters = torch.arange(NUM_SLOTS, 0, -1)[:, None] + torch.arange(WIDTH + 1)  # [num_slots, max_spec_len + 1] int64
    is_left = (
        torch.arange(vocab_size) % 4 == quarters[:, :WIDTH, None] % 4
    )  # [num_slots, max_spec_len, vocab_size] bool
    # With the logsumexp of the place before, or of the next slot, more would be left.
    shifts = 2.0 * torch.arange(NUM_SLOTS)[:, None] - 3.0 * torch.arange(WIDTH)  # [num_slots, max_spec_len] float32
    rows = shifts[..., None].masked_fill(is_left, -torch.inf)  # [num_slots, max_spec_len, vocab_size] float32
    slots = torch.arange(len(COUNTS), 0, -1)  # nobody has slot 0
    is_row = torch.arange(WIDTH + 1) <= torch.tensor(COUNTS)[:, None]
    ids = (quarters[slots][is_row].int() + 1) % 4  # [num_rows] int32; of a draft, the quarter after the one left
    inputs = StepInputs(
        logits=torch.zeros(len(ids), vocab_size),
        parameters=Parameters(torch.ones(NUM_SLOTS), min_p=torch.full((NUM_SLOTS,), 0.5) if filters else None),
        seeds=torch.arange(NUM_SLOTS) + 7,
        positions=torch.arange(len(COUNTS)),
        cu_num_rows=cumulative(COUNTS),
        slots=slots.int(),
        draft_token_ids=ids,
        draft_probs=None if logits else rows.softmax(-1),
        draft_logits=rows if logits else None,
        draft_logsumexp=rows.logsumexp(-1) if logsumexp else None,
    )
    drafts = Drafts.LOGITS if logits else Drafts.PROBS
    return Case(Capacity(len(COUNTS), WIDTH, vocab_size, torch.float32, drafts, filters), inputs, COUNTS)


FORMS = {"probabilities": {"logits": False}, "logits": {"logits": True}, "both": {"logits": True, "logsumexp": True}}


@pytest.mark.parametrize(("vocab_size", "filters"), [(40, False), (1100, False), (40, True)])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_recovered_token_is_what_its_draft_row_leaves(backend: str, form: str, vocab_size: int, filters: bool) -> None:
    case = case_of(vocab_size, filters=filters, **FORMS[form])
    plan = StepPlan(case.capacity, DEVICE, backend=backend)  # type: ignore[arg-type]  # a word of the parameters
    output = plan(case.on(DEVICE), validate=True)
    rejected_at = []
    for request, (tokens, num) in enumerate(zip(output.token_ids.tolist(), output.num_tokens.tolist(), strict=True)):
        place, slot = num - 1, len(COUNTS) - request
        if place < COUNTS[request]:
            assert tokens[place] % 4 == (NUM_SLOTS - slot + place) % 4, f"request {request}, place {place}"
            rejected_at.append(place)
    assert all(rejected_at.count(place) > 1 for place in range(WIDTH))
