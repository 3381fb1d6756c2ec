"""`rejection/step-raw`: its parameters and raw logits lead to the batch's rows, to the last bit."""

import pytest
import torch
from helpers import plain_batch

from fairdraw.adapters._rejection import bonus_mask, rows_of
from fairdraw.adapters._step_raw import raw_step
from fairdraw.contracts import SpecDecodeBatch
from fairdraw.sampler_impl.step import StepPlan

COUNTS = [3, 0, 2, 1, 3, 2, 3, 1]


def batch_of(seed: int, vocab_size: int) -> SpecDecodeBatch:
    """Rows of bfloat16 in float32, of which half exclude some tokens, and one NaN; two requests are greedy."""
    generator = torch.Generator().manual_seed(seed)
    num_tokens, size = sum(COUNTS), len(COUNTS)
    logits = torch.randn(num_tokens, vocab_size, generator=generator).mul(3).bfloat16().float()
    logits[::2] = logits[::2].masked_fill(torch.rand(logits[::2].shape, generator=generator) < 0.4, -torch.inf)
    logits[4, 0] = torch.nan
    temperature = torch.ones(size)
    temperature[[1, 4]] = 0
    return plain_batch(
        COUNTS,
        vocab_size,
        draft_token_ids=torch.randint(-1, vocab_size, (num_tokens,), generator=generator, dtype=torch.int32),
        draft_probs=torch.rand(num_tokens, vocab_size, generator=generator),
        target_logits=logits,
        temperature=temperature,
    )


@pytest.mark.parametrize("vocab_size", [1, 2, 33, 60, 100])
def test_raw_logits_become_the_rows_of_the_batch(vocab_size: int) -> None:
    num_changed, num_rows, used = 0, 0, set()
    for seed in range(6):
        batch = batch_of(seed, vocab_size)
        seeds, positions = torch.arange(len(COUNTS)), torch.zeros(len(COUNTS), dtype=torch.int64)
        capacity, inputs = raw_step(batch, seeds, positions)
        processed = StepPlan(capacity, "cpu").processed_logits(inputs)
        rows = rows_of(batch, bonus_mask(batch))
        is_greedy = batch.is_greedy.repeat_interleave(torch.tensor(COUNTS) + 1)
        assert torch.equal(processed[~is_greedy].nan_to_num(9.5), rows[~is_greedy].nan_to_num(9.5))
        assert torch.equal(processed[is_greedy].argmax(-1), rows[is_greedy].argmax(-1))
        num_rows += len(rows)
        num_changed += int((inputs.logits != rows).any(-1).sum())
        used |= {name for name in ("filters", "penalties", "grammar") if getattr(capacity, name)}
        used |= {"edits"} if capacity.edits else set()
    assert vocab_size < 3 or num_changed > 0.5 * num_rows
    assert used >= {"penalties", "grammar", "filters"}
    assert ("edits" in used) == (1 < vocab_size <= 64)
