"""Wrong filters, one fault each; many were found in real engines."""

from __future__ import annotations

import dataclasses
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fairdraw._mutants._mutant import Mutant, mutant_as, name_of
from fairdraw._oracles.filters import FilteredRow, FiltersOracle, RowContext
from fairdraw.protocols import FilterParams, FilterResult, FunctionLogitsFilterer, logits_filterer

if TYPE_CHECKING:
    from fairdraw.protocols import FilterBatch, SeededNoise


def as_filterer(oracle: FiltersOracle, name: str) -> FunctionLogitsFilterer:
    """An oracle under the contract."""
    return logits_filterer(oracle.filter_logits, chain=oracle.chain, name=name)


def right() -> FunctionLogitsFilterer:
    """The specification: what every mutant would be without its fault."""
    return as_filterer(FiltersOracle(), "oracle")


def _fresh(faulty: type[FiltersOracle]) -> FunctionLogitsFilterer:
    """Return a filterer under the name of its class."""
    return as_filterer(faulty(), name_of(faulty))


_mutant = partial(mutant_as, _fresh)


def _with(context: RowContext, **params: Any) -> RowContext:  # Any: one field each
    return dataclasses.replace(context, params=dataclasses.replace(context.params, **params))


def _keeping(row: FilteredRow, kept: Any) -> FilteredRow:  # Any: [vocab_size] bool
    """The row with these tokens, as far as they were there."""
    return dataclasses.replace(row, kept=kept & row.kept)


class _Batchwise(FiltersOracle):
    """Knows the whole batch."""

    def filter_logits(self, batch: FilterBatch, noise: SeededNoise) -> FilterResult:
        return super().filter_logits(self.seen(batch), noise)

    def seen(self, batch: FilterBatch) -> FilterBatch:
        """What it takes the batch for."""
        return batch


# -- single filters ---------------------------------------------------------------------------------------------------


@_mutant("FIL101")
class KeepsOneMore(FiltersOracle):
    """Compares with the k-th value counted from 0."""

    def top_k(self, row: Any, context: RowContext) -> Any:
        return super().top_k(row, _with(context, top_k=context.params.top_k + 1))


@_mutant("FIL101")
class KeepsTheLeastProbable(FiltersOracle):
    """Sorts the wrong way round."""

    def top_k(self, row: Any, context: RowContext) -> Any:
        kept = np.zeros_like(row.kept)
        kept[row.ids[::-1][: context.params.top_k]] = True
        return _keeping(row, kept)


@_mutant("FIL102")
class DropsTheTokenThatReachesTheMass(FiltersOracle):
    """Adds before it compares."""

    def top_p(self, row: Any, context: RowContext) -> Any:
        kept = np.zeros_like(row.kept)
        kept[row.ids[: max(1, int((np.exp(row.log_probs[row.ids]).cumsum() < context.params.top_p).sum()))]] = True
        return _keeping(row, kept)


@_mutant("FIL103")
class ComparesWithMinPItself(FiltersOracle):
    """Forgets the largest probability."""

    def min_p(self, row: Any, context: RowContext) -> Any:
        return row.above(np.log(context.params.min_p), row.slack)


@_mutant("FIL104")
class DropsTheLastTypicalToken(FiltersOracle):
    """The token that reaches the mass is dropped, as Aphrodite does."""

    def typical_p(self, row: Any, context: RowContext) -> Any:
        self.crossing = lambda number: max(1, number - 1)  # type: ignore[method-assign]
        return super().typical_p(row, context)


@_mutant("FIL104")
class MeasuresEntropyInBits(FiltersOracle):
    """A logarithm to base 2 for the entropy, and to base e for the surprise."""

    def typical_p(self, row: Any, context: RowContext) -> Any:
        score = np.abs(np.nan_to_num(-row.log_probs, posinf=1e9) - row.entropy / np.log(2))
        return self.by_mass(row, context.params.typical_p, score, 0.0)


@_mutant("FIL125")
class MultipliesZeroByInfinity(FiltersOracle):
    """`p * log(p)` of a token of probability 0 is NaN, and so is every score: the order stays by probability, as in
    llama.cpp."""

    def typical_p(self, row: Any, context: RowContext) -> Any:
        has_zero = bool((row.log_probs < -104).any())
        return (
            self.by_mass(row, context.params.typical_p, -row.values, 0.0)
            if has_zero
            else super().typical_p(row, context)
        )


@_mutant("FIL105")
class DeviatesByProbabilities(FiltersOracle):
    """The standard deviation of the probabilities."""

    def sigma(self, row: Any) -> Any:
        return float(np.exp(row.log_probs[row.kept]).std()), 0.0


@_mutant("FIL105")
class DividesByOneLess(FiltersOracle):
    """By n - 1, undeclared."""

    def sigma(self, row: Any) -> Any:
        number = max(2, int(row.kept.sum()))
        sigma, slack = super().sigma(row)
        return sigma * np.sqrt(number / (number - 1)), slack


@_mutant("FIL125", "FIL105")
class CountsMinusInfinity(FiltersOracle):
    """With a forbidden token the standard deviation is NaN, and no token is below NaN, as in Aphrodite."""

    def top_n_sigma(self, row: Any, context: RowContext) -> Any:
        return row if not row.kept.all() else super().top_n_sigma(row, context)


@_mutant("FIL106")
class ForgetsTheSquare(FiltersOracle):
    """Top-a as min-p."""

    def top_a(self, row: Any, context: RowContext) -> Any:
        return row.above(np.log(context.params.top_a) + row.log_probs.max(), row.slack)


class _OtherCurvature(FiltersOracle):
    def tail_free(self, row: Any, context: RowContext) -> Any:
        if len(row.ids) < 3:
            return row
        bends = self.bends(np.exp(row.log_probs[row.ids]))
        share = bends.cumsum() / (bends.sum() or 1)
        number = int((share <= context.params.tail_free).sum()) + self.chain.tail_free_extra
        kept = np.zeros_like(row.kept)
        kept[row.ids[: max(1, number)]] = True
        return _keeping(row, kept)

    def bends(self, probs: Any) -> Any:
        return np.abs(np.diff(np.diff(probs)))


@_mutant("FIL107")
class TakesTheSlope(_OtherCurvature):
    """First differences instead of second ones."""

    def bends(self, probs: Any) -> Any:
        return np.abs(np.diff(probs))


@_mutant("FIL107")
class BendsBothWays(_OtherCurvature):
    """Second differences with their signs."""

    def bends(self, probs: Any) -> Any:
        return np.diff(np.diff(probs))


@_mutant("FIL108")
class TurnsTheEntropyRound(FiltersOracle):
    """exp(+entropy)."""

    def eta(self, row: Any, context: RowContext) -> Any:
        epsilon = np.log(context.params.eta)
        return row.above(min(epsilon, epsilon / 2 + row.entropy), row.slack, keeps_ties=False)


@_mutant("FIL108")
class TakesTheLargerOfTwo(FiltersOracle):
    """max instead of min."""

    def eta(self, row: Any, context: RowContext) -> Any:
        epsilon = np.log(context.params.eta)
        return row.above(max(epsilon, epsilon / 2 - row.entropy), row.slack, keeps_ties=False)


@_mutant("FIL109")
class CountsInTenThousandths(FiltersOracle):
    """Epsilon in units of 1e-4, as some interfaces take it."""

    def epsilon(self, row: Any, context: RowContext) -> Any:
        return super().epsilon(row, _with(context, epsilon=context.params.epsilon * 1e-4))


@_mutant("FIL110")
class ExcludesEveryTopChoice(FiltersOracle):
    """All tokens above the threshold are out, if another one is left."""

    def xtc(self, row: Any, context: RowContext) -> Any:
        below = row.log_probs < np.log(context.params.xtc_threshold)
        return _keeping(row, below) if context.fires and (below & row.kept).any() else row


@_mutant("FIL110")
class LeavesTheMostProbable(FiltersOracle):
    """The wrong one of the tokens above the threshold stays."""

    def xtc(self, row: Any, context: RowContext) -> Any:
        below = row.log_probs < np.log(context.params.xtc_threshold)
        return _keeping(row, below | (np.arange(len(below)) == row.ids[0])) if context.fires else row


@_mutant("FIL111")
class MultipliesByTheTemperature(FiltersOracle):
    """A product instead of a quotient."""

    def temperature(self, row: Any, context: RowContext) -> Any:
        return self.divide(row, 1 / context.params.temperature)


@_mutant("FIL112")
class CountsForbiddenTokens(FiltersOracle):
    """The largest entropy is that of the whole vocabulary, as in llama.cpp."""

    def normalised_entropy(self, row: Any) -> Any:
        return row.entropy / np.log(max(2, len(row.values))), 0.0


@_mutant("FIL112")
class RaisesTheWholeRange(FiltersOracle):
    """The exponent stands behind the wrong bracket."""

    def dynatemp(self, row: Any, context: RowContext) -> Any:
        params = context.params
        share, _ = self.normalised_entropy(row)
        reach = (params.dynatemp_high - params.dynatemp_low) * share
        return self.divide(row, params.dynatemp_low + reach**params.dynatemp_exponent * 1.1)


@_mutant("FIL113")
class TurnsTheCubeRound(FiltersOracle):
    """The cubic term has the wrong sign."""

    def smoothing(self, row: Any, context: RowContext) -> Any:
        bent, straight = super().smoothing(row, context), super().smoothing(row, _with(context, smoothing_curve=1.0))
        return dataclasses.replace(bent, values=np.where(row.kept, 2 * straight.values - bent.values, -np.inf))


@_mutant("FIL114")
class TakesTheLatestRepetition(FiltersOracle):
    """Not the longest copy counts but the last one."""

    def repetitions(self, context: RowContext) -> Any:
        tokens = list(context.tokens)[-context.params.dry_range or None :]
        longest = super().repetitions(context)
        return {one: min(length, 2 + tokens.count(one) % 2) for one, length in longest.items()}


@_mutant("FIL114")
class HasAnExponentOneOff(FiltersOracle):
    """The repetition is counted with the token that it would get."""

    def repetitions(self, context: RowContext) -> Any:
        return {token: length + 1 for token, length in super().repetitions(context).items()}


@_mutant("FIL115", "FIL163")
class TakesMuForNats(FiltersOracle):
    """exp(mu) instead of 2 ** mu."""

    def mirostat_v1(self, row: Any, context: RowContext) -> Any:
        return super().mirostat_v1(row, dataclasses.replace(context, mu=context.mu / np.log(2)))


@_mutant("FIL115")
class OverflowsToOneToken(FiltersOracle):
    """A k beyond 2**31 becomes negative, and then 1, as in llama.cpp."""

    def mirostat_k(self, row: Any, mu: float, vocab_size: int) -> Any:
        number, error = super().mirostat_k(row, mu, vocab_size)
        return (1.0, 0.0) if number > 2**31 else (number, error)


@_mutant("FIL116", "FIL163")
class MeasuresSurpriseInNats(FiltersOracle):
    """mu in bits against surprise in nats."""

    def mirostat_v2(self, row: Any, context: RowContext) -> Any:
        return super().mirostat_v2(row, dataclasses.replace(context, mu=context.mu / np.log(2)))


@_mutant("FIL116", "FIL163")
class BeginsAtTau(FiltersOracle):
    """mu begins at tau instead of twice that."""

    def mu(self, mus: Any, number: int, context: RowContext) -> Any:
        return mus.get(number, context.mu / 2)


# -- what is off, what is out -----------------------------------------------------------------------------------------


@_mutant("FIL201")
class NormalisesEveryRow(FiltersOracle):
    """A log-softmax for everybody."""

    def filter_logits(self, batch: Any, noise: Any) -> Any:
        found = super().filter_logits(batch, noise)
        return dataclasses.replace(found, logits=torch.log_softmax(found.logits, dim=1))


@_mutant("FIL201")
class MakesNeighboursGreedy(_Batchwise):
    """Off is n = 0 standard deviations, and once one request has top-n-sigma, all of the batch do, as in Aphrodite."""

    def seen(self, batch: Any) -> Any:
        off = dataclasses.replace
        others = [off(one, top_n_sigma=one.top_n_sigma or 1e-30) for one in batch.params]
        return batch.replace(params=others) if any(one.top_n_sigma for one in batch.params) else batch


@_mutant("FIL201")
class LosesTheTailAtOne(_Batchwise):
    """A mass of 1 is off, but a sum in float32 reaches it before the last tokens."""

    def seen(self, batch: Any) -> Any:
        others = [dataclasses.replace(one, typical_p=min(one.typical_p, 0.9999)) for one in batch.params]
        return batch.replace(params=others) if any(one.typical_p < 1 for one in batch.params) else batch


@_mutant("FIL201", "FIL109")
class HasNoGuard(FiltersOracle):
    """If no token reaches epsilon, none is left."""

    def epsilon(self, row: Any, context: RowContext) -> Any:
        return _keeping(row, row.log_probs >= np.log(context.params.epsilon))


@_mutant("FIL201")
class LeavesNanAtTheTop(FiltersOracle):
    """With a share of 0 the curvature is divided by a sum of 0."""

    def filter_logits(self, batch: Any, noise: Any) -> Any:
        found = super().filter_logits(batch, noise)
        divided = torch.tensor([one.tail_free < 1e-20 for one in batch.params])
        kept = divided[:, None] & ~found.logits.isneginf()
        return dataclasses.replace(found, logits=found.logits.masked_fill(kept, torch.nan))


@_mutant("FIL201")
class RevivesForbiddenTokens(FiltersOracle):
    """NaN of `-inf - -inf` is replaced by 0."""

    def filter_logits(self, batch: Any, noise: Any) -> Any:
        found = super().filter_logits(batch, noise)
        bent = torch.tensor([bool(one.smoothing_factor) for one in batch.params])
        revived = bent[:, None] & batch.logits.isneginf()
        return dataclasses.replace(found, logits=found.logits.masked_fill(revived, 0.0))


@_mutant("FIL102")
class ReturnsProbabilities(FiltersOracle):
    """After a sort by probability, probabilities are given back."""

    def top_p(self, row: Any, context: RowContext) -> Any:
        found = super().top_p(row, context)
        return dataclasses.replace(found, values=np.where(found.kept, np.exp(row.log_probs), -np.inf))


class _First(FiltersOracle):
    """Of equal tokens keeps the first alone."""

    def of_equal(self, row: FilteredRow) -> FilteredRow:
        _, first = np.unique(row.values, return_index=True)
        return _keeping(row, np.isin(np.arange(len(row.kept)), first))


@_mutant("FIL103")
class KeepsOneOfEqualTokens(_First):
    """Tokens are looked up by their value."""

    def min_p(self, row: Any, context: RowContext) -> Any:
        return self.of_equal(super().min_p(row, context))


# -- rows and ids -----------------------------------------------------------------------------------------------------


@_mutant("FIL201")
class SkipsOthersBesideMirostat(_Batchwise):
    """One request with mirostat, and the filters of all others are skipped, as in Aphrodite."""

    def seen(self, batch: Any) -> Any:
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
        kept = row.values >= self.top + np.log(context.params.min_p)
        return _keeping(row, kept if kept.any() else row.values == row.values.max())


@_mutant("FIL201")
class CompactsParameters(_Batchwise):
    """Those of requests without any filter are left out, and the others move up."""

    def seen(self, batch: Any) -> Any:
        active = [one for one in batch.params if one.enabled]
        return batch.replace(params=[*active, *[FilterParams()] * (batch.batch_size - len(active))])


@_mutant("FIL133", "FIL101")
class DoesNotPutTheMaskBack(FiltersOracle):
    """The mask of the sorted tokens is applied to the unsorted ones."""

    def top_k(self, row: Any, context: RowContext) -> Any:
        return _keeping(row, np.cumsum(row.kept) <= context.params.top_k)


@_mutant("FIL133")
class AlwaysKeepsTheLastId(FiltersOracle):
    """The end of text cannot be excluded."""

    def row(self, logits: Any, context: RowContext) -> Any:
        found = super().row(logits, context)
        return dataclasses.replace(found, kept=found.kept | (np.arange(len(logits)) == len(logits) - 1))


@_mutant("FIL109")
class TakesLogitsForLogProbabilities(FiltersOracle):
    """A threshold on logits that somebody else was to normalise."""

    def epsilon(self, row: Any, context: RowContext) -> Any:
        kept = row.values >= np.log(context.params.epsilon)
        return _keeping(row, kept if (kept & row.kept).any() else row.values == row.values.max())


@_mutant("FIL201")
class ReadsParametersBackwards(_Batchwise):
    """The last row's parameters come first."""

    def seen(self, batch: Any) -> Any:
        return batch.replace(params=batch.params[::-1])


@_mutant("FIL201")
class HasOneValueForAll(_Batchwise):
    """Each parameter is that of the first request that has the filter on."""

    def seen(self, batch: Any) -> Any:
        names = ("top_p", "min_p", "typical_p", "top_k", "top_n_sigma", "top_a", "eta", "epsilon", "tail_free")
        firsts = {name: [getattr(one, name) for one in batch.params if name in one.enabled] for name in names}
        changed = []
        for one in batch.params:
            own = {name: firsts[name][0] for name in names if name in one.enabled}
            changed.append(dataclasses.replace(one, **own))
        return batch.replace(params=changed)


@_mutant("FIL201")
class RemembersMasks(_Batchwise):
    """A buffer for masks that only ever grows keeps those of the call before, for rows that filter nothing now."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Any = None

    def filter_logits(self, batch: Any, noise: Any) -> Any:
        found = super().filter_logits(batch, noise)
        if self.before is not None and self.before.shape[0] >= batch.batch_size:
            mask = self.before[: batch.batch_size, : batch.vocab_size]
            reach = min(mask.shape[1], batch.vocab_size)
            top = found.logits.argmax(dim=1)
            mask = mask[:, :reach].scatter(1, top.clamp(max=reach - 1)[:, None], False)
            found.logits[:, :reach] = found.logits[:, :reach].masked_fill(mask, -torch.inf)
        self.before = batch.logits.isfinite() & found.logits.isneginf()
        return found


# -- together ---------------------------------------------------------------------------------------------------------


@_mutant("FIL201")
class HasAnotherOrder(FiltersOracle):
    """Temperature and XTC come first, and everything else behind them."""

    def order(self, context: RowContext) -> Any:
        return tuple(
            sorted(super().order(context), key=lambda name: name not in ("temperature", "xtc", "min_p")[::-1])
        )[::-1]


@_mutant("FIL201")
class DoesNotNormaliseInBetween(FiltersOracle):
    """Top-p adds up the probabilities of the unfiltered row."""

    def row(self, logits: Any, context: RowContext) -> Any:
        self.whole = FilteredRow.of(logits)
        return super().row(logits, context)

    def top_p(self, row: Any, context: RowContext) -> Any:
        probs = np.exp(self.whole.log_probs[row.ids])
        kept = np.zeros_like(row.kept)
        kept[row.ids[: 1 + int((probs.cumsum() < context.params.top_p).sum())]] = True
        return _keeping(row, kept)


@_mutant("FIL201")
class SwitchesMinPOffBesideTypical(FiltersOracle):
    """`elif`: a request with typical-p gets no min-p."""

    def order(self, context: RowContext) -> Any:
        names = super().order(context)
        return tuple(name for name in names if name != "min_p" or "typical_p" not in names)


@_mutant("FIL201")
class TakesZeroForOff(FiltersOracle):
    """`if top_p:`, and values below 1e-20 are rounded to 0."""

    def order(self, context: RowContext) -> Any:
        low = {name for name in ("top_p", "typical_p", "tail_free") if getattr(context.params, name) < 1e-20}
        return tuple(name for name in super().order(context) if name not in low)


@_mutant("FIL201")
class HasIdsOf15Bits(FiltersOracle):
    """Ids from 32768 on come back as others."""

    def row(self, logits: Any, context: RowContext) -> Any:
        found = super().row(logits, context)
        kept = found.kept & (np.arange(len(logits)) < 1 << 15)
        return dataclasses.replace(found, kept=kept if kept.any() else found.kept)


@_mutant("FIL201")
class DividesByTheLogarithmOfOne(FiltersOracle):
    """The largest entropy of a single token is 0, and 0 / 0 is a temperature."""

    def row(self, logits: Any, context: RowContext) -> Any:
        found = super().row(logits, context)
        is_lone = "dynatemp" in self.order(context) and np.isfinite(logits).sum() == 1
        return dataclasses.replace(found, values=logits * np.nan) if is_lone else found


# -- DRY, XTC, mirostat -----------------------------------------------------------------------------------------------


@_mutant("FIL151")
class KnowsNoBreakers(FiltersOracle):
    """Repetitions extend over everything."""

    def dry(self, row: Any, context: RowContext) -> Any:
        return super().dry(row, _with(context, dry_breakers=()))


@_mutant("FIL151")
class PenalisesBreakers(FiltersOracle):
    """A breaker that followed an earlier copy is penalised, as in Aphrodite."""

    def repetitions(self, context: RowContext) -> Any:
        found, breakers = super().repetitions(context), context.params.dry_breakers
        tokens = list(context.tokens)
        if tokens and tokens[-1] not in breakers:
            found |= {b: 1 for a, b in pairwise(tokens) if a == tokens[-1] and b in breakers}
        return found


@_mutant("FIL201")
class PenalisesShortRepetitions(FiltersOracle):
    """By the base to a negative power, as in Aphrodite."""

    def dry(self, row: Any, context: RowContext) -> Any:
        found, params = super().dry(row, context), context.params
        values = found.values.copy()
        for token, length in self.repetitions(context).items():
            if 1 < length < params.dry_allowed_length:
                values[token] -= params.dry_multiplier * params.dry_base ** (length - params.dry_allowed_length)
        return dataclasses.replace(found, values=values)


@_mutant("FIL153")
class OverflowsToNan(FiltersOracle):
    """A penalty beyond float32 is inf, and the logit becomes NaN."""

    def dry(self, row: Any, context: RowContext) -> Any:
        found = super().dry(row, context)
        return dataclasses.replace(found, values=np.where(found.values < -3e38, np.nan, found.values))


@_mutant("FIL201")
class ReadsTheOutputAlone(_Batchwise):
    """The prompt may be repeated."""

    def seen(self, batch: Any) -> Any:
        return batch.replace(prompt_token_ids=[[] for _ in batch.params])


@_mutant("FIL201")
class LooksAtTheFirstTokens(FiltersOracle):
    """A range counted from the beginning."""

    def repetitions(self, context: RowContext) -> Any:
        reach = context.params.dry_range or None
        return super().repetitions(dataclasses.replace(context, tokens=tuple(context.tokens)[:reach]))


@_mutant("FIL201")
class LooksParametersUpModulo96(_Batchwise):
    """Three programs of 32 rows, and parameters by the row of the program."""

    def seen(self, batch: Any) -> Any:
        return batch.replace(params=[batch.params[row % 96] for row in range(len(batch.params))])


@_mutant("FIL155")
class LooksAtThreeHundredTokens(FiltersOracle):
    """A window of the last 300 tokens, where the range says all of them."""

    def repetitions(self, context: RowContext) -> Any:
        return super().repetitions(dataclasses.replace(context, tokens=tuple(context.tokens)[-300:]))


@_mutant("FIL155", "FIL153")
class CountsSixteenRepeatedTokens(FiltersOracle):
    """A longer repetition costs what one of 16 tokens does."""

    def repetitions(self, context: RowContext) -> Any:
        return {token: min(length, 16) for token, length in super().repetitions(context).items()}


@_mutant("FIL165")
class ForgetsMuAfterFiftySteps(FiltersOracle):
    """States lie in a ring that other requests reach around to."""

    def filter_logits(self, batch: Any, noise: Any) -> Any:
        steps = noise.kept.setdefault("ring", [0])
        steps[0] += 1
        if steps[0] % 50 == 0:
            noise.kept["oracle"]["mus"].clear()
        return super().filter_logits(batch, noise)


@_mutant("FIL201", "DIST981", "DIST982")
class HasOneCoinForTheBatch(FiltersOracle):
    """The first row's coin decides for all, and any row's probability counts."""

    def filter_logits(self, batch: Any, noise: Any) -> Any:
        self.most = max(one.xtc_probability for one in batch.params)
        others = [dataclasses.replace(one, xtc_probability=self.most) for one in batch.params]
        return super().filter_logits(batch.replace(params=others), noise)


@_mutant("FIL163")
class LearnsTheWrongWay(FiltersOracle):
    """mu rises by the error."""

    def next_mu(self, mu: float, *others: Any, **named: Any) -> Any:
        return 2 * mu - super().next_mu(mu, *others, **named)


@_mutant("FIL163")
class NeverLearns(FiltersOracle):
    """A new state for every step."""

    def next_mu(self, mu: float, *others: Any, **named: Any) -> Any:
        return mu


@_mutant("FIL163")
class SeesTheSurpriseAfterTheCut(FiltersOracle):
    """The probability of the drawn token among those that are left, undeclared."""

    def next_mu(self, mu: float, params: Any, row: Any, before: Any, token: int) -> Any:
        return super().next_mu(mu, params, row, row, token)


@_mutant("FIL164")
class SharesMu(FiltersOracle):
    """One state for all rows with mirostat."""

    def filter_logits(self, batch: Any, noise: Any) -> Any:
        found, kept = super().filter_logits(batch, noise), noise.kept["oracle"]["mus"]
        kept |= dict.fromkeys(kept, next(iter(kept.values()), 0.0))
        return found


@_mutant("DIST981")
class FiresByTheComplement(FiltersOracle):
    """`rand() > p` fires."""

    def coin(self, params: Any, rng: Any) -> Any:
        draw = rng.random()
        return draw >= params.xtc_probability if 0 < params.xtc_probability < 1 else draw < params.xtc_probability


@_mutant("DIST981")
class FiresTwiceAsRarely(FiltersOracle):
    """Two coins are drawn and both have to say yes."""

    def coin(self, params: Any, rng: Any) -> Any:
        return super().coin(params, rng) and super().coin(params, rng)


@_mutant("DIST982")
class DrawsOneNumberForTheBatch(FiltersOracle):
    """Each row compares its own probability with the same number."""

    def filter_logits(self, batch: Any, noise: Any) -> Any:
        self.number: float | None = None
        return super().filter_logits(batch, noise)

    def coin(self, params: Any, rng: Any) -> Any:
        self.number = rng.random() if self.number is None else self.number
        return self.number < params.xtc_probability


@_mutant("DIST982")
class SeedsEveryStep(FiltersOracle):
    """Each step begins with a new generator of the same seed."""

    def filter_logits(self, batch: Any, noise: Any) -> Any:
        mus = noise.kept.get("oracle", {"mus": {}})["mus"]
        noise.kept["oracle"] = {"rng": self.generator(noise), "mus": mus}
        return super().filter_logits(batch, noise)


MUTANTS = tuple(value for value in vars().values() if isinstance(value, Mutant))
