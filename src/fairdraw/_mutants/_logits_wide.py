"""Faults that narrow cases do not show: sizes, values at a edge, orders, and state over time. Made in families."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch

from fairdraw._core.tensor_types import LogitRows
from fairdraw._mutants._logits_mutant import OraclePlanner, mutant_planner, patched_planner
from fairdraw._mutants._logits_processors import moved
from fairdraw._mutants._mutant import Memory, Mutant, mutants_in, patching
from fairdraw._oracles.logits_plan import Edit, LogitsPlanOracle, Row
from fairdraw.contracts import Capability, LogitsBatch, LogitsParams, LogitsRequest, PlanSetup

Change = Callable[[LogitsParams], dict[str, Any]]  # Any: fields of the parameters


def _mutant(name: str, description: str, code: str, kind: Callable[..., LogitsPlanOracle], *given: Any) -> Mutant:
    """Make a mutant of an oracle that is made with the arguments `given`."""
    planner = OraclePlanner(name, lambda: kind(*given))
    is_shown_by_custom = "custom" in name and "temperature before" not in name  # penalties see that one, too
    needs = (Capability.CUSTOM_PROCESSORS,) * is_shown_by_custom
    return Mutant(name, description, (code,), lambda: planner, needs=needs)


# Parameters that are read otherwise


class _Misread(LogitsPlanOracle):
    """The specification of other parameters than those of the request."""

    def __init__(self, change: Change) -> None:
        self.change = change

    def rows(self, batch: LogitsBatch, setup: PlanSetup) -> list[Row]:
        changed = tuple(
            dataclasses.replace(r, params=dataclasses.replace(r.params, **self.change(r.params)))
            for r in batch.requests
        )
        return super().rows(batch.replace(requests=changed), setup)


def _read(name: str, read: Callable[[Any], Any]) -> Change:  # Any: a field
    """Return a change of one field."""
    return lambda p: {name: read(getattr(p, name))}


def _biases(read: Callable[[float], float | None]) -> Change:
    """Return a change of every bias; `None` leaves it out."""
    return lambda p: {"logit_bias": {i: b for i, bias in (p.logit_bias or {}).items() if (b := read(bias)) is not None}}


def _first_biases(most: int) -> Change:
    return lambda p: {"logit_bias": dict(list((p.logit_bias or {}).items())[:most])}


def _words(keep: Callable[[list[int]], bool], most: int = 10_000) -> Change:
    return lambda p: {"bad_words_token_ids": [w for w in p.bad_words_token_ids or () if keep(w)][:most]}


def _ids_in(bits: int, name: str) -> Change:
    """Ids that are stored in so few bits."""
    mask = 2**bits - 1

    def change(p: LogitsParams) -> dict[str, Any]:  # Any: as above
        value = getattr(p, name)
        if not value:
            return {}
        if isinstance(value, dict):
            return {name: {i & mask: bias for i, bias in value.items()}}
        if name == "bad_words_token_ids":
            return {name: [[i & mask for i in word] for word in value]}
        return {name: type(value)(i & mask for i in value)}

    return change


_SIZES: dict[str, Change] = {
    "reads 16 bad words": _words(lambda w: True, 16),
    "bad words have three tokens at most": _words(lambda w: len(w) <= 3),
    "bad words have five tokens at most": _words(lambda w: len(w) <= 5),
    "stores 64 biases": _first_biases(64),
    "one stop id": _read("all_stop_token_ids", lambda ids: frozenset(sorted(ids)[:1])),
    "stores 16 allowed ids": _read("allowed_token_ids", lambda ids: ids and ids[:16]),
}
_MANY: dict[str, tuple[str, Change]] = {
    "stores 500 biases": ("PLAN116", _first_biases(500)),
    "stores 40 stop ids": ("PLAN115", _read("all_stop_token_ids", lambda ids: frozenset(sorted(ids)[:40]))),
    "bad words have thirty two tokens at most": ("PLAN116", _words(lambda w: len(w) <= 32)),
}
"""Sizes that ordinary requests do not have."""
_VALUES: dict[str, Change] = {
    "top k 1 is off": _read("top_k", lambda k: 0 if k == 1 else k),
    "top p near 0 is off": _read("top_p", lambda p: 1.0 if p < 1e-5 else p),
    "min p 1 is off": _read("min_p", lambda p: 0.0 if p == 1 else p),
    "greedy up to the edge": _read("temperature", lambda t: 0.0 if t <= 1e-5 else t),
    "greedy below a fiftieth": _read("temperature", lambda t: 0.0 if t < 0.02 else t),
    "not greedy below the edge": _read("temperature", lambda t: 1e-5 if 0 < t < 1e-5 else t),  # exactly 0 is greedy
    "clips biases at ten": _biases(lambda bias: max(-10.0, min(10.0, bias))),
    "an allowed list of one is off": _read("allowed_token_ids", lambda ids: None if len(ids or ()) == 1 else ids),
    "presence without frequency is off": lambda p: {
        "presence_penalty": p.presence_penalty if p.frequency_penalty or p.repetition_penalty != 1 else 0.0
    },
    "repetition below one is off": _read("repetition_penalty", lambda factor: max(1.0, factor)),
    "a budget of nothing is none": _read("thinking_token_budget", lambda budget: budget or None),
    "a minimum of one is none": _read("min_tokens", lambda least: 0 if least == 1 else least),
    "temperatures in steps of a thousandth": _read("temperature", lambda t: max(round(t, 3), t * 1e-3)),
}
_INSIDE: dict[str, Change] = {
    "top p above 0_999 is off": _read("top_p", lambda p: 1.0 if p > 0.999 else p),
    "top p above 0_9999 is off": _read("top_p", lambda p: 1.0 if p > 0.9999 else p),
    "top p below a hundredth is greedy": lambda p: {"top_k": 1 if p.top_p < 1e-2 else p.top_k},
    "min p below a ten thousandth is off": _read("min_p", lambda p: p if p > 1e-4 else 0.0),
    "min p above 0_999 is one": _read("min_p", lambda p: 1.0 if p > 0.999 else p),
    "temperatures near one are one": _read("temperature", lambda t: 1.0 if abs(t - 1) < 1e-3 else t),
    "top k of all but two is off": _read("top_k", lambda k: 0 if k >= 1029 else k),
    "penalties below a thousandth are off": lambda p: {
        name: value if abs(value - off) > 1e-3 else off
        for name, off in (("presence_penalty", 0.0), ("frequency_penalty", 0.0), ("repetition_penalty", 1.0))
        for value in (getattr(p, name),)
    },
    "biases below a thousandth are off": _biases(lambda bias: bias if abs(bias) > 1e-3 else None),
}
_MISREAD = {
    "A parameter of many parts is cut.": {name: ("PLAN115", change) for name, change in _SIZES.items()},
    "A parameter of hundreds of parts is cut.": _MANY,
    "A value at a edge is taken for another.": {name: ("PLAN115", change) for name, change in _VALUES.items()},
    "A value near its end is taken for off.": {name: ("PLAN118", change) for name, change in _INSIDE.items()},
}
_ID_FIELDS = ("logit_bias", "allowed_token_ids", "bad_words_token_ids", "all_stop_token_ids")


# Rows, drafts and texts that are cut


class _Limited(LogitsPlanOracle):
    """Something ends at `most`."""

    def __init__(self, most: int) -> None:
        self.most = most


class _FirstRows(_Limited):
    """Rows beyond a number stay as they are."""

    def edits(self, name: str, rows: Any) -> list[tuple[int, Edit]]:  # Any: a sequence of rows
        return [(index, edit) for index, edit in super().edits(name, rows) if index < self.most]


class _FirstRequests(_Limited):
    """Rows of requests beyond a number stay as they are."""

    def edits(self, name: str, rows: Any) -> list[tuple[int, Edit]]:  # Any: a sequence of rows
        return super().edits(name, [row for row in rows if row.request < self.most])


class _FirstDrafts(_Limited):
    """Later drafts are not seen."""

    def seen(self, source: Any, position: int) -> list[int]:  # Any: a request
        return super().seen(source, min(position, self.most))


class _Window(_Limited):
    """Penalties see the last tokens of the output only."""

    def text_for_penalties(self, row: Row) -> list[int]:
        return row.seen[-self.most :]


class _Saturates(_Limited):
    """A token is counted so often at most."""

    def text_for_penalties(self, row: Row) -> list[int]:
        return [i for i in dict.fromkeys(row.seen) for _ in range(min(self.most, row.seen.count(i)))]


class _ShortPrompt(_Limited):
    """Only so many prompt tokens are kept."""

    def penalties(self, row: Row) -> Edit | None:
        short = dataclasses.replace(row.source, prompt_token_ids=row.source.prompt_token_ids[-self.most :])
        return super().penalties(dataclasses.replace(row, source=short))


# Orders


class _Swapped(LogitsPlanOracle):
    """One processor runs just before another, which should come first."""

    def __init__(self, first: str, second: str) -> None:
        self.order = moved(second, before=first)


_ORDERS = {
    "custom": "allowed_ids bad_words min_tokens logit_bias",
    "penalties": "logit_bias custom",
    "thinking_budget": "allowed_ids bad_words min_tokens",
    "temperature": "logit_bias penalties custom",
    "min_p": "temperature penalties logit_bias",
    "custom_for_random": "temperature min_p",
    "top_k_top_p": "temperature allowed_ids bad_words logit_bias penalties min_p custom_for_random",
}
"""A processor to those that must come before it."""


# Time


class _Remembers(LogitsPlanOracle):
    """Sees other requests than those of the step."""

    def requests(self, batch: LogitsBatch) -> Iterable[LogitsRequest]:
        return batch.requests

    def process(self, batch: LogitsBatch, setup: PlanSetup) -> LogitRows:
        return super().process(batch.replace(requests=tuple(self.requests(batch))), setup)


_remembers = patching(mutant_planner, _Remembers)


class _SharedTexts(_Remembers):
    """The parameters of a row are kept by its number, in one table for all sessions, until it is added again."""

    table: dict[int, LogitsParams] = {}  # noqa: RUF012  that is the fault

    def requests(self, batch: LogitsBatch) -> Iterable[LogitsRequest]:
        if batch.change:
            self.table.update(enumerate(request.params for request in batch.requests))
        return [dataclasses.replace(r, params=self.table[i]) for i, r in enumerate(batch.requests)]


class _ReturnsABuffer(LogitsPlanOracle):
    """Answers of one shape, or every second one of them, are one tensor."""

    def __init__(self, buffers: int) -> None:
        self.buffers, self.calls = [torch.empty(0)] * buffers, 0

    def copied(self, logits: LogitRows) -> LogitRows:
        self.calls += 1
        place = self.calls % len(self.buffers)
        if self.buffers[place].numel() < logits.numel():
            self.buffers[place] = torch.empty(logits.numel() * 2)
        return self.buffers[place][: logits.numel()].view(logits.shape).copy_(logits)


@patched_planner("bad_words", "PLAN136")
def sorts_the_words_of_the_caller(answer: Edit | None, row: Row) -> None:
    """Of a request with bad words, the words are put in order in place."""
    (row.params.bad_words_token_ids or []).sort()


@patched_planner("length_for_min_tokens", "PLAN137")
def counts_calls_for_minima(right: LogitsPlanOracle, row: Row, *, kept: Memory) -> int:
    """Minima are counted in calls, which are as many as tokens where there are no drafts."""
    output = row.source.output_token_ids
    if row.position == 0:
        known = kept.setdefault(id(output), [output, len(output) - 1, 0])
        known[2] += 1
    _, before, calls = kept[id(output)]
    return int(before + calls + row.position)


@_remembers("requests", "PLAN133")
def follows_one_kind_of_change(right: _Remembers, batch: LogitsBatch, *, kept: Memory) -> Iterable[LogitsRequest]:
    """Where requests were added and others moved in one step, the moves are lost."""
    change, current = batch.change, {row: request.params for row, request in enumerate(batch.requests)}
    if change and change.added and change.moved and kept:
        kept |= {row: params for row, params, _, _ in change.added}
    else:
        kept.clear()
        kept |= current
    return [dataclasses.replace(r, params=kept.get(i, current[i])) for i, r in enumerate(batch.requests)]


@_remembers("requests", "PLAN133")
def follows_lengths(right: _Remembers, batch: LogitsBatch, *, kept: Memory) -> Iterable[LogitsRequest]:
    """A text that is as long as it was is not read again."""
    for request in batch.requests:
        live = request.output_token_ids
        _, known = kept.get(id(live), (live, []))
        known = known if len(known) == len(live) else list(live)
        kept[id(live)] = live, known
        yield dataclasses.replace(request, output_token_ids=known)


@_remembers("requests", "PLAN133")
def keeps_parameters_of_a_list(right: _Remembers, batch: LogitsBatch, *, kept: Memory) -> Iterable[LogitsRequest]:
    """A request that is added again with its list is taken for the one that is known."""
    for request in batch.requests:
        live = request.output_token_ids
        _, params = kept.setdefault(id(live), (live, request.params))
        yield dataclasses.replace(request, params=params)


class _KnowsTextsByParameters(_Remembers):
    """A row whose new request has the parameters of the one before it keeps that one's prompt, or its output."""

    def __init__(self, part: str) -> None:
        self.part = part
        self.known: dict[int, LogitsRequest] = {}

    def requests(self, batch: LogitsBatch) -> Iterable[LogitsRequest]:
        before, self.known = self.known, {}
        for row, request in enumerate(batch.requests):
            old = before.get(row)
            is_same = old is not None and old.params == request.params and len(old.output_token_ids) > 0
            kept = getattr(old if is_same and batch.change else request, self.part)
            self.known[row] = dataclasses.replace(request, **{self.part: kept})
        return self.known.values()


@_remembers("requests", "PLAN139")
def knows_prompts_by_their_ends(right: _Remembers, batch: LogitsBatch, *, kept: Memory) -> Iterable[LogitsRequest]:
    """Prompts that are equally long, and begin and end alike, are taken for one."""
    for request in batch.requests:
        prompt = request.prompt_token_ids
        known = kept.setdefault((len(prompt), *prompt[:8], *prompt[-8:]), prompt)
        yield dataclasses.replace(request, prompt_token_ids=known)


@patched_planner("process", "PLAN110")
def casts_late(right: LogitsPlanOracle, batch: LogitsBatch, setup: PlanSetup) -> LogitRows:
    """Where a temperature is all the work of a batch, logits in half precision are divided before they are cast."""
    works = [name for name in right.order if right.edits(name, right.rows(batch, setup))]
    processed = right.process(batch, setup)
    return processed.to(batch.logits.dtype).float() if works == ["temperature"] else processed


class _IdlesInSteps(LogitsPlanOracle):
    """In some steps the logits are returned as they were."""

    def __init__(self, is_idle: Callable[[int], bool]) -> None:
        self.is_idle, self.steps = is_idle, 0

    def process(self, batch: LogitsBatch, setup: PlanSetup) -> LogitRows:
        self.steps += 1
        return self.untouched(batch.logits) if self.is_idle(self.steps) else super().process(batch, setup)


class _TakesTheSecondLargest(LogitsPlanOracle):
    """Top-k of one token does nothing, and of two excludes none: the edge is looked for among the others."""

    def top_k_top_p(self, row: Row) -> Edit | None:
        return None if row.vocab_size <= 2 else super().top_k_top_p(row)

    def min_tokens(self, row: Row) -> Edit | None:
        return None if row.vocab_size == 1 else super().min_tokens(row)


_ALONE: tuple[tuple[Any, ...], ...] = (  # Any: a name, a code, a class, and arguments of its own
    ("shares a table", "PLAN134", _SharedTexts),
    ("takes the second largest", "PLAN117", _TakesTheSecondLargest),
    ("returns one buffer", "PLAN135", _ReturnsABuffer, 1),
    ("returns two buffers in turns", "PLAN135", _ReturnsABuffer, 2),
    ("returns twelve buffers in turns", "PLAN135", _ReturnsABuffer, 12),
    ("knows a prompt by its parameters", "PLAN139", _KnowsTextsByParameters, "prompt_token_ids"),
    ("knows a output by its parameters", "PLAN139", _KnowsTextsByParameters, "output_token_ids"),
    ("stops after forty steps", "PLAN138", _IdlesInSteps, lambda step: step >= 40),
    ("skips every hundredth", "PLAN138", _IdlesInSteps, lambda step: step % 100 == 0),
)

MUTANTS: tuple[Mutant, ...] = (
    *(
        _mutant(name, description, code, _Misread, change)
        for description, family in _MISREAD.items()
        for name, (code, change) in family.items()
    ),
    *(
        _mutant(
            f"stores {one} in {b} bits", "Ids of large vocabularies wrap around.", "PLAN116", _Misread, _ids_in(b, one)
        )
        for one in _ID_FIELDS
        for b in (16, 17)
    ),
    *(
        _mutant(f"{words} {most}", "A buffer ends there.", code, kind, most)
        for words, code, kind, sizes in (
            ("processes rows up to", "PLAN115", _FirstRows, (32, 64, 128)),
            ("processes rows up to", "PLAN111", _FirstRows, (1024,)),
            ("sees drafts up to", "PLAN115", _FirstDrafts, (4, 8, 50)),
            ("penalises a window of", "PLAN115", _Window, (64, 256, 4096)),
            ("counts a token up to", "PLAN115", _Saturates, (15, 127, 255)),
            ("keeps of the prompt", "PLAN116", _ShortPrompt, (512, 2048, 4096)),
            ("serves requests up to", "PLAN111", _FirstRequests, (512,)),
        )
        for most in sizes
    ),
    *(
        _mutant(f"runs {second} before {one}".replace("_", " "), "Another order.", "PLAN111", _Swapped, one, second)
        for second, before in _ORDERS.items()
        for one in before.split()
    ),
    *mutants_in(vars()),
    *(_mutant(name, kind.__doc__ or "", code, kind, *given) for name, code, kind, *given in _ALONE),
)
"""Wrong planners of the logits-plan contract, by families."""
