"""The table of built-in samplers, `samplers.toml`, as objects."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from fairdraw.protocols import Capabilities

Reasons = Mapping[str, Sequence[str]]
"""Reason to the capabilities that are unsupported for it."""


class UnusableRelease(Exception):
    """A package is installed, but not in a release that the adapter can call.

    Args:
        rule: What is missing, with the release: `vLLM 0.16.0 has no ...`.
        remedy: What to do.
    """

    def __init__(self, rule: str, remedy: str) -> None:
        super().__init__(f"{rule}. {remedy}.")
        self.rule, self.remedy = rule, remedy


@dataclass(frozen=True)
class BuiltIn:
    """One built-in sampler; the head of the file describes the fields."""

    name: str
    factory: str
    note: str
    unsupported: Reasons = field(default_factory=dict)
    slow: bool = False
    host: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)  # Any: one type each

    def capabilities(self, more: Reasons | None = None, *, slow: bool = False) -> Capabilities:
        """Those of the row, without what is unsupported for the reasons in `more`."""
        reasons = {**self.unsupported, **(more or {})}
        unsupported: Any = {
            word: reason for reason, words in reasons.items() for word in words
        }  # Any: words become members
        return Capabilities(unsupported, self.slow or slow)


def _read() -> dict[str, BuiltIn]:
    rows = tomllib.loads(files("fairdraw._adapters").joinpath("samplers.toml").read_text(encoding="utf-8"))
    return {name: BuiltIn(name, **row) for name, row in rows.items()}


BUILT_IN = _read()
"""Every built-in sampler by its name."""

ALIASES = {name.partition("/")[0]: name for name in BUILT_IN if name.endswith("/torch")}
"""Contract to the sampler that its name alone stands for."""
