"""What the statistical checks draw from: a workload is a configuration, a production vocabulary, or a text to decode.

One drawing serves many tables, and a check judges some of them. So a workload is prepared for a budget once
(`SamplingPlan`), and drawn once per sampler and seed (`shared_counts`), however many checks ask; what is remembered are
count tables, a few kilobytes. Workers of other processes draw again what they need, and find the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from fairdraw._core.budget import unwrapped
from fairdraw._core.harness import emit
from fairdraw._core.seeds import derive_seed
from fairdraw.protocols import Capability, FilterPolicy, filter_policy
from fairdraw.statistical._decode import decode, make_noise
from fairdraw.statistical._decode_check import decode_scenarios
from fairdraw.statistical._design import NoPower, SamplePlan, finest_plan
from fairdraw.statistical._experiment import Experiment
from fairdraw.statistical._production import EQUAL_DRAFTS, RAGGED_DRAFTS, DistributionPool, ProductionExperiment
from fairdraw.statistical._watching import NUM_LOOKS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from fairdraw.protocols import RejectionSampler, SpecDecodeBatch
    from fairdraw.statistical._configurations import Configuration
    from fairdraw.statistical._watching import Draw

__all__ = [
    "SamplingPlan",
    "Setting",
    "WatchedTable",
    "Workload",
    "decoding",
    "noise_kinds",
    "production",
    "shared_counts",
    "small_distributions",
]

Counts = Mapping[str, "NDArray[np.int64]"]

_PRODUCTION_VOCAB_SIZE, _SMALLER_VOCAB_SIZE, _NUM_DISTRIBUTIONS = 32768, 1024, 24
"""The larger has several tiles of every kernel, and its pool takes 90 MB; the smaller is for samplers that do not take
large ones."""

_MOST_ROWS, _MOST_ROWS_CUDA = 14, 19
"""Logarithms to base 2 of the rows per call: what a cache holds, and what keeps a GPU busy between calls."""


@dataclass(frozen=True, eq=False)
class WatchedTable:
    """One table of a sampling_plan, and how many draws there will be of it.

    Args:
        observed_per_draw: Probability, at least, that a draw is an observation.
        event_prob: The same without counting a pair as two draws; it turns a distance given the event into one of rows.
        is_optional: Without power it is left out, because other tables see the same faults.
    """

    probs: NDArray[np.float64]  # [num_cells] float64
    max_num_draws: int
    possible: NDArray[np.bool_] | None = None  # [num_cells] bool
    observed_per_draw: float = 1.0
    event_prob: float = 1.0
    label: Callable[[int], str] = str
    is_optional: bool = False


@dataclass(frozen=True, eq=False)
class SamplingPlan:
    """A workload, prepared for a budget.

    Args:
        tables: Everything that is counted.
        count: From a sampler and a seed to the count tables of one look.
        draws_per_look: Rows (or draft positions, or decoded tokens).
    """

    tables: Mapping[str, WatchedTable]
    count: Callable[[RejectionSampler, int], Counts]
    num_looks: int
    draws_per_look: int

    def plan(self, names: Iterable[str], false_fail_rate: float) -> dict[str, SamplePlan | NoPower]:
        """Per table the plan that sees the smallest distance that the budget can show.

        Args:
            false_fail_rate: Of each table.
        """
        plans = {
            name: finest_plan(
                table.probs,
                false_fail_rate=false_fail_rate,
                max_num_draws=table.max_num_draws,
                event_prob=table.observed_per_draw,
                possible=table.possible,
            )
            for name in names
            for table in [self.tables[name]]
        }
        return {n: plan for n, plan in plans.items() if isinstance(plan, SamplePlan) or not self.tables[n].is_optional}


@dataclass(frozen=True)
class Setting:
    """What a sampling_plan is prepared for.

    Args:
        num_draws: At most so many are drawn.
        filters: How the sampler filters.
        supported: Of the capabilities that the workload adapts to, those that the sampler supports.
    """

    num_draws: int
    device: str
    filters: FilterPolicy
    supported: frozenset[Capability]


@dataclass(frozen=True)
class Workload:
    """Something to draw from.

    Args:
        group: The word under which the header tells what can be seen.
        share: Draws, as a share of the profile's; a draw costs more here and less there.
        slow_share: The same for slow samplers, whose costs are others.
        prepare: From a setting to a sampling_plan.
        adapts_to: Capabilities without which other requests are drawn, instead of none. Only what a table is about
            belongs into the needs of a check.
    """

    name: str
    group: str
    share: float
    slow_share: float
    prepare: Callable[[Setting], SamplingPlan]
    adapts_to: frozenset[Capability] = frozenset()

    def sampling_plan(self, sampler: RejectionSampler, num_draws: int) -> SamplingPlan:
        """The sampling_plan of `sampler` for a profile's number of draws; prepared once for samplers of a kind."""
        share = self.slow_share if sampler.capabilities.slow else self.share
        supported = frozenset(one for one in self.adapts_to if one in sampler.capabilities)
        setting = Setting(round(num_draws * share), sampler.device, filter_policy(sampler), supported)
        return _prepared(self, setting)


@lru_cache(maxsize=64)
def _prepared(workload: Workload, setting: Setting) -> SamplingPlan:
    return workload.prepare(setting)


def noise_kinds(sampler: RejectionSampler) -> list[Capability]:
    """The kinds of noise that `sampler` takes; its own random numbers first, because it runs on them.

    One that takes neither is given seeds, as by the properties. It draws by itself and may ignore them, so it cannot be
    drawn from again; but what it draws has a distribution, and a right one fails no more often than any other.
    """
    kinds = (Capability.SEEDED_NOISE, Capability.EXPLICIT_NOISE)
    return [kind for kind in kinds if kind in sampler.capabilities] or [Capability.SEEDED_NOISE]


def _drawing_from(sampler: RejectionSampler) -> Draw:
    kinds = noise_kinds(sampler)

    def draw(batch: SpecDecodeBatch, seed: int) -> NDArray[np.int32]:  # [batch_size, max_spec_len + 1] int32
        return emit(sampler, batch, make_noise(kinds[0], batch, seed)).tokens

    return draw


class _SharedCounts:
    """The looks taken at one sampler so far."""

    def __init__(self) -> None:
        self._sampler: RejectionSampler | None = None
        self._looks: dict[tuple[SamplingPlan, int], list[Counts]] = {}

    def of(self, sampler: RejectionSampler, sampling_plan: SamplingPlan, seed: int) -> list[Counts]:
        """The looks of one sampling_plan; another sampler starts anew, and the same one in another wrapper does not."""
        sampler = unwrapped(sampler)
        if sampler is not self._sampler:
            self._sampler, self._looks = sampler, {}
        return self._looks.setdefault((sampling_plan, seed), [])


_shared = _SharedCounts()


def shared_counts(sampler: RejectionSampler, sampling_plan: SamplingPlan, seed: int, look: int) -> Counts:
    """The count tables of one look, drawn the first time that a check asks for them.

    Randomness:
        Everything follows from `seed` and the number of the look.
    """
    looks = _shared.of(sampler, sampling_plan, seed)
    while len(looks) <= look:
        looks.append(sampling_plan.count(sampler, derive_seed("look", seed, len(looks))))
    return looks[look]


def _looks(num_draws: int, per_call: int) -> tuple[int, int]:
    """Number of looks, and calls per look, so that no more than `num_draws` are drawn."""
    per_look = max(1, num_draws // (per_call * NUM_LOOKS))
    return num_draws // (per_call * per_look), per_look


_DENSE, _RAGGED, _GREEDY = Capability.DENSE_DRAFTS, Capability.RAGGED, Capability.GREEDY


def small_distributions(given: Configuration, share: float) -> Workload:
    """S1 to S8 on one configuration; a sampler without draft probabilities is not told them."""
    adapts_to: frozenset[Capability] = frozenset() if given.requests[0].one_hot else frozenset({_DENSE})

    def prepare(setting: Setting) -> SamplingPlan:
        num_draws, device = setting.num_draws, setting.device
        configuration = given if setting.supported == adapts_to else given.without_draft_probs()
        # As large as leaves every look its pair of calls: rows far apart are compared, too.
        most = _MOST_ROWS_CUDA if device.startswith("cuda") else _MOST_ROWS
        batch_size = 1 << min(most, max(6, (num_draws // (2 * NUM_LOOKS)).bit_length() - 1))
        num_looks, num_pairs = _looks(num_draws, 2 * batch_size)
        experiment = Experiment(configuration, batch_size=batch_size, device=device)
        rows_per_look = 2 * num_pairs * batch_size
        rows_per_kind = num_looks * rows_per_look // len(configuration.requests)
        tables = {
            table.name: WatchedTable(
                table.distribution.probs,
                rows_per_kind,
                table.distribution.possible,
                table.distribution.event_prob / table.distribution.rows_per_observation,
                table.distribution.event_prob,
                table.distribution.label,
            )
            for table in experiment.tables
        }

        def count(sampler: RejectionSampler, seed: int) -> Counts:
            return experiment.count(experiment.draw(_drawing_from(sampler), 2 * num_pairs, seed))

        return SamplingPlan(tables, count, num_looks, rows_per_look)

    return Workload(given.name, "rows", share, share, prepare, adapts_to)


@lru_cache(maxsize=1)
def _production_distributions(supported: frozenset[Capability]) -> DistributionPool:
    vocab_size = _PRODUCTION_VOCAB_SIZE if Capability.LARGE_VOCAB in supported else _SMALLER_VOCAB_SIZE
    return DistributionPool.build(vocab_size, _NUM_DISTRIBUTIONS, seed=0, one_hot=_DENSE not in supported)


def production(share: float, slow_share: float) -> Workload:
    """S9 at a vocabulary of 32768 tokens; a smaller one, equal numbers of drafts or one-hot drafts where need be."""

    def prepare(setting: Setting) -> SamplingPlan:
        num_draws, device = setting.num_draws, setting.device
        batch_size = 1024 if device.startswith("cuda") else 64
        experiment = ProductionExperiment(
            _production_distributions(setting.supported - {_RAGGED}),
            batch_size=16 if num_draws < 8 * 1024 else batch_size,
            device=device,
            cycle=RAGGED_DRAFTS if _RAGGED in setting.supported else EQUAL_DRAFTS,
        )
        per_call = sum(experiment.num_draft_tokens)
        num_looks, num_calls = _looks(num_draws, per_call)
        # A first position is always reached, so every verifier brings this many emitted tokens.
        at_least = np.count_nonzero(experiment.cycle) / sum(experiment.cycle)
        tables = {
            name: WatchedTable(
                experiment.cells.probs,
                num_looks * num_calls * per_call,
                observed_per_draw=observed,
                event_prob=event_prob,
                label=experiment.cells.label,
            )
            for name, event_prob in experiment.event_probs().items()
            for observed in [at_least if name.startswith("S9 emitted") else event_prob]
        }

        def count(sampler: RejectionSampler, seed: int) -> Counts:
            return experiment.count(_drawing_from(sampler), num_calls, seed)

        return SamplingPlan(tables, count, num_looks, num_calls * per_call)

    adapts_to = frozenset({_DENSE, _RAGGED, Capability.LARGE_VOCAB})
    return Workload("production", "production vocabulary", share, slow_share, prepare, adapts_to)


def decoding(scenario: str, share: float, slow_share: float) -> Workload:
    """One scenario of the decoding loop, as far as the sampler supports it; a draw is a decoded token."""

    def prepare(setting: Setting) -> SamplingPlan:
        num_draws, device = setting.num_draws, setting.device
        # Four decodings at least, each of at least 32 requests of 12 tokens, or 96 sequences of 4.
        most = 65536 if device.startswith("cuda") else 1024
        num_requests = min(most, max(32, num_draws // (4 * 12)))
        found = decode_scenarios(num_requests, 3 * num_requests, supported=setting.supported)[scenario]
        per_decoding = found.setup.num_requests * found.setup.num_tokens
        num_looks, num_decodings = _looks(num_draws, per_decoding)
        tables = {
            name: WatchedTable(
                distribution.probs,
                distribution.num_draws * num_looks * num_decodings,
                observed_per_draw=distribution.event_prob,
                event_prob=distribution.event_prob,
                label=distribution.label,
                is_optional=distribution.is_optional,
            )
            for name, distribution in found.distributions().items()
        }

        def count(sampler: RejectionSampler, seed: int) -> Counts:
            parts = [
                found.count(decode(sampler, found.setup, derive_seed("decoding", seed, number)))
                for number in range(num_decodings)
            ]
            return {name: np.sum([part[name] for part in parts], axis=0) for name in parts[0]}

        return SamplingPlan(tables, count, num_looks, num_decodings * per_decoding)

    group = "whole sequences" if "sequences" in scenario else "decoded tokens"
    adapts_to = frozenset({_DENSE, Capability.ONE_HOT_DRAFTS, _RAGGED, _GREEDY})
    return Workload(f"decoding: {scenario}", group, share, slow_share, prepare, adapts_to)
