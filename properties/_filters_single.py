"""10x, 11x: each filter alone, with its usual settings, against its step of the specification."""

from __future__ import annotations

import inspect
from typing import Any

from fairdraw._core.checks import Check
from fairdraw._oracles.filters import FiltersOracle
from fairdraw.contracts import LOGIT_FILTERS, capability_of
from fairdraw.properties._filters_asserts import check, require_rows
from fairdraw.strategies.filters import filter_cases


def alone(name: str) -> Check:
    """Return the check of one filter: the docstring of its step is its title, what is required, and usual causes."""
    said = inspect.getdoc(getattr(FiltersOracle, name)) or ""
    title, _, meaning = said.partition("\n\nExample:")[0].partition(".\n\n")
    title = title if title[:3].isupper() else title[0].lower() + title[1:]
    fields: dict[str, Any] = {"title": title, "meaning": meaning, "needs": (capability_of(name),)}  # Any: of a check
    return check(LOGIT_FILTERS[name].code, lambda can: filter_cases(can, filters=(name,)), **fields)(require_rows)


SINGLE = tuple(map(alone, LOGIT_FILTERS))
