"""How long a run on a server will take: its first requests are timed, and they count as answers of the run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from fairdraw._core.failures import CapabilityUnsupported
from fairdraw._run.speed import worded_seconds
from fairdraw.protocols import Capability
from fairdraw.strategies._server_claims import claims_of
from fairdraw.strategies._server_requests import PLAIN, TOKENS_EACH, pool_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairdraw._core.checks import AnyCheck, Profile


def planned_requests(server: Any, checks: Sequence[AnyCheck], profile: Profile) -> int:  # Any: a server
    """How many requests the checks will make, if all answers have full length; those that share answers count once."""
    kinds: dict[str, int] = {}
    others = 0
    for check in checks:
        if check.why_not(server) is not None:
            continue
        count = getattr(check, "num_requests", 0)
        if isinstance(count, int):
            others += count
            continue
        for kind in getattr(check, "kinds", ()):
            kinds[kind.name] = max(kinds.get(kind.name, 0), count(server, profile))
    return others + sum(kinds.values())


def timed(server: Any, checks: Sequence[AnyCheck], profile: Profile, seed: int) -> tuple[tuple[str, ...], float]:
    """What the header says about the duration, and the expected seconds. Any: a server.

    Raises:
        NoAnswer: If the server does not answer.
    """
    count = server.settings.concurrency
    started = time.perf_counter()
    pool_of(server, seed).take(server, PLAIN, count)
    seconds = time.perf_counter() - started
    planned = planned_requests(server, checks, profile)
    expected = seconds * planned / count
    stage = _stage(server, seed)
    about = f"about {planned} requests of up to {TOKENS_EACH} tokens, {count} at a time; the first {count} took"
    return (f"expected duration: {worded_seconds(expected)}; {about} {seconds:.2g} s", *stage), expected


def _stage(server: Any, seed: int) -> list[str]:  # Any: a server
    """What its log-probabilities stand for, in words."""
    if Capability.TOP_LOGPROBS not in server.capabilities:
        return []
    try:
        claims = claims_of(server, pool_of(server, seed))
    except CapabilityUnsupported as error:
        return [str(error)]
    after = {"temperature": claims.after_temperature, "filters": claims.after_filters, "bias": claims.after_edits}
    taken = ", ".join(f"{'after' if is_after else 'before'} {what}" for what, is_after in after.items())
    return [f"log-probabilities are those {taken} ({claims.by})"]
