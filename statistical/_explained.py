"""A distribution check whose failure begins with its cause, in words that its counts give."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fairdraw._core.checks import Conditions, Profile
from fairdraw._core.failures import CheckFailure, raised_by
from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import RejectionSampler
from fairdraw.statistical._count_tables import Counts
from fairdraw.statistical._distribution_check import DistributionCheck
from fairdraw.statistical._workloads import SamplingPlan

Explain = Callable[[Sequence[Counts], str], str]
"""From the counts of the checkpoints, and the name of the table that carries most of the evidence, to the cause."""


@dataclass(frozen=True, eq=False)
class ExplainedPlan(SamplingPlan):
    """A sampling plan that can say in words what its counts show."""

    explain: Explain


@dataclass(frozen=True)
class ExplainedCheck(DistributionCheck):
    """Runs as any distribution check; the plans of its workload are explained ones."""

    def judge(self, sampler: RejectionSampler, under: Conditions) -> int:
        """Judge as `DistributionCheck` does; the effect of a failure begins with its cause."""
        try:
            return super().judge(sampler, under)
        except CheckFailure as failure:
            if raised_by(failure) is None:
                cause = self._cause(sampler, under.profile, under.seed, failure)
                failure.effect = f"{cause}; {failure.effect}"
                failure.args = (f"{failure.effect} ({failure.evidence})",)
            raise

    def _cause(self, sampler: RejectionSampler, profile: Profile, seed: int, failure: CheckFailure) -> str:
        """What the counts of the checkpoints show that were drawn; nothing is drawn again."""
        plan = self.sampling_plan(sampler, profile)
        assert isinstance(plan, ExplainedPlan)
        workload_seed = derive_seed("statistical", seed, self.workload.name)
        reached = range(failure.tried // plan.draws_per_checkpoint)
        counts = [plan.shared_counts(sampler, workload_seed, checkpoint) for checkpoint in reached]
        return plan.explain(counts, next(name for name in plan.tables if failure.effect.startswith(f"{name}: ")))
