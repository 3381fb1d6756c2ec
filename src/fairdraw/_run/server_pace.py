"""How long a run on a server will take: its first requests are timed, and they count as answers of the run.

A run that would last longer than its profile should is cut: distributions are judged by fewer tokens. The header says
so, and its claims (the total variation that is seen) are those of what is left.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairdraw._core.checks import AnyCheck, Profile
from fairdraw._core.failures import CapabilityUnsupported
from fairdraw._run.pace import worded_seconds
from fairdraw.contracts import Capability
from fairdraw.statistical._design import NoPower
from fairdraw.statistical._server_check import ServerDistributionCheck
from fairdraw.strategies._server_claims import FILTERED, claims_of
from fairdraw.strategies._server_requests import PLAIN, TOKENS_EACH, num_tokens, pool_of, supported

SECONDS = {"smoke": 45.0, "ci": 270.0}
"""That the requests of a profile may take. Smoke is to end within a minute, ci within five."""

_LEAST = 0.25
"""Of a profile's tokens: with fewer of them, little is seen."""


@dataclass(frozen=True)
class Planned:
    """How many requests the checks will make, if all answers have full length; those that share answers count once.

    Args:
        drawn: For distributions.
        others: For properties.
        alone: Of `others`, those that are made one after the other.
    """

    drawn: int
    others: int
    alone: int

    def seconds(self, batch: float, one: float, count: int) -> float:
        """Expected, if `count` requests beside each other take `batch` seconds, and one alone takes `one`."""
        return (self.drawn + self.others - self.alone) * batch / count + self.alone * one


def planned(server: Any, checks: Sequence[AnyCheck], profile: Profile) -> Planned:  # Any: a server
    """Of the checks that will judge it."""
    kinds: dict[str, int] = {}
    others = alone = 0
    for check in checks:
        if check.why_not(server) is not None:
            continue
        count = getattr(check, "num_requests", 0)
        if isinstance(count, int):
            others, alone = others + count, alone + getattr(check, "num_alone", 0)
            continue
        for kind in getattr(check, "kinds", ()):
            kinds[kind.name] = max(kinds.get(kind.name, 0), count(server, profile))
    return Planned(sum(kinds.values()), others, alone)


def timed(
    server: Any, checks: Sequence[AnyCheck], profile: Profile, seed: int, left: float = math.inf
) -> tuple[tuple[str, ...], float, float]:
    """What the header says about the duration, the expected seconds, and the part of the profile that fits.

    Args:
        server: Any: a server.
        left: Seconds of the run's time budget.

    Raises:
        NoAnswer: If the server does not answer.
    """
    count, pool = server.settings.concurrency, pool_of(server, seed)
    # The first requests may be slow, and any batch may be disturbed.
    batch = min([_seconds(server, pool, number * count) for number in (1, 2, 3)][1:])
    one = _seconds(server, pool, 3 * count + 1)
    whole = planned(server, checks, profile)
    budget = min(left, SECONDS.get(profile.name, math.inf))
    scale = _scale(whole, budget, batch, one, count) if server.settings.tokens is None else 1.0
    while scale < 1 and _is_blind(server, checks, profile.scaled(scale), seed):
        scale = min(1.0, round(scale + 0.05, 2))
    plan = planned(server, checks, profile.scaled(scale))
    expected = plan.seconds(batch, one, count)
    about = f"about {plan.drawn + plan.others} requests of up to {TOKENS_EACH} tokens, {count} at a time"
    words = f"expected duration: {worded_seconds(expected)}; {about}; {count} took {batch:.2g} s, one alone {one:.2g} s"
    most = num_tokens(server, profile)
    cut = f"{scale:.0%} of the profile's {most} tokens, so that it ends in time; for more: --tokens {most}"
    return (words, *([cut] if scale < 1 else []), *_stage(server, seed)), expected, scale


def _seconds(server: Any, pool: Any, count: int) -> float:  # Any: a server, its pool
    """Until there are so many plain answers."""
    started = time.perf_counter()
    pool.take(server, PLAIN, count)
    return time.perf_counter() - started


def _scale(whole: Planned, budget: float, batch: float, one: float, count: int) -> float:
    """The part of the distributions' requests that fits beside all others."""
    fixed = Planned(0, whole.others, whole.alone).seconds(batch, one, count)
    drawn = Planned(whole.drawn, 0, 0).seconds(batch, one, count)
    if fixed + drawn <= budget:
        return 1.0
    return float(f"{max(_LEAST, min(1.0, (budget - fixed) / drawn)):.2g}") if drawn else 1.0


def _is_blind(server: Any, checks: Sequence[AnyCheck], profile: Profile, seed: int) -> bool:  # Any: a server
    """Whether a check would see nothing with so few tokens: it could only be undecided."""
    judging = [one for one in checks if isinstance(one, ServerDistributionCheck) and one.why_not(server) is None]
    plans = [plan for one in judging for plan in one.planned(server, profile, seed).values()]
    return any(isinstance(plan, NoPower) for plan in plans)


def _stage(server: Any, seed: int) -> list[str]:  # Any: a server
    """What its log-probabilities stand for, in words."""
    if Capability.TOP_LOGPROBS not in server.capabilities:
        return []
    try:
        claims = claims_of(server, pool_of(server, seed))
    except CapabilityUnsupported as error:
        return [str(error)]
    filters = [name for name in FILTERED if supported([{name: 1}], server.capabilities)]
    after = {"temperature": claims.after_temperature, "bias": claims.after_edits}
    after |= {name: name in claims.after_filters for name in filters if name not in claims.unknown_filters}
    words = {True: "after", False: "before"}
    taken = ", ".join(f"{words[is_after]} {what.replace('_', '-')}" for what, is_after in after.items())
    unknown = [name.replace("_", "-") for name in filters if name in claims.unknown_filters]
    taken += f"; whether after {' or '.join(unknown)} is unknown" if unknown else ""
    return [f"log-probabilities are those {taken} ({claims.by})"]
