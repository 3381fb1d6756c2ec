"""The one place that decides between PyTorch and Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

BackendName = Literal["triton", "torch"]
OF_KERNELS = (None, "triton")
"""Words of callers where kernels were chosen."""


def choose_backend(
    function: str, backend: BackendName | None, device: torch.device, *, place: str = "logits.device"
) -> BackendName:
    """Return the given backend; for `None`, Triton on a GPU and PyTorch elsewhere. Triton is imported only if it is
    chosen.

    Raises:
        ValueError: If there is no such backend, or Triton was chosen on a CPU and does not interpret, or on a GPU and
            does.
    """
    chosen = backend or ("triton" if device.type == "cuda" else "torch")
    if chosen not in ("triton", "torch"):
        raise ValueError(
            f"{function}: backend={backend!r}, but it must be 'triton' or 'torch'. Use None for the default."
        )
    if chosen == "triton":
        from . import kernels

        if device.type == "cpu" and not kernels.INTERPRETED:
            raise ValueError(
                f"{function}: backend='triton' and {place}=cpu, but without a GPU Triton must be in "
                f"interpreter mode. Use backend='torch', or set TRITON_INTERPRET=1 before Triton is imported."
            )
        if device.type == "cuda" and kernels.INTERPRETED:  # which has no instruction of a card
            raise ValueError(
                f"{function}: {place}={device}, but Triton is in interpreter mode, which is for tensors on the "
                f"CPU. Unset TRITON_INTERPRET, or use backend='torch'."
            )
    return chosen
