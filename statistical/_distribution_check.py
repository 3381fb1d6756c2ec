"""A statistical check: some tables of one workload, and the decision.

Each check has a code of its own, so that a failure says what is wrong. Checks of one workload share its samples
(`_workloads`), so that codes cost nothing. One error rate serves the run: each of the checks that a contract *ships*
has an equal share, whichever are run, so that neither workers nor `-k` change a verdict.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

from fairdraw._core.budget import BudgetEnded, before_it_began, cut_short, guarded, is_cut, is_enough
from fairdraw._core.checks import AnyCheck, Conditions, DrawnQuestion, OutOfTime, Profile, Resolution
from fairdraw._core.failures import CheckFailure, Ended, Inconclusive
from fairdraw._core.seeds import DEFAULT_SEED, derive_seed
from fairdraw.contracts import Capability, RejectionSampler
from fairdraw.statistical._count_tables import Counts
from fairdraw.statistical._decision import Decision, Verdict, decide
from fairdraw.statistical._design import FALSE_PASS_RATE, Plans, SamplePlan, plan_tables

if TYPE_CHECKING:  # torch comes with it, and checks of servers need none
    from fairdraw.statistical._workloads import SamplingPlan, Workload

_FIXED_SEED_RATE, _OTHER_SEED_RATE = 1e-6, 1e-4

_CUDA_FACTOR = 100


def false_fail_rate(seed: int) -> float:
    """Of a whole run: 1e-6 with the seed of the release, which everybody uses; 1e-4 with any other, drawn afresh.

    Example:
        >>> false_fail_rate(12345678901)
        0.0001
    """
    return _FIXED_SEED_RATE if seed == DEFAULT_SEED else _OTHER_SEED_RATE


@dataclass(frozen=True)
class DistributionCheck(DrawnQuestion):
    """A check of some tables of a workload.

    Args:
        tables: The tables that it judges, by the beginnings of their names.
        share: Of the run's false-fail rate.
        fast_only: It is skipped for a slow sampler.
    """

    workload: Workload
    tables: tuple[str, ...]
    share: float = 1.0
    fast_only: bool = False

    @classmethod
    def of(
        cls, code: str, workload: Workload, needs: tuple[Capability, ...] = (), **fields: Any
    ) -> Callable[[Callable[[], tuple[str, ...]]], Self]:  # Any: other fields of a check
        """Make a check of a function that says which tables it judges."""

        about: dict[str, Any] = {"workload": workload, "needs": needs, **fields}
        return lambda tables: cls.named(tables, code, suite="statistical", tables=tables(), **about)

    def why_not(self, sampler: RejectionSampler, reference: object = None) -> str | None:
        if self.fast_only and sampler.capabilities.slow:
            return "the sampler is slow, and so many or so wide rows would take minutes"
        return super().why_not(sampler, reference)

    def sampling_plan(self, sampler: RejectionSampler, profile: Profile) -> SamplingPlan:
        """The workload, prepared for what `sampler` can draw under the whole of `profile`."""
        return self.workload.sampling_plan(sampler, self.num_draws(sampler, profile.whole))

    def planned(self, sampler: RejectionSampler, profile: Profile, seed: int) -> tuple[int, Plans]:
        """How many checkpoints are drawn, and the plan of each table; both follow from the arguments alone.

        The first ones, if `profile` is a part of another; all of them, if that part would show nothing.
        """
        sampling_plan, rate = self.sampling_plan(sampler, profile), self.share * false_fail_rate(seed)
        own = {name: table for name, table in sampling_plan.tables.items() if name.startswith(self.tables)}
        most = sampling_plan.num_checkpoints
        part = min(most, math.ceil(most * profile.scale))
        plans = plan_tables(own, part, rate)
        if part == most or all(isinstance(plan, SamplePlan) for plan in plans.values()):
            return part, plans
        return most, plan_tables(own, most, rate)

    def num_draws(self, sampler: RejectionSampler, profile: Profile) -> int:
        """How many draws `profile` has for it, on the sampler's device."""
        return super().num_draws(sampler, profile) * (_CUDA_FACTOR if sampler.device.startswith("cuda") else 1)

    def plans(self, sampler: RejectionSampler, profile: Profile, seed: int) -> Plans:
        """The plan of each table, as in `planned`."""
        return self.planned(sampler, profile, seed)[1]

    def resolution(self, sampler: Any, profile: Profile, seed: int, num_draws: int) -> Resolution:
        """Return the worst of its tables, as planned with power 0.999."""
        tables, plans = self.sampling_plan(sampler, profile).tables, self.plans(sampler, profile, seed)
        seen = [p.discrepancy * tables[name].event_prob for name, p in plans.items() if isinstance(p, SamplePlan)]
        return Resolution(tv=max(seen, default=None))

    def decide(
        self, sampler: RejectionSampler, profile: Profile, seed: int, out_of_time: OutOfTime = lambda: False
    ) -> Decision:
        """Draw and count, checkpoint after checkpoint, until the verdict is known or time is out.

        A checkpoint that the time budget ends in the middle of a call is lost, whatever its counts were. That does not
        depend on them, so that error rates stay. What was drawn in this process is not drawn again.
        """
        sampling_plan, guarded_sampler = self.sampling_plan(sampler, profile), guarded(sampler, out_of_time)
        workload_seed = derive_seed("statistical", seed, self.workload.name)
        num_checkpoints, plans = self.planned(sampler, profile, seed)

        def checkpoints() -> Iterator[Counts]:
            for checkpoint in range(num_checkpoints):
                if out_of_time() or is_enough(out_of_time, checkpoint / sampling_plan.num_checkpoints):
                    return
                try:
                    counts = sampling_plan.shared_counts(guarded_sampler, workload_seed, checkpoint)
                except BudgetEnded:
                    return
                yield counts

        return decide(sampling_plan.tables, plans, checkpoints(), self.share * false_fail_rate(seed))

    def judge(self, sampler: RejectionSampler, under: Conditions) -> int:
        """Draw and count until the verdict is known.

        Args:
            under: Time is looked at before each checkpoint and before each call of the sampler.

        Returns:
            The number of draws judged. Checks of the same workload judge the same draws.

        Raises:
            CapabilityUnsupported: If the sampler does not support what the check needs.
            CheckFailure: If the distribution is another. The exception carries the case that replays it as `case`.
            Inconclusive: If the budget shows nothing, or time is out.

        Error rates:
            A correct sampler fails with probability at most `share * false_fail_rate(seed)`. One whose tables are as
            far off as their plans say passes with probability at most 1e-3.

        Randomness:
            Everything follows from `seed`, the workload and the number of draws, unless the sampler takes no noise at
            all: it then draws by itself.
        """
        chosen, out_of_time = under.profile, under.out_of_time
        sampling_plan = self.sampling_plan(sampler, chosen)
        decision = self.decide(sampler, chosen, under.seed, out_of_time)
        num_draws = decision.num_checkpoints * sampling_plan.draws_per_checkpoint
        if decision.verdict is Verdict.PASS:
            return num_draws
        if decision.verdict is Verdict.FAIL:
            error: Ended = decision_failure(decision)
        elif decision.num_checkpoints < sampling_plan.num_checkpoints and (chosen.scale < 1 or is_cut(out_of_time)):
            error = cut_short(decision.reason, num_draws) if num_draws else before_it_began()
        else:
            error = Inconclusive(f"the budget of draws shows too little: {decision.reason}")
        error.case, error.tried = self.case(sampler, chosen), num_draws
        raise error


Sharing = TypeVar("Sharing", bound=DrawnQuestion)


def sharing(checks: Sequence[Sharing]) -> tuple[Sharing, ...]:
    """Return the checks with equal shares of the run's false-fail rate."""
    share: dict[str, Any] = {"share": 1 / len(checks)}  # Any: a field
    return tuple(dataclasses.replace(check, **share) for check in checks)


def decision_failure(decision: Decision) -> CheckFailure:
    """The failure, described by the table that carries most of the evidence."""
    if decision.shortfall:
        return CheckFailure(decision.shortfall, evidence="a binomial test of the number of observations")
    worst = max(decision.evidence, key=lambda table: (table.num_impossible > 0, table.log_e_value))
    # What decided comes first: beside it the distance is a detail.
    decided = f"{worst.impossible}; {worst.distance}" if worst.impossible else worst.distance
    effect = f"{worst.name}: {decided}; worst {worst.worst_cell}"
    threshold = decision.log_threshold / math.log(10)
    if worst.num_impossible:
        evidence = f"{worst.num_impossible} observations of probability 0; one decides"
    else:
        evidence = (
            f"E = 10^{decision.log_e_value / math.log(10):.1f} >= threshold 10^{threshold:.1f}; "
            f"chi-square {worst.chi_square:.1f} (p = {worst.p_value:.2g})"
        )
    return CheckFailure(effect, evidence=evidence, distance=worst.tv_distance)


def fairness(checks: Iterable[AnyCheck], sampler: RejectionSampler, profile: Profile, seed: int) -> str:
    """Return error rates for the header. What a run could have seen is known when it ends, by slice."""
    open_checks = [one for one in checks if isinstance(one, DrawnQuestion) and one.why_not(sampler) is None]
    drawing = [check for check in open_checks if isinstance(check, DistributionCheck)]
    if not open_checks:
        return "the sampler supports no statistical check"
    plans = [plan for check in drawing for plan in check.plans(sampler, profile, seed).values()]
    powerless = sum(not isinstance(plan, SamplePlan) for plan in plans)
    shipped = f" over {round(1 / drawing[0].share)} checks" if drawing else ""
    return (
        f"alpha {false_fail_rate(seed):.0e}{shipped}, power {1 - FALSE_PASS_RATE:g}; "
        "what could be seen, by slice: at the end"
        + (f"; {powerless} tables have no power" if powerless else "")
        + ("; a slow sampler: few draws" if sampler.capabilities.slow else "")
    )
