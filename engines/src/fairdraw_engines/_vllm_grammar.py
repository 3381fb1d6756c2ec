"""Structured output of vLLM: bitmasks are filled by its scheduler, sent to a worker, and applied there (PyPI `vllm`).

* The scheduler's side is `StructuredOutputManager.grammar_bitmask`. It gets drafts as the scheduler makes them: those
  behind the first that `validate_tokens` refuses are -1.
* The worker's side is `v1.structured_output.utils.apply_grammar_bitmask` (V1, tried: 0.22.0 and 0.33.0), or
  `StructuredOutputsWorker` of model runner V2 (tried: 0.33.0), whose kernel runs interpreted without a GPU.

Requests are handed over in the reverse order of the batch, since their orders may differ. `apply_bitmask` calls the
worker's side alone: each row is a request without drafts.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairdraw import contracts
from fairdraw.adapters import SamplerRow, quiet_floats
from fairdraw.contracts import BitmaskBatch, FunctionGrammarMasker, GrammarBatch, GrammarRequest, TokenGrammar
from fairdraw_engines._others import Upstream, import_vllm, unpin, vllm_module
from fairdraw_engines._vllm_v2_runtime import import_v2

Worker = Callable[["_Scheduled", "Tensor", "NDArray[np.int32]"], None]

_MANAGER, _UTILS, _V2 = "structured_output", "structured_output.utils", "worker.gpu.structured_outputs"
_FIRST_V2 = "0.28.0"


def v1(row: SamplerRow, device: str) -> FunctionGrammarMasker:
    """Return the functions of V1, whose worker calls xgrammar's CPU kernel on a CPU."""
    release, _ = import_vllm(device, _MANAGER, _UTILS)
    unpin(device)
    return _masker(_apply_v1, row.facts(release, device))


def v2(row: SamplerRow, device: str) -> FunctionGrammarMasker:
    """Return the worker of model runner V2."""
    import_vllm(device, _MANAGER)
    release, interpreted = import_v2(device, "structured_outputs", first=_FIRST_V2)
    return _masker(_apply_v2, row.facts(release, device, slow=interpreted))


class _Scheduled:
    """One step as scheduler and worker know it: names of requests in the batch, their drafts, and those with a grammar.

    Args:
        stride: Rows of bitmask that each request with a grammar has; `None`: as many as it has drafts, and one.
    """

    def __init__(self, drafts: Sequence[Sequence[int]], with_grammar: Sequence[int], stride: int | None) -> None:
        self.names, self.stride = [f"r{i}" for i in range(len(drafts))], stride
        self.grammar_names = [self.names[i] for i in with_grammar]
        self.drafts = {name: list(own) for name, own in zip(self.names, drafts, strict=True) if own}
        self.cu_num_logits = np.cumsum([0, *(len(own) + 1 for own in drafts)]).astype(np.int32)


def _masker(worker: Worker, facts: dict[str, Any]) -> FunctionGrammarMasker:  # Any: one type each
    """Return both functions of a masker around `worker`."""

    def apply(batch: BitmaskBatch) -> Tensor:  # [num_rows, vocab_size] as the logits
        rows = list(dict.fromkeys(batch.rows.tolist()))[::-1]
        scheduled = _Scheduled([()] * batch.batch_size, rows, 1)
        if rows:
            worker(scheduled, batch.logits, batch.bitmask[rows].contiguous().cpu().numpy())
        return batch.logits

    def drafts(batch: GrammarBatch) -> Tensor:  # [num_rows, vocab_size] as the logits
        scheduled, masks = _filled(batch)
        if masks is not None:
            worker(scheduled, batch.logits, masks)
        return batch.logits

    return FunctionGrammarMasker(function=apply, drafts=drafts, **facts)


# The scheduler


class _Grammar:
    """A grammar of the suite, with the methods of vLLM's `StructuredOutputGrammar`."""

    def __init__(self, grammar: TokenGrammar) -> None:
        self._grammar = grammar
        self.rollback = grammar.rollback

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return all(self._grammar.accept(token) for token in tokens)

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """Return the prefix that is allowed."""
        count = next((i for i, token in enumerate(tokens) if not self._grammar.accept(token)), len(tokens))
        self._grammar.rollback(count)
        return tokens[:count]

    def fill_bitmask(
        self,
        bitmask: Tensor,  # [num_masks, num_words] int32
        index: int,
    ) -> None:
        self._grammar.fill(bitmask[index])

    def is_terminated(self) -> bool:
        return self._grammar.is_terminated


def _filled(batch: GrammarBatch) -> tuple[_Scheduled, NDArray[np.int32] | None]:
    """Return what the scheduler sends: the bitmasks of requests with a grammar, in the reverse order of the batch."""
    grammars = {i: _Grammar(one.grammar) for i, one in enumerate(batch.requests) if one.grammar is not None}
    drafts = [_scheduled_drafts(one, grammars.get(i)) for i, one in enumerate(batch.requests)]
    most = batch.max_spec_len
    scheduled = _Scheduled(drafts, list(grammars)[::-1], most + 1)
    requests = {name: _request(grammars.get(i)) for i, name in enumerate(scheduled.names)}
    manager = _manager(max(16, 1 << batch.batch_size.bit_length()), most, contracts.num_words(batch.vocab_size))
    masks = manager.grammar_bitmask(requests, scheduled.grammar_names, scheduled.drafts)
    return scheduled, None if masks is None else masks.copy()


def _scheduled_drafts(request: GrammarRequest, grammar: _Grammar | None) -> list[int]:
    """Return the drafts as `update_draft_token_ids` pads them."""
    drafts = list(request.draft_token_ids)
    valid = drafts if grammar is None else grammar.validate_tokens(drafts)
    return valid + [-1] * (len(drafts) - len(valid))


def _request(grammar: _Grammar | None) -> SimpleNamespace:
    return SimpleNamespace(structured_output_request=SimpleNamespace(grammar=grammar, reasoning_ended=True))


@lru_cache(maxsize=16)
def _manager(max_num_seqs: int, num_drafts: int, width: int) -> Upstream:
    """Return a `StructuredOutputManager` without tokenizer and reasoning; kept, as a server keeps it."""
    manager = object.__new__(vllm_module(_MANAGER).StructuredOutputManager)
    speculative = SimpleNamespace(num_speculative_tokens=num_drafts) if num_drafts else None
    given: dict[str, Any] = {  # Any: one type each
        "vllm_config": SimpleNamespace(
            speculative_config=speculative,
            num_speculative_tokens=num_drafts,
            scheduler_config=SimpleNamespace(max_num_seqs=max_num_seqs),
            model_config=SimpleNamespace(is_diffusion=False),
        ),
        "backend": SimpleNamespace(
            allocate_token_bitmask=lambda rows: torch.full((rows, width), 0x2AAAAAAA, dtype=torch.int32)
        ),
        "reasoner_cls": None,
        "reasoner": None,
        "enable_in_reasoning": False,
        "fill_bitmask_parallel_threshold": 1 << 30,
        "_grammar_bitmask": None,
        "_full_mask": torch.tensor(-1, dtype=torch.int32),
    }
    vars(manager).update(given)
    return manager


# The workers


def _apply_v1(
    scheduled: _Scheduled,
    logits: Tensor,  # [num_rows, vocab_size]
    masks: NDArray[np.int32],  # [num_masks, num_words] int32
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # xgrammar warns of columns beyond the bitmask
        vllm_module(_UTILS).apply_grammar_bitmask(
            SimpleNamespace(scheduled_spec_decode_tokens=scheduled.drafts),
            SimpleNamespace(grammar_bitmask=masks, structured_output_request_ids=scheduled.grammar_names),
            SimpleNamespace(req_ids=scheduled.names),
            logits,
        )


def _apply_v2(
    scheduled: _Scheduled,
    logits: Tensor,  # [num_rows, vocab_size]
    masks: NDArray[np.int32],  # [num_masks, num_words] int32
) -> None:
    counts = torch.from_numpy(scheduled.cu_num_logits).to(logits.device)
    batch = SimpleNamespace(req_ids=scheduled.names, cu_num_logits=counts)
    stride = scheduled.stride or 1
    with quiet_floats(), _without_streams(str(logits.device)):
        worker = _worker(1 << len(masks).bit_length(), masks.shape[1], str(logits.device), stride)
        worker.apply_grammar_bitmask(logits, batch, scheduled.grammar_names, masks)


@lru_cache(maxsize=16)
def _worker(max_num_logits: int, width: int, device: str, stride: int) -> Upstream:
    """Return a `StructuredOutputsWorker`; kept, as a server keeps it, with its buffers."""
    made = vllm_module(_V2).StructuredOutputsWorker
    return made(max_num_logits, 32 * width, torch.device(device), stride)


@contextmanager
def _without_streams(device: str) -> Iterator[None]:
    """Do without streams, which only a GPU has: what is copied is there at once."""
    with ExitStack() as stack:
        if device == "cpu":
            for name in ("Stream", "stream", "current_stream"):
                stack.enter_context(mock.patch.object(torch.cuda, name, mock.MagicMock()))
        yield
