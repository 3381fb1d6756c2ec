"""Is anything shared? Every draw of a run becomes fair bits, and the bits are searched for whatever depends on what.

A draw `y` of a known distribution becomes a uniform number (`_pit`), and its first digits, in Gray code, are fair bits.
A checkpoint is an array of bits `[num_calls, num_rows, num_features]` in two halves. The first half is *searched*: all
distances between rows, between calls and between features at once (by Fourier transforms), all pairs of rows, all pairs
of calls, all triples at equal distances. The most suspicious relation is then *judged* on the second half: it counts
how often the bits agree. So any distance is looked at, and the run pays for one.

Null, exactly:
    Given everything drawn before, the bits of the second half are independent and fair. A relation (a distance, a pair,
    a triple) says which bits are multiplied. Its products are as many linear forms over the field of two elements; each
    has a last bit that no other has, so they are linearly independent, and the products are independent fair coins,
    whatever relation was chosen from the first half. A draw that did not happen (a position that was not reached)
    is replaced by fair bits of the suite. Numbers of ones among disjoint groups of bits are binomial.

Catches: noise shared by rows at any distance or by two rows, shared by calls at any distance within a half or with
related seeds, lagged generators of two and three terms, one number used at two places, opposite (antithetic) noise,
noise that is too even (stratified, without replacement, low discrepancy) or too uneven.
Blind to: sums modulo 1 of noise that races or accepts drafts, which hides them; what is shared once in thousands of
calls, or with new partners in every call and by less than a tenth of the rows; relations of four draws and more.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, irfft2, rfft, rfft2

from fairdraw.statistical._binomial import binomial_probs
from fairdraw.statistical._count_tables import Counts, Table, count_codes
from fairdraw.statistical._related_seeds import seed_words

Signs = NDArray[np.float32]  # [num_calls, num_rows, num_features] float32, 1 or -1
Point = tuple[int, int, int]  # call, row, feature: of the bit itself or of its distance

_ONE_DRAW = "D1 one draw of two rows"

SUSPECT = "suspect: "
"""Begins the name of an entry of the counts that says what was judged; it is no table and decides nothing."""


@dataclass(frozen=True)
class Shape:
    """Of one half of a checkpoint.

    Args:
        kind: What is drawn from, in words; it ends the names of its tables.
        num_draws: Draws of a row, each of which brings one feature or more.
    """

    kind: str
    num_calls: int
    num_rows: int
    features: tuple[str, ...]
    num_draws: int = 1

    @property
    def furthest(self) -> tuple[int, int]:
        """The largest distances that are searched, in calls and in rows: what is left is enough to judge."""
        return 2 * self.num_calls // 3, self.num_rows // 2

    @property
    def furthest_of_three(self) -> int:
        """The largest distance in rows of the first and the last of three: the thirds of a batch are searched, too."""
        return 2 * self.num_rows // 3

    @property
    def is_tall(self) -> bool:
        """Whether a call has so many rows that calls are too few for anything but relations of rows."""
        return self.num_rows > 4 * self.num_calls

    def named(self, tables: Mapping[str, Any]) -> dict[str, Any]:  # Any: what belongs to each table
        """With full names."""
        return {f"{name} ({self.kind})": value for name, value in tables.items()}

    @property
    def blocks(self) -> dict[str, tuple[int, int]]:
        """Groups whose ones are counted: name to calls and rows of a group."""
        if self.is_tall:
            return {}
        found = {"D5 ones in a call": (1, self.num_rows), "D5 ones of a row": (self.num_calls, 1)}
        if self.num_rows > BLOCK:
            found[f"D5 ones in {BLOCK} rows"] = 1, BLOCK
        if self.num_calls > BLOCK:
            found[f"D5 ones in {BLOCK} calls"] = BLOCK, 1
        return found


BLOCK = 16
"""Rows or calls of a smaller group."""


@dataclass(frozen=True)
class Suspect:
    """A relation: bits at these places, relative to any bit, multiply to `sign` suspiciously often.

    Args:
        products: Each a few bits. Distances that may be shifted to every call and row, or fixed calls, or rows.
        fixed: `None`, `rows` or `calls`: what the places name absolutely.
    """

    products: tuple[tuple[Point, ...], ...]
    sign: int
    fixed: str = ""


def gray_bits(
    uniforms: NDArray[np.float64],  # [...] float64, in [0, 1)
    num_bits: int,
) -> NDArray[np.bool_]:  # [..., num_bits] bool
    """The first digits of each number in Gray code: fair and independent bits, equal for neighbours but for one.

    The second is the sign of a cosine, so that sums of noise modulo 1 show in its products.
    """
    digits = np.floor(uniforms * 2**num_bits).astype(np.int64)
    coded = digits ^ (digits >> 1)
    return np.asarray((coded[..., None] >> np.arange(num_bits - 1, -1, -1)) & 1, dtype=bool)


# -- the search -------------------------------------------------------------------------------------------------------


def _correlations(bits: Signs) -> NDArray[np.float32]:  # [F, F, 2 num_calls, 2 num_rows] float32
    """Sums of products `bits[c, r, f] * bits[c + dc, r + dr, g]` at `[f, g, dc, dr]`; negative distances wrap."""
    num_calls, num_rows, _ = bits.shape
    size = 2 * num_calls, 2 * num_rows
    spectra = np.moveaxis(np.asarray(rfft2(bits, s=size, axes=(0, 1))), 2, 0)
    return np.stack([np.asarray(irfft2(np.conj(one) * spectra, s=size, axes=(1, 2))) for one in spectra])


def _most_suspicious(sums: NDArray[np.floating], num_edges: NDArray[np.floating]) -> tuple[tuple[int, ...], int]:
    """Where a sum of so many products is furthest from 0 in standard deviations, and its sign."""
    scores = sums / np.sqrt(num_edges)
    place = np.unravel_index(int(np.abs(scores).argmax()), scores.shape)
    return tuple(map(int, place)), 1 if scores[place] >= 0 else -1


def _best_lag(bits: Signs, calls: Sequence[int], rows: Sequence[int]) -> Suspect:
    """Of pairs of bits at these distances: two features, or all features, each with itself."""
    num_calls, num_rows, num_features = bits.shape
    far = np.asarray(calls), np.asarray(rows)
    sums = _correlations(bits)[:, :, far[0][:, None], far[1][None, :]].reshape(num_features**2, len(calls), len(rows))
    edges = (num_calls - far[0])[:, None] * (num_rows - np.abs(far[1]))[None, :]
    same = sums[:: num_features + 1].sum(axis=0)
    num_edges = np.concatenate([np.broadcast_to(edges, sums.shape), num_features * edges[None]])
    (pair, call, row), sign = _most_suspicious(np.concatenate([sums, same[None]]), num_edges)
    every = pair == num_features**2
    found = [(f, f) for f in range(num_features)] if every else [divmod(pair, num_features)]
    products = (((0, 0, one), (int(far[0][call]), int(far[1][row]), other)) for one, other in found)
    return Suspect(tuple(products), sign)


def _calls_apart(bits: Signs, shape: Shape) -> Suspect:
    far_calls, far_rows = shape.furthest
    return _best_lag(bits, range(1, far_calls + 1), range(-far_rows, far_rows + 1))


def _pair(bits: Signs, axis: int) -> Suspect:
    """The pair of calls (axis 0) or rows whose bits agree, or disagree, most."""
    flat = np.moveaxis(bits, axis, 0).reshape(bits.shape[axis], -1)
    pair, sign = _most_suspicious(np.triu(flat @ flat.T, 1), np.full(1, flat.shape[1]))
    places = [(0, one) if axis else (one, 0) for one in pair]
    products = tuple(tuple((*place, f) for place in places) for f in range(bits.shape[2]))
    return Suspect(products, sign, "rows" if axis else "calls")


def _pair_in_one_feature(bits: Signs) -> Suspect:
    """The pair of rows of which one bit agrees, or disagrees, most."""
    apart = np.transpose(bits, (2, 1, 0))
    (feature, *pair), sign = _most_suspicious(np.triu(apart @ np.swapaxes(apart, 1, 2), 1), np.full(1, len(bits)))
    return Suspect((tuple((0, row, feature) for row in pair),), sign, "rows")


def suspicious_triple(bits: Signs, furthest: int) -> tuple[int, int, int, int]:  # bits: [length, width, num_features]
    """Distances of three bits of one feature along the first axis, the feature (or their number), and the sign."""
    length, width, num_features = bits.shape
    spectrum, far = np.asarray(rfft(bits, n=2 * length, axis=0)), np.arange(furthest + 1)
    sums = np.zeros((furthest + 1, furthest + 1, num_features), dtype=np.float32)
    for near in range(1, furthest):
        products = bits[:-near] * bits[near:]
        cross = (np.conj(np.asarray(rfft(products, n=2 * length, axis=0))) * spectrum).sum(axis=1)
        found = np.asarray(irfft(cross, n=2 * length, axis=0))[: furthest + 1]
        sums[near] = np.where((far > near)[:, None], found, 0)
    edges = np.broadcast_to((width * (length - far))[None, :, None], sums.shape)
    num_edges = np.concatenate([edges, num_features * edges[:, :, :1]], axis=2)
    both = np.concatenate([sums, sums.sum(axis=2, keepdims=True)], axis=2)
    (near, last, feature), sign = _most_suspicious(both, num_edges)
    return near, last, feature, sign


def _three(bits: Signs, furthest: int, axis: int) -> Suspect:
    """Three draws of one feature, or of each, at equal distances along an axis."""
    near, last, feature, sign = suspicious_triple(bits if axis == 0 else np.swapaxes(bits, 0, 1), furthest)
    num_features = bits.shape[2]
    chosen = range(num_features) if feature == num_features else [feature]
    places = [(distance, 0) if axis == 0 else (0, distance) for distance in (0, near, last)]
    return Suspect(tuple(tuple((*place, f) for place in places) for f in chosen), sign)


def _within_a_row(bits: Signs, shape: Shape) -> Suspect:
    """Two or three features of one row."""
    flat, size = bits.reshape(-1, bits.shape[2]), bits.shape[2]
    pairs = [(i, j) for i in range(size) for j in range(i + 1, size)]
    sets = [*pairs, *((i, j, k) for i, j in pairs for k in range(j + 1, size))]
    sums = np.array([flat[:, chosen].prod(axis=1).sum() for chosen in map(list, sets)])
    (best,), sign = _most_suspicious(sums, np.full(1, len(flat)))
    return Suspect((tuple((0, 0, f) for f in sets[best]),), sign)


_SEARCHES: dict[str, Callable[[Signs, Shape], Suspect]] = {
    "D1 rows apart": lambda bits, shape: _best_lag(bits, [0], range(1, shape.furthest[1] + 1)),
    "D1 two rows": lambda bits, _: _pair(bits, 1),
    _ONE_DRAW: lambda bits, _: _pair_in_one_feature(bits),
    "D2 calls apart": _calls_apart,
    "D2 two calls": lambda bits, _: _pair(bits, 0),
    "D3 three rows": lambda bits, shape: _three(bits, shape.furthest_of_three, 1),
    "D3 three calls": lambda bits, shape: _three(bits, shape.furthest[0], 0),
    "D4 draws of a row": _within_a_row,
}


def _num_coins(shape: Shape) -> dict[str, int]:
    """Products that are judged per checkpoint: as many as the furthest distance leaves, so that plans are fixed."""
    calls, rows, features = shape.num_calls, shape.num_rows, len(shape.features)
    far_calls, far_rows = shape.furthest
    of_rows = {"D1 rows apart": calls * (rows - far_rows), "D1 two rows": calls * features}
    of_rows[_ONE_DRAW] = calls
    several = {"D4 draws of a row": calls * rows} if shape.num_draws > 1 else {}
    return (
        of_rows
        if shape.is_tall
        else several
        | of_rows
        | {
            "D2 calls apart": (calls - far_calls) * (rows - far_rows),
            "D2 two calls": rows * features,
            "D3 three rows": calls * (rows - shape.furthest_of_three),
            "D3 three calls": (calls - far_calls) * rows,
        }
    )


# -- the judgement ----------------------------------------------------------------------------------------------------


def _coins(bits: Signs, suspect: Suspect) -> NDArray[np.float32]:  # [num_coins] float32
    """The products of a relation, at every place where all its bits are."""
    return np.concatenate([_product(bits, product, suspect.fixed).ravel() for product in suspect.products])


def _product(bits: Signs, points: tuple[Point, ...], fixed: str) -> NDArray[np.float32]:  # [calls, rows] float32
    num_calls, num_rows, _ = bits.shape
    if fixed:
        parts = [bits[:, row, f] if fixed == "rows" else bits[call, :, f] for call, row, f in points]
        return np.asarray(np.prod(parts, axis=0))
    calls, rows = ([point[axis] for point in points] for axis in (0, 1))
    start, end = -min(rows), num_rows - max(rows)
    parts = [bits[call : num_calls - max(calls) + call, start + row : end + row, f] for call, row, f in points]
    return np.asarray(np.prod(parts, axis=0))


def count_dependence(
    bits: NDArray[np.bool_],  # [2 * num_calls, num_rows, num_features] bool
    shape: Shape,
) -> dict[str, NDArray[np.int64]]:
    """The count tables of one checkpoint, and what was judged in each."""
    signs = np.where(bits, np.float32(1), np.float32(-1))
    searched, judged = signs[: shape.num_calls], signs[shape.num_calls :]
    counts: dict[str, NDArray[np.int64]] = {}
    for name, num_coins in _num_coins(shape).items():
        suspect = _SEARCHES[name](searched, shape)
        coins = _coins(judged, suspect)
        chosen = coins[np.linspace(0, coins.size - 1, num_coins).astype(np.int64)] * suspect.sign
        alike = int((chosen > 0).sum())
        counts[name] = np.array([alike, num_coins - alike, 0])
        counts[SUSPECT + name] = _coded(suspect)
    for name, (calls, rows) in shape.blocks.items():
        counts[name] = count_codes(_ones(bits, calls, rows), calls * rows + 1)
    return shape.named(counts)


def _ones(bits: NDArray[np.bool_], calls: int, rows: int) -> NDArray[np.int64]:  # [num_groups] int64
    """Numbers of ones in disjoint groups of so many calls and rows, feature by feature; the rest is not used."""
    num_calls, num_rows, num_features = bits.shape
    groups = num_calls // calls, num_rows // rows
    used = bits[: groups[0] * calls, : groups[1] * rows]
    return np.asarray(used.reshape(groups[0], calls, groups[1], rows, num_features).sum(axis=(1, 3)).ravel(), np.int64)


def dependence_tables(shape: Shape) -> dict[str, Table]:
    """Every table: pairs of equal cells, and numbers of ones."""
    fair = np.array([0.5, 0.5])
    names = ("bits as suspected", "bits not as suspected")
    # A slow sampler's calls are too few for one bit of two rows; all bits of them are judged.
    tables = {
        name: Table(fair, label=names.__getitem__, num_draws=coins, is_optional=name == _ONE_DRAW)
        for name, coins in _num_coins(shape).items()
    }
    for name, (calls, rows) in shape.blocks.items():
        size, groups = calls * rows, (2 * shape.num_calls // calls) * (shape.num_rows // rows)
        probs = binomial_probs(size, 0.5)
        label = f"{{}} of {size} draws in the upper half".format
        tables[name] = Table(probs / probs.sum(), label=label, num_draws=groups * len(shape.features))
    return shape.named(tables)


# -- in words ---------------------------------------------------------------------------------------------------------


def _coded(suspect: Suspect) -> NDArray[np.int64]:
    """A suspect as numbers, to travel with the counts: sign, what is fixed, products, and the first of them."""
    fixed = ("", "rows", "calls").index(suspect.fixed)
    return np.array([suspect.sign, fixed, len(suspect.products), *np.ravel(suspect.products[0])], dtype=np.int64)


def explain_dependence(counts: Sequence[Counts], shapes: Sequence[Shape], name: str) -> str:
    """What is shared, in words: of this table, over the checkpoints, where it is furthest off."""
    if SUSPECT + name not in counts[0]:
        where = name.removeprefix("D5 ones ").partition(" (")[0]
        what = f"the number {where} that fall into the upper half"
        return unevenness(np.sum([one[name][:-1] for one in counts], axis=0), 0.5, what)
    shape = next(one for one in shapes if name.endswith(f"({one.kind})"))
    worst = max(counts, key=lambda one: abs(int(one[name][0]) - int(one[name][1])))
    share, code = int(worst[name][0]) / int(worst[name].sum()), worst[SUSPECT + name]
    return _relation(code, shape, share if code[0] > 0 else 1 - share)


def _relation(code: NDArray[np.int64], shape: Shape, share: float) -> str:
    """A relation, and the share of its draws that agree."""
    fixed, num_products = ("", "rows", "calls")[int(code[1])], int(code[2])
    points = code[3:].reshape(-1, 3)
    features = [shape.features[f] for f in points[:, 2]]
    what = "all draws" if num_products > 1 else " and ".join(dict.fromkeys(features))
    calls, rows = points[:, 0].tolist(), points[:, 1].tolist()
    which = _two(fixed, calls if fixed == "calls" else rows, shape) if fixed else _distances(calls, rows)
    if len(points) == 3:
        return f"{which} ({what}): the third follows from the other two in {_percent(share)} (50 % expected)"
    verb = "use the same noise" if share > 0.5 else "use opposite noise"
    return f"{which} {verb} ({what}: alike in {_percent(share)}, 50 % expected)"


def _two(fixed: str, numbers: list[int], shape: Shape) -> str:
    """Two rows, or calls, and what the seeds of calls are."""
    if fixed != "calls":
        return f"{fixed} {numbers[0]} and {numbers[1]}"
    words = " and ".join(seed_words(shape.num_calls, number) for number in numbers)
    return f"{fixed} {numbers[0]} and {numbers[1]} (of seeds {words})"


def _distances(calls: list[int], rows: list[int]) -> str:
    """Distances in words."""
    if not any(calls) and not any(rows):
        return "draws of one row"
    steps = " and ".join(str(abs(step)) for step in (calls if any(calls) else rows)[1:])
    if not any(calls):
        return f"rows {steps} apart"
    moved = f", one {rows[1]:+d} rows further," if len(rows) == 2 and rows[1] else ""
    return f"calls {steps} apart{moved}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} % of cases"


def unevenness(total: NDArray[np.int64], prob: float, what: str) -> str:  # [num_cells] int64
    """Whether numbers of events of this probability vary too much or too little."""
    ones, size = np.arange(total.size), total.size - 1
    ratio = float((total * (ones - size * prob) ** 2).sum() / total.sum() / (size * prob * (1 - prob)))
    how = "are too even" if ratio < 1 else "go together"
    return f"draws {how}: {what} has {ratio:.2g} times the variance of chance"
