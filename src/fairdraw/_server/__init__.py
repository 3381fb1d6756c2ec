"""Servers over HTTP: `connect("http://127.0.0.1:8000/v1")`. Reached by name, as adapters are; no layer imports it.

A spec is the address, and behind a `#` the model: `http://127.0.0.1:8000/v1#NAME`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairdraw._server._http import HttpServer
    from fairdraw.protocols import ServerSettings

__all__ = ["connect"]


def connect(spec: str, settings: ServerSettings) -> HttpServer:
    """The server at an address; it is asked what it is.

    Raises:
        ImportError: If the HTTP client is not installed.
        NoAnswer: If there is no server, it has no such model, or it answers nothing that can be judged.
    """
    from fairdraw._server._http import HttpServer

    return HttpServer.found(spec, settings)
