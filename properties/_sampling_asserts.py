"""What the sampling checks assert with: calling a sampler, and saying what was seen."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from hypothesis import strategies as st

from fairdraw._core import checks
from fairdraw._core.array_types import PerRequest
from fairdraw._oracles.sampling import MultiplyingOracle, SamplingOracle, draft, draw_exponentials, requests_of, sample
from fairdraw._oracles.supports import Support, log_error, support_of
from fairdraw.contracts import Capability, FilterPolicy, RaceNoise, SeededNoise, filter_policy, token_sampler
from fairdraw.contracts._sampling import Sampled, sample_tokens
from fairdraw.properties._rejection_asserts import broken as broken
from fairdraw.properties._rejection_asserts import fresh
from fairdraw.properties._rejection_asserts import pick as pick
from fairdraw.properties._rejection_settled import TIE, UNDERFLOW, has_one_largest, overflows
from fairdraw.strategies.rows import bulk_seeds
from fairdraw.strategies.sampling import SampledRequest, SamplingCase, sampling_cases

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from fairdraw._oracles.sampling import Request
    from fairdraw.contracts import Capabilities, SamplingBatch, SamplingNoise, TokenSampler

check = partial(checks.check, contract="sampling")
differential = partial(checks.differential, contract="sampling")

ORACLE = token_sampler(sample, drafting=draft, name="oracle")
MULTIPLYING = token_sampler(MultiplyingOracle().sample, name="oracle that multiplies")

RACE = (Capability.EXPLICIT_NOISE, Capability.REFERENCE_RACE)
FILTERS = {"top_k": Capability.TOP_K, "top_p": Capability.TOP_P, "min_p": Capability.MIN_P}

POSITIVE = ("flat", "normal", "zipf", "peaked", "tied")
"""Rows with mass on every token."""

_EXPONENTIALS = ("random", "equal", "coarse", "tiny", "huge", "twins")


def ordinary(can: Capabilities, **narrow: Any) -> st.SearchStrategy[SamplingCase]:  # Any: of sampling_cases
    """What an engine can meet: no exponentials that are denormal."""
    return sampling_cases(can, **{"exponentials": _EXPONENTIALS, **narrow})


def fixed(vocab_size: int, *requests: SampledRequest, explicit: bool) -> st.SearchStrategy[SamplingCase]:
    """A case in which the seed alone is drawn; what else there is follows from it."""
    return st.builds(SamplingCase, st.just(vocab_size), st.just(requests), st.just(explicit), seed=bulk_seeds())


def call(sampler: TokenSampler, case: SamplingCase) -> tuple[SamplingBatch, Any, Sampled]:  # Any: noise
    """Build the case on the sampler's device and sample once."""
    batch, noise = case.batch(sampler.device), case.noise(sampler.device)
    return batch, noise, sample_tokens(sampler, batch, noise)


def slack_of(sampler: TokenSampler, request: Request) -> float:
    """How far the sampler's own formulas may move a probability, relative; 0 if it computes as the oracle does."""
    if Capability.REFERENCE_ROUNDING in sampler.capabilities:
        return 0.0
    logits = np.abs(request.logits[np.isfinite(request.logits)])
    slack: float = log_error(float(logits.max(initial=0.0)) / min(1.0, float(request.temperature) or 1.0))
    return slack


def supports_of(sampler: TokenSampler, batch: SamplingBatch) -> list[Support | None]:
    """Bounds of each random request's support, by the sampler's own policy; `None` for the others."""
    policy = filter_policy(sampler)
    return [None if r.is_greedy else support_of(r, policy, slack_of(sampler, r)) for r in requests_of(batch)]


def are_allowed(supports: list[Support | None], tokens: NDArray[np.int64]) -> None:  # [batch_size] int64
    """Every drawn token is one that its request's filters may keep."""
    for request, (support, token) in enumerate(zip(supports, tokens.tolist(), strict=True)):
        if support is not None and 0 <= token < support.probs.size and not support.allowed[token]:
            least, kept = support.probs[support.allowed].min(), int(support.allowed.sum())
            broken(
                f"request {request} got token {token}, of probability {support.probs[token]:.3g}; its filters keep "
                f"{kept} tokens, the least of probability {least:.3g}"
            )


def comparable_rows(sampler: TokenSampler, batch: SamplingBatch) -> list[int]:
    """Rows whose support does not hang on rounding, on a choice among ties, or on the sampler's own policy."""
    policy = filter_policy(sampler)

    def is_comparable(request: Request) -> bool:
        if request.is_greedy or (request.top_k, request.top_p, request.min_p) == (None, None, None):
            return True
        slack = slack_of(sampler, request)
        own, default = support_of(request, policy, slack), support_of(request, FilterPolicy(), slack)
        if own is None or default is None:
            return False
        return own.is_settled and default.is_settled and bool((own.required == default.required).all())

    return [i for i, request in enumerate(requests_of(batch)) if is_comparable(request)]


def covered_rows(sampler: TokenSampler, batch: SamplingBatch, noise: SamplingNoise) -> list[int]:
    """Comparable rows whose tokens the sampler specifies: all except near ties and ties that it leaves open.

    Without `reference-rounding` these are the rows that no rounding of `log_error` can change; without
    `lowest-id-ties` also none whose largest logits or best scores are tied. What is drawn in a way that the suite does
    not know, and rounded freely, is not covered.
    """
    rows, can = comparable_rows(sampler, batch), sampler.capabilities
    has_rounding, has_ties = (one in can for one in (Capability.REFERENCE_ROUNDING, Capability.LOWEST_ID_TIES))
    if has_rounding and has_ties:
        return rows
    exponentials, requests = numbers_of(batch, noise), requests_of(batch)

    def is_covered(row: int) -> bool:
        request = requests[row]
        if request.is_greedy:
            return has_ties or has_one_largest(request.logits)
        is_known = has_rounding or Capability.REFERENCE_RACE in can
        if not is_known or overflows(exponentials[row]):
            return False
        shift = slack_of(sampler, request) + log_error(float(np.abs(np.log(exponentials[row])).max()))
        return _is_settled(request, exponentials[row], TIE if has_rounding else shift)

    return [row for row in rows if is_covered(row)]


def numbers_of(batch: SamplingBatch, noise: SamplingNoise) -> NDArray[np.float64]:  # [batch_size, vocab_size] float64
    """The exponentials of the call: those of the caller, or what the seeds give in vLLM's order."""
    if isinstance(noise, RaceNoise):
        return noise.exponentials.double().cpu().numpy()
    with torch.random.fork_rng(devices=[batch.device] if batch.device.type == "cuda" else []):
        torch.manual_seed(noise.seed)
        return draw_exponentials(batch, SeededNoise(noise.seed, noise.request_seeds)).double().cpu().numpy()


def _is_settled(request: Request, exponentials: NDArray[np.float64], shift: float) -> bool:  # [vocab_size] float64
    probs = SamplingOracle().distribution(request).astype(np.float64)
    scores = probs / exponentials
    if np.isnan(scores).any():
        return False
    winner = int(np.argmax(scores))
    slack = np.where((probs < UNDERFLOW) & (request.logits > -np.inf), UNDERFLOW, 0.0) / exponentials
    rivals = np.delete(scores * (1 + shift) + slack, winner).max(initial=0.0)
    return bool(scores[winner] * (1 - shift) > rivals)


def equals_the_oracle(sampler: TokenSampler, case: SamplingCase) -> None:
    """Every request of the case has the oracle's token, as far as the sampler specifies it."""
    equals_the_oracle_on(sampler, case.batch(sampler.device), case.noise(sampler.device))


def equals_the_oracle_on(sampler: TokenSampler, batch: SamplingBatch, noise: SamplingNoise) -> None:
    """`equals_the_oracle` for a batch and noise that are already on the sampler's device.

    A race may divide or multiply by a reciprocal. A sampler that supports `upstream-stream` divides, as vLLM does,
    where torch's generators can tell the two apart.
    """
    seen = sample_tokens(sampler, batch.clone(), fresh(noise))
    expected = sample_tokens(ORACLE, batch, fresh(noise)).tokens
    if (expected == seen.tokens).all():
        return
    free = np.full(batch.batch_size, Capability.UPSTREAM_STREAM not in sampler.capabilities)
    if isinstance(noise, RaceNoise):
        free |= [overflows(row) for row in numbers_of(batch, noise)]
    other = sample_tokens(MULTIPLYING, batch, fresh(noise)).tokens
    right = free & (other == seen.tokens)
    rows = [i for i in covered_rows(sampler, batch, noise) if not right[i]]
    same_tokens(expected, seen.tokens, "the oracle disagrees", rows)


def same_tokens(expected: PerRequest, seen: PerRequest, why: str, rows: Iterable[int] | None = None) -> None:
    """Two answers agree in these rows (in all of them if `None`)."""
    wanted = range(len(expected)) if rows is None else rows
    differing = [row for row in wanted if expected[row] != seen[row]]
    if differing:
        row = differing[0]
        broken(f"{why}: request {row} got token {seen[row]} instead of {expected[row]} ({len(differing)} differ)")


def aimed_at(batch: SamplingBatch, tokens: Sequence[int]) -> RaceNoise:
    """Noise under which each request draws its token, if its distribution gives the token any probability."""
    exponentials = torch.ones(batch.batch_size, batch.vocab_size, dtype=torch.float32, device=batch.device)
    exponentials[range(batch.batch_size), list(tokens)] = 2.0**-100
    return RaceNoise(exponentials)
