"""Steps of marked texts, as recipes: each request comes with a text, as after a preemption.

>>> case = WatermarkCase(8, (WatermarkedText(output_length=2),))
>>> [len(one.output_token_ids) for one in case.batch().requests]
[2]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import Capabilities, WatermarkBatch, WatermarkedRequest, WatermarkSetup
from fairdraw.strategies.rows import bulk_rng
from fairdraw.strategies.sampling import SampledRequest, SamplingCase, sampling_cases

__all__ = ["WatermarkCase", "WatermarkedText", "watermark_cases"]


@dataclass(frozen=True, repr=False)
class WatermarkedText(SampledRequest):
    """One request: its row, its parameters, and its text.

    Args:
        is_marked: Whether it wants the watermark.
        prompt_length: Tokens of its prompt.
        output_length: Tokens of its output.
        period: After how many tokens these repeat; 0 for never.
    """

    is_marked: bool = True
    prompt_length: int = 3
    output_length: int = 0
    period: int = 0

    def tokens(self, vocab_size: int, seed: int) -> tuple[list[int], list[int]]:
        """Return its prompt and its output."""
        rng = bulk_rng("text", seed)
        prompt, output = (rng.integers(vocab_size, size=size) for size in (self.prompt_length, self.output_length))
        times = self.output_length // max(1, self.period) + 1
        return prompt.tolist(), (output[: self.period or None].tolist() * times)[: self.output_length]


@dataclass(frozen=True, repr=False)
class WatermarkCase(SamplingCase):
    """One decoding step of texts, and its noise.

    Args:
        share: Of the first key, where there are two.
        seed: For keys, texts and every bulk number.

    Raises:
        ValueError: If there is no request or no vocabulary, or a word is unknown.
    """

    requests: tuple[WatermarkedText, ...]
    context_width: int = 2
    share: float = 0.5

    @property
    def setup(self) -> WatermarkSetup:
        """The keys."""
        keys = tuple(derive_seed("key", self.seed, i) * 2 + 1 for i in range(2))
        return WatermarkSetup(keys, self.context_width, self.share)

    def texts(self) -> list[WatermarkedRequest]:
        """Return the texts of the requests."""
        pairs = [one.tokens(self.vocab_size, derive_seed(self.seed, i)) for i, one in enumerate(self.requests)]
        return [
            WatermarkedRequest(derive_seed("id", self.seed, i), *pair, self.requests[i].is_marked)
            for i, pair in enumerate(pairs)
        ]

    def batch(self, device: str = "cpu", texts: Sequence[WatermarkedRequest] = ()) -> WatermarkBatch:
        """Build the batch of these texts, or of its own if there are none."""
        given = tuple(texts) or tuple(self.texts())
        lengths = [len(one.prompt_token_ids) + len(one.output_token_ids) for one in given]
        rows = vars(super().batch(device)) | {"positions": torch.tensor(lengths, device=device), "origin": None}
        return WatermarkBatch(**rows, setup=self.setup, requests=given)


_OUTPUTS = ((0, 0), (3, 0), (7, 1), (12, 3), (1, 0), (40, 2), (9, 0), (5, 2))
"""Lengths of outputs, and after how many tokens they repeat."""
_PROMPTS = (3, 1, 12, 0, 2)


@st.composite
def watermark_cases(
    draw: st.DrawFn,
    /,
    capabilities: Capabilities = Capabilities(),  # noqa: B008  frozen
    *,
    marked: bool | None = None,
    outputs: Sequence[tuple[int, int]] = _OUTPUTS,
    **step: Any,
) -> WatermarkCase:
    """Steps of marked and unmarked requests, each with a text of its own.

    Args:
        marked: Requests want the watermark; some of them if `None`.
        outputs: Lengths of outputs, and after how many tokens they repeat.
        step: As `sampling_cases` takes it. Any: of its arguments.

    Raises:
        TypeError, ValueError: As `sampling_cases`.
    """
    case = draw(sampling_cases(capabilities, **{"max_vocab_size": 129, **step}))
    flags, texts = (True, True, False) if marked is None else (marked,), list[WatermarkedText]()
    for row in case.requests:
        is_marked, prompt = draw(st.sampled_from(flags)), draw(st.sampled_from(_PROMPTS))
        length, period = draw(st.sampled_from(outputs))
        about = vars(row) | {"is_marked": is_marked, "prompt_length": prompt, "output_length": length}
        texts.append(WatermarkedText(**about, period=period))
    width, share = draw(st.sampled_from((2, 1, 4, 6, 8, 6))), draw(st.sampled_from((0.5, 0.1, 0.9)))
    own: dict[str, Any] = {**vars(case), "requests": tuple(texts)}  # Any: fields of a case
    return WatermarkCase(**own, context_width=width, share=share)
