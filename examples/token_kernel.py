"""A third-party token sampler as one Triton kernel, and the adapter that puts it under test:

fairdraw check examples.token_kernel:make --profile smoke

A program takes several rows: `ROWS` is 1 on a GPU. In Triton's interpreter a program costs some 0.3 ms however
narrow its blocks are, so there one program takes many rows. The loads, masks and reductions under test are the same.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

import fairdraw
from fairdraw import RaceNoise, SamplingBatch, SamplingNoise, TokenSampler

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS_PER_PROGRAM = 1 if DEVICE == "cuda" else 64


@triton.jit
def sample_kernel(
    tokens_ptr,  # [batch_size] int64, written
    logits_ptr,  # [batch_size, vocab_size] float32 | bfloat16 | float16
    temperature_ptr,  # [batch_size] float32
    exponentials_ptr,  # [batch_size, vocab_size] float32
    batch_size,
    vocab_size,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Per row the argmax of probability over exponential; of the logits if the request is greedy."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    ids = tl.arange(0, BLOCK)
    is_token = (rows < batch_size)[:, None] & (ids < vocab_size)[None, :]
    places = rows.to(tl.int64)[:, None] * vocab_size + ids[None, :]
    logits = tl.load(logits_ptr + places, mask=is_token, other=-float("inf")).to(tl.float32)
    temperature = tl.load(temperature_ptr + rows, mask=rows < batch_size, other=0.0)[:, None]
    exponentials = tl.load(exponentials_ptr + places, mask=is_token, other=1.0)

    is_greedy = temperature < 1e-5
    scaled = logits / tl.where(is_greedy, 1.0, temperature)
    weights = tl.where(is_token, tl.exp(scaled - tl.max(scaled, 1)[:, None]), 0.0)
    probs = weights / tl.sum(weights, 1)[:, None]
    scores = tl.where(is_token, tl.where(is_greedy, logits, probs / exponentials), -float("inf"))
    tl.store(tokens_ptr + rows, tl.argmax(scores, 1), mask=rows < batch_size)


def sample(batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
    shape = (batch.batch_size, batch.vocab_size)
    if isinstance(noise, RaceNoise):
        exponentials = noise.exponentials
    else:
        exponentials = torch.empty(shape, device=batch.device).exponential_()
    tokens = torch.empty(batch.batch_size, dtype=torch.int64, device=batch.device)
    sample_kernel[(triton.cdiv(batch.batch_size, ROWS_PER_PROGRAM),)](
        tokens,
        batch.logits.contiguous(),
        batch.temperature,
        exponentials,
        *shape,
        ROWS=ROWS_PER_PROGRAM,
        BLOCK=triton.next_power_of_2(batch.vocab_size),
    )
    return tokens


def make() -> TokenSampler:
    unsupported = {
        "top-k": "we do not filter by it",
        "top-p": "we do not filter by it",
        "min-p": "we do not filter by it",
        "request-seeds": "one generator serves the whole batch",
        "upstream-stream": "we do not draw in vLLM's order",
        "counter-noise": "our generator advances from draw to draw",
        "nan-logits": "our engine stops at NaN",
        "empty-rows": "our engine never masks a whole row",
        "large-vocab": "the whole vocabulary is one block",
    }
    return fairdraw.token_sampler(
        sample, name="my token kernel", device=DEVICE, unsupported=unsupported, slow=DEVICE == "cpu"
    )
