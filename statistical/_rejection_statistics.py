"""The statistics of the rejection contract: what is counted, what it catches, what it is blind to.

Each statistic turns rows into digits, and digits into the cells of a table. Its null is computed by applying it to all
possible outcomes (`_outcomes.enumerate_outcomes`), so it follows from the definition alone. Rows in which its event did
not occur are left out. What remains has the conditional distribution, and e-values stay valid.

Draft tokens come from the harness's own stream.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fairdraw.contracts import PLACEHOLDER_TOKEN_ID
from fairdraw.statistical._count_tables import Table, count_codes, digit_label, joint_codes
from fairdraw.statistical._outcomes import Outcomes, Rows


@dataclass(frozen=True)
class Digits:
    """What a statistic reads from each row, and in which of them its event occurred.

    Args:
        observed: Where the event occurred; `None` for everywhere.
    """

    values: tuple[NDArray[np.integer], ...]  # each [num_calls, num_rows] int
    sizes: tuple[int, ...]
    observed: NDArray[np.bool_] | None = None  # [num_calls, num_rows] bool

    def codes(self) -> NDArray[np.int64]:  # [num_observations] int64
        """One code per observation; `NO_CELL` where a digit is out of range (an id outside the vocabulary)."""
        if self.observed is None:
            return joint_codes(*(values.ravel() for values in self.values), sizes=self.sizes)
        return joint_codes(*(values[self.observed] for values in self.values), sizes=self.sizes)

    @property
    def num_cells(self) -> int:
        """Number of cells of the table."""
        return int(np.prod(self.sizes))


@dataclass(frozen=True)
class Statistic:
    """What is counted, and its null.

    Args:
        digits: From rows to what is read from them.
        words: What each digit is, for reports; none for rows of tokens.
        targets: Positions of the target distributions whose product is the null. If `None`, the null is the image of
            all outcomes.
        has_placeholder: The last digit of each place stands for "no token".
    """

    code: str
    title: str
    digits: Callable[[Rows], Digits]
    words: tuple[str, ...] = ()
    targets: tuple[int, ...] | None = None
    has_placeholder: bool = False

    def count(
        self,
        rows: Rows,
        weights: NDArray[np.int64] | None = None,  # [num_calls, num_rows] int64
    ) -> NDArray[np.int64]:  # [num_cells + 1] int64
        """The count table of observed rows; with `weights`, of rows that were observed so often."""
        digits = self.digits(rows)
        if weights is not None:
            weights = weights.ravel() if digits.observed is None else weights[digits.observed]
        return count_codes(digits.codes(), digits.num_cells, weights)

    def table(self, outcomes: Outcomes) -> Table:
        """The table of this statistic, with its null."""
        sizes = self.digits(outcomes.rows).sizes
        placeholder = outcomes.rows.vocab_size if self.has_placeholder else None
        table = self._image(outcomes) if self.targets is None else self._product(outcomes)
        return replace(table, label=digit_label(sizes, self.words, placeholder))

    def _image(self, outcomes: Outcomes) -> Table:
        """The image of the distribution of all outcomes, given the event."""
        digits = self.digits(outcomes.rows)
        codes = digits.codes()
        probs = outcomes.probs if digits.observed is None else outcomes.probs[digits.observed[0]]
        mass = np.asarray(np.bincount(codes, weights=probs, minlength=digits.num_cells), dtype=np.float64)
        possible = np.bincount(codes, minlength=digits.num_cells) > 0
        event_prob = float(mass.sum())
        given_event, event_prob = mass / (event_prob or 1.0), min(event_prob, 1.0)
        return Table(given_event, possible, observed_per_draw=event_prob, event_prob=event_prob)

    def _product(self, outcomes: Outcomes) -> Table:
        """Independent tokens, each from the target distribution of its position."""
        joint, target = np.ones(1), outcomes.request.exact_target_probs()
        for position in self.targets or ():
            joint = (joint[:, None] * target[position]).ravel()
        return Table(joint, joint > 0)


def output_row() -> Statistic:
    """S1: accepted count and all emitted tokens, jointly; the placeholder is one more digit.

    Null: `prod min(target, draft) * max(target - draft, 0)`; the row with a bonus token `... * target`.
    Catches: most faults of acceptance, recovery and bonus; malformed rows, which have probability 0.
    Blind to: anything between rows or calls, and to *which* draft was rejected.
    """

    def digits(rows: Rows) -> Digits:
        tokens = np.where(rows.tokens == PLACEHOLDER_TOKEN_ID, rows.vocab_size, rows.tokens)
        # An id equal to vocab_size must not be taken for the placeholder's digit.
        tokens = np.where(rows.tokens == rows.vocab_size, -1, tokens)
        return Digits(tuple(np.moveaxis(tokens, -1, 0)), (rows.vocab_size + 1,) * (rows.num_draft + 1))

    return Statistic("S1", "output row", digits, has_placeholder=True)


def completed_row(num_draft: int) -> Statistic:
    """S2: the row, completed by the harness with draws from the target after its last token.

    Null: the product of the target distributions, for every lossless verifier. This is losslessness itself.
    Catches: every fault that changes what users read.
    Blind to: a sampler that is fair but accepts too little, and to anything between rows or calls.
    """

    def digits(rows: Rows) -> Digits:
        tokens = np.where(rows.tokens == PLACEHOLDER_TOKEN_ID, rows.fill_token_ids, rows.tokens)
        return Digits(tuple(np.moveaxis(tokens, -1, 0)), (rows.vocab_size,) * (rows.num_draft + 1))

    return Statistic("S2", "completed row", digits, targets=tuple(range(num_draft + 1)))


def recovered_by_draft(position: int) -> Statistic:
    """S3: rejected draft token x recovered token, given the rejection at `position`.

    Null: the two are independent, `max(draft - target, 0)` and `max(target - draft, 0)`.
    Catches: recovery that shares its noise with the drafter (vLLM #54282), recovery from a wrong residual.
    Blind to: faults of acceptance that keep the odds of what is rejected.
    """

    def digits(rows: Rows) -> Digits:
        values = (rows.draft_token_ids[..., position], rows.tokens[..., position])
        return Digits(values, (rows.vocab_size,) * 2, rows.num_emitted == position + 1)

    return Statistic(
        "S3", f"rejected draft x recovered token at position {position}", digits, ("rejected", "recovered")
    )


def accepted_draft(position: int) -> Statistic:
    """S4: draft token x accepted or not, given that `position` is reached.

    Null: Bernoulli with `min(1, target / draft)` per draft token.
    Catches: a wrong acceptance ratio, token by token.
    Blind to: recovery and bonus.
    """

    def digits(rows: Rows) -> Digits:
        emitted = rows.num_emitted
        values = (rows.draft_token_ids[..., position], (emitted > position + 1).astype(np.int64))
        return Digits(values, (rows.vocab_size, 2), emitted > position)

    return Statistic("S4", f"draft token x acceptance at position {position}", digits, ("draft", "accepted"))
