"""Faults by lane: every second id, or every second block of 2, 4 or 16, weighs less; neighbours share noise or swap.

Ranges of ids cancel them. Each is made in every contract that draws, for all rows or for wide ones only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fairdraw._mutants._distribution_sampler import DistributionSampler, Drawn, Floats, Tokens, right_distribution
from fairdraw._mutants._mutant import Mutant

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fairdraw._mutants.sampling_distributions import DistributionTokenSampler
    from fairdraw.contracts import SpecDecodeBatch

Racer = TypeVar("Racer", bound="DistributionTokenSampler")


@dataclass(frozen=True)
class LaneFault:
    """What is wrong in rows of more than `above` entries.

    Args:
        block: Of every two blocks of so many ids, the second weighs half; 0 for none.
        lost: One lane of so many is never drawn; 0 for none.
        shared: So many neighbours have one random number.
        swaps: A token and its neighbour are taken for each other.
    """

    name: str
    block: int = 0
    lost: int = 0
    shared: int = 1
    swaps: bool = False
    above: int = 0

    def weights(self, size: int) -> NDArray[np.float64]:  # [vocab_size] float64
        """Return the factor of each id's weight."""
        ids, found = np.arange(size), np.ones(size)
        if size <= self.above:
            return found
        if self.block:
            found[ids // self.block % 2 == 1] = 0.5
        if self.lost:
            found[ids % self.lost == self.lost - 1] = 0.0
        return found

    def source(self, size: int) -> NDArray[np.int64]:  # [vocab_size] int64
        """Return the id whose random number each id has."""
        ids = np.arange(size)
        return ids if size <= self.above else ids - ids % self.shared

    def emitted(self, tokens: NDArray[np.int64], size: int) -> NDArray[np.int64]:  # [num_rows] int64
        """Return the tokens as they leave the sampler."""
        return np.minimum(tokens ^ 1, size - 1) if self.swaps and size > self.above else tokens


_KINDS: tuple[tuple[str, dict[str, Any]], ...] = (  # Any: one type each
    ("odd ids weigh half", {"block": 1}),
    ("every second pair of ids weighs half", {"block": 2}),
    ("every second block of 4 ids weighs half", {"block": 4}),
    ("every second block of 16 ids weighs half", {"block": 16}),
    ("one lane of 8 is lost", {"lost": 8}),
    ("pairs of neighbours share their noise", {"shared": 2}),
    ("neighbours are swapped", {"swaps": True}),
)
_ABOVE = 16_384
LANE_FAULTS = tuple(LaneFault(name, **fields) for name, fields in _KINDS)
WIDE_LANE_FAULTS = tuple(LaneFault(f"{name} above {_ABOVE} entries", **fields, above=_ABOVE) for name, fields in _KINDS)


Faults = tuple[LaneFault, ...]
Make = Callable[[LaneFault], Any]  # Any: a sampler of any contract


def lane_mutants(
    make: Make, by_token: str, by_noise: str, min_draws: int = 0, faults: Faults = WIDE_LANE_FAULTS
) -> tuple[Mutant, ...]:
    """Return a mutant for each fault.

    Args:
        by_token: Code of the check that catches wrong weights and swapped tokens.
        by_noise: Code of the check that catches shared noise.
    """
    about = "A kernel treats ids by lane, and one lane or pair of lanes is wrong."

    def of(fault: LaneFault) -> Mutant:
        codes = (by_noise,) if fault.shared > 1 else (by_token,)
        return Mutant(fault.name, about, codes, lambda: make(fault), min_draws)

    return tuple(map(of, faults))


def rejecting(fault: LaneFault) -> Any:  # Any: a rejection sampler
    """Return a rejection sampler with the fault: weights in the target, noise and tokens in the recovery."""

    class Faulty(DistributionSampler):
        def target(self, batch: SpecDecodeBatch) -> Floats:
            weights = super().target(batch) * fault.weights(batch.vocab_size).astype(np.float32)
            return np.asarray(weights / weights.sum(axis=1, keepdims=True))

        def recover(self, weights: Floats, drawn: Drawn, requests: Tokens, rows: Tokens) -> Tokens:
            size = weights.shape[1]
            exponentials = drawn.exponentials[requests][:, fault.source(size)]
            return fault.emitted(np.asarray(np.argmax(weights / exponentials, axis=1)), size)

    return right_distribution(Faulty)


def racing(sampler: type[Racer], fault: LaneFault) -> type[Racer]:
    """Return the class with the fault in its race, whatever it returns beside the token."""

    class Faulty(sampler):  # type: ignore[valid-type, misc]  # a class of the caller
        def race(self, probs: NDArray[np.float64], exponentials: NDArray[np.float64]) -> NDArray[np.int64]:
            size = probs.shape[1]
            tokens = super().race(probs * fault.weights(size), exponentials[:, fault.source(size)])
            return fault.emitted(tokens, size)

    return Faulty  # pyright: ignore[reportReturnType]  # a class of the caller
