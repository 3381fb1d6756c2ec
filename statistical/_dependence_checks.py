"""The checks of dependence and of the quality of noise, of both contracts: code, title and meaning of each."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING

from fairdraw._core.checks import Stage
from fairdraw.protocols import Capability
from fairdraw.statistical._dependence_next import TABLES, rejection_next, sampling_next
from fairdraw.statistical._dependence_workloads import rejection_dependence, sampling_dependence
from fairdraw.statistical._explained import ExplainedCheck
from fairdraw.statistical._noise_quality import (
    rejection_fine_odds,
    rejection_rare_tokens,
    sampling_fine_odds,
    sampling_rare_tokens,
    tiny_acceptance,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairdraw.statistical._workloads import Workload

__all__ = ["REJECTION_CHECKS", "SAMPLING_CHECKS"]

_DRAFTS = ((Capability.DENSE_DRAFTS, Capability.ONE_HOT_DRAFTS),)
_TOKEN = Capability.TOKEN_VERIFICATION


def _check(
    contract: str,
    workload: Workload,
    needs: tuple[Capability, ...],
    depends_on: str,
    code: str,
    title: str,
    tables: tuple[str, ...],
    meaning: str,
    *,
    fast_only: bool = False,
) -> ExplainedCheck:
    """A check of one workload; it means what it says only if the draws have their distribution."""
    return ExplainedCheck(
        code,
        title,
        inspect.cleandoc(meaning),
        contract,
        "statistical",
        needs,
        workload,
        tables,
        needs_one_of=_DRAFTS if contract == "rejection" else (),
        stage=Stage.INDEPENDENCE,
        depends_on=(depends_on,),
        fast_only=fast_only,
    )


_ROWS = """No two rows of a call, at any distance, depend on each other; nor does one row's number on another's place.

    Noise that is indexed by lane, warp, block or half of the batch, a number used for two rows, or opposite
    (antithetic) numbers. The failure names the distance, or the two rows.
    """
_CALLS = """No two calls depend on each other: a few or 64 apart, with seeds that follow each other, that differ in one
    bit, or that are doubles.

    A buffer of noise that is used again after some calls, a counter that wraps, a row of one call that is another row
    of the next, seeds that are added or folded. The failure names the distance, or the two calls.
    """
_THREE = """Of three rows, or calls, at equal distances, none follows from the other two.

    A generator whose numbers are sums or differences of two earlier ones, or a third row made of two: any two of them
    are independent.
    """
_EVEN = """The number of draws that fall into the upper half of their distribution is as uneven as chance.

    Too even: strata over the batch, draws without replacement, a low-discrepancy sequence, alternating numbers. Too
    uneven: rows that share their noise in groups.
    """


def _dependence(make: Callable[..., ExplainedCheck], family: int) -> tuple[ExplainedCheck, ...]:
    """The four checks that both contracts have, in codes from `family` on."""
    return (
        make(f"DIST{family + 1}", "rows of a call are independent at every distance", ("D1",), _ROWS),
        make(f"DIST{family + 2}", "calls are independent at every distance", ("D2",), _CALLS),
        make(f"DIST{family + 3}", "no draw follows from two others", ("D3",), _THREE),
        make(f"DIST{family + 4}", "draws are as uneven as chance", ("D5",), _EVEN),
    )


_REJECTION = partial(_check, "rejection", rejection_dependence(0.6, 0.45), (), "DIST102")
_SAMPLING = partial(_check, "sampling", sampling_dependence(0.5, 0.45), (), "DIST701")

_ODDS_SHARE = 26
"""A draw from three or nine tokens costs next to nothing, but for an interpreter."""

_RARE = """Thousands of tokens that share a small probability come as often as they should, wherever they are.

    Uniforms or exponentials of too few bits (16, 18; half precision), exponentials that are clamped or may be 0, also
    behind an epsilon, ties that favour low ids. Numbers of 23 bits and more pass, if none of them is 0 or 1.
    """

_FINE = """Probabilities of 0.1 and 0.9, and others halfway between numbers of 8 bits, are met to a thousandth.

    Exponentials that end at 4, or begin above 0.0005; probabilities that were rounded to bfloat16 before the race.
    """

_NEXT = """What is drawn next from torch's generator, by `torch.rand`, by a race of its exponentials or by the sampler's
    next call, is independent of the tokens, in the same row and in all others.

    A state of the generator that is put back or copied; a seed and an offset for a kernel that are read after the
    generator has advanced, or an advance by less than the kernel draws. The failure says what repeats.
    """
_SEEDED = (Capability.SEEDED_NOISE,)

REJECTION_CHECKS = (
    *_dependence(_REJECTION, 320),
    _REJECTION(
        "DIST326",
        "draws of one request are independent",
        ("D4",),
        """Acceptance at one position, acceptance at another, and the recovered token are independent.

        One uniform for two positions (next to each other or not), or for acceptance and recovery.
        """,
    ),
    _check(
        "rejection",
        rejection_rare_tokens(),
        (),
        "DIST102",
        "DIST341",
        "recovered tokens reach every rare token",
        ("N1",),
        _RARE,
    ),
    _check(
        "rejection",
        rejection_fine_odds(_ODDS_SHARE),
        (),
        "DIST102",
        "DIST343",
        "recovered tokens come as often as they should, to a thousandth",
        ("N3",),
        _FINE,
        fast_only=True,
    ),
    _check(
        "rejection",
        tiny_acceptance(0.8, 0.2),
        (_TOKEN,),
        "DIST104",
        "DIST342",
        "drafts are accepted with tiny probabilities, too",
        ("N2",),
        """Drafts of acceptance probability down to 2**-14, and 1 minus these, are accepted as often as that says.

        Uniforms of 11 bits or fewer (half precision), or uniforms that never come near 0 or 1.
        """,
    ),
    _check(
        "rejection",
        rejection_next(0.05, 0.2),
        _SEEDED,
        "DIST102",
        "DIST345",
        "what is drawn next is independent of the tokens",
        TABLES,
        _NEXT,
    ),
)
SAMPLING_CHECKS = (
    *_dependence(_SAMPLING, 760),
    _check(
        "sampling", sampling_rare_tokens(), (), "DIST701", "DIST771", "draws reach every rare token", ("N1",), _RARE
    ),
    _check(
        "sampling",
        sampling_fine_odds(_ODDS_SHARE),
        (),
        "DIST701",
        "DIST772",
        "tokens come as often as they should, to a thousandth",
        ("N3",),
        _FINE,
        fast_only=True,
    ),
    _check(
        "sampling",
        sampling_next(0.05, 0.2),
        _SEEDED,
        "DIST701",
        "DIST775",
        "what is drawn next is independent of the tokens",
        TABLES,
        _NEXT,
    ),
)
