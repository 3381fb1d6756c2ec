"""Recipes of one request under the logits-plan contract: words that become sampling parameters and texts.

A request is a set of *parameter kinds* (`PARAMETER_KINDS`), each with a value or without (`top-k:1`, `top-k`). Numbers
and texts follow from a seed, such that processors often have work: bad words match the end of the text, with or without
drafts; minima lie between the output and the output with all drafts; thinking budgets are nearly spent.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairdraw._core.tensor_types import LogitRows
from fairdraw.contracts import PLACEHOLDER_TOKEN_ID, CustomLogitsProcessor, LogitsParams, LogitsRequest, RowOfRequest
from fairdraw.strategies import _logits_values as values
from fairdraw.strategies._recipe import Recipe
from fairdraw.strategies.rows import bulk_rng

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

    def apply(self, logits: LogitRows, rows: Sequence[RowOfRequest]) -> LogitRows:
        for seen in rows:
            number = (sum(seen.token_ids) + 3 * len(seen.token_ids)) % 61
            logits[seen.row].mul_(self.slope).add_(0.5 + 0.25 * number)
        return logits


CUSTOM_PROCESSORS: tuple[CustomLogitsProcessor, ...] = (
    _Affine("custom", -0.5, invariant=False),
    _Affine("custom-random", 0.75, invariant=True),
)
"""The processors of every setup; a request uses those that its parameter kinds name."""


def _min_tokens(text: values.Text, rng: np.random.Generator) -> values.Fields:
    least = len(text.output) + int(rng.integers(1, len(text.drafts) + 2))
    return {"min_tokens": least, "all_stop_token_ids": frozenset(values.some_ids(text, rng, 3))}


def _penalties(text: values.Text, rng: np.random.Generator) -> values.Fields:
    presence, frequency = rng.choice([-0.75, 0.0, 0.3, 1.1], size=2)
    repetition = float(rng.choice([0.7, 1.3, 2.0]))
    return values.factors(float(presence), float(frequency), repetition)(text, rng)


def _thinking(text: values.Text, rng: np.random.Generator) -> values.Fields:
    return {"thinking_token_budget": max(0, len(text.output) + int(rng.integers(-1, len(text.drafts) + 3)))}


_MAKERS: dict[str, values.Maker] = {
    "allowed": lambda text, rng: {"allowed_token_ids": values.some_ids(text, rng, 8)},
    "bad-words": values.bad_words,
    "min-tokens": _min_tokens,
    "bias": lambda text, rng: {"logit_bias": {i: float(rng.normal() * 3) for i in values.some_ids(text, rng, 4)}},
    "custom": lambda text, rng: {"custom": ("custom",)},
    "penalties": _penalties,
    "thinking": _thinking,
    "temperature": lambda text, rng: {"temperature": float(rng.choice([0.3, 0.7, 1.7]))},
    "min-p": lambda text, rng: {"min_p": float(rng.choice([0.05, 0.3, 1.0]))},
    "custom-random": lambda text, rng: {"custom": ("custom-random",)},
    "top-k": lambda text, rng: {"top_k": int(rng.integers(1, max(2, text.vocab_size)))},
    "top-p": lambda text, rng: {"top_p": float(rng.choice([0.1, 0.6, 0.95]))},
}

_IDLE: dict[str, values.Maker] = {
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

PARAMETER_VALUES = {kind: tuple(named) for kind, named in values.VALUES.items()}
"""Named values of each parameter kind."""

INSIDE_VALUES = tuple(f"{kind}:{value}" for kind, named in values.INSIDE.items() for value in named)
"""Parameters with values just inside their range; they are beside `PARAMETER_VALUES`."""

_NAMED = {
    f"{kind}:{value}": maker
    for kinds in (values.VALUES, values.INSIDE)
    for kind, named in kinds.items()
    for value, maker in named.items()
}
_ALL_MAKERS: dict[str, values.Maker] = {**_MAKERS, **_IDLE, **_NAMED}


def base_kind(kind: str) -> str:
    """The parameter kind without its value."""
    return kind.partition(":")[0]


@dataclass(frozen=True, repr=False)
class LogitsRequestRecipe(Recipe):
    """One request.

    Args:
        kinds: Its parameters (`PARAMETER_KINDS`, `IDLE_KINDS`); `kind:value` for a value of `PARAMETER_VALUES`.
        num_output: Tokens that it has when it joins.
        logits: Kind of its rows (`ROW_KINDS`, `INVALID_ROW_KINDS`).
        has_placeholders: Its last drafts, from any one on, are not known yet.
        num_prompt: Tokens of its prompt.
        text: Which ids its texts have (`TEXTS`).
        is_late: The tokens of its last step are not known yet: the output ends with -1 for each.

    Raises:
        ValueError: If a kind is unknown.
    """

    kinds: tuple[str, ...] = ()
    greedy: bool = False
    num_output: int = 2
    num_drafts: int = 0
    logits: str = "normal"
    has_placeholders: bool = False
    num_prompt: int = 3
    text: str = "few"
    is_late: bool = False

    def __post_init__(self) -> None:
        rows = (*values.ROW_KINDS, *values.INVALID_ROW_KINDS)
        self._require_words(kinds=_ALL_MAKERS, logits=rows, text=values.TEXTS)

    @property
    def thinks(self) -> bool:
        """Whether its prompt opens a thinking section."""
        return any(base_kind(kind).endswith("thinking") for kind in self.kinds)

    def request(self, vocab_size: int, seed: int) -> LogitsRequest:
        """Texts first, then parameters fitted to them."""
        rng = bulk_rng("logits request", seed)
        prompt = [*values.text_of(self.text, rng, vocab_size, self.num_prompt), *(START if self.thinks else ())]
        output = values.text_of(self.text, rng, vocab_size, self.num_output)
        text = values.Text(prompt, output, self.drafts(rng, vocab_size), vocab_size)
        fields: values.Fields = {"temperature": 0.0 if self.greedy else 1.0}
        for kind in self.kinds:
            made = _ALL_MAKERS[kind](text, bulk_rng(kind, seed))
            fields |= {name: (*fields.get(name, ()), *v) if name == "custom" else v for name, v in made.items()}
        if self.greedy:
            fields["temperature"] = 0.0
        last = [PLACEHOLDER_TOKEN_ID] if self.is_late and output else output[-1:]
        return LogitsRequest(LogitsParams(**fields), text.prompt, [*output[:-1], *last], text.drafts)

    def drafts(self, rng: np.random.Generator, vocab_size: int, step: int = 0) -> list[int]:
        """Return the drafts of a step: in the first one as many as can be, in later ones another number."""
        drafts = values.text_of(self.text, rng, vocab_size, (self.num_drafts - step) % (self.num_drafts + 1))
        if not (drafts and self.has_placeholders):
            return drafts
        known = int(rng.integers(len(drafts)))
        return [*drafts[:known], *[PLACEHOLDER_TOKEN_ID] * (len(drafts) - known)]


def decisive_kind(kind: str) -> str:
    """The kind with the value that shows the order of processors, if it has one."""
    return f"{kind}:order" if "order" in PARAMETER_VALUES[kind] else kind
