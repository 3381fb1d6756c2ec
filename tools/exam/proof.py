"""Each member is wrong on some legal input: a wide generator, and a comparison with the correct sampler beneath it.

    python tools/exam --prove --match penalties

Members that differ by their own random numbers cannot be compared so; they are listed apart. What is printed as "not
shown" is not shown to be a fault: it may be one that these inputs do not reach.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from exam.correct import CORRECT
from fairdraw.protocols import (
    AddedRow,
    ExplicitNoise,
    LiveBatch,
    LiveRequest,
    LogitsBatch,
    LogitsParams,
    LogitsRequest,
    Markers,
    Move,
    MovedRow,
    PlanSetup,
    RaceNoise,
    RowChanges,
    SamplingBatch,
    SeededNoise,
    SpecDecodeBatch,
)

if TYPE_CHECKING:
    from exam.registry import Member

MOST = 150
"""Inputs that are tried."""


def proof(member: Member) -> str:
    """After how many inputs its answers differ from the correct ones; or why that is not known."""
    correct = next((k for k in CORRECT.values() if k in type(member.make()).__mro__), None)
    if member.contract in ("rejection", "sampling") and (correct is None or "explicit-noise" in correct.lacking):
        return "draws its own numbers"
    assert correct is not None
    play = {"rejection": verified, "sampling": sampled, "penalties": penalised, "thinking_budget": forced}
    how = play.get(member.contract, processed)
    mine, right = member.make(), correct()
    for number in range(MOST):
        rng = random.Random(f"{member.name} {number}")
        state = rng.getstate()
        try:
            first = how(mine, rng)
        except Exception as error:
            return f"raises {type(error).__name__} on input {number}"
        rng.setstate(state)
        if not same(first, how(right, rng)):
            return f"differs on input {number}"
    return "not shown"


def same(one: list[Any], other: list[Any]) -> bool:
    """Whether two lists of answers agree."""

    def equal(a: Any, b: Any) -> bool:
        if isinstance(a, torch.Tensor):
            return a.shape == b.shape and bool(torch.isclose(a.float(), b.float(), 1e-4, 1e-4, equal_nan=True).all())
        return bool(a == b)

    return len(one) == len(other) and all(map(equal, one, other))


# -- single calls ---------------------------------------------------------------------------------------------------


def _seeds(rng: random.Random, size: int) -> dict[int, int]:
    choices = [0, 1, 2, 3, -1, -3, 2**16, 2**24 + 1, 2**32, 2**32 + 1, 2**40 + 3, 256, 512]
    return {i: rng.choice(choices) for i in range(size) if rng.random() < 0.5}


def verified(sampler: Any, rng: random.Random) -> list[Any]:
    """Three calls: two of the same shape, one smaller."""
    torch.manual_seed(rng.getrandbits(40))
    size, most = rng.choice([3, 9, 40, 300, 1100]), rng.choice([3, 12, 40, 128])
    size = min(size, 40) if most > 12 and rng.random() < 0.7 else size
    few = [3, 8] if size * most > 4000 else [5, 60, 97, 193, 600, 1537, 3073, 140000 if size * most < 130 else 700]
    vocab = rng.choice(few)
    answers = []
    for wanted in (size, size, max(1, size // 2)):
        batch, noise = _rejection_call(rng, wanted, most, vocab)
        before = None if batch.draft_probs is None else batch.draft_probs.clone()
        answers.append(sampler.verify(batch, noise).clone())
        answers.append(before is None or bool(torch.equal(before, batch.draft_probs)))
        if isinstance(noise, SeededNoise):  # the same generators go on
            answers.append(sampler.verify(batch, noise).clone())
    return answers


def _rejection_call(rng: random.Random, size: int, most: int, vocab: int) -> Any:
    counts = [rng.choice([0, 1, most, rng.randint(0, most)]) for _ in range(size)]
    total, scale = sum(counts), rng.choice([0.5, 2.0, 30.0])
    dtype = rng.choice([torch.float32, torch.bfloat16, torch.float16])
    logits = (torch.randn(total, vocab) * scale).clamp(-300, 300).to(dtype)
    if rng.random() < 0.3:
        logits = logits.round()
    dense = (
        (logits.float() + torch.randn(total, vocab) * rng.choice([0.05, 3.0])).softmax(-1)
        if rng.random() < 0.6
        else None
    )
    ids = torch.randint(0, vocab, (total,))
    likely = logits.float().argmax(-1)
    ids = torch.where(torch.rand(total) < rng.choice([0.3, 0.98]), likely, ids).int()
    temperature = torch.tensor([rng.choice([0.0, 1.0, 1e-6, 5e-5, 5e-4, 5e-3]) for _ in range(size)])
    ends = torch.tensor(counts).cumsum(0).int()
    bonus = torch.randint(0, vocab, (size, 1)).int()
    batch = SpecDecodeBatch(ids, counts, ends, most, dense, logits, bonus, temperature)
    explicit = ExplicitNoise(
        torch.rand(total, dtype=torch.float64) ** rng.choice([1, 1, 30]), torch.empty(size, vocab).exponential_()
    )
    seed = rng.getrandbits(40)
    noise = explicit if rng.random() < 0.6 else SeededNoise(seed, _seeds(rng, size))
    torch.manual_seed(seed)
    return batch, noise


def sampled(sampler: Any, rng: random.Random) -> list[Any]:
    """Three calls: two of the same shape, one smaller."""
    size = rng.choice([2, 5, 20, 300, 1100])
    vocab = rng.choice([4, 40, 300, 1000]) if size > 5 else rng.choice([5, 50, 3000, 60000, 140000])
    answers: list[Any] = []
    for wanted in (size, size, max(1, size // 2)):
        seed = rng.getrandbits(40)
        torch.manual_seed(seed)
        batch = _sampling_call(rng, wanted, vocab)
        noise = RaceNoise(torch.empty(wanted, vocab).exponential_())
        answers.append(sampler.sample(batch, noise).clone())
        seeded = SeededNoise(seed, _seeds(rng, wanted))
        torch.manual_seed(seed)
        answers += [sampler.sample(batch, seeded).clone(), sampler.sample(batch, seeded).clone()]
    return answers


def _sampling_call(rng: random.Random, size: int, vocab: int) -> SamplingBatch:
    def column(choices: list[float], dtype: torch.dtype) -> torch.Tensor | None:
        some = rng.sample(choices, rng.randint(1, len(choices)))
        return torch.tensor([rng.choice(some) for _ in range(size)]).to(dtype) if rng.random() < 0.7 else None

    dtype = rng.choice([torch.float32, torch.bfloat16, torch.float16])
    logits = (torch.randn(size, vocab) * rng.choice([0.02, 1.0, 4.0])).to(dtype)
    if rng.random() < 0.3:
        logits = logits.round()
    heat = column([1.0, 0.5, 1.7, 3.0, 9.0, 0.0, 2e-5, 2e-3, 0.02], torch.float32)
    heat = torch.ones(size) if heat is None else heat
    top_k = column([1, 2, vocab, max(1, vocab - 1), min(vocab, 30), min(vocab, 400)], torch.int32)
    top_p = column([1.0, 0.9, 0.5, 0.995, 0.99995, 1e-3, 0.03], torch.float32)
    min_p = column([0.0, 0.1, 0.5, 0.97, 1.0, 0.013], torch.float32)
    positions = torch.tensor([rng.choice([0, 1, 63, 64, 99, 100, 1000, 4096, 5000]) for _ in range(size)])
    return SamplingBatch(logits, heat, top_k, top_p, min_p, positions)


# -- live batches ---------------------------------------------------------------------------------------------------


class Server:
    """A live batch, in which rows come, go, move, grow, are cut and hold tokens that arrive late."""

    def __init__(self, rng: random.Random, size: int, new: Any, tokens: Any) -> None:
        self.rng, self.new, self.tokens = rng, new, tokens
        self.rows = [new() for _ in range(size)]
        self.change: RowChanges | None = RowChanges(size, (), tuple(map(self.added, range(size))))

    def added(self, row: int) -> AddedRow:
        one = self.rows[row]
        return AddedRow(row, one.params, one.prompt_token_ids, one.output_token_ids)

    def step(self) -> None:
        """Between two looks."""
        for one in self.rows:
            self.text(one)
        self.change = self.events() if self.rng.random() < 0.5 else None

    def text(self, one: Any) -> None:
        output, rng = one.output_token_ids, self.rng
        output[:] = [self.tokens(1)[0] if token < 0 else token for token in output]
        if output and rng.random() < 0.25:
            del output[rng.randint(0, len(output)) :]
        output.extend(self.tokens(rng.choice([0, 1, 1, 2, 4])))
        if rng.random() < 0.2:
            output.append(-1)
        one.draft_token_ids[:] = self.tokens(rng.choice([0, 0, 1, 3, 9]))

    def events(self) -> RowChanges:
        rng, gone, added = self.rng, set(), []
        for row in range(len(self.rows)):
            if rng.random() < 0.2:
                gone.add(row)
                if rng.random() < 0.6:
                    self.rows[row] = self.new()
                    added.append(self.added(row))
        moved, holes = self.condensed({row for row in gone if row not in {one.row for one in added}})
        if rng.random() < 0.5 and len(self.rows) > 1:
            a, b = rng.sample(range(len(self.rows)), 2)
            self.rows[a], self.rows[b] = self.rows[b], self.rows[a]
            moved.append(MovedRow(a, b, Move.SWAP))
        named = gone - holes if rng.random() < 0.5 else gone
        return RowChanges(len(self.rows), tuple(sorted(named, reverse=True)), tuple(added), tuple(moved))

    def condensed(self, holes: set[int]) -> tuple[list[MovedRow], set[int]]:
        """Rows from the end fill the holes; which holes were filled."""
        moved, filled = [], set()
        while holes:
            last = len(self.rows) - 1
            if last in holes:
                holes.remove(last)
            else:
                hole = min(holes)
                holes.remove(hole)
                filled.add(hole)
                self.rows[hole] = self.rows[last]
                moved.append(MovedRow(last, hole, Move.UNIDIRECTIONAL))
            self.rows.pop()
        return moved, filled


def _ids(rng: random.Random, vocab: int, likely: list[int]) -> Any:
    return lambda count: [rng.choice(likely) if rng.random() < 0.8 else rng.randrange(vocab) for _ in range(count)]


def _long(rng: random.Random, tokens: Any) -> list[int]:
    return list(tokens(rng.choice([0, 1, 3, 10, 40, 40, 700, 2600])))


def penalised(scanner: Any, rng: random.Random) -> list[Any]:
    """A life of twelve steps."""
    vocab = rng.choice([20, 3000, 40000])
    tokens = _ids(rng, vocab, [0, vocab - 1, *(rng.randrange(vocab) for _ in range(6))])
    factor: list[list[float]] = [[0, 0, 0.5, -0.5], [0, 0, 0.3, -0.3], [1, 1, 1.3, 0.7, 1.03, 0.97]]

    def new() -> LiveRequest:
        from fairdraw.protocols import RequestParams

        return LiveRequest("x", RequestParams(*(rng.choice(f) for f in factor)), _long(rng, tokens), _long(rng, tokens))

    server, answers = Server(rng, rng.choice([2, 4, 12, 45]) if vocab < 40000 else 3, new, tokens), []
    session = scanner.open_penalties(vocab)
    noise = np.random.default_rng(rng.getrandbits(30))
    for _ in range(12):
        if server.change:
            session.sync(server.change)
        if server.rows:
            batch = LiveBatch(tuple(server.rows))
            for rows, call in ((len(server.rows), session.penalise), (batch.num_drafts, session.penalise_drafts)):
                answers.append(
                    call(torch.from_numpy(noise.standard_normal((rows, vocab), np.float32) * 3), batch).clone()
                )
        server.step()
    return answers


def _markers(rng: random.Random) -> tuple[tuple[int, ...], tuple[int, ...]]:
    start = tuple(rng.randrange(3) for _ in range(rng.randint(1, 6)))
    end = (*start[-rng.randint(0, 2) :][:2], *(rng.randrange(3) for _ in range(rng.randint(1, 5))))[-6:]
    other = (*(rng.randrange(3) for _ in range(2)), *start)
    end = rng.choice([end, other])
    return (start, end) if start != end else (start, (*end, 2))


def _thinking(rng: random.Random, start: tuple[int, ...], end: tuple[int, ...]) -> Any:
    """Tokens among which markers, and pieces of them, are frequent."""

    def tokens(count: int) -> list[int]:
        text: list[int] = []
        while len(text) < count:
            piece = rng.choice(
                [start, end, (rng.randrange(8),) * rng.choice([1, 1, 8]), end[: rng.randint(1, len(end))]]
            )
            text += piece
        return text[:count] if rng.random() < 0.5 or count < 2 else text[-count:]

    return tokens


def forced(scanner: Any, rng: random.Random) -> list[Any]:
    """A life of twelve steps."""
    from fairdraw.protocols import RequestParams

    start, end = _markers(rng)
    tokens = _thinking(rng, start, end)

    def new() -> LiveRequest:
        params = RequestParams(thinking_token_budget=rng.choice([None, 0, 1, 2, 5, 12, 50, 300]))
        prompt, cut = tokens(rng.choice([0, 3, 9])), rng.randint(0, len(start))
        if rng.random() < 0.4:  # the marker spans prompt and output
            return LiveRequest("x", params, [*prompt, *start[:cut]], list(start[cut:]), tokens(rng.choice([0, 2])))
        prompt += [*rng.choice([start, start, ()]), *[7] * rng.choice([0, 2, 40, 700])]
        return LiveRequest("x", params, prompt, tokens(rng.choice([0, 1, 5])))

    server, answers = Server(rng, rng.choice([2, 5]), new, tokens), []
    session = scanner.open_thinking(Markers(start, end))
    for _ in range(12):
        if server.change:
            session.sync(server.change)
        answers.append(session.forced(LiveBatch(tuple(server.rows))))
        server.step()
    return answers


def processed(planner: Any, rng: random.Random) -> list[Any]:
    """A life of ten steps."""
    vocab = rng.choice([12, 40, 600])
    start, end = _markers(rng)
    tokens = rng.choice([_thinking(rng, start, end), _ids(rng, vocab, [1, 2, 3])])
    words = [[1, 2], [3], [2, 1, 2], [1, 1, 2, 3, 1, 2], [2, 3, 1, 1], [4, 2, 3, 1, 2, 1, 3]]
    shared = tokens(5)

    def new() -> LogitsRequest:
        few = rng.sample(range(vocab), 4)
        choices: dict[str, list[Any]] = {
            "presence_penalty": [0, 0, 0.5],
            "repetition_penalty": [1, 1, 1.3],
            "thinking_token_budget": [None, 0, 2],
            "temperature": [1, 0, 0.5, 1.8, 2e-5, 5e-4],
            "top_k": [0, 0, -1, 3, 20, 200],
            "top_p": [1, 1, 0.6, 0.985, 0.9995],
            "min_p": [0, 0, 0.1, 0.4],
            "allowed_token_ids": [None, None, few, few[:1], [*few, few[0]], list(range(vocab // 2))],
            "bad_words_token_ids": [None, rng.sample(words, 3)],
            "min_tokens": [0, 3, 6],
            "all_stop_token_ids": [frozenset(), frozenset(few), frozenset(range(vocab - 10, vocab))],
            "logit_bias": [None, {1: 1.5, 2: -2.0}, {1: 90.0, few[0]: -80.0}, {1: 0.25, 2: 3.0}],
        }
        params = LogitsParams(**{name: rng.choice(values) for name, values in choices.items()})
        return LogitsRequest(params, list(shared) if rng.random() < 0.2 else tokens(rng.choice([0, 4, 30])), tokens(3))

    server, answers = Server(rng, rng.choice([2, 5, 30, 70]) if vocab < 600 else 3, new, tokens), []
    sessions = [planner.open_plan(PlanSetup(vocab, start, end)) for _ in range(2)]
    noise = np.random.default_rng(rng.getrandbits(30))
    dtype = rng.choice([torch.float32, torch.bfloat16])
    session = sessions[0]
    for _ in range(10):
        if server.rows:
            rows = sum(len(one.draft_token_ids) + 1 for one in server.rows)
            logits = torch.from_numpy(noise.standard_normal((rows, vocab), np.float32) * 3).to(dtype)
            answers.append(session.process(LogitsBatch(logits, tuple(server.rows), server.change)).clone())
            server.step()
    return answers
