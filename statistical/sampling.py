"""The statistical checks of the sampling contract: code, title and meaning of each."""

from functools import partial

from fairdraw._core.checks import Stage
from fairdraw.statistical._dependence_checks import SAMPLING_CHECKS
from fairdraw.statistical._distribution_check import DistributionCheck, sharing
from fairdraw.statistical._sampling_traces import SLICES
from fairdraw.statistical._sampling_workloads import small_distributions
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


_OWN = [value for value in list(globals().values()) if isinstance(value, DistributionCheck)]
CHECKS: tuple[DistributionCheck | SliceCheck, ...] = sharing([*_OWN, *SAMPLING_CHECKS, SLICES])
