"""Our rejection sampler with counter noise: both backends against each other and against float64.

What the suite's checks show of the PyTorch backend (`fairdraw check rejection/counter`) is not repeated here: the
kernels are compared with it, where their arithmetic is their own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from helpers import covering
from torch import Tensor

from fairdraw.sampler_impl import rejection_counter
from fairdraw.sampler_impl._counter import accept, draw, launch, measure, slots
from fairdraw.sampler_impl._counter.step import KNOWN
from fairdraw.sampler_impl._shared.compiled import Compiled
from fairdraw.sampler_impl._shared.draws import VERIFY_STREAM, philox_uniforms

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DRAFTS = ("probs", "logits", "logits+lse", "one-hot")
MARGIN = 2.0**-18
"""A uniform nearer than this, relative, to an edge between two outcomes may be decided either way."""


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    """What a test changes holds for kinds that were launched before, too."""
    KNOWN.plans.clear()


@dataclass(frozen=True)
class Call:
    """Arguments of `rejection_sample`; `logits` have bonus rows if `bonus_token_ids` is None."""

    draft_token_ids: Tensor  # [num_tokens] int32
    cu_num_draft_tokens: Tensor  # [batch_size] int32
    max_spec_len: int
    logits: Tensor  # [num_rows, vocab_size] float32
    temperature: Tensor  # [batch_size] float32
    seeds: Tensor  # [batch_size] int64
    positions: Tensor  # [batch_size] int64
    draft_probs: Tensor | None = None  # [num_tokens, vocab_size] float32
    draft_logits: Tensor | None = None  # [num_tokens, vocab_size] float32
    draft_logsumexp: Tensor | None = None  # [num_tokens] float32
    bonus_token_ids: Tensor | None = None  # [batch_size, 1] int32
    workspace: Tensor | None = None  # [num_words] int64

    def sample(self, backend: Any, validate: bool = True) -> list[list[int]]:  # Any: a word
        moved: Any = {k: v.to(DEVICE) if isinstance(v, Tensor) else v for k, v in vars(self).items()}  # Any: arguments
        return rejection_counter.rejection_sample(**moved, backend=backend, validate=validate).tolist()

    def both(self) -> list[list[int]]:
        """Output rows, after checking that the backends agree on them."""
        rows = self.sample("torch")
        assert rows == self.sample("triton")
        return rows


def make_call(
    num_draft_tokens: list[int], vocab_size: int, seed: int = 0, *, draft: str = "probs", bonus_rows: bool = False
) -> Call:
    """A plausible batch: drafts are drawn from a distribution near the target's."""
    noise = torch.Generator().manual_seed(seed)
    batch_size, num_tokens = len(num_draft_tokens), sum(num_draft_tokens)
    counts = torch.tensor(num_draft_tokens)
    temperature = 0.5 + torch.rand(batch_size, generator=noise)
    per_token = temperature.repeat_interleave(counts)[:, None]
    draft_logits = torch.randn(num_tokens, vocab_size, generator=noise)
    probs = (draft_logits / per_token).softmax(-1)
    ids = probs.multinomial(1, generator=noise)[:, 0] if num_tokens else torch.zeros(0)
    rows = draft_logits + torch.randn(num_tokens, vocab_size, generator=noise)
    bonus = torch.randn(batch_size, vocab_size, generator=noise)
    if bonus_rows:
        parts = zip(rows.split(num_draft_tokens), bonus[:, None], strict=True)
        rows = torch.cat([part for pair in parts for part in pair])
    return Call(
        draft_token_ids=ids.int(),
        cu_num_draft_tokens=counts.cumsum(0).int(),
        max_spec_len=max(num_draft_tokens),
        logits=rows,
        temperature=temperature,
        seeds=torch.randint(-(2**62), 2**62, (batch_size,), generator=noise),
        positions=torch.randint(2**40, (batch_size,), generator=noise),
        draft_probs=probs if draft == "probs" else None,
        draft_logits=draft_logits if draft.startswith("logits") else None,
        draft_logsumexp=(draft_logits / per_token).logsumexp(-1) if draft == "logits+lse" else None,
        bonus_token_ids=None
        if bonus_rows
        else torch.randint(vocab_size, (batch_size, 1), generator=noise, dtype=torch.int32),
    )


def one_request(target: list[float], draft: list[float] | None, draft_token_ids: list[int], seed: int = 0) -> Call:
    """One request, the same distribution at every position, bonus token the last id."""
    count = len(draft_token_ids)
    return Call(
        draft_token_ids=torch.tensor(draft_token_ids, dtype=torch.int32),
        cu_num_draft_tokens=torch.tensor([count], dtype=torch.int32),
        max_spec_len=count,
        logits=torch.tensor([target] * count).log(),
        temperature=torch.ones(1),
        seeds=torch.tensor([seed]),
        positions=torch.zeros(1, dtype=torch.int64),
        draft_probs=None if draft is None else torch.tensor([draft] * count),
        bonus_token_ids=torch.tensor([[len(target) - 1]], dtype=torch.int32),
    )


def expected(call: Call) -> list[list[int] | None]:
    """The definition in float64, request by request; `None` where a uniform is too near an edge to tell."""
    rows = []
    starts = [0, *call.cu_num_draft_tokens.tolist()]
    for req_idx, (start, end) in enumerate(pairwise(starts)):
        pos = torch.arange(call.max_spec_len + 1)
        uniforms = philox_uniforms(call.seeds[req_idx], call.positions[req_idx] + pos, VERIFY_STREAM)
        rows.append(_expected_row(call, req_idx, start, end - start, *(drawn.tolist() for drawn in uniforms)))
    return rows


def _expected_row(
    call: Call, req_idx: int, start: int, count: int, to_accept: list[float], to_draw: list[float]
) -> list[int] | None:
    shift = req_idx if call.bonus_token_ids is None else 0
    output: list[int] = []
    for pos in range(count):
        target = (call.logits[start + pos + shift].double() / call.temperature[req_idx].double()).softmax(-1)
        token_id = int(call.draft_token_ids[start + pos])
        draft = _draft_distribution(call, start + pos, req_idx, target)
        ratio = float(target[token_id] / draft[token_id])
        if abs(ratio / to_accept[pos] - 1) < MARGIN:
            return None
        if ratio < to_accept[pos]:
            weights = (target - draft).clamp(min=0)
            return _padded(call, output, _drawn(weights.numpy(), to_draw[pos]))
        output.append(token_id)
    if call.bonus_token_ids is not None:
        return _padded(call, output, int(call.bonus_token_ids[req_idx, 0]))
    target = (call.logits[start + count + shift].double() / call.temperature[req_idx].double()).softmax(-1)
    return _padded(call, output, _drawn(target.numpy(), to_draw[count]))


def _draft_distribution(
    call: Call,
    row: int,
    req_idx: int,
    target: Tensor,  # [vocab_size] float64
) -> Tensor:  # [vocab_size] float64
    if call.draft_probs is not None:
        return call.draft_probs[row].double()
    if call.draft_logits is not None:
        return (call.draft_logits[row].double() / call.temperature[req_idx].double()).softmax(-1)
    return torch.zeros_like(target).index_fill_(0, call.draft_token_ids[row].long(), 1.0)


def _drawn(weights: np.ndarray[Any, Any], uniform: float) -> int | None:  # Any: float64 of any length
    cumulative = weights.cumsum()
    threshold = uniform * cumulative[-1]
    token_id = int(np.searchsorted(cumulative, threshold, side="right"))
    edges = cumulative[max(token_id - 1, 0) : token_id + 1]
    return None if (abs(edges - threshold) < MARGIN * cumulative[-1]).any() else token_id


def _padded(call: Call, accepted: list[int], token_id: int | None) -> list[int] | None:
    if token_id is None:
        return None
    return [*accepted, token_id] + [-1] * (call.max_spec_len - len(accepted))


@pytest.mark.parametrize("bonus_rows", [False, True], ids=["bonus given", "bonus drawn"])
@pytest.mark.parametrize("draft", DRAFTS)
def test_both_backends_follow_the_definition(draft: str, bonus_rows: bool) -> None:
    call = make_call([2, 0, 3, 1, 3, 3], 37, seed=len(draft), draft=draft, bonus_rows=bonus_rows)
    rows = call.both()
    known = [(row, wanted) for row, wanted in zip(rows, expected(call), strict=True) if wanted is not None]
    assert len(known) >= 5
    assert [row for row, _ in known] == [wanted for _, wanted in known]


@pytest.fixture
def large_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat batches of any size as those that more than fill a card."""
    monkeypatch.setattr(launch, "MEASURE_STRIPS", {3: 0})
    monkeypatch.setattr(launch, "DRAW_STRIPS", {2: 0})


CALLS: dict[str, Sequence[Any]] = {  # Any: a value of each feature
    "draft": DRAFTS,
    "bonus_rows": (False, True),
    "vocab_size": (1, 37, 1024 * 2 + 77, 1024 * 7 + 5),
    "counts": ([2, 3], [3, 3, 1, 2, 3], [3, 0, 0, 0, 1]),  # in the last one most requests lack drafts
    "side": (launch.LONGEST_SIDE, 4, 3, 1),  # larger batches are folded
    "workspace": (False, True),
    "greedy": (False, True),
    "dtype": (torch.float32, torch.bfloat16),
    "draft_dtype": (torch.float32, torch.float16),
}


@pytest.mark.usefixtures("large_batch")
@pytest.mark.parametrize("chosen", covering(CALLS), ids=lambda chosen: f"{chosen['draft']} {chosen['vocab_size']}")
def test_kernels_do_what_the_twin_does(chosen: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever strips, folds and workspace: every two of them meet."""
    size = chosen["vocab_size"]
    call = make_call(chosen["counts"], size, seed=8, draft=chosen["draft"], bonus_rows=chosen["bonus_rows"])
    temperature = call.temperature.index_fill(0, torch.tensor([1]), 0.0) if chosen["greedy"] else call.temperature
    drafts = call.draft_logits if call.draft_logits is None else call.draft_logits.to(chosen["draft_dtype"])
    call = replace(call, logits=call.logits.to(chosen["dtype"]), draft_logits=drafts, temperature=temperature)
    wanted = call.sample("torch")
    monkeypatch.setattr(launch, "LONGEST_SIDE", chosen["side"])
    workspace = rejection_counter.make_workspace(9, 3, size, DEVICE) if chosen["workspace"] else None
    assert replace(call, workspace=workspace).sample("triton") == wanted
    assert workspace is None or not workspace.any()


@pytest.mark.usefixtures("large_batch")
def test_folds_add_no_strip_to_a_bound_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four folds of four the last one has three requests, and a program of a fourth has nothing to add."""
    call = make_call([2] * 15, 1024 + 77, seed=13, draft="one-hot")
    seen: list[Tensor] = []
    run = Compiled.launch

    def look_and_launch(kernel: Compiled, key: Any, stream: Any, grid: Any, named: Any) -> None:  # Any: of a launch
        if kernel.kernel is accept.accept_kernel:
            seen.append(named["exit_bounds_ptr"].view(15, 2, 4)[:, 0, 2].clone())
        run(kernel, key, stream, grid, named)

    monkeypatch.setattr(Compiled, "launch", look_and_launch)
    monkeypatch.setattr(launch, "LONGEST_SIDE", 4)
    workspace = rejection_counter.make_workspace(15, 2, 1024 + 77, DEVICE)
    assert replace(call, workspace=workspace).sample("triton") == call.sample("torch")
    assert [counts.tolist() for counts in seen] == [[1.0] * 15]


@pytest.mark.skipif(DEVICE.type == "cuda", reason="a compiled kernel has its constants built in")
@pytest.mark.usefixtures("large_batch")
@pytest.mark.parametrize("draft", ["one-hot", "probs", "logits+lse"])
def test_bounds_reject_no_token_that_is_accepted(draft: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens equal those of a thousandfold margin, at uniforms just below and above what is accepted; a margin of a
    hundredth is too small, and is caught."""
    call = edge_of_acceptance(draft)
    monkeypatch.setattr(accept, "MAX_SPINS", type(accept.MAX_SPINS)(3))  # rows that are skipped are never published
    workspace = rejection_counter.make_workspace(len(call.seeds), call.max_spec_len, call.logits.shape[1], DEVICE)
    shipped = replace(call, workspace=workspace).sample("triton")
    assert shipped == call.sample("torch")
    assert [row.count(-1) < 2 for row in shipped] == [True, False] * 8
    for margin, same in ((1e3, True), (1e-2, False)):
        monkeypatch.setattr(measure, "MARGIN", type(measure.MARGIN)(margin))
        assert (replace(call, workspace=workspace).sample("triton") == shipped) is same
        workspace.zero_()


def edge_of_acceptance(draft: str) -> Call:
    """Two drafts each; the quotient of the first one's probabilities is 1 % above or below its uniform."""
    call = make_call([2] * 16, 1024 + 77, seed=13, draft=draft)
    rows = call.logits.clone()
    for request in range(16):
        row, temperature = 2 * request, call.temperature[request]
        token_id = int(call.draft_token_ids[row])
        uniform, _ = philox_uniforms(call.seeds[request], call.positions[request], VERIFY_STREAM)
        target = float(uniform) * (1 + (-1) ** request * 0.01)
        if call.draft_probs is not None:
            target *= float(call.draft_probs[row, token_id])
        if call.draft_logits is not None and call.draft_logsumexp is not None:
            target *= float((call.draft_logits[row, token_id] / temperature - call.draft_logsumexp[row]).exp())
        rest = (rows[row].double() / temperature).index_fill(0, torch.tensor(token_id), float("-inf"))
        rows[row, token_id] = temperature * (math.log(target / (1 - target)) + rest.logsumexp(0))
    return replace(call, logits=rows)


@pytest.mark.parametrize("draft", DRAFTS)
def test_greedy_requests_accept_the_argmax_however_low_it_is(draft: str) -> None:
    """Three tiles are padded to four, and the fourth must not win."""
    call = make_call([2, 3], 1024 * 2 + 100, seed=12, draft=draft)
    rows = call.logits - torch.tensor([0.0, 3, 30, 1e4, 1e30])[:, None]
    call = replace(call, logits=rows, temperature=torch.zeros(2), draft_token_ids=rows.argmax(-1).int())
    wanted = [
        [*ids.tolist(), bonus.item()]
        for ids, bonus in zip(rows.argmax(-1).split([2, 3]), call.bonus_token_ids, strict=True)
    ]
    assert [[token for token in row if token >= 0] for row in call.both()] == wanted


@pytest.mark.parametrize("vocab_size", [37, 1024 * 2 + 100])
def test_bonus_rows_of_any_magnitude_are_drawn_from(vocab_size: int) -> None:
    """The magnitude of a bonus row is not known beforehand: huge, tiny, masked, invalid."""
    call = make_call([0] * 8, vocab_size, seed=11, draft="one-hot", bonus_rows=True)
    rows = call.logits.clone()
    rows[0] *= 1e4
    rows[1] -= 500
    rows[2] += 500
    rows[3, :-1] = float("-inf")
    rows[4] = float("-inf")
    rows[5, 3] = float("nan")
    rows[6, 5] = float("inf")
    call = replace(call, logits=rows, temperature=torch.tensor([1, 1, 0.5, 1, 1, 1, 1, 0.01]), max_spec_len=1)
    tokens = [row[0] for row in call.both()]
    assert tokens[0] == rows[0].argmax()
    assert tokens[3] == vocab_size - 1
    assert tokens[4:7] == [0, 0, 0]
    greedy = replace(call, temperature=torch.zeros(8)).both()
    assert [row[0] for row in greedy] == rows.argmax(-1).tolist()


@pytest.mark.skipif(DEVICE.type == "cuda", reason="a compiled kernel has its constants built in")
@pytest.mark.usefixtures("large_batch")
def test_step_with_contradictory_arguments_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests wait for rows that no program measures, at most MAX_SPINS polls."""
    call = make_call([1, 1, 1], 9, seed=2)
    call = replace(call, cu_num_draft_tokens=torch.tensor([3, 1, 3], dtype=torch.int32), max_spec_len=3)
    for module in (slots, accept, draw):
        monkeypatch.setattr(module, "MAX_SPINS", type(module.MAX_SPINS)(3))
    workspace = rejection_counter.make_workspace(3, 3, 9, DEVICE)
    assert len(replace(call, workspace=workspace).sample("triton", validate=False)) == 3


def test_padding_behind_the_last_request_changes_nothing() -> None:
    call = make_call([2, 3], 33, seed=8, draft="one-hot")
    padded = replace(
        call,
        draft_token_ids=torch.cat([call.draft_token_ids, torch.zeros(3, dtype=torch.int32)]),
        logits=torch.cat([call.logits, torch.zeros(3, 33)]),
    )
    assert padded.sample("triton", validate=False) == call.sample("triton")


def test_greedy_takes_the_lowest_id_of_a_tie_and_nan_first() -> None:
    logits = torch.tensor([[1.0, 5.0, 5.0, 0.0], [1.0, 5.0, float("nan"), float("nan")], [-0.0, 0.0, -1.0, -1.0]])
    call = replace(one_request([0.25] * 4, None, [1, 2, 3]), logits=logits, temperature=torch.zeros(1))
    assert call.both() == [[1, 2, 0, -1]]


INVALID = {"NaN": float("nan"), "infinite": float("inf")}


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("bad", INVALID.values(), ids=INVALID.keys())
def test_invalid_row_rejects_and_gives_token_0(bad: float, draft: str) -> None:
    call = make_call([2], 33, seed=10, draft=draft)
    logits = call.logits.clone()
    logits[0, 7] = bad
    for rows in (logits, torch.full_like(logits, float("-inf"))):
        for seed in range(2):
            assert replace(call, logits=rows, seeds=torch.tensor([seed])).both() == [[0, -1, -1]]


def test_unknown_draft_distribution_accepts_nothing() -> None:
    call = make_call([1, 1], 33, seed=11)
    unknown = replace(call, draft_probs=torch.full_like(call.draft_probs, float("nan")))
    for backend in ("torch", "triton"):
        assert [row[1] for row in unknown.sample(backend, validate=False)] == [-1, -1]
        with pytest.raises(ValueError, match=r"draft_probs\[0, 0\]=nan, but it must be at least 0"):
            unknown.sample(backend)


@pytest.mark.parametrize("token_id", [-1, 4, 99], ids=["placeholder", "just outside", "far outside"])
@pytest.mark.parametrize("draft", [None, [0.25] * 4], ids=["one-hot", "dense"])
def test_draft_id_outside_the_vocabulary_is_never_accepted(draft: list[float] | None, token_id: int) -> None:
    call = one_request([0.1, 0.2, 0.3, 0.4], draft, [token_id])
    rows = [replace(call, seeds=torch.tensor([seed])).sample("torch", validate=False)[0] for seed in range(8)]
    assert rows == [replace(call, seeds=torch.tensor([s])).sample("triton", validate=False)[0] for s in range(8)]
    assert all(0 <= row[0] < 4 and row[1] == -1 for row in rows)


def test_empty_residual_draws_from_the_target() -> None:
    probs = [0.5, 0.5, 0.0, 0.0]
    call = one_request(probs, probs, [2])
    tokens = {tuple(replace(call, seeds=torch.tensor([seed])).both()[0]) for seed in range(8)}
    assert tokens == {(0, -1), (1, -1)}


@pytest.mark.parametrize("scale", [1e4, -1e4, 3e-39], ids=["high", "low", "tiny"])
def test_level_of_the_logits_changes_nothing(scale: float) -> None:
    call = make_call([2, 2], 33, seed=13, draft="one-hot", bonus_rows=True)
    coarse = replace(call, logits=(call.logits * 4).round())
    assert replace(coarse, logits=coarse.logits + scale).both() == coarse.both()
