"""The verification step with noise from counters: the fast path of `rejection`, from the model's own logits.

`rejection` reproduces vLLM's random numbers and so needs an exponential per vocabulary entry. Here a draw is a function
of `(seed, position)` alone: Philox turns the two into two uniforms, one that decides about the draft token of that
position and one that draws the token which replaces it. Therefore

* a request's tokens do not depend on other requests, its place in the batch, or padding (batch invariance);
* a step can be repeated: the same seeds and positions give the same tokens, and no generator has a state;
* nothing random is stored, and probabilities are not written: a row of target logits is read once, in its own type and
  before temperature, a rejected row a second time with the draft's, a bonus row only if it is drawn from, and rows
  behind a rejected one mostly not at all.

Draws are by inverse CDF, which needs one uniform per token where an exponential race needs one per vocabulary entry. In
the same kernels a race takes 68 us instead of 34 (one H200, 64 requests of 3 drafts, 128256 entries; the record is
`perf_regression/records/rejection_h200.json`, and docs/performance.md has all figures).

Exactly, at one position of a random request, with `target = softmax(logits / temperature)`:

* A draft token is accepted if its id is in the vocabulary, `draft > 0`, `target > 0` and `target / draft >= uniform`:
  a float32 quotient against a float64 uniform. A one-hot draft has `draft = 1`.
* The recovered token is drawn from `max(target - draft, 0)`; if that is empty (sums to at most 2**-60), from `target`.
  With a one-hot draft, from `target` without the drafted id.
* The bonus token is given, or drawn from the request's bonus row.
* A row with NaN or +inf, or with nothing but -inf, is invalid: no draft token is accepted there, and the token is 0, as
  in `rejection`. A draft distribution that is NaN accepts nothing, and its entries are not recovered.
* Greedy requests (temperature 0) accept the argmax, lowest id on ties, NaN highest, as `torch.argmax`.

Example: three draft tokens of one request, drawn by an engine whose next position is 117.

    rows of logits   0  1  2  [3]        [3]: the bonus row, if bonus tokens are to be drawn here
    positions      117 118 119 120       uniforms = philox(seed, position)

Limits:
    Target probabilities are sums in float32 within tiles of 1024 entries and exact integers across them: relative error
    some 2**-21. Logits times `log2(e) / temperature` must stay below 2**30 in magnitude, else the row is invalid.
    `vocab_size` is at most 2**19.

Traffic:
    Rows of `logits` behind draft tokens once; with a workspace those up to the first rejected one and, of a batch that
    fills the card, some more. Of one rejected row per request the target logits and the draft's row again, or of a
    request that accepts everything its bonus row. For 2-byte logits and float32 draft probabilities
    `2 * num_tokens * vocab_size + 6 * batch_size * vocab_size` bytes at most, and with one-hot drafts and given bonus
    tokens a tile instead of the second term. Two launches for these, else three.

Reference:
    Leviathan, Kalman, Matias (2022), arXiv:2211.17192, algorithm 1. Salmon, Moraes, Dror, Shaw (2011),
    doi:10.1145/2063384.2063405 (Philox).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ._counter import pytorch
from ._counter.step import KNOWN, MAX_VOCAB_SIZE, CounterStep, check_values, checked_step, workspace_words
from ._shared.backend import OF_KERNELS, BackendName, choose_backend

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["MAX_VOCAB_SIZE", "make_workspace", "rejection_sample"]


def make_workspace(
    batch_size: int, max_spec_len: int, vocab_size: int, device: torch.device | str
) -> Tensor:  # [num_words] int64
    """Return slots through which the kernels of a step pass on what they found; every step leaves zeros behind.

    For one stream of steps of at most so many requests, draft tokens and entries: 1.1 MB for 256 requests of 3 drafts
    and 128256 entries. A CUDA graph keeps the workspace that it was captured with. After a step whose arguments
    contradicted each other, such as one whose `cu_num_draft_tokens` is no cumulative sum, call `zero_()`.
    """
    return torch.zeros(workspace_words(batch_size, max_spec_len, vocab_size), dtype=torch.int64, device=device)


def rejection_sample(
    draft_token_ids: Tensor,  # [num_tokens] int32
    cu_num_draft_tokens: Tensor,  # [batch_size] int32
    max_spec_len: int,
    logits: Tensor,  # [num_rows, vocab_size] float32 or bfloat16 or float16
    temperature: Tensor,  # [batch_size] float32
    seeds: Tensor,  # [batch_size] int64
    positions: Tensor,  # [batch_size] int64
    *,
    draft_probs: Tensor | None = None,  # [num_tokens, vocab_size] float32
    draft_logits: Tensor | None = None,  # [num_tokens, vocab_size] float32 or bfloat16 or float16
    draft_logsumexp: Tensor | None = None,  # [num_tokens] float32
    bonus_token_ids: Tensor | None = None,  # [batch_size, 1] int32
    workspace: Tensor | None = None,  # [num_words] int64
    backend: BackendName | None = None,
    validate: bool = False,
) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    """Keep the longest acceptable prefix of each request's draft tokens, then add one token.

    No argument is read on the host, so a captured CUDA graph can be replayed with other numbers of draft tokens: rows
    behind the last request are padding. Accuracy and traffic are given at the head of this module.

    Args:
        draft_token_ids: Flattened over requests; -1 is a placeholder draft token, which is never accepted.
        cu_num_draft_tokens: Inclusive cumulative sum of the draft tokens per request, no leading 0; 0 of them is legal.
        max_spec_len: At least the most draft tokens of a request, at most 128.
        logits: The target model's, with penalties and filters applied but *before* temperature. Rows in the order of
            `draft_token_ids`; without `bonus_token_ids` each request's are followed by its bonus row, as vLLM's model
            runner computes them. Rows may be strided.
        temperature: Divides target and draft logits alike; 0 marks a greedy request; 2.2e-5 is the lowest other.
        seeds: One per request, any int64.
        positions: Of each request's first draft token in its sequence. The next step must start behind this step's.
        draft_probs: The distribution that each draft token was drawn from.
        draft_logits: Instead of `draft_probs`, before temperature. With neither, drafts are one-hot (n-gram).
        draft_logsumexp: Of `draft_logits / temperature`, if the draft sampler kept it: saves reading them all.
        bonus_token_ids: Used for requests whose drafts are all accepted. `None`: drawn from the bonus rows.
        workspace: From `make_workspace`, for as large a batch or a larger one. It lets the kernels of a step overlap,
            and skips rows behind a draft token that is known to be rejected. Steps that share one must not overlap.
            Tokens are the same with and without it.
        backend: `None` takes Triton on a GPU and PyTorch elsewhere.
        validate: Also check values inside tensors. Waits for the device.

    Returns:
        Per request the accepted draft tokens, one recovered or bonus token, then -1.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If arguments disagree, or with `validate=True` a value is out of its range.

    Randomness:
        Position `n` of a request takes block `(n, "veri")` of Philox 4x32-10 under the key `seed`, whatever the rest of
        the batch is. Nothing else is drawn.
    """
    name = "rejection_sample"
    drafts = (draft_probs, draft_logits, draft_logsumexp)
    inputs = (draft_token_ids, cu_num_draft_tokens, max_spec_len, logits, temperature, seeds, positions)
    step = CounterStep(*inputs, *drafts, bonus_token_ids, workspace)
    if not validate and backend in OF_KERNELS and (known := KNOWN.find(step)) is not None:
        return known(step)
    step = checked_step(name, step)
    if validate:
        check_values(name, step)
    if choose_backend(name, backend, step.device) == "torch":
        return pytorch.verify(step)
    from ._counter import launch

    return launch.verify(step)
