"""Wrong watermarks, one fault each. Each stands for one step of an oracle; first comes `right`, the correct steps, or
`answer`, that of the correct step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fairdraw._core.array_types import Float64s, Row32, Row64
from fairdraw._mutants._mutant import EXPLICIT, GENERATORS, Memory, mutant_as, mutants_in, name_of, patching
from fairdraw._oracles import watermarks as oracles
from fairdraw._oracles.watermarks import Marking, WatermarksOracle, contexts_of
from fairdraw.contracts import Context, FunctionWatermarker, SamplingNoise, WatermarkBatch
from fairdraw.contracts import WatermarkSetup as Setup


def right() -> FunctionWatermarker:
    """The specification as a sampler: what every mutant would be without its fault."""
    return _wrapped(WatermarksOracle)


def _wrapped(kind: type[WatermarksOracle]) -> FunctionWatermarker:
    return oracles.sampler_of(kind, name=name_of(kind).removeprefix("watermarks "), unsupported=GENERATORS)


_as_mutant = partial(mutant_as, _wrapped)
_mutant = patching(_as_mutant, WatermarksOracle)
_of_keys = patching(_as_mutant, oracles.SeveralKeysOracle)
_of_green, _of_tournaments = (patching(_as_mutant, one) for one in (oracles.GreenListOracle, oracles.TournamentOracle))

# The context, and what was before


@_mutant("context", "WMK101")
def looks_one_token_back(answer: Context, one: Marking) -> Context:
    """The last token is not there yet when the context is read."""
    return answer[:-1]


@_mutant("context", "WMK101")
def looks_at_the_prompt(right: WatermarksOracle, one: Marking) -> Context:
    """Short contexts are filled with tokens of the prompt, which the detector does not have."""
    whole = (*one.text.prompt_token_ids, *one.text.output_token_ids)
    return tuple(whole[max(0, len(whole) - one.setup.context_width) :])


@_mutant("context", "WMK201")
def pads_short_contexts_with_token_0(answer: Context, one: Marking) -> Context:
    """Memory of zeros, where nothing is yet."""
    return (0,) * (one.setup.context_width - len(answer)) + answer


@_mutant("context", "WMK102")
def hashes_the_position(answer: Context, one: Marking) -> Context:
    """The number of tokens is hashed, too: what a text repeats gets other numbers, which no detector finds."""
    return (*answer, len(one.text.output_token_ids))


@_mutant("history", "WMK103", "DIST993", min_draws=2000)
def marks_repeated_contexts(right: WatermarksOracle, one: Marking) -> list[Context]:
    """No history is searched: texts go round in circles."""
    return []


@_mutant("history", "WMK103")
def searches_the_last_eight_contexts(answer: list[Context], one: Marking) -> list[Context]:
    """A ring of eight contexts."""
    return answer[-8:]


@_mutant("history", "WMK201")
def forgets_what_it_has_not_drawn(answer: list[Context], one: Marking, kept: Memory) -> list[Context]:
    """Contexts are kept as tokens are drawn: a request that returns with a text begins without a history."""
    first = kept.setdefault(one.text.request_id, len(one.text.output_token_ids))
    return answer[first:]


@_mutant("history", "WMK103")
def shares_a_history_among_requests(right: WatermarksOracle, one: Marking, kept: Memory) -> list[Context]:
    """One history for all requests of the server: what one text had, no other marks."""
    seen: list[Context] = kept.setdefault(one.setup.keys, [])
    before = list(seen)
    seen.append(right.context(one))
    return before


# The race


@_mutant("marked_token", "WMK101")
def races_at_another_scale(right: WatermarksOracle, probs: Row32, numbers: Float64s, one: Marking) -> int:
    """`number ** prob` in place of `number ** (1 / prob)`."""
    return int(np.argmax(np.where(probs > 0, np.log(numbers[0]) * probs, -np.inf)))


@_mutant("sample_watermarked", "WMK101")
def reads_rows_without_their_stride(right: WatermarksOracle, batch: WatermarkBatch, noise: SamplingNoise) -> Tensor:
    """Rows are read as if they lay one behind the other."""
    flat = torch.as_strided(batch.logits, batch.logits.shape, (batch.vocab_size, 1), batch.logits.storage_offset())
    return right.sample_watermarked(batch.replace(logits=flat.nan_to_num(0.0)), noise)


@_mutant("token_of", "WMK101")
def marks_the_row_before_the_filters(right: WatermarksOracle, one: Marking) -> int:
    """The race runs over the softmax of all tokens."""
    plain = replace(one, row=replace(one.row, top_k=None, top_p=None, min_p=None))
    return right.token_of(plain if one.text.is_marked else one)


@_mutant("token_of", "WMK101")
def marks_at_temperature_1(right: WatermarksOracle, one: Marking) -> int:
    """The temperature concerns ordinary tokens alone."""
    hot = replace(one, row=replace(one.row, temperature=np.float32(1)))
    return right.token_of(hot if one.text.is_marked else one)


@_mutant("token_of", "WMK105")
def marks_greedy_requests(right: WatermarksOracle, one: Marking) -> int:
    """A request of temperature 0 takes part in the race, at temperature 1."""
    warm = replace(one.row, is_greedy=False, temperature=np.float32(1), top_k=None, top_p=None, min_p=None)
    return right.token_of(replace(one, row=warm) if one.row.is_greedy and one.text.is_marked else one)


# Requests and rows


@_mutant("sample_watermarked", "WMK104")
def marks_everybody_if_anybody(right: WatermarksOracle, batch: WatermarkBatch, noise: SamplingNoise) -> Tensor:
    """One flag for the batch."""
    any_marked = any(one.is_marked for one in batch.requests)
    texts = tuple(replace(one, is_marked=any_marked) for one in batch.requests)
    return right.sample_watermarked(batch.replace(requests=texts), noise)


@_mutant("sample_watermarked", "WMK106")
def reads_the_context_of_the_first_row(right: WatermarksOracle, batch: WatermarkBatch, noise: SamplingNoise) -> Tensor:
    """Contexts have no row of their own."""
    first = batch.requests[0].output_token_ids
    texts = tuple(replace(one, output_token_ids=first) for one in batch.requests)
    return right.sample_watermarked(batch.replace(requests=texts), noise)


@_mutant("sample_watermarked", "WMK109")
def appends_what_it_draws(answer: Tensor, batch: WatermarkBatch, noise: SamplingNoise) -> None:
    """Its history is the server's own list."""
    for text, token in zip(batch.requests, answer.tolist(), strict=True):
        if isinstance(text.output_token_ids, list):
            text.output_token_ids.append(token)


# The numbers


@_mutant("seed", "WMK111")
def cuts_the_key_to_32_bits(right: WatermarksOracle, key: int, context: Context) -> np.uint64:
    """The key is an int of the kernel's."""
    return right.seed(key & 0xFFFFFFFF, context)


@_mutant("seed", "WMK110", "DIST992", min_draws=2000)
def adds_up_the_tokens_of_a_context(right: WatermarksOracle, key: int, context: Context) -> np.uint64:
    """The order of the tokens is lost."""
    return right.seed(key, (sum(context),) if context else ())


@_mutant("seed", "WMK111")
def multiplies_the_key_by_the_last_token(right: WatermarksOracle, key: int, context: Context) -> np.uint64:
    """After token 0 all keys give the same numbers."""
    return right.seed(key * (context or (1,))[-1] % 2**64, context)


@_mutant("uniform", "DIST991", min_draws=2000)
def draws_numbers_of_four_bits(right: WatermarksOracle, words: np.ndarray) -> Float64s:  # [...] uint64
    """A number is one of 16: of many tokens several have the largest, and the lowest id wins."""
    return (np.floor(16 * right.uniform(words)) + 0.5) / 16


@_mutant("row", "DIST994", min_draws=2000)
def shifts_numbers_by_the_last_token(
    right: WatermarksOracle, setup: Setup, key: int, context: Context, size: int
) -> Float64s:
    """The last token is added to a number, and not hashed: contexts that differ in it draw alike."""
    found = right.row(setup, key, context[:-1], size)
    return np.asarray((found + sum(context[-1:]) * 1e-3) % 1.0)


# Two keys, and other schemes


@_of_keys("coin", "DIST995", min_draws=500)
def tosses_one_coin_for_a_key(right: WatermarksOracle, setup: Setup, context: Context) -> float:
    """The coin does not see the context: one of the keys decides all tokens."""
    return right.coin(setup, ())


@_of_keys("decisive", "WMK112")
def takes_the_numbers_of_another_key(right: WatermarksOracle, context: Context, one: Marking) -> Float64s:
    """The keys change their roles between sampler and detector."""
    return right.decisive(context, replace(one, setup=replace(one.setup, keys=one.setup.keys[::-1])))


@_of_green("marked_token", "DIST991", min_draws=2000)
def takes_green_tokens_alone(right: WatermarksOracle, probs: Row32, numbers: Float64s, one: Marking) -> int:
    """Hard green lists, where soft ones are declared."""
    green = probs * numbers[0].astype(np.float32)
    return right.marked_token(green if green.any() else probs, numbers, one)


@_of_tournaments("marked_token", "WMK101", needs=EXPLICIT)
def leaves_the_mean_out(right: WatermarksOracle, probs: Row32, numbers: Float64s, one: Marking) -> int:
    """Each layer doubles what has a 1: over keys that is another distribution."""
    return int(np.argmax(probs * np.prod(1 + numbers, axis=0) / one.exponentials))


# The detector


@_mutant("scored", "DIST996", "WMK113", min_draws=500)
def counts_equal_contexts_again(
    right: WatermarksOracle, setup: Setup, prompt: Sequence[int], output: Sequence[int]
) -> oracles.Places:
    """Each token counts, also where the numbers are those of one before: plain text that repeats itself is marked."""
    contexts = contexts_of(right.policy, setup.context_width, prompt, output)
    return list(enumerate(contexts[:-1]))


@_mutant("p_value", "WMK113")
def trusts_the_normal_distribution(right: WatermarksOracle, numbers: Row64) -> float:
    """The sum of a few exponentials has a longer tail."""
    score, size = float(-np.log1p(-numbers).sum()), max(1, numbers.size)
    return float(0.5 * (1 - np.tanh(0.7978845608 * (score - size) / np.sqrt(size))))


MUTANTS = mutants_in(vars())
