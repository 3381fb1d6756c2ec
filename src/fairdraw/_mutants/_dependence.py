"""Samplers whose noise depends on itself: families of faults, each in a sampler of either contract.

A member of a family is a function from the seed of a call to uniforms `[num_rows, width]`. A rejection sampler takes a
row's first columns for acceptance, position by position, and races with the others; a token sampler races with all.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fairdraw._mutants import sampling_distributions as sampling
from fairdraw._mutants._distribution_sampler import DistributionSampler, Drawn
from fairdraw._mutants._mutant import Memory, Mutant, as_rejection, as_token_sampler, mutants_in
from fairdraw._mutants.distributions import mutant_distribution
from fairdraw.contracts import Noise, RaceNoise, SamplingBatch, SamplingNoise, SpecDecodeBatch

Uniforms = NDArray[np.float64]
Numbers = Callable[[Memory, int, int, int], Uniforms]
"""From what was kept, the seed of the call, and the numbers of rows and columns."""
Codes = tuple[tuple[str, ...], tuple[str, ...]]

_TINY = 2.0**-60


def right_numbers(_: Memory, seed: int, num_rows: int, width: int) -> Uniforms:  # [num_rows, width] float64
    """What every member would draw without its fault."""
    return np.random.default_rng(seed % 2**64).random((num_rows, width))


class _Verifying(DistributionSampler):
    """Token verification with the numbers of a member."""

    def __init__(self, member: Member) -> None:
        self.member, self.memory = member, Memory()

    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Any:
        self.own: dict[int, int] = dict(getattr(noise, "request_seeds", {}))
        return super().verify(batch, noise)

    def seed_requests(self, drawn: Drawn, batch: SpecDecodeBatch, request_seeds: Mapping[int, int]) -> Drawn:
        return drawn  # `draw` has read them in its own way.

    def draw(self, batch: SpecDecodeBatch, seed: int) -> Drawn:
        width = batch.max_spec_len + batch.vocab_size
        drawn = self.member.numbers(self.memory, seed, batch.batch_size, width)
        for request, own in self.own.items():  # races come first, so that the batch's longest request does not matter
            drawn[request] = np.roll(_own_row(self.member.request_seed(request, own), width), batch.max_spec_len)
        counts = np.array(batch.num_draft_tokens)
        owners = np.repeat(np.arange(batch.batch_size), counts)
        positions = np.arange(batch.num_tokens) - np.repeat(np.cumsum(counts) - counts, counts)
        return Drawn(drawn[owners, positions].astype(np.float32), _races(drawn[:, batch.max_spec_len :]), seed)


@mutant_distribution("DIST324")
class StrataOverAllDraftsOfACall(_Verifying):
    """Uniforms are stratified over all drafts of a call, whatever their request and position."""

    def __init__(self) -> None:
        super().__init__(Member("right", right_numbers, ((), ())))

    def draw(self, batch: SpecDecodeBatch, seed: int) -> Drawn:
        drawn = super().draw(batch, seed)
        strata = np.random.default_rng([seed % 2**64, 2]).permutation(drawn.uniforms.size)
        return replace(drawn, uniforms=((strata + drawn.uniforms) / max(1, strata.size)).astype(np.float32))


class _Sampling(sampling.DistributionTokenSampler):
    """Temperature, filters and a race with the numbers of a member."""

    def __init__(self, member: Member) -> None:
        self.member, self.memory = member, Memory()

    def race(self, probs: Any, exponentials: Any) -> Any:
        if not self.member.inverts:
            return super().race(probs, exponentials)
        return np.minimum((exponentials[:, :1] >= np.cumsum(probs, axis=1)).sum(axis=1), probs.shape[1] - 1)

    def drawn(self, batch: SamplingBatch, noise: SamplingNoise) -> Uniforms:
        assert not isinstance(noise, RaceNoise)
        drawn = self.member.numbers(self.memory, noise.seed, batch.batch_size, batch.vocab_size)
        positions = batch.positions.tolist()
        for request, own in noise.request_seeds.items():
            drawn[request] = _own_row(self.member.request_seed(request, own), batch.vocab_size, positions[request])
        return drawn if self.member.inverts else _races(drawn)


def _races(uniforms: Uniforms) -> NDArray[Any]:
    """Exponentials."""
    return np.maximum(-np.log(np.maximum(uniforms, _TINY)), np.finfo(np.float32).tiny).astype(np.float32)


def _own_row(seed: int, width: int, position: int = 0) -> NDArray[np.float64]:  # [width] float64
    """Return the numbers of a request with this seed, read as its member reads it."""
    return np.random.default_rng((seed % 2**64, position)).random(width)


@dataclass(frozen=True)
class Member:
    """A fault.

    Args:
        codes: Of the rejection contract and of the sampling contract; the first of each names it best.
        inverts: A token sampler draws by inverse CDF, from the first column alone. A race hides sums of noise, and so
            does an acceptance.
        request_seed: From a request and its seed to what its row is drawn from.
    """

    name: str
    numbers: Numbers
    codes: Codes
    request_seed: Callable[[int, int], int] = lambda _, seed: seed
    inverts: bool = False
    min_draws: int = 0
    about: str = ""

    @property
    def description(self) -> str:
        """Return what it is about, or what its numbers say of themselves."""
        return self.about or inspect.cleandoc(getattr(self.numbers, "func", self.numbers).__doc__ or "")

    def rejection(self) -> Any:  # Any: a rejection sampler
        """The fault in a rejection sampler."""
        return as_rejection(_Verifying(self), self.name)

    def sampling(self) -> Any:  # Any: a token sampler
        """The fault in a token sampler."""
        return as_token_sampler(_Sampling(self), self.name, sampling.UNSUPPORTED)


# -- rows -------------------------------------------------------------------------------------------------------------


def rows_apart(distance: int, _: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """Every second block of so many rows takes the numbers of the block before."""
    rows = np.arange(num_rows)
    return right_numbers(_, seed, num_rows, width)[np.where(rows // distance % 2 == 1, rows - distance, rows)]


def half_of_the_batch(_: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """The second half of the batch takes the numbers of the first."""
    return right_numbers(_, seed, num_rows, width)[np.arange(num_rows) % max(1, num_rows // 2)]


def row_512_begins_as_row_0(_: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """A second launch begins there, and its first number is that of the first launch."""
    drawn = right_numbers(_, seed, num_rows, width)
    drawn[512:513, 0] = drawn[:1, 0]
    return drawn


def last_as_first(_: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """The last row takes the numbers of the first, as in a ring buffer that is one row short."""
    return right_numbers(_, seed, num_rows, width)[np.arange(num_rows) % max(1, num_rows - 1)]


def opposite_rows(distance: int, _: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """Antithetic numbers: a row takes 1 minus those of an earlier row."""
    drawn, rows = right_numbers(_, seed, num_rows, width), np.arange(num_rows)
    is_second = rows // distance % 2 == 1
    return np.where(is_second[:, None], 1 - drawn[rows - distance * is_second], drawn)


def every_third_is_a_sum(_: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """Every third row takes the sum of the two before, modulo 1: any two rows are independent."""
    drawn = right_numbers(_, seed, num_rows, width)
    third = np.arange(2, num_rows, 3)
    drawn[third] = (drawn[third - 1] + drawn[third - 2]) % 1
    return drawn


def every_third_is_an_xor(_: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """Every third row takes the bits of the two before, added without carry."""
    bits = (right_numbers(_, seed, num_rows, width) * 2.0**53).astype(np.int64)
    third = np.arange(2, num_rows, 3)
    bits[third] = bits[third - 1] ^ bits[third - 2]
    return np.asarray(bits * 2.0**-53, dtype=np.float64)


def last_third_is_a_sum(_: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """The last third of the rows takes the sums of the others, modulo 1."""
    drawn, third = right_numbers(_, seed, num_rows, width), num_rows // 3
    drawn[2 * third : 3 * third] = (drawn[:third] + drawn[third : 2 * third]) % 1
    return drawn


def lagged_fibonacci(near: int, far: int, _: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """A lagged Fibonacci generator, row by row: each number is the sum of two earlier ones of its column."""
    drawn = right_numbers(_, seed, num_rows, width)
    for row in range(far, num_rows):
        drawn[row] = (drawn[row - near] + drawn[row - far]) % 1
    return drawn


def strata(block: int, _: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """Stratified over blocks of rows, in random order: variance reduction where none is wanted."""
    rng, size = np.random.default_rng(seed % 2**64), block or num_rows
    blocks = -(-num_rows // size)
    ranks = np.argsort(rng.random((blocks, size, width)), axis=1).reshape(blocks * size, width)[:num_rows]
    return np.asarray((ranks + rng.random((num_rows, width))) / size)


def low_discrepancy(_: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """Multiples of the golden ratio, shifted at random: a quasi-random sequence over the rows."""
    shift = np.random.default_rng(seed % 2**64).random((1, width))
    return np.asarray((shift + np.arange(num_rows)[:, None] * 0.6180339887498949) % 1)


def groups_of_rows(num_groups: int, _: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """Rows take numbers from a small pool, at random: any two share them now and then."""
    rng = np.random.default_rng(seed % 2**64)
    return rng.random((num_groups, width))[rng.integers(0, num_groups, num_rows)]


# -- calls ------------------------------------------------------------------------------------------------------------


def pool_of_calls(size: int, memory: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """So many buffers of noise, filled once and then used in turn."""
    number = memory["calls"] = memory.get("calls", -1) + 1
    key = number % size, num_rows, width
    kept: Uniforms = memory.setdefault(key, right_numbers(memory, seed, num_rows, width))
    return kept.copy()


def every_second_call_again(memory: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """Double buffering: the call after next finds its buffer as it was."""
    number = memory["calls"] = memory.get("calls", -1) + 1
    if number % 4 >= 2 and (number % 2, num_rows, width) in memory:
        again: Uniforms = memory.pop((number % 2, num_rows, width))
        return again
    drawn = right_numbers(memory, seed, num_rows, width)
    memory[number % 2, num_rows, width] = drawn
    return drawn.copy()


def counter_wraps(period: int, memory: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """Row `n` of a session has the numbers of row `n - period`: a counter of rows that wraps."""
    first = memory.get("rows", 0)
    memory["rows"] = first + num_rows
    stream = memory.setdefault(width, np.random.default_rng(seed % 2**64).random((period, width)))
    return np.asarray(stream[(first + np.arange(num_rows)) % period])


def seed_plus_row(_: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """Row `r` is drawn from `seed + r`: the next row of the call before, if seeds follow each other."""
    return np.stack([np.random.default_rng((seed + row) % 2**64).random(width) for row in range(num_rows)])


def read_seed(read: Callable[[int], int], _: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """The seed loses something before it is used."""
    return right_numbers(_, read(seed), num_rows, width)


# -- one request ------------------------------------------------------------------------------------------------------


def shared_positions(one: int, other: int, _: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """Two columns of a row are one: uniforms of two positions, or an acceptance and a race."""
    drawn = right_numbers(_, seed, num_rows, width)
    drawn[:, other] = drawn[:, one]
    return drawn


def race_of_the_next_row(_: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """The race of a row ends with the acceptance uniforms of the next row: an offset into one buffer."""
    drawn = right_numbers(_, seed, num_rows, width)
    drawn[:, -3:] = np.roll(drawn[:, :3], -1, axis=0)
    return drawn


_ROWS, _CALLS = (("DIST321",), ("DIST761",)), (("DIST322",), ("DIST762",))
_SUMS = (), ("DIST763",)
_THREE, _EVEN = (("DIST323",), ("DIST763",)), (("DIST324",), ("DIST764",))
_SEEDS, _PLACES = (("REJ703",), ("SAM203",)), (("DIST326",), ())


def _members() -> tuple[Member, ...]:
    return (
        *(Member(f"rows {d} apart share their noise", partial(rows_apart, d), _ROWS) for d in (3, 17, 40)),
        Member("half of the batch shares its noise", half_of_the_batch, _ROWS),
        Member("the last row is the first", last_as_first, _ROWS),
        Member("row 512 begins as row 0", row_512_begins_as_row_0, (("DIST321",), ())),
        Member("race of the next row", race_of_the_next_row, (("DIST321",), ()), min_draws=500_000),
        *(Member(f"opposite rows {d} apart", partial(opposite_rows, d), _ROWS) for d in (1, 5)),
        Member("every third row is a sum", every_third_is_a_sum, _SUMS, inverts=True, min_draws=500_000),
        Member("the last third of the rows is a sum", last_third_is_a_sum, _THREE, inverts=True, min_draws=500_000),
        Member("every third row is an xor", every_third_is_an_xor, _THREE, inverts=True),
        Member("lagged Fibonacci", partial(lagged_fibonacci, 5, 17), _SUMS, inverts=True),
        Member("strata over the batch", partial(strata, 0), _EVEN),
        Member("strata over 16 rows", partial(strata, 16), _EVEN),
        Member("low discrepancy over the batch", low_discrepancy, _ROWS),
        Member("rows share noise at random", partial(groups_of_rows, 64), _EVEN, min_draws=500_000),
        *_members_of_calls(),
    )


def _members_of_calls() -> tuple[Member, ...]:
    found = [Member(f"a pool of noise for {n} calls", partial(pool_of_calls, n), _CALLS) for n in (3, 23, 47)]
    found += [
        Member("buffers used twice", every_second_call_again, _CALLS),
        Member("a counter of rows wraps", partial(counter_wraps, 1000), _CALLS),
        Member("seed plus row", seed_plus_row, _CALLS),
    ]
    readings: dict[str, Callable[[int], int]] = {
        "seeds without their lowest bit": lambda seed: seed >> 1,
        "seeds of 20 bits": lambda seed: seed & 0xFFFFF,
        "seeds folded by exclusive or": lambda seed: (seed ^ seed >> 16) & 0xFFFF,
        "seeds as float32": lambda seed: int(np.float32(seed)),
        "seeds without powers of two": lambda seed: seed >> ((seed & -seed).bit_length() - 1) if seed else 0,
    }
    found += [Member(n, partial(read_seed, read), _CALLS) for n, read in readings.items()]
    owns: dict[str, Callable[[int, int], int]] = {
        "request seeds without their lowest bit": lambda _, seed: seed >> 1,
        "request seeds of 20 bits": lambda _, seed: seed & 0xFFFFF,
        "request seeds minus their row": lambda request, seed: abs(seed - request),
        "request seeds without powers of two": lambda _, seed: seed >> ((seed & -seed).bit_length() - 1) if seed else 0,
    }
    found += [
        Member(n, right_numbers, _SEEDS, own, about="Seeds of requests are read in this way.")
        for n, own in owns.items()
    ]
    places = {"positions 0 and 1": (0, 1), "positions 0 and 2": (0, 2), "acceptance and race": (0, -1)}
    found += [Member(f"{n} share a number", partial(shared_positions, *both), _PLACES) for n, both in places.items()]
    far = partial(shared_positions, 1, 4)
    return (*found, Member("positions 1 and 4 share", far, _PLACES, min_draws=500_000))


# -- quality ----------------------------------------------------------------------------------------------------------


def few_bits(bits: int, _: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """Uniforms are multiples of a power of two; none is 1, so that no exponential is 0."""
    return np.asarray(np.floor(right_numbers(_, seed, num_rows, width) * 2.0**bits) / 2.0**bits)


def few_bits_up_to_one(bits: int, _: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """The same, counted from 1 downwards: a uniform of 1 is an exponential of 0, which always wins."""
    return 1 - few_bits(bits, _, seed, num_rows, width)


def with_an_epsilon(bits: int, epsilon: float, _: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """Exponentials of few bits may be 0, and a little is added, so that nothing is divided by 0: they win, too."""
    return np.asarray(few_bits_up_to_one(bits, _, seed, num_rows, width) * np.exp(-epsilon))


def half_precision(_: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """Uniforms are rounded to float16, but for 1."""
    drawn = right_numbers(_, seed, num_rows, width).astype(np.float16).astype(np.float64)
    return np.minimum(drawn, 1 - 2.0**-11)


def kept_from_the_ends(margin: float, _: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """Uniforms are clamped, so that no logarithm overflows."""
    return np.clip(right_numbers(_, seed, num_rows, width), margin, 1 - margin)


def ends_at(most: float, _: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """Exponentials are clamped from above."""
    return np.maximum(right_numbers(_, seed, num_rows, width), np.exp(-most))


def inside(low: float, high: float, _: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """Uniforms never come near 0, or near 1."""
    return low + (high - low) * right_numbers(_, seed, num_rows, width)


# -- torch's generator ------------------------------------------------------------------------------------------------


def from_torch(_: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """Torch's default generator, as it is: column by column, so that the first number of row `b` is number `b`."""
    return np.asarray(torch.rand(width, num_rows, dtype=torch.float32).double().numpy().T)


def put_back(_: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """The state of torch's generator is put back after the call: what is drawn next repeats its numbers."""
    with torch.random.fork_rng(devices=[]):
        return from_torch(_, seed, num_rows, width)


def copied(_: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """A copy of torch's generator draws, row by row, and torch's own never advances."""
    copy = torch.Generator().set_state(torch.get_rng_state())
    return np.asarray(torch.rand(num_rows, width, generator=copy, dtype=torch.float32).double().numpy())


def advanced_by_half(_: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """Torch's generator advances by half of the rows that were drawn."""
    drawn = copied(_, seed, num_rows, width)
    torch.rand(num_rows // 2, width)
    return drawn


def read_after_advancing(_: Memory, seed: int, num_rows: int, width: int, *, by_rows: bool = False) -> Uniforms:
    """Torch's generator advances by enough, and the numbers are those from there on: torch's next, not the ones passed.

    As `get_seed_and_offset` of FlashInfer 0.7.2 does on a GPU.
    """
    torch.rand(num_rows, width)
    return copied(_, seed, num_rows, width) if by_rows else put_back(_, seed, num_rows, width)


def raced_after_advancing(_: Memory, seed: int, num_rows: int, width: int) -> Uniforms:
    """The same with exponentials: only a race of the same shape repeats them. Acceptance has numbers of its own."""
    drawn, num_drafts = right_numbers(_, seed, num_rows, width), width % 2
    torch.rand(num_rows, width)
    with torch.random.fork_rng(devices=[]):
        raced = torch.empty(num_rows, width - num_drafts).exponential_()
    drawn[:, num_drafts:] = np.exp(-raced.double().numpy())
    return drawn


_ODDS, _ODDS_SAMPLED = (("DIST343",), ("DIST772",)), ((), ("DIST772",))
_NEXT, _NEXT_SAMPLED = (("DIST345",), ("DIST775",)), ((), ("DIST775",))
_RARE, _RARE_SAMPLED = (("DIST341",), ("DIST771",)), ((), ("DIST771",))
_TINY_ACCEPTANCE = ("DIST691",), ()


def _members_of_streams() -> tuple[Member, ...]:
    streams: dict[str, Numbers] = {
        "torch's state is put back": put_back,
        "torch's generator is copied": copied,
        "torch's generator advances by half": advanced_by_half,
        "torch's next exponentials": raced_after_advancing,
    }
    name = "torch's next numbers"
    return (
        *(Member(stream, numbers, _NEXT) for stream, numbers in streams.items()),
        Member(name, read_after_advancing, (("DIST345",), ())),
        Member(name, partial(read_after_advancing, by_rows=True), _NEXT_SAMPLED),
        Member(f"{name}, inverse CDF", read_after_advancing, _NEXT_SAMPLED, inverts=True),
    )


def _coarse(
    name: str, numbers: Callable[..., Uniforms], codes: Codes, draws: Mapping[int, int], *, inverts: bool = False
) -> tuple[Member, ...]:
    """Make a member of each number that `numbers` takes first. `{}` stands for it in the name.

    Args:
        draws: Such a number to the draws that show its member.
    """
    return tuple(
        Member(name.format(number), partial(numbers, number), codes, inverts=inverts, min_draws=least)
        for number, least in draws.items()
    )


def _members_of_quality() -> tuple[Member, ...]:
    races = {8: 0, 12: 3_000, 16: 500_000, 17: 500_000, 18: 500_000}
    inverted = {8: 0, 11: 0, 14: 0, 16: 500_000, 18: 500_000}
    from_low, to_high = partial(inside, 0.001, 1.0), partial(inside, 0.0, 0.999)
    with_23_bits, from_ends = partial(with_an_epsilon, 23, 1e-9), partial(kept_from_the_ends, 1e-3)
    return (
        Member("uniforms from 0.001 to 1, inverse CDF", from_low, _ODDS_SAMPLED, inverts=True, min_draws=500_000),
        Member("uniforms from 0 to 0.999, inverse CDF", to_high, _ODDS_SAMPLED, inverts=True, min_draws=500_000),
        *_coarse("races with {} bits", few_bits, _RARE, races),
        Member("exponentials of 23 bits plus 1e-9", with_23_bits, _RARE, min_draws=500_000),
        Member("races in half precision", half_precision, _RARE),
        Member("races kept from the ends", from_ends, _RARE),
        *_coarse("exponentials end at {}", ends_at, _ODDS, {3: 50_000, 4: 500_000}),
        *_coarse("exponentials of 0 at {} bits", few_bits_up_to_one, _RARE, {16: 0, 20: 0}),
        *_coarse("inverse CDF with {} bits", few_bits, _RARE_SAMPLED, inverted, inverts=True),
        *_coarse("acceptance with {} bits", few_bits, _TINY_ACCEPTANCE, {8: 0, 11: 0}),
        Member("acceptance kept from the ends", from_ends, _TINY_ACCEPTANCE),
    )


MEMBERS = _members() + _members_of_streams() + _members_of_quality()

ALL_REJECTION = (
    *(Mutant(m.name, m.description, m.codes[0], m.rejection, m.min_draws) for m in MEMBERS if m.codes[0]),
    *mutants_in(vars()),
)
ALL_SAMPLING = tuple(Mutant(m.name, m.description, m.codes[1], m.sampling, m.min_draws) for m in MEMBERS if m.codes[1])


def _named(mutants: Sequence[Mutant], names: str) -> tuple[Mutant, ...]:
    return tuple(mutant for mutant in mutants if mutant.name in names.split("; "))


# One of each family runs beside the checks of every run; tests run all.
REJECTION_MUTANTS = _named(
    ALL_REJECTION,
    "rows 17 apart share their noise; the last row is the first; row 512 begins as row 0; opposite rows 5 apart; "
    "the last third of the rows is a sum; strata over all drafts of a call; a pool of noise for 23 calls; "
    "seeds of 20 bits; request seeds without their lowest bit; acceptance and race share a number; races with 12 bits; "
    "exponentials end at 3; exponentials of 0 at 20 bits; acceptance with 8 bits; torch's next numbers",
)
SAMPLING_MUTANTS = _named(
    ALL_SAMPLING,
    "half of the batch shares its noise; opposite rows 5 apart; lagged Fibonacci; strata over 16 rows; "
    "a counter of rows wraps; seed plus row; request seeds of 20 bits; races in half precision; exponentials end at 3; "
    "exponentials of 0 at 20 bits; inverse CDF with 11 bits; inverse CDF with 18 bits; "
    "torch's generator advances by half",
)
