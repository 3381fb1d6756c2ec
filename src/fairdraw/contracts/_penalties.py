"""The penalties contract: a scanner follows the requests of a live batch, and bends their logits by what they wrote.

session = scanner.open_penalties(vocab_size)
session.sync(changes); session.penalise(logits, batch); session.penalise_drafts(logits, batch)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from fairdraw._core.capabilities import AnySampler
from fairdraw._core.contracts import Contract
from fairdraw._core.policies import Policy
from fairdraw.contracts._live import LiveBatch, SessionLook

if TYPE_CHECKING:
    from torch import Tensor

    from fairdraw._core.rows import RowChanges


@dataclass(frozen=True)
class PenaltyPolicy(Policy):
    """What a scanner's penalties see, and in which order and to which power they come.

    Args:
        repetition_sees: What the repetition penalty sees.
            * `"text"`: prompt repeated: tokens of the prompt are repeated tokens, too (vLLM, llama.cpp, MLX-LM)
            * `"output"`: prompt not repeated: it sees the output alone, with the drafts before the row (SGLang)
        repetition: When the repetition penalty comes.
            * `"first"`: repetition first: before the frequency and presence penalties are subtracted (vLLM, llama.cpp)
            * `"last"`: repetition last: on what the others left, by the sign that it has then (SGLang)
        repetition_power: The power of the repetition penalty.
            * `"one"`: penalty to the power of one: once for a token, however often it occurs (vLLM, llama.cpp)
            * `"count"`: penalty to the power of the count: a token that occurs three times is divided three times
        counts_see: What the frequency and presence penalties count.
            * `"output"`: prompt not counted: they count the output alone, with the drafts before the row (vLLM, SGLang)
            * `"text"`: prompt counted: its tokens count as those of the output do (llama.cpp, MLX-LM)
        window: How many of the last tokens all penalties see; a placeholder takes no place.
            * `None`: no window: the whole text (vLLM, SGLang)
            * `64`: window of 64 tokens: the last ones of prompt and output (llama.cpp: `repeat_last_n`; MLX-LM: 20)
    """

    repetition_sees: Literal["text", "output"] = "text"
    repetition: Literal["first", "last"] = "first"
    repetition_power: Literal["one", "count"] = "one"
    counts_see: Literal["output", "text"] = "output"
    window: int | None = None


class PenaltiesSession(Protocol):
    """Penalties of one live batch. It must not modify token lists."""

    def sync(self, changes: RowChanges) -> None:
        """Rows changed. Called at most once per step, before the rest of it."""
        ...

    def penalise(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [batch_size, vocab_size] float32, both
        """One row per request, which sees the output and all drafts. In place, or a new tensor."""
        ...

    def penalise_drafts(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [num_tokens, vocab_size] float32, both
        """One row per draft token, which sees the output and the drafts before it; after `penalise` in each step, whose
        answer must stay as it is."""
        ...


@runtime_checkable
class PenaltiesScanner(AnySampler, Protocol):
    """A scanner under the penalties contract. Any object with these attributes is one; do not subclass.

    A logit of a token in prompt or output is divided by the repetition penalty if it is positive, and multiplied by it
    if not. Then the frequency penalty times the count in the output is subtracted, and the presence penalty if that
    count is not 0. No rounding is required, and other logits stay as they are. A scanner that documents its bits has an
    attribute `rounding` (`Rounding`). One that does otherwise, and is right, says so by its attribute `policy`
    (`PenaltyPolicy`).
    """

    def open_penalties(self, vocab_size: int) -> PenaltiesSession: ...


CONTRACT = Contract(
    "penalties",
    call="open_penalties(vocab_size)",
    case="fairdraw.strategies.lifecycle:PenaltiesTrace",
    raised="PEN100",
    answer="a float32 tensor with the shape of the logits given",
    policy=PenaltyPolicy,
    session=lambda _: SessionLook(("presence_penalty", "frequency_penalty", "repetition_penalty")),
)
