"""The checks of dependence and of the quality of noise, of both contracts: code, title and meaning of each."""

import sys
from collections.abc import Callable
from typing import Any

from fairdraw._core.checks import Stage, checks_in
from fairdraw.contracts import Capability
from fairdraw.statistical import _noise_quality as quality
from fairdraw.statistical._dependence_next import TABLES, rejection_next, sampling_next
from fairdraw.statistical._dependence_workloads import rejection_dependence, sampling_dependence
from fairdraw.statistical._explained import ExplainedCheck
from fairdraw.statistical._workloads import Workload

__all__ = ["REJECTION_CHECKS", "SAMPLING_CHECKS"]

_DRAFTS = ((Capability.DENSE_DRAFTS, Capability.ONE_HOT_DRAFTS),)
_TOKEN = Capability.TOKEN_VERIFICATION
_SEEDED = (Capability.SEEDED_NOISE,)


def _rejection(
    code: str, workload: Workload, *, depends_on: str = "DIST102", **fields: Any
) -> Callable[[Callable[[], tuple[str, ...]]], ExplainedCheck]:  # Any: other fields of a check
    """Make a check of the rejection contract; it means what it says only if the draws have their distribution."""
    about = {"contract": "rejection", "needs_one_of": _DRAFTS, "stage": Stage.INDEPENDENCE, "depends_on": (depends_on,)}
    return ExplainedCheck.of(code, workload, **about | fields)


def _both(
    rejection: tuple[str, Workload], sampling: tuple[str, Workload], **fields: Any
) -> Callable[[Callable[[], tuple[str, ...]]], tuple[ExplainedCheck, ExplainedCheck]]:  # Any: as above
    """Make a check of either contract."""
    other = ExplainedCheck.of(
        *sampling, contract="sampling", stage=Stage.INDEPENDENCE, depends_on=("DIST701",), **fields
    )
    return lambda tables: (_rejection(*rejection, **fields)(tables), other(tables))


@_both(("DIST321", rejection_dependence), ("DIST761", sampling_dependence))
def rows_of_a_call_are_independent_at_every_distance() -> tuple[str, ...]:
    """No two rows of a call, at any distance, depend on each other; nor does one row's number on another's place.

    Noise that is indexed by lane, warp, block or half of the batch, a number used for two rows, or opposite
    (antithetic) numbers. The failure names the distance, or the two rows.
    """
    return ("D1",)


@_both(("DIST322", rejection_dependence), ("DIST762", sampling_dependence))
def calls_are_independent_at_every_distance() -> tuple[str, ...]:
    """No two calls depend on each other: a few or 64 apart, with seeds that follow each other, that differ in one
    bit, or that are doubles.

    A buffer of noise that is used again after some calls, a counter that wraps, a row of one call that is another row
    of the next, seeds that are added or folded. The failure names the distance, or the two calls.
    """
    return ("D2",)


@_both(("DIST323", rejection_dependence), ("DIST763", sampling_dependence))
def no_draw_follows_from_two_others() -> tuple[str, ...]:
    """None of three rows, or calls, at equal distances follows from the other two.

    A generator whose numbers are sums or differences of two earlier ones, or a third row made of two: any two of them
    are independent.
    """
    return ("D3",)


@_both(("DIST324", rejection_dependence), ("DIST764", sampling_dependence))
def draws_are_as_uneven_as_chance() -> tuple[str, ...]:
    """The number of draws that fall into the upper half of their distribution is as uneven as chance.

    Too even: strata over the batch, draws without replacement, a low-discrepancy sequence, alternating numbers. Too
    uneven: rows that share their noise in groups.
    """
    return ("D5",)


@_rejection("DIST326", rejection_dependence)
def draws_of_one_request_are_independent() -> tuple[str, ...]:
    """Acceptance at one position, acceptance at another, and the recovered token are independent.

    One uniform for two positions (next to each other or not), or for acceptance and recovery.
    """
    return ("D4",)


@_both(("DIST341", quality.rejection_rare_tokens), ("DIST771", quality.sampling_rare_tokens))
def draws_reach_every_rare_token() -> tuple[str, ...]:
    """Thousands of tokens that share a small probability come as often as they should, wherever they are.

    Uniforms or exponentials of too few bits (16, 18; half precision), exponentials that are clamped or may be 0, also
    behind an epsilon, ties that favour low ids. Numbers of 23 bits and more pass, if none of them is 0 or 1.
    """
    return ("N1",)


@_both(("DIST343", quality.rejection_fine_odds), ("DIST772", quality.sampling_fine_odds), fast_only=True)
def tokens_come_as_often_as_they_should_to_a_thousandth() -> tuple[str, ...]:
    """Probabilities of 0.1 and 0.9, and others halfway between numbers of 8 bits, are met to a thousandth.

    Exponentials that end at 4, or begin above 0.0005; probabilities that were rounded to bfloat16 before the race.
    """
    return ("N3",)


@_both(("DIST345", rejection_next), ("DIST775", sampling_next), needs=_SEEDED)
def what_is_drawn_next_is_independent_of_the_tokens() -> tuple[str, ...]:
    """What is drawn next from torch's generator, by `torch.rand`, by a race of its exponentials or by the sampler's
    next call, is independent of the tokens, in the same row and in all others.

    A state of the generator that is put back or copied; a seed and an offset for a kernel that are read after the
    generator has advanced, or an advance by less than the kernel draws. The failure says what repeats.
    """
    return TABLES


_ALL = checks_in(ExplainedCheck, sys.modules[__name__])
REJECTION_CHECKS, SAMPLING_CHECKS = (
    tuple(check for check in _ALL if check.contract == contract) for contract in ("rejection", "sampling")
)
