"""The statistical checks of the server contract: code, title and meaning of each."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any

from fairdraw._core.checks import Stage
from fairdraw.protocols import Capability
from fairdraw.statistical._server_check import ServerDistributionCheck
from fairdraw.strategies._server_requests import PLAIN

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
    """A check of the server contract; all need lists of log-probabilities."""
    needed = (Capability.TOP_LOGPROBS, *needs)
    text = inspect.cleandoc(meaning)
    return ServerDistributionCheck(
        code, title, text, "server", "statistical", needed, kinds=kinds, part=part, **{"stage": Stage.TOKENS, **fields}
    )


_LISTED = (
    _check(
        "DIST901",
        "tokens follow the distribution that is returned with them",
        (PLAIN,),
        0.4,
        (),
        """At temperature 1 without filters, each token is drawn from the distribution that the server returns for it.

        Two tokens of three too probable: the server is greedy, or its temperature is not what was requested. Too even:
        it returns the log-probabilities of another position, of another request, or of another stage.
        """,
    ),
)

CHECKS = tuple(dataclasses.replace(check, share=1 / len(_LISTED)) for check in _LISTED)
