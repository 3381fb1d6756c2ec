"""Lives of a vLLM server without a model: vLLM's own batch and samplers, and whatever happens to them.

vLLM's `InputBatch`, `Sampler`, `RejectionSampler` and thinking-budget holder are the real ones, driven through what a
V1 model runner does to them: requests are added, finished, swapped, preempted and resumed, tokens are discarded and
taken back, token ids arrive late, drafts are verified. Where vLLM itself is wrong ours is not (the docstrings in
`sampler_impl` list it); the lives stay out of those places.
"""

from __future__ import annotations

import inspect
import os
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from fairdraw._adapters._runtime import prepare_triton, quiet_imports
from fairdraw._core.seeds import derive_seed

prepare_triton("cpu")
os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
with quiet_imports():
    import numpy as np
    import torch
    import vllm
    from vllm.v1.sample.rejection_sampler import RejectionSampler
    from vllm.v1.sample.sampler import Sampler
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata
    from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

MOST_REQUESTS, MOST_DRAFTS, VOCAB_SIZE, CPU = 4, 3, 40, torch.device("cpu")
EVENTS = ("step", "step", "add", "step", "finish", "swap", "resume", "cut", "discard")
MARKERS = (((1,), (3,)), ((1, 2), (3, 4)), ((1,), (3, 3, 4)), ((1, 1, 2), (3,)))
ORDINARY, FILLER = 10, 11
"""Ids below are kept for markers; what a model says that has nothing more to say."""
LIKELY = 40.0
"""The logit of what a script says next; other tokens are emitted once in 1e15 draws, unforced markers never."""


def without_pinned_memory() -> None:
    """A host without CUDA cannot pin memory, but vLLM's unspecified platform says that it can."""
    for module in [module for name, module in sys.modules.items() if name.startswith("vllm")]:
        names = getattr(module, "__dict__", {})
        if "PIN_MEMORY" in names:
            module.PIN_MEMORY = False
        if "is_pin_memory_available" in names:
            module.is_pin_memory_available = lambda: False
        for defaults in (names["async_tensor_h2d"],) if "async_tensor_h2d" in names else ():
            defaults.__defaults__ = tuple(False if d is True else d for d in defaults.__defaults__ or ())


@dataclass(frozen=True)
class EventTrace:
    """A recipe; everything follows from it."""

    seed: int
    num_steps: int
    speculative: bool
    asynchronous: bool
    thinking: bool

    @property
    def markers(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return MARKERS[self.seed % len(MARKERS)]


@dataclass
class Request:
    state: Any  # Any: vLLM's CachedRequestState
    budget: int | None
    script: list[int] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    forced: bool = False


Record = tuple[int, str, bytes]
"""Step, what it is, and its bytes."""


class Server:
    """A V1 model runner without a model."""

    def __init__(self, trace: EventTrace) -> None:
        self.trace = trace
        self.rng = np.random.default_rng(derive_seed(trace))
        self.records: list[Record] = []
        self.num_forced = 0
        self.step = 0
        start, end = trace.markers
        config = SimpleNamespace(reasoning_start_token_ids=list(start), reasoning_end_token_ids=list(end))
        self.batch = make_batch(config if trace.thinking else None, MOST_DRAFTS if trace.speculative else 0)
        self.sampler = Sampler()
        self.verifier = RejectionSampler(self.sampler)
        for name, module in (("plain", self.sampler), ("draft", self.verifier)):
            self.record_logits(name, module)
        self.requests: dict[str, Request] = {}
        self.waiting: list[Request] = []

    def live(self, until: int | None = None) -> list[Record]:
        """All steps, or those before `until`; may be called again to go on."""
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

    # What a scheduler decides, and what the runner does to the batch.
    def schedule(self, event: str) -> None:
        running = sorted(self.batch.req_id_to_index)
        chosen = self.requests[running[self.rng.integers(len(running))]] if running else None
        leaves = chosen is not None and (event == "finish" or (event == "resume" and self.may_resume(chosen)))
        if chosen and leaves:
            self.batch.remove_request(chosen.state.req_id)
            self.waiting += [chosen] if event == "resume" else []
        if self.trace.asynchronous and self.trace.speculative:
            for req_id in self.batch.req_id_to_index:
                self.requests[req_id].state.output_token_ids.extend([-1] * len(self.requests[req_id].drafts))
        if chosen and event == "cut":
            self.cut(chosen)
        if self.waiting and self.batch.num_reqs < MOST_REQUESTS:
            self.resume(self.waiting.pop())
        elif event == "add" and len(running) < MOST_REQUESTS:
            self.add()
        self.batch.condense()
        if event == "swap" and self.batch.num_reqs > 1:
            self.batch.swap_states(*self.rng.choice(self.batch.num_reqs, 2, replace=False).tolist())
        self.draft()
        self.batch.refresh_metadata()

    def words(self, most: int, least: int = 0) -> list[int]:
        """Ordinary ids."""
        drawn: list[int] = self.rng.integers(ORDINARY, VOCAB_SIZE, size=self.rng.integers(least, most + 1)).tolist()
        return drawn

    def add(self) -> None:
        number = len(self.requests)
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
        prompt, request = self.words(5, least=1), Request(None, None)
        if self.trace.thinking:
            prompt, request.script = self.failure_report()
            params.thinking_token_budget = request.budget = int(self.rng.integers(9))
        own = self.rng.random() < 0.5 and params.temperature > 0
        generator = torch.Generator().manual_seed(number) if own else None
        request.state = CachedRequestState(
            req_id=f"r{number}",
            prompt_token_ids=prompt,
            mm_features=[],
            sampling_params=params,
            generator=generator,
            block_ids=([],),
            num_computed_tokens=0,
            output_token_ids=[],
        )
        self.requests[request.state.req_id] = request
        self.batch.add_request(request.state)

    def failure_report(self) -> tuple[list[int], list[int]]:
        """A prompt, and what the model says: one section at most, as vLLM before 0.26.0 watches no other."""
        start, end = map(list, self.trace.markers)
        opening = [*self.words(2), *start, *self.words(4)]
        unsupported = [*opening, *end, *self.words(2)]
        kind = self.rng.integers(3 if len(start) == 1 else 2)
        script = self.words(4) if kind == 2 else opening
        if not (self.trace.speculative and len(end) > 1) and self.rng.random() < 0.5:
            script = [*script, *self.words(4), *end]
        return (self.words(3, least=1), unsupported, [*unsupported, *opening])[kind], [*script, *self.words(20)]

    def may_resume(self, request: Request) -> bool:
        """Not where vLLM starts a forced end marker again."""
        return not self.trace.thinking or not (
            request.forced or (len(self.trace.markers[1]) > 1 and request.budget < 6)
        )

    def resume(self, request: Request) -> None:
        """After a preemption; with asynchronous scheduling the list is a new one."""
        request.drafts = []
        if self.trace.asynchronous:
            request.state.output_token_ids = list(request.emitted)
        self.batch.add_request(request.state)

    def cut(self, request: Request) -> None:
        """The KV cache of the last tokens was lost."""
        count = int(self.rng.integers(1, 4))
        lost = request.emitted[-count:]
        if self.trace.thinking and (self.trace.speculative or request.forced or min(lost, default=0) < ORDINARY):
            return
        del request.emitted[-count:]
        request.script[:0] = lost
        del request.state.output_token_ids[len(request.emitted) :]
        row, length = self.batch.req_id_to_index[request.state.req_id], len(request.state.output_token_ids)
        self.batch.num_tokens_no_spec[row] = self.batch.num_prompt_tokens[row] + length

    def draft(self) -> None:
        """At least one draft wherever there can be one: without any, vLLM forces in another request's row."""
        for req_id in self.batch.req_ids:
            request, least = self.requests[req_id], int(self.trace.thinking)
            can = self.trace.speculative and (request.emitted or not self.trace.thinking)
            count = int(self.rng.integers(least, MOST_DRAFTS + 1)) if can else 0
            guesses = (
                [*request.script, *[ORDINARY] * count][:count] if self.trace.thinking else self.words(count, count)
            )
            request.drafts = [t if t >= ORDINARY and self.rng.random() < 0.8 else ORDINARY for t in guesses]
            self.batch.update_req_spec_token_ids(request.state, {req_id: request.drafts})

    # What `_sample` does.
    def sample(self) -> list[list[int]]:
        self.batch.update_async_output_token_ids()
        metadata, requests = self.batch.sampling_metadata, [self.requests[req_id] for req_id in self.batch.req_ids]
        drafts = [request.drafts for request in requests]
        logits = self.logits(requests)
        if not any(drafts):
            tokens = self.sampler(logits, metadata).sampled_token_ids
        else:
            distribution = torch.from_numpy(self.rng.random((sum(map(len, drafts)), VOCAB_SIZE), np.float32))
            draft_probs = distribution / distribution.sum(-1, keepdim=True) if self.rng.random() < 0.5 else None
            spec = spec_metadata(drafts)
            tokens = self.verifier(spec, draft_probs, logits, metadata).sampled_token_ids
        self.keep("tokens", tokens.contiguous())
        self.keep("global generator", torch.get_rng_state())
        for request in requests:
            if request.state.generator is not None:
                self.keep(f"generator of {request.state.req_id}", request.state.generator.get_state())
        return [[token for token in row if token >= 0] for row in tokens.tolist()]

    def logits(self, requests: list[Request]) -> Any:  # Any: Tensor [num_tokens + batch_size, vocab_size] float32
        """Drafts' rows and bonus row of each request in turn."""
        num_rows = sum(len(request.drafts) + 1 for request in requests)
        drawn = self.rng.standard_normal((num_rows, VOCAB_SIZE)).astype(np.float32) * 2
        if self.trace.thinking:
            drawn[:, :ORDINARY] -= 3 * LIKELY
        row = 0
        for request in requests:
            for position in range(len(request.drafts) + 1):
                said = request.script[:position]
                if self.trace.thinking:
                    on_script = said == request.drafts[:position] and len(request.script) > position
                    drawn[row, request.script[position] if on_script else FILLER] = LIKELY
                elif position < len(request.drafts):
                    drawn[row, request.drafts[position]] += 3
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
        for row, (req_id, ids) in enumerate(zip(self.batch.req_ids, sampled, strict=True)):
            request, known = self.requests[req_id], [-1] if self.trace.asynchronous else ids
            if row in discarded:
                request.drafts = []
                continue
            request.emitted += ids
            for token in ids:
                on_script = token == (request.script[0] if request.script else FILLER)
                request.forced = request.forced or not on_script
                request.script = request.script[1:] if on_script else []
            begin = self.batch.num_tokens_no_spec[row]
            self.batch.token_ids_cpu[row, begin : begin + len(known)] = known
            self.batch.num_tokens_no_spec[row] = begin + len(known)
            request.state.output_token_ids.extend(known)
        if self.trace.asynchronous:
            width = max(map(len, sampled))
            padded = torch.tensor([ids + [-1] * (width - len(ids)) for ids in sampled])
            self.batch.set_async_sampled_token_ids(padded, SimpleNamespace(synchronize=lambda: None))
            rows = self.batch.req_id_to_index.items()
            self.batch.prev_req_id_to_index = {req_id: row for req_id, row in rows if row not in discarded}


def make_batch(reasoning_config: object, num_spec_tokens: int) -> Any:  # Any: vLLM's InputBatch
    """By the arguments that this release knows."""
    arguments = {
        "max_num_reqs": MOST_REQUESTS,
        "max_model_len": 4096,
        "max_num_batched_tokens": 4096,
        "device": CPU,
        "pin_memory": False,
        "vocab_size": VOCAB_SIZE,
        "block_sizes": [16],
        "kernel_block_sizes": [16],
        "max_num_blocks_per_req": [256],
        "num_spec_tokens": num_spec_tokens,
        "reasoning_config": reasoning_config,
    }
    known = inspect.signature(InputBatch.__init__).parameters
    return InputBatch(**{name: value for name, value in arguments.items() if name in known})


def spec_metadata(drafts: list[list[int]]) -> Any:  # Any: vLLM's SpecDecodeMetadata
    metadata = SpecDecodeMetadata.make_dummy(drafts, CPU)
    last = np.cumsum([len(ids) + 1 for ids in drafts]) - 1
    rows = np.arange(last[-1] + 1)
    metadata.bonus_logits_indices = torch.from_numpy(last)
    metadata.target_logits_indices = torch.from_numpy(np.setdiff1d(rows, last))
    return metadata
