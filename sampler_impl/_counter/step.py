"""Argument checks of `rejection_counter`: callers' arguments become a `CounterStep` that both backends rely on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._shared.checks import (
    FLOAT32,
    FLOATS_OF_MODELS,
    IDS,
    INT64,
    MAX_SPEC_LEN,
    check_all,
    check_dimensions,
    check_tensor,
)
from .._shared.kinds import Kinds
from .._shared.sizes import cdiv, next_power_of_2

MAX_VOCAB_SIZE = 1 << 19
"""512 tiles of 1024 entries: as many partial sums add up in an int64 without overflow."""

TILE_SIZE = 1024
"""Entries of a partial sum: what one warp adds up without a barrier, and what is read again once the tile is sampled.
The plain sampler has wider tiles (`_sampling.kernels.TILE`): its programs add up one tile with all of their warps."""

WARPS = 4
"""Warps of a program that reads rows, each of which has a tile of every block to itself."""
THREADS = 32 * WARPS

ALIGNED_WORDS = 16


def workspace_words(batch_size: int, max_spec_len: int, vocab_size: int) -> int:
    """Return the size of what the kernels pass on to each other, in int64: at most, and whatever the tiles per program
    are."""
    sums_and_bounds = max_spec_len * (2 * row_words(max_spec_len, vocab_size) + 2)
    return batch_size * (sums_and_bounds + 3 + _num_tiles(vocab_size)) + 4 * ALIGNED_WORDS


def row_words(max_spec_len: int, vocab_size: int) -> int:
    """Return the number of a row's tiles, padded to a power of two: a warp has 32 or more words, and a request no fewer
    than threads."""
    return max(next_power_of_2(_num_tiles(vocab_size)), THREADS // next_power_of_2(max_spec_len + 1), 32)


def _num_tiles(vocab_size: int) -> int:
    return cdiv(vocab_size, TILE_SIZE)


class CounterStep(NamedTuple):
    """Arguments of one call. Once checked, rows of logits are contiguous, and all other tensors altogether."""

    draft_token_ids: Tensor  # [num_tokens] int32
    cu_num_draft_tokens: Tensor  # [batch_size] int32
    max_spec_len: int
    logits: Tensor  # [num_rows, vocab_size] float32
    temperature: Tensor  # [batch_size] float32
    seeds: Tensor  # [batch_size] int64
    positions: Tensor  # [batch_size] int64
    draft_probs: Tensor | None  # [num_tokens, vocab_size] float32
    draft_logits: Tensor | None  # [num_tokens, vocab_size] float32
    draft_logsumexp: Tensor | None  # [num_tokens] float32
    bonus_token_ids: Tensor | None  # [batch_size, 1] int32; None: each request has a bonus row
    workspace: Tensor | None  # [num_words] int64, zeros. None: kernels wait for each other

    @property
    def batch_size(self) -> int:
        return self.cu_num_draft_tokens.shape[0]

    @property
    def num_tokens(self) -> int:
        return self.draft_token_ids.shape[0]

    @property
    def num_rows(self) -> int:
        return self.logits.shape[0]

    @property
    def vocab_size(self) -> int:
        return self.logits.shape[1]

    @property
    def device(self) -> torch.device:
        return self.logits.device


Plan = Callable[[CounterStep], Tensor]
KNOWN: Kinds[Plan] = Kinds()
"""Plans of steps that passed their checks as they are and were launched."""


def checked_step(function: str, step: CounterStep) -> CounterStep:
    """Check everything that the host knows, and make rows contiguous.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If a shape, dtype, device or Python number is wrong.
    """
    for name, ndim in (("draft_token_ids", 1), ("cu_num_draft_tokens", 1), ("logits", 2)):
        check_dimensions(function, name, getattr(step, name), ndim)
    if not 0 <= step.max_spec_len <= MAX_SPEC_LEN:
        raise ValueError(
            f"{function}: max_spec_len={step.max_spec_len}, but it must be in [0, {MAX_SPEC_LEN}]. "
            f"Use the most draft tokens of a request."
        )
    num_tokens, batch_size, vocab_size = step.num_tokens, step.batch_size, step.vocab_size
    num_rows = num_tokens + (batch_size if step.bonus_token_ids is None else 0)
    check_tensor(function, "logits", step.logits, (num_rows, vocab_size), FLOATS_OF_MODELS, step.device)
    if not 1 <= vocab_size <= MAX_VOCAB_SIZE:
        raise ValueError(
            f"{function}: vocab_size={vocab_size}, but it must be in [1, {MAX_VOCAB_SIZE}]. Check logits.shape[1]."
        )
    per_entry, per_request, per_token = (num_tokens, vocab_size), (batch_size,), (num_tokens,)
    for name, shape, dtypes, is_optional in (
        ("draft_token_ids", per_token, IDS, False),
        ("cu_num_draft_tokens", per_request, IDS, False),
        ("temperature", per_request, FLOAT32, False),
        ("seeds", per_request, INT64, False),
        ("positions", per_request, INT64, False),
        ("draft_probs", per_entry, FLOAT32, True),
        ("draft_logits", per_entry, FLOATS_OF_MODELS, True),
        ("draft_logsumexp", per_token, FLOAT32, True),
        ("bonus_token_ids", (batch_size, 1), IDS, True),
    ):
        value = getattr(step, name)
        if value is not None or not is_optional:
            check_tensor(function, name, value, shape, dtypes, step.device)
    _check_draft(function, step)
    _check_workspace(function, step)
    return CounterStep(*map(_contiguous, step._fields, step))


def check_values(function: str, step: CounterStep) -> None:
    """Check what only the device knows. Waits for the device.

    Raises:
        ValueError: At the first value that is out of its range.
    """
    sums, vocab_size = step.cu_num_draft_tokens, step.vocab_size
    counts = sums.diff(prepend=sums.new_zeros(1))
    good = (counts >= 0) & (counts <= step.max_spec_len) & (sums >= 0) & (sums <= step.num_tokens)
    if step.batch_size > 0:
        good[-1] &= sums[-1] == step.num_tokens
    rule = (
        f"of an inclusive cumulative sum in steps of at most max_spec_len={step.max_spec_len} that ends in "
        f"num_tokens={step.num_tokens}. Use num_draft_tokens.cumsum(0)."
    )
    check_all(function, "cu_num_draft_tokens", sums, good, rule)
    temperature = step.temperature
    check_all(function, "temperature", temperature, temperature >= 0, "at least 0. Use 0 for a greedy request.")
    ids, bonus = step.draft_token_ids, step.bonus_token_ids
    rule = f"in [0, {vocab_size}), or -1. Use -1 for a placeholder draft token."
    check_all(function, "draft_token_ids", ids, (ids >= -1) & (ids < vocab_size), rule)
    if bonus is not None:
        rule = f"in [0, {vocab_size}). Sample bonus tokens from the target model."
        check_all(function, "bonus_token_ids", bonus, (bonus >= 0) & (bonus < vocab_size), rule)
    for name, rows, least in (("draft_probs", step.draft_probs, 0.0), ("draft_logits", step.draft_logits, -torch.inf)):
        if rows is not None:
            rule = f"at least {least} and below infinity. Correct the drafter."
            check_all(function, name, rows, (rows >= least) & (rows < torch.inf), rule)
    if step.draft_logsumexp is not None:
        rule = "finite. Use (draft_logits.float() / temperature).logsumexp(-1)."
        check_all(function, "draft_logsumexp", step.draft_logsumexp, step.draft_logsumexp.isfinite(), rule)


def _check_draft(function: str, step: CounterStep) -> None:
    if step.draft_probs is not None and step.draft_logits is not None:
        raise ValueError(
            f"{function}: draft_probs and draft_logits are both given, but the draft distribution must be one of them. "
            f"Drop one."
        )
    if step.draft_logsumexp is not None and step.draft_logits is None:
        raise ValueError(
            f"{function}: draft_logsumexp is given, but it must come with draft_logits. Pass them, or drop it."
        )


def _check_workspace(function: str, step: CounterStep) -> None:
    space = step.workspace
    if space is None:
        return
    needed = workspace_words(step.batch_size, step.max_spec_len, step.vocab_size)
    check_tensor(function, "workspace", space, (max(space.shape[0] if space.ndim else 0, needed),), INT64, step.device)
    if not space.is_contiguous():
        raise ValueError(
            f"{function}: workspace.stride()={list(space.stride())}, but it must be contiguous. Use make_workspace."
        )


def _contiguous(name: str, value: Any) -> Any:  # Any: the type of the field
    """Make a value contiguous; of rows of logits only each row, as a stride between rows costs nothing."""
    has_rows = name in ("logits", "draft_logits", "draft_probs")
    if not isinstance(value, Tensor) or (has_rows and value.stride(-1) == 1):
        return value
    return value.contiguous()
