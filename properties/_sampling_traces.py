"""Serving traces of the sampling contract: whatever is determined is compared, in every row of every call.

Two judges. *Exact*: supports of drawn rows, greedy tokens, rows of given noise. *Again*: a request with a seed, or with
given noise, is asked again, alone and among others in another order, dtype and memory: it must get the same token.
"""

from __future__ import annotations

import numpy as np
import torch

from fairdraw._core.array_types import Flags, Float64s, Ints, Rows32
from fairdraw._core.failures import CheckFailure
from fairdraw._core.seeds import derive_seed
from fairdraw._oracles.supports import log_error
from fairdraw.contracts import Capability, RaceNoise, SamplingBatch, SamplingNoise, SeededNoise, TokenSampler
from fairdraw.contracts._sampling import draft_tokens, sample_tokens
from fairdraw.properties._rejection_asserts import fresh, is_improbable
from fairdraw.properties._seed_families import families_are_apart
from fairdraw.properties._traces import asked_again, have_own_noise, left_alone, require_none, trace_checks
from fairdraw.strategies._sampling_traces import SamplingCall, SamplingTrace, trace_for
from fairdraw.strategies._serving import answered, asked_first, states_of
from fairdraw.strategies.rows import bulk_rng

_CLOSE, _PER_TERM = 1e-5, 2.0**-31
"""Relative, and more for each term of a row's sum: a correct sampler was up to 4e-5 off at 131,073 tokens."""

_MARGIN = 1e-4
"""Relative: a token whose score is so much smaller than the best one did not win by rounding."""


def tokens_of_a_serving_trace_are_legal(sampler: TokenSampler, trace: SamplingTrace) -> None:
    """In hundreds of calls of one sampler every token is one that its request's own row and parameters allow.

    Requests come, move and go; batches have every size; dtypes, strides, noise and neighbours change from call to call.
    Greedy requests have the largest logit, and with given noise the race's winner. Distributions of drafts are the
    softmax over temperature that filters leave, and 1 at a greedy draft's token. What is given is not written. The
    report says which call and row: look for state that an earlier call left, and for sizes and indices at which the
    kernel changes. Rows without a seed draw anew under another seed of the call.
    """
    met = [(np.zeros(0, dtype=bool), np.zeros(0))]
    for call in trace.played(sampler.device):
        with left_alone(call.batch, call.noise, number=call.number):
            drafts = Capability.DRAFT_DISTRIBUTION in sampler.capabilities and call.number.bit_count() % 2
            seen = answered(draft_tokens if drafts else sample_tokens, sampler, call)
            tokens = seen.tokens
            _require_legal(call, tokens)
            if seen.draft_probs is not None:
                _require_distributions(call, seen.draft_probs, tokens)
            _require_greedy(call, tokens, any_largest=Capability.LOWEST_ID_TIES not in sampler.capabilities)
            if isinstance(call.noise, RaceNoise) and Capability.REFERENCE_RACE in sampler.capabilities:
                _require_winners(call, call.noise, tokens)
            is_plain = not drafts and call.setting["layout"] == "contiguous"
            if isinstance(call.noise, SeededNoise) and is_plain and call.number % 4 == 1:
                met.append(_met_again(sampler, call, call.noise, tokens))
    hits, chances = map(np.concatenate, zip(*met, strict=True))
    if hits.sum() > chances.sum() and is_improbable(int(hits.sum()), hits.size, float(chances.mean())):
        said = f"{hits.sum()} of {hits.size} rows without a seed draw the same under another seed of the call"
        raise CheckFailure(f"{said}; {chances.sum():.1f} are expected")


def _met_again(sampler: TokenSampler, call: SamplingCall, noise: SeededNoise, tokens: Ints) -> tuple[Flags, Float64s]:
    """Return whether rows without a seed get their tokens again under another seed, and how probable that is."""
    rows = np.flatnonzero(call.is_random & call.support.is_settled & ~_has_own_noise(call))
    chances = call.support.at(rows).distribution()[np.arange(rows.size), tokens[rows]]
    again = sample_tokens(sampler, call.batch, SeededNoise(derive_seed("other"), noise.request_seeds)).tokens
    return again[rows] == tokens[rows], chances


def _wrong(call: SamplingCall, rows: Flags, tokens: Ints, what: str) -> None:
    """Raise for the first of these rows."""
    require_none(call, rows, lambda row: f"row {row} of {len(rows)} got token {tokens[row]}, {what}", "rows")


def _require_legal(call: SamplingCall, tokens: Ints) -> None:
    size = call.batch.vocab_size
    _wrong(call, (tokens < 0) | (tokens >= size), tokens, f"which is no id below {size}")
    _wrong(call, call.are_illegal(tokens), tokens, "which its filters and its row rule out")


def _require_greedy(call: SamplingCall, tokens: Ints, *, any_largest: bool) -> None:
    logits = call.batch.logits.float().cpu().numpy()
    rows = call.batch.is_greedy.cpu().numpy()
    best = np.argmax(logits, axis=1)  # of NaN the first, as torch.argmax has it
    documented = "and not the documented token 0 of a row without distribution"
    _wrong(call, call.is_odd & ~rows & (tokens != 0), tokens, documented)
    is_right = tokens == best
    if any_largest:
        is_right |= logits[np.arange(len(tokens)), tokens] == logits[np.arange(len(tokens)), best]
    _wrong(call, rows & ~is_right, tokens, "though another logit is the largest, and it is greedy")


def _require_distributions(call: SamplingCall, said: Rows32, tokens: Ints) -> None:
    certain = said[np.arange(len(tokens)), tokens] == 1
    _wrong(call, call.batch.is_greedy.cpu().numpy() & ~certain, tokens, "whose draft distribution is not certain of it")
    rows = call.is_random & call.support.is_settled
    kept = np.where(call.support.allowed, call.support.probs, 0.0)
    right = kept / np.maximum(kept.sum(axis=1, keepdims=True), 1e-300)
    slack = _CLOSE + _PER_TERM * said.shape[1] + _log_errors(call) + call.support.slack
    off = np.abs(said - right) > slack * right + 2.0**-120
    _wrong(call, rows & off.any(axis=1), tokens, "and its draft distribution is not what its filters leave")


def _log_errors(call: SamplingCall) -> Float64s:  # [batch_size, 1] float64
    """Return how far float32 logarithms of a row's probabilities may be off: `logits / temperature - logsumexp`."""
    largest = call.batch.logits.double().nan_to_num(0, 0, 0).abs().amax(-1).cpu().numpy()
    least = call.batch.temperature.cpu().numpy().clip(1e-6, 1)  # greedy rows have 0, and are not compared
    return np.asarray(log_error(largest / least)[:, None])


def _require_winners(call: SamplingCall, noise: RaceNoise, tokens: Ints) -> None:
    known, places = call.support, np.arange(len(tokens))
    probs = np.where(known.allowed, known.probs, 0.0)
    with np.errstate(over="ignore"):
        scores = probs / noise.exponentials.cpu().numpy().astype(np.float64)
    own = scores[places, tokens]
    # A sampler may race with logarithms: of the two scores, each is off by so much.
    with np.errstate(divide="ignore"):
        logs = np.abs(np.log(noise.exponentials.cpu().numpy().astype(np.float64)))
    margins = 1 + _MARGIN + 2 * (_log_errors(call)[:, 0] + log_error(logs.max(axis=1)))
    # Which of several tokens stay is left open; if one must, what wins is at least as good as the worst of them.
    surely = np.where(known.required, scores, 0.0).max(axis=1)
    worst = np.where(known.allowed & ~known.required, scores, np.inf).min(axis=1)
    best = np.where(known.is_settled, scores.max(axis=1), np.where(known.is_short, np.maximum(surely, worst), surely))
    _wrong(call, call.is_random & (own * margins < best), tokens, "which does not win its race")


_AT_ONCE = 64
"""Requests that are asked again together."""

_TILT = 1e-4
"""By so much logits over their temperature are moved, to see whether two tokens were equally good up to rounding."""


def requests_of_a_serving_trace_repeat(sampler: TokenSampler, trace: SamplingTrace) -> None:
    """A request with a seed, or with given noise, gets the same token when the same is asked again.

    It is asked in another order, among others, beside itself, in float32 and in memory of its own, and alone.
    Whatever the first batch did to it shows: its size, its neighbours, strides, an earlier call. Its generator is left
    in the same state, too: otherwise its next token depends on its neighbours.
    """
    rng = bulk_rng("again", trace.seed)
    for call, tokens, states in asked_first(
        sample_tokens, sampler, trace, lambda call: bool(_has_own_noise(call).any())
    ):
        order = asked_again(_has_own_noise(call), rng, _AT_ONCE)
        for rows in (order, order[:1]):
            _require_same(sampler, call, tokens, states, rows)


def _has_own_noise(call: SamplingCall) -> Flags:  # [batch_size] bool
    return np.asarray(have_own_noise(call) & call.support.is_settled)


def _require_same(sampler: TokenSampler, call: SamplingCall, tokens: Ints, states: dict[int, int], rows: Ints) -> None:
    answer = sample_tokens(sampler, *_asked_again(call, rows))
    again, how = states_of(answer), "alone" if len(rows) == 1 else f"among {len(rows)} others"
    for place, (row, token) in enumerate(zip(rows.tolist(), answer.tokens.tolist(), strict=True)):
        differs = np.arange(len(tokens)) == row
        if token == tokens[row]:
            moved = differs & (again.get(place) != states.get(row))
            _wrong(call, moved, tokens, f"and its generator gives other numbers when the same is asked again {how}")
        elif not _is_near_tie(sampler, call, row, int(tokens[row]), token):
            _wrong(call, differs, tokens, f"and token {token} when the same is asked again {how}")


def _asked_again(call: SamplingCall, rows: Ints) -> tuple[SamplingBatch, SamplingNoise]:
    batch = call.batch.select(rows.tolist())
    batch = batch.replace(logits=batch.logits.float().contiguous())
    if isinstance(call.noise, RaceNoise):
        return batch, call.noise.select(rows.tolist())
    seeds = {new: call.noise.request_seeds[old] for new, old in enumerate(rows.tolist())}
    return batch, SeededNoise(derive_seed("again", call.noise.seed), seeds)


def _is_near_tie(sampler: TokenSampler, call: SamplingCall, row: int, first: int, again: int) -> bool:
    """Whether the two tokens were equally good up to rounding: alone and tilted, it falls one way and the other."""
    batch, noise = _asked_again(call, np.array([row]))

    def tilted(more: int, less: int) -> int:
        logits, by = batch.logits.clone(), _TILT * batch.temperature[0]
        logits[0, more] += by
        logits[0, less] -= by
        return int(sample_tokens(sampler, batch.replace(logits=logits), fresh(noise)).tokens[0])

    return tilted(first, again) == first and tilted(again, first) == again


# -- seeds ------------------------------------------------------------------------------------------------------------

_FLAT_SIZE, _SLOW_SIZE, _DRAWS = 8191, 1025, 4


def seeds_of_a_family_draw_tokens_of_their_own(sampler: TokenSampler, trace: SamplingTrace) -> None:
    """Seeds that one bit, a sign, a shift, a sum or swapped halves tell apart draw different tokens, and repeat them.

    Each draws four tokens from flat rows over 8191, in consecutive calls. Seeds of samplers with counters differ in any
    of 64 bits, others in the lower 32, because torch's generator on a CPU takes no more. Suspect a seed kept as a float
    or in fewer bits, a hash or a remainder, `if seed:`, and a position that does not enter.
    """
    size = _SLOW_SIZE if sampler.capabilities.slow else _FLAT_SIZE

    def signatures(seeds: list[int], number: int) -> Ints:  # [num_seeds, 4] int64
        # In another order seeds are asked under another seed of the call, which must not enter.
        noise = SeededNoise(derive_seed("families", trace.seed, seeds[0]), dict(enumerate(seeds)))
        rows, whole = len(seeds), torch.ones(len(seeds), dtype=torch.float32, device=sampler.device)
        logits, places = whole.new_zeros(rows, size), torch.zeros(rows, dtype=torch.int64, device=sampler.device)
        first = _DRAWS * (1 + number)
        batches = [SamplingBatch(logits, whole, None, None, None, places + first + draw) for draw in range(_DRAWS)]
        found = np.stack([sample_tokens(sampler, batch, noise).tokens for batch in batches], axis=1)
        if (found == found[:, :1]).all(axis=1).mean() > 0.5:
            raise CheckFailure(f"each of {_DRAWS} steps of seed {seeds[0]} drew token {found[0, 0]}")
        return found

    num_bits = 64 if Capability.COUNTER_NOISE in sampler.capabilities else 32
    families_are_apart(signatures, sampler.capabilities, trace.seed, num_bits=num_bits)


TRACES = trace_checks(
    "sampling",
    "SAM20",
    trace_for,
    legal=tokens_of_a_serving_trace_are_legal,
    repeat=requests_of_a_serving_trace_repeat,
    apart=seeds_of_a_family_draw_tokens_of_their_own,
)
