"""The properties of the server contract: hard claims, which one request can break."""

from __future__ import annotations

from fairdraw.properties import _server_answers, _server_edits, _server_pairs, _server_texts, _server_tokens
from fairdraw.properties._server_check import server_checks_in

__all__ = ["CHECKS"]

CHECKS = server_checks_in(_server_answers, _server_tokens, _server_edits, _server_pairs, _server_texts)
