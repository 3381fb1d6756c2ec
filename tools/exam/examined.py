"""Faults in steps of the specification: the samplers of the exam, whatever their contract.

A fault strikes where its condition holds. There a row's parameters are taken for other ones (`asks` of `faults.toml`),
or a step of the specification has another answer (`changed`).
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, replace
from functools import cache, partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from exam.conditions import Condition, Feature
from fairdraw.contracts import LOGIT_FILTERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

Params = TypeVar("Params")


@dataclass(frozen=True)
class Effect:
    """What a fault does: a line of `faults.toml`, which says what its words mean."""

    words: str
    pattern: str
    needs: tuple[str, ...] = ()
    ids: str = ""
    sizes: tuple[float, float] = (0, 1)
    rare: bool = False
    asks: Mapping[str, str] = field(default_factory=dict, hash=False)


@cache
def catalogue(contract: str) -> tuple[list[Feature], dict[str, Effect]]:
    """Return the features and the effects of a contract."""
    tables = tomllib.loads(Path(__file__).with_name("faults.toml").read_text(encoding="utf-8"))
    lines = [line for group in tables["features"][contract] for line in tables["groups"][group].items()]
    features = [Feature(name, **line) for name, line in lines]
    effects = {name: Effect(**line) for name, line in tables["effects"][contract].items()}
    if contract == "filters":
        features += [Feature(name, "request", f"the row has {name}", _pattern(name)) for name in LOGIT_FILTERS]
        effects |= {effect: line for name in LOGIT_FILTERS for effect, line in _of_filter(name).items()}
    return features, effects


def _pattern(name: str) -> str:
    return f"{name.replace('_', '.?')}|every two|two filters"


def _of_filter(name: str) -> dict[str, Effect]:
    """Return the effects of one filter, which follow from its record."""
    record, pattern = LOGIT_FILTERS[name], f"filter|keep|cut|stay|{name.replace('_', '.?')}"
    found = {f"no {name}": Effect(f"{name} is not applied", pattern, (name,), rare=True, asks={record.switch: "off"})}
    words, sizes = f"{record.switch} is multiplied by {{:.2f}}", (0.7, 0.9)
    if isinstance(record.usual[0][record.switch], float):
        found[f"off {name}"] = Effect(words, pattern, (name,), sizes=sizes, asks={record.switch: "scaled"})
    return found


def otherwise(effect: Effect, name: str, value: Any, off: Any, size: float) -> Any:  # Any: a parameter, or a column
    """Return what a parameter is taken for."""
    match effect.asks[name]:
        case "off":
            return off
        case "scaled":
            return value * size
        case "twice":
            return {token: 2 * bias for token, bias in (value or {}).items()}
        case "fewer":
            return max(0, value - 1)
    return value + 1


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


class Lazy(dict[str, Any]):  # Any: a number, or an array that broadcasts against the rows
    """Values of features; those that are functions are computed when they are read first."""

    def __init__(self, makers: Mapping[str, Any]) -> None:
        super().__init__()
        self.makers = dict(makers)

    def __missing__(self, name: str) -> Any:
        value = self.makers[name]
        self[name] = value = value() if callable(value) else value
        return value

    def with_(self, **values: Any) -> Lazy:
        """Return the same features and some more."""
        return Lazy({**{name: partial(self.__getitem__, name) for name in self.makers}, **values})

    def at(self, rows: Any) -> Lazy:  # Any: of indices
        """Return the features of some rows."""

        def picked(name: str) -> Any:
            value = np.asarray(self[name])
            return value[rows] if value.ndim else value

        return Lazy({name: partial(picked, name) for name in self.makers})

    def columns(self, width: int) -> Lazy:
        """Return the features of every row and id: those of rows stand in a column, ids in a row."""
        return Lazy({**self.at((slice(None), None)).makers, "token": np.arange(width)[None, :]})


class Examined:
    """The base of the exam's samplers: `hit` says in which rows a fault strikes."""

    device = "cpu"
    name = "examined"
    contract = ""
    sees_needs = False
    """Whether a fault strikes only rows that have what its effect needs; other samplers see to it themselves."""

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

    @property
    def asks(self) -> Effect | None:
        """The effect, if it takes parameters for other ones."""
        found = catalogue(self.contract)[1][self.effect] if self.fault else None
        return found if found and found.asks else None

    def asked(self, params: Params, values: Any) -> Params:  # Any: features of the row
        """Return what the parameters of a row are taken for."""
        effect = self.asks
        if effect is None or not all(values[name] for name in effect.needs) or not self.hit(self.effect, values):
            return params
        fields = type(params).__dataclass_fields__  # type: ignore[attr-defined]
        given = {name: getattr(params, name) for name in effect.asks}
        known = {name: value for name, value in given.items() if value is not None}
        changes = {n: otherwise(effect, n, value, fields[n].default, self.size) for n, value in known.items()}
        return replace(params, **changes)  # type: ignore[type-var]

    def changed(self, changes: Mapping[str, Callable[[], Any]], values: Any, rows: Any) -> Any:  # Any: tensor or array
        """Return the rows; where the fault strikes, those of the change under its name."""
        if self.effect not in changes:
            return rows
        struck = self.hit(self.effect, values, len(rows)).reshape(-1, *[1] * (rows.ndim - 1))
        if isinstance(rows, np.ndarray):
            return np.where(struck, changes[self.effect](), rows).astype(rows.dtype)
        return torch.where(torch.tensor(struck), changes[self.effect]().to(rows.dtype), rows)

    def ids_changed(self, effect: str, values: Any, rows: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the rows; where the fault strikes their ids, `change` of them."""
        if self.effect != effect:
            return rows
        struck = self.hit(effect, values.columns(rows.shape[1]), len(rows))
        return torch.where(torch.tensor(np.broadcast_to(struck, rows.shape)), change(rows), rows)

    def needed(self, values: Any) -> Any:  # Any: features; a bool, or an array of bool
        """Whether the effect has its place, for each row of the values."""
        needs = catalogue(self.contract)[1][self.effect].needs if self.effect else ()
        return reduce(np.logical_and, (values[name] for name in needs if name in values.makers), np.True_)

    def hit(self, effect: str, values: Any, rows: int | None = None) -> Any:
        """Return in which rows the effect strikes ([rows] bool; a bool without `rows`)."""
        if self.fault is None or self.fault.effect != effect:
            return False if rows is None else np.zeros(rows, bool)
        found = np.asarray(self.fault.condition.holds(values))
        found = found & self.needed(values) if self.sees_needs else found
        found = np.broadcast_to(found, (rows,)) if rows is not None and found.ndim < 2 else found
        if self.fault.rate < 1:
            found = found & (self.fault.coins.random(found.shape) < self.fault.rate)
        self.struck, self.seen = self.struck + int(found.sum()), self.seen + found.size
        return bool(found) if rows is None else found
