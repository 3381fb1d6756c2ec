"""The penalties of SGLang (PyPI `sglang`, tried: 0.5.23): `srt/sampling/penaltylib`, and the batch that applies them.

`srt/sampling/sampling_batch_info.py` is imported by itself, since the package around it needs CUDA. Its
`SamplingBatchInfo` is filtered and merged as `ScheduleBatch` does it: requests that leave are filtered out, those that
enter come in a batch of their own, which is merged after the others were given their token. A step counts one token of
each request; the library takes nothing else. Penalties are applied as by default, from the sums that
`copy_for_forward` makes.

`scheduled` counts what the scheduler of SGLang counts by default, with its steps overlapped: the token before the
newest one, which is on the host by then, or the last one of the prompt. Without, the library shows what it can do:
each token is counted once, and those of a request that enters with an output one after another, before it is merged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from fairdraw.adapters import SamplerRow
from fairdraw.contracts import AddedRow, LiveBatch, PenaltyPolicy, RowChanges, SessionSampler
from fairdraw_engines._bare import import_bare, release_of
from fairdraw_engines._others import rows_after

_FILE = "sglang.srt.sampling.sampling_batch_info"
_GRAMMAR = ("BaseGrammarObject", "GrammarMask", "GrammarRow")
_STUBS: dict[str, dict[str, Any]] = {  # Any: see `_bare.Stubs`
    "sglang.srt.constrained.base_grammar_backend": dict.fromkeys(_GRAMMAR, object),
    "sglang.srt.runtime_context": {"get_exec": None},
    "sglang.srt.sampling.custom_logit_processor": {"CustomLogitProcessor": object},
    "sglang.srt.sampling.sampling_params": {"TOP_K_ALL": 1 << 30},
    "sglang.srt.sampling.watermarking.core": {"build_watermark_batch_config": None},
    "sglang.srt.utils": {"get_compiler_backend": str, "is_npu": bool},
    "sglang.srt.utils.common": {"is_pin_memory_available": lambda device: False},
}
_POLICY = PenaltyPolicy(repetition_sees="output", repetition="last")
_PENALIZERS = ("Frequency", "MinNewTokens", "Presence", "Repetition")
_TENSORS = ("temperatures", "top_ps", "top_ks", "min_ps")
_FLAGS = ("is_all_greedy", "is_any_greedy", "need_top_p_sampling", "need_top_k_sampling", "need_min_p_sampling")


def make(row: SamplerRow, device: str, *, scheduled: bool) -> SessionSampler:
    """Return the penalties of the installed SGLang; the name carries the release."""
    name = f"sglang {release_of('sglang')} {'penalties' if scheduled else 'penaltylib'}"
    function, known = partial(_Session, _Maker(device, scheduled, _load())), row.known_defects()
    can = row.capabilities()
    return SessionSampler(name, function, row.contract, device, can, policy=_POLICY, known_defects=known)


def _not_compiled(**options: object) -> Callable[[Any], Any]:  # Any: a function of another project
    return lambda function: function


@cache
def _load() -> Any:  # Any: a module of another project
    # SGLang compiles the repetition penalty: here it is the same function, without a compiler.
    with mock.patch("torch.compile", _not_compiled):
        return import_bare(_FILE, stubs=_STUBS)[0]


@dataclass(frozen=True)
class _Maker:
    """What makes batches with a `SamplingBatchInfo`."""

    device: str
    scheduled: bool
    sglang: Any  # Any: a module of another project

    def batch(self, reqs: list[_Req], vocab_size: int) -> _Batch:
        """Return a batch of requests that enter, as `SamplingBatchInfo.from_schedule_batch` makes it."""
        batch, library = _Batch(reqs, self.device), self.sglang.penaltylib
        kinds = {getattr(library, f"Batched{kind}Penalizer") for kind in _PENALIZERS}
        columns = {name: torch.ones(len(reqs), device=self.device) for name in _TENSORS}
        batch.sampling_info = self.sglang.SamplingBatchInfo(
            **columns,
            **dict.fromkeys(_FLAGS, False),
            vocab_size=vocab_size,
            penalizer_orchestrator=library.BatchedPenalizerOrchestrator(vocab_size, batch, kinds),
            device=self.device,
        )
        return batch


class _Req:
    """A request with the names of SGLang's `Req`."""

    def __init__(self, added: AddedRow) -> None:
        presence, frequency, repetition = added.params.factors
        self.sampling_params = SimpleNamespace(
            presence_penalty=presence, frequency_penalty=frequency, repetition_penalty=repetition, min_new_tokens=0
        )
        self.origin_input_ids = added.prompt_token_ids or [0]  # SGLang has no empty prompts
        self.output_ids = added.output_token_ids

    def last_on_host(self) -> int:
        """Return the token that an overlapped step of SGLang counts: the newest one is still on the device."""
        return self.output_ids[-2] if len(self.output_ids) > 1 else self.origin_input_ids[-1]


@dataclass(eq=False)
class _Batch:
    """Stand-in for SGLang's `ScheduleBatch`, with as much as penalties need."""

    reqs: list[_Req]
    device: str
    sampling_info: Any = None  # Any: SamplingBatchInfo

    def cumulate(self, tokens: Sequence[int]) -> None:
        """Do as `ScheduleBatch.cumulate_penalty_output_tokens`, with these tokens."""
        orchestrator = self.sampling_info.penalizer_orchestrator
        if orchestrator.is_required:
            orchestrator.cumulate_output_tokens(torch.tensor(tokens, dtype=torch.int64, device=self.device))

    def filter_batch(self, keep: list[int]) -> None:
        if not keep:
            self.reqs = []
        elif len(keep) < len(self.reqs):
            self.reqs = [self.reqs[index] for index in keep]
            self.sampling_info.filter_batch(keep, torch.tensor(keep, device=self.device))

    def merge_batch(self, other: _Batch) -> None:
        self.sampling_info.merge_batch(other.sampling_info)  # before the requests: it prepares what it lacks by them
        self.reqs = self.reqs + other.reqs


@dataclass(eq=False)
class _Session:
    scanner: _Maker
    vocab_size: int
    rows: dict[int, _Req] = field(default_factory=dict)
    running: _Batch | None = None

    def sync(self, changes: RowChanges) -> None:
        """Follow who is in which row; the running batch keeps its own order, and loses who left."""
        self.rows = rows_after(self.rows, changes, list(map(_Req, changes.added)))
        if self.running is not None:
            left = set(self.rows.values())
            self.running.filter_batch([index for index, req in enumerate(self.running.reqs) if req in left])

    def penalise(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [batch_size, vocab_size] float32, both
        running = self.step()
        order = [running.reqs.index(self.rows[row]) for row in range(len(batch.requests))]
        penalised = torch.empty_like(logits)
        penalised[order] = logits
        running.sampling_info.copy_for_forward().apply_logits_bias(penalised)
        return penalised[order]

    def penalise_drafts(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [num_tokens, vocab_size] float32, both
        raise NotImplementedError("penalise_drafts: drafts are unsupported, but some came. Declare several-tokens.")

    def step(self) -> _Batch:
        """Return the running batch after one token of each request was counted, and the new requests were merged into
        it."""
        running = self.running or _Batch([], self.scanner.device)
        if running.reqs:
            scheduled = self.scanner.scheduled
            running.cumulate([req.last_on_host() if scheduled else req.output_ids[-1] for req in running.reqs])
        known = set(running.reqs)
        for entering in self.entering([self.rows[row] for row in sorted(self.rows) if self.rows[row] not in known]):
            if running.reqs:
                running.merge_batch(entering)
            else:
                running = entering
        self.running = running
        return running

    def entering(self, reqs: list[_Req]) -> list[_Batch]:
        """Return one batch of all, with no token counted; or one of each, which is given what it has brought with
        it."""
        if self.scanner.scheduled:
            return [self.scanner.batch(reqs, self.vocab_size)] if reqs else []
        batches = [self.scanner.batch([req], self.vocab_size) for req in reqs]
        for req, batch in zip(reqs, batches, strict=True):
            for token_id in req.output_ids:
                batch.cumulate([token_id])
        return batches
