"""The properties of the server contract: hard claims, which one request can break."""

from __future__ import annotations

from fairdraw.properties._server_check import ServerCheck

__all__ = ["CHECKS"]

CHECKS: tuple[ServerCheck, ...] = ()
