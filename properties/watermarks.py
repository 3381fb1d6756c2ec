"""The checks of the watermarks contract: what a key and a context decide, what they leave alone, and the detector.

10x are single calls, 11x the keyed numbers and the detector, 201 serving traces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from hypothesis import strategies as st

from fairdraw._core.array_types import Float64s, Ints
from fairdraw._core.checks import Check, Conditions
from fairdraw._core.seeds import derive_seed
from fairdraw._oracles.supports import Support, log_error
from fairdraw._oracles.watermarks import contexts_of, counted_places, gamma_tail, marks, weights_under
from fairdraw.contracts import (
    Capabilities,
    Capability,
    Context,
    FunctionWatermarker,
    RaceNoise,
    SamplingNoise,
    SeededNoise,
    WatermarkBatch,
    WatermarkedRequest,
    WatermarkPolicy,
    policy_of,
)
from fairdraw.contracts._watermarks import numbers_of_contexts, p_value_of, require_part, sample_marked
from fairdraw.properties._rejection_asserts import broken
from fairdraw.properties._sampling_asserts import POSITIVE, are_allowed, supports_of
from fairdraw.properties._traces import left_alone
from fairdraw.strategies._recipe import DTYPES
from fairdraw.strategies._serving_traces import kept_seeds
from fairdraw.strategies.sampling import SampledRequest
from fairdraw.strategies.watermarks import WatermarkedText, WatermarkTrace, watermark_traces

__all__ = ["CHECKS"]

_CAUGHT_BELOW = 1e-6
"""A p-value of marked texts of `_LONG` tokens in flat rows is far smaller, and one of plain text almost never."""
_LONG, _FLAT_VOCAB = 48, 64


def decides(policy: WatermarkPolicy) -> bool:
    """Whether key and context alone decide a marked token."""
    return policy.scheme == "gumbel" and policy.keys != "drawn"


@dataclass(frozen=True)
class WatermarkCheck(Check):
    """A check of what not every sampler has.

    Args:
        part: An attribute that the sampler must have.
        where: Whether the check means something under a policy, and what is missing if not.
    """

    part: str = field(default="", kw_only=True)
    where: tuple[Callable[[WatermarkPolicy], bool], str] = field(default=(lambda _: True, ""), kw_only=True)

    def judge(self, sampler: Any, under: Conditions) -> int:  # Any: a Watermarker
        """Run the check, unless the sampler has no such part, or another policy."""
        require_part(sampler, self.part, self.where)
        return super().judge(sampler, under)


Cases = Callable[[Capabilities], "st.SearchStrategy[WatermarkTrace]"]


def _check(code: str, cases: Cases = watermark_traces, **fields: Any) -> Callable[[Any], WatermarkCheck]:  # Any: a body
    """Make a check of traces."""
    return lambda body: WatermarkCheck.named(body, code, contract="watermarks", cases=cases, body=body, **fields)


_DECIDED = (decides, "its key and context do not decide a token alone")
_OWN_NOISE = ((Capability.EXPLICIT_NOISE, Capability.REQUEST_SEEDS),)


def _own_noise(can: Capabilities, **narrow: Any) -> st.SearchStrategy[WatermarkTrace]:  # Any: of `watermark_traces`
    """Draw steps in which the noise of a request is its own."""
    kind = "explicit" if Capability.EXPLICIT_NOISE in can else "request_seed"
    return watermark_traces(can, **{kind: True, **narrow})


_TELLING: dict[str, Any] = {  # Any: of `watermark_traces`
    **{"min_vocab_size": 31, "min_requests": 3, "max_requests": 6},
    **{"logits": POSITIVE, "temperatures": (1.0, 0.7, 2.0, 30.0), "exponentials": ("random", "twins")},
}
"""Few rows of few tokens, or with one that is certain, draw the right one by chance."""


def _marked(can: Capabilities, **narrow: Any) -> st.SearchStrategy[WatermarkTrace]:  # Any: of `watermark_traces`
    """Draw steps in which every context may mark."""
    return watermark_traces(can, greedy=False, marked=True, **_TELLING, **narrow)


# What a row should be


@dataclass(frozen=True)
class Rows:
    """The rows of one call, and what was drawn."""

    sampler: FunctionWatermarker
    batch: WatermarkBatch
    noise: SamplingNoise
    tokens: Ints  # [batch_size] int64

    @classmethod
    def of(cls, sampler: FunctionWatermarker, batch: WatermarkBatch, noise: SamplingNoise) -> Rows:
        """Draw once."""
        return cls(sampler, batch, noise, sample_marked(sampler, batch, noise))

    @property
    def policy(self) -> WatermarkPolicy:
        """How the sampler marks."""
        return policy_of(self.sampler, WatermarkPolicy)

    def contexts(self) -> list[Context | None]:
        """Return the context of each row that must be marked, `None` of the others."""
        greedy, width = self.batch.is_greedy.tolist(), self.batch.setup.context_width
        found: list[Context | None] = []
        for is_greedy, text in zip(greedy, self.batch.requests, strict=True):
            *before, now = contexts_of(self.policy, width, text.prompt_token_ids, text.output_token_ids)
            is_marked = text.is_marked and not is_greedy and marks(self.policy, width, now, before)
            found.append(now if is_marked else None)
        return found

    def faults(self) -> Iterator[str]:
        """Yield what is wrong, row by row."""
        logits = self.batch.logits.float().cpu().numpy()
        greedy, contexts = self.batch.is_greedy.tolist(), self.contexts()
        for row, support in enumerate(supports_of(cast("Any", self.sampler), self.batch)):
            token = int(self.tokens[row])
            if not 0 <= token < self.batch.vocab_size:
                yield f"row {row} got token {token}, which is not in the vocabulary"
            elif greedy[row] and logits[row, token] < logits[row].max():
                yield f"row {row} is greedy and got token {token}, but token {logits[row].argmax()} is the largest"
            elif support is not None and not support.allowed[token]:
                yield f"row {row} got token {token}, which its filters remove"
            elif support is not None:
                yield from self._lost_race(row, token, support, contexts[row])

    def _lost_race(self, row: int, token: int, support: Support, context: Context | None) -> Iterator[str]:
        """Yield that a row's token loses every race that may have decided it, if it does."""
        scale = np.abs(self.batch.logits[row].float().cpu().numpy())
        heat = min(1.0, float(self.batch.temperature[row]))
        races = list(self._races(row, support, context))
        for scores, magnitude in races:
            slack = log_error(float(scale[np.isfinite(scale)].max(initial=0)) / heat, magnitude)
            if scores[token] >= scores[support.required].max(initial=-np.inf) - slack:
                return
        if races:
            scores, kind = races[0][0], "marked by context" if context is not None else "not marked, and drew by"
            names = f"{context}" if context is not None else "its own noise"
            yield f"row {row} is {kind} {names}: token {scores.argmax()} wins its race, and it got token {token}"

    def _races(self, row: int, support: Support, context: Context | None) -> Iterator[tuple[Float64s, float]]:
        """Yield the logarithms of scores, and the largest magnitude of the noise in them."""
        setup, size = self.batch.setup, self.batch.vocab_size
        with np.errstate(divide="ignore"):
            if context is None:
                yield from self._race(row, support, support.probs)
            elif self.sampler.watermark_numbers is not None:
                for numbers in numbers_of_contexts(self.sampler, setup, [context], size)[:, :, 0]:
                    if self.policy.scheme == "gumbel":
                        noise = -np.log(-np.log(numbers[0]))
                        yield np.log(support.probs) + noise, float(np.abs(noise).max())
                    elif support.is_settled:
                        weights = weights_under(self.policy.scheme, support.distribution(), numbers, setup.bias)
                        yield from self._race(row, support, weights)

    def _race(self, row: int, support: Support, weights: Float64s) -> Iterator[tuple[Float64s, float]]:
        """Yield the race by exponentials that were handed in, of a sampler that uses them so."""
        if isinstance(self.noise, RaceNoise) and Capability.REFERENCE_RACE in self.sampler.capabilities:
            noise = -np.log(self.noise.exponentials[row].double().cpu().numpy())
            yield np.log(weights) + noise, float(np.abs(noise).max())

    def require(self) -> None:
        """Fail if a row is wrong."""
        for fault in self.faults():
            broken(fault)


def _called(sampler: FunctionWatermarker, case: WatermarkTrace) -> Rows:
    """Build the first step of a case and draw once."""
    return Rows.of(sampler, case.batch(sampler.device), case.noise(sampler.device))


def _require_same(rows: Rows, tokens: Ints, which: Sequence[int], how: str) -> None:
    """Fail if one of these rows has another token in a second call."""
    for place, row in enumerate(which):
        if rows.tokens[row] != tokens[place]:
            broken(f"row {row} got token {rows.tokens[row]}, and {how} token {tokens[place]}")


# Single calls


@_check("WMK101", _marked, weight=4.0)
def marked_tokens_win_the_race_of_their_context(sampler: FunctionWatermarker, case: WatermarkTrace) -> None:
    """A marked token is what the scheme makes of its filtered row, by the numbers of its key and context.

    Suspect a context of another length or another request, the token before the last, filters or a temperature that
    the race does not see, and numbers that are paired with other ids.
    """
    _called(sampler, case).require()


@_check("WMK102", lambda can: _marked(can, outputs=((9, 0), (12, 0), (40, 0))), weight=2.0, where=_DECIDED)
def equal_contexts_give_equal_tokens(sampler: FunctionWatermarker, case: WatermarkTrace) -> None:
    """A marked token depends on row, key and context alone: neither on earlier text, nor on the request, nor on noise.

    The detector knows nothing else. Suspect a seed, a position or a request's number within the hash.
    """
    rows, width = _called(sampler, case), case.context_width
    contexts, others = rows.contexts(), []
    for number, (text, context) in enumerate(zip(rows.batch.requests, contexts, strict=True)):
        is_long = context is not None and len(context) == width
        output = [*text.output_token_ids[:1], *text.output_token_ids] if is_long else text.output_token_ids
        others.append(replace(text, request_id=derive_seed("other", text.request_id, number), output_token_ids=output))
    batch = rows.batch.replace(requests=tuple(others), positions=rows.batch.positions + 7)
    again = Rows.of(sampler, batch, case.replace(seed=derive_seed("noise", case.seed)).noise(sampler.device))
    pairs = enumerate(zip(contexts, again.contexts(), strict=True))
    which = [i for i, (one, other) in pairs if one is not None and one == other]
    _require_same(rows, again.tokens[which], which, "after the same context in another text")


_REPEATED = ((40, 12), (6, 1), (12, 3), (40, 2))


@_check("WMK103", lambda can: _own_noise(can, marked=True, outputs=_REPEATED, **_TELLING), needs_one_of=_OWN_NOISE)
def contexts_that_do_not_mark_leave_the_token_alone(sampler: FunctionWatermarker, case: WatermarkTrace) -> None:
    """Where the context was there before, or is too short to mark, the token is that of the same request unmarked.

    One number for each repetition would draw the same text in circles. Suspect contexts of another width in the
    history, a history that is not searched whole, and prompts that are searched.
    """
    _require_untouched(sampler, case, lambda rows: [i for i, one in enumerate(rows.contexts()) if one is None])


@_check("WMK104", lambda can: _own_noise(can, **_TELLING), needs_one_of=_OWN_NOISE)
def unmarked_requests_get_what_they_got_before(sampler: FunctionWatermarker, case: WatermarkTrace) -> None:
    """A request without the watermark gets the token that it gets in a batch in which nobody has it, bit for bit.

    Suspect a flag of the batch in place of the rows, and a second path that draws from other noise.
    """
    _require_untouched(
        sampler, case, lambda rows: [i for i, one in enumerate(rows.batch.requests) if not one.is_marked]
    )


def _require_untouched(sampler: FunctionWatermarker, case: WatermarkTrace, which: Callable[[Rows], list[int]]) -> None:
    """Fail if one of these rows gets another token where nobody wants the watermark."""
    rows = _called(sampler, case)
    plain = tuple(replace(one, is_marked=False) for one in rows.batch.requests)
    tokens = sample_marked(sampler, rows.batch.replace(requests=plain), case.noise(sampler.device))
    _require_same(rows, tokens[which(rows)], which(rows), "in a batch without watermarks")


@_check("WMK105", lambda can: watermark_traces(can, greedy=True, marked=True, **_TELLING), needs=(Capability.GREEDY,))
def greedy_requests_get_the_largest_logit(sampler: FunctionWatermarker, case: WatermarkTrace) -> None:
    """A greedy request has its argmax, whether or not it wants the watermark.

    Suspect a race over logits that no temperature divided, and a mask of rows from before requests moved.
    """
    _called(sampler, case).require()


def _beside_others(can: Capabilities) -> st.SearchStrategy[WatermarkTrace]:
    return _own_noise(can, **_TELLING) if _has_own_noise(can) else watermark_traces(can, **_TELLING)


@_check("WMK106", _beside_others)
def rows_do_not_depend_on_their_neighbours(sampler: FunctionWatermarker, case: WatermarkTrace) -> None:
    """A request gets the same token alone, and in a batch in another order.

    Suspect contexts, keys or flags by row that are read with another index than the logits.
    """
    rows, numbers = _called(sampler, case), list(range(len(case.requests)))
    fixed = {i for i, one in enumerate(rows.contexts()) if one is not None and decides(rows.policy)}
    if _has_own_noise(sampler.capabilities):
        fixed |= set(numbers)
    for order in (numbers[::-1], *([i] for i in numbers)):
        noise = case.noise(sampler.device)
        taken = (
            noise.select(order)
            if isinstance(noise, RaceNoise)
            else SeededNoise(noise.seed, kept_seeds(noise.request_seeds, order))
        )
        tokens = sample_marked(sampler, rows.batch.select(order), taken)
        places = [place for place, row in enumerate(order) if row in fixed]
        _require_same(
            rows, tokens[places], [order[place] for place in places], f"as one of {len(order)} in another order"
        )


def _has_own_noise(can: Capabilities) -> bool:
    return Capability.EXPLICIT_NOISE in can or Capability.REQUEST_SEEDS in can


def _in_any_memory(can: Capabilities) -> st.SearchStrategy[WatermarkTrace]:
    """Draw many rows, so that some have two tokens that are almost equally good."""
    kinds = {"dtypes": (DTYPES[Capability.HALF_LOGITS in can],), "layouts": ("transposed", "sliced", "contiguous")}
    rows = {"temperatures": (0.7, 0.3), "logits": ("normal", "zipf"), "min_requests": 6, "max_requests": 12}
    return watermark_traces(can, **_TELLING | kinds | rows)


@_check("WMK107", _in_any_memory)
def dtype_and_strides_do_not_matter(sampler: FunctionWatermarker, case: WatermarkTrace) -> None:
    """Logits in half precision, or strided, give the tokens of the same numbers in contiguous float32.

    Suspect a race in the dtype of the logits, where 8 bits are left of a score.
    """
    rows = _called(sampler, case)
    tokens = sample_marked(
        sampler, rows.batch.replace(logits=rows.batch.logits.float().contiguous()), case.noise(sampler.device)
    )
    _require_same(rows, tokens, range(len(tokens)), "with the same logits in contiguous float32")


@_check("WMK108", lambda can: watermark_traces(can, greedy=False, max_vocab_size=1025), weight=2.0)
def filtered_tokens_are_never_drawn(sampler: FunctionWatermarker, case: WatermarkTrace) -> None:
    """Neither a marked nor an ordinary token is one that its request's filters, or a logit of -inf, remove.

    Suspect a race over the row as it was before the filters: the mark is then found, and grammars are broken.
    """
    rows = _called(sampler, case)
    are_allowed(supports_of(cast("Any", sampler), rows.batch), rows.tokens)


@_check("WMK109", lambda can: watermark_traces(can, marked=True), weight=0.5)
def what_is_given_is_not_written(sampler: FunctionWatermarker, case: WatermarkTrace) -> None:
    """Logits, parameters, noise and texts are as they were before the call.

    Suspect scores that are added in place, and a history that is the server's own list.
    """
    batch, noise = case.batch(sampler.device), case.noise(sampler.device)
    texts = [(list(one.prompt_token_ids), list(one.output_token_ids)) for one in batch.requests]
    with left_alone(batch, noise):
        sample_marked(sampler, batch, noise)
    if texts != [(list(one.prompt_token_ids), list(one.output_token_ids)) for one in batch.requests]:
        broken("the sampler changed the text of a request, which it is given to read")


# The keyed numbers, and the detector

_FLAT = SampledRequest()
_MANY = 6
"""So many tokens that are all equal by chance come once in `_FLAT_VOCAB ** 6` cases, or 7e10."""


def _flat(can: Capabilities) -> st.SearchStrategy[WatermarkTrace]:
    """Draw requests with flat rows, whose contexts are full and differ."""
    explicit = Capability.EXPLICIT_NOISE in can
    texts = (WatermarkedText(_FLAT, prompt_length=9, output_length=9),) * _MANY
    return watermark_traces(can, max_requests=1).map(
        lambda one: WatermarkTrace(_FLAT_VOCAB, texts, min(one.context_width, 8), explicit=explicit, seed=one.seed)
    )


def _require_some_differ(rows: Rows, batch: WatermarkBatch, what: str) -> None:
    """Fail if every marked row keeps its token, though something else decides."""
    tokens = sample_marked(rows.sampler, batch, rows.noise)
    changed = Rows(rows.sampler, batch, rows.noise, tokens).contexts()
    which = [i for i, pair in enumerate(zip(rows.contexts(), changed, strict=True)) if None not in pair]
    if len(which) == _MANY and (rows.tokens == tokens).all():
        broken(f"all of {len(which)} marked rows keep their tokens {rows.tokens.tolist()} with {what}")


_GUMBEL = (lambda policy: policy.scheme == "gumbel", "its key does not decide tokens")


@_check("WMK110", _flat, where=_GUMBEL)
def every_token_of_a_context_counts(sampler: FunctionWatermarker, case: WatermarkTrace) -> None:
    """With another token anywhere in the context, other tokens are drawn.

    Suspect a hash of the last token, a sum of tokens, and a window that is one token too short.
    """
    rows = _called(sampler, case)
    for back in range(1, 1 + case.context_width):
        texts = []
        for text in rows.batch.requests:
            output = list(text.output_token_ids)
            output[-back] = (output[-back] + 1) % case.vocab_size
            texts.append(replace(text, output_token_ids=output))
        _require_some_differ(rows, rows.batch.replace(requests=tuple(texts)), f"another token {back} before the next")
    texts = [replace(one, output_token_ids=_swapped(one.output_token_ids)) for one in rows.batch.requests]
    if case.context_width > 1:
        _require_some_differ(rows, rows.batch.replace(requests=tuple(texts)), "the last two tokens swapped")


def _swapped(output: Sequence[int]) -> list[int]:
    """Return an output whose last two tokens are swapped, or raised where they are equal."""
    *first, one, other = output
    return [*first, other, one] if one != other else [*first, one + 1, other]


@_check("WMK111", _flat, where=_GUMBEL)
def every_bit_of_a_key_counts(sampler: FunctionWatermarker, case: WatermarkTrace) -> None:
    """With another bit anywhere in the keys, other tokens are drawn.

    Suspect a key that is cut to 32 bits, or read as a float.
    """
    rows = _called(sampler, case)
    for bit in (0, 1, 31, 32, 52, 63):
        keys = tuple(key ^ 1 << bit for key in case.setup.keys)
        setup = replace(case.setup, keys=keys)
        _require_some_differ(rows, rows.batch.replace(setup=setup), f"bit {bit} of the keys inverted")


@_check("WMK112", _flat, part="detect", weight=0.3)
def marked_texts_have_small_p_values(sampler: FunctionWatermarker, case: WatermarkTrace) -> None:
    """The detector finds the key in a text of 48 tokens, each drawn from 64 that are equally probable.

    Suspect contexts that the detector pads or cuts in another way than the sampler, and a key of the other role.
    """
    case = case.replace(context_width=max(4, case.context_width))  # shorter ones come again, and count once
    prompts, output = case.batch().requests[0].prompt_token_ids, list[int]()
    for number in range(_LONG):
        trace = case.replace(requests=case.requests[:1], seed=derive_seed(case.seed, number))
        text = WatermarkedRequest(derive_seed("text", case.seed), prompts, list(output))
        batch = trace.batch(sampler.device).replace(setup=case.setup, requests=(text,))
        output += sample_marked(sampler, batch, trace.noise(sampler.device)).tolist()
    if (found := p_value_of(sampler, case.setup, prompts, output)) > _CAUGHT_BELOW:
        broken(f"a text of {_LONG} marked tokens has p-value {found:.3g}, more than {_CAUGHT_BELOW}")


@_check("WMK113", lambda can: watermark_traces(can, max_requests=1, marked=True), part="detect", where=_DECIDED)
def p_values_are_those_of_the_numbers(sampler: FunctionWatermarker, case: WatermarkTrace) -> None:
    """The p-value is the tail of a sum of as many exponentials as there are tokens that count: equal contexts once.

    A context that counts twice is the same evidence twice: plain text that repeats itself is called marked. Suspect
    a normal distribution in place of the gamma, tokens of the prompt, and a key of the other role.
    """
    require_part(sampler, "watermark_numbers", _DECIDED)
    text = WatermarkedText(_FLAT, prompt_length=5, output_length=30, period=derive_seed("period", case.seed) % 9)
    prompt, output = text.tokens(case.vocab_size, case.seed)
    policy = policy_of(sampler, WatermarkPolicy)
    places = counted_places(policy, case.context_width, prompt, output)
    numbers = numbers_of_contexts(sampler, case.setup, [one for _, one in places], case.vocab_size)[0, 0]
    seen = np.array([numbers[i, output[place]] for i, (place, _) in enumerate(places)])
    wanted, found = (
        gamma_tail(float(-np.log1p(-seen).sum()), seen.size),
        p_value_of(sampler, case.setup, prompt, output),
    )
    if abs(np.log(found + 1e-300) - np.log(wanted + 1e-300)) > 1e-4 * (1 + abs(np.log(wanted + 1e-300))):
        broken(
            f"{len(output)} tokens, {seen.size} of which count, have p-value {found:.6g}; by the numbers {wanted:.6g}"
        )


@_check("WMK114", lambda can: watermark_traces(can, max_requests=1), part="watermark_numbers", weight=0.5)
def numbers_differ_between_keys_and_contexts(sampler: FunctionWatermarker, case: WatermarkTrace) -> None:
    """Two keys, or two contexts, never give the same numbers to 64 tokens: not after token 0 either.

    Where they do, the mark of that context is known without the key. Suspect a key that is multiplied by a token, and
    tokens of the context that are not hashed.
    """
    texts = [(token,) * case.context_width for token in (0, 1, case.seed % 61 + 2)]
    contexts = texts + [(*one[:at], 63, *one[at + 1 :]) for one in texts for at in range(case.context_width)]
    seen: dict[bytes, str] = {}
    for word, flipped in (("the keys", 0), ("the keys with another bit", 1 << derive_seed(case.seed) % 64)):
        setup = replace(case.setup, keys=tuple(key ^ flipped for key in case.setup.keys))
        for place, context in enumerate(dict.fromkeys(contexts)):
            numbers = numbers_of_contexts(sampler, setup, [context], _FLAT_VOCAB)[0]
            before = seen.setdefault(numbers.tobytes(), name := f"{word}, number {place} {context}")
            if before != name:
                broken(f"two sets of numbers are equal: those of {before}, and of {name}")


@_check("WMK201", lambda can: watermark_traces(can, max_steps=12, **_TELLING), weight=2.0)
def every_token_of_a_serving_trace_is_right(sampler: FunctionWatermarker, case: WatermarkTrace) -> None:
    """Requests come with texts, move from row to row, grow by what they draw, and go: each token is the right one.

    Suspect what is kept by row and not by request, a history that is one token late, and a ring that begins anew.
    """
    emitted: dict[int, list[int]] = {}
    for step in range(case.num_steps):
        if numbers := case.rows(step):
            batch, noise = case.batch(sampler.device, step, emitted), case.noise(sampler.device, step)
            rows = Rows.of(sampler, batch, noise)
            for fault in rows.faults():
                broken(f"step {step}: {fault}")
            for number, token in zip(numbers, rows.tokens.tolist(), strict=True):
                emitted.setdefault(number, []).append(token)


CHECKS = tuple(value for value in list(globals().values()) if isinstance(value, WatermarkCheck))
