"""Promises that real vLLM releases are known to break; `vllm_defects.toml` as data."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any, NotRequired, TypedDict

__all__ = ["Defect", "Known", "known_defects", "read_defects", "stated"]

Known = str | dict[str, Any]  # Any: a reason, and cases
"""A value of `known_defects`: a reason, or a reason with the number of cases that it takes to see the failure."""


class Defect(TypedDict):
    """One entry of the file.

    Args:
        name: As in the table of deviations in `fairdraw.sampler_impl.rejection`.
        checks: Codes of the checks that it breaks.
        fixed: First release without it; absent if the newest that was tried has it.
        cases: How many cases it takes to see it; absent if those of profile `ci` are enough.
        link: Where upstream talks about it.
    """

    name: str
    checks: list[str]
    reason: str
    fixed: NotRequired[str]
    cases: NotRequired[int]
    link: NotRequired[str]


def known_defects(release: str) -> dict[str, Known]:
    """Check code to the reason why `release` fails it, with a link where there is one."""
    reasons: dict[str, list[str]] = {}
    cases: dict[str, int] = {}
    for defect in read_defects():
        if _has(release, defect):
            link = f" ({defect['link']})" if "link" in defect else ""
            for code in defect["checks"]:
                reasons.setdefault(code, []).append(f"{defect['name']}: {defect['reason']}{link}")
                cases[code] = max(cases.get(code, 0), defect.get("cases", 0))
    return {code: stated(found, cases[code]) for code, found in sorted(reasons.items())}


def stated(reasons: list[str], cases: int) -> Known:
    """A value of `known_defects`; of several defects the one that takes most cases counts."""
    reason = "; ".join(reasons)
    return {"reason": reason, "cases": cases} if cases else reason


@cache
def read_defects() -> list[Defect]:
    text = files("fairdraw._adapters").joinpath("vllm_defects.toml").read_text()
    defects: list[Defect] = tomllib.loads(text)["defect"]
    return defects


def _has(release: str, defect: Defect) -> bool:
    return "fixed" not in defect or _number(release) < _number(defect["fixed"])


def _number(release: str) -> tuple[int, ...]:
    """For comparison; words in a release (rc1, dev) count as nothing."""
    return tuple(int(part) for part in release.split(".") if part.isdigit())
