"""What the statistical checks draw from, prepared for a budget.

One drawing serves many tables, and each check judges some of them. So a workload is prepared for a budget once
(`SamplingPlan`) and drawn once per sampler and seed (`shared_counts`), however many checks use it. What is remembered
are count tables, a few kilobytes. Other processes draw again what they need, and get the same counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fairdraw._core.seeds import derive_seed
from fairdraw._core.wrapping import unwrapped
from fairdraw.contracts import Capability, FilterPolicy, RejectionSampler, filter_policy
from fairdraw.statistical._configurations import Configuration
from fairdraw.statistical._count_tables import Counts, Table, sum_counts
from fairdraw.statistical._experiment import Experiment

NUM_CHECKPOINTS = 32
"""Checkpoints that a plan aims at; whole calls make it up to 63, and few draws make it fewer. A clear fault is found at
the first one; more would save little and cost time."""

_MOST_ROWS, _MOST_ROWS_CUDA = 14, 19
"""Logarithms to base 2 of the rows per call: what a cache holds, and what keeps a GPU busy between calls."""


@dataclass(frozen=True, eq=False)
class SamplingPlan:
    """A workload, prepared for a budget.

    Args:
        tables: Everything that is counted.
        count: From a sampler and a seed to the count tables of one checkpoint.
        num_checkpoints: How many there are at most.
        draws_per_checkpoint: Rows (or draft positions) per checkpoint.
    """

    tables: Mapping[str, Table]
    count: Callable[[RejectionSampler, int], Counts]
    num_checkpoints: int
    draws_per_checkpoint: int

    @classmethod
    def of_calls(
        cls,
        num_draws: int,
        per_call: int,
        tables: Callable[[int], Mapping[str, Table]],
        count: Callable[[Any, int], Counts],  # Any: a sampler of any contract
        word: str = "call",
    ) -> SamplingPlan:
        """Make the plan of at most `num_draws` draws, by calls that are counted one by one.

        Args:
            tables: From the number of a checkpoint's calls.
            count: From a sampler and a seed to the count tables of one call.
            word: Of the seed of a call.
        """
        num_checkpoints, num_calls = checkpoints(num_draws, per_call)

        def counted(sampler: Any, seed: int) -> Counts:
            return sum_counts(count(sampler, derive_seed(word, seed, number)) for number in range(num_calls))

        return cls(tables(num_calls), counted, num_checkpoints, num_calls * per_call)

    def shared_counts(self, sampler: RejectionSampler, seed: int, checkpoint: int) -> Counts:
        """The count tables of one checkpoint, drawn the first time that a check needs them.

        Randomness:
            Everything follows from `seed` and the number of the checkpoint.
        """
        drawn = _shared.of(sampler, self, seed)
        while len(drawn) <= checkpoint:
            drawn.append(self.count(sampler, derive_seed("look", seed, len(drawn))))
        return drawn[checkpoint]


@dataclass(frozen=True)
class Setting:
    """What a sampling plan is prepared for.

    Args:
        num_draws: At most so many are drawn.
        filters: How the sampler filters.
        supported: Of the capabilities that the workload adapts to, those that the sampler supports.
    """

    num_draws: int
    device: str
    filters: FilterPolicy
    supported: frozenset[Capability]
    slow: bool = False


@dataclass(frozen=True)
class Workload:
    """Something to draw from.

    Args:
        group: The word under which records report what it draws.
        share: Draws, as a share of the profile's; a draw costs more here and less there.
        slow_share: The same for slow samplers, whose costs differ.
        prepare: From a setting to a sampling plan.
        adapts_to: Capabilities without which other requests are drawn, instead of none. Only what a table is about
            belongs into the needs of a check.
    """

    name: str
    group: str
    share: float
    slow_share: float
    prepare: Callable[[Setting], SamplingPlan]
    adapts_to: frozenset[Capability] = frozenset()

    @classmethod
    def of(
        cls, name: str, group: str, share: float, slow_share: float, *adapts_to: Capability
    ) -> Callable[[Callable[[Setting], SamplingPlan]], Workload]:
        """Make a workload of the function that prepares its plans."""
        return lambda prepare: cls(name, group, share, slow_share, prepare, frozenset(adapts_to))

    def sampling_plan(self, sampler: RejectionSampler, num_draws: int) -> SamplingPlan:
        """The sampling plan of `sampler` for a profile's number of draws; prepared once for samplers of a kind."""
        slow = sampler.capabilities.slow
        share = self.slow_share if slow else self.share
        supported = frozenset(one for one in self.adapts_to if one in sampler.capabilities)
        setting = Setting(round(num_draws * share), sampler.device, filter_policy(sampler), supported, slow)
        return _prepared(self, setting)


@lru_cache(maxsize=64)
def _prepared(workload: Workload, setting: Setting) -> SamplingPlan:
    """The sampling plan of a workload; samplers of the same kind share it."""
    return workload.prepare(setting)


class _SharedCounts:
    """The checkpoints of one sampler so far."""

    def __init__(self) -> None:
        self._sampler: RejectionSampler | None = None
        self._drawn: dict[tuple[SamplingPlan, int], list[Counts]] = {}

    def of(self, sampler: RejectionSampler, sampling_plan: SamplingPlan, seed: int) -> list[Counts]:
        """The checkpoints of one sampling plan. Another sampler starts anew; the same one in another wrapper does
        not.
        """
        sampler = unwrapped(sampler)
        if sampler is not self._sampler:
            self._sampler, self._drawn = sampler, {}
        return self._drawn.setdefault((sampling_plan, seed), [])


_shared = _SharedCounts()


def checkpoints(num_draws: int, per_call: int) -> tuple[int, int]:
    """Number of checkpoints, and calls for each, so that no more than `num_draws` are drawn."""
    calls_each = max(1, num_draws // (per_call * NUM_CHECKPOINTS))
    return num_draws // (per_call * calls_each), calls_each


_ENOUGH_CYCLES, _ENOUGH_CALLS = 3, 8
"""For few draws, which a slow sampler gets: its calls cost more than their rows do."""


def cycles_per_call(num_draws: int, per_cycle: int, most: int) -> int:
    """How often a call repeats its cycle of requests: as often as leaves every checkpoint a call.

    If that is not even three times, fewer calls will do.
    """
    by_checkpoints = num_draws // (NUM_CHECKPOINTS * per_cycle)
    by_calls = min(_ENOUGH_CYCLES, num_draws // (_ENOUGH_CALLS * per_cycle))
    return min(most, max(1, by_checkpoints, by_calls))


def _plan_of(experiment: Experiment, num_draws: int, per_call: int) -> SamplingPlan:
    """The plan of at most so many draws."""
    num_checkpoints, num_calls = checkpoints(num_draws, per_call)

    def count(sampler: RejectionSampler, seed: int) -> Counts:
        return experiment.count(sampler, num_calls, seed)

    return SamplingPlan(experiment.tables(num_calls), count, num_checkpoints, num_calls * per_call)


def small_distributions(given: Configuration, share: float, slow_share: float) -> Workload:
    """S1 to S4 and SD on one configuration; a sampler of one-hot drafts alone gets no draft probabilities."""
    adapts_to = frozenset[Capability]() if given.requests[0].one_hot else frozenset({Capability.DENSE_DRAFTS})

    def prepare(setting: Setting) -> SamplingPlan:
        configuration = given if setting.supported == adapts_to else given.without_draft_probs()
        # As large as leaves every checkpoint two calls.
        most = _MOST_ROWS_CUDA if setting.device.startswith("cuda") else _MOST_ROWS
        batch_size = 1 << min(most, max(6, (setting.num_draws // (2 * NUM_CHECKPOINTS)).bit_length() - 1))
        return _plan_of(Experiment(configuration, batch_size, setting.device), setting.num_draws, batch_size)

    return Workload(given.name, "rows", share, slow_share, prepare, adapts_to)
