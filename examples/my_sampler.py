"""A third-party rejection sampler in plain PyTorch, and the adapter that puts it under test:

pytest --pyargs fairdraw --sampler examples.my_sampler:make
fairdraw check examples.my_sampler:make
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairdraw import ExplicitNoise, Noise, RejectionSampler, SpecDecodeBatch, rejection_sampler

# The sampler: one request at a time. It does not import fairdraw.


def draw_noise(num_tokens: int, batch_size: int, vocab_size: int) -> tuple[Tensor, Tensor]:
    """A uniform per draft token; an exponential per request and vocabulary entry."""
    return torch.rand(num_tokens, dtype=torch.float64), torch.empty(batch_size, vocab_size).exponential_()


def verify_greedily(drafts: list[int], argmax: list[int], bonus: int) -> list[int]:
    """The argmax tokens up to and including the first that differs from its draft; the bonus token if none does."""
    for position, (draft, best) in enumerate(zip(drafts, argmax, strict=True)):
        if draft != best:
            return argmax[: position + 1]
    return [*argmax, bonus]


def verify_randomly(
    drafts: list[int],
    target_probs: Tensor,  # [num_draft_tokens, vocab_size] float32
    draft_probs: Tensor | None,  # [num_draft_tokens, vocab_size] float32; None: n-gram drafts
    bonus: int,
    uniforms: Tensor,  # [num_draft_tokens] float64
    exponentials: Tensor,  # [vocab_size] float32
) -> list[int]:
    """Keep drafts while `target / draft >= uniform`; replace the first that fails by one from the residual."""
    for position, (draft, target) in enumerate(zip(drafts, target_probs, strict=True)):
        one_hot = (torch.arange(len(target)) == draft).float()
        drafter = one_hot if draft_probs is None else draft_probs[position]
        possible = draft >= 0 and target[draft] > 0 and drafter[draft] > 0  # -1 is a placeholder draft
        if not possible or target[draft] / drafter[draft] < uniforms[position]:
            residual = (target - drafter).clamp(min=0)
            weights = residual if (residual > 0).any() else target
            scores = torch.where(weights > 0, weights * exponentials.reciprocal(), -1.0)
            return [*drafts[:position], int(scores.argmax())]
    return [*drafts, bonus]


# The adapter: at most twenty lines.


def verify(batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    if isinstance(noise, ExplicitNoise):
        uniforms, exponentials = noise.uniforms, noise.exponentials
    else:
        uniforms, exponentials = draw_noise(batch.num_tokens, batch.batch_size, batch.vocab_size)
    output = torch.full((batch.batch_size, batch.max_spec_len + 1), -1, dtype=torch.int32)
    target_probs, argmax, draft_probs = batch.target_probs(), batch.target_logits.argmax(-1), batch.draft_probs
    for i, bonus in enumerate(batch.bonus_token_ids.flatten().tolist()):
        own = batch.token_slice(i)
        drafts, probs = batch.draft_token_ids[own].tolist(), None if draft_probs is None else draft_probs[own]
        emitted = verify_randomly(drafts, target_probs[own], probs, bonus, uniforms[own], exponentials[i])
        if batch.is_greedy[i]:
            emitted = verify_greedily(drafts, argmax[own].tolist(), bonus)
        output[i, : len(emitted)] = torch.tensor(emitted)
    return output


def make() -> RejectionSampler:
    ours = "it draws everything from torch's default generator, in an order of its own"
    unsupported = {"request-seeds": ours, "upstream-stream": ours, "synthetic-rates": "it has no such mode"}
    return rejection_sampler(verify, name="my sampler", unsupported=unsupported)
