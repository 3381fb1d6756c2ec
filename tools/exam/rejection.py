"""The rejection contract: a correct sampler, its features, and an engine that calls it."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from exam.conditions import log_uniform
from exam.examined import Examined, Fault, Lazy, catalogue
from exam.sampling import (
    MOST_ENTRIES,
    VOCABULARIES,
    History,
    among,
    before,
    generators,
    logits_of,
    of_requests,
    races,
    seeds_of,
)
from fairdraw.contracts import Capabilities, ExplicitNoise, SeededNoise, SpecDecodeBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


class Rejection(Examined):
    """A sampler that accepts token by token and races on the residual: numbers of the caller or of torch."""

    contract = "rejection"

    def __init__(self, fault: Fault | None = None, *, takes_noise: bool = True) -> None:
        super().__init__(fault)
        self.takes_noise, self.history = takes_noise, History()

    @property
    def capabilities(self) -> Capabilities:
        own = () if self.takes_noise else ("explicit-noise", "reference-race")
        lacking = ("upstream-stream", "synthetic-rates", "empty-rows", *own)
        return Capabilities.of(dict.fromkeys(lacking, "the exam's sampler has no such mode"))

    # -- features: of requests, and of drafts

    def values(self, batch: SpecDecodeBatch, noise: Any, nan: Callable[[], Tensor] | None = None) -> Lazy:
        """Return the features of a call and its requests; `nan` says which drafts have a NaN in their row."""
        n, counts = batch.batch_size, np.array(batch.num_draft_tokens, np.int64)
        heat, owner = batch.temperature.numpy(), np.repeat(np.arange(n), counts)
        greedy = heat == 0

        def having(drafts: Tensor) -> np.ndarray:  # [n] bool
            return np.bincount(owner[drafts.numpy()], minlength=n) > 0

        nan = nan or (lambda: batch.target_logits.isnan().any(1))
        makers = {
            "num_tokens": lambda: batch.num_tokens,
            "max_spec_len": lambda: batch.max_spec_len,
            "count": lambda: counts,
            "one_hot": lambda: batch.draft_probs is None,
            "dense": lambda: (counts > 0) & (batch.draft_probs is not None),
            "ragged": lambda: len(set(batch.num_draft_tokens)) > 1,
            "spare": lambda: batch.max_spec_len > counts.max(initial=0),
            "temperature": lambda: np.where(greedy, -1, heat),
            "placeholder": lambda: having(batch.draft_token_ids < 0),
            "after_empty": lambda: before(counts == 0),
            "among_placeholder": lambda: among(having(batch.draft_token_ids < 0)),
            "among_nan": lambda: among(having(nan())),
            "drafting": lambda: (counts > 0) & ~greedy,
        }
        return Lazy({**self.history.values(batch.target_logits, n), **of_requests(noise, greedy), **makers})

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
        return Lazy({**{name: partial(of_owner, name) for name in values.makers}, **own})

    # -- the steps

    def verify(self, batch: SpecDecodeBatch, noise: Any) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        values = self.values(batch, noise)
        lines = self.of_drafts(values, batch)
        self.history.note(batch.batch_size, batch.vocab_size)
        counts = torch.tensor(batch.num_draft_tokens, dtype=torch.int64)
        owner, starts = torch.repeat_interleave(torch.arange(len(counts)), counts), counts.cumsum(0) - counts
        place, drafts = torch.arange(len(owner)) - starts[owner], batch.draft_token_ids.long()
        uniforms, race = self.numbers(batch, noise, values, lines)
        logits, best = batch.target_logits.float(), batch.target_logits.float().argmax(-1)
        target = self.changed({"hot": lambda: logits * self.size}, lines, logits).softmax(-1)
        target = self.changed({"neighbour's row": lambda: target.roll(1, 0)}, lines, target)
        greedy = batch.temperature == 0
        accepted = self.accepted(batch, target, uniforms, lines)
        accepted = torch.where(greedy[owner], drafts == best, accepted) & (drafts >= 0)
        ends = counts.scatter_reduce(0, owner, torch.where(accepted, counts[owner], place), "amin")
        recovers = (ends < counts).numpy()
        values = values.with_(
            recovers=recovers & ~greedy.numpy(),
            recovers_any=recovers,
            ends=~recovers,
            short=(ends < batch.max_spec_len).numpy(),
        )
        requests = (ends < counts).nonzero()[:, 0]
        at = starts[requests] + ends[requests]
        drawn = self.recovered(batch, target, at, requests, race, values)
        greedy = self.changed({"drawn": lambda: torch.zeros_like(greedy)}, values, greedy)
        last = batch.bonus_token_ids[:, 0].long().clone()
        last[requests] = torch.where(greedy[requests], best[at], drawn)
        last = self.spoilt(values, last, best[at], requests)
        output = torch.full((len(counts), batch.max_spec_len + 1), -1, dtype=torch.int32)
        kept, wrong = place < ends[owner], {"other draft": lambda: (drafts + 1) % batch.vocab_size}
        shown = self.changed(wrong, lines.with_(draft_kept=kept.numpy()), drafts)
        output[owner[kept], place[kept]] = shown[kept].int()
        output[torch.arange(len(ends)), ends] = last.int()
        self.laid_out(batch, output, ends, starts, values)
        return output

    def numbers(self, batch: SpecDecodeBatch, noise: Any, values: Lazy, lines: Lazy) -> tuple[Tensor, Tensor]:
        """Return uniforms [num_tokens] float64 and exponentials [batch_size, vocab_size] float32, spoilt."""
        if isinstance(noise, ExplicitNoise):
            uniforms, race = noise.uniforms, noise.exponentials
        else:
            uniforms = torch.rand(batch.num_tokens, dtype=torch.float64)
            race = torch.empty(batch.batch_size, batch.vocab_size).exponential_()
            for row, generator in generators(self, noise, values, len(race)):
                rows = batch.token_slice(row)
                if rows.stop > rows.start:
                    uniforms[rows] = torch.rand(rows.stop - rows.start, dtype=torch.float64, generator=generator)
                    race[row].exponential_(generator=generator)
        changes: dict[str, Callable[[], Tensor]] = {
            "neighbour's uniform": lambda: uniforms.roll(1, 0),
            "antithetic uniform": lambda: (1 - uniforms.roll(1, 0)).clamp(0, 1 - 2**-53),
            "stale uniform": lambda: self.history.rows("uniforms", uniforms),
        }
        return self.changed(changes, lines, uniforms), self.changed(races(self.history, race), values, race)

    def accepted(self, batch: SpecDecodeBatch, target: Tensor, uniforms: Tensor, lines: Lazy) -> Tensor:
        """Return which drafts of random requests are accepted, [num_tokens] bool."""
        ids = batch.draft_token_ids.long().clamp(min=0)[:, None]
        p = target.gather(1, ids)[:, 0]
        q = torch.ones_like(p) if batch.draft_probs is None else batch.draft_probs.gather(1, ids)[:, 0]
        ratio = (p / q).double()
        scaled: dict[str, Callable[[], Tensor]] = {}
        scaled |= dict.fromkeys(("lenient", "strict"), lambda: ratio.clamp(max=1) * self.size)
        accepted = (p > 0) & (q > 0) & (self.changed(scaled, lines, ratio) >= uniforms)
        coins = torch.from_numpy(self.fault.coins.random(len(p)) < self.size) if self.fault else accepted
        changes = {"accepted": lambda: accepted | coins, "rejected": lambda: accepted & ~coins}
        return self.changed(changes, lines, accepted)

    def recovered(
        self, batch: SpecDecodeBatch, target: Tensor, at: Tensor, requests: Tensor, race: Tensor, values: Lazy
    ) -> Tensor:  # [num_rejected] int64
        """Return the tokens of the race on the residuals of the rows `at`."""
        rows = torch.zeros(len(race), dtype=torch.int64).index_put((requests,), at)
        behind = {"next draft row": lambda: (rows + 1).clamp(max=max(len(target) - 1, 0))}
        at = self.changed(behind, values, rows)[requests]
        wanted, ids = target[at], batch.draft_token_ids.long()[at]
        if batch.draft_probs is None:
            residual = wanted.clone()
            residual[(ids >= 0).nonzero()[:, 0], ids[ids >= 0]] = 0
        else:
            residual = (wanted - batch.draft_probs[at]).clamp(min=0)
        if self.effect in ("from the target", "ids scaled"):  # conditions are about all requests
            full, whole = (torch.zeros_like(race).index_put((requests,), one) for one in (residual, wanted))
            full = self.changed({"from the target": lambda: whole}, values, full)
            residual = self.ids_changed("ids scaled", values, full, lambda weights: weights * self.size)[requests]
        weights = torch.where((residual > 0).any(1, keepdim=True), residual, wanted)
        return torch.where(weights > 0, weights / race[requests], -1.0).argmax(-1)

    def spoilt(self, values: Lazy, last: Tensor, best: Tensor, requests: Tensor) -> Tensor:  # [n] int64, both
        """Return the last tokens, spoilt where the effect has its place."""
        vocab = int(values["vocab_size"])
        changes: dict[str, Callable[[], Tensor]] = {
            "next id": lambda: (last + 1) % vocab,
            "second best": lambda: last.index_put((requests,), best),
            "fixed id": lambda: torch.full_like(last, int(self.size) % vocab),
            "stale token": lambda: self.history.rows("tokens", last).clamp(max=vocab - 1),
            "old bonus": lambda: last.roll(1, 0),
        }
        spoilt = self.changed(changes, values.with_(token=last.numpy()), last)
        return torch.where(torch.from_numpy(self.allowed(values, len(last))), spoilt, last)

    def allowed(self, values: Lazy, rows: int) -> np.ndarray:  # [rows] bool
        """Return where the effect has its place."""
        needs = catalogue("rejection")[1][self.effect].needs if self.effect else ()
        found = np.ones(rows, bool)
        for name in needs:
            found = found & values[name] if name in values.makers else found
        return found

    def laid_out(self, batch: SpecDecodeBatch, output: Tensor, ends: Tensor, starts: Tensor, values: Lazy) -> None:
        """Spoil the layout of the output, or the input."""
        if self.effect not in ("no bonus", "stale behind", "one more", "input written"):
            return
        struck = self.hit(self.effect, values, len(ends)) & self.allowed(values, len(ends))
        for row in struck.nonzero()[0].tolist():
            end, start = int(ends[row]), int(starts[row])
            match self.effect:
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
    drafts = torch.tensor(
        [-1 if rng.random() < gaps else rng.randrange(vocab) for _ in range(total)], dtype=torch.int32
    )
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
    nan = batch.target_logits[:, 0].isnan  # where `logits_of` puts it
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
