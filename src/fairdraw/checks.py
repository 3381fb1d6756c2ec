"""What a check is, and how Hypothesis runs one.

A check is data: the pytest plugin, the CLI and `parametrize_with_checks` all run the same objects under the same names.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from fairdraw.failures import CapabilityClosed, Inconclusive
from fairdraw.protocols import Capabilities, Capability, Subject
from fairdraw.seeds import derive_seed

if TYPE_CHECKING:
    from hypothesis import strategies as st

__all__ = [
    "PROFILES",
    "AnyCheck",
    "Check",
    "DrawnQuestion",
    "LawCase",
    "OutOfTime",
    "Profile",
    "Question",
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
        draws: Rows drawn from each law by the statistical lens; 100 times as many on a CUDA device.
        slow_draws: The same for a slow sampler.
    """

    name: str
    examples: int
    slow_examples: int
    draws: int = 500_000
    slow_draws: int = 4_000

    def examples_for(self, capabilities: Capabilities, weight: float) -> int:
        """Examples of one check; at least 2, so that something is compared."""
        return max(2, round((self.slow_examples if capabilities.slow else self.examples) * weight))

    def draws_for(self, capabilities: Capabilities) -> int:
        """Draws from each law."""
        return self.slow_draws if capabilities.slow else self.draws


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("smoke", 20, 5, 50_000, 2_000),
        Profile("ci", 100, 25),
        Profile("nightly", 3000, 400, 10_000_000, 50_000),
    )
}


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
    lens: str
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
        groups = (capabilities.why_all_closed(group) for group in self.needs_one_of)
        return capabilities.why_closed(self.needs) or next((reason for reason in groups if reason), None)

    # Any: a subclass for one contract asks for that contract's type.
    def why_not(self, sampler: Any, reference: Any = None) -> str | None:
        """Why this check cannot be asked of `sampler`; `None` if it can."""
        asked: Capabilities = sampler.capabilities
        if not self.differential:
            return self.missing(asked)
        if reference is None:
            return "there is no reference sampler to compare with (the header says why)"
        if reference.name == sampler.name:
            return f"{sampler.name} is the reference itself"
        compared: Capabilities = reference.capabilities
        return self.missing(asked) or self.missing(compared)


@dataclass(frozen=True)
class LawCase:
    """What it takes, with the seed of the run, to ask a statistical check again.

    Args:
        profile: The name of the run's.
        num_draws: The check's budget there and then; the same profile has another on another device.
    """

    profile: str
    num_draws: int

    def build(self) -> Profile:
        """The profile.

        Raises:
            TypeError: If `num_draws` is no number.
            ValueError: If there is no such profile.
        """
        if type(self.num_draws) is not int:
            raise TypeError(f"LawCase: num_draws={self.num_draws!r}, but it must be an integer. Ask the check again.")
        if self.profile not in PROFILES:
            known = ", ".join(PROFILES)
            raise ValueError(f"LawCase: profile={self.profile!r}, but it must be a known word. Use one of: {known}.")
        return PROFILES[self.profile]

    def to_json(self) -> dict[str, Any]:  # Any: JSON
        """Plain data for a crash file."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> LawCase:  # Any: JSON
        """The case that `to_json` wrote."""
        return cls(**plain)


@dataclass(frozen=True)
class DrawnQuestion(Question):
    """A question put to counts of what a sampler draws: those of the statistical lens."""

    # Any: a sampler of the question's contract.
    def num_draws(self, sampler: Any, profile: Profile) -> int:
        """How many draws `profile` has for it; of its own subject it may take a share of them."""
        return profile.draws_for(sampler.capabilities)

    def case(self, sampler: Any, profile: Profile) -> LawCase:
        """What a crash file stores of it."""
        return LawCase(profile.name, self.num_draws(sampler, profile))


class AnyCheck(Protocol):
    """A question with the means to ask it: tried on drawn cases (`Check`), or on drawn laws (`LawCheck`).

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
    def lens(self) -> str: ...
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

    def on_case(self, sampler: Subject, case: Any, reference: Subject | None = None) -> None:
        """Ask the question of one case; raises `CheckFailure` if the promise is broken."""
        if self.differential:
            self.body(sampler, case, reference)  # type: ignore[call-arg]  # why_not has seen a reference
        else:
            self.body(sampler, case)  # type: ignore[call-arg]  # a plain body

    def run(
        self,
        sampler: Subject,
        *,
        profile: Profile | None = None,
        seed: int = 0,
        reference: Subject | None = None,
        out_of_time: OutOfTime = lambda: False,
    ) -> int:
        """Try the promise on drawn cases and shrink the first that breaks it.

        Args:
            out_of_time: Asked before the search, which is short.

        Returns:
            The number of cases tried.

        Raises:
            CapabilityClosed: If the sampler declines what the check needs.
            Inconclusive: If time is out.
            CheckFailure: If the promise is broken. The exception carries the smallest case as `case`.

        Randomness:
            Cases follow from (seed, code) alone: the same call tries the same cases.
        """
        reason = self.why_not(sampler, reference)
        if reason is not None:
            raise CapabilityClosed(reason)
        if out_of_time():
            raise Inconclusive("the time budget ended before this check began")
        trial = _Trial(self, sampler, reference)
        chosen = profile or PROFILES["ci"]
        examples = chosen.examples_for(sampler.capabilities, self.weight)
        trial.search(self.cases(sampler.capabilities), examples, derive_seed("cases", seed, self.code))
        return trial.tried

    def __call__(self, sampler: Subject) -> None:
        """Run with the `ci` profile and seed 0 (for `parametrize_with_checks`)."""
        self.run(sampler)


_SEEDS_ALONE = 32
"""Seeds tried per request of a failing batch: enough if one in ten shows the fault (0.9**32 = 3 %)."""


class _Trial:
    """One search; remembers the failing case, which is the smallest once Hypothesis has shrunk."""

    def __init__(self, owner: Check, sampler: Subject, reference: Subject | None) -> None:
        self.owner, self.sampler, self.reference = owner, sampler, reference
        self.tried = 0
        self.failing: Any = None  # the case

    def one(self, case: Any) -> None:
        self.tried += 1
        try:
            self.owner.on_case(self.sampler, case, self.reference)
        except Exception:
            self.failing = case
            raise

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
        except Exception as error:
            raised = self._alone(type(error)) or error
            # Read back with getattr by the runner.
            raised.case, raised.tried = self.failing, self.tried  # type: ignore[attr-defined]
            raise raised  # noqa: B904  # the smaller example replaces the other

    def _alone(self, kind: type[Exception]) -> Exception | None:
        """What one request of the failing batch does by itself, if it fails too.

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
                except kind as error:
                    return error
                except Exception:  # another fault, or a check that needs several requests
                    continue
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
    lens: str = "properties",
) -> Callable[[Body], Check]:
    """Make a check of a function `(sampler, case)`.

    Its name becomes the title (underscores to spaces), its docstring the meaning: first what is promised, then what
    it usually means when the promise is broken.
    """

    def make(body: Body) -> Check:
        return _make(code, cases, body, needs, needs_one_of, weight, contract, lens, differential=False)

    return make


def differential(
    code: str,
    cases: Cases,
    *,
    needs: tuple[Capability, ...] = (),
    needs_one_of: tuple[tuple[Capability, ...], ...] = (),
    weight: float = 1.0,
    contract: str = "rejection",
    lens: str = "properties",
) -> Callable[[DifferentialBody], Check]:
    """Make a check of a function `(sampler, case, reference)` that compares with a reference sampler."""

    def make(body: DifferentialBody) -> Check:
        return _make(code, cases, body, needs, needs_one_of, weight, contract, lens, differential=True)

    return make


def _make(
    code: str,
    cases: Cases,
    body: Body | DifferentialBody,
    needs: tuple[Capability, ...],
    needs_one_of: tuple[tuple[Capability, ...], ...],
    weight: float,
    contract: str,
    lens: str,
    *,
    differential: bool,
) -> Check:
    return Check(
        code=code,
        title=body.__name__.replace("_", " "),
        meaning=inspect.cleandoc(body.__doc__ or ""),
        contract=contract,
        lens=lens,
        needs=needs,
        cases=cases,
        body=body,
        weight=weight,
        differential=differential,
        needs_one_of=needs_one_of,
    )
