"""The statistical checks of the rejection contract: code, title and meaning of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairdraw._core.checks import Stage
from fairdraw.contracts import Capability
from fairdraw.statistical._configurations import DISAGREEING, ONE_HOT, Configuration, mixed
from fairdraw.statistical._dependence_checks import REJECTION_CHECKS
from fairdraw.statistical._distribution_check import DistributionCheck, sharing
from fairdraw.statistical._pair_checks import PAIR_CHECKS
from fairdraw.statistical._rejection_traces import SLICES
from fairdraw.statistical._stratified_check import STRATIFIED_CHECKS, StratifiedCheck
from fairdraw.statistical._trimming import TRIM_CHECKS
from fairdraw.statistical._workloads import Workload, long_drafts, mixed_requests, production, small_distributions

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairdraw.statistical._slice_check import SliceCheck
    from fairdraw.statistical._workloads import Supports

__all__ = ["CHECKS", "DISTRIBUTION_CHECKS"]

_DENSE, _HOT, _TOKEN = Capability.DENSE_DRAFTS, Capability.ONE_HOT_DRAFTS, Capability.TOKEN_VERIFICATION
_RAGGED = Capability.RAGGED

# Shares of a profile's draws depend on costs. A row of a small vocabulary takes a vectorised sampler 2 microseconds, a
# row of 32768 tokens 1000 times as long, so small ones get more draws. A slow sampler (an interpreter) takes
# milliseconds for either.
_DISAGREEING = small_distributions(DISAGREEING, 6.0, 1.0)
_ONE_HOT = small_distributions(ONE_HOT, 4.0, 0.5)


def _mixed(dense: bool) -> Callable[[Supports], Configuration]:
    """Requests of all kinds that a sampler supports."""
    return lambda supports: mixed(
        dense=dense,
        seeds=supports(Capability.REQUEST_SEEDS),
        greedy=supports(Capability.GREEDY),
        ragged=supports(_RAGGED),
        placeholders=supports(Capability.PLACEHOLDER_DRAFTS) and not dense,
    )


# Shares of slow samplers are the smallest that leave each kind of request 60 rows in `smoke`: fewer show nothing.
_MIXED = mixed_requests("mixed requests", 0.5, 0.22, _mixed(dense=True))
_MIXED_ONE_HOT = mixed_requests("mixed requests, one-hot", 0.5, 0.22, _mixed(dense=False))


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


@_check("DIST103", _DISAGREEING, (_DENSE, _TOKEN), stage=Stage.NUM_ACCEPTED)
def the_number_of_accepted_drafts_follows_its_distribution() -> tuple[str, ...]:
    """The number of accepted drafts per row has the distribution of token verification.

    Too few: decoding is slower than it could be, though the text may be right (draft probabilities ignored). Too
    many: it is not lossless. One uniform for several positions shows here as well.
    """
    return ("S4 accepted",)


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


@_check("DIST113", _ONE_HOT, (_HOT, _TOKEN), stage=Stage.ACCEPTANCE)
def drafts_are_accepted_as_often_as_their_distribution_says_on_one_hot_drafts() -> tuple[str, ...]:
    """Each draft token is accepted with its target probability, and accepted counts follow from that.

    Look at the acceptance test for n-gram drafts: its draft probability is 1.
    """
    return ("S4",)


@_check("DIST122", _MIXED, (_DENSE, _TOKEN), stage=Stage.RAGGED_ROWS)
def requests_of_all_kinds_in_a_batch_follow_each_its_own_distribution() -> tuple[str, ...]:
    """Requests with and without a seed, greedy and random, ragged, of other temperatures, each follow their own.

    The table in the effect names the kind of request. Usually noise of a seeded request that is drawn in another
    way, or overwrites that of its neighbours; or parameters that are read from another row. The temperature of a
    batch tells greedy requests from random ones and is applied already.
    """
    return ("S1",)


@_check("DIST123", _MIXED, (_DENSE,), stage=Stage.RAGGED_ROWS)
def completed_rows_of_requests_of_all_kinds_follow_the_target() -> tuple[str, ...]:
    """Whatever kinds of requests share a batch, a row of each, completed, has the distribution of plain sampling.

    The table in the effect names the kind of request.
    """
    return ("S2",)


@_check("DIST124", _MIXED_ONE_HOT, (_HOT, _TOKEN), stage=Stage.RAGGED_ROWS)
def requests_of_all_kinds_follow_each_its_own_distribution_on_one_hot_drafts() -> tuple[str, ...]:
    """With n-gram drafts, too, each follows its own. A placeholder draft is never accepted; the target is recovered.

    The table in the effect names the kind of request.
    """
    return ("S1",)


@_check("DIST125", _MIXED_ONE_HOT, (_HOT,), stage=Stage.RAGGED_ROWS)
def completed_rows_of_requests_of_all_kinds_follow_the_target_on_one_hot_drafts() -> tuple[str, ...]:
    """With n-gram drafts, too, completed rows of each kind of request have the distribution of plain sampling.

    The table in the effect names the kind of request.
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


@_check("DIST204", _DISAGREEING, (_DENSE, _TOKEN), stage=Stage.BONUS)
def bonus_tokens_do_not_depend_on_the_last_draft() -> tuple[str, ...]:
    """Given that all drafts are accepted, the bonus token follows the target and is independent of the last draft.

    Usually the bonus token of another row or position. Bonus tokens come from the suite and are only passed on.
    """
    return ("S5",)


@_check("DIST213", _ONE_HOT, (_HOT, _TOKEN), stage=Stage.RECOVERY)
def recovered_tokens_follow_the_residual_of_the_rejected_one_hot_draft() -> tuple[str, ...]:
    """Given a rejected n-gram draft, the recovered token follows the target without that draft, renormalised.

    Usually recovery from the target as it is, without renormalisation, or with the noise that rejected the draft.
    """
    return ("S3",)


@_check("DIST401", production, stage=Stage.LARGE_ROWS)
def emitted_tokens_follow_the_target_at_a_production_vocabulary_by_rank() -> tuple[str, ...]:
    """Emitted tokens, ordered by their target probability, are as often probable and improbable as they should be.

    A wrong temperature, a filter applied twice, a tail that is lost: by rank these show best. The vocabulary has
    32768 tokens, or 1024 for a sampler that does not support large ones.
    """
    return ("S9 emitted token by rank",)


@_check("DIST402", production, stage=Stage.LARGE_ROWS)
def emitted_tokens_follow_the_target_at_a_production_vocabulary_by_id() -> tuple[str, ...]:
    """Emitted tokens are spread over the ids, and over their lanes and blocks, as they should be.

    A tile of the vocabulary that is lost or weighed twice, most often the last, or lanes of a kernel that weigh
    differently. The vocabulary has 32768 tokens, or 1024 for a sampler that does not support large ones.
    """
    return ("S9 emitted token by id",)


@_check("DIST403", production, (_TOKEN,), stage=Stage.LARGE_ACCEPTANCE)
def drafts_are_accepted_with_their_probabilities_at_a_production_vocabulary() -> tuple[str, ...]:
    """Each draft is accepted with probability `min(1, target / draft)` at a vocabulary of 32768 tokens.

    Sums over the vocabulary that lose accuracy or a tile; offsets in ragged batches. A sampler that does not
    support large vocabularies is judged at 1024 tokens, one of one-hot drafts without `draft`.
    """
    return ("S9 acceptance",)


@_check("DIST404", production, (_TOKEN,), stage=Stage.LARGE_RECOVERY)
def recovered_tokens_follow_the_residual_at_a_production_vocabulary() -> tuple[str, ...]:
    """Recovered tokens, in every order and lane of ids, follow `max(target - draft, 0)` at a vocabulary of 32768.

    A tile that takes no part in the race, or a residual of another position. A sampler that does not support large
    vocabularies is judged at 1024 tokens, one of one-hot drafts by the target without the rejected draft.
    """
    return ("S9 recovered",)


@_check("DIST411", long_drafts, (_TOKEN, _RAGGED, Capability.LONG_DRAFTS), stage=Stage.LARGE_ACCEPTANCE, fast_only=True)
def drafts_are_accepted_with_their_probabilities_at_every_position_of_long_requests() -> tuple[str, ...]:
    """First rejections among 128 drafts fall on every position, and each draft has its own probability.

    The table in the effect names the positions. Usually a loop or a block that ends at 32 or 64 drafts, or noise
    that repeats after them.
    """
    return ("S9 acceptance",)


@_check("DIST412", long_drafts, (_TOKEN, _RAGGED, Capability.LONG_DRAFTS), stage=Stage.LARGE_ROWS, fast_only=True)
def emitted_tokens_follow_the_target_at_every_position_of_long_requests() -> tuple[str, ...]:
    """Tokens emitted at positions 0 to 127 of a request follow the target of their own position.

    The table in the effect names the positions.
    """
    return ("S9 emitted",)


_OWN = [value for value in list(globals().values()) if isinstance(value, DistributionCheck)]
_LISTED: list[DistributionCheck | SliceCheck] = [*_OWN, *REJECTION_CHECKS, *PAIR_CHECKS, *TRIM_CHECKS, SLICES]

DISTRIBUTION_CHECKS = sharing(_LISTED)
"""Checks that draw; each has its share of the run's false-fail rate."""

CHECKS: tuple[DistributionCheck | SliceCheck | StratifiedCheck, ...] = (*DISTRIBUTION_CHECKS, *STRATIFIED_CHECKS)
"""Every statistical check of the contract; those with stratified noise (6xx) are deterministic and have no share."""
