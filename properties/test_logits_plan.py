"""The logits-plan contract, run on the planner that `--sampler` names."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fairdraw._core.checks import Check
from fairdraw.properties.logits_plan import CHECKS


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_logits_plan(check: Check, fairdraw_run: Callable[[Check], None]) -> None:
    fairdraw_run(check)
