"""What can happen to a live batch: plain data that prints as code. Any sequence of events is a valid event trace.

An event that applies to nothing (a `Finish` of an empty batch) does nothing, and row numbers are taken modulo the
batch. So events can be dropped and reordered freely, which is how a failing trace shrinks.
"""

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import PLACEHOLDER_TOKEN_ID, RequestParams
from fairdraw.strategies._recipe import Recipe
from fairdraw.strategies._serving_batch import ServingBatch

Tokens = tuple[int, ...]


@lru_cache(maxsize=512)
def bulk_tokens(size: int, vocab_size: int, distinct: int, seed: int) -> tuple[int, ...]:
    """`size` tokens of the upper three quarters of the vocabulary: ids of markers are below.

    Args:
        distinct: How many different ones at most; 0 for any number.

    Randomness:
        From the arguments alone.
    """
    if not size:
        return ()
    rng = np.random.default_rng(derive_seed("tokens of a request", size, vocab_size, distinct, seed))
    known = rng.integers(vocab_size // 4, vocab_size, size=distinct or size)
    return tuple((rng.choice(known, size) if distinct else known).tolist())


@dataclass(frozen=True, repr=False)
class Event(Recipe):
    """One event. After it the scanner runs a step and is checked, unless the event is `held`.

    Args:
        held: There is no step after this event: its changes reach the scanner together with the next event's.
    """

    tag = "event"
    held: bool = field(default=False, kw_only=True)

    def apply(self, batch: ServingBatch) -> None:
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class Add(Event):
    """A request enters. With an `output` it was begun elsewhere; a -1 in it is never repaired.

    Args:
        head: The beginning of the prompt.
        more_prompt: So many tokens from `seed` stand between `head` and `prompt`.
        more_output: So many stand before those of `output`.
        distinct: Of these tokens; 0 for any number, 1 for one token again and again.
        again: It takes the name of the request that finished last.
    """

    prompt: Tokens = ()
    output: Tokens = ()
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    budget: int | None = None
    head: Tokens = ()
    more_prompt: int = 0
    more_output: int = 0
    distinct: int = 0
    seed: int = 0
    again: bool = False

    def apply(self, batch: ServingBatch) -> None:
        prompt = self.head + bulk_tokens(self.more_prompt, batch.vocab_size, self.distinct, self.seed) + self.prompt
        output = bulk_tokens(self.more_output, batch.vocab_size, self.distinct, self.seed + 1) + self.output
        batch.add(self.params, prompt, output, again=self.again)

    @property
    def params(self) -> RequestParams:
        return RequestParams(self.presence, self.frequency, self.repetition, self.budget)


@dataclass(frozen=True, repr=False)
class _OfRow(Event):
    row: int = 0

    def apply(self, batch: ServingBatch) -> None:
        row = batch.at(self.row)
        if row is not None:
            self.apply_to(batch, row)

    def apply_to(self, batch: ServingBatch, row: int) -> None:
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class Finish(_OfRow):
    """A request leaves for good. The last request moves into its row, unless a new one does."""

    def apply_to(self, batch: ServingBatch, row: int) -> None:
        batch.finish(row)


@dataclass(frozen=True, repr=False)
class Preempt(_OfRow):
    """A request leaves to make room, and waits."""

    def apply_to(self, batch: ServingBatch, row: int) -> None:
        batch.preempt(row)


@dataclass(frozen=True, repr=False)
class Resume(Event):
    """The preempted request that waits longest returns with its tokens, in another list object if asynchronous."""

    same_list: bool = True

    def apply(self, batch: ServingBatch) -> None:
        batch.resume(same_list=self.same_list)


@dataclass(frozen=True, repr=False)
class CarryOn(_OfRow):
    """A streaming session: the output becomes part of the prompt, and the request is added again."""

    def apply_to(self, batch: ServingBatch, row: int) -> None:
        batch.carry_on(row)


@dataclass(frozen=True, repr=False)
class Renew(_OfRow):
    """The request is removed and added again in one step; what was known of it does not count any more.

    Args:
        same_list: With its output list, or with another list of the same content.
        changed: Its parameters become those that follow.
        presence: Its new presence penalty.
        frequency: Its new frequency penalty.
        repetition: Its new repetition penalty.
        budget: Its new thinking budget.
    """

    same_list: bool = True
    changed: bool = False
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    budget: int | None = None

    def apply_to(self, batch: ServingBatch, row: int) -> None:
        params = RequestParams(self.presence, self.frequency, self.repetition, self.budget)
        batch.renew(row, params if self.changed else None, same_list=self.same_list)


@dataclass(frozen=True, repr=False)
class Swap(_OfRow):
    """Two rows change places."""

    other: int = 1

    def apply_to(self, batch: ServingBatch, row: int) -> None:
        other = batch.at(self.other)
        if other is not None:
            batch.swap(row, other)


@dataclass(frozen=True, repr=False)
class Decode(Event):
    """Every request emits its first `accepted` drafts and a token; the other drafts were rejected.

    Args:
        tokens: One per row; rows beyond its end emit 0, and `None` emits nothing (a part of a prompt, discarded).
        accepted: Of the drafts, per row; rows beyond its end accept none.
        late: Asynchronous scheduling: placeholders stand for the tokens, as many as could be emitted at most.
    """

    tokens: tuple[int | None, ...] = ()
    accepted: Tokens = ()
    late: bool = False

    def apply(self, batch: ServingBatch) -> None:
        for row, request in enumerate(batch.requests):
            token_id = self.tokens[row] if row < len(self.tokens) else 0
            drafts = request.draft_token_ids
            accepted = drafts[: self.accepted[row] if row < len(self.accepted) else 0]
            if token_id is None:
                batch.emit(request, [])
                continue
            emitted = [*(0 if i == PLACEHOLDER_TOKEN_ID else i for i in accepted), *batch.ids([token_id])]
            batch.emit(request, emitted, num_late=len(drafts) + 1 if self.late else 0)


@dataclass(frozen=True, repr=False)
class Repair(Event):
    """Late ids arrive: placeholders become tokens, and those of rejected drafts are dropped."""

    def apply(self, batch: ServingBatch) -> None:
        for request in batch.requests:
            batch.repair(request)


@dataclass(frozen=True, repr=False)
class Draft(Event):
    """A speculative step begins: drafts per row, -1 for one that is not known yet; rows beyond its end have none."""

    drafts: tuple[Tokens, ...] = ()

    def apply(self, batch: ServingBatch) -> None:
        for row, request in enumerate(batch.requests):
            batch.draft(request, self.drafts[row] if row < len(self.drafts) else ())


@dataclass(frozen=True, repr=False)
class Cut(_OfRow):
    """The KV cache of the last tokens was lost: they are removed from the output."""

    count: int = 1

    def apply_to(self, batch: ServingBatch, row: int) -> None:
        batch.cut(batch.in_row(row), self.count)


@dataclass(frozen=True, repr=False)
class Regrow(_OfRow):
    """Tokens are lost and others come before the scanner looks again; there is always a step before and after.

    The token where the scanner stopped to read becomes another one, so whoever compares that one notices.
    """

    count: int = 1
    tokens: Tokens = (0,)

    def apply_to(self, batch: ServingBatch, row: int) -> None:
        batch.regrow(batch.in_row(row), self.count, batch.ids(self.tokens))


@dataclass(frozen=True, repr=False)
class Replace(_OfRow):
    """The row gets another list object without a report; no contract allows that, so it must be noticed.

    Args:
        reported: The change is reported after all, as a request that is added again.
    """

    output: Tokens = ()
    reported: bool = False

    def apply_to(self, batch: ServingBatch, row: int) -> None:
        batch.replace_list(row, batch.ids(self.output), reported=self.reported)


Event.others = (
    *(Add, Finish, Preempt, Resume, CarryOn, Renew, Swap),
    *(Decode, Repair, Draft, Cut, Regrow, Replace),
)
