"""Serving traces of the rejection contract: whatever is determined is compared, in every request of every call.

The judges are those of `_sampling_traces`. *Exact*: greedy requests, drafts that must or cannot be accepted, supports
of recovered tokens, bonus tokens, the layout of the output, decisions of given noise. *Again*: requests with seeds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from fairdraw._core.failures import CheckFailure
from fairdraw._core.noise import default_state, generator_states, seeded
from fairdraw._core.seeds import derive_seed
from fairdraw._oracles.rejection import draw_noise
from fairdraw.contracts import Capability, ExplicitNoise, RejectionSampler, SeededNoise, SpecDecodeBatch
from fairdraw.contracts._rejection import Emission, emit
from fairdraw.properties._rejection_asserts import disagreement
from fairdraw.properties._seed_families import families_are_apart
from fairdraw.properties._traces import WrongRow, asked_again, have_own_noise, left_alone, require_none, trace_checks
from fairdraw.strategies._rejection_traces import RejectionTrace, Verified, read, rejection_trace_for, seeds_of
from fairdraw.strategies._serving import answered, asked_first, states_of
from fairdraw.strategies.rows import bulk_rng

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fairdraw._core.array_types import Flags, Float64s, Ints, Outputs
    from fairdraw.contracts import Capabilities, Noise
    from fairdraw.strategies._rejection_traces import RejectionCall


_MARGIN = 1e-4
"""Relative: decisions that are clearer than that are no matter of rounding."""


def steps_of_a_serving_trace_are_legal(sampler: RejectionSampler, trace: RejectionTrace) -> None:
    """In hundreds of steps of one sampler every request emits what its own rows, drafts and noise allow.

    Requests come, move and go; batches have every size and drafts every number up to 128; dtypes, strides, noise, draft
    distributions and neighbours change from call to call. The report says which call and row: look for state that an
    earlier call left, for rows counted from another request's beginning, and for sizes at which the kernel changes.
    """
    for call in trace.played(sampler.device):
        with left_alone(call.batch, call.noise, number=call.number):
            can = sampler.capabilities
            emission = answered(emit, sampler, call)
            seen = read(call, emission.tokens)
            _require_layout(call, seen)
            any_largest = Capability.LOWEST_ID_TIES not in can
            _require_greedy(call, seen, any_largest=any_largest)
            if Capability.TOKEN_VERIFICATION in can:
                _require_verified(call, seen, any_largest=any_largest)
                _require_decisions(call, seen)
                noise = call.noise if isinstance(call.noise, ExplicitNoise) else _require_states(call, emission, can)
                if noise is not None and Capability.REFERENCE_RACE in can:
                    _require_given_noise(call, noise, seen)
                    _require_specified(sampler, call, noise, seen)


def _wrong(call: RejectionCall, requests: Flags, seen: Verified, what: str) -> None:
    """Raise for the first of these requests."""

    def said(row: int) -> str:
        drafts = call.drafts[call.owner == row].tolist()
        emitted = seen.tokens[row, : max(1, int(seen.num_emitted[row]))].tolist()
        return f"request {row} of {len(requests)} (drafts {drafts[:12]}) emitted {emitted[:13]}: {what}"

    require_none(call, requests, said, "requests")


def _any_token(call: RejectionCall, tokens: Flags | Ints) -> Flags:  # [batch_size] bool
    """Return the requests that own one of these draft tokens, given as flags or by their numbers."""
    return _are_among(call, call.owner[tokens])


def _are_among(call: RejectionCall, requests: Ints | list[int]) -> Flags:  # [batch_size] bool
    return np.isin(np.arange(call.batch.batch_size), requests)


def _require_layout(call: RejectionCall, seen: Verified) -> None:
    size, lengths = call.batch.vocab_size, np.array(call.batch.num_draft_tokens)
    tokens, places = seen.tokens, np.arange(seen.tokens.shape[1])
    no_id = (places[None] < seen.num_emitted[:, None]) & ((tokens < 0) | (tokens >= size))
    _wrong(call, np.asarray(no_id.any(axis=1)), seen, f"an id is outside of [0, {size})")
    _wrong(call, np.asarray(seen.num_emitted == 0), seen, "a request emits at least one token")
    _wrong(call, np.asarray(seen.num_emitted > lengths + 1), seen, "more tokens than its drafts and one")
    drafted = np.full(tokens.shape, -2)
    drafted[call.owner, call.place] = call.drafts
    before_last = places[None] < seen.num_accepted[:, None]
    _wrong(call, (before_last & (tokens != drafted)).any(axis=1), seen, "what precedes the last token is not drafted")
    bonus = call.batch.bonus_token_ids.flatten().cpu().numpy()
    has_another = np.asarray((seen.num_accepted == lengths) & (seen.last != bonus))
    _wrong(call, has_another, seen, "all drafts were accepted, and the bonus token is another")


def _require_greedy(call: RejectionCall, seen: Verified, *, any_largest: bool) -> None:
    logits = call.batch.target_logits.float().cpu().numpy()
    greedy = call.batch.is_greedy.cpu().numpy()
    emitted = seen.tokens[call.owner, call.place].astype(np.int64)
    looked_at = seen.reached & greedy[call.owner] & ~(seen.accepted & call.setting["rates"])
    rows, known = np.arange(len(emitted)), np.clip(emitted, 0, logits.shape[1] - 1)
    best = np.argmax(logits, axis=1)  # of NaN the first, as torch.argmax has it
    is_right = emitted == best
    if any_largest:
        is_right |= logits[rows, known] == logits[rows, best]
    _wrong(call, _any_token(call, looked_at & ~is_right), seen, "it is greedy, and another logit is the largest")


def _require_verified(call: RejectionCall, seen: Verified, *, any_largest: bool) -> None:
    """Require what samplers do that verify token by token: rows without distribution, and greedy drafts."""
    logits = call.batch.target_logits.float().cpu().numpy()
    greedy, largest = call.batch.is_greedy.cpu().numpy()[call.owner], logits.max(axis=1)
    emitted, is_left = seen.tokens[call.owner, call.place], ~(seen.accepted & call.setting["rates"])
    no_row = seen.reached & ~np.isfinite(largest) & ~greedy & is_left
    documented = "a row without distribution rejects its draft, and gives token 0"
    _wrong(call, _any_token(call, no_row & (emitted != 0)), seen, documented)
    is_open = (logits == largest[:, None]).sum(axis=1) > 1 if any_largest else np.zeros(len(largest), dtype=bool)
    missed = seen.reached & greedy & ~seen.accepted & (call.drafts == np.argmax(logits, axis=1)) & ~is_open
    missed &= not call.setting["rates"]
    _wrong(call, _any_token(call, missed), seen, "it is greedy, and a draft with the largest logit was rejected")


def _require_decisions(call: RejectionCall, seen: Verified) -> None:
    """Require that certain drafts are accepted, impossible ones are not, and recovered tokens have residual mass."""
    ratios, own = call.ratios(), _decided(call)
    impossible = own & seen.accepted & (ratios <= 0)
    _wrong(call, _any_token(call, impossible), seen, "a draft without target probability was accepted")
    certain = own & seen.reached & ~seen.accepted & (ratios > (1 - _MARGIN if call.setting["rates"] else 1 + _MARGIN))
    _wrong(call, _any_token(call, certain), seen, "a draft that is more probable than its drafter says was rejected")
    tokens = np.flatnonzero(call.is_random[call.owner] & seen.reached & ~seen.accepted)
    if tokens.size:
        residuals = call.residuals(tokens)
        last = np.clip(seen.last[call.owner[tokens]], 0, residuals.shape[1] - 1)
        nothing = residuals[np.arange(len(tokens)), last] <= 0
        surely = nothing & call.has_residual(tokens) & (_shortfall(call, tokens, last) > _ROUNDING)
        _wrong(call, _any_token(call, tokens[surely]), seen, "the recovered token has no residual probability")


def _decided(call: RejectionCall) -> Flags:  # [num_tokens] bool
    """Return the drafts that a uniform decides on: all under rates, else those with distributions, if not denormal."""
    if call.setting["rates"]:
        return np.ones(len(call.owner), dtype=bool)
    target, draft = call.of_drafts()
    is_normal = ((target > _LEAST) | (target <= 0)) & ((draft > _LEAST) | (draft <= 0))
    return np.asarray(call.is_random[call.owner] & is_normal)


def _shortfall(call: RejectionCall, tokens: Ints, last: Ints) -> Float64s:
    """Return by how much a token's draft probability exceeds its target probability, relative; 1 if it has none."""
    target = call.target_probs[call.kinds[tokens], last]
    if call.draft_probs is None:
        return np.ones_like(target)
    draft = call.draft_probs[call.kinds[tokens], last]
    return np.where(target <= 0, 1.0, draft / np.maximum(target, 1e-300) - 1)


def _require_states(call: RejectionCall, emission: Emission, can: Capabilities) -> ExplicitNoise | None:
    """Require what a call may consume; return what it drew, where the contract says in which order."""
    noise = call.same_noise()
    assert isinstance(noise, SeededNoise)
    before = generator_states(noise, call.batch.device)
    for request, state in emission.generator_states.items():
        if call.batch.num_draft_tokens[request] == 0 and state != before[request]:
            raise WrongRow("a request without drafts moved its generator", call.number, request)
    if Capability.UPSTREAM_STREAM not in can:
        return None
    with seeded(noise, call.batch.device):
        drawn = draw_noise(call.batch, noise)
        ends = {**generator_states(noise, call.batch.device), -1: default_state(call.batch.device)}
    for request, state in {**emission.generator_states, -1: emission.default_state}.items():
        if state != ends[request]:
            whose = "torch's default generator" if request < 0 else "a request's generator"
            raise WrongRow(f"{whose} is not in the documented state", call.number, max(request, 0))
    return drawn


def _require_given_noise(call: RejectionCall, noise: ExplicitNoise, seen: Verified) -> None:
    uniforms, ratios = noise.uniforms.cpu().numpy(), call.ratios()
    own = _decided(call) & seen.reached & ((ratios > _LEAST) | (ratios <= 0))
    wrongly = own & seen.accepted & (ratios * (1 + _MARGIN) < uniforms)
    _wrong(call, _any_token(call, wrongly), seen, "a draft was accepted beyond its uniform")
    missed = own & ~seen.accepted & (ratios > uniforms * (1 + _MARGIN)) & (ratios > 0)
    _wrong(call, _any_token(call, missed), seen, "a draft was rejected below its uniform")
    exponentials = noise.exponentials.cpu().numpy().astype(np.float64)
    is_raced = call.is_random & (exponentials >= np.finfo(np.float32).tiny).all(axis=1)
    tokens = np.flatnonzero(is_raced[call.owner] & seen.reached & ~seen.accepted)
    if tokens.size:
        residuals = call.residuals(tokens)
        with np.errstate(over="ignore"):
            scores = residuals / exponentials[call.owner[tokens]]
        last = np.clip(seen.last[call.owner[tokens]], 0, residuals.shape[1] - 1)
        loses = scores[np.arange(len(tokens)), last] * (1 + _MARGIN) + _ROUNDED < scores.max(axis=1)
        losers = tokens[loses & call.has_residual(tokens)]
        _wrong(call, _any_token(call, losers), seen, "the recovered token does not win its race")


_COMPARED = 32
"""Requests of a call that are compared with the specification, bit for bit as far as the sampler's word goes."""


def _require_specified(sampler: RejectionSampler, call: RejectionCall, noise: ExplicitNoise, seen: Verified) -> None:
    rejected = np.flatnonzero(call.is_random[call.owner] & seen.reached & ~seen.accepted)
    from_nothing = _any_token(call, rejected[~call.has_residual(rejected)])  # REJ113 is about these
    rows = bulk_rng("specified", call.number).permutation(np.flatnonzero(~from_nothing))[:_COMPARED]
    if not rows.size:
        return
    part, own = call.batch.select(rows.tolist()), noise.select(call.batch, rows.tolist())
    _, differing = disagreement(sampler, part, own, seen.tokens[rows])
    _wrong(call, _are_among(call, rows[differing]), seen, "the specification emits other tokens from this noise")


_LEAST = 2.0**-100
"""Smaller ratios may be those of denormal numbers."""

_ROUNDING = 1e-5
"""Relative, of probabilities: as far as formulas of a sampler's own may move them."""

_ROUNDED = 1e-2
"""Absolute, of scores: a difference of two float32 probabilities is off by 1e-7, and an exponential may be 1e-5."""


_AT_ONCE = 48
_TILT = 1e-4
_Memory = dict[str, torch.Tensor]  # [...] any, each


def requests_of_serving_steps_repeat(sampler: RejectionSampler, trace: RejectionTrace) -> None:
    """A request with a seed, or with given noise, emits the same tokens when the same is asked again.

    It is asked in another order, among others, beside itself, in float32 and in memory that is used again, and alone;
    from seeds the whole call is repeated as well. Whatever the first batch did to it shows: its size, its
    neighbours, strides, an earlier call. Its generator is left in the same state, too: otherwise its next tokens depend
    on its neighbours.
    """
    rng = bulk_rng("again", trace.seed)
    for call, seen, states in asked_first(emit, sampler, trace):
        own = have_own_noise(call) & (np.array(call.batch.num_draft_tokens) > 0)
        if own.any():
            order = asked_again(own, rng, _AT_ONCE)
            memory: _Memory = {}
            for rows in (order, order[::-1], order[:1]):
                _require_same(sampler, call, seen, states, rows, memory)
        if isinstance(call.noise, SeededNoise):
            again = answered(emit, sampler, replace(call, noise=call.same_noise())).tokens
            _wrong(call, (seen != again).any(axis=1), read(call, seen), "the same call again emits other tokens")


def _require_same(
    sampler: RejectionSampler, call: RejectionCall, seen: Outputs, states: dict[int, int], rows: Ints, memory: _Memory
) -> None:
    batch, noise = _asked_again(call, rows)
    answer = emit(sampler, _in_memory(batch, memory), noise)
    again, how = states_of(answer), "alone" if len(rows) == 1 else f"among {len(rows)} others"
    for place, row in enumerate(rows.tolist()):
        width, what = call.batch.num_draft_tokens[row] + 1, ""
        first, other = seen[row, :width], answer.tokens[place, :width]
        if np.array_equal(first, other):
            what = "its generator gives other numbers" if again.get(place) != states.get(row) else ""
        elif not _is_near_tie(sampler, call, row, first, other):
            what = f"it emits {other[other >= 0].tolist()}"
        if what:
            _wrong(call, _are_among(call, [row]), read(call, seen), f"when the same is asked again {how}, {what}")


def _in_memory(batch: SpecDecodeBatch, memory: _Memory) -> SpecDecodeBatch:
    """Return the batch in tensors of an earlier one, where they fit: a server fills its buffers again."""
    for name, tensor in batch.tensors().items():
        kept = memory.get(name)
        memory[name] = tensor if kept is None or kept.shape != tensor.shape else kept.copy_(tensor)
    return batch.replace(**{name: memory[name] for name in batch.tensors()})


def _asked_again(call: RejectionCall, rows: Ints) -> tuple[SpecDecodeBatch, Noise]:
    batch = call.batch.select(rows.tolist())
    logits, longest = batch.target_logits.float().contiguous(), max(batch.num_draft_tokens)
    rates = None if batch.synthetic_rates is None else batch.synthetic_rates[:longest].clone()
    batch = batch.replace(target_logits=logits, max_spec_len=longest, synthetic_rates=rates)
    if isinstance(call.noise, ExplicitNoise):
        return batch, call.noise.select(call.batch, rows.tolist())
    seeds = {new: call.noise.request_seeds[old] for new, old in enumerate(rows.tolist())}
    return batch, seeds_of(call.setting, derive_seed("again", call.noise.seed), seeds, batch.device)


def _is_near_tie(
    sampler: RejectionSampler, call: RejectionCall, row: int, first: NDArray[np.int32], again: NDArray[np.int32]
) -> bool:
    """Whether the answers differ by a decision that was open up to rounding: tilted, it falls one way and the other."""
    place = int(np.flatnonzero(first != again)[0])
    if place >= call.batch.num_draft_tokens[row]:
        return False
    return all(
        _tilted(sampler, call, row, place, more=int(one[place]), less=int(other[place])) == one[place]
        for one, other in ((first, again), (again, first))
    )


def _tilted(sampler: RejectionSampler, call: RejectionCall, row: int, place: int, *, more: int, less: int) -> int:
    """Return what a request emits at `place`, asked alone, if one token is a little more likely and another less."""
    batch, noise = _asked_again(call, np.array([row]))
    logits = batch.target_logits.clone()
    for token, by in ((less, -_TILT), (more, _TILT)):
        if token >= 0:
            logits[place, token] += by
    return int(emit(sampler, batch.replace(target_logits=logits), noise).tokens[0, place])


# -- seeds ------------------------------------------------------------------------------------------------------------

_FLAT_SIZE, _SLOW_SIZE, _BLOCKS, _MANY = 8191, 1025, 4, 32


def seeds_of_a_family_recover_tokens_of_their_own(sampler: RejectionSampler, trace: RejectionTrace) -> None:
    """Seeds that one bit, a sign, a shift, a sum or swapped halves tell apart recover different tokens, and repeat. In
    steps of one noise, at positions that go on, each recovers other tokens than in the step before.

    Each has a draft that cannot be accepted, in four flat rows over a quarter of 8191 tokens, in consecutive calls; the
    seed of a call has six such requests in one call. Seeds differ in their lower 32 bits, because torch's generator on
    a CPU takes no more.
    """
    size = _SLOW_SIZE if sampler.capabilities.slow else _FLAT_SIZE

    def of_calls(seeds: list[int], _: int) -> Ints:  # [num_seeds, 6] int64
        return np.stack([_recovered(sampler, [0] * 6, SeededNoise(seed), size, 0) for seed in seeds])

    families_are_apart(of_calls, sampler.capabilities, trace.seed, of_calls=True)
    if Capability.REQUEST_SEEDS not in sampler.capabilities:
        return

    def signatures(seeds: list[int], _: int) -> Ints:  # [num_seeds, 4] int64
        # In another order seeds are asked under another seed of the call, which must not enter.
        noise = SeededNoise(derive_seed("families", trace.seed, seeds[0]), dict(enumerate(seeds)))
        return np.stack([_recovered(sampler, seeds, noise, size, block) for block in range(_BLOCKS)], axis=1)

    families_are_apart(signatures, sampler.capabilities, trace.seed)
    noise = SeededNoise(derive_seed("steps", trace.seed), {row: trace.seed + row for row in range(_MANY)})
    first, second = (_recovered(sampler, [0] * _MANY, noise, size, block) for block in (0, _BLOCKS))
    if np.count_nonzero(first == second) > _MANY // 4:  # once in 10^14 runs by chance, where 256 tokens are possible
        raise CheckFailure("requests with seeds recover the same tokens in two steps: their noise does not go on")


def _recovered(sampler: RejectionSampler, seeds: list[int], noise: SeededNoise, size: int, block: int) -> Ints:
    """Return the token that each request recovers when one quarter of the ids is possible, and draft 0 is not.

    Blocks 4 to 7 are the same quarters, at the next position.
    """
    rows, device, quarter = len(seeds), sampler.device, size // _BLOCKS
    place, first = divmod(block, _BLOCKS)
    logits = torch.full((rows, size), -torch.inf, device=device)
    logits[:, 1 + first * quarter : 1 + (first + 1) * quarter] = 0
    whole = torch.ones(rows, dtype=torch.int32, device=device)
    dense = Capability.ONE_HOT_DRAFTS not in sampler.capabilities
    batch = SpecDecodeBatch(
        draft_token_ids=whole * 0,
        num_draft_tokens=[1] * rows,
        cu_num_draft_tokens=whole.cumsum(0, dtype=torch.int32),
        max_spec_len=1,
        draft_probs=torch.eye(1, size, device=device).repeat(rows, 1) if dense else None,
        target_logits=logits,
        bonus_token_ids=whole[:, None].clone(),
        temperature=torch.ones(rows, device=device),
        positions=torch.full((rows,), place, device=device),
    )
    return emit(sampler, batch, noise).tokens[:, 0].astype(np.int64)


TRACES = trace_checks(
    "rejection",
    "REJ70",
    rejection_trace_for,
    legal=steps_of_a_serving_trace_are_legal,
    repeat=requests_of_serving_steps_repeat,
    apart=seeds_of_a_family_recover_tokens_of_their_own,
    seeds=Capability.SEEDED_NOISE,
    depends_on=("REJ501",),
)
