"""How a scanner is called, and what counts as an answer. What it raises is marked as its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fairdraw._core.failures import AdapterError, calling

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fairdraw.protocols._lifecycle import (
        LiveBatch,
        Markers,
        PenaltiesScanner,
        PenaltiesSession,
        RowChanges,
        ThinkingScanner,
        ThinkingSession,
    )

__all__ = [
    "OpenPenalties",
    "OpenThinking",
    "forced_by",
    "open_penalties",
    "open_thinking",
    "penalised_by",
    "state_of",
    "tell",
]


@dataclass(frozen=True)
class OpenPenalties:
    """A penalties session, and the scanner that opened it and answers for it."""

    scanner: PenaltiesScanner
    session: PenaltiesSession


@dataclass(frozen=True)
class OpenThinking:
    """A thinking-budget session, and the scanner that opened it and answers for it."""

    scanner: ThinkingScanner
    session: ThinkingSession


def open_penalties(scanner: PenaltiesScanner, vocab_size: int) -> OpenPenalties:
    """Open a session of `scanner`."""
    with calling(scanner):
        return OpenPenalties(scanner, scanner.open_penalties(vocab_size))


def open_thinking(scanner: ThinkingScanner, markers: Markers) -> OpenThinking:
    """Open a session of `scanner`."""
    with calling(scanner):
        return OpenThinking(scanner, scanner.open_thinking(markers))


def tell(opened: OpenPenalties | OpenThinking, changes: RowChanges) -> None:
    """Say which rows changed, if any did."""
    if changes.removed or changes.added or changes.moved:
        with calling(opened.scanner):
            opened.session.sync(changes)


def penalised_by(
    opened: OpenPenalties,
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
    with calling(opened.scanner):
        session = opened.session
        found = session.penalise_drafts(given, batch) if drafts else session.penalise(given, batch)
    if not isinstance(found, torch.Tensor) or found.shape != logits.shape or found.dtype != torch.float32:
        shown = (list(found.shape), found.dtype) if isinstance(found, torch.Tensor) else type(found).__name__
        raise AdapterError(
            f"penalise: returned {shown}, but it must be {list(logits.shape)} float32. Return the penalised logits."
        )
    with calling(opened.scanner):  # the error of a kernel of theirs surfaces where its result is waited for
        return found.cpu()


def forced_by(opened: OpenThinking, batch: LiveBatch) -> dict[int, list[tuple[int, int]]]:
    """Row to forced (position, token id) in the order of positions, without rows where nothing is forced.

    Raises:
        AdapterError: If the answer is of another form.
    """
    with calling(opened.scanner):
        found = opened.session.forced(batch)
    try:
        with calling(opened.scanner):  # the answer may be an object of theirs, too
            plain = {
                int(row): sorted((int(position), int(token)) for position, token in pairs)
                for row, pairs in found.items()
            }
        return {row: pairs for row, pairs in plain.items() if pairs}
    except (AttributeError, TypeError, ValueError) as error:
        raise AdapterError(
            f"forced: returned {found!r}, but it must be row to pairs of position and token id. Return a dict."
        ) from error


def state_of(opened: OpenThinking) -> Mapping[int, int | None] | None:
    """Thinking tokens of each open section, if the session shows them."""
    with calling(opened.scanner):
        counts: Any = getattr(opened.session, "think_counts", None)  # Any: a method that a session may lack
        return None if counts is None else counts()
