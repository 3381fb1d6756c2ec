"""The sampling contract: a right sampler, its features and effects, and an engine that calls it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from exam.conditions import Feature, flag, log_uniform
from exam.planted import Effect, Fault, Lazy, Planted
from fairdraw.protocols import Capabilities, RaceNoise, SamplingBatch, SeededNoise

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

VOCABULARIES = (1000, 8192, 32000, 32064, 50257, 100352, 128256, 151936, 201088, 262144)
MOST_ENTRIES = 2**25
"""Rows times vocabulary in the engine, at most."""

SIZES = [
    Feature("batch_size", "size", "batch size", r"batch(es)?( size)? of|requests|batch size", 1, 512),
    Feature("vocab_size", "size", "vocabulary", r"vocabular|vocab|entries", 1000, 262144),
]
HISTORY = [
    flag("first_call", "history", "it is the sampler's first call", r"first call"),
    Feature("calls", "history", "number of earlier calls", r"call|later|earlier|again", 1, 200),
    flag("after_bigger", "history", "the call before had a bigger batch", r"call|bigger|larger|smaller|earlier"),
    flag("after_same", "history", "the call before had as many requests", r"call|same|earlier|again"),
    flag("after_other_vocabulary", "history", "the call before had another vocabulary", r"call|vocabular|earlier"),
]
SEEDS = [
    Feature("seed", "seed", "request's seed", r"seed|generator", -(2**63), 2**63),
    flag("seeded", "seed", "the request has a seed", r"seed|generator"),
    flag("unseeded_among_seeded", "seed", "the request has no seed and another has one", r"seed|generator"),
]
FEATURES = [
    *SIZES,
    Feature("row", "index", "request's row", r"row|request \d+|requests?\b.*\d", 0, 400),
    Feature("rows_behind", "index", "number of rows behind it", r"row|last|request \d+", 0, 400),
    Feature("token", "id", "token id", r"\bids?\b|token \d+|tile|lane|bit", 0, 262144),
    flag("half", "layout", "logits are bfloat16 or float16", r"half|float16|dtype|precision"),
    flag("strided", "layout", "logits are strided", r"strid|contiguous|layout"),
    flag("aligned", "layout", "the vocabulary is a multiple of 64", r"vocabular|multiple|align"),
    flag("has_top_k", "request", "the request has top-k", r"top.?k|filter"),
    flag("has_top_p", "request", "the request has top-p", r"top.?p|filter"),
    flag("has_min_p", "request", "the request has min-p", r"min.?p|filter"),
    Feature("top_k", "request", "top-k", r"top.?k", 1, 1000),
    Feature("top_p", "request", "top-p", r"top.?p", 0.5, 1),
    Feature("temperature", "request", "temperature", r"temperature", 0.1, 2),
    *SEEDS,
    *HISTORY,
    Feature("position", "history", "position", r"position", 16, 2**17),
    flag("after_greedy", "neighbour", "the row before is greedy", r"greedy|neighbour|beside|mixed|other requests"),
    flag("among_greedy", "neighbour", "another row is greedy", r"greedy|neighbour|beside|mixed|other requests"),
    flag("after_filtered", "neighbour", "the row before has top-k", r"top.?k|filter|neighbour|beside|other requests"),
    flag("among_seeded", "neighbour", "another row has a seed", r"seed|neighbour|beside|mixed|other requests"),
    flag("among_nan", "neighbour", "another row has a NaN", r"nan|neighbour|beside|other requests"),
]
NOISE = r"noise|share|independen|generator|seed|random|draw|race|equals? the oracle"
TOKEN = r"token|support|follow|distribution|oracle|greedy|argmax"
EFFECTS = {
    "next id": Effect("the id after the drawn one is returned", TOKEN, ids="token", rare=True),
    "second best": Effect("the second most probable token is returned", TOKEN, ids="token", rare=True),
    "fixed id": Effect("id {:.0f} is returned", TOKEN, ids="token", sizes=(0, 200), rare=True),
    "stale token": Effect("the row's token of the call before is returned", TOKEN + "|call|stale", ids="token"),
    "neighbour's token": Effect("the token of the row before is returned", TOKEN + "|row|neighbour", ids="token"),
    "ids scaled": Effect(
        "probabilities are multiplied by {:.2f}", TOKEN + "|probab", ("random",), "vocabulary", sizes=(0.5, 0.9)
    ),
    "neighbour's noise": Effect("the row races with the numbers of the row before", NOISE, ("random",), rare=True),
    "stale noise": Effect("the row races with its numbers of the call before", NOISE + "|call", ("random",)),
    "shifted noise": Effect("the row races with its neighbour's numbers, one id further", NOISE, ("random",)),
    "antithetic noise": Effect("the row's uniforms are one minus those of the row before", NOISE, ("random",)),
    "lost seed": Effect("the request's seed is not used", NOISE, ("random", "seeded")),
    "short seed": Effect("the low 16 bits of the seed count alone", NOISE + "|bit", ("random", "seeded")),
    "skipped numbers": Effect("the request's generator skips numbers after the draw", NOISE, ("random", "seeded")),
    "hot": Effect("the temperature is multiplied by {:.2f}", r"temperature|" + TOKEN, ("random",), sizes=(1.05, 1.2)),
    "cold": Effect("the temperature is multiplied by {:.2f}", r"temperature|" + TOKEN, ("random",), sizes=(0.8, 0.95)),
    "no temperature": Effect("the temperature is not applied", r"temperature|" + TOKEN, ("random",), rare=True),
    "no top_k": Effect("top-k is not applied", r"top.?k|filter|support", ("random", "has_top_k"), rare=True),
    "no top_p": Effect("top-p is not applied", r"top.?p|filter|support", ("random", "has_top_p"), rare=True),
    "no min_p": Effect("min-p is not applied", r"min.?p|filter|support", ("random", "has_min_p"), rare=True),
    "wide top_k": Effect("top-k keeps one token more", r"top.?k|filter|support", ("random", "has_top_k")),
    "narrow top_p": Effect("top-p is multiplied by {:.2f}", r"top.?p|filter", ("random", "has_top_p"), sizes=(0.7, 0.9)),
    "high min_p": Effect("min-p is multiplied by {:.2f}", r"min.?p|filter", ("random", "has_min_p"), sizes=(1.2, 2)),
    "drawn": Effect("a greedy request is drawn at random", r"greedy|argmax|largest", ("greedy",), rare=True),
    "greedy": Effect("the most probable token is returned", TOKEN, ("random",), rare=True),
    "input written": Effect("the row of logits is halved in place", r"modif|written|wrote|input|chang|intact"),
}


class History:
    """What a sampler could know of its earlier calls."""

    def __init__(self) -> None:
        self.calls, self.size, self.vocab = 0, 0, 0
        self.kept: dict[str, Any] = {}

    def note(self, size: int, vocab: int) -> None:
        self.calls, self.size, self.vocab = self.calls + 1, size, vocab

    def values(self, size: int, vocab: int) -> dict[str, Callable[[], Any]]:
        """Return the features of history."""
        calls, before, vocab_before = self.calls, self.size, self.vocab
        return {
            "first_call": lambda: calls == 0,
            "calls": lambda: calls,
            "after_bigger": lambda: before > size,
            "after_same": lambda: before == size,
            "after_other_vocabulary": lambda: calls > 0 and vocab_before != vocab,
        }

    def rows(self, name: str, now: Tensor) -> Tensor:  # as `now`
        """Return the rows that were kept under `name`, where there are such rows, and keep these."""
        before, self.kept[name] = self.kept.get(name), now
        if before is None or before.shape[1:] != now.shape[1:]:
            return now
        stale, common = now.clone(), min(len(before), len(now))
        stale[:common] = before[:common]
        return stale


def before(flags: np.ndarray) -> np.ndarray:  # [n], both
    """Return for each row whether the row before has the flag."""
    return np.concatenate([np.zeros(1, bool), flags[:-1]]) if len(flags) else flags


def among(flags: np.ndarray) -> np.ndarray:  # [n], both
    """Return for each row whether another has the flag."""
    return flags.sum() - flags > 0


def seed_values(noise: Any, size: int) -> tuple[np.ndarray, np.ndarray]:  # [size] bool, [size] int64
    """Return who has a seed, and the seeds."""
    seeds: dict[int, int] = getattr(noise, "request_seeds", {})
    seeded, numbers = np.zeros(size, bool), np.zeros(size, np.int64)
    for row, seed in seeds.items():
        if row < size:
            seeded[row], numbers[row] = True, (seed + 2**63) % 2**64 - 2**63
    return seeded, numbers


def antithetic(exponentials: Tensor) -> Tensor:  # same shape
    """Return the exponentials of one minus their uniforms."""
    return -torch.log1p(-torch.exp(-exponentials.double()).clamp(1e-9, 1 - 1e-9)).float().clamp(min=1e-12)


def generator_for(noise: SeededNoise, row: int, seed: int) -> torch.Generator:
    """Return a generator of the fault's own, which goes on from call to call."""
    key = f"exam {row} {seed}"
    if key not in noise.kept:
        noise.kept[key] = torch.Generator().manual_seed(seed)
    return noise.kept[key]  # type: ignore[return-value]  # what was put there


class Sampling(Planted):
    """It filters as vLLM does, and races on exponentials: the caller's, or those of torch's generators."""

    contract = "sampling"

    def __init__(self, fault: Fault | None = None, *, takes_noise: bool = True) -> None:
        super().__init__(fault)
        self.takes_noise, self.history = takes_noise, History()

    @property
    def capabilities(self) -> Capabilities:
        lacking = {
            "upstream-stream": "it does not draw in vLLM's order",
            "counter-noise": "its generators advance from draw to draw",
            "draft-distribution": "it returns tokens alone",
            "empty-rows": "no row is masked whole",
        }
        own = {"explicit-noise": "noise is drawn inside", "reference-race": "noise is drawn inside"}
        return Capabilities.of(lacking if self.takes_noise else lacking | own)

    def values(self, batch: SamplingBatch, noise: Any) -> Lazy:
        """Return the features of a call and its rows."""
        n, vocab = batch.batch_size, batch.vocab_size
        rows, (seeded, seeds) = np.arange(n), seed_values(noise, n)
        greedy = (batch.temperature < 1e-5).numpy()

        def column(name: str, off: float) -> np.ndarray:  # [n]
            tensor = getattr(batch, name)
            return np.full(n, off) if tensor is None else tensor.double().numpy()

        k, p, m = (lambda: column("top_k", vocab)), (lambda: column("top_p", 1)), (lambda: column("min_p", 0))
        return Lazy(
            {
                **self.history.values(n, vocab),
                "batch_size": lambda: n,
                "vocab_size": lambda: vocab,
                "row": lambda: rows,
                "rows_behind": lambda: n - 1 - rows,
                "half": lambda: batch.logits.dtype != torch.float32,
                "strided": lambda: not batch.logits.is_contiguous(),
                "aligned": lambda: vocab % 64 == 0,
                "top_k": lambda: np.where((k() <= 0) | (k() >= vocab), -1, k()),
                "top_p": p,
                "min_p": m,
                "has_top_k": lambda: (k() > 0) & (k() < vocab),
                "has_top_p": lambda: p() < 1,
                "has_min_p": lambda: m() > 0,
                "temperature": lambda: np.where(greedy, -1, batch.temperature.numpy()),
                "greedy": lambda: greedy,
                "random": lambda: ~greedy,
                "seeded": lambda: seeded,
                "seed": lambda: seeds,
                "unseeded_among_seeded": lambda: ~seeded & among(seeded),
                "position": lambda: batch.positions.numpy(),
                "after_greedy": lambda: before(greedy),
                "among_greedy": lambda: among(greedy),
                "after_filtered": lambda: before((k() > 0) & (k() < vocab)),
                "among_seeded": lambda: among(seeded),
                "among_nan": lambda: among(batch.logits.isnan().any(1).numpy()),
            }
        )

    def sample(self, batch: SamplingBatch, noise: Any) -> Tensor:  # [batch_size] int64
        values, n = self.values(batch, noise), batch.batch_size
        greedy = batch.temperature < 1e-5
        probs = self.probs(batch, values, greedy)
        race = self.numbers(values, self.drawn(batch, noise, values))
        drawn = torch.where(probs > 0, probs / race, -1.0).argmax(-1)
        best = batch.logits.float().argmax(-1)
        if (rows := self.hit("drawn", values, n)) is not None:
            greedy = greedy & ~torch.tensor(rows)
        if (rows := self.hit("greedy", values, n)) is not None:
            greedy = greedy | torch.tensor(rows)
        tokens = self.spoilt(values, torch.where(greedy, best, drawn), probs)
        if (rows := self.hit("input written", values, n)) is not None:
            batch.logits[torch.tensor(rows)] *= 0.5
        self.history.note(n, batch.vocab_size)
        return tokens

    def limits(self, name: str, limits: Tensor, values: Lazy, off: float) -> Tensor:  # [n], both
        """Return a filter's parameter, spoilt."""
        changes = {"wide top_k": lambda x: x + 1, "narrow top_p": lambda x: x * self.size}
        changes |= {"high min_p": lambda x: (x * self.size).clamp(max=1), f"no {name}": lambda x: x * 0 + off}
        for effect, change in changes.items():
            if effect.endswith(name) and (rows := self.hit(effect, values, len(limits))) is not None:
                limits = torch.where(torch.tensor(rows), change(limits).to(limits.dtype), limits)
        return limits

    def probs(self, batch: SamplingBatch, values: Lazy, greedy: Tensor) -> Tensor:  # [n, vocab_size] float32
        n, vocab = batch.logits.shape
        heat = batch.temperature.masked_fill(greedy, 1)
        for effect in ("hot", "cold", "no temperature"):
            if (rows := self.hit(effect, values, n)) is not None:
                changed = torch.ones(n) if effect == "no temperature" else heat * self.size
                heat = torch.where(torch.tensor(rows), changed, heat)
        logits = batch.logits.float() / heat[:, None]
        if batch.min_p is not None:
            limits, probs = self.limits("min_p", batch.min_p, values, 0)[:, None], logits.softmax(-1)
            cut = (probs < probs.amax(-1, keepdim=True) * limits) & (limits > 0)
            logits = logits.masked_fill(cut, -torch.inf)
        if batch.top_k is not None:
            limits = self.limits("top_k", batch.top_k, values, vocab)
            kept = torch.where((limits <= 0) | (limits > vocab), vocab, limits.long())
            most = int(kept.masked_fill(kept == vocab, 1).max())
            smallest = logits.topk(most, -1).values.gather(1, kept.clamp(max=most)[:, None] - 1)
            logits = logits.masked_fill((logits < smallest) & (kept < vocab)[:, None], -torch.inf)
        if batch.top_p is not None:
            limits = self.limits("top_p", batch.top_p, values, 1)
            on = (limits < 1).nonzero()[:, 0]
            ascending, ids = logits[on].sort(dim=-1, stable=True)
            removed = ascending.softmax(-1).double().cumsum(-1).float() <= (1 - limits[on])[:, None]
            removed[:, -1:] = False
            cut = torch.zeros_like(removed).scatter(1, ids, removed)
            logits = logits.index_put((on,), logits[on].masked_fill(cut, -torch.inf))
        probs = logits.softmax(-1)
        if self.plants("ids scaled"):
            mask = np.broadcast_to(self.hit("ids scaled", values.columns(vocab), n), (n, vocab))
            probs = torch.where(torch.tensor(mask), probs * self.size, probs)
        return probs

    def drawn(self, batch: SamplingBatch, noise: Any, values: Lazy) -> Tensor:  # [n, vocab_size] float32
        """Return the exponentials of the right generators."""
        if isinstance(noise, RaceNoise):
            return noise.exponentials
        race = torch.empty(batch.batch_size, batch.vocab_size).exponential_()
        lost = self.hit("lost seed", values, len(race))
        short, skips = (self.hit(name, values, len(race)) for name in ("short seed", "skipped numbers"))
        for row, generator in noise.generators("cpu").items():
            if lost is not None and lost[row]:
                continue
            if short is not None and short[row]:
                generator = generator_for(noise, row, noise.request_seeds[row] % 2**16)
            race[row].exponential_(generator=generator)
            if skips is not None and skips[row]:
                torch.rand(3, generator=generator)
        return race

    def numbers(self, values: Lazy, race: Tensor) -> Tensor:  # [n, vocab_size], both
        """Return the numbers of the race, spoilt."""
        changes: dict[str, Callable[[], Tensor]] = {
            "neighbour's noise": lambda: race.roll(1, 0),
            "shifted noise": lambda: race.roll((1, 1), (0, 1)),
            "antithetic noise": lambda: antithetic(race.roll(1, 0)),
            "stale noise": lambda: self.history.rows("race", race),
        }
        for effect, change in changes.items():
            if (rows := self.hit(effect, values, len(race))) is not None:
                return torch.where(torch.tensor(rows)[:, None], change(), race)
        return race

    def spoilt(self, values: Lazy, tokens: Tensor, probs: Tensor) -> Tensor:  # [n] int64, both
        """Return the tokens, spoilt."""
        vocab = probs.shape[1]
        changes: dict[str, Callable[[], Tensor]] = {
            "next id": lambda: (tokens + 1) % vocab,
            "second best": lambda: probs.topk(min(2, vocab), -1).indices[:, -1],
            "fixed id": lambda: torch.full_like(tokens, int(self.size) % vocab),
            "stale token": lambda: self.history.rows("tokens", tokens).clamp(max=vocab - 1),
            "neighbour's token": lambda: tokens.roll(1, 0),
        }
        for effect, change in changes.items():
            rows = self.hit(effect, values.with_(token=tokens.numpy()), len(tokens))
            if rows is not None:
                return torch.where(torch.tensor(rows), change(), tokens)
        return tokens


# -- the engine -----------------------------------------------------------------------------------------------------


def seeds_of(rng: random.Random, size: int) -> dict[int, int]:
    """Return seeds of some rows: small ones as users write them, and any of 64 bits."""
    share = rng.choice([0, 0.2, 1])
    draws = (rng.choice([rng.randrange(100), rng.randrange(2**32), rng.randrange(-(2**63), 2**63)]) for _ in range(size))
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


def call_of(seed: str, *, filled: bool) -> tuple[SamplingBatch, SeededNoise]:
    """Return a call as an engine makes it; the same one for the same seed, with or without its logits."""
    rng = random.Random(seed)
    n, vocab = log_uniform(rng, 1, 512), rng.choice(VOCABULARIES)
    n = min(n, MOST_ENTRIES // vocab)

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
    noise = SeededNoise(rng.getrandbits(31), seeds_of(rng, n))
    logits = logits_of(rng, n, vocab, filled=filled)
    return SamplingBatch(logits, torch.tensor(heat), top_k, top_p, min_p, positions), noise


def cost(values: Lazy) -> int:
    """Return the entries of a call."""
    return int(values["batch_size"] * values["vocab_size"])


def play(sampler: Sampling, batch: SamplingBatch, noise: SeededNoise) -> list[Tensor]:
    """Return what two calls with these logits answer, and what they leave of the input."""
    torch.manual_seed(noise.seed)
    answers = [sampler.sample(batch, noise).clone() for _ in range(2)]
    return [*answers, batch.logits.nan_to_num()]


def observe(sampler: Sampling, batch: SamplingBatch, noise: SeededNoise) -> Lazy:
    """Return the features of a call that is not computed."""
    rng = np.random.default_rng(noise.seed)
    token = rng.integers(0, batch.vocab_size, batch.batch_size)
    nan = batch.logits[:, 0].isnan().numpy()  # where `logits_of` puts it: no other page of memory is read
    values = sampler.values(batch, noise).with_(token=token, among_nan=among(nan))
    sampler.history.note(batch.batch_size, batch.vocab_size)
    return values
