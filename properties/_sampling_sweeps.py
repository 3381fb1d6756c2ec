"""Each parameter over its whole range, in one batch; offsets beyond 2**24, and rows that are far apart.

Rows are made for the value: the tokens on both sides of the edge are near it, so that a value that is rounded, clamped
or taken for off keeps other tokens. With explicit noise both sides are aimed at. A sampler with noise of its own draws
each row as often as its outer tokens need to come.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from fairdraw._core.array_types import Float64s, Ints
from fairdraw._oracles.supports import Support
from fairdraw.contracts import Capabilities, Capability, SamplingBatch, TokenSampler
from fairdraw.contracts._sampling import sample_tokens
from fairdraw.properties import _sampling_asserts as asserts
from fairdraw.properties._rejection_asserts import fresh
from fairdraw.properties._sampling_asserts import broken, check
from fairdraw.properties._sampling_noise import NOISE, noise_of, plain
from fairdraw.strategies._cases import require_far_memory, reserved
from fairdraw.strategies.rows import bulk_rng
from fairdraw.strategies.sampling import SampledRequest, SamplingCase

_MOST_ROWS = 1024

# -- filters ----------------------------------------------------------------------------------------------------------


def _nucleus(top_p: float, size: int) -> Float64s:  # [size] float64
    """A head with a little less than `top_p`, a token that reaches it, and many behind it."""
    margin = max(min(top_p, 1 - top_p) / 4, 1.4 * (1 - top_p) / size)
    head = max(0.0, top_p - margin)
    count = min(max(1, int(head / (3 * margin))), size // 4) if head else 0
    inside = top_p + margin - head
    behind = size - count - 1
    weights = [_spread(count) * head, [inside], _spread(behind) * (1 - head - inside)]
    return np.concatenate([np.asarray(part, np.float64) for part in weights])


def _spread(count: int) -> Float64s:  # [count] float64
    """Shares of 1 that are nearly equal, and not tied."""
    weights = np.linspace(1.2, 0.8, count)
    return np.asarray(weights / max(weights.sum(), 1e-9))


def _near_the_least(min_p: float, size: int) -> Float64s:  # [size] float64
    """One token of weight 1; half of the others a little above the threshold, half below."""
    gap = min(0.05, (1 - min_p) / 2)
    above, below = np.linspace(1, 0.4, (size - 1) // 2), np.linspace(0.4, 1, size // 2)
    return np.concatenate([[1.0], min_p * (1 + gap * above), min_p * (1 - gap * below)])


def _ranked(top_k: int, size: int) -> Float64s:  # [size] float64
    """Half of the mass on the tokens that stay, the rest on the others, as far as those remain less probable."""
    kept, lost = _spread(top_k), _spread(size - top_k)
    return np.concatenate([kept, lost * min(1.0, kept.min() / max(lost.max(initial=0.0), 1e-9) * 0.9)])


_ROWS: dict[str, Any] = {
    "top_k": _ranked,
    "top_p": _nucleus,
    "min_p": _near_the_least,
}  # Any: functions of an int or a float


def _values(name: str, size: int, rng: np.random.Generator, count: int) -> list[float]:
    """Log-wise from both ends of the range; other ones with another seed."""

    def jittered(low: float, high: float) -> Float64s:
        steps = np.linspace(np.log(low), np.log(high), count + 1)
        return np.asarray(np.exp(rng.uniform(steps[:-1], steps[1:])))

    if name == "top_k":
        near_all = size - jittered(1, size / 2)
        return sorted({1, 2, size - 1, *(int(k) for k in (*jittered(2, size), *near_all))})
    low, from_one = (1e-5, 2e-4) if name == "min_p" else (1e-4, 4.5e-5)
    return [*jittered(low, 0.6), *(1 - jittered(from_one, 0.5))]


def _sweep(can: Capabilities) -> st.SearchStrategy[SamplingCase]:
    size = 64 if can.slow or can.why_unsupported(asserts.RACE) else 1000
    return plain(can, size)


@check("SAM186", _sweep, needs_one_of=(tuple(asserts.FILTERS.values()), *NOISE), weight=0.03)
def filters_act_over_their_whole_range(sampler: TokenSampler, case: SamplingCase) -> None:
    """`top_k`, `top_p` and `min_p` of every size, from both ends of their range, keep the tokens of that value.

    In rows made for the value: a little more or less would keep others. Suspect a value that is clamped or taken for
    off near an end of its range (top-p above 0.99, min-p below 0.001, top-k above 64), or rounded to half precision.
    """
    half = ("bfloat16", "float16")[case.seed % 2] if Capability.HALF_LOGITS in sampler.capabilities else "float32"
    greedy = int(Capability.GREEDY in sampler.capabilities)
    is_aimed = sampler.capabilities.why_unsupported(asserts.RACE) is None
    batches = _with_many_tokens(sampler, case)
    if is_aimed:
        batches += [_swept(sampler, case, *which) for which in (("float32", 0), (half, greedy))]
    else:
        batches.append(_swept(sampler, case, ("float32", half)[case.seed % 3 == 2], greedy))
    for batch in batches:
        _keeps_both_sides(sampler, batch) if is_aimed else _drawn_often(sampler, case, batch)


_LEAST_TOP_PS, _MANY = (3e-4, 1e-3, 4e-3), 16_384


def _with_many_tokens(sampler: TokenSampler, case: SamplingCase) -> list[SamplingBatch]:
    """The least top-p keep more than one token in a large vocabulary alone; elsewhere they are as good as greedy."""
    if sampler.capabilities.slow or sampler.capabilities.why_unsupported((Capability.TOP_P, Capability.LARGE_VOCAB)):
        return []
    return [_made(case.replace(vocab_size=_MANY), [("top_p", one) for one in _LEAST_TOP_PS], sampler.device)]


def _keeps_both_sides(sampler: TokenSampler, batch: SamplingBatch) -> None:
    """Noise aimed at the most probable token outside of each support, and at the least probable one inside."""
    supports = asserts.supports_of(sampler, batch)
    outside = [0 if s is None else int(np.argmax(np.where(s.allowed, -1.0, s.probs))) for s in supports]
    _are_kept(batch, supports, sample_tokens(sampler, batch, asserts.aimed_at(batch, outside)).tokens)
    least = [0 if s is None else int(np.argmin(np.where(s.required, s.probs, np.inf))) for s in supports]
    tokens = sample_tokens(sampler, batch, asserts.aimed_at(batch, least)).tokens
    for row, (support, token) in enumerate(zip(supports, least, strict=True)):
        if support is not None and support.required[token] and tokens[row] != token:
            broken(f"{_given(batch, row)}: token {token} must be kept; aimed at it, noise gave {tokens[row]}")


def _swept(sampler: TokenSampler, case: SamplingCase, dtype: str, num_greedy: int) -> SamplingBatch:
    """A row for each value of each filter that is supported, at three temperatures in turn; greedy ones behind them.

    Logits are near 0 at the edge, where half precision is finest.
    """
    rng, count = bulk_rng("sweep", case.seed), 3 if sampler.capabilities.slow else 12
    given = [
        (name, value)
        for name, need in asserts.FILTERS.items()
        if need in sampler.capabilities
        for value in _values(name, case.vocab_size, rng, count)
    ]
    return _made(case, given, sampler.device, dtype, num_greedy)


def _made(
    case: SamplingCase, given: list[tuple[str, float]], device: str, dtype: str = "float32", num_greedy: int = 0
) -> SamplingBatch:
    """A row for each value."""
    rng, requests, rows = bulk_rng("rows", case.seed), [], []
    for number, (name, value) in enumerate(given):
        temperature = (1.0, 0.6, 1.7)[number % 3]
        weights = _ROWS[name](value, case.vocab_size)
        edge = {"min_p": value, "top_p": weights.min()}.get(name, weights[int(value) - 1])
        rows.append(temperature * np.log(rng.permutation(weights) / edge))
        used: dict[str, Any] = {name: value}  # Any: keyword arguments
        requests.append(dataclasses.replace(SampledRequest(temperature=temperature), **used))
    requests += [SampledRequest(temperature=0.0)] * num_greedy
    rows += [np.zeros(case.vocab_size)] * num_greedy
    batch = case.replace(requests=tuple(requests)).batch(device)
    logits = torch.tensor(np.stack(rows), dtype=getattr(torch, dtype), device=batch.device)
    return batch.replace(logits=logits)


def _given(batch: SamplingBatch, row: int) -> str:
    """The parameters of a row, in words."""
    off = {"top_k": batch.vocab_size, "top_p": 1.0, "min_p": 0.0}
    values = {name: getattr(batch, name) for name in off}
    used = {name: float(v[row]) for name, v in values.items() if v is not None and float(v[row]) != off[name]}
    return f"request {row} with " + ", ".join(f"{name} {value:.6g}" for name, value in used.items())


def _are_kept(batch: SamplingBatch, supports: list[Support | None], tokens: Ints) -> None:  # [batch_size]
    for row, (support, token) in enumerate(zip(supports, tokens.tolist(), strict=True)):
        if support is not None and not (0 <= token < batch.vocab_size and support.allowed[token]):
            broken(f"{_given(batch, row)} got token {token}; it keeps {int(support.allowed.sum())} others")


def _drawn_often(sampler: TokenSampler, case: SamplingCase, batch: SamplingBatch, *, most: int = 2048) -> None:
    """No token outside of any support, in as many copies of each row as such tokens need to come, up to `most`.

    The less probable half of what is kept comes, too, where chance misses it less often than once in 7e10 times.
    """
    supports = asserts.supports_of(sampler, batch)
    outer = np.array([0.0 if s is None else float(s.probs[~s.allowed].sum()) for s in supports])
    most, least = (2, 2) if sampler.capabilities.slow else (most, 60)
    copies = np.clip(10 / np.maximum(outer, 1e-9), least, most).astype(int)
    order = bulk_rng("copies", case.seed).permutation(np.repeat(np.arange(len(supports)), copies))
    parts = np.split(order, range(_MOST_ROWS, len(order), _MOST_ROWS))
    tokens = []
    for number, part in enumerate(parts):
        rows = batch.select(part.tolist())
        tokens.append(sample_tokens(sampler, rows, noise_of(sampler, rows, case.seed, number)).tokens)
    drawn = np.concatenate(tokens)
    for row, support in enumerate(supports):
        if support is None:
            continue
        mine = drawn[order == row]
        wrong = [token for token in mine.tolist() if not (0 <= token < batch.vocab_size and support.allowed[token])]
        if wrong:
            broken(f"{_given(batch, row)} got token {wrong[0]}; it keeps {int(support.allowed.sum())} others")
        rarer = support.required & (support.probs <= np.median(support.probs[support.required]))
        share = support.probs[rarer].sum() / support.probs[support.allowed].sum()
        if mine.size * -np.log1p(-min(share, 0.999)) > 25 and not rarer[mine].any():
            broken(f"{_given(batch, row)}: the less probable half of its tokens never came in {mine.size} draws")


# -- sizes ------------------------------------------------------------------------------------------------------------


@check("SAM188", lambda can: plain(can, 262_144), needs=(Capability.LARGE_VOCAB,), needs_one_of=NOISE, weight=0.005)
def rows_keep_their_logits_beyond_2_to_the_24_elements(sampler: TokenSampler, case: SamplingCase) -> None:
    """65 requests of 262144 entries, 2**24 together: each has two tokens of its own, and draws one of them.

    Explicit noise is aimed at the less probable one. Suspect offsets in few bits or in float32, whose rows repeat, and
    ids of 16 or 17 bits. Interpreted kernels take 5 requests.
    """
    rows = 5 if sampler.capabilities.slow else 65
    batch = case.replace(vocab_size=2, requests=(SampledRequest(),), num_rows=rows).batch(sampler.device)
    own = bulk_rng("own tokens", case.seed).choice(case.vocab_size, (rows, 2), replace=False)
    logits = torch.full((rows, case.vocab_size), -torch.inf, device=batch.device)
    logits[range(rows), own[:, 0].tolist()], logits[range(rows), own[:, 1].tolist()] = 1.0, 0.0
    batch = batch.replace(logits=logits)
    is_aimed = sampler.capabilities.why_unsupported(asserts.RACE) is None
    noise = asserts.aimed_at(batch, own[:, 1].tolist()) if is_aimed else noise_of(sampler, batch, case.seed)
    seen = sample_tokens(sampler, batch, noise).tokens
    if is_aimed:
        asserts.same_tokens(own[:, 1], seen, f"of the two tokens of each of {rows} rows noise is aimed at the second")
    wrong = [row for row in range(rows) if seen[row] not in own[row]]
    if wrong:
        row = wrong[0]
        broken(f"request {row} of {rows} got token {seen[row]}; only {own[row].tolist()} have probability")


def _two_rows(can: Capabilities) -> st.SearchStrategy[SamplingCase]:
    require_far_memory()
    return asserts.fixed(100, *[SampledRequest("one-hot")] * 2, explicit=Capability.EXPLICIT_NOISE in can)


@check("SAM184", _two_rows, needs=(Capability.STRIDED_INPUTS,), weight=0.02)
def rows_may_be_2_to_the_31_elements_apart(sampler: TokenSampler, case: SamplingCase) -> None:
    """Rows of logits with a stride above 2**31 elements give the tokens of contiguous ones, or a `ValueError`.

    On a CPU the memory between them is never touched, and never taken. Offsets of 32 bits wrap, and read another row.
    """
    batch, noise, expected = asserts.call(sampler, case)
    if batch.device.type != "cpu":
        return
    stride = 2**31 + 2**16
    memory = reserved(stride + batch.vocab_size, torch.float32)
    assert memory is not None  # `require_far_memory` reserved more
    far = memory.as_strided((2, batch.vocab_size), (stride, 1))
    far.copy_(batch.logits)
    try:
        seen = sample_tokens(sampler, batch.replace(logits=far), fresh(noise))
    except ValueError as error:
        if "logits" not in str(error):
            broken(f"far strides are refused, but not by name: {error}")
        return
    asserts.same_tokens(expected.tokens, seen.tokens, f"with rows {stride} elements apart")
