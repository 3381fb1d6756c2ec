"""The statistical checks of the rejection contract: code, title and meaning of each."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any

from fairdraw._core.checks import Stage
from fairdraw.protocols import Capability
from fairdraw.statistical._configurations import DISAGREEING, ONE_HOT, SYNTHETIC, mixed
from fairdraw.statistical._dependence_checks import REJECTION_CHECKS
from fairdraw.statistical._distribution_check import DistributionCheck
from fairdraw.statistical._pair_checks import PAIR_CHECKS
from fairdraw.statistical._rejection_traces import SLICES
from fairdraw.statistical._stratified_check import STRATIFIED_CHECKS, StratifiedCheck
from fairdraw.statistical._trimming import TRIM_CHECKS
from fairdraw.statistical._workloads import (
    Workload,
    long_drafts,
    mixed_requests,
    production,
    small_distributions,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairdraw.statistical._configurations import Configuration
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
_SYNTHETIC = mixed_requests("synthetic rates", 0.2, 0.1, lambda _: SYNTHETIC)
_PRODUCTION = production(0.08, 0.6)
_LONG = long_drafts(1.0)


def _distribution(
    code: str,
    title: str,
    workload: Workload,
    tables: tuple[str, ...],
    needs: tuple[Capability, ...],
    meaning: str,
    **fields: Any,  # Any: other fields of a check
) -> DistributionCheck:
    """A check of the rejection contract."""
    # Every check needs drafts of some kind. One that does not name the kind adapts to what the sampler supports.
    some = () if {_DENSE, _HOT}.intersection(needs) else ((_DENSE, _HOT),)
    text = inspect.cleandoc(meaning)
    return DistributionCheck(
        code, title, text, "rejection", "statistical", needs, workload, tables, needs_one_of=some, **fields
    )


_LISTED: tuple[DistributionCheck | SliceCheck, ...] = (
    # 1xx: what is emitted, and how much is accepted
    _distribution(
        "DIST101",
        "output rows follow the distribution of token verification",
        _DISAGREEING,
        ("S1",),
        (_DENSE, _TOKEN),
        """Accepted count and all emitted tokens, jointly, have the distribution that draft and target give.

        This check sees most faults: of acceptance, recovery and bonus, and rows that cannot occur. Other failures show
        where the fault is. If this check fails alone, look at the order of tokens within a row.
        """,
        stage=Stage.ROWS,
    ),
    _distribution(
        "DIST102",
        "completed rows follow the target",
        _DISAGREEING,
        ("S2",),
        (_DENSE,),
        """A row, completed with draws from the target after its last token, has the distribution of plain sampling.

        This is losslessness itself. If it fails, users read something else than the target model would have written.
        """,
        stage=Stage.COMPLETED_ROWS,
    ),
    _distribution(
        "DIST103",
        "the number of accepted drafts follows its distribution",
        _DISAGREEING,
        ("S4 accepted",),
        (_DENSE, _TOKEN),
        """The number of accepted drafts per row has the distribution of token verification.

        Too few: decoding is slower than it could be, though the text may be right (draft probabilities ignored). Too
        many: it is not lossless. One uniform for several positions shows here as well.
        """,
        stage=Stage.NUM_ACCEPTED,
    ),
    _distribution(
        "DIST104",
        "each draft token is accepted with its own probability",
        _DISAGREEING,
        ("S4 draft",),
        (_DENSE, _TOKEN),
        """A draft token that is reached is accepted with probability `min(1, target / draft)`.

        Look at the ratio: another row's probabilities, a rounded draft distribution, a power or a factor.
        """,
        stage=Stage.ACCEPTANCE,
    ),
    _distribution(
        "DIST111",
        "output rows follow their distribution on one-hot drafts",
        _ONE_HOT,
        ("S1",),
        (_HOT, _TOKEN),
        """Without draft probabilities, a draft is accepted with its target probability; if not, another token is drawn.

        Usually the recovered token: it must be drawn from the target without the rejected draft, renormalised.
        """,
        stage=Stage.ROWS,
    ),
    _distribution(
        "DIST112",
        "completed rows follow the target on one-hot drafts",
        _ONE_HOT,
        ("S2",),
        (_HOT,),
        """With n-gram drafts, too, a completed row has the distribution of plain sampling.

        If it does not, users read something else than the target model would have written.
        """,
        stage=Stage.COMPLETED_ROWS,
    ),
    _distribution(
        "DIST113",
        "drafts are accepted as often as their distribution says on one-hot drafts",
        _ONE_HOT,
        ("S4",),
        (_HOT, _TOKEN),
        """Each draft token is accepted with its target probability, and accepted counts follow from that.

        Look at the acceptance test for n-gram drafts: its draft probability is 1.
        """,
        stage=Stage.ACCEPTANCE,
    ),
    _distribution(
        "DIST122",
        "seeded, greedy, ragged and other requests of a batch follow each its own distribution",
        _MIXED,
        ("S1",),
        (_DENSE, _TOKEN),
        """Requests with and without a seed, greedy and random, ragged, of other temperatures, each follow their own.

        The table in the effect names the kind of request. Usually noise of a seeded request that is drawn in another
        way, or overwrites that of its neighbours; or parameters that are read from another row. The temperature of a
        batch tells greedy requests from random ones and is applied already.
        """,
        stage=Stage.RAGGED_ROWS,
    ),
    _distribution(
        "DIST123",
        "completed rows of seeded, greedy, ragged and other requests of a batch follow the target",
        _MIXED,
        ("S2",),
        (_DENSE,),
        """Whatever kinds of requests share a batch, a row of each, completed, has the distribution of plain sampling.

        The table in the effect names the kind of request.
        """,
        stage=Stage.RAGGED_ROWS,
    ),
    _distribution(
        "DIST124",
        "seeded, greedy, ragged and placeholder requests of a batch follow each its own on one-hot drafts",
        _MIXED_ONE_HOT,
        ("S1",),
        (_HOT, _TOKEN),
        """The same with n-gram drafts, one of them a placeholder: it is never accepted, and the target is recovered.

        The table in the effect names the kind of request.
        """,
        stage=Stage.RAGGED_ROWS,
    ),
    _distribution(
        "DIST125",
        "completed rows of all kinds of requests of a batch follow the target on one-hot drafts",
        _MIXED_ONE_HOT,
        ("S2",),
        (_HOT,),
        """Whatever kinds of requests share a batch, a row of each, completed, has the distribution of plain sampling.

        The table in the effect names the kind of request.
        """,
        stage=Stage.RAGGED_ROWS,
    ),
    _distribution(
        "DIST132",
        "output rows follow their distribution under synthetic rates",
        _SYNTHETIC,
        ("S1",),
        (_DENSE, _TOKEN, Capability.SYNTHETIC_RATES),
        """With synthetic rates, each draft is accepted with the rate of its position, and recovery is as ever.

        Look at the rate that is read: that of the position within the request.
        """,
        stage=Stage.ROWS,
    ),
    _distribution(
        "DIST133",
        "drafts are accepted as often as synthetic rates say",
        _SYNTHETIC,
        ("S4",),
        (_DENSE, _TOKEN, Capability.SYNTHETIC_RATES),
        """The number of accepted drafts, and each acceptance, has the given rate, whatever the draft token is.

        A ratio that is compared as well, or the rate of another position.
        """,
        stage=Stage.ACCEPTANCE,
    ),
    _distribution(
        "DIST142",
        "output rows follow the distribution in every direction of a small fault on one-hot drafts",
        _ONE_HOT,
        ("SD",),
        (_HOT, _TOKEN),
        """With n-gram drafts, too, rows fit in the order in which a small fault would change them.

        A temperature or acceptance that is off by a percent. The table in the effect names the direction in which it
        shows best.
        """,
        stage=Stage.ROWS,
    ),
    # 2xx: what depends on what within a row
    _distribution(
        "DIST201",
        "emitted tokens depend on their drafts as the distribution says",
        _DISAGREEING,
        ("S8",),
        (_DENSE, _TOKEN),
        """Draft token and emitted token at a position have their joint distribution.

        Usually noise that depends on the draft: numbers that are used twice. Drafts come from the suite's own stream.
        """,
        stage=Stage.PAIRS,
    ),
    _distribution(
        "DIST203",
        "recovered tokens do not depend on the rejected draft",
        _DISAGREEING,
        ("S3",),
        (_DENSE, _TOKEN),
        """Given a rejection, the recovered token is independent of the draft token that was rejected.

        Usually recovery shares its noise with the acceptance test; it needs separate noise. (Sharing it with the
        drafter, vLLM #54282, has the same effect, but drafts of a run come from the suite.)
        """,
        stage=Stage.RECOVERY,
    ),
    _distribution(
        "DIST204",
        "bonus tokens do not depend on the last draft",
        _DISAGREEING,
        ("S5",),
        (_DENSE, _TOKEN),
        """Given that all drafts are accepted, the bonus token follows the target and is independent of the last draft.

        Usually the bonus token of another row or position. Bonus tokens come from the suite and are only passed on.
        """,
        stage=Stage.BONUS,
    ),
    _distribution(
        "DIST213",
        "recovered tokens follow the residual of the rejected one-hot draft",
        _ONE_HOT,
        ("S3",),
        (_HOT, _TOKEN),
        """Given a rejected n-gram draft, the recovered token follows the target without that draft, renormalised.

        Usually recovery from the target as it is, without renormalisation, or with the noise that rejected the draft.
        """,
        stage=Stage.RECOVERY,
    ),
    # 3xx: what depends on what between rows and calls
    _distribution(
        "DIST302",
        "consecutive calls are independent",
        _DISAGREEING,
        ("S7",),
        (),
        """First tokens of the same row in two consecutive calls with different seeds are independent.

        A seed or offset that does not advance, or noise kept in a buffer. It means this only if DIST102 passes: first
        tokens that follow a wrong distribution fail this check, too, however independent the calls are.
        """,
        stage=Stage.INDEPENDENCE,
        depends_on=("DIST102",),
    ),
    # 4xx: production vocabularies, by the probability integral transform
    _distribution(
        "DIST401",
        "emitted tokens follow the target at a production vocabulary, by rank",
        _PRODUCTION,
        ("S9 emitted token by rank",),
        (),
        """Emitted tokens, ordered by their target probability, are as often probable and improbable as they should be.

        A wrong temperature, a filter applied twice, a tail that is lost: by rank these show best. The vocabulary has
        32768 tokens, or 1024 for a sampler that does not support large ones.
        """,
        stage=Stage.LARGE_ROWS,
    ),
    _distribution(
        "DIST402",
        "emitted tokens follow the target at a production vocabulary, by id",
        _PRODUCTION,
        ("S9 emitted token by id",),
        (),
        """Emitted tokens are spread over the ids, and over their lanes and blocks, as they should be.

        A tile of the vocabulary that is lost or weighed twice, most often the last, or lanes of a kernel that weigh
        differently. The vocabulary has 32768 tokens, or 1024 for a sampler that does not support large ones.
        """,
        stage=Stage.LARGE_ROWS,
    ),
    _distribution(
        "DIST403",
        "drafts are accepted with their probabilities at a production vocabulary",
        _PRODUCTION,
        ("S9 acceptance",),
        (_TOKEN,),
        """Each draft is accepted with probability `min(1, target / draft)` at a vocabulary of 32768 tokens.

        Sums over the vocabulary that lose accuracy or a tile; offsets in ragged batches. A sampler that does not
        support large vocabularies is judged at 1024 tokens, one of one-hot drafts without `draft`.
        """,
        stage=Stage.LARGE_ACCEPTANCE,
    ),
    _distribution(
        "DIST404",
        "recovered tokens follow the residual at a production vocabulary",
        _PRODUCTION,
        ("S9 recovered",),
        (_TOKEN,),
        """Recovered tokens, in every order and lane of ids, follow `max(target - draft, 0)` at a vocabulary of 32768.

        A tile that takes no part in the race, or a residual of another position. A sampler that does not support large
        vocabularies is judged at 1024 tokens, one of one-hot drafts by the target without the rejected draft.
        """,
        stage=Stage.LARGE_RECOVERY,
    ),
    _distribution(
        "DIST411",
        "drafts are accepted with their probabilities at every position of long requests",
        _LONG,
        ("S9 acceptance",),
        (_TOKEN, _RAGGED, Capability.LONG_DRAFTS),
        """Of 128 drafts, first rejections fall on every position, and each draft has its own probability.

        The table in the effect names the positions. Usually a loop or a block that ends at 32 or 64 drafts, or noise
        that repeats after them.
        """,
        stage=Stage.LARGE_ACCEPTANCE,
        fast_only=True,
    ),
    _distribution(
        "DIST412",
        "emitted tokens follow the target at every position of long requests",
        _LONG,
        ("S9 emitted",),
        (_TOKEN, _RAGGED, Capability.LONG_DRAFTS),
        """Tokens emitted at positions 0 to 127 of a request follow the target of their own position.

        The table in the effect names the positions.
        """,
        stage=Stage.LARGE_ROWS,
        fast_only=True,
    ),
    *REJECTION_CHECKS,
    # 8xx: a drafter and its verifier
    *PAIR_CHECKS,
    *TRIM_CHECKS,
    SLICES,
)

DISTRIBUTION_CHECKS = tuple(dataclasses.replace(check, share=1 / len(_LISTED)) for check in _LISTED)
"""Checks that draw; each has its share of the run's false-fail rate."""

CHECKS: tuple[DistributionCheck | SliceCheck | StratifiedCheck, ...] = (*DISTRIBUTION_CHECKS, *STRATIFIED_CHECKS)
"""Every statistical check of the contract; those with stratified noise (6xx) are deterministic and have no share."""
