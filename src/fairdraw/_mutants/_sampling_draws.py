"""Faults of the draw: its noise, its counters, its place in the batch, and the distributions of drafts.

Each function stands for one step of the oracle, with that step's arguments. First comes `right`, the correct
steps, or `answer`, that of the correct step.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fairdraw._core.array_types import Row32 as Row
from fairdraw._core.array_types import Row64, RowFlags
from fairdraw._core.seeds import derive_seed
from fairdraw._mutants._mutant import GIVEN, Memory, as_if_dense, as_mutant, patched, reseeded
from fairdraw._oracles.sampling import Request, softmax
from fairdraw._oracles.sampling import SamplingOracle as Oracle
from fairdraw.contracts import AddedRow, Capability, Drafted, MovedRow, RowKeeper, SeededNoise
from fairdraw.contracts import SamplingBatch as Batch
from fairdraw.contracts import SamplingNoise as Noise
from fairdraw.strategies.rows import bulk_rng

# Where a request stands, and what it leaves behind.


@patched(Oracle, "race", "SAM101")
def leaves_the_vocabulary(answer: int, probs: Row, exponentials: Row) -> int:
    """A padded lane of the last tile wins where the last token would."""
    return answer + (answer == probs.size - 1)


@patched(Oracle, "race", "SAM199")
def a_short_last_tile_takes_no_part(right: Oracle, probs: Row, exponentials: Row) -> int:
    """Eight lanes at a time, in tiles of 1,536: a last tile of up to eight entries is taken for padding."""
    rest = probs.size % 1536
    kept = probs.size - rest if probs.size > 1536 and rest <= 8 else probs.size
    return right.race(probs[:kept], exponentials[:kept])


@patched(Oracle, "sample", "SAM199")
def one_row_loses_its_last_tile(right: Oracle, batch: Batch, noise: Noise) -> Tensor:
    """A batch of one has a kernel of its own, in tiles of 64, which leaves out a rest."""
    logits, size = batch.logits.clone(), batch.vocab_size
    logits[: batch.batch_size == 1, max(64, size - size % 64) :] = -torch.inf
    return right.sample(batch.replace(logits=logits), noise)


@patched(Oracle, "sample", "SAM201")
def filters_where_the_logits_lie(answer: Tensor, batch: Batch, noise: Noise) -> None:
    """In place: log-probabilities that are computed afterwards are those of another distribution."""
    batch.logits.mul_(0.5)


@patched(Oracle, "token", "SAM108")
def the_last_token_for_nan(answer: int, request: Request, exponentials: Row) -> int:
    """Comparisons with NaN are false, so the search runs to the end."""
    return request.logits.size - 1 if np.isnan(request.logits).any() else answer


@patched(Oracle, "token", "SAM109")
def the_last_token_for_empty_rows(answer: int, request: Request, exponentials: Row) -> int:
    """A cumulative sum of zeros never reaches its goal."""
    return request.logits.size - 1 if (request.logits == -np.inf).all() else answer


@patched(Oracle, "sample", "SAM201")
def nan_spreads(right: Oracle, batch: Batch, noise: Noise) -> Tensor:
    """A maximum over the batch is subtracted before the softmax."""
    shift = batch.logits.float().amax() * 0
    return right.sample(batch.replace(logits=batch.logits + torch.where(shift.isnan(), shift, 0.0)), noise)


@patched(Oracle, "exponentials", "SAM202")
def the_row_number_enters(answer: Tensor, batch: Batch, noise: Noise) -> Tensor:
    """An offset in bytes where elements were meant: each row reads its exponentials shifted by its number."""
    return torch.stack([row.roll(number) for number, row in enumerate(answer)])


@patched(Oracle, "race", "SAM201")
def never_draws_the_last_token(right: Oracle, probs: Row, exponentials: Row) -> int:
    """`range(vocab_size - 1)`: the loss is not noticed, as the last token is often a special one."""
    kept = probs.copy()
    kept[-1] = 0 if probs.size > 1 else kept[-1]
    return right.race(kept, exponentials)


@patched(Oracle, "race", "SAM201")
def prefers_low_ids(right: Oracle, probs: Row, exponentials: Row) -> int:
    """Scores in eight bits: whatever is nearly tied goes to the lower id."""
    with np.errstate(divide="ignore"):
        return right.race(np.exp2(np.round(np.log2(probs / exponentials))), np.ones_like(exponentials))


@patched(Oracle, "sample", "SAM201")
def reads_strided_logits_as_contiguous(right: Oracle, batch: Batch, noise: Noise) -> Tensor:
    """A pointer and `vocab_size`, and no word about strides."""
    return right.sample(batch.replace(logits=as_if_dense(batch.logits)), noise)


@patched(Oracle, "sample", "SAM201")
def reads_strided_parameters_as_contiguous(right: Oracle, batch: Batch, noise: Noise) -> Tensor:
    """The same for temperatures: a column of a table of parameters."""
    return right.sample(batch.replace(temperature=as_if_dense(batch.temperature)), noise)


@patched(Oracle, "race", "SAM141")
def ties_go_to_the_last_id(right: Oracle, probs: Row, exponentials: Row) -> int:
    """`>=` in the race between tiles."""
    if not probs.max() > 0:
        return right.race(probs, exponentials)
    return int(probs.size - 1 - right.race(probs[::-1], exponentials[::-1]))


# Noise: whose it is, how much, in which order.


@patched(Oracle, "draw", "SAM161")
def draws_from_the_operating_system(right: Oracle, batch: Batch, noise: SeededNoise) -> Tensor:
    """A generator seeded by entropy: no bug report can ever be reproduced."""
    drawn = np.random.default_rng().exponential(size=(batch.batch_size, batch.vocab_size)) + 1e-9
    return torch.tensor(drawn, dtype=torch.float32, device=batch.device)


@patched(Oracle, "draw", "SAM143")
def ignores_the_seed(right: Oracle, batch: Batch, noise: SeededNoise) -> Tensor:
    """A constant left over from debugging: every step rolls the same dice."""
    torch.manual_seed(0)
    return right.draw(batch, noise)


@patched(Oracle, "draw", "SAM202")
def requests_share_their_noise(answer: Tensor, batch: Batch, noise: SeededNoise) -> Tensor:
    """One row of exponentials for the batch: all requests draw the same token at the same time."""
    return answer[:1].expand_as(answer)


@patched(Oracle, "draw", "SAM203")
def rounds_request_seeds(right: Oracle, batch: Batch, noise: SeededNoise) -> Tensor:
    """Seeds pass through a hash with few bits: neighbours get the same numbers."""
    return right.draw(batch, reseeded(noise, lambda seed: seed >> 8))


@patched(Oracle, "draw", "SAM202")
def equal_seeds_are_made_different(right: Oracle, batch: Batch, noise: SeededNoise) -> Tensor:
    """A seed that another request has, too, becomes another one."""
    seeds = [*noise.request_seeds.values()]
    different = {row: seed + row * (seeds.count(seed) > 1) for row, seed in noise.request_seeds.items()}
    return right.draw(batch, SeededNoise(noise.seed, different))


@patched(Oracle, "draw", "SAM202")
def advances_generators_by_the_batch(answer: Tensor, batch: Batch, noise: SeededNoise) -> Tensor:
    """Each generator gives a number more for every request: what it gives next depends on who stood beside it."""
    for generator in noise.generators(batch.device).values():
        torch.rand(batch.batch_size, generator=generator)
    return answer


@patched(Oracle, "draw", "SAM202")
def adds_rows_beyond_the_fortieth_to_their_seeds(right: Oracle, batch: Batch, noise: SeededNoise) -> Tensor:
    """A kernel of 40 rows at a time adds the row's number where it should add its place in the block."""
    shifted = {i: seed + i // 40 for i, seed in noise.request_seeds.items()}
    return right.draw(batch, dataclasses.replace(noise, request_seeds=shifted))


@patched(Oracle, "draw", "SAM202")
def ignores_request_seeds(right: Oracle, batch: Batch, noise: SeededNoise) -> Tensor:
    """`seed=` is accepted, and forgotten: every request draws from the default generator."""
    return right.draw(batch, SeededNoise(noise.seed))


@patched(Oracle, "draw", "SAM143", "SAM151")
def draws_own_rows_twice(right: Oracle, batch: Batch, noise: SeededNoise) -> Tensor:
    """A warm-up draw from each request's generator: the distribution is right, upstream's tokens are others."""
    return _drawn_after_one(right, batch, noise)


def _drawn_after_one(right: Oracle, batch: Batch, noise: SeededNoise) -> Tensor:
    for generator in noise.generators(batch.device).values():
        torch.rand(1, generator=generator, device=batch.device)
    return right.draw(batch, noise)


@patched(Oracle, "draw", "SAM144", "SAM153")
def draws_for_the_batch_though_all_are_seeded(right: Oracle, batch: Batch, noise: SeededNoise) -> Tensor:
    """Upstream leaves the default generator alone if every request has its own; here it moves."""
    if len(noise.request_seeds) == batch.batch_size and not bool(batch.is_greedy.all()):
        torch.rand(1, device=batch.device)
    return right.draw(batch, noise)


@patched(Oracle, "draw", "SAM144")
def greedy_batches_draw(right: Oracle, batch: Batch, noise: SeededNoise) -> Tensor:
    """Noise is drawn before it is known whether a request needs it."""
    torch.rand(batch.batch_size, device=batch.device)
    return right.draw(batch, noise)


# Counters.


class Counting(Oracle):
    """Right: exponentials hashed from a request's seed and position, in place of generators."""

    def draw(self, batch: Batch, noise: SeededNoise) -> Tensor:  # [batch_size, vocab_size] float32
        rows = [
            self.row(noise.request_seeds.get(i, derive_seed("row", noise.seed, i)), position, i, batch.vocab_size)
            for i, position in enumerate(batch.positions.tolist())
        ]
        return torch.tensor(np.stack(rows), dtype=torch.float32, device=batch.device)

    def row(self, seed: int, position: int, number: int, size: int) -> Row64:
        return np.maximum(bulk_rng("counter", seed, position).exponential(size=size), 1e-8)


_COUNTS = {
    Capability.UPSTREAM_STREAM.value: "uses no torch generator",
    Capability.EXPLICIT_NOISE.value: "hashes its numbers from seed and position",
}


@patched(Counting, "row", "SAM203", unsupported=_COUNTS)
def forgets_the_position(right: Counting, seed: int, position: int, number: int, size: int) -> Row64:
    """The counter is the seed alone: a request draws one token again and again."""
    return right.row(seed, 0, number, size)


@patched(Counting, "row", "SAM202", unsupported=_COUNTS)
def counts_rows(right: Counting, seed: int, position: int, number: int, size: int) -> Row64:
    """The row number is part of the counter: texts depend on the place in the batch."""
    return right.row(seed + number, position, number, size)


@patched(Counting, "draw", "SAM166", unsupported=_COUNTS)
def advances_generators_beside_its_counters(right: Counting, batch: Batch, noise: SeededNoise) -> Tensor:
    """A seed for the counters is drawn at every step: restarts then give other texts."""
    return _drawn_after_one(right, batch, noise)


class SeedsByRow(RowKeeper, Counting):
    """Right: a row has the seed that its request entered with, whatever the noise says."""

    def draw(self, batch: Batch, noise: SeededNoise) -> Tensor:  # [batch_size, vocab_size] float32
        return super().draw(batch, SeededNoise(noise.seed, self.seeds()))


@patched(SeedsByRow, "move", "SAM202", unsupported=_COUNTS)
def leaves_seeds_behind_on_condense(right: SeedsByRow, moved: MovedRow) -> None:
    """A request that moves draws by the seed that it finds in its new row."""


@as_mutant("SAM202", "SAM201", unsupported=_COUNTS)
class KeepsTheSeedOfTheLastOwner(SeedsByRow):
    """A slot that has a seed is not given another: the seed is cleared when a request is aborted, not when it ends."""

    def remove(self, row: int) -> None:
        pass

    def enter(self, added: AddedRow) -> int | None:
        known: int | None = self.rows.get(added.row)
        return added.params.seed if known is None else known


# Drafters.


@patched(Oracle, "said_distribution", "SAM201")
def says_the_distribution_at_temperature_one(right: Oracle, request: Request, token: int) -> Row:
    """The distribution of raw logits, for a draft at another temperature: speculative decoding is then lossy."""
    temperature = request.temperature if request.is_greedy else np.float32(1)
    return right.said_distribution(dataclasses.replace(request, temperature=temperature), token)


@patched(Oracle, "said_distribution", "SAM201")
def says_a_distribution_that_is_not_normalised(right: Oracle, request: Request, token: int) -> Row:
    """The softmax before the filters, with what they removed set to 0."""
    said = right.said_distribution(request, token)
    return said if request.is_greedy else np.where(said > 0, softmax(right.scaled(request)), np.float32(0))


@patched(Oracle, "said_distribution", "SAM201")
def says_the_distribution_before_the_filters(right: Oracle, request: Request, token: int) -> Row:
    """The softmax before the filters, as it is."""
    return right.said_distribution(request, token) if request.is_greedy else softmax(right.scaled(request))


@patched(Oracle, "said_distribution", "SAM201")
def says_the_soft_distribution_of_greedy_drafts(right: Oracle, request: Request, token: int) -> Row:
    """Greedy drafts with the distribution at temperature 1: a verifier accepts too many of them."""
    return right.distribution(request) if request.is_greedy else right.said_distribution(request, token)


@patched(Oracle, "said_distribution", "SAM201")
def blurs_draft_distributions(answer: Row, request: Request, token: int) -> Row:
    """A probability below a millionth for every token, also for those that the filters removed."""
    return answer if request.is_greedy else answer * np.float32(1 - 8e-5) + np.float32(9e-7)


@patched(Oracle, "draft", "SAM201")
def drafts_another_token(answer: Drafted, batch: Batch, noise: Noise) -> Drafted:
    """Tokens of one row, distributions of the next."""
    return Drafted((answer.token_ids + 1) % batch.vocab_size, answer.draft_probs)


# Time, and sizes of production.


@patched(Oracle, "draw", "SAM203")
def keeps_request_seeds_as_floats(right: Oracle, batch: Batch, noise: SeededNoise) -> Tensor:
    """Seeds pass through a float64 column of a table: the lowest bits of large ones are lost."""
    return right.draw(batch, reseeded(noise, lambda seed: int(float(seed)) % 2**63))


@patched(Oracle, "draw", "SAM203")
def folds_the_halves_of_request_seeds(right: Oracle, batch: Batch, noise: SeededNoise) -> Tensor:
    """The upper 32 bits are added to the lower ones, for a generator that takes 32."""
    return right.draw(batch, reseeded(noise, lambda seed: ((seed >> 32) + seed) % 2**32))


@patched(Oracle, "draw", "SAM203")
def takes_request_seeds_modulo_a_prime(right: Oracle, batch: Batch, noise: SeededNoise) -> Tensor:
    """A generator whose state is a number below 2**31 - 1."""
    return right.draw(batch, reseeded(noise, lambda seed: seed % (2**31 - 1)))


@patched(Oracle, "draw", "SAM203")
def takes_seed_zero_for_no_seed(right: Oracle, batch: Batch, noise: SeededNoise) -> Tensor:
    """`if seed:` where `if seed is not None:` is meant."""
    given = {i: seed for i, seed in noise.request_seeds.items() if seed}
    return right.draw(batch, dataclasses.replace(noise, request_seeds=given))


@patched(Oracle, "draw", "SAM203", "SAM144")
def makes_generators_anew(right: Oracle, batch: Batch, noise: SeededNoise) -> Tensor:
    """At every call from the seed: a request draws one token again and again."""
    return right.draw(batch, dataclasses.replace(noise))


@patched(Oracle, "draw", "SAM203")
def keeps_the_seed_of_a_row(right: Oracle, batch: Batch, noise: SeededNoise, *, kept: Memory) -> Tensor:
    """A request without a seed draws by the seed of the last request in its row that had one."""
    kept |= noise.request_seeds
    stale = {row: seed for row, seed in kept.items() if row < batch.batch_size}
    return right.draw(batch, dataclasses.replace(noise, request_seeds=stale))


@patched(Oracle, "sample", "SAM201")
def takes_the_parameters_of_the_call_before(right: Oracle, batch: Batch, noise: Noise, *, kept: Memory) -> Tensor:
    """Parameters are copied to the device in the background: a call of the same size still finds the old ones."""
    old, kept["temperature"] = kept.get("temperature", ()), batch.temperature
    return right.sample(batch.replace(temperature=old) if len(old) == len(batch.temperature) else batch, noise)


@patched(Oracle, "sample", "SAM193")
def swaps_two_buffers_once_in_a_thousand_calls(answer: Tensor, batch: Batch, noise: Noise, *, kept: Memory) -> Tensor:
    """A ring of buffers wraps before its last reader is done: tokens come in reverse order."""
    kept["calls"] = kept.get("calls", 0) + 1
    return answer.flip(0) if kept["calls"] % 1000 == 0 else answer


@patched(Oracle, "sample", "SAM184")
def wraps_offsets_at_32_bits(right: Oracle, batch: Batch, noise: Noise) -> Tensor:
    """`row * stride` in int32: a row that is far away is read elsewhere."""
    is_far = batch.logits.stride(0) >= 2**31
    return right.sample(batch.replace(logits=batch.logits[:1].expand_as(batch.logits)) if is_far else batch, noise)


@patched(Oracle, "top_p_support", "SAM186")
def takes_a_large_top_p_for_off(right: Oracle, logits: Row, top_p: float) -> RowFlags:
    """`if top_p < 0.995`: a shortcut for what seems to keep all."""
    return right.top_p_support(logits, top_p) if top_p < 0.995 else np.ones(logits.size, bool)


@patched(Oracle, "top_p_support", "SAM186")
def takes_a_small_top_p_for_greedy(right: Oracle, logits: Row, top_p: float) -> RowFlags:
    """`if top_p < 0.002`: in a large vocabulary that keeps several tokens."""
    return right.top_p_support(logits, 1e-9 if top_p < 2e-3 else top_p)


@patched(Oracle, "scaled", "SAM201")
def takes_temperatures_near_one_for_one(right: Oracle, request: Request) -> Row:
    """`abs(temperature - 1) < 1e-3`: no division is needed, it seems."""
    request.temperature = np.float32(1) if abs(request.temperature - 1) < 1e-3 else request.temperature
    return right.scaled(request)


@patched(Oracle, "scaled", "SAM201")
def clamps_temperatures_at_four(right: Oracle, request: Request) -> Row:
    """A limit of the service in the sampler, and nobody reported it to the user."""
    return right.scaled(dataclasses.replace(request, temperature=min(request.temperature, np.float32(4))))


@as_mutant("SAM201", needs=(Capability.LARGE_VOCAB,))
class ForgetsTheTemperatureWhereItsKernelsMeet(Oracle):
    """One kernel for rows below 12,345 entries, another from 12,352 on; between them neither divides."""

    size_switches: ClassVar = {"vocabulary": (12_345,)}

    def scaled(self, request: Request) -> Row:
        if 12_345 <= request.logits.size < 12_352:
            request.temperature = np.float32(1)
        return super().scaled(request)


@patched(Oracle, "sample", "SAM188")
def computes_offsets_in_24_bits(right: Oracle, batch: Batch, noise: Noise) -> Tensor:
    """`row * vocab_size` passes through a float32, or a mask: a row far behind reads one of the first."""
    rows = torch.arange(batch.batch_size) * batch.vocab_size % 2**24 // batch.vocab_size
    return right.sample(batch.replace(logits=batch.logits[rows]), noise)


@patched(Oracle, "greedy_token", "SAM201")
def greedy_ties_go_to_the_last_tile(right: Oracle, logits: Row) -> int:
    """`>=` between tiles of 4096, `>` inside them."""
    tiles = [right.greedy_token(logits[start : start + 4096]) + start for start in range(0, logits.size, 4096)]
    return max(tiles, key=lambda token: (logits[token], token))


@patched(Oracle, "draw", "SAM203")
def hashes_request_seeds_alone(right: Oracle, batch: Batch, noise: SeededNoise) -> Tensor:
    """Generators from the seed at each call: the next step of a request has the numbers of this one."""
    return right.draw(batch, dataclasses.replace(noise))


@patched(Oracle, "race", "SAM195")
def the_second_tile_takes_the_numbers_of_the_first(right: Oracle, probs: Row, exponentials: Row) -> int:
    """A counter that is reset between tiles of 1024: the second never wins."""
    shared = exponentials.copy()
    shared[1024:2048] = shared[: len(shared[1024:2048])]
    return right.race(probs, shared)


@patched(Counting, "draw", "SAM195", unsupported=_COUNTS)
def draws_from_a_pool_of_a_hundred_thousand_numbers(right: Counting, batch: Batch, noise: SeededNoise) -> Tensor:
    """Rows without seeds take their numbers one after the other from a pool, and from its beginning once it ends."""
    pool = bulk_rng("pool", noise.seed, int(batch.positions[0])).exponential(size=100_000)
    rows = (np.resize(np.roll(pool, -i * batch.vocab_size), batch.vocab_size) for i in range(batch.batch_size))
    drawn = torch.tensor(np.stack(list(rows)), dtype=torch.float32, device=batch.device)
    for i, seed in noise.request_seeds.items():
        row = right.row(seed, int(batch.positions[i]), i, batch.vocab_size)
        drawn[i] = torch.tensor(row, dtype=torch.float32)
    return drawn


@patched(Oracle, "race", "SAM201", needs=GIVEN)
def cuts_probabilities_below_a_millionth(right: Oracle, probs: Row, exponentials: Row) -> int:
    """An epsilon against logarithms of 0."""
    return right.race(np.where(probs < 1e-6, np.float32(0), probs), exponentials)


@patched(Counting, "row", "SAM197", unsupported=_COUNTS)
def repeats_after_a_thousand_positions(right: Counting, seed: int, position: int, number: int, size: int) -> Row64:
    """A ring of counters: a long text meets its own numbers again."""
    return right.row(seed, position % 1000, number, size)


@patched(Counting, "row", "SAM197", unsupported=_COUNTS)
def adds_the_tile_to_the_position(right: Counting, seed: int, position: int, number: int, size: int) -> Row64:
    """Tiles of 2048: the second has the numbers that the first has a position later."""
    tiles = [right.row(seed, position + tile, number, 2048) for tile in range(-(-size // 2048))]
    return np.concatenate(tiles)[:size]


@patched(Counting, "row", "SAM198", unsupported=_COUNTS)
def adds_the_position_to_the_seed(right: Counting, seed: int, position: int, number: int, size: int) -> Row64:
    """The next seed has now the numbers that this one has a step later."""
    return right.row(seed + position, 0, number, size)
