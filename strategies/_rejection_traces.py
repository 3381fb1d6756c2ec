"""Serving traces of the rejection contract: some hundred verification steps of one sampler, as arrays.

The requests are those of `_serving`; each has some drafts in every call, and a target row and a draft distribution at
each of its positions. Half of the drafts are drawn from the draft distribution, as an engine's are; the others are what
seldom is drafted: ids of the target's tail, at the vocabulary's ends, placeholders. A scheme that does not verify token
by token is lossless for what a drafter draws, and gets nothing else where drafts have a distribution.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fairdraw import contracts
from fairdraw._core.array_types import Flags, Float32s, Float64s, Ints, PerRequest
from fairdraw._core.seeds import derive_seed
from fairdraw._oracles.supports import softmax_of_rows
from fairdraw.contracts import MAX_SPEC_LEN, PLACEHOLDER_TOKEN_ID, Capability, ExplicitNoise, Noise, SpecDecodeBatch
from fairdraw.strategies._cases import RejectionCase, strided_like
from fairdraw.strategies._sampling_traces import NUM_ROWS, TEMPERATURES, rows_of_dtypes, spoil
from fairdraw.strategies._serving import ServedRows, greedy_requests, settings_of_calls
from fairdraw.strategies._serving_traces import SETTINGS, Player, ServingTrace, kept_seeds, needs_of
from fairdraw.strategies.rows import bulk_rng

_SETTINGS = SETTINGS | {
    "noise": ("call", "some seeds", "all seeds", "seeds that went on", "explicit"),
    "drafts": ("dense", "one-hot"),
    "lengths": ("equal", "ragged", "ragged", "some none", "long"),
    "alike": ("nothing", "nothing", "rows"),
    "placeholders": (False, False, True),
    "slack": (0, 0, 3),
    "rates": (False, False, False, True),
}
_NEEDS = needs_of(
    (Capability.REQUEST_SEEDS, "noise", "seeds that went on"),
    (Capability.DENSE_DRAFTS, "drafts", "dense"),
    (Capability.ONE_HOT_DRAFTS, "drafts", "one-hot"),
    (Capability.RAGGED, "lengths", "ragged", "some none", "long"),
    (Capability.RAGGED, "slack", 3),
    (Capability.PLACEHOLDER_DRAFTS, "placeholders", True),
    (Capability.SYNTHETIC_RATES, "rates", True),
)

_USUAL, _MOST_TOKENS, _LONG = 5, 3000, 18
"""Drafts of a request in most calls; of a call in all; and of long requests, for each row of the largest batch."""

_NAMED = np.array([*TEMPERATURES, 1e-6, 2.0**-126])
"""Temperatures of one request in four; others have any up to 2. However small one is: only 0 is greedy."""

_RATES = (0.0, 0.25, 0.5, 0.9, 1.0)
_ODD = 40
"""Draft tokens from one without distribution to the next."""

NUM_VARIANTS = 4
"""Draft distributions for each target row; the last is nearly the target, so that its drafts are accepted."""

_PEAKED = 11
"""A row of which one token has nearly all of the probability."""


@dataclass(frozen=True)
class RejectionCall:
    """One verification step of a trace.

    Args:
        number: Of the call within its trace, from 0.
        setting: The call's own features.
        rows: Who stands where.
        owner: The request's row of each draft token, and `place` its number among that request's drafts.
        kinds: Number of each draft token's target row and draft distribution, `variants` of the latter alone.
        target_probs, draft_probs: In float64, of each kind; no draft distribution (`None`) if drafts are one-hot.
        is_odd: Requests one of whose target rows holds a NaN, or no token at all.
    """

    number: int
    setting: dict[str, Any]
    batch: SpecDecodeBatch
    noise: Noise
    rows: ServedRows
    owner: Ints  # [num_tokens] int64
    place: Ints  # [num_tokens] int64
    kinds: Ints  # [num_tokens] int64
    logit_rows: Ints  # [num_tokens] int64
    variants: Ints  # [num_tokens] int64
    target_probs: Float64s  # [num_kinds, vocab_size] float64
    draft_probs: Float64s | None  # [num_kinds, vocab_size] float64
    is_odd: Flags  # [batch_size] bool

    @property
    def drafts(self) -> Ints:  # [num_tokens] int64
        """The draft token ids."""
        return self.batch.draft_token_ids.cpu().numpy().astype(np.int64)

    @property
    def is_random(self) -> Flags:  # [batch_size] bool
        """Whether the request has distributions, and its recovered token is drawn from one."""
        return np.asarray(~self.batch.is_greedy.cpu().numpy() & ~self.is_odd)

    def of_drafts(self) -> tuple[Float64s, Float64s]:  # [num_tokens] float64 each
        """Return the target and the draft probability of each draft; of a placeholder those of token 0."""
        known = np.maximum(self.drafts, 0)
        target = self.target_probs[self.kinds, known]
        return target, np.ones_like(target) if self.draft_probs is None else self.draft_probs[self.kinds, known]

    def ratios(self) -> Float64s:  # [num_tokens] float64
        """Return what each uniform is compared with: the rate, or target over draft probability; 0 if none accepts."""
        target, draft = self.of_drafts()
        ratio = np.divide(target, draft, out=np.zeros_like(target), where=draft > 0)
        if self.batch.synthetic_rates is not None:
            ratio = self.batch.synthetic_rates.double().cpu().numpy()[self.place]
        return np.where(self.drafts >= 0, ratio, 0.0)

    def acceptance(self) -> Float64s:  # [num_tokens] float64
        """Return the probability that each draft is accepted, given that those before it were."""
        return np.minimum(self.ratios(), 1.0)

    def select(self, rows: Sequence[int]) -> RejectionCall:
        """Return the call with these requests alone."""
        tokens, batch, noise = self.batch.token_rows(rows).cpu().numpy(), self.batch.select(rows), self.noise
        if isinstance(noise, ExplicitNoise):
            noise = noise.select(self.batch, rows)
        else:
            noise = seeds_of(self.setting, noise.seed, kept_seeds(noise.request_seeds, rows), batch.device)
        of_tokens = {name: getattr(self, name)[tokens] for name in ("place", "kinds", "logit_rows", "variants")}
        owner, index = np.repeat(np.arange(len(rows)), batch.num_draft_tokens), np.array(rows)
        taken, is_odd = self.rows.taken(index), self.is_odd[index]
        return replace(self, batch=batch, noise=noise, rows=taken, owner=owner, is_odd=is_odd, **of_tokens)

    def same_noise(self) -> Noise:
        """Return the call's noise as it was before the call."""
        if isinstance(self.noise, ExplicitNoise):
            return self.noise
        return seeds_of(self.setting, self.noise.seed, self.noise.request_seeds, self.batch.device)

    def residuals(self, tokens: Ints) -> Float64s:  # [len(tokens), vocab_size] float64
        """Return the distribution of the token that replaces each of these draft tokens (numbers of rows)."""
        left = self._left(tokens)
        return np.asarray(left / np.maximum(left.sum(axis=1, keepdims=True), 1e-300))

    def _left(self, tokens: Ints) -> Float64s:  # [len(tokens), vocab_size] float64
        """Return what is left of the target once the draft probabilities are taken away."""
        left, drafts = self.target_probs[self.kinds[tokens]], self.drafts[tokens]
        if self.draft_probs is not None:
            return np.maximum(left - self.draft_probs[self.kinds[tokens]], 0.0)
        rows = np.flatnonzero(drafts >= 0)
        left[rows, drafts[rows]] = 0.0  # the index made a copy
        return left

    def is_lossless(self) -> Flags:  # [num_tokens] bool
        """Return at which positions a token follows the target, whatever the scheme: there are no rates, and no
        placeholder of the request has a distribution."""
        given_up = self.owner[(self.drafts < 0) & (self.draft_probs is not None)]
        return np.asarray(~np.isin(self.owner, given_up) & (self.batch.synthetic_rates is None))

    def drafted_too_often(self, tokens: Ints, emitted: Ints) -> tuple[Flags, Float64s]:  # [len(tokens)] each
        """Return whether what was emitted for these draft tokens is drafted more often than the target says; and the
        target's chance of that. What a scheme accepts or recovers wrongly moves mass between such tokens and others."""
        kinds, drafts = self.kinds[tokens], self.drafts[tokens]
        if self.draft_probs is None:
            return emitted == drafts, self.of_drafts()[0][tokens] * (drafts >= 0)
        members = self.draft_probs > self.target_probs
        chance = np.sum(self.target_probs, axis=1, where=members)[kinds]
        return members[kinds, emitted], np.where(chance > 1 - 1e-6, 1.0, chance)

    def has_residual(self, tokens: Ints) -> Flags:  # [len(tokens)] bool
        """Return whether a rejection leaves a distribution that is not one of rounding, and that all engines agree on.

        Engines differ where a placeholder has a draft distribution: the residual, or the target.
        """
        is_left_to_engines = (self.drafts[tokens] < 0) & (self.draft_probs is not None)
        return np.asarray((self._left(tokens).sum(axis=1) > _NOTHING_LEFT) & ~is_left_to_engines)


_NOTHING_LEFT = 1e-5
"""A residual with less mass than that is one of rounding; such rows are not judged."""


def seeds_of(setting: Mapping[str, Any], seed: int, own: Mapping[int, int], device: Any) -> contracts.SeededNoise:
    """Return seeds, whose generators other steps have drawn from already if the setting says so."""
    noise = contracts.SeededNoise(seed, own)
    if setting["noise"] == "seeds that went on":
        for place, generator in noise.generators(device).items():
            torch.rand(1 + own[place] % 5, dtype=torch.float64, device=device, generator=generator)
    return noise


@dataclass(frozen=True)
class Verified:
    """An output, read along its drafts.

    Args:
        num_emitted: Tokens before the trailing placeholders, per request.
        accepted: Whether each draft was verified and accepted, `reached` whether it was verified at all.
        last: The token behind the accepted drafts, per request; -1 if there is none.
    """

    tokens: NDArray[np.int32]  # [batch_size, max_spec_len + 1] int32
    num_emitted: Ints  # [batch_size] int64
    num_accepted: Ints  # [batch_size] int64
    accepted: Flags  # [num_tokens] bool
    reached: Flags  # [num_tokens] bool
    last: Ints  # [batch_size] int64


def read(call: RejectionCall, tokens: NDArray[np.int32]) -> Verified:
    """Return what became of each draft: those before the last emitted token were accepted."""
    width = tokens.shape[1]
    filled = tokens != PLACEHOLDER_TOKEN_ID
    num_emitted = np.where(filled.any(axis=1), width - np.argmax(filled[:, ::-1], axis=1), 0)
    num_accepted = np.maximum(num_emitted - 1, 0)
    accepted = call.place < num_accepted[call.owner]
    reached = call.place <= num_accepted[call.owner]
    rows = np.arange(len(tokens))
    last = np.where(num_emitted > 0, tokens[rows, np.maximum(num_emitted - 1, 0)], PLACEHOLDER_TOKEN_ID)
    return Verified(tokens, num_emitted, num_accepted, accepted, reached, last.astype(np.int64))


@dataclass(frozen=True, repr=False)
class RejectionTrace(ServingTrace):
    """Calls of one rejection sampler."""

    def played(self, device: str = "cpu") -> Iterator[RejectionCall]:
        """Yield the calls; each is built when it is asked for."""
        yield from _Player(self, device).calls()


RejectionCase.others = (RejectionTrace,)


def rejection_trace_for(sampler: Any, *fields: Any, flat: bool = False) -> RejectionTrace:  # Any: of the contract
    """Return a trace for `sampler`; seeds stay if it follows its rows, and draws by (seed, position)."""
    followed = contracts.follows_rows(sampler)
    by_position = followed and Capability.COUNTER_NOISE in sampler.capabilities
    return replace(RejectionTrace(*fields), flat=flat, followed=followed, by_position=by_position)


# -- rows of a trace --------------------------------------------------------------------------------------------------


_BLENDED = 0.01
"""Mass that a draft distribution has at least where the target has less; none at a vocabulary of one."""


_TILES = (1024, 128, 4096, 8192)
"""Sizes of tiles that kernels have. Wider rows than the first have a token where a last tile begins or ends that is
three times as likely as all others."""


@lru_cache(maxsize=4)
def _target_rows(size: int, seed: int) -> dict[str, torch.Tensor]:
    """Return the target rows as each dtype holds them, `[24, vocab_size]`: those of sampling's traces, but for tokens
    at ends of tiles, and for a row whose best token comes 65 times as often as all others."""
    exact, rows = rows_of_dtypes(size, seed), np.arange(NUM_ROWS)
    edged, chosen = exact["float32"].clone(), rows[rows % 3 > 0]
    if size > _TILES[0]:
        tiles = np.array(_TILES)[rows // 3 % len(_TILES)]
        ends = np.where(rows % 3 == 1, size - 1, (size - 1) // tiles * tiles)
        edged[chosen, ends[chosen]] = edged[chosen].logsumexp(dim=1) + np.log(3)
    peaked, best = edged[_PEAKED], int(edged[_PEAKED].argmax())
    peaked[best] = -torch.inf
    peaked[best] = max(float(peaked.logsumexp(dim=0)) + np.log(65), -1e4)  # finite for a vocabulary of one
    return {name: edged.to(rows_of_dtype.dtype) for name, rows_of_dtype in exact.items()}


@lru_cache(maxsize=2 * NUM_ROWS)
def _draft_rows(size: int, seed: int, number: int) -> Float32s:  # [4, vocab_size] float32, rows sum to 1
    """Return the draft distributions of a row: near the target, flat, of another row, and nearly the target itself.

    A rejection must leave something to recover, so a distribution that equals the target gives a hundredth of itself to
    the least probable token.
    """
    targets = _target_rows(size, seed)["float32"]
    logits, other = targets[[number, (number + 5) % NUM_ROWS]].double().numpy()
    near = logits + bulk_rng("draft rows", size, seed, number).normal(0, 1, size)
    probs = softmax_of_rows(np.stack([near, np.where(np.isfinite(logits), 0.0, -2.0), other, logits]))
    wanted = softmax_of_rows(logits[None])[0]
    alike = np.flatnonzero(np.maximum(wanted - probs, 0).sum(axis=1) < _BLENDED)
    probs[alike] *= 1 - _BLENDED
    probs[alike, np.argmin(wanted)] += _BLENDED
    if number == _PEAKED:  # a drafter that is sure: one of 66 drafts is rejected, so that late places count
        probs[-1] = np.eye(1, size, int(np.argmax(wanted)))
    return np.asarray(probs, dtype=np.float32)


@lru_cache(maxsize=2 * NUM_ROWS)
def _target_probs(size: int, seed: int, dtype: str, number: int) -> Float64s:  # [vocab_size] float64
    return np.asarray(_target_rows(size, seed)[dtype][number].double().softmax(dim=-1).numpy())


# -- playing ----------------------------------------------------------------------------------------------------------


class _Player(Player):
    """Builds the calls of one trace."""

    def __init__(self, trace: RejectionTrace, device: str) -> None:
        super().__init__(trace, device)
        # Eight arrays, one after the other: each has all pairs, and together they have most triples.
        choices = self.choices(_SETTINGS)
        arrays = (settings_of_calls(choices, _NEEDS, trace.without, trace.seed + by) for by in range(8))
        self.settings = [setting for array in arrays for setting in array]

    def _lengths(self, how: str, number: int, request: Ints) -> PerRequest:
        """Return the number of drafts of each request; all numbers up to 128 come, call after call."""
        size, most = len(request), MAX_SPEC_LEN if str(Capability.LONG_DRAFTS) not in self.trace.without else 8
        usual, more = max(1, min(_USUAL, _MOST_TOKENS // size)), self.trace.more_drafts
        if how == "equal":
            fitting = [*range(1, usual + 1), *[drafts for drafts in more if drafts * size <= _MOST_TOKENS] * 2]
            return np.full(size, fitting[number % len(fitting)])
        own = self.of(16 + number, request, usual + 1)
        if more:
            own[number % size] = more[number % len(more)]
        if how == "some none":
            return np.where(self.of(7, request, 2) == 0, 0, own)
        if how == "long":
            long = (number + np.arange(min(size, max(1, self.trace.most_rows * _LONG // most)))) % size
            own[long] = (number * 7 + 11 * np.arange(len(long))) % (most + 1)
        return own

    def call(self, number: int, rows: ServedRows) -> RejectionCall:
        setting, request, trace = self.settings[number % len(self.settings)], rows.request, self.trace
        lengths = self._lengths(setting["lengths"], number, request)
        lengths[-1] += not lengths.any()
        owner = np.repeat(np.arange(len(request)), lengths)
        place = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        row = self.of(1, request[owner] * 131 + place, NUM_ROWS)
        variant = self.of(2, request[owner] * 131 + place, NUM_VARIANTS)
        if trace.flat or setting["alike"] == "rows":
            row[:], variant[:] = (0, 0) if trace.flat else (number % 3, number % NUM_VARIANTS)
        # Drafts before some place, or all, are nearly certain, so that every place of long requests is reached.
        is_sure = (place < (number * 13 + owner) % (2 * lengths[owner] + 1)) & (setting["lengths"] == "long")
        row[is_sure], variant[is_sure] = _PEAKED, NUM_VARIANTS - 1
        different, kinds = np.unique(row * NUM_VARIANTS + variant, return_inverse=True)
        of_kinds = [divmod(kind, NUM_VARIANTS) for kind in different.tolist()]
        own = trace.vocab_size, trace.seed
        target_probs = np.stack([_target_probs(*own, setting["dtype"], target) for target, _ in of_kinds])
        dense = setting["drafts"] == "dense"
        draft_probs = np.stack([_draft_rows(*own, target)[variant] for target, variant in of_kinds]) if dense else None
        is_greedy = greedy_requests(setting["greedy"], self.of(3, request, 4) == 0)
        drafts = self._drafts(setting, number, kinds, target_probs, draft_probs, is_greedy[owner], is_sure)
        is_odd = np.zeros(len(request), dtype=bool)
        if setting["odd row"] != "none" and len(request) > 1:
            is_odd[owner[number % len(owner) :: _ODD]] = True
        batch = self._batch(setting, number, rows, lengths, row, kinds, draft_probs, drafts, owner, is_greedy, is_odd)
        noise = self._noise(setting, number, rows, len(owner))
        exact = None if draft_probs is None else draft_probs.astype(np.float64)
        features = (owner, place, kinds, row, variant, target_probs, exact, is_odd)
        call = RejectionCall(number, setting, batch, noise, rows, *features)
        if isinstance(call.noise, ExplicitNoise):
            _aim(call, call.noise, bulk_rng("aim", trace.seed, number))
        return call

    def _drafts(
        self,
        setting: dict[str, Any],
        number: int,
        kinds: Ints,
        target_probs: Float64s,
        draft_probs: Float32s | None,
        is_greedy: Flags,  # [num_tokens] bool
        is_sure: Flags,  # [num_tokens] bool
    ) -> Ints:  # [num_tokens] int64
        """Return the draft tokens: most drawn as a drafter would, or the best of greedy requests; some unlikely."""
        rng, size = bulk_rng("drafts", self.trace.seed, number), self.trace.vocab_size
        cumulated = np.cumsum(target_probs if draft_probs is None else draft_probs, axis=1, dtype=np.float64)
        found = np.empty(len(kinds), dtype=np.int64)
        uniforms = rng.random(len(kinds)) * cumulated[kinds, -1]
        for kind in range(len(cumulated)):
            own = np.flatnonzero(kinds == kind)
            found[own] = np.searchsorted(cumulated[kind], uniforms[own], side="right")
        found = np.minimum(found, size - 1)
        rarity = 0.3 if draft_probs is None else 0.1 * (str(Capability.TOKEN_VERIFICATION) not in self.trace.without)
        odd = rng.random(len(kinds)) < rarity
        others = rng.choice(np.array([0, size - 1, size // 2, *(rng.integers(size, size=5))]), len(kinds))
        if draft_probs is not None:  # what a drafter cannot draw has a check of its own, REJ112
            odd &= draft_probs[kinds, others] > 0
        found = np.where(odd, others, found)
        # Only token by token is a draft judged that no drafter drew.
        is_best = (is_sure & (rarity > 0)) | (is_greedy & (rng.random(len(kinds)) < 0.97))
        found = np.where(is_best, np.argmax(target_probs, axis=1)[kinds], found)
        if setting["placeholders"] and size > 1:  # a rejection would leave nothing of the only token
            found = np.where(rng.random(len(kinds)) < 0.1, PLACEHOLDER_TOKEN_ID, found)
        return found

    def _batch(
        self,
        setting: dict[str, Any],
        number: int,
        rows: ServedRows,
        lengths: Ints,
        row: Ints,
        kinds: Ints,
        draft_probs: Float32s | None,
        drafts: Ints,
        owner: Ints,
        is_greedy: Flags,
        is_odd: Flags,
    ) -> SpecDecodeBatch:
        logits = _target_rows(self.trace.vocab_size, self.trace.seed)[setting["dtype"]][torch.from_numpy(row)]
        for request in np.flatnonzero(is_odd):
            spoiled = int(np.flatnonzero(owner == request)[-(number % 2)])  # the first, or the last
            spoil(logits[spoiled], spoiled, setting["odd row"])
        # Logits are processed: a temperature says who is greedy, and nothing else.
        heat = (1 + self.of(9, rows.request, 2**16)) / 2**15  # up to 2
        is_named = self.of(10, rows.request, 4) == 0
        heat[is_named] = _NAMED[self.of(9, rows.request[is_named], len(_NAMED))]
        temperature = np.where(is_greedy, 0.0, heat).astype(np.float32)
        bonus = self.of(8, rows.request * 1009 + rows.age, self.trace.vocab_size).astype(np.int32)
        counts = [int(length) for length in lengths]
        most = min(MAX_SPEC_LEN, max(counts) + setting["slack"])
        rates = bulk_rng("rates", self.trace.seed, number).choice(_RATES, most).astype(np.float32)
        batch = SpecDecodeBatch(
            draft_token_ids=torch.from_numpy(drafts.astype(np.int32)),
            num_draft_tokens=counts,
            cu_num_draft_tokens=torch.from_numpy(np.cumsum(lengths).astype(np.int32)),
            max_spec_len=most,
            draft_probs=None if draft_probs is None else torch.from_numpy(draft_probs[kinds]),
            target_logits=strided_like(logits, setting["layout"]),
            bonus_token_ids=torch.from_numpy(bonus)[:, None],
            temperature=torch.from_numpy(temperature),
            synthetic_rates=torch.from_numpy(rates) if setting["rates"] else None,
            positions=self.positions(rows, MAX_SPEC_LEN + 1)
            if self.trace.followed and self.trace.by_position
            else None,
        )
        return batch if self.device == "cpu" else batch.to(self.device)

    def _noise(self, setting: dict[str, Any], number: int, rows: ServedRows, num_tokens: int) -> Noise:
        if setting["noise"] == "explicit":
            rng = bulk_rng("numbers", self.trace.seed, number)
            raced = torch.from_numpy(self.exponentials(rng, len(rows.request)))
            return ExplicitNoise(torch.from_numpy(rng.random(num_tokens)).to(self.device), raced.to(self.device))
        own = self.seeds_of_rows(setting["noise"], rows, number)
        return seeds_of(setting, derive_seed("call", self.trace.seed, number), own, self.device)


_AIMED = 2.0**-100
"""An exponential with which a token wins its race, however small its probability is."""
_BESIDE = 3e-4
"""Relative: so near to a ratio, a uniform still decides clearly."""
_TIED, _NEARLY, _BEHIND = 3, 4, 1e-3
"""Float64s of the aims at two tokens of one share: at the same time, or one a thousandth behind the other."""


def _aim(call: RejectionCall, noise: ExplicitNoise, rng: np.random.Generator) -> None:
    """Move half of the uniforms to the ratios that they decide on or beside them, and half of the races to edges.

    What only a fault elsewhere brings about (uniform 0, denormal exponentials, no residual) has checks of its own.
    """
    _aim_uniforms(call, noise, rng)
    firsts = np.flatnonzero(call.place == 0)
    residuals, owners = call.residuals(firsts), torch.from_numpy(call.owner[firsts])
    rarest = np.argmin(np.where(residuals > 0, residuals, np.inf), axis=1)
    any_token, aim = rng.integers(residuals.shape[1], size=len(firsts)), rng.integers(8, size=len(firsts))
    like = any_token.copy()
    for row in np.flatnonzero((aim == _TIED) | (aim == _NEARLY)):
        like[row] = rng.choice(np.flatnonzero(residuals[row] == residuals[row, any_token[row]]))
    drafted = np.maximum(call.drafts[firsts], 0)
    pairs = [(_TIED, like, 1.0), (_TIED, any_token, 1.0), (_NEARLY, like, 1.0), (_NEARLY, any_token, 1 + _BEHIND)]
    for which, tokens, factor in [(0, rarest, 1.0), (1, drafted, 1.0), (2, any_token, 1.0), *pairs]:
        rows = torch.from_numpy(aim == which)
        noise.exponentials[owners[rows], torch.from_numpy(tokens)[rows]] = _AIMED * factor


def _aim_uniforms(call: RejectionCall, noise: ExplicitNoise, rng: np.random.Generator) -> None:
    chance, least, most = call.acceptance(), 2.0**-53, 1 - 2.0**-53
    quotient = chance if call.setting["rates"] else _float32_quotients(call.batch)
    exact = np.where((quotient > 0) & (quotient < 1), quotient, most)
    values = (
        np.maximum(chance * (1 - _BESIDE), least),
        np.clip(chance * (1 + _BESIDE), least, most),
        np.full(len(chance), least),
        np.full(len(chance), most),
        exact,
        np.minimum(np.nextafter(exact, 1), most),
    )
    how = rng.integers(2 * len(values), size=len(chance))
    uniforms = noise.uniforms.cpu().numpy().copy()
    for which, value in enumerate(values):
        uniforms[how == which] = value[how == which]
    noise.uniforms.copy_(torch.from_numpy(uniforms))


def _float32_quotients(batch: SpecDecodeBatch) -> Float64s:  # [num_tokens] float64
    """Return target over draft probability of each draft, divided in float32."""
    rows, known = torch.arange(batch.num_tokens), batch.draft_token_ids.long().clamp(min=0).cpu()
    target = batch.target_probs().cpu()[rows, known]
    return (target if batch.draft_probs is None else target / batch.draft_probs.cpu()[rows, known]).double().numpy()
