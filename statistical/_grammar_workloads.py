"""What the statistical checks of the grammar contract draw from: texts under a small automaton, step by step.

The target gives forbidden tokens four tenths of its mass. Under the mask, text follows the target, restricted to what
the grammar allows and renormalised, token by token: the chance of a text is a product, and exact.

* Rows: one token per request, by the bitmask alone.
* Steps: up to two drafts per request, some of them forbidden, verified as one-hot drafts. What is emitted is filled up
  with draws from the exact distribution, so that every text has three tokens; then texts follow the target, whatever
  the drafts were.

A masker with `emit` draws its own tokens. For others the suite draws, by the softmax of the logits that they masked.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fairdraw._core.array_types import Row64, Rows64
from fairdraw._core.seeds import derive_seed
from fairdraw._core.tensor_types import LogitRows
from fairdraw.contracts import BitmaskBatch, GrammarBatch, GrammarRequest, SeededNoise, num_words, words_of
from fairdraw.contracts._grammar import emit_step, mask_rows, mask_step
from fairdraw.statistical._count_tables import Counts, Table, count_codes, joint_codes
from fairdraw.statistical._workloads import SamplingPlan, Setting, Workload
from fairdraw.strategies.grammar import TokenAutomaton, TokenMatcher

_VOCAB_SIZE = 40
_IDS = np.array([0, 3, 31, 32, 38, 39])
"""Tokens that the grammar knows: edges of words among them, and the last of the vocabulary."""

_AUTOMATON = TokenAutomaton(((0, 3, 0), (0, 31, 1), (0, 32, 1), (0, 39, 0), (1, 0, 0), (1, 31, 1), (1, 38, 0)))
_ENTRY = (None, 31)
"""By state, what is accepted to get there."""

_DRAFTS = np.array([0, 3, 31, 32, 38, 39, 5, 20])
"""Any of them may be drafted; the last two are never allowed."""

_LENGTH, _MOST_DRAFTS, _MOST_REQUESTS = 3, 2, 512


@dataclass(frozen=True)
class _Kind:
    """Requests of a batch take them in turn.

    Args:
        state: In which its text begins; `None`: no grammar.
    """

    name: str
    state: int | None
    num_drafts: int


_KINDS = (
    _Kind("state 0, two drafts", 0, 2),
    _Kind("no grammar", None, 2),
    _Kind("state 1, one draft", 1, 1),
    _Kind("state 0, no draft", 0, 0),
)


def _target() -> Row64:
    probs = np.full(_VOCAB_SIZE, 0.4 / (_VOCAB_SIZE - _IDS.size))
    probs[_IDS] = np.array([0.2, 0.08, 0.1, 0.14, 0.05, 0.03])
    return probs


def _restricted(state: int | None) -> Row64:
    """The target, restricted to what may follow, and renormalised."""
    probs = _target()
    if state is not None:
        probs[~np.isin(np.arange(_VOCAB_SIZE), _AUTOMATON.allowed(state))] = 0.0
    return np.asarray(probs / probs.sum())


_NEXT = np.array([[_AUTOMATON.step(state, token) or 0 for token in range(_VOCAB_SIZE)] for state in range(2)])


def _draw(
    probs: NDArray[np.float64],  # [num_rows, vocab_size] float64
    uniforms: NDArray[np.float64],  # [num_rows] float64
) -> NDArray[np.int64]:  # [num_rows] int64
    """By the inverse CDF; never a token of probability 0."""
    sums = probs.cumsum(axis=1)
    return np.asarray((sums > uniforms[:, None] * sums[:, -1:]).argmax(axis=1))


def _softmax(logits: LogitRows) -> Rows64:
    return np.asarray(logits.double().nan_to_num(nan=0.0, neginf=-torch.inf).softmax(dim=-1).nan_to_num().numpy())


# Rows


def _rows_table(state: int) -> str:
    return f"G1 token in state {state}"


def _count_rows(num_rows: int, device: str, sampler: Any, seed: int) -> Counts:  # Any: a masker
    """Half of the rows in each state."""
    rng = np.random.default_rng(derive_seed("grammar rows", seed))
    states = np.arange(num_rows) % 2
    if hasattr(sampler, "emit"):
        requests = tuple(GrammarRequest(_matcher(int(state))) for state in states)
        batch = GrammarBatch(_logits(num_rows, device), requests)
        tokens = emit_step(sampler, batch, SeededNoise(derive_seed("emitted", seed)))[:, 0]
    else:
        words = np.array([words_of(_AUTOMATON.allowed(state), num_words(_VOCAB_SIZE)) for state in range(2)], np.int32)
        masks = torch.from_numpy(words[states]).to(device)
        masked = mask_rows(sampler, BitmaskBatch(_logits(num_rows, device), masks))
        tokens = _draw(_softmax(masked), rng.random(num_rows))
    return {_rows_table(state): count_codes(tokens[states == state], _VOCAB_SIZE) for state in range(2)}


def _logits(num_rows: int, device: str) -> LogitRows:
    return torch.from_numpy(np.log(_target()).astype(np.float32)).repeat(num_rows, 1).to(device)


def _matcher(state: int | None) -> TokenMatcher | None:
    if state is None:
        return None
    matcher = TokenMatcher(_AUTOMATON)
    if (entry := _ENTRY[state]) is not None:
        matcher.accept(entry)
    return matcher


@Workload.of("grammar: rows", "masked tokens", 0.2, 1.0)
def masked_rows(setting: Setting) -> SamplingPlan:
    """One token per row, by the bitmask alone."""
    batch_size = _batch_size(setting)

    def tables(num_calls: int) -> dict[str, Table]:
        each, label = num_calls * batch_size // 2, "token {}".format
        return {_rows_table(state): Table(_restricted(state), label=label, num_draws=each) for state in range(2)}

    count = partial(_count_rows, batch_size, setting.device)
    return SamplingPlan.of_calls(setting.num_draws, batch_size, tables, count)


def _batch_size(setting: Setting) -> int:
    """A multiple of the number of kinds."""
    return max(1, min(_MOST_REQUESTS, setting.num_draws // 32) // len(_KINDS)) * len(_KINDS)


# Steps


def _count_steps(num_cycles: int, device: str, sampler: Any, seed: int) -> Counts:  # Any: a masker of drafts
    """The texts of one batch, by kind."""
    rng = np.random.default_rng(derive_seed("grammar steps", seed))
    kinds = _KINDS * num_cycles
    drafts = _DRAFTS[rng.integers(_DRAFTS.size, size=(len(kinds), _MOST_DRAFTS))]
    requests = tuple(
        GrammarRequest(_matcher(kind.state), tuple(own[: kind.num_drafts].tolist()))
        for kind, own in zip(kinds, drafts, strict=True)
    )
    batch = GrammarBatch(_logits(sum(kind.num_drafts + 1 for kind in kinds), device), requests)
    if hasattr(sampler, "emit"):
        tokens = emit_step(sampler, batch, SeededNoise(derive_seed("emitted", seed)))
    else:
        tokens = _verified(_softmax(mask_step(sampler, batch)), batch, drafts, rng)
    text = _completed(tokens, rng)
    return {_text_table(kind): _text_counts(text[number :: len(_KINDS)], kind) for number, kind in enumerate(_KINDS)}


def _verified(
    probs: NDArray[np.float64],  # [num_rows, vocab_size] float64
    batch: GrammarBatch,
    drafts: NDArray[np.int64],  # [batch_size, max_spec_len] int64
    rng: np.random.Generator,
) -> NDArray[np.int64]:  # [batch_size, max_spec_len + 1] int64
    """One-hot drafts: accepted with the target's probability; else a token from the rest of the target."""
    first, counts = np.array(batch.first_rows), np.array(batch.num_draft_tokens)
    tokens = np.full((len(first), _MOST_DRAFTS + 1), -1)
    goes_on = np.ones(len(first), bool)
    for place in range(_MOST_DRAFTS + 1):
        own = np.flatnonzero(goes_on & (place <= counts))
        rows, has_draft = probs[first[own] + place], place < counts[own]
        draft = np.where(has_draft, drafts[own, min(place, _MOST_DRAFTS - 1)], 0)
        accepted = rng.random(own.size) < np.where(has_draft, rows[np.arange(own.size), draft], 0.0)
        rest = rows.copy()
        rest[np.flatnonzero(has_draft), draft[has_draft]] = 0.0
        tokens[own, place] = np.where(accepted, draft, _draw(rest, rng.random(own.size)))
        goes_on[own] = accepted
    return tokens


def _completed(
    tokens: NDArray[np.int64],  # [batch_size, max_spec_len + 1] int64
    rng: np.random.Generator,
) -> NDArray[np.int64]:  # [batch_size, _LENGTH] int64
    """What is missing, drawn from the exact distribution; once a text is no text of the grammar, -1."""
    text = tokens.copy()
    for number, kind in enumerate(_KINDS):
        own = text[number :: len(_KINDS)]
        state = np.full(len(own), kind.state or 0)
        for place in range(_LENGTH):
            missing, u = own[:, place] < 0, rng.random(len(own))
            rows = np.stack([_restricted(None if kind.state is None else one) for one in range(2)])[state]
            own[missing, place] = _draw(rows[missing], u[missing])
            state = _NEXT[state, np.clip(own[:, place], 0, _VOCAB_SIZE - 1)]
    return text


_CELLS = _IDS.size + 1
"""Each id that the grammar knows, and all others."""


def _digits(tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    found = np.searchsorted(_IDS, tokens).clip(max=_IDS.size - 1)
    return np.where(_IDS[found] == tokens, found, _IDS.size)


def _text_counts(text: NDArray[np.int64], kind: _Kind) -> NDArray[np.int64]:  # [num_cells + 1] int64
    sizes = (_CELLS,) * _LENGTH
    return count_codes(joint_codes(*(_digits(text[:, place]) for place in range(_LENGTH)), sizes=sizes), _CELLS**3)


def _text_probs(kind: _Kind) -> NDArray[np.float64]:  # [num_cells] float64
    """Of every text of three tokens."""
    if kind.state is None:
        one = np.bincount(_digits(np.arange(_VOCAB_SIZE)), _target(), _CELLS)
        return np.asarray(np.einsum("a,b,c->abc", one, one, one).ravel())
    rows = np.stack([np.append(_restricted(state)[_IDS], 0.0) for state in range(2)])
    behind = np.append(_NEXT[:, _IDS], [[0], [0]], axis=1)
    first, second, third = (rows[state] for state in (kind.state, behind[kind.state], behind[behind[kind.state]]))
    return np.asarray((first[:, None, None] * second[:, :, None] * third).ravel())


def _text_table(kind: _Kind) -> str:
    return f"G2 text from {kind.name}"


@Workload.of("grammar: steps", "masked text", 0.05, 0.3)
def masked_steps(setting: Setting) -> SamplingPlan:
    """Texts of three tokens, with drafts of which some are forbidden; a draw is a request."""
    num_cycles = _batch_size(setting) // len(_KINDS)
    names = (*map(str, _IDS), "other")

    def label(cell: int) -> str:
        digits = (int(digit) for digit in np.unravel_index(cell, (_CELLS,) * _LENGTH))
        return f"text {' '.join(names[digit] for digit in digits)}"

    def tables(num_calls: int) -> dict[str, Table]:
        each = num_calls * num_cycles
        return {_text_table(kind): Table(_text_probs(kind), label=label, num_draws=each) for kind in _KINDS}

    count = partial(_count_steps, num_cycles, setting.device)
    return SamplingPlan.of_calls(setting.num_draws, num_cycles * len(_KINDS), tables, count)
