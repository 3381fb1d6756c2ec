"""The checks of the watermarks contract: what a key and a context decide, what they leave alone, and the detector.

10x are single calls, 11x the keyed numbers and the detector, 201 serving traces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
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
from fairdraw.strategies._serving_traces import noise_of_rows
from fairdraw.strategies.rows import bulk_rng
from fairdraw.strategies.watermarks import WatermarkCase, WatermarkedText, watermark_cases

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


def _check(code: str, cases: Cases = watermark_cases, **fields: Any) -> Callable[[Any], WatermarkCheck]:  # Any: a body
    """Make a check of steps."""
    about = {"contract": "watermarks", "cases": cases, **fields}
    return lambda body: WatermarkCheck.named(body, code, **{"body": body, **about})


_OWN_NOISE = ((Capability.EXPLICIT_NOISE, Capability.REQUEST_SEEDS),)


def _has_own_noise(can: Capabilities) -> bool:
    return any(one in can for one in _OWN_NOISE[0])


def _own_noise(can: Capabilities, **narrow: Any) -> st.SearchStrategy[WatermarkCase]:  # Any: of `watermark_cases`
    """Draw steps in which the noise of a request is its own, where the sampler can have it so."""
    kinds = {"explicit": Capability.EXPLICIT_NOISE, "request_seed": Capability.REQUEST_SEEDS}
    kind = [word for word, need in kinds.items() if need in can][:1]
    return watermark_cases(can, **{**_TELLING, **dict.fromkeys(kind, True), **narrow})


_TELLING: dict[str, Any] = {  # Any: of `watermark_cases`
    **{"min_vocab_size": 31, "min_requests": 3, "max_requests": 6, "filters": ()},
    **{"logits": POSITIVE, "temperatures": (1.0, 0.7, 2.0, 30.0), "exponentials": ("random", "twins")},
}
"""Few rows of few tokens, or with one that is certain, draw the right one by chance."""


def _marked(can: Capabilities, **narrow: Any) -> st.SearchStrategy[WatermarkCase]:  # Any: of `watermark_cases`
    """Draw steps in which every context may mark."""
    layouts = ("contiguous", "transposed", "sliced")
    return watermark_cases(can, greedy=False, marked=True, layouts=layouts, **{**_TELLING, "filters": None, **narrow})


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
    def policy(self) -> contracts.WatermarkPolicy:
        """How the sampler marks."""
        return policy_of(self.sampler, contracts.WatermarkPolicy)

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


def _called(sampler: Watermarker, case: WatermarkCase) -> Rows:
    """Build the first step of a case."""
    return Rows(sampler, case.batch(sampler.device), case.noise(sampler.device))


def _require(sampler: Watermarker, case: WatermarkCase) -> None:
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


_right = partial(_check, body=_require)


@_right("WMK101", _marked, weight=4.0)
def marked_tokens_win_the_race_of_their_context() -> None:
    """A marked token is what the scheme makes of its filtered row, by the numbers of its key and context.

    Suspect a context of another length or another request, the token before the last, filters or a temperature that
    the race does not see, and numbers that are paired with other ids.
    """


@_check("WMK102", lambda can: _marked(can, outputs=((9, 0), (12, 0), (40, 0))), weight=2.0, requires=("is_decided",))
def equal_contexts_give_equal_tokens(sampler: Watermarker, case: WatermarkCase) -> None:
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


def _require_unmarked(sampler: Watermarker, case: WatermarkCase) -> None:
    """Fail if a row that nothing marks gets another token where nobody wants the watermark."""
    rows = _called(sampler, case)
    plain = rows.batch.replace(requests=tuple(replace(one, is_marked=False) for one in rows.batch.requests))
    which = [i for i, one in enumerate(rows.contexts) if one is None]
    _require_same(rows, Rows(sampler, plain, case.noise(sampler.device)), which, "in a batch without watermarks")


_REPEATED = ((40, 12), (6, 1), (12, 3), (40, 2))


_unmarked = partial(_check, needs_one_of=_OWN_NOISE, body=_require_unmarked)


@_unmarked("WMK103", lambda can: _own_noise(can, marked=True, outputs=_REPEATED))
def contexts_that_do_not_mark_leave_the_token_alone() -> None:
    """Where the context was there before, or is too short to mark, the token is that of the same request unmarked.

    One number for each repetition would draw the same text in circles. Suspect contexts of another width in the
    history, a history that is not searched whole, and prompts that are searched.
    """


@_unmarked("WMK104", _own_noise)
def unmarked_requests_get_what_they_got_before() -> None:
    """A request without the watermark gets the token that it gets in a batch in which nobody has it, bit for bit.

    Suspect a flag of the batch in place of the rows, and a second path that draws from other noise.
    """


@_right("WMK105", lambda can: watermark_cases(can, greedy=True, marked=True, **_TELLING), needs=(Capability.GREEDY,))
def greedy_requests_get_the_largest_logit() -> None:
    """A greedy request has its argmax, whether or not it wants the watermark.

    Suspect a race over logits that no temperature divided, and a mask of rows from before requests moved.
    """


@_check("WMK106", _own_noise)
def rows_do_not_depend_on_their_neighbours(sampler: Watermarker, case: WatermarkCase) -> None:
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


@_check("WMK109", lambda can: watermark_cases(can, marked=True), weight=0.5)
def what_is_given_is_not_written(sampler: Watermarker, case: WatermarkCase) -> None:
    """Logits, parameters, noise and texts are as they were before the call.

    Suspect scores that are added in place, and a history that is the server's own list.
    """
    rows, given = _called(sampler, case), case.batch().requests
    with left_alone(rows.batch, rows.noise):
        calls.sample_marked(sampler, rows.batch, rows.noise)
    if given != rows.batch.requests:
        broken("the sampler changed the text of a request, which it is given to read")


# The keyed numbers, and the detector


def _alone(can: Capabilities) -> st.SearchStrategy[WatermarkCase]:
    return watermark_cases(can, max_requests=1)


def _require_apart(sampler: Watermarker, pairs: Iterable[tuple[contracts.WatermarkSetup, Context]], what: str) -> None:
    """Fail if two setups and contexts give the same numbers to 64 tokens."""
    seen: dict[bytes, Context] = {}
    for setup, context in pairs:
        numbers = calls.numbers_of_contexts(sampler, setup, [context], _FLAT_VOCAB)[0].tobytes()
        if numbers in seen:
            broken(f"the numbers of context {seen[numbers]} are those of context {context} with {what}")
        seen[numbers] = context


@_check("WMK110", _alone, requires=("watermark_numbers",))
def every_token_of_a_context_counts(sampler: Watermarker, case: WatermarkCase) -> None:
    """With another token anywhere in the context, or with tokens in another order, the numbers are others.

    Suspect a hash of the last token, a sum of tokens, and a window that is one token too short.
    """
    texts = [(token,) * case.context_width for token in (0, 1, case.seed % 61 + 2)]
    contexts = texts + [(*one[:at], 63, *one[at + 1 :]) for one in texts for at in range(case.context_width)]
    _require_apart(sampler, ((case.setup, one) for one in dict.fromkeys(contexts)), "the same keys")


@_check("WMK111", _alone, requires=("watermark_numbers",))
def every_bit_of_a_key_counts(sampler: Watermarker, case: WatermarkCase) -> None:
    """With another bit anywhere in the keys the numbers are others, whatever the context is: after token 0, too.

    Where they are the same, the mark is known without the key. Suspect a key that is cut to 32 bits, or read as a
    float, and one that is multiplied by a token.
    """
    for token in (0, 1, case.seed % 61 + 2):
        flipped = (0, *(1 << bit for bit in (0, 1, 31, 32, 52, 63)))
        setups = (replace(case.setup, keys=tuple(key ^ one for key in case.setup.keys)) for one in flipped)
        _require_apart(sampler, ((one, (token,) * case.context_width) for one in setups), "another bit of the keys")


@_check("WMK112", _alone, requires=("detect",), weight=0.3)
def marked_texts_have_small_p_values(sampler: Watermarker, case: WatermarkCase) -> None:
    """The detector finds the key in a text of 48 tokens, each drawn from 64 that are equally probable.

    Suspect contexts that the detector pads or cuts in another way than the sampler, and a key of the other role.
    """
    width = max(4, case.context_width)  # shorter contexts come again, and count once
    flat = WatermarkCase(_FLAT_VOCAB, (WatermarkedText(),), case.explicit, seed=case.seed, context_width=width)
    (text,) = flat.texts()
    for number in range(_LONG):
        drawn = flat.replace(seed=derive_seed(case.seed, number))
        batch, noise = flat.batch(sampler.device, [text]), drawn.noise(sampler.device)
        tokens = calls.sample_marked(sampler, batch, noise).tolist()
        text = replace(text, output_token_ids=[*text.output_token_ids, *tokens])
    found = calls.p_value_of(sampler, flat.setup, text.prompt_token_ids, text.output_token_ids)
    if found > _CAUGHT_BELOW:
        broken(f"a text of {_LONG} marked tokens has p-value {found:.3g}, more than {_CAUGHT_BELOW}")


@_check("WMK113", _alone, requires=("detect", "watermark_numbers", "is_decided"))
def p_values_are_those_of_the_numbers(sampler: Watermarker, case: WatermarkCase) -> None:
    """The p-value is the tail of a sum of as many exponentials as there are tokens that count: equal contexts once.

    A context that counts twice is the same evidence twice: plain text that repeats itself is called marked. Suspect
    a normal distribution in place of the gamma, tokens of the prompt, and a key of the other role.
    """
    text = WatermarkedText(prompt_length=5, output_length=30, period=derive_seed("period", case.seed) % 9)
    prompt, output = text.tokens(case.vocab_size, case.seed)
    policy = policy_of(sampler, contracts.WatermarkPolicy)
    places, contexts = zip(*specified.counted_places(policy, case.context_width, prompt, output), strict=True)
    numbers = calls.numbers_of_contexts(sampler, case.setup, contexts, case.vocab_size)[0, 0]
    seen = numbers[np.arange(len(places)), [output[place] for place in places]]
    exact = specified.gamma_tail(float(-np.log1p(-seen).sum()), seen.size)
    found = calls.p_value_of(sampler, case.setup, prompt, output)
    if not np.isclose(np.log(found + 1e-300), np.log(exact + 1e-300), rtol=1e-4, atol=1e-4):
        counted = f"{len(output)} tokens, {seen.size} of which count"
        broken(f"{counted}, have p-value {found:.6g}; by the numbers {exact:.6g}")


_STEPS = 12


@_check("WMK201", lambda can: _own_noise(can, outputs=(*_REPEATED, (9, 0), (0, 0))), weight=2.0)
def every_token_of_a_serving_trace_is_right(sampler: Watermarker, case: WatermarkCase) -> None:
    """Requests come with texts, move from row to row, grow by what they draw, wait and go on: each token is right.

    Suspect what is kept by row and not by request, a history that is one token late, and a ring that begins anew.
    """
    texts, rng = case.texts(), bulk_rng("served", case.seed)
    for step in range(_STEPS):
        served, device = case.replace(seed=derive_seed(case.seed, step)), sampler.device
        order = rng.permutation(len(texts))[: rng.integers(1, len(texts) + 1)].tolist()
        batch = served.batch(device, texts).replace(setup=case.setup).select(order)
        rows = Rows(sampler, batch, noise_of_rows(served.noise(device), order))
        for fault in rows.faults():
            broken(f"step {step}: {fault}")
        for number, token in zip(order, rows.tokens.tolist(), strict=True):
            output = [*texts[number].output_token_ids, token]
            texts[number] = replace(texts[number], output_token_ids=output)


CHECKS = tuple(value for value in list(globals().values()) if isinstance(value, WatermarkCheck))
