"""Batches whose requests all have the same parameters: what servers mostly see, and choose other paths for."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fairdraw.properties._sampling_asserts import RACE, check
from fairdraw.properties._sampling_noise import NOISE, plain
from fairdraw.properties._sampling_sweeps import FILTERS, drawn_often, keeps_both_sides
from fairdraw.protocols import Capability, SamplingBatch, TokenSampler
from fairdraw.strategies.rows import bulk_rng
from fairdraw.strategies.sampling import SampledRequest, SamplingCase

if TYPE_CHECKING:
    from fairdraw.protocols import Capabilities

_ROWS, _SIZE, _MOST_DRAWS = 12, 24, 256
_TEMPERATURES = (0.6, 1.0, 1.7)


def _subsets(can: Capabilities, seed: int) -> list[tuple[str, ...]]:
    """Every set of filters that are supported; a slow sampler gets two of them."""
    known = [name for name, need in FILTERS.items() if need in can]
    found = [subset for size in (1, 2, 3) for subset in combinations(known, size)]
    start = seed % len(found)
    return (found[start:] + found[:start])[: 2 if can.slow else len(found)]


@check(
    "SAM112",
    lambda can: plain(can, _SIZE),
    needs_one_of=(tuple(FILTERS.values()), *NOISE),
    depends_on=("SAM102", "SAM126"),
    weight=0.02,
)
def requests_with_the_same_parameters_keep_their_supports(sampler: TokenSampler, case: SamplingCase) -> None:
    """Batches in which all requests have one temperature, top-k, top-p and min-p keep what these keep.

    Twelve rows of 24 tokens and every set of filters, also beside a greedy request. False failures: below 2e-9. If
    other checks of supports pass, suspect a path for such batches: one number in place of a tensor, taken from one of
    the requests, one sort for all rows, filters in another order.
    """
    is_aimed = sampler.capabilities.why_unsupported(RACE) is None
    for number, names in enumerate(_subsets(sampler.capabilities, case.seed)):
        batch = _alike(sampler, case, names, number)
        keeps_both_sides(sampler, batch) if is_aimed else drawn_often(sampler, case, batch, most=_MOST_DRAWS)


def _alike(sampler: TokenSampler, case: SamplingCase, names: tuple[str, ...], number: int) -> SamplingBatch:
    """Flat and steep rows of one kind of request; in two of three batches a greedy one is in front or behind."""
    rng = bulk_rng("alike", case.seed, number)
    drawn = {"top_k": int(rng.integers(2, 10)), "top_p": rng.uniform(0.3, 0.95), "min_p": rng.uniform(0.05, 0.6)}
    used: dict[str, Any] = {name: drawn[name] for name in names}  # Any: one type each
    place = (case.seed + number) % 3 if Capability.GREEDY in sampler.capabilities else 0
    heat = [0.0] * (place == 1) + [_TEMPERATURES[int(rng.integers(3))]] * _ROWS + [0.0] * (place == 2)
    requests = tuple(SampledRequest(temperature=one, **used) for one in heat)
    batch = case.replace(requests=requests).batch(sampler.device)
    logits = rng.normal(size=(len(heat), _SIZE)) * np.geomspace(0.5, 4, len(heat))[:, None]
    return batch.replace(logits=torch.tensor(logits, dtype=torch.float32, device=batch.device))
