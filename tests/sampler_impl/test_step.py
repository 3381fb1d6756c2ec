"""The whole step: rows against a reference in NumPy, tokens against the rows, and the backends against each other.

What the suite's checks show of the PyTorch backend (`fairdraw check sampling/step rejection/step logits_plan/step`) is
not repeated here. Rows are compared bit for bit: kept sets, and what is kept.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from step_cases import KINDS, STALE, TOP_K, Case, cumulative, make_case, owned_by, processed_row, shaped

from fairdraw.sampler_impl._shared.draws import VERIFY_STREAM, philox_uniforms
from fairdraw.sampler_impl._step import launch
from fairdraw.sampler_impl.step import Capacity, Drafts, Parameters, StepInputs, StepOutput, StepPlan, TokenEdits

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
COUNTS = [3, 0, 1, 2, 3, 3, 0, 1]
MARGIN = 2.0**-18
"""A uniform nearer than this, relative, to an edge between two outcomes may be decided either way."""


def plan_of(case: Case, backend: str = "torch") -> StepPlan:
    return StepPlan(case.capacity, DEVICE, backend=backend)  # type: ignore[arg-type]  # a word of the parameters


def rows_of(case: Case, backend: str = "torch") -> NDArray[np.float32]:  # [num_rows, vocab_size] float32
    """Processed, without padding."""
    return plan_of(case, backend).processed_logits(case.on(DEVICE))[: len(case.rows())].cpu().numpy()


def assert_rows_equal(case: Case, backend: str = "torch") -> None:
    found = rows_of(case, backend)
    for row, (request, place) in zip(found, case.rows(), strict=True):
        np.testing.assert_array_equal(row, processed_row(case, request, place), err_msg=f"row {place} of {request}")


# Rows


@pytest.mark.parametrize("vocab_size", [10, 40, 200])
@pytest.mark.parametrize("edits", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_rows_of_mixed_batches_equal_the_reference(seed: int, edits: bool, vocab_size: int) -> None:
    assert_rows_equal(make_case(seed, COUNTS, vocab_size, edits=edits))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_of_half_precision_equal_the_reference(dtype: torch.dtype) -> None:
    assert_rows_equal(make_case(1, COUNTS, 60, edits=True, dtype=dtype))


@pytest.mark.parametrize("kind", KINDS)
def test_kept_sets_of_every_filter_equal_the_reference(kind: str) -> None:
    """Every pair of filters on each kind of row: ties at every threshold, nothing, one token, all equal."""
    vocab_size = 65
    top_p = (1.0, np.nextafter(np.float32(1), np.float32(0)), 0.9, 0.5, 1e-6)
    choices = [(k, p, m) for k in (*TOP_K, 64, 65, 66) for p in top_p for m in (0.0, 0.05, 1.0)]
    size = len(choices)
    case = make_case(2, [0] * size, vocab_size, kinds=(kind,))
    numbers = np.array(choices).T
    temperature = torch.tensor([1.0, 0.6, 1e-5]).repeat(size)[:size]
    parameters = Parameters(
        temperature, torch.tensor(numbers[0]).int(), torch.tensor(numbers[1]).float(), torch.tensor(numbers[2]).float()
    )
    seeds = torch.zeros(size, dtype=torch.int64)
    assert_rows_equal(replace(case, inputs=replace(case.inputs, parameters=parameters, seeds=seeds, slots=None)))


def _plain(
    logits: Tensor,  # [batch_size, vocab_size] float32
    top_k: int,
    top_p: float,
) -> StepInputs:
    size = len(logits)
    filters = torch.full((size,), top_k).int(), torch.full((size,), top_p)
    inputs = StepInputs(
        logits,
        Parameters(torch.ones(size), *filters),
        seeds=torch.arange(size),
        positions=torch.arange(size),
        cu_num_rows=cumulative([0] * size),
    )
    return Case(Capacity(size, 0, logits.shape[1], torch.float32, Drafts.NONE), inputs, [0] * size).on(DEVICE)


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_drafter_gets_the_tokens_of_a_step_and_its_rows(backend: str) -> None:
    case = make_case(3, [0] * 4, 40)
    plan, inputs = plan_of(case, backend), case.on(DEVICE)
    expected = plan.processed_logits(inputs), plan(inputs).token_ids.clone()
    output, rows = plan.drafted(inputs)
    assert torch.equal(rows.nan_to_num(7.0), expected[0].nan_to_num(7.0))
    assert torch.equal(output.token_ids, expected[1])
    with pytest.raises(ValueError, match="max_spec_len=3"):
        plan_of(make_case(3, COUNTS, 40), backend).drafted(inputs)


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("edits", [False, True])
def test_masks_have_the_bits_of_the_rows_that_are_kept(backend: str, edits: bool) -> None:
    """Masks are of accepted drafts and of what follows them, in words that lie apart; nothing else is written."""
    case = make_case(5, COUNTS, 70, edits=edits)
    plan, inputs, size = plan_of(case, backend), case.on(DEVICE), case.inputs.num_rows
    rows, expected = plan.processed_logits(inputs) != -torch.inf, plan(inputs).token_ids.clone()
    memory = torch.full((size, 5), 7, dtype=torch.int32, device=DEVICE)
    output = plan.masked(inputs, memory[:, 1:4])
    bits = ((memory[:, 1:4, None] >> torch.arange(32, device=DEVICE)) & 1).flatten(1)[:, :70] > 0
    read = [
        first + i
        for first, n in zip(inputs.cu_num_rows.tolist(), output.num_tokens.tolist(), strict=False)
        for i in range(n)
    ]
    assert torch.equal(bits[read], rows[read])
    assert torch.equal(output.token_ids, expected)
    assert (memory[:, [0, 4]] == 7).all()
    with pytest.raises(ValueError, match=r"StepPlan\.masked: kept_words\.shape"):
        plan.masked(inputs, memory)


@pytest.mark.parametrize("edits", [False, True])
def test_rows_without_filters_equal_those_of_filters_that_are_off(edits: bool) -> None:
    """The Triton backend neither scans nor settles them."""
    case = make_case(4, COUNTS, 40, edits=edits)
    off = replace(case.inputs.parameters, top_k=None, top_p=None, min_p=None)
    inputs, rows = replace(case.inputs, parameters=off), []
    for filters in (True, False):
        given = inputs
        if filters:
            size = len(off.temperature)
            all_off = Parameters(off.temperature, torch.zeros(size).int(), torch.ones(size), torch.zeros(size))
            given = replace(inputs, parameters=all_off)
        rows.append(rows_of(replace(case, capacity=replace(case.capacity, filters=filters), inputs=given), "triton"))
    np.testing.assert_array_equal(*rows)


# Tokens


def expected_tokens(case: Case, request: int) -> tuple[list[int], list[float]] | None:
    """Of one request, from the reference's rows in float64, and their log-probabilities; `None` if a uniform is too
    near to an edge. For cases without edits, whose tokens are drawn in the order of their ids."""
    inputs, slot = case.inputs, int(case.inputs.slots[request])  # type: ignore[index]  # given in every case
    tokens: list[int] = []
    logprobs: list[float] = []
    for place in range(case.num_drafts[request] + 1):
        row = processed_row(case, request, place)
        position = inputs.positions[request, None] + place
        accept, draw = (float(u) for u in philox_uniforms(inputs.seeds[slot, None], position, VERIFY_STREAM))
        is_greedy, best = bool(inputs.parameters.temperature[slot] == 0), int(torch.from_numpy(row).argmax())
        probs = np.zeros(len(row))
        if np.isfinite(row.max()):
            probs = np.exp(row.astype(np.float64) - float(row.max()))
            probs /= probs.sum()
        residual = probs
        if place < case.num_drafts[request]:
            token = int(inputs.draft_token_ids[inputs.cu_num_rows[request] + place])  # type: ignore[index]
            draft = np.eye(len(row))[token] if 0 <= token < len(row) else np.zeros(len(row))
            if inputs.draft_probs is not None:
                draft = inputs.draft_probs[slot, place].double().numpy()
            if inputs.draft_logits is not None:
                draft = inputs.draft_logits[slot, place].double().softmax(-1).numpy() * (token >= 0)
            ratio = probs[token] / draft[token] if token >= 0 and draft[token] > 0 else 0.0
            if abs(ratio - accept) < MARGIN:
                return None
            if (token == best) if is_greedy else (ratio > 0 and ratio >= accept):
                tokens.append(token)
                logprobs.append(0.0 if is_greedy else float(np.log(probs[token])))
                continue
            residual = np.maximum(probs - draft, 0)
            residual = residual if residual.sum() > 2.0**-60 else probs
        ends = residual.cumsum()
        if not is_greedy and ends[-1] > 0 and np.abs(ends / ends[-1] - draw).min() < MARGIN:
            return None
        drawn = int(np.searchsorted(ends, draw * ends[-1], side="right")) if ends[-1] > 0 else 0
        tokens.append(best if is_greedy else drawn)
        logprobs.append(0.0 if is_greedy else float(np.log(probs[drawn])) if probs.any() else np.nan)
        break
    return tokens, logprobs


@pytest.mark.parametrize("drafts", [Drafts.ONE_HOT, Drafts.PROBS, Drafts.LOGITS])
def test_tokens_are_those_of_the_rows(drafts: Drafts) -> None:
    compared, lengths = 0, set()
    for seed in range(25):
        case = make_case(seed, COUNTS, 12, drafts=drafts)
        output = plan_of(case)(case.on(DEVICE), validate=True)
        assert output.logprobs is not None
        for request in range(len(COUNTS)):
            expected = expected_tokens(case, request)
            if expected is not None:
                tokens, logprobs = expected
                width = case.capacity.max_spec_len + 1
                assert output.token_ids[request].tolist() == [*tokens, *[-1] * (width - len(tokens))]
                assert int(output.num_tokens[request]) == len(tokens)
                found = output.logprobs[request].tolist()
                np.testing.assert_allclose(found, [*logprobs, *[0.0] * (width - len(tokens))], rtol=1e-5, atol=1e-6)
                compared += 1
                lengths.add(len(tokens))
    assert compared > 150
    assert lengths == {1, 2, 3, 4}


def test_an_empty_batch_gives_nothing() -> None:
    case = make_case(0, COUNTS, 12).select([])
    output = plan_of(case)(case.on(DEVICE))
    assert output.token_ids.shape == (0, 4)
    assert output.num_tokens.shape == (0,)


# Batch invariance


def assert_same(found: StepOutput, expected: StepOutput, requests: list[int]) -> None:
    assert torch.equal(found.token_ids, expected.token_ids[requests])
    assert torch.equal(found.num_tokens, expected.num_tokens[requests])
    assert found.logprobs is not None
    assert expected.logprobs is not None
    np.testing.assert_array_equal(found.logprobs.cpu(), expected.logprobs[requests].cpu())


@pytest.mark.parametrize("drafts", [Drafts.ONE_HOT, Drafts.PROBS, Drafts.LOGITS])
@pytest.mark.parametrize("edits", [False, True])
def test_a_request_does_not_depend_on_the_batch(edits: bool, drafts: Drafts) -> None:
    """Bit for bit: alone, in another order, in part, twice, in a plan of another capacity, without padding."""
    case = make_case(4, COUNTS, 70, edits=edits, drafts=drafts)
    whole = plan_of(case)(case.on(DEVICE))
    for requests in ([2], [7, 6, 5, 4, 3, 2, 1, 0], [1, 4, 4, 6], [0, 5]):
        part = case.select(requests)
        part = replace(part, capacity=replace(part.capacity, batch_size=5 + len(requests)))
        assert_same(plan_of(part)(part.on(DEVICE)), whole, requests)


# The kernels, in the interpreter unless there is a GPU


@pytest.mark.parametrize("edits", [False, True])
def test_a_row_behind_a_wrong_draft_is_not_read(edits: bool) -> None:
    """Drafts: the best token; a bad one; placeholders."""
    logits = torch.zeros(8, 1100)
    logits[:, 7] = 30
    logits[5:, 9] = 29.5
    drafts = torch.tensor([7, 5, 7, -1, -1, 7, 9, -1], dtype=torch.int32)  # of two requests, a bonus row each
    inputs = StepInputs(
        logits,
        Parameters(torch.ones(2)),
        seeds=torch.tensor([3, 4]),
        positions=torch.tensor([5, 5]),
        cu_num_rows=torch.tensor([0, 4, 8], dtype=torch.int32),
        draft_token_ids=drafts,
        edits=TokenEdits(torch.zeros(2).int(), torch.zeros(2, 1).int(), torch.zeros(2, 1)) if edits else None,
    )
    capacity = Capacity(2, 3, 1100, torch.float32, Drafts.ONE_HOT, edits=16 * edits)
    plan = shaped(StepPlan(capacity, DEVICE, backend="triton"), launch.SHORT_STRIPS)
    words = owned_by(plan).words_ptr.fill_(STALE)
    output = plan(Case(capacity, inputs, [3, 3]).on(DEVICE))
    was_read = (words[:, 0] != STALE).tolist()
    assert was_read == [True, True, False, False, True, False, False, False]
    assert output.num_tokens.tolist() == [2, 1]
    assert not owned_by(plan).arrivals_ptr.any()  # as the next step needs them


def test_a_plan_of_many_requests_draws_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second side of a grid is too short for the requests of a large plan; they are then on the first."""
    from fairdraw.sampler_impl._shared.compiled import Compiled

    grids: list[tuple[int, int, int]] = []
    run = Compiled.launch

    def noted(self: Compiled, *given: Any) -> None:  # Any: key, stream, grid and arguments
        if self.kernel.fn.__name__ == "scan_kernel":
            grids.append(given[2])
        run(self, *given)

    case = make_case(9, [0, 0, 0], 5000, drafts=Drafts.NONE)
    ours = plan_of(case)(case.on(DEVICE)).token_ids
    monkeypatch.setattr(Compiled, "launch", noted)
    monkeypatch.setattr(launch, "LONGEST_SIDE", 2)
    assert torch.equal(plan_of(case, "triton")(case.on(DEVICE)).token_ids, ours)
    assert grids == [(3, 2, 1)]


@pytest.mark.parametrize("count", [-3, 99])
@pytest.mark.parametrize("unknown", [-5, 40])
def test_kernels_ignore_counts_and_ids_that_do_not_exist(unknown: int, count: int) -> None:
    """A negative count used to write before the row's list, and a large one to read the next slot's; a greedy row with
    nothing but unknown ids gave the lowest of them; a draft of int64 was cut to 32 bits."""
    case = make_case(9, [1, 0, 1], 40, edits=True)
    assert case.inputs.edits is not None
    assert case.inputs.draft_token_ids is not None
    edits = dict(vars(case.inputs.edits))
    for name in ("bias", "allowed", "stop"):
        edits[f"{name}_counts"] = torch.full_like(edits[f"{name}_counts"], count)
        edits[f"{name}_token_ids"] = edits[f"{name}_token_ids"].clone()
        edits[f"{name}_token_ids"][:, ::2] = unknown
    edits["allowed_token_ids"][0::2] = unknown
    edits["forced_token_ids"] = torch.full_like(edits["forced_token_ids"], unknown)
    edits["bad_words"] = replace(edits["bad_words"], counts=torch.full_like(edits["bad_words"].counts, count))
    drafts = case.inputs.draft_token_ids.long() + 2**32
    case = replace(case, inputs=replace(case.inputs, edits=TokenEdits(**edits), draft_token_ids=drafts))
    for temperature in (0.0, 1.0):
        parameters = Parameters(torch.full_like(case.inputs.parameters.temperature, temperature))
        inputs = replace(case, inputs=replace(case.inputs, parameters=parameters)).on(DEVICE)
        ours, theirs = plan_of(case)(inputs), plan_of(case, "triton")(inputs)
        assert torch.equal(theirs.token_ids, ours.token_ids)
        assert torch.equal(theirs.num_tokens, ours.num_tokens)


@pytest.mark.parametrize(("top_k", "top_p"), [(1, 1.0), (-1, 0.3)])
def test_logits_of_one_quotient_are_candidates_together(top_k: int, top_p: float) -> None:
    """2 and the float32 below it, over 0.556: a bound of 16 bits lies between them, and what is kept does not."""
    two = torch.tensor(2.0)
    logits = torch.tensor([[float(two), float(two.nextafter(torch.tensor(0.0))), 1.0, 0.0]]).repeat(12, 1)
    inputs = _plain(logits, top_k, top_p)
    inputs = replace(inputs, parameters=replace(inputs.parameters, temperature=torch.full((12,), 0.556028).to(DEVICE)))
    ours, theirs = (
        StepPlan(Capacity(12, 0, 4, torch.float32, Drafts.NONE), DEVICE, backend=backend)(inputs).token_ids
        for backend in ("torch", "triton")
    )
    assert set(ours.flatten().tolist()) == {0, 1}
    assert torch.equal(theirs, ours)


@pytest.mark.parametrize("top_k", [-1, 2])
def test_a_row_whose_quotients_overflow_has_no_distribution(top_k: int) -> None:
    inputs = _plain(torch.tensor([[1.0, 3e34, 2.0]]), top_k, 1.0)
    inputs = replace(inputs, parameters=replace(inputs.parameters, temperature=torch.full((1,), 1e-5).to(DEVICE)))
    for backend in ("torch", "triton"):
        output = StepPlan(Capacity(1, 0, 3, torch.float32, Drafts.NONE, logprobs=True), DEVICE, backend=backend)(inputs)
        assert output.token_ids.tolist() == [[0]]
        assert output.logprobs is not None
        assert output.logprobs.isnan().all()


def test_probabilities_of_listed_tokens_are_those_of_rounded_quotients() -> None:
    """Logits of neighbouring float32 over 1e-5: the quotients are rounded by an eighth, and are what is compared."""
    logits = 20 + torch.tensor([[0.0, 2, 5]]).repeat(8, 1) * 2.0**-19
    inputs = _plain(logits, 2, 1.0)
    inputs = replace(inputs, parameters=replace(inputs.parameters, temperature=torch.full((8,), 1e-5).to(DEVICE)))
    capacity = Capacity(8, 0, 3, torch.float32, Drafts.NONE, logprobs=True)
    ours, theirs = (StepPlan(capacity, DEVICE, backend=backend)(inputs) for backend in ("torch", "triton"))
    assert set(ours.token_ids.flatten().tolist()) == {1, 2}
    assert torch.equal(theirs.token_ids, ours.token_ids)
    torch.testing.assert_close(theirs.logprobs, ours.logprobs, rtol=1e-4, atol=1e-5)


def test_a_step_launches_its_kernels_and_does_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first step no tensor is made, copied or read on the host: no operation of torch runs at all."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from fairdraw.sampler_impl._shared.compiled import Compiled

    class NoOperation(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # torch's
            raise AssertionError(f"a step ran {func}")

    launched: list[str] = []
    monkeypatch.setattr(Compiled, "launch", lambda self, *_, **__: launched.append(self.kernel.fn.__name__))
    case = make_case(8, COUNTS, 300, edits=True, drafts=Drafts.PROBS)
    plan, inputs = plan_of(case, "triton"), case.on(DEVICE)
    plan(inputs)
    with NoOperation():
        plan(inputs)
    assert launched == ["edit_kernel", "scan_kernel", "settle_kernel", "settle_kernel", "emit_kernel"] * 2


def test_arguments_that_are_compiled_differently_have_different_keys() -> None:
    """A stride of 1 is a constant, one of 16 keeps rows aligned, one of 17 is neither; 2**31 is an int64."""
    from fairdraw.sampler_impl._shared.compiled import described

    keys = [described((torch.zeros(4), number))[0] for number in (1, 16, 17, 2**31, 2**31 + 1)]
    assert len(set(keys)) == len(keys)
    assert described((32, 17))[0] == described((0, 33))[0]
    tensor = torch.zeros(4)
    assert described((None, (tensor, 3)))[1] == (None, (tensor.data_ptr(), 3))


def test_no_kernel_fuses_products_into_sums() -> None:
    """The interpreter rounds each operation; a compiled kernel does only if it is asked to."""
    from fairdraw.sampler_impl._shared.compiled import Compiled

    launches = vars(plan_of(make_case(0, COUNTS, 40, edits=True), "triton")._run)
    shaped = [*launches["scan_kernels"].values(), *launches["settle_kernels"].values()]
    kernels = [*shaped, *(one for one in launches.values() if isinstance(one, Compiled))]
    assert [kernel.options["enable_fp_fusion"] for kernel in kernels] == [False] * 8
