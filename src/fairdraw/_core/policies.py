"""Where several ways are right: an adapter declares its own as its attribute `policy`, beside its capabilities.

What is not declared is judged as vLLM. The docstring of a policy has a line for every way: a phrase, which the header
of a run shows, and what it means. `fairdraw explain FIELD`, the questions of `fairdraw init` and tables of the
manual are made of it.
"""

import inspect
import re
from dataclasses import dataclass, fields
from functools import cache
from typing import NamedTuple, TypeVar, get_args, get_type_hints


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
