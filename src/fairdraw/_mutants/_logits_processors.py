"""Faults of single processors, of their order, and of what their rows see."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from fairdraw._mutants._logits_mutant import mutant_planner
from fairdraw._oracles.logits_plan import EXCLUDED, Edit, Logits, LogitsPlanOracle, Row, exclude, keep_top_k, keep_top_p
from fairdraw.protocols import LogitsPolicy, PenaltyPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairdraw.protocols._logits_plan import CustomLogitsProcessor, LogitsRequest, PlanSetup, RowOfRequest


def moved(name: str, before: str) -> tuple[str, ...]:
    """The order with one processor put before another."""
    others = [other for other in LogitsPlanOracle.order if other != name]
    place = others.index(before)
    return (*others[:place], name, *others[place:])


@mutant_planner("PLAN110", "PLAN112")
class AllowsWhatIsExcluded(LogitsPlanOracle):
    """The mask of allowed ids is read the other way round: True once meant allowed, then excluded."""

    def allowed_ids(self, row: Row) -> Edit | None:
        allowed = row.params.allowed_token_ids
        return None if allowed is None else exclude(allowed)


@mutant_planner("PLAN110", "PLAN160")
class AddsTheBiasTwice(LogitsPlanOracle):
    """Once by a processor, once by code that is older than the processors."""

    def logit_bias(self, row: Row) -> Edit | None:
        add = super().logit_bias(row)

        def twice(logits: Logits) -> None:
            if add is not None:
                add(logits)
                add(logits)

        return None if add is None else twice


@mutant_planner("PLAN111")
class DividesByTheTemperatureBeforePenalties(LogitsPlanOracle):
    """Penalties then weigh more the higher the temperature is."""

    order = moved("temperature", before="penalties")


@mutant_planner("PLAN111")
class FiltersBeforeTheTemperature(LogitsPlanOracle):
    """Top-p looks at other probabilities than those that are drawn from."""

    order = moved("top_k_top_p", before="temperature")


@mutant_planner("PLAN111")
class FiltersByMinPAfterTopP(LogitsPlanOracle):
    """Min-p compares with probabilities that top-p has renormalised."""

    order = moved("top_k_top_p", before="min_p")


@mutant_planner("PLAN111")
class AddsTheBiasAfterPenalties(LogitsPlanOracle):
    """A repetition penalty divides positive logits and multiplies others, so the sign that it sees matters."""

    order = moved("penalties", before="logit_bias")


@mutant_planner("PLAN111", "PLAN112")
class ForcesTheEndOfThinkingFirst(LogitsPlanOracle):
    """What is forced is then biased, penalised, or excluded."""

    order = moved("thinking_budget", before="allowed_ids")


@mutant_planner("PLAN111")
class CutsByTopPBeforeTopK(LogitsPlanOracle):
    """Top-p alone keeps more than top-p of what top-k left."""

    def top_k_top_p(self, row: Row) -> Edit | None:
        cut = super().top_k_top_p(row)
        if cut is None or not (row.batch_uses_top_k and row.batch_uses_top_p) or row.is_greedy:
            return cut
        top_k = row.params.top_k or row.vocab_size

        def other_order(logits: Logits) -> None:
            keep_top_p(logits, row.params.top_p)
            keep_top_k(logits, min(top_k, row.vocab_size))

        return other_order


@mutant_planner("PLAN115")
class FiltersGreedyRows(LogitsPlanOracle):
    """A greedy request that names a min-p is filtered like any other."""

    def min_p(self, row: Row) -> Edit | None:
        if not row.is_greedy:
            return super().min_p(row)
        as_random = dataclasses.replace(row.params, temperature=1.0)
        return super().min_p(dataclasses.replace(row, source=dataclasses.replace(row.source, params=as_random)))


@mutant_planner("PLAN115")
class DividesGreedyRowsByZero(LogitsPlanOracle):
    """All positive logits become inf, and tie."""

    def temperature(self, row: Row) -> Edit | None:
        def divide(logits: Logits) -> None:
            with np.errstate(divide="ignore", invalid="ignore"):
                logits /= np.float32(0)

        return divide if row.is_greedy else super().temperature(row)


@mutant_planner("PLAN114")
class ExcludesByAddition(LogitsPlanOracle):
    """Adds a mask of 0 and -inf: NaN stays NaN where it should be excluded."""

    def allowed_ids(self, row: Row) -> Edit | None:
        allowed = row.params.allowed_token_ids
        if allowed is None:
            return None
        mask = np.full(row.vocab_size, EXCLUDED, np.float32)
        mask[allowed] = 0

        def add(logits: Logits) -> None:
            logits += mask

        return add


@mutant_planner("PLAN111", "PLAN162")
class BadWordsIgnoreTheDrafts(LogitsPlanOracle):
    """A bad word that begins among the drafts can be completed."""

    def text_for_bad_words(self, row: Row) -> list[int]:
        return row.source.output_token_ids


@mutant_planner("PLAN111", "PLAN121")
class PenaltiesIgnoreTheDrafts(LogitsPlanOracle):
    """Every row is penalised for the output alone."""

    def text_for_penalties(self, row: Row) -> list[int]:
        return row.source.output_token_ids


@mutant_planner("PLAN121")
class TheBonusRowMissesTheLastDraft(LogitsPlanOracle):
    """It sees what the last draft row sees."""

    def seen(self, source: LogitsRequest, position: int) -> list[int]:
        is_bonus = position == len(source.draft_token_ids)
        return super().seen(source, max(0, position - 1) if is_bonus else position)


@mutant_planner("PLAN121")
class MinTokensCountTheOutputAlone(LogitsPlanOracle):
    """As vLLM 0.22.0 to 0.33.0 in the bonus row: the text may not stop though it is long enough."""

    def length_for_min_tokens(self, row: Row) -> int:
        is_bonus = row.position == len(row.source.draft_token_ids)
        return len(row.source.output_token_ids) if is_bonus else super().length_for_min_tokens(row)


@mutant_planner("PLAN111")
class MinTokensCountAllDraftsInEveryRow(LogitsPlanOracle):
    """The first draft row may stop, although the drafts after it were counted."""

    def length_for_min_tokens(self, row: Row) -> int:
        return len(row.source.output_token_ids) + len(row.source.draft_token_ids)


@mutant_planner("PLAN141")
class CallsCustomProcessorsPerRow(LogitsPlanOracle):
    """A launch per row, so a processor that compares its rows sees only one of them."""

    def customs(
        self, name: str, rows: Sequence[Row], setup: PlanSetup
    ) -> list[tuple[CustomLogitsProcessor, list[RowOfRequest]]]:
        return [(processor, [one]) for processor, seen in super().customs(name, rows, setup) for one in seen]


_PROMPT = LogitsPolicy("text")


@mutant_planner("PLAN115", policy=_PROMPT, done=LogitsPolicy())
class BadWordsOfThePromptAgainstItsPolicy(LogitsPlanOracle):
    """The policy says that bad words begin anywhere, but only those in the output are found."""


@mutant_planner("PLAN115", done=_PROMPT)
class BadWordsOfThePrompt(LogitsPlanOracle):
    """No policy is declared, and a bad word that the prompt begins cannot be completed."""


@mutant_planner("PLAN115", policy=_PROMPT)
class BadWordsMissTheEndOfThePrompt(LogitsPlanOracle):
    """The last token of the prompt is the input of the first step, and neither prompt nor output."""

    def text_for_bad_words(self, row: Row) -> list[int]:
        return [*row.source.prompt_token_ids[:-1], *row.seen]


@mutant_planner("PLAN110", policy=LogitsPolicy(penalties=PenaltyPolicy(counts_see="text")), done=LogitsPolicy())
class PenaltiesOfThePromptAgainstItsPolicy(LogitsPlanOracle):
    """A policy that says that penalties count the prompt, beside a count of the output."""
