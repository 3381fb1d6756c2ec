"""Calls whose draws become fair bits: a batch of like requests, again and again, with related seeds.

Every request of a batch has the same distribution, so that shared noise gives equal draws. A draw brings about three
bits; peaked distributions would hide what their noise shares. Seeds of the calls of a half are 0, 1, 2, ... beyond a
fresh one, a fresh one with single bits flipped, a fresh one doubled again and again, and fresh ones. Bits 0 to 31 are
flipped, because torch's CPU generator reads no others. With per-request seeds the same holds for the rows of a call, and
every fourth row has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from fairdraw._core.harness import emit
from fairdraw._core.sampling_harness import sample_tokens
from fairdraw._core.seeds import derive_seed
from fairdraw.protocols import Capability, RaceNoise, SamplingBatch, SeededNoise
from fairdraw.statistical._configurations import Configuration, request_distributions
from fairdraw.statistical._dependence import (
    Shape,
    count_dependence,
    dependence_tables,
    explain_dependence,
    gray_bits,
)
from fairdraw.statistical._explained import ExplainedPlan
from fairdraw.statistical._noise import exponentials, noise_for, noise_kind
from fairdraw.statistical._pit import Order, starting_mass
from fairdraw.statistical._workloads import SamplingPlan, Setting, Workload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from fairdraw.protocols import Noise, SamplingNoise, SpecDecodeBatch
    from fairdraw.statistical._count_tables import Counts, Table

_LARGEST, _SMALLEST, _MOST_CHECKPOINTS = 96, 8, 8
"""Calls and rows of half a checkpoint: 96 is no power of two, spans three warps, and leaves 32 calls 64 apart."""

_NIGHTLY_CHECKPOINTS, _NIGHTLY_DRAWS = 32, 1_000_000


def related_seeds(count: int, seed: int) -> list[int]:
    """Different seeds below 2**32 that samplers may take for each other, in the same order for every `seed`.

    Example:
        >>> related_seeds(9, 0)[1] - related_seeds(9, 0)[0]
        1
    """
    rng, third = np.random.default_rng(derive_seed("related seeds", seed)), count // 3
    first, flipped, doubled = (int(low) for low in rng.integers(2**16, 2**19, 3))
    first, flipped = (int(high) * 2**20 + low for high, low in zip(rng.integers(2**11, size=2), (first, flipped)))
    bits = np.unique(np.linspace(0, 31, min(32, max(1, third - 1))).astype(int)).tolist()
    found = [first + i for i in range(third)]
    found += [flipped, *(flipped ^ (1 << bit) for bit in bits)]
    found += [doubled << i for i in range(min(12, count // 6))]
    found += rng.integers(2**32, size=2 * count).tolist()
    return list(dict.fromkeys(found))[:count]


def _side(num_draws: int) -> int:
    """Calls and rows of half a checkpoint; the smallest cannot be judged with fewer draws than it has."""
    return min(_LARGEST, max(_SMALLEST, int((num_draws / 2) ** 0.5)))


Bits = Callable[[Any, int, int, int], "NDArray[np.bool_]"]
"""From a sampler, a number of rows, the seed of its noise and another seed to bits `[num_rows, num_features]`."""


def dependence_plan(setting: Setting, features: tuple[str, ...], draw: Bits) -> SamplingPlan:
    """Checkpoints of two halves, as many as the draws allow."""
    side = _side(setting.num_draws)
    shape, per_checkpoint = Shape(side, side, features), 2 * side * side
    most = _MOST_CHECKPOINTS if setting.num_draws < _NIGHTLY_DRAWS else _NIGHTLY_CHECKPOINTS

    def count(sampler: Any, seed: int) -> Counts:  # Any: of either contract
        halves = [related_seeds(side, derive_seed("half", seed, half)) for half in range(2)]
        drawn = [draw(sampler, side, one, derive_seed("call", seed, i)) for i, one in enumerate(halves[0] + halves[1])]
        return count_dependence(np.stack(drawn), shape)

    def explain(counts: Sequence[Counts], tables: Mapping[str, Table]) -> str:
        return explain_dependence(counts, shape, tables)

    num_checkpoints = min(most, setting.num_draws // per_checkpoint)
    return ExplainedPlan(dependence_tables(shape), count, num_checkpoints, per_checkpoint, explain)


def _pit_bits(
    probs: NDArray[np.float64],  # [vocab_size] float64
    tokens: NDArray[np.integer],  # [...] int
    happened: NDArray[np.bool_],  # [...] bool
    rng: np.random.Generator,
    num_bits: int,
) -> NDArray[np.bool_]:  # [..., num_bits] bool
    """Bits of draws from one distribution; fair ones of the suite where none happened, or an impossible token came."""
    known = happened & (tokens >= 0) & (tokens < probs.size)
    ids = np.where(known, tokens, 0)
    starts, uniforms = starting_mass(probs[None], Order.ID)[0], rng.random((2, *tokens.shape))
    transform = np.minimum(starts[ids] + uniforms[0] * probs[ids], np.nextafter(1.0, 0.0))
    return gray_bits(np.where(known & (probs[ids] > 0), transform, uniforms[1]), num_bits)


# -- rejection --------------------------------------------------------------------------------------------------------

_NUM_DRAFT = 3
_RECOVERED = [1 / 8, 1 / 8, 1 / 16, 1 / 16, 1 / 32, 1 / 32, 1 / 32, 1 / 32]
_FAIR_DENSE = Configuration(
    "fair",
    (request_distributions([[1 / 8] * 4 + _RECOVERED] * (_NUM_DRAFT + 1), [[1 / 4] * 4 + [0] * 8] * _NUM_DRAFT),),
    (),
)
"""Drafts are four tokens, each accepted with probability 1/2; eight others are recovered."""
_FAIR_ONE_HOT = Configuration(
    "fair, one-hot",
    (request_distributions([[1 / 2, *_RECOVERED]] * (_NUM_DRAFT + 1), [[1.0] + [0] * 8] * _NUM_DRAFT, one_hot=True),),
    (),
)
_TOKEN, _DENSE = Capability.TOKEN_VERIFICATION, Capability.DENSE_DRAFTS

_POSITIONS = tuple(f"acceptance at position {i}" for i in range(_NUM_DRAFT))
_VERIFIED = (*_POSITIONS, *(f"recovered token, bit {i}" for i in range(3)))
_EMITTED = tuple(f"emitted token {i}, bit {bit}" for i in range(_NUM_DRAFT) for bit in range(2))


def _verified_bits(configuration: Configuration, tokens: NDArray[np.int32], rng: np.random.Generator) -> Any:
    """Of token verification: a fair coin per reached position, and the recovered token wherever it came."""
    num_emitted = (tokens >= 0).sum(axis=1)
    positions = np.arange(_NUM_DRAFT)
    filled = rng.random((len(tokens), _NUM_DRAFT)) < 0.5
    accepted = np.where(num_emitted[:, None] > positions, num_emitted[:, None] > positions + 1, filled)
    last = tokens[np.arange(len(tokens)), np.maximum(num_emitted - 1, 0)]
    request = configuration.requests[0]
    probs = request.residual(0, 0)
    happened = (num_emitted > 0) & (num_emitted <= _NUM_DRAFT)
    return np.concatenate([accepted, _pit_bits(probs, last, happened, rng, 3)], axis=1)


def _emitted_bits(configuration: Configuration, tokens: NDArray[np.int32], rng: np.random.Generator) -> Any:
    """Of any lossless verifier: every emitted token before the bonus token under its target distribution."""
    probs = configuration.requests[0].exact_target_probs()[0]
    reached = (tokens >= 0)[:, :_NUM_DRAFT]
    return _pit_bits(probs, tokens[:, :_NUM_DRAFT], reached, rng, 2).reshape(len(tokens), -1)


def request_seeded(num_rows: int, seed: int) -> SeededNoise:
    """Noise of a call in which three of four rows have seeds of their own, which are related."""
    own = related_seeds(num_rows, derive_seed("rows", seed))
    return SeededNoise(derive_seed("unseeded", seed), {i: one for i, one in enumerate(own) if i % 4 < 3})


def rejection_dependence(share: float, slow_share: float, *, request_seeds: bool = False) -> Workload:
    """D1 to D5 of the rejection contract."""

    def prepare(setting: Setting) -> SamplingPlan:
        given = _FAIR_DENSE if _DENSE in setting.supported else _FAIR_ONE_HOT
        is_verified = _TOKEN in setting.supported
        read = _verified_bits if is_verified else _emitted_bits

        def draw(sampler: Any, num_rows: int, noise_seed: int, seed: int) -> NDArray[np.bool_]:
            batch = given.batch(num_rows, seed, setting.device)
            seeded = request_seeds and request_seeded(num_rows, seed)
            noise: Noise = seeded or noise_for(noise_kind(sampler), batch, noise_seed)
            return np.asarray(read(given, emit(sampler, batch, noise).tokens, _harness_rng(seed)))

        return dependence_plan(setting, _VERIFIED if is_verified else _EMITTED, draw)

    name = "rejection: dependence, with seeds" if request_seeds else "rejection: dependence"
    return Workload(name, "dependence", share, slow_share, prepare, frozenset({_DENSE, _TOKEN}))


def _harness_rng(seed: int) -> np.random.Generator:
    """Numbers of the suite that no sampler sees."""
    return np.random.default_rng(derive_seed("shares", seed))


# -- sampling ---------------------------------------------------------------------------------------------------------

_PROBS = np.array([1 / 16, 1 / 4, 1 / 8, 1 / 16, 1 / 4, 1 / 16, 1 / 8, 1 / 16])
"""Ids are not in order of probability. A draw brings 2.75 bits."""


def plain_batch(logits: NDArray[np.float32], position: int, device: str) -> SamplingBatch:
    """Rows of logits at temperature 1, without filters."""
    import torch

    size = len(logits)
    return SamplingBatch(
        logits=torch.from_numpy(logits).to(device),
        temperature=torch.ones(size, device=device),
        top_k=None,
        top_p=None,
        min_p=None,
        positions=torch.full((size,), position, device=device),
        origin=f"<{size} plain requests, vocab_size={logits.shape[1]}>",
    )


def plain_noise(sampler: Any, batch: SamplingBatch, seed: int) -> SamplingNoise:
    """Noise of a kind that the sampler takes: its own random numbers first."""
    if noise_kind(sampler) is Capability.SEEDED_NOISE:
        return SeededNoise(seed)
    return RaceNoise(exponentials(np.random.default_rng(seed), batch.batch_size, batch.vocab_size).to(batch.device))


def sampling_dependence(share: float, slow_share: float, *, request_seeds: bool = False) -> Workload:
    """D1 to D5 of the sampling contract."""

    def prepare(setting: Setting) -> SamplingPlan:
        def draw(sampler: Any, num_rows: int, noise_seed: int, seed: int) -> NDArray[np.bool_]:
            logits = np.tile(np.log(_PROBS).astype(np.float32), (num_rows, 1))
            batch = plain_batch(logits, seed % 1000, setting.device)
            seeded = request_seeds and request_seeded(num_rows, seed)
            tokens = sample_tokens(sampler, batch, seeded or plain_noise(sampler, batch, noise_seed)).tokens
            return _pit_bits(_PROBS, tokens, np.ones(num_rows, bool), _harness_rng(seed), 3)

        return dependence_plan(setting, tuple(f"token, bit {bit}" for bit in range(3)), draw)

    name = "sampling: dependence, with seeds" if request_seeds else "sampling: dependence"
    return Workload(name, "dependence", share, slow_share, prepare)
