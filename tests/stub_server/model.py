"""A toy language model of 64 tokens: their texts, some of them pieces of UTF-8, and logits after three tokens."""

from __future__ import annotations

import string
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from fairdraw._core.seeds import derive_seed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

BOS, EOS = 0, 1
SPECIAL = (b"<s>", b"</s>", b"<unk>")
# Half a letter each, as byte-level vocabularies have them: no such token has a text of its own.
PIECES = (b"\xc3", b"\xa9", b"\xa8", b"\xf0\x9f", b"\x98\x80", b"\xe2\x82", b"\xac")
SPELLED = ((3, 4), (6, 7), (8, 9))
WORDS = (
    b" the",
    b" a",
    b" cat",
    b" sat",
    b" on",
    b" and",
    b"ing",
    b"er",
    b"he",
    b"th",
    b" world",
    b"hello",
    b"ab",
    b"bc",
)
SIGNS = (b" ", b"\n", b".", b",", b"!", b"0", b"1", b"2", b"=", b"()", b"\n\n", b'"', b"\t", b":")
TEXTS = (*SPECIAL, *PIECES, *WORDS, *SIGNS, *(letter.encode() for letter in string.ascii_lowercase))
VOCAB_SIZE = len(TEXTS)


def text_of(tokens: Iterable[int]) -> str:
    """Tokens as text: special ones have none, and incomplete UTF-8 becomes the replacement character."""
    return b"".join(TEXTS[token] for token in tokens if token >= len(SPECIAL)).decode(errors="replace")


def tokens_of(text: str) -> list[int]:
    """The longest token that fits, again and again; what no token spells is unknown.

    Example:
        >>> text_of(tokens_of("hello world")) == "hello world"
        True
    """
    rest, tokens = text.encode(), []
    while rest:
        token = next((token for token in _longest_first() if rest.startswith(TEXTS[token])), None)
        tokens.append(SPECIAL.index(b"<unk>") if token is None else token)
        rest = rest[1 if token is None else len(TEXTS[token]) :]
    return tokens


@cache
def _longest_first() -> list[int]:
    return sorted(range(len(SPECIAL), VOCAB_SIZE), key=lambda token: -len(TEXTS[token]))


@cache
def _tables() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rng = np.random.default_rng(derive_seed("toy language model"))
    pair = 2.0 * rng.standard_normal((VOCAB_SIZE, VOCAB_SIZE, VOCAB_SIZE))
    third = rng.standard_normal((VOCAB_SIZE, VOCAB_SIZE))
    pair[..., [BOS, SPECIAL.index(b"<unk>")]] -= 12.0  # never seen in practice, and not impossible
    pair[..., EOS] += 0.4
    for start, end in SPELLED:  # pieces come as pairs, mostly
        pair[..., start] -= 4.0
        pair[..., end] -= 6.0
        pair[:, start, end] += 14.0
        pair[start, end, [one for one, _ in SPELLED]] += 12.0  # a text with such letters goes on with them
    return pair, third


def logits_after(tokens: Sequence[int]) -> NDArray[np.float64]:
    """Logits of the next token. Shape: [64]. They depend on the last three tokens."""
    before, last, now = [BOS, BOS, BOS, *tokens][-3:]
    pair, third = _tables()
    logits: NDArray[np.float64] = pair[last, now] + third[before]
    return logits


def draft_logits_after(tokens: Sequence[int]) -> NDArray[np.float64]:
    """Those of a smaller model, which forgets the token before the last two. Shape: [64]."""
    _, last, now = [BOS, BOS, BOS, *tokens][-3:]
    logits: NDArray[np.float64] = _tables()[0][last, now]
    return logits
