"""Noise of the sampler's own: every place and every rare token of a row, every position and step of a request."""

from __future__ import annotations

from functools import lru_cache
from math import lgamma, log
from typing import TYPE_CHECKING

import numpy as np
import torch
from hypothesis import strategies as st

from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import Capability, RaceNoise, SamplingBatch, SamplingNoise, SeededNoise, TokenSampler
from fairdraw.contracts._sampling import sample_tokens
from fairdraw.properties._rejection_asserts import is_improbable
from fairdraw.properties._sampling_asserts import broken, check, fixed
from fairdraw.strategies.rows import bulk_rng
from fairdraw.strategies.sampling import SampledRequest, SamplingCase

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fairdraw.contracts import Capabilities

    Tokens = NDArray[np.int64]

NOISE = ((Capability.SEEDED_NOISE, Capability.EXPLICIT_NOISE),)
_OWN = (Capability.SEEDED_NOISE, Capability.REQUEST_SEEDS)
_COUNTER = (*_OWN, Capability.COUNTER_NOISE)
_MOST_ROWS = 1024


def plain(can: Capabilities, vocab_size: int) -> st.SearchStrategy[SamplingCase]:
    """One plain request; what else there is follows from the seed."""
    return fixed(vocab_size, SampledRequest(), explicit=Capability.SEEDED_NOISE not in can)


def noise_of(sampler: TokenSampler, batch: SamplingBatch, *parts: object) -> SamplingNoise:
    """The sampler's own numbers, or random ones where it takes no seeds."""
    if Capability.SEEDED_NOISE in sampler.capabilities:
        return SeededNoise(derive_seed("noise", *parts))
    drawn = bulk_rng("noise", *parts).standard_exponential((batch.batch_size, batch.vocab_size), dtype=np.float32)
    return RaceNoise(torch.from_numpy(np.maximum(drawn, np.finfo(np.float32).tiny)).to(batch.device))


def _flat_batch(sampler: TokenSampler, size: int, rows: int) -> SamplingBatch:
    return SamplingCase(size, (SampledRequest(),), num_rows=rows).batch(sampler.device)


_RARELY = 1e-13
"""Probability at most that one comparison of ids finds too few different ones by chance."""


@lru_cache(maxsize=64)
def fewest_distinct(count: int, size: int) -> int:
    """The fewest different values of so many fair draws that come not less often than once in 1e13 times.

    Two bounds. All lie in `n` values: at most `C(size, n) * (n / size)**count`. And `n` draws meet an earlier one: draw
    `i` does with probability at most `i / size`, whatever came before, so at most `(count**2 / 2 / size)**n / n!`.
    """
    goal, fewest = log(_RARELY), 0
    while lgamma(size + 1) - lgamma(fewest + 2) - lgamma(size - fewest) + count * log((fewest + 1) / size) < goal:
        fewest += 1
    met = 1
    while met < count and met * log(count * (count - 1) / 2 / size) - lgamma(met + 1) >= goal:
        met += 1
    return max(fewest + 1, count - met + 1)


def ids_are_apart(tokens: Tokens, size: int, whose: str) -> None:  # tokens: [n] int64
    """Ids of a flat row differ as chance has it: as they are, and what is left of their lower, or upper, bits."""
    parts = {"": (tokens, size)}
    for bits in range(6, 14):
        if 1 << bits < size and size % (1 << bits) == 0:
            parts[f" modulo {1 << bits}"] = tokens % (1 << bits), 1 << bits
            parts[f" divided by {1 << bits}"] = tokens >> bits, size >> bits
    for words, (found, among) in parts.items():
        seen, fewest = len(set(found.tolist())), fewest_distinct(tokens.size, among)
        if seen < fewest:
            broken(f"{tokens.size} {whose} drew {seen} different ids{words} of {among}; {fewest} at least are expected")


# -- within a row -----------------------------------------------------------------------------------------------------


def _places(can: Capabilities) -> st.SearchStrategy[SamplingCase]:
    return plain(can, 512 if can.slow else 1024 if Capability.LARGE_VOCAB not in can else 16_384)


@check("SAM195", _places, needs_one_of=NOISE, weight=0.005)
def every_place_of_a_flat_row_is_drawn(sampler: TokenSampler, case: SamplingCase) -> None:
    """A flat row of 2048, and one of 16384: each thirty-second, by place and by residue, is drawn as often as others.

    And ids of the 128 rows of a call are as different as those of independent rows, also in a part of their bits.
    False failures: below 1e-8. Suspect tiles that race with the same numbers, so that the later one never wins, tiles
    that are lost or weighed twice, numbers of few bits, and noise that begins anew after so many numbers.
    """
    for size in sorted({min(2048, case.vocab_size), case.vocab_size}):
        parts, calls, rows = (4, 1, 96) if sampler.capabilities.slow else (32, 8, 128)
        batch = _flat_batch(sampler, size, rows)
        equal = batch.replace(positions=torch.full_like(batch.positions, case.seed % 4096))
        turns = [(batch if i % 2 else equal, noise_of(sampler, batch, case.seed, size, i)) for i in range(calls)]
        answers = [sample_tokens(sampler, one, noise) for one, noise in turns]
        for answer in answers:
            ids_are_apart(answer.tokens, size, "rows of a call")
        drawn = np.concatenate([answer.tokens for answer in answers])
        for what, cells in (("in part", drawn * parts // size), ("of residue", drawn % parts)):
            counts = np.bincount(np.clip(cells, 0, parts - 1), minlength=parts)
            wrong = [part for part, count in enumerate(counts) if is_improbable(count, drawn.size, 1 / parts)]
            if wrong:
                seen = f"{counts[wrong[0]]} times in {drawn.size}"
                broken(f"of {size} tokens those {what} {wrong[0]} of {parts} came {seen}, not once in {parts}")


# -- seeds, positions, steps ------------------------------------------------------------------------------------------

_SIZE = 64


def _at(sampler: TokenSampler, case: SamplingCase, seeds: Tokens, positions: Tokens) -> Tokens:  # each [n] int64
    """A token of 64 equally probable ones for each seed and position."""
    found = []
    for start in range(0, len(seeds), _MOST_ROWS):
        part = slice(start, start + _MOST_ROWS)
        batch = _flat_batch(sampler, _SIZE, len(seeds[part]))
        batch = batch.replace(positions=torch.from_numpy(positions[part]).to(batch.device))
        noise = SeededNoise(derive_seed("call", case.seed), dict(enumerate(seeds[part].tolist())))
        found.append(sample_tokens(sampler, batch, noise).tokens)
    return np.concatenate(found)


_FEWEST_PAIRS = 48
"""Half of so many pairs are equal by chance with probability C(48, 24) * 64**-24 = 1e-30."""


def _are_other(first: Tokens, second: Tokens, what: str) -> None:
    """Fewer than half of the pairs are equal, if they are enough."""
    if first.size >= _FEWEST_PAIRS and (first == second).mean() > 0.5:
        broken(f"{what} draw the same: {int((first == second).sum())} of {first.size} tokens are equal")


@check("SAM197", lambda can: plain(can, _SIZE), needs=_COUNTER, weight=0.005)
def thousands_of_positions_of_a_request_draw_new_noise(sampler: TokenSampler, case: SamplingCase) -> None:
    """Positions 0 to 8300 of one seed, at any distance, and those that differ in one bit, up to the 30th: other tokens.

    The distances are sought at 64 tokens. At 16384, 64 positions draw ids that differ as chance has it, also in a part
    of their bits: tiles of a large vocabulary must not share noise either. False failures: below 1e-11. Suspect a
    position that is kept in few bits or reduced modulo a buffer: a long text then begins to repeat itself. Suspect a
    tile number that is added to the position.
    """
    count = 100 if sampler.capabilities.slow else 8300
    positions, own = np.arange(count), derive_seed("own", case.seed) % 2**31
    tokens = _at(sampler, case, np.full(count, own), positions)
    for apart in range(1, count - _FEWEST_PAIRS):
        _are_other(tokens[apart:], tokens[:-apart], f"positions {apart} apart")
    for bit in (16, 30) if sampler.capabilities.slow else range(13, 31):
        far = _at(sampler, case, np.full(_FEWEST_PAIRS, own), positions[:_FEWEST_PAIRS] + (1 << bit))
        _are_other(far, tokens[:_FEWEST_PAIRS], f"positions {1 << bit} apart")
    _tiles_are_apart(sampler, case, own)


_LARGE, _LARGE_SLOW = (64, 16_384), (32, 8192)
"""Positions, and tokens: several tiles of any kernel."""


def _tiles_are_apart(sampler: TokenSampler, case: SamplingCase, own: int) -> None:
    """Positions of one seed, one after the other, at a large vocabulary."""
    count, size = _LARGE_SLOW if sampler.capabilities.slow else _LARGE
    if sampler.capabilities.why_unsupported((Capability.LARGE_VOCAB,)) is not None:
        count, size = 64, 1024
    first = derive_seed("first", case.seed) % 4096
    batch = _flat_batch(sampler, size, count)
    batch = batch.replace(positions=torch.arange(first, first + count, device=batch.device))
    noise = SeededNoise(derive_seed("call", case.seed), dict.fromkeys(range(count), own))
    ids_are_apart(sample_tokens(sampler, batch, noise).tokens, size, "positions of a request")


@check("SAM198", lambda can: plain(can, _SIZE), needs=_COUNTER, weight=0.005)
def a_seed_and_a_position_are_not_mixed_up(sampler: TokenSampler, case: SamplingCase) -> None:
    """16 neighbouring seeds at 64 positions: no shift of both, nor an equal product or exclusive or, repeats tokens.

    False failures: below 1e-25. Noise from `seed + position` gives the next request what this one says a step later.
    """
    num_seeds, num_positions = (5, 16) if sampler.capabilities.slow else (16, 64)
    base = (case.seed % 2) * (derive_seed("own", case.seed) % 2**31 // 16 * 16)
    seeds, positions = (side.ravel() for side in np.mgrid[:num_seeds, :num_positions])
    tokens = _at(sampler, case, base + seeds, positions)
    for apart in range(-num_positions + 1, num_positions):
        for other in range(num_seeds):
            if other or apart > 0:
                _are_other(*_shifted(tokens.reshape(num_seeds, num_positions), other, apart))
    for name, mixed in (("product", (base + seeds) * positions), ("exclusive or", (base + seeds) ^ positions)):
        order = np.argsort(mixed, kind="stable")
        pairs = np.flatnonzero((np.diff(mixed[order]) == 0) & (positions[order[1:]] > 0) & (positions[order[:-1]] > 0))
        _are_other(tokens[order[pairs]], tokens[order[pairs + 1]], f"seeds and positions of equal {name}")


def _shifted(tokens: Tokens, seeds: int, positions: int) -> tuple[Tokens, Tokens, str]:  # [seeds, positions] int64
    """The grid and itself so many seeds and positions further, where both are."""
    width = tokens.shape[1] - abs(positions)
    near, far = (0, positions) if positions > 0 else (-positions, 0)
    first, second = tokens[: len(tokens) - seeds, near : near + width], tokens[seeds:, far : far + width]
    return first, second, f"requests {seeds} seeds and {positions} positions apart"
