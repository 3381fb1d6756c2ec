"""What one step can hold: hundreds of new tokens, a hundred drafts, a chain of moves, a thousand rows; texts alike.

Engines do all of it. Blocks of tokens arrive together when drafts are accepted, a grammar jumps forward or a text is
diffused; vLLM puts a batch in order by swaps that touch a row several times; prompts share a prefix.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from fairdraw.strategies._lifecycle_events import Add, Cut, Decode, Draft, Event, Finish, Preempt, Regrow, Resume, Swap
from fairdraw.strategies._lifecycle_tours import Fields, Planner, TourWorld

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairdraw.strategies._lifecycle_events import Tokens
    from fairdraw.strategies._lifecycle_traces import EventTrace

MANY_DRAFTS = (17, 31, 33, 64, 65, 100, 127, 128)
"""Drafts of one request: on both sides of what fits into a warp or two, up to the most that engines take."""
MANY_TOKENS = (34, 66, 130, 300, 600, 1100, 2100)
"""New tokens of one request in one step, and tokens that are cut from one."""
CROWD = 1030
"""Rows of a batch: servers on large GPUs take 1024 by default."""


def _thoughts(world: TourWorld, size: int) -> Tokens:
    """Tokens that belong to no marker."""
    return (world.trace.vocab_size - 1,) * size


def opening_of(world: TourWorld) -> Tokens:
    """What opens a section; nothing under the penalties contract."""
    return world.pieces[0] if world.pieces else ()


def _strict(world: TourWorld, spent_at: int) -> Fields:
    """Parameters that show every token: all penalties, or a budget that is spent after so many thoughts."""
    return {"budget": spent_at} if world.pieces else {"presence": 0.3, "frequency": 0.05, "repetition": 1.2}


def _tokens(planner: Planner, size: int) -> Tokens:
    """Thoughts, in half of the cases with words behind them; any tokens under the penalties contract."""
    num_words = min(size, planner.of((0, 4))) if planner.world.pieces else size
    return _thoughts(planner.world, size - num_words) + planner.words(num_words)


def long_steps(world: TourWorld, seed: int) -> EventTrace:
    """Steps of up to 128 drafts and 2100 new tokens of a request, within which budgets are spent; then they are cut."""
    planner = Planner(world, seed, rows=2 * len(MANY_DRAFTS))
    sizes = planner.shuffled(MANY_DRAFTS)
    strict = [Add(opening_of(world), **_strict(world, size - planner.below(3))) for size in sizes]
    planner.together([*strict, *(planner.add(begun=True) for _ in sizes)])
    drafts = (_tokens(planner, size) for size in [*sizes, *planner.shuffled(sizes)])
    planner.verify(Draft(tuple(drafts)), late=True)
    planner.verify(Draft(tuple(planner.words(size) for size in sizes)), whole=True)
    planner.do(*(Finish(0, held=True) for _ in range(planner.size)))
    _bursts(planner)
    return planner.trace


def _bursts(planner: Planner) -> None:
    """Some rows get many tokens at once, which nobody saw as drafts, and lose as many in a later step."""
    world, sizes = planner.world, planner.shuffled(MANY_TOKENS * 2)
    spent_at = [size * (1 + row % 2) for row, size in enumerate(sizes)]
    planner.together([Add(opening_of(world), _thoughts(world, 1), **_strict(world, size)) for size in spent_at])
    for _ in range(2):
        planner.do(Draft(tuple(_tokens(planner, size) for size in sizes), held=True))
        planner.do(Decode(_thoughts(world, len(sizes)), tuple(sizes)))
        planner.do(Swap(0, len(sizes) - 1))
    planner.together([Cut(row, size) for row, size in enumerate(sizes)])
    planner.verify(planner.drafts())
    planner.together([Cut(row, 10_000) for row in range(len(sizes))])
    planner.do(planner.decode())


def deep_cuts(world: TourWorld, seed: int) -> EventTrace:
    """Long outputs that were begun elsewhere: at the first look the budget is just spent, or will be after a cut."""
    planner = Planner(world, seed, rows=3 * len(MANY_TOKENS))
    adds, cuts = list[Event](), list[Event]()
    for size in planner.shuffled(MANY_TOKENS):
        own: Fields = {"more_output": 2 * size, "seed": seed + size}
        adds += [Add(opening_of(world), **own, **_strict(world, spent_at)) for spent_at in (2 * size, size, size + 1)]
        cuts += [Cut(len(cuts), 1 + planner.below(size)), Cut(len(cuts) + 1, size), Cut(len(cuts) + 2, size)]
    planner.together(adds)
    planner.together(cuts)
    planner.verify(planner.drafts())
    return planner.trace


def long_rewrites(world: TourWorld, seed: int) -> EventTrace:
    """The end of a long output becomes another one between two looks, as long as before, longer or shorter."""
    planner = Planner(world, seed, rows=len(MANY_TOKENS))
    sizes = planner.shuffled(MANY_TOKENS)
    planner.together([Add(opening_of(world), more_output=2 * n, seed=seed + n, **_strict(world, n)) for n in sizes])
    for row, size in enumerate(sizes):
        planner.do(Regrow(row, size, planner.words(size + planner.of((-1, 0, 1)))), planner.decode())
    return planner.trace


# Rows


def chains(world: TourWorld, seed: int) -> EventTrace:
    """Several moves in one step that touch a row more than once, alone and after requests left and came."""
    planner = Planner(world, seed, rows=14)
    planner.together([planner.add(begun=True) for _ in range(14)])
    for turn, kind in enumerate(planner.shuffled(_CHAINS)):
        planner.do(planner.drafts())
        planner.do(planner.decode(accept=True, late=turn % 2 == 1).replace(held=True))
        leaving: list[Event] = [
            Finish(planner.below(planner.size)),
            Preempt(planner.below(planner.size - 1)),
            Finish(planner.below(planner.size - 2)),
        ]
        planner.do(*(event.replace(held=True) for event in leaving[: turn % 4]))
        coming = [planner.add(begun=True), Resume()][: turn // 4 + 1 if turn % 4 else 0]
        planner.do(*(event.replace(held=True) for event in coming))
        planner.together(list(swaps(kind, planner, planner.size)))
        planner.do(planner.decode())
    return planner.trace


_CHAINS = ("forward", "backward", "from one row", "into one row", "there and back", "random", "random", "triple")


def swaps(kind: str, planner: Planner, size: int) -> Iterator[Swap]:
    """Moves of one step, in which each after the first one takes a row that has moved already."""
    rows = planner.shuffled(range(size))
    pairs = list(itertools.pairwise(rows))
    if kind == "triple":
        pairs = pairs[:2]
    if kind == "backward":
        pairs = [(b, a) for a, b in pairs]
    if kind in ("from one row", "into one row"):  # the first is how vLLM follows a cycle
        pairs = [(rows[0], b) if kind == "from one row" else (b, rows[0]) for b in rows[1:]]
    if kind == "there and back":
        pairs = [*pairs[:3], *pairs[1:3], pairs[0]]
    if kind == "random":
        pairs = [(planner.below(size), planner.below(size)) for _ in range(size)]
    return (Swap(a, b) for a, b in pairs)


def crowd(world: TourWorld, seed: int) -> EventTrace:
    """A thousand rows, and more than two thousand drafts in a step; then half of them leave, and all others move."""
    planner = Planner(world, seed, rows=CROWD)
    kinds = list(world.kinds.values())
    opening = opening_of(world)
    adds = [Add(opening + planner.words(2), planner.words(2), **planner.of(kinds)) for _ in range(CROWD)]
    planner.together(adds)
    planner.do(Draft(tuple(planner.words(4 if planner.chance(0.02) else 2 + row % 2) for row in range(CROWD))))
    planner.do(planner.decode(accept=True).replace(held=True))
    planner.do(*(Finish(planner.below(CROWD - gone), held=True) for gone in range(200)))
    planner.together(list(swaps("forward", planner, CROWD - 200)))
    return planner.trace


# Texts


def alike_texts(world: TourWorld, seed: int) -> EventTrace:
    """Prompts of equal length that share all but the first, a middle or the last tokens; outputs that end otherwise.

    They are in the batch at one time, and later one after the other, as in a server that caches prefixes.
    """
    planner = Planner(world, seed, rows=32)
    special, adds = opening_of(world) or (1,), list[Event]()
    plain, rest = _thoughts(world, len(special)), _thoughts(world, 16)
    tails = (rest + plain, rest[8:] + special + rest[8:], rest + special)
    prompts = [(special, tails[0]), *((plain, tail) for tail in tails)]
    for size in (0, 15, 300, 1100):
        own: Fields = {"more_prompt": size, "more_output": size // 2, "seed": seed, **_strict(world, 0)}
        adds += [Add(tail, output, head=head, **own) for head, tail in prompts for output in (special, plain)]
    for size in (32, 4):
        adds = planner.shuffled(adds)
        for place in range(0, 32, size):
            planner.together(adds[place : place + size])
            planner.verify(planner.drafts())
            planner.do(*(Finish(0, held=True) for _ in range(size)))
    planner.do(planner.add())
    return planner.trace


# Long markers.


def begun_ends(world: TourWorld, seed: int) -> EventTrace:
    """Any number of tokens of an end marker stand already: all of them after the budget was spent, or only the last.

    Then it goes on, token by token and by drafts.
    """
    trace: Any = world.trace  # Any: a ThinkingTrace
    end, adds = trace.end, list[Event]()
    planner = Planner(world, seed, rows=2 * len(end))
    for begun in range(len(end)):
        output = (*_thoughts(world, 2), *end[:begun])
        adds += [Add(trace.start, output, budget=2 + before) for before in (0, planner.below(begun + 1))]
    planner.together(adds)
    for step in range(2):
        planner.do(Decode(tuple(end[(row // 2 + step) % len(end)] for row in range(planner.size))))
    rest = (end[(row // 2 + 2) % len(end) :] + trace.start for row in range(planner.size))
    planner.verify(Draft(tuple(rest)))
    return planner.trace


# Of both contracts.


def wide_steps(world: Callable[..., TourWorld], seed: int) -> Iterator[EventTrace]:
    """Each of them once.

    Args:
        world: Called with the size of the vocabulary and other fields of the trace.
    """
    yield chains(world(), seed)
    yield chains(world(names_taken=True), seed + 1)
    yield alike_texts(world(vocab_size=1000), seed)
    yield long_steps(world(), seed)
    yield deep_cuts(world(vocab_size=1000), seed)
    yield crowd(world(), seed)
