"""A statistical check: some tables of one workload, and the decision.

Each check has a code of its own, so that a failure says what is wrong; checks of one workload share its samples
(`workloads`), so that codes cost nothing. One error rate serves the run: each of the checks that a contract *ships* has
an equal share, whichever are run, so that neither workers nor `-k` change a verdict.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairdraw._core.budget import before_it_began, cut_short, guarded
from fairdraw._core.checks import PROFILES, AnyCheck, DrawnQuestion, OutOfTime, Profile
from fairdraw._core.failures import CapabilityUnsupported, CheckFailure, Ended, Inconclusive
from fairdraw._core.seeds import DEFAULT_SEED, derive_seed
from fairdraw.statistical._count_tables import merge_counts
from fairdraw.statistical._decision import SequentialCheck, Verdict
from fairdraw.statistical._design import SamplePlan
from fairdraw.statistical._stratified_check import StratifiedCheck
from fairdraw.statistical._watching import watch
from fairdraw.statistical._workloads import SamplingPlan, Workload, shared_counts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairdraw._core.checks import DistributionCase
    from fairdraw.protocols import RejectionSampler
    from fairdraw.statistical._decision import Decision
    from fairdraw.statistical._design import NoPower
    from fairdraw.statistical._workloads import Counts

__all__ = ["FALSE_PASS_RATE", "DistributionCheck", "fairness", "false_fail_rate"]

FALSE_PASS_RATE = 1e-3

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
    """A promise about a distribution, put to some tables of a workload.

    Args:
        tables: The tables that it judges, by the beginnings of their names.
        share: Of the run's false-fail rate.
    """

    workload: Workload
    tables: tuple[str, ...]
    share: float = 1.0

    def sampling_plan(self, sampler: RejectionSampler, profile: Profile) -> SamplingPlan:
        """The workload, prepared for what `sampler` can draw under `profile`."""
        return self.workload.sampling_plan(sampler, self.num_draws(sampler, profile))

    def num_draws(self, sampler: RejectionSampler, profile: Profile) -> int:
        """How many draws `profile` has for it, on the sampler's device."""
        factor = _CUDA_FACTOR if sampler.device.startswith("cuda") else 1
        return super().num_draws(sampler, profile) * factor

    def plans(self, sampler: RejectionSampler, profile: Profile, seed: int) -> dict[str, SamplePlan | NoPower]:
        """The plan of each table, which follows from the arguments alone."""
        sampling_plan = self.sampling_plan(sampler, profile)
        names = [name for name in sampling_plan.tables if name.startswith(self.tables)]
        return sampling_plan.plan(names, self.share * false_fail_rate(seed) / len(names))

    def run(
        self,
        sampler: RejectionSampler,
        *,
        profile: Profile | None = None,
        seed: int = 0,
        reference: RejectionSampler | None = None,
        out_of_time: OutOfTime = lambda: False,
    ) -> int:
        """Draw, count and look until the verdict is known.

        Args:
            reference: Not used; every check takes one.
            out_of_time: Asked before each look and before each call of the sampler.

        Returns:
            The number of draws judged. Checks of the same workload judge the same draws.

        Raises:
            CapabilityUnsupported: If the sampler does not support what the check needs.
            CheckFailure: If the distribution is another. The exception carries what replays it as `case`.
            Inconclusive: If the budget shows nothing, or time is out.

        Error rates:
            A right sampler fails with probability at most `share * false_fail_rate(seed)`. One whose tables are as far
            off as their plans say passes with probability at most 1e-3.

        Randomness:
            Everything follows from `seed`, the workload and the number of draws, unless the sampler takes no noise at
            all: it then draws by itself.
        """
        reason = self.why_not(sampler, reference)
        if reason is not None:
            raise CapabilityUnsupported(reason)
        chosen = profile or PROFILES["ci"]
        sampling_plan, plans = self.sampling_plan(sampler, chosen), self.plans(sampler, chosen, seed)
        check = SequentialCheck(
            plans, self.share * false_fail_rate(seed), {name: sampling_plan.tables[name].label for name in plans}
        )
        num_looks, asked = 0, guarded(sampler, out_of_time)

        def count(look: int) -> Counts:
            nonlocal num_looks
            counts = shared_counts(asked, sampling_plan, self._workload_seed(seed), look)
            num_looks = look + 1
            return counts

        decision = watch(check, count, num_looks=sampling_plan.num_looks, out_of_time=out_of_time)
        num_draws = num_looks * sampling_plan.draws_per_look
        ended = num_looks < sampling_plan.num_looks and out_of_time()
        _raise_unless_passed(decision, num_draws, self.case(sampler, chosen), ended=ended)
        return num_draws

    def counts(self, sampler: RejectionSampler, profile: Profile, seed: int) -> Counts:
        """The sum of all looks of the run; what `run` has drawn in this process is not drawn again.

        Raises:
            BudgetEnded: If `sampler` is guarded and time is out, unless everything was drawn before.
        """
        sampling_plan = self.sampling_plan(sampler, profile)
        looks = [
            shared_counts(sampler, sampling_plan, self._workload_seed(seed), look)
            for look in range(sampling_plan.num_looks)
        ]
        return {name: merge_counts(look[name] for look in looks) for name in sampling_plan.tables} if looks else {}

    def _workload_seed(self, seed: int) -> int:
        return derive_seed("statistical", seed, self.workload.name)

    def __call__(self, sampler: RejectionSampler) -> None:
        """Run with the `ci` profile and the release's seed (for `parametrize_with_checks`)."""
        self.run(sampler, seed=DEFAULT_SEED)


def _raise_unless_passed(decision: Decision, num_draws: int, case: DistributionCase, *, ended: bool) -> None:
    if decision.verdict is Verdict.PASS:
        return
    error: Ended
    if decision.verdict is Verdict.INCONCLUSIVE:
        shows_little = Inconclusive(f"the budget of draws shows too little: {decision.reason}")
        error = _cut(decision, num_draws) if ended else shows_little
    else:
        error = _failure(decision)
    error.case, error.tried = case, num_draws
    raise error


def _cut(decision: Decision, num_draws: int) -> Inconclusive:
    return cut_short(decision.reason, num_draws) if num_draws else before_it_began()


def _failure(decision: Decision) -> CheckFailure:
    """The failure, told by the table that carries most of the evidence."""
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
    """What the run can see, for the header: alpha, distances and power, from the plans; and strata."""
    open_checks = [check for check in checks if check.why_not(sampler) is None]
    asked = [check for check in open_checks if isinstance(check, DistributionCheck)]
    strata = [check.num_strata(sampler, profile) for check in open_checks if isinstance(check, StratifiedCheck)]
    exactly = f"stratified noise sees every probability off by {1 / max(*strata, 1):.2g}" if any(strata) else ""
    if not asked:
        return exactly or "every statistical check is unsupported for this sampler"
    worst: dict[str, float] = {}
    powerless = 0
    for check in asked:
        sampling_plan = check.sampling_plan(sampler, profile)
        for name, plan in check.plans(sampler, profile, seed).items():
            if isinstance(plan, SamplePlan):
                seen = plan.discrepancy * sampling_plan.tables[name].event_prob
                worst[check.workload.group] = max(worst.get(check.workload.group, 0.0), seen)
            else:
                powerless += 1
    alpha, shipped = false_fail_rate(seed), round(1 / asked[0].share)
    seen_text = ", ".join(f"{distance:.2g} ({group})" for group, distance in worst.items()) or "nothing"
    return (
        f"alpha {alpha:.0e} over {shipped} checks; sees TV >= {seen_text} with power {1 - FALSE_PASS_RATE:g}"
        + (f"; {powerless} tables have no power" if powerless else "")
        + ("; a slow sampler: few draws, coarse TV" if sampler.capabilities.slow else "")
        + (f"; {exactly}" if exactly else "")
    )
