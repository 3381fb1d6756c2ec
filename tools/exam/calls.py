"""Contracts of single calls: the specification, or the plainest sampler of `tests/odd`, with a fault in one step."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from exam.examined import Examined, Fault, Lazy, otherwise
from fairdraw import contracts
from fairdraw._oracles.filters import FiltersOracle
from fairdraw._oracles.grammar import GrammarOracle
from fairdraw._oracles.logprobs import LogprobsOracle
from fairdraw._oracles.rejection import draw_noise
from fairdraw._oracles.sampling import draw_exponentials
from odd.rejection import Step, VectorRejection
from odd.sampling import VectorSampling

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def before(flags: np.ndarray) -> np.ndarray:  # [n], both
    """Return for each row whether the row before has the flag."""
    return np.concatenate([np.zeros(1, bool), flags[:-1]]) if len(flags) else flags


def among(flags: np.ndarray) -> np.ndarray:  # [n], both
    """Return for each row whether another has the flag."""
    return np.asarray(flags.sum() - flags > 0)


class Called(Examined):
    """The base of a function of single calls, with what it could know of earlier ones."""

    capabilities = contracts.Capabilities()

    def __init__(self, fault: Fault | None = None) -> None:
        super().__init__(fault)
        self.now = Lazy({})
        """Features of the call."""
        self.calls, self.rows_before, self.vocab_before = 0, 0, 0
        self.kept: dict[str, Any] = {}

    def features(self, logits: Tensor, size: int, **more: Any) -> Lazy:  # Any: values, or what makes them
        """Return the features of a call with these logits and so many requests, and of what came before; note it."""
        vocab = logits.shape[-1]
        found = Lazy(
            {
                "batch_size": size,
                "vocab_size": vocab,
                "row": np.arange(size),
                "rows_behind": size - 1 - np.arange(size),
                "half": logits.dtype != torch.float32,
                "strided": not logits.is_contiguous(),
                "aligned": vocab % 64 == 0,
                "first_call": self.calls == 0,
                "calls": self.calls,
                "after_bigger": self.rows_before > size,
                "after_same": self.rows_before == size,
                "after_other_vocabulary": self.calls > 0 and self.vocab_before != vocab,
                **more,
            }
        )
        self.calls, self.rows_before, self.vocab_before = self.calls + 1, size, vocab
        return found

    def stale(self, name: str, now: Tensor) -> Tensor:  # as `now`
        """Return the rows that were kept under `name`, where there are such rows, and keep these."""
        earlier, self.kept[name] = self.kept.get(name), now
        if earlier is None or earlier.shape[1:] != now.shape[1:]:
            return now
        return torch.cat([earlier[: len(now)], now[len(earlier) :]])


# -- sampling and rejection: what both draw ---------------------------------------------------------------------------


class Drawing(Called):
    """The base of both: explicit noise, or torch's own."""

    lacking: tuple[str, ...] = ()

    def __init__(self, fault: Fault | None = None, *, takes_noise: bool = True) -> None:
        super().__init__(fault)
        self.takes_noise = takes_noise

    @property
    def capabilities(self) -> contracts.Capabilities:  # type: ignore[override]
        own = () if self.takes_noise else ("explicit-noise", "reference-race")
        return contracts.Capabilities.of(dict.fromkeys((*self.lacking, *own), "the exam's sampler has no such mode"))

    def of_requests(self, noise: Any, greedy: np.ndarray) -> dict[str, Any]:
        """Return the features of seeds and of greedy requests."""
        seeds = {row: seed for row, seed in getattr(noise, "request_seeds", {}).items() if row < len(greedy)}
        seeded = np.isin(np.arange(len(greedy)), list(seeds))
        numbers = [(seeds.get(row, 0) + 2**63) % 2**64 - 2**63 for row in range(len(greedy))]
        return {
            "greedy": greedy,
            "random": ~greedy,
            "after_greedy": before(greedy),
            "among_greedy": among(greedy),
            "among_random": among(~greedy),
            "seeded": seeded,
            "seed": np.array(numbers, np.int64),
            "among_seeded": among(seeded),
            "unseeded_among_seeded": ~seeded & among(seeded),
        }

    def drawn(self, draw: Callable[[Any, Any], Any], batch: Any, noise: contracts.SeededNoise) -> Any:
        """Return what `draw` takes from the generators, spoilt."""
        own = dict(noise.generators("cpu"))
        effect = self.effect if self.effect in ("lost seed", "short seed", "skipped numbers") else ""
        hit = self.hit(effect, self.now, batch.batch_size) if effect else {}
        struck = [row for row in own if effect and hit[row]]
        for row in struck:
            if effect == "lost seed":
                del own[row]
            elif effect == "short seed":
                short = torch.Generator().manual_seed(noise.request_seeds[row] % 2**16)
                own[row] = noise.kept.setdefault(f"exam {row}", short)
        numbers = draw(batch, SimpleNamespace(generators=lambda _: own))
        for row in struck if effect == "skipped numbers" else []:
            torch.rand(3, generator=own[row])
        return numbers

    def raced(self, race: Tensor) -> Tensor:  # [n, vocab_size] float32, both
        """Return the numbers of a race, spoilt."""
        changes = {
            "neighbour's noise": lambda: race.roll(1, 0),
            "shifted noise": lambda: race.roll((1, 1), (0, 1)),
            "antithetic noise": lambda: antithetic(race.roll(1, 0)),
            "stale noise": lambda: self.stale("race", race),
        }
        return self.changed(changes, self.now, race)  # type: ignore[no-any-return]


def antithetic(exponentials: Tensor) -> Tensor:  # same shape
    """Return the exponentials of one minus their uniforms."""
    return -torch.log1p(-torch.exp(-exponentials.double()).clamp(1e-9, 1 - 1e-9)).float().clamp(min=1e-12)


class Sampling(Drawing):
    """A sampler that filters as vLLM does and races on exponentials."""

    contract = "sampling"
    lacking = ("upstream-stream", "counter-noise", "draft-distribution", "empty-rows")
    right = VectorSampling()

    def values(self, batch: contracts.SamplingBatch, noise: Any, nan: Callable[[], Tensor] | None = None) -> Lazy:
        """Return the features of a call and its rows; `nan` says which rows have a NaN."""
        n, vocab = batch.logits.shape
        top_k, top_p, min_p = (
            np.full(n, off) if limits is None else limits.double().numpy()
            for limits, off in ((batch.top_k, vocab), (batch.top_p, 1), (batch.min_p, 0))
        )
        greedy, has_top_k = (batch.temperature < 1e-5).numpy(), (top_k > 0) & (top_k < vocab)
        nan = nan or (lambda: batch.logits.isnan().any(1))
        return self.features(
            batch.logits,
            n,
            **self.of_requests(noise, greedy),
            top_k=np.where(has_top_k, top_k, -1),
            top_p=top_p,
            has_top_k=has_top_k,
            has_top_p=top_p < 1,
            has_min_p=min_p > 0,
            temperature=np.where(greedy, -1, batch.temperature.numpy()),
            position=batch.positions.numpy(),
            after_filtered=before(has_top_k),
            among_nan=lambda: among(nan().numpy()),
        )

    def observed(self, batch: contracts.SamplingBatch, noise: contracts.SeededNoise) -> tuple[Lazy, ...]:
        """Return the features of a call that is not computed, whose only NaN may be of id 0."""
        token = np.random.default_rng(noise.seed).integers(0, batch.vocab_size, batch.batch_size)
        values = self.values(batch, noise, batch.logits[:, 0].isnan).with_(token=token)
        return (values,)

    def sample(self, batch: contracts.SamplingBatch, noise: Any) -> Tensor:  # [batch_size] int64
        self.now, greedy, vocab = self.values(batch, noise), batch.temperature < 1e-5, batch.vocab_size
        given = isinstance(noise, contracts.RaceNoise)
        race = noise.exponentials if given else self.drawn(draw_exponentials, batch, noise)
        probs = self.right.probs(self.otherwise(batch))
        probs = self.ids_changed("ids scaled", self.now, probs, lambda probs: probs * self.size)
        drawn = self.right.draw(probs, self.raced(race))
        switches = {"drawn": lambda: torch.zeros_like(greedy), "greedy": lambda: torch.ones_like(greedy)}
        greedy = self.changed(switches, self.now, greedy)
        tokens = torch.where(greedy, self.right.best(batch.logits.float()), drawn)
        changes: dict[str, Callable[[], Tensor]] = {
            "next id": lambda: (tokens + 1) % vocab,
            "second best": lambda: probs.topk(min(2, vocab), -1).indices[:, -1],
            "fixed id": lambda: torch.full_like(tokens, int(self.size) % vocab),
            "stale token": lambda: self.stale("tokens", tokens).clamp(max=vocab - 1),
            "neighbour's token": lambda: tokens.roll(1, 0),
        }
        answer: Tensor = self.changed(changes, self.now.with_(token=tokens.numpy()), tokens)
        if self.effect == "input written":
            batch.logits.copy_(self.changed({self.effect: lambda: batch.logits * 0.5}, self.now, batch.logits))
        return answer

    def otherwise(self, batch: contracts.SamplingBatch) -> contracts.SamplingBatch:
        """Return the batch as its parameters are taken."""
        if self.asks is None:
            return batch
        ((name, _),) = self.asks.asks.items()
        column, off = getattr(batch, name), {"top_k": batch.vocab_size, "min_p": 0.0}.get(name, 1.0)
        if column is None:
            return batch
        wrong = torch.as_tensor(otherwise(self.asks, name, column, off, self.size)).expand(len(column))
        wrong = wrong.clamp(max={"top_k": batch.vocab_size, "temperature": torch.inf}.get(name, 1))
        kept = self.changed({self.effect: lambda: wrong}, self.now, column)
        return batch.replace(**{name: torch.where(batch.temperature < 1e-5, column, kept)})


class Rejection(Drawing, VectorRejection):
    """A sampler that accepts token by token and races on the residual."""

    contract = "rejection"
    lacking = ("upstream-stream", "synthetic-rates", "empty-rows")

    # -- features: of requests, and of drafts

    def values(self, batch: contracts.SpecDecodeBatch, noise: Any, nan: Callable[[], Tensor] | None = None) -> Lazy:
        """Return the features of a call and its requests; `nan` says which drafts have a NaN in their row."""
        n, counts = batch.batch_size, np.array(batch.num_draft_tokens, np.int64)
        heat, owner = batch.temperature.numpy(), np.repeat(np.arange(n), counts)
        greedy, placeholders = heat == 0, batch.draft_token_ids < 0

        def having(drafts: Tensor) -> np.ndarray:  # [n] bool
            return np.bincount(owner[drafts.numpy()], minlength=n) > 0

        nan = nan or (lambda: batch.target_logits.isnan().any(1))
        return self.features(
            batch.target_logits,
            n,
            **self.of_requests(noise, greedy),
            num_tokens=batch.num_tokens,
            max_spec_len=batch.max_spec_len,
            count=counts,
            one_hot=batch.draft_probs is None,
            dense=(counts > 0) & (batch.draft_probs is not None),
            ragged=len(set(batch.num_draft_tokens)) > 1,
            spare=batch.max_spec_len > counts.max(initial=0),
            temperature=np.where(greedy, -1, heat),
            placeholder=lambda: having(placeholders),
            after_empty=before(counts == 0),
            among_placeholder=lambda: among(having(placeholders)),
            among_nan=lambda: among(having(nan())),
            drafting=(counts > 0) & ~greedy,
        )

    def of_drafts(self, values: Lazy, batch: contracts.SpecDecodeBatch) -> Lazy:
        """Return the features of each draft: those of its request, and its own."""
        counts = np.array(batch.num_draft_tokens, np.int64)
        owner, drafts = np.repeat(np.arange(len(counts)), counts), batch.draft_token_ids.numpy()
        place = np.arange(len(owner)) - (counts.cumsum() - counts)[owner]
        return values.at(owner).with_(
            place=place,
            line=np.arange(len(owner)),
            last_place=place == counts[owner] - 1,
            draft=drafts,
            random_place=~values["greedy"][owner] & (drafts >= 0),
        )

    def observed(self, batch: contracts.SpecDecodeBatch, noise: contracts.SeededNoise) -> tuple[Lazy, ...]:
        """Return the features of a call that is not computed: of its requests, and of its drafts."""
        rng = np.random.default_rng(noise.seed)
        values, n = self.values(batch, noise, batch.target_logits[:, 0].isnan), batch.batch_size
        counts, cut = values["count"], ~rng.integers(0, 2, n).astype(bool) & (values["count"] > 0)
        values = values.with_(
            token=rng.integers(0, batch.vocab_size, n),
            recovers=cut & ~values["greedy"],
            recovers_any=cut,
            ends=~cut,
            short=cut | (counts < batch.max_spec_len),
        )
        kept = rng.integers(0, 2, batch.num_tokens).astype(bool)
        return values, self.of_drafts(values, batch).with_(draft_kept=kept)

    # -- steps

    def verify(self, batch: contracts.SpecDecodeBatch, noise: Any) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        self.now = self.values(batch, noise)
        self.lines = self.of_drafts(self.now, batch)
        given = self.drawn(draw_noise, batch, noise) if isinstance(noise, contracts.SeededNoise) else noise
        uniforms = given.uniforms
        changes = {
            "neighbour's uniform": lambda: uniforms.roll(1, 0),
            "antithetic uniform": lambda: (1 - uniforms.roll(1, 0)).clamp(0, 1 - 2**-53),
            "stale uniform": lambda: self.stale("uniforms", uniforms),
        }
        spoilt = contracts.ExplicitNoise(self.changed(changes, self.lines, uniforms), self.raced(given.exponentials))
        return super().verify(batch, spoilt)

    def target(self, logits: Tensor) -> Tensor:  # [num_tokens, vocab_size] -> the same
        hot = self.changed({"hot": lambda: logits.float() * self.size}, self.lines, logits.float())
        right = super().target(hot)
        return self.changed({"neighbour's row": lambda: right.roll(1, 0)}, self.lines, right)  # type: ignore[no-any-return]

    def passes(self, target: Tensor, draft: Tensor, uniforms: Tensor) -> Tensor:  # each [num_tokens]
        scaled = dict.fromkeys(("lenient", "strict"), lambda: torch.minimum(target, draft) * self.size)
        return super().passes(self.changed(scaled, self.lines, target), draft, uniforms)

    def accepted(self, step: Step) -> Tensor:  # [num_tokens] bool
        right = super().accepted(step)
        coins = torch.from_numpy(self.fault.coins.random(len(right)) < self.size) if self.fault else right
        changes = {"accepted": lambda: right | coins, "rejected": lambda: right & ~coins}
        return self.changed(changes, self.lines, right)  # type: ignore[no-any-return]

    def replaced(self, step: Step, requests: Tensor, rows: Tensor) -> Tensor:  # each [num_rejected] int64
        own, right = self.now.at(requests.numpy()), super().replaced(step, requests, rows)
        return self.changed({"drawn": lambda: self.recovered(step, requests, rows)}, own, right)  # type: ignore[no-any-return]

    def recovered(self, step: Step, requests: Tensor, rows: Tensor) -> Tensor:  # each [num_rejected] int64
        behind = {"next draft row": lambda: (rows + 1).clamp(max=max(len(step.target) - 1, 0))}
        return super().recovered(step, requests, self.changed(behind, self.now.at(requests.numpy()), rows))

    def residual(self, step: Step, rows: Tensor) -> Tensor:  # [num_rejected] int64 -> [num_rejected, vocab_size]
        own, right = self.now.at(step.owner[rows].numpy()), super().residual(step, rows)
        right = self.changed({"from the target": lambda: step.target[rows]}, own, right)
        return self.ids_changed("ids scaled", own, right, lambda weights: weights * self.size)

    def output(self, step: Step, num_accepted: Tensor, last: Tensor) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        batch, vocab, ends = step.batch, step.batch.vocab_size, num_accepted
        counts = torch.tensor(batch.num_draft_tokens, dtype=torch.int64)
        first, cut = counts.cumsum(0) - counts, ends < counts
        values = self.now.with_(
            recovers=(cut & ~batch.is_greedy).numpy(),
            recovers_any=cut.numpy(),
            ends=~cut.numpy(),
            short=(ends < batch.max_spec_len).numpy(),
            token=last.numpy(),
        )
        changes: dict[str, Callable[[], Tensor]] = {
            "next id": lambda: (last + 1) % vocab,
            "second best": lambda: last.index_put((cut,), self.best(batch.target_logits)[(first + ends)[cut]]),
            "fixed id": lambda: torch.full_like(last, int(self.size) % vocab),
            "stale token": lambda: self.stale("tokens", last).clamp(max=vocab - 1),
            "old bonus": lambda: last.roll(1, 0),
        }
        in_place = self.needed(values)
        shown = torch.where(torch.as_tensor(in_place), self.changed(changes, values, last), last)
        own = self.lines.with_(draft_kept=(step.place < ends[step.owner]).numpy())
        wrong = {"other draft": lambda: (step.drafts + 1) % vocab}
        output = super().output(replace(step, drafts=self.changed(wrong, own, step.drafts)), ends, shown)
        if self.effect in ("no bonus", "stale behind", "one more", "input written"):
            for row in (self.hit(self.effect, values, len(ends)) & in_place).nonzero()[0].tolist():
                self.spoil(batch, output[row], row, int(ends[row]), int(first[row]))
        return output

    def spoil(self, batch: contracts.SpecDecodeBatch, tokens: Tensor, row: int, end: int, first: int) -> None:
        """Spoil the layout of one row of the output, or the input."""
        match self.effect:
            case "no bonus":
                tokens[end] = -1
            case "stale behind":
                tokens[end + 1] = tokens[0]
            case "one more":
                ahead = first + min(end + 1, batch.num_draft_tokens[row] - 1)
                tokens[end + 1] = batch.draft_token_ids[ahead].clamp(min=0)
            case "input written":
                batch.draft_probs[first] *= 0.5  # type: ignore[index]  # it is dense there


# -- grammar ----------------------------------------------------------------------------------------------------------


class Masker(Called, GrammarOracle):
    """A masker."""

    contract = "grammar"
    columns_beyond = "kept"

    def values(self, batch: Any, named: np.ndarray, **more: Any) -> Lazy:
        """Return the features of a call of either method."""
        flags = {"masked": named, "among_unmasked": among(~named), "after_unmasked": before(~named)}
        return self.features(batch.logits, len(batch.logits), **flags, **more)

    def apply_bitmask(self, batch: contracts.BitmaskBatch) -> Tensor:  # as the logits
        n, named = batch.batch_size, np.zeros(batch.batch_size, bool)
        named[batch.rows.numpy()] = True
        self.now = self.values(
            batch,
            named,
            indexed=batch.indices is not None,
            narrow=batch.bitmask.shape[1] * 32 < batch.vocab_size,
            shut=np.array([i < len(batch.bitmask) and not batch.bitmask[i].any() for i in range(n)]),
            place=0,
            speculates=False,
        )
        return super().apply_bitmask(batch)

    def mask_drafts(self, batch: contracts.GrammarBatch) -> Tensor:  # as the logits
        counts = np.array([len(request.draft_token_ids) + 1 for request in batch.requests])
        owner = np.repeat(np.arange(len(counts)), counts)
        named = np.array([batch.requests[one].grammar is not None for one in owner])
        place = np.concatenate([np.arange(count) for count in counts])
        own = {"place": place, "speculates": counts[owner] > 1}
        self.now = self.values(batch, named, indexed=False, narrow=False, shut=False, **own)
        self.forked = 0
        """Rows of requests that were forked."""
        return super().apply_bitmask(contracts.BitmaskBatch(batch.logits, self.fork(batch)))

    def masks(self, request: contracts.GrammarRequest, width: int) -> Tensor:  # [num_draft_tokens + 1, num_words] int32
        rows = slice(self.forked, self.forked + len(request.draft_token_ids) + 1)
        right, own = super().masks(request, width), self.now.at(np.arange(rows.start, rows.stop))
        self.forked = rows.stop
        unseen = {"drafts unseen": lambda: torch.cat([right[:1], right[:-1]])}
        return right if request.grammar is None else self.changed(unseen, own, right)

    def take_back(self, request: contracts.GrammarRequest, num_tokens: int) -> None:
        own = self.now.at(self.forked) if self.effect == "one left" else self.now
        super().take_back(request, num_tokens - (num_tokens > 0 and self.hit("one left", own)))

    def rows(self, batch: contracts.BitmaskBatch) -> Tensor:  # [num_indices] int64
        rows = super().rows(batch)
        return rows[~torch.from_numpy(self.hit("unmasked", self.now, batch.batch_size))[rows]]

    def words(self, batch: contracts.BitmaskBatch, rows: Tensor) -> Tensor:  # [n] -> [n, num_words] int32
        all_rows = torch.arange(batch.batch_size)
        own = batch.bitmask[all_rows.clamp(max=len(batch.bitmask) - 1)]
        changes = {"neighbour's mask": lambda: own.roll(1, 0), "stale mask": lambda: self.stale("words", own)}
        return self.changed(changes, self.now, own)[rows]  # type: ignore[no-any-return]

    def write(self, logits: Tensor, rows: Tensor, allowed: Tensor) -> Tensor:  # [n, vocab_size], [m], [m, vocab_size]
        own = self.now.at(rows.numpy())
        allowed = self.ids_changed("let through", own, allowed, torch.ones_like)
        allowed = self.ids_changed("shut out", own, allowed, torch.zeros_like)
        kept = logits[rows]
        nudged = {"nudged": lambda: kept.bfloat16().to(kept.dtype)}
        logits[rows] = self.changed(nudged, own, kept)
        right = super().write(logits, rows, allowed)
        finite = {"finite": lambda: right[rows].masked_fill(~allowed, -60000.0)}
        right[rows] = self.changed(finite, own, right[rows])
        return right


# -- log-probabilities ------------------------------------------------------------------------------------------------


class Logprobs(Called, LogprobsOracle):
    """A source of log-probabilities."""

    contract = "logprobs"
    capabilities = contracts.Capabilities.of({"drawn-tokens": "it is given them", "no-rows": "it is not called then"})

    def logprobs(self, batch: contracts.LogprobsBatch) -> contracts.LogprobsResult:
        logits, n, most = batch.stage_logits, len(batch.token_ids), batch.most_logprobs
        wanted = np.array([-1 if one is None else one for one in batch.row_logprobs])
        self.now = self.features(
            logits,
            n,
            token=batch.token_ids.long().clamp(min=0).numpy(),
            wanted=wanted,
            wants_all=wanted == batch.vocab_size,
            wants_none=wanted == 0,
            listed=wanted > 1,
            processed=batch.stage.startswith("processed"),
            filtered=lambda: (logits == -torch.inf).any(1).numpy(),
            among_others=(wanted != wanted[:1]).any() if n else False,
            after_unread=before((batch.token_ids < 0).numpy()),
            of_logprobs=not batch.wants_logits,
            low=True,
        )
        right = super().logprobs(batch)
        ids, listed, ranks = right.token_ids, right.logprobs, right.ranks
        assert ranks is not None
        changes = {
            "off": lambda: listed if batch.wants_logits else listed * self.size,
            "neighbour": lambda: listed.roll(1, 0),
            "stale": lambda: self.stale("listed", listed),
            "emitted value": lambda: torch.cat([listed[:, 1:2], listed[:, 1:]], 1) if most else listed,
        }
        changed_ids = {
            "swapped": lambda: ids[:, [0, 2, 1, *range(3, most + 1)]] if most > 1 else ids,
            "short list": lambda: torch.cat([ids[:, :2], ids[:, 1:-1]], 1) if most > 1 else ids,
            "wrong id": lambda: torch.cat([(ids[:, :1] + 1) % batch.vocab_size, ids[:, 1:]], 1),
        }
        ranks = self.changed({"rank": lambda: (ranks - 1).clamp(min=1)}, self.now, ranks)
        ids = self.changed(changed_ids, self.now, ids)
        return contracts.LogprobsResult(ids, self.changed(changes, self.now, listed), ranks)

    def stage_logits(self, batch: contracts.LogprobsBatch) -> np.ndarray:  # [num_rows, vocab_size] float32
        other = batch.processed_logits if batch.stage.startswith("raw") else batch.logits
        changes = {"other logits": lambda: other.float().numpy()}
        return self.changed(changes, self.now, super().stage_logits(batch))  # type: ignore[no-any-return]

    def log_softmax(self, logits: np.ndarray) -> np.ndarray:  # [num_rows, vocab_size] float32 -> float64
        right, cut = super().log_softmax(logits), logits.copy()
        cut[:, -1] = -np.inf
        sums = torch.from_numpy(cut).double().logsumexp(-1, keepdim=True).numpy()
        return self.changed({"unnormalised": lambda: logits - sums}, self.now, right)  # type: ignore[no-any-return]


# -- filters ----------------------------------------------------------------------------------------------------------


class Filters(Called):
    """A filterer of every filter."""

    contract = "filters"
    chain = contracts.FilterChain()

    def filter_logits(self, batch: contracts.FilterBatch, noise: Any) -> contracts.FilterResult:
        n, on = batch.batch_size, [set(params.enabled) for params in batch.params]
        sizes, off = np.array([len(one) for one in on], int), np.array([not one for one in on], bool)
        self.now = self.features(
            batch.logits,
            n,
            forbidden=lambda: (batch.logits == -torch.inf).any(1).numpy(),
            alone=sizes == 1,
            several=sizes > 1,
            filters=sizes > 0,
            among_off=among(off),
            among_same=np.array([batch.params.count(one) > 1 for one in batch.params], bool),
            after_off=before(off),
            **{name: np.array([name in one for one in on], bool) for name in contracts.LOGIT_FILTERS},
        )
        params = [*batch.params]
        if self.asks:
            params = [self.asked(one, self.now.at(row)) for row, one in enumerate(params)]
        earlier = self.kept.get("params", batch.params)
        others = {"neighbour": [params[-1], *params[:-1]], "stale": [*earlier[:n], *params[len(earlier) :]]}
        if self.effect in others:
            for row in self.hit(self.effect, self.now, n).nonzero()[0]:
                params[row] = others[self.effect][row]
        self.kept["params"] = batch.params
        right = FiltersOracle(self.chain).filter_logits(batch.replace(params=params), noise)
        lost = right.logits.scatter(1, right.logits.argmax(1, keepdim=True), -torch.inf)
        return replace(right, logits=self.changed({"top lost": lambda: lost}, self.now, right.logits))
