"""Faults too small for sampling at an interpreter's budget; stratified noise, which leaves no chance, shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fairdraw._mutants._distribution_sampler import DistributionSampler, Floats, mutant_distribution
from fairdraw._mutants._mutant import Mutant

if TYPE_CHECKING:
    from fairdraw.protocols import SpecDecodeBatch

__all__ = ["STRATIFIED_MUTANTS"]


class _TakesNoise(DistributionSampler):
    """Declines nothing: its numbers may come from the caller."""

    unsupported: ClassVar[dict[str, str]] = {}


@mutant_distribution("DIST601", "DIST611")
class AcceptsNineteenInTwenty(_TakesNoise):
    """A twentieth of what should be accepted is rejected."""

    def acceptance(self, target: Floats, draft: Floats) -> Floats:
        return np.asarray(np.float32(0.95) * np.minimum(target / draft, 1))


@mutant_distribution("DIST602", "DIST612")
class FlattensTheResidual(_TakesNoise):
    """The temperature is applied to the residual once more, at 1.1."""

    def residual(self, target: Floats, draft: Floats) -> Floats:
        return np.asarray(super().residual(target, draft) ** (1 / 1.1))


@mutant_distribution("DIST611", "DIST601", "DIST602", "DIST612", min_draws=4_000)
class TemperatureTwoPercentOffInFewDraws(_TakesNoise):
    """Temperature 1.02, as after a division in half precision; sampling needs 200000 draws to see it."""

    def target(self, batch: SpecDecodeBatch) -> Floats:
        return np.asarray((batch.target_logits / 1.02).softmax(dim=-1).numpy())


@mutant_distribution("DIST601", min_draws=50_000)
class DraftDistributionInBfloat16(_TakesNoise):
    """The draft distribution is kept in bfloat16, and drafts were drawn before it was rounded."""

    def draft(self, draft: Floats) -> Floats:
        bits = draft.view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
        return rounded.astype(np.uint32).view(np.float32)


STRATIFIED_MUTANTS: tuple[Mutant, ...] = tuple(value for value in list(vars().values()) if isinstance(value, Mutant))
