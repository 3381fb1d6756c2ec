"""Sizes at which a sampler's kernels switch: its attribute `size_switches`, beside its capabilities."""

from collections.abc import Mapping, Sequence
from typing import Any

from fairdraw._core.capabilities import AnySampler, Capability

MAX_SPEC_LEN = 128
"""Most draft tokens per request, as in vLLM since 0.11.0."""

SizeSwitches = Mapping[str, Sequence[int]]
"""Sizes at which kernels switch: `vocabulary`, `rows` (requests of a batch), and `drafts` of a request."""

_MOST = 8
"""Switches of one size: each costs calls on both of its sides."""


def checked_switches(where: str, switches: Any, *, drafts: bool) -> dict[str, tuple[int, ...]]:  # Any: to be checked
    """Return `switches` in order.

    Args:
        drafts: Whether the contract has drafts.

    Raises:
        ValueError: If a key is unknown, or its value is not a few whole numbers above 0.
    """
    known = ("vocabulary", "rows", *["drafts"] * drafts)
    if not isinstance(switches, Mapping) or not set(switches) <= set(known):
        rule = f"it must give sizes for some of {', '.join(known)}"
        raise ValueError(f"{where}: size_switches={switches!r}, but {rule}. Correct the keys.")
    for name, sizes in switches.items():
        is_list = isinstance(sizes, Sequence) and 1 <= len(sizes) <= _MOST
        if not is_list or not all(type(size) is int and size > 0 for size in sizes):
            rule = f"it must be 1 to {_MOST} whole numbers above 0"
            raise ValueError(f"{where}: size_switches[{name!r}]={sizes!r}, but {rule}. Name where it switches.")
    return {name: tuple(sorted(set(switches[name]))) for name in known if name in switches}


def switch_sides(sampler: AnySampler) -> tuple[dict[str, tuple[int, ...]], list[str]]:
    """Return the sizes on both sides of each switch that cases can reach, and what is said of all, a few words each.

    Raises:
        ValueError: If the attribute is none that `checked_switches` takes.
    """
    can, has_drafts = sampler.capabilities, hasattr(sampler, "verify")
    declared = getattr(sampler, "size_switches", {}) if has_drafts or hasattr(sampler, "sample") else {}
    switches = checked_switches(type(sampler).__name__, declared, drafts=has_drafts)
    most = {
        "vocabulary": 1025 if Capability.LARGE_VOCAB not in can else 2**14 if can.slow else 2**18,
        "rows": 2**10 if can.slow else 2**14,
        "drafts": MAX_SPEC_LEN if Capability.LONG_DRAFTS in can else 8,
    }
    sides: dict[str, tuple[int, ...]] = dict.fromkeys(most, ())
    words = []
    for name, sizes in switches.items():
        within = [size for size in sizes if size <= most[name]]
        beyond = ", ".join(str(size) for size in sizes if size > most[name])
        near = {size + by for size in within for by in (-1, 0, 1)}
        sides[name] = tuple(sorted(size for size in near if 1 <= size <= most[name]))
        words += [f"{name} {', '.join(map(str, within))}"] if within else []
        words += [f"left out: {name} {beyond}, as cases have at most {most[name]}"] if beyond else []
    return sides, words
