"""A distribution check whose failure begins with its cause, in words that its counts give."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairdraw._core.checks import PROFILES
from fairdraw._core.failures import CheckFailure, raised_by
from fairdraw._core.seeds import derive_seed
from fairdraw.statistical._count_tables import Counts, Table
from fairdraw.statistical._distribution_check import DistributionCheck
from fairdraw.statistical._workloads import SamplingPlan, shared_counts

if TYPE_CHECKING:
    from fairdraw._core.checks import OutOfTime, Profile
    from fairdraw.protocols import RejectionSampler

Explain = Callable[[Sequence[Counts], Mapping[str, Table]], str]
"""From the counts of the checkpoints and the tables of a check to the cause of its failure."""


@dataclass(frozen=True, eq=False)
class ExplainedPlan(SamplingPlan):
    """A sampling plan that can say in words what its counts show."""

    explain: Explain


@dataclass(frozen=True)
class ExplainedCheck(DistributionCheck):
    """Runs as any distribution check; the plans of its workload are explained ones."""

    def run(
        self,
        sampler: RejectionSampler,
        *,
        profile: Profile | None = None,
        seed: int = 0,
        reference: RejectionSampler | None = None,
        out_of_time: OutOfTime = lambda: False,
    ) -> int:
        """As `DistributionCheck.run`; the effect of a failure begins with its cause."""
        chosen = profile or PROFILES["ci"]
        try:
            return super().run(sampler, profile=chosen, seed=seed, reference=reference, out_of_time=out_of_time)
        except CheckFailure as failure:
            if raised_by(failure) is None:
                cause = self._cause(sampler, chosen, seed, failure.tried)
                failure.effect = f"{cause}; {failure.effect}"
                failure.args = (f"{failure.effect} ({failure.evidence})",)
            raise

    def _cause(self, sampler: RejectionSampler, profile: Profile, seed: int, num_draws: int) -> str:
        """What the counts of the checkpoints show that were drawn; nothing is drawn again."""
        plan = self.sampling_plan(sampler, profile)
        assert isinstance(plan, ExplainedPlan)
        workload_seed = derive_seed("statistical", seed, self.workload.name)
        reached = range(num_draws // plan.draws_per_checkpoint)
        counts = [shared_counts(sampler, plan, workload_seed, checkpoint) for checkpoint in reached]
        return plan.explain(counts, {n: t for n, t in plan.tables.items() if n.startswith(self.tables)})
