"""Servers over HTTP: `connect("http://127.0.0.1:8000/v1")`. Reached by name, as adapters are; no layer imports it.

A spec is the address, and behind a `#` the model: `http://127.0.0.1:8000/v1#NAME`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from fairdraw._server._http import HttpServer
    from fairdraw.contracts import ServerSettings

__all__ = ["connect", "finish"]


def connect(spec: str, settings: ServerSettings) -> HttpServer:
    """Return the server at an address; it is asked what it is.

    Raises:
        ImportError: If the HTTP client is not installed.
        NoAnswer: If there is no server, it has no such model, or it answers nothing that can be judged.
        ValueError: If the address holds a password, or the journal is something else.
    """
    from fairdraw._server._http import HttpServer

    return HttpServer.found(spec, settings)


def finish(journal: Path) -> None:
    """Write into a journal that its run has ended."""
    from fairdraw._server._journal import finish

    finish(journal)
