"""What all recipes share: they print as the shortest code that builds the same value.

Hypothesis prints the fields of a dataclass and ignores its repr, unless there is a `_repr_pretty_`.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Collection
from dataclasses import fields
from typing import Any, ClassVar, Self, get_args, get_type_hints

from fairdraw.strategies._arguments import one_of

DTYPES: tuple[str, ...] = ("float32", "bfloat16", "float16")
"""Type of the target logits."""

LAYOUTS: tuple[str, ...] = ("contiguous", "transposed", "sliced", "huge-stride")
"""How target logits lie in memory: in order, column by column, inside wider rows, in rows so far apart that the later
half of them begins beyond 2**31 elements (memory that is reserved, and never touched)."""


class PrintsAsCode:
    """Hypothesis prints the repr, which is code, instead of the fields, which are tensors."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # Any: Hypothesis' or IPython's printer
        printer.text(repr(self))


class Recipe:
    """A dataclass that prints without the fields that have their default."""

    others: ClassVar[tuple[type[Recipe], ...]] = ()
    """What `from_json` makes of data that has other fields, or that names it: another kind of case, or a trace."""
    tag: ClassVar[str] = ""
    """Where `to_json` writes the name of the class; empty if its fields tell it from `others`."""

    def replace(self, **changes: Any) -> Self:  # Any: one field each, checked by the constructor
        """A copy with some fields replaced."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]  # every user of this mixin is a dataclass

    def to_json(self) -> dict[str, Any]:  # Any: JSON
        """Plain data for a crash file."""
        plain = {f.name: _to_json(getattr(self, f.name)) for f in fields(self)}  # type: ignore[arg-type]
        return {self.tag: type(self).__name__, **plain} if self.tag else plain

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Any:  # Any: JSON; a recipe of this class, or one of `others`
        """Return the recipe that `to_json` described.

        Raises:
            TypeError: If a field is missing or unknown.
            ValueError: If a value is invalid, or the class unknown.
        """
        if not cls.tag:
            known = (one for one in (cls, *cls.others) if data.keys() <= get_type_hints(one).keys())
            return _built(next(known, cls), data)
        kinds = {one.__name__: one for one in cls.others}
        one_of(cls.__name__, cls.tag, data.get(cls.tag), kinds)
        return _built(kinds[data[cls.tag]], {name: value for name, value in data.items() if name != cls.tag})

    def _index_integers(self) -> None:
        """Make plain integers of NumPy's, and refuse what is none."""
        for f in fields(self):  # type: ignore[arg-type]  # every user of this mixin is a dataclass
            if f.type == "int":
                object.__setattr__(self, f.name, operator.index(getattr(self, f.name)))

    def _require_words(self, **known: Collection[str]) -> None:
        """Refuse a field whose word, or one of whose words, is not among those `known`."""
        for name, words in known.items():
            value = getattr(self, name)
            for word in value if isinstance(value, tuple) else (value,):
                one_of(type(self).__name__, name, word, words)

    def _shown(self) -> list[tuple[str, Any]]:  # Any: a field's value
        return [
            (f.name, getattr(self, f.name))
            for f in fields(self)  # type: ignore[arg-type]  # every user of this mixin is a dataclass
            if f.default is dataclasses.MISSING or getattr(self, f.name) != f.default
        ]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={_code(value)}' for name, value in self._shown())})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # Any: Hypothesis' or IPython's printer
        """The repr, broken into lines where it is long."""
        with printer.group(4, f"{type(self).__name__}(", ")"):
            for place, (name, value) in enumerate(self._shown()):
                if place:
                    printer.text(",")
                    printer.breakable()
                printer.text(f"{name}=")
                if isinstance(value, tuple) and len(value) > _FEW:
                    printer.text(_code(value))
                else:
                    printer.pretty(value)


def _to_json(value: Any) -> Any:  # Any: a field's value, and JSON
    if isinstance(value, tuple):
        return tuple(map(_to_json, value))
    if isinstance(value, Recipe):
        return value.to_json()
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value  # type: ignore[arg-type]


def _built(kind: Any, data: dict[str, Any]) -> Any:  # Any: a dataclass, JSON, and a value of that class
    hints = get_type_hints(kind)
    return kind(**{name: _of_json(one, hints.get(name)) for name, one in data.items()})


def _of_json(value: Any, kind: Any) -> Any:  # Any: JSON, a type, and a value of that type
    """Return lists as tuples, and dictionaries as the dataclasses that the type says."""
    if isinstance(value, dict):
        return kind.from_json(value) if hasattr(kind, "from_json") else _built(kind, value)
    if isinstance(value, list):
        return tuple(_of_json(one, next(iter(get_args(kind)), None)) for one in value)
    return value


_FEW = 8
"""Longer tuples print their repetitions as products."""

_LONGEST_PERIOD = 16


def _code(value: Any) -> str:  # Any: a field's value
    """Its repr; what is repeated in a long tuple is written once, as `*(one,) * 128`."""
    if not isinstance(value, tuple) or len(value) <= _FEW:
        return repr(value)
    parts, start = [], 0
    while start < len(value):
        period, length = _longest_repetition(value, start)
        names = ", ".join(map(repr, value[start : start + period]))
        repeated = f"*({names}{',' if period == 1 else ''}) * {length // period}"
        parts.append(repeated if length > period else names)
        start += length
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def _longest_repetition(value: tuple[Any, ...], start: int) -> tuple[int, int]:  # Any: the items of a field
    """The period, at most 16, that repeats furthest from `start`, and the length of its whole periods."""
    best = (1, 1)
    for period in range(1, min(_LONGEST_PERIOD, len(value) - start) + 1):
        end = start + period
        while end < len(value) and value[end] == value[end - period]:
            end += 1
        length = (end - start) // period * period
        if length > period and length > best[1]:
            best = (period, length)
    return best


class BatchRecipe(Recipe):
    """A recipe of a batch of logits and its noise."""

    vocab_size: int
    requests: tuple[Any, ...]
    dtype: str = "float32"
    layout: str = "contiguous"

    def build(self) -> None:
        """Build everything once; raises what a damaged recipe raises."""
        for part in ("batch", "noise"):
            getattr(self, part, lambda: None)()

    def _check(self, request: str) -> None:
        """Refuse words that are unknown, and sizes of 0; `request` is code that makes one."""
        self._index_integers()
        name = type(self).__name__
        self._require_words(dtype=DTYPES, layout=LAYOUTS)
        if self.vocab_size < 1:
            raise ValueError(f"{name}: vocab_size={self.vocab_size}, but it must be at least 1. Use 1.")
        if not self.requests:
            raise ValueError(f"{name}: requests=(), but there must be one. Use ({request},).")
