"""`rejection` in upstream-compatible mode against vLLM 0.22.0's own kernels: the same tokens, and how fast.

Both sides get the softmax and the noise. vLLM computes the reciprocal of the exponentials and runs its recovery and its
acceptance kernel. Ours runs the acceptance kernel and a race over one row per request.
"""

from __future__ import annotations

import random
import statistics
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fairdraw.sampler_impl._rejection import kernels
from fairdraw.sampler_impl._rejection.step import checked_step

if TYPE_CHECKING:
    from collections.abc import Callable


class Step:
    """One random batch with its softmax and noise."""

    def __init__(self, counts: list[int], vocab_size: int, dense: bool, seed: int) -> None:
        noise = torch.Generator("cuda").manual_seed(seed)
        num_tokens, batch_size = sum(counts), len(counts)
        logits = torch.randn(num_tokens, vocab_size, device="cuda", generator=noise).mul_(2)
        draft = torch.randn(num_tokens, vocab_size, device="cuda", generator=noise).add_(logits).softmax(-1)
        self.target_probs = logits.softmax(-1)
        self.uniforms = torch.rand(num_tokens, device="cuda", dtype=torch.float64, generator=noise)
        self.exponentials = torch.empty(batch_size, vocab_size, device="cuda").exponential_(generator=noise)
        self.is_greedy = torch.zeros(batch_size, dtype=torch.bool, device="cuda")
        self.metadata: Any = _metadata()
        self.kernels = kernels
        self.step = checked_step(
            "step",
            draft.multinomial(1, generator=noise).flatten().int() if num_tokens else torch.zeros(0).int().cuda(),
            counts,
            max(counts),
            torch.tensor(counts, dtype=torch.int32).cumsum(0).int().cuda(),
            draft if dense else None,
            logits,
            torch.randint(vocab_size, (batch_size, 1), device="cuda", dtype=torch.int32, generator=noise),
            self.metadata,
            False,
            None,
        )

    def ours(self) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        tokens: Tensor = self.kernels.verify(self.step, None, self.target_probs, self.uniforms, self.exponentials)
        return tokens

    def vllm(self, module: Any) -> Tensor:  # [batch_size, max_spec_len + 1] int32; Any: a foreign module
        step = self.step
        output = torch.full((step.batch_size, step.max_spec_len + 1), -1, dtype=torch.int32, device="cuda")
        reciprocals = self.exponentials.reciprocal()
        recovered = torch.empty_like(step.draft_token_ids)
        one_hot = step.draft_probs is None
        module.sample_recovered_tokens_kernel[(step.batch_size, step.max_spec_len)](
            recovered, step.cu_num_draft_tokens, step.draft_token_ids, step.draft_probs, self.target_probs, reciprocals,
            step.vocab_size, 8192, NO_DRAFT_PROBS=one_hot,
        )  # fmt: skip
        module.rejection_random_sample_kernel[(step.batch_size,)](
            output, step.cu_num_draft_tokens, step.draft_token_ids, step.draft_probs, self.target_probs,
            step.bonus_token_ids, recovered, self.uniforms, self.is_greedy, step.max_spec_len, step.vocab_size, None,
            NO_DRAFT_PROBS=one_hot, SYNTHETIC_MODE=False,
        )  # fmt: skip
        return output


def _metadata() -> Any:  # Any: stands for vLLM's SamplingMetadata
    return SimpleNamespace(all_greedy=False, all_random=True, temperature=None, generators={})


def measure(clock: Any, module: Any) -> list[dict[str, Any]]:  # Any: `Clock`, a foreign module, JSON
    rows = []
    for batch_size in (64, 256):
        for max_spec_len in (1, 3, 7):
            step = Step([max_spec_len] * batch_size, 128256, True, seed=batch_size + max_spec_len)
            arms: dict[str, Callable[[], object]] = {"ours": step.ours, "vllm022": partial(step.vllm, module)}
            times = {name: round(statistics.median(t), 2) for name, t in clock.measure(arms).items()}
            row = {"B": batch_size, "K": max_spec_len, "V": 128256, "us": times}
            rows.append({**row, "ratio": round(times["ours"] / times["vllm022"], 3)})
            print("compatible", rows[-1], flush=True)
    return rows


def compare(module: Any, num_batches: int) -> dict[str, Any]:  # Any: a foreign module, JSON
    """Random sizes, dense and one-hot; counts batches and output tokens that differ in any bit."""
    sizes = random.Random(0)
    unequal, tokens, examples = 0, 0, []
    for seed in range(num_batches):
        vocab_size = sizes.choice((64, 1000, 4096, 8191, 8192, 16400, 32000))
        counts = [sizes.randint(0, 7) for _ in range(sizes.randint(1, 16))]
        counts[0] = max(counts[0], 1)
        step = Step(counts, vocab_size, sizes.random() < 0.7, seed)
        ours, theirs = step.ours(), step.vllm(module)
        tokens += ours.numel()
        if not torch.equal(ours, theirs):
            unequal += 1
            examples.append({"seed": seed, "counts": counts, "V": vocab_size})
    result = {"batches": num_batches, "unequal": unequal, "output_entries": tokens, "examples": examples[:10]}
    print("equality", result, flush=True)
    return result
