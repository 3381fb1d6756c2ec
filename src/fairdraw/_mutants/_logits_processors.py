"""Faults of single processors, of their order, of what their rows see, and close to rounding and ties.

Each function stands for one step of the oracle, with that step's arguments. First comes `right`, the correct
steps, or `answer`, that of the correct step; or the correct edit of a row, the row and its logits.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from fairdraw._core.tensor_types import LogitRows
from fairdraw._mutants._logits_mutant import mutant_planner, patched_edit, patched_planner
from fairdraw._oracles import logits_plan as plans
from fairdraw._oracles.logits_bounds import logits_bounds
from fairdraw._oracles.logits_plan import EXCLUDED, Edit, Logits, LogitsPlanOracle, Row
from fairdraw.contracts import LogitsBatch, LogitsPolicy, LogitsRequest, PenaltyPolicy, PlanSetup

Calls = list[tuple[Any, list[Any]]]  # Any: a custom processor, and rows of requests


def moved(name: str, before: str) -> tuple[str, ...]:
    """The order with one processor put before another."""
    others = [other for other in LogitsPlanOracle.order if other != name]
    place = others.index(before)
    return (*others[:place], name, *others[place:])


@patched_planner("allowed_ids", "PLAN110", "PLAN112")
def allows_what_is_excluded(right: LogitsPlanOracle, row: Row) -> Edit | None:
    """The mask of allowed ids is read the other way round: True once meant allowed, then excluded."""
    allowed = row.params.allowed_token_ids
    return None if allowed is None else plans.exclude(allowed)


@patched_edit("logit_bias", "PLAN110", "PLAN160")
def adds_the_bias_twice(add: Edit, row: Row, logits: Logits) -> None:
    """Once by a processor, once by code that is older than the processors."""
    add(logits)
    add(logits)


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


@patched_edit("top_k_top_p", "PLAN111")
def cuts_by_top_p_before_top_k(cut: Edit, row: Row, logits: Logits) -> None:
    """Top-p alone keeps more than top-p of what top-k left."""
    if row.batch_uses_top_k and row.batch_uses_top_p and not row.is_greedy:
        plans.keep_top_p(logits, row.params.top_p)
        plans.keep_top_k(logits, min(row.params.top_k or row.vocab_size, row.vocab_size))
    else:
        cut(logits)


@patched_planner("min_p", "PLAN115")
def filters_greedy_rows(right: LogitsPlanOracle, row: Row) -> Edit | None:
    """A greedy request that names a min-p is filtered like any other."""
    if not row.is_greedy:
        return right.min_p(row)
    as_random = dataclasses.replace(row.params, temperature=1.0)
    return right.min_p(dataclasses.replace(row, source=dataclasses.replace(row.source, params=as_random)))


@patched_planner("temperature", "PLAN115")
def divides_greedy_rows_by_zero(right: LogitsPlanOracle, row: Row) -> Edit | None:
    """All positive logits become inf, and tie."""

    def divide(logits: Logits) -> None:
        with np.errstate(divide="ignore", invalid="ignore"):
            logits /= np.float32(0)

    return divide if row.is_greedy else right.temperature(row)


@patched_planner("allowed_ids", "PLAN114")
def excludes_by_addition(right: LogitsPlanOracle, row: Row) -> Edit | None:
    """Adds a mask of 0 and -inf: NaN stays NaN where it should be excluded."""
    if (allowed := row.params.allowed_token_ids) is None:
        return None
    mask = np.full(row.vocab_size, EXCLUDED, np.float32)
    mask[allowed] = 0

    def add(logits: Logits) -> None:
        logits += mask

    return add


@patched_planner("text_for_bad_words", "PLAN111", "PLAN162")
def bad_words_ignore_the_drafts(right: LogitsPlanOracle, row: Row) -> list[int]:
    """A bad word that begins among the drafts can be completed."""
    return row.source.output_token_ids


@patched_planner("text_for_penalties", "PLAN111", "PLAN121")
def penalties_ignore_the_drafts(right: LogitsPlanOracle, row: Row) -> list[int]:
    """Every row is penalised for the output alone."""
    return row.source.output_token_ids


@patched_planner("seen", "PLAN121")
def the_bonus_row_misses_the_last_draft(right: LogitsPlanOracle, source: LogitsRequest, position: int) -> list[int]:
    """It sees what the last draft row sees."""
    is_bonus = position == len(source.draft_token_ids)
    return right.seen(source, max(0, position - 1) if is_bonus else position)


@patched_planner("length_for_min_tokens", "PLAN121")
def min_tokens_count_the_output_alone(right: LogitsPlanOracle, row: Row) -> int:
    """As vLLM 0.22.0 to 0.33.0 in the bonus row: the text may not stop though it is long enough."""
    is_bonus = row.position == len(row.source.draft_token_ids)
    return len(row.source.output_token_ids) if is_bonus else right.length_for_min_tokens(row)


@patched_planner("length_for_min_tokens", "PLAN111")
def min_tokens_count_all_drafts_in_every_row(right: LogitsPlanOracle, row: Row) -> int:
    """The first draft row may stop, although the drafts after it were counted."""
    return len(row.source.output_token_ids) + len(row.source.draft_token_ids)


@patched_planner("customs", "PLAN141")
def calls_custom_processors_per_row(right: LogitsPlanOracle, name: str, rows: Sequence[Row], setup: PlanSetup) -> Calls:
    """A launch per row, so a processor that compares its rows sees only one of them."""
    return [(processor, [one]) for processor, seen in right.customs(name, rows, setup) for one in seen]


_PROMPT = LogitsPolicy("text")


@mutant_planner("PLAN115", policy=_PROMPT, done=LogitsPolicy())
class BadWordsOfThePromptAgainstItsPolicy(LogitsPlanOracle):
    """The policy says that bad words begin anywhere, but only those in the output are found."""


@mutant_planner("PLAN115", done=_PROMPT)
class BadWordsOfThePrompt(LogitsPlanOracle):
    """No policy is declared, and a bad word that the prompt begins cannot be completed."""


@patched_planner("text_for_bad_words", "PLAN115", policy=_PROMPT)
def bad_words_miss_the_end_of_the_prompt(right: LogitsPlanOracle, row: Row) -> list[int]:
    """The last token of the prompt is the input of the first step, and neither prompt nor output."""
    return [*row.source.prompt_token_ids[:-1], *row.seen]


@mutant_planner("PLAN110", policy=LogitsPolicy(penalties=PenaltyPolicy(counts_see="text")), done=LogitsPolicy())
class PenaltiesOfThePromptAgainstItsPolicy(LogitsPlanOracle):
    """A policy that says that penalties count the prompt, beside a count of the output."""


@patched_planner("process", "PLAN110", "PLAN112")
def is_four_ulps_beyond_rounding(answer: LogitRows, batch: LogitsBatch, setup: PlanSetup) -> None:
    """One token of a row, four units in the last place above what float32 arithmetic in any order could make of it."""
    if answer is not batch.logits:
        for row, bounds in zip(answer.numpy(), logits_bounds(batch, setup, LogitsPlanOracle()), strict=True):
            moved = np.flatnonzero((bounds.may_be.width > 0) & np.isfinite(row) & (bounds.forced is None))
            for token in moved[-1:]:
                row[token] = np.float32(bounds.may_be.high[token]) + 4 * np.spacing(np.abs(row[token]))


@patched_edit("top_k_top_p", "PLAN110", "PLAN112")
def keeps_one_of_the_tied_too_few(cut: Edit, row: Row, logits: Logits) -> None:
    """Top-k drops everything that ties with the last token kept, and that token as well."""
    if not row.is_greedy and 1 < row.params.top_k < row.vocab_size:
        edge = np.sort(logits)[len(logits) - row.params.top_k]
        if np.isfinite(edge) and np.isfinite(logits[logits > edge]).any():
            logits[logits <= edge] = EXCLUDED
    cut(logits)


@patched_edit("top_k_top_p", "PLAN110", "PLAN112")
def top_p_stops_a_token_early(cut: Edit, row: Row, logits: Logits) -> None:
    """The token that crosses top-p is dropped: the tokens kept have less probability than required."""
    cut(logits)
    if not row.is_greedy and row.params.top_p != 1:
        _drop_one_more(logits, ties=True)


@patched_edit("thinking_budget", "PLAN110")
def forces_with_too_small_a_logit(force: Edit, row: Row, logits: Logits) -> None:
    """The forced token is the most probable one, but not the only possible one."""
    others = logits.copy()
    force(logits)
    logits[logits == plans.FORCED] = np.float32(np.max(others, initial=0, where=np.isfinite(others)) + 10)


@patched_edit("thinking_budget", "PLAN110", "PLAN112")
def forces_another_token(force: Edit, row: Row, logits: Logits) -> None:
    """The token is forced in the correct row, but the next id instead of the expected one."""
    marks = np.zeros(len(logits), np.float32)
    force(marks)
    logits[(int(marks.argmax()) + 1) % len(logits)] = plans.FORCED


@patched_edit("min_p", "PLAN110")
def min_p_drops_the_last_token_kept(cut: Edit, row: Row, logits: Logits) -> None:
    """The least probable token above the floor is excluded, too."""
    cut(logits)
    _drop_one_more(logits, ties=False)


def _drop_one_more(logits: Logits, *, ties: bool) -> None:
    """Exclude the least probable token that is left; with `ties` even if all of them tie."""
    kept = np.flatnonzero(np.isfinite(logits))
    if len(kept) > 1 and not np.isnan(logits).any() and (ties or logits[kept].min() < logits[kept].max()):
        logits[kept[logits[kept].argmin()]] = EXCLUDED
