"""Where several ways are right: an adapter declares its own as its attribute `policy`, beside its capabilities.

What is not declared is judged as vLLM. The docstring of a policy has a line for every way: a phrase, which the header
of a run shows, and what it means. `fairdraw explain FIELD`, the questions of `fairdraw init` and tables of the
manual are made of it.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Literal, NamedTuple, TypeVar, get_args, get_type_hints


class Choice(NamedTuple):
    """One field of a policy.

    Args:
        meaning: What it decides.
        ways: Way, as it is written in an adapter, to its phrase and what it means; the first is the default.
    """

    meaning: str
    ways: dict[str, str]


@dataclass(frozen=True)
class Policy:
    """Ways that are right, a field for each choice; the defaults are vLLM's.

    Raises:
        ValueError: If a field has an unknown way.
    """

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            value, known = getattr(self, name), get_args(hint) or (hint,)
            is_way = any(value == way if isinstance(way, str) else type(value) is way for way in known)
            if not is_way or (type(value) is int and value < 1):
                words = {int: "a number of tokens above 0", type(None): "None"}
                rule = " or ".join(words.get(way) or str(getattr(way, "__name__", way)) for way in known)
                raise ValueError(
                    f"{type(self).__name__}: {name}={value!r}, but it must be {rule}. See fairdraw explain {name}."
                )

    @classmethod
    @cache
    def choices(cls) -> dict[str, Choice]:
        """Return the choices by their fields, as the docstring explains them."""
        found: dict[str, Choice] = {}
        text = inspect.cleandoc(cls.__doc__ or "").partition("Args:\n")[2]
        for name, about in re.findall(r"^    (\w+): (.+(?:\n     .*)*)", text, re.MULTILINE):
            meaning, *ways = re.split(r"\n +\* ", about)
            pairs = (" ".join(way.split()).split(": ", 1) for way in ways)
            found[name] = Choice(" ".join(meaning.split()), {way.strip("`"): line for way, line in pairs})
        return found

    def phrases(self) -> list[str]:
        """Return the phrase of each way that is not the default."""
        found: list[str] = []
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Policy):
                found += value.phrases()
            elif value != f.default:
                lines = self.choices()[f.name].ways
                line = lines["64"].replace("64", str(value), 1) if type(value) is int else lines[f'"{value}"']
                found.append(line.partition(":")[0])
        return found

    def __str__(self) -> str:
        """Return the policy as the header of a run shows it."""
        return ", ".join(self.phrases()) or "as in vLLM"


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


@dataclass(frozen=True)
class ThinkingPolicy(Policy):
    """What a thinking budget does with an end marker that was begun, and with later sections.

    Args:
        begun_end: What becomes of an end marker that was begun, in its section, before the budget was spent.
            * `"restarted"`: begun end restarted: once the budget is spent, the whole marker is forced (vLLM V1,
              llama.cpp)
            * `"finished"`: begun end finished: once the budget is spent, the rest of the marker is forced (vLLM V2,
              SGLang)
            * `"uncounted"`: begun end uncounted: once the thoughts before it have spent the budget, the rest of the
              marker is forced; its own tokens spend nothing (TensorRT-LLM's pull request 18617)
        later_sections: What a section may spend that opens after the output has ended one, by force or not.
            * `"budgeted"`: later sections budgeted: each has the whole budget (vLLM, llama.cpp)
            * `"free"`: later sections free: they have no budget (SGLang, older llama.cpp)
            * `"shared"`: later sections share the budget: they have what is left of it, so that after an end that was
              forced the next is forced at once
    """

    begun_end: Literal["restarted", "finished", "uncounted"] = "restarted"
    later_sections: Literal["budgeted", "free", "shared"] = "budgeted"


@dataclass(frozen=True)
class LogitsPolicy(Policy):
    """What the processors of a logits plan see.

    Args:
        bad_words_see: Where a bad word may begin.
            * `"output"`: bad words begin in the output: one that the prompt begins may be completed (vLLM)
            * `"text"`: bad words begin anywhere: also in the prompt (transformers)
        penalties: How it penalises.
        thinking: How it keeps budgets.
    """

    bad_words_see: Literal["output", "text"] = "output"
    penalties: PenaltyPolicy = field(default_factory=PenaltyPolicy)
    thinking: ThinkingPolicy = field(default_factory=ThinkingPolicy)


POLICIES: dict[str, type[Policy]] = {
    "penalties": PenaltyPolicy,
    "thinking_budget": ThinkingPolicy,
    "logits_plan": LogitsPolicy,
}
"""Contract to its policy."""
_P = TypeVar("_P", bound=Policy)


def policy_of(subject: object, kind: type[_P]) -> _P:
    """Return what `subject` declares, or vLLM's policy.

    Raises:
        ValueError: If its attribute `policy` is something else.
    """
    declared = getattr(subject, "policy", None) or kind()
    if not isinstance(declared, kind):
        raise ValueError(f"policy: {declared!r}, but it must be a {kind.__name__}. Declare one, or none.")
    return declared


def declared_policy(subject: object, contract: str) -> Policy | None:
    """Return the policy of a sampler under `contract`; `None` if that contract has none.

    Raises:
        ValueError: If its attribute `policy` is something else.
    """
    kind = POLICIES.get(contract)
    return None if kind is None else policy_of(subject, kind)
