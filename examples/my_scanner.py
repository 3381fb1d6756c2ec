"""Third-party penalties, and the adapter that puts them under test:

fairdraw check examples.my_scanner:make
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from fairdraw import Capabilities

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fairdraw.contracts import LiveBatch, LiveRequest, RowChanges

# The scanner: it recounts everything at every step. It does not import fairdraw.


def count(token_ids: Sequence[int], vocab_size: int) -> Tensor:  # [vocab_size] float32
    counts = torch.zeros(vocab_size)
    for token_id in token_ids:
        if token_id >= 0:  # -1 is a token that is not known yet
            counts[token_id] += 1
    return counts


def penalise(
    logits: Tensor,  # [vocab_size] float32
    prompt: Sequence[int],
    output: Sequence[int],
    presence: float,
    frequency: float,
    repetition: float,
) -> Tensor:  # [vocab_size] float32
    counts = count(output, len(logits))
    seen = (counts > 0) | (count(prompt, len(logits)) > 0)
    factor = torch.where(logits > 0, 1 / torch.tensor(repetition), torch.tensor(repetition))
    logits = torch.where(seen, logits * factor, logits)
    return logits - frequency * counts - presence * (counts > 0)


# The adapter.


class MyScanner:
    name, device = "my scanner", "cpu"
    contract: Literal["penalties"] = "penalties"
    capabilities = Capabilities({"new-tokens-only": "recounts everything at every step"})  # type: ignore[dict-item]  # words will do

    def open_penalties(self, vocab_size: int) -> MyScanner:
        return self

    def sync(self, changes: RowChanges) -> None:
        """Nothing is kept between steps, so nothing has to follow the rows."""

    def penalise(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [batch_size, vocab_size] float32, both
        rows = [self.row(row, r, len(r.draft_token_ids)) for row, r in zip(logits, batch.requests, strict=True)]
        return torch.stack(rows)

    def penalise_drafts(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [num_tokens, vocab_size] float32, both
        places = [(r, seen) for r in batch.requests for seen in range(len(r.draft_token_ids))]
        return torch.stack([self.row(row, *place) for row, place in zip(logits, places, strict=True)])

    def row(
        self,
        logits: Tensor,  # [vocab_size] float32
        request: LiveRequest,
        num_seen: int,
    ) -> Tensor:  # [vocab_size] float32
        output = [*request.output_token_ids, *request.draft_token_ids[:num_seen]]
        params = request.params
        factors = params.presence_penalty, params.frequency_penalty, params.repetition_penalty
        return penalise(logits, request.prompt_token_ids, output, *factors)


def make() -> MyScanner:
    return MyScanner()
