"""vLLM's `rejection_sample`, served by ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import rejection
from . import _calls

if TYPE_CHECKING:
    from torch import Tensor

    from ._calls import Upstream

_PIECE = "rejection"
_ARGUMENTS = (
    "draft_token_ids",
    "num_draft_tokens",
    "max_spec_len",
    "cu_num_draft_tokens",
    "draft_probs",
    "target_logits",
    "bonus_token_ids",
    "sampling_metadata",
)
_NEUTRAL = {
    "synthetic_mode": False,
    "synthetic_conditional_rates": None,
    "use_fp64_gumbel": False,
    "fly_window_size": None,
    "fly_entropy_threshold": None,
}
"""Options, and the values with which they have no effect."""
_READ_WITH_A_WINDOW = "fly_entropy_top_k"
"""Never `None`, but vLLM reads it only if `fly_window_size` is given, which ours does not take."""


def rejection_sample(
    upstream: Upstream,
    *args: Any,  # Any: vLLM's arguments, which ours checks
    **kwargs: Any,  # Any: as args
) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    """Ours if it takes all arguments; it raises before it draws, so that vLLM then draws the same numbers."""
    given = {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs}
    foreign = [name for name, value in given.items() if name not in _ARGUMENTS and not _is_neutral(name, value)]
    if foreign or len(args) > len(_ARGUMENTS):
        _calls.upstream(_PIECE, f"options {', '.join(foreign) or 'by position'}")
        return upstream()

    def serve() -> Tensor:  # [batch_size, max_spec_len + 1] int32
        return rejection.rejection_sample(*(given[name] for name in _ARGUMENTS))

    refusals = (KeyError, TypeError, ValueError)
    tokens = _calls.served(_PIECE, serve, "arguments that ours does not take", refusals=refusals)
    return upstream() if tokens is None else tokens


def _is_neutral(name: str, value: object) -> bool:
    return name == _READ_WITH_A_WINDOW or (name in _NEUTRAL and value is _NEUTRAL[name])
