"""What an exception may be about: capabilities that the failing case uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fairdraw._core import looks
from fairdraw._core.capabilities import Capability
from fairdraw._core.contracts import CONTRACTS, Contract

_OF_WORDS = {
    **dict.fromkeys(looks.HALVES, Capability.HALF_LOGITS),
    looks.STRIDED: Capability.STRIDED_INPUTS,
    looks.REQUEST_SEED: Capability.REQUEST_SEEDS,
    looks.GREEDY: Capability.GREEDY,
    looks.UNEQUAL: Capability.RAGGED,
    looks.PLACEHOLDER: Capability.PLACEHOLDER_DRAFTS,
    looks.RATES: Capability.SYNTHETIC_RATES,
}
_FEW_DRAFTS, _SMALL_VOCAB = 8, 1025
"""Samplers without `long-drafts` are given no more drafts per request, those without `large-vocab` no more tokens."""

_WORDS = "reference-race token-verification upstream-stream counter-noise copy-free intact-logits new-tokens-only"
_ABOUT_ANSWERS = frozenset(map(Capability, _WORDS.split()))
"""What a sampler answers, not what it is given: no exception comes of it."""


def asked_for(case: Any, needs: Sequence[Capability], contract: str) -> tuple[Capability, ...]:  # Any: or none
    """Return what an exception on `case` may be about, in the order of `Capability`: the rarer, the likelier.

    What the example holds and a correct sampler may well not take (NaN, half precision, ragged drafts ...); if there is
    nothing of the kind, what the check needs. A case that is drawn without the capability in any case is no reason.

    Args:
        needs: Of the check that failed.
    """
    found: set[Capability] = set()
    if hasattr(case, "batches"):
        found.update(one for batch in case.batches() for one in _of_live_batch(batch, CONTRACTS[contract]))
    elif hasattr(case, "played") or hasattr(case, "batch"):
        call = list(case.played())[-1] if hasattr(case, "played") else None
        batch = call.batch if call else case.batch()
        noise = getattr(call, "noise", None) if call else getattr(case, "noise", lambda: None)()
        found.update(_of_batch(batch, noise, CONTRACTS[contract]))
    chosen = found or set(needs) - _ABOUT_ANSWERS
    return tuple(capability for capability in Capability if capability in chosen)


def _of_batch(batch: Any, noise: Any, contract: Contract) -> Iterator[Capability]:  # Any: of the contract
    logits = looks.logits_of(batch)
    yield from _of_words(looks.look(contract.features, (batch, noise)))
    yield from contract.uses(batch)
    numbers = {
        Capability.NAN_LOGITS: logits.isnan().any(),
        Capability.EMPTY_ROWS: (logits == -float("inf")).all(dim=-1).any(),
        Capability.LARGE_VOCAB: batch.vocab_size > _SMALL_VOCAB,
        Capability.LONG_DRAFTS: getattr(batch, "max_spec_len", 0) > _FEW_DRAFTS,
    }
    yield from (capability for capability, is_so in numbers.items() if is_so)


def _of_words(found: looks.Look) -> Iterator[Capability]:
    return (_OF_WORDS[one[1]] for one in found.counts if isinstance(one, tuple) and one[1] in _OF_WORDS)


def _of_live_batch(batch: Any, contract: Contract) -> Iterator[Capability]:  # Any: with `logits`
    found = looks.Look(1)
    looks.add_layout(found, batch.logits, 1)
    yield from _of_words(found)
    yield from contract.uses(batch)
