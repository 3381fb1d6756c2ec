"""The server contract, run on the server that `--sampler` names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairdraw.properties.server import CHECKS

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairdraw.properties._server_check import ServerCheck


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_server(check: ServerCheck, fairdraw_run: Callable[[ServerCheck], None]) -> None:
    fairdraw_run(check)
