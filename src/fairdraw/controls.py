"""Planted faults, tried in the same run: a check that does not see its fault here proves nothing here."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairdraw.checks import AnyCheck, Check, Profile
from fairdraw.contracts import CONTRACTS, contract_of, load_part
from fairdraw.failures import AdapterError, CheckFailure
from fairdraw.loading import all_checks
from fairdraw.runner import DEFAULT_SEED, one_torch_thread

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairdraw.mutants.rejection import Mutant
    from fairdraw.protocols import Capabilities, Subject

__all__ = ["Control", "controls_for", "is_control", "run_control"]

# Most faults are seen within 10 cases. The rest of the margin is for other versions of Hypothesis and NumPy.
_PROFILE = Profile("controls", 400, 400)


@dataclass(frozen=True)
class Control:
    """What became of one planted fault.

    Args:
        name: Of the planted fault.
        code: The check that has to catch it.
        distance: The total-variation distance at which a statistical check caught it.
    """

    name: str
    code: str
    caught: bool
    seconds: float = 0.0
    distance: float | None = None


def controls_for(checks: Iterable[AnyCheck], sampler: Subject, profile: Profile) -> list[Mutant]:
    """The planted faults that one of `checks` has to catch in this run."""
    named = {check.code: check for check in checks}
    contract = contract_of(sampler)
    planted = [mutant for path in (contract.mutants if contract else ()) for mutant in load_part(path)]
    best = [
        mutant
        for mutant in planted
        for check in [named.get(mutant.caught_by[0])]
        if check is not None and is_control(mutant, check, sampler, profile)
    ]
    return best + [_second_best(check, planted) for check in _unseen(named, best) if _caught_by(check, planted)]


def _unseen(named: dict[str, AnyCheck], best: list[Mutant]) -> list[AnyCheck]:
    """Properties that no planted fault of the run names first: they borrow one, so that each is seen failing."""
    seen = {mutant.caught_by[0] for mutant in best}
    return [check for code, check in named.items() if code not in seen and isinstance(check, Check)]


def _caught_by(check: AnyCheck, planted: list[Mutant]) -> list[Mutant]:
    return [mutant for mutant in planted if check.code in mutant.caught_by]


def _second_best(check: AnyCheck, planted: list[Mutant]) -> Mutant:
    """A planted fault that `check` has to catch, too, put to it."""
    return dataclasses.replace(_caught_by(check, planted)[0], caught_by=(check.code,))


def is_control(mutant: Mutant, check: AnyCheck, sampler: Subject, profile: Profile) -> bool:
    """Whether `check` has to catch `mutant` with as many draws as `sampler` is given.

    A fault too small for them is no control of this run; nor is one whose statistical check is closed.
    """
    if check.lens != "statistical":
        return True
    return check.why_not(sampler) is None and mutant.min_draws <= profile.draws_for(sampler.capabilities)


def run_control(mutant: Mutant, sampler: Subject, profile: Profile) -> Control:
    """Try one planted fault against the check that names it best.

    Args:
        sampler, profile: The run's own: a statistical check gets as many draws of the mutant as of the sampler.

    Randomness:
        The cases and draws of the default seed, whatever the run's own seed is: this asks whether the check can see
        here what it is known to see, and the answer must not depend on chance.
    """
    started = time.perf_counter()
    check = next(check for check in all_checks() if check.code == mutant.caught_by[0])
    if isinstance(check, Check):
        caught, distance = _catches(check, mutant), None
    else:
        caught, distance = _sees(check, mutant, sampler, profile)
    return Control(mutant.name, check.code, caught, round(time.perf_counter() - started, 3), distance)


def _sees(check: AnyCheck, mutant: Mutant, sampler: Subject, profile: Profile) -> tuple[bool, float | None]:
    """Whether a statistical check fails the mutant at this run's budget, and the distance that it found."""
    try:
        with one_torch_thread():
            check.run(_Paced(mutant.make(), sampler.capabilities.slow), profile=profile, seed=DEFAULT_SEED)
    except CheckFailure as failure:
        return True, failure.distance
    except Exception:
        return False, None
    return False, None


class _Paced:
    """A mutant, no faster than the sampler beside it: it gets no more draws than that one."""

    def __init__(self, planted: Subject, slow: bool) -> None:
        self._planted, self._slow = planted, slow

    @property
    def capabilities(self) -> Capabilities:
        return dataclasses.replace(self._planted.capabilities, slow=self._slow)

    def __getattr__(self, name: str) -> Any:  # Any: whatever the mutant has
        return getattr(self._planted, name)


class _Caught(BaseException):
    """Leaves Hypothesis at once; an `Exception` would be shrunk, and a control needs no smallest example."""


def _catches(check: Check, mutant: Mutant) -> bool:
    """Whether `check` sees that a promise is broken, or that the answer is none; any other exception is no catch."""

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
                reference=load_part(CONTRACTS[check.contract].right)(),
            )
    except _Caught:
        return True
    except Exception:
        return False
    return False
