"""The statistical checks of the grammar contract: code, title and meaning of each."""

from __future__ import annotations

import inspect

from fairdraw._core.checks import Stage
from fairdraw.protocols import Capability
from fairdraw.statistical._distribution_check import DistributionCheck
from fairdraw.statistical._grammar_workloads import masked_rows, masked_steps

__all__ = ["CHECKS"]

CHECKS = (
    DistributionCheck(
        "DIST971",
        "masked tokens follow the restricted target",
        inspect.cleandoc(
            """Tokens drawn under a bitmask follow the target, restricted to what is allowed and renormalised.

            A forbidden token that is seen once decides. Without one, logits changed with the mask: a temperature that
            is applied twice, or a kernel that rounds what it keeps.
            """
        ),
        "grammar",
        "statistical",
        (),
        masked_rows(0.2, 1.0),
        ("G1",),
        share=0.5,
        stage=Stage.TOKENS,
    ),
    DistributionCheck(
        "DIST972",
        "text with drafts follows the restricted target",
        inspect.cleandoc(
            """With drafts, some of them forbidden, emitted text follows the restricted target token by token.

            Beside rejections in forbidden places: a mask of another position, another request or the last step, a bonus
            token without its mask, a grammar that is not rolled back.
            """
        ),
        "grammar",
        "statistical",
        (Capability.GRAMMAR_DRAFTS,),
        masked_steps(0.05, 0.3),
        ("G2",),
        share=0.5,
        stage=Stage.ROWS,
    ),
)
