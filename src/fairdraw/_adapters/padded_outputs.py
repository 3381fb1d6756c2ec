"""Our padded tensor behind the penalties protocol, with a token buffer kept as vLLM's runner keeps `token_ids_cpu`.

The buffer is written when a request enters and when tokens are appended, -1 for those that are late, and never
repaired; rows move with their requests. Steps with drafts are the engine's own work, done here from the lists.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from fairdraw.protocols import PLACEHOLDER_TOKEN_ID, Capabilities, Capability
from fairdraw.protocols._lifecycle import AddedRow, LiveBatch, Move, PenaltiesSession, RowChanges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["OurPaddedOutputs", "make"]

MOST_REQUESTS, LONGEST = 8, 2048


def make(device: str | None = None) -> OurPaddedOutputs:
    """`fairdraw.sampler_impl.penalties.PaddedOutputs`, counted in PyTorch; on the CPU, whatever `device` says."""
    return OurPaddedOutputs()


@dataclass(frozen=True)
class OurPaddedOutputs:
    """The first stage: it builds fast, and anew in every step."""

    device: str = "cpu"
    name: str = "padded outputs"
    capabilities: Capabilities = field(
        default_factory=lambda: Capabilities({Capability.NEW_TOKENS_ONLY: "copies every row in every step"})
    )
    contract: Literal["penalties"] = "penalties"

    def open_penalties(self, vocab_size: int) -> PenaltiesSession:
        from fairdraw.sampler_impl.penalties import PaddedOutputs

        return _Session(PaddedOutputs(self.device), vocab_size)


class _Session:
    def __init__(self, padded: Any, vocab_size: int) -> None:  # Any: PaddedOutputs, which is imported late
        self.padded, self.vocab_size = padded, vocab_size
        self.rows: list[AddedRow | None] = [None] * MOST_REQUESTS
        self.buffer = np.zeros((MOST_REQUESTS, LONGEST), np.int32)
        self.num_prompt = np.zeros(MOST_REQUESTS, np.int32)
        self.num_tokens = np.zeros(MOST_REQUESTS, np.int32)

    def sync(self, changes: RowChanges) -> None:
        for row in changes.removed:
            self.rows[row] = None
        for added in changes.added:
            self.rows[added.row] = added
            self.num_prompt[added.row] = self.num_tokens[added.row] = len(added.prompt_token_ids)
            self.buffer[added.row, : len(added.prompt_token_ids)] = added.prompt_token_ids
        for source, target, direction in changes.moved:
            pair, back = [source, target], [target, source]
            self.rows[target], self.rows[source] = self.rows[source], self.rows[target]
            for array in (self.buffer, self.num_prompt, self.num_tokens):
                array[pair] = array[back]
            if direction is Move.UNIDIRECTIONAL:
                self.rows[source] = None

    def penalise(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [batch_size, vocab_size] float32, both
        outputs = [[*r.output_token_ids, *r.draft_token_ids] for r in batch.requests]
        live = [None if added is None else added.output_token_ids for added in self.rows]
        self._append(live)
        built: Tensor | None = None
        if not batch.num_drafts:
            bounds = self.num_prompt, self.num_tokens
            built = self.padded.build(batch.output_token_ids, live, self.buffer, *bounds, self.vocab_size)
        return self._penalised(logits, batch, list(range(len(outputs))), outputs if built is None else built)

    def penalise_drafts(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [num_tokens, vocab_size] float32, both
        rows = [(row, n) for row, r in enumerate(batch.requests) for n in range(len(r.draft_token_ids))]
        seen = [[*batch.requests[row].output_token_ids, *batch.requests[row].draft_token_ids[:n]] for row, n in rows]
        return self._penalised(logits, batch, [row for row, _ in rows], seen)

    def _append(self, live: Sequence[Sequence[int] | None]) -> None:
        """What the runner does after a step: new ids, as they are known, and no others."""
        for row, tokens in enumerate(live):
            if tokens is not None:
                begin, end = int(self.num_tokens[row]), int(self.num_prompt[row]) + len(tokens)
                if end > begin:
                    self.buffer[row, begin:end] = list(tokens)[begin - end :]
                self.num_tokens[row] = end

    def _penalised(
        self,
        logits: Tensor,  # [num_rows, vocab_size] float32
        batch: LiveBatch,
        request: list[int],
        outputs: Tensor | list[list[int]],  # [num_rows, ...] int64
    ) -> Tensor:  # [num_rows, vocab_size] float32
        """As vLLM's torch code: repetition, frequency, presence."""
        presence, frequency, repetition = (factor[request, None] for factor in batch.factors())
        counts = torch.stack([self._counted(row) for row in outputs]).float()
        prompts = torch.stack([self._counted(batch.requests[row].prompt_token_ids) for row in request])
        scale = torch.where((prompts > 0) | (counts > 0), repetition, torch.ones(()))
        logits *= torch.where(logits > 0, 1 / scale, scale)
        logits -= frequency * counts
        logits -= presence * (counts > 0)
        return logits

    def _counted(self, token_ids: Tensor | list[int]) -> Tensor:  # [vocab_size] int64
        ids = torch.as_tensor(token_ids, dtype=torch.int64)
        ids = torch.where(ids == PLACEHOLDER_TOKEN_ID, self.vocab_size, ids)
        return torch.bincount(ids, minlength=self.vocab_size + 1)[: self.vocab_size]
