"""Which capabilities a failing case uses: read from the case, so that advice names what the example really has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairdraw.protocols import Capability, capability_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

_FEW_DRAFTS = 8
"""Samplers without `long-drafts` are given no more drafts per request."""
_SMALL_VOCAB = 1025
"""Samplers without `large-vocab` are given no larger vocabulary."""

_ABOUT_ANSWERS = frozenset(
    {
        Capability.REFERENCE_RACE,
        Capability.TOKEN_VERIFICATION,
        Capability.UPSTREAM_STREAM,
        Capability.COUNTER_NOISE,
        Capability.COPY_FREE,
        Capability.INTACT_LOGITS,
        Capability.NEW_TOKENS_ONLY,
    }
)
"""What a sampler answers, not what it is given: no exception comes of it."""


def asked_for(case: Any, needs: Sequence[Capability]) -> tuple[Capability, ...]:  # Any: a case of any contract, or none
    """What an exception on `case` may be about, in the order of `Capability`: the rarer a thing, the likelier.

    What the example holds and a correct sampler may well not take (NaN, half precision, ragged drafts ...); if there is
    nothing of the kind, what the check needs. A case that is drawn without the capability in any case is no reason.

    Args:
        needs: Of the check that failed.
    """
    found = set(_of_batches(case)) if hasattr(case, "batch") or hasattr(case, "played") else set()
    chosen = found or set(needs) - _ABOUT_ANSWERS
    return tuple(capability for capability in Capability if capability in chosen)


def _of_batches(case: Any) -> Iterator[Capability]:  # Any: a case that builds batches
    played = list(case.played())[-1:] if hasattr(case, "played") else []
    if any(getattr(call.noise, "request_seeds", None) for call in played):
        yield Capability.REQUEST_SEEDS
    if not getattr(case, "explicit", True) and any(request.request_seed for request in case.requests):
        yield Capability.REQUEST_SEEDS
    if hasattr(case, "batches"):
        for batch in case.batches():
            yield from _of_layout(batch.logits)
            yield from _of_live_requests(batch.requests)
        return
    batch = played[0].batch if played else case.batch()
    has_drafts = hasattr(batch, "target_logits")
    logits = batch.target_logits if has_drafts else batch.logits
    yield from _of_layout(logits)
    yield from _of_numbers(logits)
    if hasattr(batch, "num_logprobs"):
        yield from _of_logprobs(batch)
        return
    if hasattr(batch, "params"):
        yield from (capability_of(name) for params in batch.params for name in params.enabled)
        return
    if bool((batch.temperature == 0).any()):
        yield Capability.GREEDY
    yield from _of_drafts(batch) if has_drafts else _of_filters(batch)


def _of_layout(logits: Tensor) -> Iterator[Capability]:  # [num_rows, vocab_size] float32 | bfloat16 | float16
    if logits.element_size() < 4:  # bytes of a float32
        yield Capability.HALF_LOGITS
    if not logits.is_contiguous():
        yield Capability.STRIDED_INPUTS


def _of_numbers(logits: Tensor) -> Iterator[Capability]:  # [num_rows, vocab_size] float32 | bfloat16 | float16
    if bool(logits.isnan().any()):
        yield Capability.NAN_LOGITS
    if bool((logits == -float("inf")).all(dim=-1).any()):
        yield Capability.EMPTY_ROWS
    if logits.shape[-1] > _SMALL_VOCAB:
        yield Capability.LARGE_VOCAB


def _of_filters(batch: Any) -> Iterator[Capability]:  # Any: a SamplingBatch
    for name in ("top_k", "top_p", "min_p"):
        if getattr(batch, name) is not None:
            yield Capability(name.replace("_", "-"))


def _of_logprobs(batch: Any) -> Iterator[Capability]:  # Any: a LogprobsBatch
    if batch.most_logprobs > 0:
        yield Capability.TOP_LOGPROBS
    if batch.wants_logits:
        yield Capability.LOGIT_SCORES
    if not len(batch.token_ids):
        yield Capability.NO_ROWS
    if len(set(batch.num_rows)) > 1:
        yield Capability.RAGGED


def _of_drafts(batch: Any) -> Iterator[Capability]:  # Any: a SpecDecodeBatch
    if bool((batch.draft_token_ids < 0).any()):
        yield Capability.PLACEHOLDER_DRAFTS
    if len(set(batch.num_draft_tokens)) > 1:
        yield Capability.RAGGED
    if batch.max_spec_len > _FEW_DRAFTS:
        yield Capability.LONG_DRAFTS
    if batch.synthetic_rates is not None:
        yield Capability.SYNTHETIC_RATES


def _of_live_requests(requests: Any) -> Iterator[Capability]:  # Any: the LogitsRequests of a batch
    if any(-1 in request.draft_token_ids for request in requests):
        yield Capability.PLACEHOLDER_DRAFTS
    own = [request for request in requests if request.params.custom]
    if own:
        yield Capability.CUSTOM_PROCESSORS
    bent = [*own, *(r for r in requests if r.params.logit_bias or r.params.min_p)]
    if any(request.draft_token_ids for request in bent):
        yield Capability.DRAFT_PROCESSORS
