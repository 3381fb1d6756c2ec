"""SD, directed tables: output rows in the order in which a small fault of a known kind would change their probability.

A fault of one parameter, a temperature off by a percent, moves all cells of S1 a little, each by another amount. A test
over a hundred cells spends its power on a hundred directions. Here the cells are put in the order of their *score*, the
relative change of their probability per unit of the fault, and pooled to `NUM_BINS` bins of about equal probability:
five cells keep nine tenths of what the best one-dimensional test sees.

Null: the image of the distribution of all outcomes, as for every statistic: bins are sums of cells of S1, fixed before
the first draw by the null alone. So the e-value is exact, whatever the score is good for.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fairdraw.statistical._configurations import RequestDistributions
from fairdraw.statistical._count_tables import Table
from fairdraw.statistical._outcomes import Outcomes, Rows, enumerate_outcomes
from fairdraw.statistical._rejection_statistics import Digits, Statistic, output_row

NUM_BINS = 5

_STEP = 1e-3
"""Of the difference quotient that gives the scores. A score only orders cells; it need not be accurate."""


@dataclass(frozen=True, eq=False)
class Faulty(RequestDistributions):
    """A request whose sampler errs; drafts and the bonus token are drawn as they should be.

    Args:
        believed: The distributions that the sampler takes for the request's.
        accepting: Factor of the acceptance probability.
    """

    believed: RequestDistributions = field(kw_only=True)
    accepting: float = field(default=1.0, kw_only=True)

    def acceptance(self, position: int) -> NDArray[np.float64]:  # [vocab_size] float64
        return self.accepting * self.believed.acceptance(position)

    def residual(self, position: int, draft_token_id: int) -> NDArray[np.float64]:  # [vocab_size] float64
        return self.believed.residual(position, draft_token_id)

    def recoverable(self, position: int) -> NDArray[np.bool_]:  # [vocab_size] bool
        return self.believed.recoverable(position)


def _believing(request: RequestDistributions, believed: RequestDistributions) -> Faulty:
    """`request` under a sampler that takes it for another."""
    return Faulty(**vars(request), believed=believed)


def _temperature(request: RequestDistributions, step: float) -> Faulty:
    """The target's temperature is `1 + step`."""
    logits = request.target_logits.astype(np.float64)
    logits[:-1] /= 1 + step
    return _believing(request, replace(request, target_logits=logits))


def _acceptance(request: RequestDistributions, step: float) -> Faulty:
    """Drafts are accepted with `1 - step` of their probability."""
    return Faulty(**vars(request), believed=request, accepting=1 - step)


def _rare_tokens(request: RequestDistributions, step: float) -> Faulty:
    """The rarer half of the target's tokens have `1 - step` of their probability."""
    logits = request.target_logits.astype(np.float64)
    shrunk = logits + np.log1p(-step) * (logits < np.median(logits, axis=1, keepdims=True))
    shrunk[-1] = logits[-1]
    return _believing(request, replace(request, target_logits=shrunk))


def _last_tokens(request: RequestDistributions, step: float) -> Faulty:
    """The last half of the ids has `1 - step` of its target probability."""
    logits = request.target_logits.astype(np.float64)
    logits[:-1, request.vocab_size // 2 :] += np.log1p(-step)
    return _believing(request, replace(request, target_logits=logits))


def _draft_temperature(request: RequestDistributions, step: float) -> Faulty:
    """The draft probabilities that the sampler uses have temperature `1 + step`."""
    flatter = request.exact_draft_probs() ** (1 / (1 + step))
    return _believing(request, replace(request, draft_probs=flatter / flatter.sum(axis=1, keepdims=True)))


Fault = Callable[[RequestDistributions, float], Faulty]

_FAULTS: dict[str, Fault] = {
    "temperature": _temperature,
    "acceptance": _acceptance,
    "rare tokens": _rare_tokens,
    "upper half of the ids": _last_tokens,
    "draft temperature": _draft_temperature,
}


def directed_statistics(outcomes: Outcomes) -> list[Statistic]:
    """One statistic per kind of fault that would change these outcomes."""
    request, row = outcomes.request, output_row()
    faults = {name: fault for name, fault in _FAULTS.items() if not (request.one_hot and "draft" in name)}
    table = row.table(outcomes)
    found = []
    for name, fault in faults.items():
        scores = _scores(table, row.table(enumerate_outcomes(fault(request, _STEP))))
        if np.ptp(scores[table.probs > 0]) > _STEP:
            found.append(_binned(name, row, table, scores))
    return found


def _scores(right: Table, wrong: Table) -> NDArray[np.float64]:  # [num_cells] float64
    """The relative change of each cell's probability per unit of the fault; 0 for impossible cells."""
    change = np.zeros_like(right.probs)
    np.divide(wrong.probs - right.probs, _STEP * right.probs, out=change, where=right.probs > 0)
    return change


def _binned(name: str, row: Statistic, table: Table, scores: NDArray[np.float64]) -> Statistic:
    """Cells of `row` by score, `NUM_BINS` bins; impossible ones belong to none."""
    order = np.argsort(scores, kind="stable")
    middle = np.cumsum(table.probs[order]) - table.probs[order] / 2
    bins = np.full(scores.size + 1, -1, dtype=np.int64)
    bins[order] = np.minimum((middle * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    bins[:-1][~(table.possible if table.possible is not None else table.probs > 0)] = -1
    # Bins that no cell falls into are left out: a bin of probability 0 is no cell.
    used = np.unique(bins[bins >= 0])
    numbered = np.where(bins >= 0, np.searchsorted(used, bins), -1)

    def digits(rows: Rows) -> Digits:
        seen = row.digits(rows)
        codes = replace(seen, observed=np.ones(rows.tokens.shape[:-1], dtype=np.bool_)).codes()
        return Digits((numbered[codes].reshape(rows.tokens.shape[:-1]),), (used.size,))

    return Statistic("SD", f"output row by its score for {name}", digits, ("score",))
