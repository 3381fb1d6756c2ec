"""65x: calls after one another. An answer follows from its arguments, and from nothing that was called before.

A server calls one sampler for days: batches grow and shrink, buffers are used again, generators go on. What is kept
from one call must never show in another.
"""

from __future__ import annotations

import dataclasses
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from fairdraw._core.checks import check
from fairdraw._core.harness import Emission, emit, emit_next, propose_next, seeded
from fairdraw._core.seeds import derive_seed
from fairdraw.properties._rejection_asserts import ORACLE, broken, emit_case, emit_intact, same_rows
from fairdraw.properties._rejection_cases import identical_requests, lively, with_request_seeds
from fairdraw.protocols import (
    PLACEHOLDER_TOKEN_ID,
    Capabilities,
    Capability,
    DraftStep,
    ExplicitNoise,
    Noise,
    RejectionSampler,
    SeededNoise,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairdraw.properties._rejection_cases import Cases
    from fairdraw.protocols import DraftingSampler, SpecDecodeBatch
    from fairdraw.strategies import RejectionCase

_EXPLICIT = (Capability.EXPLICIT_NOISE,)
_OWN = (Capability.SEEDED_NOISE, Capability.REQUEST_SEEDS)
_STREAM = (Capability.SEEDED_NOISE, Capability.REFERENCE_RACE, Capability.UPSTREAM_STREAM)


def _twice(case: RejectionCase) -> RejectionCase:
    """The requests, and as many of the same kinds with other numbers: two halves of one shape."""
    return case.replace(requests=case.requests * 2)


def _calls(batch_size: int) -> list[list[int]]:
    """Requests of call after call: two halves in turn, one request, all, and the halves again."""
    half = batch_size // 2
    first, second, whole = list(range(half)), list(range(half, batch_size)), list(range(batch_size))
    return [first, second, first, first[:1], whole, second, second[-1:], whole[::-1], second, first]


def _in_the_same_memory(kept: SpecDecodeBatch, batch: SpecDecodeBatch) -> SpecDecodeBatch:
    """`batch` in the tensors of an earlier one, if it fits: a server fills its buffers again."""
    old, new = kept.tensors(), batch.tensors()
    fits = kept.num_draft_tokens == batch.num_draft_tokens and {n: t.shape for n, t in old.items()} == {
        n: t.shape for n, t in new.items()
    }
    if not fits:
        return batch
    for name, tensor in old.items():
        tensor.copy_(new[name])
    return kept


def _in_any_order(
    sampler: RejectionSampler, batch: SpecDecodeBatch, noise: ExplicitNoise | SeededNoise, whole: Emission
) -> None:
    """Parts of the batch, call after call, emit the rows of the whole."""
    kept: dict[int, SpecDecodeBatch] = {}
    for number, requests in enumerate(_calls(batch.batch_size), 2):
        part = batch.select(requests)
        part = kept[len(requests)] = _in_the_same_memory(kept.get(len(requests), part), part)
        if isinstance(noise, ExplicitNoise):
            own: Noise = noise.select(batch, requests)
        else:
            seeds = {i: noise.request_seeds[request] for i, request in enumerate(requests)}
            own = SeededNoise(derive_seed("call", noise.seed, number), seeds)
        seen = emit_intact(sampler, part, own)
        same_rows(whole.tokens[requests], seen.tokens, f"call {number}, with requests {requests}")


def _some(can: Capabilities, explicit: bool) -> Cases:
    return lively(can, explicit=explicit, min_vocab_size=2, max_requests=2 if can.slow else 3).map(_twice)


@check("REJ651", lambda can: _some(can, True), needs=_EXPLICIT, weight=0.2)
def calls_before_do_not_change_an_answer(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Ten calls with parts of a batch, in any order and in memory that is used again, emit the rows of the whole.

    Suspect whatever is kept: an output that is not cleared, double buffers, a cache by shape or by address, state of a
    larger batch that a smaller one reads. Every argument is compared before and after every call.
    """
    batch, noise, whole = emit_case(sampler, case)
    _in_any_order(sampler, batch, noise, whole)


@check("REJ652", lambda can: _some(can, False).map(with_request_seeds), needs=_OWN, weight=0.2, depends_on=("REJ501",))
def calls_before_do_not_change_an_answer_from_per_request_seeds(sampler: RejectionSampler, case: RejectionCase) -> None:
    """The same from per-request seeds: fresh generators of equal seeds give equal tokens in every call.

    Suspect numbers that are drawn ahead, or kept by seed, by shape, or by place in the batch.
    """
    batch, noise, whole = emit_case(sampler, case)
    _in_any_order(sampler, batch, noise, whole)


@check("REJ653", lambda can: _some(can, False), needs=(Capability.SEEDED_NOISE,), weight=0.2, depends_on=("REJ501",))
def calls_with_other_seeds_between_do_not_change_an_answer(sampler: RejectionSampler, case: RejectionCase) -> None:
    """A, B, a part of A, A, B: both batches, of one shape and with other seeds, give their first answers again.

    Suspect numbers that are kept from the call before, and generators that are seeded once.
    """
    other = case.replace(seed=case.seed + 1)
    part = case.replace(requests=case.requests[:1])
    answers: dict[str, Emission] = {}
    for number, (name, one) in enumerate([("A", case), ("B", other), ("C", part), ("A", case), ("B", other)], 1):
        if part.max_spec_len < 1 and one is part:
            continue
        seen = emit_intact(sampler, one.batch(sampler.device), one.noise(sampler.device))
        same_rows(answers.setdefault(name, seen).tokens, seen.tokens, f"call {number}, of batch {name} again")


# -- generators that go on --------------------------------------------------------------------------------------------


def _next(noise: SeededNoise, device: str) -> SeededNoise:
    """The noise of the next step: another seed of the call, and the same generators where they were left."""
    following = SeededNoise(derive_seed("next call", noise.seed), noise.request_seeds)
    following.generators(device).update(noise.generators(device))
    return following


_EQUAL = 16


@check("REJ654", lambda can: identical_requests(can, vocab_size=32, num_drafts=1), needs=_OWN, weight=0.12)
def generators_go_on_from_call_to_call(sampler: RejectionSampler, case: RejectionCase) -> None:
    """A per-request generator that a call advances is advanced further by the next call, which draws other numbers.

    False failures: 16 requests with a flat target of 32 tokens repeat themselves with probability 32**-16 = 8e-25.
    A generator that starts anew at each call gives a request the same numbers at every step. A sampler that leaves
    generators alone, and draws by seed, is not judged here.
    """
    batch = case.batch(sampler.device).select([0] * _EQUAL)
    noise = SeededNoise(derive_seed("call", case.seed), {i: derive_seed("own", case.seed, i) for i in range(_EQUAL)})
    states = [{i: g.get_state().numpy().tobytes() for i, g in noise.generators(sampler.device).items()}]
    tokens = []
    for _ in range(3):
        emission = emit(sampler, batch, noise)
        states.append(emission.generator_states)
        tokens.append(emission.tokens)
        noise = _next(noise, sampler.device)
    if states[1] == states[0]:
        return
    for call in (2, 3):
        still = [i for i in range(_EQUAL) if states[call][i] == states[call - 1][i]]
        if still:
            broken(f"call {call} left the generators of requests {still} where call {call - 1} had left them")
        if np.array_equal(tokens[call - 1], tokens[call - 2]):
            broken(f"calls {call - 1} and {call} with the same generators emitted the same tokens in all requests")


def _steps(
    sampler: RejectionSampler, cases: Sequence[RejectionCase], order: Sequence[int], device: str
) -> dict[int, list[Emission]]:
    """Calls in this order, each with the generators of its case where they were left."""
    noises: dict[int, SeededNoise] = {}
    seen: dict[int, list[Emission]] = {}
    for user in order:
        fresh = cases[user].noise(device)
        assert isinstance(fresh, SeededNoise)
        noises[user] = _next(noises[user], device) if user in noises else fresh
        seen.setdefault(user, []).append(emit(sampler, cases[user].batch(device), noises[user]))
    return seen


@check("REJ655", lambda can: _some(can, False).map(with_request_seeds), needs=_OWN, weight=0.2)
def two_users_in_turn_have_the_tokens_that_each_has_alone(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Two batches whose generators go on, called in turn, emit what each emits without the other.

    Suspect generators, counters or numbers that belong to the sampler instead of the request.
    """
    users = (case, case.replace(requests=case.requests[:1], seed=case.seed + 1))
    together = _steps(sampler, users, (0, 1, 1, 0, 1, 0), sampler.device)
    for user in (0, 1):
        alone = _steps(sampler, users, (user,) * 3, sampler.device)[user]
        for step, (expected, seen) in enumerate(zip(alone, together[user], strict=True), 1):
            same_rows(expected.tokens, seen.tokens, f"step {step} of user {user + 1}, in turn with another")


_TURNS = (range(0), range(0, _EQUAL, 2), range(1, _EQUAL, 2), range(_EQUAL))
"""Requests with a seed of their own, call by call."""


@check("REJ658", lambda can: identical_requests(can, vocab_size=32, num_drafts=1), needs=_OWN, weight=0.12)
def a_row_forgets_the_seeds_of_earlier_requests(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Calls in which no request, half of them, the other half and all have seeds give the same tokens in any order.

    Requests come and go, and one without a seed takes the row of one that had a seed. Suspect a seed, a generator or a
    counter that is kept by row and is not taken away with its request.
    """

    def emitted(turn: int) -> Emission:
        seeds = {i: derive_seed("own", case.seed, turn, i) for i in _TURNS[turn]}
        batch = case.batch(sampler.device).select([0] * _EQUAL)
        return emit(sampler, batch, SeededNoise(derive_seed("call", case.seed, turn), seeds))

    first = [emitted(turn) for turn in range(len(_TURNS))]
    for turn in (2, 0, 1, 3):
        rows = f"{len(_TURNS[turn])} of {_EQUAL} requests have a seed"
        seen = emitted(turn)
        same_rows(first[turn].tokens, seen.tokens, f"a call in which {rows}, again after calls with other seeds")


@check("REJ656", lambda can: _some(can, False).map(with_request_seeds), needs=(*_STREAM, *_OWN), weight=0.12)
def generators_go_on_as_the_oracle_leaves_them(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Three steps with the same generators give the oracle's tokens and states after every step.

    The first step alone cannot show a generator that is seeded again, or numbers that were drawn ahead.
    """
    seen, expected = (_steps(one, (case,), (0,) * 3, sampler.device)[0] for one in (sampler, ORACLE))
    for step, (right, own) in enumerate(zip(expected, seen, strict=True), 1):
        same_rows(right.tokens, own.tokens, f"step {step} with the same generators, the oracle disagrees")
        if right.generator_states != own.generator_states:
            broken(f"after step {step} the generators are not in the documented state")


# -- positions -----------------------------------------------------------------------------------------------------

_POSITIONS = (0, 1, 2, 3, *(1 << bit for bit in range(2, 31)))
"""Steps of a request, counted from its first: neighbours, and those that differ in one bit."""
_SLOW_POSITIONS = (0, 1, 2, 16, 256, 1 << 16, 1 << 24)


@check(
    "REJ659",
    lambda can: identical_requests(can, vocab_size=32, num_drafts=1),
    needs=(*_OWN, Capability.DRAFTER),
    weight=0.12,
)
def every_position_of_a_request_draws_new_noise(sampler: DraftingSampler, case: RejectionCase) -> None:
    """16 requests with neighbouring seeds draft and verify at a position, at the next ones, and far ones: other tokens.

    All steps share one noise, as in an engine's loop: generators go on, and counters take the positions.
    False failures: below 1e-16, at some 500 pairs of positions, with 16 tokens of probability 1/16 at most. Suspect a
    key without the position, or with some bits of it, as in a ring of thousands; and keys from `seed + position`, which
    give a request what its neighbour says a step later. Of drafts, suspect also a drafter that draws nothing, and
    reports a distribution all the same.
    """
    batch = case.batch(sampler.device).select([0] * _EQUAL)
    noise = SeededNoise(derive_seed("call", case.seed), {i: case.seed % 2**31 + i for i in range(_EQUAL)})
    first = derive_seed("position", case.seed) % 2**16
    offsets = _SLOW_POSITIONS if sampler.capabilities.slow else _POSITIONS
    with seeded(noise, batch.device):
        steps = [_at_position(sampler, batch, noise, first + offset) for offset in offsets]
    for what, tokens in zip(("drafts", "recovered tokens", "bonus tokens"), zip(*steps, strict=True), strict=True):
        _are_new(what, offsets, tokens)


Tokens = NDArray[np.int64]
"""One per request, `[batch_size] int64`."""


def _at_position(
    sampler: DraftingSampler, batch: SpecDecodeBatch, noise: SeededNoise, position: int
) -> tuple[Tokens | None, Tokens, Tokens | None]:  # each [_EQUAL] int64
    """From flat rows: what is drafted there, if the drafter says that it drew from such; what is emitted first there;
    and what is emitted behind a draft that is certain, if all are accepted and it is not the token that was given."""
    flat = torch.zeros((_EQUAL, batch.vocab_size), device=batch.device)
    positions = torch.full((_EQUAL,), position, dtype=torch.int64, device=batch.device)
    step = DraftStep(flat, positions, torch.ones(_EQUAL, device=batch.device), 0, origin=f"<position {position}>")
    drafted = propose_next(sampler, step, noise)
    is_flat = drafted.draft_probs is not None and drafted.draft_probs.max() <= _AT_MOST
    batch = batch.replace(positions=positions, bonus_logits=flat)
    emitted = [emit_next(sampler, one, noise).astype(np.int64) for one in (batch, _certain(batch))]
    bonus, given = emitted[1][:, -1], batch.bonus_token_ids[:, 0].cpu().numpy()
    is_drawn = (bonus != PLACEHOLDER_TOKEN_ID).all() and (bonus != given).any()
    return drafted.token_ids if is_flat else None, emitted[0][:, 0], bonus if is_drawn else None


def _certain(batch: SpecDecodeBatch) -> SpecDecodeBatch:
    """Drafts that the target has alone."""
    logits = torch.full_like(batch.target_logits, -torch.inf)
    return batch.replace(target_logits=logits.scatter(1, batch.draft_token_ids[:, None].long(), 0.0))


_AT_MOST = 1 / 16
"""Probability of a token, where tokens of steps are compared."""


def _are_new(what: str, offsets: Sequence[int], tokens: Sequence[Tokens | None]) -> None:
    """No two steps are equal, nor a step and the one after it in the next request."""
    known = [(offset, one) for offset, one in zip(offsets, tokens, strict=True) if one is not None]
    for (near, earlier), (far, later) in combinations(known, 2):
        if np.array_equal(earlier, later):
            broken(f"{what} of {_EQUAL} requests are the same at two positions that are {far - near} apart")
        if far - near == 1 and np.array_equal(earlier[1:], later[:-1]):
            broken(f"{what} of {_EQUAL - 1} requests with neighbouring seeds are those of the next one a step before")


# -- rarely --------------------------------------------------------------------------------------------------------

_MANY_CALLS = 280
_SLOW_CALLS = 12


def _small(can: Capabilities) -> Cases:
    return lively(can, explicit=True, min_vocab_size=2, max_vocab_size=8, max_requests=2, max_drafts=2).map(_twice)


@check("REJ657", _small, needs=_EXPLICIT, weight=0.01)
def hundreds_of_equal_calls_give_equal_answers(sampler: RejectionSampler, case: RejectionCase) -> None:
    """280 calls with the same arguments give the same answer, in each of two cases or more.

    An interpreted sampler is called 12 times, which shows little.

    Suspect races between threads or programs, memory that is used before it is written, and counters that overflow.
    """
    batch, noise, first = emit_case(sampler, case)
    for number in range(2, _SLOW_CALLS if sampler.capabilities.slow else _MANY_CALLS):
        same_rows(first.tokens, emit(sampler, batch, dataclasses.replace(noise)).tokens, f"call {number}")
