"""The statistical checks of the sampling contract: code, title and meaning of each."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any

from fairdraw._core.checks import Stage
from fairdraw.protocols import Capability
from fairdraw.statistical._dependence_checks import SAMPLING_CHECKS
from fairdraw.statistical._distribution_check import DistributionCheck
from fairdraw.statistical._sampling_traces import SLICES
from fairdraw.statistical._sampling_workloads import largest, production, small_distributions

if TYPE_CHECKING:
    from fairdraw.statistical._slice_check import SliceCheck
    from fairdraw.statistical._workloads import Workload

__all__ = ["CHECKS"]

_SMALL = small_distributions(1.0, 0.5)
_PRODUCTION = production(0.03, 0.15)
_LARGEST = largest(0.0006, 0.018)

# A check needs what it judges. It does not need what its batches can go without (filters of other rows, a large
# vocabulary): workloads adapt to that.


def _distribution(
    code: str,
    title: str,
    workload: Workload,
    tables: tuple[str, ...],
    needs: tuple[Capability, ...],
    meaning: str,
    **fields: Any,  # Any: other fields of a check
) -> DistributionCheck:
    """A check of the sampling contract."""
    text = inspect.cleandoc(meaning)
    return DistributionCheck(code, title, text, "sampling", "statistical", needs, workload, tables, **fields)


_LISTED: tuple[DistributionCheck | SliceCheck, ...] = (
    _distribution(
        "DIST701",
        "tokens follow the distribution of their request's parameters",
        _SMALL,
        ("T1",),
        (),
        """Each kind of request has its distribution: plain, at a temperature, with top-k, top-p, min-p and all of them.

        They stand side by side, and half of each kind have a seed of their own. The table names the kind. Plain: look
        at the race, or at the sums of an inverse CDF. At a temperature: another request's, of lower precision, or
        applied twice. A filter: one token too many or too few, or probabilities that were not normalised again; all of
        them, while each alone is right: the order, which is the sampler's own as its `FilterPolicy` says. All tables:
        requests with seeds, or those between them, that draw in another way.
        """,
        stage=Stage.TOKENS,
    ),
    _distribution(
        "DIST721",
        "tokens follow their distribution at a production vocabulary, by rank",
        _PRODUCTION,
        ("T4 token by rank",),
        (),
        """Tokens of 32768, ordered by probability, are as often probable and improbable as they should be.

        A wrong temperature, a filter applied twice, a tail that is lost: by rank these show best. A sampler that does
        not support large vocabularies is judged at 1024 tokens.
        """,
        stage=Stage.LARGE_ROWS,
    ),
    _distribution(
        "DIST722",
        "tokens follow their distribution at a production vocabulary, by id",
        _PRODUCTION,
        ("T4 token by id",),
        (),
        """Tokens of 32768 are spread over the ids, and over their lanes and blocks, as they should be.

        A tile of the vocabulary that is lost or weighed twice, most often the last, or lanes of a kernel that weigh
        differently. A sampler that does not support large vocabularies is judged at 1024 tokens.
        """,
        stage=Stage.LARGE_ROWS,
    ),
    _distribution(
        "DIST723",
        "tokens follow their distribution at the largest vocabularies",
        _LARGEST,
        ("T7",),
        (Capability.LARGE_VOCAB,),
        """Tokens of 151936 and of 262144, by rank and by id, with temperature and each filter.

        Ids above 2**16 and 2**17 are drawn as often as others. Suspect ids of 16 bits, a top-k or top-p that looks at a
        part of the vocabulary, sums in half precision, and tiles that are lost.
        """,
        stage=Stage.LARGE_ROWS,
    ),
    *SAMPLING_CHECKS,
    SLICES,
)

CHECKS: tuple[DistributionCheck | SliceCheck, ...] = tuple(
    dataclasses.replace(check, share=1 / len(_LISTED)) for check in _LISTED
)
