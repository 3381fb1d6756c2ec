"""Wrong scanners of the penalties contract, one fault each.

Each function stands for one step of the correct scanner, with that step's arguments. First comes `right`, the correct
steps, or `answer`, that of the correct step.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fairdraw._core.tensor_types import LogitRows
from fairdraw._mutants._following import following_mutants
from fairdraw._mutants._lifecycle_scanners import Copy, PenaltiesOf, Scanner, against_its_policy, mutant_follower
from fairdraw._mutants._lifecycle_scanners import PenaltiesFollower as Follower
from fairdraw._mutants._mutant import Memory, Mutant, mutants_in, patching, with_step
from fairdraw._oracles.intervals import Intervals
from fairdraw._oracles.penalties import Counts, Logits, PenalisedRow, PenaltyFactors, penalised_intervals
from fairdraw.contracts import AddedRow, Capabilities, LiveBatch, LiveRequest, PenaltyPolicy

Tokens = Sequence[int]

_patched = patching(mutant_follower, Follower)


def right() -> Scanner:
    """The specification behind a copy of every history: every mutant without its fault."""
    return Scanner("oracle", Follower, "penalties")


@_patched("count", "PEN101")
def counts_placeholders(right: Follower, token_ids: Tokens, vocab_size: int) -> Counts:
    """-1 is an index like any other, and hits the last token of the vocabulary."""
    counts = np.zeros(vocab_size, np.int64)
    np.add.at(counts, np.array(token_ids, np.int64), 1)
    return counts


_VLLM, _OUTPUT, _LAST = PenaltyPolicy(), PenaltyPolicy("output"), PenaltyPolicy(repetition="last")
_TEXT, _POWER = PenaltyPolicy(counts_see="text"), PenaltyPolicy(repetition_power="count")
_WINDOW = replace(_TEXT, window=64)
_FAULTS = {
    "PenalisesThePromptAsOutput": (_VLLM, _TEXT),
    "ForgetsThatThePromptCounts": (_TEXT, _VLLM),
    "ForgetsThePrompt": (_VLLM, _OUTPUT),
    "RepeatsThePromptAgainstItsPolicy": (_OUTPUT, _VLLM),
    "RepeatsLast": (_VLLM, _LAST),
    "RepeatsFirstAgainstItsPolicy": (_LAST, _VLLM),
    "ForgetsThatItRepeatsLast": (PenaltyPolicy("output", "last"), _OUTPUT),
    "RepeatsByTheCount": (_VLLM, _POWER),
    "RepeatsOnceAgainstItsPolicy": (_POWER, _VLLM),
}
_WINDOWS = {
    "WindowIsOneTokenShorter": (_WINDOW, replace(_WINDOW, window=63)),
    "WindowIsOneTokenLonger": (_WINDOW, replace(_WINDOW, window=65)),
    "WindowIsNever": (_WINDOW, _TEXT),
}


@_patched("within_window", "PEN101", policy=_TEXT)
def window_of_nothing(right: Follower, row: PenalisedRow) -> tuple[Tokens, Tokens]:
    """The declared window is the whole text; the -1 that stands for it becomes 0, and nothing is penalised."""
    return (), ()


@_patched("within_window", "PEN110", policy=_WINDOW)
def windows_of_prompt_and_output(right: Follower, row: PenalisedRow) -> tuple[Tokens, Tokens]:
    """The last 64 tokens of the prompt and the last 64 of the output, instead of the last 64 of both."""
    alone = PenalisedRow(row.prompt_token_ids, (), row.factors)
    return right.within_window(alone)[0], right.within_window(row)[1]


@_patched("within_window", "PEN101", policy=_OUTPUT)
def takes_the_last_prompt_token_for_output(right: Follower, row: PenalisedRow) -> tuple[Tokens, Tokens]:
    """The last token of the prompt comes like those that follow, as the input of the first step."""
    return row.prompt_token_ids[:-1], [*row.prompt_token_ids[-1:], *row.output_token_ids]


@_patched("within_window", "PEN101", policy=_TEXT)
def counts_a_prompt_token_once(right: Follower, row: PenalisedRow) -> tuple[Tokens, Tokens]:
    """The prompt is a set of tokens, and each counts once."""
    return list(dict.fromkeys(row.prompt_token_ids)), row.output_token_ids


@_patched("scale", "PEN101", policy=_POWER)
def raises_to_one_power_more(right: Follower, repetition: Any, repeats: Counts) -> Any:  # Any: numbers of NumPy
    """The penalty itself is what a token has before it occurs."""
    return right.scale(repetition, repeats + 1)


class CountsTheLastToken(Follower):
    """Reads an output when its request enters, and from then on one token at each step, whatever has happened."""

    def advance(self, copy: Copy) -> None:
        live = copy.entered.output_token_ids
        copy.ids += live[-1:] if copy.edges else live
        copy.edges.append(len(copy.ids))


ONE_TOKEN = Capabilities.of({"several-tokens": "it is called once per token"})


@mutant_follower("PEN101", capabilities=ONE_TOKEN)
class ForgetsTheTextOfAReturningRequest(CountsTheLastToken):
    """A request that enters with an output starts without counts: only tokens that come one by one are seen."""

    def enter(self, added: AddedRow) -> Copy:
        return Copy(added, edges=[0])


@mutant_follower("PEN101", capabilities=ONE_TOKEN)
class MissesTheTokenOfAStepWithANewRow(CountsTheLastToken):
    """In a step in which a request enters, the tokens of the others are not counted."""

    def advance(self, copy: Copy) -> None:
        if not copy.edges or not self.has_new:
            super().advance(copy)

    def follow(self, batch: LiveBatch) -> None:
        self.has_new = any(not copy.edges for copy in self.rows.values())
        super().follow(batch)


@_patched("count", "PEN101")
def frequency_ignores_multiplicity(right: Follower, token_ids: Tokens, vocab_size: int) -> Counts:
    """A token that was emitted twice is penalised once: a set where a count is needed."""
    return np.minimum(right.count(token_ids, vocab_size), 1)


@_patched("repeated", "PEN101")
def repeats_on_the_wrong_sign(right: Follower, logits: Logits, repetition: np.float32) -> Logits:
    """Negative logits are divided, positive ones multiplied: repetition is rewarded."""
    return np.where(logits < 0, logits * (np.float32(1) / repetition), logits * repetition)


@_patched("draft_rows", "PEN101")
def draft_rows_share_one_prefix(right: Follower, row: PenalisedRow, drafts: Tokens) -> list[PenalisedRow]:
    """Every draft row sees the committed output and no draft before it."""
    return [row for _ in drafts]


@_patched("draft_rows", "PEN101")
def draft_rows_see_their_own_draft(right: Follower, row: PenalisedRow, drafts: Tokens) -> list[PenalisedRow]:
    """The token that a row verifies is penalised as if it had been emitted."""
    return [right.bonus_row(row, drafts[: position + 1]) for position in range(len(drafts))]


@mutant_follower("PEN101")
class BonusRowSeesNoDrafts(Follower):
    """The bonus token is penalised for the committed output alone."""

    def bonus_row(self, row: PenalisedRow, drafts: Tokens) -> PenalisedRow:
        return row

    def draft_rows(self, row: PenalisedRow, drafts: Tokens) -> list[PenalisedRow]:
        return [Follower.bonus_row(self, row, drafts[:n]) for n in range(len(drafts))]


@_patched("seen", "PEN101")
def takes_the_factors_of_the_first_row(
    answer: PenalisedRow, copy: Copy, request: LiveRequest, *, own: Follower
) -> PenalisedRow:
    """One set of penalties for the batch."""
    return replace(answer, factors=PenaltyFactors(*own.rows[0].entered.params.factors))


class _OffInOneToken(Follower):
    """Correct but for one token of a penalised row, which `moved` changes."""

    def penalise(self, logits: Logits, row: PenalisedRow) -> Logits:
        penalised = super().penalise(logits, row)
        is_seen = self.count([*row.prompt_token_ids, *row.output_token_ids], len(logits)) > 0
        may_be = penalised_intervals(Intervals.exactly(logits), row)
        chosen = np.flatnonzero(self.concerned(is_seen, may_be) & np.isfinite(penalised) & (penalised != 0))
        if len(chosen):
            penalised[chosen[-1]] = self.moved(np.float32(penalised[chosen[-1]]), float(may_be.high[chosen[-1]]))
        return penalised

    def concerned(self, is_seen: NDArray[np.bool_], may_be: Intervals) -> NDArray[np.bool_]:  # [vocab_size] bool
        return is_seen & (may_be.width > 0)

    def moved(self, logit: np.float32, highest: float) -> np.float32:
        raise NotImplementedError


@mutant_follower("PEN101")
class IsFourUlpsBeyondRounding(_OffInOneToken):
    """One token, four units in the last place above what float32 arithmetic in any order could make of it."""

    def moved(self, logit: np.float32, highest: float) -> np.float32:
        beyond = np.float32(highest)
        for _ in range(4):
            beyond = np.nextafter(beyond, np.float32(np.inf))
        return beyond


@mutant_follower("PEN101")
class MovesAnUnseenTokenByOneUlp(_OffInOneToken):
    """A token that was never emitted is not penalised, so nothing rounds it."""

    def concerned(self, is_seen: NDArray[np.bool_], may_be: Intervals) -> NDArray[np.bool_]:  # [vocab_size] bool
        return ~is_seen

    def moved(self, logit: np.float32, highest: float) -> np.float32:
        return np.float32(np.nextafter(logit, np.float32(np.inf)))


@mutant_follower("PEN101")
class FlipsASign(_OffInOneToken):
    """The sign of a zero does not matter; that of another number does."""

    def moved(self, logit: np.float32, highest: float) -> np.float32:
        return -logit


@_patched("penalise", "PEN101")
def penalises_in_bfloat16(right: Follower, logits: Logits, row: PenalisedRow) -> Logits:
    """Penalised logits are kept with 8 bits."""
    penalised = right.penalise(logits, row)
    is_seen = right.count([*row.prompt_token_ids, *row.output_token_ids], len(logits)) > 0
    rounded = torch.from_numpy(penalised).to(torch.bfloat16).float().numpy()
    return np.where(is_seen, rounded, penalised)


@_patched("count", "PEN110")
def counts_saturate(right: Follower, token_ids: Tokens, vocab_size: int) -> Counts:
    """Counts have 8 bits, and stay at 255."""
    return np.minimum(right.count(token_ids, vocab_size), 255)


@_patched("count", "PEN110")
def counts_are_half_precision(right: Follower, token_ids: Tokens, vocab_size: int) -> Counts:
    """Beyond 2048 not every count is a number of 16 bits."""
    return right.count(token_ids, vocab_size).astype(np.float16).astype(np.int64)


@_patched("seen", "PEN110")
def reads_a_window_of_the_prompt(answer: PenalisedRow, copy: Copy, request: LiveRequest) -> PenalisedRow:
    """The first 1024 tokens of a prompt are known, and no others."""
    return PenalisedRow(answer.prompt_token_ids[:1024], answer.output_token_ids, answer.factors)


@_patched("count", "PEN110")
def ids_have16_bits(right: Follower, token_ids: Tokens, vocab_size: int) -> Counts:
    """Ids beyond 65535 hit the token with the same lower bits."""
    return right.count([i & 0xFFFF if i >= 0 else i for i in token_ids], vocab_size)


@_patched("bonus_row", "PEN110")
def sees_eight_drafts(right: Follower, row: PenalisedRow, drafts: Tokens) -> PenalisedRow:
    """Drafts after the eighth are not seen."""
    return right.bonus_row(row, drafts[:8])


@_patched("bonus_row", "PEN110")
def sees_seventy_drafts(right: Follower, row: PenalisedRow, drafts: Tokens) -> PenalisedRow:
    """Drafts after the seventieth are not seen."""
    return right.bonus_row(row, drafts[:70])


@_patched("count", "PEN110")
def counts_have16_bits(right: Follower, token_ids: Tokens, vocab_size: int) -> Counts:
    """The count of a token that was repeated 32,768 times is negative."""
    return right.count(token_ids, vocab_size).astype(np.int16).astype(np.int64)


def _in_session(step: str, *caught_by: str) -> Callable[[Callable[..., Any]], Mutant]:  # Any: that step's arguments
    """Return a decorator: it makes a mutant of a follower whose session has one step replaced."""

    def make(body: Callable[..., Any]) -> Mutant:  # Any: as above
        fields = {"opens": with_step(PenaltiesOf, step, body), "__doc__": body.__doc__}
        return mutant_follower(*caught_by)(type(body.__name__, (Follower,), fields))

    return make


@_in_session("penalised", "PEN110")
def has_room_for_some_draft_rows(right: PenaltiesOf, logits: LogitRows, rows: list[PenalisedRow]) -> LogitRows:
    """Draft rows after the 2,048th of a step are not penalised."""
    return right.penalised(logits, rows[:2048])


@_patched("seen", "PEN110")
def small_penalties_are_off(right: Follower, copy: Copy, request: LiveRequest) -> PenalisedRow:
    """A penalty below 0.005 is taken for none."""
    row, factors = right.seen(copy, request), copy.entered.params.factors
    presence, frequency = (0.0 if abs(factor) < 0.005 else factor for factor in factors[:2])
    return PenalisedRow(row.prompt_token_ids, row.output_token_ids, PenaltyFactors(presence, frequency, factors[2]))


@_patched("seen", "PEN110")
def rewards_cancel_each_other(right: Follower, copy: Copy, request: LiveRequest) -> PenalisedRow:
    """A negative presence penalty beside a negative frequency penalty is taken for a positive one."""
    row, (presence, frequency, repetition) = right.seen(copy, request), copy.entered.params.factors
    presence = abs(presence) if frequency < 0 else presence
    return PenalisedRow(row.prompt_token_ids, row.output_token_ids, PenaltyFactors(presence, frequency, repetition))


@_patched("seen", "PEN101")
def factors_are_half_precision(answer: PenalisedRow, copy: Copy, request: LiveRequest) -> PenalisedRow:
    """Penalties are kept with 11 bits: 0.1 is not 0.1."""
    factors = (float(np.float16(factor)) for factor in copy.entered.params.factors)
    return PenalisedRow(answer.prompt_token_ids, answer.output_token_ids, PenaltyFactors(*factors))


@_in_session("penalised", "PEN101")
def answers_in_one_buffer(right: PenaltiesOf, logits: LogitRows, rows: list[PenalisedRow], kept: Memory) -> LogitRows:
    """The answers of both calls of a step lie in one buffer, so that the second overwrites the first."""
    if len(kept.get("buffer", ())) < len(logits):
        kept["buffer"] = torch.empty(max(64, len(logits)), logits.shape[1])
    buffer: LogitRows = kept["buffer"][: len(logits)]
    return buffer.copy_(right.penalised(logits, rows))


class _SharedBuffers(PenaltiesOf):
    buffers: ClassVar[dict[tuple[int, ...], LogitRows]] = {}

    def penalised(self, logits: LogitRows, rows: list[PenalisedRow]) -> LogitRows:
        of_drafts = self.is_bonus = not getattr(self, "is_bonus", False)
        buffer = self.buffers.setdefault((*logits.shape, of_drafts), torch.empty_like(logits))
        return buffer.copy_(super().penalised(logits, rows))

    def penalise(self, logits: LogitRows, batch: LiveBatch) -> LogitRows:
        self.is_bonus = False
        return super().penalise(logits, batch)


@mutant_follower("PEN112")
class SharesABufferBetweenSessions(Follower):
    """Each of the two calls has a buffer, but all sessions have the same two."""

    opens = _SharedBuffers


@_in_session("penalise", "PEN101")
def answers_again_if_nothing_changed(
    right: PenaltiesOf, logits: LogitRows, batch: LiveBatch, *, kept: Memory
) -> LogitRows:
    """If no text has changed since the last step, its answer is returned again, though the logits are other ones."""
    asked = [(r.req_id, r.params, [*r.output_token_ids], [*r.draft_token_ids]) for r in batch.requests]
    answer = right.penalise(logits, batch).clone()
    before, known = kept.get("last", (None, answer))
    last: LogitRows = known if asked == before else answer
    kept["last"] = asked, last
    return last.clone()


MUTANTS: tuple[Mutant, ...] = (
    *following_mutants(Follower, "PEN"),
    *against_its_policy(Follower, "PEN101", _FAULTS),
    *against_its_policy(Follower, "PEN110", _WINDOWS),
    *mutants_in(vars()),
)
