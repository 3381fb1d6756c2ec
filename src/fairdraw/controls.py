"""Planted faults, tried in the same run: a check that does not see its fault here proves nothing here."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairdraw.checks import Check, Profile
from fairdraw.failures import AdapterError, CheckFailure
from fairdraw.loading import all_checks
from fairdraw.protocols import rejection_sampler
from fairdraw.runner import DEFAULT_SEED, one_torch_thread

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairdraw.mutants.rejection import Mutant

__all__ = ["Control", "controls_for", "run_control"]

# Most faults are seen within 10 cases. The rest of the margin is for other versions of Hypothesis and NumPy.
_PROFILE = Profile("controls", 400, 400)


@dataclass(frozen=True)
class Control:
    """What became of one planted fault.

    Args:
        name: Of the planted fault.
        code: The check that has to catch it.
    """

    name: str
    code: str
    caught: bool
    seconds: float = 0.0


def controls_for(checks: Iterable[Check]) -> list[Mutant]:
    """The planted faults that one of `checks` has to catch."""
    codes = {check.code for check in checks}
    from fairdraw.mutants.rejection import MUTANTS

    return [mutant for mutant in MUTANTS if mutant.caught_by[0] in codes]


def run_control(mutant: Mutant) -> Control:
    """Try one planted fault against the check that names it best.

    Randomness:
        The cases of the default seed, whatever the run's own seed is: this asks whether the check can see here what it
        is known to see, and the answer must not depend on chance.
    """
    started = time.perf_counter()
    check = next(check for check in all_checks() if check.code == mutant.caught_by[0])
    caught = _catches(check, mutant)
    return Control(mutant.name, check.code, caught, round(time.perf_counter() - started, 3))


class _Caught(BaseException):
    """Leaves Hypothesis at once; an `Exception` would be shrunk, and a control needs no smallest example."""


def _catches(check: Check, mutant: Mutant) -> bool:
    """Whether `check` sees that a promise is broken, or that the answer is none; any other exception is no catch."""
    from fairdraw.oracles.rejection import verify

    def body(*arguments: Any) -> None:  # Any: those of the check's own body
        try:
            check.body(*arguments)
        except (CheckFailure, AdapterError):
            raise _Caught from None

    try:
        with one_torch_thread():
            dataclasses.replace(check, body=body).run(
                mutant.make(),
                profile=_PROFILE,
                seed=DEFAULT_SEED,
                # A differential compares with the specification here: no control depends on what is installed.
                reference=rejection_sampler(verify, name="oracle"),
            )
    except _Caught:
        return True
    except Exception:
        return False
    return False
