"""The statistical checks of the grammar contract: code, title and meaning of each."""

from functools import partial

from fairdraw._core.checks import Stage
from fairdraw.contracts import Capability
from fairdraw.statistical._distribution_check import DistributionCheck, sharing
from fairdraw.statistical._grammar_workloads import masked_rows, masked_steps

__all__ = ["CHECKS"]

_check = partial(DistributionCheck.of, contract="grammar")


@_check("DIST971", masked_rows, stage=Stage.TOKENS)
def masked_tokens_follow_the_restricted_target() -> tuple[str, ...]:
    """Tokens drawn under a bitmask follow the target, restricted to what is allowed and renormalised.

    A forbidden token that is seen once decides. Without one, logits changed with the mask: a temperature that
    is applied twice, or a kernel that rounds what it keeps.
    """
    return ("G1",)


@_check("DIST972", masked_steps, (Capability.GRAMMAR_DRAFTS,), stage=Stage.ROWS)
def text_with_drafts_follows_the_restricted_target() -> tuple[str, ...]:
    """With drafts, some of them forbidden, emitted text follows the restricted target token by token.

    Beside rejections in forbidden places: a mask of another position, another request or the last step, a bonus
    token without its mask, a grammar that is not rolled back.
    """
    return ("G2",)


CHECKS = sharing([value for value in list(globals().values()) if isinstance(value, DistributionCheck)])
