"""A hundred million draws of the compiled kernels against their exact distribution, per kind of draft."""

from __future__ import annotations

import math
from typing import Any

import torch

from fairdraw.sampler_impl import rejection_counter

VOCAB_SIZE = 12
BATCH_SIZE = 1 << 20
KINDS = ("probs", "logits", "logits+lse", "one-hot", "bonus row")


def judge(num_calls: int = 96) -> list[dict[str, Any]]:  # Any: JSON
    """Chi-square of the first output token of each request: accepted or recovered (or drawn from the bonus row)."""
    rows = []
    for kind in KINDS:
        counts = torch.zeros(VOCAB_SIZE, dtype=torch.int64, device="cuda")
        target = torch.linspace(-2.0, 1.5, VOCAB_SIZE, device="cuda").cos().mul(2)
        for call in range(num_calls):
            counts += _first_tokens(kind, target, call)
        wanted = target.double().softmax(-1) * counts.sum()
        statistic = float(((counts - wanted) ** 2 / wanted).sum())
        # Wilson and Hilferty: the cube root is nearly normal.
        freedom = VOCAB_SIZE - 1
        z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
        p_value = 0.5 * math.erfc(z / math.sqrt(2))
        rows.append(
            {"kind": kind, "draws": int(counts.sum()), "chi_square": round(statistic, 2), "p": round(p_value, 4)}
        )
        print("distribution", rows[-1], flush=True)
    return rows


def _first_tokens(
    kind: str,
    target: torch.Tensor,  # [vocab_size] float32
    call: int,
) -> torch.Tensor:  # [vocab_size] int64
    """Counts of the first token of each request in one call."""
    noise = torch.Generator("cuda").manual_seed(call)
    drafts = 0 if kind == "bonus row" else 1
    num_tokens = drafts * BATCH_SIZE
    draft = torch.linspace(1.0, -1.0, VOCAB_SIZE, device="cuda").sin().mul(1.5)
    distribution = draft.softmax(-1) if kind != "one-hot" else torch.full_like(draft, 1 / VOCAB_SIZE)
    ids = distribution.expand(BATCH_SIZE, -1).multinomial(1, generator=noise)[:num_tokens, 0].int()
    many = draft.expand(num_tokens, -1).contiguous()
    distributions: dict[str, Any] = {  # Any: keyword arguments
        "probs": {"draft_probs": many.softmax(-1)},
        "logits": {"draft_logits": many},
        "logits+lse": {"draft_logits": many, "draft_logsumexp": many.logsumexp(-1)},
    }
    output = rejection_counter.rejection_sample(
        ids,
        torch.arange(1, BATCH_SIZE + 1, dtype=torch.int32, device="cuda") * drafts,
        drafts,
        target.expand(BATCH_SIZE, -1).contiguous(),
        torch.ones(BATCH_SIZE, device="cuda"),
        torch.full((BATCH_SIZE,), 7, device="cuda"),
        torch.arange(BATCH_SIZE, device="cuda") + 2 * call * BATCH_SIZE,
        bonus_token_ids=torch.zeros(BATCH_SIZE, 1, dtype=torch.int32, device="cuda") if drafts else None,
        workspace=rejection_counter.make_workspace(BATCH_SIZE, drafts, VOCAB_SIZE, "cuda"),
        **distributions.get(kind, {}),
    )
    return output[:, 0].bincount(minlength=VOCAB_SIZE)
