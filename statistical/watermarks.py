"""The statistical checks of the watermarks contract: what tokens follow over keys and contexts, and p-values.

Each token becomes the mass before it in its row's declared distribution (`_pit`), which is uniform, whatever the row,
the temperature and the scheme are. Keys are new in half of the calls; the others have one key, and contexts decide.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from fairdraw import contracts
from fairdraw._core.array_types import Flags, Float64s, Ints, Rows64
from fairdraw._core.checks import Conditions, Stage
from fairdraw._core.seeds import derive_seed
from fairdraw._oracles.supports import softmax_of_rows
from fairdraw._oracles.watermarks import contexts_of, weights_under
from fairdraw.contracts import FunctionWatermarker, WatermarkBatch, WatermarkPolicy, WatermarkSetup, policy_of
from fairdraw.contracts import _watermarks as calls
from fairdraw.statistical._count_tables import Counts, Table, count_codes, joint_codes
from fairdraw.statistical._distribution_check import DistributionCheck, sharing
from fairdraw.statistical._pit import PitCells
from fairdraw.statistical._projections import TokenTables, numbers_of_rows
from fairdraw.statistical._sampling_requests import Kind, batch_of, noise_of
from fairdraw.statistical._workloads import SamplingPlan, Setting, Workload

__all__ = ["CHECKS"]

_VOCAB, _WIDTH, _ROWS, _SHARE = 32, 6, 64, 0.3
_HEATS = (1.0, 1.0, 0.7, 0.7, 1.5, 1.5)
_KEY = WatermarkSetup((derive_seed("key") * 2 + 1, derive_seed("other key") * 2), _WIDTH, _SHARE)
"""The setup of calls with one key."""


@dataclass(frozen=True)
class WatermarkDistribution(DistributionCheck):
    """A statistical check of what not every sampler has; `requires` names attributes of the sampler or its policy."""

    requires: tuple[str, ...] = field(default=(), kw_only=True)

    def judge(self, sampler: Any, under: Conditions) -> int:  # Any: a Watermarker
        """Run the check, unless the sampler has no such part, or another policy."""
        is_tilted = policy_of(sampler, WatermarkPolicy).scheme == "green_list"
        calls.require_parts(sampler, self.requires + ("watermark_numbers",) * is_tilted)
        return super().judge(sampler, under)


def _new_keys(seed: int) -> WatermarkSetup:
    return replace(_KEY, keys=tuple(derive_seed(word, seed) * 2 for word in ("one", "two")))


def _texts(
    rng: np.random.Generator, seed: int, repeated: Flags, marked: Flags
) -> tuple[contracts.WatermarkedRequest, ...]:
    """Return texts with new contexts, two of which differ in one token, or with one that repeats itself."""
    outputs = np.repeat(rng.integers(_VOCAB, size=(_ROWS // 2, _WIDTH)), 2, axis=0)
    changed = rng.integers(2 * _WIDTH, size=_ROWS // 2).clip(max=_WIDTH - 1)  # mostly the last
    outputs[1::2][np.arange(_ROWS // 2), changed] += rng.integers(1, _VOCAB, size=_ROWS // 2)
    texts = [[1, 2, 3] * (2 * _WIDTH) if repeated[i] else text for i, text in enumerate((outputs % _VOCAB).tolist())]
    return tuple(
        contracts.WatermarkedRequest(derive_seed(seed, i), [5] * _WIDTH, text, bool(marked[i]))
        for i, text in enumerate(texts)
    )


def _drawn(
    sampler: FunctionWatermarker, setup: WatermarkSetup, seed: int, repeated: Flags, marked: Flags
) -> tuple[WatermarkBatch, Rows64, Ints]:
    """Draw once: the batch, the rows' distributions, and the tokens."""
    rng, heats = np.random.default_rng(seed), np.resize(np.array(_HEATS, np.float32), _ROWS)
    logits = np.repeat(rng.normal(scale=1.5, size=(_ROWS // 2, _VOCAB)), 2, axis=0).astype(np.float32)
    kinds = [Kind("", temperature) for temperature in heats.tolist()]
    made = batch_of(kinds, logits, np.full(_ROWS, 4 * _WIDTH), sampler.device)
    batch = WatermarkBatch(**vars(made), setup=setup, requests=_texts(rng, seed, repeated, marked))
    tokens = calls.sample_marked(sampler, batch, noise_of(sampler, batch, seed))
    return batch, softmax_of_rows((logits / heats[:, None]).astype(np.float64)), tokens


def _numbers(sampler: FunctionWatermarker, batch: WatermarkBatch, *keys: int) -> Float64s:
    """Return the numbers of each row, `[num_keys, num_layers, batch_size, vocab_size]`; of these keys if there are."""
    policy, setup = policy_of(sampler, WatermarkPolicy), replace(batch.setup, keys=keys or batch.setup.keys)
    texts = ((one.prompt_token_ids, one.output_token_ids) for one in batch.requests)
    contexts = [contexts_of(policy, setup.context_width, *text)[-1] for text in texts]
    return calls.numbers_of_contexts(sampler, setup, contexts, batch.vocab_size)


def _count_keys(sampler: FunctionWatermarker, batch: WatermarkBatch, probs: Rows64, tokens: Ints) -> Ints:
    """Count whose numbers decided tokens; where both give one token, nobody's."""
    if policy_of(sampler, WatermarkPolicy).keys == "drawn":
        numbers = _numbers(sampler, batch)[:, 0]
    else:
        numbers = np.stack([_numbers(sampler, batch, key)[0, 0] for key in batch.setup.keys])
    first, second = (np.log(probs) - np.log(-np.log(numbers))).argmax(axis=-1)
    codes = np.where(tokens == first, 0, np.where(tokens == second, 1, -1))
    return count_codes(codes[first != second], 2)


_TOKENS = {name: TokenTables(name, (_VOCAB,), PitCells(16, 4)) for name in ("W1 new keys", "W2 one key", "W3 unmarked")}


def _counted(sampler: FunctionWatermarker, seed: int) -> Counts:
    """Count one call with keys of its own, and two with the keys of all calls, the second of which marks no token."""
    rng, policy = np.random.default_rng(derive_seed("cells", seed)), policy_of(sampler, WatermarkPolicy)
    found = dict[str, Ints]()
    for name, tables in _TOKENS.items():
        setup, is_plain = _new_keys(seed) if name.startswith("W1") else _KEY, name.startswith("W3")
        is_marked = np.arange(_ROWS) % 2 < (int(policy.repeated == "plain") if is_plain else 2)  # half, none, or all
        batch, probs, tokens = _drawn(sampler, setup, derive_seed(name, seed), np.full(_ROWS, is_plain), is_marked)
        if policy.scheme == "green_list" and not is_plain:
            probs = weights_under(policy.scheme, probs, _numbers(sampler, batch)[0].transpose(1, 0, 2), setup.bias)
            probs /= probs.sum(axis=1, keepdims=True)
        numbers = numbers_of_rows(probs, tokens, rng.random(_ROWS))
        found |= tables.count(numbers)
        quarters = np.asarray(4 * np.clip(numbers["id"], 0, 0.999), np.int64).reshape(-1, 2).T
        found |= {} if is_plain else {f"W4 pairs, {name}": count_codes(joint_codes(*quarters, sizes=(4, 4)), 16)}
        if policy.has_two_keys and name.startswith("W1") and sampler.watermark_numbers is not None:
            found["W5 share of keys"] = _count_keys(sampler, batch, probs, tokens)
    return found


@Workload.of("watermarks: tokens", "tokens of marked texts", 0.06, 1.0)
def marked_tokens(setting: Setting) -> SamplingPlan:
    """Rows of three calls, of which a draw is one of each."""
    pairs, label = Table(np.full(16, 1 / 16)), ("the first key", "the second key").__getitem__
    shares = Table(np.array([_SHARE, 1 - _SHARE]), label=label, observed_per_draw=0.5, event_prob=0.5)

    def tables(num_calls: int) -> dict[str, Table]:
        size = num_calls * _ROWS
        found = {f"W4 pairs, {name}": replace(pairs, num_draws=size // 2) for name in list(_TOKENS)[:2]}
        found |= {name: one for own in _TOKENS.values() for name, one in own.tables(size).items()}
        return found | {"W5 share of keys": replace(shares, num_draws=size)}

    return SamplingPlan.of_calls(max(setting.num_draws, 2 * _ROWS), _ROWS, tables, _counted)


_TEXTS, _LENGTH, _CELLS = 4, 24, PitCells(16, 4)


def _p_values(sampler: FunctionWatermarker, seed: int) -> Counts:
    """Count p-values of plain texts that repeat themselves, or do not."""
    rng, found = np.random.default_rng(seed), []
    for number in range(_TEXTS):
        setup = replace(_new_keys(derive_seed(seed, number)), context_width=2)
        output = rng.integers(_VOCAB, size=_LENGTH // (3 if number else 1))
        found.append(calls.p_value_of(sampler, setup, [3] * 4, np.resize(output, _LENGTH).tolist()))
    return {"W6 1 - p": _CELLS.count(np.minimum(1 - np.array(found), np.nextafter(1.0, 0.0)))}


@Workload.of("watermarks: p-values", "p-values of plain texts", 0.02, 0.5)
def p_values(setting: Setting) -> SamplingPlan:
    """Texts under keys of their own; a draw is a text."""

    def tables(num_calls: int) -> dict[str, Table]:
        return {"W6 1 - p": _CELLS.table(num_calls * _TEXTS)}

    return SamplingPlan.of_calls(max(setting.num_draws, 64 * _TEXTS), _TEXTS, tables, _p_values)


_check = partial(WatermarkDistribution.of, contract="watermarks", stage=Stage.TOKENS)


@_check("DIST991", marked_tokens)
def marked_tokens_follow_the_distribution_over_keys() -> tuple[str, ...]:
    """With a new key for each call, tokens follow the softmax of their rows, or what the green lists make of it.

    One number for several tokens, a number that cannot be large, a race at another temperature.
    """
    return ("W1",)


@_check("DIST992", marked_tokens)
def marked_tokens_follow_the_distribution_over_contexts() -> tuple[str, ...]:
    """The same under one key, with a new context for each token.

    A context of which few numbers are made: a sum of its tokens, 16 bits of a hash.
    """
    return ("W2",)


@_check("DIST993", marked_tokens)
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


@_check("DIST995", marked_tokens, requires=("watermark_numbers", "has_two_keys"))
def each_of_two_keys_has_its_share() -> tuple[str, ...]:
    """The first key decides as many tokens as `share` says.

    The shares of the other roles, a coin that is decided by the key alone.
    """
    return ("W5",)


@_check("DIST996", p_values, requires=("detect", "is_race"))
def p_values_of_plain_texts_are_uniform() -> tuple[str, ...]:
    """Of texts that no key has marked, a share of 1 % has a p-value below 1 %, and so on.

    Contexts that count twice, a normal distribution in the tail, a score of another distribution.
    """
    return ("W6",)


CHECKS = sharing([value for value in list(globals().values()) if isinstance(value, WatermarkDistribution)])
