"""Block verification of SGLang (PyPI `sglang`, tried: 0.5.23): the kernel of `sglang`, judging drafts together.

Unsupported is what `sglang` does not support, and token verification: a draft's chance depends on those before and
after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairdraw._adapters import sglang

if TYPE_CHECKING:
    from fairdraw._adapters._others import KnownSampler

__all__ = ["make"]


def make(device: str | None = None) -> KnownSampler:
    """The kernel in its other mode; raises as `sglang.make` does."""
    return sglang.make(device, block_verification=True)
