"""Grammar, log-probabilities and filters: correct functions of rows of logits, their features and effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from exam.examined import Examined, Fault, Lazy, constants
from exam.sampling import History, among, before
from fairdraw.contracts import Capabilities, FilterChain, FilterResult, LogprobsResult

if TYPE_CHECKING:
    from torch import Tensor

    from fairdraw.contracts import BitmaskBatch, FilterBatch, FilterParams, GrammarBatch, LogprobsBatch


class Single(Examined):
    """The base of a function of single calls."""

    capabilities = Capabilities()

    def __init__(self, fault: Fault | None = None) -> None:
        super().__init__(fault)
        self.history = History()

    def values(self, logits: Tensor, **more: Any) -> Lazy:
        """Return the features of a call and its rows, and some more."""
        makers = self.history.values(logits, len(logits))
        self.history.note(*logits.shape)
        return Lazy({**makers, **constants(more)})


# -- grammar --------------------------------------------------------------------------------------------------------


class Masker(Single):
    """A masker that writes in place."""

    contract = "grammar"
    columns_beyond = "kept"

    def apply_bitmask(self, batch: BitmaskBatch) -> Tensor:  # as the logits
        n, named = batch.batch_size, np.zeros(batch.batch_size, bool)
        named[batch.rows.numpy()] = True
        width = batch.bitmask.shape[1] * 32
        values = self.values(
            batch.logits,
            indexed=batch.indices is not None,
            narrow=width < batch.vocab_size,
            masked=named,
            shut=np.array([i < len(batch.bitmask) and not batch.bitmask[i].any() for i in range(n)]),
            among_unmasked=among(~named),
            after_unmasked=before(~named),
            place=0,
            speculates=False,
        )
        return self.masked(batch.logits, batch.bitmask, named, values)

    def masked(self, logits: Tensor, bitmask: Tensor, named: np.ndarray, values: Lazy) -> Tensor:  # as the logits
        n, vocab = logits.shape
        own = bitmask[torch.arange(n).clamp(max=len(bitmask) - 1)]
        changes = {"neighbour's mask": lambda: own.roll(1, 0), "stale mask": lambda: self.history.rows("words", own)}
        words = self.changed(changes, values, own)
        bits = ((words[:, :, None] >> torch.arange(32, dtype=torch.int32)) & 1).flatten(1)[:, :vocab] != 0
        masked = torch.tensor(named)
        masked = self.changed({"unmasked": lambda: torch.zeros_like(masked)}, values, masked)
        bits = self.ids_changed("let through", values, bits, torch.ones_like)
        bits = self.ids_changed("shut out", values, bits, torch.zeros_like)
        cut, known = ~bits & masked[:, None], logits[:, : bits.shape[1]]
        known.masked_fill_(cut, -torch.inf)
        if self.effect in ("finite", "nudged"):
            changes = {
                "finite": lambda: known.masked_fill(cut, -60000.0),
                "nudged": lambda: torch.where(masked[:, None], known.bfloat16().to(known.dtype), known),
            }
            known.copy_(self.changed(changes, values, known.clone()))
        return logits

    def mask_drafts(self, batch: GrammarBatch) -> Tensor:  # as the logits
        logits, words = batch.logits, -(-batch.vocab_size // 32)
        n, bitmask = len(logits), torch.full((len(logits), words), -1, dtype=torch.int32)
        counts = [len(request.draft_token_ids) for request in batch.requests]
        place = np.concatenate([np.arange(count + 1) for count in counts])
        owner = np.repeat(np.arange(len(counts)), np.array(counts) + 1)
        named = np.array([batch.requests[one].grammar is not None for one in owner])
        values = self.values(
            logits,
            indexed=False,
            narrow=False,
            masked=named,
            shut=False,
            among_unmasked=among(~named),
            after_unmasked=before(~named),
            place=place,
            speculates=np.array(counts)[owner] > 0,
        )
        effect = self.effect if self.effect in ("drafts unseen", "one left") else ""
        struck = self.hit(effect, values, n)
        for first, request in zip(batch.first_rows, batch.requests, strict=True):
            grammar, taken = request.grammar, 0
            if grammar is None:
                continue
            for step in range(len(request.draft_token_ids) + 1):
                accepted = step > 0 and not grammar.is_terminated and grammar.accept(request.draft_token_ids[step - 1])
                taken += accepted
                if (step and not accepted) or grammar.is_terminated:
                    named[first + step : first + len(request.draft_token_ids) + 1] = False
                    break
                grammar.fill(bitmask[first + step])
                if effect == "drafts unseen" and step and struck[first + step]:
                    bitmask[first + step] = bitmask[first + step - 1]
            kept = effect == "one left" and bool(struck[first])
            if taken > kept:
                grammar.rollback(taken - kept)
        return self.masked(logits, bitmask, named, values)


# -- log-probabilities ----------------------------------------------------------------------------------------------


class Logprobs(Single):
    """A source of log-probabilities that sorts each row."""

    contract = "logprobs"
    capabilities = Capabilities.of({"drawn-tokens": "it is given its tokens", "no-rows": "it is not called then"})

    def logprobs(self, batch: LogprobsBatch) -> LogprobsResult:
        logits, n, most = batch.stage_logits, len(batch.token_ids), batch.most_logprobs
        wanted = np.array([-1 if one is None else one for one in batch.row_logprobs])
        tokens = batch.token_ids.long().clamp(min=0)
        values = self.values(
            logits,
            token=tokens.numpy(),
            wanted=wanted,
            wants_all=wanted == batch.vocab_size,
            wants_none=wanted == 0,
            listed=wanted > 1,
            processed=batch.stage.startswith("processed"),
            filtered=(logits == -torch.inf).any(1).numpy(),
            among_others=(wanted != wanted[:1]).any() if n else False,
            after_unread=before((batch.token_ids < 0).numpy()),
            of_logprobs=not batch.wants_logits,
            low=True,
        )
        other = batch.processed_logits if batch.stage.startswith("raw") else batch.logits
        exact = self.changed({"other logits": other.float}, values, logits.float())
        scores, cut = exact if batch.wants_logits else exact.log_softmax(-1), exact.clone()
        cut[:, -1] = -torch.inf
        if not batch.wants_logits:
            changes = {"unnormalised": lambda: exact - cut.logsumexp(-1, keepdim=True)}
            scores = self.changed(changes, values, scores)
        order = exact.sort(dim=-1, descending=True, stable=True).indices[:, :most]
        own = scores.gather(1, tokens[:, None])
        ranks = (exact >= exact.gather(1, tokens[:, None])).sum(1)
        ids, listed = torch.cat([tokens[:, None], order], 1), torch.cat([own, scores.gather(1, order)], 1)
        changes = {
            "off": lambda: listed if batch.wants_logits else listed * self.size,
            "neighbour": lambda: listed.roll(1, 0),
            "stale": lambda: self.history.rows("listed", listed),
            "emitted value": lambda: torch.cat([listed[:, 1:2], listed[:, 1:]], 1) if most else listed,
        }
        changed_ids = {
            "swapped": lambda: ids[:, [0, 2, 1, *range(3, most + 1)]] if most > 1 else ids,
            "short list": lambda: torch.cat([ids[:, :2], ids[:, 1:-1]], 1) if most > 1 else ids,
            "wrong id": lambda: torch.cat([(ids[:, :1] + 1) % batch.vocab_size, ids[:, 1:]], 1),
        }
        ranks = self.changed({"rank": lambda: (ranks - 1).clamp(min=1)}, values, ranks)
        return LogprobsResult(self.changed(changed_ids, values, ids), self.changed(changes, values, listed), ranks)


# -- filters --------------------------------------------------------------------------------------------------------

ORDER = ("temperature", "top_k", "typical_p", "top_p", "min_p", "top_a", "top_n_sigma", "epsilon", "eta")


class Filters(Single):
    """A filterer that works row by row in float64."""

    contract = "filters"
    chain = FilterChain(order=ORDER)
    capabilities = Capabilities.of(chain.unsupported())

    def filter_logits(self, batch: FilterBatch, noise: Any) -> FilterResult:
        n, on = batch.batch_size, [set(params.enabled) for params in batch.params]
        values = self.values(
            batch.logits,
            forbidden=(batch.logits == -torch.inf).any(1).numpy(),
            alone=np.array([len(one) == 1 for one in on], bool),
            several=np.array([len(one) > 1 for one in on], bool),
            filters=np.array([len(one) > 0 for one in on], bool),
            among_off=among(np.array([not one for one in on], bool)),
            among_same=np.array([batch.params.count(one) > 1 for one in batch.params], bool),
            after_off=before(np.array([not one for one in on], bool)),
            **{name: np.array([name in one for one in on], bool) for name in ORDER},
        )
        struck = self.hit(self.effect, values, n)
        answer, earlier = batch.logits.clone(), self.history.kept.get("params", [])
        for row, params in enumerate(batch.params):
            effect = self.effect if struck[row] else ""
            if effect == "neighbour":
                params = batch.params[row - 1]
            if effect == "stale" and row < len(earlier):
                params = earlier[row]
            if params.enabled:
                logits = self.row(batch.logits[row].double().numpy(), params, effect)
                answer[row] = torch.from_numpy(logits).float()
        self.history.kept["params"] = batch.params
        return FilterResult(answer)

    def row(self, logits: np.ndarray, params: FilterParams, effect: str) -> np.ndarray:  # [vocab_size] float64, both
        with np.errstate(all="ignore"):
            for name in ORDER:
                if name in params.enabled and effect != f"no {name}":
                    number = getattr(params, name) * (self.size if effect == f"off {name}" else 1)
                    logits = filtered(logits, name, number + (effect == "wide top_k" and name == "top_k"))
        if effect == "top lost":
            logits[logits.argmax()] = -np.inf
        return logits


def filtered(logits: np.ndarray, name: str, number: float) -> np.ndarray:  # [vocab_size] float64, both
    """Return what one filter leaves."""
    probs = softmax(logits)
    surprise = np.where(probs > 0, -np.log(probs), np.inf)
    entropy = float(np.where(probs > 0, probs * surprise, 0).sum())
    finite = logits[np.isfinite(logits)]
    match name:
        case "temperature":
            return logits / number
        case "top_k":
            return np.where(logits < np.sort(logits)[max(0, len(logits) - int(number))], -np.inf, logits)
        case "top_n_sigma":
            return np.where(logits < finite.max() - number * finite.std(), -np.inf, logits)
        case "typical_p" | "top_p":
            far = np.abs(surprise - entropy) if name == "typical_p" else -logits
            order = np.argsort(far, kind="stable")
            cut = np.cumsum(probs[order]) - probs[order] >= number
            cut[0], kept = False, logits.copy()
            kept[order[cut]] = -np.inf
            return kept
    largest = probs.max()
    bound = {
        "min_p": largest * number,
        "top_a": largest**2 * number,
        "epsilon": number,
        "eta": min(number, np.sqrt(number) * np.exp(-entropy)),
    }[name]
    return np.where((probs < bound) & (probs < largest), -np.inf, logits)


def softmax(logits: np.ndarray) -> np.ndarray:  # [vocab_size] float64, both
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())
