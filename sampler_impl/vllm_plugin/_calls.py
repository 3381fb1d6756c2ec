"""Which calls ours served, and which went to vLLM's own code and why."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeVar

from ._log import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Upstream = Callable[[], Tensor]
    """vLLM's own function, which ours replaces, with the arguments of this call."""

T = TypeVar("T")

_ours: Counter[str] = Counter()
_upstream: Counter[tuple[str, str]] = Counter()


class NotOursError(Exception):
    """This call goes to vLLM; the message is the reason, without rows or ids."""


def ours(piece: str) -> None:
    _ours[piece] += 1


def upstream(piece: str, reason: str, detail: object = "") -> None:
    """Count a call that goes to vLLM; the first one for each reason is logged.

    Args:
        reason: The kind of reason, without rows or ids.
        detail: The error, if it adds information.
    """
    _upstream[piece, reason] += 1
    if _upstream[piece, reason] == 1:
        logger.info(
            "fairdraw: %s: a call is left to vLLM's own code: %s. Further ones are counted, not logged. %s",
            piece,
            reason,
            detail,
        )


def served(
    piece: str,
    serve: Callable[[], T],
    refused: str,
    *,
    refusals: tuple[type[Exception], ...] = (ValueError,),
    count: bool = True,
) -> T | None:
    """Return what `serve` does, or `None` if ours does not take the call, which is then counted as vLLM's.

    Args:
        refused: The reason if ours raises one of `refusals`; it has not changed anything then.
        count: Count the call as ours if it succeeds.
    """
    try:
        answer = serve()
    except NotOursError as reason:
        upstream(piece, str(reason))
        return None
    except refusals as error:
        upstream(piece, refused, error)
        return None
    if count:
        ours(piece)
    return answer


def calls() -> dict[str, dict[str, int]]:
    """Per piece the calls that ours served (`ours`), and those left to vLLM, by reason."""
    counts: dict[str, dict[str, int]] = {piece: {"ours": count} for piece, count in _ours.items()}
    for (piece, reason), count in _upstream.items():
        counts.setdefault(piece, {})[reason] = count
    return counts


def reset() -> None:
    _ours.clear()
    _upstream.clear()
