"""199: vocabularies that are a number of tiles and a small rest, for tiles of every size that a kernel may have."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from fairdraw.contracts import Capabilities, Capability, SamplingBatch, SeededNoise, TokenSampler
from fairdraw.contracts._sampling import sample_tokens
from fairdraw.properties._rejection_tiles import GREEDY, ONLY, WON, Rows, tiles_and_rows
from fairdraw.properties._sampling_asserts import FILTERS, aimed_at, broken, check, fixed
from fairdraw.strategies.sampling import SampledRequest, SamplingCase


def _ways(can: Capabilities) -> list[str]:
    """Those in which the sampler's declaration says which token is drawn."""
    has_race = Capability.EXPLICIT_NOISE in can and Capability.REFERENCE_RACE in can
    return [*[WON] * has_race, ONLY, *[GREEDY] * (Capability.GREEDY in can)]


def _filter(rows: Rows, name: str, value: float, off: float, dtype: torch.dtype) -> torch.Tensor | None:
    """The parameter of each row; `None` if no row has it."""
    given = [value if way == name else off for way, _ in rows]
    return torch.tensor(given, dtype=dtype) if any(way == name for way, _ in rows) else None


def _step(rows: Rows, vocab_size: int) -> SamplingBatch:
    """Filters leave one id of several, which is larger than the others by 20."""
    size = len(rows)
    others = torch.tensor([-torch.inf if way == ONLY else 0.0 for way, _ in rows])
    logits = others[:, None].repeat(1, vocab_size)
    own = [0.0 if way == WON else 20.0 if way in FILTERS else 1.0 for way, _ in rows]
    logits[range(size), [token for _, token in rows]] = torch.tensor(own)
    return SamplingBatch(
        logits=logits,
        temperature=torch.tensor([0.0 if way == GREEDY else 1.0 for way, _ in rows]),
        top_k=_filter(rows, "top_k", 1, vocab_size, torch.int32),
        top_p=_filter(rows, "top_p", 0.5, 1.0, torch.float32),
        min_p=_filter(rows, "min_p", 0.5, 0.0, torch.float32),
        positions=torch.arange(size),
    )


def _tiled(can: Capabilities) -> st.SearchStrategy[SamplingCase]:
    """Of the largest vocabulary that is tried; the others follow from the seed."""
    most = 8200 if Capability.LARGE_VOCAB in can else 1025
    return fixed(most, SampledRequest(), explicit=Capability.EXPLICIT_NOISE in can)


@check(
    "SAM199",
    _tiled,
    needs_one_of=((Capability.EXPLICIT_NOISE, Capability.SEEDED_NOISE, Capability.COUNTER_NOISE),),
    weight=0.03,
)
def ids_at_the_edges_of_tiles_of_every_size_can_be_drawn(sampler: TokenSampler, case: SamplingCase) -> None:
    """In vocabularies of some tiles and a small rest the last ids are drawn, kept by filters and greedy like any other.

    Tiles of about fifty sizes from 16 to 8192, two vocabularies each, with filters and without; also the ids around
    edges of tiles. Suspect the mask of the last tile, and a path for full tiles whose remainder is handled elsewhere,
    or not at all. An interpreted sampler is given six tiles.
    """
    can = sampler.capabilities
    plain, filters = _ways(can), [name for name, needed in FILTERS.items() if needed in can]
    for ways in filter(None, (plain, filters)):
        for tile, vocab_size, rows in tiles_and_rows(can, case, ways):
            _draw_what_they_must(sampler, case, tile, rows, _step(rows, vocab_size).to(sampler.device))


def _draw_what_they_must(
    sampler: TokenSampler, case: SamplingCase, tile: int, rows: Rows, batch: SamplingBatch
) -> None:
    noise = aimed_at(batch, [token for _, token in rows]) if case.explicit else SeededNoise(case.seed)
    size = batch.vocab_size
    for (way, token), seen in zip(rows, sample_tokens(sampler, batch, noise).tokens.tolist(), strict=True):
        if seen != token:
            broken(
                f"in a vocabulary of {size}, which is {size // tile} * {tile} + {size % tile}, token {seen} is drawn, "
                f"but {token} is {way if way not in FILTERS else f'all that {way} keeps'}"
            )
