"""Faults of token samplers, as engines have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from exam._bits import drawn_exponentials, exponentials_of, hashed, key_of, mixed, stream, uniforms_of
from exam.areas import (
    DISTRIBUTION,
    EXAMPLE,
    FILTERS,
    GREEDY,
    HALF,
    OTHERS,
    SEEDS,
    SHARED,
    SIZES,
    TAIL,
    TEMPERATURE,
    TIME,
)
from exam.correct_sampling import CounterSampling, OwnSampling, Sampling, TorchSampling
from exam.registry import between, fault

if TYPE_CHECKING:
    import random

    from torch import Tensor

    from exam.registry import Wrong
    from fairdraw.protocols import SamplingBatch, SamplingNoise, SeededNoise

# -- sizes ----------------------------------------------------------------------------------------------------------


@fault("sizes", SIZES | EXAMPLE, copies=2)
def sampling_rows_beyond_the_grid(rng: random.Random) -> Wrong:
    limit = between(rng, 70, 1000)

    class Faulty(Sampling):
        def tokens(self, batch: SamplingBatch, probs: Tensor, exponentials: Tensor) -> Tensor:
            tokens = super().tokens(batch, probs, exponentials)
            tokens[limit:] = 0
            return tokens

    return f"requests from number {limit} on get token 0", Faulty


@fault("sizes", SIZES | FILTERS | OTHERS | EXAMPLE, copies=2)
def sampling_parameters_by_period(rng: random.Random) -> Wrong:
    period, name = rng.choice([6, 10, 12, 24, 48, 100]), rng.choice(["top_k", "top_p", "min_p"])

    class Faulty(Sampling):
        def limits(self, batch: SamplingBatch, asked: str) -> Tensor:
            limits = super().limits(batch, asked)
            return limits[torch.arange(len(limits)) % period] if asked == name else limits

    return f"{name} is read from a buffer of {period} entries", Faulty


@fault("sizes", SIZES | FILTERS | EXAMPLE)
def sampling_top_k_of_a_block(rng: random.Random) -> Wrong:
    most = rng.choice([20, 50, 64, 100, 256])

    class Faulty(Sampling):
        def top_k(self, logits: Tensor, limits: Tensor) -> Tensor:
            on = (limits > 0) & (limits < logits.shape[1])
            return super().top_k(logits, torch.where(on, limits.clamp(max=most), limits))

    return f"top-k keeps at most {most} tokens", Faulty


@fault("sizes", SIZES | FILTERS | EXAMPLE)
def sampling_filters_see_a_part(rng: random.Random) -> Wrong:
    part = rng.choice([1280, 2000, 5000, 16384, 50000])

    class Faulty(Sampling):
        def top_p(self, logits: Tensor, limits: Tensor) -> Tensor:
            if logits.shape[1] <= part:
                return super().top_p(logits, limits)
            smallest = logits.topk(part, -1).values[:, -1:]
            kept = logits.masked_fill((logits < smallest) & (limits < 1)[:, None], -torch.inf)
            return super().top_p(kept, limits)

    return f"top-p looks at the {part} largest logits", Faulty


@fault("sizes", SIZES | TAIL | EXAMPLE)
def sampling_ids_in_few_bits(rng: random.Random) -> Wrong:
    bits = rng.choice([16, 17])

    class Faulty(OwnSampling):
        def race(self, probs: Tensor, exponentials: Tensor) -> Tensor:
            return super().race(probs, exponentials) & ((1 << bits) - 1)

    return f"drawn ids are packed into {bits} bits (own noise)", Faulty


@fault("sizes", SIZES | EXAMPLE)
def sampling_element_offset_wraps(rng: random.Random) -> Wrong:
    bits = rng.choice([18, 19, 20])

    class Faulty(Sampling):
        def scaled(self, batch: SamplingBatch) -> Tensor:
            rows = (torch.arange(batch.batch_size) * batch.vocab_size) % (1 << bits) // batch.vocab_size
            return super().scaled(batch)[rows]

    return f"offsets of logits are computed in {bits} bits", Faulty


@fault("sizes", SIZES | EXAMPLE | GREEDY)
def sampling_greedy_tile_ties(rng: random.Random) -> Wrong:
    tile = rng.choice([40, 96, 250, 1000, 3000])

    class Faulty(Sampling):
        def best(self, batch: SamplingBatch) -> Tensor:
            logits = batch.logits.float()
            pieces = torch.split(logits, tile, -1)
            values = torch.stack([piece.amax(-1) for piece in pieces])
            last = len(pieces) - 1 - values.flip(0).argmax(0)
            inside = torch.stack([piece.argmax(-1) for piece in pieces]).gather(0, last[None])[0]
            return inside + last * tile

    return f"of equal largest logits in tiles of {tile} the last tile's is the greedy token", Faulty


# -- values ---------------------------------------------------------------------------------------------------------


@fault("values", FILTERS | EXAMPLE)
def sampling_top_p_near_one(rng: random.Random) -> Wrong:
    limit = rng.choice([0.99, 0.995, 0.999, 0.9999])

    class Faulty(Sampling):
        def top_p(self, logits: Tensor, limits: Tensor) -> Tensor:
            return super().top_p(logits, torch.where(limits > limit, torch.ones_like(limits), limits))

    return f"top-p above {limit:g} is taken for off", Faulty


@fault("values", FILTERS | EXAMPLE)
def sampling_tiny_top_p(rng: random.Random) -> Wrong:
    least = rng.choice([1e-3, 0.01, 0.05])

    class Faulty(Sampling):
        def top_p(self, logits: Tensor, limits: Tensor) -> Tensor:
            return super().top_p(logits, torch.where(limits < least, torch.ones_like(limits), limits))

    return f"top-p below {least:g} is taken for off", Faulty


@fault("values", FILTERS | EXAMPLE)
def sampling_min_p_one(rng: random.Random) -> Wrong:
    most = rng.choice([0.8, 0.9, 0.95, 0.999])

    class Faulty(Sampling):
        def min_p(self, logits: Tensor, limits: Tensor) -> Tensor:
            return super().min_p(logits, limits.clamp(max=most))

    return f"min-p above {most:g} counts as {most:g}", Faulty


@fault("values", FILTERS | EXAMPLE)
def sampling_top_k_almost_all(rng: random.Random) -> Wrong:
    class Faulty(Sampling):
        def top_k(self, logits: Tensor, limits: Tensor) -> Tensor:
            size = logits.shape[1]
            return super().top_k(logits, torch.where(limits == size - 1, size, limits))

    return "top-k of all tokens but one is taken for off", Faulty


@fault("values", TEMPERATURE | EXAMPLE | GREEDY | DISTRIBUTION)
def sampling_least_temperature(rng: random.Random) -> Wrong:
    least = rng.choice([1e-4, 1e-3, 0.01, 0.05])

    class Faulty(Sampling):
        def scaled(self, batch: SamplingBatch) -> Tensor:
            warmer = batch.temperature.clamp(min=least)
            return super().scaled(batch.replace(temperature=torch.where(self.greedy(batch), batch.temperature, warmer)))

    return f"temperatures below {least:g} that are not greedy count as {least:g}", Faulty


@fault("values", TEMPERATURE | EXAMPLE | DISTRIBUTION)
def sampling_most_temperature(rng: random.Random) -> Wrong:
    most = rng.choice([1.5, 2.0, 4.0])

    class Faulty(Sampling):
        def scaled(self, batch: SamplingBatch) -> Tensor:
            return super().scaled(batch.replace(temperature=batch.temperature.clamp(max=most)))

    return f"temperatures above {most:g} count as {most:g}", Faulty


@fault("values", SEEDS | SHARED, copies=2)
def sampling_seeds_lose_bits(rng: random.Random) -> Wrong:
    bits, drop = rng.choice([16, 24, 31, 32]), rng.choice([0, 1, 8])

    class Faulty(CounterSampling):
        def key(self, seed: int, position: int) -> np.uint64:
            return key_of((seed >> drop) & ((1 << bits) - 1), position)

    return f"of a request's seed the {bits} bits from number {drop} on count", Faulty


@fault("values", SEEDS | SHARED)
def sampling_positions_lose_bits(rng: random.Random) -> Wrong:
    period = rng.choice([64, 100, 256, 1000, 4096])

    class Faulty(CounterSampling):
        def key(self, seed: int, position: int) -> np.uint64:
            return key_of(seed, position % period)

    return f"noise of a request repeats after {period} positions", Faulty


@fault("values", FILTERS | EXAMPLE)
def sampling_tiny_top_p_is_greedy(rng: random.Random) -> Wrong:
    least = rng.choice([5e-4, 1e-3, 0.01])

    class Faulty(Sampling):
        def top_p(self, logits: Tensor, limits: Tensor) -> Tensor:
            return super().top_p(logits, torch.where(limits < least, torch.full_like(limits, 1e-9), limits))

    return f"top-p below {least:g} is taken for greedy", Faulty


@fault("values", TEMPERATURE | EXAMPLE | DISTRIBUTION)
def sampling_temperature_near_one(rng: random.Random) -> Wrong:
    near = rng.choice([1e-3, 5e-3, 0.02])

    class Faulty(Sampling):
        def scaled(self, batch: SamplingBatch) -> Tensor:
            heat = batch.temperature
            return super().scaled(batch.replace(temperature=torch.where((heat - 1).abs() < near, 1.0, heat)))

    return f"temperatures within {near:g} of 1 are taken for 1", Faulty


@fault("values", FILTERS | EXAMPLE)
def sampling_tiny_min_p(rng: random.Random) -> Wrong:
    least = rng.choice([3e-5, 1e-4, 1e-3])

    class Faulty(Sampling):
        def min_p(self, logits: Tensor, limits: Tensor) -> Tensor:
            return super().min_p(logits, torch.where(limits < least, torch.zeros_like(limits), limits))

    return f"min-p below {least:g} is taken for off", Faulty


# -- combinations ---------------------------------------------------------------------------------------------------


@fault("combinations", FILTERS | TEMPERATURE | DISTRIBUTION, copies=3)
def sampling_filter_before_temperature(rng: random.Random) -> Wrong:
    name = rng.choice(["top_p", "min_p"])
    base: type[Any] = rng.choice([Sampling, OwnSampling, TorchSampling])

    class Faulty(base):  # type: ignore[misc]
        def probs(self, batch: SamplingBatch) -> Tensor:
            unscaled = (
                getattr(self, name)(batch.logits.float(), self.limits(batch, name))
                if getattr(batch, name) is not None
                else None
            )
            rest = super().filtered(batch.replace(**{name: None}), self.scaled(batch))
            if unscaled is not None:
                rest = rest.masked_fill((unscaled == -torch.inf) & ~self.greedy(batch)[:, None], -torch.inf)
            # A row without any token left keeps its largest.
            empty = (rest == -torch.inf).all(-1)
            rest[empty] = torch.where(
                batch.logits.float() == batch.logits.float().amax(-1, keepdim=True), 0.0, -torch.inf
            )[empty]
            return rest.softmax(-1)

    return f"{name} looks at the logits before the temperature ({base.__name__})", Faulty


@fault("combinations", FILTERS | DISTRIBUTION | EXAMPLE, copies=3)
def sampling_filters_in_another_order(rng: random.Random) -> Wrong:
    # Top-k and min-p commute: only the place of top-p decides.
    order = rng.choice(
        [
            ("top_p", "top_k", "min_p"),
            ("top_k", "top_p", "min_p"),
            ("min_p", "top_p", "top_k"),
            ("top_p", "min_p", "top_k"),
        ]
    )
    base: type[Any] = rng.choice([Sampling, OwnSampling])

    class Faulty(base):  # type: ignore[misc]
        def filtered(self, batch: SamplingBatch, logits: Tensor) -> Tensor:
            for name in order:
                if getattr(batch, name) is not None:
                    logits = getattr(self, name)(logits, self.limits(batch, name))
            return logits

    return f"the order of filters is {', '.join(order)} ({base.__name__})", Faulty


@fault("combinations", FILTERS | SEEDS | DISTRIBUTION | EXAMPLE)
def sampling_seeded_rows_unfiltered(rng: random.Random) -> Wrong:
    name = rng.choice(["top_k", "top_p", "min_p"])

    class Faulty(Sampling):
        def sample(self, batch: SamplingBatch, noise: SamplingNoise) -> Tensor:
            seeded = [i for i in getattr(noise, "request_seeds", {}) if i < batch.batch_size]
            limits = getattr(batch, name)
            if seeded and len(seeded) < batch.batch_size and limits is not None:
                limits = limits.clone()
                limits[seeded] = {"top_k": batch.vocab_size, "top_p": 1, "min_p": 0}[name]
                batch = batch.replace(**{name: limits})
            return super().sample(batch, noise)

    return f"requests with a seed beside some without are not filtered by {name}", Faulty


@fault("combinations", FILTERS | EXAMPLE | DISTRIBUTION)
def sampling_both_filters_joint(rng: random.Random) -> Wrong:
    class Faulty(Sampling):
        def filtered(self, batch: SamplingBatch, logits: Tensor) -> Tensor:
            left = super().filtered(batch.replace(top_p=None), logits)
            if batch.top_p is None or batch.top_k is None:
                return super().filtered(batch, logits)
            return left.masked_fill(self.top_p(logits, batch.top_p) == -torch.inf, -torch.inf)

    return "with top-k and top-p both given, top-p looks at the unfiltered distribution", Faulty


@fault("combinations", HALF | FILTERS | EXAMPLE)
def sampling_half_filters(rng: random.Random) -> Wrong:
    class Faulty(Sampling):
        def min_p(self, logits: Tensor, limits: Tensor) -> Tensor:
            return super().min_p(logits, limits.bfloat16().float() if self.half else limits)

        def scaled(self, batch: SamplingBatch) -> Tensor:
            self.half = batch.logits.dtype == torch.bfloat16
            return super().scaled(batch)

    return "min-p is rounded to bfloat16 beside bfloat16 logits", Faulty


@fault("combinations", HALF | TEMPERATURE | DISTRIBUTION | EXAMPLE)
def sampling_half_temperature(rng: random.Random) -> Wrong:
    class Faulty(Sampling):
        def scaled(self, batch: SamplingBatch) -> Tensor:
            scaled = super().scaled(batch)
            cold = (batch.temperature != 1) & (batch.logits.dtype != torch.float32)
            return torch.where(cold[:, None], scaled.to(batch.logits.dtype).float(), scaled)

    return "half precision logits are divided by a temperature other than 1 in half precision", Faulty


@fault("combinations", GREEDY | FILTERS | EXAMPLE | OTHERS)
def sampling_greedy_beside_filtered(rng: random.Random) -> Wrong:
    class Faulty(Sampling):
        def top_p(self, logits: Tensor, limits: Tensor) -> Tensor:
            if bool(self.cold.any()) and bool((~self.cold).any()):
                limits = torch.where(limits < 1, (limits * 1.25).clamp(max=1), limits)
            return super().top_p(logits, limits)

        def scaled(self, batch: SamplingBatch) -> Tensor:
            self.cold = self.greedy(batch)
            return super().scaled(batch)

    return "beside greedy requests top-p of random ones is larger by a quarter", Faulty


# -- time -----------------------------------------------------------------------------------------------------------


@fault("time", TIME)
def sampling_probs_cached_by_pointer(rng: random.Random) -> Wrong:
    class Faulty(Sampling):
        def __init__(self) -> None:
            self.key: tuple[Any, ...] = ()
            self.kept = torch.empty(0)

        def scaled(self, batch: SamplingBatch) -> Tensor:
            key = (batch.logits.data_ptr(), batch.logits.shape, batch.logits.dtype)
            if key != self.key:
                self.key, self.kept = key, super().scaled(batch)
            return self.kept

    return "scaled logits are kept by the address and shape of the logits", Faulty


@fault("time", TIME | SHARED)
def sampling_generator_starts_anew(rng: random.Random) -> Wrong:
    class Faulty(Sampling):
        def drawn(self, batch: SamplingBatch, noise: SeededNoise) -> Tensor:
            drawn = torch.empty(batch.batch_size, batch.vocab_size).exponential_()
            for request, seed in noise.request_seeds.items():
                drawn[request].exponential_(generator=torch.Generator().manual_seed(seed))
            return drawn

    return "a request's generator is made anew from its seed at each call, and never advances", Faulty


@fault("time", TIME | FILTERS | EXAMPLE)
def sampling_parameters_uploaded_seldom(rng: random.Random) -> Wrong:
    name = rng.choice(["top_k", "top_p", "min_p"])

    class Faulty(Sampling):
        def __init__(self) -> None:
            self.kept: dict[int, Tensor] = {}

        def limits(self, batch: SamplingBatch, asked: str) -> Tensor:
            limits = super().limits(batch, asked)
            if asked != name:
                return limits
            kept = self.kept.get(len(limits), limits)
            self.kept[len(limits)] = limits = kept if torch.equal(kept[:1], limits[:1]) else limits.clone()
            return limits

    return f"{name} is uploaded again only if that of the first request changes", Faulty


@fault("time", TIME | EXAMPLE)
def sampling_stale_once_in_a_while(rng: random.Random) -> Wrong:
    period = rng.choice([40, 90, 150])

    class Faulty(Sampling):
        def __init__(self) -> None:
            self.calls, self.last = 0, torch.empty(0)

        def tokens(self, batch: SamplingBatch, probs: Tensor, exponentials: Tensor) -> Tensor:
            tokens = super().tokens(batch, probs, exponentials)
            self.calls += 1
            stale = self.calls % period == 0 and self.last.shape == tokens.shape
            old, self.last = self.last, tokens.clone()
            return old if stale else tokens

    return f"each call number {period} returns the tokens of the one before if shapes agree", Faulty


@fault("time", TIME | EXAMPLE)
def sampling_one_buffer_of_noise(rng: random.Random) -> Wrong:
    class Faulty(Sampling):
        def __init__(self) -> None:
            self.buffer = torch.ones(0)

        def exponentials(self, batch: SamplingBatch, noise: SamplingNoise) -> Tensor:
            fresh = super().exponentials(batch, noise).flatten()
            if (
                len(fresh) < len(self.buffer) and len(fresh) > 64
            ):  # the last chunk of a larger buffer is not overwritten
                fresh = torch.cat([fresh[:-16], self.buffer[len(fresh) - 16 : len(fresh)]])
            if len(fresh) > len(self.buffer):
                self.buffer = fresh.clone()
            return fresh.reshape(batch.batch_size, batch.vocab_size)

    return "after a larger call the last 16 exponentials are those that it left", Faulty


# -- dependence -----------------------------------------------------------------------------------------------------


def _own(what: Any) -> type[OwnSampling]:
    """A sampler whose numbers `what(batch, seed, exponentials)` spoils."""

    class Faulty(OwnSampling):
        def own(self, batch: SamplingBatch, seed: int) -> np.ndarray:
            spoilt: np.ndarray = what(batch, seed, super().own(batch, seed))
            return spoilt

    return Faulty


@fault("dependence", SHARED, copies=3)
def sampling_rows_share_races(rng: random.Random) -> Wrong:
    distance = rng.choice([2, 3, 5, 6, 17, 31, 64, 100])

    def spoil(batch: SamplingBatch, seed: int, e: Any) -> Any:
        rows = np.arange(len(e))
        return e[np.where((rows // distance) % 2 == 1, rows - distance, rows)]

    return f"rows at a distance of {distance} share their race", _own(spoil)


@fault("dependence", SHARED)
def sampling_rows_race_backwards(rng: random.Random) -> Wrong:
    distance = rng.choice([1, 2, 7, 20])

    def spoil(batch: SamplingBatch, seed: int, e: Any) -> Any:
        rows = np.flatnonzero(np.arange(len(e)) // distance % 2 == 1)
        e[rows] = e[rows - distance, ::-1]
        return e

    return f"rows at a distance of {distance} share their race, in reverse order", _own(spoil)


@fault("dependence", SHARED)
def sampling_halves_of_a_row_share(rng: random.Random) -> Wrong:
    part = rng.choice([2, 3, 4])

    def spoil(batch: SamplingBatch, seed: int, e: Any) -> Any:
        size = e.shape[1] // part
        if size:
            e[:, size : 2 * size] = e[:, :size]
        return e

    return f"the second of {part} parts of a row races with the numbers of the first", _own(spoil)


@fault("dependence", SHARED)
def sampling_antithetic_rows(rng: random.Random) -> Wrong:
    def spoil(batch: SamplingBatch, seed: int, e: Any) -> Any:
        half = len(e) // 2
        u = -np.expm1(-e[:half].astype(np.float64))
        e[half : 2 * half] = np.maximum(-np.log(np.maximum(u, 1e-30)), 1e-38)
        return e

    return "the second half of the rows is antithetic to the first", _own(spoil)


def _inverted(uniforms_of_batch: Any) -> type[OwnSampling]:
    """A sampler that inverts the cumulative sum at one uniform per row."""

    class Faulty(OwnSampling):
        def sample(self, batch: SamplingBatch, noise: SamplingNoise) -> Tensor:
            sums = self.probs(batch).double().cumsum(-1)
            u = torch.from_numpy(uniforms_of_batch(noise.seed, batch.batch_size))[:, None]  # type: ignore[union-attr]
            drawn = torch.searchsorted(sums, (u * sums[:, -1:]).clamp(max=1 - 2.0**-53), right=True)[:, 0]
            return torch.where(self.greedy(batch), self.best(batch), drawn.clamp(max=batch.vocab_size - 1))

    return Faulty


@fault("dependence", SHARED)
def sampling_stratified_rows(rng: random.Random) -> Wrong:
    def uniforms(seed: int, size: int) -> np.ndarray:
        own = stream(seed)
        return (own.permutation(size) + own.random(size)) / size

    return "one uniform per row, stratified over the batch: too even", _inverted(uniforms)


@fault("dependence", SHARED)
def sampling_systematic_rows(rng: random.Random) -> Wrong:
    def uniforms(seed: int, size: int) -> np.ndarray:
        return (np.arange(size) * 0.6180339887498949 + stream(seed).random()) % 1.0

    return "uniforms of the rows are a golden-ratio sequence from a random start", _inverted(uniforms)


@fault("dependence", SHARED, resolution="three rows at a time depend, and no two: needs a test of triples")
def sampling_three_at_a_time(rng: random.Random) -> Wrong:
    def uniforms(seed: int, size: int) -> np.ndarray:
        u = stream(seed).random(size)
        third = size // 3
        u[2 * third : 3 * third] = (u[:third] + u[third : 2 * third]) % 1.0
        return u

    return "the last third of the uniforms is the sum, modulo 1, of the other two", _inverted(uniforms)


@fault("dependence", SHARED | SEEDS)
def sampling_positions_of_a_seed(rng: random.Random) -> Wrong:
    class Faulty(CounterSampling):
        def key(self, seed: int, position: int) -> np.uint64:
            return key_of(seed + position)

    return "the noise of a request depends on its seed plus the position", Faulty


@fault("dependence", SHARED | SEEDS)
def sampling_calls_overlap(rng: random.Random) -> Wrong:
    window = rng.choice([8, 64, 1024])

    def spoil(batch: SamplingBatch, seed: int, e: Any) -> Any:
        return drawn_exponentials(stream(seed // window, seed % window // 2), *e.shape)

    return f"of {window} calls with seeds in a row each two have one stream", _own(spoil)


@fault("dependence", SHARED)
def sampling_columns_share(rng: random.Random) -> Wrong:
    distance = rng.choice([1, 3, 7, 16])

    def spoil(batch: SamplingBatch, seed: int, e: Any) -> Any:
        flat = drawn_exponentials(stream(seed), len(e) * distance + e.shape[1])
        index = np.arange(len(e))[:, None] * distance + np.arange(e.shape[1])[None, :]
        return flat[index]

    return f"rows start {distance} numbers further in one stream, and overlap", _own(spoil)


# -- noise quality --------------------------------------------------------------------------------------------------

_COARSE = DISTRIBUTION | TAIL | SHARED


@fault("noise quality", _COARSE, copies=2)
def sampling_uniforms_of_few_bits(rng: random.Random) -> Wrong:
    bits = rng.choice([8, 10, 12, 16])

    def uniforms(seed: int, size: int) -> np.ndarray:
        return stream(seed).integers(0, 1 << bits, size) / (1 << bits)

    return f"the cumulative sum is inverted at uniforms of {bits} bits", _inverted(uniforms)


@fault("noise quality", _COARSE)
def sampling_clamped_exponentials(rng: random.Random) -> Wrong:
    most = rng.choice([3.0, 4.0, 5.0])

    def spoil(batch: SamplingBatch, seed: int, e: Any) -> Any:
        return np.minimum(e, np.float32(most))

    return f"exponentials are clamped at {most:g}", _own(spoil)


@fault("noise quality", _COARSE)
def sampling_floor_of_exponentials(rng: random.Random) -> Wrong:
    least = rng.choice([1e-2, 1e-3, 1e-4])

    def spoil(batch: SamplingBatch, seed: int, e: Any) -> Any:
        return np.maximum(e, np.float32(least))

    return f"exponentials are clamped from below at {least:g}", _own(spoil)


@fault("noise quality", _COARSE, resolution="no probability moves by more than 0.01 %")
def sampling_hole_in_the_exponentials(rng: random.Random) -> Wrong:
    first, width = rng.choice([0.1, 0.5, 1.0]), rng.choice([0.01, 0.02, 0.05])

    def spoil(batch: SamplingBatch, seed: int, e: Any) -> Any:
        return np.where((e > first) & (e < first + width), np.float32(first), e)

    return f"exponentials from {first:g} to {first + width:g} are all {first:g}", _own(spoil)


@fault("noise quality", _COARSE)
def sampling_exponentials_of_zero(rng: random.Random) -> Wrong:
    bits = rng.choice([14, 16, 18, 20])

    def spoil(batch: SamplingBatch, seed: int, e: Any) -> Any:
        return np.where(e < 2.0**-bits, np.float32(1e-37), e)

    return f"exponentials below 2**-{bits} are as good as 0", _own(spoil)


@fault("noise quality", _COARSE)
def sampling_uniforms_kept_from_zero(rng: random.Random) -> Wrong:
    least = rng.choice([1e-2, 3e-3, 1e-3])

    def uniforms(seed: int, size: int) -> np.ndarray:
        return least + (1 - least) * stream(seed).random(size)

    return f"the cumulative sum is inverted at uniforms from {least:g} to 1", _inverted(uniforms)


@fault("noise quality", _COARSE, copies=2)
def sampling_exponentials_from_few_bits(rng: random.Random) -> Wrong:
    bits = rng.choice([10, 12, 16, 20])

    class Faulty(OwnSampling):
        def own(self, batch: SamplingBatch, seed: int) -> np.ndarray:
            cells = stream(seed).integers(0, 1 << bits, (batch.batch_size, batch.vocab_size))
            return np.maximum(-np.log((cells + 0.5) / (1 << bits)), 1e-38).astype(np.float32)

    return f"races run on uniforms of {bits} bits", Faulty


@fault("noise quality", _COARSE)
def sampling_exponentials_in_half(rng: random.Random) -> Wrong:
    def spoil(batch: SamplingBatch, seed: int, e: Any) -> Any:
        return np.maximum(e.astype(np.float16), np.float16(6e-5)).astype(np.float32)

    return "exponentials are drawn in float16, and ties go to low ids", _own(spoil)


@fault("noise quality", _COARSE)
def sampling_weak_hash(rng: random.Random) -> Wrong:
    factor = rng.choice([69069, 1664525, 22695477])

    class Faulty(OwnSampling):
        def own(self, batch: SamplingBatch, seed: int) -> np.ndarray:
            count = batch.batch_size * batch.vocab_size
            with np.errstate(over="ignore"):
                bits = (np.arange(count, dtype=np.uint32) + np.uint32(seed & 0xFFFFFFFF)) * np.uint32(factor)
            u = (bits >> np.uint32(8)).astype(np.float64) / 2**24
            return exponentials_of(u).reshape(batch.batch_size, batch.vocab_size)

    return f"uniforms are the counter times {factor} modulo 2**32, unmixed", Faulty


# -- rare -----------------------------------------------------------------------------------------------------------


@fault("rare", TEMPERATURE | DISTRIBUTION, copies=2)
def sampling_temperature_off(rng: random.Random) -> Wrong:
    factor = rng.choice([0.97, 0.98, 0.985, 1.015, 1.02, 1.03])
    base: type[Any] = rng.choice([Sampling, TorchSampling, OwnSampling])

    class Faulty(base):  # type: ignore[misc]
        def scaled(self, batch: SamplingBatch) -> Tensor:
            return super().scaled(batch) * factor

    return f"logits are multiplied by {factor:g} ({base.__name__})", Faulty


@fault("rare", EXAMPLE | SIZES | DISTRIBUTION)
def sampling_one_row_in_many(rng: random.Random) -> Wrong:
    period = rng.choice([400, 700, 1000])

    class Faulty(Sampling):
        def __init__(self) -> None:
            self.rows = 0

        def tokens(self, batch: SamplingBatch, probs: Tensor, exponentials: Tensor) -> Tensor:
            tokens = super().tokens(batch, probs, exponentials)
            rows = torch.arange(self.rows, self.rows + len(tokens))
            self.rows += len(tokens)
            return torch.where(rows % period == period - 1, probs.argmin(-1), tokens)

    return f"one row in {period} gets its least probable token", Faulty


@fault("rare", TAIL | DISTRIBUTION)
def sampling_lost_tail(rng: random.Random) -> Wrong:
    least = rng.choice([1e-5, 1e-6])

    class Faulty(OwnSampling):
        def race(self, probs: Tensor, exponentials: Tensor) -> Tensor:
            return super().race(probs.masked_fill(probs < least, 0), exponentials)

    return f"tokens of probability below {least:g} are never drawn", Faulty


@fault("rare", TIME | DISTRIBUTION | EXAMPLE)
def sampling_one_call_in_many(rng: random.Random) -> Wrong:
    period = rng.choice([100, 200])

    class Faulty(OwnSampling):
        def __init__(self) -> None:
            self.calls = 0

        def probs(self, batch: SamplingBatch) -> Tensor:
            self.calls += 1
            return super().scaled(batch).softmax(-1) if self.calls % period == 0 else super().probs(batch)

    return f"one call in {period} skips the filters", Faulty


@fault("rare", DISTRIBUTION, resolution="bfloat16 moves a probability by at most 0.4 %")
def sampling_probs_in_bfloat16(rng: random.Random) -> Wrong:
    class Faulty(TorchSampling):
        def race(self, probs: Tensor, exponentials: Tensor) -> Tensor:
            return super().race(probs.bfloat16().float(), exponentials)

    return "probabilities are rounded to bfloat16 before the race", Faulty


@fault("rare", TAIL | DISTRIBUTION | SIZES)
def sampling_repeated_tile(rng: random.Random) -> Wrong:
    tile = rng.choice([1024, 4096])

    class Faulty(OwnSampling):
        def race(self, probs: Tensor, exponentials: Tensor) -> Tensor:
            if probs.shape[1] >= 2 * tile:
                exponentials = exponentials.clone()
                exponentials[:, tile : 2 * tile] = exponentials[:, :tile]
            return super().race(probs, exponentials)

    return f"the second tile of {tile} entries races with the numbers of the first", Faulty


# -- fixed seed -----------------------------------------------------------------------------------------------------


@fault("fixed seed", TIME | EXAMPLE | TEMPERATURE | OTHERS)
def sampling_temperature_kept(rng: random.Random) -> Wrong:
    class Faulty(Sampling):
        def __init__(self) -> None:
            self.kept: dict[int, Tensor] = {}

        def scaled(self, batch: SamplingBatch) -> Tensor:
            kept = self.kept.get(batch.batch_size, batch.temperature)
            same = torch.isclose(kept.sum(), batch.temperature.sum())
            self.kept[batch.batch_size] = batch.temperature.clone()
            greedy = self.greedy(batch)
            used = torch.where(greedy, batch.temperature, kept.clamp(min=1e-5)) if same else batch.temperature
            return super().scaled(batch.replace(temperature=used))

    return "temperatures are uploaded again only if their sum changes: not if rows are permuted", Faulty


@fault("fixed seed", TIME | SEEDS | SHARED)
def sampling_seed_of_another_batch(rng: random.Random) -> Wrong:
    class Faulty(CounterSampling):
        def __init__(self) -> None:
            self.kept: dict[int, int] = {}

        def drawn(self, batch: SamplingBatch, noise: SeededNoise) -> Tensor:
            drawn = super().drawn(batch, noise)
            self.kept |= noise.request_seeds
            stale = [i for i in self.kept if i < batch.batch_size and i not in noise.request_seeds]
            for row in stale[:1]:
                keys = np.array([self.key(self.kept[row], int(batch.positions[row]))], np.uint64)
                drawn[row] = torch.from_numpy(exponentials_of(uniforms_of(hashed(mixed(keys), batch.vocab_size))))[0]
            return drawn

    return "a row that had a seed in an earlier batch keeps drawing by it", Faulty
