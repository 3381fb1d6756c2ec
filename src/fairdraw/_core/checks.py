"""What a check is, and how Hypothesis runs one.

A check is data: the pytest plugin, the command line and `parametrize_with_checks` run the same objects under the same
names. `AnyCheck` is the base of all.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum, auto
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from fairdraw._core import budget
from fairdraw._core.capabilities import AnySampler, Capabilities, Capability
from fairdraw._core.contracts import CONTRACTS, declared_policy
from fairdraw._core.failures import CapabilityUnsupported, Ended, failed, raised_by
from fairdraw._core.seeds import DEFAULT_SEED, derive_seed
from fairdraw._core.validation import Validator

if TYPE_CHECKING:
    from types import ModuleType

    from hypothesis import strategies as st

    from fairdraw._core.looks import Look

# Any: the sampler's and the case's types are those of the check's contract.
Body = Callable[..., None]
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
        scale: The part that is tried of it; below 1 if time asked for less. It is the first part of the same cases and
            of the same draws.
        seconds: Time limit of a run once its sampler is loaded, unless the user sets one; `None` for none.
    """

    name: str
    examples: int
    slow_examples: int
    draws: int = 500_000
    slow_draws: int = 4_000
    scale: float = 1.0
    seconds: float | None = None

    def scaled(self, scale: float) -> Profile:
        """Return the first part of this profile's examples and draws; at least 2 and 1000, as fewer show nothing.

        Example:
            >>> Profile("ci", 100, 25).scaled(0.1).draws_for(Capabilities())
            50000
        """
        return replace(self, scale=scale * self.scale)

    @property
    def whole(self) -> Profile:
        """The profile of which this is a part."""
        return replace(self, scale=1.0)

    def examples_for(self, capabilities: Capabilities, weight: float) -> int:
        """Examples of one check; at least 2, so that something is compared."""
        return max(2, round((self.slow_examples if capabilities.slow else self.examples) * weight * self.scale))

    def draws_for(self, capabilities: Capabilities) -> int:
        """Draws from each distribution."""
        most = self.slow_draws if capabilities.slow else self.draws
        return most if self.scale == 1 else max(_FEWEST_DRAWS, round(self.scale * most))


_FEWEST_DRAWS = 1000

_SMOKE_SECONDS = 40.0
"""With Python's start and the sampler's, 45 seconds on two quiet cores."""

PROFILES = {
    profile.name: profile
    for profile in (
        Profile("smoke", 20, 5, 50_000, 2_000, seconds=_SMOKE_SECONDS),
        Profile("ci", 100, 25),
        Profile("nightly", 3000, 400, 10_000_000, 50_000),
    )
}


def _is_same(one: Any, other: Any) -> bool:  # Any: samplers of any contract
    """Whether two objects wrap the same code under the same name; unrelated samplers may share a name."""
    functions = (getattr(sampler, "function", None) for sampler in (one, other))
    codes = {getattr(function, "__code__", None) for function in functions}
    return one.name == other.name and len(codes) == 1


class Stage(StrEnum):
    """What a check is about, in the order in which a report names causes: a fault of one stage breaks later ones, too.

    Acceptance changes what is rejected and so what is recovered, never the other way round. Checks of whole rows fail
    on every fault and come last.
    """

    SHAPE = auto()
    """The shape of an answer: ids of the vocabulary, and rows that a verification can leave."""
    PROPERTY = auto()
    """One small example decides."""
    PROPOSAL = auto()
    """Tokens of the drafter that a rejection sampler brings, and the distributions that it returns."""
    ACCEPTANCE = auto()
    RECOVERY = auto()
    BONUS = auto()
    TOKENS = auto()
    """Single tokens."""
    INDEPENDENCE = auto()
    """Noise shared between rows or calls."""
    PAIRS = auto()
    ROWS = auto()
    COMPLETED_ROWS = auto()
    HISTORY = auto()
    """Evidence added up over many runs."""


_WORDS = "DRY EOS NaN XTC log-probability log-probabilities min-p min_tokens one-hot top-k top-p"
_SPELLINGS = {re.sub("[-_]", " ", word.lower()): word for word in _WORDS.split()}
_SPELLINGS |= {f"2 to the {power}": f"2^{power}" for power in (24, 31)}
_SPELLINGS |= {"15 16": "15, 16", "accepted recovered": "accepted, recovered"}
"""Words of the names of functions to how titles spell them."""
_SPELLED = re.compile(rf"\b(?:{'|'.join(_SPELLINGS)})\b")


@dataclass(frozen=True)
class Conditions:
    """What a check is run with, as `AnyCheck.run` is given it."""

    profile: Profile
    seed: int
    reference: Any  # Any: of the check's contract, or none
    out_of_time: OutOfTime

    def require_time(self) -> None:
        """Raise `Inconclusive` if time is out before the check begins."""
        if self.out_of_time():
            raise budget.before_it_began()


@dataclass(frozen=True)
class AnyCheck(ABC):
    """What all checks have in common. A subclass says how one is run.

    Samplers are `Any` here: each check knows the type of its contract.

    Args:
        code: Stable public id (`REJ104`).
        title: A sentence that is true of a correct sampler.
        meaning: What it usually means when the sentence is false, and where to look.
        needs: Capabilities without which the check makes no sense.
        differential: It compares with the reference sampler (the real vLLM by default).
        any_policy: The reference may have another policy, because cases hold nothing about which policies differ.
        needs_one_of: Of each group, one capability at least.
        stage: Orders the failures of a run.
        depends_on: Codes of checks without which this one means nothing: if one of them fails, look there first.
        plays_traces: Mutants are tried with traces of `smoke`, whatever the profile; failures again on new samplers.
        renew: Makes another sampler like the one under test; `None` if it cannot.
        seed_alone: The seed where it is called as a function.
    """

    plays_traces: ClassVar[bool] = False
    seed_alone: ClassVar[int] = 0
    code: str
    title: str
    meaning: str
    contract: str
    suite: str
    needs: tuple[Capability, ...]
    differential: bool = field(default=False, kw_only=True)
    any_policy: bool = field(default=False, kw_only=True)
    needs_one_of: tuple[tuple[Capability, ...], ...] = field(default=(), kw_only=True)
    stage: Stage = field(default=Stage.PROPERTY, kw_only=True)
    depends_on: tuple[str, ...] = field(default=(), kw_only=True)
    renew: Callable[[], AnySampler | None] = field(default=lambda: None, kw_only=True, compare=False)

    @classmethod
    def named(
        cls, function: Callable[..., object], code: str, *, suite: str = "properties", **fields: Any
    ) -> Self:  # Any: other fields of the check
        """Return a check with the name of a function, spelled as a sentence, as its title, and its docstring as its
        meaning: first what is required, then the usual cause of a failure."""
        title = _SPELLED.sub(lambda found: _SPELLINGS[found[0]], function.__name__.replace("_", " "))
        said: dict[str, Any] = {"title": title, "needs": ()}  # Any: fields, as above
        said["meaning"] = inspect.cleandoc(function.__doc__ or "")
        return cls(code=code, suite=suite, **said | fields)

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
        """Options of `fairdraw check` that run this check again, and no other."""
        return {"-k": self.code, "--profile": profile, "--seed": str(seed)}

    def seen(self, sampler: Any, seed: int) -> Look | None:
        """Return what a check of a server judged in this run; `None` if nothing was judged, or calls show it."""
        return None

    def why_not(self, sampler: Any, reference: Any = None) -> str | None:
        """Why this check cannot be run on `sampler`; `None` if it can."""
        for method, reason in CONTRACTS[self.contract].beside.items():
            if reason and reason[0] in self.needs and not callable(getattr(sampler, method, None)):
                return f"{reason[0]} is unsupported: {reason[1]}"
        if not self.differential:
            return self.missing(sampler.capabilities)
        if reference is None:
            return "there is no reference sampler to compare with (the header says why)"
        if _is_same(reference, sampler):
            return f"{sampler.name} is the reference itself"
        if not self.any_policy and declared_policy(reference, self.contract) != declared_policy(sampler, self.contract):
            return f"{reference.name} has another policy: {declared_policy(reference, self.contract)}"
        return self.missing(sampler.capabilities) or self.missing(reference.capabilities)

    def require_support(self, sampler: Any, reference: Any) -> None:
        """Raise `CapabilityUnsupported` if the check cannot be run on `sampler`."""
        if (reason := self.why_not(sampler, reference)) is not None:
            raise CapabilityUnsupported(reason)

    def run(
        self,
        sampler: Any,
        *,
        profile: Profile | None = None,
        seed: int = 0,
        reference: Any = None,
        out_of_time: OutOfTime = lambda: False,
    ) -> int:
        """Run the check on `sampler`.

        Args:
            profile: How much is tried; `ci` by default.
            out_of_time: Called before every call of the sampler; true when the time budget has ended.

        Returns:
            The number of cases tried, or of draws counted.

        Raises:
            CapabilityUnsupported: If the sampler does not support what the check needs.
            Ended: If the check failed (`CheckFailure`), the sampler raised (`CaseRaised`), or neither could be decided
                (`Inconclusive`). The fields say on which case, and after how many.
        """
        self.require_support(sampler, reference)
        return self.judge(sampler, Conditions(profile or PROFILES["ci"], seed, reference, out_of_time))

    @abstractmethod
    def judge(self, sampler: Any, under: Conditions) -> int:
        """Run the check on a sampler that supports what it needs; returns and raises what `run` does."""

    def __call__(self, sampler: Any) -> None:
        """Run with profile `ci` (for `parametrize_with_checks`)."""
        self.run(sampler, seed=self.seed_alone)


@dataclass(frozen=True)
class DistributionCase:
    """What it takes, with the seed of the run, to run a statistical check again.

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
        require, draws = Validator("DistributionCase").require, f"num_draws={self.num_draws!r}"
        require(type(self.num_draws) is int, draws, "it must be an integer", "Run the check again.", TypeError)
        remedy = f"Use one of: {', '.join(PROFILES)}."
        require(self.profile in PROFILES, f"profile={self.profile!r}", "it must be a known word", remedy)
        scale, remedy = f"scale={self.scale!r}", "Use 1.0 for the whole profile."
        is_number = isinstance(self.scale, int | float) and not isinstance(self.scale, bool)
        require(is_number, scale, "it must be a number", remedy, TypeError)
        require(0 < self.scale <= 1, scale, "it must lie in (0, 1]", remedy)
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
class Resolution:
    """The smallest faults that a check of draws sees; `None` where it sees none.

    Args:
        tv: Total variation in all of its draws, over its cells.
        bias: By how much an event of chance 1/2 must be off in all of its draws.
        sliced: Features whose levels it judges one by one: a fault of one level need not show in all draws.
    """

    tv: float | None = None
    bias: float | None = None
    sliced: Sequence[str] = ()


@dataclass(frozen=True)
class DrawnQuestion(AnyCheck):
    """A check of the tokens that a sampler draws: those of the statistical suite."""

    seed_alone = DEFAULT_SEED

    def num_draws(self, sampler: Any, profile: Profile) -> int:
        """How many draws `profile` has for it; a workload may take a share of them."""
        return profile.draws_for(sampler.capabilities)

    def resolution(self, sampler: Any, profile: Profile, seed: int, num_draws: int) -> Resolution:
        """Return what it sees in all of its draws, of which it judged `num_draws`."""
        return Resolution()

    def case(self, sampler: Any, profile: Profile) -> DistributionCase:
        """What a crash file stores of it."""
        return DistributionCase(profile.name, self.num_draws(sampler, profile), profile.scale)


@dataclass(frozen=True)
class Check(AnyCheck):
    """A check of one drawn case after another.

    Args:
        cases: From the sampler's capabilities to the strategy of its cases.
        body: Raises `CheckFailure` if the check fails on one case; a differential takes a reference sampler, too.
        weight: Share of the profile's examples; below 1 for expensive cases.
    """

    cases: Cases
    body: Body
    weight: float = 1.0

    def on_case(self, sampler: AnySampler, case: Any, reference: AnySampler | None = None) -> None:
        """Run the check on one case; raises `CheckFailure` if it fails."""
        self.body(sampler, case, *[reference] * self.differential)

    def judge(self, sampler: AnySampler, under: Conditions) -> int:
        """Try drawn cases, and shrink the first that fails.

        Shrinking has a share of the time that is left then; when that is over, the smallest case so far is reported.

        Randomness:
            Cases follow from (seed, code) alone: the same call tries the same cases. A part of a profile tries the
            first of them.
        """
        under.require_time()
        trial, chosen = _Trial(self, sampler, under.reference, under.out_of_time), under.profile
        part, whole = (each.examples_for(sampler.capabilities, self.weight) for each in (chosen, chosen.whole))
        cases = self.cases(self._common(sampler, under.reference))
        trial.search(cases, part, whole, derive_seed("cases", under.seed, self.code))
        return trial.tried

    def _common(self, sampler: AnySampler, reference: AnySampler | None) -> Capabilities:
        """What cases may need: of a differential, what both support, or the reference could not answer."""
        if not self.differential or reference is None:
            return sampler.capabilities
        unsupported = {**reference.capabilities.unsupported, **sampler.capabilities.unsupported}
        return replace(sampler.capabilities, unsupported=unsupported)


_SEEDS_ALONE = 32
"""Seeds tried per request of a failing batch: enough if one in ten shows the fault (0.9**32 = 3 %)."""
_TRIES_ALONE = 256
"""Tries with one request, in all: each different request of a large batch is given fewer seeds."""
_WIDE = 16
"""Requests beyond which a batch is wide: Hypothesis drops them one by one, and each try costs as much as a hundred."""
_TRIES_ON_WIDE = 40
"""Tries that shrinking has while the batch is wide. Then requests are tried alone, and others are dropped by halves."""


class _EnoughShrinking(BaseException):
    """Leaves Hypothesis with the smallest case so far."""


class Enough(BaseException):
    """The end of a search that tried its part of the cases, and found nothing."""


class Timed:
    """What a search remembers for the case that the time budget ends it."""

    def __init__(self, out_of_time: OutOfTime) -> None:
        self._out_of_time = out_of_time
        self.smallest: tuple[Any, BaseException] | None = None
        """The failing case with the shortest description, and how it failed. Any: a case of the contract."""

    def guarded(self, sampler: Any) -> Any:  # Any: a sampler of any contract, and the same
        """`sampler`, which raises `BudgetEnded` when time is out; once a case failed, when that for shrinking is."""
        return sampler if budget.is_endless(self._out_of_time) else budget.guarded(sampler, self.out_of_time)

    def out_of_time(self) -> bool:
        """Whether the search has to end; `failed` moves the end."""
        return self._out_of_time()

    def require_time(self) -> None:
        """Raise `BudgetEnded` if time is out."""
        if self.out_of_time():
            raise budget.BudgetEnded

    def begin_case(self, tried: int, part: int, whole: int) -> None:
        """Raise before a case that is not to be tried: `Enough` after this run's part, `BudgetEnded` if time is out.

        Args:
            tried: Cases that were tried.
            part: Cases of this run.
            whole: Cases of the whole profile.
        """
        is_part = tried >= part < whole  # the whole ends by itself
        if self.smallest is None and (is_part or budget.is_enough(self._out_of_time, tried / whole)):
            raise Enough
        self.require_time()

    def failed(self, case: Any, error: BaseException) -> None:
        """Remember a failing case; the first one starts the time for shrinking."""
        if self.smallest is None:
            self._out_of_time = budget.until_shrunk(self._out_of_time)
        if self.smallest is None or len(repr(case)) <= len(repr(self.smallest[0])):
            self.smallest = case, error

    def ended(self, tried: int, what: str) -> Ended:
        """What a search raises that the time budget ended: the failure that it found, or that it is undecided."""
        if self.smallest is None:
            return budget.cut_short(f"{tried} of {what} tried", tried)
        case, error = self.smallest
        return failed(error, case, tried, (budget.SHRINKING_WAS_CUT,))


@contextmanager
def no_constants_of_modules() -> Iterator[None]:
    """Hypothesis draws no constants of imported modules: one seed means the same cases in every way in.

    It collects numbers and words from the source of every local module that happens to be loaded, and mixes them into
    wide draws. A script, a test and the command line load different modules. Its own constants, the same everywhere,
    stay. There is no setting for it; a release without this mechanism needs none.
    """
    from hypothesis.internal.conjecture import providers as module

    providers: Any = module  # Any: its names are internal, and one is patched
    if (cache := getattr(providers, "CONSTANTS_CACHE", None)) is None:
        yield
        return
    provider = providers.HypothesisProvider
    theirs = vars(provider)["_local_constants"]
    cache.cache.clear()
    provider._local_constants = providers.Constants()
    try:
        yield
    finally:
        provider._local_constants = theirs
        cache.cache.clear()


class _Trial:
    """One search; remembers the failing case, which is the smallest once Hypothesis has shrunk."""

    def __init__(self, owner: Check, sampler: AnySampler, reference: AnySampler | None, out_of_time: OutOfTime) -> None:
        self.owner, self.timed = owner, Timed(out_of_time)
        self.sampler, self.reference = self.timed.guarded(sampler), self.timed.guarded(reference)
        self.tried = self.part = self.whole = 0
        self.failing: Any = None  # the case
        self.tries_on_wide = _TRIES_ON_WIDE

    def one(self, case: Any) -> None:
        from hypothesis.errors import UnsatisfiedAssumption

        self.timed.begin_case(self.tried, self.part, self.whole)
        if self.timed.smallest is not None and self.tries_on_wide and len(getattr(case, "requests", ())) > _WIDE:
            self.tries_on_wide -= 1
            if not self.tries_on_wide:
                raise _EnoughShrinking
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

    def search(self, cases: st.SearchStrategy[Any], part: int, whole: int, seed: int) -> None:
        """Try the first `part` of `whole` cases. Which these are does not depend on `part`."""
        import hypothesis
        from hypothesis import HealthCheck, Phase, settings

        self.part, self.whole = part, whole

        def inner(case: Any) -> None:
            self.one(case)

        limits = settings(
            max_examples=whole,
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
            with no_constants_of_modules(), warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Generating overly large repr")  # of a wide case; it is made smaller
                return searching()
        except Enough:
            return None
        except budget.BudgetEnded:
            ended = self.timed.ended(self.tried, f"{part} cases")
        except _EnoughShrinking:
            assert self.timed.smallest is not None, "it failed before it was shrunk"
            self.failing, error = self.timed.smallest
            ended = failed(self._alone(error) or self._fewer(error), self.failing, self.tried)
        except (Exception, SystemExit) as error:
            ended = failed(self._alone(error) or error, self.failing, self.tried)
        raise ended

    def _fewer(self, like: BaseException) -> BaseException:
        """How the batch fails with as few requests and events as halving, and halving again, leaves."""
        for name in ("requests", "events"):
            size = len(getattr(self.failing, name, ())) // 2
            while size:
                first = 0
                while first < len(rest := getattr(self.failing, name)) > size:
                    like, dropped = self._without(name, rest[:first] + rest[first + size :], like)
                    first += 0 if dropped else size
                size //= 2
        return like

    def _without(self, name: str, kept: tuple[Any, ...], like: BaseException) -> tuple[BaseException, bool]:
        """Try the failing case with a part of its requests or events; whether it still fails, and how."""
        found = self.failing
        try:
            self.one(found.replace(**{name: kept}))
        except budget.BudgetEnded:
            pass
        except (Exception, SystemExit) as error:
            if isinstance(error, type(like)) and raised_by(error) is raised_by(like):
                return error, True
        self.failing = found
        return like, False

    def _alone(self, like: BaseException) -> BaseException | None:
        """What one request of the failing batch does by itself, if it fails too, and in the same way.

        Hypothesis cannot see that: numbers follow from a request's place in the batch, so dropping one changes those of
        the next. Each request is tried alone, with some seeds; the first that fails becomes the example.
        """
        found = self.failing
        if len(getattr(found, "requests", ())) <= 1:
            return None
        places = {request: place for place, request in reversed(list(enumerate(found.requests)))}
        different = sorted(places.items(), key=lambda item: item[1])[: _TRIES_ALONE // 2]
        num_seeds = min(_SEEDS_ALONE, _TRIES_ALONE // len(different) - 1)
        once = {"num_rows": 0} if hasattr(found, "num_rows") else {}  # a case that repeats its requests does so no more
        for request, place in different:
            for seed in (found.seed + place, *range(num_seeds)):
                try:
                    self.one(found.replace(requests=(request,), seed=seed, **once))
                except budget.BudgetEnded:
                    self.failing = found
                    return None
                except (Exception, SystemExit) as error:
                    if isinstance(error, type(like)) and raised_by(error) is raised_by(like):
                        return self._plainer(error)  # else another fault, or a check that needs several requests
        self.failing = found
        return None

    def _plainer(self, like: BaseException) -> BaseException:
        """How the one request fails without the optional parts (filters) that its failure does without.

        Of an exception of the sampler only: a check may have drawn them because it cannot judge a request without.
        """
        if raised_by(like) is None:
            return like
        (request,) = self.failing.requests
        for name in [one.name for one in dataclasses.fields(request) if one.default is None]:
            (request,) = self.failing.requests
            if getattr(request, name) is not None:
                like, _ = self._without("requests", (request.replace(**{name: None}),), like)
        return like


def check(code: str, cases: Cases, *, contract: str, **fields: Any) -> Callable[[Body], Check]:
    """Make a check of a function `(sampler, case)`. Any: other fields of a check.

    Checks that differ in their cases alone share one as `body`; the function that is decorated says what is required.
    """
    return lambda body: Check.named(body, code, contract=contract, cases=cases, **{"body": body, **fields})


differential = partial(check, differential=True)
"""Make a check of a function `(sampler, case, reference)` that compares with a reference sampler."""


Kind = TypeVar("Kind", bound=AnyCheck)


def checks_in(kind: type[Kind], *modules: ModuleType) -> tuple[Kind, ...]:
    """The checks of a kind that are defined in `modules`, alone or in tuples: to define one there registers it."""
    values = [value for module in modules for value in vars(module).values()]
    values += chain.from_iterable(value for value in values if isinstance(value, tuple))
    found = {value.code: value for value in values if isinstance(value, kind)}
    return tuple(found[code] for code in sorted(found))
