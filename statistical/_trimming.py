"""Adaptive verification: a sampler drops drafts before the target model sees them. Whatever it drops, text must not
change.

That holds if a draft is kept or dropped before its token counts: by the tokens before it, and by distributions up to
its own. Where the drawn token has a say, directly or through rows that were computed from it, what is kept is no sample
of the drafter's distribution any more, and a verifier that trusts that distribution emits wrong text.

Each request's drafts come from a sharp or a flat distribution, and which of the two is next depends on the token before
(`_NEXT_IS_SHARP`), as in a draft model. Two things are judged, each exact for every right rule:

    kept drafts       the probability integral transform under their rows is uniform; dropped ones get a fresh number
    completed text    what is emitted, filled up with draws from the target, follows the target two by two

Requests share a batch, and may compete for a budget: a draft that is admitted before its token is known stays a draw
from its row, whoever lost against it.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fairdraw._core.array_types import PerRequest
from fairdraw._core.checks import Stage
from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import Capability, ProposedDrafts, SpecDecodeBatch
from fairdraw.contracts._rejection import emit, num_kept
from fairdraw.statistical._count_tables import Counts, Table, count_codes, digit_label, joint_codes
from fairdraw.statistical._distribution_check import DistributionCheck
from fairdraw.statistical._noise import noise_for, noise_kind
from fairdraw.statistical._pit import Order, pit_of_rows
from fairdraw.statistical._token_draws import draw_one
from fairdraw.statistical._workloads import SamplingPlan, Setting, Workload

TARGET = np.array([0.05, 0.1, 0.2, 0.1, 0.15, 0.25, 0.1, 0.05])
ROWS = np.array([[0.1, 0.15, 0.15, 0.1, 0.1, 0.15, 0.15, 0.1], [0.02, 0.02, 0.08, 0.08, 0.02, 0.7, 0.06, 0.02]])
"""By kind of token: a flat row and a sharp one. Ids are kinds moved around by request and place."""

_NEXT_IS_SHARP = np.arange(TARGET.size) < TARGET.size // 2
"""By kind of the token before."""

NUM_DRAFTS = 4
_PARTS = 8
_TEMPERATURES = np.array([1.0, 0.7, 1.6], dtype=np.float32)
_MOST_REQUESTS, _MOST_REQUESTS_CUDA = 512, 16384


@dataclass(frozen=True, eq=False)
class _Drafts:
    """What is proposed to a set of requests; tokens by kind."""

    rolls: NDArray[np.int64]  # [batch_size, NUM_DRAFTS + 1] int64
    kinds: NDArray[np.int64]  # [batch_size, NUM_DRAFTS] int64
    probs: NDArray[np.float64]  # [batch_size, NUM_DRAFTS, vocab_size] float64, by kind


def _propose(batch_size: int, rng: np.random.Generator) -> _Drafts:
    is_sharp, kinds, probs = rng.random(batch_size) < 0.5, [], []
    for _ in range(NUM_DRAFTS):
        probs.append(ROWS[is_sharp.astype(int)])
        drawn, u = np.empty(batch_size, dtype=np.int64), rng.random(batch_size)
        for sharp, row in enumerate(ROWS):
            own = is_sharp == bool(sharp)
            drawn[own] = draw_one(row, u[own])
        kinds.append(drawn)
        is_sharp = _NEXT_IS_SHARP[drawn]
    rolls = rng.integers(TARGET.size, size=(batch_size, NUM_DRAFTS + 1))
    return _Drafts(rolls, np.stack(kinds, axis=1), np.stack(probs, axis=1))


def _by_id(
    probs: NDArray[np.float64],  # [..., vocab_size] float64, by kind
    rolls: NDArray[np.int64],  # [...] int64
) -> NDArray[np.float64]:  # [..., vocab_size] float64
    return np.take_along_axis(probs, (np.arange(TARGET.size) - rolls[..., None]) % TARGET.size, axis=-1)


def _proposed(drafts: _Drafts, device: str) -> ProposedDrafts:
    batch_size = len(drafts.kinds)
    ids = (drafts.kinds + drafts.rolls[:, :-1]) % TARGET.size
    arrays = {
        "draft_token_ids": ids.ravel().astype(np.int32),
        "draft_probs": _by_id(drafts.probs, drafts.rolls[:, :-1]).reshape(-1, TARGET.size).astype(np.float32),
        "temperature": np.resize(_TEMPERATURES, batch_size),
    }
    tensors: dict[str, Any] = {name: torch.from_numpy(one).to(device) for name, one in arrays.items()}
    return ProposedDrafts(num_draft_tokens=[NUM_DRAFTS] * batch_size, **tensors)


def _batch(proposed: ProposedDrafts, drafts: _Drafts, kept: PerRequest, rng: np.random.Generator) -> SpecDecodeBatch:
    """The drafts that are kept, and a bonus token of the place behind them."""
    is_kept = torch.from_numpy(np.arange(NUM_DRAFTS) < kept[:, None]).reshape(-1).to(proposed.device)
    logits = np.log(_by_id(np.broadcast_to(TARGET, drafts.probs.shape), drafts.rolls[:, :-1])).astype(np.float32)
    last = np.take_along_axis(drafts.rolls, kept[:, None], axis=1)
    bonus = (draw_one(TARGET, rng.random(len(kept)))[:, None] + last) % TARGET.size
    return SpecDecodeBatch(
        draft_token_ids=proposed.draft_token_ids[is_kept],
        num_draft_tokens=kept.tolist(),
        cu_num_draft_tokens=torch.from_numpy(kept.cumsum().astype(np.int32)).to(proposed.device),
        max_spec_len=NUM_DRAFTS,
        draft_probs=proposed.draft_probs[is_kept],
        target_logits=torch.from_numpy(logits.reshape(-1, TARGET.size)).to(proposed.device)[is_kept],
        bonus_token_ids=torch.from_numpy(bonus.astype(np.int32)).to(proposed.device),
        temperature=proposed.temperature,
    )


def _count(batch_size: int, device: str, sampler: Any, seed: int) -> Counts:  # Any: a sampler that trims
    """The tables of one set of requests."""
    rng = np.random.default_rng(derive_seed("trimming", seed))
    drafts = _propose(batch_size, rng)
    proposed = _proposed(drafts, device)
    kept = num_kept(sampler, proposed)
    batch = _batch(proposed, drafts, kept, rng)
    noise = noise_for(noise_kind(sampler), batch, derive_seed("verified", seed))
    tokens = emit(sampler, batch, noise).tokens.astype(np.int64)
    kinds = np.where(tokens >= 0, (tokens - drafts.rolls) % TARGET.size, -1)
    return {**_kept_counts(drafts, kept, rng), _TEXT: _text_counts(kinds, kept, rng)}


def _kept_counts(drafts: _Drafts, kept: NDArray[np.int64], rng: np.random.Generator) -> Counts:
    """By kind a rule shows that follows from what a token brings about, by id one about the token itself."""
    rolls = drafts.rolls[:, :-1]
    by_id = _by_id(drafts.probs, rolls), (drafts.kinds + rolls) % TARGET.size
    found = {}
    for order, (probs, tokens) in {"kind": (drafts.probs, drafts.kinds), "id": by_id}.items():
        for place in range(NUM_DRAFTS):
            moved = pit_of_rows(probs[:, place], tokens[:, place], rng.random(len(kept)), Order.ID)
            numbers = np.where(place < kept, moved, rng.random(len(kept)))
            found[_kept_table(place, order)] = count_codes((numbers * _PARTS).astype(np.int64), _PARTS)
    return found


def _text_counts(
    kinds: NDArray[np.int64],  # [batch_size, NUM_DRAFTS + 1] int64
    kept: NDArray[np.int64],  # [batch_size] int64
    rng: np.random.Generator,
) -> NDArray[np.int64]:  # [num_cells + 1] int64
    """Two pairs of tokens per request; a row without a token, or with too many, is outside every cell."""
    drawn = draw_one(TARGET, rng.random(kinds.shape)).astype(np.int64)
    length = (kinds >= 0).sum(axis=1)
    text = np.where(np.arange(kinds.shape[1]) < length[:, None], kinds, drawn)
    text[(length == 0) | (length > kept + 1)] = -1
    return count_codes(joint_codes(text[:, :4:2].ravel(), text[:, 1:4:2].ravel(), sizes=(TARGET.size,) * 2), 64)


_TEXT = "T2 text, two by two"


def _kept_table(place: int, order: str) -> str:
    return f"T1 kept draft at position {place}, by {order}"


def _tables(num_requests: int) -> dict[str, Table]:
    def label(cell: int) -> str:
        return f"draft in mass {cell / _PARTS:.3g} to {(cell + 1) / _PARTS:.3g} of its row"

    kept = Table(np.full(_PARTS, 1 / _PARTS), label=label, num_draws=num_requests)
    words = digit_label((TARGET.size,) * 2, ("token of kind", "then of kind"))
    text = Table(np.outer(TARGET, TARGET).ravel(), label=words, num_draws=2 * num_requests)
    names = (_kept_table(place, order) for order in ("kind", "id") for place in range(NUM_DRAFTS))
    return dict.fromkeys(names, kept) | {_TEXT: text}


@Workload.of("trimmed drafts", "trimmed drafts", 0.4, 0.3)
def trimmed_drafts(setting: Setting) -> SamplingPlan:
    """Sets of requests whose drafts are trimmed, then verified; a draw is a request."""
    most = _MOST_REQUESTS_CUDA if setting.device.startswith("cuda") else _MOST_REQUESTS
    batch_size = min(most, max(2, setting.num_draws // 32))

    tables, count = (lambda num_sets: _tables(num_sets * batch_size)), partial(_count, batch_size, setting.device)
    return SamplingPlan.of_calls(setting.num_draws, batch_size, tables, count, word="set")


_NEEDS = (Capability.TRIM, Capability.RAGGED, Capability.DENSE_DRAFTS)


@DistributionCheck.of("DIST821", trimmed_drafts, _NEEDS, contract="rejection", stage=Stage.PROPOSAL)
def trimmed_drafts_leave_the_distribution_of_the_text_as_it_is() -> tuple[str, ...]:
    """Drafts that are kept follow the drafter's distribution, and the text that is emitted follows the target.

    The rule that decides how many drafts are verified looks at a token that it decides about: its probability,
    its rank, or a row that was computed from it. Drafts that are kept are then more often the drafter's
    favourites than the verifier assumes. Score distributions, not the tokens drawn from them, and stop at the
    first draft that is dropped.
    """
    return ("T1", "T2")


TRIM_CHECKS = (trimmed_drafts_leave_the_distribution_of_the_text_as_it_is,)
"""They are skipped for a sampler without the method `trim`."""
