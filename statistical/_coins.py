"""Acceptance as it is: one draft per request, accepted with one probability, which is not a half.

The bits of `_dependence` are fair, and a coin of another probability becomes one only with random numbers of the suite,
which hide what three coins share. Here coins are counted as they are. The probability must not be a half: of three
uniforms one of which is the sum of the others, modulo 1, the halves are independent.

Null, exactly:
    The number of accepted drafts in a call, or in a block of rows, is binomial. For three coins at equal distances: the
    first two say, for a relation that was chosen from the first half of a checkpoint, whether the third is accepted
    more often or less. A uniform number is drawn for the third, below its probability if it was accepted and above
    otherwise, and reflected in the latter case. It is uniform given everything before it, so these numbers are
    independent, although the threes overlap.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairdraw.statistical._binomial import binomial_probs
from fairdraw.statistical._count_tables import Counts, Table, count_codes
from fairdraw.statistical._dependence import BLOCK, SUSPECT, suspicious_triple, unevenness

_NUM_CELLS = 4
_THREE = {"D3 three acceptances of a call": 1, "D3 three acceptances of calls": 0}
_EVEN = {"D5 accepted drafts of a call": None, f"D5 accepted drafts of {BLOCK} rows": BLOCK}


@dataclass(frozen=True)
class CoinShape:
    """Of one half of a checkpoint: calls of so many requests, each accepted with probability `prob`."""

    kind: str
    num_calls: int
    num_rows: int
    prob: float

    def named(self, tables: Mapping[str, Any]) -> dict[str, Any]:  # Any: what belongs to each table
        """With full names."""
        return {f"{name} ({self.kind})": value for name, value in tables.items()}

    @property
    def blocks(self) -> dict[str, int]:
        """Groups of rows whose accepted drafts are counted: name to rows of a group."""
        sizes = {name: size or self.num_rows for name, size in _EVEN.items()}
        return {name: size for name, size in sizes.items() if size < self.num_rows or _EVEN[name] is None}

    def num_threes(self, axis: int) -> int:
        """Threes that are judged: as many as the furthest distance leaves."""
        length, width = (self.num_rows, self.num_calls) if axis else (self.num_calls, self.num_rows)
        return (length - 2 * length // 3) * width


def coin_tables(shape: CoinShape) -> dict[str, Table]:
    """Every table: quarters of uniform numbers, and numbers of accepted drafts."""
    fair, label = np.full(_NUM_CELLS, 1 / _NUM_CELLS), "the third in quarter {} of what the other two suggest".format
    tables = {name: Table(fair, label=label, num_draws=shape.num_threes(axis)) for name, axis in _THREE.items()}
    for name, size in shape.blocks.items():
        probs = binomial_probs(size, shape.prob)
        groups = 2 * shape.num_calls * (shape.num_rows // size)
        tables[name] = Table(probs / probs.sum(), label=f"{{}} of {size} accepted".format, num_draws=groups)
    return shape.named(tables)


def count_coins(
    accepted: NDArray[np.bool_],  # [2 * num_calls, num_rows] bool
    shape: CoinShape,
    rng: np.random.Generator,
) -> Counts:
    """The count tables of one checkpoint, and which threes were judged.

    Randomness:
        One uniform number of `rng` per coin.
    """
    counts: dict[str, NDArray[np.int64]] = {}
    uniforms = np.where(accepted, shape.prob * rng.random(accepted.shape), 0.0)
    uniforms += np.where(accepted, 0.0, shape.prob + (1 - shape.prob) * rng.random(accepted.shape))
    values = ((accepted - shape.prob) / np.sqrt(shape.prob * (1 - shape.prob))).astype(np.float32)
    for name, axis in _THREE.items():
        along = np.moveaxis(values[: shape.num_calls], axis, 0)
        near, far, _, sign = suspicious_triple(along[..., None], 2 * len(along) // 3)
        judged, last = (np.moveaxis(part[shape.num_calls :], axis, 0) for part in (values, uniforms))
        third = _third(judged, last, near, far, sign)
        chosen = third[np.linspace(0, third.size - 1, shape.num_threes(axis)).astype(np.int64)]
        counts[name] = count_codes(np.minimum((chosen * _NUM_CELLS).astype(np.int64), _NUM_CELLS - 1), _NUM_CELLS)
        counts[SUSPECT + name] = np.array([near, far])
    for name, size in shape.blocks.items():
        groups = shape.num_rows // size
        sums = accepted[:, : groups * size].reshape(-1, groups, size).sum(axis=2)
        counts[name] = count_codes(sums.ravel().astype(np.int64), size + 1)
    return shape.named(counts)


def _third(
    values: NDArray[np.float32],  # [length, width] float32
    uniforms: NDArray[np.float64],  # [length, width] float64
    near: int,
    far: int,
    sign: int,
) -> NDArray[np.float64]:  # [(length - far) * width] float64
    """The uniform number of the last of three, reflected where the other two suggest a rejection."""
    count = len(values) - far
    suggested = sign * values[:count] * values[near : near + count] > 0
    last = uniforms[far:]
    return np.asarray(np.where(suggested, last, 1 - last).ravel())


def explain_coins(counts: Sequence[Counts], shape: CoinShape, name: str) -> str:
    """What acceptance shares, in words."""
    total = np.sum([one[name] for one in counts], axis=0)[:-1]
    if SUSPECT + name in counts[0]:
        near, far = max(counts, key=lambda one: abs(int(one[name][0]) - int(one[name][3])))[SUSPECT + name].tolist()
        what = "rows" if "of a call" in name else "calls"
        return f"{what} {near} and {far} apart: the third acceptance follows from the other two"
    where = name.removeprefix("D5 accepted drafts of ").partition(" (")[0]
    return unevenness(total, shape.prob, f"the number of accepted drafts of {where}")
