"""Faults of rejection samplers, as engines have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from exam._bits import drawn_exponentials, stream
from exam.areas import (
    ACCEPTANCE,
    DISTRIBUTION,
    EXAMPLE,
    GREEDY,
    HALF,
    OTHERS,
    RECOVERY,
    SEEDS,
    SHARED,
    SIZES,
    TAIL,
    TEMPERATURE,
    TIME,
)
from exam.correct_rejection import OwnRejection, Rejection, TorchRejection
from exam.registry import between, fault

if TYPE_CHECKING:
    import random

    from torch import Tensor

    from exam.correct_rejection import Call
    from exam.registry import Wrong
    from fairdraw.protocols import Noise, SeededNoise, SpecDecodeBatch

# -- sizes ----------------------------------------------------------------------------------------------------------


@fault("sizes", SIZES | EXAMPLE, copies=2)
def rejection_rows_beyond_the_grid(rng: random.Random) -> Wrong:
    limit = between(rng, 70, 1000)

    class Faulty(Rejection):
        def written(self, call: Call, ends: Tensor, last: Tensor) -> Tensor:
            output = super().written(call, ends, last)
            output[limit:, 1:] = -1
            output[limit:, 0] = call.batch.bonus_token_ids[limit:, 0]
            return output

    return f"requests from number {limit} on are not verified: they emit their bonus token", Faulty


@fault("sizes", SIZES | EXAMPLE)
def rejection_row_offset_wraps(rng: random.Random) -> Wrong:
    bits = rng.choice([15, 16])

    class Faulty(Rejection):
        def target(self, call: Call) -> Tensor:
            tokens = torch.arange(call.batch.num_tokens)
            return super().target(call)[tokens % (1 << bits)]

    return f"the number of a row of logits is kept in {bits} bits", Faulty


@fault("sizes", SIZES | EXAMPLE)
def rejection_element_offset_wraps(rng: random.Random) -> Wrong:
    bits = rng.choice([19, 20, 21])

    class Faulty(Rejection):
        def target(self, call: Call) -> Tensor:
            first = torch.arange(call.batch.num_tokens) * call.batch.vocab_size
            return super().target(call)[(first % (1 << bits)) // call.batch.vocab_size]

    return f"offsets of logits are computed in {bits} bits", Faulty


@fault("sizes", SIZES | ACCEPTANCE | EXAMPLE, copies=2)
def rejection_mask_of_a_word(rng: random.Random) -> Wrong:
    width = rng.choice([8, 16, 24, 32, 48, 64, 96])

    class Faulty(Rejection):
        def accepted(self, call: Call, target: Tensor, uniforms: Tensor) -> Tensor:
            return super().accepted(call, target, uniforms) | (call.position >= width)

    return f"rejections are kept in a mask of {width} bits: later drafts are all accepted", Faulty


@fault("sizes", SIZES | ACCEPTANCE | EXAMPLE)
def rejection_unrolled_loop(rng: random.Random) -> Wrong:
    unroll, least = rng.choice([3, 4, 5, 7]), rng.choice([8, 12, 20])

    class Faulty(Rejection):
        def accepted(self, call: Call, target: Tensor, uniforms: Tensor) -> Tensor:
            counts = call.counts[call.owner]
            rest = (call.position >= counts - counts % unroll) & (counts >= least)
            return super().accepted(call, target, uniforms) | (rest & (call.drafts >= 0))

    return f"of {least} and more drafts the rest of a loop unrolled by {unroll} is not tested", Faulty


@fault("sizes", SIZES | RECOVERY | EXAMPLE, copies=2)
def rejection_lost_tile(rng: random.Random) -> Wrong:
    tile, rest = rng.choice([96, 160, 192, 320, 384, 448, 640, 768, 1536, 3072]), rng.randint(1, 20)

    class Faulty(Rejection):
        def race(self, weights: Tensor, exponentials: Tensor) -> Tensor:
            size = weights.shape[1]
            if size > tile and 0 < size % tile <= rest:
                weights = weights.clone()
                weights[:, size - size % tile :] = 0
            return super().race(weights, exponentials)

    return f"a last tile of {rest} or fewer of {tile} entries takes no part in the race", Faulty


@fault("sizes", SIZES | RECOVERY | TAIL | EXAMPLE)
def rejection_ids_in_few_bits(rng: random.Random) -> Wrong:
    bits = rng.choice([16, 17])

    class Faulty(Rejection):
        def race(self, weights: Tensor, exponentials: Tensor) -> Tensor:
            return super().race(weights, exponentials) & ((1 << bits) - 1)

    return f"recovered ids are packed into {bits} bits", Faulty


@fault("sizes", SIZES | GREEDY | EXAMPLE)
def rejection_greedy_tile_ties(rng: random.Random) -> Wrong:
    tile = rng.choice([24, 48, 80, 200, 500, 3000])

    class Faulty(Rejection):
        def best(self, call: Call) -> Tensor:
            logits = call.batch.target_logits.float()
            pieces = [(piece.max(-1).values, piece.argmax(-1)) for piece in torch.split(logits, tile, -1)]
            value, token = pieces[0]
            for number, (other, index) in enumerate(pieces[1:], 1):
                token = torch.where(other >= value, index + number * tile, token)
                value = torch.maximum(value, other)
            return token

    return f"of equal largest logits in tiles of {tile} the last tile's is the greedy token", Faulty


@fault("sizes", SIZES | OTHERS | EXAMPLE)
def rejection_flags_by_period(rng: random.Random) -> Wrong:
    period = rng.choice([7, 11, 20, 24, 40, 96, 100])

    class Faulty(Rejection):
        def greedy(self, call: Call) -> Tensor:
            flags = super().greedy(call)
            return flags[torch.arange(len(flags)) % period]

    return f"the greedy flag of a request is read from a buffer of {period} entries", Faulty


@fault("sizes", SIZES | OTHERS | EXAMPLE)
def rejection_scan_without_carry(rng: random.Random) -> Wrong:
    block = rng.choice([48, 64, 96, 128, 256, 512])

    class Faulty(Rejection):
        def recovered(self, call: Call, target: Tensor, exponentials: Tensor, ends: Tensor) -> Tensor:
            real = call.starts
            carry = torch.zeros_like(real)
            for first in range(2 * block, len(real), block):
                carry[first : first + block] = real[first - block]
            call.starts = real - carry
            last = super().recovered(call, target, exponentials, ends)
            call.starts = real
            return last

    return f"the scan of draft counts carries over one block of {block} requests only", Faulty


# -- values ---------------------------------------------------------------------------------------------------------


@fault("values", ACCEPTANCE | EXAMPLE)
def rejection_epsilon_in_the_ratio(rng: random.Random) -> Wrong:
    epsilon = 10.0 ** -rng.randint(4, 7)

    class Faulty(Rejection):
        def pairs(self, call: Call, target: Tensor) -> tuple[Tensor, Tensor]:
            p, q = super().pairs(call, target)
            return p, torch.where(q > 0, q.clamp(min=epsilon), q)

    return f"draft probabilities below {epsilon:g} count as {epsilon:g}", Faulty


@fault("values", ACCEPTANCE | EXAMPLE)
def rejection_small_targets_are_zero(rng: random.Random) -> Wrong:
    least = 10.0 ** -rng.randint(5, 9)

    class Faulty(Rejection):
        def pairs(self, call: Call, target: Tensor) -> tuple[Tensor, Tensor]:
            p, q = super().pairs(call, target)
            return p.masked_fill(p < least, 0), q

    return f"a draft of target probability below {least:g} is rejected", Faulty


@fault("values", SEEDS | SHARED, copies=2)
def rejection_seeds_lose_bits(rng: random.Random) -> Wrong:
    bits = rng.choice([16, 20, 24, 31, 32])
    what = rng.choice(["the low", "the absolute value's low"])

    class Faulty(Rejection):
        def drawn(self, call: Call, noise: SeededNoise) -> tuple[Tensor, Tensor]:
            for request, generator in noise.generators("cpu").items():
                if call.counts[request] == 0:
                    continue  # its generator is left alone
                seed = generator.initial_seed()
                seed = seed - (1 << 64) if seed >= 1 << 63 else seed
                kept = (abs(seed) if "absolute" in what else seed) & ((1 << bits) - 1)
                generator.manual_seed(kept)
            return super().drawn(call, noise)

    return f"of a request's seed {what} {bits} bits count", Faulty


@fault("values", SEEDS)
def rejection_seed_zero_is_none(rng: random.Random) -> Wrong:
    class Faulty(Rejection):
        def drawn(self, call: Call, noise: SeededNoise) -> tuple[Tensor, Tensor]:
            uniforms, exponentials = super().drawn(call, noise)
            for request, seed in noise.request_seeds.items():
                if not seed:
                    uniforms[call.owner == request] = torch.rand(int(call.counts[request]), dtype=torch.float64)
                    exponentials[request].exponential_()
            return uniforms, exponentials

    return "a request with seed 0 draws from the generator of the batch", Faulty


@fault("values", GREEDY | TEMPERATURE | EXAMPLE)
def rejection_cold_is_greedy(rng: random.Random) -> Wrong:
    limit = rng.choice([1e-5, 1e-4, 1e-3, 1e-2])

    class Faulty(Rejection):
        def greedy(self, call: Call) -> Tensor:
            return call.batch.temperature < limit

    return f"temperatures below {limit:g}, which are applied already, are taken for greedy", Faulty


@fault("values", EXAMPLE | DISTRIBUTION | SIZES)
def rejection_softmax_overflows(rng: random.Random) -> Wrong:
    limit = rng.choice([20.0, 40.0, 64.0, 80.0])

    class Faulty(Rejection):
        def target(self, call: Call) -> Tensor:
            weights = call.batch.target_logits.float().clamp(max=limit).exp()
            sums = weights.sum(-1, keepdim=True)
            return torch.where(sums > 0, weights / sums, super().target(call))

    return f"the softmax clamps logits at {limit:g} where it should subtract the largest", Faulty


@fault("values", EXAMPLE | DISTRIBUTION)
def rejection_bonus_zero(rng: random.Random) -> Wrong:
    class Faulty(Rejection):
        def written(self, call: Call, ends: Tensor, last: Tensor) -> Tensor:
            missing = (call.batch.bonus_token_ids[:, 0] == 0) & (ends == call.counts) & (call.counts > 1)
            drafts = call.drafts[(call.starts + call.counts - 1).clamp(0)] if len(call.drafts) else last
            return super().written(call, ends, torch.where(missing, drafts, last))

    return "a bonus token of id 0 is taken for missing: the last draft stands twice", Faulty


@fault("values", RECOVERY | EXAMPLE | DISTRIBUTION)
def rejection_small_residuals_are_none(rng: random.Random) -> Wrong:
    least = rng.choice([3e-4, 1e-3, 1e-2])

    class Faulty(Rejection):
        def weights(self, call: Call, target: Tensor, rows: Tensor, requests: Tensor) -> Tensor:
            found = super().weights(call, target, rows, requests)
            return torch.where(found.sum(-1, keepdim=True) < least, target[rows], found)

    return f"a residual of less than {least:g} is taken for rounding: the target is raced over", Faulty


@fault("values", ACCEPTANCE | EXAMPLE)
def rejection_ratio_with_a_constant(rng: random.Random) -> Wrong:
    epsilon = 10.0 ** -rng.randint(6, 20)
    base: type[Any] = rng.choice([Rejection, OwnRejection])

    class Faulty(base):  # type: ignore[misc]
        def pairs(self, call: Call, target: Tensor) -> tuple[Tensor, Tensor]:
            p, q = super().pairs(call, target)
            return p, q + epsilon

    return f"{epsilon:g} is added to draft probabilities ({base.__name__})", Faulty


# -- combinations ---------------------------------------------------------------------------------------------------


@fault("combinations", SEEDS | OTHERS)
def rejection_seeds_shift_beside_greedy(rng: random.Random) -> Wrong:
    class Faulty(Rejection):
        def drawn(self, call: Call, noise: SeededNoise) -> tuple[Tensor, Tensor]:
            uniforms, exponentials = super().drawn(call, noise)
            random_rows = (~self.greedy(call)).nonzero()[:, 0].tolist()
            moved = exponentials.clone()
            for number, row in enumerate(random_rows):
                moved[row] = exponentials[number]
            return uniforms, moved

    return (
        "races are compacted over random requests: beside greedy ones a seeded request gets another's numbers",
        Faulty,
    )


@fault("combinations", SEEDS | SHARED | DISTRIBUTION | OTHERS)
def rejection_unseeded_beside_seeded(rng: random.Random) -> Wrong:
    class Faulty(Rejection):
        def drawn(self, call: Call, noise: SeededNoise) -> tuple[Tensor, Tensor]:
            uniforms, exponentials = super().drawn(call, noise)
            free = [i for i in range(call.batch.batch_size) if i not in noise.request_seeds]
            if noise.request_seeds and len(free) > 1:
                exponentials[free] = exponentials[free[0]].clone()
            return uniforms, exponentials

    return "beside a request with a seed all requests without one share their race", Faulty


@fault("combinations", SEEDS | DISTRIBUTION | ACCEPTANCE)
def rejection_seeded_one_hot(rng: random.Random) -> Wrong:
    power = rng.choice([0.5, 0.8, 1.25, 2.0])

    class Faulty(Rejection):
        def drawn(self, call: Call, noise: SeededNoise) -> tuple[Tensor, Tensor]:
            uniforms, exponentials = super().drawn(call, noise)
            if call.batch.draft_probs is None:
                for request in noise.request_seeds:
                    uniforms[call.owner == request] **= power
            return uniforms, exponentials

    return f"requests with a seed and one-hot drafts have uniforms to the power of {power:g}", Faulty


@fault("combinations", HALF | RECOVERY | EXAMPLE | DISTRIBUTION)
def rejection_half_one_hot(rng: random.Random) -> Wrong:
    class Faulty(Rejection):
        def weights(self, call: Call, target: Tensor, rows: Tensor, requests: Tensor) -> Tensor:
            dtype = call.batch.target_logits.dtype
            if dtype == torch.bfloat16 and call.batch.draft_probs is None:
                target = target.clone()
                target[target < 1 / 256] = 0
            return super().weights(call, target, rows, requests)

    return "bfloat16 logits with one-hot drafts lose recovered tokens of probability below 1/256", Faulty


@fault("combinations", GREEDY | EXAMPLE | OTHERS)
def rejection_greedy_without_drafts(rng: random.Random) -> Wrong:
    class Faulty(Rejection):
        def written(self, call: Call, ends: Tensor, last: Tensor) -> Tensor:
            wrong = (call.counts == 0) & self.greedy(call)
            if len(call.drafts) and bool((~self.greedy(call)).any()):
                last = torch.where(wrong, self.best(call)[(call.starts - 1).clamp(0)], last)
            return super().written(call, ends, last)

    return "a greedy request without drafts, beside random ones, emits the argmax of the row before", Faulty


@fault("combinations", GREEDY | EXAMPLE | HALF)
def rejection_greedy_half_dense(rng: random.Random) -> Wrong:
    class Faulty(Rejection):
        def best(self, call: Call) -> Tensor:
            logits = call.batch.target_logits
            if logits.dtype == torch.float16 and call.batch.draft_probs is not None:
                return logits.to(torch.bfloat16).float().argmax(-1)
            return super().best(call)

    return "float16 logits with dense drafts are rounded to bfloat16 for the greedy argmax", Faulty


# -- time -----------------------------------------------------------------------------------------------------------


@fault("time", TIME)
def rejection_softmax_cached_by_pointer(rng: random.Random) -> Wrong:
    class Faulty(Rejection):
        def __init__(self) -> None:
            self.kept: dict[tuple[Any, ...], Tensor] = {}

        def target(self, call: Call) -> Tensor:
            logits = call.batch.target_logits
            key = (logits.data_ptr(), logits.shape, logits.dtype)
            if key not in self.kept:
                self.kept = {key: super().target(call)}
            return self.kept[key]

    return "the softmax of the last logits is kept by their address and shape", Faulty


@fault("time", TIME | SHARED)
def rejection_generators_start_anew(rng: random.Random) -> Wrong:
    class Faulty(Rejection):
        def drawn(self, call: Call, noise: SeededNoise) -> tuple[Tensor, Tensor]:
            for request, generator in noise.generators("cpu").items():
                if call.counts[request] > 0:
                    generator.manual_seed(generator.initial_seed())
            return super().drawn(call, noise)

    return "a request's generator starts anew at each call", Faulty


@fault("time", TIME | EXAMPLE, copies=2)
def rejection_stale_once_in_a_while(rng: random.Random) -> Wrong:
    period = rng.choice([50, 100, 200])

    class Faulty(Rejection):
        def __init__(self) -> None:
            self.calls, self.last = 0, torch.empty(0, 0)

        def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:
            output = super().verify(batch, noise)
            self.calls += 1
            if self.calls % period == 0 and self.last.shape == output.shape:
                return self.last
            self.last = output.clone()
            return output

    return f"each call number {period} returns the answer of the one before if shapes agree", Faulty


@fault("time", TIME | EXAMPLE)
def rejection_workspace_not_cleared(rng: random.Random) -> Wrong:
    class Faulty(Rejection):
        def __init__(self) -> None:
            self.most = torch.zeros(0, dtype=torch.int64)

        def ends(self, call: Call, accepted: Tensor) -> Tensor:
            ends = super().ends(call, accepted)
            stale = self.most[: len(ends)]
            grown = len(ends) < len(self.most)
            self.most = torch.cat([ends, self.most[len(ends) :]])
            if grown:  # only a batch smaller than one before finds old entries
                ends = torch.where(call.counts > 0, torch.minimum(ends, stale.clamp(min=0)), ends)
            return ends

    return "a smaller batch than before takes the minimum with the old numbers of accepted drafts", Faulty


@fault("time", TIME | EXAMPLE)
def rejection_double_buffer(rng: random.Random) -> Wrong:
    class Faulty(Rejection):
        def __init__(self) -> None:
            self.buffers: list[Tensor] = [torch.empty(0, 0)] * 2
            self.turn = 0

        def numbers(self, call: Call, noise: Noise) -> tuple[Tensor, Tensor]:
            uniforms, exponentials = super().numbers(call, noise)
            self.turn ^= 1
            old = self.buffers[self.turn]
            self.buffers[self.turn] = exponentials.clone()
            if old.shape == exponentials.shape and len(exponentials) > 2:
                exponentials = exponentials.clone()
                exponentials[-1] = old[-1]
            return uniforms, exponentials

    return "the last request of three or more races with the numbers of two calls before, if shapes agree", Faulty


@fault("time", TIME | EXAMPLE)
def rejection_writes_its_input(rng: random.Random) -> Wrong:
    least = rng.choice([4, 8, 12])

    class Faulty(Rejection):
        def weights(self, call: Call, target: Tensor, rows: Tensor, requests: Tensor) -> Tensor:
            weights = super().weights(call, target, rows, requests)
            dense = call.batch.draft_probs
            if dense is not None and call.batch.batch_size >= least:
                dense[rows] = 0
            return weights

    return f"in batches of {least} and more, draft probabilities of rejected drafts are overwritten", Faulty


# -- dependence -----------------------------------------------------------------------------------------------------


def _own(what: Any) -> type[OwnRejection]:
    """A sampler whose numbers `what(call, seed, uniforms, exponentials)` spoils."""

    class Faulty(OwnRejection):
        def own(self, call: Call, seed: int) -> tuple[np.ndarray, np.ndarray]:
            uniforms, exponentials = super().own(call, seed)
            spoilt: tuple[np.ndarray, np.ndarray] = what(call, seed, uniforms, exponentials)
            return spoilt

    return Faulty


@fault("dependence", SHARED, copies=2)
def rejection_rows_share_races(rng: random.Random) -> Wrong:
    distance = rng.choice([2, 3, 5, 8, 17, 32])

    def spoil(call: Call, seed: int, u: Any, e: Any) -> Any:
        rows = np.arange(len(e))
        return u, e[np.where((rows // distance) % 2 == 1, rows - distance, rows)]

    return f"requests at a distance of {distance} share their race", _own(spoil)


@fault("dependence", SHARED)
def rejection_requests_share_uniforms(rng: random.Random) -> Wrong:
    distance = rng.choice([3, 6, 17])

    def spoil(call: Call, seed: int, u: Any, e: Any) -> Any:
        shared = u.copy()
        owner, position = call.owner.numpy(), call.position.numpy()
        other = owner - distance
        ok = (other >= 0) & ((owner // distance) % 2 == 1)
        ok[ok] = call.counts.numpy()[other[ok]] > position[ok]
        shared[ok] = u[call.starts.numpy()[other[ok]] + position[ok]]
        return shared, e

    return f"requests at a distance of {distance} share their uniforms", _own(spoil)


@fault("dependence", SHARED)
def rejection_antithetic_rows(rng: random.Random) -> Wrong:
    def spoil(call: Call, seed: int, u: Any, e: Any) -> Any:
        half = len(u) // 2
        u[half : 2 * half] = np.minimum(1 - u[:half], 1 - 2.0**-53)
        return u, e

    return "the second half of the uniforms is one minus the first", _own(spoil)


@fault("dependence", SHARED)
def rejection_stratified_uniforms(rng: random.Random) -> Wrong:
    def spoil(call: Call, seed: int, u: Any, e: Any) -> Any:
        if len(u):
            u = (stream(seed, 5).permutation(len(u)) + u) / len(u)
        return np.minimum(u, 1 - 2.0**-53), e

    return "uniforms are stratified over the batch: too even", _own(spoil)


@fault("dependence", SHARED, resolution="three rows at a time depend, and no two: needs a test of triples")
def rejection_three_at_a_time(rng: random.Random) -> Wrong:
    def spoil(call: Call, seed: int, u: Any, e: Any) -> Any:
        third = len(u) // 3
        u[2 * third : 3 * third] = (u[:third] + u[third : 2 * third]) % 1.0
        return u, e

    return "the last third of the uniforms is the sum, modulo 1, of the other two", _own(spoil)


@fault("dependence", SHARED | SEEDS)
def rejection_calls_overlap(rng: random.Random) -> Wrong:
    shift = rng.choice([1, 2, 4])

    class Faulty(OwnRejection):
        def own(self, call: Call, seed: int) -> tuple[np.ndarray, np.ndarray]:
            u, _ = super().own(call, seed)
            return u, drawn_exponentials(stream(seed >> shift), call.batch.batch_size, call.batch.vocab_size)

    return f"the races of calls do not see the last {shift} bits of the seed", Faulty


@fault("dependence", SHARED | RECOVERY | DISTRIBUTION)
def rejection_race_reuses_the_uniform(rng: random.Random) -> Wrong:
    def spoil(call: Call, seed: int, u: Any, e: Any) -> Any:
        has = call.counts.numpy() > 0
        e[has, 0] = np.maximum(-np.log1p(-u[call.starts.numpy()[has]]), 1e-38)
        return u, e

    return "the race of id 0 uses the uniform of the first draft", _own(spoil)


@fault("dependence", SHARED)
def rejection_positions_share(rng: random.Random) -> Wrong:
    distance = rng.choice([2, 3])

    def spoil(call: Call, seed: int, u: Any, e: Any) -> Any:
        position, tokens = call.position.numpy(), np.arange(len(u))
        return u[np.where(position >= distance, tokens - distance, tokens)], e

    return f"positions of a request at a distance of {distance} share their uniform", _own(spoil)


# -- noise quality --------------------------------------------------------------------------------------------------

_COARSE = ACCEPTANCE | DISTRIBUTION | RECOVERY | TAIL | SHARED


@fault("noise quality", _COARSE, copies=2, resolution="a probability moves by less than the spacing of the uniforms")
def rejection_coarse_uniforms(rng: random.Random) -> Wrong:
    bits = rng.choice([6, 8, 10, 12])

    def spoil(call: Call, seed: int, u: Any, e: Any) -> Any:
        return np.floor(u * 2**bits) / 2**bits, e

    return f"uniforms have {bits} bits", _own(spoil)


@fault("noise quality", _COARSE)
def rejection_clamped_exponentials(rng: random.Random) -> Wrong:
    most = rng.choice([2.0, 3.0, 4.0])

    def spoil(call: Call, seed: int, u: Any, e: Any) -> Any:
        return u, np.minimum(e, np.float32(most))

    return f"exponentials are clamped at {most:g}", _own(spoil)


@fault("noise quality", _COARSE, copies=2)
def rejection_exponentials_from_few_bits(rng: random.Random) -> Wrong:
    bits = rng.choice([8, 12, 14, 16])

    def spoil(call: Call, seed: int, u: Any, e: Any) -> Any:
        cells = np.floor(-np.expm1(-e.astype(np.float64)) * 2**bits)
        return u, np.maximum(-np.log1p(-cells / 2**bits), 2.0**-bits).astype(np.float32)

    return f"exponentials come from uniforms of {bits} bits", _own(spoil)


@fault("noise quality", _COARSE)
def rejection_gumbel_epsilon(rng: random.Random) -> Wrong:
    epsilon = 10.0 ** -rng.choice([2, 3])

    def spoil(call: Call, seed: int, u: Any, e: Any) -> Any:
        return u, e + np.float32(epsilon)

    return f"{epsilon:g} is added to exponentials against a division by 0", _own(spoil)


@fault("noise quality", _COARSE)
def rejection_weak_generator(rng: random.Random) -> Wrong:
    modulus = rng.choice([2**15, 2**16 - 15, 2**17 - 1])

    def spoil(call: Call, seed: int, u: Any, e: Any) -> Any:
        first = stream(seed, 9).integers(1, modulus)
        powers = np.cumprod(np.full(64, 75, object)) % modulus
        cycle = np.array([int(first * p % modulus) for p in powers], np.float64) / modulus
        return u, np.maximum(-np.log1p(-np.resize(cycle, e.shape)), 1e-9).astype(np.float32)

    return f"a congruential generator modulo {modulus}, restarted after 64 numbers, draws the races", _own(spoil)


# -- rare -----------------------------------------------------------------------------------------------------------


@fault("rare", ACCEPTANCE, copies=2)
def rejection_ratio_off(rng: random.Random) -> Wrong:
    factor = rng.choice([0.98, 0.985, 0.99, 1.01, 1.015, 1.02])
    base: type[Any] = rng.choice([Rejection, TorchRejection, OwnRejection])

    class Faulty(base):  # type: ignore[misc]
        def pairs(self, call: Call, target: Tensor) -> tuple[Tensor, Tensor]:
            p, q = super().pairs(call, target)
            return p * factor, q

    return f"acceptance probabilities are off by a factor of {factor:g} ({base.__name__})", Faulty


@fault("rare", EXAMPLE | SIZES)
def rejection_one_row_in_many(rng: random.Random) -> Wrong:
    period = rng.choice([500, 777, 1000])

    class Faulty(Rejection):
        def __init__(self) -> None:
            self.rows = 0

        def written(self, call: Call, ends: Tensor, last: Tensor) -> Tensor:
            rows = torch.arange(self.rows, self.rows + len(last))
            self.rows += len(last)
            wrong = (rows % period == period - 1) & (ends < call.counts)
            return super().written(call, ends, torch.where(wrong, call.batch.bonus_token_ids[:, 0].long(), last))

    return f"one row in {period} emits its bonus token where it should recover", Faulty


@fault("rare", RECOVERY | TAIL | DISTRIBUTION)
def rejection_lost_tail(rng: random.Random) -> Wrong:
    kept = rng.choice([64, 256, 1000])

    class Faulty(OwnRejection):
        def weights(self, call: Call, target: Tensor, rows: Tensor, requests: Tensor) -> Tensor:
            weights = super().weights(call, target, rows, requests)
            if weights.shape[1] <= kept or not len(weights):
                return weights
            return weights.masked_fill(weights < weights.topk(kept, -1).values[:, -1:], 0)

    return f"recovery sees the {kept} most probable tokens only", Faulty


@fault("rare", RECOVERY | TEMPERATURE | DISTRIBUTION)
def rejection_recovers_warmer(rng: random.Random) -> Wrong:
    power = rng.choice([0.97, 0.98, 1.02, 1.03])

    class Faulty(TorchRejection):
        def weights(self, call: Call, target: Tensor, rows: Tensor, requests: Tensor) -> Tensor:
            return super().weights(call, target, rows, requests) ** power

    return f"residuals are taken to the power of {power:g}", Faulty


@fault("rare", ACCEPTANCE | EXAMPLE, resolution="bfloat16 moves a probability by at most 0.4 %")
def rejection_probabilities_in_bfloat16(rng: random.Random) -> Wrong:
    class Faulty(TorchRejection):
        def pairs(self, call: Call, target: Tensor) -> tuple[Tensor, Tensor]:
            p, q = super().pairs(call, target)
            return p.bfloat16().float(), q

    return "target probabilities are rounded to bfloat16 for the test", Faulty


@fault("rare", TIME | EXAMPLE | DISTRIBUTION | ACCEPTANCE)
def rejection_one_call_in_many(rng: random.Random) -> Wrong:
    period = rng.choice([100, 150, 200])

    class Faulty(OwnRejection):
        def __init__(self) -> None:
            self.calls = 0

        def accepted(self, call: Call, target: Tensor, uniforms: Tensor) -> Tensor:
            self.calls += 1
            p, q = self.pairs(call, target)
            accepted = super().accepted(call, target, uniforms)
            everything = (p > 0) & (q > 0) & (call.drafts >= 0) & ~self.greedy(call)[call.owner]
            return accepted | everything if self.calls % period == 0 else accepted

    return f"one call in {period} accepts every possible draft", Faulty


# -- fixed seed -----------------------------------------------------------------------------------------------------


@fault("fixed seed", TIME | GREEDY | EXAMPLE | OTHERS)
def rejection_greedy_flag_kept(rng: random.Random) -> Wrong:
    class Faulty(Rejection):
        def __init__(self) -> None:
            self.flags: dict[int, Tensor] = {}

        def greedy(self, call: Call) -> Tensor:
            now = super().greedy(call)
            kept = self.flags.get(len(now), now)
            # Uploaded again only if the number of greedy requests changed, not if they moved.
            if int(kept.sum()) != int(now.sum()):
                kept = now
            self.flags[len(now)] = kept.clone()
            return kept

    return "greedy flags are uploaded again only if their number in a batch of this size changes", Faulty


@fault("fixed seed", TIME | EXAMPLE | ACCEPTANCE)
def rejection_counts_kept(rng: random.Random) -> Wrong:
    class Faulty(Rejection):
        def __init__(self) -> None:
            self.kept: dict[tuple[int, int], Tensor] = {}

        def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:
            output = super().verify(batch, noise)
            key = (batch.batch_size, batch.num_tokens)
            now = torch.tensor(batch.num_draft_tokens)
            before = self.kept.setdefault(key, now)
            self.kept[key] = now
            late = (before < now)[:, None] & (torch.arange(output.shape[1])[None, :] > before[:, None])
            return output.masked_fill(late, -1)

    return "draft counts are taken from the call before if batch size and number of tokens agree", Faulty
