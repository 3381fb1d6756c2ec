"""Who served each call: ours, or vLLM's own code and why."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ._log import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Upstream = Callable[..., Tensor]
    """vLLM's own function, which stood where ours stands."""

_ours: Counter[str] = Counter()
_upstream: Counter[tuple[str, str]] = Counter()


def ours(piece: str) -> None:
    _ours[piece] += 1


def upstream(piece: str, reason: str, detail: object = "") -> None:
    """Count a call that is left to vLLM; the first one for a reason is told.

    Args:
        reason: Of a kind: it must not name rows or ids.
        detail: The error, if one says more.
    """
    _upstream[piece, reason] += 1
    if _upstream[piece, reason] == 1:
        logger.info(
            "fairdraw: %s: a call is left to vLLM's own code: %s. Further ones are counted, not told. %s",
            piece,
            reason,
            detail,
        )


def calls() -> dict[str, dict[str, int]]:
    """Per piece the calls that ours served (`ours`), and those left to vLLM, by reason."""
    counts: dict[str, dict[str, int]] = {piece: {"ours": count} for piece, count in _ours.items()}
    for (piece, reason), count in _upstream.items():
        counts.setdefault(piece, {})[reason] = count
    return counts


def reset() -> None:
    _ours.clear()
    _upstream.clear()
