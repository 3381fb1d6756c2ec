"""The statistical checks of the rejection contract: code, title and meaning of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairdraw._core.checks import Stage
from fairdraw.contracts import Capability
from fairdraw.statistical._configurations import DISAGREEING, ONE_HOT
from fairdraw.statistical._dependence_checks import REJECTION_CHECKS
from fairdraw.statistical._distribution_check import DistributionCheck, sharing
from fairdraw.statistical._pair_checks import PAIR_CHECKS
from fairdraw.statistical._rejection_traces import SLICES
from fairdraw.statistical._slice_check import SliceCheck
from fairdraw.statistical._stratified_check import STRATIFIED_CHECKS, StratifiedCheck
from fairdraw.statistical._trimming import TRIM_CHECKS
from fairdraw.statistical._workloads import Workload, small_distributions

__all__ = ["CHECKS", "DISTRIBUTION_CHECKS"]

_DENSE, _HOT, _TOKEN = Capability.DENSE_DRAFTS, Capability.ONE_HOT_DRAFTS, Capability.TOKEN_VERIFICATION

# Shares of a profile's draws depend on costs. A row of a small vocabulary takes a vectorised sampler 2 microseconds, a
# row of 32768 tokens 1000 times as long, so small ones get more draws. A slow sampler (an interpreter) takes
# milliseconds for either.
_DISAGREEING = small_distributions(DISAGREEING, 6.0, 1.0)
_ONE_HOT = small_distributions(ONE_HOT, 4.0, 0.5)


def _check(
    code: str,
    workload: Workload,
    needs: tuple[Capability, ...] = (),
    **fields: Any,  # Any: other fields of a check
) -> Callable[[Callable[[], tuple[str, ...]]], DistributionCheck]:
    """Make a check of the rejection contract."""
    some = () if {_DENSE, _HOT}.intersection(needs) else ((_DENSE, _HOT),)
    return DistributionCheck.of(code, workload, needs, contract="rejection", needs_one_of=some, **fields)


@_check("DIST101", _DISAGREEING, (_DENSE, _TOKEN), stage=Stage.ROWS)
def output_rows_follow_the_distribution_of_token_verification() -> tuple[str, ...]:
    """Accepted count and all emitted tokens, jointly, have the distribution that draft and target give.

    This check sees most faults: of acceptance, recovery and bonus, and rows that cannot occur. Other failures show
    where the fault is. If this check fails alone, look at the order of tokens within a row.
    """
    return ("S1",)


@_check("DIST102", _DISAGREEING, (_DENSE,), stage=Stage.COMPLETED_ROWS)
def completed_rows_follow_the_target() -> tuple[str, ...]:
    """A row, completed with draws from the target after its last token, has the distribution of plain sampling.

    This is losslessness itself. If it fails, users read something else than the target model would have written.
    """
    return ("S2",)


@_check("DIST104", _DISAGREEING, (_DENSE, _TOKEN), stage=Stage.ACCEPTANCE)
def each_draft_token_is_accepted_with_its_own_probability() -> tuple[str, ...]:
    """A draft token that is reached is accepted with probability `min(1, target / draft)`.

    Look at the ratio: another row's probabilities, a rounded draft distribution, a power or a factor.
    """
    return ("S4 draft",)


@_check("DIST111", _ONE_HOT, (_HOT, _TOKEN), stage=Stage.ROWS)
def output_rows_follow_their_distribution_on_one_hot_drafts() -> tuple[str, ...]:
    """Without draft probabilities, a draft is accepted with its target probability; if not, another token is drawn.

    Usually the recovered token: it must be drawn from the target without the rejected draft, renormalised.
    """
    return ("S1",)


@_check("DIST112", _ONE_HOT, (_HOT,), stage=Stage.COMPLETED_ROWS)
def completed_rows_follow_the_target_on_one_hot_drafts() -> tuple[str, ...]:
    """With n-gram drafts, too, a completed row has the distribution of plain sampling.

    If it does not, users read something else than the target model would have written.
    """
    return ("S2",)


@_check("DIST142", _ONE_HOT, (_HOT, _TOKEN), stage=Stage.ROWS)
def output_rows_follow_the_distribution_in_every_direction_of_a_small_fault_on_one_hot_drafts() -> tuple[str, ...]:
    """With n-gram drafts, rows have their distribution in the order in which a small fault would change it.

    A temperature or acceptance that is off by a percent. The table in the effect names the direction in which it
    shows best.
    """
    return ("SD",)


@_check("DIST203", _DISAGREEING, (_DENSE, _TOKEN), stage=Stage.RECOVERY)
def recovered_tokens_do_not_depend_on_the_rejected_draft() -> tuple[str, ...]:
    """Given a rejection, the recovered token is independent of the draft token that was rejected.

    Usually recovery shares its noise with the acceptance test; it needs separate noise. (Sharing it with the
    drafter, vLLM #54282, has the same effect, but drafts of a run come from the suite.)
    """
    return ("S3",)


@_check("DIST213", _ONE_HOT, (_HOT, _TOKEN), stage=Stage.RECOVERY)
def recovered_tokens_follow_the_residual_of_the_rejected_one_hot_draft() -> tuple[str, ...]:
    """Given a rejected n-gram draft, the recovered token follows the target without that draft, renormalised.

    Usually recovery from the target as it is, without renormalisation, or with the noise that rejected the draft.
    """
    return ("S3",)


_OWN = [value for value in list(globals().values()) if isinstance(value, DistributionCheck)]
_LISTED: list[DistributionCheck | SliceCheck] = [*_OWN, *REJECTION_CHECKS, *PAIR_CHECKS, *TRIM_CHECKS, SLICES]

DISTRIBUTION_CHECKS = sharing(_LISTED)
"""Checks that draw; each has its share of the run's false-fail rate."""

CHECKS: tuple[DistributionCheck | SliceCheck | StratifiedCheck, ...] = (*DISTRIBUTION_CHECKS, *STRATIFIED_CHECKS)
"""Every statistical check of the contract; those with stratified noise (6xx) are deterministic and have no share."""
