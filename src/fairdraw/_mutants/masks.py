"""Wrong masks, one fault each. Each stands for one step of the oracle; first comes `right`, the correct steps, or
`answer`, that of the correct step."""

import dataclasses
from typing import Any

import numpy as np

from fairdraw._core.array_types import RowFlags, RowsFlags
from fairdraw._mutants._mutant import GENERATORS, Memory, as_if_dense, mutant_as, mutants_in, name_of, patching
from fairdraw._oracles.masks import MasksOracle, logprob_over
from fairdraw._oracles.sampling import Request
from fairdraw.contracts import FilterPolicy, FunctionMaskedSampler, MaskedTokens, MaskRows, SamplingBatch, SamplingNoise
from fairdraw.contracts import masked_sampler as wrapped

Words = np.ndarray  # [batch_size, num_words] int32
Ids = np.ndarray  # [num_kept] int32


def right() -> FunctionMaskedSampler:
    """The specification as a sampler: what every mutant would be without its fault."""
    return sampler_of(MasksOracle, "oracle")


def sampler_of(kind: type[MasksOracle], name: str = "", filters: FilterPolicy | None = None) -> FunctionMaskedSampler:
    """Return an oracle of a class as a sampler."""
    made, named = kind(), name or name_of(kind)
    return wrapped(made.sample_masked, name=named, unsupported=GENERATORS, filters=filters, policy=made.policy)


def _as_mutant(*caught_by: str) -> Any:  # Any: from a class of oracles to a mutant
    return mutant_as(sampler_of, *caught_by)


_mutant = patching(_as_mutant, MasksOracle)

# What is kept


@_mutant("support", "MSK101")
def drops_the_least_token_that_is_kept(answer: RowFlags, request: Request) -> None:
    """A strict comparison with the threshold, where the draw's is not strict."""
    scores = np.where(answer, request.logits, np.inf)
    if answer.sum() > 1:
        answer[scores == scores.min()] = False


@_mutant("support", "MSK102")
def keeps_one_token_more(answer: RowFlags, request: Request) -> None:
    """The index behind the last kept token: one too many."""
    outside = np.where(answer, -np.inf, request.logits)
    if np.isfinite(outside.max()):
        answer[int(outside.argmax())] = True


@_mutant("support", "MSK102")
def shows_the_row_before_the_filters(right: MasksOracle, request: Request) -> RowFlags:
    """The mask is made of the logits that the filters were given."""
    return np.isfinite(request.logits)


@_mutant("support", "MSK201")
def filters_again_at_temperature_1(right: MasksOracle, request: Request) -> RowFlags:
    """The mask has filters of its own, which see logits that no temperature divided."""
    return right.support(dataclasses.replace(request, temperature=np.float32(1)))


@_mutant("support", "MSK201")
def filters_again_in_another_order(right: MasksOracle, request: Request) -> RowFlags:
    """The draw filters one after the other, the mask intersects what each would leave: two code paths."""
    names = ("top_k", "top_p", "min_p")
    others: list[dict[str, Any]] = [dict.fromkeys({*names} - {name}) for name in names]  # Any: one type each
    kept = [right.support(dataclasses.replace(request, **off)) for off in others]
    return np.asarray(np.logical_and.reduce(kept))


@_mutant("support", "MSK201")
def forgets_min_p(right: MasksOracle, request: Request) -> RowFlags:
    """Masks were written before min-p was."""
    return right.support(dataclasses.replace(request, min_p=None))


@_mutant("mask_of_greedy", "MSK103")
def filters_greedy_requests(right: MasksOracle, request: Request, token: int) -> RowFlags:
    """Filters concern a greedy request's mask, and not its draw."""
    return right.support(request)


@_mutant("mask_of_greedy", "MSK103")
def keeps_the_token_of_greedy_requests(right: MasksOracle, request: Request, token: int) -> RowFlags:
    """The token alone, where the whole row is declared."""
    return np.asarray(np.arange(request.logits.size) == token)


@_mutant("mask", "MSK104")
def leaves_plain_masks_empty(right: MasksOracle, request: Request, token: int) -> RowFlags:
    """Without filters nothing is written, where the whole row is declared."""
    is_plain = (request.top_k, request.top_p, request.min_p) == (None, None, None) and not request.is_greedy
    return right.mask(request, token) & (not is_plain)


@_mutant("mask", "MSK104")
def allows_forbidden_tokens(right: MasksOracle, request: Request, token: int) -> RowFlags:
    """Without filters every bit is set, those of tokens that a grammar forbids, too."""
    is_plain = (request.top_k, request.top_p, request.min_p) == (None, None, None) and not request.is_greedy
    return np.asarray(right.mask(request, token) | is_plain)


# Two forms


@_mutant("words", "MSK105")
def counts_bits_from_above(right: MasksOracle, masks: RowsFlags) -> Words:
    """Id 0 is the highest bit of a byte."""
    return np.packbits(np.pad(masks, ((0, 0), (0, -masks.shape[1] % 32))), axis=1).view(np.int32)


@_mutant("words", "MSK105")
def swaps_the_bytes_of_words(answer: Words, masks: RowsFlags) -> Words:
    """Bytes of a word in the order of another machine."""
    return answer.byteswap()


@_mutant("words", "MSK105")
def skips_a_last_word_that_is_not_full(answer: Words, masks: RowsFlags) -> None:
    """The vocabulary is divided by 32, rounded down."""
    answer[:, masks.shape[1] // 32 :] = 0


@_mutant("ids", "MSK105")
def lists_ids_by_probability(answer: Ids, mask: RowFlags) -> Ids:
    """Ids in another order than the declared one, as they come from a sort."""
    return answer[::-1].copy()


@_mutant("write", "MSK105")
def counts_as_far_as_there_is_room(answer: None, into: MaskRows, masks: RowsFlags) -> None:
    """The count ends where the room for ids does: the reader does not know that ids are missing."""
    into.counts.clamp_(max=into.token_ids.shape[1])


@_mutant("ids", "MSK201")
def has_ids_of_16_bits(answer: Ids, mask: RowFlags) -> Ids:
    """Ids beyond 65535 begin at 0 again."""
    return answer & 0xFFFF


@_mutant("ids", "MSK201")
def lists_blocks_one_by_one(right: MasksOracle, mask: RowFlags) -> Ids:
    """Places of ids are counted within a block of 1024: those of the last one stand first."""
    found = np.zeros(0, np.int32)
    for start in range(0, len(mask), 1024):
        block = start + right.ids(mask[start : start + 1024])
        found = np.concatenate([block, found[len(block) :]])
    return np.resize(found, int(mask.sum())).astype(np.int32)


# Probabilities


@_mutant("logprob", "MSK106")
def returns_probabilities_of_the_whole_row(right: MasksOracle, request: Request, mask: RowFlags, token: int) -> float:
    """The softmax that the filters have seen."""
    return right.logprob(request, np.isfinite(request.logits), token)


@_mutant("logprob", "MSK201")
def returns_probabilities_at_temperature_1(right: MasksOracle, request: Request, mask: RowFlags, token: int) -> float:
    """Raw log-probabilities, over the mask."""
    return 0.0 if request.is_greedy else logprob_over(request.logits, mask, token)


@_mutant("logprob", "MSK106")
def rounds_probabilities_to_half(answer: float, request: Request, mask: RowFlags, token: int) -> float:
    """Log-probabilities in the dtype of the model."""
    return float(np.float16(answer))


# Memory, rows and calls


@_mutant("write", "MSK107")
def writes_ids_without_room(answer: None, into: MaskRows, masks: RowsFlags) -> None:
    """Every id is stored at its place, whether or not there is room."""
    rows, width = into.token_ids, into.token_ids.shape[1]
    for row in np.flatnonzero(masks.sum(axis=1) > width).tolist():
        rows[row].as_strided((1,), (1,), rows[row].storage_offset() + width).fill_(7)


@_mutant("write", "MSK107")
def stores_the_last_block_whole(answer: None, into: MaskRows, masks: RowsFlags) -> None:
    """The block's bound is rounded up, to four words."""
    words, width = into.words, into.words.shape[1]
    if width % 4:
        words.as_strided((len(words), 1), words.stride(), words.storage_offset() + width).zero_()


@_mutant("write", "MSK105")
def never_clears_words(right: MasksOracle, into: MaskRows, masks: RowsFlags) -> None:
    """Bits are set in memory that is thought to be empty."""
    before = into.words.clone()
    right.write(into, masks)
    into.words.bitwise_or_(before)


@_mutant("mask", "MSK108")
def keeps_bits_of_the_step_before(answer: RowFlags, request: Request, token: int, kept: Memory) -> RowFlags:
    """A buffer of the sampler's own, whose bits are only set."""
    found = kept.setdefault(request.logits.size, np.zeros_like(answer))
    found |= answer
    return np.array(found)


@_mutant("sample_masked", "MSK201")
def shifts_masks_by_a_row(answer: MaskedTokens, batch: SamplingBatch, noise: SamplingNoise, into: MaskRows) -> None:
    """Each request gets the mask of the next one."""
    for tensor in vars(into).values():
        tensor.copy_(tensor.roll(-1, 0))


@_mutant("sample_masked", "MSK201")
def writes_256_rows(right: MasksOracle, batch: SamplingBatch, noise: SamplingNoise, into: MaskRows) -> MaskedTokens:
    """A grid of 256 programs: rows behind them keep what was there."""
    before = {name: tensor[256:].clone() for name, tensor in vars(into).items()}
    answer = right.sample_masked(batch, noise, into)
    for name, tensor in before.items():
        getattr(into, name)[256:] = tensor
    return answer


@_mutant("sample_masked", "MSK201")
def reads_rows_without_their_stride(
    right: MasksOracle, batch: SamplingBatch, noise: SamplingNoise, into: MaskRows
) -> MaskedTokens:
    """Masks are made as if the rows of the logits lay one behind the other."""
    dense = as_if_dense(batch.logits).nan_to_num(0.0)
    right.sample_masked(batch.replace(logits=dense), noise, into)
    spare = MaskRows(**{name: tensor.clone() for name, tensor in vars(into).items()})
    return right.sample_masked(batch, noise, spare)


MUTANTS = mutants_in(vars())
