"""The sampling contract: a correct sampler, its features and effects, and an engine that calls it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from exam.conditions import log_uniform
from exam.examined import Examined, Fault, Lazy
from fairdraw.contracts import Capabilities, RaceNoise, SamplingBatch, SeededNoise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

VOCABULARIES = (1000, 8192, 32000, 32064, 50257, 100352, 128256, 151936, 201088, 262144)
MOST_ENTRIES = 2**25
"""Rows times vocabulary in the engine, at most."""


class History:
    """What a sampler could know of its earlier calls."""

    def __init__(self) -> None:
        self.calls, self.size, self.vocab = 0, 0, 0
        self.kept: dict[str, Any] = {}

    def note(self, size: int, vocab: int) -> None:
        self.calls, self.size, self.vocab = self.calls + 1, size, vocab

    def values(self, logits: Tensor, size: int) -> dict[str, Callable[[], Any]]:
        """Return the features of a call with these logits and so many requests, and of what came before."""
        calls, earlier, vocab_before, vocab = self.calls, self.size, self.vocab, logits.shape[-1]
        return {
            "batch_size": lambda: size,
            "vocab_size": lambda: vocab,
            "row": lambda: np.arange(size),
            "rows_behind": lambda: size - 1 - np.arange(size),
            "half": lambda: logits.dtype != torch.float32,
            "strided": lambda: not logits.is_contiguous(),
            "aligned": lambda: vocab % 64 == 0,
            "first_call": lambda: calls == 0,
            "calls": lambda: calls,
            "after_bigger": lambda: earlier > size,
            "after_same": lambda: earlier == size,
            "after_other_vocabulary": lambda: calls > 0 and vocab_before != vocab,
        }

    def rows(self, name: str, now: Tensor) -> Tensor:  # as `now`
        """Return the rows that were kept under `name`, where there are such rows, and keep these."""
        earlier, self.kept[name] = self.kept.get(name), now
        if earlier is None or earlier.shape[1:] != now.shape[1:]:
            return now
        return torch.cat([earlier[: len(now)], now[len(earlier) :]])


def before(flags: np.ndarray) -> np.ndarray:  # [n], both
    """Return for each row whether the row before has the flag."""
    return np.concatenate([np.zeros(1, bool), flags[:-1]]) if len(flags) else flags


def among(flags: np.ndarray) -> np.ndarray:  # [n], both
    """Return for each row whether another has the flag."""
    return np.asarray(flags.sum() - flags > 0)


def of_requests(noise: Any, greedy: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Return the features of seeds and of greedy requests."""
    seeds: dict[int, int] = getattr(noise, "request_seeds", {})
    seeded, numbers = np.zeros(len(greedy), bool), np.zeros(len(greedy), np.int64)
    for row, seed in seeds.items():
        if row < len(greedy):
            seeded[row], numbers[row] = True, (seed + 2**63) % 2**64 - 2**63
    return {
        "greedy": lambda: greedy,
        "random": lambda: ~greedy,
        "after_greedy": lambda: before(greedy),
        "among_greedy": lambda: among(greedy),
        "among_random": lambda: among(~greedy),
        "seeded": lambda: seeded,
        "seed": lambda: numbers,
        "among_seeded": lambda: among(seeded),
        "unseeded_among_seeded": lambda: ~seeded & among(seeded),
    }


def antithetic(exponentials: Tensor) -> Tensor:  # same shape
    """Return the exponentials of one minus their uniforms."""
    return -torch.log1p(-torch.exp(-exponentials.double()).clamp(1e-9, 1 - 1e-9)).float().clamp(min=1e-12)


class Sampling(Examined):
    """A sampler that filters as vLLM does and races on exponentials: the caller's, or torch's own."""

    contract = "sampling"

    def __init__(self, fault: Fault | None = None, *, takes_noise: bool = True) -> None:
        super().__init__(fault)
        self.takes_noise, self.history = takes_noise, History()

    @property
    def capabilities(self) -> Capabilities:
        own = () if self.takes_noise else ("explicit-noise", "reference-race")
        lacking = ("upstream-stream", "counter-noise", "draft-distribution", "empty-rows", *own)
        return Capabilities.of(dict.fromkeys(lacking, "the exam's sampler has no such mode"))

    def values(self, batch: SamplingBatch, noise: Any) -> Lazy:
        """Return the features of a call and its rows."""
        n, vocab = batch.logits.shape
        top_k, top_p, min_p = (
            np.full(n, off) if limits is None else limits.double().numpy()
            for limits, off in ((batch.top_k, vocab), (batch.top_p, 1), (batch.min_p, 0))
        )
        greedy, has_top_k = (batch.temperature < 1e-5).numpy(), (top_k > 0) & (top_k < vocab)
        makers = {
            "top_k": lambda: np.where(has_top_k, top_k, -1),
            "top_p": lambda: top_p,
            "has_top_k": lambda: has_top_k,
            "has_top_p": lambda: top_p < 1,
            "has_min_p": lambda: min_p > 0,
            "temperature": lambda: np.where(greedy, -1, batch.temperature.numpy()),
            "position": batch.positions.numpy,
            "after_filtered": lambda: before(has_top_k),
            "among_nan": lambda: among(batch.logits.isnan().any(1).numpy()),
        }
        return Lazy({**self.history.values(batch.logits, n), **of_requests(noise, greedy), **makers})

    def sample(self, batch: SamplingBatch, noise: Any) -> Tensor:  # [batch_size] int64
        values, greedy = self.values(batch, noise), batch.temperature < 1e-5
        self.history.note(*batch.logits.shape)
        probs = self.probs(batch, values, greedy)
        race = self.drawn(batch, noise, values)
        race = self.changed(races(self.history, race), values, race)
        drawn = torch.where(probs > 0, probs / race, -1.0).argmax(-1)
        switches = {"drawn": lambda: torch.zeros_like(greedy), "greedy": lambda: torch.ones_like(greedy)}
        greedy = self.changed(switches, values, greedy)
        tokens = torch.where(greedy, batch.logits.float().argmax(-1), drawn)
        vocab, shown = batch.vocab_size, values.with_(token=tokens.numpy())
        changes: dict[str, Callable[[], Tensor]] = {
            "next id": lambda: (tokens + 1) % vocab,
            "second best": lambda: probs.topk(min(2, vocab), -1).indices[:, -1],
            "fixed id": lambda: torch.full_like(tokens, int(self.size) % vocab),
            "stale token": lambda: self.history.rows("tokens", tokens).clamp(max=vocab - 1),
            "neighbour's token": lambda: tokens.roll(1, 0),
        }
        answer = self.changed(changes, shown, tokens)
        if self.effect == "input written":
            batch.logits.copy_(self.changed({self.effect: lambda: batch.logits * 0.5}, values, batch.logits))
        return answer

    def probs(self, batch: SamplingBatch, values: Lazy, greedy: Tensor) -> Tensor:  # [n, vocab_size] float32
        """Return the distribution that is left by temperature and filters, spoilt."""
        n, vocab = batch.logits.shape
        heat = batch.temperature.masked_fill(greedy, 1)
        scaled = dict.fromkeys(("hot", "cold"), lambda: heat * self.size)
        heat = self.changed({**scaled, "no temperature": lambda: torch.ones(n)}, values, heat)
        logits = batch.logits.float() / heat[:, None]
        if (low := batch.min_p) is not None:
            changes = {"no min_p": lambda: low * 0, "high min_p": lambda: (low * self.size).clamp(max=1)}
            limits, probs = self.changed(changes, values, low)[:, None], logits.softmax(-1)
            cut = (probs < probs.amax(-1, keepdim=True) * limits) & (limits > 0)
            logits = logits.masked_fill(cut, -torch.inf)
        if (most := batch.top_k) is not None:
            changes = {"no top_k": lambda: torch.full_like(most, vocab), "wide top_k": lambda: most + 1}
            limits = self.changed(changes, values, most)
            kept = torch.where((limits <= 0) | (limits > vocab), vocab, limits.long())
            width = int(kept.masked_fill(kept == vocab, 1).max())
            smallest = logits.topk(width, -1).values.gather(1, kept.clamp(max=width)[:, None] - 1)
            logits = logits.masked_fill((logits < smallest) & (kept < vocab)[:, None], -torch.inf)
        if (mass := batch.top_p) is not None:
            changes = {"no top_p": lambda: torch.ones(n), "narrow top_p": lambda: mass * self.size}
            limits = self.changed(changes, values, mass)
            on = (limits < 1).nonzero()[:, 0]
            ascending, ids = logits[on].sort(dim=-1, stable=True)
            removed = ascending.softmax(-1).double().cumsum(-1).float() <= (1 - limits[on])[:, None]
            removed[:, -1:] = False
            cut = torch.zeros_like(removed).scatter(1, ids, removed)
            logits = logits.index_put((on,), logits[on].masked_fill(cut, -torch.inf))
        return self.ids_changed("ids scaled", values, logits.softmax(-1), lambda probs: probs * self.size)

    def drawn(self, batch: SamplingBatch, noise: Any, values: Lazy) -> Tensor:  # [n, vocab_size] float32
        """Return the exponentials of the caller, or of the generators."""
        if isinstance(noise, RaceNoise):
            return noise.exponentials
        race = torch.empty(batch.batch_size, batch.vocab_size).exponential_()
        for row, generator in generators(self, noise, values, len(race)):
            race[row].exponential_(generator=generator)
        return race


def generators(sampler: Examined, noise: SeededNoise, values: Lazy, n: int) -> Iterator[tuple[int, torch.Generator]]:
    """Yield the rows that have generators of their own, with these; spoilt."""
    effect = sampler.effect if sampler.effect in ("lost seed", "short seed", "skipped numbers") else ""
    struck = sampler.hit(effect, values, n) if effect else np.zeros(n, bool)
    for row, generator in noise.generators("cpu").items():
        if struck[row] and effect == "lost seed":
            continue
        if struck[row] and effect == "short seed":
            seed = noise.request_seeds[row] % 2**16
            kept: dict[str, Any] = noise.kept
            generator = kept.setdefault(f"exam {row}", torch.Generator().manual_seed(seed))
        yield row, generator
        if struck[row] and effect == "skipped numbers":
            torch.rand(3, generator=generator)


def races(history: History, race: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Return the wrong numbers of a race, [n, vocab_size] float32, by effect."""
    return {
        "neighbour's noise": lambda: race.roll(1, 0),
        "shifted noise": lambda: race.roll((1, 1), (0, 1)),
        "antithetic noise": lambda: antithetic(race.roll(1, 0)),
        "stale noise": lambda: history.rows("race", race),
    }


# -- the engine -----------------------------------------------------------------------------------------------------


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
    sampler.history.note(*batch.logits.shape)
    return values
