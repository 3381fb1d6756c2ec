"""The watermarks contract, run on the sampler that `--sampler` names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairdraw.properties.watermarks import CHECKS

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairdraw._core.checks import Check


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_watermarks(check: Check, fairdraw_run: Callable[[Check], None]) -> None:
    fairdraw_run(check)
