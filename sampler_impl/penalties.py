"""Presence, frequency and repetition penalties from a token history that is never read twice.

vLLM's V1 sampler pads all output lists into a `[batch_size, length]` tensor at every step and counts it on the device:
the host work grows with every token ever generated (at 128 requests of 12000 tokens 60 ms per step, here 0.09 ms:
`perf_regression/records/scanners_cpu.json`). There are two replacements, both with the same bits in the logits:

* `PaddedOutputs` builds the same tensor from the batch's `token_ids_cpu`. It still costs O(length), but copies rows of
  a NumPy array instead of iterating over Python lists.
* `Penalties` keeps the counts. A step adds new tokens and subtracts tokens that were cut; no tensor has a length axis:

      update(output_token_ids)             lists -> new ids -> one scatter into token_state     host O(new tokens)
      apply(logits, ...)                   one row per request, which sees output + all drafts
      apply_to_drafts(logits, ...)         one row per draft token, which sees output + the drafts before it

Per request and token id, one int32 holds everything that the penalties need:

      bit   31 ........................ 1   0
            times in the output             in the prompt?         token_state > 0: seen at all

Memory is `4 * vocab_size` bytes on the device per penalised request (the most there have been at once; freed when there
are none) and 8 bytes per output token on the host. Requests without penalties cost nothing.

Intentional deviation from vLLM. *Embedded prompts*: for a prompt given as embeddings vLLM penalises the ids that the
row's buffer held before, an earlier request's prompt. Here such a prompt has no ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from ._scanners import penalties_torch as _penalties_torch
from ._scanners.history import BatchUpdate, History, check_rows, follow_rows
from ._scanners.padded_outputs import PaddedOutputs
from ._scanners.penalty_rows import (
    IN_OUTPUT,
    IN_PROMPT,
    Ids,
    PenaltyRows,
    bonus_rows,
    changed_counts,
    draft_rows,
    in_vocab,
)
from ._shared.backend import BackendName, choose_backend
from ._shared.checks import FLOAT32, FLOATS, check_tensor, check_written, is_plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._scanners.penalty_rows import Factors
    from ._shared.tensors import LogitRows, SlotCounts

__all__ = ["PaddedOutputs", "Penalties"]


class PenaltyParams(Protocol):
    """Parameters that are read from vLLM's `SamplingParams`."""

    @property
    def presence_penalty(self) -> float: ...
    @property
    def frequency_penalty(self) -> float: ...
    @property
    def repetition_penalty(self) -> float: ...


@dataclass(eq=False)
class _Request:
    """A penalised request; its counts are row `slot` of the token state. Its prompt ids are dropped once counted."""

    history: History
    prompt_token_ids: Ids  # [num_prompt_tokens] int64
    slot: int = -1


class Penalties:
    """Counts of the penalised requests of one batch, kept up to date from new tokens alone.

    Call `sync_batch` whenever rows change, `update` once per step before the first `apply`.

    Args:
        vocab_size: Width of the logits.
        device: Where the logits are.
        backend: For the arithmetic on float32 logits. `None`: Triton on a GPU, else PyTorch, which handles
            all other logits as well. Triton on a CPU needs its interpreter.

    Limits:
        float32 logits are bitwise those of vLLM's `apply_all_penalties`. On a GPU a positive logit is divided by the
        repetition penalty, as by vLLM's CUDA kernel; on a CPU, and by the PyTorch backend where GPU logits are not
        contiguous, it is multiplied by the reciprocal, as by vLLM's torch code. The two differ in the last bit.
        bfloat16 and float16 logits are rounded after each of the three penalties, as by vLLM's torch code; vLLM passes
        float32 only.

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

    def __init__(
        self, vocab_size: int, device: torch.device | str = "cpu", *, backend: BackendName | None = None
    ) -> None:
        if vocab_size < 1:
            raise ValueError(f"Penalties: vocab_size={vocab_size}, but it must be at least 1. Use logits.shape[-1].")
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self._backend = choose_backend("Penalties", backend, self.device, place="device")
        self._requests: dict[int, _Request] = {}
        self._rows: list[int] = []
        self._histories: list[History] = []
        self._slots: Ids = np.empty(0, np.int64)  # [num_penalised] int64
        self._hold(torch.empty(0, vocab_size, dtype=torch.int32, device=self.device))
        self._one = torch.ones(1, dtype=torch.int32, device=self.device)
        self._stale = False

    @property
    def has_requests(self) -> bool:
        """Whether any request of the batch is penalised; if not, `update` and `apply` do nothing."""
        return bool(self._requests)

    @property
    def nbytes(self) -> int:
        """Return the device memory held between steps."""
        return self._token_state.numel() * self._token_state.element_size()

    def sync_batch(self, update: BatchUpdate | None) -> None:
        """Follow requests that were added, removed, moved or swapped; a request that is added again starts anew.

        Args:
            update: vLLM's `BatchUpdate`, or any object like it. `None`: no row changed.

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

    def _hold(self, token_state: SlotCounts) -> None:
        """Hold counts; steps add to the flattened view, which is made here once for all of them."""
        self._token_state = token_state
        self._flat_state = token_state.view(-1)

    def _place(self, new: list[_Request], taken: set[int]) -> None:
        """Give each new request a zeroed slot with its prompt in it, and make room for exactly as many as needed."""
        if not self._requests:
            self._hold(self._token_state.new_empty((0, self.vocab_size)))
        num_slots = max(len(self._requests), len(self._token_state))
        free = (slot for slot in range(num_slots) if slot not in taken)
        if num_slots > len(self._token_state):
            grown = self._token_state.new_zeros((num_slots, self.vocab_size))
            grown[: len(self._token_state)] = self._token_state
            self._hold(grown)
        for request, slot in zip(new, free, strict=False):
            request.slot = slot
            state = self._token_state[slot].zero_()
            state.index_fill_(0, torch.from_numpy(request.prompt_token_ids).to(self.device), IN_PROMPT)
            request.prompt_token_ids = np.empty(0, np.int64)

    def update(self, output_token_ids: Sequence[list[int]]) -> None:
        """Count what is new in the live output lists, and subtract what is gone.

        Args:
            output_token_ids: The batch's live lists, one per row: the very objects that the requests were added with.

        Raises:
            ValueError: If a row is missing or holds another list, or if an id is neither in the vocabulary nor
                `vocab_size` or -1 (which are not counted). The next call recounts everything.
        """
        if not self._requests:
            return
        check_rows("Penalties.update", self._rows, self._histories, output_token_ids)
        if self._stale:
            self._forget()
        self._stale = True
        for index, times in changed_counts(self._histories, self._slots, self.vocab_size):
            _penalties_torch.add(self._flat_state, index, self._one, times * IN_OUTPUT)
        self._stale = False

    def audit(self) -> int:
        """Compare everything ever read with the live lists; returns the number of requests to be recounted.

        For lists that may have been changed without a report. O(length).
        """
        num_changed = sum(not history.audit() for history in self._histories)
        self._stale = self._stale or num_changed > 0
        return num_changed

    def _forget(self) -> None:
        """Reset to the prompts, so that everything is counted again."""
        for history in self._histories:
            history.rewind(0)
        self._token_state.bitwise_and_(IN_PROMPT)

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
            12 bytes per logit of a penalised row with Triton, and no temporary.
        """
        if not self._requests:
            return logits
        rows = bonus_rows(self._slots_of_rows(len(presence_penalties)), draft_token_ids, self.vocab_size)
        factors = (presence_penalties, frequency_penalties, repetition_penalties)
        return self._apply("Penalties.apply", logits, rows, factors)

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
        rows = draft_rows(self._slots_of_rows(len(presence_penalties)), draft_token_ids, self.vocab_size)
        factors = (presence_penalties, frequency_penalties, repetition_penalties)
        return self._apply("Penalties.apply_to_drafts", logits, rows, factors)

    def _slots_of_rows(self, batch_size: int) -> Ids:  # [batch_size] int64
        """Return the slot of each request; -1 for one without penalties."""
        slots = np.full(max(batch_size, self._rows[-1] + 1), -1, np.int64)
        slots[self._rows] = self._slots
        return slots[:batch_size]

    def _apply(
        self, function: str, logits: LogitRows, rows: PenaltyRows, factors: Factors
    ) -> Tensor:  # [num_rows, vocab_size] float32
        num_rows, kept = len(rows.request), is_plain(logits) and logits.dtype in FLOATS
        if not kept or logits.shape != (num_rows, self.vocab_size) or logits.device.type != self.device.type:
            raise ValueError(
                f"{function}: logits are {list(logits.shape)} on {logits.device}, {logits.dtype}, but they must be "
                f"{[num_rows, self.vocab_size]} floats on {self.device}. Check the penalties' length, draft_token_ids, "
                f"and the vocab_size and device that Penalties was made with."
            )
        check_written(function, "logits", logits)
        batch_size = factors[0].shape[:1]
        for name, factor in zip(("presence", "frequency", "repetition"), factors, strict=True):
            check_tensor(function, f"{name}_penalties", factor, batch_size, FLOAT32, logits.device)
        if self._backend == "triton" and logits.dtype == torch.float32:
            from ._scanners import penalties_kernel as _penalties_kernel

            _penalties_kernel.penalise(logits, self._token_state, rows, factors)
        else:
            _penalties_torch.penalise(logits, self._token_state, rows, factors)
        return logits
