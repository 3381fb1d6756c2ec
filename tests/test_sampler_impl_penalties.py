"""Our penalties against the real vLLM 0.22.0, its own `InputBatch` driven through a server's life, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairdraw.adapters._runtime import prepare_triton, quiet_imports
from fairdraw.oracles.penalties import PenalisedRow, PenaltiesOracle, PenaltyFactors
from fairdraw.sampler_impl import _history, _penalty_rows, penalties
from fairdraw.sampler_impl._history import History
from fairdraw.sampler_impl.penalties import PaddedOutputs, Penalties
from fairdraw.seeds import derive_seed

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

prepare_triton("cpu")
with quiet_imports():
    vllm = pytest.importorskip("vllm")
    from vllm.v1.sample.logits_processor.state import LogitsProcessors
    from vllm.v1.sample.ops import penalties as upstream
    from vllm.v1.sample.rejection_sampler import RejectionSampler
    from vllm.v1.sample.sampler import Sampler
    from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

if vllm.__version__ != "0.22.0":
    pytest.skip("events are those of vLLM 0.22.0", allow_module_level=True)

MOST_REQUESTS, MOST_DRAFTS, LONGEST_PROMPT = 4, 3, 5
EVENTS = "step step add add finish preempt resume swap discard cut late-ids hidden-drafts".split()
ORACLE = PenaltiesOracle()


@pytest.fixture(autouse=True)
def _host_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "is_pin_memory_available", lambda: False)


@dataclass(frozen=True)
class Life:
    """A recipe: what happens to a server in each step. Details follow from the seed."""

    events: tuple[str, ...]
    vocab_size: int
    speculative: bool
    asynchronous: bool
    seed: int


LIVES = st.builds(
    Life,
    events=st.lists(st.sampled_from(EVENTS), min_size=1, max_size=24).map(tuple),
    vocab_size=st.sampled_from((1, 2, 12, 300)),
    speculative=st.booleans(),
    asynchronous=st.booleans(),
    seed=st.integers(0, 2**32),
)


@dataclass
class Request:
    state: Any  # Any: vLLM's CachedRequestState
    factors: PenaltyFactors
    emitted: list[int] = field(default_factory=list)
    num_drafts: int = 0


class Server:
    """vLLM's V1 runner reduced to what it does to token lists, with our penalties listening to the same batch."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.rng = np.random.default_rng(derive_seed(life))
        self.ours = Penalties(life.vocab_size)
        self.padded = PaddedOutputs()
        listener = SimpleNamespace(is_argmax_invariant=lambda: False, update_state=self.ours.sync_batch)
        self.batch = InputBatch(
            max_num_reqs=MOST_REQUESTS,
            max_model_len=256,
            max_num_batched_tokens=256,
            device=torch.device("cpu"),
            pin_memory=False,
            vocab_size=life.vocab_size,
            block_sizes=[16],
            kernel_block_sizes=[16],
            logitsprocs=LogitsProcessors([listener]),
        )
        self.requests: dict[str, Request] = {}
        self.waiting: list[str] = []
        self.num_compared = 0

    def ids(self, count: int) -> list[int]:
        drawn: list[int] = self.rng.integers(self.life.vocab_size, size=count).tolist()
        return drawn

    def run(self) -> int:
        """Live this life; the number of penalised steps that were compared."""
        for event in ("add", *self.life.events):
            self.schedule(event)
            self.sample(late_ids=event == "late-ids")
            self.record(discarded={int(self.rng.integers(4))} if event == "discard" else set())
        return self.num_compared

    # What `GPUModelRunner._update_states` does to the batch.
    def schedule(self, event: str) -> None:
        running = list(self.batch.req_id_to_index)
        if running and event in ("finish", "preempt"):
            req_id = running[self.rng.integers(len(running))]
            self.batch.remove_request(req_id)
            (self.waiting.append if event == "preempt" else self.requests.pop)(req_id)  # type: ignore[operator]
        if self.life.asynchronous and self.life.speculative:
            for req_id in self.batch.req_id_to_index:
                request = self.requests[req_id]
                request.state.output_token_ids.extend([-1] * request.num_drafts)
        if running and event == "cut":
            self.cut(self.requests[running[self.rng.integers(len(running))]])
        if event == "resume" and self.waiting and len(self.batch.req_id_to_index) < MOST_REQUESTS:
            self.resume(self.waiting.pop())
        if event == "add" and len(self.batch.req_id_to_index) < MOST_REQUESTS:
            self.add()
        self.batch.condense()
        if event == "swap" and self.batch.num_reqs > 1:
            self.batch.swap_states(*self.rng.choice(self.batch.num_reqs, 2, replace=False).tolist())
        self.batch.refresh_metadata()
        self.draft(hidden=event == "hidden-drafts")

    def add(self) -> None:
        presence, frequency = self.rng.choice([0, 0, 0.5, -1.3], 2).tolist()
        factors = PenaltyFactors(presence, frequency, self.rng.choice([1, 1, 1.3, 0.7]))
        req_id = f"r{len(self.requests)}-{self.rng.integers(2**40)}"
        params = vllm.SamplingParams(
            presence_penalty=presence, frequency_penalty=frequency, repetition_penalty=factors.repetition
        )
        state = CachedRequestState(
            req_id=req_id,
            prompt_token_ids=self.ids(int(self.rng.integers(1, LONGEST_PROMPT))),
            mm_features=[],
            sampling_params=params,
            generator=None,
            block_ids=([],),
            num_computed_tokens=0,
            output_token_ids=[],
        )
        self.requests[req_id] = Request(state, factors)
        self.batch.add_request(state)

    def resume(self, req_id: str) -> None:
        request = self.requests[req_id]
        request.num_drafts = 0
        if self.life.asynchronous:
            request.state.output_token_ids = list(request.emitted)
        self.batch.add_request(request.state)

    def cut(self, request: Request) -> None:
        """The KV cache of the last tokens was lost."""
        del request.emitted[len(request.emitted) - int(self.rng.integers(1, 4)) :]
        del request.state.output_token_ids[len(request.emitted) :]
        row = self.batch.req_id_to_index[request.state.req_id]
        length = self.batch.num_prompt_tokens[row] + len(request.state.output_token_ids)
        self.batch.num_tokens_no_spec[row] = length

    def draft(self, *, hidden: bool) -> None:
        for req_id in self.batch.req_ids:
            request = self.requests[req_id]
            request.num_drafts = int(self.rng.integers(MOST_DRAFTS + 1)) if self.life.speculative else 0
            drafts = [-1] * request.num_drafts if hidden else self.ids(request.num_drafts)
            self.batch.update_req_spec_token_ids(request.state, {req_id: drafts})

    # What `_sample` does, and the comparison.
    def sample(self, *, late_ids: bool) -> None:
        if not late_ids:
            self.batch.update_async_output_token_ids()
        metadata = self.batch.sampling_metadata
        if metadata.no_penalties:
            return
        self.num_compared += 1
        drafts = metadata.spec_token_ids[: self.batch.num_reqs]
        self.ours.update(metadata.output_token_ids)
        self.compare_bonus_rows(metadata, drafts)
        if any(drafts):
            self.compare_draft_rows(metadata, drafts)
        if not (self.life.asynchronous and self.life.speculative):
            self.compare_padded(metadata)
        assert self.ours.nbytes <= 4 * self.life.vocab_size * MOST_REQUESTS

    def logits(self, num_rows: int) -> Tensor:  # [num_rows, vocab_size] float32
        drawn = self.rng.standard_normal((num_rows, self.life.vocab_size)).astype(np.float32)
        drawn[self.rng.random(drawn.shape) < 0.1] = self.rng.choice([-np.inf, 0.0, np.nan])
        return torch.from_numpy(drawn)

    def factors(self, metadata: Any) -> tuple[Tensor, Tensor, Tensor]:  # 3 x [batch_size] float32
        return metadata.presence_penalties, metadata.frequency_penalties, metadata.repetition_penalties

    def compare_bonus_rows(self, metadata: Any, drafts: list[list[int]]) -> None:
        logits = self.logits(self.batch.num_reqs)
        combined = Sampler._combine_outputs_with_spec_tokens(metadata.output_token_ids, metadata.spec_token_ids)
        theirs = Sampler.apply_penalties(logits.clone(), metadata, combined)
        ours = self.ours.apply(logits.clone(), *self.factors(metadata), metadata.spec_token_ids)
        assert_same_bits(ours, theirs)
        rows = [ORACLE.bonus_row(row, seen) for row, seen in zip(self.rows(), drafts, strict=True)]
        assert_same_bits(ours, penalise_all(logits, rows))

    def compare_draft_rows(self, metadata: Any, drafts: list[list[int]]) -> None:
        counts = torch.tensor(list(map(len, drafts)))
        logits = self.logits(int(counts.sum()))
        combined = RejectionSampler._combine_outputs_with_spec_tokens(metadata.output_token_ids, drafts)
        repeat = torch.arange(len(drafts)).repeat_interleave(counts)
        theirs = RejectionSampler.apply_penalties(logits.clone(), metadata, None, repeat, combined)
        ours = self.ours.apply_to_drafts(logits.clone(), *self.factors(metadata), metadata.spec_token_ids)
        assert_same_bits(ours, theirs)
        rows = [seen for row, ids in zip(self.rows(), drafts, strict=True) for seen in ORACLE.draft_rows(row, ids)]
        assert_same_bits(ours, penalise_all(logits, rows))

    def compare_padded(self, metadata: Any) -> None:
        batch, vocab_size = self.batch, self.life.vocab_size
        bounds = batch.num_prompt_tokens, batch.num_tokens_no_spec
        rows = metadata.output_token_ids
        built = self.padded.build(rows, batch.req_output_token_ids, batch.token_ids_cpu, *bounds, vocab_size)
        assert built is not None
        theirs = upstream._convert_to_tensors(rows, vocab_size, torch.device("cpu"))
        assert torch.equal(built, theirs.masked_fill(theirs == -1, vocab_size))
        assert np.array_equal(built.numpy(), ORACLE.padded(rows, vocab_size))

    def rows(self) -> list[PenalisedRow]:
        states = [self.requests[req_id] for req_id in self.batch.req_ids]
        return [PenalisedRow(r.state.prompt_token_ids, r.state.output_token_ids, r.factors) for r in states]

    # What `_bookkeeping_sync` does with the tokens of this step.
    def record(self, discarded: set[int]) -> None:
        sampled = [self.emit(self.requests[req_id]) for req_id in self.batch.req_ids]
        for row, (req_id, ids) in enumerate(zip(self.batch.req_ids, sampled, strict=True)):
            request, known = self.requests[req_id], [-1] if self.life.asynchronous else ids
            if row in discarded:
                request.num_drafts = 0
                continue
            request.emitted += ids
            begin = self.batch.num_tokens_no_spec[row]
            self.batch.token_ids_cpu[row, begin : begin + len(known)] = known
            self.batch.num_tokens_no_spec[row] = begin + len(known)
            request.state.output_token_ids.extend(known)
        if self.life.asynchronous:
            width = max(map(len, sampled), default=0)
            padded = torch.tensor([ids + [-1] * (width - len(ids)) for ids in sampled])
            self.batch.set_async_sampled_token_ids(padded, SimpleNamespace(synchronize=lambda: None))
            rows = self.batch.req_id_to_index.items()
            self.batch.prev_req_id_to_index = {req_id: row for req_id, row in rows if row not in discarded}

    def emit(self, request: Request) -> list[int]:
        """Some accepted drafts and one token more; their ids do not matter to penalties."""
        return self.ids(1 + int(self.rng.integers(request.num_drafts + 1)))


def assert_same_bits(
    ours: Tensor,  # [num_rows, vocab_size] float32
    theirs: Tensor,  # [num_rows, vocab_size] float32
) -> None:
    assert torch.equal(ours.isnan(), theirs.isnan())
    assert torch.equal(ours.nan_to_num(0.0).view(torch.int32), theirs.nan_to_num(0.0).view(torch.int32))


def penalise_all(
    logits: Tensor,  # [num_rows, vocab_size] float32
    rows: list[PenalisedRow],
) -> Tensor:  # [num_rows, vocab_size] float32
    penalised = [ORACLE.penalise(row_logits, row) for row_logits, row in zip(logits.numpy(), rows, strict=True)]
    return torch.from_numpy(np.stack(penalised))


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(life=LIVES)
def test_penalised_logits_equal_upstream_and_recount_after_every_event(life: Life) -> None:
    Server(life).run()


def test_lives_compare_many_penalised_steps() -> None:
    """Without this, a harness that never penalises anything would pass."""
    assert compared_steps(some_lives(8)) > 40


def compared_steps(lives: list[Life]) -> int:
    return sum(Server(life).run() for life in lives)


def some_lives(count: int) -> list[Life]:
    """Long lives of all four kinds, the same ones every time."""
    rng = np.random.default_rng(derive_seed("some lives"))
    kinds = [(speculative, asynchronous) for speculative in (False, True) for asynchronous in (False, True)]
    return [Life(tuple(rng.choice(EVENTS, 24).tolist()), 12, *kinds[i % 4], i) for i in range(count)]


def cut_is_not_taken_back(patch: pytest.MonkeyPatch) -> None:
    rewind = History.rewind
    patch.setattr(History, "rewind", lambda self, length: rewind(self, length)[:0])


def repair_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    def read(self: History) -> list[int]:
        new = self.live[len(self.ids) :]
        self.ids += new
        return new

    patch.setattr(History, "read", read)
    patch.setattr(History, "standing", lambda self: min(len(self.ids), len(self.live)))


def only_the_last_new_token_counts(patch: pytest.MonkeyPatch) -> None:
    def read_last(histories: list[History]) -> _history.Changes:
        changes = _history.read_changes(histories)
        ends = np.cumsum(changes.num_added).tolist()
        last = [changes.added[end - 1] for end, count in zip(ends, changes.num_added, strict=True) if count]
        return _history.Changes(last, [min(count, 1) for count in changes.num_added], changes.dropped)

    patch.setattr(_penalty_rows, "read_changes", read_last)


def finished_request_is_left_behind(patch: pytest.MonkeyPatch) -> None:
    def follow(states: dict[int, Any], update: Any, make_state: Any) -> dict[int, Any]:
        rows = _history.follow_rows(states, update, make_state)
        filled = [target for _, target, direction in update.moved if direction.name != "SWAP"]
        return {**{row: states[row] for row in filled if row in states}, **rows}

    patch.setattr(penalties, "follow_rows", follow)


def swapped_rows_share_a_state(patch: pytest.MonkeyPatch) -> None:
    def follow(states: dict[int, Any], update: Any, make_state: Any) -> dict[int, Any]:
        rows = _history.follow_rows(states, update, make_state)
        swapped = [(a, b) for a, b, direction in update.moved if direction.name == "SWAP"]
        return {**{a: rows[b] for a, b in swapped if b in rows}, **rows}

    patch.setattr(penalties, "follow_rows", follow)


def bonus_row_sees_no_drafts(patch: pytest.MonkeyPatch) -> None:
    bonus_rows = penalties.bonus_rows
    patch.setattr(penalties, "bonus_rows", lambda size, drafts, vocab_size: bonus_rows(size, None, vocab_size))


def draft_row_sees_its_own_draft(patch: pytest.MonkeyPatch) -> None:
    def draft_rows(size: int, drafts: list[list[int]], vocab_size: int) -> _penalty_rows.PenaltyRows:
        rows = _penalty_rows.draft_rows(size, drafts, vocab_size)
        own = np.concatenate([np.array(ids, np.int64) for ids in drafts[:size]])
        seen, ids = np.append(rows.draft_row, np.arange(len(own))), np.append(rows.draft_token_id, own)
        order = np.argsort(seen, kind="stable")[ids >= 0]
        return _penalty_rows.PenaltyRows(rows.request, seen[order], ids[order])

    patch.setattr(penalties, "draft_rows", draft_rows)


def prompt_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(penalties, "IN_PROMPT", 0)


def placeholder_counts_as_a_token(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_penalty_rows, "in_vocab", lambda ids, vocab_size: True)


@pytest.mark.parametrize(
    "plant",
    [
        cut_is_not_taken_back,
        repair_is_forgotten,
        only_the_last_new_token_counts,
        finished_request_is_left_behind,
        swapped_rows_share_a_state,
        bonus_row_sees_no_drafts,
        draft_row_sees_its_own_draft,
        prompt_is_forgotten,
        placeholder_counts_as_a_token,
    ],
    ids=lambda plant: plant.__name__.replace("_", " "),
)
def test_planted_fault_is_caught(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, IndexError, ValueError)):
        compared_steps(some_lives(40))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_half_precision_logits_equal_upstream(dtype: torch.dtype) -> None:
    output, ours = [0, 3, 3], Penalties(64)
    params = SimpleNamespace(presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=1.2)
    ours.sync_batch(SimpleNamespace(removed=[], added=[(0, params, [5, 6], output)], moved=[]))
    ours.update([output])
    logits = torch.linspace(-9, 9, 64, dtype=dtype).view(1, 64)
    columns = [torch.tensor([value]) for value in vars(params).values()]
    theirs = upstream.apply_all_penalties(logits.clone(), torch.tensor([[5, 6]]), *columns, [output])
    assert torch.equal(ours.apply(logits, *columns), theirs)


def test_embedded_prompt_has_no_ids_where_upstream_penalises_an_earlier_request() -> None:
    server = Server(Life((), 12, False, False, 0))
    server.schedule("add")
    earlier = next(iter(server.requests.values())).state
    server.batch.remove_request(earlier.req_id)
    embedded = CachedRequestState(
        req_id="embedded",
        prompt_token_ids=None,
        prompt_embeds=torch.zeros(len(earlier.prompt_token_ids), 1),
        mm_features=[],
        sampling_params=vllm.SamplingParams(repetition_penalty=1.5),
        generator=None,
        block_ids=([],),
        num_computed_tokens=0,
        output_token_ids=[],
    )
    server.batch.add_request(embedded)
    server.batch.condense()
    server.batch.refresh_metadata()
    metadata, logits = server.batch.sampling_metadata, torch.ones(1, 12)
    assert metadata.prompt_token_ids.tolist() == [earlier.prompt_token_ids]
    assert not torch.equal(Sampler.apply_penalties(logits.clone(), metadata, metadata.output_token_ids), logits)
    server.ours.update(metadata.output_token_ids)
    assert torch.equal(server.ours.apply(logits.clone(), *server.factors(metadata)), logits)
