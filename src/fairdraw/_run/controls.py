"""Mutation controls: known wrong samplers, run on the checks that must catch them, in the same run.

A mutant is run as the sampler under test is: with the run's profile, seed and time budget, at that sampler's speed, on
the cases that its capabilities allow. So the number of mutants caught is a number of faults that *this* run could have
found.

* Checks of serving traces try a mutant with the traces of `smoke`, whatever the profile: all that are found at `ci` are
  found there (the same record), and whole traces of `ci` for each mutant would take longer than the run.
* Mutants that are not tried are named with the reason (`Untried`), never left out.
* A mutant that this run misses is *weak* if its check catches it with the proven numbers: profile `ci`, a fast sampler
  that supports everything, and the seed of the release. With those every mutant is caught (the manual's page of
  mutants, from the record of `tools/record.py mutants`). A weak control is reported and does not make a run red: a
  small profile, or a sampler with few capabilities, finds less.
* A mutant that is missed with the proven numbers, too, means that its check does not work here: something that is
  installed is broken. That is red, with any profile and any seed.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from fairdraw._core.checks import PROFILES, AnyCheck, Check, OutOfTime, Profile
from fairdraw._core.contracts import CONTRACTS, load_part
from fairdraw._core.failures import AdapterError, CapabilityUnsupported, CheckFailure, Inconclusive, raised_by
from fairdraw._core.isolation import suite_state
from fairdraw._core.seeds import DEFAULT_SEED
from fairdraw._core.wrapping import Limited
from fairdraw._run.loading import all_checks
from fairdraw._run.runner import Session
from fairdraw.contracts import AnySampler, Capabilities

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairdraw._mutants._mutant import Mutant


class Untried(StrEnum):
    """Why a mutant was not tried. The report reads "N not tried, REASON"."""

    TOO_SMALL = "below this run's resolution"
    SKIPPED = "shown only with what this sampler does not support"
    OUT_OF_TIME = "the time budget ended"
    LOST = "its process was lost"


@dataclass(frozen=True)
class Control:
    """The result of one mutant.

    Args:
        name: Of the mutant.
        code: The check that must catch it.
        distance: The total-variation distance at which a statistical check caught it.
        contract: Of the mutant and the check.
        weak: Missed by this run, but caught with the proven numbers: reported, not red.
        untried: Why it was not tried, a word of `Untried`; empty if it was.
        detail: More about that; of a missed one that raised, what it raised.
    """

    name: str
    code: str
    caught: bool
    seconds: float = 0.0
    distance: float | None = None
    contract: str = ""
    weak: bool = False
    untried: str = ""
    detail: str = ""

    @property
    def is_missed(self) -> bool:
        """Whether it was tried and not caught."""
        return not (self.caught or self.untried)

    @property
    def is_blind(self) -> bool:
        """Whether its check misses it with the proven numbers, too, which makes the run red."""
        return self.is_missed and not self.weak


@dataclass(frozen=True)
class Planned:
    """A mutant and the check that must catch it in this run.

    Args:
        untried: Why it is not to be tried; empty if it is.
        detail: More about that.
    """

    mutant: Mutant
    check: AnyCheck
    untried: str = ""
    detail: str = ""

    def control(self, caught: bool = False, **fields: Any) -> Control:  # Any: fields of Control
        """Its result."""
        return Control(self.mutant.name, self.check.code, caught, contract=self.check.contract, **fields)


# -- which mutants, on which checks ---------------------------------------------------------------------------


def mutants_for(contract: str) -> list[Mutant]:
    """The mutants of a contract. Those at the end are repeated for checks that no mutant names first.

    So every property has a mutant that it must catch.
    """
    mutants: list[Mutant] = [mutant for path in CONTRACTS[contract].mutants for mutant in load_part(path)]
    first = {mutant.caught_by[0] for mutant in mutants}
    others = [check for check in all_checks(contract=contract) if isinstance(check, Check) and check.code not in first]
    found = [(check, next((m for m in mutants if check.code in m.caught_by), None)) for check in others]
    return mutants + [dataclasses.replace(m, caught_by=(check.code,)) for check, m in found if m is not None]


def property_mutants() -> list[Mutant]:
    """The mutants of every contract that a property must catch."""
    codes = {check.code for check in all_checks("properties")}
    return [mutant for contract in CONTRACTS for mutant in mutants_for(contract) if mutant.caught_by[0] in codes]


def mutants_of(checks: Iterable[AnyCheck]) -> list[Mutant]:
    """The mutants that one of `checks`, all of one contract, must catch."""
    codes = {check.code: check.contract for check in checks}
    contract = next(iter(codes.values()), None)
    mutants = [] if contract is None else mutants_for(contract)
    return [mutant for mutant in mutants if mutant.caught_by[0] in codes]


def plan_control(mutant: Mutant, checks: Iterable[AnyCheck], sampler: AnySampler, session: Session) -> Planned:
    """Which of `checks` must catch `mutant` in this run, or why none must.

    It is the first that the mutant names; if that one is skipped for `sampler`, or cannot show the mutant without what
    the sampler does not support, the next that can.
    """
    named = {check.code: check for check in checks}
    open_checks, skipped = [], {}
    for code in mutant.caught_by:
        if code in named:
            hidden = None if named[code].suite == "statistical" else sampler.capabilities.why_unsupported(mutant.needs)
            skipped[code] = named[code].why_not(sampler, session.reference) or hidden
            open_checks += [named[code]] if skipped[code] is None else []
    if not open_checks:
        first = named[mutant.caught_by[0]]
        return Planned(mutant, first, Untried.SKIPPED, skipped[first.code] or "")
    check = open_checks[0]
    if check.suite == "statistical" and mutant.min_draws > session.profile.draws_for(sampler.capabilities):
        return Planned(mutant, check, Untried.TOO_SMALL, f"takes {mutant.min_draws} draws")
    return Planned(mutant, check)


# -- trying one -----------------------------------------------------------------------------------------------------


def run_control(planned: Planned, sampler: AnySampler, session: Session) -> Control:
    """Try one mutant as the run tries `sampler`: the same profile, seed, speed and capabilities.

    Randomness:
        The cases and draws follow from the run's seed. If they miss the mutant, the seed of the
        release decides whether the check is blind; see the module.
    """
    if planned.untried:
        return planned.control(untried=planned.untried, detail=planned.detail)
    if session.out_of_time():
        return planned.control(untried=Untried.OUT_OF_TIME)
    started = time.perf_counter()
    check, mutant = planned.check, planned.mutant
    asked = as_asked(mutant.make(), sampler)
    if check.why_not(asked, _reference(check)) is not None:
        # Together they support too little, for example one seeded and the other explicit noise.
        return planned.control(untried=Untried.SKIPPED, detail="the mutant and the sampler support different things")
    try:
        profile = PROFILES["smoke"].scaled(session.profile.scale) if check.plays_traces else session.profile
        caught, distance, raised = sees(check, asked, profile, session.seed, session)
    except Inconclusive:
        return planned.control(untried=Untried.OUT_OF_TIME)
    except CapabilityUnsupported as reason:  # of this machine: the check was skipped for the sampler, too
        return planned.control(untried=Untried.SKIPPED, detail=str(reason))
    weak = not caught and _is_weak(planned, sampler, session)
    seconds = round(time.perf_counter() - started, 3)
    return planned.control(caught, seconds=seconds, distance=distance, weak=weak, detail=raised)


def as_asked(mutant: AnySampler, sampler: AnySampler) -> AnySampler:
    """The mutant, as slow as the sampler under test, and without what that sampler does not support."""
    beside = sampler.capabilities
    return Limited(mutant, Capabilities({**beside.unsupported, **mutant.capabilities.unsupported}, beside.slow))


def sees(
    check: AnyCheck, wrong: AnySampler, profile: Profile, seed: int, session: Session | None = None
) -> tuple[bool, float | None, str]:
    """Whether `check` catches `wrong`, the distance that a statistical check found, and what `wrong` raised.

    A mutant that raises in place of an answer is missed: no check judged it. Nothing is shrunk.

    Args:
        session: Ends with its time budget; `None` for no budget.

    Raises:
        CapabilityUnsupported: If the check cannot be run here.
        Inconclusive: If time is out.
    """
    out_of_time: OutOfTime = session.out_of_time if session is not None else lambda: False
    stopping = dataclasses.replace(check, body=_raising_caught(check)) if isinstance(check, Check) else check
    try:
        with suite_state(wrong):
            stopping.run(wrong, profile=profile, seed=seed, reference=_reference(check), out_of_time=out_of_time)
    except _Caught:
        return True, None, ""
    except CheckFailure as failure:
        return True, failure.distance, ""
    except Inconclusive:
        if out_of_time():
            raise
    except CapabilityUnsupported as reason:
        if raised_by(reason) is None:
            raise
    except Exception as error:
        return False, None, f"as it raised {type(error.__cause__ or error).__name__}"
    return False, None, ""


_RELEASE = Session()
"""The proven numbers: profile `ci`, the seed of the release."""


def _is_weak(planned: Planned, sampler: AnySampler, session: Session) -> bool:
    """Whether a mutant that was missed is caught with the proven numbers; assumed if there is no time to try."""
    if _is_proven(planned.check, sampler, session):
        return False
    try:
        caught = sees(planned.check, planned.mutant.make(), _proven(planned.mutant), DEFAULT_SEED, session)[0]
    except (CapabilityUnsupported, Inconclusive):
        return True
    return caught or session.out_of_time()


def _proven(mutant: Mutant) -> Profile:
    """The numbers with which every mutant is caught; some need more draws than `ci` has."""
    numbers = _RELEASE.profile
    draws = max(numbers.draws, mutant.min_draws)
    return Profile("proven", numbers.examples, numbers.examples, draws, draws)


def _is_proven(check: AnyCheck, sampler: AnySampler, session: Session) -> bool:
    """Whether the run's own numbers are at least the proven ones, so that a miss needs no second run."""
    can, least, now = sampler.capabilities, _RELEASE.profile, session.profile
    cases, draws = now.examples_for(can, 1.0) >= least.examples, now.draws_for(can) >= least.draws
    return (cases if isinstance(check, Check) else draws) and session.seed == DEFAULT_SEED and not can.unsupported


def _reference(check: AnyCheck) -> AnySampler | None:
    """The specification: results of controls do not depend on the reference sampler that is installed."""
    reference: AnySampler | None = load_part(CONTRACTS[check.contract].right)() if check.differential else None
    return reference


class _Caught(BaseException):
    """Leaves Hypothesis at once; an `Exception` would be shrunk, and a control needs no smallest example."""


def _raising_caught(check: Check) -> Any:  # Any: a body of the check's kind
    """The check's body. A failure or a malformed output ends the search; another exception does not count as caught."""

    def body(*arguments: Any) -> None:  # Any: those of the check's own body
        try:
            check.body(*arguments)
        except (CheckFailure, AdapterError):
            raise _Caught from None

    return body


# -- the report -------------------------------------------------------------------------------------

_MOST_NAMES = 8
"""In a line of text; files have all names."""


def controls_lines(controls: Sequence[Control]) -> list[str]:
    """The mutants of a run, per contract: caught, missed and not tried, as text."""
    if not controls:
        return ["mutation controls: none in this run"]
    contracts = dict.fromkeys(control.contract for control in controls)
    return [line for name in contracts for line in _lines_of(name, [c for c in controls if c.contract == name])]


def _lines_of(contract: str, controls: Sequence[Control]) -> list[str]:
    tried = [control for control in controls if not control.untried]
    lines = [_count_line(contract, tried)] if tried else [_heading(contract) + f"none of {len(controls)} tried"]
    if weak := [control for control in tried if control.is_missed and control.weak]:
        lines.append(f"  {len(weak)} not shown, as this run or the sampler has too little to show them: {_names(weak)}")
    for why in Untried:
        if untried := [control for control in controls if control.untried == why]:
            lines.append(f"  {len(untried)} not tried, {why}: {_names(untried)}")
    return lines + [f"  {blindness(control)}" for control in tried if control.is_blind]


def blindness(control: Control) -> str:
    """Return what a mutant shows that a check here misses. The checks are at fault then, not the sampler."""
    return f"blind check: {control.code} does not catch the mutant {control.name!r} {control.detail}".rstrip()


def _heading(contract: str) -> str:
    return f"mutation controls ({contract}): " if contract else "mutation controls: "


def _count_line(contract: str, tried: Sequence[Control]) -> str:
    caught = [control for control in tried if control.caught]
    distances = [control.distance for control in caught if control.distance is not None]
    smallest = f", smallest TV caught {min(distances):.2g}" if distances else ""
    seconds = sum(control.seconds for control in tried)
    return f"{_heading(contract)}{len(caught)}/{len(tried)} caught at this run's numbers in {seconds:.1f} s{smallest}"


def _names(controls: Sequence[Control]) -> str:
    """The mutants with their checks; of many, the first, and a count."""
    shown = [f"{control.name} ({_about(control)})" for control in controls[:_MOST_NAMES]]
    rest = len(controls) - len(shown)
    return "; ".join(shown) + (f"; and {rest} more (see --json or --html)" if rest else "")


def _about(control: Control) -> str:
    """Return the check of a control, and what it takes to find the fault, or what kept it from being judged."""
    return f"{control.code} {control.detail}".rstrip() if control.untried in ("", Untried.TOO_SMALL) else control.code


def controls_to_json(controls: Sequence[Control]) -> dict[str, Any]:  # Any: JSON
    """Counts for the summary line of a run's file. `tried` does not count those in `untried`."""
    untried = Counter(control.untried for control in controls if control.untried)
    tried = len(controls) - untried.total()
    missed = sum(control.is_missed for control in controls)
    return {"tried": tried, "caught": tried - missed, "weak": sum(c.weak for c in controls), "untried": dict(untried)}
