"""A draft and a target language model that are small but real: n-gram models of a text that is shipped beside them.

They are what a decoding loop needs and nothing more: from prefixes to logits, for thousands of requests at once, the
same numbers on every machine. The target looks back three characters and writes half-English; the draft looks back one
and is often wrong, so that drafts are accepted, rejected and recovered often enough. Cut to eight symbols the
same text gives a language whose sequences can be enumerated.

Each order is interpolated with the one below it, down to the uniform distribution, so that every token is possible
after every prefix:

    probs(token | context) = (count(context, token) + strength * probs(token | shorter context))
                           / (count(context) + strength)

Reference:
    MacKay, Bauman Peto (1995), "A hierarchical Dirichlet language model", Natural Language Engineering 1.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from fairdraw.statistical._distributions import softmax_probs
from fairdraw.statistical._validation import refuse

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

_MAX_CELLS = 2**24


@cache
def read_text() -> str:
    """The shipped text in lower case, its lines joined."""
    text = Path(__file__).with_name("text.txt").read_text(encoding="utf-8")
    return " ".join(text.lower().split())


@dataclass(frozen=True)
class Vocabulary:
    """Characters as tokens, the most frequent first; the last id stands for every other character.

    Args:
        characters: The characters that have an id of their own.
    """

    characters: str

    @classmethod
    def of_text(cls, text: str, vocab_size: int) -> Vocabulary:
        """The `vocab_size - 1` most frequent characters, ties in alphabetical order.

        Raises:
            ValueError: If there is not at least one character and the id for the others.
        """
        if not 2 <= vocab_size <= 64:
            raise refuse("Vocabulary.of_text", f"vocab_size={vocab_size}", "it must lie in [2, 64]", "Use 32.")
        ranked = sorted(Counter(text).items(), key=lambda item: (-item[1], item[0]))
        return cls("".join(character for character, _ in ranked[: vocab_size - 1]))

    @property
    def size(self) -> int:
        """Number of tokens."""
        return len(self.characters) + 1

    def encode(self, text: str) -> NDArray[np.int64]:  # [len(text)] int64
        """Text as tokens."""
        ids = {character: token for token, character in enumerate(self.characters)}
        return np.array([ids.get(character, len(ids)) for character in text], dtype=np.int64)

    def decode(self, token_ids: NDArray[np.int64]) -> str:  # [num_tokens] int64
        """Tokens as text; `#` for the others, `!` for what is no token."""
        shown = [*self.characters, "#"]
        return "".join(shown[token] if 0 <= token < len(shown) else "!" for token in token_ids)


class NGramModel:
    """The distribution of the next token given the last `order - 1` ones, as one table of logits.

    Args:
        token_ids: The text.
        strength: Weight of the shorter context, in observations. 1 follows the text closely, 100 hardly at all.

    Raises:
        ValueError: If the table would not fit (`vocab_size ** order`), or the text has fewer tokens than the order.
    """

    def __init__(
        self,
        token_ids: NDArray[np.int64],  # [num_tokens] int64
        vocab_size: int,
        order: int,
        *,
        strength: float = 2.0,
    ) -> None:
        if not 1 <= order <= token_ids.size or vocab_size**order > _MAX_CELLS:
            raise refuse(
                "NGramModel",
                f"order={order}, vocab_size={vocab_size}, {token_ids.size} tokens",
                f"order must be at most the number of tokens, and vocab_size ** order at most {_MAX_CELLS}",
                "Lower the order.",
            )
        self.vocab_size = vocab_size
        self.context_size = order - 1
        probs = np.full((1, vocab_size), 1 / vocab_size)
        for size in range(1, order + 1):
            probs = _sharpen(probs, _count_ngrams(token_ids, vocab_size, size), strength)
        self.logits = np.log(probs).astype(np.float32)  # [vocab_size ** context_size, vocab_size] float32

    def contexts(
        self,
        prefixes: NDArray[np.int64],  # [batch_size, width] int64, -1 after the last token
    ) -> NDArray[np.int64]:  # [batch_size] int64
        """The row of `logits` that each prefix leads to.

        Raises:
            ValueError: If a prefix is shorter than the context.
        """
        return self.contexts_of(torch.from_numpy(np.ascontiguousarray(prefixes))).numpy()

    def contexts_of(
        self,
        prefixes: Tensor,  # [batch_size, width] int64, -1 after the last token
    ) -> Tensor:  # [batch_size] int64
        """The same for tensors: a prefix's last tokens as digits in base `vocab_size`."""
        lengths = (prefixes >= 0).sum(dim=1)
        if len(prefixes) and int(lengths.min()) < self.context_size:
            raise refuse(
                "NGramModel.contexts",
                f"a prefix has {int(lengths.min())} tokens",
                f"it must have at least {self.context_size}",
                "Begin with a prompt.",
            )
        codes = torch.zeros_like(lengths)
        for back in range(self.context_size, 0, -1):
            codes = codes * self.vocab_size + prefixes.gather(1, (lengths - back)[:, None])[:, 0]
        return codes

    def context_tokens(self, context: int) -> NDArray[np.int64]:  # [context_size] int64
        """The tokens of a row of `logits`, for labels."""
        places = self.vocab_size ** np.arange(self.context_size - 1, -1, -1, dtype=np.int64)
        return np.asarray(context // places % self.vocab_size)

    def context_visits(
        self,
        prompts: NDArray[np.int64],  # [num_prompts, prompt_size] int64
        num_tokens: int,
        temperature: float = 1.0,
    ) -> NDArray[np.float64]:  # [vocab_size ** context_size] float64
        """How often plain decoding is expected to draw from each row of `logits`, per request; exact.

        The distribution over contexts is pushed forward one token at a time, from prompts taken equally often.

        Args:
            num_tokens: Tokens decoded per request.
        """
        num_contexts = len(self.logits)
        probs = softmax_probs(self.logits, temperature)
        state = np.bincount(self.contexts(prompts), minlength=num_contexts) / len(prompts)
        visits = np.zeros(num_contexts)
        for _ in range(num_tokens):
            visits += state
            # A new context forgets its oldest token, the leading digit, and ends with the new one.
            state = (state[:, None] * probs).reshape(-1, num_contexts).sum(axis=0)
        return visits


def _count_ngrams(
    token_ids: NDArray[np.int64],  # [num_tokens] int64
    vocab_size: int,
    size: int,
) -> NDArray[np.float64]:  # [vocab_size ** (size - 1), vocab_size] float64
    """How often each token follows each context of `size - 1` tokens."""
    places = vocab_size ** np.arange(size - 1, -1, -1, dtype=np.int64)
    codes = np.lib.stride_tricks.sliding_window_view(token_ids, size) @ places
    return np.bincount(codes, minlength=vocab_size**size).reshape(-1, vocab_size).astype(np.float64)


def _sharpen(
    shorter: NDArray[np.float64],  # [vocab_size ** (size - 2), vocab_size] float64, or one row
    counts: NDArray[np.float64],  # [vocab_size ** (size - 1), vocab_size] float64
    strength: float,
) -> NDArray[np.float64]:  # [vocab_size ** (size - 1), vocab_size] float64
    """The distribution given one more token of context. The shorter context repeats: it lacks the leading digit."""
    prior = np.tile(shorter, (len(counts) // len(shorter), 1))
    return np.asarray((counts + strength * prior) / (counts.sum(axis=1, keepdims=True) + strength))
