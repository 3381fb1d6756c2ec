"""Checks by stratified noise: shares of strata instead of samples, for samplers that take the caller's numbers.

If a sampler is so slow that it gets only a few thousand draws, sampling sees a total-variation distance of a tenth.
With stratified numbers (`_stratified`) the same draws determine each acceptance probability, and each race between two
tokens, to a stratum: a fault of two percent stands out.

Error rates:
    Nothing is random, so there is neither a false-fail rate nor an e-value, and these checks take no share of the run's
    alpha. With `n` strata a correct sampler's share is within `0.5 / n` (and float32 rounding, which is added) of its
    probability, always; outside it the check fails. A probability that is off by more than `1 / n` is always seen, one
    that is off by less than half of that never.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairdraw._core.budget import BudgetEnded, before_it_began, cut_short, guarded
from fairdraw._core.checks import Conditions, DistributionCase, DrawnQuestion, Profile, Resolution, Stage
from fairdraw._core.failures import CheckFailure, Inconclusive
from fairdraw.contracts import Capability, RejectionSampler
from fairdraw.statistical._configurations import DISAGREEING, ONE_HOT, RequestDistributions
from fairdraw.statistical._distributions import ROUNDING
from fairdraw.statistical._injection import Injected, probe
from fairdraw.statistical._stratified import StratifiedDraws

_FEWEST, _MOST = 8, 1024
"""Strata: fewer show nothing, and more would show the rounding of float32."""

_DRAWS_PER_STRATUM = 60
"""A check measures about so many shares, each with one draw per stratum."""

_NUM_BEST = _FEWEST
"""Strata of a race that the opponent must never win: if it does not with its best numbers, it does with none.

As many as the smallest batch of other shares. Where requests are as few as their drafts, nobody can tell whether a
sampler's two uniforms are for the next position of both requests or for both positions of the next (`_injection`).
"""


@dataclass(frozen=True)
class Share:
    """A share of strata, and the probability that it measures.

    Args:
        what: The event, for reports.
        bound: How far a correct sampler's share may be from the probability.
    """

    what: str
    observed: float
    expected: float
    bound: float

    @property
    def excess(self) -> float:
        """By how much the share is further away than it may be; negative if it is not."""
        return abs(self.observed - self.expected) - self.bound


Shares = Callable[[StratifiedDraws], Iterator[Share]]


@dataclass(frozen=True)
class StratifiedCheck(DrawnQuestion):
    """A check of the probabilities of one request, with stratified noise: of dense drafts, and of one-hot ones."""

    shares: Shares

    def num_strata(self, sampler: RejectionSampler, profile: Profile) -> int:
        """A power of two that costs about as many draws as `profile` has; 0 if that is too few to show anything."""
        strata = 1 << max(0, (self.num_draws(sampler, profile) // _DRAWS_PER_STRATUM).bit_length() - 1)
        return min(_MOST, strata) if strata >= _FEWEST else 0

    def resolution(self, sampler: Any, profile: Profile, seed: int, num_draws: int) -> Resolution:
        """Return the width of a stratum."""
        strata = self.num_strata(sampler, profile)
        return Resolution(tv=1 / strata if strata else None)

    def judge(self, sampler: RejectionSampler, under: Conditions) -> int:
        """Measure every share once.

        Args:
            under: Time is looked at before each share; a share is one call of the sampler.

        Returns:
            The number of draws.

        Raises:
            CapabilityUnsupported: If the sampler does not support what the check needs.
            CheckFailure: If a share is further from its probability than strata allow. The exception carries the case
                that replays it as `case`.
            Inconclusive: If the profile has too few draws, or time is out and no share that is known is off.

        Error rates:
            None; see the module.
        """
        num_strata = self.num_strata(sampler, under.profile)
        if num_strata == 0:
            raise Inconclusive(f"the profile's draws fill fewer than {_FEWEST} strata per share")
        under.require_time()
        guarded_sampler, case = guarded(sampler, under.out_of_time), self.case(sampler, under.profile)
        kinds = ((DISAGREEING, Capability.DENSE_DRAFTS), (ONE_HOT, Capability.ONE_HOT_DRAFTS))
        given = [one.requests[0] for one, need in kinds if need in sampler.capabilities]
        return sum(self._measured(guarded_sampler, request, num_strata, case) for request in given)

    def _measured(
        self, sampler: RejectionSampler, request: RequestDistributions, num_strata: int, case: DistributionCase
    ) -> int:
        """Measure the shares of one request, and return the number of draws."""
        try:
            draws = self._draws(sampler, request, num_strata)
        except BudgetEnded:
            raise before_it_began() from None
        found: list[Share] = []
        cut: Inconclusive | None = None
        try:
            for share in self.shares(draws):
                found.append(share)
        except BudgetEnded:
            cut = cut_short(f"{len(found)} shares were measured", draws.num_draws)
        if found:
            _raise_unless_exact(found, draws, case)
        if cut is not None:
            raise cut
        return draws.num_draws

    def _draws(self, sampler: RejectionSampler, request: RequestDistributions, num_strata: int) -> StratifiedDraws:
        """What the sampler is called with."""
        return StratifiedDraws(sampler, request, num_strata)


@dataclass(frozen=True)
class InjectedCheck(StratifiedCheck):
    """The same, with noise that is handed to the sampler's own draws (`injection`), if a probe shows that it decides.

    A sampler that takes explicit noise is judged, too: what it does with numbers of its own may be other code. A slow
    one is then judged by its explicit noise alone.
    """

    def why_not(self, sampler: RejectionSampler, reference: object = None) -> str | None:
        if sampler.capabilities.slow and Capability.EXPLICIT_NOISE in sampler.capabilities:
            return "it is slow and takes explicit noise, by which it is judged"
        return super().why_not(sampler, reference)

    def _draws(self, sampler: RejectionSampler, request: RequestDistributions, num_strata: int) -> StratifiedDraws:
        draws = super()._draws(Injected(sampler), request, num_strata)
        for num_rows in sorted({_NUM_BEST, num_strata}):  # the batches of its shares; it may draw otherwise for others
            probe(draws, num_rows, races=self.stage is Stage.RECOVERY)
        return draws


def _raise_unless_exact(shares: list[Share], draws: StratifiedDraws, case: DistributionCase) -> None:
    """Raise `CheckFailure` if a share is off by more than its bound, or an output row is invalid."""
    worst = max(shares, key=lambda share: share.excess)
    if worst.excess <= 0 and not draws.num_invalid:
        return
    off = sum(share.excess > 0 for share in shares)
    effect = (
        f"TV {abs(worst.observed - worst.expected):.4f} given the event: {worst.what} in {worst.observed:.4f} of "
        f"the strata, its probability is {worst.expected:.4f} +- {worst.bound:.4f} "
        f"({off} of {len(shares)} shares are off)"
    )
    invalid = f"; {draws.num_invalid} output rows that no noise can give" if draws.num_invalid else ""
    error = CheckFailure(
        effect,
        evidence=f"stratified noise, {draws.num_strata} strata: no chance is involved{invalid}",
        distance=abs(worst.observed - worst.expected),
    )
    error.case, error.tried = case, draws.num_draws
    raise error


_DRAFTS = ((Capability.DENSE_DRAFTS, Capability.ONE_HOT_DRAFTS),)


def _check(code: str, stage: Stage, *more: Capability) -> Callable[[Shares], StratifiedCheck]:
    """Make a check of the rejection contract, with stratified noise, of a function that measures shares."""
    needs = (Capability.EXPLICIT_NOISE, Capability.TOKEN_VERIFICATION, *more)
    about = {"contract": "rejection", "needs": needs, "needs_one_of": _DRAFTS, "stage": stage}
    return lambda shares: StratifiedCheck.named(shares, code, suite="statistical", shares=shares, **about)


@_check("DIST601", Stage.ACCEPTANCE)
def stratified_uniforms_are_accepted_in_their_exact_share(draws: StratifiedDraws) -> Iterator[Share]:
    """With evenly spaced uniforms, each draft token is accepted in a share `min(1, target / draft)` of them.

    Look at the ratio: a factor, rounded probabilities, a temperature that is off by some percent. A one-hot draft
    has draft probability 1.
    """
    for position, proposal in enumerate(draws.request.exact_draft_probs()):
        acceptance = draws.request.acceptance(position)
        for draft in np.flatnonzero(proposal).tolist():
            observed = draws.accepted_share(position, draft)
            what = f"draft token {draft} at position {position} is accepted"
            yield Share(what, observed, float(acceptance[draft]), 0.5 / draws.num_strata + ROUNDING)


# Acceptance needs less than the race: a draft is accepted for all uniforms below some number.
@_check("DIST602", Stage.RECOVERY, Capability.REFERENCE_RACE)
def stratified_races_are_won_in_their_exact_share(draws: StratifiedDraws) -> Iterator[Share]:
    """With evenly spaced exponentials, each token wins against the favourite as often as the residual says.

    Look at the residual: not `max(target - draft, 0)`, or exponentials that are changed before the race. After a
    one-hot draft it is the target without that draft, and nothing else changed.
    """
    for position, proposal in enumerate(draws.request.exact_draft_probs()):
        acceptance = draws.request.acceptance(position)
        for draft in np.flatnonzero((proposal > 0) & (acceptance < 1 - ROUNDING)).tolist():
            weights = draws.request.residual(position, draft)
            favourite = int(weights.argmax())
            for opponent in np.flatnonzero(np.arange(weights.size) != favourite).tolist():
                num_best = None if weights[opponent] > 0 else _NUM_BEST
                observed = draws.won_share(position, draft, favourite, opponent, num_best)
                expected = -float(np.expm1(-weights[opponent] / weights[favourite]))
                bound = 0.5 / draws.num_strata + ROUNDING if expected > 0 else 0.0
                what = f"token {opponent} wins against {favourite} after draft token {draft} at position {position}"
                yield Share(what, observed, expected, bound)


def _injected(code: str, judged: StratifiedCheck) -> InjectedCheck:
    """A check of the same shares with injected noise. The probe finds out whether exponentials decide races."""
    title = f"{judged.title}, handed to torch's draws"
    meaning = f"{judged.meaning}\n\nThe sampler drew with torch, and the numbers were handed in there."
    other = {"code": code, "title": title, "meaning": meaning, "needs": (Capability.TOKEN_VERIFICATION,)}
    return InjectedCheck(**vars(judged) | other)


EXPLICIT_CHECKS = stratified_uniforms_are_accepted_in_their_exact_share, stratified_races_are_won_in_their_exact_share
STRATIFIED_CHECKS: tuple[StratifiedCheck, ...] = (
    *EXPLICIT_CHECKS,
    *(_injected(f"DIST62{number}", judged) for number, judged in enumerate(EXPLICIT_CHECKS, start=1)),
)
