"""The penalties contract, run on the sampler that `--sampler` names."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fairdraw._core.checks import Check
from fairdraw.properties.penalties import CHECKS


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_penalties(check: Check, fairdraw_run: Callable[[Check], None]) -> None:
    fairdraw_run(check)
