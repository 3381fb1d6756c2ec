"""A sampler with at most one fault: correct code with places in which a fault may strike."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from exam.conditions import Condition, Feature

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


@dataclass(frozen=True)
class Effect:
    """What a fault does: a line of `faults.toml`, which says what its words mean."""

    words: str
    pattern: str
    needs: tuple[str, ...] = ()
    ids: str = ""
    sizes: tuple[float, float] = (0, 1)
    rare: bool = False


@cache
def catalogue(contract: str) -> tuple[list[Feature], dict[str, Effect]]:
    """Return the features and the effects of a contract."""
    tables = tomllib.loads(Path(__file__).with_name("faults.toml").read_text(encoding="utf-8"))
    lines = [line for group in tables["features"][contract] for line in tables["groups"][group].items()]
    features = [Feature(name, **line) for name, line in lines]
    return features, {name: Effect(**line) for name, line in tables["effects"][contract].items()}


@dataclass
class Fault:
    """One fault: under the condition, the effect.

    Args:
        rate: Share of the rows that it strikes where the condition holds.
    """

    effect: str
    condition: Condition
    size: float
    rate: float = 1.0
    coins: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))


def constants(values: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """Return what makes these values, for `Lazy`."""
    return {name: partial(values.__getitem__, name) for name in values}


class Lazy(dict[str, Any]):  # Any: a number, or an array that broadcasts against the rows
    """Values of features, each computed when it is read first."""

    def __init__(self, makers: dict[str, Callable[[], Any]]) -> None:
        super().__init__()
        self.makers = makers

    def __missing__(self, name: str) -> Any:
        value = self[name] = self.makers[name]()
        return value

    def with_(self, **values: Any) -> Lazy:
        """Return the same features and some more."""
        more = Lazy({**self.makers, **constants(values)})
        more.update({name: value for name, value in self.items() if name not in values})
        return more

    def columns(self, width: int) -> Lazy:
        """Return the features of every row and id: those of rows stand in a column, ids in a row."""

        def column(name: str) -> Any:
            value = np.asarray(self[name])
            return value[:, None] if value.ndim else value

        return Lazy(
            {**{name: partial(column, name) for name in self.makers}, "token": lambda: np.arange(width)[None, :]}
        )


class Examined:
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
        return self.fault.size if self.fault else 1.0

    @property
    def effect(self) -> str:
        return self.fault.effect if self.fault else ""

    def changed(self, changes: dict[str, Callable[[], Tensor]], values: Any, rows: Tensor) -> Tensor:
        """Return the rows; where the fault strikes, those of the change under its name."""
        if self.effect not in changes:
            return rows
        struck = torch.tensor(self.hit(self.effect, values, len(rows)))
        return torch.where(struck.reshape(-1, *[1] * (rows.ndim - 1)), changes[self.effect]().to(rows.dtype), rows)

    def ids_changed(self, effect: str, values: Any, rows: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the rows; where the fault strikes their ids, `change` of them."""
        if self.effect != effect:
            return rows
        struck = self.hit(effect, values.columns(rows.shape[1]), len(rows))
        return torch.where(torch.tensor(np.broadcast_to(struck, rows.shape)), change(rows), rows)

    def hit(self, effect: str, values: Any, rows: int | None = None) -> Any:
        """Return in which rows the effect strikes ([rows] bool; a bool without `rows`)."""
        if self.fault is None or self.fault.effect != effect:
            return False if rows is None else np.zeros(rows, bool)
        found = np.asarray(self.fault.condition.holds(values))
        found = np.broadcast_to(found, (rows,)) if rows is not None and found.ndim < 2 else found
        if self.fault.rate < 1:
            found = found & (self.fault.coins.random(found.shape) < self.fault.rate)
        self.struck, self.seen = self.struck + int(found.sum()), self.seen + found.size
        return bool(found) if rows is None else found
