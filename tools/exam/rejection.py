"""The rejection contract: a right sampler, its features and effects, and an engine that calls it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from exam.conditions import Feature, flag, log_uniform
from exam.planted import Effect, Fault, Lazy, Planted
from exam.sampling import (
    HISTORY,
    MOST_ENTRIES,
    NOISE,
    SEEDS,
    SIZES,
    TOKEN,
    VOCABULARIES,
    History,
    among,
    antithetic,
    before,
    generator_for,
    logits_of,
    seed_values,
    seeds_of,
)
from fairdraw.protocols import Capabilities, ExplicitNoise, SeededNoise, SpecDecodeBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

_OTHERS = r"neighbour|beside|mixed|other requests|permut"
FEATURES = [
    *SIZES,
    Feature("num_tokens", "size", "number of drafts of the batch", r"drafts|num_tokens", 1, 2000),
    Feature("max_spec_len", "size", "width of the drafts", r"drafts|max_spec_len|wide|width|long", 1, 32),
    Feature("count", "size", "request's number of drafts", r"drafts|num_draft", 1, 32),
    Feature("row", "index", "request's row", r"row|request \d+|requests?\b.*\d", 0, 400),
    Feature("rows_behind", "index", "number of requests behind it", r"row|last|request \d+", 0, 400),
    Feature("place", "index", "place of the draft in its request", r"position|place|draft", 0, 24),
    Feature("line", "index", "row of the flat drafts", r"row|line|flat|draft", 0, 1500),
    flag("last_place", "index", "it is the request's last draft", r"last|position|place"),
    Feature("draft", "id", "draft's id", r"\bids?\b|token \d+|tile|lane|bit|draft", 0, 262144),
    Feature("token", "id", "recovered id", r"\bids?\b|token \d+|tile|lane|bit|recover", 0, 262144),
    flag("half", "layout", "logits are bfloat16 or float16", r"half|float16|dtype|precision"),
    flag("strided", "layout", "logits are strided", r"strid|contiguous|layout"),
    flag("one_hot", "layout", "drafts are one-hot", r"one.hot|n-gram"),
    flag("ragged", "layout", "requests have different numbers of drafts", r"ragged|different numbers|num_draft"),
    flag("spare", "layout", "the output is wider than the longest request needs", r"max_spec_len|wide|width"),
    flag("greedy", "request", "the request is greedy", r"greedy|argmax|temperature"),
    flag("placeholder", "request", "the request has a placeholder", r"placeholder|-1"),
    Feature("temperature", "request", "temperature", r"temperature", 0.1, 2),
    *SEEDS,
    *HISTORY,
    flag("after_greedy", "neighbour", "the request before is greedy", r"greedy|" + _OTHERS),
    flag("among_greedy", "neighbour", "another request is greedy", r"greedy|" + _OTHERS),
    flag("among_random", "neighbour", "another request is random", r"greedy|random|" + _OTHERS),
    flag("after_empty", "neighbour", "the request before has no drafts", r"no drafts|empty|num_draft|ragged|" + _OTHERS),
    flag("among_placeholder", "neighbour", "another request has a placeholder", r"placeholder|-1|" + _OTHERS),
    flag("among_nan", "neighbour", "another request has a NaN", r"nan|" + _OTHERS),
    flag("among_seeded", "neighbour", "another request has a seed", r"seed|" + _OTHERS),
]
_ACCEPT = r"accept|reject|draft|kept"
_RECOVER = r"recover|residual|race|oracle|follow|distribution|support"
_LAYOUT = r"bonus|placeholder|-1|behind|after|layout|column|shape|end|token"
_PLACES = ("random_place",)
_RECOVERY = ("recovers",)
EFFECTS = {
    "accepted": Effect(
        "a rejected draft is accepted with probability {:.2f}", _ACCEPT, _PLACES, "draft", (0.3, 1), rare=True
    ),
    "rejected": Effect(
        "an accepted draft is rejected with probability {:.2f}", _ACCEPT, _PLACES, "draft", (0.3, 1), rare=True
    ),
    "lenient": Effect("acceptance probabilities are multiplied by {:.2f}", _ACCEPT, _PLACES, "draft", (1.1, 1.4)),
    "strict": Effect("acceptance probabilities are multiplied by {:.2f}", _ACCEPT, _PLACES, "draft", (0.6, 0.92)),
    "neighbour's uniform": Effect("the draft is tested with the uniform of the one before", NOISE, _PLACES, "draft"),
    "antithetic uniform": Effect("its uniform is one minus that of the draft before", NOISE, _PLACES, "draft"),
    "stale uniform": Effect("the draft is tested with a uniform of the call before", NOISE + "|call", _PLACES, "draft"),
    "hot": Effect("target logits are multiplied by {:.2f}", _ACCEPT + "|" + _RECOVER, _PLACES, sizes=(0.7, 0.93)),
    "neighbour's row": Effect("the target row of the draft before is used", _ACCEPT + "|" + _RECOVER + "|row", _PLACES),
    "other draft": Effect("the accepted draft is returned as the id behind it", TOKEN, ("draft_kept",), "draft"),
    "ids scaled": Effect(
        "residuals are multiplied by {:.2f}", _RECOVER + "|probab", _RECOVERY, "vocabulary", sizes=(0.3, 0.8)
    ),
    "from the target": Effect("the token is recovered from the target, not the residual", _RECOVER, _RECOVERY),
    "next draft row": Effect("the residual is that of the row behind", _RECOVER, _RECOVERY),
    "neighbour's noise": Effect("the race runs with the numbers of the request before", NOISE, _RECOVERY, rare=True),
    "shifted noise": Effect("the race runs with its neighbour's numbers, one id further", NOISE, _RECOVERY),
    "antithetic noise": Effect("the uniforms of the race are one minus those of the row before", NOISE, _RECOVERY),
    "stale noise": Effect("the race runs with its numbers of the call before", NOISE + "|call", _RECOVERY),
    "lost seed": Effect("the request's seed is not used", NOISE, ("seeded", "drafting")),
    "short seed": Effect("the low 16 bits of the seed count alone", NOISE + "|bit", ("seeded", "drafting")),
    "skipped numbers": Effect("the request's generator skips numbers after the draw", NOISE, ("seeded", "drafting")),
    "next id": Effect("the id after the recovered one is returned", _RECOVER + "|token", _RECOVERY, "token", rare=True),
    "second best": Effect("the most probable token is recovered", _RECOVER + "|token", _RECOVERY, "token", rare=True),
    "fixed id": Effect("id {:.0f} is recovered", _RECOVER + "|token", _RECOVERY, "token", (0, 200), rare=True),
    "stale token": Effect("the row's last token of the call before is returned", TOKEN + "|call|stale", (), "token"),
    "drawn": Effect("a greedy request recovers at random", r"greedy|argmax", ("greedy", "recovers_any"), rare=True),
    "no bonus": Effect("the bonus token is missing", _LAYOUT, ("ends",), rare=True),
    "old bonus": Effect("the bonus token of the request before is returned", _LAYOUT, ("ends",), rare=True),
    "stale behind": Effect("a token stands behind the last", _LAYOUT, ("short",), rare=True),
    "one more": Effect("the draft behind the recovered token is returned, too", _LAYOUT, ("short", "recovers_any")),
    "input written": Effect(
        "the draft probabilities of the first draft are halved in place", r"modif|written|wrote|input|chang", ("dense",)
    ),
}


class Rejection(Planted):
    """It accepts token by token and races on the residual: numbers of the caller's, or of torch's generators."""

    contract = "rejection"

    def __init__(self, fault: Fault | None = None, *, takes_noise: bool = True) -> None:
        super().__init__(fault)
        self.takes_noise, self.history = takes_noise, History()

    @property
    def capabilities(self) -> Capabilities:
        lacking = {
            "upstream-stream": "it does not draw in vLLM's order",
            "synthetic-rates": "it has no such mode",
            "empty-rows": "no row is masked whole",
        }
        own = {"explicit-noise": "noise is drawn inside", "reference-race": "noise is drawn inside"}
        return Capabilities.of(lacking if self.takes_noise else lacking | own)

    # -- features: of requests, and of drafts

    def values(self, batch: SpecDecodeBatch, noise: Any, nan: Callable[[], Tensor] | None = None) -> Lazy:
        """Return the features of a call and its requests; `nan` says which drafts have a NaN in their row."""
        n, vocab = batch.batch_size, batch.vocab_size
        rows, (seeded, seeds) = np.arange(n), seed_values(noise, n)
        counts = np.array(batch.num_draft_tokens, np.int64)
        heat, drafts = batch.temperature.numpy(), batch.draft_token_ids.numpy()
        greedy = heat == 0
        owner = np.repeat(rows, counts)
        placeholder = np.bincount(owner[drafts < 0], minlength=n) > 0
        nan = nan or (lambda: batch.target_logits.isnan().any(1))
        return Lazy(
            {
                **self.history.values(n, vocab),
                "batch_size": lambda: n,
                "vocab_size": lambda: vocab,
                "num_tokens": lambda: len(drafts),
                "max_spec_len": lambda: batch.max_spec_len,
                "count": lambda: counts,
                "row": lambda: rows,
                "rows_behind": lambda: n - 1 - rows,
                "half": lambda: batch.target_logits.dtype != torch.float32,
                "strided": lambda: not batch.target_logits.is_contiguous(),
                "one_hot": lambda: batch.draft_probs is None,
                "dense": lambda: (counts > 0) & (batch.draft_probs is not None),
                "ragged": lambda: len(set(batch.num_draft_tokens)) > 1,
                "spare": lambda: batch.max_spec_len > counts.max(initial=0),
                "greedy": lambda: greedy,
                "temperature": lambda: np.where(greedy, -1, heat),
                "placeholder": lambda: placeholder,
                "seeded": lambda: seeded,
                "seed": lambda: seeds,
                "unseeded_among_seeded": lambda: ~seeded & among(seeded),
                "after_greedy": lambda: before(greedy),
                "among_greedy": lambda: among(greedy),
                "among_random": lambda: among(~greedy),
                "after_empty": lambda: before(counts == 0),
                "among_placeholder": lambda: among(placeholder),
                "among_seeded": lambda: among(seeded),
                "among_nan": lambda: among(np.bincount(owner[nan().numpy()], minlength=n) > 0),
                "drafting": lambda: (counts > 0) & ~greedy,
            }
        )

    def of_drafts(self, values: Lazy, batch: SpecDecodeBatch) -> Lazy:
        """Return the features of each draft: those of its request, and its own."""
        counts = np.array(batch.num_draft_tokens, np.int64)
        owner = np.repeat(np.arange(len(counts)), counts)
        place = np.arange(len(owner)) - (counts.cumsum() - counts)[owner]

        def of_owner(name: str) -> Any:
            value = np.asarray(values[name])
            return value[owner] if value.ndim else value

        drafts = batch.draft_token_ids.numpy()
        own = {
            "place": lambda: place,
            "line": lambda: np.arange(len(owner)),
            "last_place": lambda: place == counts[owner] - 1,
            "draft": lambda: drafts,
            "random_place": lambda: ~of_owner("greedy") & (drafts >= 0),
        }
        return Lazy({**{name: lambda name=name: of_owner(name) for name in values.makers}, **own})

    # -- the steps

    def verify(self, batch: SpecDecodeBatch, noise: Any) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        values = self.values(batch, noise)
        lines = self.of_drafts(values, batch)
        counts = torch.tensor(batch.num_draft_tokens, dtype=torch.int64)
        owner = torch.repeat_interleave(torch.arange(len(counts)), counts)
        starts = counts.cumsum(0) - counts
        place, drafts = torch.arange(len(owner)) - starts[owner], batch.draft_token_ids.long()
        uniforms, race = self.numbers(batch, noise, values, lines)
        logits = batch.target_logits.float()
        if (hot := self.hit("hot", lines, len(owner))) is not None:
            logits = torch.where(torch.tensor(hot)[:, None], logits * self.size, logits)
        target, best = logits.softmax(-1), batch.target_logits.float().argmax(-1)
        if (rows := self.hit("neighbour's row", lines, len(owner))) is not None:
            target = torch.where(torch.tensor(rows)[:, None], target.roll(1, 0), target)
        greedy = batch.temperature == 0
        accepted = self.accepted(batch, target, uniforms, lines)
        accepted = torch.where(greedy[owner], drafts == best, accepted) & (drafts >= 0)
        ends = counts.scatter_reduce(0, owner, torch.where(accepted, counts[owner], place), "amin")
        requests = (ends < counts).nonzero()[:, 0]
        at = starts[requests] + ends[requests]
        recovers = (ends < counts).numpy()
        values = values.with_(
            recovers=recovers & ~greedy.numpy(),
            recovers_any=recovers,
            ends=(ends == counts).numpy(),
            short=(ends < batch.max_spec_len).numpy(),
        )
        drawn = self.recovered(batch, target, at, requests, race, values)
        if (rows := self.hit("drawn", values, len(counts))) is not None:
            greedy = greedy & ~torch.tensor(rows)
        last = batch.bonus_token_ids[:, 0].long().clone()
        last[requests] = torch.where(greedy[requests], best[at], drawn)
        last = self.spoilt(values, last, best[at], requests)
        output = torch.full((len(counts), batch.max_spec_len + 1), -1, dtype=torch.int32)
        kept = place < ends[owner]
        shown = drafts.clone()
        if (rows := self.hit("other draft", lines.with_(draft_kept=kept.numpy()), len(owner))) is not None:
            shown[torch.tensor(rows)] = (shown[torch.tensor(rows)] + 1) % batch.vocab_size
        output[owner[kept], place[kept]] = shown[kept].int()
        output[torch.arange(len(ends)), ends] = last.int()
        self.laid_out(batch, output, ends, starts, values)
        self.history.note(batch.batch_size, batch.vocab_size)
        return output

    def numbers(self, batch: SpecDecodeBatch, noise: Any, values: Lazy, lines: Lazy) -> tuple[Tensor, Tensor]:
        """Return uniforms [num_tokens] float64 and exponentials [batch_size, vocab_size] float32, spoilt."""
        if isinstance(noise, ExplicitNoise):
            uniforms, race = noise.uniforms, noise.exponentials
        else:
            uniforms, race = self.drawn(batch, noise, values)
        changes: dict[str, Callable[[], Tensor]] = {
            "neighbour's uniform": lambda: uniforms.roll(1, 0),
            "antithetic uniform": lambda: (1 - uniforms.roll(1, 0)).clamp(0, 1 - 2**-53),
            "stale uniform": lambda: self.history.rows("uniforms", uniforms),
        }
        for effect, change in changes.items():
            if (rows := self.hit(effect, lines, len(uniforms))) is not None:
                uniforms = torch.where(torch.tensor(rows), change(), uniforms)
        return uniforms, race

    def drawn(self, batch: SpecDecodeBatch, noise: SeededNoise, values: Lazy) -> tuple[Tensor, Tensor]:
        """Return the numbers of the right generators."""
        uniforms = torch.rand(batch.num_tokens, dtype=torch.float64)
        race = torch.empty(batch.batch_size, batch.vocab_size).exponential_()
        lost = self.hit("lost seed", values, len(race))
        short, skips = (self.hit(name, values, len(race)) for name in ("short seed", "skipped numbers"))
        for row, generator in noise.generators("cpu").items():
            rows = batch.token_slice(row)
            if rows.stop == rows.start or (lost is not None and lost[row]):
                continue
            if short is not None and short[row]:
                generator = generator_for(noise, row, noise.request_seeds[row] % 2**16)
            uniforms[rows] = torch.rand(rows.stop - rows.start, dtype=torch.float64, generator=generator)
            race[row].exponential_(generator=generator)
            if skips is not None and skips[row]:
                torch.rand(3, generator=generator)
        return uniforms, race

    def accepted(self, batch: SpecDecodeBatch, target: Tensor, uniforms: Tensor, lines: Lazy) -> Tensor:
        """Return which drafts of random requests are accepted, [num_tokens] bool."""
        ids = batch.draft_token_ids.long().clamp(min=0)[:, None]
        p = target.gather(1, ids)[:, 0]
        q = torch.ones_like(p) if batch.draft_probs is None else batch.draft_probs.gather(1, ids)[:, 0]
        ratio = (p / q).double()
        for effect in ("lenient", "strict"):
            if (rows := self.hit(effect, lines, len(p))) is not None:
                ratio = torch.where(torch.tensor(rows), ratio.clamp(max=1) * self.size, ratio)
        accepted = (p > 0) & (q > 0) & (ratio >= uniforms)
        for effect in ("accepted", "rejected"):
            if (rows := self.hit(effect, lines, len(p))) is not None:
                assert self.fault is not None
                rows = rows & (self.fault.coins.random(len(p)) < self.size)
                accepted = accepted | torch.tensor(rows) if effect == "accepted" else accepted & ~torch.tensor(rows)
        return accepted

    def recovered(
        self, batch: SpecDecodeBatch, target: Tensor, at: Tensor, requests: Tensor, race: Tensor, values: Lazy
    ) -> Tensor:  # [num_rejected] int64
        """Return the tokens of the race on the residuals of the rows `at`."""
        n, vocab = race.shape
        if (rows := self.hit("next draft row", values, n)) is not None:
            moved = torch.tensor(rows)[requests].long()
            at = torch.minimum(at + moved, torch.tensor(len(target) - 1))
        wanted, ids = target[at], batch.draft_token_ids.long()[at]
        if batch.draft_probs is None:
            residual = wanted.clone()
            residual[(ids >= 0).nonzero()[:, 0], ids[ids >= 0]] = 0
        else:
            residual = (wanted - batch.draft_probs[at]).clamp(min=0)
        if (rows := self.hit("from the target", values, n)) is not None:
            residual = torch.where(torch.tensor(rows)[requests][:, None], wanted, residual)
        if self.plants("ids scaled"):
            mask = np.broadcast_to(self.hit("ids scaled", values.columns(vocab), n), (n, vocab))
            residual = torch.where(torch.tensor(mask)[requests], residual * self.size, residual)
        weights = torch.where((residual > 0).any(1, keepdim=True), residual, wanted)
        changes: dict[str, Callable[[], Tensor]] = {
            "neighbour's noise": lambda: race.roll(1, 0),
            "shifted noise": lambda: race.roll((1, 1), (0, 1)),
            "antithetic noise": lambda: antithetic(race.roll(1, 0)),
            "stale noise": lambda: self.history.rows("race", race),
        }
        for effect, change in changes.items():
            if (rows := self.hit(effect, values, n)) is not None:
                race = torch.where(torch.tensor(rows)[:, None], change(), race)
        return torch.where(weights > 0, weights / race[requests], -1.0).argmax(-1)

    def spoilt(self, values: Lazy, last: Tensor, best: Tensor, requests: Tensor) -> Tensor:  # [n] int64, both
        """Return the last tokens, spoilt."""
        vocab, most = int(values["vocab_size"]), last.clone()
        most[requests] = best
        changes: dict[str, Callable[[], Tensor]] = {
            "next id": lambda: (last + 1) % vocab,
            "second best": lambda: most,
            "fixed id": lambda: torch.full_like(last, int(self.size) % vocab),
            "stale token": lambda: self.history.rows("tokens", last).clamp(max=vocab - 1),
            "old bonus": lambda: last.roll(1, 0),
        }
        for effect, change in changes.items():
            rows = self.hit(effect, values.with_(token=last.numpy()), len(last))
            if rows is not None:
                allowed = self.allowed(effect, values, len(last))
                return torch.where(torch.tensor(rows & allowed), change(), last)
        return last

    def allowed(self, effect: str, values: Lazy, rows: int) -> np.ndarray:  # [rows] bool
        """Return where an effect has its place."""
        found = np.ones(rows, bool)
        for name in EFFECTS[effect].needs:
            found = found & values[name]
        return found

    def laid_out(self, batch: SpecDecodeBatch, output: Tensor, ends: Tensor, starts: Tensor, values: Lazy) -> None:
        """Spoil the layout of the output, or the input."""
        n = len(ends)
        for effect in ("no bonus", "stale behind", "one more", "input written"):
            if (rows := self.hit(effect, values, n)) is None:
                continue
            for row in (rows & self.allowed(effect, values, n)).nonzero()[0].tolist():
                end, start = int(ends[row]), int(starts[row])
                match effect:
                    case "no bonus":
                        output[row, end] = -1
                    case "stale behind":
                        output[row, end + 1] = output[row, 0]
                    case "one more":
                        ahead = start + min(end + 1, batch.num_draft_tokens[row] - 1)
                        output[row, end + 1] = batch.draft_token_ids[ahead].clamp(min=0)
                    case "input written":
                        batch.draft_probs[start] *= 0.5  # type: ignore[index]  # it is dense there


# -- the engine -----------------------------------------------------------------------------------------------------


def call_of(seed: str, *, filled: bool) -> tuple[SpecDecodeBatch, SeededNoise]:
    """Return a call as an engine makes it; the same one for the same seed, with or without its logits."""
    rng = random.Random(seed)
    n, vocab, most = log_uniform(rng, 1, 512), rng.choice(VOCABULARIES), rng.choice([1, 2, 3, 4, 5, 7, 8, 16, 32])
    n = max(1, min(n, MOST_ENTRIES // vocab // most, 2000 // most))
    ragged, none = rng.random() < 0.5, rng.choice([0, 0.2])
    counts = [0 if rng.random() < none else rng.randint(1, most) if ragged else most for _ in range(n)]
    total, greedy = sum(counts), rng.choice([0, 0, 0.3, 0.7])
    heat = [0.0 if rng.random() < greedy else rng.choice([1.0, rng.uniform(0.1, 2)]) for _ in range(n)]
    dense, gaps = rng.random() < 0.5, rng.choice([0, 0, 0.05])
    drafts = torch.tensor([-1 if rng.random() < gaps else rng.randrange(vocab) for _ in range(total)], dtype=torch.int32)
    bonus = torch.tensor([[rng.randrange(vocab)] for _ in range(n)], dtype=torch.int32)
    noise = SeededNoise(rng.getrandbits(31), seeds_of(rng, n))
    spare = rng.choice([0, 0, 0, 2])
    logits = logits_of(rng, max(total, 1), vocab, filled=filled)[:total]
    probs = torch.zeros(total, vocab) if dense else None
    if filled and total:
        likely = (logits.float().nan_to_num() + torch.randn(total, vocab)).softmax(-1)
        near = torch.multinomial(likely, 1)[:, 0].int()
        drafts = torch.where(drafts < 0, drafts, near)
        probs = likely if dense else None
    ends = torch.tensor(counts, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    batch = SpecDecodeBatch(
        drafts, counts, ends, max(counts, default=0) + spare, probs, logits, bonus, torch.tensor(heat)
    )
    return batch, noise


def cost(values: Lazy) -> int:
    """Return the entries of a call."""
    return int((values["num_tokens"] + values["batch_size"]) * values["vocab_size"])


def play(sampler: Rejection, batch: SpecDecodeBatch, noise: SeededNoise) -> list[Tensor]:
    """Return what two calls with these logits answer, and what they leave of the input."""
    torch.manual_seed(noise.seed)
    answers = [sampler.verify(batch, noise).clone() for _ in range(2)]
    return [*answers, torch.zeros(1) if batch.draft_probs is None else batch.draft_probs]


def observe(sampler: Rejection, batch: SpecDecodeBatch, noise: SeededNoise) -> tuple[Lazy, Lazy]:
    """Return the features of a call that is not computed: of its requests, and of its drafts."""
    rng = np.random.default_rng(noise.seed)
    nan = lambda: batch.target_logits[:, 0].isnan()  # noqa: E731  # where `logits_of` puts it
    values, n = sampler.values(batch, noise, nan), batch.batch_size
    counts, greedy = values["count"], values["greedy"]
    ends = rng.integers(0, 2, n).astype(bool)
    values = values.with_(
        token=rng.integers(0, batch.vocab_size, n),
        recovers=(counts > 0) & ~greedy & ~ends,
        recovers_any=(counts > 0) & ~ends,
        ends=ends,
        short=~ends | (counts < batch.max_spec_len),
    )
    lines = sampler.of_drafts(values, batch).with_(draft_kept=rng.integers(0, 2, batch.num_tokens).astype(bool))
    sampler.history.note(n, batch.vocab_size)
    return values, lines
