"""The penalties and thinking-budget contracts: scanners that follow the requests of a live batch.

A scanner opens a *session*, which exists as long as a server's batch. At every step the session is given the rows that
changed, then the batch: per row the request's own output list, which the server changes in place. A scanner may have
several sessions at a time. No size is limited: neither rows, nor drafts, nor the lengths of texts.

    penalties        session = scanner.open_penalties(vocab_size)
                     session.sync(changes); session.penalise(logits, batch); session.penalise_drafts(logits, batch)
    thinking budget  session = scanner.open_thinking(markers)
                     session.sync(changes); session.forced(batch)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fairdraw.protocols._capabilities import Capabilities


@dataclass(frozen=True)
class RequestParams:
    """Parameters of a request, under the names of vLLM's `SamplingParams`; these defaults change nothing.

    Args:
        thinking_token_budget: Thinking tokens until the end is forced; `None` for no limit.
    """

    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    thinking_token_budget: int | None = None

    @property
    def factors(self) -> tuple[float, float, float]:
        """Presence, frequency and repetition penalty."""
        return self.presence_penalty, self.frequency_penalty, self.repetition_penalty

    @property
    def penalised(self) -> bool:
        return self.factors != (0, 0, 1)


@dataclass(eq=False)
class LiveRequest:
    """One request of the batch.

    Args:
        req_id: Its name; a request that is preempted and returns keeps it.
        params: `RequestParams`; `LogitsParams` under the logits-plan contract.
        output_token_ids: The server's own sequence, the same object while the request is in the batch; -1 stands for a
            token that is still on the device. It can be sliced, iterated and indexed. It is not a `list` in a check
            that counts how much is read.
        draft_token_ids: Of this step; -1 for a draft that is not known yet.
    """

    req_id: str
    params: Any
    prompt_token_ids: list[int]
    output_token_ids: Sequence[int]
    draft_token_ids: list[int] = field(default_factory=list)


class Move(Enum):
    """How a row moved; members are named as those of vLLM's `MoveDirectionality`."""

    UNIDIRECTIONAL = 0
    """Into a row whose request is gone. As in vLLM, `RowChanges.removed` need not name that row."""
    SWAP = 1
    """Both requests changed places."""


@dataclass(frozen=True)
class SeedParams:
    """What is reported to a sampler of a request that enters; all else comes with every batch.

    Args:
        seed: The request's own, as long as it is served, if draws are keyed by (seed, position); else `None`.
    """

    seed: int | None = None


class AddedRow(NamedTuple):
    """A request that entered the batch, new or again; it takes the place of whatever was in its row."""

    row: int
    params: Any  # Any: RequestParams; LogitsParams under the logits-plan contract, SeedParams of samplers
    prompt_token_ids: list[int]
    output_token_ids: Sequence[int]


class MovedRow(NamedTuple):
    """A request, or two, in other rows than before."""

    source: int
    target: int
    direction: Move


@dataclass(frozen=True)
class RowChanges:
    """What happened to the rows since the last step, to be followed in the order of the fields.

    It has the fields of vLLM's `BatchUpdate`, so code that takes one takes the other. It is false if no row changed.
    """

    batch_size: int
    removed: tuple[int, ...] = ()
    added: tuple[AddedRow, ...] = ()
    moved: tuple[MovedRow, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.removed or self.added or self.moved)


def all_added(requests: Sequence[Any]) -> RowChanges:  # Any: a LiveRequest or LogitsRequest
    """The changes of a session's first step: every request is added, in the order of the rows."""
    rows = (AddedRow(i, r.params, r.prompt_token_ids, r.output_token_ids) for i, r in enumerate(requests))
    return RowChanges(len(requests), added=tuple(rows))


SyncFunction = Callable[[RowChanges], None]
"""What a sampler does with row events; the optional method `sync` of a sampler."""


def follows_rows(sampler: object) -> bool:
    """Whether `sampler` keeps something by row, and wants to know what happens to its rows (a method `sync`)."""
    return callable(getattr(sampler, "sync", None))


@dataclass(frozen=True, eq=False)
class LiveBatch:
    """The batch at one step: its requests in the order of their rows."""

    requests: tuple[LiveRequest, ...]

    @property
    def output_token_ids(self) -> list[Sequence[int]]:
        """The live lists, one per row."""
        return [request.output_token_ids for request in self.requests]

    @property
    def draft_token_ids(self) -> list[list[int]]:
        """The drafts of this step, one list per row."""
        return [request.draft_token_ids for request in self.requests]

    @property
    def num_drafts(self) -> int:
        return sum(map(len, self.draft_token_ids))

    def factors(self, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:  # each [batch_size] float32
        """Presence, frequency and repetition penalties."""
        import torch

        columns = [[r.params.factors[i] for r in self.requests] for i in range(3)]
        presence, frequency, repetition = (torch.tensor(c, dtype=torch.float32, device=device) for c in columns)
        return presence, frequency, repetition


class Markers(NamedTuple):
    """Token sequences that open and close a thinking section."""

    start: tuple[int, ...]
    end: tuple[int, ...]


class PenaltiesSession(Protocol):
    """Penalties of one live batch. It must not modify token lists."""

    def sync(self, changes: RowChanges) -> None:
        """Rows changed. Called at most once per step, before the rest of it."""
        ...

    def penalise(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [batch_size, vocab_size] float32, both
        """One row per request, which sees the output and all drafts. In place, or a new tensor."""
        ...

    def penalise_drafts(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [num_tokens, vocab_size] float32, both
        """One row per draft token, which sees the output and the drafts before it; after `penalise` in each step, whose
        answer must stay as it is."""
        ...


class ThinkingSession(Protocol):
    """Thinking budgets of one live batch. It must not modify token lists.

    A session may have a method `think_counts()`: row to thinking tokens in the open section (`None` outside of one),
    for each request with a budget. It is then checked, too (capability `visible-state`).
    """

    def sync(self, changes: RowChanges) -> None:
        """Rows changed. Called at most once per step, before the rest of it."""
        ...

    def forced(self, batch: LiveBatch) -> dict[int, list[tuple[int, int]]]:
        """Row to what its next tokens must be: (position, token id), position 0 for the first draft, the number of
        drafts for the bonus token. Nothing is forced after a draft that cannot be accepted."""
        ...


@runtime_checkable
class PenaltiesScanner(Protocol):
    """A scanner under the penalties contract. Any object with these attributes is one; do not subclass.

    A logit of a token in prompt or output is divided by the repetition penalty if it is positive, and multiplied by it
    if not. Then the frequency penalty times the count in the output is subtracted, and the presence penalty if that
    count is not 0. No rounding is required, and other logits stay as they are. A scanner that documents its bits has an
    attribute `rounding` (`Rounding`). One that does otherwise, and is right, says so by its attribute `policy`
    (`PenaltyPolicy`).
    """

    @property
    def name(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def capabilities(self) -> Capabilities: ...
    def open_penalties(self, vocab_size: int) -> PenaltiesSession: ...


@runtime_checkable
class ThinkingScanner(Protocol):
    """A scanner under the thinking-budget contract. Any object with these attributes is one; do not subclass.

    A section opens after the start marker and closes after the end marker, wherever the text ends with one; of two that
    end at the same token the longer one counts. In the prompt the last of several start markers counts; in the output
    the first one, and later ones are thinking tokens. Once the budget is spent, the end marker is forced from its first
    token on. Tokens of it that already stand at the end of the text are not repeated if they came after the budget was
    spent; if they came before, they are thinking tokens. A placeholder at the end stands for the token that was forced
    there, or for a thinking token. A scanner that does otherwise with begun markers or later sections, and is right,
    says so by its attribute `policy` (`ThinkingPolicy`).
    """

    @property
    def name(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def capabilities(self) -> Capabilities: ...
    def open_thinking(self, markers: Markers) -> ThinkingSession: ...
