"""Bitmasks of allowed tokens, applied to logits, and a grammar's bitmasks over the drafts of a step.

A bitmask has 32 token ids per word, lowest bit first, as xgrammar and llguidance write it. A whole step takes the same
words without a pass of its own (`step`: `grammar_mask`); this module is for engines that sample otherwise.

    fork_bitmasks       host: row i of a request is what its grammar allows after i drafts; the grammar stays as it was
    apply_bitmask       device: -inf where a bit is 0, in place
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from ._shared.checks import FLOATS_OF_MODELS, IDS, INT32, check_dimensions, check_tensor, check_written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ._shared.tensors import Bitmasks

__all__ = ["Matcher", "apply_bitmask", "fork_bitmasks"]

_BITS = 32


class Matcher(Protocol):
    """The state of a request's grammar, as the suite and most engines have it."""

    @property
    def is_terminated(self) -> bool:
        """Whether the text is complete."""
        ...

    def accept(self, token_id: int) -> bool:
        """Advance by a token; `False`, and nothing changes, if it is forbidden."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens that were accepted."""
        ...

    def fill(
        self,
        mask_words: Tensor,  # [num_words] int32
        /,
    ) -> None:
        """Write the tokens that are allowed now."""
        ...


def apply_bitmask(
    logits: Tensor,  # [num_rows, vocab_size] float32 | bfloat16 | float16
    bitmask: Tensor,  # [num_rows, num_words] int32; with indices, it may have more rows than the logits
    indices: Tensor | None = None,  # [length] int64
) -> Tensor:  # [num_rows, vocab_size] float32 | bfloat16 | float16
    """Forbid tokens whose bit is 0, in place; the bits of all other logits stay as they are.

    Args:
        bitmask: Row `i` is for row `i` of the logits. Words and bits beyond the vocabulary are ignored; columns that
            have no word are left alone.
        indices: The rows that are masked; `None` masks all.

    Returns:
        `logits`.

    Raises:
        TypeError: If an argument is not a tensor.
        ValueError: If a dtype or a number of dimensions is wrong, there are fewer bitmasks than rows, an index is
            outside of the rows, or the logits cannot be written. On a card an index is PyTorch's assertion, which ends
            the process.
    """
    _check(logits, bitmask, indices)
    words = bitmask[: len(logits)] if indices is None else bitmask[indices]
    shifts = torch.arange(_BITS, dtype=torch.int32, device=bitmask.device)
    forbidden = ((words[:, :, None] >> shifts) & 1).flatten(1)[:, : logits.shape[1]] == 0
    known = logits[:, : forbidden.shape[1]]
    if indices is None:
        known.masked_fill_(forbidden, -torch.inf)
    else:
        known[indices] = known[indices].masked_fill_(forbidden, -torch.inf)
    return logits


def fork_bitmasks(
    matchers: Sequence[Matcher | None],
    draft_token_ids: Sequence[Sequence[int]],
    bitmask: Tensor,  # [num_rows, num_words] int32
) -> Tensor:  # [num_rows, num_words] int32
    """Fill the bitmasks of a step on the host: as many rows per request as it has drafts, and one for its bonus token.

    Row `i` allows what the grammar allows after the first `i` drafts. Rows behind a draft that is forbidden, or that
    ends the text, are never read and allow everything, as do those of requests without a grammar.

    Returns:
        `bitmask`.

    Raises:
        ValueError: If it has another number of rows, or its rows are not words in order that can be written.
    """
    check_dimensions("fork_bitmasks", "bitmask", bitmask, 2)
    check_tensor("fork_bitmasks", "bitmask", bitmask, bitmask.shape, INT32, bitmask.device)
    check_written("fork_bitmasks", "bitmask", bitmask)
    if bitmask.shape[1] > 1 and bitmask.stride(1) != 1:
        raise ValueError(
            f"fork_bitmasks: bitmask.stride(1)={bitmask.stride(1)}, but it must be 1. Use bitmask.contiguous()."
        )
    num_rows = sum(len(drafts) + 1 for drafts in draft_token_ids)
    if len(bitmask) != num_rows or len(matchers) != len(draft_token_ids):
        given = f"{len(matchers)} matchers, {len(draft_token_ids)} requests and {len(bitmask)} rows"
        raise ValueError(f"fork_bitmasks: {given}, but they must be as many as {num_rows} rows need. Allocate those.")
    bitmask.fill_(-1)
    row = 0
    for matcher, drafts in zip(matchers, draft_token_ids, strict=True):
        if matcher is not None:
            _fork(matcher, drafts, bitmask[row : row + len(drafts) + 1])
        row += len(drafts) + 1
    return bitmask


def _fork(matcher: Matcher, drafts: Sequence[int], rows: Bitmasks) -> None:
    """Mask the rows of one request; the matcher is rolled back, whatever happens."""
    accepted = 0
    try:
        for place, words in enumerate(rows):
            if matcher.is_terminated:
                return
            matcher.fill(words)
            if place == len(drafts) or not matcher.accept(drafts[place]):
                return
            accepted += 1
    finally:
        if accepted:
            matcher.rollback(accepted)


def _check(
    logits: Tensor,  # [num_rows, vocab_size] float32 | bfloat16 | float16
    bitmask: Tensor,  # [num_rows, num_words] int32
    indices: Tensor | None,  # [length] int64
) -> None:
    function = "apply_bitmask"
    check_dimensions(function, "logits", logits, 2)
    check_dimensions(function, "bitmask", bitmask, 2)
    device = logits.device
    check_tensor(function, "logits", logits, logits.shape, FLOATS_OF_MODELS, device)
    check_written(function, "logits", logits)
    check_tensor(function, "bitmask", bitmask, bitmask.shape, INT32, device)
    if indices is not None:
        check_dimensions(function, "indices", indices, 1)
        check_tensor(function, "indices", indices, indices.shape, IDS, device)
        rows = min(len(logits), len(bitmask))
        if device.type == "cpu" and len(wrong := indices[(indices < 0) | (indices >= rows)]):
            raise ValueError(
                f"{function}: indices={wrong.min().item()}, but each must be at least 0 and below {rows}. "
                f"Name rows of both tensors."
            )
    elif len(bitmask) < len(logits):
        raise ValueError(
            f"{function}: bitmask.shape={list(bitmask.shape)}, but it must be [{len(logits)}, num_words]. "
            f"Give each row a bitmask, or name rows."
        )
