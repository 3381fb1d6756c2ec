"""How a scanner is called, and what counts as an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fairdraw.failures import AdapterError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fairdraw.protocols._lifecycle import LiveBatch, PenaltiesSession, RowChanges, ThinkingSession

__all__ = ["forced_by", "penalised_by", "state_of", "tell"]


def tell(session: PenaltiesSession | ThinkingSession, changes: RowChanges) -> None:
    """Say which rows changed, if any did."""
    if changes.removed or changes.added or changes.moved:
        session.sync(changes)


def penalised_by(
    session: PenaltiesSession,
    logits: Tensor,  # [num_rows, vocab_size] float32
    batch: LiveBatch,
    *,
    drafts: bool,
) -> Tensor:  # [num_rows, vocab_size] float32
    """What the session makes of a copy of `logits`.

    Raises:
        AdapterError: If that is not logits.
    """
    given = logits.clone()
    found = session.penalise_drafts(given, batch) if drafts else session.penalise(given, batch)
    if not isinstance(found, torch.Tensor) or found.shape != logits.shape or found.dtype != torch.float32:
        shown = (list(found.shape), found.dtype) if isinstance(found, torch.Tensor) else type(found).__name__
        raise AdapterError(
            f"penalise: returned {shown}, but it must be {list(logits.shape)} float32. Return the penalised logits."
        )
    return found.cpu()


def forced_by(session: ThinkingSession, batch: LiveBatch) -> dict[int, list[tuple[int, int]]]:
    """Row to forced (position, token id) in the order of positions, without rows where nothing is forced.

    Raises:
        AdapterError: If the answer is of another form.
    """
    found = session.forced(batch)
    try:
        plain = {int(row): sorted((int(position), int(token)) for position, token in pairs) for row, pairs in found.items()}
        return {row: pairs for row, pairs in plain.items() if pairs}
    except (AttributeError, TypeError, ValueError) as error:
        raise AdapterError(
            f"forced: returned {found!r}, but it must be row to pairs of position and token id. Return a dict."
        ) from error


def state_of(session: ThinkingSession) -> Mapping[int, int | None] | None:
    """Thinking tokens of each open section, if the session shows them."""
    counts: Any = getattr(session, "think_counts", None)  # Any: a method that a session may lack
    return None if counts is None else counts()
