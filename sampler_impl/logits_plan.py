"""The logits processors that a batch needs: planned when the batch changes; no copy where no processor has work.

vLLM's V1 sampler casts, gathers and clones the logits and runs every processor at every step. Here the sampling
parameters of the batch become a plan, and a step follows it:

    sync_batch     a request came, went or moved      the plan is dropped; the next step makes a new one
    apply          in every step                      no processor has work: the very same tensor, no copy, no launch
                                                      otherwise: one float32 copy; processors run in vLLM's order

    allowed ids > bad words > min tokens > logit bias > custom > penalties > thinking budget
        > temperature > min-p > custom (argmax-invariant) > top-k and top-p            left out where all is greedy

Whether a processor has work is decided per step: bad words where one is about to be completed, min tokens until there
are enough, a thinking budget once it is spent, a temperature if it is not 1.

The caller's logits are never written, so they remain the raw logits from which log-probabilities are computed. No clone
is needed for those.

**With drafts** one call processes draft rows and bonus rows, in vLLM's row order. A row sees the output and the drafts
before it, and the bonus row sees all drafts, so every row equals that of decoding step by step.

Intentional deviations from vLLM 0.22.0:

* *bonus min tokens*: vLLM counts the output without the drafts, so the bonus row may not stop although it could.
* *silent parameters*: with speculation vLLM drops logit bias and min-p (with a warning) and refuses custom processors;
  here they apply to draft rows and bonus rows as to any other.
* *thinking budget*: those of `thinking_budget`.
* *half-precision logits*: without work they are returned as they are, not as float32.

vLLM orders processors differently for draft rows (penalties first, then masks), but the bits are the same: a penalty
does not change -inf. If FlashInfer or Triton filters by top-k or top-p, ties may differ from those here
(`_shared/filters.py`).

In place of `Sampler.forward` and `RejectionSampler.forward` of vLLM, where `raw` are the logits:

    processed = plan.apply(raw, output_token_ids)                       # [batch_size, vocab_size]
    processed = plan.apply(raw, output_token_ids, spec_token_ids)       # [num_tokens + batch_size, vocab_size]
    bonus, target = processed[bonus_logits_indices], processed[target_logits_indices]
    logprobs = raw.log_softmax(-1, dtype=torch.float32)                 # only if asked for; processed_*: of `processed`

Greedy tokens are the argmax of their processed rows: dividing by 1 and filters that are off do not move it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ._logits.params import Request, SamplingParams, checked_request, is_penalised
from ._logits.processors import (
    AllowedIds,
    BadWords,
    Custom,
    CustomProcessor,
    ForceEndOfThinking,
    LogitBias,
    MinP,
    MinTokens,
    Penalise,
    Processor,
    Temperature,
    TopKTopP,
)
from ._logits.rows import RowLayout, SeenBy, step_of
from ._scanners.history import BatchUpdate, check_rows, follow_rows
from ._shared.checks import is_plain
from .penalties import Penalties

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .thinking_budget import ThinkingBudget

__all__ = ["CustomProcessor", "LogitsPlan", "SamplingParams", "SeenBy"]


class LogitsPlan:
    """The logits processors of one live batch.

    Call `sync_batch` whenever rows change, then `apply` once per step.

    Args:
        vocab_size: Width of the logits.
        device: Where the logits are.
        thinking: Made with the model's markers; the plan updates it, so do not update it elsewhere. `None`: no request
            may have a thinking budget.
        custom_processors: The caller's processors, in the order in which they run.

    Limits:
        Bits are those of vLLM's PyTorch code on float32. As in vLLM, two things depend on other requests: a row without
        top-p loses tokens of probability exactly 0 if another row of its batch uses top-p, and an argmax-invariant
        custom processor runs for a greedy request only if a random one is in the batch.

    Traffic:
        With work, one float32 copy of the logits, and the reads and writes of each processor with work. Memory between
        steps: one byte per logit if a request has allowed ids; the counts of `Penalties`.

    Example:
        >>> from types import SimpleNamespace
        >>> params = SimpleNamespace(
        ...     temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, presence_penalty=0.0, frequency_penalty=0.0,
        ...     repetition_penalty=1.0, allowed_token_ids=None, bad_words_token_ids=[[1, 2]], min_tokens=0,
        ...     all_stop_token_ids=set(), logit_bias=None, thinking_token_budget=None)
        >>> output, plan = [0], LogitsPlan(vocab_size=4)
        >>> plan.sync_batch(SimpleNamespace(removed=[], added=[(0, params, [3], output)], moved=[]))
        >>> logits = torch.zeros(1, 4)
        >>> plan.apply(logits, [output]) is logits
        True
        >>> plan.apply(torch.zeros(3, 4), [output], [[1, 0]])
        tensor([[0., 0., 0., 0.],
                [0., 0., -inf, 0.],
                [0., 0., 0., 0.]])
    """

    def __init__(
        self,
        vocab_size: int,
        device: torch.device | str = "cpu",
        *,
        thinking: ThinkingBudget | None = None,
        custom_processors: Sequence[CustomProcessor] = (),
    ) -> None:
        if vocab_size < 1:
            raise ValueError(f"LogitsPlan: vocab_size={vocab_size}, but it must be at least 1. Use logits.shape[-1].")
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self._thinking = thinking
        self._penalties = Penalties(vocab_size, device)
        self._custom = tuple(custom_processors)
        self._requests: dict[int, Request] = {}
        self._processors: tuple[Processor, ...] | None = ()
        self._batch: list[Request] = []
        self._readers: list[int] = []
        self._layout = RowLayout([], self.device)

    @property
    def processors(self) -> tuple[str, ...]:
        """Return the planned processors, in the order in which they run."""
        return tuple(processor.name for processor in self._planned())

    def sync_batch(self, update: BatchUpdate | None) -> None:
        """Follow requests that were added, removed, moved or swapped; a request that is added again starts anew.

        A request whose parameters change must be added again. After all updates rows must be `0, 1, ...` without a gap.

        Args:
            update: vLLM's `BatchUpdate`, or any object like it. `None`: no row changed.

        Raises:
            ValueError: If a parameter is out of its range, or an id is outside the vocabulary. Nothing has been
                changed then.
        """
        if update is None:
            return
        self._requests = follow_rows(self._requests, update, self._make_request)
        if self._penalties.has_requests or any(is_penalised(params) for _, params, _, _ in update.added):
            self._penalties.sync_batch(update)
        if self._thinking is not None:
            self._thinking.sync_batch(update)
        self._processors = None

    def _make_request(
        self, params: SamplingParams, prompt_token_ids: list[int] | None, output_token_ids: list[int]
    ) -> Request:
        has_markers = self._thinking is not None
        return checked_request(params, prompt_token_ids, output_token_ids, self.vocab_size, has_markers)

    def _planned(self) -> tuple[Processor, ...]:
        if self._processors is None:
            rows = sorted(self._requests)
            if rows != list(range(len(rows))):
                raise ValueError(
                    f"LogitsPlan: the batch has rows {rows}, but they must be 0 to {len(rows) - 1}. Report removed, "
                    f"added and moved rows through sync_batch until none is missing."
                )
            self._batch = [self._requests[row] for row in rows]
            self._readers = [row for row in rows if self._reads_tokens(self._requests[row].params)]
            self._processors = (*self._always(), *self._for_random())
        return self._processors

    def _always(self) -> Iterator[Processor]:
        """Return processors that can change a greedy token, in vLLM's order."""
        batch, params = self._batch, [request.params for request in self._batch]
        if any(p.allowed_token_ids is not None for p in params):
            yield AllowedIds(batch, self.vocab_size, self.device)
        if any(p.bad_words_token_ids for p in params):
            yield BadWords(batch)
        if any(p.min_tokens for p in params):
            yield MinTokens(batch)
        if any(p.logit_bias for p in params):
            yield LogitBias(batch)
        yield from self._wanted(argmax_invariant=False)
        if self._penalties.has_requests:
            yield Penalise(batch, self._penalties)
        if self._thinking is not None and self._thinking.has_tracked_requests():
            yield ForceEndOfThinking(self._thinking, self.vocab_size)

    def _for_random(self) -> Iterator[Processor]:
        """Return processors that only random requests use, in vLLM's order."""
        batch = self._batch
        if any(request.temperature != 1 for request in batch):
            yield Temperature(batch, self.device)
        if any(request.min_p for request in batch):
            yield MinP(batch, self.device)
        if not all(request.is_greedy for request in batch):
            yield from self._wanted(argmax_invariant=True)
        if any(request.top_k < self.vocab_size or request.top_p < 1 for request in batch):
            yield TopKTopP(batch, self.vocab_size, self.device)

    def _wanted(self, argmax_invariant: bool) -> Iterator[Processor]:
        for processor in self._custom:
            if processor.is_argmax_invariant() == argmax_invariant:
                wanting = [row for row, request in enumerate(self._batch) if processor.wants(request.params)]
                if wanting:
                    yield Custom(processor, wanting)

    def _reads_tokens(self, params: SamplingParams) -> bool:
        """Whether a processor reads the token ids that `apply` is given."""
        return bool(params.bad_words_token_ids) or any(processor.wants(params) for processor in self._custom)

    def apply(
        self,
        logits: Tensor,  # [num_rows, vocab_size] float32 | bfloat16 | float16
        output_token_ids: Sequence[list[int]],
        draft_token_ids: Sequence[Sequence[int]] | None = None,
    ) -> Tensor:  # [num_rows, vocab_size] float32
        """Process the logits of one step.

        Args:
            logits: One row per request; with drafts, each request's draft rows, then its bonus row. Never written.
            output_token_ids: The batch's live lists, one per row: the very objects that the requests were added with.
                Read only if a processor needs tokens; otherwise vLLM's empty list is enough.
            draft_token_ids: Per request, as many as there are rows or more, -1 for one that is not known yet.

        Returns:
            `logits` itself if no processor has work, else a new tensor.

        Raises:
            ValueError: If logits do not fit the batch, the vocabulary or the device, an id is out of range, or a row
                holds another list than its request was added with.
        """
        processors, function = self._planned(), "LogitsPlan.apply"
        batch_size = len(self._batch)
        step = step_of(function, output_token_ids, draft_token_ids, batch_size, self.vocab_size, self._layout)
        self._layout = step.layout
        self._check_logits(logits)
        if not processors:
            return logits
        if self._readers:
            check_rows(function, self._readers, (self._batch[row].history for row in self._readers), output_token_ids)
        works = [work for processor in processors if (work := processor.prepare(step)) is not None]
        if not works:
            return logits
        processed = logits.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        for work in works:
            processed = work(processed)
        return processed

    def _check_logits(
        self,
        logits: Tensor,  # [num_rows, vocab_size] float32 | bfloat16 | float16
    ) -> None:
        shape = (self._layout.num_rows, self.vocab_size)
        fits = logits.shape == shape and logits.device.type == self.device.type and logits.is_floating_point()
        if not fits or not is_plain(logits):
            raise ValueError(
                f"LogitsPlan.apply: logits are {list(logits.shape)} {logits.dtype} on {logits.device}, but they must "
                f"be {list(shape)} float32, bfloat16 or float16 on {self.device}. Pass a row for each draft and one "
                f"for each of the {len(self._batch)} requests that sync_batch has added."
            )
