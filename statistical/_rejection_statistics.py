"""The statistics of the rejection contract: what is counted, what it catches, what it is blind to.

Each statistic turns rows into digits, and digits into the cells of a table. Its null distribution is computed by
applying it to all possible outcomes (`outcomes.enumerate_outcomes`), so it follows from the definition and the verifier
alone. Rows in which its event did not occur are left out; what remains has the conditional distribution, and e-values
stay valid.

S9, for vocabularies too large to enumerate, is in `production`. Draft tokens are the harness's; a drafter of the user's
own (`Configuration.batch(drafter=...)`) is for callers of this package, and no check has one.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from fairdraw.protocols import PLACEHOLDER_TOKEN_ID
from fairdraw.statistical._count_tables import count_codes, joint_codes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fairdraw.statistical._outcomes import Outcomes, Rows

__all__ = [
    "AcceptedCount",
    "AcceptedDraft",
    "BonusByDraft",
    "CallPairs",
    "CompletedRow",
    "EmittedByDraft",
    "OutputRow",
    "RecoveredByDraft",
    "RowPairs",
    "Statistic",
    "TableDistribution",
    "count",
]


@dataclass(frozen=True)
class Digits:
    """What a statistic sees in each row (or pair of rows), and in which of them its event occurred."""

    values: tuple[NDArray[np.integer], ...]  # each [num_calls, num_rows] int
    sizes: tuple[int, ...]
    observed: NDArray[np.bool_]  # [num_calls, num_rows] bool

    def codes(self) -> NDArray[np.int64]:  # [num_observations] int64
        """One code per observation; `NO_CELL` where a digit is none (an id outside the vocabulary)."""
        return joint_codes(*(value[self.observed] for value in self.values), sizes=self.sizes)

    @property
    def num_cells(self) -> int:
        return int(np.prod(self.sizes))


@dataclass(frozen=True)
class TableDistribution:
    """The null distribution of a table.

    Args:
        sizes: Of the digits that make a cell.
        possible: Cells whose observation is no failure by itself.
        event_prob: Probability that a row is an observation.
        rows_per_observation: 2 for pairs.
        words: What each digit is, for reports; none for rows of tokens.
        placeholder: The digit that stands for no token, reported as -1.
    """

    probs: NDArray[np.float64]  # [num_cells] float64
    possible: NDArray[np.bool_]  # [num_cells] bool
    sizes: tuple[int, ...]
    event_prob: float = 1.0
    rows_per_observation: int = 1
    words: tuple[str, ...] = ()
    placeholder: int | None = None

    def label(self, cell: int) -> str:
        """The digits of a cell, for reports: `(rejected 2, recovered 4)`."""
        found = (int(digit) for digit in np.unravel_index(cell, self.sizes))
        digits = [str(PLACEHOLDER_TOKEN_ID if digit == self.placeholder else digit) for digit in found]
        named = map(" ".join, zip(self.words, digits, strict=True)) if self.words else digits
        return f"({', '.join(named)})"


class Statistic(Protocol):
    """What is counted, and its distribution."""

    @property
    def code(self) -> str: ...
    @property
    def title(self) -> str: ...
    def digits(self, rows: Rows) -> Digits: ...
    def distribution(self, outcomes: Outcomes) -> TableDistribution: ...


def count(
    statistic: Statistic,
    rows: Rows,
    weights: NDArray[np.int64] | None = None,  # [num_calls, num_rows] int64
) -> NDArray[np.int64]:  # [num_cells + 1] int64
    """The count table of observed rows; with `weights`, of rows that were observed so often."""
    digits = statistic.digits(rows)
    return count_codes(digits.codes(), digits.num_cells, None if weights is None else weights[digits.observed])


def image_distribution(statistic: Statistic, outcomes: Outcomes, words: tuple[str, ...] = ()) -> TableDistribution:
    """The distribution of a statistic that looks at one row at a time: the image of the distribution of all
    outcomes.
    """
    digits = statistic.digits(outcomes.rows)
    codes, probs = digits.codes(), outcomes.probs[digits.observed[0]]
    mass = np.asarray(np.bincount(codes, weights=probs, minlength=digits.num_cells), dtype=np.float64)
    possible = np.bincount(codes, minlength=digits.num_cells) > 0
    event_prob = float(mass.sum())
    probs = np.asarray(mass / (event_prob or 1.0))
    return TableDistribution(probs, possible, digits.sizes, min(event_prob, 1.0), words=words)


@dataclass(frozen=True)
class OutputRow:
    """S1: accepted count and all emitted tokens, jointly; the placeholder is one more digit.

    Distribution: token verification gives `prod min(target, draft) * (target - draft)_+`, the bonus row `... * target`.
    Catches: most faults of acceptance, recovery and bonus; malformed rows, which have probability 0.
    Blind to: anything between rows or calls, and to *which* draft was rejected.
    """

    code: str = "S1"
    title: str = "output row"

    def digits(self, rows: Rows) -> Digits:
        tokens = np.where(rows.tokens == PLACEHOLDER_TOKEN_ID, rows.vocab_size, rows.tokens)
        # An id equal to vocab_size must not pass for the placeholder's digit.
        tokens = np.where(rows.tokens == rows.vocab_size, -1, tokens)
        sizes = (rows.vocab_size + 1,) * (rows.num_draft + 1)
        return Digits(tuple(np.moveaxis(tokens, -1, 0)), sizes, np.ones(tokens.shape[:-1], dtype=bool))

    def distribution(self, outcomes: Outcomes) -> TableDistribution:
        return dataclasses.replace(image_distribution(self, outcomes), placeholder=outcomes.rows.vocab_size)


@dataclass(frozen=True)
class CompletedRow:
    """S2: the row, completed by the harness with draws from the target after its last token.

    Distribution: the product of the target distributions, whatever the verifier. This is losslessness itself.
    Catches: every fault that changes what users read.
    Blind to: a sampler that is fair but accepts too little, and to anything between rows or calls.
    """

    code: str = "S2"
    title: str = "completed row"

    def digits(self, rows: Rows) -> Digits:
        tokens = np.where(rows.tokens == PLACEHOLDER_TOKEN_ID, rows.fill_token_ids, rows.tokens)
        sizes = (rows.vocab_size,) * (rows.num_draft + 1)
        return Digits(tuple(np.moveaxis(tokens, -1, 0)), sizes, np.ones(tokens.shape[:-1], dtype=bool))

    def distribution(self, outcomes: Outcomes) -> TableDistribution:
        joint = np.ones(1)
        for target in outcomes.request.exact_target_probs():
            joint = (joint[:, None] * target).ravel()
        return TableDistribution(joint, joint > 0, self.digits(outcomes.rows).sizes)


@dataclass(frozen=True)
class RecoveredByDraft:
    """S3: rejected draft token x recovered token, given the rejection at `position`.

    Distribution: under token verification the two are independent, `(draft - target)_+` and `(target - draft)_+`.
    Catches: recovery that shares its noise with the drafter (vLLM #54282), recovery from a wrong residual.
    Blind to: faults of acceptance that keep the odds of what is rejected.
    """

    position: int
    code: str = "S3"

    @property
    def title(self) -> str:
        return f"rejected draft x recovered token at position {self.position}"

    def digits(self, rows: Rows) -> Digits:
        values = (rows.draft_token_ids[..., self.position], rows.tokens[..., self.position])
        return Digits(values, (rows.vocab_size,) * 2, rows.num_emitted == self.position + 1)

    def distribution(self, outcomes: Outcomes) -> TableDistribution:
        return image_distribution(self, outcomes, ("rejected", "recovered"))


@dataclass(frozen=True)
class AcceptedCount:
    """S4: the number of accepted drafts.

    Distribution: multinomial; differs between verifiers.
    Catches: silent slow-down, ignored draft probabilities, one uniform for all positions.
    Blind to: which tokens are emitted.
    """

    code: str = "S4"
    title: str = "accepted count"

    def digits(self, rows: Rows) -> Digits:
        emitted = rows.num_emitted
        return Digits((emitted - 1,), (rows.num_draft + 1,), np.ones(emitted.shape, dtype=bool))

    def distribution(self, outcomes: Outcomes) -> TableDistribution:
        return image_distribution(self, outcomes)


@dataclass(frozen=True)
class AcceptedDraft:
    """S4: draft token x accepted or not, given that `position` is reached.

    Distribution: Bernoulli with `min(1, target / draft)` per draft token, under token verification.
    Catches: a wrong acceptance ratio, token by token; drafts that do not follow their declared distribution.
    Blind to: recovery and bonus.
    """

    position: int
    code: str = "S4"

    @property
    def title(self) -> str:
        return f"draft token x acceptance at position {self.position}"

    def digits(self, rows: Rows) -> Digits:
        emitted = rows.num_emitted
        values = (rows.draft_token_ids[..., self.position], (emitted > self.position + 1).astype(np.int64))
        return Digits(values, (rows.vocab_size, 2), emitted > self.position)

    def distribution(self, outcomes: Outcomes) -> TableDistribution:
        return image_distribution(self, outcomes, ("draft", "accepted"))


@dataclass(frozen=True)
class BonusByDraft:
    """S5: last draft token x bonus token, given that all drafts are accepted.

    Distribution: independent; the bonus token follows the target distribution after the last draft.
    Catches: a bonus token from another row or position, or one that shares its noise with the drafter.
    Blind to: rows that reject.
    """

    code: str = "S5"
    title: str = "last draft x bonus token"

    def digits(self, rows: Rows) -> Digits:
        values = (rows.draft_token_ids[..., -1], rows.tokens[..., -1])
        return Digits(values, (rows.vocab_size,) * 2, rows.num_emitted == rows.num_draft + 1)

    def distribution(self, outcomes: Outcomes) -> TableDistribution:
        return image_distribution(self, outcomes, ("last draft", "bonus"))


@dataclass(frozen=True)
class EmittedByDraft:
    """S8: draft token x emitted token, given that `position` is reached.

    Distribution: accepted drafts on the diagonal, recovered tokens off it.
    Catches: noise that depends on the draft. With the user's own drafter also overlapping random streams, and drafts
    from another distribution than declared (DeepSpec #31).
    Blind to: what happens at other positions.
    """

    position: int
    code: str = "S8"

    @property
    def title(self) -> str:
        return f"draft x emitted token at position {self.position}"

    def digits(self, rows: Rows) -> Digits:
        values = (rows.draft_token_ids[..., self.position], rows.tokens[..., self.position])
        return Digits(values, (rows.vocab_size,) * 2, rows.num_emitted > self.position)

    def distribution(self, outcomes: Outcomes) -> TableDistribution:
        return image_distribution(self, outcomes, ("draft", "emitted"))


@dataclass(frozen=True)
class RowPairs:
    """S6: first tokens of two rows of one call, `stride` apart; no row is in two pairs.

    Distribution: independent. The first token follows the target (losslessness), so this holds for every verifier.
    Catches: rows that share noise: all of them, neighbours, lanes of a warp (8, 32), rows of different blocks.
    Blind to: sharing between calls, or between rows at other distances.
    """

    stride: int
    code: str = "S6"

    @property
    def title(self) -> str:
        return f"first tokens of rows {self.stride} apart"

    def digits(self, rows: Rows) -> Digits:
        first = rows.tokens[..., 0]
        indices = np.arange(first.shape[1])
        left = indices[(indices // self.stride % 2 == 0) & (indices + self.stride < first.shape[1])]
        pairs = first[:, left], first[:, left + self.stride]
        return Digits(pairs, (rows.vocab_size,) * 2, np.ones(pairs[0].shape, dtype=bool))

    def distribution(self, outcomes: Outcomes) -> TableDistribution:
        return _independent_first_tokens(outcomes, ("one row", "the other"))


@dataclass(frozen=True)
class CallPairs:
    """S7: first tokens of the same row in two consecutive calls; no call is in two pairs.

    Distribution: independent.
    Catches: a seed or offset that does not advance from call to call.
    Blind to: streams that meet after more than one call.
    """

    code: str = "S7"
    title: str = "first tokens of consecutive calls"

    def digits(self, rows: Rows) -> Digits:
        first = rows.tokens[..., 0]
        num_pairs = len(first) // 2
        pairs = first[0 : 2 * num_pairs : 2], first[1 : 2 * num_pairs : 2]
        return Digits(pairs, (rows.vocab_size,) * 2, np.ones(pairs[0].shape, dtype=bool))

    def distribution(self, outcomes: Outcomes) -> TableDistribution:
        return _independent_first_tokens(outcomes, ("one call", "the next"))


def _independent_first_tokens(outcomes: Outcomes, words: tuple[str, ...]) -> TableDistribution:
    first = outcomes.request.exact_target_probs()[0]
    joint = (first[:, None] * first).ravel()
    return TableDistribution(joint, joint > 0, (first.size,) * 2, rows_per_observation=2, words=words)
