"""Wrong servers: one step of the toy server replaced, each caught by a check of the server contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairdraw._mutants._toy_server import ToyServer

if TYPE_CHECKING:
    from fairdraw._mutants._mutant import Mutant


def right() -> ToyServer:
    """The toy server with nothing wrong."""
    return ToyServer()


MUTANTS: tuple[Mutant, ...] = ()
