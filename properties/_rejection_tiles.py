"""647: vocabularies that are a number of tiles and a small rest, for tiles of every size that a kernel may have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from hypothesis import strategies as st

from fairdraw.contracts import Capability, ExplicitNoise, SeededNoise, SpecDecodeBatch
from fairdraw.contracts._rejection import emit
from fairdraw.properties._rejection_asserts import answers, broken, check, is_left_to
from fairdraw.properties._rejection_cases import batch_of
from fairdraw.strategies import DraftRecipe, RejectionCase, RequestRecipe
from fairdraw.strategies._sizes import TILES, ids_around_tiles, tiled_vocab_sizes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairdraw.contracts import Capabilities, Noise, RejectionSampler
    from fairdraw.properties._rejection_cases import Cases
    from fairdraw.strategies.sampling import SamplingCase

_SLOW_TILES = 6
_SLOW_ROWS = 8

WON, ONLY, GREEDY, DRAFTED = "won by its noise", "the only possible", "the largest logit", "drafted and accepted"
LEFT = "the only one that a rejected draft leaves"
"""The target may be another token as well. A sampler that loses the id has no residual, and draws that one."""

Rows = list[tuple[str, int]]
"""In which way a request comes to its id, and the id."""


def _ways(can: Capabilities) -> list[str]:
    """Those in which the sampler's declaration says which token is emitted."""
    has_race = Capability.EXPLICIT_NOISE in can and Capability.REFERENCE_RACE in can
    left = [LEFT] * (Capability.DENSE_DRAFTS in can and Capability.TOKEN_VERIFICATION in can)
    return [*[WON] * has_race, ONLY, *[GREEDY] * (Capability.GREEDY in can), DRAFTED, *left]


def tiles_and_rows(
    can: Capabilities, case: RejectionCase | SamplingCase, ways: list[str]
) -> Iterator[tuple[int, int, Rows]]:
    """Tiles, vocabularies, and every id in every way, and one alone, as a batch of one may take another path.

    A slow sampler is given one id in every way, and the others in one.
    """
    for tile, vocab_size in tiled_vocab_sizes(case.seed, case.vocab_size, _SLOW_TILES if can.slow else len(TILES)):
        ids = ids_around_tiles(tile, vocab_size)
        rows = [(way, token) for way in ways for token in ids]
        if can.slow:
            others = [(ways[i % len(ways)], token) for i, token in enumerate(ids[1:])]
            rows = [*((way, ids[0]) for way in ways), *others][:_SLOW_ROWS]
        yield tile, vocab_size, rows
        yield tile, vocab_size, rows[:1]


def _step(rows: Rows, vocab_size: int, dense: bool) -> SpecDecodeBatch:
    """One draft per request; it is the id itself if that is to be accepted."""
    size, ids = len(rows), torch.tensor([token for _, token in rows])
    others = torch.tensor([0.0 if way in (WON, GREEDY) else -torch.inf for way, _ in rows])
    logits = others[:, None].repeat(1, vocab_size)
    logits[torch.arange(size), ids] = torch.tensor([0.0 if way == WON else 1.0 for way, _ in rows])
    is_drafted = torch.tensor([way == DRAFTED for way, _ in rows])
    drafts = torch.where(is_drafted, ids, (ids + vocab_size // 2) % vocab_size)
    draft_probs = torch.nn.functional.one_hot(drafts, vocab_size).float()
    if dense:
        left = torch.tensor([place for place, (way, _) in enumerate(rows) if way == LEFT], dtype=torch.int64)
        others = (ids[left] + vocab_size // 3) % vocab_size
        logits[left, others] = 1.0
        draft_probs[left] /= 2
        draft_probs[left, others] = 0.5
    return SpecDecodeBatch(
        draft_token_ids=drafts.int(),
        num_draft_tokens=[1] * size,
        cu_num_draft_tokens=torch.arange(1, size + 1, dtype=torch.int32),
        max_spec_len=1,
        draft_probs=draft_probs if dense else None,
        target_logits=logits,
        bonus_token_ids=ids.flip(0).int()[:, None],
        temperature=torch.tensor([0.0 if way == GREEDY else 1.0 for way, _ in rows]),
    )


def _noise(case: RejectionCase, rows: Rows, batch: SpecDecodeBatch) -> Noise:
    """Uniforms of 1/2, and exponentials that are 1 except at the id."""
    if not case.explicit:
        return SeededNoise(case.seed)
    exponentials = torch.ones(len(rows), batch.vocab_size, device=batch.device)
    exponentials[range(len(rows)), [token for _, token in rows]] = 2.0**-10
    return ExplicitNoise(torch.full((len(rows),), 0.5, dtype=torch.float64, device=batch.device), exponentials)


def _tiled(can: Capabilities) -> Cases:
    """Of the largest vocabulary that is tried; the others follow from the seed."""
    request = RequestRecipe((DraftRecipe("flat", "elsewhere", "first"),))
    return batch_of(can, (8200,) if Capability.LARGE_VOCAB in can else (1025,), st.just((request,)))


@check("REJ647", _tiled, weight=0.03)
def ids_at_the_edges_of_tiles_of_every_size_can_be_emitted(sampler: RejectionSampler, case: RejectionCase) -> None:
    """In vocabularies of some tiles and a small rest the last ids are accepted, recovered, and greedy like any other.

    They are also recovered where the target has one other token, which the draft distribution has as often.

    Tiles of about fifty sizes from 16 to 8192, two vocabularies each; also the ids around edges of tiles. Suspect the
    mask of the last tile, and a path for full tiles whose remainder is handled elsewhere, or not at all. An interpreted
    sampler is given six tiles.
    """
    can = sampler.capabilities
    for tile, vocab_size, rows in tiles_and_rows(can, case, _ways(can)):
        batch = _step(rows, vocab_size, case.dense).to(sampler.device)
        emission = emit(sampler, batch, _noise(case, rows, batch))
        for answer, (way, token) in zip(answers(batch, emission), rows, strict=True):
            expected = [token, answer.bonus_token_id] if way == DRAFTED else [token]
            if answer.tokens != expected and not is_left_to(sampler, answer.tokens, answer.drafts):
                size = f"{vocab_size}, which is {vocab_size // tile} * {tile} + {vocab_size % tile}"
                broken(f"in a vocabulary of {size}, {answer}, but {token} is {way}")
