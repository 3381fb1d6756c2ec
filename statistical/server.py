"""The statistical checks of the server contract: code, title and meaning of each."""

from __future__ import annotations

import dataclasses
import inspect

from fairdraw._core.checks import Stage
from fairdraw.protocols import Capability
from fairdraw.statistical._server_check import ServerDistributionCheck
from fairdraw.statistical._server_replay import ReplayedCheck
from fairdraw.statistical._server_slices import ServerSlices
from fairdraw.strategies._server_requests import CONSECUTIVE_SEEDS, FOUR_CHOICES, MIXED, PLAIN

__all__ = ["CHECKS"]


_LISTED: tuple[ServerDistributionCheck | ServerSlices, ...] = (
    ServerDistributionCheck(
        "DIST911",
        "tokens follow the distribution that is returned with them",
        inspect.cleandoc(
            """At temperature 1 without filters, each token is drawn from the distribution that the server returns.

            If probable tokens come too often, the server is greedy on some path, or its temperature is another. If they
            come too seldom, the log-probabilities are those of another position, request or stage.
            """
        ),
        "server",
        "statistical",
        (Capability.TOP_LOGPROBS,),
        kinds=(PLAIN,),
        part=0.4,
        stage=Stage.TOKENS,
    ),
    ServerSlices(
        "DIST921",
        "tokens of neighbours are independent",
        inspect.cleandoc(
            """Given their distributions, a token was drawn with a number that is independent of those of the position,
            of the choice and of the request before: of plain requests, of four choices, of seeds 2s and 2s + 1.

            A generator that does not advance, noise that tokens of a speculative step or rows of a batch share, a state
            that is copied for every choice, a seed that loses its lowest bit, or one for all that bring none.
            """
        ),
        "server",
        "statistical",
        (Capability.TOP_LOGPROBS,),
        (PLAIN, FOUR_CHOICES, CONSECUTIVE_SEEDS),
        0.4,
        stage=Stage.INDEPENDENCE,
        depends_on=("DIST911",),
    ),
    ServerSlices(
        "DIST925",
        "tokens of requests of all kinds follow their distributions in every slice",
        inspect.cleandoc(
            """Temperatures, filters, penalties, biases, seeds, choices and lengths stand together in requests, every
            two of them, all on their way side by side. Every token is counted by what its request asks for, by its
            place and choice, and by what the request before asked for.

            The report names the slice. Look for what is different in just that one: parameters of another row of the
            batch, a path for requests that are alike, a parameter that another one switches off.
            """
        ),
        "server",
        "statistical",
        (Capability.TOP_LOGPROBS,),
        (MIXED,),
        1.0,
        stage=Stage.INDEPENDENCE,
        depends_on=("DIST911",),
    ),
    ReplayedCheck(
        "DIST931",
        "tokens follow the distributions that the reference returns for their prefixes",
        inspect.cleandoc(
            """Each token follows the distribution that the second server returns for the same prompt and tokens before.

            The second server is the same one without speculation (`--reference ADDRESS`): speculation is then lossy, or
            log-probabilities and tokens of the first come from different logits. Two servers with other weights or
            another precision fail here, too.
            """
        ),
        "server",
        "statistical",
        (Capability.TOKEN_IDS,),
        kinds=(PLAIN,),
        part=0.1,
        differential=True,
        stage=Stage.PAIRS,
    ),
)

CHECKS = tuple(dataclasses.replace(check, share=1 / len(_LISTED)) for check in _LISTED)
