"""63x and 64x: strides, batches of any size, rejections at any place, and ids beyond what a small integer holds.

What these cases must emit follows from their making, or from another run; no oracle takes part. So they are run on
samplers of every design, and cost little where batches are large.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import torch
from hypothesis import strategies as st

from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import MAX_SPEC_LEN, Capabilities, Capability, ExplicitNoise, RejectionSampler, SpecDecodeBatch
from fairdraw.contracts._rejection import emit
from fairdraw.properties import _rejection_asserts as asserts
from fairdraw.properties._rejection_asserts import answers, broken, check, covered, emit_case, is_left_to, same_rows
from fairdraw.properties._rejection_cases import Cases, batch_of, ordinary
from fairdraw.strategies import LAYOUTS, DraftRecipe, RejectionCase, RequestRecipe
from fairdraw.strategies._cases import far_apart, laid_out, strided_like
from fairdraw.strategies.rows import bulk_rng

_EXPLICIT = (Capability.EXPLICIT_NOISE,)
_LARGE = (Capability.LARGE_VOCAB,)

_CERTAIN = DraftRecipe(target="one-hot", draft="same", token="likely", uniform="half")
"""Accepted by every request, whatever the noise."""
IMPOSSIBLE = DraftRecipe(target="one-hot", draft="elsewhere", token="drawn", uniform="half")
"""Rejected by every request, whatever the noise; one token can be recovered."""


# -- any place of the first rejection, and any number of rows ----------------------------------------------------------


def _request(num_drafts: int, place: int, *, greedy: bool = False) -> RequestRecipe:
    """`num_drafts` drafts, of which that at `place` is the first to be rejected; none if there is no such place."""
    impossible = (IMPOSSIBLE,) * (place < num_drafts)
    return RequestRecipe((_CERTAIN,) * place + impossible + (_CERTAIN,) * (num_drafts - place - 1), greedy)


def _end_where_they_must(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Each request emits its certain drafts, then the only possible token in place of the impossible one."""
    batch, _, emission = emit_case(sampler, case)
    possible = batch.target_logits.float().argmax(-1).tolist()
    for answer, request in zip(answers(batch, emission), case.requests, strict=True):
        place = next((i for i, draft in enumerate(request.drafts) if draft == IMPOSSIBLE), len(answer.drafts))
        is_whole = place == len(answer.drafts)
        last = answer.bonus_token_id if is_whole else possible[answer.first_row + place]
        certain = answer.drafts[:place]
        if answer.tokens != [*certain, last] and not is_left_to(sampler, answer.tokens, certain):
            broken(
                f"request {answer.request} of {batch.batch_size}, with {len(answer.drafts)} drafts, emitted "
                f"{len(answer.tokens)} tokens that end with {answer.tokens[-2:]}, but "
                + ("all drafts are certain" if is_whole else f"the first impossible draft is at position {place}")
                + f", and its last token must be {last}"
            )


def _every_place(num_drafts: int, greedy: int, slow: bool) -> tuple[RequestRecipe, ...]:
    """A request for each place. A slow sampler is given the last eight, and every eighth."""
    places = [place for place in range(num_drafts + 1) if not slow or place % 8 == 5 or place > num_drafts - 8]
    return tuple(_request(num_drafts, place, greedy=bool(greedy) and place % 3 == greedy - 1) for place in places)


def _rejected_anywhere(can: Capabilities) -> Cases:
    counts = (2, 1, 8, 33, 64, *(MAX_SPEC_LEN - 1, MAX_SPEC_LEN) * 20) if Capability.LONG_DRAFTS in can else (2, 8)
    greedy = st.integers(0, 3) if Capability.GREEDY in can else st.just(0)
    made = st.builds(_every_place, st.sampled_from(counts), greedy, st.just(can.slow))
    return batch_of(can, (2, 3, 5, 8), made)


@check("REJ642", _rejected_anywhere, weight=0.06, body=_end_where_they_must)
def the_first_rejection_is_found_at_every_position() -> None:
    """A batch with a request for each place of the first rejection, up to 128 drafts: each ends where it must.

    Suspect loops that are cut into blocks, bit masks of 32 or 64 positions, and searches that end too early. An
    interpreted sampler is given every eighth place, and the last eight.
    """


def _ragged(size: int, first: int, greedy: bool, can: Capabilities) -> tuple[RequestRecipe, ...]:
    """Eleven requests in turn, nearly all with as many drafts as there may be. A slow sampler's are rejected early, and
    most are greedy, which costs it less."""
    most = MAX_SPEC_LEN if Capability.LONG_DRAFTS in can else 8
    counts = (128, 127, 128, 128, 0, 128, 128, 128, 128, 33, 128) if Capability.RAGGED in can else (128,)
    pattern = []
    for i in range(11):
        count = min(counts[(first + i) % len(counts)], most)
        place = derive_seed("place", first, i) % (2 if can.slow else count + 1)
        is_greedy = greedy and (i % 4 != 3 if can.slow else i % 4 == 1)
        pattern.append(_request(count, min(place, count), greedy=is_greedy))
    return tuple(pattern * (size // 11 + 1))[:size]


def _many_rows(can: Capabilities) -> Cases:
    sizes = (11, *(300,) * 20) if can.slow else (11, *(1100, 1237) * 20)
    mixed = st.just(True) if can.slow else st.booleans()
    greedy = mixed if Capability.GREEDY in can else st.just(False)
    made = st.builds(_ragged, st.sampled_from(sizes), st.integers(0, 10), greedy, st.just(can))
    return batch_of(can, (2, 3) if Capability.LONG_DRAFTS in can else (64,), made)


@check("REJ643", _many_rows, weight=0.02, body=_end_where_they_must)
def more_than_131072_draft_tokens_are_verified_in_one_batch() -> None:
    """More than 1,000 requests with 128 drafts each, ragged: every request reads its own rows, however far behind.

    Suspect offsets of 16 bits, cumulative sums in half precision or in blocks, and grids that end at 65,535. An
    interpreted sampler is given 300 requests, which is 35,000 draft tokens.
    """


def _one_rejected(size: int, num_drafts: int, greedy: bool) -> tuple[RequestRecipe, ...]:
    """The first request is rejected at once, all others are accepted whole."""
    return tuple(_request(num_drafts, num_drafts if i else 0, greedy=greedy) for i in range(size))


def _full_batches(can: Capabilities) -> Cases:
    greedy = st.booleans() if Capability.GREEDY in can else st.just(False)
    made = st.builds(_one_rejected, st.sampled_from((8, 16, 32, 64)), st.integers(1, 4), greedy)
    return batch_of(can, (2, 3, 8), made)


@check("REJ648", _full_batches, weight=0.2, body=_end_where_they_must)
def full_batches_lose_no_bonus_token() -> None:
    """Of 8, 16, 32 or 64 requests the first is rejected at its first draft; the others are accepted, up to the bonus.

    Engines pad requests to such sizes, and drafts to others. Suspect drafts of padding that are counted to the last
    request: it has room for them only if no request is of padding, too.
    """


# -- strides --------------------------------------------------------------------------------------------------------


def _strided(batch: SpecDecodeBatch) -> Iterator[tuple[str, SpecDecodeBatch]]:
    """Yield the batch with strides of every tensor, and of draft distributions alone; the last lie far apart."""
    for layout in LAYOUTS[1:3]:
        yield f"{layout} target_logits and other tensors", laid_out(batch, layout)
    if batch.draft_probs is not None:
        yield "transposed draft_probs", batch.replace(draft_probs=strided_like(batch.draft_probs, "transposed"))
        yield "draft_probs beyond offsets of 32 bits", batch.replace(draft_probs=far_apart(batch.draft_probs))


def _random_rows(can: Capabilities) -> Cases:
    """Rows in which every number counts: drafts have distributions, and some are rejected."""
    dense = {"dense": True} if Capability.DENSE_DRAFTS in can else {}
    return ordinary(can, **dense, explicit=True, greedy=False, min_requests=3, min_drafts=1, min_vocab_size=4)


@check("REJ631", _random_rows, needs=(*_EXPLICIT, Capability.STRIDED_INPUTS))
def strided_tensors_work_or_are_refused_by_name(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Transposed and sliced tensors give a contiguous copy's tokens, or an error that names one.

    Drafters stack their distributions step by step, so a transposed view is what an engine really passes. A kernel that
    multiplies the row number by the vocabulary size reads other tokens' numbers; a row number times a stride, both of
    32 bits, wraps round and reads other memory. Serving traces put the logits far apart.
    """
    batch, noise, expected = emit_case(sampler, case)
    rows = covered(sampler, batch, noise)
    for what, strided in _strided(batch):
        seen = asserts.works_or_refuses(
            sampler, strided, noise, "draft_probs" if "draft_probs" in what else "target_logits"
        )
        if seen is not None:
            same_rows(expected.tokens[rows], seen.tokens[rows], what)


# -- ids ------------------------------------------------------------------------------------------------------------

_EDGES = [0, 2**15 - 1, 2**15, 2**16 - 1, 2**16, 2**16 + 1, 2**17 - 1, 2**17, 2**17 + 1]


def _named(case: RejectionCase, ids: Sequence[int]) -> tuple[SpecDecodeBatch, list[list[int]]]:
    """Two drafts per request, every token of which is an edge: what must be emitted is known by name."""
    batch = case.batch()
    logits, drafts, bonus, expected = torch.full_like(batch.target_logits, -torch.inf), [], [], []
    for request in range(batch.batch_size):
        accepted, other, possible = (ids[(request + case.seed + step) % len(ids)] for step in (0, 3, 7))
        logits[2 * request, accepted] = logits[2 * request + 1, possible] = 0
        is_whole = request % 2 == 1
        drafts += [accepted, possible if is_whole else other]
        bonus.append([other])
        expected.append([accepted, possible, other] if is_whole else [accepted, possible])
    tokens = torch.tensor(drafts, dtype=torch.int32)
    draft_probs = None
    if batch.draft_probs is not None:
        draft_probs = torch.nn.functional.one_hot(tokens.long(), batch.vocab_size).float()
    bonus_ids = torch.tensor(bonus, dtype=torch.int32)
    named = batch.replace(
        target_logits=logits, draft_token_ids=tokens, draft_probs=draft_probs, bonus_token_ids=bonus_ids
    )
    return named, expected


_TWO_DRAFTS = (DraftRecipe("flat", "elsewhere", "first"),) * 2


def _large(can: Capabilities) -> Cases:
    requests = tuple(RequestRecipe(_TWO_DRAFTS, Capability.GREEDY in can and i % 3 == 2) for i in range(10))
    return batch_of(can, (151936, 262144), st.just(requests))


@check("REJ645", _large, needs=_LARGE, weight=0.04)
def ids_at_the_edges_of_15_16_and_17_bits_are_accepted_recovered_and_appended(
    sampler: RejectionSampler, case: RejectionCase
) -> None:
    """Ids at 2**15, 2**16, 2**17 and beside them are accepted, recovered and appended like any other.

    Suspect ids that pass through 16 bits, or through a half-precision number, which holds few integers exactly.
    """
    named, expected = _named(case, [*_EDGES, case.vocab_size - 1])
    batch = named.to(sampler.device)
    for answer, tokens in zip(answers(batch, emit(sampler, batch, case.noise(sampler.device))), expected, strict=True):
        if answer.tokens != tokens and not is_left_to(sampler, answer.tokens, answer.drafts):
            broken(f"{answer}, but only {tokens} is possible")


# -- ties -------------------------------------------------------------------------------------------------------------

_TILES = (128, 256, 512, 1000, 1024, 2048, 4096, 8192)


def _tied_ids(vocab_size: int, seed: int) -> list[tuple[int, int]]:
    """For each size of tile two pairs: neighbours in two tiles, and one whose higher id has the lower lane."""
    rng, pairs = bulk_rng("tied tiles", seed), []
    for size in (size for size in _TILES if 2 * size < vocab_size):
        last = vocab_size // size  # tiles that are full
        tile, other = sorted(rng.choice(last, 2, replace=False).tolist())
        lane = int(rng.integers(1, size))
        pairs += [(size * other - 1, size * other), (size * tile + lane, size * other + int(rng.integers(lane)))]
    return pairs


def _tied(can: Capabilities) -> Cases:
    requests: tuple[RequestRecipe, ...] = (RequestRecipe(_TWO_DRAFTS[:1]),)
    return batch_of(can, (16411, 20011) if can.slow else (16411, 20011, 151936), st.just(requests))


@check(
    "REJ646",
    _tied,
    needs=(*_EXPLICIT, *_LARGE, Capability.REFERENCE_RACE, Capability.REFERENCE_ROUNDING, Capability.LOWEST_ID_TIES),
    weight=0.04,
)
def ties_across_tiles_of_every_size_go_to_the_lowest_id(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Two tied ids in two tiles of 128, 256, 512, 1000, ..., 8192 entries: the lower one wins, greedy or in a race.

    Also where the higher id has the lower lane of its tile: a reduction by lanes, and across tiles afterwards, takes
    the first lane instead of the first id.
    """
    pairs = _tied_ids(case.vocab_size, case.seed)
    greedy = [Capability.GREEDY in sampler.capabilities and (i // 2 + case.seed) % 2 == 0 for i in range(len(pairs))]
    requests = tuple(dataclasses.replace(case.requests[0], greedy=is_greedy) for is_greedy in greedy)
    case = case.replace(requests=requests)
    batch = case.batch(sampler.device)
    exponentials = torch.ones(batch.batch_size, batch.vocab_size, device=batch.device)
    for row, (ids, is_greedy) in enumerate(zip(pairs, greedy, strict=True)):
        (batch.target_logits if is_greedy else exponentials)[row, list(ids)] = 1.0 if is_greedy else 0.125
    uniforms = torch.full((batch.num_tokens,), 1 - 2.0**-53, dtype=torch.float64, device=batch.device)
    seen = emit(sampler, batch, ExplicitNoise(uniforms, exponentials)).tokens[:, 0].tolist()
    for ids, is_greedy, token in zip(pairs, greedy, seen, strict=True):
        if token != min(ids):
            broken(f"ids {ids} tie in a {'greedy' if is_greedy else 'random'} request, but {token} is emitted")
