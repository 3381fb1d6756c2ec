"""Grammar, log-probabilities and filters: right functions of rows of logits, their features and effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from exam.conditions import Feature, flag
from exam.planted import Effect, Fault, Lazy, Planted
from exam.sampling import HISTORY, History, among, before
from fairdraw.protocols import Capabilities, FilterChain, FilterResult, LogprobsResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fairdraw.protocols import BitmaskBatch, FilterBatch, FilterParams, GrammarBatch, LogprobsBatch

_OTHERS = r"neighbour|beside|mixed|other requests|other rows|permut|whatever its"
_COMMON = [
    Feature("batch_size", "size", "number of rows", r"rows|batch|requests", 1, 300),
    Feature("vocab_size", "size", "vocabulary", r"vocabular|columns|vocab", 32, 200000),
    Feature("row", "index", "row", r"row", 0, 250),
    Feature("rows_behind", "index", "number of rows behind it", r"row|last", 0, 250),
    flag("half", "layout", "logits are bfloat16 or float16", r"half|float16|dtype|precision"),
    flag("strided", "layout", "logits are strided", r"strid|contiguous|layout"),
    flag("aligned", "layout", "the vocabulary is a multiple of 64", r"vocabular|multiple|align|columns"),
    *HISTORY,
]


class Single(Planted):
    """The base of a function of single calls."""

    lacking: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, fault: Fault | None = None) -> None:
        super().__init__(fault)
        self.history = History()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities.of(self.lacking)

    def values(self, logits: Tensor, **more: Any) -> Lazy:
        """Return the features of a call and its rows."""
        n, vocab = logits.shape
        makers = {
            **self.history.values(n, vocab),
            "batch_size": lambda: n,
            "vocab_size": lambda: vocab,
            "row": lambda: np.arange(n),
            "rows_behind": lambda: n - 1 - np.arange(n),
            "half": lambda: logits.dtype != torch.float32,
            "strided": lambda: not logits.is_contiguous(),
            "aligned": lambda: vocab % 64 == 0,
        }
        self.history.note(n, vocab)
        return Lazy({**makers, **{name: lambda value=value: value for name, value in more.items()}})

    def rows(self, effect: str, values: Lazy, n: int) -> Tensor | None:  # [n] bool
        found = self.hit(effect, values, n)
        return None if found is None else torch.tensor(np.array(found))

    def ids(self, effect: str, values: Lazy, shape: Any) -> Tensor | None:  # shape, bool
        if not self.plants(effect):
            return None
        found = self.hit(effect, values.columns(shape[1]), shape[0])
        return torch.tensor(np.array(np.broadcast_to(found, tuple(shape))))


# -- grammar --------------------------------------------------------------------------------------------------------

GRAMMAR_FEATURES = [
    *_COMMON,
    Feature("token", "id", "token id", r"\bids?\b|token|column|word|bit", 0, 200000),
    flag("indexed", "layout", "rows are named by indices", r"indices|index|named"),
    flag("narrow", "layout", "the bitmask has fewer bits than the logits have columns", r"narrow|beyond|columns|words"),
    flag("masked", "request", "the row is masked", r"mask"),
    flag("shut", "request", "the row forbids everything", r"nothing is allowed|empty|forbid"),
    flag("among_unmasked", "neighbour", "another row is not masked", r"indices|index|named|" + _OTHERS),
    flag("after_unmasked", "neighbour", "the row before is not masked", r"indices|index|named|" + _OTHERS),
    Feature("place", "index", "number of drafts before the row", r"draft|place|position|row", 0, 8),
    flag("speculates", "request", "the request has drafts", r"draft"),
]
_MASK = r"mask|forbid|allow|-inf|bit"
GRAMMAR_EFFECTS = {
    "let through": Effect("a forbidden token is not masked", _MASK, ("masked",), "vocabulary"),
    "shut out": Effect("an allowed token is masked", _MASK, ("masked",), "vocabulary"),
    "unmasked": Effect("a row is not masked", _MASK, ("masked",), rare=True),
    "neighbour's mask": Effect("a row is masked by the bitmask of the row before", _MASK + "|row", ("masked",)),
    "stale mask": Effect("a row is masked by its bitmask of the call before", _MASK + "|call", ("masked",)),
    "nudged": Effect("allowed logits are rounded to bfloat16", r"bits|float|equal|same|keep", ("masked",)),
    "finite": Effect("forbidden tokens get -1e30", _MASK, ("masked",), rare=True),
    "drafts unseen": Effect("a row is masked as if its last draft were not there", _MASK + "|draft", ("speculates",)),
    "one left": Effect("one draft is not rolled back", r"rollback|roll|state|grammar", ("speculates",)),
}


class Masker(Single):
    """It masks in place."""

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
        use = torch.arange(n).clamp(max=len(bitmask) - 1)
        if (rows := self.rows("neighbour's mask", values, n)) is not None:
            use = torch.where(rows, (use - 1).clamp(min=0), use)
        words = bitmask[use]
        if (rows := self.rows("stale mask", values, n)) is not None:
            words = torch.where(rows[:, None], self.history.rows("words", words.clone()), words)
        bits = ((words[:, :, None] >> torch.arange(32, dtype=torch.int32)) & 1).flatten(1)[:, :vocab] != 0
        if (rows := self.rows("unmasked", values, n)) is not None:
            named = named & ~rows.numpy()
        if (cells := self.ids("let through", values, bits.shape)) is not None:
            bits = bits | cells
        if (cells := self.ids("shut out", values, bits.shape)) is not None:
            bits = bits & ~cells
        cut, known = ~bits & torch.tensor(named)[:, None], logits[:, : bits.shape[1]]
        known.masked_fill_(cut, -torch.inf)
        if (rows := self.rows("finite", values, n)) is not None:
            known.masked_fill_(cut & rows[:, None], -1e30 if logits.dtype != torch.float16 else -60000.0)
        if (rows := self.rows("nudged", values, n)) is not None and bool((rows & torch.tensor(named)).any()):
            chosen = rows & torch.tensor(named)
            logits[chosen] = logits[chosen].bfloat16().to(logits.dtype)
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
        unseen, left = (self.hit(effect, values, n) for effect in ("drafts unseen", "one left"))
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
                if unseen is not None and step and unseen[first + step]:
                    bitmask[first + step] = bitmask[first + step - 1]
            kept = left is not None and bool(left[first])
            if taken > kept:
                grammar.rollback(taken - kept)
        return self.masked(logits, bitmask, named, values)


# -- log-probabilities ----------------------------------------------------------------------------------------------

LOGPROBS_FEATURES = [
    *_COMMON,
    Feature("token", "id", "emitted id", r"\bids?\b|token", 0, 200000),
    Feature("wanted", "size", "number of log-probabilities", r"log.?prob|top|list|most", 1, 100),
    flag("wants_all", "request", "the request wants the whole vocabulary", r"whole|all|vocabular"),
    flag("wants_none", "request", "the request wants the emitted token alone", r"emitted|alone|0"),
    flag("processed", "request", "the stage is of processed logits", r"stage|processed"),
    flag("filtered", "request", "the row has excluded tokens", r"-inf|exclud|filter"),
    flag("among_others", "neighbour", "another row wants another number", _OTHERS + "|number"),
    flag("after_unread", "neighbour", "the row before emits no token", r"reject|emit|" + _OTHERS),
]
_LISTS = r"log.?prob|list|rank|token|value"
LOGPROBS_EFFECTS = {
    "off": Effect("log-probabilities are multiplied by {:.3f}", _LISTS, ("of_logprobs",), sizes=(1.001, 1.05)),
    "unnormalised": Effect("the sum leaves out the last id", _LISTS, ("of_logprobs",)),
    "neighbour": Effect("the row before is returned", _LISTS + "|row", rare=True),
    "stale": Effect("the values of the call before are returned", _LISTS + "|call"),
    "swapped": Effect("two tokens of the list are swapped", _LISTS + "|order", ("listed",), rare=True),
    "short list": Effect("the last of the list is repeated from the one before", _LISTS, ("listed",)),
    "rank": Effect("the rank is one too low", r"rank", ("low",), "token", rare=True),
    "emitted value": Effect("the emitted token has the value of the most probable one", _LISTS, ("low",), "token"),
    "wrong id": Effect("the emitted id is replaced by the next one", _LISTS, (), "token", rare=True),
    "other logits": Effect("values are those of the other logits", _LISTS + "|stage|processed|raw"),
}


class Logprobs(Single):
    """It sorts each row."""

    contract = "logprobs"
    lacking = {"drawn-tokens": "it is given its tokens", "no-rows": "it is not called then"}  # noqa: RUF012

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
        if (rows := self.rows("other logits", values, n)) is not None:
            other = batch.processed_logits if batch.stage.startswith("raw") else batch.logits
            logits = torch.where(rows[:, None], other.float(), logits.float())
        exact = logits.float()
        scores = exact if batch.wants_logits else exact.log_softmax(-1)
        if (rows := self.rows("unnormalised", values, n)) is not None and not batch.wants_logits:
            cut = exact.clone()
            cut[:, -1] = -torch.inf
            scores = torch.where(rows[:, None], exact - cut.logsumexp(-1, keepdim=True), scores)
        order = exact.sort(dim=-1, descending=True, stable=True).indices[:, :most]
        own = scores.gather(1, tokens[:, None])
        ranks = (exact >= exact.gather(1, tokens[:, None])).sum(1)
        ids, listed = torch.cat([tokens[:, None], order], 1), torch.cat([own, scores.gather(1, order)], 1)
        return self.spoilt(values, ids, listed, ranks, n)

    def spoilt(self, values: Lazy, ids: Tensor, listed: Tensor, ranks: Tensor, n: int) -> LogprobsResult:
        """Return the answer, spoilt."""
        if (rows := self.rows("off", values, n)) is not None and values["of_logprobs"]:
            listed = torch.where(rows[:, None], listed * self.size, listed)
        if (rows := self.rows("neighbour", values, n)) is not None:
            listed = torch.where(rows[:, None], listed.roll(1, 0), listed)
        if (rows := self.rows("stale", values, n)) is not None:
            listed = torch.where(rows[:, None], self.history.rows("listed", listed), listed)
        if (rows := self.rows("swapped", values, n)) is not None and ids.shape[1] > 2:
            ids[rows, 1:3] = ids[rows, 1:3].flip(1)
        if (rows := self.rows("short list", values, n)) is not None:
            for row in rows.nonzero()[:, 0].tolist():
                if (last := int(values["wanted"][row])) > 1:
                    ids[row, last], listed[row, last] = ids[row, last - 1], listed[row, last - 1]
        if (rows := self.rows("rank", values, n)) is not None:
            ranks = torch.where(rows, (ranks - 1).clamp(min=1), ranks)
        if (rows := self.rows("emitted value", values, n)) is not None and listed.shape[1] > 1:
            listed[rows, 0] = listed[rows, 1]
        if (rows := self.rows("wrong id", values, n)) is not None:
            ids[rows, 0] = (ids[rows, 0] + 1) % int(values["vocab_size"])
        return LogprobsResult(ids, listed, ranks)


# -- filters --------------------------------------------------------------------------------------------------------

ORDER = ("temperature", "top_k", "typical_p", "top_p", "min_p", "top_a", "top_n_sigma", "epsilon", "eta")
FILTER_FEATURES = [
    *(one for one in _COMMON if one.name not in ("half",)),
    flag("forbidden", "request", "the row has forbidden tokens", r"forbid|-inf|mask"),
    flag("alone", "request", "the row has one filter", r"alone|filter"),
    flag("several", "request", "the row has several filters", r"togeth|two|order|filters"),
    *(flag(name, "request", f"the row has {name}", name.replace("_", ".?") + "|every two|two filters") for name in ORDER),
    flag("among_off", "neighbour", "another row has no filter", _OTHERS + "|off"),
    flag("among_same", "neighbour", "another row has the same parameters", _OTHERS + "|same|equal"),
    flag("after_off", "neighbour", "the row before has no filter", _OTHERS + "|off"),
]
_FILTERS = r"filter|keep|cut|stay|"
FILTER_EFFECTS = {
    **{
        f"no {name}": Effect(f"{name} is not applied", _FILTERS + name.replace("_", ".?"), (name,), rare=True)
        for name in ORDER
    },
    **{
        f"off {name}": Effect(f"the parameter of {name} is multiplied by {{:.2f}}", _FILTERS + name, (name,), "", sizes)
        for name, sizes in {
            "temperature": (1.05, 1.2),
            "typical_p": (0.7, 0.9),
            "top_p": (0.7, 0.9),
            "min_p": (1.2, 1.6),
            "top_a": (1.3, 1.8),
            "top_n_sigma": (0.7, 0.9),
            "epsilon": (1.3, 1.8),
            "eta": (1.3, 1.8),
        }.items()
    },
    "wide top_k": Effect("top-k keeps one token more", _FILTERS + "top.?k", ("top_k",)),
    "neighbour": Effect("the parameters of the row before are used", _FILTERS + _OTHERS + "|row", rare=True),
    "stale": Effect("the parameters of the row in the call before are used", _FILTERS + "call"),
    "top lost": Effect("the most probable token is cut", _FILTERS + "probable|largest", ("filters",), rare=True),
}


class Filters(Single):
    """It filters row by row in float64."""

    contract = "filters"
    chain = FilterChain(order=ORDER)
    lacking = chain.unsupported()

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
        strikes = {
            effect: found for effect in FILTER_EFFECTS if (found := self.hit(effect, values, n)) is not None
        }  # one at most
        answer, earlier = batch.logits.clone(), self.history.kept.get("params", [])
        for row, params in enumerate(batch.params):
            effect = next((name for name, rows in strikes.items() if rows[row]), "")
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
        off = {name: self.size if effect == f"off {name}" else 1.0 for name in ORDER}
        with np.errstate(all="ignore"):
            for name in ORDER:
                if name in params.enabled and effect != f"no {name}":
                    wide = int(effect == "wide top_k")
                    logits = getattr(self, name)(logits, params, off[name], wide)
        if effect == "top lost":
            logits[logits.argmax()] = -np.inf
        return logits

    def temperature(self, logits: np.ndarray, params: FilterParams, off: float, _: int) -> np.ndarray:  # [vocab_size]
        return logits / (params.temperature * off)

    def top_k(self, logits: np.ndarray, params: FilterParams, _: float, wide: int) -> np.ndarray:  # [vocab_size]
        k = min(params.top_k + wide, len(logits))
        return np.where(logits < np.sort(logits)[len(logits) - k], -np.inf, logits)

    def typical_p(self, logits: np.ndarray, params: FilterParams, off: float, _: int) -> np.ndarray:  # [vocab_size]
        probs = softmax(logits)
        surprise = np.where(probs > 0, -np.log(probs), np.inf)
        entropy = float(np.where(probs > 0, probs * surprise, 0).sum())
        return self.first(logits, np.argsort(np.abs(surprise - entropy), kind="stable"), params.typical_p * off)

    def top_p(self, logits: np.ndarray, params: FilterParams, off: float, _: int) -> np.ndarray:  # [vocab_size]
        return self.first(logits, np.argsort(-logits, kind="stable"), params.top_p * off)

    def first(self, logits: np.ndarray, order: Sequence[int] | np.ndarray, mass: float) -> np.ndarray:  # [vocab_size]
        """Keep the first tokens in this order until they have the mass."""
        probs = softmax(logits)[order]
        cut = np.cumsum(probs) - probs >= mass
        cut[0] = False
        kept = logits.copy()
        kept[np.asarray(order)[cut]] = -np.inf
        return kept

    def below(self, logits: np.ndarray, bound: float) -> np.ndarray:  # [vocab_size] float64
        """Cut the tokens with a smaller probability, but not the most probable ones."""
        probs = softmax(logits)
        return np.where((probs < bound) & (probs < probs.max()), -np.inf, logits)

    def min_p(self, logits: np.ndarray, params: FilterParams, off: float, _: int) -> np.ndarray:  # [vocab_size]
        return self.below(logits, softmax(logits).max() * params.min_p * off)

    def top_a(self, logits: np.ndarray, params: FilterParams, off: float, _: int) -> np.ndarray:  # [vocab_size]
        return self.below(logits, softmax(logits).max() ** 2 * params.top_a * off)

    def top_n_sigma(self, logits: np.ndarray, params: FilterParams, off: float, _: int) -> np.ndarray:  # [vocab_size]
        finite = logits[np.isfinite(logits)]
        bound = finite.max() - params.top_n_sigma * off * finite.std()
        return np.where(logits < bound, -np.inf, logits)

    def epsilon(self, logits: np.ndarray, params: FilterParams, off: float, _: int) -> np.ndarray:  # [vocab_size]
        return self.below(logits, params.epsilon * off)

    def eta(self, logits: np.ndarray, params: FilterParams, off: float, _: int) -> np.ndarray:  # [vocab_size]
        probs = softmax(logits)
        entropy = -float((probs * np.log(np.where(probs > 0, probs, 1))).sum())
        return self.below(logits, min(params.eta * off, np.sqrt(params.eta * off) * np.exp(-entropy)))


def softmax(logits: np.ndarray) -> np.ndarray:  # [vocab_size] float64, both
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())
