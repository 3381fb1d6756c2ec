"""Looking at a check again and again while a sampler draws: stop at the verdict, or when time is out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from fairdraw._core.budget import BudgetEnded
from fairdraw.statistical._design import NoPower, SamplePlan

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fairdraw.protocols import SpecDecodeBatch
    from fairdraw.statistical._decision import Decision, SequentialCheck

__all__ = ["NUM_LOOKS", "Draw", "num_draws", "watch"]

Draw = Callable[["SpecDecodeBatch", int], "NDArray[np.int32]"]
"""The sampler under test: from a batch and a noise seed to its output tokens, `[batch_size, max_spec_len + 1]`."""

NUM_LOOKS = 32
"""What a plan aims at; whole calls make it up to 63, and few draws make it fewer. A clear fault is found at the first
look; more looks would save little and cost time."""


def num_draws(plans: Mapping[str, SamplePlan | NoPower]) -> int:
    """Draws after which every plan is fulfilled; 0 if none has power."""
    return max((plan.num_draws for plan in plans.values() if isinstance(plan, SamplePlan)), default=0)


def watch(
    check: SequentialCheck,
    count: Callable[[int], Mapping[str, NDArray[np.int64]]],
    *,
    num_looks: int,
    out_of_time: Callable[[], bool],
) -> Decision:
    """Count, look, and decide.

    Args:
        count: From the number of the look to the count tables of fresh samples.
        out_of_time: Asked before each look; ends the check, which is inconclusive then. So does `BudgetEnded`, raised
            by a guarded sampler in the middle of a look: the counts of that look are lost, whatever they were. Neither
            depends on what was counted, so that error rates stay.
    """
    for look in range(num_looks):
        if out_of_time():
            break
        try:
            counts = count(look)
        except BudgetEnded:
            break
        if check.look({name: counts[name] for name in check.planned}) is not None:
            break
    return check.decide()
