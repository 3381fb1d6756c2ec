"""A server's steps without a model: vLLM's own objects of model runner V2, filled as its runner fills them.

`RequestState`, `Sampler`, `RejectionSampler`, `InputBatch` and `SamplingParams` are the real ones; on a CPU their
kernels run in Triton's interpreter, on a GPU they are compiled (`v2_device`). Requests come and go, and the slot of the
last that went is the next to be given. Each has any mix of parameters, prompt and output; a step verifies 0 to 5 drafts
of each of some requests, in any order. A drafter gives tokens alone, or draws them from logits that it keeps by slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairdraw.adapters import derive_seed, quiet_imports
from fairdraw.contracts import Markers
from fairdraw_engines._others import Upstream
from fairdraw_engines._others import vllm_module as vllm_module
from fairdraw_engines._vllm_v2_runtime import call, make_input_batch, make_states, make_verifier, post_update
from fairdraw_engines._vllm_validation import v2_device

with quiet_imports():
    RELEASE = v2_device.import_objects()
    from vllm import SamplingParams as SamplingParams


DEVICE = torch.device("cuda:0" if v2_device.chosen() == "cuda" else "cpu")
"""Device of states, batches and the step's logits. What the server knows of a request is on the host."""
NUM_SLOTS, VOCAB_SIZE, MOST_DRAFTS, LONGEST = 6, 48, 5, 96
START, END = 1, 2
"""Markers of a thinking section."""


@dataclass(frozen=True)
class Trace:
    """A recipe; everything follows from it.

    Args:
        dtype: Of the model's logits. Those of bfloat16 often tie.
        speculative: Most steps have drafts.
        most_drafts: Of a request in a step.
        probabilistic: Drafts are drawn from the drafter's logits, over the request's temperature.
    """

    seed: int
    num_steps: int
    dtype: str = "float32"
    speculative: bool = True
    num_slots: int = NUM_SLOTS
    vocab_size: int = VOCAB_SIZE
    most_drafts: int = MOST_DRAFTS
    probabilistic: bool = field(default=False, repr=False)  # seeds are made of what is printed: other traces stay

    def __str__(self) -> str:
        return f"{self!r}{' with draft logits' if self.probabilistic else ''}"


@dataclass
class Request:
    """Knowledge of the server about a request; its parameters are in vLLM's states alone."""

    name: str
    prompt_len: int
    tokens: list[int]
    params: Any  # Any: vLLM's SamplingParams
    prefilled: int
    """Tokens that the model has seen, in a prompt that comes in parts."""
    prefill_len: int
    """Tokens with which it entered: its prompt, and the output of one that was preempted."""


@dataclass(frozen=True)
class Part:
    """A request's part of a step: its drafts, a row of logits behind each and one more, drafts that are invalid, and
    the drafter's logits."""

    request: Request
    drafts: tuple[int, ...]
    logits: Tensor  # [num_drafts + 1, vocab_size] any
    invalid: tuple[bool, ...]
    draft_logits: Tensor | None = None  # [num_drafts, vocab_size] any

    @property
    def is_chunk(self) -> bool:
        """Whether the prompt is not read to the end: what is drawn here is thrown away."""
        return self.request.prefilled < len(self.request.tokens)

    @property
    def num_rows(self) -> int:
        return len(self.drafts) + 1

    @property
    def valid(self) -> tuple[int, ...]:
        """Return drafts up to the first invalid one. A request's first step has placeholders, whatever was drafted."""
        if len(self.request.tokens) <= self.request.prefill_len:
            return ()
        return self.drafts[: self.invalid.index(True)] if True in self.invalid else self.drafts

    @property
    def num_read(self) -> int:
        """Return rows that decide about anything: those behind an invalid draft do not."""
        return 0 if self.is_chunk else len(self.valid) + 1


@dataclass
class Server:
    """A model runner V2 without a model."""

    trace: Trace
    active: list[Request] = field(default_factory=list)
    num_named: int = 0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(derive_seed(self.trace))
        trace = self.trace
        sizes, markers = (trace.num_slots, trace.vocab_size, str(DEVICE)), Markers((START,), (END,))
        made = make_states(*sizes, longest=LONGEST, num_drafts=trace.most_drafts, markers=markers)
        self.states, self.sampler = made
        self.verifier = make_verifier(self.sampler, trace.most_drafts, DEVICE)
        shape, dtype = (trace.num_slots, trace.most_drafts, trace.vocab_size), getattr(torch, trace.dtype)
        self.draft_logits = torch.zeros(shape, dtype=dtype, device=DEVICE) if trace.probabilistic else None

    # Requests come and go.

    def schedule(self) -> list[Part]:
        """Return what the next step is about: some requests in any order."""
        rng, trace = self.rng, self.trace
        for request in [*self.active]:
            if len(request.tokens) + trace.most_drafts + 2 > LONGEST or rng.random() < 0.06:
                self.active.remove(request)
                self.states.remove_request(request.name)
        while len(self.active) < min(3, trace.num_slots) or (len(self.active) < trace.num_slots and rng.random() < 0.5):
            self._add()
        self.states.apply_staged_writes()
        self.sampler.apply_staged_writes()
        self._draw_first_tokens()
        chosen = rng.permutation(len(self.active))[: rng.integers(1, len(self.active) + 1)]
        drafting = trace.speculative and rng.random() < 0.8
        return [self._part(self.active[i], drafting) for i in chosen]

    def _add(self) -> None:
        """Add a new request, or one that was preempted with an output."""
        rng = self.rng
        self.num_named += 1
        prompt_len = int(rng.integers(1, 9))
        resumed = int(rng.integers(1, 9)) if rng.random() < 0.3 else 0
        tokens = rng.integers(0, self.trace.vocab_size, prompt_len + resumed).tolist()
        params = some_params(rng, tokens, self.trace.vocab_size)
        prefilled = len(tokens) - 1 if len(tokens) > 1 and rng.random() < 0.3 else len(tokens)
        self.enter(Request(f"r{self.num_named}", prompt_len, tokens, params, prefilled, len(tokens)))

    def enter(self, request: Request) -> None:
        """Do as the runner's `add_requests`."""
        sizes = {"prompt_len": request.prompt_len, "num_computed_tokens": 0, "max_tokens": LONGEST}
        call(self.states.add_request, req_id=request.name, all_token_ids=request.tokens, **sizes)
        self.sampler.add_request(self.slot(request), request.params)
        self.active.append(request)

    def _draw_first_tokens(self) -> None:
        """Draw the first token of most requests that have none: drafts come after them."""
        ready = [one for one in self.active if one.prefilled == len(one.tokens) == one.prefill_len]
        chosen = [one for one in ready if self.rng.random() < 0.7]
        if chosen:
            drawn = torch.from_numpy(self.rng.integers(0, self.trace.vocab_size, (len(chosen), 1))).to(DEVICE)
            ones = torch.ones(len(chosen), dtype=torch.int32, device=DEVICE)
            parts = [Part(one, (), drawn, ()) for one in chosen]
            self.commit(parts, SimpleNamespace(sampled_token_ids=drawn, num_sampled=ones, num_rejected=ones * 0))

    def slot(self, request: Request) -> int:
        index: int = self.states.req_id_to_index[request.name]
        return index

    def _part(self, request: Request, drafting: bool) -> Part:
        """Return rows of a model that often agrees with its drafter, and with itself."""
        rng, trace, vocab_size = self.rng, self.trace, self.trace.vocab_size
        reading = request.prefilled < len(request.tokens)
        most = min(trace.most_drafts, LONGEST - len(request.tokens) - 2)
        num_drafts = 0 if reading or not drafting else int(rng.integers(0, most + 1))
        logits = rng.normal(size=(num_drafts + 1, vocab_size)) * rng.choice([0.5, 2.0, 4.0])
        likely = request.tokens[-3:] if rng.random() < 0.5 else []
        logits[:, likely] += 2.0
        drafts = [int(row.argmax() if rng.random() < 0.7 else rng.integers(vocab_size)) for row in logits[:-1]]
        draft_logits = None
        if trace.probabilistic:
            draft_logits, drafts = self._draw_drafts(logits[:-1], request.params.temperature)
        grammar = rng.random() < 0.2
        if grammar:  # what vLLM's bitmask leaves in the model's logits
            logits[rng.random(logits.shape) < 0.3] = -np.inf
        invalid = tuple(bool(grammar and rng.random() < 0.5) for _ in drafts)
        rows = torch.from_numpy(logits).to(getattr(torch, trace.dtype))
        return Part(request, tuple(drafts), rows, invalid, draft_logits)

    def _draw_drafts(
        self,
        logits: Any,  # Any: [num_drafts, vocab_size] float64, of NumPy
        temperature: float,
    ) -> tuple[Tensor, list[int]]:  # [num_drafts, vocab_size] any
        """Return logits of a drafter that is near the model, and drafts of them. Some drafters have few candidates."""
        rng = self.rng
        near = logits + rng.normal(size=logits.shape) * rng.choice([0.1, 1.0, 3.0])
        if rng.random() < 0.3:
            near[near < np.quantile(near, 0.8, axis=-1, keepdims=True)] = -np.inf
        rows = torch.from_numpy(near).to(getattr(torch, self.trace.dtype))
        if temperature == 0:
            return rows, rows.argmax(-1).tolist()
        probs = (rows.float() / temperature).double().softmax(-1).numpy()
        return rows, [int(rng.choice(len(row), p=row)) for row in probs]

    # A step.

    def step(self, parts: Sequence[Part]) -> Upstream:
        """Return vLLM's `SamplerOutput`, by whatever code is in place."""
        self.logits = torch.cat([part.logits for part in parts]).to(DEVICE)
        for part in parts:
            if self.draft_logits is not None and part.draft_logits is not None:
                self.draft_logits[self.slot(part.request), : len(part.drafts)] = part.draft_logits.to(DEVICE)
        batch = self.input_batch(parts)
        if batch.num_draft_tokens == 0:
            return self.sampler(self.logits, batch)
        invalid = torch.tensor([flag for part in parts for flag in (False, *part.invalid)])
        return self.verifier(self.logits, batch, self.draft_logits, invalid.to(DEVICE) if invalid.any() else None)

    def input_batch(self, parts: Sequence[Part]) -> Upstream:
        """Return vLLM's own `InputBatch`."""
        slots, rows = [self.slot(part.request) for part in parts], [part.num_rows for part in parts]
        starts = [part.request.prefilled - 1 for part in parts]
        ends = [start + count for start, count in zip(starts, rows, strict=True)]
        positions = [place for start, end in zip(starts, ends, strict=True) for place in range(start, end)]
        token_ids = [i for start, p in zip(starts, parts, strict=True) for i in (p.request.tokens[start], *p.drafts)]
        inputs = {
            "input_ids": torch.tensor(token_ids, dtype=torch.int32, device=DEVICE),
            "positions": torch.tensor(positions, device=DEVICE),
        }
        return make_input_batch([part.request.name for part in parts], slots, rows, ends, DEVICE, **inputs)

    def commit(self, parts: Sequence[Part], output: Upstream) -> None:
        """Do as the runner's `postprocess_sampled`."""
        for part, tokens in zip(parts, tokens_of(output), strict=True):
            part.request.tokens += tokens
            part.request.prefilled = len(part.request.tokens)
        counts = torch.tensor([0, *(part.num_rows for part in parts)], dtype=torch.int32, device=DEVICE)
        post_update(
            self.states,
            self.sampler.penalties_state.output_bin_counts,
            idx_mapping=torch.tensor([self.slot(part.request) for part in parts], dtype=torch.int32, device=DEVICE),
            sampled_tokens=output.sampled_token_ids,
            num_sampled=output.num_sampled,
            num_rejected=output.num_rejected,
            query_start_loc=counts.cumsum(0, dtype=torch.int32),
        )


def tokens_of(output: Upstream) -> list[list[int]]:
    """Return per request what it emits."""
    rows, counts = output.sampled_token_ids.tolist(), output.num_sampled.tolist()
    return [row[:count] for row, count in zip(rows, counts, strict=True)]


def some_params(rng: np.random.Generator, tokens: list[int], vocab_size: int) -> Any:  # Any: vLLM's SamplingParams
    """Return parameters, each on in some of the requests, whatever the others are. Bad words are made of their own
    text."""

    def on(share: float = 0.3) -> bool:
        return bool(rng.random() < share)

    def ids(most: int) -> list[int]:
        found: list[int] = rng.permutation(vocab_size)[: rng.integers(1, most + 1)].tolist()
        return found

    params = SamplingParams(
        temperature=float(rng.choice([0.0, 0.3, 0.7, 1.0, 1.5], p=[0.25, 0.15, 0.2, 0.25, 0.15])),
        top_k=int(rng.integers(1, 20)) if on() else -1,
        top_p=float(rng.uniform(0.3, 0.99)) if on() else 1.0,
        min_p=float(rng.uniform(0.01, 0.4)) if on(0.2) else 0.0,
        presence_penalty=float(rng.uniform(-2, 2)) if on() else 0.0,
        frequency_penalty=float(rng.uniform(-2, 2)) if on() else 0.0,
        repetition_penalty=float(rng.uniform(0.5, 2.0)) if on() else 1.0,
        logit_bias={i: float(rng.uniform(-6, 6)) for i in ids(6)} if on() else None,
        allowed_token_ids=ids(30) if on(0.1) else None,
        min_tokens=int(rng.integers(1, 12)) if on(0.2) else 0,
        stop_token_ids=ids(5),
        seed=int(rng.integers(2**40)) if on() else None,
        logprobs=2 if on(0.1) else None,
        thinking_token_budget=3 if on(0.02) else None,
    )
    if on():
        ends = [[*tokens[-length:], i] for length in (1, 2) for i in ids(2)]
        words = [*ends, *(rng.choice(tokens[-3:], 2).tolist() for _ in range(2)), ids(1)]
        params._bad_words_token_ids = words
    return params
