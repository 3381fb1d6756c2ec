"""What the adapters of other people's samplers share: known defects, and one request at a time."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, NotRequired, TypedDict

import torch

from fairdraw._adapters._vllm_defects import Known, stated
from fairdraw.protocols import (
    PLACEHOLDER_TOKEN_ID,
    Capabilities,
    Capability,
    FunctionSampler,
    FunctionTokenSampler,
    SpecDecodeBatch,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

__all__ = [
    "KnownSampler",
    "KnownTokenSampler",
    "OthersDefect",
    "defects_of",
    "padded",
    "read_others_defects",
    "unsupported",
]


class OthersDefect(TypedDict):
    """One entry of `others_defects.toml`.

    Args:
        sampler: Name of the adapter.
        checks: Codes of the checks that it breaks.
        cases: How many cases it takes to see it; absent if those of profile `ci` are enough.
        link: Where its authors, or a page of ours, talk about it.
    """

    sampler: str
    checks: list[str]
    reason: str
    cases: NotRequired[int]
    link: NotRequired[str]


@cache
def read_others_defects() -> list[OthersDefect]:
    text = files("fairdraw._adapters").joinpath("others_defects.toml").read_text()
    defects: list[OthersDefect] = tomllib.loads(text).get("defect", [])
    return defects


def defects_of(sampler: str) -> dict[str, Known]:
    """Check code to the reason why the adapter called `sampler` fails it, with a link where there is one."""
    reasons: dict[str, list[str]] = {}
    cases: dict[str, int] = {}
    for defect in read_others_defects():
        if defect["sampler"] == sampler:
            link = f" ({defect['link']})" if "link" in defect else ""
            for code in defect["checks"]:
                reasons.setdefault(code, []).append(f"{defect['reason']}{link}")
                cases[code] = max(cases.get(code, 0), defect.get("cases", 0))
    return {code: stated(found, cases[code]) for code, found in sorted(reasons.items())}


@dataclass(frozen=True)
class KnownSampler(FunctionSampler):
    """A function under the rejection contract, with the defects it is known to have."""

    known_defects: Mapping[str, Known] = field(default_factory=dict)


@dataclass(frozen=True)
class KnownTokenSampler(FunctionTokenSampler):
    """A function under the sampling contract, with the defects it is known to have."""

    known_defects: Mapping[str, Known] = field(default_factory=dict)


def unsupported(*groups: tuple[str, Sequence[Capability]], slow: bool = False) -> Capabilities:
    """Capabilities unsupported for one reason per group."""
    return Capabilities({capability: reason for reason, group in groups for capability in group}, slow)


def padded(rows: Sequence[Sequence[int]], batch: SpecDecodeBatch) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    """Rows of tokens as the contract's output."""
    width = batch.max_spec_len + 1
    filled = [[*row, *[PLACEHOLDER_TOKEN_ID] * (width - len(row))] for row in rows]
    return torch.tensor(filled, dtype=torch.int32, device=batch.device)
