"""What an answer of the engine shows: plugin on against off, and tokens against the engine's own distributions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fairdraw._core.seeds import derive_seed
from fairdraw.statistical._decision import Verdict, decide
from fairdraw.statistical._design import SamplePlan, plan_tables
from fairdraw.statistical._pit import Order, PitCells, randomised_pit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from fairdraw.statistical._count_tables import Table
    from fairdraw.statistical._decision import Decision

Arrays = dict[str, np.ndarray]

FALSE_ALARM_RATE = 1e-6
"""Of one answer, all tables together."""

SUM_TOLERANCE = 1e-3
"""By how much the returned probabilities of a token may miss 1: float32 logarithms of a whole vocabulary."""


# -- on against off ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """Requests of two engines, each of which ran all of them twice.

    Args:
        itself: Requests in which the plain engine equals itself, tokens and log-probabilities, bit for bit.
        equal: Those of them in which both runs with the plugin equal it, too.
        different: Numbers of the others of these.
    """

    requests: int
    tokens: int
    itself: int
    equal: int
    different: tuple[int, ...]

    @property
    def conclusion(self) -> str:
        if not self.itself:
            return "nothing can be concluded: the plain engine equals itself in no request"
        if self.different:
            return f"DIFFERENT in requests {', '.join(map(str, self.different[:8]))}"
        if rest := self.requests - self.itself:
            return f"equal; nothing is said of {rest} requests in which the plain engine differs from itself"
        return "equal"


def compare(off: Mapping[str, np.ndarray], on: Mapping[str, np.ndarray]) -> Comparison:
    """Request by request: tokens, listed ids and log-probabilities."""
    numbers = range(int(off["request"].max()) + 1)
    plain = [number for number in numbers if _same(_rows(off, 0, number), _rows(off, 1, number))]
    with_plugin = {n: all(_same(_rows(off, 0, n), _rows(on, repeat, n)) for repeat in (0, 1)) for n in plain}
    different = tuple(number for number, same in with_plugin.items() if not same)
    tokens = int((off["repeat"] == 0).sum())
    return Comparison(len(numbers), tokens, len(plain), len(plain) - len(different), different)


def _rows(arrays: Mapping[str, np.ndarray], repeat: int, request: int) -> tuple[np.ndarray, ...]:
    mine = (arrays["repeat"] == repeat) & (arrays["request"] == request)
    return tuple(arrays[name][mine] for name in ("token", "ids", "logprobs"))


def _same(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> bool:
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(one, other, strict=True))


# -- tokens against the engine's own distributions --------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """Tokens of one repetition under the distributions that were returned with them."""

    decision: Decision
    tokens: int
    discrepancies: Mapping[str, float]

    @property
    def is_green(self) -> bool:
        return self.decision.verdict is Verdict.PASS

    @property
    def log10_evidence(self) -> float:
        return self.decision.log_e_value / float(np.log(10))


def distributions(arrays: Mapping[str, np.ndarray], vocab_size: int) -> NDArray[np.float64]:
    """The returned distribution of every token, `[num_tokens, vocab_size]`.

    Raises:
        ValueError: If one does not sum to 1: then the engine did not return all of it, or something else.
    """
    ids, logprobs = arrays["ids"], arrays["logprobs"].astype(np.float64)
    probs = np.zeros((len(ids), vocab_size))
    rows = np.broadcast_to(np.arange(len(ids))[:, None], ids.shape)
    listed = ids >= 0
    probs[rows[listed], ids[listed]] = np.exp(logprobs[listed])
    sums = probs.sum(axis=1)
    worst = int(np.abs(sums - 1).argmax())
    if abs(sums[worst] - 1) > SUM_TOLERANCE:
        raise ValueError(
            f"distributions: token {worst}: sum={sums[worst]:.6g}, but returned probabilities must sum to 1. "
            "Ask for processed log-probabilities of the whole vocabulary."
        )
    return probs / sums[:, None]


def judge(
    tokens: np.ndarray,  # [num_tokens] int32
    probs: NDArray[np.float64],  # [num_tokens, vocab_size] float64
    groups: Sequence[str],
    false_alarm_rate: float = FALSE_ALARM_RATE,
) -> Judged:
    """Whether each token follows the distribution beside it, all together and group by group.

    A token's transform is uniform given everything before it, so tokens of one request, and of neighbours in a batch,
    may depend on each other; two requests with equal seeds may not be among them.
    """
    names = np.array(groups)
    uniforms = np.random.default_rng(derive_seed("engine tokens")).random(len(tokens))
    tables: dict[str, Table] = {}
    counts = {}
    for order in Order:
        transform = randomised_pit(probs, tokens, uniforms, order)
        for group in ("all", *dict.fromkeys(groups)):
            mine = (names == group) | (group == "all")
            cells = PitCells() if group == "all" else PitCells(num_equal=12, num_halvings=4)
            tables[f"{group}, by {order}"] = cells.table(int(mine.sum()))
            counts[f"{group}, by {order}"] = cells.count(transform[mine])
    plans = plan_tables(tables, 1, false_alarm_rate)
    found = {name: plan.discrepancy for name, plan in plans.items() if isinstance(plan, SamplePlan)}
    return Judged(decide(tables, plans, [counts], false_alarm_rate), len(tokens), found)


def at_temperature(probs: NDArray[np.float64], factor: float) -> NDArray[np.float64]:
    """The same distributions at another temperature: a control that must be red."""
    heated = np.where(probs > 0, probs, 0.0) ** (1 / factor)
    return np.asarray(heated / heated.sum(axis=1, keepdims=True))
