"""Recipes of one request under the logits-plan contract: words that become sampling parameters and texts.

A request is a set of *parameter kinds* (`PARAMETER_KINDS`). Numbers and texts follow from a seed, such that processors
often have work: bad words match the end of the text, with or without drafts; minima lie between the output and the
output with all drafts; thinking budgets are nearly spent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fairdraw.protocols import PLACEHOLDER_TOKEN_ID
from fairdraw.protocols._logits_plan import CustomLogitsProcessor, LogitsParams, LogitsRequest, RowOfRequest
from fairdraw.strategies._arguments import one_of
from fairdraw.strategies._recipe import Recipe
from fairdraw.strategies.rows import INVALID_KINDS, TARGET_KINDS, bulk_rng

if TYPE_CHECKING:
    from torch import Tensor


MIN_VOCAB_SIZE = 12
"""Below it, markers and ordinary tokens would not fit side by side."""
START, END = (1,), (2, 3)
"""Markers of thinking sections; ordinary texts consist of the ids after them, without the last one."""


@dataclass(frozen=True)
class _Affine:
    """A processor that commutes with none of the built-in ones, and depends on what its rows see."""

    name: str
    slope: float
    invariant: bool

    def is_argmax_invariant(self) -> bool:
        return self.invariant

    def wants(self, params: LogitsParams) -> bool:
        return self.name in params.custom

    def apply(
        self,
        logits: Tensor,  # [num_rows, vocab_size] float32
        rows: Sequence[RowOfRequest],
    ) -> Tensor:  # [num_rows, vocab_size] float32
        for seen in rows:
            logits[seen.row].mul_(self.slope).add_(0.5 + 0.25 * (sum(seen.token_ids) + 3 * len(seen.token_ids)))
        return logits


CUSTOM_PROCESSORS: tuple[CustomLogitsProcessor, ...] = (
    _Affine("custom", -0.5, invariant=False),
    _Affine("custom-random", 0.75, invariant=True),
)
"""The processors of every setup; a request uses those that its parameter kinds name."""


@dataclass(frozen=True)
class _Text:
    """The texts that parameters are fitted to."""

    prompt: list[int]
    output: list[int]
    drafts: list[int]
    vocab_size: int


_Fields = dict[str, Any]  # Any: fields of LogitsParams, one type each
_Maker = Callable[[_Text, np.random.Generator], _Fields]


def _some_ids(text: _Text, rng: np.random.Generator, most: int) -> list[int]:
    count = int(rng.integers(1, min(most, text.vocab_size) + 1))
    return [int(i) for i in rng.choice(text.vocab_size, size=count, replace=False)]


def _bad_words(text: _Text, rng: np.random.Generator) -> _Fields:
    """Words that match the end of the output, or of the output with some drafts; one that never matches; one of one
    id."""
    seen = [*text.output, *text.drafts]
    ends = rng.integers(len(text.output), len(seen) + 1, size=3)
    last = rng.integers(text.vocab_size, size=5)
    words = [[*seen[max(0, end - 1 - i) : end], int(last[i])] for i, end in enumerate(ends)]
    words.append([text.vocab_size - 1, int(last[3])])
    words = [word for word in words[int(rng.integers(3)) :] if PLACEHOLDER_TOKEN_ID not in word]
    return {"bad_words_token_ids": words + [[int(last[4])]] * int(rng.integers(2))}


def _min_tokens(text: _Text, rng: np.random.Generator) -> _Fields:
    least = len(text.output) + int(rng.integers(1, len(text.drafts) + 2))
    return {"min_tokens": least, "all_stop_token_ids": frozenset(_some_ids(text, rng, 3))}


def _penalties(text: _Text, rng: np.random.Generator) -> _Fields:
    presence, frequency = rng.choice([-0.75, 0.0, 0.3, 1.1], size=2)
    repetition = float(rng.choice([0.7, 1.3, 2.0]))
    return {
        "presence_penalty": float(presence),
        "frequency_penalty": float(frequency),
        "repetition_penalty": repetition,
    }


def _thinking(text: _Text, rng: np.random.Generator) -> _Fields:
    return {"thinking_token_budget": max(0, len(text.output) + int(rng.integers(-1, len(text.drafts) + 3)))}


_MAKERS: dict[str, _Maker] = {
    "allowed": lambda text, rng: {"allowed_token_ids": _some_ids(text, rng, 8)},
    "bad-words": _bad_words,
    "min-tokens": _min_tokens,
    "bias": lambda text, rng: {"logit_bias": {i: float(rng.normal() * 3) for i in _some_ids(text, rng, 4)}},
    "custom": lambda text, rng: {"custom": ("custom",)},
    "penalties": _penalties,
    "thinking": _thinking,
    "temperature": lambda text, rng: {"temperature": float(rng.choice([0.3, 0.7, 1.7]))},
    "min-p": lambda text, rng: {"min_p": float(rng.choice([0.05, 0.3, 1.0]))},
    "custom-random": lambda text, rng: {"custom": ("custom-random",)},
    "top-k": lambda text, rng: {"top_k": int(rng.integers(1, text.vocab_size))},
    "top-p": lambda text, rng: {"top_p": float(rng.choice([0.1, 0.6, 0.95]))},
}

_IDLE: dict[str, _Maker] = {
    "idle-bad-words": lambda text, rng: {"bad_words_token_ids": [[text.vocab_size - 1, 0], [0, 0, 0, 0]]},
    "idle-min-tokens": lambda text, rng: {"min_tokens": len(text.output), "all_stop_token_ids": frozenset({0})},
    "idle-stop-tokens": lambda text, rng: {"min_tokens": 99, "all_stop_token_ids": frozenset()},
    "idle-bias": lambda text, rng: {"logit_bias": {}},
    "idle-thinking": lambda text, rng: {"thinking_token_budget": 99},
    "idle-top-k": lambda text, rng: {"top_k": text.vocab_size + 5},
}

PARAMETER_KINDS = tuple(_MAKERS)
"""Parameters that give their processor work, in the order in which processors run."""

IDLE_KINDS = tuple(_IDLE)
"""Parameters that are set and change nothing in this step."""


@dataclass(frozen=True, repr=False)
class LogitsRequestRecipe(Recipe):
    """One request.

    Args:
        kinds: Its parameters (`PARAMETER_KINDS`, `IDLE_KINDS`).
        num_output: Tokens that it has when it joins.
        logits: Kind of its rows (`TARGET_KINDS`, `INVALID_KINDS`).
        has_placeholders: Its last draft is not known yet.

    Raises:
        ValueError: If a kind is unknown.
    """

    kinds: tuple[str, ...] = ()
    greedy: bool = False
    num_output: int = 2
    num_drafts: int = 0
    logits: str = "normal"
    has_placeholders: bool = False

    def __post_init__(self) -> None:
        for kind in self.kinds:
            one_of("LogitsRequestRecipe", "kinds", kind, (*PARAMETER_KINDS, *IDLE_KINDS))
        one_of("LogitsRequestRecipe", "logits", self.logits, {**TARGET_KINDS, **INVALID_KINDS})

    def request(self, vocab_size: int, seed: int) -> LogitsRequest:
        """Texts first, then parameters fitted to them."""
        rng = bulk_rng("logits request", seed)
        is_thinking = any(kind.endswith("thinking") for kind in self.kinds)
        prompt = [*ordinary_ids(rng, vocab_size, 3), *(START if is_thinking else ())]
        text = _Text(prompt, ordinary_ids(rng, vocab_size, self.num_output), self.drafts(rng, vocab_size), vocab_size)
        fields: _Fields = {"temperature": 0.0 if self.greedy else 1.0}
        for kind in self.kinds:
            made = {**_MAKERS, **_IDLE}[kind](text, bulk_rng(kind, seed))
            fields |= {name: (*fields.get(name, ()), *v) if name == "custom" else v for name, v in made.items()}
        if self.greedy:
            fields["temperature"] = 0.0
        return LogitsRequest(LogitsParams(**fields), text.prompt, text.output, text.drafts)

    def drafts(self, rng: np.random.Generator, vocab_size: int) -> list[int]:
        drafts = ordinary_ids(rng, vocab_size, self.num_drafts)
        return [*drafts[:-1], PLACEHOLDER_TOKEN_ID] if drafts and self.has_placeholders else drafts


def ordinary_ids(rng: np.random.Generator, vocab_size: int, count: int) -> list[int]:
    """A few ids, so that they recur; neither markers nor the last id."""
    return [int(i) for i in rng.integers(4, min(9, vocab_size - 1), size=count)]
