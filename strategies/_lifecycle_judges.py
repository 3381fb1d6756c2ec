"""Who compares: after every event a judge asks the scanner and the specification, and says where they differ."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NoReturn, Protocol

import numpy as np
import torch

from fairdraw._core.failures import CheckFailure
from fairdraw._core.seeds import derive_seed
from fairdraw._oracles.intervals import Intervals, alike
from fairdraw._oracles.penalties import PenalisedRow, PenaltyFactors, penalised_intervals, penalties_oracle
from fairdraw._oracles.thinking_budget import ThinkingBudgetOracle
from fairdraw.protocols import Rounding, rounding_of
from fairdraw.strategies._lifecycle_harness import (
    OpenPenalties,
    OpenThinking,
    forced_by,
    open_penalties,
    open_thinking,
    penalised_by,
    state_of,
    tell,
)
from fairdraw.strategies._lifecycle_world import CountedTokens, trailing_placeholders

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from fairdraw.protocols._lifecycle import (
        LiveBatch,
        LiveRequest,
        Markers,
        PenaltiesScanner,
        RowChanges,
        ThinkingScanner,
    )

__all__ = ["Judge", "PenaltiesJudge", "ReadingJudge", "ThinkingJudge", "num_read"]


class Judge(Protocol):
    """Looks at the batch after every event; raises `CheckFailure` where a promise is broken."""

    def look(self, changes: RowChanges, batch: LiveBatch, num_new: int) -> None:
        """`num_new`: tokens, drafts and repaired placeholders since the last look."""
        ...


class PenaltiesJudge:
    """Penalised logits are those of a recount from scratch or of a reference scanner.

    They agree bit for bit if the scanner declares a rounding, and up to rounding if it does not.

    Args:
        reference: Compared with instead of the oracle's recount.
    """

    def __init__(self, scanner: PenaltiesScanner, vocab_size: int, reference: PenaltiesScanner | None = None) -> None:
        self.session = open_penalties(scanner, vocab_size)
        self.against = open_penalties(reference, vocab_size) if reference else None
        self.name, self.device = (reference.name if reference else "the recount"), scanner.device
        self.rounding = rounding_of(scanner)
        self.oracle = penalties_oracle(self.rounding)
        self.vocab_size = vocab_size

    def look(self, changes: RowChanges, batch: LiveBatch, num_new: int) -> None:
        tell(self.session, changes)
        if self.against:
            tell(self.against, changes)
        if batch.requests:
            self.compare(batch, drafts=False)
        if batch.num_drafts:
            self.compare(batch, drafts=True)

    def compare(self, batch: LiveBatch, *, drafts: bool) -> None:
        """One row of logits per request, or one per draft."""
        logits = _some_logits(batch.num_drafts if drafts else len(batch.requests), self.vocab_size)
        found = penalised_by(self.session, logits.to(self.device), batch, drafts=drafts).numpy()
        rows = self.rows(batch, drafts)
        if self.against:
            expected = penalised_by(self.against, logits, batch, drafts=drafts).numpy()
        else:
            expected = np.stack([self.oracle.penalise(*pair) for pair in zip(logits.numpy(), rows, strict=True)])
        apart, right = self.right(logits.numpy(), rows, found, expected)
        if not right.all():
            row, token_id = np.argwhere(~right)[0].tolist()
            _broken(
                f"{'draft' if drafts else 'bonus'} row {row}, token {token_id}: {found[row, token_id]:.9g}, but "
                f"{self.name} has {expected[row, token_id]:.9g} (before: {logits[row, token_id]:.9g}; rounding may "
                f"change {apart[row, token_id]:.2g}; {int((~right).sum())} logits differ)"
            )

    def rows(self, batch: LiveBatch, drafts: bool) -> list[PenalisedRow]:
        """What each row of logits is penalised for."""
        rows: list[PenalisedRow] = []
        for request in batch.requests:
            row, own = _penalised_row(request), request.draft_token_ids
            rows += self.oracle.draft_rows(row, own) if drafts else [self.oracle.bonus_row(row, own)]
        return rows

    def right(
        self,
        logits: NDArray[np.float32],  # [num_rows, vocab_size] float32
        rows: list[PenalisedRow],
        found: NDArray[np.float32],  # [num_rows, vocab_size] float32
        expected: NDArray[np.float32],  # [num_rows, vocab_size] float32
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:  # [num_rows, vocab_size] float64 and bool
        """How far from `expected` a right answer may be, and whether each logit is right."""
        same = alike(found, expected)
        if self.rounding is not Rounding.FREE or same.all():
            return np.zeros(found.shape), same
        each = [penalised_intervals(Intervals.exactly(one), row) for one, row in zip(logits, rows, strict=True)]
        may_be = Intervals(np.stack([one.low for one in each]), np.stack([one.high for one in each]))
        return may_be.width, alike(found, expected, may_be.width) if self.against else may_be.hold(found)


class ThinkingJudge:
    """Forced tokens, as read off the whole text or as a reference has them.

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
        self.session = open_thinking(scanner, markers)
        self.against = open_thinking(reference, markers) if reference else None
        self.name = reference.name if reference else "the recount"
        self.oracle = ThinkingBudgetOracle(markers.start, markers.end)

    def look(self, changes: RowChanges, batch: LiveBatch, num_new: int) -> None:
        tell(self.session, changes)
        if self.against:
            tell(self.against, changes)
        found = forced_by(self.session, batch)
        expected = forced_by(self.against, batch) if self.against else self.recount(batch)
        for row in sorted(found.keys() | expected.keys()):
            if found.get(row, []) != expected.get(row, []):
                _broken(
                    f"row {row}: forced (position, token)={found.get(row, [])}, but {self.name} has "
                    f"{expected.get(row, [])}"
                )
        if self.state:
            self.compare_state(batch)

    def recount(self, batch: LiveBatch) -> dict[int, list[tuple[int, int]]]:
        """What the specification forces."""
        forced = {row: self._forced(request) for row, request in enumerate(batch.requests)}
        return {row: pairs for row, pairs in forced.items() if pairs}

    def _forced(self, request: LiveRequest) -> list[tuple[int, int]]:
        budget = request.params.thinking_token_budget
        return self.oracle.forced(request.prompt_token_ids, _plain(request), tuple(request.draft_token_ids), budget)

    def compare_state(self, batch: LiveBatch) -> None:
        """Thinking tokens of each request with a budget."""
        counts = state_of(self.session)
        for row, request in enumerate(batch.requests if counts is not None else ()):
            budget = request.params.thinking_token_budget
            if budget is not None and counts is not None:
                known = self.oracle.known(request.prompt_token_ids, _plain(request), budget)
                expected = self.oracle.think_count(request.prompt_token_ids, known)
                if counts.get(row) != expected:
                    _broken(f"row {row}: {counts.get(row)} thinking tokens, but the recount has {expected}")


class ReadingJudge:
    """Counts what another judge's scanner reads; compares nothing.

    A step may read twice what is new, and a few more tokens per row: what it read last, or as much as a marker is long.
    New is also what was new before and not read yet, and every placeholder at the end of an output: whoever does not
    read it again cannot know that it has become a token.
    """

    PER_TOKEN, PER_ROW = 2, 12

    def __init__(self, session: OpenPenalties | OpenThinking, vocab_size: int = 0, device: str = "cpu") -> None:
        self.session, self.vocab_size, self.device = session, vocab_size, device
        self.unread = 0

    def look(self, changes: RowChanges, batch: LiveBatch, num_new: int) -> None:
        before = num_read(batch)
        tell(self.session, changes)
        if self.vocab_size:
            self._penalise(batch)
        else:
            forced_by(self.session, batch)  # type: ignore[arg-type]
        num_due = self.unread + num_new
        pending = sum(trailing_placeholders(_plain(request)) for request in batch.requests)
        read, most = num_read(batch) - before, self.PER_TOKEN * (num_due + pending) + self.PER_ROW * len(batch.requests)
        self.unread = max(0, num_due - read)
        if read > most:
            longest = max(len(request.output_token_ids) for request in batch.requests)
            _broken(
                f"{read} tokens were read in a step with {num_due} unread ones and outputs of up to {longest}; at most "
                f"{most} may be"
            )

    def _penalise(self, batch: LiveBatch) -> None:
        for drafts, num_rows in ((False, len(batch.requests)), (True, batch.num_drafts)):
            if num_rows:
                logits = _some_logits(num_rows, self.vocab_size).to(self.device)
                penalised_by(self.session, logits, batch, drafts=drafts)  # type: ignore[arg-type]


def num_read(batch: LiveBatch) -> int:
    """Tokens read from the output lists so far."""
    return sum(r.output_token_ids.num_read for r in batch.requests if isinstance(r.output_token_ids, CountedTokens))


def _broken(effect: str) -> NoReturn:
    raise CheckFailure(effect)


def _plain(request: LiveRequest) -> tuple[int, ...]:
    """The output, without being counted."""
    tokens = request.output_token_ids
    return tuple(tokens.data if isinstance(tokens, CountedTokens) else tokens)


def _penalised_row(request: LiveRequest) -> PenalisedRow:
    params = request.params
    factors = PenaltyFactors(params.presence_penalty, params.frequency_penalty, params.repetition_penalty)
    return PenalisedRow(request.prompt_token_ids, _plain(request), factors)


@lru_cache(maxsize=256)
def _some_logits(num_rows: int, vocab_size: int) -> Tensor:  # [num_rows, vocab_size] float32
    """Normal numbers, some of them zeros of both signs, infinite or not numbers; always the same."""
    rng = np.random.default_rng(derive_seed("logits of a lifecycle", num_rows, vocab_size))
    drawn = rng.standard_normal((num_rows, vocab_size)).astype(np.float32)
    odd = rng.random(drawn.shape) < 0.1
    drawn[odd] = rng.choice(np.array([-np.inf, np.inf, 0.0, -0.0, np.nan], np.float32), int(odd.sum()))
    return torch.from_numpy(drawn)
