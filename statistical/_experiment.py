"""An experiment: a configuration, the tables watched on it, the calls that fill them, and the decision.

The sampler is behind one function, `draw(batch, seed) -> tokens`, so that this module knows neither adapters nor
harness. Counting and deciding are apart: `Experiment.count` can run in many processes, whose counts are added.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fairdraw._core.seeds import derive_seed
from fairdraw.protocols import PLACEHOLDER_TOKEN_ID
from fairdraw.statistical._configurations import Configuration, Drafter, RequestDistributions, draw_one_distribution
from fairdraw.statistical._decision import Decision, SequentialCheck
from fairdraw.statistical._design import NoPower, SamplePlan, plan_samples
from fairdraw.statistical._outcomes import Rows, Verification, distinct_rows, enumerate_outcomes
from fairdraw.statistical._rejection_statistics import (
    AcceptedCount,
    AcceptedDraft,
    BonusByDraft,
    CallPairs,
    CompletedRow,
    EmittedByDraft,
    OutputRow,
    RecoveredByDraft,
    RowPairs,
    Statistic,
    TableDistribution,
    count,
)
from fairdraw.statistical._validation import refuse
from fairdraw.statistical._watching import NUM_LOOKS, Draw, num_draws, watch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

__all__ = ["Experiment", "Sample", "Table"]

_MIN_EVENT_PROB = 0.05
"""An event rarer than this (under another verifier, say) is no target; another configuration is made for it."""

_INVALID_TOKEN_ID = -3


@dataclass(frozen=True)
class Sample:
    """What some calls gave.

    Args:
        tokens: Output of each call.
        draft_token_ids: Flattened over requests, as in `SpecDecodeBatch`.
        fill_uniforms: From the harness, to complete rows with.
    """

    tokens: NDArray[np.int32]  # [num_calls, batch_size, max_spec_len + 1] int32
    draft_token_ids: NDArray[np.int32]  # [num_calls, num_tokens] int32
    fill_uniforms: NDArray[np.float64]  # [num_calls, batch_size, max_spec_len + 1] float64

    def rows(self, configuration: Configuration, kind: int) -> Rows:
        """The rows of one kind of request. A token beyond a row's width makes the row invalid."""
        request, cycle = configuration.requests[kind], len(configuration.requests)
        width = request.num_draft + 1
        tokens = self.tokens[:, kind::cycle]
        too_long = (tokens[..., width:] != PLACEHOLDER_TOKEN_ID).any(axis=-1, keepdims=True)
        start = sum(other.num_draft for other in configuration.requests[:kind])
        per_cycle = sum(other.num_draft for other in configuration.requests)
        drafts = self.draft_token_ids.reshape(len(tokens), tokens.shape[1], per_cycle)
        return Rows(
            np.where(too_long, _INVALID_TOKEN_ID, tokens[..., :width]),
            drafts[..., start : start + request.num_draft],
            _fill_tokens(request, self.fill_uniforms[:, kind::cycle, :width]),
            request.vocab_size,
        )


@dataclass(frozen=True)
class Table:
    """One statistic on one kind of request, with its distribution."""

    name: str
    kind: int
    statistic: Statistic
    distribution: TableDistribution


@dataclass(frozen=True)
class Experiment:
    """A configuration and everything that is watched on it.

    Args:
        verification: How the sampler says that it accepts.
        batch_size: Requests per call; a multiple of the configuration's cycle.
        strides: Distances of row pairs; those that do not tile the rows of a call are left out.
        drafter: The user's own drafter; the harness's if `None`.
    """

    configuration: Configuration
    verification: Verification = Verification.TOKEN
    batch_size: int = 1024
    strides: tuple[int, ...] = (1, 8, 32, 256)
    drafter: Drafter | None = None
    device: str = "cpu"

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        """Every table whose event this configuration is made for."""
        found = []
        num_kinds = len(self.configuration.requests)
        for kind, request in enumerate(self.configuration.requests):
            outcomes = enumerate_outcomes(request, self.verification)
            suffix = f", request {kind}" if num_kinds > 1 else ""
            for statistic in self._statistics(request):
                distribution = statistic.distribution(outcomes)
                if statistic.code in self.configuration.targets and distribution.event_prob >= _MIN_EVENT_PROB:
                    found.append(Table(f"{statistic.code} {statistic.title}{suffix}", kind, statistic, distribution))
        return tuple(found)

    def _statistics(self, request: RequestDistributions) -> list[Statistic]:
        """All statistics that make sense for a request of this length."""
        if request.num_draft == 0:
            return [OutputRow()]
        positions = range(request.num_draft)
        rows_per_call = self.batch_size // len(self.configuration.requests)
        return [
            OutputRow(),
            CompletedRow(),
            AcceptedCount(),
            BonusByDraft(),
            CallPairs(),
            *(RowPairs(stride) for stride in self.strides if rows_per_call % (2 * stride) == 0),
            *(make(position) for make in (RecoveredByDraft, AcceptedDraft, EmittedByDraft) for position in positions),
        ]

    def plan(
        self,
        *,
        discrepancy: float,
        false_fail_rate: float,
        max_num_draws: int,
        false_pass_rate: float = 1e-3,
        tolerance: float = 0.0,
    ) -> dict[str, SamplePlan | NoPower]:
        """The plan of every table.

        Args:
            discrepancy: Total-variation distance of the distribution of whole rows (or of pairs) that each table shall
                see. A table of an event with probability `x` must see `discrepancy / x` given the event.
            false_fail_rate: Of the experiment; each table is planned with its share.
            max_num_draws: Rows that the budget allows.

        Error rates:
            See `SequentialCheck` and `SamplePlan`.
        """
        rows_per_kind = max_num_draws // len(self.configuration.requests)
        return {
            table.name: plan_samples(
                table.distribution.probs,
                discrepancy=min(discrepancy / table.distribution.event_prob, 0.99),
                false_fail_rate=false_fail_rate / len(self.tables),
                false_pass_rate=false_pass_rate,
                max_num_draws=rows_per_kind,
                event_prob=table.distribution.event_prob / table.distribution.rows_per_observation,
                tolerance=tolerance,
                possible=table.distribution.possible,
            )
            for table in self.tables
        }

    def draw(self, draw: Draw, num_calls: int, seed: int) -> Sample:
        """Call the sampler `num_calls` times, with fresh drafts, bonus tokens and noise each time.

        Raises:
            ValueError: If there is no call, or an output has another shape than `[batch_size, max_spec_len + 1]`.

        Randomness:
            Everything follows from `seed` and the number of the call.
        """
        if num_calls < 1:
            raise refuse("draw", f"num_calls={num_calls}", "it must be at least 1", "Nothing drawn is not a pass.")
        shape = (self.batch_size, self.configuration.max_spec_len + 1)
        tokens, drafts = [], []
        for call in range(num_calls):
            call_seed = derive_seed("call", seed, call)
            batch = self.configuration.batch(self.batch_size, call_seed, drafter=self.drafter, device=self.device)
            output = draw(batch, call_seed)
            if output.shape != shape:
                raise refuse("draw", f"tokens.shape={list(output.shape)}", f"it must be {list(shape)}", "One row each.")
            tokens.append(output)
            drafts.append(batch.draft_token_ids.cpu().numpy())
        fill = np.random.default_rng(derive_seed("fill", seed)).random((num_calls, *shape))
        return Sample(np.stack(tokens), np.stack(drafts), fill)

    def count(self, sample: Sample) -> dict[str, NDArray[np.int64]]:
        """The count table of every statistic; counts of several samples add up."""
        rows = [sample.rows(self.configuration, kind) for kind in range(len(self.configuration.requests))]
        distinct = [distinct_rows(same_kind) for same_kind in rows]
        return {
            table.name: count(table.statistic, rows[table.kind])
            if table.distribution.rows_per_observation > 1
            else count(table.statistic, *distinct[table.kind])
            for table in self.tables
        }

    def run(
        self,
        draw: Draw,
        plans: Mapping[str, SamplePlan | NoPower],
        *,
        false_fail_rate: float,
        seed: int,
        out_of_time: Callable[[], bool] = lambda: False,
    ) -> Decision:
        """Draw, count and look until the verdict is known, or time is out.

        Args:
            plans: From `plan`, or some of its tables.

        Error rates:
            See `SequentialCheck`.
        """
        check = SequentialCheck(plans, false_fail_rate, {table.name: table.distribution.label for table in self.tables})
        # Pairs of calls need an even number of them.
        num_pairs = -(-num_draws(plans) * len(self.configuration.requests) // (2 * self.batch_size))
        per_look = max(1, num_pairs // NUM_LOOKS)

        def count_look(look: int) -> dict[str, NDArray[np.int64]]:
            return self.count(self.draw(draw, 2 * per_look, derive_seed("look", seed, look)))

        return watch(check, count_look, num_looks=-(-num_pairs // per_look), out_of_time=out_of_time)


def _fill_tokens(
    request: RequestDistributions,
    uniforms: NDArray[np.float64],  # [num_calls, num_rows, num_draft + 1] float64
) -> NDArray[np.int32]:  # [num_calls, num_rows, num_draft + 1] int32
    """Draws from the target distribution of every position."""
    distributions = request.exact_target_probs()
    return np.stack(
        [draw_one_distribution(distribution, uniforms[..., i]) for i, distribution in enumerate(distributions)], axis=-1
    )
