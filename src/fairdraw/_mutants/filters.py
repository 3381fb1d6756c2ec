"""Wrong filters, one fault each; many were found in real engines.

Each function stands for one step of the oracle, with that step's arguments. First comes `right`, the correct
steps, or `answer`, that of the correct step.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fairdraw._mutants._mutant import Memory, mutant_as, mutants_in, name_of, patching
from fairdraw._oracles.filters import FilteredRow, FiltersOracle, RowContext
from fairdraw.contracts import LOGIT_FILTERS, FilterParams, FilterResult, FunctionLogitsFilterer, logits_filterer

if TYPE_CHECKING:
    from fairdraw.contracts import FilterBatch, SeededNoise


def as_filterer(oracle: FiltersOracle, name: str) -> FunctionLogitsFilterer:
    """An oracle under the contract."""
    return logits_filterer(oracle.filter_logits, chain=oracle.chain, name=name)


def right() -> FunctionLogitsFilterer:
    """The specification: what every mutant would be without its fault."""
    return as_filterer(FiltersOracle(), "oracle")


_mutant = partial(mutant_as, lambda faulty: as_filterer(faulty(), name_of(faulty)))
_patched = patching(_mutant, FiltersOracle)


def _with(context: RowContext, **params: Any) -> RowContext:  # Any: one field each
    return dataclasses.replace(context, params=dataclasses.replace(context.params, **params))


def _keeping(row: FilteredRow, kept: Any) -> FilteredRow:  # Any: [vocab_size] bool
    """The row with these tokens, as far as they were there."""
    return dataclasses.replace(row, kept=kept & row.kept)


def _or_top(row: FilteredRow, kept: Any) -> FilteredRow:  # Any: as above
    """The row with these tokens, or with the largest if none of them was there."""
    return _keeping(row, kept if (kept & row.kept).any() else row.values == row.values.max())


def _only(row: FilteredRow, ids: Any) -> FilteredRow:  # Any: [num_kept] int64
    """The row with these tokens, as far as they were there."""
    return _keeping(row, np.isin(np.arange(len(row.kept)), ids))


class _Batchwise(FiltersOracle):
    """Knows the whole batch."""

    def filter_logits(self, batch: FilterBatch, noise: SeededNoise) -> FilterResult:
        return super().filter_logits(self.seen(batch), noise)

    def seen(self, batch: FilterBatch) -> FilterBatch:
        """What it takes the batch for."""
        return batch


_seen = partial(patching(_mutant, _Batchwise), "seen")


# -- single filters ---------------------------------------------------------------------------------------------------


@_patched("top_k", "FIL101")
def keeps_one_more(right: FiltersOracle, row: Any, context: RowContext) -> Any:
    """Compares with the k-th value counted from 0."""
    return right.top_k(row, _with(context, top_k=context.params.top_k + 1))


@_patched("top_k", "FIL101")
def keeps_the_least_probable(right: FiltersOracle, row: Any, context: RowContext) -> Any:
    """Sorts the wrong way round."""
    return _only(row, row.ids[::-1][: context.params.top_k])


@_patched("top_p", "FIL102")
def drops_the_token_that_reaches_the_mass(right: FiltersOracle, row: Any, context: RowContext) -> Any:
    """Adds before it compares."""
    return _only(row, row.ids[: max(1, int((np.exp(row.log_probs[row.ids]).cumsum() < context.params.top_p).sum()))])


@_patched("min_p", "FIL103")
def compares_with_min_p_itself(right: FiltersOracle, row: Any, context: RowContext) -> Any:
    """Forgets the largest probability."""
    return row.above(np.log(context.params.min_p), row.slack)


@_mutant("FIL104")
class DropsTheLastTypicalToken(FiltersOracle):
    """The token that reaches the mass is dropped, as Aphrodite does."""

    def typical_p(self, row: Any, context: RowContext) -> Any:
        self.crossing = lambda number: max(1, number - 1)  # type: ignore[method-assign]
        return super().typical_p(row, context)


@_patched("typical_p", "FIL104")
def measures_entropy_in_bits(right: FiltersOracle, row: Any, context: RowContext) -> Any:
    """A logarithm to base 2 for the entropy, and to base e for the surprise."""
    score = np.abs(np.nan_to_num(-row.log_probs, posinf=1e9) - row.entropy / np.log(2))
    return right.by_mass(row, context.params.typical_p, score, 0.0)


@_patched("typical_p", "FIL201")
def multiplies_zero_by_infinity(right: FiltersOracle, row: Any, context: RowContext) -> Any:
    """`p * log(p)` of a token of probability 0 is NaN, and so is every score: the order stays by probability, as in
    llama.cpp."""
    has_zero = bool((row.log_probs < -104).any())
    return right.by_mass(row, context.params.typical_p, -row.values, 0.0) if has_zero else right.typical_p(row, context)


@_patched("sigma", "FIL105")
def deviates_by_probabilities(right: FiltersOracle, row: Any) -> Any:
    """The standard deviation of the probabilities."""
    return float(np.exp(row.log_probs[row.kept]).std()), 0.0


@_patched("sigma", "FIL105")
def divides_by_one_less(answer: Any, row: Any) -> Any:
    """By n - 1, undeclared."""
    number = max(2, int(row.kept.sum()))
    sigma, slack = answer
    return sigma * np.sqrt(number / (number - 1)), slack


@_patched("top_n_sigma", "FIL201", "FIL105")
def counts_minus_infinity(right: FiltersOracle, row: Any, context: RowContext) -> Any:
    """With a forbidden token the standard deviation is NaN, and no token is below NaN, as in Aphrodite."""
    return row if not row.kept.all() else right.top_n_sigma(row, context)


@_patched("top_a", "FIL106")
def forgets_the_square(right: FiltersOracle, row: Any, context: RowContext) -> Any:
    """Top-a as min-p."""
    return row.above(np.log(context.params.top_a) + row.log_probs.max(), row.slack)


@_patched("collision", "FIL117")
def cubes_probabilities(right: FiltersOracle, row: Any) -> Any:
    """The third power instead of the second."""
    return float(np.log(np.exp(3 * row.log_probs).sum())), 0.0


@_patched("collision", "FIL117")
def takes_the_first_entropy(right: FiltersOracle, row: Any) -> Any:
    """Shannon's entropy, of order 1, instead of that of order 2."""
    return -row.entropy, 0.0


@_patched("collision", "FIL117")
def squares_the_largest_alone(right: FiltersOracle, row: Any) -> Any:
    """The largest summand for the sum."""
    return 2 * row.log_probs.max(), 0.0


@_patched("p_less", "FIL117")
def compares_logits_with_the_collision(right: FiltersOracle, row: Any, context: RowContext) -> Any:
    """A threshold for log-probabilities that logits are held against."""
    return _or_top(row, row.values >= right.collision(row)[0])


@_patched("p_less", "FIL117")
def demands_more_than_the_threshold(right: FiltersOracle, row: Any, context: RowContext) -> Any:
    """A strict comparison in float32: nothing is left of a flat row, or of one with a certain token."""
    probs = np.exp(row.log_probs).astype(np.float32)
    return _keeping(row, probs > (probs**2).sum())


@_mutant("FIL117", "FIL201")
class HasOneCollisionForTheBatch(_Batchwise):
    """Every row has the threshold of the first one, if all rows have the filter."""

    def seen(self, batch: Any) -> Any:
        self.first: Any = None
        self.is_shared = all(one.p_less for one in batch.params)
        return batch

    def collision(self, row: Any) -> Any:
        self.first = (self.is_shared and self.first) or super().collision(row)
        return self.first


@_patched("bends", "FIL107")
def takes_the_slope(right: FiltersOracle, probs: Any) -> Any:
    """First differences instead of second ones."""
    return np.abs(np.diff(probs))


@_patched("bends", "FIL107")
def bends_both_ways(right: FiltersOracle, probs: Any) -> Any:
    """Second differences with their signs."""
    return np.diff(np.diff(probs))


@_patched("eta", "FIL108")
def turns_the_entropy_round(right: FiltersOracle, row: Any, context: RowContext) -> Any:
    """exp(+entropy)."""
    epsilon = np.log(context.params.eta)
    return row.above(min(epsilon, epsilon / 2 + row.entropy), row.slack, keeps_ties=False)


@_patched("eta", "FIL108")
def takes_the_larger_of_two(right: FiltersOracle, row: Any, context: RowContext) -> Any:
    """max instead of min."""
    epsilon = np.log(context.params.eta)
    return row.above(max(epsilon, epsilon / 2 - row.entropy), row.slack, keeps_ties=False)


@_patched("epsilon", "FIL109")
def counts_in_ten_thousandths(right: FiltersOracle, row: Any, context: RowContext) -> Any:
    """Epsilon in units of 1e-4, as some interfaces take it."""
    return right.epsilon(row, _with(context, epsilon=context.params.epsilon * 1e-4))


@_patched("xtc", "FIL110")
def excludes_every_top_choice(right: FiltersOracle, row: Any, context: RowContext) -> Any:
    """All tokens above the threshold are out, if another one is left."""
    below = row.log_probs < np.log(context.params.xtc_threshold)
    return _keeping(row, below) if context.fires and (below & row.kept).any() else row


@_patched("xtc", "FIL110")
def leaves_the_most_probable(right: FiltersOracle, row: Any, context: RowContext) -> Any:
    """The wrong one of the tokens above the threshold stays."""
    below = row.log_probs < np.log(context.params.xtc_threshold)
    return _keeping(row, below | (np.arange(len(below)) == row.ids[0])) if context.fires else row


@_patched("temperature", "FIL111")
def multiplies_by_the_temperature(right: FiltersOracle, row: Any, context: RowContext) -> Any:
    """A product instead of a quotient."""
    return right.divide(row, 1 / context.params.temperature)


@_patched("normalised_entropy", "FIL112")
def counts_forbidden_tokens(right: FiltersOracle, row: Any) -> Any:
    """The largest entropy is that of the whole vocabulary, as in llama.cpp."""
    return row.entropy / np.log(max(2, len(row.values))), 0.0


@_patched("dynatemp", "FIL112")
def raises_the_whole_range(right: FiltersOracle, row: Any, context: RowContext) -> Any:
    """The exponent stands behind the wrong bracket."""
    params = context.params
    share, _ = right.normalised_entropy(row)
    reach = (params.dynatemp_high - params.dynatemp_low) * share
    return right.divide(row, params.dynatemp_low + reach**params.dynatemp_exponent * 1.1)


@_patched("smoothing", "FIL113")
def turns_the_cube_round(right: FiltersOracle, row: Any, context: RowContext) -> Any:
    """The cubic term has the wrong sign."""
    bent, straight = right.smoothing(row, context), right.smoothing(row, _with(context, smoothing_curve=1.0))
    return dataclasses.replace(bent, values=np.where(row.kept, 2 * straight.values - bent.values, -np.inf))


@_patched("repetitions", "FIL114")
def takes_the_latest_repetition(answer: Any, context: RowContext) -> Any:
    """Not the longest copy counts but the last one."""
    tokens = list(context.tokens)[-context.params.dry_range or None :]
    return {one: min(length, 2 + tokens.count(one) % 2) for one, length in answer.items()}


@_patched("repetitions", "FIL114")
def has_an_exponent_one_off(right: FiltersOracle, context: RowContext) -> Any:
    """The repetition is counted with the token that it would get."""
    return {token: length + 1 for token, length in right.repetitions(context).items()}


@_patched("mirostat_v1", "FIL115", "FIL163")
def takes_mu_for_nats(right: FiltersOracle, row: Any, context: RowContext) -> Any:
    """exp(mu) instead of 2 ** mu."""
    return right.mirostat_v1(row, dataclasses.replace(context, mu=context.mu / np.log(2)))


@_patched("mirostat_k", "FIL115")
def overflows_to_one_token(right: FiltersOracle, row: Any, mu: float, vocab_size: int) -> Any:
    """A k beyond 2**31 becomes negative, and then 1, as in llama.cpp."""
    number, error = right.mirostat_k(row, mu, vocab_size)
    return (1.0, 0.0) if number > 2**31 else (number, error)


@_patched("mirostat_v2", "FIL116", "FIL163")
def measures_surprise_in_nats(right: FiltersOracle, row: Any, context: RowContext) -> Any:
    """mu in bits against surprise in nats."""
    return right.mirostat_v2(row, dataclasses.replace(context, mu=context.mu / np.log(2)))


@_patched("mu", "FIL116", "FIL163")
def begins_at_tau(right: FiltersOracle, mus: Any, number: int, context: RowContext) -> Any:
    """mu begins at tau instead of twice that."""
    return mus.get(number, context.mu / 2)


# -- what is off, what is out -----------------------------------------------------------------------------------------


@_patched("filter_logits", "FIL201")
def normalises_every_row(answer: Any, batch: Any, noise: Any) -> Any:
    """A log-softmax for everybody."""
    return dataclasses.replace(answer, logits=torch.log_softmax(answer.logits, dim=1))


@_seen("FIL201")
def makes_neighbours_greedy(right: _Batchwise, batch: Any) -> Any:
    """Off is n = 0 standard deviations, and once one request has top-n-sigma, all of the batch do, as in Aphrodite."""
    off = dataclasses.replace
    others = [off(one, top_n_sigma=one.top_n_sigma or 1e-30) for one in batch.params]
    return batch.replace(params=others) if any(one.top_n_sigma for one in batch.params) else batch


@_seen("FIL201")
def loses_the_tail_at_one(right: _Batchwise, batch: Any) -> Any:
    """A mass of 1 is off, but a sum in float32 reaches it before the last tokens."""
    others = [dataclasses.replace(one, typical_p=min(one.typical_p, 0.9999)) for one in batch.params]
    return batch.replace(params=others) if any(one.typical_p < 1 for one in batch.params) else batch


@_patched("epsilon", "FIL201", "FIL109")
def has_no_guard(right: FiltersOracle, row: Any, context: RowContext) -> Any:
    """If no token reaches epsilon, none is left."""
    return _keeping(row, row.log_probs >= np.log(context.params.epsilon))


@_patched("filter_logits", "FIL201")
def leaves_nan_at_the_top(answer: Any, batch: Any, noise: Any) -> Any:
    """With a share of 0 the curvature is divided by a sum of 0."""
    divided = torch.tensor([one.tail_free < 1e-20 for one in batch.params])
    kept = divided[:, None] & ~answer.logits.isneginf()
    return dataclasses.replace(answer, logits=answer.logits.masked_fill(kept, torch.nan))


@_patched("filter_logits", "FIL201")
def revives_forbidden_tokens(answer: Any, batch: Any, noise: Any) -> Any:
    """NaN of `-inf - -inf` is replaced by 0."""
    bent = torch.tensor([bool(one.smoothing_factor) for one in batch.params])
    revived = bent[:, None] & batch.logits.isneginf()
    return dataclasses.replace(answer, logits=answer.logits.masked_fill(revived, 0.0))


@_patched("top_p", "FIL102")
def returns_probabilities(answer: Any, row: Any, context: RowContext) -> Any:
    """After a sort by probability, probabilities are given back."""
    return dataclasses.replace(answer, values=np.where(answer.kept, np.exp(row.log_probs), -np.inf))


@_patched("min_p", "FIL103")
def keeps_one_of_equal_tokens(right: FiltersOracle, row: Any, context: RowContext) -> Any:
    """Tokens are looked up by their value."""
    _, first = np.unique(row.values, return_index=True)
    return _only(right.min_p(row, context), first)


# -- rows and ids -----------------------------------------------------------------------------------------------------


@_seen("FIL201")
def skips_others_beside_mirostat(right: _Batchwise, batch: Any) -> Any:
    """One request with mirostat, and the filters of all others are skipped, as in Aphrodite."""
    speaks = [bool(one.mirostat_v2_tau) for one in batch.params]
    others = [one if own else FilterParams() for one, own in zip(batch.params, speaks, strict=True)]
    return batch.replace(params=others) if any(speaks) else batch


@_mutant("FIL103", "FIL201")
class TakesTheMaximumOfTheBatch(_Batchwise):
    """Min-p relative to the largest logit of all rows."""

    def seen(self, batch: Any) -> Any:
        self.top = float(batch.logits.max())
        return batch

    def min_p(self, row: Any, context: RowContext) -> Any:
        return _or_top(row, row.values >= self.top + np.log(context.params.min_p))


@_seen("FIL201")
def compacts_parameters(right: _Batchwise, batch: Any) -> Any:
    """Those of requests without any filter are left out, and the others move up."""
    active = [one for one in batch.params if one.enabled]
    return batch.replace(params=[*active, *[FilterParams()] * (batch.batch_size - len(active))])


@_patched("top_k", "FIL101")
def does_not_put_the_mask_back(right: FiltersOracle, row: Any, context: RowContext) -> Any:
    """The mask of the sorted tokens is applied to the unsorted ones."""
    return _keeping(row, np.cumsum(row.kept) <= context.params.top_k)


@_patched("row", "FIL101", "FIL201")
def always_keeps_the_last_id(answer: Any, logits: Any, context: RowContext) -> Any:
    """The end of text cannot be excluded."""
    return dataclasses.replace(answer, kept=answer.kept | (np.arange(len(logits)) == len(logits) - 1))


@_patched("epsilon", "FIL109")
def takes_logits_for_log_probabilities(right: FiltersOracle, row: Any, context: RowContext) -> Any:
    """A threshold on logits that somebody else was to normalise."""
    return _or_top(row, row.values >= np.log(context.params.epsilon))


@_seen("FIL201")
def reads_parameters_backwards(right: _Batchwise, batch: Any) -> Any:
    """The last row's parameters come first."""
    return batch.replace(params=batch.params[::-1])


@_seen("FIL201")
def has_one_value_for_all(right: _Batchwise, batch: Any) -> Any:
    """Each parameter is that of the first request that has the filter on."""
    first: dict[str, Any] = {}

    def with_first(one: FilterParams) -> FilterParams:
        switches = [LOGIT_FILTERS[name].switch for name in one.enabled]
        return dataclasses.replace(one, **{name: first.setdefault(name, getattr(one, name)) for name in switches})

    return batch.replace(params=list(map(with_first, batch.params)))


@_patched("filter_logits", "FIL201")
def remembers_masks(answer: Any, batch: Any, noise: Any, *, kept: Memory) -> None:
    """A buffer for masks that only ever grows keeps those of the call before, for rows that filter nothing now."""
    before = kept.get("mask", ())
    if len(before) >= batch.batch_size:
        mask = before[: batch.batch_size, : batch.vocab_size]
        reach = mask.shape[1]
        top = answer.logits.argmax(dim=1)
        mask = mask.scatter(1, top.clamp(max=reach - 1)[:, None], False)
        answer.logits[:, :reach] = answer.logits[:, :reach].masked_fill(mask, -torch.inf)
    kept["mask"] = batch.logits.isfinite() & answer.logits.isneginf()


# -- together ---------------------------------------------------------------------------------------------------------


@_patched("order", "FIL201")
def has_another_order(right: FiltersOracle, context: RowContext) -> Any:
    """Temperature and XTC come first, and everything else behind them."""
    return tuple(sorted(right.order(context), key=lambda name: name not in ("temperature", "xtc", "min_p")[::-1]))[::-1]


class _KnowsTheUnfilteredRow(FiltersOracle):
    def row(self, logits: Any, context: RowContext) -> Any:
        self.whole = FilteredRow.of(logits)
        return super().row(logits, context)


_knowing = patching(_mutant, _KnowsTheUnfilteredRow)


@_knowing("top_p", "FIL201")
def does_not_normalise_in_between(right: FiltersOracle, row: Any, context: RowContext, *, own: Any) -> Any:
    """Top-p adds up the probabilities of the unfiltered row."""
    before = np.exp(own.whole.log_probs[row.ids]).cumsum() < context.params.top_p
    return _only(row, row.ids[: 1 + int(before.sum())])


@_knowing("collision", "FIL201")
def squares_the_unfiltered_row(right: FiltersOracle, row: Any, *, own: Any) -> Any:
    """The threshold of p-less comes from the row without its temperature, and before other filters."""
    return right.collision(own.whole)


@_patched("order", "FIL201")
def switches_min_p_off_beside_typical(answer: Any, context: RowContext) -> Any:
    """`elif`: a request with typical-p gets no min-p."""
    return tuple(name for name in answer if name != "min_p" or "typical_p" not in answer)


@_patched("order", "FIL201")
def takes_zero_for_off(right: FiltersOracle, context: RowContext) -> Any:
    """`if top_p:`, and values below 1e-20 are rounded to 0."""
    low = {name for name in ("top_p", "typical_p", "tail_free") if getattr(context.params, name) < 1e-20}
    return tuple(name for name in right.order(context) if name not in low)


@_patched("row", "FIL201")
def has_ids_of15_bits(answer: Any, logits: Any, context: RowContext) -> Any:
    """Ids from 32768 on come back as others."""
    kept = answer.kept & (np.arange(len(logits)) < 1 << 15)
    return dataclasses.replace(answer, kept=kept if kept.any() else answer.kept)


@_patched("row", "FIL201")
def divides_by_the_logarithm_of_one(right: FiltersOracle, logits: Any, context: RowContext) -> Any:
    """The largest entropy of a single token is 0, and 0 / 0 is a temperature."""
    found = right.row(logits, context)
    is_lone = "dynatemp" in right.order(context) and np.isfinite(logits).sum() == 1
    return dataclasses.replace(found, values=logits * np.nan) if is_lone else found


# -- DRY, XTC, mirostat -----------------------------------------------------------------------------------------------


@_patched("dry", "FIL151")
def knows_no_breakers(right: FiltersOracle, row: Any, context: RowContext) -> Any:
    """Repetitions extend over everything."""
    return right.dry(row, _with(context, dry_breakers=()))


@_patched("repetitions", "FIL151")
def penalises_breakers(answer: Any, context: RowContext) -> None:
    """A breaker that followed an earlier copy is penalised, as in Aphrodite."""
    tokens, breakers = list(context.tokens), context.params.dry_breakers
    if tokens and tokens[-1] not in breakers:
        answer |= {b: 1 for a, b in pairwise(tokens) if a == tokens[-1] and b in breakers}


@_patched("dry", "FIL201")
def penalises_short_repetitions(right: FiltersOracle, row: Any, context: RowContext) -> Any:
    """By the base to a negative power, as in Aphrodite."""
    found, params = right.dry(row, context), context.params
    values = found.values.copy()
    for token, length in right.repetitions(context).items():
        if 1 < length < params.dry_allowed_length:
            values[token] -= params.dry_multiplier * params.dry_base ** (length - params.dry_allowed_length)
    return dataclasses.replace(found, values=values)


@_patched("dry", "FIL153")
def overflows_to_nan(answer: Any, row: Any, context: RowContext) -> Any:
    """A penalty beyond float32 is inf, and the logit becomes NaN."""
    return dataclasses.replace(answer, values=np.where(answer.values < -3e38, np.nan, answer.values))


@_seen("FIL201")
def reads_the_output_alone(right: _Batchwise, batch: Any) -> Any:
    """The prompt may be repeated."""
    return batch.replace(prompt_token_ids=[[] for _ in batch.params])


@_patched("repetitions", "FIL201")
def looks_at_the_first_tokens(right: FiltersOracle, context: RowContext) -> Any:
    """A range counted from the beginning."""
    reach = context.params.dry_range or None
    return right.repetitions(dataclasses.replace(context, tokens=tuple(context.tokens)[:reach]))


@_seen("FIL201")
def looks_parameters_up_modulo96(right: _Batchwise, batch: Any) -> Any:
    """Three programs of 32 rows, and parameters by the row of the program."""
    return batch.replace(params=[batch.params[row % 96] for row in range(len(batch.params))])


@_patched("repetitions", "FIL155")
def looks_at_three_hundred_tokens(right: FiltersOracle, context: RowContext) -> Any:
    """A window of the last 300 tokens, where the range says all of them."""
    return right.repetitions(dataclasses.replace(context, tokens=tuple(context.tokens)[-300:]))


@_patched("repetitions", "FIL155", "FIL153")
def counts_sixteen_repeated_tokens(right: FiltersOracle, context: RowContext) -> Any:
    """A longer repetition costs what one of 16 tokens does."""
    return {token: min(length, 16) for token, length in right.repetitions(context).items()}


@_patched("filter_logits", "FIL165")
def forgets_mu_after_fifty_steps(right: FiltersOracle, batch: Any, noise: Any) -> Any:
    """States lie in a ring that other requests reach around to."""
    steps = noise.kept.setdefault("ring", [0])
    steps[0] += 1
    if steps[0] % 50 == 0:
        noise.kept["oracle"]["mus"].clear()
    return right.filter_logits(batch, noise)


@_seen("FIL201", "DIST981", "DIST982")
def has_one_coin_for_the_batch(right: _Batchwise, batch: Any) -> Any:
    """The first row's coin decides for all, and any row's probability counts."""
    most = max(one.xtc_probability for one in batch.params)
    return batch.replace(params=[dataclasses.replace(one, xtc_probability=most) for one in batch.params])


@_patched("next_mu", "FIL163")
def learns_the_wrong_way(right: FiltersOracle, mu: float, *others: Any, **named: Any) -> Any:
    """mu rises by the error."""
    return 2 * mu - right.next_mu(mu, *others, **named)


@_patched("next_mu", "FIL163")
def never_learns(right: FiltersOracle, mu: float, *others: Any, **named: Any) -> Any:
    """A new state for every step."""
    return mu


@_patched("next_mu", "FIL163")
def sees_the_surprise_after_the_cut(right: FiltersOracle, mu: float, params: Any, row: Any, _: Any, token: int) -> Any:
    """The probability of the drawn token among those that are left, undeclared."""
    return right.next_mu(mu, params, row, row, token)


@_patched("filter_logits", "FIL164")
def shares_mu(answer: Any, batch: Any, noise: Any) -> None:
    """One state for all rows with mirostat."""
    mus = noise.kept["oracle"]["mus"]
    mus |= dict.fromkeys(mus, next(iter(mus.values()), 0.0))


@_patched("coin", "DIST981")
def fires_by_the_complement(right: FiltersOracle, params: Any, rng: Any) -> Any:
    """`rand() > p` fires."""
    draw = rng.random()
    return draw >= params.xtc_probability if 0 < params.xtc_probability < 1 else draw < params.xtc_probability


@_patched("coin", "DIST981")
def fires_twice_as_rarely(right: FiltersOracle, params: Any, rng: Any) -> Any:
    """Two coins are drawn and both have to say yes."""
    return right.coin(params, rng) and right.coin(params, rng)


@_mutant("DIST982")
class DrawsOneNumberForTheBatch(FiltersOracle):
    """Each row compares its own probability with the same number."""

    def filter_logits(self, batch: Any, noise: Any) -> Any:
        self.number: float | None = None
        return super().filter_logits(batch, noise)

    def coin(self, params: Any, rng: Any) -> Any:
        self.number = rng.random() if self.number is None else self.number
        return self.number < params.xtc_probability


@_patched("filter_logits", "DIST982")
def seeds_every_step(right: FiltersOracle, batch: Any, noise: Any) -> Any:
    """Each step begins with a new generator of the same seed."""
    mus = noise.kept.get("oracle", {"mus": {}})["mus"]
    noise.kept["oracle"] = {"rng": right.generator(noise), "mus": mus}
    return right.filter_logits(batch, noise)


MUTANTS = mutants_in(vars())
