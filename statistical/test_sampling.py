"""The laws of the sampling contract, asked of the sampler that `--sampler` names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairdraw.statistical.sampling import CHECKS

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairdraw.statistical.law_check import LawCheck


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_sampling(check: LawCheck, fairdraw_run: Callable[[LawCheck], None]) -> None:
    fairdraw_run(check)
