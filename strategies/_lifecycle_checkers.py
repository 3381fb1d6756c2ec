"""After every event a checker runs the scanner under test and the specification, and reports where they differ."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from fairdraw._core.array_types import Rows32
from fairdraw._core.failures import AdapterError, CheckFailure, calling
from fairdraw._core.seeds import derive_seed
from fairdraw._core.tensor_types import LogitRows
from fairdraw._oracles.intervals import Intervals, alike
from fairdraw._oracles.penalties import PenalisedRow, PenaltyFactors, penalised_intervals, penalties_oracle
from fairdraw._oracles.thinking_budget import ThinkingBudgetOracle, Thoughts
from fairdraw.contracts import PenaltyPolicy, Rounding, ThinkingPolicy, policy_of, rounding_of
from fairdraw.strategies._serving_batch import CountedTokens, plain_tokens, trailing_placeholders

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from fairdraw.contracts import LiveBatch, Markers, PenaltiesScanner, RowChanges, ThinkingScanner


Forced = dict[int, list[tuple[int, int]]]
"""Row to forced (position, token id)."""
Answers = list[tuple["Tensor", "Tensor"]]
"""Tensors that a session returned, each with a copy."""


@dataclass(frozen=True)
class OpenSession:
    """A session and the scanner that opened it. Whatever the session raises is attributed to that scanner."""

    scanner: Any  # Any: of either contract, as is its session
    session: Any

    @staticmethod
    def of_penalties(scanner: PenaltiesScanner, vocab_size: int) -> OpenSession:
        with calling(scanner):
            return OpenSession(scanner, scanner.open_penalties(vocab_size))

    @staticmethod
    def of_thinking(scanner: ThinkingScanner, markers: Markers) -> OpenSession:
        with calling(scanner):
            return OpenSession(scanner, scanner.open_thinking(markers))

    def sync(self, changes: RowChanges) -> None:
        """Report changed rows, if there are any."""
        if changes:
            with calling(self.scanner):
                self.session.sync(changes)

    def penalise(self, logits: LogitRows, batch: LiveBatch, *, drafts: bool) -> LogitRows:
        """The penalised copy of `logits`, on the host.

        Raises:
            AdapterError: If the session returns something else than such logits.
        """
        given = logits.to(self.scanner.device, copy=True)
        with calling(self.scanner):
            found = (self.session.penalise_drafts if drafts else self.session.penalise)(given, batch)
        if not isinstance(found, torch.Tensor) or found.shape != logits.shape or found.dtype != torch.float32:
            shown = (list(found.shape), found.dtype) if isinstance(found, torch.Tensor) else type(found).__name__
            raise AdapterError(
                f"penalise: returned {shown}, but it must be {list(logits.shape)} float32. Return the penalised logits."
            )
        with calling(self.scanner):  # an error of its kernel surfaces where the result is waited for
            return found.cpu()

    def forced(self, batch: LiveBatch) -> Forced:
        """Forced tokens in the order of positions, without rows where nothing is forced.

        Raises:
            AdapterError: If the answer has another form.
        """
        with calling(self.scanner):
            found = self.session.forced(batch)
        try:
            with calling(self.scanner):  # the answer may be an object of its own, too
                plain = {int(row): sorted((int(i), int(token)) for i, token in pairs) for row, pairs in found.items()}
            return {row: pairs for row, pairs in plain.items() if pairs}
        except (AttributeError, TypeError, ValueError) as error:
            raise AdapterError(
                f"forced: returned {found!r}, but it must be row to pairs of position and token id. Return a dict."
            ) from error

    def think_counts(self) -> Mapping[int, int | None] | None:
        """Thinking tokens of each open section; `None` if the session does not show them."""
        with calling(self.scanner):
            counts: Any = getattr(self.session, "think_counts", None)  # Any: a method that a session may lack
            return None if counts is None else counts()


class Checker(Protocol):
    """Checks a scanner after every event; raises `CheckFailure` where a requirement is broken."""

    def check(self, changes: RowChanges, batch: LiveBatch, num_new: int) -> None:
        """`num_new`: tokens, drafts and repaired placeholders since the last call."""
        ...


class ComparingChecker:
    """Compares a session with a reference's, or with a recount from scratch."""

    session: OpenSession
    against: OpenSession | None

    def check(self, changes: RowChanges, batch: LiveBatch, num_new: int) -> None:
        self.report(changes)
        self.require_kept(self.look(batch))

    def report(self, changes: RowChanges) -> None:
        """Tell every session which rows changed."""
        self.session.sync(changes)
        if self.against:
            self.against.sync(changes)

    def look(self, batch: LiveBatch) -> Answers:
        """Compare the answers to a step."""
        raise NotImplementedError

    def require_kept(self, answers: Answers, place: str = "") -> None:
        """The answers of a look are still what they were, though there were other calls since."""
        for answer, copy in answers:
            if not alike(answer.numpy(), copy.numpy()).all():
                raise CheckFailure(f"{place}logits that were returned earlier have changed in a later call")


class PenaltiesChecker(ComparingChecker):
    """Penalised logits equal those of a recount from scratch, or of a reference scanner.

    They are compared bit for bit if the scanner declares a rounding, and up to rounding if not.

    Args:
        reference: Compared with instead of the oracle's recount.
    """

    def __init__(self, scanner: PenaltiesScanner, vocab_size: int, reference: PenaltiesScanner | None = None) -> None:
        self.session = OpenSession.of_penalties(scanner, vocab_size)
        self.against = OpenSession.of_penalties(reference, vocab_size) if reference else None
        self.name = reference.name if reference else "the recount"
        self.rounding = rounding_of(scanner)
        self.oracle = penalties_oracle(self.rounding, policy_of(scanner, PenaltyPolicy))
        self.vocab_size = vocab_size
        self.num_looks = 0

    def look(self, batch: LiveBatch) -> Answers:
        """Compare the logits of a step; each step has other logits, or an answer of the last one would do."""
        self.num_looks += 1
        return [
            self.compare(_some_logits(num_rows, self.vocab_size, self.num_looks), batch, drafts)
            for drafts, num_rows in _rows_of(batch)
        ]

    def compare(self, logits: LogitRows, batch: LiveBatch, drafts: bool) -> tuple[LogitRows, LogitRows]:
        """One row of logits per request, or one per draft; returns the answer and a copy."""
        given, rows = logits.numpy(), self.rows(batch, drafts)
        answer = self.session.penalise(logits, batch, drafts=drafts)
        found = answer.numpy()
        if self.against:
            expected = self.against.penalise(logits, batch, drafts=drafts).numpy()
        else:
            expected = np.stack([self.oracle.penalise(*pair) for pair in zip(given, rows, strict=True)])
        apart, right = self.agreement(given, rows, found, expected)
        if not right.all():
            row, token_id = np.argwhere(~right)[0].tolist()
            raise CheckFailure(
                f"{'draft' if drafts else 'bonus'} row {row}, token {token_id}: {found[row, token_id]:.9g}, but "
                f"{self.name} has {expected[row, token_id]:.9g} (before: {given[row, token_id]:.9g}; rounding may "
                f"change {apart[row, token_id]:.2g}; {int((~right).sum())} logits differ)"
            )
        return answer, answer.clone()

    def rows(self, batch: LiveBatch, drafts: bool) -> list[PenalisedRow]:
        """The tokens and factors that penalise each row of logits."""
        rows: list[PenalisedRow] = []
        for request in batch.requests:
            output, factors = plain_tokens(request.output_token_ids), PenaltyFactors(*request.params.factors)
            row, own = PenalisedRow(request.prompt_token_ids, output, factors), request.draft_token_ids
            rows += self.oracle.draft_rows(row, own) if drafts else [self.oracle.bonus_row(row, own)]
        return rows

    def agreement(
        self, logits: Rows32, rows: list[PenalisedRow], found: Rows32, expected: Rows32
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:  # [num_rows, vocab_size] float64 and bool
        """How far from `expected` a correct answer may be, and whether each logit is correct."""
        same = alike(found, expected)
        apart = np.zeros(found.shape)
        for row in np.flatnonzero(~same.all(1)) if self.rounding is Rounding.FREE else ():
            may_be = penalised_intervals(Intervals.exactly(logits[row]), rows[row], self.oracle.policy)
            apart[row] = may_be.width
            same[row] = alike(found[row], expected[row], may_be.width) if self.against else may_be.hold(found[row])
        return apart, same


_BLOCK = 128


class QuickThinkingOracle(ThinkingBudgetOracle):
    """The specification, quick enough for texts of thousands of tokens that grow step by step.

    What each block of tokens leaves is remembered by the tokens before it.
    """

    def __init__(self, start_token_ids: Sequence[int], end_token_ids: Sequence[int], policy: ThinkingPolicy) -> None:
        super().__init__(start_token_ids, end_token_ids, policy)
        self.reach = max(len(self.start), len(self.end))
        self._settled = lru_cache(maxsize=512)(self.thoughts)

    def thoughts(self, text: tuple[int, ...], num_prompt: int) -> Thoughts:
        known = max(0, (len(text) - 1) // _BLOCK * _BLOCK)
        before = self._settled(text[:known], min(num_prompt, known)) if known > 0 else Thoughts()
        return self.read(before, text, known, num_prompt)


class ThinkingChecker(ComparingChecker):
    """Forced tokens equal those that follow from the whole text, or those of a reference.

    Args:
        state: Compare the thinking tokens that the session shows, too.
    """

    def __init__(
        self,
        scanner: ThinkingScanner,
        markers: Markers,
        reference: ThinkingScanner | None = None,
        *,
        state: bool = False,
    ) -> None:
        self.state = state
        self.session = OpenSession.of_thinking(scanner, markers)
        self.against = OpenSession.of_thinking(reference, markers) if reference else None
        self.name = reference.name if reference else "the recount"
        self.oracle = QuickThinkingOracle(markers.start, markers.end, policy_of(scanner, ThinkingPolicy))

    def look(self, batch: LiveBatch) -> Answers:
        """Compare what is forced in a step."""
        found = self.session.forced(batch)
        expected = self.against.forced(batch) if self.against else self.recount(batch)
        for row in sorted(found.keys() | expected.keys()):
            ours, theirs = found.get(row, []), expected.get(row, [])
            if ours != theirs:
                raise CheckFailure(f"row {row}: forced (position, token)={ours}, but {self.name} has {theirs}")
        if self.state:
            self.compare_state(batch)
        return []  # forced tokens are read at once; there is nothing to keep

    def recount(self, batch: LiveBatch) -> Forced:
        """What the specification forces."""
        forced: Forced = {}
        for row, request in enumerate(batch.requests):
            output, budget = plain_tokens(request.output_token_ids), request.params.thinking_token_budget
            forced[row] = self.oracle.forced(request.prompt_token_ids, output, request.draft_token_ids, budget)
        return forced

    def compare_state(self, batch: LiveBatch) -> None:
        """Thinking tokens of each request with a budget."""
        counts = self.session.think_counts()
        for row, request in enumerate(batch.requests if counts is not None else ()):
            prompt, budget = request.prompt_token_ids, request.params.thinking_token_budget
            if budget is not None and counts is not None:
                known = self.oracle.known(prompt, plain_tokens(request.output_token_ids), budget)
                expected = self.oracle.think_count(prompt, known)
                if counts.get(row) != expected:
                    raise CheckFailure(f"row {row}: {counts.get(row)} thinking tokens, but the recount has {expected}")


class ReadingChecker:
    """Counts what a scanner reads; compares nothing.

    A step may read twice what is new, and a few more tokens per row: what it read last, or as much as a marker is long.
    New is also what earlier steps did not read, and every placeholder at the end of an output: a scanner that does not
    read it again cannot know that it has become a token.
    """

    PER_TOKEN, PER_ROW = 2, 12

    def __init__(self, session: OpenSession, vocab_size: int = 0) -> None:
        """`vocab_size` is 0 under the thinking-budget contract."""
        self.session, self.vocab_size = session, vocab_size
        self.unread = 0

    def check(self, changes: RowChanges, batch: LiveBatch, num_new: int) -> None:
        before = num_read(batch)
        self.session.sync(changes)
        if self.vocab_size:
            for drafts, num_rows in _rows_of(batch):
                self.session.penalise(_some_logits(num_rows, self.vocab_size), batch, drafts=drafts)
        else:
            self.session.forced(batch)
        num_due = self.unread + num_new
        pending = sum(map(trailing_placeholders, batch.output_token_ids))
        read, most = num_read(batch) - before, self.PER_TOKEN * (num_due + pending) + self.PER_ROW * len(batch.requests)
        self.unread = max(0, num_due - read)
        if read > most:
            longest = max(map(len, batch.output_token_ids))
            raise CheckFailure(
                f"{read} tokens were read in a step with {num_due} unread ones and outputs of up to {longest}; the "
                f"limit is {most}"
            )


def num_read(batch: LiveBatch) -> int:
    """Tokens read from the output lists so far."""
    return sum(tokens.num_read for tokens in batch.output_token_ids if isinstance(tokens, CountedTokens))


def _rows_of(batch: LiveBatch) -> list[tuple[bool, int]]:
    """The calls of a step: for draft rows or not, and for how many rows."""
    calls = ((False, len(batch.requests)), (True, batch.num_drafts))
    return [(drafts, num_rows) for drafts, num_rows in calls if num_rows]


def _some_logits(num_rows: int, vocab_size: int, look: int = 0) -> LogitRows:
    """Rows of a pool, other ones in each look; a long batch has some of them twice."""
    pool = _pool(vocab_size)
    return pool[(torch.arange(num_rows) + look) % len(pool)]


@lru_cache(maxsize=16)
def _pool(vocab_size: int) -> LogitRows:
    """Normal numbers, a tenth of them zeros of both signs, infinite, not numbers, tiny or huge; always the same."""
    num_rows = 61 if vocab_size <= 1 << 14 else 7
    rng = np.random.default_rng(derive_seed("logits of a lifecycle", vocab_size))
    drawn = rng.standard_normal((num_rows, vocab_size)).astype(np.float32)
    odd = rng.random(drawn.shape) < 0.1
    drawn[odd] = rng.choice(np.array(_ODD_LOGITS, np.float32), int(odd.sum()))
    return torch.from_numpy(drawn)


_ODD_LOGITS = (-np.inf, np.inf, 0.0, -0.0, np.nan, 88.5, -120.25, 1e30, -1e30, 1e-30)
