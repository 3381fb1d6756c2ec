"""Drafts that are accepted, or rejected, by as little as their row allows: what the scan may skip, and what it may not.

Random drafts are the best token of their row, or hopeless. A bound that is wrong skips rows behind a draft that
is accepted though it is far below the best: these are chosen here, for the uniforms that decide about them, and those
are low. Each plan draws one batch after another: what it keeps between steps must not matter, nor what lies in rows
that nobody reads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from step_cases import STALE, Case, make_case, owned_by, shaped

from fairdraw.sampler_impl._shared.draws import VERIFY_STREAM, philox_uniforms
from fairdraw.sampler_impl._step import launch
from fairdraw.sampler_impl.step import Parameters, StepPlan

if TYPE_CHECKING:
    from torch import Tensor

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MARGIN = 2.0**-15
"""A uniform so near to a probability, relative, may be decided either way by a backend."""


def with_low_uniforms(case: Case, seed: int) -> Case:
    """Other seeds: of two thousand, each request has the one whose highest uniform of a draft is the lowest."""
    rng, inputs, places = np.random.default_rng(seed), case.inputs, torch.arange(max(case.num_drafts) + 1)
    assert inputs.slots is not None
    seeds, tried = inputs.seeds.clone(), torch.tensor(rng.integers(-(2**63), 2**63 - 1, (2000, 1)))
    for slot, position, count in zip(inputs.slots.tolist(), inputs.positions, case.num_drafts, strict=True):
        uniforms, _ = philox_uniforms(tried, position + places, VERIFY_STREAM)
        seeds[slot] = tried[uniforms[:, :count].amax(-1).argmin() if count else 0, 0]
    return replace(case, inputs=replace(inputs, seeds=seeds))


def with_close_drafts(case: Case, seed: int, *, again: bool = False) -> Case:
    """Each draft is the least probable token that is accepted, or the most probable one that is not, by turns of a
    generator; with `again`, rather one that was drafted before. They are chosen from a request's first to its last, as
    penalties count those before a row."""
    rng, inputs = np.random.default_rng(seed), case.inputs
    assert inputs.slots is not None
    assert inputs.draft_token_ids is not None
    plan = StepPlan(case.capacity, DEVICE, backend="torch")
    drafts, slots = inputs.draft_token_ids.clone(), inputs.slots.long()
    for place in range(max(case.num_drafts)):
        case = replace(case, inputs=replace(inputs, draft_token_ids=drafts))
        processed = plan.processed_logits(case.on(DEVICE)).cpu()
        uniforms, _ = philox_uniforms(inputs.seeds[slots], inputs.positions + place, VERIFY_STREAM)
        for request, count in enumerate(case.num_drafts):
            if place < count:
                row = int(inputs.cu_num_rows[request]) + place
                known = drafts[row - place : row].long() if again else drafts[:0].long()
                accept, uniform = bool(rng.random() < 0.85), float(uniforms[request])
                for among in (known, torch.arange(processed.shape[1])):
                    token = _close_draft(processed[row], among, uniform, accept=accept)
                    if token is not None:
                        drafts[row] = token
                        break
                drafts[row + 1] = drafts[row]  # behind a last row there is no draft: whatever was in memory
    return replace(case, inputs=replace(inputs, draft_token_ids=drafts))


def _close_draft(
    row: Tensor,  # [vocab_size] float32
    among: Tensor,  # [length] int64
    uniform: float,
    *,
    accept: bool,
) -> int | None:
    """Of one row; `None` if there is none, or the row has no distribution."""
    probs = row.double().softmax(-1)[among]
    is_wanted = probs > uniform * (1 + MARGIN) if accept else probs < uniform * (1 - MARGIN)
    if not is_wanted.any():
        return None
    found = torch.where(is_wanted, probs, 2.0).argmin() if accept else torch.where(is_wanted, probs, -1.0).argmax()
    return int(among[found])


def neighbours(case: Case, seed: int) -> Case:
    """Each row has its draft and one better token, with logits next to each other: over the lowest temperature their
    quotients are rounded by a good part of the difference, which is the largest for which the draft is accepted. All
    are filtered: then the kernels compute with quotients, too."""
    rng, inputs = np.random.default_rng(seed), case.inputs
    assert inputs.slots is not None
    assert inputs.draft_token_ids is not None
    logits, drafts, size = torch.full_like(inputs.logits, 10.0), inputs.draft_token_ids.clone(), len(inputs.seeds)
    for row, (request, place) in enumerate(case.rows()):
        seed_of, position = inputs.seeds[int(inputs.slots[request])], inputs.positions[request] + place
        uniform, _ = philox_uniforms(seed_of, position, VERIFY_STREAM)
        worse = 20 + rng.integers(64) * 2.0**-19 * torch.ones(21)
        pairs = torch.stack([worse, worse + torch.arange(4, 25) * 2.0**-19], 1)  # [length, 2] float32
        probs = (pairs / 1e-5).double().softmax(-1)[:, 0]
        best = int((probs > uniform * (1 + MARGIN)).sum()) - 1
        drafts[row], better = (int(token) for token in rng.permutation(logits.shape[1])[:2])
        logits[row, [int(drafts[row]), better]] = pairs[max(best, 0)]
    parameters = Parameters(torch.full((size,), 1e-5), torch.full((size,), 2, dtype=torch.int32))
    return replace(case, inputs=replace(inputs, logits=logits, draft_token_ids=drafts, parameters=parameters))


def peaked(case: Case, seed: int) -> Case:
    """Each request has a few likely tokens, of which each can be accepted; but for rows that have no distribution."""
    rng, inputs = np.random.default_rng(seed), case.inputs
    assert inputs.slots is not None
    logits = inputs.logits.clone()
    for (request, place), first in zip(case.rows(), inputs.cu_num_rows[case_requests(case)].tolist(), strict=True):
        row, temperature = first + place, inputs.parameters.temperature[int(inputs.slots[request])]
        likely = np.random.default_rng((seed, request)).permutation(logits.shape[1])[:6]
        if inputs.edits is not None and inputs.edits.bias_token_ids is not None:
            likely[:3] = inputs.edits.bias_token_ids[int(inputs.slots[request]), :3]
        if logits[row].amax().isfinite():
            logits[row] = -30
            logits[row, ::3] = -3 if case.capacity.filters else -30  # most filters exclude these
            logits[row, likely] = torch.tensor(rng.normal(size=6) * 1.5).float()
            logits[row] *= temperature if temperature > 0 else 1
            if inputs.edits is not None and inputs.edits.bias_values is not None:  # likely by their bias alone
                logits[row, likely[:3]] -= inputs.edits.bias_values[int(inputs.slots[request]), :3]
    return replace(case, inputs=replace(inputs, logits=logits))


def case_requests(case: Case) -> list[int]:
    """Of each row."""
    return [request for request, _ in case.rows()]


def filtered(case: Case) -> Case:
    """Filters that keep a few tokens, and so make each of them much more probable."""
    size = len(case.inputs.seeds)
    choices = [(3, 1.0, 0.0), (0, 0.5, 0.0), (0, 1.0, 0.1), (2, 0.9, 0.0)]
    top_k, top_p, min_p = (numbers.contiguous() for numbers in torch.tensor(choices).repeat(size, 1)[:size].T)
    temperature = case.inputs.parameters.temperature.clamp(min=0.6)
    parameters = Parameters(temperature, top_k.int(), top_p, min_p)
    return replace(case, inputs=replace(case.inputs, parameters=parameters))


def biased(case: Case) -> Case:
    """Every request has tokens that are likely by their bias alone, and no other edit that excludes them."""
    edits = case.inputs.edits
    assert edits is not None
    assert edits.allowed_counts is not None
    none = torch.zeros_like(edits.allowed_counts)
    values = torch.tensor([5.0, -2.0, 4.0, 0.0, 0.0, 0.0]).repeat(len(none), 1)
    changed = replace(edits, allowed_counts=none, bias_counts=none + 3, bias_values=values, forced_token_ids=None)
    return replace(case, inputs=replace(case.inputs, edits=changed, grammar_mask=None))


def repeated(case: Case) -> Case:
    """Penalties, and no edits, that make a draft much more probable, or less, when it comes again."""
    assert case.inputs.penalties is not None
    penalties, size = case.inputs.penalties, len(case.inputs.seeds)

    def by_turns(*values: float) -> Tensor:  # [num_slots] float32
        return torch.tensor(values).repeat(size)[:size]

    changed = replace(
        penalties,
        presence=by_turns(-4.0, 0.0, 0.75, 0.0, -1.5),
        frequency=by_turns(0.0, -4.0, 0.0, 0.5, 0.0, -2.0),
        repetition=by_turns(1.0, 1.0, 1.0, 1.0, 0.5, 1.0, 2.0),
    )
    return replace(case, inputs=replace(case.inputs, penalties=changed, grammar_mask=None, edits=None))


KINDS = ("normal", "normal", "normal", "normal", "normal", "normal", "nan", "inf", "excluded")


CHANGES = {"filters": filtered, "biased": biased, "repeated": repeated}


def case_of(name: str, seed: int, num_drafts: list[int], vocab_size: int = 300) -> Case:
    options = {
        "filters": name in ("filters", "everything", "neighbours"),
        "edits": name in ("edits", "everything", "biased", "repeated"),
    }
    case = make_case(seed, num_drafts, vocab_size, kinds=KINDS, **options)
    case = with_low_uniforms(CHANGES[name](case) if name in CHANGES else case, seed)
    if name == "neighbours":
        return neighbours(case, seed)
    return with_close_drafts(peaked(case, seed), seed, again=name == "repeated")


def spoil(plan: StepPlan) -> None:
    """What a plan passes on from kernel to kernel: nothing that a step has written, and all drafts accepted."""
    memory = owned_by(plan)
    memory.words_ptr.fill_(STALE)
    for results, stale in zip(memory.results[:4], (1, 5, 0x7F000000, torch.nan), strict=True):
        results.fill_(stale)


def assert_drawn_alike(case: Case, plan: StepPlan) -> int:
    """Of both backends. Returns how many drafts were accepted."""
    expected = StepPlan(case.capacity, DEVICE, backend="torch")(case.on(DEVICE))
    spoil(plan)
    found = plan(case.on(DEVICE))
    assert torch.equal(found.token_ids, expected.token_ids)
    assert torch.equal(found.num_tokens, expected.num_tokens)
    torch.testing.assert_close(found.logprobs, expected.logprobs, rtol=1e-4, atol=1e-5, equal_nan=True)
    memory = owned_by(plan)
    assert not memory.arrivals_ptr.any()  # as the next step needs them
    assert (memory.words_ptr[len(case.rows()) :] == STALE).all()  # rows that no request has
    return int(expected.num_tokens.sum()) - len(case.num_drafts)


@pytest.mark.parametrize("shape", [launch.SHORT_STRIPS, launch.ROWS_APART])
@pytest.mark.parametrize("name", ["plain", "filters", "edits", "everything", "biased", "repeated", "neighbours"])
def test_close_drafts_are_accepted_and_rejected_as_by_the_twin(name: str, shape: launch.Shape) -> None:
    counts = [3, 0, 3, 3, 1, 3, 2, 3]
    plan = shaped(StepPlan(case_of(name, 0, counts).capacity, DEVICE, backend="triton"), shape)
    accepted = [assert_drawn_alike(case_of(name, seed, counts[seed:] + counts[:seed]), plan) for seed in range(4)]
    assert sum(accepted) > 0.2 * 4 * sum(counts)


@pytest.mark.parametrize("shape", launch.SHAPES)
def test_close_drafts_of_several_blocks(shape: launch.Shape) -> None:
    """An odd number, so that the last program of long strips has one block alone."""
    case = case_of("plain", 1, [2, 0, 2], 8500)
    assert_drawn_alike(case, shaped(StepPlan(case.capacity, DEVICE, backend="triton"), shape))


def test_close_drafts_of_more_rows_than_have_bits() -> None:
    counts = [20, 0, 17]
    plan = StepPlan(case_of("plain", 0, counts).capacity, DEVICE, backend="triton")
    for seed in range(3):
        assert_drawn_alike(case_of("plain", seed, counts, 300), plan)
