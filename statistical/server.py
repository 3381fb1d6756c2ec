"""The statistical checks of the server contract: code, title and meaning of each."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any

from fairdraw._core.checks import Stage
from fairdraw.protocols import Capability
from fairdraw.statistical._server_check import (
    ServerDistributionCheck,
    choices,
    neighbouring_positions,
    neighbouring_requests,
)
from fairdraw.statistical._server_replay import ReplayedCheck
from fairdraw.strategies._server_requests import (
    COLD,
    COLD_MIN_P,
    COLD_TOP_P,
    CONSECUTIVE_SEEDS,
    FOUR_CHOICES,
    HOT_TOP_K,
    MIN_P,
    MIXED,
    PENALISED,
    PLAIN,
    REPLAYED,
    SEEDED,
    TOKENS_EACH,
    TOP_K,
    TOP_P,
    WARM,
)

if TYPE_CHECKING:
    from fairdraw.strategies._server_requests import Kind

__all__ = ["CHECKS"]


def _check(
    code: str,
    title: str,
    kinds: tuple[Kind, ...],
    part: float,
    needs: tuple[Capability, ...],
    meaning: str,
    **fields: Any,
) -> ServerDistributionCheck:  # Any: other fields of a check
    """A check of the server contract; all need lists of log-probabilities, if only of the reference."""
    is_replayed = fields.get("differential", False)
    make = ReplayedCheck if is_replayed else ServerDistributionCheck
    needed = needs if is_replayed else (Capability.TOP_LOGPROBS, *needs)
    text = inspect.cleandoc(meaning)
    return make(
        code, title, text, "server", "statistical", needed, kinds=kinds, part=part, **{"stage": Stage.TOKENS, **fields}
    )


_LISTED = (
    _check(
        "DIST911",
        "tokens follow the distribution that is returned with them",
        (PLAIN,),
        0.4,
        (),
        """At temperature 1 without filters, each token is drawn from the distribution that the server returns for it.

        If probable tokens come too often, the server is greedy on some path, or its temperature is another. If they
        come too seldom, the log-probabilities are those of another position, request or stage.
        """,
    ),
    _check(
        "DIST912",
        "tokens follow the returned distribution at their temperature",
        (COLD, WARM),
        0.25,
        (),
        """At temperatures 0.6 and 1.5, tokens follow the returned distribution; if it is raw, its power 1 / T.

        A temperature that is ignored, doubled, applied after the draw, or that of another request. It means this only
        if DIST911 passes.
        """,
        depends_on=("DIST911",),
    ),
    _check(
        "DIST913",
        "tokens follow what top-k leaves of the returned distribution",
        (TOP_K,),
        0.1,
        (Capability.TOP_K,),
        """With `top_k` of 4, tokens are the four most probable ones, in their proportions.

        A token behind the edge decides by itself; otherwise probabilities were not normalised again.
        """,
    ),
    _check(
        "DIST914",
        "tokens follow what top-p leaves of the returned distribution",
        (TOP_P,),
        0.1,
        (Capability.TOP_P,),
        """With `top_p` of 0.7, tokens are those that first reach it, in their proportions.

        The token that reaches `top_p` belongs to them; the next does not. Positions whose edge lies within rounding
        are left out.
        """,
    ),
    _check(
        "DIST915",
        "tokens follow what min-p leaves of the returned distribution",
        (MIN_P, COLD_MIN_P),
        0.15,
        (Capability.MIN_P,),
        """With `min_p` of 0.2, tokens are those of at least a fifth of the largest probability, in their proportions.

        A threshold that is absolute, or that sees another distribution.
        """,
    ),
    _check(
        "DIST916",
        "tokens follow what top-k leaves at another temperature",
        (HOT_TOP_K,),
        0.1,
        (Capability.TOP_K,),
        """At temperature 2 with `top_k` of 8, tokens are the eight most probable ones, in proportion to their powers.

        A temperature that is lost where a filter is set, or the other way round. It means this only if DIST912 and
        DIST913 pass.
        """,
        depends_on=("DIST912", "DIST913"),
    ),
    _check(
        "DIST917",
        "tokens follow what top-p leaves at another temperature",
        (COLD_TOP_P,),
        0.1,
        (Capability.TOP_P,),
        """At temperature 0.5 with `top_p` of 0.7, tokens are those that are left, in proportion.

        Whether `top_p` sees the distribution before or after the temperature is the server's own: its dialect says so,
        or the check is skipped. A server that documents one order and does the other fails here. It means this only if
        DIST912 and DIST914 pass.
        """,
        depends_on=("DIST912", "DIST914"),
    ),
    _check(
        "DIST918",
        "requests with seeds follow the returned distribution",
        (SEEDED,),
        0.15,
        (Capability.REQUEST_SEEDS,),
        """Requests with seeds of their own emit tokens as their distributions say, over many seeds.

        Seeds that are folded into few bits, or the first numbers of a generator that are poor.
        """,
        stage=Stage.INDEPENDENCE,
    ),
    _check(
        "DIST919",
        "penalised tokens follow the returned distribution",
        (PENALISED,),
        0.1,
        (Capability.PENALTIES,),
        """With frequency and presence penalties, tokens follow the returned distribution; if raw, after the penalties.

        Penalties that are ignored, or that count tokens wrongly. It means this only if DIST911 passes.
        """,
        depends_on=("DIST911",),
    ),
    _check(
        "DIST921",
        "neighbouring tokens of a text are independent",
        (PLAIN,),
        0.18,
        (),
        """Given their distributions, a token and the next were drawn with independent numbers.

        A generator that does not advance, or noise that several tokens of a speculative step share. It means this only
        if DIST911 passes.
        """,
        numbers=neighbouring_positions,
        tokens_each=TOKENS_EACH // 2,
        stage=Stage.INDEPENDENCE,
        depends_on=("DIST911",),
    ),
    _check(
        "DIST922",
        "tokens of neighbouring requests are independent",
        (PLAIN,),
        0.18,
        (),
        """Given their distributions, tokens of two requests sent side by side were drawn with independent numbers.

        One seed for all requests that bring none, or noise that rows of a batch share. It means this only if DIST911
        passes.
        """,
        numbers=neighbouring_requests,
        tokens_each=TOKENS_EACH // 2,
        stage=Stage.INDEPENDENCE,
        depends_on=("DIST911",),
    ),
    _check(
        "DIST923",
        "tokens of the choices of a request are independent",
        (FOUR_CHOICES,),
        0.12,
        (Capability.N_CHOICES,),
        """Given their distributions, tokens of two choices of a request were drawn with independent numbers.

        One generator state that is copied for every choice. It means this only if DIST911 passes.
        """,
        numbers=choices,
        tokens_each=2 * TOKENS_EACH,
        stage=Stage.INDEPENDENCE,
        depends_on=("DIST911",),
    ),
    _check(
        "DIST924",
        "tokens of requests with neighbouring seeds are independent",
        (CONSECUTIVE_SEEDS,),
        0.12,
        (Capability.REQUEST_SEEDS,),
        """Given their distributions, tokens of requests with seeds 2s and 2s + 1 were drawn with independent numbers.

        A seed that loses its lowest bit, or is added to the position. It means this only if DIST918 passes.
        """,
        numbers=neighbouring_requests,
        tokens_each=TOKENS_EACH // 2,
        stage=Stage.INDEPENDENCE,
        depends_on=("DIST918",),
    ),
    _check(
        "DIST925",
        "tokens of requests of all kinds side by side follow their distributions",
        (MIXED,),
        0.2,
        (),
        """Temperatures, filters, penalties and seeds, another in each request, all on their way together.

        Parameters of another row of the batch, or a path for batches that are alike. It means this only if DIST911 to
        DIST919 pass.
        """,
        depends_on=("DIST911", "DIST912", "DIST913", "DIST914", "DIST915", "DIST919"),
    ),
    _check(
        "DIST931",
        "tokens follow the distributions that the reference returns for their prefixes",
        (REPLAYED,),
        0.1,
        (Capability.TOKEN_IDS,),
        """Each token follows the distribution that the second server returns for the same prompt and tokens before.

        The second server is the same one without speculation (`--reference ADDRESS`): speculation is then lossy, or
        log-probabilities and tokens of the first come from different logits. Two servers with other weights or another
        precision fail here, too.
        """,
        differential=True,
        stage=Stage.PAIRS,
    ),
)

CHECKS = tuple(dataclasses.replace(check, share=1 / len(_LISTED)) for check in _LISTED)
