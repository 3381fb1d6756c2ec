"""The server contract, run on the server that `--sampler` names."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fairdraw.properties._server_check import ServerCheck
from fairdraw.properties.server import CHECKS


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_server(check: ServerCheck, fairdraw_run: Callable[[ServerCheck], None]) -> None:
    fairdraw_run(check)
