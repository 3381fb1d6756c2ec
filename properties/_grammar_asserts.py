"""What the checks of the grammar contract share: run a case, compare bit by bit, and report a failure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fairdraw._core import checks
from fairdraw._core.array_types import RowsFlags
from fairdraw._core.tensor_types import AnyLogitRows
from fairdraw.contracts import BITS_PER_WORD, BitmaskBatch, GrammarBatch, GrammarMasker, columns_beyond
from fairdraw.contracts._grammar import bits_of, mask_rows, mask_step
from fairdraw.properties._rejection_asserts import broken
from fairdraw.strategies._token_automata import Text
from fairdraw.strategies.grammar import DONE, AutomatonCase, BitmaskCase

check = partial(checks.check, contract="grammar")
differential = partial(checks.differential, contract="grammar")


def allowed_in(case: BitmaskCase, masker: GrammarMasker) -> RowsFlags:
    """What must stay: what is allowed, everything in rows that are not named, and columns beyond if they are kept."""
    allowed = case.allowed()
    if columns_beyond(masker) == "kept":
        allowed[:, case.width * BITS_PER_WORD :] = True
    named = np.zeros(len(allowed), bool)
    named[case.named_rows()] = True
    return np.asarray(allowed | ~named[:, None])


def require_masked(masker: GrammarMasker, case: BitmaskCase) -> None:
    """Run the case once; every bit must be right, in the answer and around the logits."""
    _, effect = first_fault(masker, case)
    if effect:
        broken(effect)


def first_fault(masker: GrammarMasker, case: BitmaskCase) -> tuple[int, str]:
    """Run the case once; return the first wrong row, and what is wrong, which is empty if nothing is."""
    batch = case.batch(masker.device)
    before, around = batch.logits.cpu().clone(memory_format=torch.contiguous_format), _around(batch)
    row, effect = _wrong_bits(masked(masker, batch), before, allowed_in(case, masker))
    written = np.flatnonzero(_around(batch) != around)
    if written.size and not effect:
        effect = f"{written.size} elements before, between or behind the rows of the logits were written"
    return row, effect


def masked(masker: GrammarMasker, batch: BitmaskBatch) -> AnyLogitRows:
    """Return the masked logits; fail if the call wrote into what it is given to read."""
    before = {name: tensor.clone() for name, tensor in batch.tensors().items() if name != "logits"}
    after = mask_rows(masker, batch)
    changed = [name for name, tensor in before.items() if not torch.equal(tensor, batch.tensors()[name])]
    if changed:
        broken(f"{' and '.join(changed)} changed during the call")
    return after


_LARGEST_STORE = 1 << 22


def _around(batch: BitmaskBatch) -> NDArray[np.integer]:  # [num_elements] int32 | int16
    """The bits of the memory in which the logits lie, without their own."""
    base = batch.logits._base
    if base is None or base.numel() > _LARGEST_STORE:
        return np.empty(0, np.int32)
    own = torch.zeros(base.untyped_storage().nbytes() // base.element_size(), dtype=torch.bool)
    own.as_strided(batch.logits.shape, batch.logits.stride(), batch.logits.storage_offset()).fill_(True)
    store = torch.empty(0, dtype=base.dtype, device=base.device).set_(base.untyped_storage())
    return bits_of(store.cpu()[~own])


def _wrong_bits(after: AnyLogitRows, before: AnyLogitRows, allowed: RowsFlags) -> tuple[int, str]:
    """Return the first row without -inf where a token is forbidden, and the same bits where it is allowed; and why."""
    wanted = before.masked_fill(~torch.from_numpy(allowed), -torch.inf)
    wrong = np.argwhere(bits_of(after) != bits_of(wanted))
    if not wrong.size:
        return 0, ""
    row, token_id = map(int, wrong[0])
    word = f"bit {token_id % BITS_PER_WORD} of word {token_id // BITS_PER_WORD}"
    rule = "is allowed" if allowed[row, token_id] else "is forbidden"
    was, found = (float(one[row, token_id]) for one in (before, after))
    return row, (
        f"row {row}: token {token_id} ({word}) {rule}, its logit was {was} and is {found} "
        f"({len(wrong)} wrong in {len(np.unique(wrong[:, 0]))} rows)"
    )


def follow(masker: Any, case: AutomatonCase) -> Iterator[Step]:  # Any: a masker with `mask_drafts`
    """The steps of a case, each masked once."""
    for number, (texts, batch) in enumerate(case.steps(masker.device)):
        before = batch.logits.cpu().clone()
        yield Step(number, texts, batch, before, mask_step(masker, batch))


class Step:
    """One step that was masked, and what is true of it."""

    def __init__(
        self, number: int, texts: Sequence[Text], batch: GrammarBatch, before: AnyLogitRows, after: AnyLogitRows
    ) -> None:
        self.number, self.texts, self.batch, self.before, self.after = number, texts, batch, before, after

    def states(self, request: int) -> list[int]:
        """The state of each of its rows that is read: none without a grammar."""
        states = self.texts[request].states(self.batch.requests[request].draft_token_ids)
        return states[: states.index(DONE)] if DONE in states else states

    def rows(self, request: int) -> range:
        first = self.batch.first_rows[request]
        return range(first, first + self.batch.num_draft_tokens[request] + 1)

    def allowed(self, request: int) -> NDArray[np.bool_]:  # [num_draft_tokens + 1, vocab_size] bool
        """Everything without a grammar, and in rows that nobody reads."""
        allowed = np.ones((len(self.rows(request)), self.batch.vocab_size), bool)
        automaton = self.texts[request].automaton
        for place, state in enumerate(self.states(request)):
            if automaton is not None:
                allowed[place] = np.isin(np.arange(self.batch.vocab_size), automaton.allowed(state))
        return allowed

    def require(self, request: int, places: slice = slice(None)) -> None:
        """The rows of a request, or some of them, are right bit by bit."""
        rows = np.array(self.rows(request))[places]
        where = f"step {self.number}, request {request}, {_words(rows - self.rows(request).start)}: "
        _, effect = _wrong_bits(self.after[rows], self.before[rows], self.allowed(request)[places])
        if effect:
            broken(where + effect)

    def require_read_rows(self) -> None:
        """Every row that is read, of every request."""
        for request, text in enumerate(self.texts):
            read = len(self.rows(request)) if text.automaton is None else len(self.states(request))
            self.require(request, slice(0, read))


def require_left_as_they_were(step: Step) -> None:
    """Every grammar is in the state in which its text is."""
    for request, text in enumerate(step.texts):
        if text.matcher is not None and text.matcher.state != text.state:
            broken(f"step {step.number}: request {request} was in state {text.state}, now {text.matcher.state}")


def _words(places: NDArray[np.integer]) -> str:
    if not places.size:
        return "no row"
    return f"draft row {places[0]}" if places.size == 1 else f"draft rows {places[0]} to {places[-1]}"
