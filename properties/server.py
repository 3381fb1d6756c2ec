"""The properties of the server contract: hard claims, which one request can break."""

from fairdraw._core.checks import checks_in
from fairdraw.properties import _server_answers, _server_edits, _server_pairs, _server_texts, _server_tokens
from fairdraw.properties._server_check import ServerCheck

__all__ = ["CHECKS"]

CHECKS = checks_in(ServerCheck, _server_answers, _server_tokens, _server_edits, _server_pairs, _server_texts)
