"""The checks of the masks contract: what filters kept, in two forms, beside the token that was drawn from it.

10x are single requirements on small steps, 201 all of them in serving traces.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
from hypothesis import strategies as st

from fairdraw._core import checks
from fairdraw._core.array_types import Flags, Float32s, Float64s, Ints
from fairdraw._core.checks import Check
from fairdraw._core.seeds import derive_seed
from fairdraw._oracles.supports import log_error
from fairdraw.contracts import Capabilities, Capability, MaskedSampler, MaskPolicy, SamplingBatch, policy_of
from fairdraw.contracts._masks import GuardedRows, Masked, sample_masks
from fairdraw.properties._rejection_asserts import broken
from fairdraw.properties._sampling_asserts import ordinary, supports_of
from fairdraw.properties._traces import WrongRow, left_alone, trace_check
from fairdraw.strategies._sampling_traces import SamplingTrace, trace_for
from fairdraw.strategies._serving import answered
from fairdraw.strategies.sampling import SamplingCase

__all__ = ["CHECKS"]

check = partial(checks.check, contract="masks")

Fault = tuple[Flags, Callable[[int], str]]
"""Which rows are wrong, `[batch_size] bool`, and from the number of one to what was seen."""

_RARE = 2.0**-120
"""A less probable token may be kept or not, whatever filters say: in float32 its probability may be 0."""
_WIDTHS = (1, 2048, 2, 50)
"""Room for ids, in the calls of a trace."""


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one call, and what a correct sampler keeps of random ones."""

    policy: MaskPolicy
    batch: SamplingBatch
    seen: Masked
    required: Flags  # [batch_size, vocab_size] bool
    possible: Flags  # [batch_size, vocab_size] bool

    @cached_property
    def logits(self) -> Float32s:  # [batch_size, vocab_size] float32
        return np.asarray(self.batch.logits.float().cpu().numpy())

    @cached_property
    def is_greedy(self) -> Flags:  # [batch_size] bool
        return np.asarray(self.batch.is_greedy.cpu().numpy())

    @cached_property
    def is_plain(self) -> Flags:  # [batch_size] bool
        """Whether a request has no filter."""
        found = np.ones(len(self.logits), bool)
        for name, off in (("top_k", self.batch.vocab_size), ("top_p", 1.0), ("min_p", 0.0)):
            values = getattr(self.batch, name)
            found &= True if values is None else values.cpu().numpy() == off
        return found

    @cached_property
    def has_mask(self) -> Flags:  # [batch_size] bool
        """Whether a row has a distribution, and a mask by the sampler's policy."""
        is_empty = self.is_plain & ~self.is_greedy & (self.policy.plain_mask == "none")
        return np.asarray(np.isfinite(self.logits.max(axis=1)) & ~is_empty)

    @cached_property
    def tokens(self) -> Ints:  # [batch_size] int64
        """The tokens, and the nearest id for what is none."""
        return np.clip(self.seen.tokens, 0, self.batch.vocab_size - 1)

    @cached_property
    def has_token(self) -> Flags:  # [batch_size] bool
        """Whether a mask holds its row's token."""
        return np.asarray(self.seen.kept[np.arange(len(self.tokens)), self.tokens] & (self.tokens == self.seen.tokens))

    @cached_property
    def entries(self) -> tuple[Ints, Ints]:  # each [num_kept] int64
        """Rows and ids of all bits that are set, row after row."""
        row, token = np.nonzero(self.seen.kept)
        return row, token

    def wrong(self, rows: Flags, required: Flags, possible: Flags) -> Fault:
        """Return those of the rows that leave out what is required, or keep what is not possible."""
        lost, extra = required & ~self.seen.kept, self.seen.kept & ~possible

        def words(row: int) -> str:
            effect = f"the mask holds {self.seen.kept[row].sum()} of {self.batch.vocab_size} tokens, "
            if lost[row].any():
                return f"{effect}but not token {lost[row].argmax()}, which must be kept"
            return f"{effect}and among them token {extra[row].argmax()}, which must not be kept"

        return rows & (lost | extra).any(axis=1), words


def token_is_lost(rows: Rows) -> Fault:
    """Return rows whose mask does not hold their token."""
    return (
        rows.has_mask & ~rows.has_token,
        lambda row: f"token {rows.seen.tokens[row]} was drawn, and its mask does not hold it",
    )


def wrong_support(rows: Rows) -> Fault:
    """Return random rows with filters whose mask is not what these leave."""
    return rows.wrong(rows.has_mask & ~rows.is_greedy & ~rows.is_plain, rows.required, rows.possible)


def wrong_greedy(rows: Rows) -> Fault:
    """Return greedy rows whose mask is not the declared one."""
    wanted = np.isfinite(rows.logits)
    if rows.policy.greedy_mask == "token":
        wanted = np.asarray(np.arange(wanted.shape[1]) == rows.tokens[:, None])
    return rows.wrong(rows.has_mask & rows.is_greedy, wanted, wanted)


def wrong_plain(rows: Rows) -> Fault:
    """Return random rows without filters whose mask is not the declared one."""
    is_empty = rows.policy.plain_mask == "none"
    judged = rows.is_plain & ~rows.is_greedy & (rows.has_mask | is_empty)
    return rows.wrong(judged, rows.required & (not is_empty), rows.possible & (not is_empty))


def forms_differ(rows: Rows) -> Iterator[Fault]:
    """Yield rows whose count, or whose ids, are not those of their bits."""
    seen, counts = rows.seen, rows.seen.kept.sum(axis=1)
    yield counts != seen.counts, lambda row: f"{counts[row]} bits are set, and the count is {seen.counts[row]}"
    row, token = rows.entries
    place, wanted = np.arange(len(row)) - (counts.cumsum() - counts)[row], np.full_like(seen.token_ids, -1)
    has_room = place < wanted.shape[1]
    wanted[row[has_room], place[has_room]] = token[has_room]
    ids, judged = np.where(wanted < 0, -1, seen.token_ids), np.ones(len(counts), bool)
    if rows.policy.ids_order == "any":  # of those for which there is no room any may be missing
        wanted, ids, judged = np.sort(wanted), np.sort(ids), counts <= wanted.shape[1]
    differs = (ids != wanted) & judged[:, None]

    def words(row: int) -> str:
        at = int(differs[row].argmax())
        return f"id {at} of {seen.counts[row]} is {ids[row, at]}, and by the bits it is {wanted[row, at]}"

    yield differs.any(axis=1), words


def wrong_logprob(rows: Rows) -> Fault:
    """Return rows whose log-probability is not that of the token in the softmax over the mask."""
    tokens, (row, token), greedy = rows.tokens, rows.entries, rows.is_greedy
    said = np.zeros(len(tokens)) if rows.seen.logprobs is None else rows.seen.logprobs.astype(np.float64)
    heat = np.where(greedy, 1, rows.batch.temperature.cpu().numpy())
    with np.errstate(all="ignore"):
        own, kept = (rows.logits[np.arange(len(tokens)), tokens], rows.logits[row, token])
        below = (kept / heat[row]).astype(np.float64) - (own / heat).astype(np.float64)[row]
        exact = np.where(greedy, 0, 0 - np.log(np.bincount(row, np.exp(below), len(tokens))))
        slack = _slack(rows.logits, heat)
        is_far = ~(np.abs(said - exact) <= slack)
    words = "token {} has {:.9g}, its log-probability over the mask is {:.9g}, and rounding explains {:.2g}".format
    judged = rows.has_mask & rows.has_token & (rows.seen.logprobs is not None)
    return judged & is_far, lambda row: words(tokens[row], said[row], exact[row], slack[row])


def _slack(logits: Float32s, heat: Float32s) -> Float64s:  # [batch_size] float64
    """Return how far a float32 log-softmax may be off; its sum has a term for each token."""
    largest = np.abs(np.where(np.isfinite(logits), logits, 0)).max(axis=1)
    return np.asarray(2.0**-31 * logits.shape[1] + log_error(largest.astype(np.float64) / np.minimum(1, heat)))


def faults(rows: Rows) -> Iterator[Fault]:
    """Yield what may be wrong, the plainest first."""
    written = " and ".join(rows.seen.written)
    yield np.full(len(rows.logits), bool(written)), lambda row: f"memory beside the rows of {written} was written"
    yield from forms_differ(rows)
    for fault in (token_is_lost, wrong_greedy, wrong_plain, wrong_support, wrong_logprob):
        yield fault(rows)


def _called(sampler: MaskedSampler, case: SamplingCase, memory: GuardedRows | None = None) -> Rows:
    """Run a case once."""
    batch = case.batch(sampler.device)
    width = 1 + derive_seed("width", case.seed) % (1 + case.vocab_size)
    seen = sample_masks(sampler, batch, case.noise(sampler.device), width, memory)
    found, nothing = supports_of(cast("Any", sampler), batch), np.zeros(case.vocab_size, bool)
    required = np.stack([nothing if one is None else one.required for one in found])
    possible = np.stack([~nothing if one is None else one.allowed | (one.probs < _RARE) for one in found])
    policy = policy_of(sampler, MaskPolicy)
    return Rows(policy, batch, seen, required, possible & np.isfinite(batch.logits.float().cpu().numpy()))


def _require(*found: Fault) -> None:
    for is_wrong, words in found:
        if is_wrong.any():
            row = int(is_wrong.argmax())
            broken(f"request {row}: {words(row)} ({int(is_wrong.sum())} of {len(is_wrong)} rows)")


def _cases(can: Capabilities, **narrow: Any) -> st.SearchStrategy[SamplingCase]:  # Any: of `sampling_cases`
    """Draw steps of a few requests, in small vocabularies."""
    return ordinary(can, **{"max_vocab_size": 129, **narrow})


@check("MSK101", _cases)
def the_mask_holds_the_drawn_token(sampler: MaskedSampler, case: SamplingCase) -> None:
    """The token of a request is one of its mask: the policy that drew it gives it a probability.

    A trainer that renormalises over a mask without the token has log 0, and an importance ratio of 0 or infinity.
    Suspect a mask of another row or step, and another comparison at the threshold than the draw's.
    """
    _require(token_is_lost(_called(sampler, case)))


@check("MSK102", lambda can: _cases(can, greedy=False))
def the_mask_is_what_the_filters_leave(sampler: MaskedSampler, case: SamplingCase) -> None:
    """Every token that min-p, top-k and top-p must leave, in the declared order, is in the mask, and no other is.

    Of ties the declared ones stay. Suspect logits before the filters or the temperature, a threshold one token off, and
    a second computation of the filters that keeps other tokens than the sampler's.
    """
    _require(wrong_support(_called(sampler, case)))


@check("MSK103", lambda can: _cases(can, greedy=True), needs=(Capability.GREEDY,))
def greedy_requests_have_the_declared_mask(sampler: MaskedSampler, case: SamplingCase) -> None:
    """The mask of a greedy request is what `greedy_mask` says: the whole row, or its token.

    Suspect filters that greedy requests do not have, and a threshold that an earlier step left.
    """
    _require(wrong_greedy(_called(sampler, case)))


@check("MSK104", lambda can: _cases(can, greedy=False, filters=()))
def requests_without_filters_have_the_declared_mask(sampler: MaskedSampler, case: SamplingCase) -> None:
    """The mask of a request without filters is what `plain_mask` says: every possible token, or none.

    Tokens of logit -inf are not possible: a grammar, or a ban, took them out.
    """
    _require(wrong_plain(_called(sampler, case)))


@check("MSK105", lambda can: _cases(can, max_vocab_size=1025))
def ids_count_and_bits_agree(sampler: MaskedSampler, case: SamplingCase) -> None:
    """The count is that of the bits, and the ids are theirs, in the declared order, whatever the room for ids is.

    There is room for one id, for more than there are tokens, or for any number between. Suspect bits that are counted
    from above, a last word that is not full, a count that ends where the room does, and words that keep old bits.
    """
    _require(*forms_differ(_called(sampler, case)))


@check("MSK106", _cases)
def probabilities_over_the_mask_sum_to_1(sampler: MaskedSampler, case: SamplingCase) -> None:
    """The log-probability that comes with a token is that of the softmax over its mask: with it, the mask sums to 1.

    Suspect log-probabilities of the whole row, of raw logits, or at temperature 1: then an importance ratio is not 1
    where the trainer's policy is the sampler's.
    """
    _require(wrong_logprob(_called(sampler, case)))


@check("MSK107", lambda can: _cases(can, max_vocab_size=1025), weight=0.5)
def nothing_beside_the_masks_is_written(sampler: MaskedSampler, case: SamplingCase) -> None:
    """Words, ids and counts are written within the rows of the call: not before, between or behind them.

    Rows lie apart in larger memory, as in a buffer for the largest batch. Suspect the number of words in place of the
    stride, a last block that is stored whole, and an id for which there is no room.
    """
    _require(next(faults(_called(sampler, case))))


@check("MSK108", lambda can: _cases(can, min_vocab_size=2, greedy=False, filters=("top_k",)), needs=(Capability.TOP_K,))
def smaller_masks_leave_nothing_of_larger_ones(sampler: MaskedSampler, case: SamplingCase) -> None:
    """A step that keeps one token has masks of one token, in memory that a step that keeps all has just written.

    Suspect ids, bits or a number of ids that are kept from step to step, and written only where something is kept.
    """
    memory = GuardedRows(case.batch(sampler.device), case.vocab_size)
    for top_k in (case.vocab_size, 1):
        requests = tuple(one.replace(top_k=top_k) for one in case.requests)
        _require(*faults(_called(sampler, case.replace(requests=requests), memory)))


def every_mask_of_a_serving_trace_is_right(sampler: MaskedSampler, trace: SamplingTrace) -> None:
    """In hundreds of calls every mask is right: for its own row, filters and token, in all forms.

    Requests come, move and go; batches and vocabularies have every size; dtypes, strides, noise, neighbours and the
    room for ids change from call to call. What is given is not written.

    Suspect a grid that was made for fewer rows, blocks that are counted one by one, ids of 16 bits, rows read without
    their stride, and what an earlier call left.
    """
    policy = policy_of(sampler, MaskPolicy)
    for call in trace.played(sampler.device):
        ask = partial(sample_masks, width=_WIDTHS[call.number % len(_WIDTHS)])
        with left_alone(call.batch, call.noise, number=call.number):
            seen = answered(ask, sampler, call)
        possible = np.isfinite(call.batch.logits.float().cpu().numpy())
        possible &= call.support.allowed | (call.support.probs < _RARE)
        for is_wrong, words in faults(Rows(policy, call.batch, seen, call.support.required, possible)):
            if is_wrong.any():
                row = int(is_wrong.argmax())
                effect = f"row {row} of {len(is_wrong)}: {words(row)} ({int(is_wrong.sum())} rows of the call)"
                raise WrongRow(effect, call.number, row)


TRACES = (trace_check("MSK201", "masks", trace_for, every_mask_of_a_serving_trace_is_right),)

CHECKS = tuple(one for one in (*vars().values(), *TRACES) if isinstance(one, Check))
