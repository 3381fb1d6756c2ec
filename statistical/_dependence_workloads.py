"""Calls whose draws become fair bits: a batch of like requests, again and again, with related seeds.

Every request of a batch has the same distribution, so that shared noise gives equal draws. A draw brings about three
bits; peaked distributions would hide what their noise shares. Seeds of the calls of a half are 0, 1, 2, ... beyond a
fresh one, a fresh one with single bits flipped, a fresh one doubled again and again, and fresh ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import Capability, RaceNoise, SamplingBatch, SamplingNoise, SeededNoise
from fairdraw.contracts._rejection import emit
from fairdraw.contracts._sampling import sample_tokens
from fairdraw.statistical import _dependence as dependence
from fairdraw.statistical import _sampling_requests as requests
from fairdraw.statistical._coins import CoinShape, coin_tables, count_coins, explain_coins
from fairdraw.statistical._configurations import Configuration, request_distributions
from fairdraw.statistical._count_tables import Counts
from fairdraw.statistical._explained import ExplainedPlan
from fairdraw.statistical._noise import exponentials, noise_for, noise_kind
from fairdraw.statistical._pit import Order, starting_mass
from fairdraw.statistical._related_seeds import related_seeds
from fairdraw.statistical._workloads import SamplingPlan, Setting, Workload

_LARGEST, _SMALLEST, _MOST_CHECKPOINTS = 96, 8, 6
"""Calls and rows of half a checkpoint: 96 is no power of two, spans three warps, and leaves 32 calls 64 apart."""

_TALL = 48, 1025
"""Calls and rows of half a checkpoint of a tall kind: a row more than blocks of every power of two hold."""

_NIGHTLY_CHECKPOINTS, _NIGHTLY_DRAWS = 32, 1_000_000
_FEW_DRAWS = 5_000
"""A slow sampler has fewer, and they show more in one kind less: many kinds leave each too few rows and calls."""


@dataclass(frozen=True)
class Kind:
    """A distribution, and the bits that its draws bring.

    Args:
        draw: From a sampler, a number of rows, the seed of their noise and another seed to bits
            `[num_rows, num_features]`; with `acceptance`, and whether the only draft was accepted.
        acceptance: Its probability, if each request has one draft, and acceptance is judged as it is.
        is_tall: Drawn in few calls of many rows.
    """

    name: str
    features: tuple[str, ...]
    draw: Callable[[Any, int, int, int], NDArray[np.bool_]]  # Any: a sampler of either contract
    num_draws: int = 1
    acceptance: float = 0.0
    is_tall: bool = False


def with_tall(setting: Setting, kinds: Sequence[Kind]) -> Sequence[Kind]:
    """Add the first kind in calls of many rows, for a sampler that is fast."""
    if setting.slow or setting.num_draws < _FEW_DRAWS:
        return kinds
    return *kinds, replace(kinds[0], name=f"{kinds[0].name}, {_TALL[1]} rows", is_tall=True)


def dependence_plan(setting: Setting, kinds: Sequence[Kind], only: tuple[str, ...] = ("",)) -> SamplingPlan:
    """Checkpoints of two halves of each kind, as many as the draws allow.

    Args:
        only: Tables whose names begin so.
    """
    # The smallest cannot be judged with fewer draws than it has.
    num_square = sum(not kind.is_tall for kind in kinds)
    side = min(_LARGEST, max(_SMALLEST, int((setting.num_draws // num_square / 2) ** 0.5)))
    sides = [_TALL if kind.is_tall else (side, side) for kind in kinds]
    shapes = [dependence.Shape(k.name, *sides, k.features, k.num_draws) for k, sides in zip(kinds, sides, strict=True)]
    per_checkpoint = num_square * 2 * side**2  # tall calls come on top, and cost a fast sampler little
    most = _MOST_CHECKPOINTS if setting.num_draws < _NIGHTLY_DRAWS else _NIGHTLY_CHECKPOINTS

    coins = {kind.name: CoinShape(kind.name, side, side, kind.acceptance) for kind in kinds if kind.acceptance}

    def count_kind(sampler: Any, seed: int, kind: Kind, shape: dependence.Shape) -> Counts:  # Any: of either contract
        halves = (related_seeds(shape.num_calls, derive_seed("half", seed, half)) for half in range(2))
        seeds = enumerate(one for half in halves for one in half)
        drawn = [kind.draw(sampler, shape.num_rows, one, derive_seed("call", seed, i)) for i, one in seeds]
        bits, rng = np.stack(drawn), harness_rng(derive_seed("coins", seed))
        extra = count_coins(bits[..., -1], coins[kind.name], rng) if kind.name in coins else {}
        return {**dependence.count_dependence(bits[..., : len(kind.features)], shape), **extra}

    def count(sampler: Any, seed: int) -> Counts:
        pairs = zip(kinds, shapes, strict=True)
        parts = [count_kind(sampler, derive_seed(kind.name, seed), kind, shape) for kind, shape in pairs]
        every = (pair for part in parts for pair in part.items())
        return {name: table for name, table in every if name.removeprefix(dependence.SUSPECT).startswith(only)}

    def explain(counts: Sequence[Counts], name: str) -> str:
        found = next((one for one in coins.values() if name in coin_tables(one)), None)
        return explain_coins(counts, found, name) if found else dependence.explain_dependence(counts, shapes, name)

    tables = {name: table for shape in shapes for name, table in dependence.dependence_tables(shape).items()}
    tables |= {name: table for shape in coins.values() for name, table in coin_tables(shape).items()}
    tables = {name: table for name, table in tables.items() if name.startswith(only)}
    num_checkpoints = min(most, setting.num_draws // per_checkpoint)
    return ExplainedPlan(tables, count, num_checkpoints, per_checkpoint, explain)


def pit_bits(
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
    return dependence.gray_bits(np.where(known & (probs[ids] > 0), transform, uniforms[1]), num_bits)


# -- rejection --------------------------------------------------------------------------------------------------------

_TOKEN, _DENSE = Capability.TOKEN_VERIFICATION, Capability.DENSE_DRAFTS


@dataclass(frozen=True, eq=False)
class Verified:
    """Every position has these distributions: drafts are accepted with one probability, and others are recovered.

    Args:
        recovered: Given a rejection.
        num_bits: What acceptance and recovered token bring; an emitted token brings two.
        num_draft: Positions of a request. One: acceptance is judged as it is, too.
    """

    name: str
    acceptance: float
    recovered: tuple[float, ...]
    num_bits: tuple[int, int]
    num_draft: int

    def configuration(self, *, dense: bool) -> Configuration:
        """Four drafts, or one without draft probabilities; then the tokens that are recovered."""
        drafts = 4 if dense else 1
        target = [self.acceptance / drafts] * drafts + [(1 - self.acceptance) * prob for prob in self.recovered]
        draft = [1 / drafts] * drafts + [0.0] * len(self.recovered)
        rows = request_distributions([target] * (self.num_draft + 1), [draft] * self.num_draft, one_hot=not dense)
        return Configuration(self.name, (rows,), ())

    def features(self, *, is_verified: bool) -> tuple[str, ...]:
        """What each bit is."""
        if not is_verified:
            return tuple(f"emitted token {i}, bit {bit}" for i in range(self.num_draft) for bit in range(2))
        of_acceptance, of_token = map(range, self.num_bits)
        accepted = (f"acceptance at position {i}, bit {bit}" for i in range(self.num_draft) for bit in of_acceptance)
        return (*accepted, *(f"recovered token, bit {bit}" for bit in of_token))

    def bits(self, given: Configuration, tokens: NDArray[np.int32], rng: np.random.Generator) -> NDArray[np.bool_]:
        """Of token verification: acceptance at each reached position, and the recovered token wherever it came."""
        num_emitted, positions = (tokens >= 0).sum(axis=1), np.arange(self.num_draft)
        coin = np.array([self.acceptance, 1 - self.acceptance])
        reached, rejected = num_emitted[:, None] > positions, num_emitted[:, None] <= positions + 1
        accepted = pit_bits(coin, rejected.astype(np.int64), reached, rng, self.num_bits[0])
        last = tokens[np.arange(len(tokens)), np.maximum(num_emitted - 1, 0)]
        is_recovered = (num_emitted > 0) & (num_emitted <= self.num_draft)
        recovered = pit_bits(given.requests[0].residual(0, 0), last, is_recovered, rng, self.num_bits[1])
        coins = ~rejected[:, :1] if self.num_draft == 1 else np.empty((len(tokens), 0), bool)
        return np.concatenate([accepted.reshape(len(tokens), -1), recovered, coins], axis=1)

    def emitted_bits(
        self, given: Configuration, tokens: NDArray[np.int32], rng: np.random.Generator
    ) -> NDArray[np.bool_]:
        """Of any lossless verifier: every emitted token before the bonus token under its target distribution."""
        probs, emitted = given.requests[0].exact_target_probs()[0], tokens[:, : self.num_draft]
        return pit_bits(probs, emitted, emitted >= 0, rng, 2).reshape(len(tokens), -1)


_KINDS = (
    Verified("eight tokens", 0.5, (1 / 4, 1 / 4, 1 / 8, 1 / 8, 1 / 16, 1 / 16, 1 / 16, 1 / 16), (1, 3), 3),
    Verified("two tokens", 0.75, (0.5, 0.5), (2, 1), 1),
    Verified("six positions", 0.75, (0.5, 0.5), (1, 1), 6),
)
"""Equal noise shows in many tokens, opposite noise in two, and what three acceptances share in coins of 3/4. Positions
that share a number show in the acceptance of the later one, so many positions must be reached."""


@Workload.of("rejection: dependence", "dependence", 0.6, 0.45, _DENSE, _TOKEN)
def rejection_dependence(setting: Setting) -> SamplingPlan:
    """D1 to D5 of the rejection contract."""

    def kind_of(verified: Verified, setting: Setting) -> Kind:
        given, is_verified = verified.configuration(dense=_DENSE in setting.supported), _TOKEN in setting.supported
        read = verified.bits if is_verified else verified.emitted_bits

        def draw(sampler: Any, num_rows: int, noise_seed: int, seed: int) -> NDArray[np.bool_]:
            batch = given.batch(num_rows, seed, setting.device)
            tokens = emit(sampler, batch, noise_for(noise_kind(sampler), batch, noise_seed)).tokens
            return read(given, tokens, harness_rng(seed))

        coin = verified.acceptance if is_verified and verified.num_draft == 1 else 0.0
        features = verified.features(is_verified=is_verified)
        return Kind(verified.name, features, draw, verified.num_draft + 1, coin)

    num_kinds = len(_KINDS) - (setting.num_draws < _FEW_DRAWS)
    return dependence_plan(setting, with_tall(setting, [kind_of(one, setting) for one in _KINDS[:num_kinds]]))


def harness_rng(seed: int) -> np.random.Generator:
    """Numbers of the suite that no sampler sees."""
    return np.random.default_rng(derive_seed("shares", seed))


# -- sampling ---------------------------------------------------------------------------------------------------------

PROBS = {
    "eight tokens": np.array([1 / 16, 1 / 4, 1 / 8, 1 / 16, 1 / 4, 1 / 16, 1 / 8, 1 / 16]),
    "two tokens": np.array([0.5, 0.5]),
}
"""Ids are not in order of probability. A draw brings 2.75 bits, or one."""


_FAR = 4096
"""Positions begin here, so that falling ones stay above 0."""


def related_positions(size: int, seed: int) -> NDArray[np.int64]:  # [size] int64
    """Positions of the rows of a call: equal, rising, falling, differing in single bits, or any.

    Requests that arrived one after the other have falling ones; noise by row + position is then one for all.
    """
    rows, first = np.arange(size), _FAR + seed % 1000
    anywhere = harness_rng(derive_seed("positions", seed)).integers(2 * _FAR, size=size)
    patterns = (np.full(size, first), first + rows, first - rows, first ^ rows, anywhere)
    return np.asarray(patterns[derive_seed("pattern", seed) % len(patterns)], np.int64)


def plain_batch(
    logits: NDArray[np.float32], position: int | NDArray[np.int64], device: str
) -> SamplingBatch:  # position: of all rows, or [batch_size] int64
    """Rows of logits at temperature 1, without filters."""
    kinds = [requests.Kind("plain")] * len(logits)
    return requests.batch_of(kinds, logits, np.full(len(logits), position, np.int64), device)


def plain_noise(sampler: Any, batch: SamplingBatch, seed: int) -> SamplingNoise:
    """Noise of a kind that the sampler takes: its own random numbers first."""
    if noise_kind(sampler) is Capability.SEEDED_NOISE:
        return SeededNoise(seed)
    return RaceNoise(exponentials(np.random.default_rng(seed), batch.batch_size, batch.vocab_size).to(batch.device))


@Workload.of("sampling: dependence", "dependence", 0.5, 0.45)
def sampling_dependence(setting: Setting) -> SamplingPlan:
    """D1 to D5 of the sampling contract."""

    def kind(name: str, device: str) -> Kind:
        probs = PROBS[name]
        row, num_bits = np.log(probs).astype(np.float32), probs.size.bit_length() - 1

        def draw(sampler: Any, num_rows: int, noise_seed: int, seed: int) -> NDArray[np.bool_]:
            batch = plain_batch(np.tile(row, (num_rows, 1)), related_positions(num_rows, seed), device)
            tokens = sample_tokens(sampler, batch, plain_noise(sampler, batch, noise_seed)).tokens
            return pit_bits(probs, tokens, np.ones(num_rows, bool), harness_rng(seed), num_bits)

        return Kind(name, tuple(f"token, bit {bit}" for bit in range(num_bits)), draw, 1)

    names = list(PROBS)[: 1 if setting.num_draws < _FEW_DRAWS else 2]
    return dependence_plan(setting, with_tall(setting, [kind(name, setting.device) for name in names]))
