"""How a faulty oracle of the sampling contract becomes a mutant."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

from fairdraw._mutants._mutant import Mutant
from fairdraw.protocols import Capability, FilterPolicy, FunctionTokenSampler, token_sampler

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairdraw._oracles.sampling import SamplingOracle

__all__ = ["GENERATORS", "as_sampler", "mutant_sampler"]

GENERATORS: dict[str, str] = {Capability.COUNTER_NOISE.value: "draws from torch generators, which advance"}


def as_sampler(
    oracle: SamplingOracle, name: str, unsupported: dict[str, str], filters: FilterPolicy | None = None
) -> FunctionTokenSampler:
    """An oracle, or one with a step overridden, as a sampler and drafter."""
    return token_sampler(oracle.sample, drafting=oracle.draft, name=name, unsupported=unsupported, filters=filters)


def mutant_sampler(
    *caught_by: str, unsupported: dict[str, str] | None = None
) -> Callable[[type[SamplingOracle]], Mutant]:
    """Make a mutant of an oracle with one step overridden; its class name is the name, its docstring the
    failure_report.

    Args:
        unsupported: What it does not support; an oracle draws from torch generators.
    """

    def make_mutant(faulty: type[SamplingOracle]) -> Mutant:
        name = re.sub(r"(?<!^)(?=[A-Z])", " ", faulty.__name__).lower()

        def make() -> FunctionTokenSampler:
            return as_sampler(faulty(), name, GENERATORS if unsupported is None else unsupported)

        return Mutant(name, inspect.cleandoc(faulty.__doc__ or ""), caught_by, make)

    return make_mutant
