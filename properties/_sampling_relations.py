"""Greedy requests, and two runs that must agree though neither is known to be right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from fairdraw._core.sampling_harness import sample_tokens
from fairdraw._core.seeds import derive_seed
from fairdraw.properties._sampling_asserts import (
    EXPLICIT,
    POSITIVE,
    RACE,
    aimed_at,
    broken,
    call,
    check,
    covered_rows,
    ordinary,
    requests_of,
    same_tokens,
    slack_of,
    varied,
)
from fairdraw.protocols import Capability, SeededNoise, TokenSampler
from fairdraw.strategies.sampling import sampling_cases

if TYPE_CHECKING:
    from fairdraw._oracles.sampling import Request
    from fairdraw.protocols import Capabilities
    from fairdraw.strategies.sampling import SamplingCase

_GREEDY = (Capability.GREEDY,)
_FILTERS = {"top_k": Capability.TOP_K, "top_p": Capability.TOP_P, "min_p": Capability.MIN_P}


def _preferred(can: Capabilities) -> bool | None:
    """Explicit noise where it is taken: it can be aimed."""
    return True if Capability.EXPLICIT_NOISE in can else None


@check("SAM121", lambda can: ordinary(can, min_vocab_size=2), needs=_GREEDY)
def greedy_requests_take_the_largest_logit(sampler: TokenSampler, case: SamplingCase) -> None:
    """A request of temperature 0 gets the token with the largest logit, the lowest id on ties.

    Ties are common in half precision. A tie that the tile size decides makes two devices disagree.
    """
    batch, _, seen = call(sampler, case)
    for row, request in enumerate(requests_of(batch)):
        best = int(np.argmax(request.logits))
        if request.is_greedy and not _may_be_argmax(sampler, request, int(seen.tokens[row]), best):
            broken(f"greedy request {row} got token {seen.tokens[row]} instead of {best}")


def _may_be_argmax(sampler: TokenSampler, request: Request, token: int, best: int) -> bool:
    """It is the argmax, or tied with it and the sampler leaves ties open."""
    is_tied = 0 <= token < request.logits.size and request.logits[token] == request.logits[best]
    return token == best or bool(is_tied and Capability.LOWEST_ID_TIES not in sampler.capabilities)


@check("SAM122", lambda can: ordinary(can, explicit=_preferred(can), greedy=True), needs=_GREEDY)
def greedy_requests_ignore_the_noise(sampler: TokenSampler, case: SamplingCase) -> None:
    """With noise aimed at its least probable token, or another seed, a greedy request still gets the largest logit.

    Greedy decoding divides by a temperature that is nearly 0 in some engines, and then draws.
    """
    batch, _, expected = call(sampler, case)
    worst = [int(np.argmin(request.logits)) for request in requests_of(batch)]
    other = aimed_at(batch, worst) if case.explicit else SeededNoise(derive_seed("other noise", case.seed))
    seen = sample_tokens(sampler, batch, other)
    same_tokens(expected.tokens, seen.tokens, "with other noise")


@check("SAM123", lambda can: ordinary(can, greedy=True, logits=("flat", "tied", "twins", "normal")), needs=_GREEDY)
def greedy_requests_ignore_the_filters(sampler: TokenSampler, case: SamplingCase) -> None:
    """A greedy request gets the same token with and without top-k, top-p and min-p.

    Among equal logits a filter may keep others than the lowest id; an argmax behind the filters then answers another.
    """
    batch, noise, seen = call(sampler, case)
    bare = batch.replace(top_k=None, top_p=None, min_p=None)
    rows = covered_rows(sampler, bare, noise)
    same_tokens(sample_tokens(sampler, bare, noise).tokens, seen.tokens, "with filters on a greedy request", rows)


@check(
    "SAM124",
    lambda can: ordinary(can, greedy=False, logits=("normal", "zipf", "peaked", "half"), filters=("top_p", "min_p")),
    needs=(Capability.TOP_K,),
)
def top_k_of_one_is_greedy(sampler: TokenSampler, case: SamplingCase) -> None:
    """A random request with `top_k` of 1 gets its most probable token, if only one is.

    An index that is off by one keeps two, or reads the smallest as the largest.
    """
    batch = case.batch(sampler.device)
    ones = torch.ones(batch.batch_size, dtype=torch.int32, device=batch.device)
    seen = sample_tokens(sampler, batch.replace(top_k=ones), case.noise(sampler.device))
    for row, request in enumerate(requests_of(batch)):
        scaled = request.logits / request.temperature
        if int((scaled >= scaled.max() - slack_of(sampler, request)).sum()) == 1 and seen.tokens[row] != int(
            np.argmax(scaled)
        ):
            broken(f"request {row} with top_k=1 got token {seen.tokens[row]} instead of {int(np.argmax(scaled))}")


@check(
    "SAM125",
    lambda can: ordinary(can, greedy=False, logits=("peaked", "one-hot"), temperatures=(0.01, 0.001, 2e-5, 1.0001e-5)),
)
def temperatures_near_zero_tend_to_greedy(sampler: TokenSampler, case: SamplingCase) -> None:
    """At temperatures of 0.01 and less a peak of the logits is drawn, whatever the noise.

    The peak stands some 8 above the rest, so another token has probability below e**-100. An overflow in
    `logits / temperature`, or a temperature that is clamped from below, shows here.
    """
    batch, _, seen = call(sampler, case)
    answers = [seen.tokens]
    if sampler.capabilities.why_unsupported(RACE) is None:
        runners_up = [int(np.argsort(request.logits)[-2:][0]) for request in requests_of(batch)]
        answers.append(sample_tokens(sampler, batch, aimed_at(batch, runners_up)).tokens)
    for row, request in enumerate(requests_of(batch)):
        ranked = np.sort(request.logits)[::-1]
        # The race has noise of its own: 1e-30 to 1e30, e**-138 in the ratio of two scores.
        is_clear = ranked.size < 2 or (ranked[0] - ranked[1]) / request.temperature > 200
        for tokens in answers:
            if is_clear and tokens[row] != int(np.argmax(request.logits)):
                broken(f"request {row} at temperature {request.temperature:g} got token {tokens[row]}")


@check(
    "SAM126",
    lambda can: ordinary(can, explicit=True, filters=(), logits=POSITIVE, temperatures=(2.0, 0.5, 4.0, 0.125)),
    needs=RACE,
)
def the_temperature_divides_the_logits(sampler: TokenSampler, case: SamplingCase) -> None:
    """Sampling at temperature 2, 1/2, 4 or 1/8 equals sampling logits divided before, which is exact in any float.

    Suspect a temperature that is multiplied, applied twice, applied after the filters, or taken from another request.
    """
    batch, noise, seen = call(sampler, case)
    scale = torch.where(batch.is_greedy, 1.0, batch.temperature)
    logits = (batch.logits.double() / scale.double()[:, None]).to(batch.logits.dtype)
    ones = torch.where(batch.is_greedy, 0.0, torch.ones_like(batch.temperature))
    divided = batch.replace(logits=logits, temperature=ones)
    other, rows = sample_tokens(sampler, divided, noise), covered_rows(sampler, batch, noise)
    same_tokens(other.tokens, seen.tokens, "against logits that were divided before", rows)


@check("SAM127", lambda can: ordinary(can, greedy=True, filters=(), min_vocab_size=2, logits=("flat",)), needs=_GREEDY)
def greedy_requests_see_small_differences(sampler: TokenSampler, case: SamplingCase) -> None:
    """In a flat row the one logit that is larger by 1/128 of its value wins: a step that every dtype can hold.

    An argmax of probabilities in half precision, or one that takes what is nearly the largest, answers another id.
    """
    batch = case.batch(sampler.device)
    logits = torch.full_like(batch.logits, 0.125)
    best = [1 + derive_seed("best", case.seed, row) % (batch.vocab_size - 1) for row in range(batch.batch_size)]
    logits[range(batch.batch_size), best] = 0.125 * (1 + 2.0**-7)
    seen = sample_tokens(sampler, batch.replace(logits=logits), case.noise(sampler.device))
    same_tokens(np.array(best), seen.tokens, "the only largest logit")


@check(
    "SAM134",
    lambda can: ordinary(can, explicit=True, filters=()),
    needs=EXPLICIT,
    needs_one_of=(tuple(_FILTERS.values()),),
)
def filters_that_keep_all_change_nothing(sampler: TokenSampler, case: SamplingCase) -> None:
    """`top_k=vocab_size`, `top_p=1` and `min_p=0`, as far as they are supported, give the tokens of no filters.

    Servers write these values into the rows of requests that do not filter. A nucleus that loses its last token at
    `top_p=1` loses it for all of them.
    """
    batch, noise, bare = call(sampler, case)
    off = {
        "top_k": torch.full_like(batch.temperature, batch.vocab_size, dtype=torch.int32),
        "top_p": torch.ones_like(batch.temperature),
        "min_p": torch.zeros_like(batch.temperature),
    }
    supported = {name: value for name, value in off.items() if _FILTERS[name] in sampler.capabilities}
    seen = sample_tokens(sampler, batch.replace(**supported), noise)
    same_tokens(bare.tokens, seen.tokens, "with filters that keep all", covered_rows(sampler, batch, noise))


@check(
    "SAM137",
    lambda can: ordinary(
        can,
        explicit=True,
        filters=(),
        logits=("tied", "flat", "one-hot"),
        temperatures=(1.0, 0.5, 2.0),
        exponentials=("random",),
        dtypes=("float32",),
    ),
    needs=EXPLICIT,
)
def a_constant_added_to_the_logits_changes_nothing(sampler: TokenSampler, case: SamplingCase) -> None:
    """softmax(logits + c) = softmax(logits); with small integers the sum is exact, so the tokens are the same.

    A softmax that does not subtract the maximum overflows at large logits, and shows here before it does.
    """
    batch, noise, seen = call(sampler, case)
    constant = (-64.0, 16.0, 96.0)[case.seed % 3]
    moved = batch.replace(logits=batch.logits + constant)
    shifted, rows = sample_tokens(sampler, moved, noise), covered_rows(sampler, moved, noise)
    same_tokens(seen.tokens, shifted.tokens, f"with {constant} added to every logit", rows)


@check(
    "SAM139",
    lambda can: (
        sampling_cases(can, layouts=("huge-stride",), max_vocab_size=100)
        | varied(can, layouts=("transposed", "sliced"), max_vocab_size=257)
    ),
    needs=(*EXPLICIT, Capability.STRIDED_INPUTS),
)
def strides_change_nothing(sampler: TokenSampler, case: SamplingCase) -> None:
    """Logits and parameters that lie in memory column by column, or inside wider rows, change no token.

    They may also be refused, by a `ValueError` that names one of them.
    """
    _, _, expected = call(sampler, case.replace(layout="contiguous"))
    names = case.batch(sampler.device).tensors()
    try:
        batch, _, seen = call(sampler, case)
    except ValueError as error:
        if not any(name in str(error) for name in names):
            broken(f"strided tensors are refused, but not by name: {error}")
        return
    rows = covered_rows(sampler, batch, case.noise(sampler.device))
    same_tokens(expected.tokens, seen.tokens, f"with {case.layout} logits", rows)
