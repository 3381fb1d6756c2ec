"""Our penalties against the real vLLM 0.22.0, its own `InputBatch` driven through a server's trace, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairdraw._adapters._runtime import prepare_triton, quiet_imports
from fairdraw._core.seeds import derive_seed
from fairdraw._oracles.penalties import PenalisedRow, PenaltiesOracle, PenaltyFactors
from fairdraw.sampler_impl import penalties
from fairdraw.sampler_impl._scanners import history as _history
from fairdraw.sampler_impl._scanners import penalty_rows as _penalty_rows
from fairdraw.sampler_impl._scanners.history import History
from fairdraw.sampler_impl._scanners.penalty_rows import PenaltyRows
from fairdraw.sampler_impl.penalties import PaddedOutputs, Penalties

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
EVENTS = ("step", "add", "step", "add", "finish", "preempt", "resume", "continue", "swap", "discard", "cut", "late ids")
ORACLE = PenaltiesOracle()


@pytest.fixture(autouse=True)
def _host_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "is_pin_memory_available", lambda: False)


@dataclass(frozen=True)
class EventTrace:
    """A recipe: what happens to a server in each step. Details follow from the seed."""

    events: tuple[str, ...]
    vocab_size: int
    speculative: bool
    asynchronous: bool
    seed: int


@dataclass
class Request:
    state: Any  # Any: vLLM's
    factors: PenaltyFactors
    emitted: list[int] = field(default_factory=list)
    num_drafts: int = 0


def request_state(req_id: str, factors: PenaltyFactors, **prompt: Any) -> Any:  # Any: vLLM's CachedRequestState
    params = {f"{name}_penalty": value for name, value in vars(factors).items()}
    return CachedRequestState(
        req_id=req_id,
        mm_features=[],
        sampling_params=vllm.SamplingParams(**params),
        generator=None,
        block_ids=([],),
        num_computed_tokens=0,
        output_token_ids=[],
        **prompt,
    )


class Server:
    """vLLM's V1 runner reduced to what it does to token lists, with our penalties listening to the same batch."""

    def __init__(self, trace: EventTrace) -> None:
        self.trace = trace
        self.rng = np.random.default_rng(derive_seed(trace))
        self.ours = Penalties(trace.vocab_size)
        self.padded = PaddedOutputs()
        listener = SimpleNamespace(is_argmax_invariant=lambda: False, update_state=self.ours.sync_batch)
        self.batch = InputBatch(
            max_num_reqs=MOST_REQUESTS,
            max_model_len=256,
            max_num_batched_tokens=256,
            device=torch.device("cpu"),
            pin_memory=False,
            vocab_size=trace.vocab_size,
            block_sizes=[16],
            kernel_block_sizes=[16],
            logitsprocs=LogitsProcessors([listener]),
        )
        self.requests: dict[str, Request] = {}
        self.waiting: list[Request] = []
        self.num_compared = 0

    def ids(self, count: int) -> list[int]:
        drawn: list[int] = self.rng.integers(self.trace.vocab_size, size=count).tolist()
        return drawn

    # What `GPUModelRunner._update_states` does to the batch.
    def schedule(self, event: str) -> None:
        running = sorted(self.batch.req_id_to_index)
        chosen = self.requests[running[self.rng.integers(len(running))]] if running else None
        if chosen and event in ("finish", "preempt", "continue"):
            self.batch.remove_request(chosen.state.req_id)
            self.waiting += [chosen] if event == "preempt" else []
        if self.trace.asynchronous and self.trace.speculative:
            for req_id in self.batch.req_id_to_index:
                self.requests[req_id].state.output_token_ids.extend([-1] * self.requests[req_id].num_drafts)
        if chosen and event == "cut":
            self.cut(chosen)
        if chosen and event == "continue":
            self.carry_on(chosen)
        if event == "resume" and self.waiting and len(running) < MOST_REQUESTS:
            self.resume(self.waiting.pop())
        if event == "add" and len(running) < MOST_REQUESTS:
            self.add()
        self.batch.condense()
        if event == "swap" and self.batch.num_reqs > 1:
            self.batch.swap_states(*self.rng.choice(self.batch.num_reqs, 2, replace=False).tolist())
        self.batch.refresh_metadata()
        self.draft()

    def add(self) -> None:
        presence, frequency = self.rng.choice([0, 0, 0.5, -1.3], 2).tolist()
        factors = PenaltyFactors(presence, frequency, self.rng.choice([1, 1, 1.3, 0.7]))
        prompt = self.ids(int(self.rng.integers(1, LONGEST_PROMPT)))
        state = request_state(f"r{len(self.requests)}", factors, prompt_token_ids=prompt)
        self.requests[state.req_id] = Request(state, factors)
        self.batch.add_request(state)

    def resume(self, request: Request) -> None:
        """After a preemption; with asynchronous scheduling the list is a new one."""
        request.num_drafts = 0
        if self.trace.asynchronous:
            request.state.output_token_ids = list(request.emitted)
        self.batch.add_request(request.state)

    def carry_on(self, request: Request) -> None:
        """A streaming session: the output becomes prompt, and the same list is used again."""
        request.state.prompt_token_ids = [*request.state.prompt_token_ids, *request.emitted]
        request.state.num_prompt_tokens = len(request.state.prompt_token_ids)
        request.state.output_token_ids.clear()
        request.emitted.clear()
        request.num_drafts = 0
        self.batch.add_request(request.state)

    def cut(self, request: Request) -> None:
        """The KV cache of the last tokens was lost."""
        del request.emitted[len(request.emitted) - int(self.rng.integers(1, 4)) :]
        del request.state.output_token_ids[len(request.emitted) :]
        row, length = self.batch.req_id_to_index[request.state.req_id], len(request.state.output_token_ids)
        self.batch.num_tokens_no_spec[row] = self.batch.num_prompt_tokens[row] + length

    def draft(self) -> None:
        for req_id in self.batch.req_ids:
            request = self.requests[req_id]
            request.num_drafts = int(self.rng.integers(MOST_DRAFTS + 1)) if self.trace.speculative else 0
            drafts = self.ids(request.num_drafts) if self.rng.random() < 0.9 else [-1] * request.num_drafts
            self.batch.update_req_spec_token_ids(request.state, {req_id: drafts})

    # What `_sample` does, and the comparison.
    def sample(self, *, late_ids: bool) -> None:
        if not late_ids:
            self.batch.update_async_output_token_ids()
        metadata = self.batch.sampling_metadata
        if metadata.no_penalties:
            return
        self.num_compared += 1
        self.ours.update(metadata.output_token_ids)
        drafts = metadata.spec_token_ids[: self.batch.num_reqs]
        self.compare_bonus_rows(metadata, drafts)
        if any(drafts):
            self.compare_draft_rows(metadata, drafts)
        if not (self.trace.asynchronous and self.trace.speculative):
            self.compare_padded(metadata)
        assert self.ours.nbytes <= 4 * self.trace.vocab_size * MOST_REQUESTS

    def logits(self, num_rows: int) -> Tensor:  # [num_rows, vocab_size] float32
        drawn = self.rng.standard_normal((num_rows, self.trace.vocab_size)).astype(np.float32)
        drawn[self.rng.random(drawn.shape) < 0.1] = self.rng.choice([-np.inf, 0.0, np.nan])
        return torch.from_numpy(drawn)

    def factors(self, metadata: Any) -> tuple[Tensor, Tensor, Tensor]:
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
        logits = self.logits(sum(map(len, drafts)))
        combined = RejectionSampler._combine_outputs_with_spec_tokens(metadata.output_token_ids, drafts)
        repeat = torch.tensor([row for row, ids in enumerate(drafts) for _ in ids])
        theirs = RejectionSampler.apply_penalties(logits.clone(), metadata, None, repeat, combined)
        ours = self.ours.apply_to_drafts(logits.clone(), *self.factors(metadata), metadata.spec_token_ids)
        assert_same_bits(ours, theirs)
        rows = [seen for row, ids in zip(self.rows(), drafts, strict=True) for seen in ORACLE.draft_rows(row, ids)]
        assert_same_bits(ours, penalise_all(logits, rows))

    def compare_padded(self, metadata: Any) -> None:
        batch, rows, vocab_size = self.batch, metadata.output_token_ids, self.trace.vocab_size
        buffer = batch.token_ids_cpu, batch.num_prompt_tokens, batch.num_tokens_no_spec
        built = self.padded.build(rows, batch.req_output_token_ids, *buffer, vocab_size)
        assert built is not None
        theirs = upstream._convert_to_tensors(rows, vocab_size, torch.device("cpu"))
        assert torch.equal(built, theirs.masked_fill(theirs == -1, vocab_size))
        assert np.array_equal(built.numpy(), ORACLE.padded(rows, vocab_size))

    def rows(self) -> list[PenalisedRow]:
        states = [self.requests[req_id] for req_id in self.batch.req_ids]
        return [PenalisedRow(r.state.prompt_token_ids, r.state.output_token_ids, r.factors) for r in states]

    # What `_bookkeeping_sync` does with the tokens of this step.
    def record(self, discarded: set[int]) -> None:
        """Each request emits some accepted drafts and one token more; which ids does not matter to penalties."""
        num_drafts = [self.requests[req_id].num_drafts for req_id in self.batch.req_ids]
        sampled = [self.ids(1 + int(self.rng.integers(count + 1))) for count in num_drafts]
        for row, (req_id, ids) in enumerate(zip(self.batch.req_ids, sampled, strict=True)):
            request, known = self.requests[req_id], [-1] if self.trace.asynchronous else ids
            if row in discarded:
                request.num_drafts = 0
                continue
            request.emitted += ids
            begin = self.batch.num_tokens_no_spec[row]
            self.batch.token_ids_cpu[row, begin : begin + len(known)] = known
            self.batch.num_tokens_no_spec[row] = begin + len(known)
            request.state.output_token_ids.extend(known)
        if self.trace.asynchronous:
            width = max(map(len, sampled), default=0)
            padded = torch.tensor([ids + [-1] * (width - len(ids)) for ids in sampled])
            self.batch.set_async_sampled_token_ids(padded, SimpleNamespace(synchronize=lambda: None))
            rows = self.batch.req_id_to_index.items()
            self.batch.prev_req_id_to_index = {req_id: row for req_id, row in rows if row not in discarded}


def live(trace: EventTrace) -> int:
    """The number of penalised steps that were compared."""
    server = Server(trace)
    for event in ("add", *trace.events):
        server.schedule(event)
        server.sample(late_ids=event == "late ids")
        server.record(discarded={int(server.rng.integers(4))} if event == "discard" else set())
    return server.num_compared


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


@settings(max_examples=120, deadline=None, derandomize=True, database=None)
@given(
    trace=st.builds(
        EventTrace,
        events=st.lists(st.sampled_from(EVENTS), min_size=1, max_size=24).map(tuple),
        vocab_size=st.sampled_from((1, 2, 12, 300)),
    )
)
def test_penalised_logits_equal_upstream_and_recount_after_every_event(trace: EventTrace) -> None:
    live(trace)


def test_lives_penalise() -> None:
    assert sum(map(live, some_lives(8))) > 40


def some_lives(count: int) -> list[EventTrace]:
    """Long lives of all four kinds, always the same."""
    rng = np.random.default_rng(derive_seed("some lives"))
    return [EventTrace(tuple(rng.choice(EVENTS, 24).tolist()), 12, bool(i & 1), bool(i & 2), i) for i in range(count)]


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
        _, num_added, dropped = _history.read_changes(histories)
        last = [history.ids[-1] for history, count in zip(histories, num_added, strict=True) if count]
        return _history.Changes(last, [min(count, 1) for count in num_added], dropped)

    patch.setattr(_penalty_rows, "read_changes", read_last)


def follow_rows_and(patch: pytest.MonkeyPatch, stale: Callable[[dict[int, Any], dict[int, Any], Any], Any]) -> None:
    def follow(states: dict[int, Any], update: Any, make_state: Any) -> dict[int, Any]:
        rows = _history.follow_rows(states, update, make_state)
        return {**stale(states, rows, update.moved), **rows}

    patch.setattr(penalties, "follow_rows", follow)


def finished_request_is_left_behind(patch: pytest.MonkeyPatch) -> None:
    follow_rows_and(
        patch, lambda old, new, moved: {b: old[b] for _, b, how in moved if how.name != "SWAP" and b in old}
    )


def swapped_rows_share_a_state(patch: pytest.MonkeyPatch) -> None:
    follow_rows_and(
        patch, lambda old, new, moved: {a: new[b] for a, b, how in moved if how.name == "SWAP" and b in new}
    )


def bonus_row_sees_no_drafts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(penalties, "bonus_rows", lambda slots, _, size: _penalty_rows.bonus_rows(slots, None, size))


def with_fields(rows: PenaltyRows, **changes: Callable[[Any], Any]) -> PenaltyRows:
    return replace(rows, **{name: change(getattr(rows, name)) for name, change in changes.items()})


def draft_row_sees_its_own_draft(patch: pytest.MonkeyPatch) -> None:
    draft_rows = _penalty_rows.draft_rows
    patch.setattr(penalties, "draft_rows", lambda *args: with_fields(draft_rows(*args), num_drafts=lambda n: n + 1))


def prompt_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(penalties, "IN_PROMPT", 0)


def placeholder_counts_as_a_token(patch: pytest.MonkeyPatch) -> None:
    seen = PenaltyRows.seen_drafts
    patch.setattr(PenaltyRows, "seen_drafts", lambda rows, size: seen(with_fields(rows, draft_token_ids=abs), size))


FAULTS = (
    cut_is_not_taken_back,
    repair_is_forgotten,
    only_the_last_new_token_counts,
    finished_request_is_left_behind,
    swapped_rows_share_a_state,
    bonus_row_sees_no_drafts,
    draft_row_sees_its_own_draft,
    prompt_is_forgotten,
    placeholder_counts_as_a_token,
)


@pytest.mark.parametrize("plant", FAULTS, ids=[plant.__name__.replace("_", " ") for plant in FAULTS])
def test_mutant_is_caught(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, IndexError, ValueError)):
        list(map(live, some_lives(40)))


def test_embedded_prompt_has_no_ids_where_upstream_penalises_an_earlier_request() -> None:
    server = Server(EventTrace((), 12, False, False, 0))
    server.schedule("add")
    earlier = next(iter(server.requests.values())).state
    server.batch.remove_request(earlier.req_id)
    prompt = {"prompt_token_ids": None, "prompt_embeds": torch.zeros(len(earlier.prompt_token_ids), 1)}
    embedded = request_state("embedded", PenaltyFactors(repetition=1.5), **prompt)
    server.batch.add_request(embedded)
    server.batch.refresh_metadata()
    metadata, logits = server.batch.sampling_metadata, torch.ones(1, 12)
    assert metadata.prompt_token_ids.tolist() == [earlier.prompt_token_ids]
    assert not torch.equal(Sampler.apply_penalties(logits.clone(), metadata, metadata.output_token_ids), logits)
    server.ours.update(metadata.output_token_ids)
    assert torch.equal(server.ours.apply(logits.clone(), *server.factors(metadata)), logits)
