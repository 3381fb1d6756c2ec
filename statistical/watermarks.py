"""The statistical checks of the watermarks contract: what tokens follow over keys and contexts, and p-values.

Each token becomes the mass before it in its row's declared distribution (`_pit`), which is uniform, whatever the row,
the temperature and the scheme are. Keys are new in half of the calls; the others have one key, and contexts decide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from fairdraw._core.array_types import Flags, Float64s, Ints, Rows64
from fairdraw._core.checks import Conditions, Stage
from fairdraw._core.seeds import derive_seed
from fairdraw._oracles.supports import softmax_of_rows
from fairdraw._oracles.watermarks import contexts_of, weights_under
from fairdraw.contracts import (
    Capability,
    FunctionWatermarker,
    RaceNoise,
    SamplingNoise,
    SeededNoise,
    WatermarkBatch,
    WatermarkedRequest,
    WatermarkPolicy,
    WatermarkSetup,
    policy_of,
)
from fairdraw.contracts._watermarks import numbers_of_contexts, p_value_of, require_part, sample_marked
from fairdraw.statistical._count_tables import Counts, Table, count_codes, joint_codes
from fairdraw.statistical._distribution_check import DistributionCheck, sharing
from fairdraw.statistical._noise import exponentials
from fairdraw.statistical._pit import Order, PitCells, pit_of_rows
from fairdraw.statistical._workloads import SamplingPlan, Setting, Workload

__all__ = ["CHECKS"]

_VOCAB, _WIDTH, _ROWS, _SHARE = 32, 6, 64, 0.3
_CELLS = PitCells(16, 4)
_KEY = WatermarkSetup((derive_seed("key") * 2 + 1, derive_seed("other key") * 2), _WIDTH, _SHARE)
"""The setup of calls with one key."""


@dataclass(frozen=True)
class WatermarkDistribution(DistributionCheck):
    """A statistical check of what not every sampler has; `part` and `where` are those of `require_part`."""

    part: str = field(default="", kw_only=True)
    where: tuple[Callable[[WatermarkPolicy], bool], str] = field(default=(lambda _: True, ""), kw_only=True)

    def judge(self, sampler: Any, under: Conditions) -> int:  # Any: a Watermarker
        """Run the check, unless the sampler has no such part, or another policy."""
        by_numbers = "watermark_numbers" if policy_of(sampler, WatermarkPolicy).scheme == "green_list" else ""
        require_part(sampler, self.part or by_numbers, self.where)
        return super().judge(sampler, under)


def _texts(rng: np.random.Generator, seed: int, *, repeated: Flags, marked: Flags) -> tuple[WatermarkedRequest, ...]:
    """Return texts with new contexts, two of which differ in one token, or with one that repeats itself."""
    outputs = np.repeat(rng.integers(_VOCAB, size=(len(marked) // 2, _WIDTH)), 2, axis=0)
    changed = rng.integers(2 * _WIDTH, size=len(outputs[1::2])).clip(max=_WIDTH - 1)  # mostly the last
    outputs[1::2][np.arange(len(changed)), changed] += rng.integers(1, _VOCAB, size=len(changed))
    once, found = [1, 2, 3] * (2 * _WIDTH), []
    for i, output in enumerate((outputs % _VOCAB).tolist()):
        text = once if repeated[i] else output
        found.append(WatermarkedRequest(derive_seed(seed, i), [5] * _WIDTH, text, bool(marked[i])))
    return tuple(found)


def _drawn(
    sampler: FunctionWatermarker, setup: WatermarkSetup, seed: int, repeated: Flags, marked: Flags, flat: bool = False
) -> tuple[WatermarkBatch, Rows64, Ints]:
    """Draw once: the batch, the rows' distributions, and the tokens."""
    rng, size, device = np.random.default_rng(seed), len(marked), sampler.device
    logits = np.repeat(rng.normal(scale=0.0 if flat else 1.5, size=(size // 2, _VOCAB)), 2, axis=0).astype(np.float32)
    heat = np.resize(np.array([1.0, 1.0, 0.7, 0.7, 1.5, 1.5], np.float32), size)
    batch = WatermarkBatch(
        logits=torch.from_numpy(logits).to(device),
        temperature=torch.from_numpy(heat).to(device),
        top_k=None,
        top_p=None,
        min_p=None,
        positions=torch.full((size,), 4 * _WIDTH, device=device),
        setup=setup,
        requests=_texts(rng, seed, repeated=repeated, marked=marked),
    )
    noise: SamplingNoise = SeededNoise(seed)
    if Capability.SEEDED_NOISE not in sampler.capabilities and Capability.EXPLICIT_NOISE in sampler.capabilities:
        noise = RaceNoise(exponentials(rng, size, _VOCAB).to(device))
    return batch, softmax_of_rows((logits / heat[:, None]).astype(np.float64)), sample_marked(sampler, batch, noise)


def _numbers(sampler: FunctionWatermarker, batch: WatermarkBatch, setup: WatermarkSetup) -> Float64s:
    """Return the keyed numbers of each row, `[num_keys, num_layers, batch_size, vocab_size]`."""
    policy = policy_of(sampler, WatermarkPolicy)
    texts = ((one.prompt_token_ids, one.output_token_ids) for one in batch.requests)
    contexts = [contexts_of(policy, setup.context_width, *text)[-1] for text in texts]
    return numbers_of_contexts(sampler, setup, contexts, batch.vocab_size)


def _counted(sampler: FunctionWatermarker, seed: int) -> Counts:
    """Count one call with keys of its own, and one with the keys of all calls."""
    policy, rng = policy_of(sampler, WatermarkPolicy), np.random.default_rng(derive_seed("cells", seed))
    everyone, nobody = np.ones(_ROWS, bool), np.zeros(_ROWS, bool)
    keys = tuple(derive_seed(word, seed) * 2 for word in ("one", "two"))
    found: dict[str, Float64s] = {}
    for name, setup in (("W1 new keys", replace(_KEY, keys=keys)), ("W2 one key", _KEY)):
        batch, probs, tokens = _drawn(sampler, setup, derive_seed(name, seed), nobody, everyone)
        if policy.scheme == "green_list":
            numbers = _numbers(sampler, batch, setup)[0].transpose(1, 0, 2)
            probs = weights_under(policy.scheme, probs, numbers, setup.bias)
            probs /= probs.sum(axis=1, keepdims=True)
        found[name] = pit_of_rows(probs, tokens, rng.random(_ROWS), Order.ID)
        found[f"{name}, by rank"] = pit_of_rows(probs, tokens, rng.random(_ROWS), Order.RANK)
    repeated = np.arange(_ROWS) % 2 == (0 if policy.repeated == "plain" else 2)
    _, probs, tokens = _drawn(sampler, _KEY, derive_seed("plain", seed), np.ones(_ROWS, bool), repeated)
    found["W3 unmarked tokens"] = pit_of_rows(probs, tokens, rng.random(_ROWS), Order.ID)
    cells = {
        name: np.asarray(4 * np.clip(found[name], 0, 0.999), np.int64).reshape(-1, 2).T
        for name in ("W1 new keys", "W2 one key")
    }
    pairs = {f"W4 pairs, {name}": count_codes(joint_codes(*one, sizes=(4, 4)), 16) for name, one in cells.items()}
    return {name: _CELLS.count(one) for name, one in found.items()} | pairs


@Workload.of("watermarks: tokens", "tokens of marked texts", 0.06, 1.0)
def marked_tokens(setting: Setting) -> SamplingPlan:
    """Rows of three calls, of which a draw is one of each."""

    def tables(num_calls: int) -> dict[str, Table]:
        names = ("W1 new keys", "W1 new keys, by rank", "W2 one key", "W2 one key, by rank", "W3 unmarked tokens")
        pairs = {
            f"W4 pairs, {name}": Table(np.full(16, 1 / 16), num_draws=num_calls * _ROWS // 2)
            for name in (names[0], names[2])
        }
        return {name: _CELLS.table(num_calls * _ROWS) for name in names} | pairs

    return SamplingPlan.of_calls(max(setting.num_draws, 2 * _ROWS), _ROWS, tables, _counted)


def _shares(sampler: FunctionWatermarker, seed: int) -> Counts:
    """Count whose numbers decided the tokens of flat rows; where both give one token, nobody's."""
    setup = replace(_KEY, keys=tuple(derive_seed(word, seed) * 2 for word in ("one", "two")))
    everyone = np.ones(_ROWS, bool)
    batch, _, tokens = _drawn(sampler, setup, seed, ~everyone, everyone, flat=True)
    if policy_of(sampler, WatermarkPolicy).keys == "drawn":
        winners = _numbers(sampler, batch, setup)[:, 0].argmax(axis=-1)
    else:
        alone = (replace(setup, keys=(key,)) for key in setup.keys)
        winners = np.stack([_numbers(sampler, batch, one)[0, 0].argmax(axis=-1) for one in alone])
    differ = winners[0] != winners[1]
    codes = np.where(tokens == winners[0], 0, np.where(tokens == winners[1], 1, -1))
    return {"W5 share of keys": count_codes(codes[differ], 2)}


@Workload.of("watermarks: keys", "keys of marked texts", 0.03, 1.0)
def shares_of_keys(setting: Setting) -> SamplingPlan:
    """Flat rows, marked by one of two keys."""

    def tables(num_calls: int) -> dict[str, Table]:
        seen, label = 1 - 1 / _VOCAB, ("the first key", "the second key").__getitem__
        probs = np.array([_SHARE, 1 - _SHARE])
        return {
            "W5 share of keys": Table(
                probs, label=label, num_draws=num_calls * _ROWS, observed_per_draw=seen, event_prob=seen
            )
        }

    return SamplingPlan.of_calls(max(setting.num_draws, 2 * _ROWS), _ROWS, tables, _shares)


_TEXTS, _TOKENS = 4, 24


def _p_values(sampler: FunctionWatermarker, seed: int) -> Counts:
    """Count p-values of plain texts that repeat themselves, or do not."""
    rng, found = np.random.default_rng(seed), []
    for number in range(_TEXTS):
        setup = replace(
            _KEY, keys=tuple(derive_seed(word, seed, number) * 2 for word in ("one", "two")), context_width=2
        )
        output = rng.integers(_VOCAB, size=_TOKENS // (3 if number else 1))
        found.append(p_value_of(sampler, setup, [3] * 4, np.resize(output, _TOKENS).tolist()))
    return {"W6 p-values": _CELLS.count(np.minimum(1 - np.array(found), np.nextafter(1.0, 0.0)))}


@Workload.of("watermarks: p-values", "p-values of plain texts", 0.02, 0.5)
def p_values(setting: Setting) -> SamplingPlan:
    """Texts under keys of their own; a draw is a text."""

    def tables(num_calls: int) -> dict[str, Table]:
        return {
            "W6 p-values": replace(
                _CELLS.table(num_calls * _TEXTS), label=lambda cell: f"1 - p in {_CELLS.table(1).label(cell)}"
            )
        }

    return SamplingPlan.of_calls(max(setting.num_draws, 64 * _TEXTS), _TEXTS, tables, _p_values)


_check = partial(WatermarkDistribution.of, contract="watermarks")


@_check("DIST991", marked_tokens, stage=Stage.TOKENS)
def marked_tokens_follow_the_distribution_over_keys() -> tuple[str, ...]:
    """With a new key for each call, tokens follow the softmax of their rows, or what the green lists make of it.

    One number for several tokens, a number that cannot be large, a race at another temperature.
    """
    return ("W1",)


@_check("DIST992", marked_tokens, stage=Stage.TOKENS)
def marked_tokens_follow_the_distribution_over_contexts() -> tuple[str, ...]:
    """The same under one key, with a new context for each token.

    A context of which few numbers are made: a sum of its tokens, 16 bits of a hash.
    """
    return ("W2",)


@_check("DIST993", marked_tokens, stage=Stage.TOKENS)
def unmarked_tokens_follow_the_distribution() -> tuple[str, ...]:
    """Under one key and in one context, tokens that are not marked follow the softmax of their rows.

    Here a token that is marked after all is always the same one.
    """
    return ("W3",)


@_check("DIST994", marked_tokens, stage=Stage.INDEPENDENCE)
def tokens_of_two_contexts_are_independent() -> tuple[str, ...]:
    """Contexts that differ in one token draw independently of each other.

    Numbers of a weak hash: what differs little gives numbers that differ little.
    """
    return ("W4",)


@_check(
    "DIST995",
    shares_of_keys,
    stage=Stage.TOKENS,
    part="watermark_numbers",
    where=(lambda policy: policy.scheme == "gumbel" and policy.keys != "one", "it has one key"),
)
def each_of_two_keys_has_its_share() -> tuple[str, ...]:
    """The first key decides as many tokens as `share` says.

    The shares of the other roles, a coin that is decided by the key alone.
    """
    return ("W5",)


@_check(
    "DIST996",
    p_values,
    stage=Stage.TOKENS,
    part="detect",
    where=(lambda policy: policy.scheme == "gumbel", "its p-values are those of few values"),
)
def p_values_of_plain_texts_are_uniform() -> tuple[str, ...]:
    """Of texts that no key has marked, a share of 1 % has a p-value below 1 %, and so on.

    Contexts that count twice, a normal distribution in the tail, a score of another distribution.
    """
    return ("W6",)


CHECKS = sharing([value for value in list(globals().values()) if isinstance(value, WatermarkDistribution)])
