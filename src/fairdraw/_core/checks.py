"""What a check is, and how Hypothesis runs one.

A check is data: the pytest plugin, the CLI and `parametrize_with_checks` all run the same objects under the same names.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from fairdraw._core.budget import (
    SHRINKING_SHARE,
    SHRINKING_WAS_CUT,
    BudgetEnded,
    before_it_began,
    cut_short,
    guarded,
    is_endless,
    part_of,
)
from fairdraw._core.failures import CapabilityUnsupported, raised_by
from fairdraw._core.seeds import derive_seed
from fairdraw.protocols import AnySampler, Capabilities, Capability

if TYPE_CHECKING:
    from hypothesis import strategies as st

__all__ = [
    "PROFILES",
    "AnyCheck",
    "Check",
    "DistributionCase",
    "DrawnQuestion",
    "OutOfTime",
    "Profile",
    "Question",
    "Timed",
    "check",
    "differential",
]

# Any: the sampler's and the case's types are those of the check's contract.
Body = Callable[[Any, Any], None]
DifferentialBody = Callable[[Any, Any, Any], None]
Cases = Callable[[Capabilities], "st.SearchStrategy[Any]"]
OutOfTime = Callable[[], bool]


@dataclass(frozen=True)
class Profile:
    """How much is tried.

    Args:
        examples: Per check, for a sampler that answers in microseconds.
        slow_examples: The same for a sampler that declares itself slow (an interpreter).
        draws: Rows drawn from each distribution by the statistical suite; 100 times as many on a CUDA device.
        slow_draws: The same for a slow sampler.
        scale: The part of the profile of this name that this is; below 1 if a time budget asked for less.
    """

    name: str
    examples: int
    slow_examples: int
    draws: int = 500_000
    slow_draws: int = 4_000
    scale: float = 1.0

    def scaled(self, scale: float) -> Profile:
        """This profile with a part of its examples and draws; at least 2 and 1000, as fewer show nothing.

        Example:
            >>> Profile("ci", 100, 25).scaled(0.1)
            Profile(name='ci', examples=10, slow_examples=2, draws=50000, slow_draws=1000, scale=0.1)
        """
        if scale == 1:
            return self
        examples, slow_examples = (max(2, round(scale * most)) for most in (self.examples, self.slow_examples))
        draws, slow_draws = (max(_FEWEST_DRAWS, round(scale * most)) for most in (self.draws, self.slow_draws))
        return Profile(self.name, examples, slow_examples, draws, slow_draws, scale * self.scale)

    def examples_for(self, capabilities: Capabilities, weight: float) -> int:
        """Examples of one check; at least 2, so that something is compared."""
        return max(2, round((self.slow_examples if capabilities.slow else self.examples) * weight))

    def draws_for(self, capabilities: Capabilities) -> int:
        """Draws from each distribution."""
        return self.slow_draws if capabilities.slow else self.draws


_FEWEST_DRAWS = 1000

PROFILES = {
    profile.name: profile
    for profile in (
        Profile("smoke", 20, 5, 50_000, 2_000),
        Profile("ci", 100, 25),
        Profile("nightly", 3000, 400, 10_000_000, 50_000),
    )
}


def _is_same(one: Any, other: Any) -> bool:  # Any: samplers of any contract
    """Whether two objects wrap the same code under the same name; a name alone may be shared by strangers."""
    functions = (getattr(sampler, "function", None) for sampler in (one, other))
    codes = {getattr(function, "__code__", None) for function in functions}
    return one.name == other.name and len(codes) == 1


@dataclass(frozen=True)
class Question:
    """What every check has in common, whatever it is made of.

    Args:
        code: Stable public id (`REJ104`).
        title: A true sentence about a right sampler.
        meaning: What it usually means when the sentence is false, and where to look.
        needs: Capabilities without which the question makes no sense.
        differential: It compares with the reference sampler (the real vLLM by default).
        needs_one_of: Of each group, one capability at least.
    """

    code: str
    title: str
    meaning: str
    contract: str
    suite: str
    needs: tuple[Capability, ...]
    differential: bool = field(default=False, kw_only=True)
    needs_one_of: tuple[tuple[Capability, ...], ...] = field(default=(), kw_only=True)

    @property
    def id(self) -> str:
        """The node id of the check, a public name: users put it into xfail files."""
        return f"{self.code} {self.title}"

    def __str__(self) -> str:
        return self.id

    @property
    def needed(self) -> tuple[str, ...]:
        """What it needs, in words: `greedy`, `top-k or top-p`, `a reference sampler`."""
        groups = (" or ".join(group) for group in self.needs_one_of)
        return (*map(str, self.needs), *groups, *["a reference sampler"] * self.differential)

    def missing(self, capabilities: Capabilities) -> str | None:
        """The first capability that it lacks among `capabilities`, with the reason; `None` if it lacks none."""
        groups = (capabilities.why_all_unsupported(group) for group in self.needs_one_of)
        return capabilities.why_unsupported(self.needs) or next((reason for reason in groups if reason), None)

    def again(self, profile: str, seed: int) -> dict[str, str]:
        """Options of `fairdraw check` that ask this question again, and no other."""
        return {"-k": self.code, "--profile": profile, "--seed": str(seed)}

    # Any: a subclass for one contract asks for that contract's type.
    def why_not(self, sampler: Any, reference: Any = None) -> str | None:
        """Why this check cannot be asked of `sampler`; `None` if it can."""
        asked: Capabilities = sampler.capabilities
        if not self.differential:
            return self.missing(asked)
        if reference is None:
            return "there is no reference sampler to compare with (the header says why)"
        if _is_same(reference, sampler):
            return f"{sampler.name} is the reference itself"
        compared: Capabilities = reference.capabilities
        return self.missing(asked) or self.missing(compared)


@dataclass(frozen=True)
class DistributionCase:
    """What it takes, with the seed of the run, to ask a statistical check again.

    Args:
        profile: The name of the run's.
        num_draws: The check's budget there and then; the same profile has another on another device.
        scale: The part of the profile that was drawn; below 1 if a time budget asked for less.
    """

    profile: str
    num_draws: int
    scale: float = 1.0

    def build(self) -> Profile:
        """The profile.

        Raises:
            TypeError: If `num_draws` or `scale` is no number.
            ValueError: If there is no such profile, or `scale` is no part of it.
        """
        if type(self.num_draws) is not int:
            raise TypeError(
                f"DistributionCase: num_draws={self.num_draws!r}, but it must be an integer. Ask the check again."
            )
        if self.profile not in PROFILES:
            known = ", ".join(PROFILES)
            raise ValueError(
                f"DistributionCase: profile={self.profile!r}, but it must be a known word. Use one of: {known}."
            )
        if isinstance(self.scale, bool) or not isinstance(self.scale, int | float):
            raise TypeError(
                f"DistributionCase: scale={self.scale!r}, but it must be a number. Use 1.0 for the whole profile."
            )
        if not 0 < self.scale <= 1:
            raise ValueError(
                f"DistributionCase: scale={self.scale!r}, but it must lie in (0, 1]. Use 1.0 for the whole profile."
            )
        return PROFILES[self.profile].scaled(self.scale)

    def to_json(self) -> dict[str, Any]:  # Any: JSON
        """Plain data for a crash file; without `scale` if the whole profile was drawn, as older releases wrote it."""
        plain = dataclasses.asdict(self)
        if self.scale == 1:
            del plain["scale"]
        return plain

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> DistributionCase:  # Any: JSON
        """The case that `to_json` wrote."""
        return cls(**plain)


@dataclass(frozen=True)
class DrawnQuestion(Question):
    """A question put to counts of what a sampler draws: those of the statistical suite."""

    # Any: a sampler of the question's contract.
    def num_draws(self, sampler: Any, profile: Profile) -> int:
        """How many draws `profile` has for it; of its own subject it may take a share of them."""
        return profile.draws_for(sampler.capabilities)

    def case(self, sampler: Any, profile: Profile) -> DistributionCase:
        """What a crash file stores of it."""
        return DistributionCase(profile.name, self.num_draws(sampler, profile), profile.scale)


class AnyCheck(Protocol):
    """A question with the means to ask it: tried on drawn cases (`Check`), or on drawn distributions
    (`DistributionCheck`).

    Samplers are `Any` here: each check knows the type that its contract asks for.
    """

    @property
    def code(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def meaning(self) -> str: ...
    @property
    def contract(self) -> str: ...
    @property
    def suite(self) -> str: ...
    @property
    def needs(self) -> tuple[Capability, ...]: ...
    @property
    def differential(self) -> bool: ...
    @property
    def needed(self) -> tuple[str, ...]: ...
    @property
    def id(self) -> str: ...

    def missing(self, capabilities: Capabilities) -> str | None: ...
    def why_not(self, sampler: Any, reference: Any | None = None) -> str | None: ...
    def again(self, profile: str, seed: int) -> dict[str, str]: ...
    def run(
        self,
        sampler: Any,
        *,
        profile: Profile | None = None,
        seed: int = 0,
        reference: Any | None = None,
        out_of_time: OutOfTime = ...,
    ) -> int: ...
    def __call__(self, sampler: Any) -> None: ...


@dataclass(frozen=True)
class Check(Question):
    """A question put to one drawn case after another.

    Args:
        cases: From the sampler's capabilities to the strategy of its cases.
        body: Raises `CheckFailure` if the promise is broken on one case; a differential takes a reference sampler too.
        weight: Share of the profile's examples; below 1 for expensive cases.
    """

    cases: Cases
    body: Body | DifferentialBody
    weight: float = 1.0

    def on_case(self, sampler: AnySampler, case: Any, reference: AnySampler | None = None) -> None:
        """Ask the question of one case; raises `CheckFailure` if the promise is broken."""
        if self.differential:
            self.body(sampler, case, reference)  # type: ignore[call-arg]  # why_not has seen a reference
        else:
            self.body(sampler, case)  # type: ignore[call-arg]  # a plain body

    def run(
        self,
        sampler: AnySampler,
        *,
        profile: Profile | None = None,
        seed: int = 0,
        reference: AnySampler | None = None,
        out_of_time: OutOfTime = lambda: False,
    ) -> int:
        """Try the promise on drawn cases and shrink the first that breaks it.

        Args:
            out_of_time: Asked before every case and every call of the sampler. Shrinking has a share of the time that
                is left then; when that is over, the smallest case so far is reported.

        Returns:
            The number of cases tried.

        Raises:
            CapabilityUnsupported: If the sampler does not support what the check needs.
            Inconclusive: If time is out before a case failed.
            CheckFailure: If the promise is broken. The exception carries the smallest case as `case`.

        Randomness:
            Cases follow from (seed, code) alone: the same call tries the same cases.
        """
        reason = self.why_not(sampler, reference)
        if reason is not None:
            raise CapabilityUnsupported(reason)
        if out_of_time():
            raise before_it_began()
        trial = _Trial(self, sampler, reference, out_of_time)
        chosen = profile or PROFILES["ci"]
        examples = chosen.examples_for(sampler.capabilities, self.weight)
        trial.search(self.cases(sampler.capabilities), examples, derive_seed("cases", seed, self.code))
        return trial.tried

    def __call__(self, sampler: AnySampler) -> None:
        """Run with the `ci` profile and seed 0 (for `parametrize_with_checks`)."""
        self.run(sampler)


_SEEDS_ALONE = 32
"""Seeds tried per request of a failing batch: enough if one in ten shows the fault (0.9**32 = 3 %)."""


class Timed:
    """What a search remembers for the case that the time budget ends it."""

    def __init__(self, out_of_time: OutOfTime) -> None:
        self._out_of_time = out_of_time
        self.smallest: tuple[Any, BaseException] | None = None
        """The failing case with the shortest description, and how it failed. Any: a case of the contract."""

    def guarded(self, sampler: Any) -> Any:  # Any: a sampler of any contract, and the same
        """`sampler`, which raises `BudgetEnded` when time is out; once a case failed, when that for shrinking is."""
        return sampler if is_endless(self._out_of_time) else guarded(sampler, self.out_of_time)

    def out_of_time(self) -> bool:
        """Whether the search has to end; `failed` moves the end."""
        return self._out_of_time()

    def require_time(self) -> None:
        """Raise `BudgetEnded` if time is out."""
        if self.out_of_time():
            raise BudgetEnded

    def failed(self, case: Any, error: BaseException) -> None:
        """Remember a failing case; the first one starts the time for shrinking."""
        if self.smallest is None:
            self._out_of_time = part_of(self._out_of_time, SHRINKING_SHARE)
        if self.smallest is None or len(repr(case)) <= len(repr(self.smallest[0])):
            self.smallest = case, error

    def ended(self, tried: int, what: str) -> BaseException:
        """What a search raises that the time budget ended: the failure that it found, or that it is undecided."""
        if self.smallest is None:
            return cut_short(f"{tried} of {what} tried", tried)
        case, error = self.smallest
        # Read back by the runner. Not setattr: the class may be the user's, and forbid it.
        vars(error).update(case=case, tried=tried, remarks=(SHRINKING_WAS_CUT,))
        return error


class _Trial:
    """One search; remembers the failing case, which is the smallest once Hypothesis has shrunk."""

    def __init__(self, owner: Check, sampler: AnySampler, reference: AnySampler | None, out_of_time: OutOfTime) -> None:
        self.owner, self.timed = owner, Timed(out_of_time)
        self.sampler, self.reference = self.timed.guarded(sampler), self.timed.guarded(reference)
        self.tried = 0
        self.failing: Any = None  # the case

    def one(self, case: Any) -> None:
        from hypothesis.errors import UnsatisfiedAssumption

        self.timed.require_time()
        try:
            self.owner.on_case(self.sampler, case, self.reference)
        except UnsatisfiedAssumption:
            raise
        except (Exception, SystemExit) as error:
            self.tried += 1
            self.failing = case
            self.timed.failed(case, error)
            raise
        self.tried += 1

    def search(self, cases: st.SearchStrategy[Any], examples: int, seed: int) -> None:
        import hypothesis
        from hypothesis import HealthCheck, Phase, settings

        def inner(case: Any) -> None:
            self.one(case)

        limits = settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            report_multiple_bugs=False,
            suppress_health_check=(
                HealthCheck.data_too_large,
                HealthCheck.filter_too_much,
                HealthCheck.large_base_example,
                HealthCheck.too_slow,
            ),
        )
        searching = limits(hypothesis.seed(seed)(hypothesis.given(case=cases)(inner)))
        try:
            searching()
        except BudgetEnded:
            raise self.timed.ended(self.tried, f"{examples} cases") from None
        except (Exception, SystemExit) as error:
            raised = self._alone(error) or error
            # Read back with getattr by the runner. Not setattr: the class may be the user's, and forbid it.
            vars(raised).update(case=self.failing, tried=self.tried)
            raise raised  # noqa: B904  # the smaller example replaces the other

    def _alone(self, like: BaseException) -> BaseException | None:
        """What one request of the failing batch does by itself, if it fails too, and in the same way.

        Hypothesis cannot see that: numbers follow from a request's place in the batch, so dropping one changes those of
        the next. Each request is tried alone, with some seeds; the first that fails becomes the example.
        """
        found = self.failing
        if len(getattr(found, "requests", ())) <= 1:
            return None
        for request in found.requests:
            for seed in range(_SEEDS_ALONE):
                try:
                    self.one(found.replace(requests=(request,), seed=seed))
                except BudgetEnded:
                    self.failing = found
                    return None
                except (Exception, SystemExit) as error:
                    if isinstance(error, type(like)) and raised_by(error) is raised_by(like):
                        return error  # else another fault, or a check that needs several requests
        self.failing = found
        return None


def check(
    code: str,
    cases: Cases,
    *,
    needs: tuple[Capability, ...] = (),
    needs_one_of: tuple[tuple[Capability, ...], ...] = (),
    weight: float = 1.0,
    contract: str = "rejection",
    suite: str = "properties",
) -> Callable[[Body], Check]:
    """Make a check of a function `(sampler, case)`.

    Its name becomes the title (underscores to spaces), its docstring the meaning: first what is promised, then what
    it usually means when the promise is broken.
    """

    def make(body: Body) -> Check:
        return _make(code, cases, body, needs, needs_one_of, weight, contract, suite, differential=False)

    return make


def differential(
    code: str,
    cases: Cases,
    *,
    needs: tuple[Capability, ...] = (),
    needs_one_of: tuple[tuple[Capability, ...], ...] = (),
    weight: float = 1.0,
    contract: str = "rejection",
    suite: str = "properties",
) -> Callable[[DifferentialBody], Check]:
    """Make a check of a function `(sampler, case, reference)` that compares with a reference sampler."""

    def make(body: DifferentialBody) -> Check:
        return _make(code, cases, body, needs, needs_one_of, weight, contract, suite, differential=True)

    return make


def _make(
    code: str,
    cases: Cases,
    body: Body | DifferentialBody,
    needs: tuple[Capability, ...],
    needs_one_of: tuple[tuple[Capability, ...], ...],
    weight: float,
    contract: str,
    suite: str,
    *,
    differential: bool,
) -> Check:
    return Check(
        code=code,
        title=body.__name__.replace("_", " "),
        meaning=inspect.cleandoc(body.__doc__ or ""),
        contract=contract,
        suite=suite,
        needs=needs,
        cases=cases,
        body=body,
        weight=weight,
        differential=differential,
        needs_one_of=needs_one_of,
    )
