"""The processors of a logits plan, one class each, in the order in which they run.

A processor is made from the batch's requests, once per change of the batch. In each step `prepare` decides whether it
has work: it returns a function that changes the float32 copy of the logits, or `None`, and then no copy is needed for
it. It computes on the host; a tensor is made only where there is work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from .._scanners.history import PLACEHOLDER_TOKEN_ID
from .._shared.filters import apply_min_p, apply_top_k_top_p
from ..thinking_budget import FORCED_LOGIT, ThinkingBudget
from .rows import PerRequest, RowLayout, SeenBy, Step, on_device

if TYPE_CHECKING:
    from .._shared.tensors import LogitRows
    from ..penalties import Penalties
    from .params import Request

Work = Callable[[Tensor], Tensor]
"""A function that changes `[num_rows, vocab_size] float32` in place, or returns another tensor instead."""

EXCLUDED = float("-inf")


class Processor(Protocol):
    """One processor of one batch."""

    @property
    def name(self) -> str: ...
    def prepare(self, step: Step) -> Work | None: ...


class CustomProcessor(Protocol):
    """A custom processor, called once per step with all rows that use it."""

    def is_argmax_invariant(self) -> bool:
        """Whether it never changes the greatest logit: it runs after the temperature, and not if all requests are
        greedy."""
        ...

    def wants(self, params: Any) -> bool:  # Any: the caller's own sampling parameters
        """Whether a request uses it; decided once, when the request joins the batch."""
        ...

    def apply(self, logits: LogitRows, rows: Sequence[SeenBy]) -> Tensor:  # [num_rows, vocab_size] float32
        """Process these rows, in place or not, and leave all others unchanged."""
        ...


class AllowedIds:
    """Processor that excludes everything but a request's allowed ids."""

    name = "allowed ids"

    def __init__(self, requests: Sequence[Request], vocab_size: int, device: torch.device) -> None:
        excluded = torch.zeros(len(requests), vocab_size, dtype=torch.bool, device=device)
        for row, request in enumerate(requests):
            if request.params.allowed_token_ids is not None:
                allowed = on_device(np.array(request.params.allowed_token_ids, np.int64), device)
                excluded[row] = True
                excluded[row].index_fill_(0, allowed, False)
        self._excluded = PerRequest(excluded)

    def prepare(self, step: Step) -> Work:
        excluded = self._excluded.rows(step.layout)
        return lambda logits: logits.masked_fill_(excluded, EXCLUDED)


class BadWords:
    """Processor that excludes the last token of a bad word where the text ends with the tokens before it."""

    name = "bad words"

    def __init__(self, requests: Sequence[Request]) -> None:
        self._words = {
            row: [list(word) for word in request.params.bad_words_token_ids]
            for row, request in enumerate(requests)
            if request.params.bad_words_token_ids
        }

    def prepare(self, step: Step) -> Work | None:
        hits = [hit for request in self._words for hit in self._hits(step, request)]
        return _fill(hits, EXCLUDED, step.layout) if hits else None

    def _hits(self, step: Step, request: int) -> list[tuple[int, int]]:
        """Return rows, and the tokens that are excluded there."""
        words = self._words[request]
        text = step.tail(request, max(map(len, words)) - 1)
        num_drafts, first = len(step.draft_token_ids[request]), step.layout.first_row[request]
        ends = [len(text) - num_drafts + position for position in range(num_drafts + 1)]
        return [
            (first + position, word[-1])
            for position, end in enumerate(ends)
            for word in words
            if end >= len(word) - 1 and text[end - len(word) + 1 : end] == word[:-1]
        ]


class MinTokens:
    """Processor that excludes stop tokens until the output, with the drafts before a row, is long enough."""

    name = "min tokens"

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = [
            (row, request.history, request.params.min_tokens, sorted(request.params.all_stop_token_ids))
            for row, request in enumerate(requests)
            if request.params.min_tokens and request.params.all_stop_token_ids
        ]
        self._last: tuple[RowLayout, list[int], Work] | None = None

    def prepare(self, step: Step) -> Work | None:
        counts = step.layout.num_draft_tokens
        too_short = [
            max(0, min(least - len(history.live), counts[request] + 1)) for request, history, least, _ in self._requests
        ]
        if not any(too_short):
            return None
        layout, known, work = self._last or (None, None, None)
        if work is None or layout is not step.layout or known != too_short:
            cells = [
                (step.layout.first_row[request] + position, token_id)
                for (request, _, _, stop_token_ids), num_rows in zip(self._requests, too_short, strict=True)
                for position in range(num_rows)
                for token_id in stop_token_ids
            ]
            work = _fill(cells, EXCLUDED, step.layout)
            self._last = (step.layout, too_short, work)
        return work


class LogitBias:
    """Processor that adds numbers to the logits of some ids, in every row of the request."""

    name = "logit bias"

    def __init__(self, requests: Sequence[Request]) -> None:
        self._biases = {row: request.params.logit_bias for row, request in enumerate(requests)}
        self._last: tuple[RowLayout, Work] | None = None

    def prepare(self, step: Step) -> Work:
        layout, work = self._last or (None, None)
        if work is None or layout is not step.layout:
            work = self._adder(step.layout)
            self._last = (step.layout, work)
        return work

    def _adder(self, layout: RowLayout) -> Work:
        added = [
            (layout.first_row[request] + position, token_id, bias)
            for request, logit_bias in self._biases.items()
            for position in range(layout.num_draft_tokens[request] + 1)
            for token_id, bias in (logit_bias or {}).items()
        ]
        index = _index([(row, token_id) for row, token_id, _ in added], layout.device)
        biases = on_device(np.array([bias for _, _, bias in added], np.float32), layout.device)
        return lambda logits: logits.index_put_(index, logits[index] + biases)


class Custom:
    """A custom processor."""

    def __init__(self, processor: CustomProcessor, wanting: Sequence[int]) -> None:
        self.name = type(processor).__name__
        self._processor, self._wanting = processor, wanting

    def prepare(self, step: Step) -> Work:
        rows = [seen for request in self._wanting for seen in step.seen_by(request)]
        return lambda logits: self._processor.apply(logits, rows)


class Penalise:
    """Repetition, frequency and presence penalties, from counts that are kept up to date."""

    name = "penalties"

    def __init__(self, requests: Sequence[Request], penalties: Penalties) -> None:
        self._penalties = penalties
        numbers = [
            (r.params.presence_penalty, r.params.frequency_penalty, r.params.repetition_penalty) for r in requests
        ]
        self._factors = on_device(np.array(numbers, np.float32).T.copy(), penalties.device)

    def prepare(self, step: Step) -> Work:
        """Prepare penalties. A row sees the drafts before it, so the bonus row is treated as that of one more draft."""
        self._penalties.update(step.output_token_ids)
        rows = [[*drafts, PLACEHOLDER_TOKEN_ID] for drafts in step.draft_token_ids]
        presence, frequency, repetition = self._factors
        return lambda logits: self._penalties.apply_to_drafts(logits, presence, frequency, repetition, rows)


class ForceEndOfThinking:
    """Processor that forces the end of a thinking section where its budget is spent."""

    name = "thinking budget"

    def __init__(self, thinking: ThinkingBudget, vocab_size: int) -> None:
        self._thinking, self._vocab_size = thinking, vocab_size

    def prepare(self, step: Step) -> Work | None:
        self._thinking.update_state(step.output_token_ids, step.draft_token_ids)
        first_row = step.layout.first_row
        cells = [
            (first_row[request] + token.position, token.token_id)
            for request, forced in self._thinking.forced.items()
            for token in forced
        ]
        if not cells:
            return None
        if (most := max(token_id for _, token_id in cells)) >= self._vocab_size:
            raise ValueError(
                f"LogitsPlan.apply: end_token_ids has {most}, but ids must be in [0, {self._vocab_size}). Make "
                f"ThinkingBudget with markers of this vocabulary."
            )
        return _fill(cells, FORCED_LOGIT, step.layout)


class Temperature:
    """Processor that divides logits by the temperature; greedy rows by 1."""

    name = "temperature"

    def __init__(self, requests: Sequence[Request], device: torch.device) -> None:
        self._temperature = PerRequest(_floats([request.temperature for request in requests], device))

    def prepare(self, step: Step) -> Work:
        temperature = self._temperature.rows(step.layout)
        return lambda logits: logits.div_(temperature.unsqueeze(1))


class MinP:
    """Processor that excludes tokens much less probable than the most probable one."""

    name = "min-p"

    def __init__(self, requests: Sequence[Request], device: torch.device) -> None:
        self._min_p = PerRequest(_floats([request.min_p for request in requests], device))

    def prepare(self, step: Step) -> Work:
        min_p = self._min_p.rows(step.layout)
        return lambda logits: apply_min_p(logits, min_p)


class TopKTopP:
    """Processor that excludes all but the most probable tokens; both filters share one sort."""

    def __init__(self, requests: Sequence[Request], vocab_size: int, device: torch.device) -> None:
        has_top_k = any(request.top_k < vocab_size for request in requests)
        has_top_p = any(request.top_p < 1 for request in requests)
        self.name = "/".join(name for name, has in (("top-k", has_top_k), ("top-p", has_top_p)) if has)
        top_k = on_device(np.array([request.top_k for request in requests], np.int64), device)
        self._top_k = PerRequest(top_k) if has_top_k else None
        self._top_p = PerRequest(_floats([request.top_p for request in requests], device)) if has_top_p else None

    def prepare(self, step: Step) -> Work:
        top_k = None if self._top_k is None else self._top_k.rows(step.layout)
        top_p = None if self._top_p is None else self._top_p.rows(step.layout)
        return lambda logits: apply_top_k_top_p(logits, top_k, top_p)


def _floats(values: Sequence[float], device: torch.device) -> Tensor:  # [batch_size] float32
    return on_device(np.array(values, np.float32), device)


def _index(cells: Sequence[tuple[int, int]], device: torch.device) -> tuple[Tensor, Tensor]:  # [length] int64, both
    rows, ids = on_device(np.array(cells, np.int64).reshape(-1, 2).T.copy(), device)
    return rows, ids


def _fill(cells: Sequence[tuple[int, int]], value: float, layout: RowLayout) -> Work:
    """Write `value` at these rows and ids."""
    index = _index(cells, layout.device)
    values = torch.full((), value, device=layout.device)
    return lambda logits: logits.index_put_(index, values)
