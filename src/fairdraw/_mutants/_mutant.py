"""What a mutant is, and how a faulty oracle becomes one."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairdraw.protocols import RejectionSampler, rejection_sampler

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairdraw._oracles.rejection import RejectionOracle

__all__ = ["Mutant", "as_mutant"]


@dataclass(frozen=True)
class Mutant:
    """A sampler with one mutant.

    Args:
        name: What it does wrong, in a few words.
        failure_report: How such a fault comes about, or what it does to the text.
        caught_by: Codes of checks that must catch it; the first names it best.
        make: Makes a fresh sampler (some faults keep state between calls).
        min_draws: A statistical check with fewer draws per distribution is not expected to see it.
    """

    name: str
    failure_report: str
    caught_by: tuple[str, ...]
    make: Callable[[], Any]  # Any: under whatever contract
    min_draws: int = 0

    def __str__(self) -> str:
        return self.name


def as_mutant(*caught_by: str) -> Callable[[type[RejectionOracle]], Mutant]:
    """Make a mutant of an oracle with one step overridden; its class name is the name, its docstring the
    failure_report.
    """

    def make_mutant(faulty: type[RejectionOracle]) -> Mutant:
        name = re.sub(r"(?<!^)(?=[A-Z])", " ", faulty.__name__).lower()

        def make() -> RejectionSampler:
            return rejection_sampler(faulty().verify, name=name)

        return Mutant(name, inspect.cleandoc(faulty.__doc__ or ""), caught_by, make)

    return make_mutant
