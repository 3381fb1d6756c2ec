"""Faults of temperature and filters: which tokens are left for the draw.

Each function stands for one step of the oracle, with that step's arguments. First comes `right`, the correct
steps, or `answer`, that of the correct step.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fairdraw._core.array_types import Row32 as Row
from fairdraw._core.array_types import RowFlags
from fairdraw._mutants._mutant import EXPLICIT, as_mutant, patched
from fairdraw._oracles.sampling import Request, masked, softmax
from fairdraw._oracles.sampling import SamplingOracle as Oracle
from fairdraw.contracts import SamplingBatch as Batch
from fairdraw.contracts import SamplingNoise


@patched(Oracle, "top_k_support", "SAM102")
def keeps_one_token_more_than_top_k(right: Oracle, logits: Row, top_k: int) -> RowFlags:
    """`sorted[k]` where `sorted[k - 1]` is meant: the user asked for 40 and gets 41."""
    return right.top_k_support(logits, min(top_k + 1, logits.size))


@patched(Oracle, "top_k_support", "SAM201")
def keeps_two_at_least(right: Oracle, logits: Row, top_k: int) -> RowFlags:
    """A guard against empty supports, one too high."""
    return right.top_k_support(logits, min(max(top_k, 2), logits.size))


@patched(Oracle, "top_k_support", "SAM201")
def drops_ties_of_top_k(right: Oracle, logits: Row, top_k: int) -> RowFlags:
    """A strict comparison with the k-th logit, and the k-th itself by its index; declared is that all ties stay."""
    support = np.zeros(logits.size, dtype=bool)
    support[np.argsort(-logits, kind="stable")[:top_k]] = True
    return support


@patched(Oracle, "top_k_support", "SAM201")
def finds_top_k_in_a_part_of_the_vocabulary(right: Oracle, logits: Row, top_k: int) -> RowFlags:
    """The threshold comes from the first 2**15 tokens: enough for any vocabulary, it was thought."""
    part = logits[: 2**15]
    return np.asarray(~(logits < np.sort(part)[-min(top_k, part.size)]))


@patched(Oracle, "sample", "SAM201")
def reads_the_temperatures_of_256_rows(right: Oracle, batch: Batch, noise: SamplingNoise) -> Tensor:
    """A grid of 256 rows: the row after those begins again with the parameters of the first."""
    return right.sample(batch.replace(temperature=batch.temperature[torch.arange(batch.batch_size) % 256]), noise)


@patched(Oracle, "filtered", "SAM141")
def takes_a_top_p_below_a_millionth_for_off(right: Oracle, request: Request) -> Row:
    """`if top_p > 1e-6`: what means one token keeps all."""
    is_tiny = request.top_p is not None and request.top_p < 1e-6
    return right.filtered(replace(request, top_p=None) if is_tiny else request)


@patched(Oracle, "top_p_support", "SAM102")
def keeps_one_token_more_than_top_p(answer: RowFlags, logits: Row, top_p: float) -> None:
    """The mass before the token is compared, instead of the mass with it."""
    dropped = np.where(answer | (logits == -np.inf), -np.inf, logits)
    if dropped.max() > -np.inf:
        answer[int(np.argmax(dropped))] = True


@patched(Oracle, "top_p_support", "SAM111")
def stops_one_token_before_top_p(answer: RowFlags, logits: Row, top_p: float) -> None:
    """The token that reaches `top_p` is left out: text gets more monotonous, and no test of ids sees it."""
    if answer.sum() > 1:
        answer[int(np.argmin(np.where(answer, logits, np.inf)))] = False


@patched(Oracle, "top_p_support", "SAM201")
def drops_ties_at_the_edge_of_top_p(answer: RowFlags, logits: Row, top_p: float) -> None:
    """Tokens that tie where the mass is reached are all dropped, if more probable ones stay."""
    is_edge = logits == np.min(logits, where=answer, initial=np.inf)
    if is_edge.sum() > 1 and (answer & ~is_edge).any():
        answer &= ~is_edge


@patched(Oracle, "top_p_support", "SAM102")
def adds_up_the_mass_from_the_wrong_end(right: Oracle, logits: Row, top_p: float) -> RowFlags:
    """Sorted ascending where descending is meant: the rare tokens stay."""
    order = np.argsort(logits, kind="stable")
    before = np.concatenate(([0.0], np.cumsum(softmax(logits)[order])[:-1]))
    support = np.zeros(logits.size, dtype=bool)
    support[order[before < top_p]] = True
    return support


@as_mutant("SAM201")
class LosesATokenAtTopPOne(Oracle):
    """`<` for `<=` at the end of the sum: rows that do not filter lose their least probable token."""

    def sample(self, batch: Batch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
        self.is_given = batch.top_p is not None
        return super().sample(batch, noise)

    def filtered(self, request: Request) -> Row:
        logits = super().filtered(request)
        alive = np.flatnonzero(logits > -np.inf)
        if self.is_given and request.top_p is None and alive.size > 1:
            logits = logits.copy()
            logits[alive[np.argmin(logits[alive])]] = -np.inf
        return logits


@patched(Oracle, "filtered", "SAM102")
def ignores_min_p(right: Oracle, request: Request) -> Row:
    """The parameter is parsed and never applied."""
    return right.filtered(replace(request, min_p=None))


@patched(Oracle, "filtered", "SAM201")
def min_p_of_the_distribution_before_temperature(right: Oracle, request: Request) -> Row:
    """The threshold is found on raw logits and used on scaled ones."""
    if request.min_p is None:
        return right.filtered(request)
    support = right.min_p_support(request.logits, request.min_p)
    return masked(right.filtered(replace(request, min_p=None)), support)


@patched(Oracle, "min_p_support", "SAM201", "SAM111")
def min_p_relative_to_one(right: Oracle, logits: Row, min_p: float) -> RowFlags:
    """`prob < min_p` instead of `prob < min_p * largest`: flat rows are cut down to nothing but their mode."""
    probs = softmax(logits)
    return np.asarray((probs >= min_p) | (probs == probs.max()))


@patched(Oracle, "filtered", "SAM201")
def filters_top_p_before_min_p(right: Oracle, request: Request) -> Row:
    """Another order than declared, where there is no top-k: top-p counts mass that min-p takes away afterwards."""
    if request.top_k is not None:
        return right.filtered(request)
    logits, min_p = right.filtered(replace(request, min_p=None)), request.min_p
    return logits if min_p is None else masked(logits, right.min_p_support(right.scaled(request), min_p))


@patched(Oracle, "filtered", "SAM201", "SAM102")
def ignores_top_p_beside_top_k(right: Oracle, request: Request) -> Row:
    """One filter or the other: a branch for each, and none for both."""
    return right.filtered(request if request.top_k is None else replace(request, top_p=None))


@as_mutant("SAM201")
class FiltersBeforeTemperature(Oracle):
    """The nucleus of the distribution at temperature 1, drawn from at another."""

    def top_p_support(self, logits: Row, top_p: float) -> RowFlags:
        return super().top_p_support((logits * self.temperature).astype(np.float32), top_p)

    def scaled(self, request: Request) -> Row:
        self.temperature = request.temperature
        return super().scaled(request)


@patched(Oracle, "distribution", "SAM201")
def adds_an_epsilon(right: Oracle, request: Request) -> Row:
    """`log(probs + 1e-8)` for safety: banned tokens are rare now, not impossible."""
    return np.asarray(right.distribution(request) + np.float32(1e-8))


@patched(Oracle, "scaled", "SAM126", "SAM141", "SAM151")
def ignores_the_temperature(right: Oracle, request: Request) -> Row:
    """The parameter is parsed and never applied."""
    return request.logits


@patched(Oracle, "scaled", "SAM126")
def multiplies_by_the_temperature(right: Oracle, request: Request) -> Row:
    """Creative requests become dull and the other way round."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(request.logits * request.temperature)


@patched(Oracle, "scaled", "SAM201")
def clamps_the_temperature(right: Oracle, request: Request) -> Row:
    """Clamped from below, against overflow, at 2 where 0.002 was meant."""
    return right.scaled(replace(request, temperature=max(request.temperature, np.float32(2.0))))


@patched(Oracle, "sample", "SAM201")
def uses_the_temperature_of_the_first_request(right: Oracle, batch: Batch, noise: SamplingNoise) -> Tensor:
    """One value for the batch: text depends on the other requests."""
    random = batch.temperature[~batch.is_greedy]
    first = random[0] if random.numel() else torch.ones(())
    return right.sample(batch.replace(temperature=torch.where(batch.is_greedy, 0.0, first)), noise)


@patched(Oracle, "distribution", "SAM201")
def does_not_subtract_the_maximum(right: Oracle, request: Request) -> Row:
    """A softmax without its maximum: right until logits reach 88."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        weights = np.exp(right.filtered(request))
        return np.asarray(weights / weights.sum())


@patched(Oracle, "token", "SAM201", "SAM155")
def takes_the_argmax_behind_the_filters(right: Oracle, request: Request, exponentials: Row) -> int:
    """A filter that breaks ties by the highest id decides for greedy requests, too."""
    return right.greedy_token(right.filtered(request)) if request.is_greedy else right.token(request, exponentials)


@patched(Oracle, "greedy_token", "SAM121", "SAM155")
def greedy_ties_go_to_the_last_id(right: Oracle, logits: Row) -> int:
    """`>=` in the scan over tiles."""
    return int(logits.size - 1 - np.argmax(logits[::-1]))


@patched(Oracle, "token", "SAM201", "SAM121")
def greedy_requests_draw(right: Oracle, request: Request, exponentials: Row) -> int:
    """Temperature 0 is replaced by 1, against a division by zero, and the argmax is never taken."""
    return right.race(right.distribution(request), exponentials)


# Paths for batches whose requests are alike.


def _one_value(values: Tensor | None, rows: Tensor) -> bool:  # [batch_size] any, [batch_size] bool
    """Three of these rows at least, and all have one value."""
    own = torch.zeros(0) if values is None else values[rows]
    return own.numel() > 2 and bool((own == own[0]).all())


@patched(Oracle, "sample", "SAM201")
def one_top_k_for_all_keeps_a_token_more(right: Oracle, batch: Batch, noise: SamplingNoise) -> Tensor:
    """`topk(k + 1)` and a comparison with its last value: only where one number serves all rows."""
    if batch.top_k is not None and _one_value(batch.top_k, ~batch.is_greedy):
        batch = batch.replace(top_k=torch.clamp(batch.top_k + 1, max=batch.vocab_size))
    return right.sample(batch, noise)


@patched(Oracle, "sample", "SAM201", needs=EXPLICIT)
def one_min_p_for_all_is_that_of_the_last_row(right: Oracle, batch: Batch, noise: SamplingNoise) -> Tensor:
    """The threshold of one row of the batch cuts all rows, where all have one min-p."""
    if not _one_value(batch.min_p, ~batch.is_greedy):
        return right.sample(batch, noise)
    assert batch.min_p is not None
    heat = torch.where(batch.is_greedy, 1.0, batch.temperature)[:, None]
    probs = (batch.logits.float() / heat).softmax(-1)
    least = probs[-1].max() * batch.min_p[-1]
    cut = (probs < torch.minimum(least, probs.amax(-1, keepdim=True))) & ~batch.is_greedy[:, None]
    return right.sample(batch.replace(logits=batch.logits.float().masked_fill(cut, -torch.inf), min_p=None), noise)


@patched(Oracle, "sample", "SAM201", "SAM202")
def one_temperature_for_all_is_that_of_the_last_row(right: Oracle, batch: Batch, noise: SamplingNoise) -> Tensor:
    """A scalar in place of a tensor where all random requests have one temperature; a greedy row holds 1 in it."""
    if _one_value(batch.temperature, ~batch.is_greedy):
        last = 1.0 if batch.is_greedy[-1] else batch.temperature[-1]
        batch = batch.replace(temperature=torch.where(batch.is_greedy, batch.temperature, last))
    return right.sample(batch, noise)
