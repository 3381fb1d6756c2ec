"""A simulated engine: calls and traces of ordinary serving, and requests to a server, played on a sampler.

Each `play_*` returns the answers. Played with the same generator on a correct sampler and on a faulty one, they show
whether the fault is real, and whether its condition holds in ordinary serving.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from exam.conditions import log_uniform
from fairdraw import contracts
from fairdraw._oracles.matchers import MatcherOracle
from fairdraw.contracts._masks import sample_masks
from fairdraw.strategies._serving_batch import ServingBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

STEPS = 40
"""Steps of a trace."""
VOCABULARIES = (1000, 8192, 32000, 32064, 50257, 100352, 128256, 151936, 201088, 262144)
MOST_ENTRIES = 2**25
"""Rows times vocabulary of a call, at most."""

# -- calls of sampling and rejection ----------------------------------------------------------------------------------


def seeds_of(rng: random.Random, size: int) -> dict[int, int]:
    """Return seeds of some rows: small ones as users write them, and any of 64 bits."""
    share = rng.choice([0, 0.2, 1])
    draws = (
        rng.choice([rng.randrange(100), rng.randrange(2**32), rng.randrange(-(2**63), 2**63)]) for _ in range(size)
    )
    return {row: seed for row, seed in enumerate(draws) if rng.random() < share}


def logits_of(rng: random.Random, rows: int, vocab: int, *, filled: bool) -> Tensor:  # [rows, vocab]
    """Return logits with the dtype and strides of some engine; zeros that cost no memory unless they are filled."""
    dtype, wide = rng.choice([torch.float32, torch.bfloat16, torch.float16, torch.float32]), rng.random() < 0.3
    logits = torch.zeros(rows, vocab + 64 * wide, dtype=dtype)[:, :vocab]
    if filled:
        torch.manual_seed(rng.getrandbits(40))
        logits.copy_(torch.randn(rows, vocab) * 3)
    if rng.random() < 0.05:
        logits[rng.randrange(rows), 0] = torch.nan
    return logits


def sampling_call(seed: str, *, filled: bool, most: int = MOST_ENTRIES) -> tuple[Any, Any]:
    """Return a call as an engine makes it; the same one for the same seed, with or without its logits."""
    rng = random.Random(seed)
    n, vocab = log_uniform(rng, 1, 512), rng.choice(VOCABULARIES)
    n = min(n, most // vocab)

    def column(off: float, draw: Callable[[], float], dtype: torch.dtype) -> Tensor | None:  # [n]
        share = rng.choice([0, 0.5, 1])
        numbers = [draw() if rng.random() < share else off for _ in range(n)]
        return torch.tensor(numbers, dtype=dtype) if share else None

    greedy = rng.choice([0, 0.2, 0.5])
    heat = [0.0 if rng.random() < greedy else rng.choice([1.0, rng.uniform(0.1, 2)]) for _ in range(n)]
    top_k = column(vocab, lambda: log_uniform(rng, 1, 999), torch.int32)
    top_p = column(1, lambda: rng.uniform(0.5, 1), torch.float32)
    min_p = column(0, lambda: rng.uniform(0.01, 0.3), torch.float32)
    positions = torch.tensor([log_uniform(rng, 1, 2**17) for _ in range(n)])
    noise = contracts.SeededNoise(rng.getrandbits(31), seeds_of(rng, n))
    logits = logits_of(rng, n, vocab, filled=filled)
    return contracts.SamplingBatch(logits, torch.tensor(heat), top_k, top_p, min_p, positions), noise


def rejection_call(seed: str, *, filled: bool) -> tuple[contracts.SpecDecodeBatch, contracts.SeededNoise]:
    """Return a call as an engine makes it, as above."""
    rng = random.Random(seed)
    n, vocab, most = log_uniform(rng, 1, 512), rng.choice(VOCABULARIES), rng.choice([1, 2, 3, 4, 5, 7, 8, 16, 32])
    n = max(1, min(n, MOST_ENTRIES // vocab // most, 2000 // most))
    ragged, none = rng.random() < 0.5, rng.choice([0, 0.2])
    counts = [0 if rng.random() < none else rng.randint(1, most) if ragged else most for _ in range(n)]
    total, greedy = sum(counts), rng.choice([0, 0, 0.3, 0.7])
    heat = [0.0 if rng.random() < greedy else rng.choice([1.0, rng.uniform(0.1, 2)]) for _ in range(n)]
    dense, gaps = rng.random() < 0.5, rng.choice([0, 0, 0.05])
    drafts = torch.tensor(
        [-1 if rng.random() < gaps else rng.randrange(vocab) for _ in range(total)], dtype=torch.int32
    )
    bonus = torch.tensor([[rng.randrange(vocab)] for _ in range(n)], dtype=torch.int32)
    noise = contracts.SeededNoise(rng.getrandbits(31), seeds_of(rng, n))
    spare = rng.choice([0, 0, 0, 2])
    logits = logits_of(rng, max(total, 1), vocab, filled=filled)[:total]
    probs = torch.zeros(total, vocab) if dense else None
    if filled and total:
        likely = (logits.float().nan_to_num() + torch.randn(total, vocab)).softmax(-1)
        near = torch.multinomial(likely, 1)[:, 0].int()
        drafts = torch.where(drafts < 0, drafts, near)
        probs = likely if dense else None
    ends = torch.tensor(counts, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    batch = contracts.SpecDecodeBatch(
        drafts, counts, ends, max(counts, default=0) + spare, probs, logits, bonus, torch.tensor(heat)
    )
    return batch, noise


def play_call(sampler: Any, batch: Any, noise: contracts.SeededNoise) -> list[Tensor]:
    """Return what two calls with these logits answer, and what they leave of the input."""
    torch.manual_seed(noise.seed)
    call = sampler.sample if isinstance(batch, contracts.SamplingBatch) else sampler.verify
    answers = [call(batch, noise).clone() for _ in range(2)]
    return [*answers, *(tensor.nan_to_num() for tensor in batch.tensors().values() if tensor.is_floating_point())]


# -- traces -----------------------------------------------------------------------------------------------------------


class Serving(ServingBatch):
    """A live batch, in which requests come, go, move, grow, are cut, and hold tokens that arrive late."""

    def __init__(
        self, rng: random.Random, vocab_size: int, most: int, new: Callable[[], Any], tokens: Callable[[int], list[int]]
    ) -> None:
        super().__init__(vocab_size, most_requests=most, names_taken=True)
        self.rng, self.new, self.tokens = rng, new, tokens
        for _ in range(most):
            self.add(*new())
        self.change: contracts.RowChanges | None = self.take_changes()

    def step(self) -> None:
        """Let a step pass."""
        rng = self.rng
        for one in self.requests:
            self.repair(one)
            if rng.random() < 0.05:
                self.cut(one, rng.randint(0, len(one.output_token_ids)))
            self.emit(one, self.tokens(rng.choice([0, 1, 1, 2, 4])))
            if rng.random() < 0.2:
                self.emit(one, self.tokens(1), num_late=1)
            self.draft(one, self.tokens(rng.choice([0, 0, 1, 3, 9])))
        self.change = self.events() if rng.random() < 0.6 else None

    def events(self) -> contracts.RowChanges:
        """Let requests finish, others enter, and rows move."""
        rng = self.rng
        for row in range(len(self.slots)):
            if rng.random() < 0.15 and self.num_requests > 1:
                self.finish(row)
        while self.num_requests < self.most_requests and rng.random() < 0.5:
            self.add(*self.new())
        if rng.random() < 0.4 and self.num_requests > 1:
            self.swap(*rng.sample(range(self.num_requests), 2))
        return self.take_changes()


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


def markers_of(rng: random.Random) -> contracts.Markers:
    start = tuple(rng.randrange(3) for _ in range(rng.randint(1, 6)))
    end = (*start[:1], *(rng.randrange(3) for _ in range(rng.randint(1, 5))))
    return contracts.Markers(start, end if end != start else (*end, 2))


def play_penalties(scanner: Any, rng: random.Random) -> list[Any]:
    vocab = rng.choice([20, 300, 2000])
    tokens = ids_of(rng, vocab)

    def new() -> tuple[Any, list[int], list[int]]:
        factors: list[list[float]] = [[0, 0, 0.5, -0.5], [0, 0, 0.3, -0.3], [1, 1, 1.3, 0.7]]
        params = contracts.RequestParams(rng.choice(factors[0]), rng.choice(factors[1]), rng.choice(factors[2]))
        lengths = [rng.choice([0, 1, 3, 10, 40, 40, 700, 2600]), rng.choice([0, 0, 0, 5, 300])]
        return params, tokens(lengths[0]), tokens(lengths[1])

    serving, answers = Serving(rng, vocab, log_uniform(rng, 2, 64), new, tokens), []
    session, noise = scanner.open_penalties(vocab), np.random.default_rng(rng.getrandbits(30))
    for _ in range(STEPS):
        if serving.change:
            session.sync(serving.change)
        batch = serving.batch()
        for rows, call in ((serving.num_requests, session.penalise), (batch.num_drafts, session.penalise_drafts)):
            answers.append(call(torch.from_numpy(noise.standard_normal((rows, vocab), np.float32) * 3), batch).clone())
        serving.step()
    return answers


def play_thinking(scanner: Any, rng: random.Random) -> list[Any]:
    markers = markers_of(rng)
    tokens = text_of(rng, *markers)

    def new() -> tuple[Any, list[int], list[int]]:
        params = contracts.RequestParams(thinking_token_budget=rng.choice([None, 0, 1, 2, 5, 12, 50, 300]))
        prompt = [*tokens(rng.choice([0, 3, 9, 200])), *rng.choice([markers.start, markers.start, ()])]
        return params, prompt, tokens(rng.choice([0, 0, 1, 5, 100]))

    serving, answers = Serving(rng, 8, log_uniform(rng, 2, 40), new, tokens), []
    session = scanner.open_thinking(markers)
    for _ in range(STEPS):
        if serving.change:
            session.sync(serving.change)
        answers.append(session.forced(serving.batch()))
        serving.step()
    return answers


def play_plan(planner: Any, rng: random.Random) -> list[Any]:
    vocab, markers = rng.choice([12, 40, 300]), markers_of(rng)
    tokens = rng.choice([text_of(rng, *markers), ids_of(rng, vocab)])
    words = [[1, 2], [3], [2, 1, 2], [1, 1, 2, 3, 1, 2], [2, 3, 1, 1]]

    def new() -> tuple[Any, list[int], list[int]]:
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
        params = contracts.LogitsParams(**{name: rng.choice(values) for name, values in choices.items()})
        return params, tokens(rng.choice([0, 4, 30])), tokens(rng.choice([0, 0, 3, 40]))

    serving, answers = Serving(rng, vocab, log_uniform(rng, 2, 16), new, tokens), []
    session = planner.open_plan(contracts.PlanSetup(vocab, *markers))
    noise = np.random.default_rng(rng.getrandbits(30))
    for _ in range(STEPS // 2):
        requests = tuple(
            contracts.LogitsRequest(one.params, one.prompt_token_ids, one.output_token_ids, one.draft_token_ids)
            for one in serving.requests
        )
        rows = sum(len(one.draft_token_ids) + 1 for one in requests)
        logits = torch.from_numpy(noise.standard_normal((rows, vocab), np.float32) * 3)
        logits = logits.to(rng.choice([torch.float32, torch.bfloat16]))
        answers += [session.process(contracts.LogitsBatch(logits, requests, serving.change)).clone(), logits]
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


CHARACTERS = "".join(map(chr, range(256, 384)))
"""The characters that tokens of the grammar below stand for."""
COUNTER = contracts.MatcherGrammar(
    "".join(f"[{''.join(CHARACTERS[t] for t in range(128) if not t >> k % 5 & 1)}]" for k in range(9)),
    tuple(map(str.encode, CHARACTERS)),
    (),
)
"""Token `t` is allowed after `k` tokens if its bit `k % 5` is 0."""


def play_grammar(masker: Any, rng: random.Random) -> list[Any]:
    answers: list[Any] = []
    for _ in range(STEPS):
        logits = rows_of(rng)
        n, vocab = logits.shape
        words = max(1, -(-vocab // 32) - rng.choice([0, 0, 0, 1]))
        bitmask = torch.randint(-(2**31), 2**31, (n, words), dtype=torch.int64).int()
        indices = None if rng.random() < 0.5 else torch.randperm(n)[: rng.randint(0, n)]
        answers.append(masker.apply_bitmask(contracts.BitmaskBatch(logits, bitmask, indices)).clone())
        requests = []
        for _ in range(log_uniform(rng, 1, 16)):
            grammar = MatcherOracle(COUNTER, {}) if rng.random() < 0.8 else None
            requests.append(
                contracts.GrammarRequest(grammar, tuple(rng.choice([0, 32, 64, 5]) for _ in range(rng.randint(0, 8))))
            )
        step = torch.randn(sum(len(one.draft_token_ids) + 1 for one in requests), 128)
        answers.append(masker.mask_drafts(contracts.GrammarBatch(step, tuple(requests))).clone())
        answers.append([len(one.grammar.token_ids) for one in requests if isinstance(one.grammar, MatcherOracle)])
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
        batch = contracts.LogprobsBatch(logits, processed, tokens, counts, wanted, stage)
        found, read = sampler.logprobs(batch), [-1 if one is None else one for one in batch.row_logprobs]
        for row, width in enumerate(read):
            if width >= 0 and tokens[row] >= 0:
                answers.append(found.token_ids[row, : width + 1].clone())
                answers += [found.logprobs[row, : width + 1].clone(), found.ranks[row : row + 1].clone()]
    return answers


def play_filters(filterer: Any, rng: random.Random) -> list[Any]:
    answers = []
    for _ in range(STEPS // 2):
        logits = rows_of(rng, half=False)[:40]
        if rng.random() < 0.3:
            logits[:, : logits.shape[1] // 2] = -torch.inf
        params = []
        for _ in range(len(logits)):
            names = rng.sample(list(contracts.LOGIT_FILTERS), rng.choice([0, 1, 1, 2, 3]))
            names = [name for name in names if "mirostat" in name][:1] or names  # mirostat has no other beside it
            usual = [rng.choice(contracts.LOGIT_FILTERS[name].usual) for name in names]
            params.append(contracts.FilterParams(**{key: value for one in usual for key, value in one.items()}))
        texts = [[rng.randrange(4) for _ in range(12)] for _ in params]
        batch = contracts.FilterBatch(logits, params, texts, [[] for _ in params])
        answers.append(filterer.filter_logits(batch, contracts.SeededNoise(1)).logits.clone())
    return answers


# -- masks -------------------------------------------------------------------------------------------------------------


def play_masks(sampler: Any, rng: random.Random) -> list[Any]:
    answers: list[Any] = []
    for _ in range(STEPS // 2):
        batch, noise = sampling_call(str(rng.random()), filled=True, most=2**18)
        found = sample_masks(sampler, batch, noise, rng.choice([1, 16, 256, batch.vocab_size]))
        listed = found.token_ids * (np.arange(found.token_ids.shape[1]) < found.counts[:, None])
        answers += map(torch.from_numpy, (found.tokens, found.kept, listed, found.counts, found.logprobs))
        answers += [found.written, batch.logits.nan_to_num()]
    return answers


# -- requests to a server ---------------------------------------------------------------------------------------------


def play_server(server: Any, rng: random.Random) -> list[Any]:
    """Return the tokens and log-probabilities of some requests, as users make them."""
    found: list[Any] = []
    for _ in range(12):
        requests = []
        for _ in range(rng.choice([1, 2, 4, 8])):
            choices: dict[str, list[Any]] = {
                "prompt": ["a", "b", (1, 2), f"p{rng.randrange(99)}"],
                "max_tokens": [1, 4, 8, 16, 24],
                "temperature": [0, 1, 0.5, 1.5],
                "seed": [None, None, rng.randrange(100), rng.randrange(-(2**63), 2**63)],
                "n": [1, 1, 2, 4, 6],
                "logprobs": [None, 0, 1, 5, 20],
                "logit_bias": [(), (), ((3, 5.0), (4, -5.0))],
                "top_k": [None, None, 3, 20],
                "top_p": [None, None, 0.6, 0.9],
                "min_p": [None, None, 0.1],
                "presence_penalty": [0, 0, 1.0],
                "frequency_penalty": [0, 0, 0.5],
            }
            chosen = {name: rng.choice(values) for name, values in choices.items()}
            requests.append(contracts.GenerationRequest(**chosen))
        answers = server.generate(requests)
        found += [(p.token, p.logprob, p.top) for answer in answers for one in answer.choices for p in one.positions]
    return found


def same(one: list[Any], other: list[Any]) -> bool:
    """Whether two lists of answers agree up to rounding."""

    def equal(a: Any, b: Any) -> bool:
        if isinstance(a, torch.Tensor):
            return a.shape == b.shape and bool(torch.isclose(a.float(), b.float(), 1e-4, 1e-4, equal_nan=True).all())
        return bool(a == b)

    return len(one) == len(other) and all(map(equal, one, other))
