"""Serving traces of marked texts, as recipes: requests come with a text, draw tokens step by step, and go.

>>> trace = WatermarkTrace(8, (WatermarkedText(output_length=2),))
>>> [len(one.output_token_ids) for one in trace.batch().requests]
[2]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st

from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import Capabilities, SamplingNoise, WatermarkBatch, WatermarkedRequest, WatermarkSetup
from fairdraw.strategies._recipe import BatchRecipe, Recipe
from fairdraw.strategies.rows import bulk_rng
from fairdraw.strategies.sampling import SampledRequest, SamplingCase, sampling_cases

__all__ = ["WatermarkTrace", "WatermarkedText", "watermark_traces"]


@dataclass(frozen=True, repr=False)
class WatermarkedText(Recipe):
    """One request of a trace.

    Args:
        row: Its logits and parameters at every step.
        is_marked: Whether it wants the watermark.
        prompt_length: Tokens of its prompt.
        output_length: Tokens of its output when it comes, as after a preemption.
        period: After how many tokens these repeat; 0 for never.
        begins: The step at which it comes.
        num_steps: How many tokens it draws.
    """

    row: SampledRequest = field(default_factory=SampledRequest)
    is_marked: bool = True
    prompt_length: int = 3
    output_length: int = 0
    period: int = 0
    begins: int = 0
    num_steps: int = 1

    def tokens(self, vocab_size: int, seed: int) -> tuple[list[int], list[int]]:
        """Return its prompt, and its output when it comes."""
        rng = bulk_rng("text", seed)
        prompt, output = (rng.integers(vocab_size, size=size) for size in (self.prompt_length, self.output_length))
        times = self.output_length // max(1, self.period) + 1
        return prompt.tolist(), (output[: self.period or None].tolist() * times)[: self.output_length]


@dataclass(frozen=True, repr=False)
class WatermarkTrace(BatchRecipe):
    """What one sampler draws for requests that come and go; a trace of one step is a case of one call.

    Args:
        share: Of the first key, where there are two.
        turns: By how many rows requests move from step to step.
        explicit: Noise is handed in (`RaceNoise`); otherwise seeded (`SeededNoise`).
        seed: For keys, texts and every bulk number.

    Raises:
        ValueError: If there is no request or no vocabulary, or a word is unknown.
    """

    vocab_size: int
    requests: tuple[WatermarkedText, ...]
    context_width: int = 2
    share: float = 0.5
    turns: int = 0
    explicit: bool = True
    dtype: str = "float32"
    layout: str = "contiguous"
    seed: int = 0

    def __post_init__(self) -> None:
        self._check("WatermarkedText()")

    @property
    def setup(self) -> WatermarkSetup:
        """The keys of the trace."""
        keys = tuple(derive_seed("key", self.seed, i) * 2 + 1 for i in range(2))
        return WatermarkSetup(keys, self.context_width, self.share)

    @property
    def num_steps(self) -> int:
        """Steps until the last request has gone."""
        return max(one.begins + one.num_steps for one in self.requests)

    def rows(self, step: int = 0) -> list[int]:
        """Return the number of the request in each row."""
        live = [i for i, one in enumerate(self.requests) if 0 <= step - one.begins < one.num_steps]
        first = step * self.turns % max(1, len(live))
        return live[first:] + live[:first]

    def batch(
        self, device: str = "cpu", step: int = 0, emitted: Mapping[int, Sequence[int]] | None = None
    ) -> WatermarkBatch:
        """Build the batch of a step; `emitted` has the tokens that requests have drawn so far."""
        made, texts = self._case(step).batch(device), []
        for i in self.rows(step):
            prompt, output = self.requests[i].tokens(self.vocab_size, derive_seed(self.seed, i))
            output += (emitted or {}).get(i, ())
            texts.append(
                WatermarkedRequest(derive_seed("id", self.seed, i), prompt, output, self.requests[i].is_marked)
            )
        lengths = [len(one.prompt_token_ids) + len(one.output_token_ids) for one in texts]
        rows = made.tensors() | {"positions": torch.tensor(lengths, dtype=torch.int64, device=device)}
        filters = dict.fromkeys(("top_k", "top_p", "min_p"))
        given: dict[str, Any] = filters | rows  # Any: tensors, and filters that are off
        return WatermarkBatch(**given, setup=self.setup, requests=tuple(texts))

    def noise(self, device: str = "cpu", step: int = 0) -> SamplingNoise:
        """Build the noise of a step."""
        return self._case(step).noise(device)

    def _case(self, step: int) -> SamplingCase:
        rows = tuple(self.requests[i].row for i in self.rows(step))
        kind = (self.explicit, self.dtype, self.layout)
        return SamplingCase(self.vocab_size, rows, *kind, seed=derive_seed("step", self.seed, step))


_OUTPUTS = ((0, 0), (3, 0), (7, 1), (12, 3), (1, 0), (40, 2), (9, 0), (5, 2))
"""Lengths of outputs, and after how many tokens they repeat."""
_PROMPTS = (3, 1, 12, 0, 2)


@st.composite
def watermark_traces(
    draw: st.DrawFn,
    /,
    capabilities: Capabilities = Capabilities(),  # noqa: B008  frozen
    *,
    max_steps: int = 1,
    marked: bool | None = None,
    outputs: Sequence[tuple[int, int]] = _OUTPUTS,
    widths: Sequence[int] = (2, 1, 4, 6, 8, 6),
    **step: Any,
) -> WatermarkTrace:
    """Traces of marked and unmarked requests, each with a text of its own.

    Args:
        max_steps: Tokens that a request draws at most; it comes at any step.
        marked: Requests want the watermark; some of them if `None`.
        outputs: Lengths of outputs when requests come, and after how many tokens they repeat.
        widths: Tokens of a context.
        step: As `sampling_cases` takes it. Any: of its arguments.

    Raises:
        TypeError, ValueError: As `sampling_cases`.
    """
    case, number = draw(sampling_cases(capabilities, **{"max_vocab_size": 129, **step})), st.integers
    texts: list[WatermarkedText] = []
    for row in case.requests:
        output, period = draw(st.sampled_from(outputs))
        is_marked = draw(st.sampled_from((True, True, False) if marked is None else (marked,)))
        begins = draw(number(0, max_steps - 1)) if texts else 0
        lengths = draw(st.sampled_from(_PROMPTS)), output, period
        texts.append(WatermarkedText(row, is_marked, *lengths, begins, draw(number(1, max_steps))))
    width, share = draw(st.sampled_from(widths)), draw(st.sampled_from((0.5, 0.1, 0.9)))
    kind = (case.explicit, case.dtype, case.layout, case.seed)
    return WatermarkTrace(case.vocab_size, tuple(texts), width, share, draw(number(0, 2)), *kind)
