"""A sampler with at most one fault: right code with places in which a fault may strike."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from exam.conditions import Condition

if TYPE_CHECKING:
    from collections.abc import Callable


class Effect(NamedTuple):
    """What a fault does.

    Args:
        words: In a member's description; `{}` stands for the drawn size.
        pattern: A report that matches it names this effect.
        needs: Flags that a row must have for the effect to be seen; the place of the effect sees to it.
        ids: Whether the place knows ids: those of the vocabulary, of a draft or of a drawn token.
        sizes: From which the size is drawn.
        rare: Whether it may strike at random, in one row of many.
    """

    words: str
    pattern: str
    needs: tuple[str, ...] = ()
    ids: str = ""
    sizes: tuple[float, float] = (0, 1)
    rare: bool = False


@dataclass
class Fault:
    """One planted fault: under the condition, the effect.

    Args:
        rate: Share of the rows that it strikes where the condition holds.
    """

    effect: str
    condition: Condition
    size: float
    rate: float = 1.0
    coins: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))


class Lazy(dict[str, Any]):  # Any: see conditions.Values
    """Values of features, each computed when it is read first."""

    def __init__(self, makers: dict[str, Callable[[], Any]]) -> None:
        super().__init__()
        self.makers = makers

    def __missing__(self, name: str) -> Any:
        value = self[name] = self.makers[name]()
        return value

    def with_(self, **values: Any) -> Lazy:
        """Return the same features and some more."""
        more = Lazy({**self.makers, **{name: lambda value=value: value for name, value in values.items()}})
        more.update({name: value for name, value in self.items() if name not in values})
        return more

    def columns(self, width: int) -> Lazy:
        """Return the features of every row and id: those of rows stand in a column, ids in a row."""

        def column(name: str) -> Any:
            value = np.asarray(self[name])
            return value[:, None] if value.ndim else value

        makers = {name: lambda name=name: column(name) for name in self.makers}
        return Lazy({**makers, "token": lambda: np.arange(width)[None, :]})


class Planted:
    """The base of the exam's samplers: `hit` says in which rows a fault strikes."""

    device = "cpu"
    name = "examined"
    contract = ""

    def __init__(self, fault: Fault | None = None) -> None:
        self.fault = fault
        self.struck, self.seen = 0, 0
        """At how many rows the condition held at the fault's place, and of how many."""

    @property
    def size(self) -> float:
        assert self.fault is not None
        return self.fault.size

    def plants(self, effect: str) -> bool:
        """Whether its fault has this effect."""
        return self.fault is not None and self.fault.effect == effect

    def hit(self, effect: str, values: Any, rows: int | None = None) -> Any:
        """Return in which rows the effect strikes ([rows] bool; a bool without `rows`); `None` if it is not planted."""
        if self.fault is None or self.fault.effect != effect:
            return None if rows is not None else False
        found = np.asarray(self.fault.condition.holds(values))
        found = np.broadcast_to(found, (rows,)) if rows is not None and found.ndim < 2 else found
        if self.fault.rate < 1:
            found = found & (self.fault.coins.random(found.shape) < self.fault.rate)
        self.struck, self.seen = self.struck + int(found.sum()), self.seen + found.size
        return found if rows is not None else bool(found)
