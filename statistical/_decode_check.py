"""Could the target model have written this? The decoding loop, its statistics and the decision, put together.

A scenario is a setup and the statistics whose distributions are exact for it. `decode_scenarios` has four, each of
which sees faults that the others miss. The checks of a run draw them through `workloads.decoding`; `check_decoding`
runs one of them by itself.

Cost:
    A sampler vectorised over requests decodes and judges 100 000 to 200 000 tokens a second on one CPU core, the oracle
    20 000, an interpreted kernel 100: give a slow sampler fewer requests (`decode_scenarios(32, 320)`), not fewer
    scenarios. Tensors are small here, so torch is fastest with one thread; with two, on a busy machine of two cores, it
    was 15 times slower.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fairdraw._core.seeds import derive_seed
from fairdraw.protocols import Capability
from fairdraw.statistical._decision import Decision, SequentialCheck
from fairdraw.statistical._decode import DecodeSetup, decode
from fairdraw.statistical._decode_distributions import (
    AcceptedDrafts,
    FirstTokens,
    FrequentContexts,
    Neighbours,
    NextTokens,
)
from fairdraw.statistical._design import NoPower, SamplePlan, finest_plan
from fairdraw.statistical._outcomes import Verification

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from fairdraw.protocols import RejectionSampler
    from fairdraw.statistical._decode import Decoding
    from fairdraw.statistical._decode_distributions import DecodeDistribution, DecodeStatistic

__all__ = ["DecodeScenario", "check_decoding", "decode_scenarios", "plan_decoding"]


@dataclass(frozen=True, eq=False)
class DecodeScenario:
    """What is decoded, and how it is judged."""

    setup: DecodeSetup
    statistics: Sequence[DecodeStatistic]

    def distributions(self) -> dict[str, DecodeDistribution]:
        """The distribution of every table, by its name."""
        return {
            name: distribution
            for statistic in self.statistics
            for name, distribution in statistic.distributions.items()
        }

    def count(self, decoding: Decoding) -> dict[str, NDArray[np.int64]]:
        """The count table of a decoding for every distribution, `[num_cells + 1] int64` each."""
        return {name: table for statistic in self.statistics for name, table in statistic.count(decoding).items()}


def decode_scenarios(
    num_requests: int = 2048,
    num_sequences: int = 4096,
    verification: Verification = Verification.TOKEN,
    supported: Collection[Capability] = frozenset(Capability),
) -> dict[str, DecodeScenario]:
    """The standard scenarios by name.

    Args:
        num_requests: Decoded side by side in each of the three scenarios with text: 12 tokens each.
        num_sequences: The same for the small language: 4 tokens each. A few hundred are the least that show anything.
        verification: How the sampler says that it accepts. What is emitted has the same distribution for all; accepted
            drafts are counted for token verification alone.
        supported: Setups need no other capabilities (`DecodeSetup.within`).
    """
    text = replace(DecodeSetup.of_shipped_text(), num_requests=num_requests)
    own = replace(text, ragged=True, temperatures=(0.0, 0.7, 1.0, 1.4), presence_penalty=0.5, frequency_penalty=0.3)
    n_gram = replace(text, dense_drafts=False, temperatures=(0.8, 1.25))
    small = replace(
        DecodeSetup.of_shipped_text(8, num_prompts=1),
        num_requests=num_sequences,
        num_tokens=4,
        max_spec_len=2,
        temperatures=(0.8, 1.25),
        presence_penalty=0.7,
        frequency_penalty=0.2,
    )
    text, own, n_gram, small = (setup.within(supported) for setup in (text, own, n_gram, small))
    emitted: dict[str, tuple[DecodeSetup, list[DecodeStatistic]]] = {
        "text": (text, [NextTokens(text), FrequentContexts(text)]),
        "requests with parameters of their own": (own, [NextTokens(own)]),
        "n-gram drafts": (n_gram, [NextTokens(n_gram), FrequentContexts(n_gram)]),
        "sequences of a small language": (small, [NextTokens(small), FirstTokens(small), Neighbours(small)]),
    }
    counts_accepted = verification is Verification.TOKEN
    return {
        name: DecodeScenario(setup, [*statistics, AcceptedDrafts(setup)] if counts_accepted else statistics)
        for name, (setup, statistics) in emitted.items()
    }


def plan_decoding(
    scenario: DecodeScenario, *, num_decodings: int, false_fail_rate: float, false_pass_rate: float = 1e-3
) -> dict[str, SamplePlan | NoPower]:
    """Per table, the plan that sees the smallest distance which so many decodings can show.

    Optional tables that show nothing are left out.

    Args:
        false_fail_rate: Of all tables together.
    """
    distributions = scenario.distributions()
    plans = {
        name: finest_plan(
            distribution.probs,
            false_fail_rate=false_fail_rate / len(distributions),
            false_pass_rate=false_pass_rate,
            max_num_draws=distribution.num_draws * num_decodings,
            event_prob=distribution.event_prob,
        )
        for name, distribution in distributions.items()
    }
    return {
        name: plan
        for name, plan in plans.items()
        if isinstance(plan, SamplePlan) or not distributions[name].is_optional
    }


def check_decoding(
    sampler: RejectionSampler,
    scenario: DecodeScenario,
    *,
    num_decodings: int,
    false_fail_rate: float,
    seed: int = 0,
    noise: Capability | None = None,
    out_of_time: Callable[[], bool] = lambda: False,
) -> Decision:
    """Decode with `sampler` and say whether the target model could have written it; stop early if it could not.

    Args:
        num_decodings: Each decodes all requests of the scenario once, with new noise.
        noise: See `decode`.
        out_of_time: Asked before each decoding; ends the check, which is inconclusive then.

    Error rates:
        A right sampler fails with probability at most `false_fail_rate`, whatever the number of tables and looks. A
        table that is as far off as its plan (`plan_decoding`) says passes with probability at most 1e-3.

    Raises:
        CapabilityUnsupported: If the sampler does not support what the setup needs.
    """
    plans = plan_decoding(scenario, num_decodings=num_decodings, false_fail_rate=false_fail_rate)
    planned = [name for name, plan in plans.items() if isinstance(plan, SamplePlan)]
    check = SequentialCheck(
        plans, false_fail_rate, {name: distribution.label for name, distribution in scenario.distributions().items()}
    )
    for number in range(num_decodings):
        if out_of_time():
            break
        counts = scenario.count(decode(sampler, scenario.setup, derive_seed("decoding", seed, number), noise))
        if check.look({name: counts[name] for name in planned}):
            break
    return check.decide()
