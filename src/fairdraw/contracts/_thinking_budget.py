"""The thinking-budget contract: a scanner follows the requests of a live batch, and forces thoughts to an end.

session = scanner.open_thinking(markers)
session.sync(changes); session.forced(batch)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from fairdraw._core.capabilities import AnySampler
from fairdraw._core.contracts import Contract
from fairdraw._core.policies import Policy
from fairdraw._core.rows import RowChanges
from fairdraw.contracts._live import LiveBatch, SessionLook


@dataclass(frozen=True)
class ThinkingPolicy(Policy):
    """What a thinking budget does with an end marker that was begun, and with later sections.

    Args:
        begun_end: What becomes of an end marker that was begun, in its section, before the budget was spent.
            * `"restarted"`: begun end restarted: once the budget is spent, the whole marker is forced (vLLM V1,
              llama.cpp)
            * `"finished"`: begun end finished: once the budget is spent, the rest of the marker is forced (vLLM V2,
              SGLang)
            * `"uncounted"`: begun end uncounted: once the thoughts before it have spent the budget, the rest of the
              marker is forced; its own tokens spend nothing (TensorRT-LLM's pull request 18617)
        later_sections: What a section may spend that opens after the output has ended one, by force or not.
            * `"budgeted"`: later sections budgeted: each has the whole budget (vLLM, llama.cpp)
            * `"free"`: later sections free: they have no budget (SGLang, older llama.cpp)
            * `"shared"`: later sections share the budget: they have what is left of it, so that after an end that was
              forced the next is forced at once
    """

    begun_end: Literal["restarted", "finished", "uncounted"] = "restarted"
    later_sections: Literal["budgeted", "free", "shared"] = "budgeted"


class Markers(NamedTuple):
    """Token sequences that open and close a thinking section."""

    start: tuple[int, ...]
    end: tuple[int, ...]


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
class ThinkingScanner(AnySampler, Protocol):
    """A scanner under the thinking-budget contract. Any object with these attributes is one; do not subclass.

    A section opens after the start marker and closes after the end marker, wherever the text ends with one; of two that
    end at the same token the longer one counts. In the prompt the last of several start markers counts; in the output
    the first one, and later ones are thinking tokens. Once the budget is spent, the end marker is forced from its first
    token on. Tokens of it that already stand at the end of the text are not repeated if they came after the budget was
    spent; if they came before, they are thinking tokens. A placeholder at the end stands for the token that was forced
    there, or for a thinking token. A scanner that does otherwise with begun markers or later sections, and is right,
    says so by its attribute `policy` (`ThinkingPolicy`).
    """

    def open_thinking(self, markers: Markers) -> ThinkingSession: ...


CONTRACT = Contract(
    "thinking_budget",
    call="open_thinking(markers)",
    case="fairdraw.strategies.lifecycle:ThinkingTrace",
    raised="THK100",
    answer="a dict: row to pairs of (position, token id)",
    policy=ThinkingPolicy,
    session=lambda markers: SessionLook(("thinking_token_budget",), tuple(map(len, markers))),
)
