"""The logits-plan contract, executable: what each row sees, what each processor does to it, and in which order.

For each row a processor returns an *edit*, or `None` if it has no work there. If no processor has work, the same logits
are returned. Otherwise they are copied once, in float32, and the edits follow in order.

Numbers are NumPy float32. Only softmax, running sums and the order of ties are torch's: they depend on the order of
addition and on the sort, and the contract follows vLLM's torch code.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from fairdraw._core.array_types import Row32
from fairdraw._core.tensor_types import LogitRows
from fairdraw._oracles.penalties import PenalisedRow, PenaltiesOracle, PenaltyFactors, penalties_oracle
from fairdraw._oracles.thinking_budget import ThinkingBudgetOracle
from fairdraw.contracts import LogitsPolicy, Rounding, RowOfRequest, ThinkingPolicy

if TYPE_CHECKING:
    from fairdraw.contracts import CustomLogitsProcessor, LogitsBatch, LogitsParams, LogitsRequest, PlanSetup

Ids = tuple[int, ...]
Logits = NDArray[np.float32]
Edit = Callable[[Logits], None]
"""Changes one row of logits, `[vocab_size] float32`, in place."""

EXCLUDED = np.float32(-np.inf)
FORCED = np.float32(1e9)
GREEDY_BELOW = 1e-5


@dataclass(frozen=True)
class Row:
    """One row of logits and everything that its processing depends on."""

    index: int
    request: int
    position: int
    """0 for a request's first row, its number of drafts for the bonus row."""
    seen: list[int]
    """Output and drafts before this row."""
    source: LogitsRequest
    vocab_size: int
    batch_uses_top_k: bool
    batch_uses_top_p: bool
    setup: PlanSetup

    @property
    def params(self) -> LogitsParams:
        return self.source.params

    @property
    def is_greedy(self) -> bool:
        return self.params.temperature < GREEDY_BELOW


class LogitsPlanOracle:
    """The specification as small overridable steps; a mutant overrides exactly one of them."""

    name = "oracle"
    arithmetic: PenaltiesOracle = PenaltiesOracle()
    policy = LogitsPolicy()  # where bad words begin, and how budgets are kept; `arithmetic` has that of the penalties

    order: tuple[str, ...] = (
        "allowed_ids",
        "bad_words",
        "min_tokens",
        "logit_bias",
        "custom",
        "penalties",
        "thinking_budget",
        "temperature",
        "min_p",
        "custom_for_random",
        "top_k_top_p",
    )

    def process(self, batch: LogitsBatch, setup: PlanSetup) -> LogitRows:
        rows = self.rows(batch, setup)
        edits = {name: self.edits(name, rows) for name in self.order}
        customs = {name: self.customs(name, rows, setup) for name in self.order}
        if not any(edits.values()) and not any(customs.values()):
            return self.untouched(batch.logits)
        processed = self.copied(batch.logits)
        numbers = processed.numpy()
        for name in self.order:
            for index, edit in edits[name]:
                edit(numbers[index])
            for processor, seen in customs[name]:
                numbers[:] = processor.apply(processed, seen).numpy()
        return processed

    def untouched(self, logits: torch.Tensor) -> torch.Tensor:  # [num_rows, vocab_size] float32, both
        """The very same tensor."""
        return logits

    def copied(self, logits: torch.Tensor) -> torch.Tensor:  # [num_rows, vocab_size] float32, both
        """The one copy."""
        return logits.to("cpu", torch.float32, copy=True, memory_format=torch.contiguous_format)

    # What each row sees.

    def rows(self, batch: LogitsBatch, setup: PlanSetup) -> list[Row]:
        vocab_size = batch.logits.shape[1]
        random = [r.params for r in batch.requests if r.params.temperature >= GREEDY_BELOW]
        uses_top_k = any(0 < params.top_k < vocab_size for params in random)
        uses_top_p = any(params.top_p < 1 for params in random)
        return [
            Row(
                index=first + position,
                request=request,
                position=position,
                seen=self.seen(source, position),
                source=source,
                vocab_size=vocab_size,
                batch_uses_top_k=uses_top_k,
                batch_uses_top_p=uses_top_p,
                setup=setup,
            )
            for request, (source, first) in enumerate(zip(batch.requests, batch.first_rows, strict=True))
            for position in range(len(source.draft_token_ids) + 1)
        ]

    def seen(self, source: LogitsRequest, position: int) -> list[int]:
        """Output and the drafts before this position; the bonus position comes after all drafts."""
        return [*source.output_token_ids, *source.draft_token_ids[:position]]

    # Who has work where.

    def edits(self, name: str, rows: Sequence[Row]) -> list[tuple[int, Edit]]:
        """Row indices and edits of one processor."""
        method: Callable[[Row], Edit | None] = getattr(self, name, lambda row: None)
        answers = [(row.index, method(row)) for row in rows]
        return [(index, edit) for index, edit in answers if edit is not None]

    def customs(
        self, name: str, rows: Sequence[Row], setup: PlanSetup
    ) -> list[tuple[CustomLogitsProcessor, list[RowOfRequest]]]:
        """Custom processors that run at this place, each with the rows that use it."""
        place = {"custom": False, "custom_for_random": True}.get(name)
        if place is None or (place and all(row.is_greedy for row in rows)):
            return []
        running = [processor for processor in setup.custom_processors if processor.is_argmax_invariant() == place]
        wanted = [
            (p, [RowOfRequest(row.index, row.request, row.seen) for row in rows if p.wants(row.params)])
            for p in running
        ]
        return [(processor, seen) for processor, seen in wanted if seen]

    # Processors that can change a greedy token.

    def in_vocabulary(self, token_ids: Collection[int], row: Row) -> list[int]:
        """The ids that the vocabulary has; others have no effect."""
        return [token_id for token_id in token_ids if token_id < row.vocab_size]

    def excluding(self, token_ids: Collection[int], row: Row) -> Edit | None:
        """These ids become impossible, as far as there are any."""
        known = self.in_vocabulary(token_ids, row)
        return exclude(known) if known else None

    def allowed_ids(self, row: Row) -> Edit | None:
        allowed = row.params.allowed_token_ids
        return None if allowed is None else exclude(set(range(row.vocab_size)) - set(self.in_vocabulary(allowed, row)))

    def bad_words(self, row: Row) -> Edit | None:
        """The last id of a word is excluded if the text ends with the ids before it."""
        words = row.params.bad_words_token_ids or []
        text = self.text_for_bad_words(row)
        completed = [word[-1] for word in words if word[:-1] == text[len(text) - len(word) + 1 :]]
        return self.excluding(completed, row)

    def text_for_bad_words(self, row: Row) -> list[int]:
        return [*row.source.prompt_token_ids, *row.seen] if self.policy.bad_words_see == "text" else row.seen

    def min_tokens(self, row: Row) -> Edit | None:
        stop_token_ids = row.params.all_stop_token_ids
        is_short = self.length_for_min_tokens(row) < row.params.min_tokens
        return self.excluding(stop_token_ids, row) if is_short else None

    def length_for_min_tokens(self, row: Row) -> int:
        return len(row.seen)

    def logit_bias(self, row: Row) -> Edit | None:
        given = row.params.logit_bias or {}
        biases = [(known, bias) for token_id, bias in given.items() for known in self.in_vocabulary([token_id], row)]

        def add(logits: Logits) -> None:
            for token_id, bias in biases:
                logits[token_id] += np.float32(bias)

        return add if biases else None

    def penalties(self, row: Row) -> Edit | None:
        params = row.params
        if not params.penalised:
            return None
        text = self.text_for_penalties(row)
        penalised = PenalisedRow(row.source.prompt_token_ids, text, PenaltyFactors(*params.factors))

        def penalise(logits: Logits) -> None:
            logits[:] = self.arithmetic.penalise(logits, penalised)

        return penalise

    def text_for_penalties(self, row: Row) -> list[int]:
        return row.seen

    def thinking_budget(self, row: Row) -> Edit | None:
        """The forced token's logit becomes greater than any other can be."""
        source, budget = row.source, row.params.thinking_token_budget
        if budget is None:
            return None
        texts = source.prompt_token_ids, source.output_token_ids, source.draft_token_ids
        markers = row.setup.start_token_ids, row.setup.end_token_ids
        forced = _forced(*markers, self.policy.thinking, *map(tuple, texts), budget)

        def force(logits: Logits) -> None:
            logits[forced[row.position]] = FORCED

        return force if row.position in forced else None

    # Processors that only random requests need.

    def temperature(self, row: Row) -> Edit | None:
        temperature = np.float32(row.params.temperature)

        def divide(logits: Logits) -> None:
            logits /= temperature

        return None if row.is_greedy or temperature == 1 else divide

    def min_p(self, row: Row) -> Edit | None:
        """Tokens with less than `min_p` times the greatest probability are excluded."""
        min_p = np.float32(row.params.min_p)

        def cut(logits: Logits) -> None:
            probs = softmax(logits)
            logits[probs < probs.max() * min_p] = EXCLUDED

        return None if row.is_greedy or min_p == 0 else cut

    def top_k_top_p(self, row: Row) -> Edit | None:
        """Top-k first; top-p then looks at what it left.

        As soon as one request of the batch uses a filter, it is applied to all rows. This matters for top-p only, which
        even at 1 excludes tokens whose probability is exactly 0.
        """
        if not (row.batch_uses_top_k or row.batch_uses_top_p):
            return None
        off = row.is_greedy
        top_k = row.params.top_k if 0 < row.params.top_k < row.vocab_size and not off else row.vocab_size
        top_p = 1.0 if off else row.params.top_p

        def cut(logits: Logits) -> None:
            if row.batch_uses_top_k:
                keep_top_k(logits, top_k)
            if row.batch_uses_top_p:
                keep_top_p(logits, top_p)

        return cut


@lru_cache(maxsize=64)
def _forced(
    start: Ids, end: Ids, policy: ThinkingPolicy, prompt: Ids, output: Ids, drafts: Ids, budget: int
) -> dict[int, int]:
    """Position to forced token; all rows of a request ask the same."""
    return dict(ThinkingBudgetOracle(start, end, policy).forced(prompt, output, drafts, budget))


def exclude(token_ids: Collection[int]) -> Edit:
    """These ids become impossible."""
    index = np.array(sorted(token_ids), np.int64)

    def edit(logits: Logits) -> None:
        logits[index] = EXCLUDED

    return edit


def keep_top_k(logits: Row32, top_k: int) -> None:
    """Tokens that tie with the last one kept are kept as well."""
    logits[logits < np.sort(logits)[len(logits) - top_k]] = EXCLUDED


def keep_top_p(logits: Row32, top_p: float) -> None:
    """Tokens are excluded, the least probable first, while their sum is at most `1 - top_p`; the greatest is kept.

    Which of several equal logits comes first is left to torch's sort, which is not stable.
    """
    ascending = torch.from_numpy(logits).sort().indices.numpy()
    sums = torch.from_numpy(softmax(logits[ascending])).cumsum(0).numpy()
    tail = sums <= np.float32(1) - np.float32(top_p)
    tail[-1] = False
    logits[ascending[tail]] = EXCLUDED


def softmax(logits: Logits) -> Logits:  # [vocab_size] float32, both
    return torch.from_numpy(logits).softmax(0).numpy()


def plan_oracle(rounding: Rounding = Rounding.FREE, policy: LogitsPolicy = LogitsPlanOracle.policy) -> LogitsPlanOracle:
    """The specification with the declared bits and policy; those of vLLM's torch code if none are declared."""
    oracle = LogitsPlanOracle()
    oracle.arithmetic, oracle.policy = penalties_oracle(rounding, policy.penalties), policy
    return oracle
