"""Is a sampler fair, how sure are we, and how much could it be off?

From an exact distribution to a verdict, in the order in which the modules build on each other:

* `distributions`, `filters`: what the tokens *should* follow, by enumeration in float64 from the logits that the
  sampler got.
* `tables`, `pooling`: observations become counts; rare cells are pooled by expected probability, before sampling.
* `design`: how many samples make a given distance visible, or the plain statement that the budget cannot.
* `evidence`, `decision`, `watching`: an e-process decides, look after look; a chi-square p-value is shown beside it.
* `ledger`: evidence that adds up over nights.
* `pit`: pools rows that have nothing in common, such as every token of a production vocabulary.
* `configurations`, `outcomes`, `rejection`, `experiment`: the statistics S1 to S8 on small distributions chosen for
  them.
* `production`: S9, the same promises at production vocabularies.

A right sampler passes, a short budget is *inconclusive*, and a wrong distribution is said to be wrong by how much:

    >>> from fairdraw.statistical import DISAGREEING, Experiment
    >>> experiment = Experiment(DISAGREEING)
    >>> plans = experiment.plan(discrepancy=0.1, false_fail_rate=1e-6, max_num_draws=100_000)
    >>> max(plan.num_draws for plan in plans.values())
    8083

Importing this package imports NumPy and SciPy, not torch.
"""

from __future__ import annotations

from fairdraw.statistical._configurations import AGREEING, CONFIGURATIONS, DISAGREEING, ONE_HOT, RAGGED, Configuration
from fairdraw.statistical._decision import Decision, SequentialCheck, TableEvidence, Verdict, split_false_fail_rate
from fairdraw.statistical._design import NoPower, SamplePlan, finest_plan, plan_samples
from fairdraw.statistical._experiment import Experiment
from fairdraw.statistical._ledger import Ledger
from fairdraw.statistical._outcomes import Verification
from fairdraw.statistical._production import DistributionPool, ProductionExperiment

__all__ = [
    "AGREEING",
    "CONFIGURATIONS",
    "DISAGREEING",
    "ONE_HOT",
    "RAGGED",
    "Configuration",
    "Decision",
    "DistributionPool",
    "Experiment",
    "Ledger",
    "NoPower",
    "ProductionExperiment",
    "SamplePlan",
    "SequentialCheck",
    "TableEvidence",
    "Verdict",
    "Verification",
    "finest_plan",
    "plan_samples",
    "split_false_fail_rate",
]
