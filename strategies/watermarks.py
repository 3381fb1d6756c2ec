"""Serving traces of marked texts, as recipes: requests come with a text, draw tokens step by step, and go.

>>> trace = WatermarkTrace(8, (WatermarkedText(output_length=2),))
>>> [len(one.output_token_ids) for one in trace.batch().requests]
[2]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import Capabilities, SamplingNoise, WatermarkBatch, WatermarkedRequest, WatermarkSetup
from fairdraw.strategies.rows import bulk_rng
from fairdraw.strategies.sampling import SampledRequest, SamplingCase, sampling_cases

__all__ = ["WatermarkTrace", "WatermarkedText", "watermark_traces"]


@dataclass(frozen=True, repr=False)
class WatermarkedText(SampledRequest):
    """One request of a trace: its logits and parameters, the same at every step, and its text.

    Args:
        is_marked: Whether it wants the watermark.
        prompt_length: Tokens of its prompt.
        output_length: Tokens of its output when it comes, as after a preemption.
        period: After how many tokens these repeat; 0 for never.
        begins: The step at which it comes.
        num_steps: How many tokens it draws.
    """

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
class WatermarkTrace(SamplingCase):
    """What one sampler draws for requests that come and go; a trace of one step is a case of one call.

    Args:
        share: Of the first key, where there are two.
        turns: By how many rows requests move from step to step.
        seed: For keys, texts and every bulk number.

    Raises:
        ValueError: If there is no request or no vocabulary, or a word is unknown.
    """

    requests: tuple[WatermarkedText, ...]
    context_width: int = 2
    share: float = 0.5
    turns: int = 0

    @property
    def setup(self) -> WatermarkSetup:
        """The keys of the trace."""
        keys = tuple(derive_seed("key", self.seed, i) * 2 + 1 for i in range(2))
        return WatermarkSetup(keys, self.context_width, self.share)

    @property
    def num_steps(self) -> int:
        """Steps until the last request has gone."""
        return max(one.begins + one.num_steps for one in self.requests)

    def live(self, step: int) -> list[int]:
        """Return the number of the request in each row."""
        found = [i for i, one in enumerate(self.requests) if 0 <= step - one.begins < one.num_steps]
        first = step * self.turns % max(1, len(found))
        return found[first:] + found[:first]

    def batch(
        self, device: str = "cpu", step: int = 0, emitted: Mapping[int, Sequence[int]] | None = None
    ) -> WatermarkBatch:
        """Build the batch of a step; `emitted` has the tokens that requests have drawn so far."""
        made, texts = self._step(step).batch(device), []
        for i in self.live(step):
            prompt, output = self.requests[i].tokens(self.vocab_size, derive_seed(self.seed, i))
            text = (prompt, [*output, *(emitted or {}).get(i, ())])
            texts.append(WatermarkedRequest(derive_seed("id", self.seed, i), *text, self.requests[i].is_marked))
        lengths = [len(one.prompt_token_ids) + len(one.output_token_ids) for one in texts]
        rows = vars(made) | {"positions": torch.tensor(lengths, device=device), "origin": None}
        return WatermarkBatch(**rows, setup=self.setup, requests=tuple(texts))

    def noise(self, device: str = "cpu", step: int = 0) -> SamplingNoise:
        """Build the noise of a step."""
        return self._step(step).noise(device)

    def _step(self, step: int) -> SamplingCase:
        rows = tuple(self.requests[i] for i in self.live(step))
        seed = derive_seed("step", self.seed, step)
        return SamplingCase(self.vocab_size, rows, self.explicit, self.dtype, self.layout, seed)


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
    **step: Any,
) -> WatermarkTrace:
    """Traces of marked and unmarked requests, each with a text of its own.

    Args:
        max_steps: Tokens that a request draws at most; it comes at any step.
        marked: Requests want the watermark; some of them if `None`.
        outputs: Lengths of outputs when requests come, and after how many tokens they repeat.
        step: As `sampling_cases` takes it. Any: of its arguments.

    Raises:
        TypeError, ValueError: As `sampling_cases`.
    """
    case, number = draw(sampling_cases(capabilities, **{"max_vocab_size": 129, **step})), st.integers
    flags, texts = (True, True, False) if marked is None else (marked,), list[WatermarkedText]()
    for row in case.requests:
        length, period = draw(st.sampled_from(outputs))
        about = vars(row) | {"output_length": length, "period": period, "is_marked": draw(st.sampled_from(flags))}
        begins = draw(number(0, max_steps - 1)) if texts else 0
        prompt, num_steps = draw(st.sampled_from(_PROMPTS)), draw(number(1, max_steps))
        texts.append(WatermarkedText(**about, prompt_length=prompt, begins=begins, num_steps=num_steps))
    width, share = draw(st.sampled_from((2, 1, 4, 6, 8, 6))), draw(st.sampled_from((0.5, 0.1, 0.9)))
    given = vars(case) | {"requests": tuple(texts)}
    return WatermarkTrace(**given, context_width=width, share=share, turns=draw(number(0, 2)))
