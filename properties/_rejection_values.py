"""34x: values at the edge of what is documented, and all pairs of parameters side by side."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import torch

from fairdraw._core.checks import check
from fairdraw._core.harness import emit
from fairdraw._core.seeds import derive_seed
from fairdraw.properties._rejection_asserts import (
    broken,
    emit_case,
    equals_the_oracle,
    equals_the_oracle_on,
    is_improbable,
    same_rows,
    sound,
)
from fairdraw.properties._rejection_cases import identical_requests, lively, ordinary
from fairdraw.properties._rejection_near_ties import close_steps
from fairdraw.properties._seed_families import families_are_apart
from fairdraw.protocols import (
    Capabilities,
    Capability,
    ExplicitNoise,
    RejectionSampler,
    SeededNoise,
    SpecDecodeBatch,
)
from fairdraw.strategies import DTYPES, RejectionCase
from fairdraw.strategies.rows import bulk_rng

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from fairdraw.properties._rejection_cases import Cases

_SEEDED = (Capability.SEEDED_NOISE,)
_EXPLICIT = (Capability.EXPLICIT_NOISE,)
_DENSE = (Capability.DENSE_DRAFTS, Capability.TOKEN_VERIFICATION)
_ANY_NOISE = ((Capability.SEEDED_NOISE, Capability.EXPLICIT_NOISE),)


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


# -- seeds ------------------------------------------------------------------------------------------------------------

_VOCAB_SIZE = 4096


@check("REJ344", lambda can: identical_requests(can, vocab_size=_VOCAB_SIZE, num_drafts=1), needs=_SEEDED, weight=0.02)
def every_bit_of_the_seed_of_a_call_counts(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Calls whose seeds one of the lower 32 bits, a sign, a sum or a shift tells apart draw different numbers.

    Six requests are compared. False failures: below 1e-15. Seeds that pass through 31 bits, or through a float, lose
    some.
    """
    batch = case.batch(sampler.device).select([0] * 6)

    def signatures(seeds: list[int], _: int) -> NDArray[np.int64]:  # [num_seeds, 12] int64
        drawn = [emit(sampler, batch, SeededNoise(seed)).tokens.flatten() for seed in seeds]
        return np.stack(drawn).astype(np.int64)

    families_are_apart(signatures, sampler.capabilities, case.seed, of_calls=True)


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


@check("REJ347", _beside, needs=(*_EXPLICIT, Capability.EMPTY_ROWS), weight=0.1)
def rows_without_any_token_do_not_disturb_other_requests(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Requests whose target rows are all -inf, anywhere in the batch, change no other request.

    Suspect what is computed over several rows; softmax makes NaN of such a row.
    """
    _beside_others(sampler, case, "empty")


# -- small probabilities --------------------------------------------------------------------------------------------

_RANGE, _GROUPS = (1e-30, 1e-2), 7
_FEW_TOKENS, _MORE_TOKENS = 8, 16


def _one_draft(vocab_size: int) -> Callable[[Capabilities], Cases]:
    return lambda can: identical_requests(can, vocab_size=vocab_size, num_drafts=1)


def _given(
    sampler: RejectionSampler,
    case: RejectionCase,
    target: NDArray[np.float64],  # [batch_size, vocab_size] float64
    draft: NDArray[np.float64],  # [batch_size, vocab_size] float64
    token_ids: NDArray[np.int64],  # [batch_size] int64
) -> SpecDecodeBatch:
    """One draft per request, with these distributions."""
    with np.errstate(divide="ignore"):
        logits = np.log(target).astype(np.float32)
    return (
        case.replace(dense=True)
        .batch(sampler.device)
        .select([0] * len(target))
        .replace(
            draft_token_ids=torch.tensor(token_ids, dtype=torch.int32, device=sampler.device),
            target_logits=torch.from_numpy(logits).to(sampler.device),
            draft_probs=torch.from_numpy(draft.astype(np.float32)).to(sampler.device),
        )
    )


def _drawn(sampler: RejectionSampler, case: RejectionCase, batch: SpecDecodeBatch) -> NDArray[np.int32]:
    """Tokens of several calls, [num_calls * batch_size, 2] int32; by explicit noise close decisions are compared."""
    if Capability.EXPLICIT_NOISE in sampler.capabilities:
        rng, size = bulk_rng("small", case.seed), (batch.batch_size, batch.vocab_size)
        exponentials = np.maximum(rng.standard_exponential(size), 1e-30).astype(np.float32)
        uniforms = torch.from_numpy(rng.random(size[0])).to(batch.device)
        noise = ExplicitNoise(uniforms, torch.from_numpy(exponentials).to(batch.device))
        if Capability.REFERENCE_RACE in sampler.capabilities:
            equals_the_oracle_on(sampler, batch, close_steps(batch, noise, case.seed))
        return emit(sampler, batch, noise).tokens
    calls = (SeededNoise(derive_seed("small", case.seed, i)) for i in range(1 if sampler.capabilities.slow else 3))
    return np.concatenate([emit(sampler, batch, noise).tokens for noise in calls])


@check("REJ348", _one_draft(_FEW_TOKENS), needs=_DENSE, needs_one_of=_ANY_NOISE, weight=0.03)
def improbable_drafts_are_accepted_as_often_as_probable_ones(sampler: RejectionSampler, case: RejectionCase) -> None:
    """A draft of probability 0.01 to 1e-30 that is half as probable under the target is accepted half of the time.

    By explicit noise each decision is made at 0.1 % from the ratio; otherwise they are counted. False failures: below
    1e-9. Suspect a probability that is clamped or has a constant added, against a division by 0, or half precision.
    """
    few = 16 if Capability.EXPLICIT_NOISE in sampler.capabilities else 44  # counting takes more than comparing
    count, rng = few if sampler.capabilities.slow else 700, bulk_rng("improbable", case.seed)
    rows, ids = np.arange(count), rng.integers(_FEW_TOKENS, size=count)
    probs = np.exp(rng.uniform(np.log(_RANGE[0]), np.log(_RANGE[1]), size=count))

    def row(mine: NDArray[np.float64], others: Iterable[int]) -> NDArray[np.float64]:
        found = np.tile(np.array([*others], np.float64), (count, 1))
        found[rows, ids] = 0
        found *= ((1 - mine) / found.sum(axis=1))[:, None]
        found[rows, ids] = mine
        return found

    ranks = range(1, _FEW_TOKENS + 1)  # in reverse order for the drafter: a rejection leaves much to recover
    tokens = _drawn(sampler, case, _given(sampler, case, row(probs / 2, ranks), row(probs, reversed(ranks)), ids))
    accepted, calls = (tokens[:, 1] >= 0).reshape(-1, count), len(tokens) // count
    for most in np.geomspace(*_RANGE, _GROUPS + 1)[1:]:
        mine = probs < most
        seen, draws = int(accepted[:, mine].sum()), calls * int(mine.sum())
        if draws and is_improbable(seen, draws, 0.5):
            broken(f"of drafts of probability below {most:.0e}, twice the target's, {seen} of {draws} were accepted")
