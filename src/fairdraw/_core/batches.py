"""What the batches of all contracts of single calls can do."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Batch:
    """Named tensors. Subclasses are dataclasses without a `__repr__` of their own.

    Args:
        origin: Code that builds this batch; printed instead of the numbers.
    """

    origin: str | None = field(default=None, kw_only=True)
    _over_vocabulary: ClassVar[str] = "logits"
    """The tensor whose last dimension is the vocabulary."""

    @property
    def vocab_size(self) -> int:
        return int(getattr(self, self._over_vocabulary).shape[-1])

    @property
    def device(self) -> torch.device:
        found: torch.device = getattr(self, self._over_vocabulary).device
        return found

    def replace(self, **changes: Any) -> Self:  # Any: one field each, checked by the constructor's users
        """A copy with some fields replaced; its printed origin is dropped."""
        return dataclasses.replace(self, **{"origin": None, **changes})

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the batch by its name."""
        values = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        return {name: value for name, value in values if hasattr(value, "is_contiguous")}

    def clone(self) -> Self:
        """The same values in new memory; dense strides are kept (`Tensor.clone`)."""
        return self.replace(**{name: value.clone() for name, value in self.tensors().items()}, origin=self.origin)

    def to(self, device: str | torch.device) -> Self:
        """The same batch on another device (itself, if it is there already)."""
        return self.replace(**{name: value.to(device) for name, value in self.tensors().items()}, origin=self.origin)

    def __repr__(self) -> str:
        if self.origin is not None:
            return self.origin
        shown = ((f.name, _literal(getattr(self, f.name))) for f in dataclasses.fields(self) if f.name != "origin")
        kind = next(kind for kind in type(self).__mro__ if Batch in kind.__bases__)  # strategies draw a subclass
        return f"{kind.__name__}({', '.join(f'{name}={value}' for name, value in shown)})"


class RequestRows:
    """The rows of a step with drafts: a request with `n` drafts owns `n + 1` consecutive ones."""

    requests: Any  # Any: a tuple of requests of the contract

    @property
    def batch_size(self) -> int:
        return len(self.requests)

    @property
    def num_draft_tokens(self) -> list[int]:
        return [len(request.draft_token_ids) for request in self.requests]

    @property
    def first_rows(self) -> list[int]:
        """Per request."""
        counts = self.num_draft_tokens
        return [sum(counts[:i]) + i for i in range(len(counts))]


def _literal(value: Any) -> str:  # Any: printed, never used
    """Small tensors as code, large ones by shape."""
    if not hasattr(value, "numel"):
        return repr(value)
    if value.numel() <= 64:
        numbers = str(value.tolist()).replace("inf", "torch.inf").replace("nan", "torch.nan")
        shape = f".reshape({list(value.shape)})" if value.numel() == 0 else ""
        return f"torch.tensor({numbers}, dtype={value.dtype}){shape}"
    return f"<{value.dtype} {list(value.shape)}>"


def rows_of(rows: Sequence[int], device: torch.device) -> Tensor:  # [len(rows)] int64
    """Row numbers as an index."""
    import torch

    return torch.tensor(list(rows), dtype=torch.int64, device=device)
