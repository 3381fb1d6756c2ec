"""The statistical checks of the sampling contract: code, title and meaning of each."""

from __future__ import annotations

from functools import partial

from fairdraw._core.checks import Stage
from fairdraw.contracts import Capability
from fairdraw.statistical._dependence_checks import SAMPLING_CHECKS
from fairdraw.statistical._distribution_check import DistributionCheck, sharing
from fairdraw.statistical._sampling_traces import SLICES
from fairdraw.statistical._sampling_workloads import largest, production, small_distributions
from fairdraw.statistical._slice_check import SliceCheck

__all__ = ["CHECKS"]

# A check needs what it judges. It does not need what its batches can go without (filters of other rows, a large
# vocabulary): workloads adapt to that.


_check = partial(DistributionCheck.of, contract="sampling")


@_check("DIST701", small_distributions, stage=Stage.TOKENS)
def tokens_follow_the_distribution_of_the_parameters_of_their_request() -> tuple[str, ...]:
    """Each kind of request has its distribution: plain, at a temperature, with top-k, top-p, min-p and all of them.

    They stand side by side, and half of each kind have a seed of their own. The table names the kind. Plain: look
    at the race, or at the sums of an inverse CDF. At a temperature: another request's, of lower precision, or
    applied twice. A filter: one token too many or too few, or probabilities that were not normalised again; all of
    them, while each alone is right: the order, which is the sampler's own as its `FilterPolicy` says. All tables:
    requests with seeds, or those between them, that draw in another way.
    """
    return ("T1",)


@_check("DIST721", production, stage=Stage.LARGE_ROWS)
def tokens_follow_their_distribution_at_a_production_vocabulary_by_rank() -> tuple[str, ...]:
    """Tokens of 32768, ordered by probability, are as often probable and improbable as they should be.

    A wrong temperature, a filter applied twice, a tail that is lost: by rank these show best. A sampler that does
    not support large vocabularies is judged at 1024 tokens.
    """
    return ("T4 token by rank",)


@_check("DIST722", production, stage=Stage.LARGE_ROWS)
def tokens_follow_their_distribution_at_a_production_vocabulary_by_id() -> tuple[str, ...]:
    """Tokens of 32768 are spread over the ids, and over their lanes and blocks, as they should be.

    A tile of the vocabulary that is lost or weighed twice, most often the last, or lanes of a kernel that weigh
    differently. A sampler that does not support large vocabularies is judged at 1024 tokens.
    """
    return ("T4 token by id",)


@_check("DIST723", largest, (Capability.LARGE_VOCAB,), stage=Stage.LARGE_ROWS)
def tokens_follow_their_distribution_at_the_largest_vocabularies() -> tuple[str, ...]:
    """Tokens of 151936 and of 262144, by rank and by id, with temperature and each filter.

    Ids above 2**16 and 2**17 are drawn as often as others. Suspect ids of 16 bits, a top-k or top-p that looks at a
    part of the vocabulary, sums in half precision, and tiles that are lost.
    """
    return ("T7",)


_OWN = [value for value in list(globals().values()) if isinstance(value, DistributionCheck)]
CHECKS: tuple[DistributionCheck | SliceCheck, ...] = sharing([*_OWN, *SAMPLING_CHECKS, SLICES])
