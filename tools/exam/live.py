"""Contracts of a live batch: penalties, thinking budgets and logits plans, answered by the specification.

A session keeps what it believes of each row: parameters, prompt, and the output as far as it was read. A step compares
the text that was read with the live list, forgets what is gone and reads what is new: correct whatever happened in
between. A fault is a wrong belief, or a wrong step.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from exam.examined import Examined, Lazy
from fairdraw._oracles.logits_plan import LogitsPlanOracle
from fairdraw._oracles.penalties import PenalisedRow, PenaltiesOracle, PenaltyFactors
from fairdraw.contracts import Capabilities, Move, ThinkingPolicy
from fairdraw.strategies._lifecycle_checkers import QuickThinkingOracle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fairdraw._oracles.logits_plan import Row
    from fairdraw.contracts import AddedRow, LiveBatch, LogitsBatch, Markers, PlanSetup, RowChanges


@dataclass
class Belief:
    """What a session knows of a row.

    Args:
        read: Tokens of the output that were read.
        taken: What each of them was taken for.
        extra: Tokens before them that do not belong there.
    """

    params: Any
    prompt: list[int]
    came_back: bool
    used_again: bool
    read: list[int] = field(default_factory=list)
    taken: list[list[int]] = field(default_factory=list)
    extra: list[int] = field(default_factory=list)
    age: int = 0
    moved: bool = False
    moved_before: bool = False
    cut: bool = False

    @property
    def output(self) -> list[int]:
        """The output as it is believed."""
        return [*self.extra, *chain.from_iterable(self.taken)]

    @property
    def end(self) -> list[int]:
        """The last tokens of the text: more than a marker has."""
        return [*self.prompt[-8:], *self.extra[-8:], *chain.from_iterable(self.taken[-8:])]


class Session:
    """What is kept per row, and how it follows the events of the batch."""

    def __init__(self, examined: Examined) -> None:
        self.examined, self.beliefs, self.owned = examined, dict[int, Belief](), set[int]()
        self.gone: dict[int, Belief] = {}
        self.step, self.size, self.size_before = -1, 0, 0
        self.requests: Sequence[Any] = ()

    # -- rows

    def sync(self, changes: RowChanges) -> None:
        self.requests, self.size_before, self.size = (), self.size, changes.batch_size
        for row in changes.removed:
            self.beliefs.pop(row, None)
        for added in changes.added:
            self.enter(added, self.beliefs.get(added.row) or self.gone.get(added.row))
        for source, target, direction in changes.moved:
            if self.strikes("not moved", target) and target in self.beliefs:
                continue
            there = self.beliefs.pop(target, None)
            if source in self.beliefs:
                self.beliefs[target] = self.beliefs.pop(source)
                self.beliefs[target].moved = self.beliefs[target].moved_before = True
            if direction is Move.SWAP and there is not None:
                self.beliefs[source] = there
                there.moved = there.moved_before = True

    def enter(self, added: AddedRow, former: Belief | None) -> None:
        """Take up a request; features are its own already."""
        row, prompt = added.row, list(added.prompt_token_ids)
        belief = self.beliefs[row] = Belief(added.params, prompt, len(added.output_token_ids) > 0, row in self.owned)
        self.owned.add(row)
        if former is None:
            return
        if self.strikes("left over", row):
            self.leave_over(belief, former)
        if self.strikes("old prompt", row):
            belief.prompt = former.prompt
        if self.strikes("old factors", row) or self.strikes("old budget", row):
            belief.params = former.params

    def leave_over(self, belief: Belief, former: Belief) -> None:
        """Keep what was counted for the row's former request."""
        belief.extra = [*former.prompt, *former.output]

    def begin(self, requests: Sequence[Any]) -> None:
        """Begin a step."""
        self.step, self.size, self.requests = self.step + 1, len(requests), requests

    def end(self) -> None:
        """End a step."""
        for belief in self.beliefs.values():
            belief.age, belief.moved = belief.age + 1, False
        self.size_before, self.gone = self.size, dict(self.beliefs)

    # -- texts

    def follow(self, row: int, output: Sequence[int]) -> Belief:
        """Forget what is gone, read what is new."""
        belief, now = self.beliefs[row], list(output)
        same = common(belief.read, now)
        if same < len(belief.read):
            belief.cut, lost = True, list(chain.from_iterable(belief.taken[same:]))
            del belief.taken[same:]
            if self.strikes("not taken back", row):
                (belief.taken[-1] if belief.taken else belief.extra).extend(lost)
        belief.read = now
        for token in now[same:]:
            belief.taken.append(self.taken(row, belief.end, token))
        return belief

    def taken(self, row: int, text: list[int], token: int, place: int = 0) -> list[int]:
        """Return what a token behind this text is taken for."""
        if self.strikes("missed", row, token=token):
            return []
        return [token, token] if self.strikes("twice", row, token=token) else [token]

    # -- faults

    def params(self, row: int, **more: Any) -> Any:  # Any: of the contract
        """Return the parameters of a row, or what they are taken for."""
        own = self.beliefs[row].params
        return self.examined.asked(own, self.about(row, **more)) if self.examined.asks else own

    def strikes(self, effect: str, row: int, **more: Any) -> bool:
        """Whether the fault strikes this row now."""
        return self.examined.effect == effect and bool(self.examined.hit(effect, self.about(row, **more)))

    def about(self, row: int, **more: Any) -> Lazy:
        """Return the features of a row, and some more."""
        belief = self.beliefs.get(row)
        live = self.requests[row] if row < len(self.requests) else None
        ahead = self.requests[row - 1] if 0 < row <= len(self.requests) else None
        drafts = [len(one.draft_token_ids) for one in self.requests]
        names = ("age", "used_again", "came_back", "moved", "moved_before", "cut")
        return Lazy(
            {
                "batch_size": self.size,
                "num_prompt": -1 if belief is None else len(belief.prompt),
                "num_output": -1 if live is None else len(live.output_token_ids),
                "num_drafts": -1 if live is None else len(live.draft_token_ids),
                "speculates": live is not None and len(live.draft_token_ids) > 0,
                "row": row,
                "rows_behind": self.size - 1 - row,
                "place": 0,
                "line": row + sum(drafts[:row]),
                "token": -1,
                "step": self.step,
                "late": live is not None and list(live.output_token_ids[-1:]) == [-1],
                "after_bigger": self.size_before > self.size,
                "among_drafts": sum(drafts) > (drafts[row] if row < len(drafts) else 0),
                "after_drafts": ahead is not None and len(ahead.draft_token_ids) > 0,
                "after_late": ahead is not None and list(ahead.output_token_ids[-1:]) == [-1],
                "after_new": row - 1 in self.beliefs and self.beliefs[row - 1].age == 0,
                "entered": belief is not None and belief.age == 0,
                **{name: 0 if belief is None else getattr(belief, name) for name in names},
                **self.of_params(row),
                **more,
            }
        )

    def of_params(self, row: int) -> dict[str, Any]:
        """Return the features of a row's parameters."""
        raise NotImplementedError

    def has(self, row: int, name: str, *off: Any) -> bool:
        """Whether the request has this parameter, with another value than these."""
        return row in self.beliefs and getattr(self.beliefs[row].params, name) not in (*off, None)


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    most = min(len(one), len(other))
    if list(one[:most]) == list(other[:most]):
        return most
    return next(i for i in range(most) if one[i] != other[i])


# -- penalties --------------------------------------------------------------------------------------------------------


class DividesAll(PenaltiesOracle):
    """The specification, but for negative logits, which are divided, too."""

    def repeated(self, logits: np.ndarray, repetition: np.float32) -> np.ndarray:  # [vocab_size] float32, both
        return logits * (np.float32(1) / repetition)


class PenaltySession(Session):
    """A session."""

    def __init__(self, examined: Examined, vocab_size: int) -> None:
        super().__init__(examined)
        self.vocab_size = vocab_size

    def of_params(self, row: int) -> dict[str, Any]:
        presence, frequency, repetition = self.beliefs[row].params.factors if row in self.beliefs else (0, 0, 1)
        return {
            "vocab_size": self.vocab_size,
            "has_presence": presence != 0,
            "has_frequency": frequency != 0,
            "has_repetition": repetition != 1,
            "rewards": min(presence, frequency) < 0 or repetition < 1,
        }

    def leave_over(self, belief: Belief, former: Belief) -> None:
        belief.extra = former.output

    def penalise(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [batch_size, vocab_size] float32
        self.begin(batch.requests)
        for row, request in enumerate(batch.requests):
            self.follow(row, request.output_token_ids)
        places = [(row, len(request.draft_token_ids)) for row, request in enumerate(batch.requests)]
        return self.penalised(logits, places, is_last=not batch.num_drafts)

    def penalise_drafts(self, logits: Tensor, batch: LiveBatch) -> Tensor:  # [num_tokens, vocab_size] float32
        drafts = [range(len(request.draft_token_ids)) for request in batch.requests]
        places = [(row, place) for row, own in enumerate(drafts) for place in own]
        return self.penalised(logits, places, is_last=batch.num_drafts > 0)

    def penalised(
        self, logits: Tensor, places: list[tuple[int, int]], *, is_last: bool
    ) -> Tensor:  # [n, vocab_size] float32, both
        for line, (row, place) in zip(logits, places, strict=True):
            spec = DividesAll() if self.strikes("divides", row, place=place) else PenaltiesOracle()
            line.copy_(torch.from_numpy(spec.penalise(line.numpy().copy(), self.believed(row, place))))
        if is_last:
            self.end()
        return logits

    def believed(self, row: int, place: int) -> PenalisedRow:
        """Return what penalises a row of logits."""
        drafts = list(self.requests[row].draft_token_ids)
        seen = drafts[: place + (place < len(drafts) and self.strikes("own draft", row, place=place))]
        if self.strikes("drafts unseen", row, place=place):
            seen = []
        owner = self.beliefs[row - 1 if row and self.strikes("neighbour", row, place=place) else row]
        text = [*owner.output, *seen]
        if self.strikes("once", row, place=place):
            text = list(dict.fromkeys(text))
        prompt = [] if self.strikes("prompt unseen", row, place=place) else owner.prompt
        return PenalisedRow(prompt, text, PenaltyFactors(*self.params(row, place=place).factors))


class Penalties(Examined):
    """The scanner."""

    contract = "penalties"
    capabilities = Capabilities.of({"new-tokens-only": "it compares the whole list with what it has read"})

    def open_penalties(self, vocab_size: int) -> PenaltySession:
        return PenaltySession(self, vocab_size)


# -- thinking budgets -------------------------------------------------------------------------------------------------

NO_MARKER = 1 << 40
"""An id that no marker has."""


class ThinkingSession(Session):
    """A session."""

    def __init__(self, examined: Examined, markers: Markers) -> None:
        super().__init__(examined)
        self.spec = QuickThinkingOracle(*markers, ThinkingPolicy())

    def of_params(self, row: int) -> dict[str, Any]:
        budget = self.beliefs[row].params.thinking_token_budget if row in self.beliefs else None
        lengths = {"len_start": len(self.spec.start), "len_end": len(self.spec.end)}
        return {"budget": -1 if budget is None else budget, **lengths}

    def enter(self, added: AddedRow, former: Belief | None) -> None:
        super().enter(added, former)
        belief, prompt = self.beliefs[added.row], list[int]()
        if self.examined.effect in ("end missed", "start missed"):
            for token in belief.prompt:
                prompt += self.taken(added.row, prompt[-8:], token)
            belief.prompt = prompt

    def taken(self, row: int, text: list[int], token: int, place: int = 0) -> list[int]:
        for effect, marker in (("end missed", self.spec.end), ("start missed", self.spec.start)):
            if self.examined.effect == effect and self.spec.marker_at_end([*text, token]) == marker:
                return [NO_MARKER] if self.strikes(effect, row, token=token, place=place) else [token]
        return [token]

    def forced(self, batch: LiveBatch) -> dict[int, list[tuple[int, int]]]:
        self.begin(batch.requests)
        found = {}
        for row, request in enumerate(batch.requests):
            if self.beliefs[row].params.thinking_token_budget is not None:
                found[row] = self.along(row, request)
        self.end()
        return {row: answer for row, answer in found.items() if answer}

    def along(self, row: int, request: Any) -> list[tuple[int, int]]:
        """Return what is forced at each draft and after them; placeholders stand for what is forced there."""
        known = list(request.output_token_ids)
        while known and known[-1] == -1:
            known.pop()
        belief = self.follow(row, known)
        text, answer, drafts = belief.output, list[tuple[int, int]](), request.draft_token_ids
        for _ in range(len(request.output_token_ids) - len(known)):
            forced = self.next_token(row, text, 0)
            text.append(-1 if forced is None else forced)
        for place in range(len(drafts) + 1):
            token = self.next_token(row, text, place)
            if token is not None:
                answer.append((place, token))
            if place == len(drafts) or (token is not None and drafts[place] != token):
                break
            if not self.strikes("drafts unseen", row, place=place, token=drafts[place]):
                text += self.taken(row, [*belief.prompt[-8:], *text[-8:]], drafts[place], place)
        return answer

    def next_token(self, row: int, text: list[int], place: int) -> int | None:
        """Return the token that is forced after this output."""
        budget = self.params(row, place=place).thinking_token_budget
        if row and self.strikes("neighbour", row, place=place):
            budget = self.beliefs[row - 1].params.thinking_token_budget
        token = None if budget is None else self.spec.next_token(self.beliefs[row].prompt, text, budget)
        if token is None:
            return None
        first = self.strikes("from the first", row, place=place)
        return (self.spec.end[0] if first else token) + self.strikes("wrong token", row, place=place)


class Budgets(Examined):
    """The scanner."""

    contract = "thinking_budget"
    capabilities = Capabilities.of(
        {"new-tokens-only": "it compares the whole list with what it has read", "visible-state": "it cannot be asked"}
    )

    def open_thinking(self, markers: Markers) -> ThinkingSession:
        return ThinkingSession(self, markers)


# -- logits plans -----------------------------------------------------------------------------------------------------


class Believes(LogitsPlanOracle):
    """The specification of rows as a session believes them to be."""

    def __init__(self, session: PlanSession) -> None:
        self.session = session

    def rows(self, batch: LogitsBatch, setup: PlanSetup) -> list[Row]:
        return [self.session.believed(row) for row in super().rows(batch, setup)]


class PlanSession(Session):
    """A session."""

    def __init__(self, examined: Examined, setup: PlanSetup) -> None:
        super().__init__(examined)
        self.setup, self.half, self.spec = setup, False, Believes(self)

    def of_params(self, row: int) -> dict[str, Any]:
        others = [belief.params for one, belief in self.beliefs.items() if one != row]
        greedy = row in self.beliefs and self.beliefs[row].params.temperature < 1e-5
        return {
            "vocab_size": self.setup.vocab_size,
            "half": self.half,
            "has_bias": self.has(row, "logit_bias"),
            "has_min_tokens": self.has(row, "min_tokens", 0),
            "has_bad_words": self.has(row, "bad_words_token_ids", []),
            "has_allowed": self.has(row, "allowed_token_ids"),
            "has_penalty": self.has(row, "penalised", False),
            "has_budget": self.has(row, "thinking_token_budget"),
            "has_min_p": self.has(row, "min_p", 0),
            "has_top_k": self.has(row, "top_k", 0, -1),
            "has_top_p": self.has(row, "top_p", 1),
            "greedy": greedy,
            "random": not greedy,
            "among_greedy": any(one.temperature < 1e-5 for one in others),
            "among_biased": any(one.logit_bias for one in others),
        }

    def leave_over(self, belief: Belief, former: Belief) -> None:
        belief.params = former.params

    def process(self, batch: LogitsBatch) -> Tensor:  # [num_rows, vocab_size] float32
        if batch.change:
            self.sync(batch.change)
        self.half = batch.logits.dtype != torch.float32
        self.begin(batch.requests)
        processed = self.spec.process(batch, self.setup)
        for request in range(batch.batch_size):
            if self.strikes("input written", request):
                batch.logits[batch.first_rows[request]] *= 0.5
        self.end()
        return processed

    def believed(self, row: Row) -> Row:
        """Return a row of logits as it is taken."""
        request, where = row.request, {"place": row.position, "line": row.index}
        is_other = request and self.strikes("neighbour", request, **where)
        params = self.beliefs[request - 1].params if is_other else self.params(request, **where)
        is_unseen = row.position and self.strikes("drafts unseen", request, **where)
        seen = list(row.source.output_token_ids) if is_unseen else row.seen
        return replace(row, source=replace(row.source, params=params), seen=seen)


class Planner(Examined):
    """The planner."""

    contract = "logits_plan"
    capabilities = Capabilities()

    def open_plan(self, setup: PlanSetup) -> PlanSession:
        return PlanSession(self, setup)
