"""The watermarks contract, executable: which contexts mark a text, what keyed numbers do to a row, and their p-value.

Gumbel: Aaronson, "Watermarking of Large Language Models" (2022): the token is the argmax of `number ** (1 / prob)`.
Over random keys it follows `prob`. Green lists: Kirchenbauer et al., arXiv:2301.10226, algorithm 2. Tournaments:
Dathathri et al., "Scalable watermarking for identifying large language model outputs", Nature 634 (2024): with two
candidates a layer makes `prob * (1 + number - sum(prob * number))` of `prob`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.special import gammaincc
from torch import Tensor

from fairdraw import contracts
from fairdraw._core.array_types import Float64s, Row32, Row64
from fairdraw._oracles.sampling import Request, SamplingOracle, requests_of
from fairdraw.contracts import Context, SamplingNoise, WatermarkBatch, WatermarkPolicy, WatermarkSetup

NUM_LAYERS = {"gumbel": 1, "green_list": 1, "tournament": 5}
_GREEN = 0.25
"""The share of green tokens."""


def contexts_of(policy: WatermarkPolicy, width: int, prompt: Sequence[int], output: Sequence[int]) -> list[Context]:
    """Return the context of every token of an output, and of the one behind it.

    Example:
        >>> contexts_of(WatermarkPolicy(), 2, [9], [5, 6, 7])
        [(), (5,), (5, 6), (6, 7)]
    """
    text = (*prompt, *output) if policy.context == "text" else tuple(output)
    first = len(text) - len(output)
    return [text[max(0, end - width) : end] for end in range(first, len(text) + 1)]


def marks(policy: WatermarkPolicy, width: int, context: Context, before: Sequence[Context]) -> bool:
    """Return whether a token is marked that follows `context`, in a text that had `before`."""
    least = {"marked": 0, "unless_empty": 1, "plain": width}[policy.short_context]
    return len(context) >= least and not (policy.repeated == "plain" and context in before)


def marking_context(policy: WatermarkPolicy, width: int, text: contracts.WatermarkedRequest) -> Context | None:
    """Return the context by which the next token of a text is marked; `None` if it is not."""
    *before, now = contexts_of(policy, width, text.prompt_token_ids, text.output_token_ids)
    return now if text.is_marked and marks(policy, width, now, before) else None


Places = list[tuple[int, Context]]
"""Numbers of tokens of an output, and the contexts that they follow."""


def counted_places(policy: WatermarkPolicy, width: int, prompt: Sequence[int], output: Sequence[int]) -> Places:
    """Return place and context of each token of an output that a detector counts: of equal contexts the first."""
    contexts, once = contexts_of(policy, width, prompt, output)[:-1], replace(policy, repeated="plain")
    return [(i, one) for i, one in enumerate(contexts) if marks(once, width, one, contexts[:i])]


def weights_under(scheme: str, weights: Float64s, numbers: Float64s, bias: float) -> Float64s:
    """Return what a scheme makes of rows of weights by its numbers, `[..., num_layers, vocab_size]`; Gumbel: nothing.

    Example:
        >>> weights_under("tournament", np.array([0.5, 0.5]), np.array([[1.0, 0.0]]), 0).tolist()
        [0.75, 0.25]
    """
    if scheme == "green_list":
        return np.asarray(weights * np.exp(bias * numbers[..., 0, :]))
    if scheme == "tournament":
        for layer in np.moveaxis(numbers, -2, 0):
            mean = (weights * layer).sum(axis=-1, keepdims=True) / weights.sum(axis=-1, keepdims=True)
            weights = weights * (1 + layer - mean)
    return weights


def gamma_tail(score: float, count: int) -> float:
    """Return how probable so high a sum of so many exponentials is; 1 if there are none."""
    return float(gammaincc(count, score)) if count else 1.0


def mixed(words: np.ndarray) -> np.ndarray:  # each [...] uint64
    """Return the numbers that splitmix64 makes of others."""
    with np.errstate(over="ignore"):
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(words ^ (words >> np.uint64(31)))


@dataclass(frozen=True)
class Marking:
    """One row of a call: what may be drawn, by whom, and by which noise."""

    row: Request
    text: contracts.WatermarkedRequest
    setup: WatermarkSetup
    exponentials: Row32

    def contexts(self, policy: WatermarkPolicy) -> list[Context]:
        """Return the contexts of the output, and of the token that is drawn."""
        return contexts_of(policy, self.setup.context_width, self.text.prompt_token_ids, self.text.output_token_ids)


class WatermarksOracle(SamplingOracle):
    """The specification as small steps; a mutant overrides exactly one of them."""

    policy = WatermarkPolicy()

    def sample_watermarked(self, batch: WatermarkBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
        """Draw a token for each request."""
        exponentials = self.exponentials(batch, noise).cpu().numpy()
        rows = zip(requests_of(batch), batch.requests, exponentials, strict=True)
        tokens = [self.token_of(Marking(row, text, batch.setup, own)) for row, text, own in rows]
        return torch.tensor(tokens, dtype=torch.int64, device=batch.device)

    def token_of(self, one: Marking) -> int:
        """Draw a marked token where the request wants one and its context marks; else an ordinary one."""
        context = self.context(one)
        if one.row.is_greedy or not one.text.is_marked or not self.has_mark(context, one):
            return self.token(one.row, one.exponentials)
        return self.marked_token(self.distribution(one.row), self.decisive(context, one), one)

    def context(self, one: Marking) -> Context:
        """Return the tokens before the next one."""
        return one.contexts(self.policy)[-1]

    def has_mark(self, context: Context, one: Marking) -> bool:
        """Return whether the next token is marked, by what was before."""
        return marks(self.policy, one.setup.context_width, context, self.history(one))

    def history(self, one: Marking) -> list[Context]:
        """Return the contexts that the output has had."""
        return one.contexts(self.policy)[:-1]

    def decisive(self, context: Context, one: Marking) -> Float64s:
        """Return the numbers of the key that decides, `[num_layers, vocab_size]`."""
        is_second = self.policy.keys == "drawn" and np.exp(-np.float64(one.exponentials[0])) >= one.setup.share
        return np.asarray(self.numbers(one.setup, [context], one.exponentials.size)[int(is_second), :, 0])

    def marked_token(self, probs: Row32, numbers: Float64s, one: Marking) -> int:
        """Return the winner of the keyed race, or a draw from the distribution that the numbers tilt."""
        weights = probs.astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            if self.policy.scheme == "gumbel":
                scores = np.where(weights > 0, np.log(numbers[0]) / weights, -np.inf)
            else:
                scores = weights_under(self.policy.scheme, weights, numbers, one.setup.bias) / one.exponentials
        return int(np.argmax(scores))

    # The keyed numbers

    def numbers(self, setup: WatermarkSetup, contexts: Sequence[Context], vocab_size: int) -> Float64s:
        """Return them, `[num_keys, num_layers, num_contexts, vocab_size]`."""
        keys = setup.keys[: 1 if self.policy.keys == "one" else 2]
        found = np.array([[self.row(setup, key, one, vocab_size) for one in contexts] for key in keys])
        if self.policy.keys == "by_context" and len(keys) > 1:
            first = np.array([self.coin(setup, one) < setup.share for one in contexts], bool)
            found = np.where(first[:, None, None], found[:1], found[1:])
        return np.moveaxis(found, 2, 1)

    def row(self, setup: WatermarkSetup, key: int, context: Context, vocab_size: int) -> Float64s:
        """Return the numbers of one key and context, `[num_layers, vocab_size]`."""
        layers, ids = np.arange(NUM_LAYERS[self.policy.scheme], dtype=np.uint64), np.arange(vocab_size, dtype=np.uint64)
        seeds = mixed(self.seed(key, context) + layers)
        found = self.uniform(mixed(mixed(seeds)[:, None] ^ (ids * np.uint64(0x9E3779B97F4A7C15))))
        least = {"gumbel": 0.0, "green_list": 1 - _GREEN, "tournament": 0.5}[self.policy.scheme]
        return found if self.policy.scheme == "gumbel" else (found >= least).astype(np.float64)

    def seed(self, key: int, context: Context) -> np.uint64:
        """Return the hash of a key and a context."""
        state = mixed(np.array([key], np.uint64))
        for token in context:
            state = mixed(state ^ mixed(np.array([token + 1], np.uint64)))
        return np.uint64(state[0])

    def uniform(self, words: np.ndarray) -> Float64s:  # [...] uint64
        """Return numbers within (0, 1)."""
        return np.asarray(((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)

    def coin(self, setup: WatermarkSetup, context: Context) -> float:
        """Return the number by which a context chooses its key."""
        return float(self.uniform(mixed(np.array([self.seed(setup.keys[0] ^ setup.keys[1], context)])))[0])

    def watermark_numbers(self, setup: WatermarkSetup, contexts: Sequence[Context], vocab_size: int) -> Tensor:
        """Return the keyed numbers as the contract has them."""
        return torch.from_numpy(self.numbers(setup, contexts, vocab_size))

    # The detector

    def detect(self, setup: WatermarkSetup, prompt: Sequence[int], output: Sequence[int]) -> float:
        """Return the p-value of an output: its keyed numbers are high more often than by chance."""
        places = self.scored(setup, prompt, output)
        numbers = [self.numbers(setup, [context], output[place] + 1)[0, 0, 0, -1] for place, context in places]
        return self.p_value(np.array(numbers))

    def scored(self, setup: WatermarkSetup, prompt: Sequence[int], output: Sequence[int]) -> Places:
        """Return place and context of each token that counts."""
        return counted_places(self.policy, setup.context_width, prompt, output)

    def p_value(self, numbers: Row64) -> float:
        """Return how probable numbers as high as these are, if no key knows the text."""
        return gamma_tail(float(-np.log1p(-numbers).sum()), numbers.size)


class SeveralKeysOracle(WatermarksOracle):
    """Two keys, of which the context chooses, as SGLang does it: contexts go back into the prompt."""

    policy = WatermarkPolicy(context="text", short_context="unless_empty", keys="by_context")


class DrawnKeysOracle(WatermarksOracle):
    """Two keys, of which chance chooses, as vLLM's dual_key_gumbel does it."""

    policy = WatermarkPolicy(keys="drawn")


class GreenListOracle(WatermarksOracle):
    """Green lists, as transformers does them."""

    policy = WatermarkPolicy("green_list", "text", "plain", "marked")


class TournamentOracle(WatermarksOracle):
    """Tournaments of five layers, as SynthID-Text does them."""

    policy = WatermarkPolicy("tournament", "text", "plain")


def sampler_of(kind: type[WatermarksOracle], **changes: Any) -> contracts.FunctionWatermarker:
    """Return an oracle of a class as a sampler, with all that its scheme has.

    Args:
        changes: Any: arguments of `watermarker`.
    """
    made = kind()
    about: dict[str, Any] = {"numbers": made.watermark_numbers, "policy": made.policy, "name": kind.__name__}
    detect = made.detect if made.policy.is_race else None
    return contracts.watermarker(made.sample_watermarked, **{**about, "detect": detect, **changes})
