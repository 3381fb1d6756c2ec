"""The standard scenarios of the decoding loop: what is decoded, and the statistics whose nulls are exact for it.

There are four, and each sees faults that the others miss. The checks draw them through `workloads.decoding`.

Cost:
    A sampler vectorised over requests decodes and judges 100 000 to 200 000 tokens a second on one CPU core, the oracle
    20 000, an interpreted kernel 100. Tensors are small here, so torch is fastest with one thread; with two, on a busy
    machine of two cores, it was 15 times slower.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fairdraw.protocols import Capability
from fairdraw.statistical._decode import DecodeSetup
from fairdraw.statistical._decode_distributions import (
    AcceptedDrafts,
    FirstTokens,
    FrequentContexts,
    Neighbours,
    NextTokens,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from fairdraw.statistical._count_tables import Table
    from fairdraw.statistical._decode import Decoding
    from fairdraw.statistical._decode_distributions import DecodeStatistic


@dataclass(frozen=True, eq=False)
class DecodeScenario:
    """What is decoded, and how it is judged."""

    setup: DecodeSetup
    statistics: Sequence[DecodeStatistic]

    def tables(self, num_decodings: int) -> dict[str, Table]:
        """Every table, with the draws of so many decodings."""
        return {
            name: replace(table, num_draws=table.num_draws * num_decodings)
            for statistic in self.statistics
            for name, table in statistic.tables.items()
        }

    def count(self, decoding: Decoding) -> dict[str, NDArray[np.int64]]:
        """The counts of a decoding for every table, `[num_cells + 1] int64` each."""
        return {name: counts for statistic in self.statistics for name, counts in statistic.count(decoding).items()}


def decode_scenarios(
    num_requests: int = 2048,
    num_sequences: int = 4096,
    supported: Collection[Capability] = frozenset(Capability),
) -> dict[str, DecodeScenario]:
    """The standard scenarios by name.

    Args:
        num_requests: Decoded side by side in each of the three scenarios with text: 12 tokens each.
        num_sequences: The same for the small language: 4 tokens each. A few hundred are the least that show anything.
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
    scenarios: dict[str, tuple[DecodeSetup, list[DecodeStatistic]]] = {
        "text": (text, [NextTokens(text), FrequentContexts(text)]),
        "requests with parameters of their own": (own, [NextTokens(own)]),
        "n-gram drafts": (n_gram, [NextTokens(n_gram), FrequentContexts(n_gram)]),
        "sequences of a small language": (small, [NextTokens(small), FirstTokens(small), Neighbours(small)]),
    }
    return {
        name: DecodeScenario(setup, [*emitted, AcceptedDrafts(setup)]) for name, (setup, emitted) in scenarios.items()
    }
