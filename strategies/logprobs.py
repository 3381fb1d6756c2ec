"""Strategies of the log-probabilities contract: rows, the tokens that they emitted, and what requests ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray

from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import ALL_LOGPROBS, NOT_EMITTED, STAGES, Capabilities, Capability, LogprobsBatch
from fairdraw.strategies._arguments import check_interval, check_kinds
from fairdraw.strategies._cases import _argument, laid_out
from fairdraw.strategies._covering import covering_settings
from fairdraw.strategies._narrowing import INVALID_ROW_NEEDS, Narrowing
from fairdraw.strategies._recipe import DTYPES, LAYOUTS, BatchRecipe, PrintsAsCode, Recipe
from fairdraw.strategies._row_traces import TENSOR_NEEDS, RowCall, RowTrace
from fairdraw.strategies._serving import settings_of_calls
from fairdraw.strategies._sizes import vocab_sizes
from fairdraw.strategies.rows import INVALID_KINDS, TARGET_KINDS, bulk_rng, bulk_seeds, target_row

__all__ = [
    "LOGIT_KINDS", "NUM_LOGPROBS", "PROCESSING_KINDS", "ROW_TOKEN_KINDS", "LogprobsCase", "LogprobsRequest",
    "LogprobsTrace", "logprobs_batches", "logprobs_cases", "logprobs_requests",
]  # fmt: skip

Row = Any  # NDArray[np.float32], [vocab_size]; kept short for the tables below


def _near_ties(size: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """No two logits are equal, and all log-probabilities are, once they are float32."""
    return (rng.permutation(size) * np.float32(2.0**-40)).astype(np.float32)


def _offset(size: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Far from 0, where a log-sum-exp has few bits behind the point; exact in float32."""
    return np.asarray(rng.choice([-6144.0, 6144.0]) + rng.integers(-64, 64, size) / 16, dtype=np.float32)


_OWN_KINDS: dict[str, Callable[[int, np.random.Generator], NDArray[np.float32]]] = {
    "near-ties": _near_ties,
    "offset": _offset,
}
LOGIT_KINDS: tuple[str, ...] = (*TARGET_KINDS, *_OWN_KINDS)
"""Rows of the model's logits: `TARGET_KINDS`; different logits with equal log-probabilities; logits far from 0."""


def _masked(row: Row, rng: np.random.Generator) -> Row:
    """What is kept is the most probable token, and each other with probability 1/4."""
    kept = rng.random(row.size) < 0.25
    kept[np.argmax(row)] = True
    return np.where(kept, row, -np.inf)


_PROCESSING: dict[str, Callable[[Row, np.random.Generator], Row]] = {
    "none": lambda row, rng: row,
    "temperature": lambda row, rng: row / rng.choice([0.3, 1.7]),
    "masked": _masked,
    "penalised": lambda row, rng: row - 2 * (rng.random(row.size) < 0.5),
    "forced": lambda row, rng: np.where(np.arange(row.size) == rng.integers(row.size), 0.0, -np.inf),
}
PROCESSING_KINDS: tuple[str, ...] = tuple(_PROCESSING)
"""What processors made of a row: nothing; a temperature of 0.3 or 1.7, after which half precision holds few logits; a
mask of filters or a grammar; a penalty of 2 on half of the tokens; one token forced."""

_TOKENS: dict[str, Callable[[Row, np.random.Generator], int]] = {
    "likely": lambda row, rng: int(np.argmax(row)),
    "first": lambda row, rng: 0,
    "last": lambda row, rng: row.size - 1,
    "unlikely": lambda row, rng: int(np.argmin(row)),
    "any": lambda row, rng: int(rng.integers(row.size)),
}
ROW_TOKEN_KINDS: tuple[str, ...] = tuple(_TOKENS)
"""Which token a row emitted: the argmax, id 0, the last id, the argmin (which may be masked, as in a prompt), any."""

NUM_LOGPROBS: tuple[int | None, ...] = (0, 1, 5, 20, 50, ALL_LOGPROBS, None)
"""What requests ask for: the emitted token alone, some, the whole vocabulary, nothing."""


@dataclass(frozen=True, repr=False)
class LogprobsRequest(Recipe):
    """One request: its rows and what it asks for.

    Args:
        logits: Shape of its rows (`LOGIT_KINDS`, `INVALID_KINDS`).
        num_logprobs: More than the vocabulary means the whole.
        processing: From the rows to the processed ones (`PROCESSING_KINDS`).
        token: What each row emitted (`ROW_TOKEN_KINDS`).
        num_rows: 1 for plain decoding, more with drafts or in a prompt.
        num_emitted: The first so many rows emitted a token, as after rejected drafts.

    Raises:
        ValueError: If a kind is unknown or a number out of range.
    """

    logits: str = "flat"
    num_logprobs: int | None = 0
    processing: str = "none"
    token: str = "likely"
    num_rows: int = 1
    num_emitted: int = 1 << 20

    def __post_init__(self) -> None:
        rows = {**TARGET_KINDS, **_OWN_KINDS, **INVALID_KINDS}
        self._require_words(logits=rows, processing=_PROCESSING, token=_TOKENS)
        if self.num_logprobs is not None and self.num_logprobs < ALL_LOGPROBS:
            raise ValueError(
                f"LogprobsRequest: num_logprobs={self.num_logprobs}, but it must be at least -1. Use None for none."
            )
        for name in ("num_rows", "num_emitted"):
            if getattr(self, name) < 0:
                raise ValueError(f"LogprobsRequest: {name}={getattr(self, name)}, but it must be at least 0. Use 0.")


class _DrawnLogprobsBatch(PrintsAsCode, LogprobsBatch):
    """A batch that Hypothesis prints by its origin."""


@dataclass(frozen=True, repr=False)
class LogprobsCase(BatchRecipe):
    """A batch of the log-probabilities contract, as data.

    Args:
        stage: What is returned (`STAGES`).
        seed: For every bulk number.

    Raises:
        ValueError: If there is no request or no vocabulary, nobody asks, or a word is unknown.

    Example:
        >>> LogprobsCase(vocab_size=3, requests=(LogprobsRequest(),)).batch().token_ids.tolist()
        [0]
    """

    vocab_size: int
    requests: tuple[LogprobsRequest, ...]
    stage: str = STAGES[0]
    dtype: str = "float32"
    layout: str = "contiguous"
    seed: int = 0

    def __post_init__(self) -> None:
        self._check("LogprobsRequest()")
        self._require_words(stage=STAGES)
        if all(request.num_logprobs is None for request in self.requests):
            raise ValueError(
                "LogprobsCase: num_logprobs=None of all requests, but one must ask. Use 0 for one of them."
            )

    def batch(self, device: str = "cpu") -> LogprobsBatch:
        """Build new tensors."""
        rows, processed, tokens = [], [], []
        for number, request in enumerate(self.requests):
            for place in range(request.num_rows):
                row, then, token = self._row(request, derive_seed("row", self.seed, number, place))
                rows.append(row)
                processed.append(then)
                tokens.append(token if place < request.num_emitted else NOT_EMITTED)
        logits = self._stacked(rows).to(getattr(torch, self.dtype))
        batch = _DrawnLogprobsBatch(
            logits=logits.to(device),
            processed_logits=self._stacked(processed).to(device),
            token_ids=torch.tensor(tokens, dtype=torch.int64, device=device),
            num_rows=[request.num_rows for request in self.requests],
            num_logprobs=[
                None if request.num_logprobs is None else min(request.num_logprobs, self.vocab_size)
                for request in self.requests
            ],
            stage=self.stage,
            origin=f"{self!r}.batch({_argument(device)})",
        )
        return laid_out(batch, self.layout)

    def _row(self, request: LogprobsRequest, seed: int) -> tuple[Row, Row, int]:
        """Logits as the dtype holds them, what processors made of them, and the token."""
        own, rng = _OWN_KINDS.get(request.logits), bulk_rng("logprobs", seed)
        row = target_row(request.logits, self.vocab_size, seed) if own is None else own(self.vocab_size, rng)
        row = torch.from_numpy(row).to(getattr(torch, self.dtype)).float().numpy()
        processed = _PROCESSING[request.processing](row, rng).astype(np.float32)
        count = row if self.stage.startswith("raw") else processed
        return row, processed, _TOKENS[request.token](np.nan_to_num(count, nan=0.0, neginf=-1e30), rng)

    def _stacked(self, rows: list[Row]) -> torch.Tensor:  # [num_rows, vocab_size] float32
        return torch.from_numpy(np.stack(rows)) if rows else torch.zeros((0, self.vocab_size))


def _stages(capabilities: Capabilities, known: Sequence[str]) -> Sequence[str]:
    """Those that the function returns, if there is one."""
    if Capability.LOGIT_SCORES in capabilities:
        return known
    return [stage for stage in known if stage.endswith("logprobs")] or known


def _lengths(capabilities: Capabilities, known: Sequence[int | None]) -> list[int | None]:
    """How many log-probabilities requests want; none beside the token's if there are no lists."""
    return list(known) if Capability.TOP_LOGPROBS in capabilities else [one and 0 for one in known]


@st.composite
def logprobs_requests(
    draw: st.DrawFn,
    capabilities: Capabilities = Capabilities(),  # noqa: B008  frozen
    *,
    logits: Sequence[str] | None = None,
    num_logprobs: Sequence[int | None] = NUM_LOGPROBS,
    processing: Sequence[str] | None = None,
    tokens: Sequence[str] | None = None,
    max_rows: int = 4,
) -> LogprobsRequest:
    """One request for log-probabilities.

    Draws only what `capabilities` support.

    Args:
        logits: Kinds of rows (`LOGIT_KINDS`, all of them if `None`; `INVALID_KINDS` only if named).
        num_logprobs: What it may ask for.
        processing: What processors make of the rows (`PROCESSING_KINDS`).
        tokens: Which token a row emitted (`ROW_TOKEN_KINDS`).
        max_rows: Most rows.

    Raises:
        TypeError, ValueError: If a kind is unknown; when the first request is drawn.
    """
    name, open_to = "logprobs_requests", Narrowing("logprobs_requests", capabilities)
    kinds = open_to.rows("logits", check_kinds(name, "logits", logits, LOGIT_KINDS, also=tuple(INVALID_KINDS)))
    num_rows = draw(st.integers(1, max(1, max_rows)))
    return LogprobsRequest(
        logits=draw(st.sampled_from(kinds)),
        num_logprobs=draw(st.sampled_from(_lengths(capabilities, num_logprobs))),
        processing=draw(st.sampled_from(check_kinds(name, "processing", processing, PROCESSING_KINDS))),
        token=draw(st.sampled_from(check_kinds(name, "tokens", tokens, ROW_TOKEN_KINDS))),
        num_rows=num_rows,
        num_emitted=num_rows if draw(st.booleans()) else draw(st.integers(0, num_rows)),
    )


@st.composite
def logprobs_cases(
    draw: st.DrawFn,
    /,
    capabilities: Capabilities = Capabilities(),  # noqa: B008  frozen
    *,
    min_vocab_size: int = 1,
    max_vocab_size: int = 1025,
    min_requests: int = 1,
    max_requests: int = 4,
    stages: Sequence[str] | None = None,
    dtypes: Sequence[str] | None = None,
    **of_requests: Any,
) -> LogprobsCase:  # Any: as `logprobs_requests` takes them
    """Whole batches, as recipes: requests that ask for different numbers, with drafts and without.

    Draws only what `capabilities` support. One request at least asks.

    Args:
        stages: What is returned (`STAGES`).
        dtypes: Of the model's logits (`DTYPES`).
        of_requests: Arguments of `logprobs_requests`.

    Raises:
        TypeError, ValueError: If a bound or kind is invalid, or a requirement is unsupported; when the first case is
            drawn.

    Example:
        >>> from hypothesis import given
        >>> @given(logprobs_cases(stages=("raw_logprobs",)))
        ... def test_mine(case):
        ...     batch = case.batch()
    """
    name, open_to = "logprobs_cases", Narrowing("logprobs_cases", capabilities)
    check_interval(name, "min_requests", min_requests, "max_requests", max_requests, at_least=1)
    known = _stages(capabilities, check_kinds(name, "stages", stages, STAGES))
    request = logprobs_requests(capabilities, **of_requests)
    requests = draw(st.lists(request, min_size=min_requests, max_size=max_requests))
    if all(request.num_logprobs is None for request in requests):
        requests[0] = requests[0].replace(num_logprobs=0)
    return LogprobsCase(
        vocab_size=draw(vocab_sizes(*open_to.vocab_sizes(min_vocab_size, max_vocab_size))),
        requests=tuple(requests),
        stage=draw(st.sampled_from(known)),
        dtype=draw(st.sampled_from(open_to.dtypes(dtypes))),
        seed=draw(bulk_seeds()),
    )


_LIST_LENGTHS: tuple[int | None, ...] = (0, 1, 2, 5, 20, 21, 50, 100, 300, ALL_LOGPROBS, None)
_COUNTS = (1, 0, 2, 3, 1, 5, 9, 64)
_SETTINGS: dict[str, tuple[Any, ...]] = {  # Any: words
    "stage": STAGES,
    "dtype": DTYPES,
    "layout": LAYOUTS,
    "ids": ("int64", "int32"),
    "rows": ("one", "ragged", "one prompt", "none"),
    "lists": ("any", "alike", "short"),
    "emitted": ("all", "some"),
}
_NEEDS = {
    **{("stage", stage): Capability.LOGIT_SCORES for stage in STAGES if stage.endswith("_logits")},
    **TENSOR_NEEDS,
    **{("rows", rows): Capability.RAGGED for rows in ("ragged", "one prompt")},
    ("rows", "none"): Capability.NO_ROWS,
}


class LogprobsTrace(RowTrace):
    """Calls of one function: rows with every two of kind, processing and token; requests of 0 to 64 rows."""

    limit = 1 << 16  # rows are compared as arrays, which is quick

    def library(self, stage: str = STAGES[0], dtype: str = "float32") -> LogprobsCase:
        """Return all rows, each a request of its own; the plain ones first."""
        invalid = [kind for kind, need in INVALID_ROW_NEEDS.items() if str(need) not in self.without]
        kinds = LOGIT_KINDS if self.vocab_size < _SUMMABLE else _FALLING
        values = {"logits": kinds, "processing": PROCESSING_KINDS, "token": ROW_TOKEN_KINDS}
        rows = [LogprobsRequest(kinds[number % len(kinds)]) for number in range(_NUM_PLAIN)]
        rows += [LogprobsRequest(**one) for one in covering_settings(values, seed=self.seed % 16)]
        rows += [LogprobsRequest(kind, token="any") for kind in invalid]
        return LogprobsCase(self.vocab_size, self.chosen(rows, _NUM_PLAIN), stage, dtype, seed=self.seed)

    def batches(self, device: str) -> Iterator[tuple[RowCall, LogprobsBatch]]:
        """Yield the calls; each is built when it is asked for."""
        settings = settings_of_calls(_SETTINGS, _NEEDS, self.without, self.seed)
        known: dict[tuple[str, str], LogprobsBatch] = {}
        for call in self.rows_played([*map(vars, self.library().requests)], _NUM_PLAIN):
            setting = settings[call.number % len(settings)]
            key = setting["stage"], setting["dtype"] if self.vocab_size < _SUMMABLE else "float32"
            known[key] = known[key] if key in known else self.library(*key).batch(device)
            rng = bulk_rng("requests of a call", self.seed, call.number)
            if setting["rows"] == "none":  # before those of this size
                yield call, self._asked(known[key].select([]), setting, rng)
                setting = {**setting, "rows": "one"}
            yield call, self._asked(known[key].select(call.places.tolist()), setting, rng)

    def _asked(self, batch: LogprobsBatch, setting: dict[str, Any], rng: np.random.Generator) -> LogprobsBatch:
        """Return the same rows as those of fewer requests, which ask for lists."""
        count, tokens = len(batch.token_ids), batch.token_ids
        sizes = {"one": [1] * count, "one prompt": [count], "none": [0, 0]}.get(setting["rows"]) or _ragged(count, rng)
        if setting["emitted"] == "some":
            tokens = tokens.masked_fill(torch.from_numpy(rng.random(count) < 0.1).to(tokens.device), NOT_EMITTED)
        lengths = self._lengths(len(sizes), setting["lists"], rng)
        ids = tokens.to(getattr(torch, setting["ids"]))
        return laid_out(batch.replace(token_ids=ids, num_rows=sizes, num_logprobs=lengths), setting["layout"])

    def _lengths(self, count: int, how: str, rng: np.random.Generator) -> list[int | None]:
        known = (0, None) if str(Capability.TOP_LOGPROBS) in self.without else _LIST_LENGTHS
        if how == "short" or self.vocab_size >= 2**13:  # a list of the whole takes long to compare
            known = tuple(one for one in known if one is None or 0 <= one <= 100)
        drawn = [known[place] for place in rng.integers(len(known), size=1 if how == "alike" else count)]
        found = [one if one is None else min(one, self.vocab_size) for one in drawn * (count if how == "alike" else 1)]
        return [0, *found[1:]] if all(one is None for one in found) else found


LogprobsCase.others = (LogprobsTrace,)
_NUM_PLAIN = 6
_SUMMABLE, _FALLING = 2**13, ("normal", "zipf", "half", "last-only")
"""In wider rows a float32 sum of equal terms, as half precision makes them, errs by up to three times what the contract
grants: torch's own log-softmax does so on a CPU."""


def _ragged(count: int, rng: np.random.Generator) -> list[int]:
    """Return numbers of rows that add up to `count`; some are 0, also behind the last row."""
    sizes: list[int] = []
    while (left := count - sum(sizes)) > 0:
        sizes.append(min(left, _COUNTS[rng.integers(len(_COUNTS))]))
    return [*sizes, 0]


@st.composite
def logprobs_batches(draw: st.DrawFn, /, *, device: str = "cpu", **choices: Any) -> LogprobsBatch:  # Any: of a case
    """Batches ready for a function that returns log-probabilities; each prints as the code that builds it. Arguments as
    for `logprobs_cases`.

    Raises:
        TypeError, ValueError: If an argument is unknown or invalid; when the first batch is drawn.
    """
    return draw(logprobs_cases(**choices)).batch(device)
