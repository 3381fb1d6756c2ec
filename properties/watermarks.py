"""The checks of the watermarks contract: what a key and a context decide, what they leave alone, and the detector.

10x are single calls, 11x the keyed numbers and the detector, 201 serving traces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
from hypothesis import strategies as st

from fairdraw import contracts
from fairdraw._core.array_types import Float64s, Ints
from fairdraw._core.checks import Cases, Check, Conditions
from fairdraw._core.seeds import derive_seed
from fairdraw._oracles import watermarks as specified
from fairdraw._oracles.supports import Support, log_error
from fairdraw.contracts import Capabilities, Capability, Context, RaceNoise, WatermarkBatch, policy_of
from fairdraw.contracts import FunctionWatermarker as Watermarker
from fairdraw.contracts import _watermarks as calls
from fairdraw.properties._rejection_asserts import broken
from fairdraw.properties._sampling_asserts import POSITIVE, supports_of
from fairdraw.properties._traces import left_alone
from fairdraw.strategies._recipe import DTYPES
from fairdraw.strategies._serving_traces import noise_of_rows
from fairdraw.strategies.watermarks import WatermarkedText, WatermarkTrace, watermark_traces

__all__ = ["CHECKS"]

_CAUGHT_BELOW = 1e-6
"""A p-value of marked texts of `_LONG` tokens in flat rows is far smaller, and one of plain text almost never."""
_LONG, _FLAT_VOCAB = 48, 64


@dataclass(frozen=True)
class WatermarkCheck(Check):
    """A check of what not every sampler has: `requires` names attributes of the sampler or its policy."""

    requires: tuple[str, ...] = field(default=(), kw_only=True)

    def judge(self, sampler: Any, under: Conditions) -> int:  # Any: a Watermarker
        """Run the check, unless the sampler has no such part, or another policy."""
        calls.require_parts(sampler, self.requires)
        return super().judge(sampler, under)


def _check(code: str, cases: Cases = watermark_traces, **fields: Any) -> Callable[[Any], WatermarkCheck]:  # Any: a body
    """Make a check of traces."""
    return lambda body: WatermarkCheck.named(body, code, contract="watermarks", cases=cases, body=body, **fields)


_OWN_NOISE = ((Capability.EXPLICIT_NOISE, Capability.REQUEST_SEEDS),)


def _has_own_noise(can: Capabilities) -> bool:
    return any(one in can for one in _OWN_NOISE[0])


def _own_noise(can: Capabilities, **narrow: Any) -> st.SearchStrategy[WatermarkTrace]:  # Any: of `watermark_traces`
    """Draw steps in which the noise of a request is its own, where the sampler can have it so."""
    kinds = {"explicit": Capability.EXPLICIT_NOISE, "request_seed": Capability.REQUEST_SEEDS}
    kind = [word for word, need in kinds.items() if need in can][:1]
    return watermark_traces(can, **_TELLING | dict.fromkeys(kind, True) | narrow)


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

    sampler: Watermarker
    batch: WatermarkBatch
    noise: contracts.SamplingNoise

    @cached_property
    def tokens(self) -> Ints:  # [batch_size] int64
        """What is drawn, once."""
        return calls.sample_marked(self.sampler, self.batch, self.noise)

    @property
    def policy(self) -> calls.WatermarkPolicy:
        """How the sampler marks."""
        return policy_of(self.sampler, calls.WatermarkPolicy)

    @cached_property
    def contexts(self) -> list[Context | None]:
        """The context of each row that must be marked, `None` of the others."""
        greedy, width = self.batch.is_greedy.tolist(), self.batch.setup.context_width
        found = (specified.marking_context(self.policy, width, text) for text in self.batch.requests)
        return [None if is_greedy else context for is_greedy, context in zip(greedy, found, strict=True)]

    @cached_property
    def supports(self) -> list[Support | None]:
        """What the filters of each random row leave."""
        return supports_of(cast("Any", self.sampler), self.batch)

    def faults(self) -> Iterator[str]:
        """Yield what is wrong, row by row."""
        logits, greedy = self.batch.logits.float().cpu().numpy(), self.batch.is_greedy.tolist()
        for row, support in enumerate(self.supports):
            token = int(self.tokens[row])
            if not 0 <= token < self.batch.vocab_size:
                yield f"row {row} got token {token}, which is not in the vocabulary"
            elif greedy[row] and logits[row, token] < logits[row].max():
                yield f"row {row} is greedy and got token {token}, but token {logits[row].argmax()} is the largest"
            elif support is not None and not support.allowed[token]:
                yield f"row {row} got token {token}, which its filters remove"
            elif support is not None:
                yield from self._lost_race(row, token, support)

    def _lost_race(self, row: int, token: int, support: Support) -> Iterator[str]:
        """Yield that a row's token loses every race that may have decided it, if it does."""
        logits, context = self.batch.logits[row].double().cpu().numpy(), self.contexts[row]
        scale = np.abs(logits[np.isfinite(logits)]).max(initial=0.0) / min(1.0, float(self.batch.temperature[row]))
        races = list(self._races(row, support, context))
        for weights, noise in races:
            scores, slack = weights + noise, log_error(float(scale), float(np.abs(noise).max()))
            if scores[token] >= scores[support.required].max(initial=-np.inf) - slack:
                return
        if races:
            won, kind = (
                np.add(*races[0]).argmax(),
                "marked by context" if context is not None else "not marked, and drew by",
            )
            names = f"{context}" if context is not None else "its own noise"
            yield f"row {row} is {kind} {names}: token {won} wins its race, and it got token {token}"

    def _races(self, row: int, support: Support, context: Context | None) -> Iterator[tuple[Float64s, Float64s]]:
        """Yield the logarithms of weights, and the noise that is added to them, where they are known."""
        setup, tilted = self.batch.setup, [support.probs] if context is None else []
        with np.errstate(divide="ignore"):
            if context is not None and self.sampler.watermark_numbers is not None:
                numbers = calls.numbers_of_contexts(self.sampler, setup, [context], self.batch.vocab_size)[:, :, 0]
                if self.policy.is_race:
                    yield from ((np.log(support.probs), -np.log(-np.log(one[0]))) for one in numbers)
                elif support.is_settled:
                    probs = support.distribution()
                    tilted = [specified.weights_under(self.policy.scheme, probs, one, setup.bias) for one in numbers]
            if isinstance(self.noise, RaceNoise) and Capability.REFERENCE_RACE in self.sampler.capabilities:
                noise = -np.log(self.noise.exponentials[row].double().cpu().numpy())
                yield from ((np.log(one), noise) for one in tilted)


def _called(sampler: Watermarker, case: WatermarkTrace) -> Rows:
    """Build the first step of a case."""
    return Rows(sampler, case.batch(sampler.device), case.noise(sampler.device))


def _require(sampler: Watermarker, case: WatermarkTrace) -> None:
    """Fail if a row of the first step is wrong."""
    for fault in _called(sampler, case).faults():
        broken(fault)


def _require_same(rows: Rows, others: Rows, which: Sequence[int], how: str, order: Sequence[int] | None = None) -> None:
    """Fail if one of these rows has another token in a second call, whose rows are in an order.

    Where rounding or a tie decides what the filters leave, another token may come.
    """
    settled = [row for row in which if (one := rows.supports[row]) is None or one.is_settled]
    for place, row in enumerate(range(len(rows.tokens)) if order is None else order):
        if row in settled and rows.tokens[row] != others.tokens[place]:
            broken(f"row {row} got token {rows.tokens[row]}, and {how} token {others.tokens[place]}")


# Single calls


@_check("WMK101", _marked, weight=4.0)
def marked_tokens_win_the_race_of_their_context(sampler: Watermarker, case: WatermarkTrace) -> None:
    """A marked token is what the scheme makes of its filtered row, by the numbers of its key and context.

    Suspect a context of another length or another request, the token before the last, filters or a temperature that
    the race does not see, and numbers that are paired with other ids.
    """
    _require(sampler, case)


@_check("WMK102", lambda can: _marked(can, outputs=((9, 0), (12, 0), (40, 0))), weight=2.0, requires=("is_decided",))
def equal_contexts_give_equal_tokens(sampler: Watermarker, case: WatermarkTrace) -> None:
    """A marked token depends on row, key and context alone: neither on earlier text, nor on the request, nor on noise.

    The detector knows nothing else. Suspect a seed, a position or a request's number within the hash.
    """
    rows, texts = _called(sampler, case), []
    for number, (text, context) in enumerate(zip(rows.batch.requests, rows.contexts, strict=True)):
        is_long = context is not None and len(context) == case.context_width
        output = [*text.output_token_ids[: int(is_long)], *text.output_token_ids]
        texts.append(replace(text, request_id=derive_seed("other", text.request_id, number), output_token_ids=output))
    batch = rows.batch.replace(requests=tuple(texts), positions=rows.batch.positions + 7)
    again = Rows(sampler, batch, case.replace(seed=derive_seed("noise", case.seed)).noise(sampler.device))
    pairs = enumerate(zip(rows.contexts, again.contexts, strict=True))
    which = [i for i, (one, other) in pairs if one is not None and one == other]
    _require_same(rows, again, which, "after the same context in another text")


_REPEATED = ((40, 12), (6, 1), (12, 3), (40, 2))


@_check("WMK103", lambda can: _own_noise(can, marked=True, outputs=_REPEATED), needs_one_of=_OWN_NOISE)
def contexts_that_do_not_mark_leave_the_token_alone(sampler: Watermarker, case: WatermarkTrace) -> None:
    """Where the context was there before, or is too short to mark, the token is that of the same request unmarked.

    One number for each repetition would draw the same text in circles. Suspect contexts of another width in the
    history, a history that is not searched whole, and prompts that are searched.
    """
    _require_unmarked(sampler, case)


@_check("WMK104", _own_noise, needs_one_of=_OWN_NOISE)
def unmarked_requests_get_what_they_got_before(sampler: Watermarker, case: WatermarkTrace) -> None:
    """A request without the watermark gets the token that it gets in a batch in which nobody has it, bit for bit.

    Suspect a flag of the batch in place of the rows, and a second path that draws from other noise.
    """
    _require_unmarked(sampler, case)


def _require_unmarked(sampler: Watermarker, case: WatermarkTrace) -> None:
    """Fail if a row that nothing marks gets another token where nobody wants the watermark."""
    rows = _called(sampler, case)
    plain = rows.batch.replace(requests=tuple(replace(one, is_marked=False) for one in rows.batch.requests))
    which = [i for i, one in enumerate(rows.contexts) if one is None]
    _require_same(rows, Rows(sampler, plain, case.noise(sampler.device)), which, "in a batch without watermarks")


@_check("WMK105", lambda can: watermark_traces(can, greedy=True, marked=True, **_TELLING), needs=(Capability.GREEDY,))
def greedy_requests_get_the_largest_logit(sampler: Watermarker, case: WatermarkTrace) -> None:
    """A greedy request has its argmax, whether or not it wants the watermark.

    Suspect a race over logits that no temperature divided, and a mask of rows from before requests moved.
    """
    _require(sampler, case)


@_check("WMK106", _own_noise)
def rows_do_not_depend_on_their_neighbours(sampler: Watermarker, case: WatermarkTrace) -> None:
    """A request gets the same token alone, and in a batch in another order.

    Suspect contexts, keys or flags by row that are read with another index than the logits.
    """
    rows, numbers = _called(sampler, case), range(len(case.requests))
    is_fixed = [
        _has_own_noise(sampler.capabilities) or (one is not None and rows.policy.is_decided) for one in rows.contexts
    ]
    which = [i for i in numbers if is_fixed[i]]
    for order in (numbers[::-1], *([i] for i in numbers)):
        others = Rows(sampler, rows.batch.select(order), noise_of_rows(case.noise(sampler.device), order))
        _require_same(rows, others, which, f"as one of {len(order)} in another order", order)


def _in_any_memory(can: Capabilities) -> st.SearchStrategy[WatermarkTrace]:
    """Draw many rows, so that some have two tokens that are almost equally good."""
    kinds = {"dtypes": (DTYPES[Capability.HALF_LOGITS in can],), "layouts": ("transposed", "sliced", "contiguous")}
    rows = {"temperatures": (0.7, 0.3), "logits": ("normal", "zipf"), "min_requests": 6, "max_requests": 12}
    return watermark_traces(can, **_TELLING | kinds | rows)


@_check("WMK107", _in_any_memory)
def dtype_and_strides_do_not_matter(sampler: Watermarker, case: WatermarkTrace) -> None:
    """Logits in half precision, or strided, give the tokens of the same numbers in contiguous float32.

    Suspect a race in the dtype of the logits, where 8 bits are left of a score.
    """
    rows = _called(sampler, case)
    batch = rows.batch.replace(logits=rows.batch.logits.float().contiguous())
    others = Rows(sampler, batch, case.noise(sampler.device))
    _require_same(rows, others, range(batch.batch_size), "with the same logits in contiguous float32")


@_check("WMK109", lambda can: watermark_traces(can, marked=True), weight=0.5)
def what_is_given_is_not_written(sampler: Watermarker, case: WatermarkTrace) -> None:
    """Logits, parameters, noise and texts are as they were before the call.

    Suspect scores that are added in place, and a history that is the server's own list.
    """
    rows, given = _called(sampler, case), case.batch().requests
    with left_alone(rows.batch, rows.noise):
        calls.sample_marked(sampler, rows.batch, rows.noise)
    if given != rows.batch.requests:
        broken("the sampler changed the text of a request, which it is given to read")


# The keyed numbers, and the detector

_MANY = 6
"""So many tokens that are all equal by chance come once in `_FLAT_VOCAB ** 6` cases, or 7e10; swapped ones in 1e9."""
_FLAT = (WatermarkedText(prompt_length=9, output_length=9),) * _MANY


def _flat(can: Capabilities) -> st.SearchStrategy[WatermarkTrace]:
    """Draw requests with flat rows, whose contexts are full and differ."""
    about: dict[str, Any] = {"vocab_size": _FLAT_VOCAB, "requests": _FLAT, "dtype": "float32"}  # Any: one type each
    return watermark_traces(can, max_requests=1).map(lambda one: one.replace(**about))


def _require_some_differ(rows: Rows, what: str, **changes: Any) -> None:  # Any: fields of a batch
    """Fail if every marked row keeps its token, though something else decides."""
    changed = Rows(rows.sampler, rows.batch.replace(**changes), rows.noise)
    is_full = None not in (*rows.contexts, *changed.contexts)
    if is_full and (rows.tokens == changed.tokens).all():
        broken(f"all of {_MANY} marked rows keep their tokens {rows.tokens.tolist()} with {what}")


@_check("WMK110", _flat, requires=("is_race",))
def every_token_of_a_context_counts(sampler: Watermarker, case: WatermarkTrace) -> None:
    """With another token anywhere in the context, other tokens are drawn.

    Suspect a hash of the last token, a sum of tokens, and a window that is one token too short.
    """
    rows = _called(sampler, case)
    for back in range(1 + case.context_width):
        texts = (replace(one, output_token_ids=_changed(one.output_token_ids, back)) for one in rows.batch.requests)
        what = f"another token {back} before the next" if back else "the last two tokens swapped"
        _require_some_differ(rows, what, requests=tuple(texts))


def _changed(output: Sequence[int], back: int) -> list[int]:
    """Return an output with another token so far before its end; for 0 the last two are swapped."""
    found = list(output)
    if back:
        found[-back] = (found[-back] + 1) % _FLAT_VOCAB
    else:
        found[-2:] = found[:-3:-1]
    return found


@_check("WMK111", _flat, requires=("is_race",))
def every_bit_of_a_key_counts(sampler: Watermarker, case: WatermarkTrace) -> None:
    """With another bit anywhere in the keys, other tokens are drawn.

    Suspect a key that is cut to 32 bits, or read as a float.
    """
    rows = _called(sampler, case)
    for bit in (0, 1, 31, 32, 52, 63):
        _require_some_differ(rows, f"bit {bit} of the keys inverted", setup=_other_keys(case, 1 << bit))


def _other_keys(case: WatermarkTrace, flipped: int) -> calls.WatermarkSetup:
    """Return the setup of a case with other bits of the keys."""
    return replace(case.setup, keys=tuple(key ^ flipped for key in case.setup.keys))


def _alone(can: Capabilities) -> st.SearchStrategy[WatermarkTrace]:
    return watermark_traces(can, max_requests=1)


@_check("WMK112", _flat, requires=("detect",), weight=0.3)
def marked_texts_have_small_p_values(sampler: Watermarker, case: WatermarkTrace) -> None:
    """The detector finds the key in a text of 48 tokens, each drawn from 64 that are equally probable.

    Suspect contexts that the detector pads or cuts in another way than the sampler, and a key of the other role.
    """
    case = case.replace(context_width=max(4, case.context_width))  # shorter ones come again, and count once
    prompts, output = case.batch().requests[0].prompt_token_ids, list[int]()
    for number in range(_LONG):
        trace = case.replace(requests=case.requests[:1], seed=derive_seed(case.seed, number))
        text = contracts.WatermarkedRequest(derive_seed("text", case.seed), prompts, list(output))
        batch = trace.batch(sampler.device).replace(setup=case.setup, requests=(text,))
        output += calls.sample_marked(sampler, batch, trace.noise(sampler.device)).tolist()
    if (found := calls.p_value_of(sampler, case.setup, prompts, output)) > _CAUGHT_BELOW:
        broken(f"a text of {_LONG} marked tokens has p-value {found:.3g}, more than {_CAUGHT_BELOW}")


@_check("WMK113", _alone, requires=("detect", "watermark_numbers", "is_decided"))
def p_values_are_those_of_the_numbers(sampler: Watermarker, case: WatermarkTrace) -> None:
    """The p-value is the tail of a sum of as many exponentials as there are tokens that count: equal contexts once.

    A context that counts twice is the same evidence twice: plain text that repeats itself is called marked. Suspect
    a normal distribution in place of the gamma, tokens of the prompt, and a key of the other role.
    """
    text = WatermarkedText(prompt_length=5, output_length=30, period=derive_seed("period", case.seed) % 9)
    prompt, output = text.tokens(case.vocab_size, case.seed)
    policy = policy_of(sampler, calls.WatermarkPolicy)
    places = specified.counted_places(policy, case.context_width, prompt, output)
    contexts = [one for _, one in places]
    numbers = calls.numbers_of_contexts(sampler, case.setup, contexts, case.vocab_size)[0, 0]
    seen = numbers[np.arange(len(places)), [output[place] for place, _ in places]]
    wanted = specified.gamma_tail(float(-np.log1p(-seen).sum()), seen.size)
    found = calls.p_value_of(sampler, case.setup, prompt, output)
    exact, said = np.log(wanted + 1e-300), np.log(found + 1e-300)
    if abs(said - exact) > 1e-4 * (1 + abs(exact)):
        counted = f"{len(output)} tokens, {seen.size} of which count"
        broken(f"{counted}, have p-value {found:.6g}; by the numbers {wanted:.6g}")


@_check("WMK114", _alone, requires=("watermark_numbers",), weight=0.5)
def numbers_differ_between_keys_and_contexts(sampler: Watermarker, case: WatermarkTrace) -> None:
    """Two keys, or two contexts, never give the same numbers to 64 tokens: not after token 0 either.

    Where they do, the mark of that context is known without the key. Suspect a key that is multiplied by a token, and
    tokens of the context that are not hashed.
    """
    texts = [(token,) * case.context_width for token in (0, 1, case.seed % 61 + 2)]
    contexts = texts + [(*one[:at], 63, *one[at + 1 :]) for one in texts for at in range(case.context_width)]
    seen: dict[bytes, str] = {}
    for word, flipped in (("the keys", 0), ("the keys with another bit", 1 << derive_seed(case.seed) % 64)):
        setup = _other_keys(case, flipped)
        for place, context in enumerate(dict.fromkeys(contexts)):
            numbers = calls.numbers_of_contexts(sampler, setup, [context], _FLAT_VOCAB)[0]
            before = seen.setdefault(numbers.tobytes(), name := f"{word}, number {place} {context}")
            if before != name:
                broken(f"two sets of numbers are equal: those of {before}, and of {name}")


@_check("WMK201", lambda can: watermark_traces(can, max_steps=12, **_TELLING), weight=2.0)
def every_token_of_a_serving_trace_is_right(sampler: Watermarker, case: WatermarkTrace) -> None:
    """Requests come with texts, move from row to row, grow by what they draw, and go: each token is the right one.

    Suspect what is kept by row and not by request, a history that is one token late, and a ring that begins anew.
    """
    emitted: dict[int, list[int]] = {}
    for step in range(case.num_steps):
        if numbers := case.live(step):
            rows = Rows(sampler, case.batch(sampler.device, step, emitted), case.noise(sampler.device, step))
            for fault in rows.faults():
                broken(f"step {step}: {fault}")
            for number, token in zip(numbers, rows.tokens.tolist(), strict=True):
                emitted.setdefault(number, []).append(token)


CHECKS = tuple(value for value in list(globals().values()) if isinstance(value, WatermarkCheck))
