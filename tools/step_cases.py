"""Batches of a whole step whose requests have all kinds of parameters and rows, and what each row is in NumPy.

For tests, and for programs that ask the compiled kernels about many more of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, is_dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairdraw._oracles.penalties import PenalisedRow, PenaltiesOracle, PenaltyFactors
from fairdraw.sampler_impl.step import (
    BadWords,
    Capacity,
    Drafts,
    Parameters,
    Penalties,
    StepInputs,
    StepPlan,
    TokenEdits,
)

if TYPE_CHECKING:
    from collections.abc import Callable

Row = NDArray[np.float32]
KINDS = ("normal", "ties", "half", "flat", "one", "denormal", "mostly-excluded", "excluded", "nan", "inf", "wide")
TEMPERATURES = (0.0, 0.6, 1.0, 1.0, 0.7, 1e-5, 3.0)
TOP_K = (-1, 0, 1, 2, 5, 20)
TOP_P = (1.0, math.nextafter(1.0, 0.0), 0.95, 0.5, 1e-6)
MIN_P = (0.0, 0.0, 0.05, 0.5, 1.0)


@dataclass(frozen=True)
class Case:
    """A plan's capacity, and inputs on the CPU."""

    capacity: Capacity
    inputs: StepInputs
    num_drafts: list[int]

    def on(self, device: torch.device) -> StepInputs:
        inputs: StepInputs = moved(self.inputs, device)
        return inputs

    def rows(self) -> list[tuple[int, int]]:
        """Request and place of each row that is not padding."""
        return [(request, place) for request, count in enumerate(self.num_drafts) for place in range(count + 1)]

    def select(self, requests: list[int]) -> Case:
        """These requests in this order; their slots stay where they are."""
        first = [int(i) for i in self.inputs.cu_num_rows]
        rows = [first[i] + place for i in requests for place in range(self.num_drafts[i] + 1)]
        counts = [self.num_drafts[i] for i in requests]
        slots = self.inputs.slots if self.inputs.slots is not None else torch.arange(len(self.num_drafts)).int()

        def at(tensor: Tensor | None, places: list[int]) -> Any:  # Any: as tensor
            return None if tensor is None else tensor[places]

        edits = self.inputs.edits
        inputs = replace(
            self.inputs,
            logits=self.inputs.logits[rows],
            positions=self.inputs.positions[requests],
            slots=slots[requests],
            cu_num_rows=cumulative(counts),
            draft_token_ids=at(self.inputs.draft_token_ids, rows),
            grammar_mask=at(self.inputs.grammar_mask, rows),
            edits=edits and replace(edits, forced_token_ids=at(edits.forced_token_ids, rows)),
        )
        return Case(self.capacity, inputs, counts)


Path = tuple[str, ...]
"""Names of fields, from a structure to what stands in it."""


def mapped(value: Any, change: Callable[[Path, Any], Any], path: Path = ()) -> Any:  # Any: a tensor, or what holds some
    """Return a copy of the structure in which `change` has replaced some members, given the path to each."""
    new = change(path, value)
    if new is not value:
        return new
    if isinstance(value, tuple):
        parts = [mapped(one, change, (*path, str(place))) for place, one in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, dict):
        return {name: mapped(one, change, (*path, name)) for name, one in value.items()}
    if isinstance(value, SimpleNamespace):
        return SimpleNamespace(**mapped(vars(value), change, path))
    if is_dataclass(value) and not isinstance(value, type):
        own = {field.name: getattr(value, field.name) for field in fields(value)}
        return replace(value, **{name: mapped(one, change, (*path, name)) for name, one in own.items()})
    return value


def moved(value: Any, device: torch.device) -> Any:  # Any: as above
    """Return a copy of the structure whose tensors are on the device."""
    return mapped(value, lambda path, one: one.to(device) if isinstance(one, Tensor) else one)


STALE = 0x7FABCDEF_7FABCDEF
"""What no scan has written."""


def shaped(plan: StepPlan, shape: Any) -> StepPlan:  # Any: `launch.Shape`, which imports Triton
    """Return a plan whose scan has this shape, which large and small batches have."""
    plan._run._shape_of = lambda _: shape  # type: ignore[union-attr, method-assign]  # of the Triton backend
    return plan


def owned_by(plan: StepPlan) -> Any:  # Any: as above
    """Return the memory through which kernels of a plan pass on what they found."""
    return plan._run.owned.memory  # type: ignore[union-attr]  # of the Triton backend


def cumulative(num_drafts: list[int]) -> Tensor:  # [batch_size + 1] int32
    return torch.tensor([0, *(count + 1 for count in num_drafts)]).cumsum(0).int()


def make_case(
    seed: int,
    num_drafts: list[int],
    vocab_size: int,
    *,
    drafts: Drafts = Drafts.ONE_HOT,
    edits: bool = False,
    filters: bool = True,
    kinds: tuple[str, ...] = KINDS,
    dtype: torch.dtype = torch.float32,
    draft_dtype: torch.dtype = torch.float32,
    logsumexp: bool = False,
    draft_temperature: bool = False,
) -> Case:
    """Parameters are in slots of another order, with slots between that nobody has; two rows behind are padding.

    Draft logits are of `draft_dtype`, and come with their logsumexp or with temperatures if it says so.
    """
    rng = np.random.default_rng(seed)
    batch_size, most = len(num_drafts), max(num_drafts)
    drafts = drafts if most else Drafts.NONE
    capacity = Capacity(
        batch_size + 2, most, vocab_size, dtype, drafts, filters, edits, edits, edits=64 if edits else 0, logprobs=True
    )
    num_slots, num_rows = batch_size + 3, sum(num_drafts) + batch_size + 2
    logits = np.stack([row_of(rng, str(rng.choice(kinds)), vocab_size) for _ in range(num_rows)])
    probs = rng.dirichlet(np.full(vocab_size, 0.3), (num_slots, max(most, 1)))

    def choose(values: tuple[float, ...], kind: type) -> Tensor:  # [num_slots] any
        return torch.tensor(rng.choice(np.array(values), num_slots).astype(kind))

    top_k = (*TOP_K, vocab_size - 1, vocab_size, vocab_size + 1)
    choices = ((top_k, np.int32), (TOP_P, np.float32), (MIN_P, np.float32))
    # Two of three drafts are what their row is likely to give.
    drafted = np.where(rng.random(num_rows) < 0.67, logits.argmax(1), rng.integers(-1, vocab_size, num_rows))
    masks = rng.integers(-(2**31), 2**31, (num_rows, -(-vocab_size // 32)))
    dense = draft_logits_of(probs).to(draft_dtype) if drafts is Drafts.LOGITS else None
    heat = torch.linspace(0.5, 2, num_slots) if dense is not None and draft_temperature else None
    quotients = None if dense is None else dense.float() / (1 if heat is None else heat[:, None, None])
    inputs = StepInputs(
        logits=torch.tensor(logits).to(dtype),
        parameters=Parameters(
            choose(TEMPERATURES, np.float32),
            *(choose(values, kind) if filters else None for values, kind in choices),
        ),
        seeds=torch.tensor(rng.integers(-(2**63), 2**63 - 1, num_slots)),
        positions=torch.tensor(rng.integers(8, 20, batch_size)),
        cu_num_rows=cumulative(num_drafts),
        slots=torch.tensor(rng.permutation(num_slots)[:batch_size]).int(),
        draft_token_ids=torch.tensor(drafted).int() if most else None,
        draft_probs=torch.tensor(probs).float() if drafts is Drafts.PROBS else None,
        draft_logits=dense,
        draft_temperature=heat,
        draft_logsumexp=quotients.logsumexp(-1) if quotients is not None and logsumexp else None,
        penalties=_penalties(rng, num_slots, vocab_size) if edits else None,
        edits=_edits(rng, num_slots, num_rows, vocab_size) if edits else None,
        grammar_mask=torch.tensor(masks).int() if edits else None,
    )
    return Case(capacity, inputs, num_drafts)


def draft_logits_of(
    probs: NDArray[np.float64],  # [num_slots, max_spec_len, vocab_size] float64
) -> Tensor:  # [num_slots, max_spec_len, vocab_size] float64
    """Logits whose logsumexp differs from row to row; unlikely tokens are excluded, as a drafter's filters do."""
    logits = torch.tensor(probs).log()
    shifts = torch.linspace(-9, 20, logits[..., 0].numel(), dtype=torch.float64).view(logits.shape[:2])
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) - 7, -torch.inf) + shifts[..., None]


def row_of(rng: np.random.Generator, kind: str, size: int) -> Row:  # [vocab_size] float32
    row = (rng.normal(size=size) * 3).astype(np.float32)
    if kind == "ties":
        row = np.round(row)
    if kind == "half":  # what a model gives: few distinct numbers
        row = torch.tensor(row).bfloat16().float().numpy()
    if kind == "flat":
        row[:] = 1.5
    if kind == "one":
        row[rng.integers(size)] = 500
    if kind == "denormal":
        row *= np.float32(1e-40)
    if kind == "mostly-excluded":
        row[rng.random(size) < 0.9] = -np.inf
    if kind == "excluded":
        row[:] = -np.inf
    if kind in ("nan", "inf"):
        row[rng.integers(size)] = np.nan if kind == "nan" else np.inf
    if kind == "wide":
        row *= np.float32(30)
    return row


def _penalties(rng: np.random.Generator, num_slots: int, vocab_size: int) -> Penalties:
    counts = rng.integers(0, 4, (num_slots, vocab_size)) * (rng.random((num_slots, vocab_size)) < 0.3)
    words = rng.integers(-(2**31), 2**31, (num_slots, -(-vocab_size // 32)))
    presence, frequency = (rng.choice([-0.5, 0.0, 0.0, 1.5], num_slots).astype(np.float32) for _ in range(2))
    repetition = rng.choice([0.8, 1.0, 1.0, 1.3], num_slots).astype(np.float32)
    given = (torch.tensor(values) for values in (presence, frequency, repetition))
    return Penalties(*given, torch.tensor(counts).int(), torch.tensor(words).int())


def _edits(rng: np.random.Generator, num_slots: int, num_rows: int, vocab_size: int) -> TokenEdits:
    def ids(width: int) -> Tensor:  # [num_slots, width] int32
        return torch.tensor(np.stack([rng.permutation(vocab_size)[:width] for _ in range(num_slots)])).int()

    def some(most: int) -> Tensor:  # [num_slots] int32
        return torch.tensor(rng.choice([0, 0, most // 2, most], num_slots)).int()

    forced = rng.integers(0, vocab_size, num_rows)
    forced[rng.random(num_rows) < 0.8] = -1
    # Texts and bad words of few ids, so that words are often complete; words of 1, 2 and 3 tokens, and a slot's prompt.
    few = rng.integers(0, 3, (num_slots, 24))
    words = BadWords(
        counts=some(4),
        offsets=torch.tensor([0, 1, 3, 6, 8]).int().expand(num_slots, -1).contiguous(),
        word_ids=torch.tensor(rng.integers(0, 3, (num_slots, 8))).int(),
        text=torch.tensor(few).int(),
        starts=torch.tensor(rng.integers(6, 8, num_slots)).int(),
    )
    bias = torch.tensor(rng.normal(size=(num_slots, 6)).astype(np.float32) * 4)
    min_lengths = torch.tensor(rng.integers(8, 22, num_slots)).int()
    return TokenEdits(
        some(6), ids(6), bias, some(10), ids(10), some(5), ids(5), min_lengths, words, torch.tensor(forced).int()
    )


# What a row is, written as a person would check it: one row, one id, in float32.


def edited_row(case: Case, request: int, place: int) -> Row:  # [vocab_size] float32
    inputs, slot = case.inputs, _slot(case, request)
    row_index = int(inputs.cu_num_rows[request]) + place
    row = inputs.logits[row_index].float().numpy().copy()
    drafts = [] if inputs.draft_token_ids is None else inputs.draft_token_ids[row_index - place : row_index].tolist()
    position = int(inputs.positions[request])
    if inputs.grammar_mask is not None:
        words = inputs.grammar_mask[row_index].tolist()
        row[[i for i in range(len(row)) if not words[i // 32] >> (i % 32) & 1]] = -np.inf
    edits = inputs.edits
    if edits is not None:
        _apply_lists(row, edits, slot, position + place)
    if inputs.penalties is not None:
        _penalise(row, inputs.penalties, slot, drafts)
    if edits is not None and edits.bad_words is not None:
        row[_bad_ends(edits.bad_words, slot, position, drafts)] = -np.inf
    if edits is not None and edits.forced_token_ids is not None and edits.forced_token_ids[row_index] >= 0:
        row[:] = -np.inf
        row[int(edits.forced_token_ids[row_index])] = 0
    return row


def _slot(case: Case, request: int) -> int:
    return request if case.inputs.slots is None else int(case.inputs.slots[request])


def _apply_lists(row: Row, edits: Any, slot: int, position: int) -> None:  # Any: TokenEdits whose groups are given
    allowed = edits.allowed_token_ids[slot, : edits.allowed_counts[slot]].tolist()
    if allowed:
        row[[i for i in range(len(row)) if i not in allowed]] = -np.inf
    for k in range(int(edits.bias_counts[slot])):
        row[int(edits.bias_token_ids[slot, k])] += np.float32(edits.bias_values[slot, k])
    if position < edits.min_lengths[slot]:
        row[edits.stop_token_ids[slot, : edits.stop_counts[slot]].tolist()] = -np.inf


def _penalise(row: Row, penalties: Penalties, slot: int, drafts: list[int]) -> None:
    presence, frequency, repetition = (
        float(getattr(penalties, name)[slot]) for name in ("presence", "frequency", "repetition")
    )
    output = [token for token, count in enumerate(penalties.output_counts[slot].tolist()) for _ in range(count)]
    prompt = [i for i in range(len(row)) if int(penalties.prompt_mask[slot, i // 32]) >> (i % 32) & 1]
    seen = PenalisedRow(prompt, [*output, *drafts], PenaltyFactors(presence, frequency, repetition))
    row[:] = PenaltiesOracle().penalise(row, seen)


def _bad_ends(words: BadWords, slot: int, position: int, drafts: list[int]) -> list[int]:
    output = [*words.text[slot, int(words.starts[slot]) : position].tolist(), *drafts]
    ends = []
    for k in range(int(words.counts[slot])):
        begin, end = words.offsets[slot, k : k + 2].tolist()
        word = words.word_ids[slot, begin:end].tolist()
        if len(word) - 1 <= len(output) and output[len(output) - len(word) + 1 :] == word[:-1]:
            ends.append(word[-1])
    return ends


def processed_row(case: Case, request: int, place: int) -> Row:  # [vocab_size] float32
    """Edited over temperature, -inf outside of the kept set."""
    parameters, slot = case.inputs.parameters, _slot(case, request)
    row = edited_row(case, request, place)
    temperature = np.float32(parameters.temperature[slot])
    if temperature == 0:
        return row
    with np.errstate(over="ignore"):
        scaled: Row = row / temperature
    if not np.isfinite(scaled.max()):
        return scaled
    if parameters.min_p is not None and parameters.min_p[slot] > 0:
        scaled[scaled < scaled.max() + parameters.min_p[slot].log().numpy()] = -np.inf
    if parameters.top_k is not None and 0 < parameters.top_k[slot] < len(row):
        scaled[scaled < np.sort(scaled)[-int(parameters.top_k[slot])]] = -np.inf
    if parameters.top_p is not None and parameters.top_p[slot] < 1:
        scaled[scaled < _least_of_top_p(scaled, float(parameters.top_p[slot]))] = -np.inf
    return scaled


def _least_of_top_p(scaled: Row, top_p: float) -> np.float32:
    """Level by level, each level's tokens together."""
    levels, counts = np.unique(scaled[scaled > -np.inf], return_counts=True)
    masses = counts * np.exp(levels.astype(np.float64) - float(levels[-1]))
    mass, total = 0.0, float(masses.sum())
    for level, own in zip(levels[::-1], masses[::-1], strict=True):
        mass += own
        if mass >= top_p * total:
            return np.float32(level)
    return np.float32(levels[0])
