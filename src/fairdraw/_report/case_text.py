"""The numbers that a case builds: a recipe is short, but debugging needs the batch."""

import dataclasses
from typing import Any

_MOST_NUMBERS = 32
"""Of a tensor that is written out; others are described."""


def batch_lines(case: Any) -> list[str]:  # Any: a case of any contract
    """A line per tensor or number of the batch and noise that `case` builds; none for an event trace."""
    parts = [getattr(case, name)() for name in ("batch", "noise") if hasattr(case, name)]
    pairs = [pair for part in parts for pair in _fields(part)]
    pairs += [("target_probs", part.target_probs()) for part in parts if hasattr(part, "target_probs")]
    return [f"  {name}: {text}" for name, value in pairs if (text := _worded(value))]


def _fields(part: Any) -> list[tuple[str, Any]]:  # Any: a batch or noise of any contract, and what it holds
    names = [field.name for field in dataclasses.fields(part)]
    return [(name, getattr(part, name)) for name in names if not name.startswith("_")]


def _worded(value: Any) -> str:  # Any: a field of a batch
    """Tensors as nested lists of four digits; empty for what is neither numbers nor `None`."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.numel() > _MOST_NUMBERS:
            return f"<{str(value.dtype).removeprefix('torch.')} {list(value.shape)}>"
        return _rounded(value.tolist())
    return _rounded(value) if value is None or isinstance(value, int | float | list | tuple) else ""


def _rounded(value: Any) -> str:  # Any: nested lists of numbers
    if isinstance(value, list | tuple):
        return f"[{', '.join(_rounded(item) for item in value)}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
