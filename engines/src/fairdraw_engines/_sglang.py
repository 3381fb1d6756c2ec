"""The chain rejection sampler of SGLang (PyPI `sglang`, tried: 0.5.23), a Triton kernel; interpreted without a GPU.

`chain_speculative_sampling_triton` gets probabilities, a uniform per draft and one more per request, by which it draws
the last token from the inverse CDF. Every request of a call has the same number of drafts (`_chains`). The bonus
token is drawn from a row that allows the batch's bonus token alone; n-gram drafts get one-hot rows. With
explicit noise the last uniform is `exp(-e)` of the request's first exponential `e`, which is uniform.

Importing the package needs CUDA; the kernel's file needs triton alone and is loaded by itself, so that
`pip install --no-deps sglang` is enough (39 MB to download).
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from fairdraw.adapters import SamplerRow, quiet_floats, triton_is_interpreted
from fairdraw.contracts import PLACEHOLDER_TOKEN_ID, ExplicitNoise, FunctionSampler, Noise, SpecDecodeBatch
from fairdraw_engines._bare import import_bare, release_of
from fairdraw_engines._chains import Chains, verify_by_length

_FILE = "sglang.kernels.ops.speculative.reject_sampling"
_LARGEST_UNIFORM = 1 - 2.0**-24
"""The largest that `torch.rand` draws as float32."""


def make(row: SamplerRow, device: str, *, block_verification: bool = False) -> FunctionSampler:
    """Return the kernel of the installed SGLang; its name carries the release.

    Args:
        block_verification: Verify drafts jointly, as Sun et al. (2024), arXiv:2403.10444, do.

    Raises:
        ModuleNotFoundError: If sglang or triton is missing.
        RuntimeError: If triton was imported for a GPU and there is none.
    """
    interpreted = triton_is_interpreted(device)
    (module,) = import_bare(_FILE)
    kernel = partial(module.chain_speculative_sampling_triton, block_verification=block_verification)
    facts = row.facts(release_of("sglang"), device, slow=interpreted)
    return FunctionSampler(function=partial(verify, kernel), **facts)


def verify(
    kernel: Callable[..., None], batch: SpecDecodeBatch, noise: Noise
) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    """Call `kernel`, a verification of chains by SGLang's arguments, once per number of drafts."""
    uniforms, last_uniforms = _uniforms(batch, noise)
    draft_probs = batch.dense_draft_probs()

    def call(chains: Chains) -> Tensor:  # [num_requests, num_drafts + 1] int32
        return _call(
            kernel,
            chains.drafts,
            chains.logits.softmax(-1, dtype=torch.float32),
            draft_probs[chains.rows],
            torch.nn.functional.pad(uniforms[chains.rows], (0, 1)),
            last_uniforms[chains.requests],
        )

    return verify_by_length(batch, call)


def _call(
    kernel: Callable[..., None],
    drafts: Tensor,  # [batch_size, num_drafts] int32
    target_probs: Tensor,  # [batch_size, num_drafts + 1, vocab_size] float32
    draft_probs: Tensor,  # [batch_size, num_drafts, vocab_size] float32
    uniforms: Tensor,  # [batch_size, num_drafts + 1] float32
    last_uniforms: Tensor,  # [batch_size] float32
) -> Tensor:  # [batch_size, num_drafts + 1] int32
    """Call the kernel once, as `eagle_utils.py` does: slot 0 is the token before the drafts."""
    slots = torch.arange(uniforms.numel(), device=drafts.device).view(uniforms.shape)
    tokens = torch.full(uniforms.shape, PLACEHOLDER_TOKEN_ID, dtype=torch.int32, device=drafts.device)
    accepted = torch.empty(len(drafts), dtype=torch.int32, device=drafts.device)
    with quiet_floats():
        kernel(
            predicts=tokens,
            accept_index=torch.full_like(tokens, -1),
            accept_token_num=accepted,
            candidates=torch.nn.functional.pad(drafts.long(), (1, 0)),
            retrive_index=slots,
            retrive_next_token=None,
            retrive_next_sibling=None,
            uniform_samples=uniforms,
            uniform_samples_for_final_sampling=last_uniforms,
            target_probs=target_probs,
            draft_probs=draft_probs,
            threshold_single=1.0,
            threshold_acc=1.0,
            deterministic=True,
        )
    return tokens


def _uniforms(batch: SpecDecodeBatch, noise: Noise) -> tuple[Tensor, Tensor]:  # [num_tokens], [batch_size] float32
    """Return one uniform per draft, and one per request for its last token."""
    if not isinstance(noise, ExplicitNoise):
        drawn = torch.rand(batch.num_tokens + batch.batch_size, device=batch.device)
        return drawn[: batch.num_tokens], drawn[batch.num_tokens :]
    last = (-noise.exponentials[:, 0]).exp()
    return noise.uniforms.float().clamp(max=_LARGEST_UNIFORM), last.clamp(max=_LARGEST_UNIFORM)
