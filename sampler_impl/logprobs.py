"""The log-probabilities that an engine returns: of the emitted tokens with their ranks, and of the most probable ones.

    logits [num_rows, vocab_size], raw or processed           which of the two, and whether they are normalised,
    emitted_token_ids [num_rows]                              is the caller's stage
            |
    Logprobs: logprob_token_ids, logprobs [num_rows, 1 + N], ranks [num_rows]

A row is whatever has logits and a token: a decoded token, rows 0..K of a request with drafts, a place of a prompt. It
depends on nothing but itself: not on the other rows, not on `N`, not on how a prompt is cut into chunks. Values are
float32, also for logits in half precision.

On a GPU kernels stream over the vocabulary (`_logprobs.kernels`) and write nothing that is as wide as it is, unless
more than `MOST_STREAMED` tokens are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ._logprobs import pytorch
from ._shared.backend import BackendName, choose_backend
from ._shared.checks import FLOATS_OF_MODELS, IDS, check_tensor

if TYPE_CHECKING:
    from ._shared.tensors import LogitRows, RowInts

__all__ = ["MOST_STREAMED", "Logprobs", "top_logprobs"]

MOST_STREAMED = 64
"""Longer lists are sorted, not streamed: a program of the scan keeps its best words in registers."""


@dataclass(frozen=True, eq=False)
class Logprobs:
    """The answer for all rows, in vLLM's layout.

    Args:
        logprob_token_ids: The emitted token, then the most probable ones, best first; ties go to the lowest id.
        logprobs: Their values.
        ranks: Of the emitted tokens: how many tokens are at least as probable. 1 for the most probable one.
    """

    logprob_token_ids: Tensor  # [num_rows, 1 + num_logprobs] int64
    logprobs: Tensor  # [num_rows, 1 + num_logprobs] float32
    ranks: Tensor  # [num_rows] int64


def top_logprobs(
    logits: Tensor,  # [num_rows, vocab_size] float32
    emitted_token_ids: Tensor,  # [num_rows] int64
    num_logprobs: int,
    *,
    normalise: bool = True,
    backend: BackendName | None = None,
) -> Logprobs:
    """Return log-probabilities of emitted tokens and of the most probable ones.

    Args:
        logits: float32, bfloat16 or float16; raw for raw log-probabilities, processed for processed ones. Not written.
        emitted_token_ids: int32 or int64; a row whose token is not in the vocabulary gets what its token 0 would get.
        num_logprobs: The most that a request asks for; 0 for the emitted tokens alone, -1 for the whole vocabulary.
        normalise: `False` returns logits instead of log-probabilities.
        backend: `None` takes Triton on a GPU, PyTorch elsewhere.

    Raises:
        TypeError: If an argument is not a tensor.
        ValueError: If a shape, dtype, device or number is wrong.

    Example:
        >>> import torch
        >>> found = top_logprobs(torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([1]), 2)
        >>> found.logprob_token_ids.tolist(), found.ranks.tolist()
        ([[1, 2, 1]], [2])
    """
    _check(logits, emitted_token_ids, num_logprobs)
    number = logits.shape[1] if num_logprobs == -1 else num_logprobs
    if choose_backend("top_logprobs", backend, logits.device) == "torch":
        return Logprobs(*pytorch.top_logprobs(logits, emitted_token_ids, number, normalise=normalise))
    from ._logprobs import kernels

    streamed = number if number <= MOST_STREAMED else 0
    ids, values, ranks, statistics = kernels.top_logprobs(logits, emitted_token_ids, streamed, normalise=normalise)
    if streamed == number:
        return Logprobs(ids, values, ranks)
    return Logprobs(*_sorted(logits, ids, values, statistics, number, normalise), ranks)


def _sorted(
    logits: Tensor,  # [num_rows, vocab_size] float32
    found_ids: Tensor,  # [num_rows, 1 + num_logprobs] int64
    logprobs: Tensor,  # [num_rows, 1 + num_logprobs] float32
    statistics: Tensor,  # [num_rows, 2] float32
    number: int,
    normalise: bool,
) -> tuple[Tensor, Tensor]:  # [num_rows, 1 + num_logprobs] int64
    """Return a list that is too long to be streamed, with the values that a streamed one has."""
    best = pytorch.best_ids(logits, number)
    found = logits.gather(1, best).float()
    listed = (found - statistics[:, :1]) - statistics[:, 1:] if normalise else found
    return torch.cat([found_ids, best], dim=1), torch.cat([logprobs, listed], dim=1)


def _check(logits: LogitRows, emitted_token_ids: RowInts, num_logprobs: int) -> None:
    function, device = "top_logprobs", getattr(logits, "device", None)
    if not isinstance(logits, Tensor) or device is None:
        raise TypeError(f"{function}: logits={logits!r}, but it must be a tensor of shape [num_rows, vocab_size].")
    if logits.ndim != 2 or logits.shape[1] < 1:
        shape = list(logits.shape)
        raise ValueError(
            f"{function}: logits.shape={shape}, but it must be [num_rows, vocab_size]. Give a row per token."
        )
    check_tensor(function, "logits", logits, logits.shape, FLOATS_OF_MODELS, device)
    check_tensor(function, "emitted_token_ids", emitted_token_ids, logits.shape[:1], IDS, device)
    if not -1 <= num_logprobs <= logits.shape[1]:
        rule = f"it must be -1 or in [0, {logits.shape[1]}]. Use -1 for the whole vocabulary"
        raise ValueError(f"{function}: num_logprobs={num_logprobs}, but {rule}.")
