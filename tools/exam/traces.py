"""What an engine does with the contracts beside sampling and rejection: calls and traces, played on a sampler.

Each `play_*` returns the answers. Played with the same generator on a correct sampler and on a faulty one, they show
whether the fault is real, and whether its condition holds in ordinary serving.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from exam.conditions import log_uniform
from exam.rows import ORDER
from fairdraw.contracts import (
    AddedRow,
    BitmaskBatch,
    FilterBatch,
    FilterParams,
    GrammarBatch,
    GrammarRequest,
    LiveBatch,
    LiveRequest,
    LogitsBatch,
    LogitsParams,
    LogitsRequest,
    LogprobsBatch,
    Markers,
    Move,
    MovedRow,
    PlanSetup,
    RequestParams,
    RowChanges,
    SeededNoise,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from torch import Tensor

STEPS = 40
"""Steps of a trace."""


class Serving:
    """A live batch, in which requests come, go, move, grow, are cut, and hold tokens that arrive late."""

    def __init__(
        self, rng: random.Random, size: int, new: Callable[[], Any], tokens: Callable[[int], list[int]]
    ) -> None:
        self.rng, self.new, self.tokens = rng, new, tokens
        self.rows = [new() for _ in range(size)]
        self.most = size
        self.change: RowChanges | None = RowChanges(size, (), tuple(map(self.added, range(size))))

    def added(self, row: int) -> AddedRow:
        one = self.rows[row]
        return AddedRow(row, one.params, one.prompt_token_ids, one.output_token_ids)

    def step(self) -> None:
        """Let a step pass."""
        for one in self.rows:
            output, rng = one.output_token_ids, self.rng
            output[:] = [self.tokens(1)[0] if token < 0 else token for token in output]
            if output and rng.random() < 0.05:
                del output[rng.randint(0, len(output)) :]
            output.extend(self.tokens(rng.choice([0, 1, 1, 2, 4])))
            if rng.random() < 0.2:
                output.append(-1)
            one.draft_token_ids[:] = self.tokens(rng.choice([0, 0, 1, 3, 9]))
        self.change = self.events() if self.rng.random() < 0.6 else None

    def events(self) -> RowChanges:
        """Let requests finish, others enter, and rows move."""
        rng = self.rng
        gone = [row for row in range(len(self.rows)) if rng.random() < 0.15]
        added = []
        for row in list(gone):
            if rng.random() < 0.6 or len(self.rows) - len(gone) < 1:
                self.rows[row] = self.new()
                added.append(self.added(row))
        holes = sorted(set(gone) - {one.row for one in added})
        moved = []
        while holes:
            last = len(self.rows) - 1
            if holes[-1] == last:
                holes.pop()
            else:
                hole = holes.pop(0)
                self.rows[hole] = self.rows[last]
                moved.append(MovedRow(last, hole, Move.UNIDIRECTIONAL))
            self.rows.pop()
        while len(self.rows) < self.most and rng.random() < 0.3:
            self.rows.append(self.new())
            added.append(self.added(len(self.rows) - 1))
            if moved:  # its row was left by a request that moves after it was added
                self.rows.pop()
                added.pop()
                break
        if rng.random() < 0.4 and len(self.rows) > 1:
            a, b = rng.sample(range(len(self.rows)), 2)
            self.rows[a], self.rows[b] = self.rows[b], self.rows[a]
            moved.append(MovedRow(a, b, Move.SWAP))
        return RowChanges(len(self.rows), tuple(sorted(gone, reverse=True)), tuple(added), tuple(moved))


def ids_of(rng: random.Random, vocab: int) -> Callable[[int], list[int]]:
    """Return a source of ids, of which some come often."""
    likely = [0, vocab - 1, *(rng.randrange(vocab) for _ in range(10))]
    return lambda count: [rng.choice(likely) if rng.random() < 0.6 else rng.randrange(vocab) for _ in range(count)]


def text_of(rng: random.Random, start: tuple[int, ...], end: tuple[int, ...]) -> Callable[[int], list[int]]:
    """Return a source of texts in which markers, and pieces of them, are frequent."""

    def tokens(count: int) -> list[int]:
        text: list[int] = []
        while len(text) < count:
            text += rng.choice([start, end, (rng.randrange(8),), (5,) * 8, end[: rng.randint(1, len(end))]])
        return text[:count] if rng.random() < 0.5 or count < 2 else text[-count:]

    return tokens


def markers_of(rng: random.Random) -> Markers:
    start = tuple(rng.randrange(3) for _ in range(rng.randint(1, 6)))
    end = (*start[:1], *(rng.randrange(3) for _ in range(rng.randint(1, 5))))
    return Markers(start, end if end != start else (*end, 2))


def play_penalties(scanner: Any, rng: random.Random) -> list[Any]:
    vocab = rng.choice([20, 300, 2000])
    tokens = ids_of(rng, vocab)

    def new() -> LiveRequest:
        factors: list[list[float]] = [[0, 0, 0.5, -0.5], [0, 0, 0.3, -0.3], [1, 1, 1.3, 0.7]]
        params = RequestParams(rng.choice(factors[0]), rng.choice(factors[1]), rng.choice(factors[2]))
        lengths = [rng.choice([0, 1, 3, 10, 40, 40, 700, 2600]), rng.choice([0, 0, 0, 5, 300])]
        return LiveRequest("x", params, tokens(lengths[0]), tokens(lengths[1]))

    serving, answers = Serving(rng, log_uniform(rng, 2, 64), new, tokens), []
    session, noise = scanner.open_penalties(vocab), np.random.default_rng(rng.getrandbits(30))
    for _ in range(STEPS):
        if serving.change:
            session.sync(serving.change)
        batch = LiveBatch(tuple(serving.rows))
        for rows, call in ((len(serving.rows), session.penalise), (batch.num_drafts, session.penalise_drafts)):
            answers.append(call(torch.from_numpy(noise.standard_normal((rows, vocab), np.float32) * 3), batch).clone())
        serving.step()
    return answers


def play_thinking(scanner: Any, rng: random.Random) -> list[Any]:
    markers = markers_of(rng)
    tokens = text_of(rng, *markers)

    def new() -> LiveRequest:
        params = RequestParams(thinking_token_budget=rng.choice([None, 0, 1, 2, 5, 12, 50, 300]))
        prompt = [*tokens(rng.choice([0, 3, 9, 200])), *rng.choice([markers.start, markers.start, ()])]
        return LiveRequest("x", params, prompt, tokens(rng.choice([0, 0, 1, 5, 100])))

    serving, answers = Serving(rng, log_uniform(rng, 2, 40), new, tokens), []
    session = scanner.open_thinking(markers)
    for _ in range(STEPS):
        if serving.change:
            session.sync(serving.change)
        answers.append(session.forced(LiveBatch(tuple(serving.rows))))
        serving.step()
    return answers


def play_plan(planner: Any, rng: random.Random) -> list[Any]:
    vocab, markers = rng.choice([12, 40, 300]), markers_of(rng)
    tokens = rng.choice([text_of(rng, *markers), ids_of(rng, vocab)])
    words = [[1, 2], [3], [2, 1, 2], [1, 1, 2, 3, 1, 2], [2, 3, 1, 1]]

    def new() -> LogitsRequest:
        few = rng.sample(range(vocab), 4)
        choices: dict[str, list[Any]] = {
            "presence_penalty": [0, 0, 0.5],
            "repetition_penalty": [1, 1, 1.3],
            "thinking_token_budget": [None, 0, 2],
            "temperature": [1, 0, 0.5, 1.8],
            "top_k": [0, 0, -1, 3, 20],
            "top_p": [1, 1, 0.6, 0.98],
            "min_p": [0, 0, 0.1, 0.4],
            "allowed_token_ids": [None, None, None, few, list(range(vocab // 2))],
            "bad_words_token_ids": [None, rng.sample(words, 3)],
            "min_tokens": [0, 3, 12],
            "all_stop_token_ids": [frozenset(), frozenset(few)],
            "logit_bias": [None, {1: 1.5, 2: -2.0}, {1: 90.0, few[0]: -80.0}],
        }
        params = LogitsParams(**{name: rng.choice(values) for name, values in choices.items()})
        return LogitsRequest(params, tokens(rng.choice([0, 4, 30])), tokens(rng.choice([0, 0, 3, 40])))

    serving, answers = Serving(rng, log_uniform(rng, 2, 16), new, tokens), []
    session = planner.open_plan(PlanSetup(vocab, *markers))
    noise = np.random.default_rng(rng.getrandbits(30))
    for _ in range(STEPS // 2):
        rows = sum(len(one.draft_token_ids) + 1 for one in serving.rows)
        logits = torch.from_numpy(noise.standard_normal((rows, vocab), np.float32) * 3)
        logits = logits.to(rng.choice([torch.float32, torch.bfloat16]))
        answers += [session.process(LogitsBatch(logits, tuple(serving.rows), serving.change)).clone(), logits]
        serving.step()
    return answers


# -- rows of logits -------------------------------------------------------------------------------------------------


def rows_of(rng: random.Random, *, half: bool = True) -> Tensor:  # [n, vocab_size]
    """Return rows of logits with the sizes, dtype and strides of some engine."""
    n, vocab = log_uniform(rng, 1, 300), rng.choice([32, 100, 1000, 8192, 32000, 50257, 151936])
    n = max(1, min(n, 2**18 // vocab))
    torch.manual_seed(rng.getrandbits(40))
    dtype = rng.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16]) if half else torch.float32
    return (torch.randn(n, vocab + 8 * rng.randrange(2)) * 3)[:, :vocab].to(dtype)


class Counter:
    """A grammar: token `t` is allowed after `k` tokens if its bit `k % 5` is 0; it ends after nine tokens."""

    def __init__(self, words: int) -> None:
        self.taken: list[int] = []
        self.words = words

    @property
    def is_terminated(self) -> bool:
        return len(self.taken) >= 9

    def allows(self, token: int) -> bool:
        return not self.is_terminated and not token >> len(self.taken) % 5 & 1

    def accept(self, token_id: int) -> bool:
        if not self.allows(token_id):
            return False
        self.taken.append(token_id)
        return True

    def rollback(self, num_tokens: int) -> None:
        del self.taken[len(self.taken) - num_tokens :]

    def fill(self, bitmask: Tensor) -> None:  # [num_words] int32
        words = [sum(1 << bit for bit in range(32) if self.allows(32 * word + bit)) for word in range(self.words)]
        bitmask.copy_(torch.tensor([word - (word >> 31 << 32) for word in words], dtype=torch.int32))


def play_grammar(masker: Any, rng: random.Random) -> list[Any]:
    answers: list[Any] = []
    for _ in range(STEPS):
        logits = rows_of(rng)
        n, vocab = logits.shape
        words = max(1, -(-vocab // 32) - rng.choice([0, 0, 0, 1]))
        bitmask = torch.randint(-(2**31), 2**31, (n, words), dtype=torch.int64).int()
        indices = None if rng.random() < 0.5 else torch.randperm(n)[: rng.randint(0, n)]
        answers.append(masker.apply_bitmask(BitmaskBatch(logits, bitmask, indices)).clone())
        requests = []
        for _ in range(log_uniform(rng, 1, 16)):
            grammar = Counter(4) if rng.random() < 0.8 else None
            requests.append(
                GrammarRequest(grammar, tuple(rng.choice([0, 32, 64, 5]) for _ in range(rng.randint(0, 8))))
            )
        step = torch.randn(sum(len(one.draft_token_ids) + 1 for one in requests), 128)
        answers.append(masker.mask_drafts(GrammarBatch(step, tuple(requests))).clone())
        answers.append([len(one.grammar.taken) for one in requests if isinstance(one.grammar, Counter)])
    return answers


def play_logprobs(sampler: Any, rng: random.Random) -> list[Any]:
    answers: list[Any] = []
    for _ in range(STEPS // 2):
        logits = rows_of(rng)
        n, vocab = logits.shape
        counts: list[int] = []
        while sum(counts) < n:
            counts.append(min(n - sum(counts), rng.choice([1, 1, 3, 5])))
        most = rng.choice([0, 1, 5, 20, min(vocab, 100)])
        wanted: list[int | None] = [rng.choice([None, 0, most, rng.randint(0, most)]) for _ in counts]
        wanted[0] = rng.choice([most, -1]) if vocab <= 1000 else most
        processed = logits.float().masked_fill(torch.rand(n, vocab) < 0.3, -torch.inf)
        tokens = processed.argmax(-1) if rng.random() < 0.3 else torch.randint(0, vocab, (n,))
        tokens[torch.rand(n) < 0.1] = -1
        stage = rng.choice(["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"])
        batch = LogprobsBatch(logits, processed, tokens, counts, wanted, stage)
        found, read = sampler.logprobs(batch), [-1 if one is None else one for one in batch.row_logprobs]
        for row, width in enumerate(read):
            if width >= 0 and tokens[row] >= 0:
                answers.append(found.token_ids[row, : width + 1].clone())
                answers += [found.logprobs[row, : width + 1].clone(), found.ranks[row : row + 1].clone()]
    return answers


def play_filters(filterer: Any, rng: random.Random) -> list[Any]:
    answers = []
    draws: dict[str, Callable[[], Any]] = {
        "temperature": lambda: rng.uniform(0.2, 2),
        "top_k": lambda: log_uniform(rng, 1, 200),
        "typical_p": lambda: rng.uniform(0.2, 0.98),
        "top_p": lambda: rng.uniform(0.3, 0.99),
        "min_p": lambda: rng.uniform(0.01, 0.5),
        "top_a": lambda: rng.uniform(0.05, 0.9),
        "top_n_sigma": lambda: rng.uniform(0.5, 2.5),
        "epsilon": lambda: rng.uniform(3e-4, 0.02),
        "eta": lambda: rng.uniform(3e-4, 0.02),
    }
    for _ in range(STEPS // 2):
        logits = rows_of(rng, half=False)[:40]
        if rng.random() < 0.3:
            logits[:, : logits.shape[1] // 2] = -torch.inf
        params = []
        for _ in range(len(logits)):
            names = rng.sample(ORDER, rng.choice([0, 1, 1, 2, 3]))
            params.append(FilterParams(**{name: draws[name]() for name in names}))
        empty: list[list[int]] = [[] for _ in params]
        answers.append(filterer.filter_logits(FilterBatch(logits, params, empty, empty), SeededNoise(1)).logits.clone())
    return answers


def same(one: list[Any], other: list[Any]) -> bool:
    """Whether two lists of answers agree up to rounding."""

    def equal(a: Any, b: Any) -> bool:
        if isinstance(a, torch.Tensor):
            return a.shape == b.shape and bool(torch.isclose(a.float(), b.float(), 1e-4, 1e-4, equal_nan=True).all())
        return bool(a == b)

    return len(one) == len(other) and all(map(equal, one, other))
