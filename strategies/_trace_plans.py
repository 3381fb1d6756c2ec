"""Which serving traces a profile plays: vocabularies in small batches, sizes of batches at one, and flat rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from fairdraw._core.checks import Profile
from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import Capabilities, Capability, switch_sides
from fairdraw.strategies._serving import vocabulary_walk

CORE_VOCABULARY = 64
"""Small enough for a million rows a minute, and wide enough for every shape of row."""

_MOST_VOCABULARY = 2**18 + 1
_WIDE = 2**14


@dataclass(frozen=True)
class Plan:
    """The traces of one profile.

    Args:
        walk: Of batch sizes at the core's vocabulary.
        num_traces: There.
        num_vocabularies: Others, of which the wide ones come in turn; each has a trace of three calls.
    """

    walk: str
    most_rows: int
    num_traces: int
    num_vocabularies: int


_PLANS = {
    "smoke": Plan("edges", 1100, 2, 44),
    "ci": Plan("every", 1100, 1, 110),
    "nightly": Plan("every", 1100, 20, 110),
}
_SLOW_PLAN = Plan("edges", 33, 1, 6)


_AT_A_SIDE, _ROWS, _ENTRIES = 3, 2**13, 2**18
"""Batches with the rows of one side of a switch, and their rows in all; or entries, where that is a vocabulary."""


def traces(make: Callable[..., Any], sampler: Any, profile: Profile, seed: int) -> tuple[list[Any], list[Any]]:
    """Return the traces of a run: of vocabularies in small batches, the narrow ones first, and of sizes of batches.

    Both sides of the sampler's `size_switches` come, too.

    Args:
        make: From the sampler and the first fields of a trace to the trace.
    """
    can, (sides, _) = sampler.capabilities, switch_sides(sampler)
    plan = _SLOW_PLAN if can.slow else _PLANS.get(profile.name, _PLANS["ci"])
    without = tuple(sorted(map(str, can.unsupported)))
    walk = plan.walk if profile.scale == 1 else "edges"
    batches = [(size,) * max(1, min(1 if can.slow else _AT_A_SIDE, _ROWS // size)) for size in sides["rows"]]
    core, wide = [], []
    for number in range(max(1, round(plan.num_traces * profile.scale))):
        own = derive_seed("trace", seed, number) % 2**20
        trace = make(sampler, own, CORE_VOCABULARY, plan.most_rows, walk, without)
        core.append(trace.replace(more_rows=sum(batches, ()), more_drafts=sides["drafts"]))
    sizes = _vocabularies(can, max(2, round(plan.num_vocabularies * profile.scale)), seed)
    for number, size in sorted(enumerate((*sides["vocabulary"], *sizes)), key=itemgetter(1)):
        rows = 9 if size < _WIDE else 6
        trace = make(sampler, derive_seed("vocabulary", seed, number) % 2**20, size, rows, "few", without)
        more = 0 if can.slow or size not in sides["vocabulary"] else min(20, _ENTRIES // size)
        wide.append(trace.replace(more_rows=(rows,) * more, more_drafts=sides["drafts"]))
    return wide, core


def work_of(trace: Any) -> float:  # Any: a trace of any contract
    """Return about how long a trace takes, in rows: a call costs as much as 180 of them, and 250 entries as one."""
    return float(180 * len(trace.sizes()) + sum(trace.sizes()) * (1 + trace.vocab_size / 250))


def _vocabularies(can: Capabilities, number: int, seed: int) -> list[int]:
    """Return some vocabularies of the walk, the widest among them; another seed starts elsewhere."""
    most = _MOST_VOCABULARY if Capability.LARGE_VOCAB in can and not can.slow else 1025
    sizes = vocabulary_walk(most)
    if number >= len(sizes):
        return sizes
    start, step = seed % len(sizes), len(sizes) / number
    return [*(sizes[(start + round(place * step)) % len(sizes)] for place in range(1, number)), sizes[-1]]


@dataclass(frozen=True)
class FlatPlan:
    """A trace of flat rows, in which a wrong token is rare: at its vocabulary, up to so many rows."""

    vocab_size: int
    most_rows: int
    walk: str


_FLAT = {
    "smoke": (FlatPlan(8191, 64, "edges"), FlatPlan(16_411, 256, "edges"), FlatPlan(33_000, 100, "edges")),
    "ci": (FlatPlan(8191, 100, "every"), FlatPlan(33_000, 60, "every"), FlatPlan(262_145, 40, "edges")),
    "nightly": (FlatPlan(8191, 300, "every"), FlatPlan(33_000, 200, "every"), FlatPlan(262_145, 100, "every")),
}
_FLAT_ENTRIES = 2**21
"""Entries of the largest call at one side of a vocabulary's switch, at `smoke`; four times as many otherwise."""

_SLOW_FLAT = (FlatPlan(1025, 33, "edges"),)


def flat_traces(make: Callable[..., Any], sampler: Any, profile: Profile, seed: int) -> Iterator[Any]:
    """Yield the traces of flat rows of a run: one draw in thousands that is another shows, and so does any lane.

    A part of a profile plays the first of them; another seed begins with another one.
    """
    can, (sides, _) = sampler.capabilities, switch_sides(sampler)
    plans = _SLOW_FLAT if can.slow else _FLAT.get(profile.name, _FLAT["ci"])
    most = _MOST_VOCABULARY if Capability.LARGE_VOCAB in can else 1025
    without = tuple(sorted(map(str, can.unsupported)))
    chosen = [plans[(seed + number) % len(plans)] for number in range(max(1, round(len(plans) * profile.scale)))]
    entries = 0 if can.slow else _FLAT_ENTRIES * (1 if profile.name == "smoke" else 4)
    chosen += [FlatPlan(size, max(6, min(256, entries // size)), "few") for size in sides["vocabulary"]]
    for number, plan in enumerate(chosen):
        size = plan.vocab_size if plan.walk == "few" else min(plan.vocab_size, most)
        own = derive_seed("flat", seed, number) % 2**20
        yield make(sampler, own, size, plan.most_rows, plan.walk, without, flat=True)
