"""The sizes of production: hundreds of rows, thousands of tokens, ids beyond 16 bits, ten drafts.

Each trace is planned and played once or a few times in every run. Numbers follow from seeds; only the sizes and the
parameters are written out.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from fairdraw.strategies._covering import covering_settings
from fairdraw.strategies._lifecycle_events import Add, Cut, Draft, Event, Finish, Preempt, Renew, Resume, Swap
from fairdraw.strategies._lifecycle_steps import begun_ends, opening_of, wide_steps
from fairdraw.strategies._lifecycle_tours import LONG_MARKERS, MOST_DRAFTS, Fields, Planner, TourWorld
from fairdraw.strategies._lifecycle_traces import EventTrace

SIZES = (1, 31, 32, 33, 40, 63, 64, 65, 127, 128, 129, 257)
"""Rows of a batch that grows: on both sides of what fits into a warp, a tile or a byte."""
PROMPTS = (1, 511, 513, 1023, 1024, 1025, 4097)
OUTPUTS = (126, 253, 254, 1021, 2046, 4094)
"""Lengths that a few more tokens carry past 128, 256, 1024, 2048 and 4096."""
REPETITIONS = (16_384, 32_768)
"""Of one token, too many for 15 and for 16 bits with a sign."""
LARGE_VOCABS = (151_936, 70_001, 262_144)

FACTORS: dict[str, Sequence[float]] = {
    "presence": (0.0, 0.4, 2.0, -2.0, 1.9999998807907104, -2e-5),
    "frequency": (0.0, 0.1, 2.0, -2.0, -1.9999998807907104, 3e-5),
    "repetition": (1.0, 1.3, 2.0, 0.01, 0.6, 1.00002, 10.0),
}
"""Off, ordinary, at both edges of what vLLM takes, just inside, and small; few are exact in float32."""


def some_steps(planner: Planner, count: int, *, most_drafts: int = MOST_DRAFTS) -> None:
    """Every row has drafts and verifies some of them, late every second time; rows go, come and move in between."""
    for step in range(count):
        planner.do(_drafts(planner, most_drafts))
        planner.do(planner.decode(accept=True, late=step % 2 == 1).replace(held=True))
        planner.do(Finish(planner.below(planner.size), held=True), Preempt(planner.below(planner.size), held=True))
        planner.do(planner.add(begun=True, held=True), Swap(0, planner.size - 1, held=True))
        planner.do(Renew(planner.below(planner.size), same_list=False), Resume())
        planner.do(planner.decode())


def _drafts(planner: Planner, most: int) -> Draft:
    """The most drafts in some rows, any number in the others."""
    sizes = (most if planner.chance(0.2) else planner.below(min(most, 4) + 1) for _ in range(planner.size))
    return Draft(tuple(planner.words(size) for size in sizes))


# Of both contracts.


def growing_batch(world: TourWorld, seed: int) -> EventTrace:
    """A batch of 1 to 257 rows, which becomes small and grows again."""
    planner = Planner(world, seed, rows=SIZES[-1])
    for size in SIZES:
        planner.together([planner.add(begun=True) for _ in range(size - planner.size)])
        if size in (40, SIZES[-1]):
            some_steps(planner, 1, most_drafts=MOST_DRAFTS if size == 40 else 2)
    left = 17
    planner.together([Finish(planner.below(planner.size - i)) for i in range(planner.size - left)])
    planner.do(planner.decode())
    planner.together([planner.add(begun=True, again=True) for _ in range(30)])
    planner.do(planner.decode())
    return planner.trace


_TAKEN: dict[str, Sequence[int]] = {
    "old": (0, 2, 40),
    "old_kind": (0, 1, 3, -1),
    "prompt": (0, 1, 2, 3, 4, 7),
    "output": (0, 1, 3),
    "kind": range(6),
    "opened": (0, 1),
}
"""A request, and the one that takes its row: sizes of their texts, and places in the table of kinds."""


def reused_rows(world: TourWorld, seed: int) -> EventTrace:
    """Every row goes from a request to another one, often an empty one: first by moving, then by entering.

    What is overwritten only by a value that is long enough, or not zero, stays behind. Some pairs have equal
    parameters.
    """
    settings = covering_settings(_TAKEN, 2, seed % 64)
    planner = Planner(world, seed, rows=2 * len(settings))
    kinds, opening = list(world.kinds.values()), opening_of(world)

    def old() -> list[Event]:
        return [
            Add(opening + planner.words(s["old"]), planner.words(s["old"] // 2), **kinds[s["old_kind"]])
            for s in settings
        ]

    def new() -> list[Event]:
        """Without end markers in their prompts, so that nothing hides what was there before."""
        return [
            Add(opening * s["opened"] + _plain(planner, s["prompt"]), planner.words(s["output"]), **kinds[s["kind"]])
            for s in settings
        ]

    leave = [Finish(0, held=True) for _ in settings]
    planner.together([*old(), *new()[::-1]])  # the last row moves into the first free one
    planner.do(*leave)
    _drafts_and_tokens(planner)
    planner.together(old())
    planner.do(*leave)
    planner.do(planner.decode(), *leave)
    planner.together(new())
    _drafts_and_tokens(planner)
    return planner.trace


def _drafts_and_tokens(planner: Planner) -> None:
    planner.do(planner.drafts())
    planner.do(planner.decode(accept=True))
    planner.do(planner.decode())


def _plain(planner: Planner, size: int) -> tuple[int, ...]:
    return tuple(planner.word() for _ in range(size))


# Penalties.


def every_pair_of_factors(seed: int, strength: int = 2) -> EventTrace:
    """Every pair of values of two penalties is in some row, beside rows without any; texts are short."""
    settings = covering_settings(FACTORS, strength, seed % 64)
    planner = Planner(TourWorld.of_penalties(40), seed, rows=len(settings) + 4)
    planner.together([Add(planner.words(planner.below(5)), planner.words(planner.below(7)), **own) for own in settings])
    some_steps(planner, 3)
    return planner.trace


def long_texts(seed: int) -> EventTrace:
    """Prompts and outputs of thousands of tokens, and one token thousands of times; they grow past powers of two."""
    planner = Planner(TourWorld.of_penalties(8192), seed, rows=22)
    numbers: dict[str, Any] = {"presence": 0.3, "frequency": 0.05, "repetition": 1.2}  # Any: a float each
    adds = [Add((5,), planner.words(2), more_prompt=size, seed=seed + size, **numbers) for size in PROMPTS]
    for size in OUTPUTS:
        adds.append(Add((5,), more_output=size, seed=seed + size, **numbers))
        adds.append(Add(more_output=size, distinct=1, seed=seed + size, frequency=0.05, presence=-0.2))
    adds += [Add(more_output=size, distinct=1, seed=seed, frequency=0.05) for size in REPETITIONS]
    planner.together(planner.shuffled(adds))
    for _ in range(3):
        planner.verify(_repeating(planner, MOST_DRAFTS), whole=True)
        planner.do(Swap(planner.below(9), 9 + planner.below(9)))
    planner.do(Cut(planner.below(19), 300), Preempt(planner.below(19)), planner.decode(), Resume(same_list=False))
    return planner.trace


def _repeating(planner: Planner, most: int) -> Draft:
    """A third of the rows draft what they ended with, again and again."""
    rows = ((r.output_token_ids[-1],) * (most - planner.below(3)) * planner.chance(0.3) for r in planner.batch.requests)
    return Draft(tuple(rows))


def large_vocabulary(seed: int, vocab_size: int) -> EventTrace:
    """Ids beyond 16 and 17 bits, beside those that are equal to them in the lower bits; the last id of all."""
    planner = Planner(TourWorld.of_penalties(vocab_size), seed, rows=5)
    odd = [i for i in (5, 65_541, 65_535, 65_536, 131_071, 131_072, 65_536 + 131_072, vocab_size - 1) if i < vocab_size]
    numbers: dict[str, Any] = {"presence": 0.4, "frequency": 0.3, "repetition": 1.3}  # Any: a float each
    chosen = planner.shuffled(odd)
    adds = [Add((chosen[0],), (chosen[1], chosen[2], chosen[1]), **numbers), Add((0,), (vocab_size - 1,))]
    adds += [Add(tuple(odd[1::2]), **numbers), Add((), tuple(chosen[3:]), **numbers)]
    planner.together(adds)
    planner.verify(Draft(((odd[1], odd[-1]), (), (65_536,))))
    planner.do(Finish(0))
    planner.do(planner.decode())
    return planner.trace


def wide_penalties(seed: int, num_rounds: int) -> Iterator[EventTrace]:
    """All sizes in each round."""
    for turn in range(num_rounds):
        number = seed + turn
        yield every_pair_of_factors(number, 3 if turn % 16 == 15 else 2)
        for names_taken in (True, False):
            yield reused_rows(TourWorld.of_penalties(40, names_taken=names_taken), number)
        yield growing_batch(TourWorld.of_penalties(12), number)
        yield long_texts(number)
        yield large_vocabulary(number, LARGE_VOCABS[turn % len(LARGE_VOCABS)])
        yield from wide_steps(TourWorld.of_penalties, number)


# Thinking budgets.

_BUDGETS = (None, 0, 1, 2, 3, 5, 100_000)
_PROMPT_ENDS = ("nothing", "words", "open", "thoughts", "thoughts ended", "opened again", "half a start", "half an end")
_OUTPUT_ENDS = ("nothing", "open", "spent", "nearly spent", "half an end", "thoughts ended", "sections", "pieces")


def _text(planner: Planner, kind: str, budget: int) -> tuple[int, ...]:
    """The end of a prompt or an output."""
    trace: Any = planner.world.trace  # Any: a ThinkingTrace
    start, end = trace.start, trace.end
    word = (planner.world.trace.vocab_size - 1,)
    few = min(budget, 6)
    kinds: Fields = {
        "nothing": (),
        "words": word * 2,
        "open": start,
        "thoughts": start + word * 2,
        "thoughts ended": start + word + end,
        "opened again": start + word + end + start + word,
        "half a start": word + start[: (len(start) + 1) // 2],
        "half an end": start + word * few + end[: (len(end) + 1) // 2],
        "spent": start + word * few,
        "nearly spent": start + word * max(0, few - 1),
        "sections": (start + word + end) * 5,
        "pieces": planner.words(8),
    }
    found: tuple[int, ...] = kinds[kind]
    return found


def every_pair_of_texts(world: TourWorld, seed: int, strength: int = 2) -> EventTrace:
    """Every budget with every state of a prompt and an output, in one batch, with drafts of markers and words."""
    choices = {"budget": _BUDGETS, "prompt": _PROMPT_ENDS, "output": _OUTPUT_ENDS}
    settings = covering_settings(choices, strength, seed % 64)
    planner = Planner(world, seed, rows=len(settings) + 4)
    adds = []
    for own in settings:
        budget = own["budget"]
        prompt, output = (_text(planner, own[part], 3 if budget is None else budget) for part in ("prompt", "output"))
        adds.append(Add(prompt, output, budget=budget))
    planner.together(adds)
    some_steps(planner, 3)
    return planner.trace


def long_sections(world: TourWorld, seed: int) -> EventTrace:
    """Sections and budgets of thousands of tokens, each about to end; prompts of thousands; hundreds of sections."""
    planner = Planner(world, seed, rows=24)
    trace: Any = world.trace  # Any: a ThinkingTrace
    start, end = trace.start, trace.end
    adds = [Add(start, more_output=size, budget=size + 2, seed=seed + size) for size in OUTPUTS]
    adds += [Add(start, more_output=size, budget=100_000, seed=seed + size) for size in OUTPUTS[-2:]]
    adds += [Add(start, planner.words(2), more_prompt=size, budget=3, seed=seed + size) for size in PROMPTS]
    adds += [Add((), more_prompt=size, head=start, budget=size + 2, seed=seed + size) for size in PROMPTS[-2:]]
    adds += [Add((), (start + end) * count + start, budget=2) for count in (127, 300)]
    planner.together(planner.shuffled(adds))
    for _ in range(4):
        planner.verify(_thoughts(planner), whole=True)
        planner.do(Swap(planner.below(8), 8 + planner.below(8)))
    planner.do(Cut(planner.below(16), 300), Preempt(planner.below(16)), planner.decode(), Resume(same_list=False))
    return planner.trace


def _thoughts(planner: Planner) -> Draft:
    """Words that only think, then what may be a marker."""
    word = (planner.world.trace.vocab_size - 1,)
    rows = (word * planner.below(6) + planner.words(planner.below(5)) for _ in range(planner.size))
    return Draft(tuple(rows))


def wide_thinking(seed: int, num_rounds: int) -> Iterator[EventTrace]:
    """All sizes in each round, and in some rounds all markers."""
    for turn in range(num_rounds):
        number = seed + turn
        for place in range(3):
            marker = 3 * turn + place + seed
            yield every_pair_of_texts(TourWorld.of_thinking(marker, shift=65_536 * (place == 2)), number)
        for names_taken in (True, False):
            yield reused_rows(TourWorld.of_thinking(number, names_taken=names_taken), number)
        yield growing_batch(TourWorld.of_thinking(number), number)
        yield long_sections(TourWorld.of_thinking(number, 1000), number)
        yield every_pair_of_texts(TourWorld.of_sentences(number), number)
        yield from (begun_ends(TourWorld.of_sentences(i), number) for i in range(len(LONG_MARKERS)))
        yield from wide_steps(partial(TourWorld.of_thinking, number), number)
