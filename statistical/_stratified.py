"""Use the noise, not only the samples: the distribution that a sampler implies, almost exactly, from few draws.

A sampler that takes its random numbers from the caller (`ExplicitNoise`) need not be asked with random ones. Stratified
numbers, `u_j = (j + 0.5) / n`, visit every part of the unit interval equally often, so that counting is integrating:

* *Acceptance.* With the uniforms of one position stratified, and those before it 0 (always accepted), the share of
  accepted draws is the acceptance probability, to within `0.5 / n`.
* *Recovery.* A race is decided by pairs. The favourite of the residual gets exponential 1, one opponent the stratified
  exponentials `-log(1 - u_j)`, everybody else one that cannot win. The opponent wins if its exponential is less than
  `odds = weight / weight of the favourite`: in a share `1 - exp(-odds)` of the draws, to within `0.5 / n`. The odds of
  all opponents are the recovery distribution.

The checks (`stratified_check`) judge each of these shares by itself. `implied_distribution`, which no check calls, puts
them together, step by step: the distribution of whole output rows (`distributions.chain_distribution`), and its
distance from the distribution that the sampler should have, with a bound of the error. Nothing is random, so there is
no false-fail rate: a right sampler is within the bound, always.

Limits:
    Rounding may decide a stratum's edge, which the bound includes. What is integrated is the answer to given noise: how
    the sampler makes noise of its own (shared between rows, reused in the next call) is for the other statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fairdraw._core.failures import CapabilityUnsupported
from fairdraw.protocols import PLACEHOLDER_TOKEN_ID, Capability, ExplicitNoise, SpecDecodeBatch
from fairdraw.statistical._distributions import (
    ROUNDING,
    OutputDistribution,
    StepDistribution,
    acceptance_probs,
    chain_distribution,
    exact_match_distribution,
    one_hot_probs,
    residual_probs,
    token_verification_distribution,
)
from fairdraw.statistical._validation import refuse

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fairdraw.protocols import RejectionSampler
    from fairdraw.statistical._configurations import RequestDistributions

__all__ = [
    "ImpliedDistribution",
    "Questions",
    "explained_acceptance",
    "explained_residual",
    "implied_distribution",
    "stratified_exponentials",
    "stratified_uniforms",
]

_HOPELESS = 1e30
"""An exponential with which no token of the residual wins against one whose exponential is of order 1."""


@dataclass(frozen=True)
class ImpliedDistribution:
    """The distribution of output rows that a sampler's answers to stratified noise imply.

    Args:
        expected: The distribution that it should be.
        error_bound: Largest total-variation distance between `distribution` and `expected` for a right sampler.
        num_strange: Draws that ended in what no distribution allows: other tokens than the drafts, the racers, the
            bonus token.
    """

    distribution: OutputDistribution
    expected: OutputDistribution
    error_bound: float
    num_strange: int
    num_draws: int

    @cached_property
    def distance(self) -> float:
        """Total-variation distance between `distribution` and `expected`."""
        return 0.5 * float(np.abs(self.distribution.row_probs() - self.expected.row_probs()).sum())

    @property
    def is_fair(self) -> bool:
        """Whether a right sampler could have answered like this."""
        return self.num_strange == 0 and self.distance <= self.error_bound

    def __str__(self) -> str:
        strange = f"; {self.num_strange} impossible answers" if self.num_strange else ""
        return (
            f"TV {self.distance:.5f}, a right sampler's is at most {self.error_bound:.5f} ({self.num_draws} draws)"
            + (strange)
        )


def stratified_uniforms(num_strata: int) -> NDArray[np.float64]:  # [num_strata] float64
    """The midpoints of equal parts of the unit interval.

    Example:
        >>> stratified_uniforms(4).tolist()
        [0.125, 0.375, 0.625, 0.875]

    Raises:
        ValueError: If there are fewer than 4 strata; the bounds of `implied_distribution` need that many.
    """
    if num_strata < 4:
        raise refuse("stratified_uniforms", f"num_strata={num_strata}", "it must be at least 4", "Use 256.")
    return (np.arange(num_strata) + 0.5) / num_strata


def stratified_exponentials(num_strata: int) -> NDArray[np.float64]:  # [num_strata] float64
    """Exponentials at those midpoints of their own distribution.

    Raises:
        ValueError: As `stratified_uniforms`.
    """
    return np.asarray(-np.log1p(-stratified_uniforms(num_strata)))


def implied_distribution(
    sampler: RejectionSampler, request: RequestDistributions, num_strata: int = 256
) -> ImpliedDistribution:
    """Ask `sampler` about every draft token of every position, with stratified noise.

    Args:
        num_strata: Draws per question. There is one question per draft token, and one more per opponent of its race.

    Raises:
        ValueError: If the request has no drafts, or there are fewer than 4 strata.
        CapabilityUnsupported: If the sampler does not take explicit noise, or does not recover by an exponential race.

    Randomness:
        None.

    Error rates:
        None: `is_fair` is true for every right sampler, whatever it is called with. Wrong ones must be further off than
        `error_bound` to be seen; it falls like `1 / num_strata`.
    """
    reason = sampler.capabilities.why_unsupported((Capability.EXPLICIT_NOISE, Capability.REFERENCE_RACE))
    if reason is not None:
        raise CapabilityUnsupported(reason)
    if request.num_draft == 0:
        raise refuse(
            "implied_distribution", "request.num_draft=0", "it must be at least 1", "A bonus token is given, not drawn."
        )
    questions = Questions(sampler, request, num_strata)
    target, draft = request.exact_target_probs(), request.exact_draft_probs()
    steps, error_bound, reach = [], 0.0, 1.0
    for position in range(request.num_draft):
        step, step_error = _implied_step(questions, position)
        steps.append(step)
        error_bound += reach * step_error
        reach *= float(draft[position] @ explained_acceptance(request, position))
    distributions = list(target), list(draft)
    expected = (
        exact_match_distribution(*distributions) if request.one_hot else token_verification_distribution(*distributions)
    )
    return ImpliedDistribution(
        chain_distribution(steps, target[-1]), expected, error_bound, questions.num_strange, questions.num_draws
    )


def _implied_step(questions: Questions, position: int) -> tuple[StepDistribution, float]:
    """One position as the sampler plays it, and how far from its distribution a right sampler's can be.

    The error is that of the acceptance, `0.5 / n`, and that of the recovery wherever a draft token is refused.
    """
    request, edge = questions.request, 0.5 / questions.num_strata + ROUNDING
    proposal = request.exact_draft_probs()[position]
    acceptance = np.zeros(request.vocab_size)
    recovery = np.zeros((request.vocab_size, request.vocab_size))
    step_error = edge
    for draft in np.flatnonzero(proposal):
        right_acceptance = explained_acceptance(request, position)[draft]
        acceptance[draft] = questions.accepted_share(position, int(draft))
        weights = explained_residual(request, position, int(draft))
        if right_acceptance < 1 - ROUNDING:
            recovery[draft] = questions.recovery_probs(position, int(draft), weights)
            step_error += proposal[draft] * (1 - right_acceptance) * _recovery_error(weights, edge)
    refused = proposal * (1 - acceptance)
    step = StepDistribution(proposal * acceptance, refused[:, None] * recovery, np.ones(request.vocab_size, dtype=bool))
    return step, step_error


def _recovery_error(weights: NDArray[np.float64], edge: float) -> float:
    """Largest TV distance between a race's distribution and what its odds, each from a share known to `edge`, say.

    Shares are at most `1 - exp(-1)`, because the favourite has the largest weight; there the odds `-log(1 - share)`
    change by at most `edge / (exp(-1) - edge)`. Errors of odds that sum to `R` change the distribution by their sum
    over `R`.
    """
    odds = weights / weights.max()
    return float((np.count_nonzero(odds) - 1) * edge / (np.exp(-1) - edge) / odds.sum())


def explained_acceptance(request: RequestDistributions, position: int) -> NDArray[np.float64]:  # [vocab_size] float64
    """The acceptance probability of each draft token, given what the sampler is told about drafts."""
    target, draft = request.exact_target_probs()[position], request.exact_draft_probs()[position]
    return target if request.one_hot else acceptance_probs(target, draft)


def explained_residual(request: RequestDistributions, position: int, draft_token_id: int) -> NDArray[np.float64]:
    """The recovery distribution after this draft token, `[vocab_size]` float64; zeros if it is never refused."""
    target, draft = request.exact_target_probs()[position], request.exact_draft_probs()[position]
    told = one_hot_probs([draft_token_id], request.vocab_size)[0] if request.one_hot else draft
    return residual_probs(target, told)


class Questions:
    """Calls of the sampler with stratified noise, and what they cost."""

    def __init__(self, sampler: RejectionSampler, request: RequestDistributions, num_strata: int) -> None:
        self.sampler, self.request, self.num_strata = sampler, request, num_strata
        self.num_draws = self.num_strange = 0
        # Likely under both distributions, so that uniform 0 accepts them.
        likely = np.minimum(request.exact_target_probs()[:-1], request.exact_draft_probs())
        self._drafts = likely.argmax(axis=1).astype(np.int32)

    def accepted_share(self, position: int, draft_token_id: int) -> float:
        """The share of draws in which this draft token is accepted."""
        exponentials = np.ones((self.num_strata, self.request.vocab_size))
        rows = self._ask(position, draft_token_id, stratified_uniforms(self.num_strata), exponentials)
        return float(np.mean(self._num_emitted(rows) > position + 1))

    def recovery_probs(
        self,
        position: int,
        draft_token_id: int,
        weights: NDArray[np.float64],  # [vocab_size] float64
    ) -> NDArray[np.float64]:  # [vocab_size] float64
        """The recovery distribution after this draft token, from the odds of everybody against the favourite of
        `weights`.
        """
        favourite = int(weights.argmax())
        odds = np.zeros(weights.size)
        odds[favourite] = 1.0
        for opponent in np.flatnonzero(np.arange(weights.size) != favourite):
            # A share of 1 has infinite odds; half a stratum is what is known.
            share = min(self.won_share(position, draft_token_id, favourite, int(opponent)), 1 - 0.5 / self.num_strata)
            odds[opponent] = -np.log1p(-share)
        return np.asarray(odds / odds.sum())

    def won_share(
        self, position: int, draft_token_id: int, favourite: int, opponent: int, num_best: int | None = None
    ) -> float:
        """The share of draws in which `opponent` recovers, in a race against `favourite` after this draft token.

        Args:
            num_best: Only so many strata, those of the opponent's best numbers; all if `None`.
        """
        numbers = stratified_exponentials(self.num_strata)[:num_best]
        exponentials = np.full((numbers.size, self.request.vocab_size), _HOPELESS)
        exponentials[:, favourite] = 1.0
        exponentials[:, opponent] = numbers
        # Just below 1: refused wherever the acceptance probability is not 1.
        uniforms = np.full(numbers.size, np.nextafter(1.0, 0.0))
        emitted = self._ask(position, draft_token_id, uniforms, exponentials)[:, position]
        self.num_strange += int(np.sum((emitted != favourite) & (emitted != opponent)))
        return float(np.mean(emitted == opponent))

    def _ask(
        self,
        position: int,
        draft_token_id: int,
        uniforms: NDArray[np.float64],  # [num_samples] float64
        exponentials: NDArray[np.float64],  # [num_samples, vocab_size] float64
    ) -> NDArray[np.int32]:  # [num_samples, num_draft + 1] int32
        """One draw per stratum: uniforms of the other positions are 0, which accepts."""
        import torch

        from fairdraw._core.harness import emit

        batch = self._batch(position, draft_token_id, uniforms.size)
        all_uniforms = np.zeros((uniforms.size, self.request.num_draft))
        all_uniforms[:, position] = uniforms
        noise = ExplicitNoise(
            torch.from_numpy(all_uniforms.ravel()).to(batch.device),
            torch.from_numpy(exponentials.astype(np.float32)).to(batch.device),
        )
        tokens = emit(self.sampler, batch, noise).tokens
        self.num_draws += uniforms.size
        self.num_strange += self._num_broken(tokens, batch)
        return tokens

    def _batch(self, position: int, draft_token_id: int, num_rows: int) -> SpecDecodeBatch:
        """The same request `num_rows` times; bonus tokens differ from row to row."""
        import torch

        request = self.request
        drafts = self._drafts.copy()
        drafts[position] = draft_token_id
        counts = [request.num_draft] * num_rows
        return SpecDecodeBatch(
            draft_token_ids=torch.from_numpy(np.tile(drafts, num_rows)),
            num_draft_tokens=counts,
            cu_num_draft_tokens=torch.tensor(counts, dtype=torch.int32).cumsum(0, dtype=torch.int32),
            max_spec_len=request.num_draft,
            draft_probs=None if request.one_hot else torch.from_numpy(np.tile(request.draft_probs, (num_rows, 1))),
            target_logits=torch.from_numpy(np.tile(request.target_logits[:-1], (num_rows, 1))),
            bonus_token_ids=(torch.arange(num_rows, dtype=torch.int32) % request.vocab_size)[:, None],
            temperature=torch.ones(num_rows),
            origin=f"<stratified batch, position {position}, draft token {draft_token_id}>",
        ).to(self.sampler.device)

    def _num_broken(self, tokens: NDArray[np.int32], batch: SpecDecodeBatch) -> int:
        """Rows that are not accepted drafts, one more token (the bonus token if all are accepted), placeholders."""
        num_emitted = self._num_emitted(tokens)
        drafts = batch.draft_token_ids.cpu().numpy().reshape(len(tokens), -1)
        after_last = np.arange(tokens.shape[1]) >= num_emitted[:, None]
        before_last = np.arange(drafts.shape[1]) < num_emitted[:, None] - 1
        broken = (num_emitted == 0) | (after_last & (tokens != PLACEHOLDER_TOKEN_ID)).any(axis=1)
        broken |= (before_last & (tokens[:, :-1] != drafts)).any(axis=1)
        full = num_emitted == tokens.shape[1]
        broken |= full & (tokens[:, -1] != batch.bonus_token_ids.cpu().numpy()[:, 0])
        return int(broken.sum())

    def _num_emitted(self, tokens: NDArray[np.int32]) -> NDArray[np.int64]:  # [num_strata] int64
        return np.asarray((tokens != PLACEHOLDER_TOKEN_ID).sum(axis=1), dtype=np.int64)
