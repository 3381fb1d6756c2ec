"""`RejectionSampler._verify` and `Sampler.sample` of vLLM's model runner V2, served by one call of `../step.py`.

    RejectionSampler._verify    logits -> processed copy -> rejection_sample      here: a plan with drafts
    Sampler.sample              logits -> processed copy -> filters, Gumbel       here: a plan without drafts

Both draw from the same distributions, and not the same tokens. What a batch uses is read on the host, from the arrays
by which vLLM itself decides what to launch; so a call waits for nothing. What ours does not give goes to vLLM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..step import Capacity, Drafts, StepPlan
from . import _calls
from ._memory import memory
from ._step_states import Use, require_neutral, step_inputs, use_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from torch import Tensor

    from .._shared.backend import BackendName
    from .._shared.tensors import AnyLogitRows, SlotDraftRows
    from ._calls import T

    Verified = tuple[Tensor, Tensor, Tensor]
    """Rows, tokens and how many count: [num_rows, vocab_size] any, [batch_size, max_spec_len + 1] int64, [batch_size]
    int32."""

_PIECE = "step"
MOST_EDITS = 496
"""Listed ids of one request. The kernel's list then has 512 places, which its registers hold."""
BACKEND: BackendName | None = None
"""`None`: Triton on a GPU, PyTorch elsewhere."""

Sampler = Any
"""vLLM's `Sampler`."""
Verifier = Any
"""vLLM's `RejectionSampler`."""

_plans = memory()
"""Per sampler: its plans, by what they are for."""
_starts = memory()
"""Per sampler: where each request's row begins if it has one."""


def verify(
    upstream: Any,  # Any: vLLM's method, which returns what ours returns
    verifier: Verifier,
    logits: Tensor,  # [num_rows, vocab_size] any
    draft_logits: Tensor | None,  # [num_slots, max_spec_len, vocab_size] any
    draft_sampled: Tensor,  # [num_rows] int32
    pos: Tensor,  # [num_rows] int64
    cu_num_logits: Tensor,  # [batch_size + 1] int32
    idx_mapping: Tensor,  # [batch_size] int32
    idx_mapping_np: np.ndarray[Any, Any],
    expanded_idx_mapping: Tensor,  # [num_rows] int32
    expanded_local_pos: Tensor,  # [num_rows] int32
    seq_lens_upper_bound_np: np.ndarray[Any, Any],
    verify_draft_sampled: Tensor,  # [num_rows] int32
) -> Verified:
    """Tokens and how many count; instead of processed rows, which are not made, the raw ones.

    vLLM gives two lists of drafts: in `verify_draft_sampled` those that a grammar forbids are -1. The first of them
    ends its request's tokens, so that what the rows behind it count as drafted does not matter: one list is enough.
    """

    def serve() -> Verified:
        sampler = verifier.sampler
        _require_standard(verifier)
        wants_logprobs = sampler.sampling_states.max_num_logprobs(idx_mapping_np) >= 0
        use = _use(sampler, logits, idx_mapping_np, wants_logprobs=wants_logprobs)
        inputs = step_inputs(
            sampler,
            use,
            logits=logits,
            slots=idx_mapping,
            cu_num_rows=cu_num_logits,
            positions=pos.index_select(0, cu_num_logits[:-1]) + 1,
            draft_token_ids=verify_draft_sampled.roll(-1),
            draft_logits=_draft_rows(draft_logits, logits),
        )
        drafts = Drafts.ONE_HOT if draft_logits is None else Drafts.LOGITS
        output = _plan(sampler, logits, verifier.num_speculative_steps, use, drafts)(inputs)
        return logits, output.token_ids.long(), output.num_tokens.clone()

    return _served(serve) or upstream()


def sample(
    upstream: Any,  # Any: vLLM's method, which returns what ours returns
    sampler: Sampler,
    logits: Tensor,  # [num_rows, vocab_size] any
    expanded_idx_mapping: Tensor,  # [num_rows] int32
    idx_mapping: Tensor,  # [batch_size] int32
    idx_mapping_np: np.ndarray[Any, Any],
    pos: Tensor,  # [num_rows] int64
    input_ids: Tensor,  # [num_rows] int32
    expanded_local_pos: Tensor,  # [num_rows] int32
    seq_lens_upper_bound_np: np.ndarray[Any, Any],
    return_logprobs: bool = False,
) -> tuple[Tensor, Tensor]:  # [num_rows] int64, [num_rows, vocab_size] any
    """A token per request; instead of processed rows, which are not made, the raw ones."""

    def serve() -> tuple[Tensor, Tensor]:  # [num_rows] int64, [num_rows, vocab_size] any
        if logits.shape[0] != len(idx_mapping_np):
            raise _calls.NotOursError("rows that are not one per request")
        use = _use(sampler, logits, idx_mapping_np, wants_logprobs=return_logprobs)
        inputs = step_inputs(
            sampler,
            use,
            logits=logits,
            slots=idx_mapping,
            cu_num_rows=_rows_of_one(sampler, logits),
            positions=pos + 1,
            draft_token_ids=None,
        )
        return _plan(sampler, logits, 0, use, Drafts.NONE)(inputs).token_ids[:, 0].long(), logits

    return _served(serve) or upstream()


def _served(serve: Callable[[], T]) -> T | None:
    """Return what `serve` does, or `None`.

    A batch that contradicts a plan is vLLM's; a lack of memory is an error, as in vLLM: ranks must not differ.
    """
    return _calls.served(_PIECE, serve, "arguments that ours does not take", refusals=(TypeError, ValueError))


def _require_standard(verifier: Verifier) -> None:
    """The rule of Leviathan et al.

    Raises:
        NotOursError: If not.
    """
    for reason, is_so in (
        ("synthetic acceptance", verifier.synthetic_conditional_rates is not None),
        ("block verification", verifier.use_block_verification),
        ("FLy", verifier.fly_window_size != 0),
        ("watermarks", verifier.watermark_key is not None),
    ):
        if is_so:
            raise _calls.NotOursError(reason)


def _draft_rows(
    draft_logits: SlotDraftRows | None, logits: AnyLogitRows
) -> Tensor | None:  # [num_slots, max_spec_len, vocab_size] any
    """A drafter may have another vocabulary: vLLM reads the ids that both have, and leaves out the others.

    Raises:
        NotOursError: If it is narrower.
    """
    width = logits.shape[1]
    if draft_logits is None or draft_logits.shape[2] == width:
        return draft_logits
    if draft_logits.shape[2] < width:
        raise _calls.NotOursError("draft logits of a smaller vocabulary")
    return draft_logits[..., :width]


def _use(sampler: Sampler, logits: AnyLogitRows, slots: np.ndarray[Any, Any], *, wants_logprobs: bool) -> Use:
    """What the requests of a batch use, if ours gives all of it.

    Raises:
        NotOursError: If not.
    """
    slots = slots.astype(int)  # as NumPy would for each of a dozen lookups
    require_neutral(sampler, slots, wants_logprobs=wants_logprobs)
    if logits.shape[1] != sampler.sampling_states.vocab_size:
        raise _calls.NotOursError("logits of another width than the sampler's vocabulary")
    use = use_of(sampler, slots)
    if use.num_edits > MOST_EDITS:
        raise _calls.NotOursError(f"a request with more than {MOST_EDITS} listed ids")
    return use


def _rows_of_one(sampler: Sampler, logits: AnyLogitRows) -> Tensor:  # [batch_size + 1] int32
    if sampler not in _starts:
        most = sampler.sampling_states.max_num_reqs + 1
        _starts[sampler] = torch.arange(most, dtype=torch.int32, device=logits.device)
    cu_num_rows: Tensor = _starts[sampler][: logits.shape[0] + 1]  # [batch_size + 1] int32
    return cu_num_rows


def _plan(sampler: Sampler, logits: AnyLogitRows, max_spec_len: int, use: Use, drafts: Drafts) -> StepPlan:
    """Made at the first batch that needs it, for the largest one. Batches that use little do not pay for all."""
    plans = _plans.setdefault(sampler, {})
    edited = use.penalties or use.num_edits > 0
    filters = edited or use.filters
    key = max_spec_len, drafts, logits.dtype, filters, edited
    if key not in plans:
        capacity = Capacity(
            batch_size=sampler.sampling_states.max_num_reqs,
            max_spec_len=max_spec_len,
            vocab_size=logits.shape[1],
            dtype=logits.dtype,
            drafts=drafts,
            filters=filters,
            penalties=edited,
            edits=MOST_EDITS if edited else 0,
        )
        plans[key] = StepPlan(capacity, logits.device, backend=BACKEND)
    plan: StepPlan = plans[key]
    return plan
