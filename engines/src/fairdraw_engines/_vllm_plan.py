"""The logits processing of vLLM's `Sampler` and `RejectionSampler`, driven as its model runner drives them.

A step without drafts is one call of `Sampler`, which returns its processed logits as log-probabilities on request. A
step with drafts is one call of `RejectionSampler`: bonus rows are what its `Sampler` returns, draft rows are what
`rejection_sample` would get.

On a host without a GPU vLLM has no platform, pins memory that cannot be pinned, and would filter in Triton: during a
call, memory is not pinned, and top-k and top-p take vLLM's PyTorch code, which is what the contract names.

It is meant as a reference. As a sampler under test, release 0.22.0 fails the checks of minimum tokens in bonus rows
(`PLAN121`, and others on cases that have them), and checks of thinking budgets where that contract names its defects.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from fairdraw import contracts
from fairdraw.adapters import SamplerRow, UnusableRelease, quiet_floats, release_number
from fairdraw.contracts import CustomLogitsProcessor, LogitsBatch, LogitsParams, Markers, PlanSetup, RequestParams
from fairdraw_engines._others import Upstream, import_vllm, session_sampler, unpinned, vllm_module
from fairdraw_engines._vllm_thinking import MOST_DRAFTS, MOST_REQUESTS, batch_update, make_holder

GREEDY_BELOW = 1e-5
FIRST_WITH_BUDGETS = (0, 21)


def make(row: SamplerRow, device: str) -> contracts.SessionSampler:
    """Return vLLM's samplers behind the suite's `open_plan`; the name carries the release."""
    release, interpreted = import_vllm(device, "sample.rejection_sampler")
    if release_number(release) < FIRST_WITH_BUDGETS:
        rule = f"vLLM {release} has no thinking budgets, and cases of this contract have some"
        raise UnusableRelease(rule, "Use 0.21.0 or later")
    function, rounding = partial(_Session, device), contracts.Rounding.of_vllm(device)
    return session_sampler(row, release, device, "processors", function, rounding=rounding, slow=interpreted)


@dataclass
class _Session:
    """One batch; what the model runner keeps for it."""

    device: str
    setup: PlanSetup
    processors: dict[bool, Upstream] = field(default_factory=dict)
    """Loaded with speculation or without."""
    holders: dict[bool, Upstream] = field(default_factory=dict)

    def __post_init__(self) -> None:
        markers = Markers(self.setup.start_token_ids, self.setup.end_token_ids)
        with _host_without_platform(self.device):
            for speculative in (False, True):
                self.processors[speculative] = _load_processors(self.setup, self.device, speculative)
                self.holders[speculative] = make_holder(markers, self.device, MOST_DRAFTS if speculative else 0)

    def process(self, batch: LogitsBatch) -> Tensor:  # [num_rows, vocab_size] float32
        speculative = any(batch.num_draft_tokens)
        with quiet_floats(), _host_without_platform(self.device):
            for mode in (False, True):
                self._sync(batch.change, mode)
            logits = batch.logits.clone()
            metadata = _metadata(batch, self.setup, self.processors[speculative], self.holders[speculative])
            return _speculative_step(logits, batch, metadata) if speculative else _plain_step(logits, metadata)

    def _sync(self, change: contracts.RowChanges | None, speculative: bool) -> None:
        """Do as `InputBatch.refresh_metadata` does in every step."""
        update = None
        if change is not None:
            added = [(row, sampling_params(params), prompt, output) for row, params, prompt, output in change.added]
            update = batch_update(change, added)
        for processor in self.processors[speculative].all:
            processor.update_state(update)
        self.holders[speculative].sync_batch(update)


def sampling_params(params: RequestParams) -> Upstream:
    """Make parameters as `SamplingParams` in its constructor: a greedy request has no filters."""
    if not isinstance(params, LogitsParams):
        params = LogitsParams(**vars(params))
    if params.temperature < GREEDY_BELOW:
        params = dataclasses.replace(params, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)
    unset = dict.fromkeys(("structured_outputs", "seed", "logprobs", "logprob_token_ids"))
    return SimpleNamespace(**vars(params), **unset)


def _load_processors(setup: PlanSetup, device: str, speculative: bool) -> Upstream:
    """Return the built-in ones, then custom ones, as `build_logitsprocs`; with speculation only min tokens."""
    package = vllm_module("sample.logits_processor")
    config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=MOST_REQUESTS))
    kinds = ("MinTokens",) if speculative else ("MinTokens", "LogitBias", "MinP")
    loaded = [getattr(package, f"{kind}LogitsProcessor")(config, device, False) for kind in kinds]
    if not speculative:
        loaded += [_Custom(processor, {}) for processor in setup.custom_processors]
    return package.LogitsProcessors(loaded)


@dataclass
class _Custom:
    """A custom processor behind vLLM's interface: it follows rows by the updates, and reads live output lists."""

    processor: CustomLogitsProcessor
    rows: dict[int, tuple[LogitsParams, list[int]]]

    def is_argmax_invariant(self) -> bool:
        return self.processor.is_argmax_invariant()

    def update_state(self, update: Upstream) -> None:
        builtin = vllm_module("sample.logits_processor.builtin")
        builtin.process_dict_updates(self.rows, update, lambda params, prompt, output: (params, output))

    def apply(
        self,
        logits: Tensor,  # [batch_size, vocab_size] float32
    ) -> Tensor:  # [batch_size, vocab_size] float32
        wanting = [
            contracts.RowOfRequest(row, row, list(output))
            for row, (params, output) in sorted(self.rows.items())
            if self.processor.wants(params)
        ]
        return self.processor.apply(logits, wanting) if wanting else logits


def _metadata(batch: LogitsBatch, setup: PlanSetup, processors: Upstream, holder: Upstream) -> Upstream:
    """Make metadata as `InputBatch._make_sampling_metadata`: what nobody needs is `None` or empty."""
    module = vllm_module("sample.metadata")
    device, params = batch.logits.device, [sampling_params(request.params) for request in batch.requests]
    greedy = [p.temperature == 0 for p in params]
    widths = [p.top_k if 0 < p.top_k < setup.vocab_size else setup.vocab_size for p in params]
    top_p = [p.top_p for p in params]

    def floats(values: list[float]) -> Tensor:  # [batch_size] float32
        return torch.tensor(values, dtype=torch.float32, device=device)

    factors = [(p.frequency_penalty, p.presence_penalty, p.repetition_penalty) for p in params]
    return module.SamplingMetadata(
        temperature=floats([p.temperature for p in params]),
        all_greedy=all(greedy),
        all_random=not any(greedy),
        top_p=floats(top_p) if min(top_p) < 1 else None,
        top_k=torch.tensor(widths, dtype=torch.int32, device=device) if min(widths) < setup.vocab_size else None,
        generators={},
        max_num_logprobs=-1,
        no_penalties=all(factor == (0, 0, 1) for factor in factors),
        prompt_token_ids=_padded_prompts(batch, setup.vocab_size),
        frequency_penalties=floats([frequency for frequency, _, _ in factors]),
        presence_penalties=floats([presence for _, presence, _ in factors]),
        repetition_penalties=floats([repetition for _, _, repetition in factors]),
        output_token_ids=[request.output_token_ids for request in batch.requests],
        allowed_token_ids_mask=_excluded(batch, setup.vocab_size),
        bad_words_token_ids={i: p.bad_words_token_ids for i, p in enumerate(params) if p.bad_words_token_ids},
        logitsprocs=processors,
        spec_token_ids=[request.draft_token_ids for request in batch.requests],
        thinking_budget_state_holder=holder,
    )


def _padded_prompts(batch: LogitsBatch, vocab_size: int) -> Tensor:  # [batch_size, length] int64
    longest = max(len(request.prompt_token_ids) for request in batch.requests)
    rows = [
        request.prompt_token_ids + [vocab_size] * (longest - len(request.prompt_token_ids))
        for request in batch.requests
    ]
    return torch.tensor(rows, dtype=torch.int64, device=batch.logits.device)


def _excluded(batch: LogitsBatch, vocab_size: int) -> Tensor | None:  # [batch_size, vocab_size] bool
    if all(request.params.allowed_token_ids is None for request in batch.requests):
        return None
    mask = torch.zeros(batch.batch_size, vocab_size, dtype=torch.bool, device=batch.logits.device)
    for row, request in enumerate(batch.requests):
        if request.params.allowed_token_ids is not None:
            mask[row] = True
            mask[row, request.params.allowed_token_ids] = False
    return mask


def _plain_step(
    logits: Tensor,  # [batch_size, vocab_size] float32 | bfloat16 | float16
    metadata: Upstream,
) -> Tensor:  # [batch_size, vocab_size] float32
    sampler = vllm_module("sample.sampler").Sampler("processed_logits")
    processed: Tensor = sampler(logits, metadata).logprobs_tensors.logprobs
    return processed


def _speculative_step(
    logits: Tensor,  # [num_rows, vocab_size] float32 | bfloat16 | float16
    batch: LogitsBatch,
    metadata: Upstream,
) -> Tensor:  # [num_rows, vocab_size] float32
    """Return both halves of `RejectionSampler.forward`, put back into the rows of `logits`."""
    module = vllm_module("sample.rejection_sampler")
    sampler = vllm_module("sample.sampler").Sampler("processed_logits")
    seen: dict[str, Tensor] = {}
    sampler.register_forward_hook(lambda _, __, output: seen.update(bonus=output.logprobs_tensors.logprobs))

    def take(*arguments: Any, **keywords: Any) -> Tensor:  # Any: those of rejection_sample
        seen["draft"] = arguments[5]
        return logits.new_zeros(batch.batch_size, 1, dtype=torch.int32)

    drafts = _draft_metadata(batch)
    with mock.patch.object(module, "rejection_sample", take):
        module.RejectionSampler(sampler)(drafts, None, logits, dataclasses.replace(metadata, max_num_logprobs=None))
    processed = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    processed[drafts.bonus_logits_indices] = seen["bonus"]
    processed[drafts.target_logits_indices] = seen["draft"]
    return processed


def _draft_metadata(batch: LogitsBatch) -> Upstream:
    """Return what `RejectionSampler.forward` reads of vLLM's `SpecDecodeMetadata`."""
    counts, device = batch.num_draft_tokens, batch.logits.device
    ends = torch.tensor(counts, device=device).cumsum(0)
    bonus = [first + count for first, count in zip(batch.first_rows, counts, strict=True)]
    flat = [token_id for request in batch.requests for token_id in request.draft_token_ids]
    return SimpleNamespace(
        draft_token_ids=torch.tensor(flat, dtype=torch.int32, device=device),
        num_draft_tokens=counts,
        max_spec_len=max(counts),
        cu_num_draft_tokens=ends.to(torch.int32),
        bonus_logits_indices=torch.tensor(bonus, device=device),
        target_logits_indices=torch.tensor(sorted(set(range(len(batch.logits))) - set(bonus)), device=device),
    )


@contextmanager
def _host_without_platform(device: str) -> Iterator[None]:
    """Use no pinned memory without a GPU, and PyTorch's top-k and top-p."""
    filtering = [vllm_module(f"sample.{name}") for name in ("ops.topk_topp_sampler", "rejection_sampler")]
    with ExitStack() as patches:
        for module in filtering:
            torch_filters = filtering[0].apply_top_k_top_p_pytorch
            patches.enter_context(mock.patch.object(module, "apply_top_k_top_p", torch_filters))
        if device == "cpu":
            for patch in unpinned():
                patches.enter_context(patch)
        yield
