"""Samplers that do it differently and are right: the suite must leave them in peace."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairdraw._oracles.rejection import DraftStep, RejectionOracle
from fairdraw.protocols import (
    Capability,
    ExplicitNoise,
    Noise,
    RejectionSampler,
    SeededNoise,
    SpecDecodeBatch,
    rejection_sampler,
)
from fairdraw.strategies.rows import bulk_rng

__all__ = ["ODD_BUT_RIGHT"]

Row = NDArray[np.float32]

_OWN_RACE: dict[str, str] = {
    Capability.REFERENCE_RACE: "recovers by another method from the same numbers",
    Capability.UPSTREAM_STREAM: "tokens differ from upstream's",
}
_OWN_NOISE: dict[str, str] = {
    Capability.EXPLICIT_NOISE: "hashes its numbers from seed, request and position",
    Capability.REFERENCE_RACE: "takes no noise",
    Capability.UPSTREAM_STREAM: "uses no torch generator",
}


class _RecoversEagerly(RejectionOracle):
    """Every position's recovered token is computed before anything is accepted, as vLLM does."""

    def random_request(self, steps: list[DraftStep], bonus_token_id: int) -> list[int]:
        recovered = [self.recovered_token(step) for step in steps]
        accepted = [self.accepts(step) for step in steps]
        if all(accepted):
            return [*(step.draft_token_id for step in steps), bonus_token_id]
        first = accepted.index(False)
        return [*(step.draft_token_id for step in steps[:first]), recovered[first]]


class _GoesThroughRequestsBackwards(RejectionOracle):
    """The last request first, each in a batch of its own."""

    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        given = self.draw_noise(batch, noise) if isinstance(noise, SeededNoise) else noise
        rows = [
            super(_GoesThroughRequestsBackwards, self).verify(batch.select([i]), given.select(batch, [i]))
            for i in reversed(range(batch.batch_size))
        ]
        return torch.cat(rows[::-1])


class _RacesInFloat64(RejectionOracle):
    """Divides instead of multiplying with a reciprocal, and does not round."""

    def race(self, weights: Row, exponentials: Row) -> int:
        return int(np.argmax(np.where(weights > 0, weights / exponentials.astype(np.float64), -1)))


class _InvertsTheCdf(RejectionOracle):
    """Recovers by the residual's inverse CDF, with a uniform made of the first exponential."""

    def race(self, weights: Row, exponentials: Row) -> int:
        sums = np.cumsum(weights.astype(np.float64))
        uniform = -math.expm1(-float(exponentials[0]))
        drawn = int(np.searchsorted(sums, uniform * sums[-1], side="right"))
        return min(drawn, int(np.flatnonzero(weights)[-1]))


class _HashesItsNoise(RejectionOracle):
    """A counter in place of a generator: every number is a function of seed and request. Other draws, the same
    distribution.
    """

    def draw_noise(self, batch: SpecDecodeBatch, noise: SeededNoise) -> ExplicitNoise:
        uniforms, exponentials = [], []
        for request, count in enumerate(batch.num_draft_tokens):
            own = noise.request_seeds.get(request)
            rng = bulk_rng("own", own) if own is not None else bulk_rng("call", noise.seed, request)
            uniforms.append(rng.random(count))
            exponentials.append(np.maximum(rng.exponential(size=batch.vocab_size), 1e-8))
        return ExplicitNoise(
            torch.tensor(np.concatenate(uniforms), dtype=torch.float64, device=batch.device),
            torch.tensor(np.stack(exponentials), dtype=torch.float32, device=batch.device),
        )


class _SamplesAndCompares(_HashesItsNoise):
    """Draws a token from the target at each position and accepts the draft if it is that token (exact match)."""

    def accepts(self, step: DraftStep) -> bool:
        has_distribution = bool((step.target_probs > 0).any())
        return has_distribution and step.draft_token_id == self.sampled_token(step)

    def recovered_token(self, step: DraftStep) -> int:
        return self.sampled_token(step)

    def sampled_token(self, step: DraftStep) -> int:
        if not (step.target_probs > 0).any():
            return 0
        return _InvertsTheCdf().race(step.target_probs, np.array([-math.log1p(-step.uniform)], np.float32))


def _refuse_strided(batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    for name, tensor in batch.tensors().items():
        if not tensor.is_contiguous():
            raise ValueError(
                f"verify: {name}.stride()={tensor.stride()}, but it must be contiguous. Use .contiguous()."
            )
    return RejectionOracle().verify(batch, noise)


_SAMPLES: dict[str, str] = _OWN_NOISE | {
    Capability.DENSE_DRAFTS: "accepts by exact match, so a draft distribution has no say",
    Capability.SYNTHETIC_RATES: "accepts by exact match",
}

ODD_BUT_RIGHT: tuple[RejectionSampler, ...] = (
    rejection_sampler(_RecoversEagerly().verify, name="recovers eagerly"),
    rejection_sampler(_GoesThroughRequestsBackwards().verify, name="goes through requests backwards"),
    rejection_sampler(_refuse_strided, name="refuses strided inputs by name"),
    rejection_sampler(_RacesInFloat64().verify, name="races in float64", unsupported=_OWN_RACE),
    rejection_sampler(_InvertsTheCdf().verify, name="inverts the CDF", unsupported=_OWN_RACE),
    rejection_sampler(_HashesItsNoise().verify, name="hashes its noise", unsupported=_OWN_NOISE),
    rejection_sampler(_SamplesAndCompares().verify, name="samples and compares", unsupported=_SAMPLES),
)
"""Right samplers of other making, with the capabilities that their making closes."""
