"""Event traces of a vLLM server without a model: vLLM's own batch and samplers, driven like a model runner drives them.

vLLM's `InputBatch`, `Sampler`, `RejectionSampler` and thinking-budget holder are the real ones. The suite's simulated
`ServingBatch` says what happens: requests are added, finished, swapped, preempted and resumed, tokens are discarded and
cut, token ids arrive late, drafts are verified. vLLM's batch follows, and must have the same requests in the same rows.
Event traces in which vLLM itself is wrong (the docstrings in `sampler_impl` list them) are avoided.
"""

import os
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from fairdraw.adapters import derive_seed, prepare_triton, quiet_imports
from fairdraw.contracts import Markers
from fairdraw.strategies._serving_batch import MOST_REQUESTS, ServedRequest, ServingBatch
from fairdraw_engines._others import reasoning_config, unpinned
from fairdraw_engines._vllm_penalties import cached_state, input_batch

prepare_triton("cpu")
os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
with quiet_imports():
    import numpy as np
    import torch
    import vllm
    from vllm.v1.sample.rejection_sampler import RejectionSampler
    from vllm.v1.sample.sampler import Sampler
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

RELEASE = str(vllm.__version__).partition("+")[0]
MOST_DRAFTS, VOCAB_SIZE, CPU = 3, 40, torch.device("cpu")
EVENTS = ("step", "step", "add", "step", "finish", "swap", "resume", "cut", "discard")
MARKERS = (((1,), (3,)), ((1, 2), (3, 4)), ((1,), (3, 3, 4)), ((1, 1, 2), (3,)))
ORDINARY, FILLER = 10, 11
"""The lowest id that is not part of a marker; the token that follows the end of a script."""
LIKELY = 40.0
"""The logit of a script's next token; other tokens are emitted once in 1e15 draws, unforced markers never."""


def without_pinned_memory() -> None:
    """Pin no memory from now on: a host without CUDA cannot, but vLLM's unspecified platform reports that it can."""
    for patch in unpinned():
        patch.__enter__()


@dataclass(frozen=True)
class EventTrace:
    """A recipe of an event trace; everything follows from it."""

    seed: int
    num_steps: int
    speculative: bool
    asynchronous: bool
    thinking: bool

    @property
    def markers(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return MARKERS[self.seed % len(MARKERS)]


@dataclass
class Script:
    """Tokens that the model will emit for one request, and what the server knows of it."""

    state: Any  # Any: vLLM's CachedRequestState
    budget: int | None = None
    planned: list[int] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    forced: bool = False


Record = tuple[int, str, bytes]
"""Step, name of the tensor, and its bytes."""


class Server:
    """A V1 model runner without a model."""

    def __init__(self, trace: EventTrace) -> None:
        self.trace = trace
        self.rng = np.random.default_rng(derive_seed(trace))
        self.records: list[Record] = []
        self.num_forced = 0
        self.step = 0
        config = reasoning_config(Markers(*trace.markers))
        own = {
            "num_spec_tokens": MOST_DRAFTS * trace.speculative,
            "reasoning_config": config if trace.thinking else None,
        }
        self.batch = input_batch(VOCAB_SIZE, "cpu", (MOST_REQUESTS, 4096), **own)
        self.sampler = Sampler()
        self.verifier = RejectionSampler(self.sampler)
        for name, module in (("plain", self.sampler), ("draft", self.verifier)):
            self.record_logits(name, module)
        self.served = ServingBatch(VOCAB_SIZE)
        self.scripts: dict[str, Script] = {}

    def play(self, until: int | None = None) -> list[Record]:
        """Play all steps, or those before `until`; may be called again to continue."""
        if self.step == 0:
            torch.manual_seed(derive_seed("global", self.trace) % 2**63)
        while self.step < (until or self.trace.num_steps):
            event = str(self.rng.choice(EVENTS)) if self.batch.num_reqs else "add"
            self.schedule(event)
            if self.batch.num_reqs:
                discarded = event == "discard" and not self.trace.thinking
                self.record_tokens(self.sample(), {0} if discarded else set())
            self.step += 1
        return self.records

    # What a scheduler decides: the served batch leads, and vLLM's batch follows.
    def schedule(self, event: str) -> None:
        served, rows = self.served, len(self.served.requests)
        row = int(self.rng.integers(rows)) if rows else 0
        chosen = self.script_of(row) if rows else None
        if chosen and event == "finish":
            self.batch.remove_request(served.remove(row).req_id)
        preempted = chosen is not None and event == "resume" and self.may_resume(chosen)
        if chosen and preempted:
            self.batch.remove_request(served.in_row(row).req_id)
            served.preempt(row)
        if self.trace.asynchronous and self.trace.speculative:
            for request in served.requests:
                request.output_token_ids.extend([-1] * len(self.scripts[request.req_id].drafts))
        if chosen and event == "cut":
            self.cut(chosen, served.in_row(row))
        if chosen and preempted:
            self.resume(chosen)
        elif event == "add" and rows < MOST_REQUESTS:
            self.add()
        self.batch.condense()
        rows = len(served.requests)
        if event == "swap" and rows > 1:
            places = self.rng.choice(rows, 2, replace=False).tolist()
            served.swap(*places)
            self.batch.swap_states(*places)
        served.take_changes()
        names = [request.req_id for request in served.requests]
        assert self.batch.req_ids == names, f"vLLM has the rows {self.batch.req_ids}, the simulated batch {names}"
        self.draft()
        self.batch.refresh_metadata()

    def script_of(self, row: int) -> Script:
        return self.scripts[self.served.requests[row].req_id]

    def words(self, most: int, least: int = 0) -> list[int]:
        """Return ordinary ids."""
        drawn: list[int] = self.rng.integers(ORDINARY, VOCAB_SIZE, size=self.rng.integers(least, most + 1)).tolist()
        return drawn

    def add(self) -> None:
        number = len(self.scripts)
        presence, frequency = self.rng.choice([0, 0, 0.5, -1.3], 2).tolist()
        params = vllm.SamplingParams(
            temperature=float(self.rng.choice([0.0, 0.7, 1.0])),
            presence_penalty=presence,
            frequency_penalty=frequency,
            repetition_penalty=float(self.rng.choice([1, 1, 1.3, 0.7])),
        )
        if not self.trace.speculative:  # for eight rows and more vLLM's filters need a GPU
            params.top_k = int(self.rng.choice([0, 0, 8]))
            params.top_p = float(self.rng.choice([1.0, 1.0, 0.9]))
        if self.rng.random() < 0.2:
            params._bad_words_token_ids = [[12], [13, 14]]
        prompt, script = self.words(5, least=1), Script(None)
        if self.trace.thinking:
            prompt, script.planned = self.prompt_and_script()
            params.thinking_token_budget = script.budget = int(self.rng.integers(9))
        own = self.rng.random() < 0.5 and params.temperature > 0
        generator = torch.Generator().manual_seed(number) if own else None
        entered = self.served.add(params, prompt, [])
        assert entered is not None, "there is room"
        script.state = cached_state(entered.req_id, params, prompt, entered.output_token_ids, generator)
        self.scripts[entered.req_id] = script
        self.batch.add_request(script.state)

    def prompt_and_script(self) -> tuple[list[int], list[int]]:
        """Return a prompt, and what the model emits: one section at most, as vLLM before 0.26.0 detects no other."""
        start, end = map(list, self.trace.markers)
        opening = [*self.words(2), *start, *self.words(4)]
        closed = [*opening, *end, *self.words(2)]
        kind = self.rng.integers(3 if len(start) == 1 else 2)
        script = self.words(4) if kind == 2 else opening
        if not (self.trace.speculative and len(end) > 1) and self.rng.random() < 0.5:
            script = [*script, *self.words(4), *end]
        return (self.words(3, least=1), closed, [*closed, *opening])[kind], [*script, *self.words(20)]

    def may_resume(self, script: Script) -> bool:
        """Whether it may resume: not where vLLM starts a forced end marker again."""
        long_end = len(self.trace.markers[1]) > 1
        return not self.trace.thinking or not (script.forced or (long_end and (script.budget or 0) < 6))

    def resume(self, script: Script) -> None:
        """Resume after a preemption; with asynchronous scheduling the list is a new one."""
        script.drafts = []
        if self.trace.asynchronous:
            self.served.waiting[0].output_token_ids = script.state.output_token_ids = list(script.emitted)
        self.served.resume(same_list=True)
        self.batch.add_request(script.state)

    def cut(self, script: Script, request: ServedRequest) -> None:
        """Cut the last tokens, whose KV cache was lost."""
        count = int(self.rng.integers(1, 4))
        lost = script.emitted[-count:]
        if self.trace.thinking and (self.trace.speculative or script.forced or min(lost, default=0) < ORDINARY):
            return
        del script.emitted[-count:]
        script.planned[:0] = lost
        self.served.cut(request, max(0, len(request.output_token_ids) - len(script.emitted)))
        row, length = self.batch.req_id_to_index[request.req_id], len(request.output_token_ids)
        self.batch.num_tokens_no_spec[row] = self.batch.num_prompt_tokens[row] + length

    def draft(self) -> None:
        """Draft at least one token wherever there can be one: without any, vLLM forces in another request's row."""
        for request in self.served.requests:
            script, least = self.scripts[request.req_id], int(self.trace.thinking)
            can = self.trace.speculative and (script.emitted or not self.trace.thinking)
            count = int(self.rng.integers(least, MOST_DRAFTS + 1)) if can else 0
            guesses = (
                [*script.planned, *[ORDINARY] * count][:count] if self.trace.thinking else self.words(count, count)
            )
            script.drafts = [t if t >= ORDINARY and self.rng.random() < 0.8 else ORDINARY for t in guesses]
            self.batch.update_req_spec_token_ids(script.state, {request.req_id: script.drafts})

    # What `_sample` does.
    def sample(self) -> list[list[int]]:
        self.batch.update_async_output_token_ids()
        metadata, scripts = self.batch.sampling_metadata, [self.scripts[req_id] for req_id in self.batch.req_ids]
        drafts = [script.drafts for script in scripts]
        logits = self.logits(scripts)
        if not any(drafts):
            tokens = self.sampler(logits, metadata).sampled_token_ids
        else:
            weights = torch.from_numpy(self.rng.random((sum(map(len, drafts)), VOCAB_SIZE), np.float32))
            draft_probs = weights / weights.sum(-1, keepdim=True) if self.rng.random() < 0.5 else None
            spec = spec_metadata(drafts)
            tokens = self.verifier(spec, draft_probs, logits, metadata).sampled_token_ids
        self.keep("tokens", tokens.contiguous())
        self.keep("global generator", torch.get_rng_state())
        for script in scripts:
            if script.state.generator is not None:
                self.keep(f"generator of {script.state.req_id}", script.state.generator.get_state())
        return [[token for token in row if token >= 0] for row in tokens.tolist()]

    def logits(self, scripts: list[Script]) -> Any:  # Any: Tensor [num_tokens + batch_size, vocab_size] float32
        """Return drafts' rows and bonus row of each request in turn."""
        num_rows = sum(len(script.drafts) + 1 for script in scripts)
        drawn = self.rng.standard_normal((num_rows, VOCAB_SIZE)).astype(np.float32) * 2
        if self.trace.thinking:
            drawn[:, :ORDINARY] -= 3 * LIKELY
        row = 0
        for script in scripts:
            planned, drafts = script.planned, script.drafts
            for position in range(len(drafts) + 1):
                if self.trace.thinking:
                    on_script = planned[:position] == drafts[:position] and len(planned) > position
                    drawn[row, planned[position] if on_script else FILLER] = LIKELY
                elif position < len(drafts):
                    drawn[row, drafts[position]] += 3
                row += 1
        return torch.from_numpy(drawn)

    def record_logits(self, name: str, module: Any) -> None:  # Any: vLLM's Sampler or RejectionSampler
        process = module.apply_logits_processors

        def recorded(logits: Any, *args: Any, **kwargs: Any) -> Any:  # Any: vLLM's arguments
            processed = process(logits, *args, **kwargs)
            self.keep(f"{name} logits", processed)
            self.num_forced += int((processed > 1e8).sum())
            return processed

        module.apply_logits_processors = recorded

    def keep(self, name: str, tensor: Any) -> None:  # Any: Tensor
        self.records.append((self.step, name, tensor.numpy().tobytes()))

    # What `_bookkeeping_sync` does.
    def record_tokens(self, sampled: list[list[int]], discarded: set[int]) -> None:
        for row, (request, ids) in enumerate(zip(self.served.requests, sampled, strict=True)):
            script, known = self.scripts[request.req_id], [-1] if self.trace.asynchronous else ids
            if row in discarded:
                script.drafts = []
                continue
            script.emitted += ids
            for token in ids:
                on_script = token == (script.planned[0] if script.planned else FILLER)
                script.forced = script.forced or not on_script
                script.planned = script.planned[1:] if on_script else []
            begin = self.batch.num_tokens_no_spec[row]
            self.batch.token_ids_cpu[row, begin : begin + len(known)] = known
            self.batch.num_tokens_no_spec[row] = begin + len(known)
            self.served.emit(request, known)
        if self.trace.asynchronous:
            width = max(map(len, sampled))
            padded = torch.tensor([ids + [-1] * (width - len(ids)) for ids in sampled])
            self.batch.set_async_sampled_token_ids(padded, SimpleNamespace(synchronize=lambda: None))
            rows = self.batch.req_id_to_index.items()
            self.batch.prev_req_id_to_index = {req_id: row for req_id, row in rows if row not in discarded}


def spec_metadata(drafts: list[list[int]]) -> Any:  # Any: vLLM's SpecDecodeMetadata
    metadata = SpecDecodeMetadata.make_dummy(drafts, CPU)
    last = np.cumsum([len(ids) + 1 for ids in drafts]) - 1
    rows = np.arange(last[-1] + 1)
    metadata.bonus_logits_indices = torch.from_numpy(last)
    metadata.target_logits_indices = torch.from_numpy(np.setdiff1d(rows, last))
    return metadata
