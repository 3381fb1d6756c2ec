"""34x: values at the edge of what is documented, and all pairs of parameters side by side."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from fairdraw._core.checks import check
from fairdraw._core.harness import Emission, emit
from fairdraw._core.seeds import derive_seed
from fairdraw.properties._rejection_asserts import broken, emit_case, equals_the_oracle, same_rows, sound
from fairdraw.properties._rejection_cases import identical_requests, lively, ordinary
from fairdraw.protocols import Capabilities, Capability, RejectionSampler, SeededNoise
from fairdraw.strategies import DTYPES, RejectionCase
from fairdraw.strategies.rows import bulk_rng

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairdraw.properties._rejection_cases import Cases

_SEEDED = (Capability.SEEDED_NOISE,)
_OWN = (Capability.SEEDED_NOISE, Capability.REQUEST_SEEDS)
_EXPLICIT = (Capability.EXPLICIT_NOISE,)


# -- all pairs --------------------------------------------------------------------------------------------------------


def _pairs(can: Capabilities) -> Cases:
    return lively(can, explicit=Capability.EXPLICIT_NOISE in can, widths=("covering",), dtypes=DTYPES)


def _is_right(sampler: RejectionSampler, case: RejectionCase) -> None:
    batch, _, emission = emit_case(sampler, case)
    sound(batch, emission)
    if Capability.REFERENCE_RACE in sampler.capabilities and (
        case.explicit or Capability.UPSTREAM_STREAM in sampler.capabilities
    ):
        equals_the_oracle(sampler, case)


@check("REJ341", _pairs, weight=0.2)
def requests_with_every_pair_of_parameters_are_verified_side_by_side(
    sampler: RejectionSampler, case: RejectionCase
) -> None:
    """One batch in which every pair of these occurs: number of drafts, greedy, temperature, kind of noise.

    Logits of any dtype, one-hot or dense. If checks with narrower titles pass, two parameters disturb each other: look
    for the pair that the smallest example has.
    """
    _is_right(sampler, case)


def _seeded_pairs(can: Capabilities) -> Cases:
    return lively(can, explicit=False, widths=("covering",), dtypes=DTYPES)


@check("REJ342", _seeded_pairs, needs=_SEEDED, weight=0.2)
def seeded_requests_with_every_pair_of_parameters_are_verified_side_by_side(
    sampler: RejectionSampler, case: RejectionCase
) -> None:
    """The same with seeds: requests with and without, seeds 0, equal, counted up, near 2**32 and near 2**63.

    A second call gives the same tokens, so that a pair of parameters that reads foreign numbers shows.
    """
    _is_right(sampler, case)
    _, _, first = emit_case(sampler, case)
    _, _, second = emit_case(sampler, case)
    same_rows(first.tokens, second.tokens, "a second call with the same seeds")


# -- seeds ------------------------------------------------------------------------------------------------------------

_BITS = 63
_VOCAB_SIZE = 4096


def _told_apart(device: str, base: int) -> list[int]:
    """Bits of a seed that torch's own generator heeds on this device: on a CPU the lower 32."""
    first = torch.rand(4, generator=torch.Generator(device).manual_seed(base), device=device)
    others = (torch.Generator(device).manual_seed(base ^ (1 << bit)) for bit in range(_BITS))
    return [
        bit for bit, other in enumerate(others) if not torch.equal(first, torch.rand(4, generator=other, device=device))
    ]


def _bits(sampler: RejectionSampler, case: RejectionCase) -> list[int]:
    """All bits; every fifth for a slow sampler, others in other cases."""
    return list(range(_BITS))[case.seed % 5 :: 5] if sampler.capabilities.slow else list(range(_BITS))


def _bases(case: RejectionCase) -> tuple[list[int], list[int]]:
    """Three small seeds, and three large ones, whose lower bits a float has no room for."""
    return [0, 1 + case.seed % 1000, 2**20 + case.seed % 2**20], [derive_seed("base", case.seed, i) for i in range(3)]


_LOW_BITS = 32


def _lost(ignored: set[int], asked: Sequence[int], told_apart: Sequence[int]) -> list[int]:
    """Bits that should count and do not: those that torch tells apart, and all others as soon as one of them counts.

    So a sampler that makes generators of its own on a CPU, which heed 32 bits, is right, and one that heeds 48 is not.
    """
    others = set(asked) - set(told_apart)
    return sorted(ignored & (set(asked) if others - ignored else set(told_apart)))


def _require_all(lost: Sequence[int], whose: str) -> None:
    if lost:
        broken(f"bits {lost} of {whose} do not count: seeds that differ there alone gave the same tokens")


def _moved(device: str, seeds: dict[int, int], emission: Emission) -> bool:
    """Whether the call has drawn from the requests' generators."""
    before = SeededNoise(0, seeds).generators(device)
    return any(before[i].get_state().numpy().tobytes() != state for i, state in emission.generator_states.items())


@check("REJ343", lambda can: identical_requests(can, vocab_size=_VOCAB_SIZE, num_drafts=1), needs=_OWN, weight=0.02)
def every_bit_of_a_per_request_seed_counts(sampler: RejectionSampler, case: RejectionCase) -> None:
    """64 equal requests whose seeds differ in one bit each from the first one's recover other tokens than that.

    The lower 32 of 63 bits count, which is what torch's generator heeds on a CPU, and those that it heeds on the
    sampler's device, if the sampler draws from it. If any other bit counts, all do. A slow sampler is asked every
    fifth. False failures: 126 * 4096**-3 = 2e-9. Seeds that pass through 31 bits, or through a float, lose some.
    """
    bits = _bits(sampler, case)
    for bases in _bases(case):
        ignored, moved = set(bits), False
        for base in bases:
            seeds = {0: base, **{1 + i: base ^ (1 << bit) for i, bit in enumerate(bits)}}
            batch = case.batch(sampler.device).select([0] * len(seeds))
            emission = emit(sampler, batch, SeededNoise(derive_seed("call", case.seed, base), seeds))
            is_equal = (emission.tokens[1:] == emission.tokens[0]).all(axis=1)
            ignored &= {bit for bit, equal in zip(bits, is_equal, strict=True) if equal}
            moved |= _moved(sampler.device, seeds, emission)
        told_apart = _told_apart(sampler.device, bases[0]) if moved else range(_LOW_BITS)
        _require_all(_lost(ignored, bits, told_apart), f"per-request seeds near {bases}")


@check("REJ344", lambda can: identical_requests(can, vocab_size=_VOCAB_SIZE, num_drafts=1), needs=_SEEDED, weight=0.02)
def every_bit_of_the_seed_of_a_call_counts(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Calls whose seeds differ in one bit draw different numbers, for each of 63 bits, as far as they count (REJ343).

    Six requests are compared; four, at every fifth bit, for a slow sampler. False failures: below
    63 * 4096**-4 = 2e-13.
    """
    count = 4 if sampler.capabilities.slow else 6
    batch, base = case.batch(sampler.device).select([0] * count), derive_seed("base", case.seed)
    first = emit(sampler, batch, SeededNoise(base))
    untouched = torch.Generator(sampler.device).manual_seed(base).get_state().numpy().tobytes()
    told_apart = _told_apart(sampler.device, base) if first.default_state != untouched else range(_LOW_BITS)
    bits = _bits(sampler, case)
    others = {bit: emit(sampler, batch, SeededNoise(base ^ (1 << bit))).tokens for bit in bits}
    ignored = {bit for bit, tokens in others.items() if (tokens == first.tokens).all()}
    _require_all(_lost(ignored, bits, told_apart), "the call's seed")


_NEGATIVE = 32


@check("REJ345", lambda can: identical_requests(can, vocab_size=_VOCAB_SIZE, num_drafts=1), needs=_OWN, weight=0.02)
def negative_per_request_seeds_are_seeds_like_others(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Seeds -2, -4, ... and others down to -2**63 give tokens that repeat, and others than 2, 4, ... do.

    `SeededNoise` has every integer of 64 bits, as torch's generators take them. False failures: of 16 tokens of 4096, more than 8 agree
    with probability below 1e-28. An absolute value, or an unsigned number of 32 bits, folds them together.
    """
    count = 8 if sampler.capabilities.slow else _NEGATIVE
    size = [1 + i if i % 2 else 2**63 - i * case.seed for i in range(count)]
    batch = case.batch(sampler.device).select([0] * count)
    call = derive_seed("call", case.seed)
    negative, again, positive = (
        emit(sampler, batch, SeededNoise(call, dict(enumerate(seeds))))
        for seeds in ([-s for s in size], [-s for s in size], [min(s, 2**63 - 1) for s in size])
    )
    same_rows(negative.tokens, again.tokens, "a second call with the same negative seeds")
    num_equal = int((negative.tokens == positive.tokens).all(axis=1)[1::2].sum())
    if num_equal > count // 4:
        broken(f"{num_equal} of {count // 2} seeds and their negatives gave the same tokens")


# -- rows without a distribution beside others ---------------------------------------------------------------------


def _beside_others(sampler: RejectionSampler, case: RejectionCase, target: str) -> None:
    """About a third of the requests get rows without a distribution; the others emit what they did."""
    is_poisoned = bulk_rng("poisoned", case.seed).random(len(case.requests)) < 1 / 3
    is_poisoned[case.seed % len(case.requests)] = True
    requests = tuple(
        dataclasses.replace(r, drafts=tuple(dataclasses.replace(d, target=target) for d in r.drafts)) if poisoned else r
        for r, poisoned in zip(case.requests, is_poisoned, strict=True)
    )
    _, _, expected = emit_case(sampler, case)
    _, _, seen = emit_case(sampler, case.replace(requests=requests))
    same_rows(expected.tokens[~is_poisoned], seen.tokens[~is_poisoned], f"beside requests whose rows are {target}")


def _beside(can: Capabilities) -> Cases:
    return ordinary(can, explicit=True, widths=("few", "few", "covering") if can.slow else ("few", "covering"))


@check("REJ346", _beside, needs=(*_EXPLICIT, Capability.NAN_LOGITS), weight=0.1)
def rows_with_nan_anywhere_do_not_disturb_other_requests(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Requests whose target rows hold NaN, anywhere in a batch with all pairs of parameters, change no other request.

    Suspect what is computed over several rows: a maximum, a sum, a test whether any row is valid.
    """
    _beside_others(sampler, case, "nan")


@check("REJ347", _beside, needs=(*_EXPLICIT, Capability.EMPTY_ROWS), weight=0.1)
def rows_without_any_token_do_not_disturb_other_requests(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Requests whose target rows are all -inf, anywhere in the batch, change no other request.

    Suspect what is computed over several rows; softmax makes NaN of such a row.
    """
    _beside_others(sampler, case, "empty")
