"""Our rejection sampler with counter noise: both backends against each other, against float64, and what it promises."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import triton
import triton.language as tl

from fairdraw.sampler_impl import (
    _counter_draw,
    _counter_handover,
    _counter_judge,
    _counter_measure,
    _counter_triton,
    rejection_counter,
)
from fairdraw.sampler_impl._counter_torch import uniforms_at

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BACKENDS = ("torch", "triton")
DRAFTS = ("probs", "logits", "logits+lse", "one-hot")
MARGIN = 2.0**-18
"""A uniform nearer than this, relative, to an edge between two outcomes may be decided either way."""


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
    """A plausible batch: drafts are drawn from the draft law, which is near the target law."""
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
    """One request, the same law at every position, bonus token the last id."""
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
        accept, draw = uniforms_at(call.seeds[req_idx], call.positions[req_idx] + pos)
        rows.append(_expected_row(call, req_idx, start, end - start, accept.tolist(), draw.tolist()))
    return rows


def _expected_row(
    call: Call, req_idx: int, start: int, count: int, accept: list[float], draw: list[float]
) -> list[int] | None:
    shift = req_idx if call.bonus_token_ids is None else 0
    output: list[int] = []
    for pos in range(count):
        target = (call.logits[start + pos + shift].double() / call.temperature[req_idx].double()).softmax(-1)
        token_id = int(call.draft_token_ids[start + pos])
        draft = _draft_law(call, start + pos, req_idx, target)
        ratio = float(target[token_id] / draft[token_id])
        if abs(ratio / accept[pos] - 1) < MARGIN:
            return None
        if ratio < accept[pos]:
            weights = (target - draft).clamp(min=0)
            return _padded(call, output, _drawn(weights.numpy(), draw[pos]))
        output.append(token_id)
    if call.bonus_token_ids is not None:
        return _padded(call, output, int(call.bonus_token_ids[req_idx, 0]))
    target = (call.logits[start + count + shift].double() / call.temperature[req_idx].double()).softmax(-1)
    return _padded(call, output, _drawn(target.numpy(), draw[count]))


def _draft_law(
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
    goal = uniform * cumulative[-1]
    token_id = int(np.searchsorted(cumulative, goal, side="right"))
    edges = cumulative[max(token_id - 1, 0) : token_id + 1]
    return None if (abs(edges - goal) < MARGIN * cumulative[-1]).any() else token_id


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


@pytest.mark.parametrize("draft", DRAFTS)
def test_backends_agree_across_tiles(draft: str) -> None:
    make_call([2, 1], 4096 + 1025, seed=3, draft=draft).both()
    make_call([1, 2], 1024, seed=4, draft=draft, bonus_rows=True).both()


@pytest.fixture
def large_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have batches of any size treated as those that more than fill a card."""
    monkeypatch.setattr(_counter_triton, "MEASURE_STRIPS", {3: 0})
    monkeypatch.setattr(_counter_triton, "DRAW_STRIPS", {2: 0})


@pytest.mark.usefixtures("large_batch")
@pytest.mark.parametrize("bonus_rows", [False, True], ids=["bonus given", "bonus drawn"])
@pytest.mark.parametrize("draft", DRAFTS)
def test_strips_and_a_workspace_change_no_token(draft: str, bonus_rows: bool) -> None:
    workspace = rejection_counter.make_workspace(9, 3, 1024 * 13 + 5, DEVICE)
    for num_draft_tokens, vocab_size in (([2, 0, 3, 1, 3, 3], 37), ([3, 2, 3], 1024 * 13 + 5)):
        call = make_call(num_draft_tokens, vocab_size, seed=8, draft=draft, bonus_rows=bonus_rows)
        call = replace(call, temperature=call.temperature.index_fill(0, torch.tensor([1]), 0.0))
        wanted = call.sample("torch")
        assert call.sample("triton") == wanted
        assert replace(call, workspace=workspace).sample("triton") == wanted
        assert not workspace.any()


@pytest.mark.usefixtures("large_batch")
@pytest.mark.parametrize("workspace", [False, True], ids=["alone", "workspace"])
@pytest.mark.parametrize("draft", DRAFTS)
def test_batches_larger_than_a_side_of_a_grid_are_folded(
    draft: str, workspace: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five requests in two folds of three and in five of one; of the last two, most lack drafts."""
    for side, counts in ((4, [2, 3, 1, 3, 3]), (1, [1, 2, 0, 3, 3]), (3, [3, 0, 0, 0, 1])):
        call = make_call(counts, 1024 * 2 + 77, seed=side, draft=draft, bonus_rows=side == 4)
        wanted = call.sample("torch")
        monkeypatch.setattr(_counter_triton, "LONGEST_SIDE", side)
        words = rejection_counter.make_workspace(5, 3, 1024 * 2 + 77, DEVICE) if workspace else None
        assert replace(call, workspace=words).sample("triton") == wanted
        assert words is None or not words.any()


@pytest.mark.usefixtures("large_batch")
def test_folds_count_no_evidence_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four folds of four the last one has three requests, and a program of a fourth has nothing to add."""
    call = make_call([2] * 15, 1024 + 77, seed=13, draft="one-hot")
    seen: list[Tensor] = []
    judge = _counter_triton._Launches.judge

    def look_and_judge(launches: Any) -> None:  # Any: private
        seen.append(launches.evidence.view(15, 2, 4)[:, 0, 2].clone())
        judge(launches)

    monkeypatch.setattr(_counter_triton._Launches, "judge", look_and_judge)
    monkeypatch.setattr(_counter_triton, "LONGEST_SIDE", 4)
    workspace = rejection_counter.make_workspace(15, 2, 1024 + 77, DEVICE)
    assert replace(call, workspace=workspace).sample("triton") == call.sample("torch")
    assert [counts.tolist() for counts in seen] == [[1.0] * 15]


@pytest.mark.skipif(DEVICE.type == "cuda", reason="a compiled kernel has its constants built in")
@pytest.mark.usefixtures("large_batch")
@pytest.mark.parametrize("draft", ["one-hot", "probs", "logits+lse"])
def test_evidence_convicts_none_that_the_judge_accepts(draft: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are those of a run that asks for a thousandfold proof, at uniforms just below and above what is accepted;
    a hundredth of a proof is too little, and is caught."""
    call = edge_of_acceptance(draft)
    monkeypatch.setattr(_counter_judge, "PATIENCE", type(_counter_judge.PATIENCE)(3))  # what is skipped never comes
    workspace = rejection_counter.make_workspace(len(call.seeds), call.max_spec_len, call.logits.shape[1], DEVICE)
    shipped = replace(call, workspace=workspace).sample("triton")
    assert shipped == call.sample("torch")
    assert [row.count(-1) < 2 for row in shipped] == [True, False] * 8
    for proof, same in ((1e3, True), (1e-2, False)):
        monkeypatch.setattr(_counter_measure, "PROOF", type(_counter_measure.PROOF)(proof))
        assert (replace(call, workspace=workspace).sample("triton") == shipped) is same
        workspace.zero_()


def test_exponential_race_of_the_benchmark_takes_the_place_of_the_inverse_cdf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokens are others, of the same law; where they stand is the same."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "tools"))
    call = make_call([2, 3, 1, 3], 1024 * 2 + 77, seed=31, draft="probs")
    shipped = call.sample("triton")
    monkeypatch.setattr(_counter_triton, "draw_kernel", import_module("_race_arm").race_kernel)
    raced = call.sample("triton")
    assert [[token >= 0 for token in row] for row in raced] == [[token >= 0 for token in row] for row in shipped]
    assert raced != shipped
    assert max(map(max, raced)) < 1024 * 2 + 77


@triton.jit  # type: ignore[untyped-decorator]  # Triton ships no types
def _settled_kernel(  # type: ignore[no-untyped-def]
    settled_ptr,  # [1] int32, written
    evidence_ptr,  # [max_spec_len, 4] float32
    position,
    num_strips,
    most_looks,
):
    settled = _counter_measure._is_settled(evidence_ptr, position, num_strips, most_looks)
    tl.store(settled_ptr, settled.to(tl.int32))


@pytest.mark.parametrize(
    ("rows", "settled"),
    [
        ([(0, 0, 0), (0, 0, 0)], False),
        ([(0, 0.9, 0), (0, 0, 0)], False),  # probably, by its uniform alone: looks again, in vain
        ([(0.5, 1, 1), (0, 0, 0)], False),  # probably, by one strip of four
        ([(3.9, 0.25, 4), (3.9, 0.25, 4)], False),  # two that are not rejected
        ([(2, 0.6, 2), (0, 0, 0)], True),
        ([(0.5, 1, 1), (9, 0.5, 3)], True),
        ([(1, 0.5, 4), (1, 0.5, 4), (9, 9, 4)], False),  # what comes later settles nothing
    ],
)
def test_later_rows_are_settled_by_a_proof_and_by_no_guess(
    rows: list[tuple[float, float, float]], settled: bool
) -> None:
    evidence = torch.tensor([[*row, 0.0] for row in rows], device=DEVICE)
    found = torch.full((1,), -1, dtype=torch.int32, device=DEVICE)
    _settled_kernel[(1,)](found, evidence, 2, 4.0, 8)
    assert bool(found.item()) is settled


def edge_of_acceptance(draft: str) -> Call:
    """Two drafts each; the quotient of the first one's probabilities is 1 % above or below its uniform."""
    call = make_call([2] * 16, 1024 + 77, seed=13, draft=draft)
    rows = call.logits.clone()
    for request in range(16):
        row, temperature = 2 * request, call.temperature[request]
        token_id = int(call.draft_token_ids[row])
        accept, _ = uniforms_at(call.seeds[request], call.positions[request])
        target = float(accept) * (1 + (-1) ** request * 0.01)
        if call.draft_probs is not None:
            target *= float(call.draft_probs[row, token_id])
        if call.draft_logits is not None and call.draft_logsumexp is not None:
            target *= float((call.draft_logits[row, token_id] / temperature - call.draft_logsumexp[row]).exp())
        rest = (rows[row].double() / temperature).index_fill(0, torch.tensor(token_id), float("-inf"))
        rows[row, token_id] = temperature * (math.log(target / (1 - target)) + rest.logsumexp(0))
    return replace(call, logits=rows)


@pytest.mark.parametrize("draft", DRAFTS)
def test_greedy_requests_accept_the_argmax_however_low_it_is(draft: str) -> None:
    """Three tiles are padded to four, and the fourth must win against nobody."""
    call = make_call([2, 3], 1024 * 2 + 100, seed=12, draft=draft)
    rows = call.logits - torch.tensor([0.0, 3, 30, 1e4, 1e30])[:, None]
    call = replace(call, logits=rows, temperature=torch.zeros(2), draft_token_ids=rows.argmax(-1).int())
    assert call.bonus_token_ids is not None
    wanted = [
        [*ids.tolist(), bonus.item()]
        for ids, bonus in zip(rows.argmax(-1).split([2, 3]), call.bonus_token_ids, strict=True)
    ]
    assert [[token for token in row if token >= 0] for row in call.both()] == wanted


@pytest.mark.parametrize("vocab_size", [37, 1024 * 2 + 100])
def test_bonus_rows_of_any_size_of_numbers_are_drawn_from(vocab_size: int) -> None:
    """Nothing is known of a bonus row beforehand: huge, tiny, masked, without a law."""
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


@pytest.mark.skipif(DEVICE.type == "cuda", reason="a compiled kernel has its patience built in")
@pytest.mark.usefixtures("large_batch")
def test_step_that_contradicts_itself_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests wait for rows that nobody measures, until their patience ends."""
    call = make_call([1, 1, 1], 9, seed=2)
    call = replace(call, cu_num_draft_tokens=torch.tensor([3, 1, 3], dtype=torch.int32), max_spec_len=3)
    for module in (_counter_handover, _counter_judge, _counter_draw):
        monkeypatch.setattr(module, "PATIENCE", type(module.PATIENCE)(3))
    workspace = rejection_counter.make_workspace(3, 3, 9, DEVICE)
    assert len(replace(call, workspace=workspace).sample("triton", validate=False)) == 3


@pytest.mark.parametrize("draft_dtype", [torch.float32, torch.float16], ids=["float32", "float16"])
def test_target_and_draft_logits_may_have_different_types(draft_dtype: torch.dtype) -> None:
    call = make_call([2, 0, 3], 1024 + 7, seed=9, draft="logits")
    assert call.draft_logits is not None
    replace(call, logits=call.logits.bfloat16(), draft_logits=call.draft_logits.to(draft_dtype)).both()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_half_precision_logits_equal_the_same_numbers_in_float32(dtype: torch.dtype) -> None:
    call = make_call([2, 3], 300, seed=5, draft="logits")
    assert call.draft_logits is not None
    half = replace(call, logits=call.logits.to(dtype), draft_logits=call.draft_logits.to(dtype))
    full = replace(call, logits=half.logits.float(), draft_logits=call.draft_logits.to(dtype).float())
    assert half.both() == full.both()


def test_rows_may_be_strided() -> None:
    call = make_call([2, 3], 33, seed=6)
    wide = torch.full((5, 50), float("nan"))
    wide[:, :33] = call.logits
    assert replace(call, logits=wide[:, :33]).both() == call.both()
    assert replace(call, logits=call.logits.t().contiguous().t()).both() == call.both()


@pytest.mark.parametrize("backend", BACKENDS)
def test_tokens_do_not_depend_on_batch_neighbours(backend: str) -> None:
    call = make_call([2, 3, 0, 3], 41, seed=7)
    together = call.sample(backend)
    for req_idx, (start, end) in enumerate([(0, 2), (2, 5), (5, 5), (5, 8)]):
        assert call.draft_probs is not None
        assert call.bonus_token_ids is not None
        alone = replace(
            call,
            draft_token_ids=call.draft_token_ids[start:end],
            cu_num_draft_tokens=torch.tensor([end - start], dtype=torch.int32),
            logits=call.logits[start:end],
            draft_probs=call.draft_probs[start:end],
            temperature=call.temperature[req_idx : req_idx + 1],
            seeds=call.seeds[req_idx : req_idx + 1],
            positions=call.positions[req_idx : req_idx + 1],
            bonus_token_ids=call.bonus_token_ids[req_idx : req_idx + 1],
        )
        assert alone.sample(backend) == [together[req_idx]]


def test_padding_behind_the_last_request_changes_nothing() -> None:
    call = make_call([2, 3], 33, seed=8, draft="one-hot")
    padded = replace(
        call,
        draft_token_ids=torch.cat([call.draft_token_ids, torch.zeros(3, dtype=torch.int32)]),
        logits=torch.cat([call.logits, torch.zeros(3, 33)]),
    )
    assert padded.sample("triton", validate=False) == call.sample("triton")


def test_greedy_requests_accept_the_argmax_and_ignore_their_seed() -> None:
    call = make_call([2, 2, 2], 33, seed=9, bonus_rows=True)
    best = call.logits.argmax(-1)
    drafts = torch.tensor([best[0], best[1], best[3], 0, best[6] - 1, 0]).int()
    greedy = replace(call, temperature=torch.zeros(3), draft_token_ids=drafts)
    rows = greedy.both()
    assert rows[0] == [*best[:3].tolist()]
    assert rows[1][:2] == [int(best[3]), int(best[4])]
    assert rows[2] == [int(best[6]), -1, -1]
    assert replace(greedy, seeds=greedy.seeds + 1).both() == rows


def test_greedy_takes_the_lowest_id_of_a_tie_and_nan_first() -> None:
    logits = torch.tensor([[1.0, 5.0, 5.0, 0.0], [1.0, 5.0, float("nan"), float("nan")], [-0.0, 0.0, -1.0, -1.0]])
    call = replace(one_request([0.25] * 4, None, [1, 2, 3]), logits=logits, temperature=torch.zeros(1))
    assert call.both() == [[1, 2, 0, -1]]


NO_LAW = {"NaN": float("nan"), "infinite": float("inf")}


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("bad", NO_LAW.values(), ids=NO_LAW.keys())
def test_row_without_a_law_rejects_and_gives_token_0(bad: float, draft: str) -> None:
    call = make_call([2], 33, seed=10, draft=draft)
    logits = call.logits.clone()
    logits[0, 7] = bad
    for rows in (logits, torch.full_like(logits, float("-inf"))):
        for seed in range(2):
            assert replace(call, logits=rows, seeds=torch.tensor([seed])).both() == [[0, -1, -1]]


def test_unknown_draft_law_accepts_nothing() -> None:
    call = make_call([1, 1], 33, seed=11)
    assert call.draft_probs is not None
    rows = replace(call, draft_probs=torch.full_like(call.draft_probs, float("nan"))).both()
    assert [row[1] for row in rows] == [-1, -1]


@pytest.mark.parametrize("token_id", [-1, 4, 99], ids=["withdrawn", "just outside", "far outside"])
@pytest.mark.parametrize("draft", [None, [0.25] * 4], ids=["one-hot", "dense"])
def test_draft_id_outside_the_vocabulary_is_never_accepted(draft: list[float] | None, token_id: int) -> None:
    call = one_request([0.1, 0.2, 0.3, 0.4], draft, [token_id])
    rows = [replace(call, seeds=torch.tensor([seed])).sample("torch", validate=False)[0] for seed in range(8)]
    assert rows == [replace(call, seeds=torch.tensor([s])).sample("triton", validate=False)[0] for s in range(8)]
    assert all(0 <= row[0] < 4 and row[1] == -1 for row in rows)


@pytest.mark.parametrize("vocab_size", [1, 2, 31, 513])
@pytest.mark.parametrize("draft", ["probs", "one-hot"])
def test_small_vocabularies_are_verified(vocab_size: int, draft: str) -> None:
    rows = make_call([1, 2], vocab_size, seed=12, draft=draft, bonus_rows=True).both()
    assert all(-1 <= token_id < vocab_size for row in rows for token_id in row)


def test_empty_residual_draws_from_the_target() -> None:
    law = [0.5, 0.5, 0.0, 0.0]
    call = one_request(law, law, [2])
    tokens = {tuple(replace(call, seeds=torch.tensor([seed])).both()[0]) for seed in range(8)}
    assert tokens == {(0, -1), (1, -1)}


@pytest.mark.parametrize("scale", [1e4, -1e4, 3e-39], ids=["high", "low", "tiny"])
def test_level_of_the_logits_changes_nothing(scale: float) -> None:
    call = make_call([2, 2], 33, seed=13, draft="one-hot", bonus_rows=True)
    coarse = replace(call, logits=(call.logits * 4).round())
    assert replace(coarse, logits=coarse.logits + scale).both() == coarse.both()


def test_masked_logits_are_never_emitted() -> None:
    call = make_call([3] * 4, 64, seed=14)
    logits = call.logits.clone()
    logits[:, 1::2] = torch.finfo(torch.float32).min
    rows = replace(call, logits=logits, bonus_token_ids=torch.zeros(4, 1, dtype=torch.int32)).both()
    assert all(token_id % 2 == 0 for row in rows for token_id in row if token_id >= 0)


@pytest.mark.parametrize("temperature", [0.01, 100.0])
def test_temperature_is_folded_in(temperature: float) -> None:
    call = replace(make_call([2, 3], 40, seed=15, draft="one-hot"), temperature=torch.full((2,), temperature))
    processed = replace(call, logits=call.logits / temperature, temperature=torch.ones(2))
    assert call.both() == processed.both()


def test_uniforms_are_philox() -> None:
    """Ten rounds in Python's integers; the keys are the seed's words, the counter is the position's and "veri"."""
    seed, position = 0x0123456789ABCDEF, 0x00000011DEADBEEF
    words = [position & 0xFFFFFFFF, position >> 32, 0x76657269, 0]
    keys = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        first, third = words[0] * 0xD2511F53, words[2] * 0xCD9E8D57
        words = [(third >> 32) ^ words[1] ^ keys[0], third & 0xFFFFFFFF, (first >> 32) ^ words[3] ^ keys[1]]
        words.append(first & 0xFFFFFFFF)
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    wanted = [((words[i] >> 5) * 2**26 + (words[i + 1] >> 6)) / 2**53 for i in (0, 2)]
    accept, draw = uniforms_at(torch.tensor(seed), torch.tensor(position))
    assert [accept.item(), draw.item()] == wanted


def test_first_token_follows_the_target() -> None:
    """Chi-square of 40000 fixed draws: accept one draft token, or replace it."""
    target = torch.tensor([0.05, 0.1, 0.15, 0.3, 0.4])
    draft = torch.tensor([0.4, 0.3, 0.1, 0.1, 0.1])
    size = 40_000
    noise = torch.Generator().manual_seed(1)
    call = Call(
        draft_token_ids=draft.multinomial(size, replacement=True, generator=noise).int(),
        cu_num_draft_tokens=torch.arange(1, size + 1, dtype=torch.int32),
        max_spec_len=1,
        logits=target.log().expand(size, 5).contiguous(),
        temperature=torch.ones(size),
        seeds=torch.full((size,), 9),
        positions=torch.arange(size) * 2,
        draft_probs=draft.expand(size, 5).contiguous(),
        bonus_token_ids=torch.zeros(size, 1, dtype=torch.int32),
    )
    first = torch.tensor(call.sample("torch"))[:, 0]
    counts = torch.bincount(first, minlength=5)
    statistic = float(((counts - size * target) ** 2 / (size * target)).sum())
    assert statistic < 23.5  # exceeded once in 10000 seeds, with 4 degrees of freedom
