"""Requests of a live batch, as the contracts with sessions meet them, and what a run says of their calls.

A scanner or a plan opens a *session*, which exists as long as a server's batch. At every step the session is given the
rows that changed, then the batch: per row the request's own output list, which the server changes in place. A sampler
may have several sessions at a time. No size is limited: neither rows, nor drafts, nor the lengths of texts.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fairdraw._core import looks
from fairdraw._core.capabilities import Capabilities, KnownDefect
from fairdraw._core.contracts import CONTRACTS
from fairdraw._core.rounding import Rounding, rounding_of
from fairdraw._core.rows import Move, RowChanges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor

    from fairdraw._core.policies import Policy


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


@dataclass(frozen=True)
class SessionSampler:
    """A function that opens sessions as a scanner or a planner.

    Args:
        function: From what its contract opens a session with to the session.
        contract: It has the method of this one, as `open_penalties`, and of no other.
        policy: What it declares, if it is not vLLM's.
    """

    name: str
    function: Callable[..., Any]  # Any: of the contract
    contract: str
    device: str = "cpu"
    capabilities: Capabilities = field(default_factory=Capabilities)
    rounding: Rounding = Rounding.FREE
    policy: Policy | None = None
    known_defects: Mapping[str, KnownDefect] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rounding", rounding_of(self))

    def __getattr__(self, name: str) -> Callable[[Any], Any]:  # Any: as above
        contract = CONTRACTS.get(vars(self).get("contract", ""))
        if contract is None or name != contract.method:
            raise AttributeError(name)
        return self.open_session

    def open_session(self, setting: Any) -> Any:  # Any: as above
        """Return a new session."""
        return self.function(setting)


# -- what a session is given ------------------------------------------------------------------------------------------

_CHANGES = ("added", "removed", "moved", "swapped", "added over another", "added and moved at once")
_LATE, _MOVED, _CUT, _REGROWN = "joined later", "changed its row", "output cut", "output regrown after a cut"
_ALL_STEPS = 6
"""Steps of a session that are all read; of later ones every fourth is, and every change of rows."""

_NO_FIELDS = ("temperature", "all_stop_token_ids")
"""Fields of parameters that are no parameters of their own."""


@dataclass
class _Followed:
    """What is remembered of a request: its list is kept, so that no other gets its identity."""

    output: Any  # Any: the live list
    events: tuple[str, ...] = ()
    length: int = 0
    row: int | None = None

    def add(self, event: str) -> None:
        if event not in self.events:
            self.events = (*self.events, event)


class SessionLook:
    """Follows one session.

    Args:
        fields: Parameters of requests that it looks at; all if `None`.
        markers: Lengths of the markers that the session was opened with.
    """

    def __init__(self, fields: tuple[str, ...] | None, markers: tuple[int, ...] = ()) -> None:
        self._fields, self._markers = fields, markers
        self._followed: dict[int, _Followed] = {}
        self._steps = self._rows = self._seen = 0
        self._last: Any = None  # Any: the batch that was looked at last

    def look(self, arguments: tuple[Any, ...]) -> looks.Look | None:  # Any: those of the session's method
        """Return what a call held; `None` if it shows nothing."""
        found = None
        for argument in arguments:
            if isinstance(argument, RowChanges):
                found = looks.Look(max(1, argument.batch_size))
                self._add_changes(found, argument)
            elif argument is not self._last and hasattr(argument, "requests"):
                self._last = argument
                self._seen += 1
                if self._seen <= _ALL_STEPS or self._seen % 4 == 0 or self._fields is None:
                    found = self._of_batch(argument, arguments)
        return found

    def _of_batch(self, batch: Any, arguments: tuple[Any, ...]) -> looks.Look:  # Any: a live batch; of the method
        requests = batch.requests
        found = looks.Look(len(requests))
        if hasattr(batch, "change"):
            self._add_changes(found, batch.change or RowChanges(len(requests)))
        self._steps += 1
        self._rows = len(requests)
        if not requests:
            return found
        logits = getattr(batch, "logits", next((one for one in arguments if hasattr(one, "stride")), None))
        if logits is not None:
            looks.add_layout(found, logits, int(logits.shape[-1]))
        found.all_have(looks.BATCH, len(requests))
        found.all_have("marker tokens", self._markers or None)
        found.each(looks.DRAFTS, [len(one.draft_token_ids) for one in requests])
        found.each(looks.PROMPT, [len(one.prompt_token_ids) for one in requests])
        outputs = [one.output_token_ids for one in requests]
        # Others than lists count how much is read of them.
        lengths = [len(output) if type(output) is list else None for output in outputs]
        found.each(looks.OUTPUT, lengths)
        each = (self._events(row, *own) for row, own in enumerate(zip(outputs, lengths, strict=True)))
        found.each(looks.EVENTS, list(each), (_LATE, _MOVED, _CUT, _REGROWN))
        ends = [type(output) is list and output[-1:] == [-1] for output in outputs]
        late = (is_end or -1 in one.draft_token_ids for one, is_end in zip(requests, ends, strict=True))
        words = ("known drafts", looks.PLACEHOLDER)
        found.each(looks.PLACEHOLDERS, [words[one] for one in late], words)
        self._add_params(found, [one.params for one in requests])
        return found.add_pairs()

    def _add_params(self, found: looks.Look, every: Sequence[Any]) -> None:  # Any: RequestParams or LogitsParams
        fields = self._fields or [one.name for one in dataclasses.fields(every[0]) if one.name not in _NO_FIELDS]
        words = tuple(name.replace("_", " ") for name in fields)
        found.each(looks.PARAMETERS, [_enabled(params, fields) for params in every], words)
        if "thinking_token_budget" in fields:
            found.each("thinking budget", [params.thinking_token_budget for params in every])
        if self._fields is None:
            heats = [params.temperature for params in every]
            looks.add_temperatures(found, [t < 1e-5 for t in heats], heats)

    def _events(self, row: int, output: Any, length: int | None) -> tuple[str, ...]:  # Any: a live list
        """Return what happened to a request until now."""
        kept = self._followed.get(id(output)) or self._begun(output)
        if row != kept.row is not None:
            kept.add(_MOVED)
        if length is not None and length < kept.length:
            kept.add(_CUT)
        elif length is not None and length > kept.length and _CUT in kept.events:
            kept.add(_REGROWN)
        kept.row, kept.length = row, length or 0
        return kept.events

    def _begun(self, output: Any, *, is_late: bool = False) -> _Followed:  # Any: a live list
        length = len(output) if type(output) is list else 0
        kept = self._followed[id(output)] = _Followed(output, (_LATE,) * is_late, length)
        return kept

    def _add_changes(self, found: looks.Look, changes: RowChanges) -> None:
        is_later = self._steps > 0
        swaps = sum(one.direction is Move.SWAP for one in changes.moved)
        happened = (
            is_later and changes.added,
            changes.removed,
            len(changes.moved) > swaps,
            swaps,
            any(one.row < self._rows for one in changes.added),
            is_later and changes.added and changes.moved,
        )
        words = tuple(word for word, is_so in zip(_CHANGES, happened, strict=True) if is_so)
        found.all_have(looks.CHANGES, words, _CHANGES)
        for one in changes.added:
            self._begun(one.output_token_ids, is_late=is_later)


def _enabled(params: Any, fields: Iterable[str]) -> tuple[str, ...]:  # Any: RequestParams or LogitsParams
    """Return the parameters that are not off; a class of parameters holds their defaults."""
    off = type(params)
    on = (name for name in fields if getattr(params, name) not in (getattr(off, name), [], {}, -1))
    return tuple(name.replace("_", " ") for name in on)
