"""Which check catches which mutant: the two-way table behind "no check is vacuous"."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fairdraw._core.checks import Check, Profile
from fairdraw._core.failures import CheckFailure
from fairdraw._oracles.rejection import verify
from fairdraw.protocols import rejection_sampler

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairdraw._mutants._mutant import Mutant
    from fairdraw.protocols import RejectionSampler
    from fairdraw.strategies import RejectionCase

__all__ = ["catches", "caught_table", "drawn_cases"]

_RIGHT = rejection_sampler(verify, name="oracle")
_ANYBODY = rejection_sampler(verify, name="a sampler that takes everything")


@lru_cache(maxsize=256)
def drawn_cases(check: Check, examples: int, seed: int = 0) -> tuple[RejectionCase, ...]:
    """The cases that `check.run` tries on a sampler that does not support nothing. Drawn once, they serve every
    mutant.
    """
    drawn: list[RejectionCase] = []

    def remember(_: RejectionSampler, case: RejectionCase, *reference: Any) -> None:  # Any: of a differential, unused
        drawn.append(case)

    whole = Profile("table", round(examples / check.weight), examples)
    dataclasses.replace(check, body=remember).run(_ANYBODY, profile=whole, seed=seed, reference=_RIGHT)
    return tuple(drawn)


def catches(check: Check, sampler: RejectionSampler, cases: Iterable[RejectionCase]) -> bool:
    """Whether one of `cases` shows a broken promise. An exception is no merit of a check.

    A differential compares with the oracle, so that the table does not depend on what is installed.
    """
    for case in cases:
        try:
            check.on_case(sampler, case, _RIGHT)
        except CheckFailure:
            return True
        except Exception:
            return False
    return False


def caught_table(
    checks: Iterable[Check], mutants: Iterable[Mutant], *, examples: int = 20, seed: int = 0
) -> dict[str, tuple[str, ...]]:
    """For each mutant the codes of the checks that catch it within `examples` cases, in the order of `checks`.

    Nothing is shrunk, and every check stops at the first case that shows the fault.
    """
    listed = tuple(checks)
    return {
        mutant.name: tuple(c.code for c in listed if catches(c, mutant.make(), drawn_cases(c, examples, seed)))
        for mutant in mutants
    }
