"""The properties can fail: each mutant is run on the check that names it best, with the numbers of this run.

Mutants whose distribution is wrong are run beside the statistical checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairdraw._mutants._mutant import Mutant


def test_mutant_is_caught(fairdraw_property_mutant: Mutant, fairdraw_control: Callable[[Mutant], None]) -> None:
    fairdraw_control(fairdraw_property_mutant)
