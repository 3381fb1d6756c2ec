"""Noise that decides by a thousandth: more than any right arithmetic may lose, less than chance would ever show.

Rounding may decide a near tie, and a sampler may decide it differently from the oracle. That freedom ends at a gap of
some float32 steps. Random noise hardly ever draws a gap of a percent, so these numbers are made for the row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from fairdraw._oracles.rejection import DraftStep, RejectionOracle
from fairdraw.protocols import ExplicitNoise
from fairdraw.strategies.rows import bulk_rng

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fairdraw.protocols import SpecDecodeBatch

GAP = 1e-3
"""Relative, between the best score and the second, and between a uniform and its ratio."""

_FEWEST = 1e-20


def close_race(weights: NDArray[np.floating], rng: np.random.Generator) -> NDArray[np.float32]:  # each [vocab_size]
    """Exponentials under which one token wins by a thousandth over another, both drawn, and clearly over the rest."""
    candidates = np.flatnonzero(weights > _FEWEST)
    exponentials = np.maximum(weights.astype(np.float64) * 1000, 1e-25)
    if candidates.size >= 2:
        winner, runner_up = rng.choice(candidates, 2, replace=False)
        exponentials[winner], exponentials[runner_up] = weights[winner], weights[runner_up] * (1 + GAP)
    return np.asarray(np.where(weights > 0, exponentials, 1.0), dtype=np.float32)


def close_steps(batch: SpecDecodeBatch, noise: ExplicitNoise, seed: int) -> ExplicitNoise:
    """Uniforms a thousandth above or below the ratio of their draft; a close race where a request is cut short."""
    rng, oracle = bulk_rng("near ties", seed), RejectionOracle()
    given = noise.uniforms.tolist()
    ratios = [_ratio(step) for step in oracle.steps(batch, noise)]
    signs = rng.choice([-GAP, GAP], size=len(ratios))
    moved = [r * (1 + s) if 0 < r * (1 + s) < 1 else u for r, s, u in zip(ratios, signs, given, strict=True)]
    uniforms = torch.tensor(moved, dtype=torch.float64, device=batch.device)
    exponentials = noise.exponentials.cpu().numpy().copy()
    steps = oracle.steps(batch, ExplicitNoise(uniforms, noise.exponentials))
    for request in range(batch.batch_size):
        cut = next((one for one in steps[batch.token_slice(request)] if not oracle.accepts(one)), None)
        if cut is not None:
            exponentials[request] = close_race(oracle.residual(cut), rng)
    return ExplicitNoise(uniforms, torch.from_numpy(exponentials).to(batch.device))


def _ratio(step: DraftStep) -> float:
    """target / draft; 0 if there is none."""
    if not step.is_token:
        return 0.0
    target_prob = float(step.target_probs[step.draft_token_id])
    draft_prob = 1.0 if step.draft_probs is None else float(step.draft_probs[step.draft_token_id])
    return target_prob / draft_prob if draft_prob > 0 else 0.0
