"""Adaptive verification of vLLM's model runner V2: which drafts its batch has room for (tried: 0.33.0).

`OnlineAcceptanceEstimator` scores each draft row, and `_assign_draft_token_budget` gives a budget to the drafts of the
largest survival. Both are called as `DraftModelSpeculator` and `AdaptiveVerificationManager` call them, before any
refit; the budget, which the manager takes from measured costs, is half of the drafts.
"""

import importlib.util
import sys
from types import ModuleType

import torch
from torch import Tensor

from fairdraw.adapters import quiet_floats
from fairdraw.contracts import ProposedDrafts, TrimFunction
from fairdraw_engines._others import import_vllm, vllm_module

_SCORES, _BUDGET = (f"worker.gpu.spec_decode.{name}" for name in ("acceptance_estimator", "adaptive_verification"))
_VISION = "einops"
"""A package that the second module imports by way of vLLM's vision attention; the function that is called has no use
for it."""


def trim_of(device: str) -> TrimFunction | None:
    """Return the rule of the importable release; `None` if it has none, or scores drafts by a trained model alone."""
    is_stand_in = importlib.util.find_spec(_VISION) is None
    if is_stand_in:
        sys.modules[_VISION] = ModuleType(_VISION)
    try:
        import_vllm(device, _SCORES, _BUDGET)
    except ImportError:
        return None
    finally:
        if is_stand_in:
            del sys.modules[_VISION]
    return trim


def trim(drafts: ProposedDrafts) -> Tensor:  # [batch_size] int32
    """Return how many drafts of each request are admitted. All requests have equally many."""
    batch_size, num_steps = drafts.batch_size, max(drafts.num_draft_tokens)
    rows = drafts.draft_probs.log().view(batch_size, num_steps, -1) * drafts.temperature[:, None, None]
    requests = torch.arange(batch_size, dtype=torch.int32, device=drafts.device)
    estimator = vllm_module(_SCORES).OnlineAcceptanceEstimator(batch_size, num_steps, drafts.device)
    confidence = torch.empty((batch_size, num_steps), device=drafts.device)
    with quiet_floats():
        for step in range(num_steps):
            number = torch.tensor(step, device=drafts.device)
            estimator.predict(rows[:, step].contiguous(), requests, number, confidence, drafts.temperature)
    admitted = torch.tensor(drafts.num_draft_tokens, dtype=torch.int32, device=drafts.device)
    budget = sum(drafts.num_draft_tokens) // 2
    vllm_module(_BUDGET)._assign_draft_token_budget(confidence, requests.long(), admitted, budget, num_steps)
    return admitted
