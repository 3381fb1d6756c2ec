"""A third-party rejection sampler as one Triton kernel, and the adapter that puts it under test:

fairdraw check examples.triton_sampler:make --profile smoke

Without a GPU the same kernel runs in Triton's interpreter: fairdraw sets `TRITON_INTERPRET=1` before it imports this
file, so a laptop is enough to see whether a kernel is right.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairdraw import ExplicitNoise, Noise, RejectionSampler, SpecDecodeBatch, rejection_sampler

# The sampler: a program per request, the whole vocabulary in one block. It does not import fairdraw.


@triton.jit
def verify_kernel(
    output_ptr,  # [batch_size, max_spec_len + 1] int32, filled with -1
    cu_num_draft_tokens_ptr,  # [batch_size] int32
    draft_token_ids_ptr,  # [num_tokens] int32
    draft_probs_ptr,  # [num_tokens, vocab_size] float32; not read if NO_DRAFT_PROBS
    target_probs_ptr,  # [num_tokens, vocab_size] float32
    bonus_token_ids_ptr,  # [batch_size] int32
    uniforms_ptr,  # [num_tokens] float64
    exponentials_ptr,  # [batch_size, vocab_size] float32
    vocab_size,
    output_width,
    NO_DRAFT_PROBS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    request = tl.program_id(0)
    begin = tl.where(request > 0, tl.load(cu_num_draft_tokens_ptr + request - 1, mask=request > 0, other=0), 0)
    end = tl.load(cu_num_draft_tokens_ptr + request)
    output_ptr += request * output_width
    rejected = False
    for row in range(begin, end):
        if not rejected:
            draft = tl.load(draft_token_ids_ptr + row)
            is_token = draft >= 0  # -1 is a placeholder draft
            target = tl.load(target_probs_ptr + row * vocab_size + draft, mask=is_token, other=0.0)
            if NO_DRAFT_PROBS:
                distribution = 1.0
            else:
                distribution = tl.load(draft_probs_ptr + row * vocab_size + draft, mask=is_token, other=0.0)
            if (
                target > 0
                and distribution > 0
                and (target / distribution).to(tl.float64) >= tl.load(uniforms_ptr + row)
            ):
                tl.store(output_ptr + row - begin, draft)
            else:
                rejected = True
                recovered = recover(
                    draft_probs_ptr + row * vocab_size,
                    target_probs_ptr + row * vocab_size,
                    exponentials_ptr + request * vocab_size,
                    draft,
                    vocab_size,
                    NO_DRAFT_PROBS,
                    BLOCK,
                )
                tl.store(output_ptr + row - begin, recovered)
    if not rejected:
        tl.store(output_ptr + end - begin, tl.load(bonus_token_ids_ptr + request))


@triton.jit
def recover(draft_row, target_row, noise_row, draft, vocab_size, NO_DRAFT_PROBS: tl.constexpr, BLOCK: tl.constexpr):
    """The winner of an exponential race over the residual; over the target where rounding leaves no residual."""
    ids = tl.arange(0, BLOCK)
    alive = ids < vocab_size
    target = tl.load(target_row + ids, mask=alive, other=0.0)
    if NO_DRAFT_PROBS:
        residual = tl.where(ids == draft, 0.0, target)
    else:
        residual = tl.maximum(target - tl.load(draft_row + ids, mask=alive, other=0.0), 0.0)
    weights = tl.where(tl.max(residual, 0) > 0, residual, target)
    scores = weights * (1.0 / tl.load(noise_row + ids, mask=alive, other=1.0))
    return tl.argmax(tl.where(weights > 0, scores, -1.0), 0).to(tl.int32)


# The adapter.


def verify(batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    if isinstance(noise, ExplicitNoise):
        uniforms, exponentials = noise.uniforms, noise.exponentials
    else:
        uniforms = torch.rand(batch.num_tokens, dtype=torch.float64, device=batch.device)
        exponentials = torch.empty(batch.batch_size, batch.vocab_size, device=batch.device).exponential_()
    shape = (batch.batch_size, batch.max_spec_len + 1)
    output = torch.full(shape, -1, dtype=torch.int32, device=batch.device)
    target_probs = batch.target_probs()
    verify_kernel[(batch.batch_size,)](
        output,
        batch.cu_num_draft_tokens.contiguous(),
        batch.draft_token_ids.contiguous(),
        target_probs if batch.draft_probs is None else batch.draft_probs.contiguous(),
        target_probs,
        batch.bonus_token_ids.contiguous(),
        uniforms,
        exponentials,
        batch.vocab_size,
        shape[1],
        NO_DRAFT_PROBS=batch.draft_probs is None,
        BLOCK=triton.next_power_of_2(batch.vocab_size),
    )
    return output


def make() -> RejectionSampler:
    unsupported = {
        "greedy": "our engine takes greedy requests out before",
        "nan-logits": "our engine stops at NaN",
        "empty-rows": "our engine never masks a whole row",
        "request-seeds": "one generator serves the batch",
        "upstream-stream": "we do not draw in vLLM's order",
        "synthetic-rates": "we have no such mode",
        "large-vocab": "the whole vocabulary is one block",
    }
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return rejection_sampler(verify, name="my kernel", device=device, unsupported=unsupported, slow=device == "cpu")
