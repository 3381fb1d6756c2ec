"""What the lists of a server say about the tokens of an answer: uniform numbers, and chances of named tokens."""

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairdraw._core.seeds import derive_seed
from fairdraw._oracles.server import IMPOSSIBLE, Cells, choice_cells, edges
from fairdraw.contracts import Answer, Choice, Claims, GenerationRequest
from fairdraw.contracts._server import Token
from fairdraw.statistical._projections import projections

ORDERS = ("rank", "id")
PROJECTIONS = tuple(one for one in projections(1 << 17) if not one.block)
"""For every vocabulary: which ids a server has is not known beforehand. Neighbours need not be listed."""

WAYS = (*ORDERS, *(one.name for one in PROJECTIONS))

NAMED = ("a token that came before", "a token with a bias", "the best")


class Known(NamedTuple):
    """What lists say about the tokens of a choice.

    Args:
        edges: Where the cell of each token begins in every way, and its probability: NaN where the list says nothing.
        named: Whether each token is one of `NAMED`, and how probable that was: no and 0 where the list says nothing.
    """

    edges: NDArray[np.float64]  # [num_tokens, 2, num_ways] float64
    named: NDArray[np.float64]  # [num_tokens, 2, num_named] float64


@lru_cache(maxsize=8192)
def known_of(answer: Answer, claims: Claims) -> tuple[Known, ...]:
    """Return what is known of each choice. Several checks count the same answers, and lists are long."""
    return tuple(_of_choice(one, answer.request, claims) for one in answer.choices)


def _of_choice(choice: Choice, request: GenerationRequest, claims: Claims) -> Known:
    found, biased = choice_cells(choice, request, claims), {token for token, _ in request.logit_bias}
    named = [
        [_chance(one, choice.tokens[:at]), _chance(one, biased), _chance(one, one.tokens[:1] if one else ())]
        for at, one in enumerate(found)
    ]
    return Known(
        np.array([_of_cells(one) for one in found]).reshape(-1, 2, len(WAYS)),
        np.array(named, dtype=np.float64).reshape(-1, len(NAMED), 2).swapaxes(1, 2),
    )


def _chance(found: Cells | None, tokens: Collection[Token]) -> tuple[bool, float]:
    """Return whether one of these tokens was drawn, and how probable that was."""
    if found is None:
        return False, 0.0
    is_one = np.array([token in tokens for token in found.tokens], dtype=bool)
    return bool(np.append(is_one, False)[found.drawn]), float(found.probs[:-1][is_one].sum())


def _of_cells(found: Cells | None) -> NDArray[np.float64]:  # [2, num_ways] float64
    """Return where the drawn cell begins in every way, and its probability."""
    *starts, width = edges(found)
    known = np.empty((2, len(WAYS)))
    known[:, : len(starts)] = starts, [width] * len(starts)
    known[:, len(starts) :] = [[starts[0]], [1.0]]
    if found is None or found.drawn == IMPOSSIBLE:
        return known
    known[0, len(starts) :] = 0.0
    if found.drawn < len(found.tokens):
        cells = np.stack([_cells_of(token) for token in found.tokens], axis=1)
        listed, own = found.probs[:-1] / found.probs[:-1].sum(), cells[:, found.drawn, None]
        known[:, len(starts) :] = (cells < own) @ listed, (cells == own) @ listed
    return known


@lru_cache(maxsize=1 << 17)
def _cells_of(token: int | str) -> NDArray[np.int64]:  # [num_projections] int64
    """Return the cells of a token; a text is hashed first."""
    number = token if isinstance(token, int) else derive_seed("text of a token", token)
    return np.concatenate([one.cells(np.array([number])) for one in PROJECTIONS])


def numbers_of(answer: Answer, claims: Claims, seed: int) -> list[NDArray[np.float64]]:  # each [num_tokens, num_ways]
    """Return the numbers of each position of each choice, in every way; NaN where the list says nothing.

    Randomness:
        Shares of cells follow from `seed`, which is independent of the server.
    """
    rng = np.random.default_rng(seed)
    return [_transformed(one.edges, rng.random(max(1, len(one.edges)))) for one in known_of(answer, claims)]


def _transformed(known: NDArray[np.float64], shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return numbers `[num_tokens, num_ways] float64` from edges and shares `[num_tokens]`."""
    starts, widths = known[:, 0], known[:, 1]
    numbers = np.minimum(starts + shares[: len(known), None] * widths, np.nextafter(1.0, 0.0))
    return np.where(starts == IMPOSSIBLE, float(IMPOSSIBLE), numbers)


def single(answers: Sequence[Answer], claims: Claims, seed: int) -> NDArray[np.float64]:  # [num_samples, num_ways]
    """Return the numbers of every token."""
    rows = (numbers_of(one, claims, derive_seed("share", seed, number)) for number, one in enumerate(answers))
    numbers = np.concatenate([*(one for own in rows for one in own), np.zeros((0, len(WAYS)))])
    return np.asarray(numbers[~np.isnan(numbers[:, 0])])
