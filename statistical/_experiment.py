"""A configuration, the statistics that are counted on it, and the calls that fill their tables."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import PLACEHOLDER_TOKEN_ID, RejectionSampler
from fairdraw.contracts._rejection import emit_on_device
from fairdraw.statistical import _rejection_statistics as rejection
from fairdraw.statistical._configurations import Configuration, RequestDistributions
from fairdraw.statistical._count_tables import Table
from fairdraw.statistical._directions import directed_statistics
from fairdraw.statistical._noise import noise_for, noise_kind
from fairdraw.statistical._outcomes import RowCodes, enumerate_outcomes
from fairdraw.statistical._rejection_statistics import Statistic
from fairdraw.statistical._token_draws import Uniforms, draw_tokens
from fairdraw.statistical._validation import refuse

_MIN_EVENT_PROB = 0.05
"""An event rarer than this is no target; another configuration is made for it."""

_INVALID_TOKEN_ID = -3


@dataclass(frozen=True)
class Experiment:
    """A configuration and everything that is counted on it.

    Args:
        batch_size: Requests per call; a multiple of the configuration's cycle.
    """

    configuration: Configuration
    batch_size: int = 1024
    device: str = "cpu"

    @cached_property
    def _counted(self) -> dict[str, tuple[int, Statistic, Table]]:
        """Per table: the kind of request that it is about, its statistic, and the table for one row of that kind."""
        found = {}
        requests = self.configuration.requests
        for kind, request in enumerate(requests):
            outcomes = enumerate_outcomes(request)
            suffix = f", request {kind}" if len(requests) > 1 else ""
            # Directed statistics cost as many enumerations: if the configuration is made for them.
            directed = directed_statistics(outcomes) if "SD" in self.configuration.targets else []
            own = [*self._statistics(request), *directed]
            for statistic in (one for one in own if one.code in self.configuration.targets):
                table = statistic.table(outcomes)
                if table.event_prob >= _MIN_EVENT_PROB:
                    found[f"{statistic.code} {statistic.title}{suffix}"] = kind, statistic, table
        return found

    def tables(self, num_calls: int) -> dict[str, Table]:
        """Every table whose event this configuration is made for, with the draws of so many calls."""
        num_rows = num_calls * self.batch_size // len(self.configuration.requests)
        return {
            name: replace(table, num_draws=num_rows, is_binomial=statistic.targets is None)
            for name, (_, statistic, table) in self._counted.items()
        }

    def _statistics(self, request: RequestDistributions) -> list[Statistic]:
        """All statistics that make sense for a request of this length."""
        if request.num_draft == 0:
            return [rejection.output_row()]
        by_position = (rejection.recovered_by_draft, rejection.accepted_draft)
        return [
            rejection.output_row(),
            rejection.completed_row(request.num_draft),
            *(make(position) for make in by_position for position in range(request.num_draft)),
        ]

    def count(self, sampler: RejectionSampler, num_calls: int, seed: int) -> dict[str, NDArray[np.int64]]:
        """The count tables of `num_calls` calls, with fresh drafts, bonus tokens and noise in each.

        Raises:
            ValueError: If there is no call.

        Randomness:
            Everything follows from `seed` and the number of the call.
        """
        if num_calls < 1:
            raise refuse("count", f"num_calls={num_calls}", "it must be at least 1", "Nothing drawn is not a pass.")
        distinct = [same_kind.distinct() for same_kind in self._codes(sampler, num_calls, seed)]
        return {name: statistic.count(*distinct[kind]) for name, (kind, statistic, _) in self._counted.items()}

    def _codes(self, sampler: RejectionSampler, num_calls: int, seed: int) -> list[RowCodes]:
        """What each kind of request was given and what came out, call after call."""
        fill = Uniforms(derive_seed("fill", seed), self.device)
        calls = [self._call(sampler, derive_seed("call", seed, call), fill) for call in range(num_calls)]
        return [replace(one[0], codes=torch.stack([of.codes for of in one])) for one in zip(*calls, strict=True)]

    def _call(self, sampler: RejectionSampler, seed: int, fill: Uniforms) -> list[RowCodes]:
        """The rows of one call by kind, `[num_rows]`. A token beyond a row's width makes it invalid."""
        batch = self.configuration.batch(self.batch_size, seed, self.device)
        requests, start = self.configuration.requests, 0
        # A copy, because a sampler may overwrite its inputs.
        per_cycle = sum(request.num_draft for request in requests)
        given = batch.draft_token_ids.clone().view(self.batch_size // len(requests), per_cycle)
        noise = noise_for(noise_kind(sampler), batch, seed)
        output = emit_on_device(sampler, batch, noise)
        uniforms = fill.draw(*output.shape)
        found = []
        for kind, request in enumerate(requests):
            width, end, own = request.num_draft + 1, start + request.num_draft, output[kind :: len(requests)]
            is_too_long = (own[:, width:] != PLACEHOLDER_TOKEN_ID).any(dim=1, keepdim=True)
            tokens = own[:, :width].masked_fill(is_too_long, _INVALID_TOKEN_ID)
            # Draws from the target distribution of every position.
            filled = draw_tokens(request.exact_target_probs(), uniforms[kind :: len(requests), :width])
            found.append(RowCodes.of(tokens, given[:, start:end], filled, request.vocab_size))
            start = end
        return found
