"""FlashInfer's kernels as arms of `bench_step`: the same logits, drafts and parameters, FlashInfer's own functions.

Verification: `softmax` of all rows, `top_k_renorm_probs` and `top_p_renorm_probs` where the set filters, then
`chain_speculative_sampling`. SGLang's `eagle_utils.py` calls the first three in this order; FlashInfer has no function
that does both filters for a verification. The last one needs dense draft distributions; the one-hot rows are made
before the clock starts, which favours it. `flashinfer top-k` and `flashinfer top-p` are one filter each, on the
softmax.

Plain sampling: `softmax`, then the function that fits the filters; `flashinfer joint` takes both filters at once, and
`flashinfer logits` is `sampling_from_logits` or `top_k_top_p_sampling_from_logits`, as vLLM calls it. A parameter comes
per request, as in a server: FlashInfer's short cut for one top-k of the whole batch is not taken. Seeds and offsets are
tensors, as a CUDA graph needs them.

FlashInfer has no penalties, no greedy requests and, before a verification, no min-p: such sets have no arm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fairdraw.adapters import UnusableRelease
from fairdraw_engines import _flashinfer, _gpu_kernels

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

Json = dict[str, Any]  # Any: JSON


def versions() -> dict[str, str] | None:
    """Of the library; `None` if it, or the GPU, is missing."""
    try:
        _gpu_kernels.require("cuda")
    except UnusableRelease:
        return None
    return _gpu_kernels.versions()


def arms(
    logits: Tensor,  # [num_rows, vocab_size] bfloat16
    draft_token_ids: Tensor,  # [num_rows] int32
    batch_size: int,
    parameters: Json,
    fi: Any = None,  # Any: FlashInfer's module
) -> dict[str, Callable[[], Tensor]]:
    """Name to an arm. Rows of a request are its drafts' and the bonus row; one row each is plain sampling.

    Args:
        parameters: Of every request.
    """
    step = _Step(logits, draft_token_ids, batch_size, parameters, fi or _flashinfer.load())
    if not parameters.keys() <= {"temperature", "top_k", "top_p", "min_p"}:
        return {}
    if len(logits) > batch_size:
        verifying = {} if step.min_p is not None else {"flashinfer": step.verify}
        alone: dict[str, Callable[[], Tensor]] = {  # one filter, on probabilities that are there
            "flashinfer top-k": lambda: step.fi.top_k_renorm_probs(step.probs, step.top_k),
            "flashinfer top-p": lambda: step.fi.top_p_renorm_probs(step.probs, step.top_p),
        }
        return verifying | (alone if step.filters_jointly else {})
    joint = {"flashinfer joint": step.sample_jointly} if step.filters_jointly else {}
    return {"flashinfer": step.sample, **joint} | ({"flashinfer logits": step.sample_logits} if step.has_logits else {})


class _Step:
    """Inputs of one cell, and the arms."""

    def __init__(self, logits: Tensor, draft_token_ids: Tensor, batch_size: int, given: Json, fi: Any) -> None:
        self.fi, self.logits, device = fi, logits, logits.device

        def column(name: str, dtype: torch.dtype = torch.float32) -> Tensor | None:  # [num_rows] any
            return None if name not in given else torch.full((len(logits),), given[name], dtype=dtype, device=device)

        self.temperature = column("temperature")
        self.top_k, self.top_p, self.min_p = column("top_k", torch.int32), column("top_p"), column("min_p")
        self.noise = {name: torch.ones(1, dtype=torch.int64, device=device) for name in ("seed", "offset")}
        self.width = len(logits) // batch_size
        self.filters_jointly = self.top_k is not None and self.top_p is not None
        self.has_logits = self.min_p is None and (self.filters_jointly or self.top_k is self.top_p)
        if self.width > 1:
            self.draft_ids = draft_token_ids.view(-1, self.width)[:, :-1].contiguous()
            shape = (*self.draft_ids.shape, logits.shape[1])
            self.draft_probs = torch.zeros(shape, device=device).scatter_(2, self.draft_ids[..., None].long(), 1.0)
            self.probs = self.fi.softmax(logits, self.temperature)

    def verify(self) -> Any:  # Any: FlashInfer's answer, Tensor [batch_size] int32
        """How many drafts of each request are kept."""
        probs = self._filtered(self.fi.softmax(self.logits, self.temperature))
        targets = probs.view(-1, self.width, probs.shape[1])
        return self.fi.chain_speculative_sampling(self.draft_probs, self.draft_ids, targets, **self.noise)[2]

    def _filtered(self, probs: Tensor) -> Tensor:  # [num_rows, vocab_size] float32
        probs = probs if self.top_k is None else self.fi.top_k_renorm_probs(probs, self.top_k)
        return probs if self.top_p is None else self.fi.top_p_renorm_probs(probs, self.top_p)

    def sample(self) -> Any:  # Any: FlashInfer's answer, Tensor [batch_size] int32
        fi, probs = self.fi, self.fi.softmax(self.logits, self.temperature)
        if self.min_p is not None:
            return fi.min_p_sampling_from_probs(self._filtered(probs), self.min_p, **self.noise)
        if self.filters_jointly:
            return fi.top_k_top_p_sampling_from_probs(probs, self.top_k, self.top_p, **self.noise)
        if self.top_p is not None:
            return fi.top_p_sampling_from_probs(probs, self.top_p, **self.noise)
        return fi.sampling_from_probs(probs, **self.noise)

    def sample_jointly(self) -> Any:  # Any: as above
        filters = self.fi.softmax(self.logits, self.temperature), self.top_k, self.top_p
        return self.fi.top_k_top_p_sampling_from_probs(*filters, filter_apply_order="joint", **self.noise)

    def sample_logits(self) -> Any:  # Any: as above
        logits = self.logits.float()
        logits = logits if self.temperature is None else logits / self.temperature[:, None]
        if self.filters_jointly:
            return self.fi.top_k_top_p_sampling_from_logits(logits, self.top_k, self.top_p, **self.noise)
        return self.fi.sampling_from_logits(logits, **self.noise)
