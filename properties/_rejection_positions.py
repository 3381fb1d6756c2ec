"""659: a request's positions, step after step, of a pair of drafter and verifier."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from fairdraw._core.noise import seeded
from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import PLACEHOLDER_TOKEN_ID, Capability, DraftStep, SeededNoise
from fairdraw.contracts._rejection import emit_next, propose_next
from fairdraw.properties._rejection_asserts import broken, check
from fairdraw.properties._rejection_cases import identical_requests

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairdraw.contracts import DraftingSampler, SpecDecodeBatch
    from fairdraw.strategies import RejectionCase


_EQUAL = 16

_POSITIONS = (0, 1, 2, 3, *(1 << bit for bit in range(2, 31)))
"""Steps of a request, counted from its first: neighbours, and those that differ in one bit."""
_SLOW_POSITIONS = (0, 1, 2, 16, 256, 1 << 16, 1 << 24)


@check(
    "REJ659",
    lambda can: identical_requests(can, vocab_size=32, num_drafts=1),
    needs=(Capability.SEEDED_NOISE, Capability.REQUEST_SEEDS, Capability.DRAFTER),
    weight=0.12,
)
def every_position_of_a_request_draws_new_noise(sampler: DraftingSampler, case: RejectionCase) -> None:
    """16 requests with neighbouring seeds draft and verify at a position, at the next ones, and far ones: other tokens,
    and the first of them alone does the same.

    All steps share one noise, as in an engine's loop: generators go on, and counters take the positions.
    False failures: below 1e-16, at some 500 pairs of positions, with 16 tokens of probability 1/16 at most. Suspect a
    key without the position, or with some bits of it, as in a ring of thousands; and keys from `seed + position`, which
    give a request what its neighbour says a step later. Of drafts, suspect also a drafter that draws nothing, and
    reports a distribution all the same; alone, another path for a batch of one.
    """
    first = derive_seed("position", case.seed) % 2**16
    offsets = _SLOW_POSITIONS if sampler.capabilities.slow else _POSITIONS
    together: list[_Step] = []
    alone: list[_Step] = []
    for size, steps in ((_EQUAL, together), (1, alone)):
        batch = case.batch(sampler.device).select([0] * size)
        noise = SeededNoise(derive_seed("call", case.seed), {i: case.seed % 2**31 + i for i in range(size)})
        with seeded(noise, batch.device):
            steps += [_at_position(sampler, batch, noise, first + offset, min(offset, 3)) for offset in offsets]
    names = ("drafts", "recovered tokens", "bonus tokens")
    for what, tokens, own in zip(names, zip(*together, strict=True), zip(*alone, strict=True), strict=True):
        _are_new(what, offsets, tokens)
        for offset, one, other in zip(offsets, tokens, own, strict=True):
            if one is not None and other is not None and one[0] != other[0]:
                broken(f"{what} of the first of {_EQUAL} requests, {offset} positions on, are others if it is alone")


Tokens = NDArray[np.int64]
"""One per request, `[batch_size] int64`."""

_Step = tuple[Tokens | None, Tokens, Tokens | None]


def _at_position(
    sampler: DraftingSampler, batch: SpecDecodeBatch, noise: SeededNoise, position: int, place: int
) -> _Step:
    """From flat rows: what is drafted there, if the drafter says that it drew from such; what is emitted first there;
    and what is emitted behind a draft that is certain, if all are accepted and it is not the token that was given."""
    size = batch.batch_size
    flat = torch.zeros((size, batch.vocab_size), device=batch.device)
    positions = torch.full((size,), position, dtype=torch.int64, device=batch.device)
    step = DraftStep(flat, positions, torch.ones(size, device=batch.device), place, origin=f"<position {position}>")
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
