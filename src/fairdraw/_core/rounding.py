"""How exactly processed logits must agree with the specification, as penalties and logits plans declare."""

from __future__ import annotations

from enum import StrEnum


class Rounding(StrEnum):
    """The attribute `rounding` of a penalties scanner or a logits planner; without one it is `FREE`.

    Under `FREE` a logit may lie anywhere where float32 arithmetic can leave it: operations in another order, fused,
    with a quotient or a reciprocal, in float64. The others require equal bits. The sign of a zero is never compared.
    """

    FREE = "free"
    """No requirement on rounding. Ties at the edge of a filter may go either way, and a token is forced in any way that
    leaves every other token a probability of 0."""
    VLLM_TORCH = "vllm-torch"
    """Bit for bit vLLM's torch code: one float32 rounding per operation, repetition penalties by the reciprocal, ties
    by torch's sort, 1e9 for the logit of a forced token."""
    VLLM_CUDA = "vllm-cuda"
    """As `VLLM_TORCH`, but a positive logit is divided by the repetition penalty, as by vLLM's CUDA kernel, and which
    of equal logits a filter keeps is open: torch's sort on a GPU is not stable."""

    @classmethod
    def of_vllm(cls, device: str) -> Rounding:
        """Return the rounding of vLLM's operations on `device`."""
        return cls.VLLM_TORCH if device == "cpu" else cls.VLLM_CUDA


def rounding_of(subject: object) -> Rounding:
    """What `subject` declares.

    Raises:
        ValueError: If that is no known word.
    """
    declared = getattr(subject, "rounding", Rounding.FREE)
    if declared not in tuple(Rounding):
        known = ", ".join(Rounding)
        raise ValueError(f"rounding: {declared!r}, but it must be one of {known}. Correct the word.")
    return Rounding(declared)
