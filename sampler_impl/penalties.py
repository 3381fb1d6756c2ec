"""Presence, frequency and repetition penalties from a token history that is never read twice.

vLLM's V1 sampler pads all output lists into a `[batch_size, length]` tensor at every step and counts it on the device:
the host work grows with every token ever generated (at 128 requests of 12000 tokens 78 ms per step, measured). Two ways
out, both with the same bits in the logits:

* `PaddedOutputs` builds the same tensor from the batch's `token_ids_cpu`. It still costs O(length), but copies rows of
  a NumPy array instead of walking Python lists.
* `Penalties` keeps the counts. A step adds the new tokens, takes back what was cut, and no tensor has a length axis:

      update(output_token_ids)             lists -> new ids -> one scatter into token_state     host O(new tokens)
      apply(logits, ...)                   one row per request, which sees output + all drafts
      apply_to_drafts(logits, ...)         one row per draft token, which sees output + the drafts before it

Per request and token id, one int32 holds everything that a penalty asks:

      bit   31 ........................ 1   0
            times in the output             in the prompt?         token_state > 0: seen at all

Memory is `4 * vocab_size` bytes on the device per penalised request (the most there have been at once; freed when there
are none) and 8 bytes per output token on the host. Requests without penalties cost nothing.

Deviation from vLLM, on purpose. *Embedded prompts*: for a prompt given as embeddings vLLM penalises whatever ids the
row's buffer held before, an earlier request's prompt. Such a prompt has no ids here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from ._history import BatchUpdate, History, check_rows, follow_rows
from ._padded_outputs import PaddedOutputs
from ._penalty_rows import Ids, PenaltyRows, bonus_rows, changed_counts, draft_rows, in_vocab

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PaddedOutputs", "Penalties"]

IN_PROMPT = 1
ONE_OUTPUT = 2

_BLOCK_ELEMENTS = {"cpu": 1 << 19, "cuda": 1 << 26}
"""Logits per pass: on a CPU a block and its temporaries stay in the cache, on a GPU they stay below a gigabyte."""


class PenaltyParams(Protocol):
    """What is read from vLLM's `SamplingParams`."""

    @property
    def presence_penalty(self) -> float: ...
    @property
    def frequency_penalty(self) -> float: ...
    @property
    def repetition_penalty(self) -> float: ...


@dataclass(eq=False)
class _Request:
    """A penalised request; its counts are row `slot` of the token state. Prompt ids are dropped once they are there."""

    history: History
    prompt_token_ids: Ids  # [num_prompt_tokens] int64
    slot: int = -1


class Penalties:
    """Counts of the penalised requests of one batch, kept up to date by the new tokens alone.

    Call `sync_batch` whenever rows change, `update` once per step before the first `apply`.

    Args:
        vocab_size: Width of the logits.
        device: Where the logits are.

    Limits:
        Logits are bitwise those of vLLM's `apply_all_penalties`: for contiguous CUDA logits a positive logit is
        divided by the repetition penalty, as vLLM's CUDA kernel does, elsewhere it is multiplied by the reciprocal, as
        its torch code does; the two differ in the last bit. bfloat16 and float16 logits are rounded after each of the
        three penalties, as by vLLM's torch code; vLLM itself passes float32 only.

    Example:
        >>> from types import SimpleNamespace
        >>> output, params = [], SimpleNamespace(presence_penalty=0.5, frequency_penalty=0.0, repetition_penalty=1.0)
        >>> penalties = Penalties(vocab_size=4)
        >>> penalties.sync_batch(SimpleNamespace(removed=[], added=[(0, params, [1], output)], moved=[]))
        >>> output.append(3)
        >>> penalties.update([output])
        >>> zero, half, one = torch.tensor([0.0]), torch.tensor([0.5]), torch.tensor([1.0])
        >>> penalties.apply(torch.zeros(1, 4), half, zero, one)
        tensor([[ 0.0000,  0.0000,  0.0000, -0.5000]])
    """

    def __init__(self, vocab_size: int, device: torch.device | str = "cpu") -> None:
        if vocab_size < 1:
            raise ValueError(f"Penalties: vocab_size={vocab_size}, but it must be at least 1. Use logits.shape[-1].")
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self._requests: dict[int, _Request] = {}
        self._rows: list[int] = []
        self._histories: list[History] = []
        self._slots: Ids = np.empty(0, np.int64)  # [num_penalised] int64
        self._ones = torch.ones(1, dtype=torch.int32, device=self.device)  # [1] int32
        self._token_state = self._ones.new_empty((0, vocab_size))  # [num_slots, vocab_size] int32
        self._stale = False

    @property
    def has_requests(self) -> bool:
        """Whether any request of the batch is penalised; if not, `update` and `apply` do nothing."""
        return bool(self._requests)

    @property
    def nbytes(self) -> int:
        """Device memory held between steps."""
        return self._token_state.numel() * self._token_state.element_size()

    def sync_batch(self, update: BatchUpdate | None) -> None:
        """Follow requests that were added, removed, moved or swapped; a request that is added again starts anew.

        Args:
            update: vLLM's `BatchUpdate`, or any object like it. `None`: nothing happened.

        Raises:
            ValueError: If a prompt has ids outside the vocabulary. Nothing has been changed then.
        """
        if update is None:
            return
        self._requests = follow_rows(self._requests, update, self._make_request)
        self._rows = sorted(self._requests)
        ordered = [self._requests[row] for row in self._rows]
        self._histories = [request.history for request in ordered]
        self._place([request for request in ordered if request.slot < 0], {request.slot for request in ordered})
        self._slots = np.fromiter((request.slot for request in ordered), np.int64, len(ordered))

    def _make_request(
        self, params: PenaltyParams, prompt_token_ids: list[int] | None, output_token_ids: list[int]
    ) -> _Request | None:
        neutral = params.presence_penalty == params.frequency_penalty == 0 and params.repetition_penalty == 1
        if neutral:
            return None
        prompt = np.array(prompt_token_ids or (), dtype=np.int64)
        if not in_vocab(prompt, self.vocab_size):
            bad = prompt[(prompt < 0) | (prompt >= self.vocab_size)][0]
            raise ValueError(
                f"Penalties.sync_batch: prompt_token_ids has {bad}, but ids must be in [0, {self.vocab_size}). Let "
                f"the engine's own code do it, or correct vocab_size."
            )
        return _Request(History(output_token_ids), prompt)

    def _place(self, new: list[_Request], taken: set[int]) -> None:
        """Give each new request a zeroed slot with its prompt in it, and make room for exactly as many as needed."""
        if not self._requests:
            self._token_state = self._token_state.new_empty((0, self.vocab_size))
        num_slots = max(len(self._requests), len(self._token_state))
        free = (slot for slot in range(num_slots) if slot not in taken)
        if num_slots > len(self._token_state):
            grown = self._token_state.new_zeros((num_slots, self.vocab_size))
            grown[: len(self._token_state)] = self._token_state
            self._token_state = grown
        for request, slot in zip(new, free, strict=False):
            request.slot = slot
            state = self._token_state[slot].zero_()
            state.index_fill_(0, torch.from_numpy(request.prompt_token_ids).to(self.device), IN_PROMPT)
            request.prompt_token_ids = np.empty(0, np.int64)

    def update(self, output_token_ids: Sequence[list[int]]) -> None:
        """Count what is new in the live output lists, and take back what is gone.

        Args:
            output_token_ids: The batch's live lists, one per row: the very objects that the requests were added with.

        Raises:
            ValueError: If a row is missing or holds another list, or if an id is neither in the vocabulary nor
                `vocab_size` or -1 (both of which count nothing). The next call recounts everything.
        """
        if not self._requests:
            return
        check_rows("Penalties.update", self._rows, self._histories, output_token_ids)
        if self._stale:
            self._forget()
        self._stale = True
        for index, times in changed_counts(self._histories, self._slots, self.vocab_size):
            self._add(self._token_state, index, times * ONE_OUTPUT)
        self._stale = False

    def audit(self) -> int:
        """Compare everything ever read with the live lists; the number of requests that differ, to be recounted.

        For lists that may have been changed behind our back. O(length), about 1 ns per token.
        """
        num_changed = sum(not history.audit() for history in self._histories)
        self._stale = self._stale or num_changed > 0
        return num_changed

    def _forget(self) -> None:
        """Back to prompts only, so that everything is counted anew."""
        for history in self._histories:
            history.rewind(0)
        self._token_state.bitwise_and_(IN_PROMPT)

    def _add(
        self,
        token_state: Tensor,  # [num_rows, vocab_size] int32
        index: Ids,  # [num_ids] int64, into the flattened state
        amount: int,
    ) -> None:
        on_device = torch.from_numpy(index).to(self.device, non_blocking=True)
        token_state.view(-1).index_add_(0, on_device, self._ones.expand(len(index)), alpha=amount)

    def apply(
        self,
        logits: Tensor,  # [num_rows, vocab_size] float32
        presence_penalties: Tensor,  # [batch_size] float32
        frequency_penalties: Tensor,  # [batch_size] float32
        repetition_penalties: Tensor,  # [batch_size] float32
        draft_token_ids: Sequence[list[int]] | None = None,
    ) -> Tensor:  # [num_rows, vocab_size] float32
        """Penalise one row per request, in place: the plain step, and the bonus rows of a speculative one.

        Args:
            draft_token_ids: Per request, as many as there are rows or more; each row sees all drafts of its request.

        Raises:
            ValueError: If logits do not fit `vocab_size`, `device` or the batch, or a draft id is out of range.

        Traffic:
            Reads one int32 per logit beside the logits; temporaries are bounded by the block, not by the batch.
        """
        if not self._requests:
            return logits
        rows = bonus_rows(len(presence_penalties), draft_token_ids, self.vocab_size)
        columns = (v.unsqueeze(1) for v in (presence_penalties, frequency_penalties, repetition_penalties))
        return self._apply("Penalties.apply", logits, rows, *columns)

    def apply_to_drafts(
        self,
        logits: Tensor,  # [num_rows, vocab_size] float32
        presence_penalties: Tensor,  # [batch_size] float32
        frequency_penalties: Tensor,  # [batch_size] float32
        repetition_penalties: Tensor,  # [batch_size] float32
        draft_token_ids: Sequence[list[int]],
    ) -> Tensor:  # [num_rows, vocab_size] float32
        """Penalise one row per draft token, in place; each sees the output and the drafts before it.

        Raises:
            ValueError: As `apply`.
        """
        if not self._requests:
            return logits
        rows = draft_rows(len(presence_penalties), draft_token_ids, self.vocab_size)
        request = torch.from_numpy(rows.request).to(self.device, non_blocking=True)
        columns = (v[request, None] for v in (presence_penalties, frequency_penalties, repetition_penalties))
        return self._apply("Penalties.apply_to_drafts", logits, rows, *columns)

    def _apply(
        self,
        function: str,
        logits: Tensor,  # [num_rows, vocab_size] float32
        rows: PenaltyRows,
        presence: Tensor,  # [num_rows, 1] float32
        frequency: Tensor,  # [num_rows, 1] float32
        repetition: Tensor,  # [num_rows, 1] float32
    ) -> Tensor:  # [num_rows, vocab_size] float32
        """Block by block; a block without penalised rows is skipped."""
        self._check_logits(function, logits, len(rows.request))
        slots = self._slot_of(rows.request)
        size = max(1, _BLOCK_ELEMENTS.get(self.device.type, 1 << 26) // self.vocab_size)
        for first in range(0, len(slots), size):
            block = slice(first, first + size)
            if (slots[block] >= 0).any():
                token_state = self._gather(slots[block], rows, first)
                _penalise(logits[block], token_state, presence[block], frequency[block], repetition[block])
        return logits

    def _check_logits(
        self,
        function: str,
        logits: Tensor,  # [num_rows, vocab_size] float32
        num_rows: int,
    ) -> None:
        if logits.shape != (num_rows, self.vocab_size) or logits.device.type != self.device.type:
            raise ValueError(
                f"{function}: logits are {list(logits.shape)} on {logits.device}, but they must be "
                f"{[num_rows, self.vocab_size]} on {self.device}. Check the penalties' length, draft_token_ids, and "
                f"the vocab_size and device that Penalties was made with."
            )

    def _slot_of(
        self,
        request: Ids,  # [num_rows] int64
    ) -> Ids:  # [num_rows] int64
        """Slot of each row; -1 without penalties."""
        size = max(int(request.max(initial=-1)) + 1, self._rows[-1] + 1)
        slot_of_request = np.full(size, -1, np.int64)
        slot_of_request[self._rows] = self._slots
        return slot_of_request[request]

    def _gather(
        self,
        slots: Ids,  # [num_rows] int64
        rows: PenaltyRows,
        first: int,
    ) -> Tensor:  # [num_rows, vocab_size] int32
        """Token state that the rows of one block see: the request's own, and the drafts before the row.

        A row without penalties gets some slot: its factors are neutral, so that whatever is counted changes no bit.
        """
        index = torch.from_numpy(slots.clip(0)).to(self.device, non_blocking=True)
        state = self._token_state.index_select(0, index)
        begin, end = np.searchsorted(rows.draft_row, (first, first + len(slots)))
        if begin < end:
            flat = (rows.draft_row[begin:end] - first) * self.vocab_size + rows.draft_token_id[begin:end]
            self._add(state, flat, ONE_OUTPUT)
        return state


def _penalise(
    logits: Tensor,  # [num_rows, vocab_size] float32, written
    token_state: Tensor,  # [num_rows, vocab_size] int32, written
    presence: Tensor,  # [num_rows, 1] float32
    frequency: Tensor,  # [num_rows, 1] float32
    repetition: Tensor,  # [num_rows, 1] float32
) -> None:
    """The three penalties in vLLM's order, each rounded to the logits' dtype."""
    seen, positive = token_state > 0, logits > 0
    if logits.is_cuda and logits.is_contiguous():
        scaled = torch.where(positive, logits / repetition, logits * repetition)
        logits.copy_(torch.where(seen, scaled, logits))
    else:
        logits *= torch.where(seen, torch.where(positive, 1.0 / repetition, repetition), 1.0)
    output_counts = token_state.bitwise_right_shift_(1)
    logits -= frequency * output_counts
    logits -= presence * (output_counts > 0)
