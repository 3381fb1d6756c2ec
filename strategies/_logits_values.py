"""Values of sampling parameters, by name: off, least, most, just inside, and the odd legal ones.

A parameter kind alone (`top-k`) takes an ordinary value from the seed; with a value (`top-k:1`) it takes that one. They
are made for a text, so that processors have work: bad words match where output and drafts end, minima are reached by a
certain draft, budgets are spent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairdraw.contracts import PLACEHOLDER_TOKEN_ID
from fairdraw.strategies.rows import TARGET_KINDS, bulk_rng, target_row

MIN_VOCAB_SIZE = 12
"""Below it, markers and ordinary tokens would not fit side by side: no request thinks."""
TEXTS = ("few", "one", "wide", "alike")
"""Few ids, so that they recur; one id, over and over; ids of the whole vocabulary, the first and the last among them;
the same ids in every request, but for one at some place."""


@dataclass(frozen=True)
class Text:
    """The texts that parameters are fitted to."""

    prompt: list[int]
    output: list[int]
    drafts: list[int]
    vocab_size: int


Fields = dict[str, Any]  # Any: fields of LogitsParams, one type each
Maker = Callable[[Text, np.random.Generator], Fields]


# Texts


def ordinary_ids(rng: np.random.Generator, vocab_size: int, count: int) -> list[int]:
    """A few ids, so that they recur; neither markers nor the last id."""
    low, high = (4, min(9, vocab_size - 1)) if vocab_size >= MIN_VOCAB_SIZE else (0, vocab_size)
    return [int(i) for i in rng.integers(low, high, size=count)]


def text_of(kind: str, rng: np.random.Generator, vocab_size: int, count: int) -> list[int]:
    """`count` tokens of a kind of text (`TEXTS`)."""
    if kind == "few":
        return ordinary_ids(rng, vocab_size, count)
    if kind == "one":
        return ordinary_ids(rng, vocab_size, 1) * count
    low = 4 if vocab_size >= MIN_VOCAB_SIZE else 0
    if kind == "alike":
        return _alike(rng, low, vocab_size, count)
    drawn = [int(i) for i in rng.integers(low, vocab_size, size=count)]
    return [vocab_size - 1, 0, *drawn][:count]


def _alike(rng: np.random.Generator, low: int, vocab_size: int, count: int) -> list[int]:
    """The first, a middle or the last token is another one."""
    ids = [min(low, vocab_size - 1)] * count
    if count:
        ids[(0, count // 2, count - 1)[int(rng.integers(3))]] = int(rng.integers(low, vocab_size))
    return ids


# Rows of logits


def _ladder(size: int, seed: int) -> NDArray[np.float32]:
    """Distinct logits of both signs at equal distances; needs no seed, so the order of the ids is known."""
    return (3 - 0.3 * (7 * np.arange(size) % size) - 1e-3 * np.arange(size) / size).astype(np.float32)


def _zeros(size: int, seed: int) -> NDArray[np.float32]:
    """Zeros of both signs, denormal numbers, and one logit above them."""
    logits = np.resize(np.array([0.0, -0.0, 1e-40, -1e-40, 0.0], np.float32), size)
    logits[seed % size] = 1
    return logits


def _nans(size: int, seed: int) -> NDArray[np.float32]:
    """Every second logit is NaN, and the last."""
    logits = target_row("normal", size, seed)
    logits[seed % 2 :: 2] = np.nan
    logits[-1] = np.nan
    return logits


def _gentle(size: int, seed: int) -> NDArray[np.float32]:
    """Distinct logits that are nearly equal: the least top-p keeps several tokens of many."""
    return np.asarray(bulk_rng("gentle", seed).permutation(np.linspace(0, 0.25, size)), dtype=np.float32)


_OWN_ROWS = {"ladder": _ladder, "zeros": _zeros, "nans": _nans, "gentle": _gentle}
ROW_KINDS = (*TARGET_KINDS, "ladder", "zeros", "gentle")
"""Kinds of rows that have a distribution."""
INVALID_ROW_KINDS = ("empty", "nan", "nans")


def logits_row(kind: str, vocab_size: int, seed: int) -> NDArray[np.float32]:  # [vocab_size] float32
    """One row of a kind (`ROW_KINDS`, `INVALID_ROW_KINDS`)."""
    return _OWN_ROWS[kind](vocab_size, seed) if kind in _OWN_ROWS else target_row(kind, vocab_size, seed)


# Bad words


def some_ids(text: Text, rng: np.random.Generator, most: int) -> list[int]:
    """Up to `most` different ids, at least one."""
    count = int(rng.integers(1, min(most, text.vocab_size) + 1))
    return [int(i) for i in rng.choice(text.vocab_size, size=count, replace=False)]


def _known(words: list[list[int]]) -> Fields:
    return {"bad_words_token_ids": [word for word in words if PLACEHOLDER_TOKEN_ID not in word]}


def _ends(text: Text) -> list[list[int]]:
    """What each row sees: the output, and the output with one draft more each time."""
    return [[*text.output, *text.drafts[:count]] for count in range(len(text.drafts) + 1)]


def bad_words(text: Text, rng: np.random.Generator) -> Fields:
    """Words that match the end of the output, or of the output with some drafts; one that never matches; one of one
    id."""
    seen = [*text.output, *text.drafts]
    ends = rng.integers(len(text.output), len(seen) + 1, size=3)
    last = rng.integers(text.vocab_size, size=5)
    words = [[*seen[max(0, end - 1 - i) : end], int(last[i])] for i, end in enumerate(ends)]
    words.append([text.vocab_size - 1, int(last[3])])
    words = [word for word in words[int(rng.integers(3)) :] if PLACEHOLDER_TOKEN_ID not in word]
    return {"bad_words_token_ids": words + [[int(last[4])]] * int(rng.integers(2))}


def _long_words(text: Text, rng: np.random.Generator) -> Fields:
    """Two words of six tokens with one prefix, completed in each row, and one that differs in its first token."""
    words = []
    for seen in _ends(text):
        prefix, last = seen[-5:], rng.integers(text.vocab_size, size=3).tolist()
        words += [[*prefix, last[0]], [*prefix, last[1]]]
        if len(prefix) == 5:
            words.append([(prefix[0] + 1) % text.vocab_size, *prefix[1:], last[2]])
    return _known(words)


def _longest_words(text: Text, rng: np.random.Generator) -> Fields:
    """In each row, words of up to sixty tokens, and the same with another first token."""
    words = []
    for seen in _ends(text):
        prefix, last = seen[-59:], rng.integers(text.vocab_size, size=2).tolist()
        words += [[*prefix, last[0]], [*prefix[len(prefix) // 2 :], last[1]]]
        words += [[(prefix[0] + 1) % text.vocab_size, *prefix[1:], last[1] - 1]] if len(prefix) > 40 and last[1] else []
    return _known(words)


def _nested_words(text: Text, rng: np.random.Generator) -> Fields:
    """In each row, words of one to six tokens that end alike: each is the end of the next, with another last token."""
    lasts = rng.integers(text.vocab_size, size=6).tolist()
    lasts[1] = text.vocab_size - 1  # ids of many bits occur in large vocabularies
    return _known(
        [[*seen[len(seen) - size :], lasts[size]] for seen in _ends(text) for size in range(6) if size <= len(seen)]
    )


def _overlapping_words(text: Text, rng: np.random.Generator) -> Fields:
    """Words that repeat one token, and so overlap themselves; the token is the one that the text ends with."""
    token = (text.output or text.prompt)[-1]
    return _known([[token] * size for size in range(2, 7)] + [[token, token, (token + 1) % text.vocab_size]])


def _many_words(text: Text, rng: np.random.Generator) -> Fields:
    """Hundreds: most never match, and those that do come last."""
    noise = [rng.integers(text.vocab_size, size=1 + i % 6).tolist() for i in range(200)]
    return _known([*(w for w in noise if len(w) > 1), *_nested_words(text, rng)["bad_words_token_ids"]])


def _whole_words(text: Text, rng: np.random.Generator) -> Fields:
    """A word that begins where the output does; one that would begin in the prompt, and so does not match; twice."""
    lasts = rng.integers(text.vocab_size, size=2).tolist()
    return _known([[*text.output, lasts[0]], [text.prompt[-1], *text.output, lasts[1]]] * 2)


# Numbers


def _minimum(more: int, stops: int = 2) -> Maker:
    """A minimum so many tokens above the output (beyond all drafts for -1), with some stop ids and the last id."""

    def make(text: Text, rng: np.random.Generator) -> Fields:
        above = len(text.drafts) + 1 if more < 0 else more
        ids = {*some_ids(text, rng, stops), text.vocab_size - 1} if stops else ()
        return {"min_tokens": len(text.output) + above, "all_stop_token_ids": frozenset(ids)}

    return make


def _many_stops(text: Text, rng: np.random.Generator) -> Fields:
    """A hundred stop ids, or half of the vocabulary, until the last row."""
    stops = rng.permutation(text.vocab_size)[: min(100, text.vocab_size // 2)].tolist()
    return {"min_tokens": len(text.output) + len(text.drafts) + 1, "all_stop_token_ids": frozenset(stops)}


def _few_tokens(least: int) -> Maker:
    return lambda text, rng: {"min_tokens": least, "all_stop_token_ids": frozenset(some_ids(text, rng, 3))}


def _biased(bias: float | None, most: int) -> Maker:
    """A bias on some ids, among them one of the text and the first and last id."""

    def make(text: Text, rng: np.random.Generator) -> Fields:
        ids = dict.fromkeys([*some_ids(text, rng, most), *text.output[-1:], 0, text.vocab_size - 1])
        return {"logit_bias": {i: float(rng.normal() * 3) if bias is None else bias for i in ids}}

    return make


def _many_biased(text: Text, rng: np.random.Generator) -> Fields:
    """Up to a thousand."""
    ids = rng.permutation(text.vocab_size)[:1000].tolist()
    return {"logit_bias": {i: float(rng.normal() * 2) for i in ids}}


def factors(presence: float, frequency: float, repetition: float) -> Maker:
    fields = {"presence_penalty": presence, "frequency_penalty": frequency, "repetition_penalty": repetition}
    return lambda text, rng: dict(fields)


def _just(name: str, *values: float) -> Maker:
    """One of the values."""
    return lambda text, rng: {name: values[int(rng.integers(len(values)))]}


def _numbers(name: str, *values: float) -> dict[str, Maker]:
    return {f"{value:g}": _just(name, value) for value in values}


def _size(name: str, size: Callable[[Text], int]) -> Maker:
    return lambda text, rng: {name: size(text)}


def _allowed(ids: Callable[[Text, np.random.Generator], list[int]]) -> Maker:
    return lambda text, rng: {"allowed_token_ids": ids(text, rng)}


_ULP_BELOW_1 = float(np.nextafter(np.float32(1), np.float32(0)))
_ULP_ABOVE_1 = float(np.nextafter(np.float32(1), np.float32(2)))
_ORDER_BIAS = {0: -3.0, 4: 1.5, 5: 1.5, 6: 1.5, 7: 1.5, 8: 1.5}

VALUES: dict[str, dict[str, Maker]] = {
    "allowed": {
        "one": _allowed(lambda text, rng: some_ids(text, rng, 1)),
        "last": _allowed(lambda text, rng: [text.vocab_size - 1]),
        "all": _allowed(lambda text, rng: list(range(text.vocab_size))),
        "all-but-one": _allowed(lambda text, rng: rng.permutation(text.vocab_size)[1:].tolist() or [0]),
        "twice": _allowed(lambda text, rng: some_ids(text, rng, 8) * 2),
        "order": _allowed(lambda text, rng: [i for i in range(text.vocab_size) if i not in (0, 2, 19)]),
    },
    "bad-words": {
        "same": lambda text, rng: {
            "bad_words_token_ids": [[4 + i, 4 + (i + shift) % 5] for i in range(5) for shift in (1, 3)]
        },
        "long": _long_words,
        "longest": _longest_words,
        "nested": _nested_words,
        "overlapping": _overlapping_words,
        "many": _many_words,
        "whole": _whole_words,
        "order": lambda text, rng: {"bad_words_token_ids": [[0], [2]]},
    },
    "min-tokens": {
        "same": lambda text, rng: {"min_tokens": 5, "all_stop_token_ids": frozenset({5, 7})},
        "0": _few_tokens(0),
        "1": _few_tokens(1),
        "reached": _minimum(0),
        "next": _minimum(1),
        "draft": _minimum(2, stops=6),
        "later": _minimum(-1),
        "no-stops": _minimum(-1, stops=0),
        "many-stops": _many_stops,
        "order": lambda text, rng: {"min_tokens": 99, "all_stop_token_ids": frozenset({0, 2})},
    },
    "bias": {
        "least": _biased(-100.0, 3),
        "most": _biased(100.0, 2),
        "0": _biased(0.0, 2),
        "edges": _biased(None, 2),
        "many": _many_biased,
        "order": lambda text, rng: {"logit_bias": dict(_ORDER_BIAS)},
    },
    "custom": {},
    "penalties": {
        "presence": factors(2.0, 0.0, 1.0),
        "frequency": factors(0.0, 0.25, 1.0),
        "repetition": factors(0.0, 0.0, 1.8),
        "least": factors(-2.0, -2.0, 0.1),
        "most": factors(2.0, 2.0, 2.0),
        "small": factors(1e-3, -1e-3, _ULP_ABOVE_1),
        "order": factors(0.3, 0.4, 1.5),
    },
    "thinking": {
        "same": _just("thinking_token_budget", 4),
        **_numbers("thinking_token_budget", 0, 1),
        "spent": _size("thinking_token_budget", lambda text: len(text.output)),
        "draft": _size("thinking_token_budget", lambda text: len(text.output) + 1),
        "last-draft": _size("thinking_token_budget", lambda text: len(text.output) + max(0, len(text.drafts) - 3)),
        "order": _size("thinking_token_budget", lambda text: len(text.output)),
    },
    "temperature": {
        "edge": _just("temperature", 1e-5),
        "below": _just("temperature", 9.9e-6),
        "tiny": _just("temperature", 0.01),
        "ulp": _just("temperature", _ULP_ABOVE_1, _ULP_BELOW_1),
        "most": _just("temperature", 2.0),
        "order": _just("temperature", 0.5),
    },
    "min-p": {
        "tiny": _just("min_p", 1e-6),
        "half": _just("min_p", 0.5),
        "ulp": _just("min_p", _ULP_BELOW_1),
        "1": _just("min_p", 1.0),
        "order": _just("min_p", 0.2),
    },
    "custom-random": {},
    "top-k": {
        **_numbers("top_k", -1, 1, 2),
        "last": _size("top_k", lambda text: text.vocab_size - 1),
        "all": _size("top_k", lambda text: text.vocab_size),
        "above": _just("top_k", 2**31 - 1),
        "order": _just("top_k", 6),
    },
    "top-p": {
        "tiny": _just("top_p", 1e-6),
        "half": _just("top_p", 0.5),
        "ulp": _just("top_p", _ULP_BELOW_1),
        "order": _just("top_p", 0.6),
    },
}
"""Parameter kind to its named values. `order` is for rows `ladder`: there, processors in another order show; `same` is
for requests that differ in their texts alone."""
OF_THEIR_OWN = ("order", "same", "longest", "many-stops", "last-draft")
"""Values that need requests of their own; all others are paired with each other."""


INSIDE: dict[str, dict[str, Maker]] = {
    "bias": {"2e-05": _biased(2e-5, 3), "-2e-05": _biased(-2e-5, 3)},
    "penalties": {
        "presence-2e-05": factors(2e-5, 0.0, 1.0),
        "frequency-2e-05": factors(0.0, -2e-5, 1.0),
        "repetition-1.00002": factors(0.0, 0.0, 1.00002),
        "repetition-0.99998": factors(0.0, 0.0, 0.99998),
    },
    "temperature": _numbers("temperature", 1.00002, 0.99998, 1.0005, 0.9995, 2e-5, 3e-4, 50.0),
    "min-p": _numbers("min_p", 3e-5, 3e-4, 3e-3, 0.99, 0.9995),
    "top-k": {
        "32": _just("top_k", 32),
        "half": _size("top_k", lambda text: text.vocab_size // 2),
        "almost": _size("top_k", lambda text: text.vocab_size - 2),
    },
    "top-p": _numbers("top_p", 3e-3, 0.03, 0.9995, 0.9998, 0.99995),
}
"""Values near the end where they would be off or greedy, at several magnitudes, for rows in which that shows."""
