"""What the adapters of other projects' samplers share: known defects, quiet imports of vLLM, one request at a time."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import tomllib
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, TypeVar
from unittest import mock

import torch

from fairdraw._adapters._runtime import quiet_imports, triton_is_interpreted
from fairdraw.protocols import (
    PLACEHOLDER_TOKEN_ID,
    FunctionLogitsFilterer,
    FunctionSampler,
    FunctionTokenSampler,
    SpecDecodeBatch,
)
from fairdraw.protocols._lifecycle import Move

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor

    from fairdraw.protocols._lifecycle import RowChanges

Known = str | dict[str, Any]  # Any: a reason, and cases
"""A value of `known_defects`: a reason, or a reason with the number of cases that it takes to see the failure."""

Upstream = Any  # Any: vLLM's modules and objects, of whatever release


T = TypeVar("T")


USUAL_SIZES = 272, 9216
"""Requests, and tokens of one, for which an engine's buffers are made: zeroing larger ones takes long."""
_ROOM = 1024
"""Tokens that may follow those that a request enters with."""


def sizes_for(changes: RowChanges) -> tuple[int, int]:
    """Requests and tokens of one, if the first step of a session is this."""
    lengths = (len(a.prompt_token_ids) + len(a.output_token_ids) + _ROOM for a in changes.added)
    most, longest = USUAL_SIZES
    return max(most, changes.batch_size), max(longest, *lengths, 0) // 16 * 16


def rows_after(rows: Mapping[int, T], changes: RowChanges, entering: Sequence[T]) -> dict[int, T]:
    """Who is in which row once the changes are followed; `entering` in the order of `changes.added`."""
    found = {row: one for row, one in rows.items() if row not in changes.removed}
    found |= {added.row: one for added, one in zip(changes.added, entering, strict=True)}
    for source, target, direction in changes.moved:
        moving, replaced = found.pop(source), found.pop(target, None)
        found[target] = moving
        if direction is Move.SWAP and replaced is not None:
            found[source] = replaced
    return found


class Defect(TypedDict):
    """One entry of `known_defects.toml`; the head of the file describes the fields."""

    sampler: str
    checks: list[str]
    reason: str
    name: NotRequired[str]
    fixed: NotRequired[str]
    cases: NotRequired[int]
    link: NotRequired[str]
    since: NotRequired[str]


@dataclass(frozen=True)
class KnownSampler(FunctionSampler):
    """A function under the rejection contract, with its known defects."""

    known_defects: Mapping[str, Known] = field(default_factory=dict)


@dataclass(frozen=True)
class KnownTokenSampler(FunctionTokenSampler):
    """A function under the sampling contract, with its known defects."""

    known_defects: Mapping[str, Known] = field(default_factory=dict)


@dataclass(frozen=True)
class KnownFilterer(FunctionLogitsFilterer):
    """Filters under the filters contract, with their known defects."""

    known_defects: Mapping[str, Known] = field(default_factory=dict)


def known_defects(sampler: str, release: str = "0") -> dict[str, Known]:
    """Check code to the reason why `release` of `sampler` fails it, with a link where there is one."""
    reasons: dict[str, list[str]] = {}
    cases: dict[str, int] = {}
    for defect in read_defects():
        if not is_affected(defect, sampler, release):
            continue
        name = f"{defect['name']}: " if "name" in defect else ""
        link = f" ({defect['link']})" if "link" in defect else ""
        for code in defect["checks"]:
            reasons.setdefault(code, []).append(f"{name}{defect['reason']}{link}")
            cases[code] = max(cases.get(code, 0), defect.get("cases", 0))
    joined = {code: "; ".join(found) for code, found in sorted(reasons.items())}
    return {code: {"reason": text, "cases": cases[code]} if cases[code] else text for code, text in joined.items()}


def is_affected(defect: Defect, sampler: str, release: str) -> bool:
    """Whether the entry is about `release` of `sampler`: from `since` on, until `fixed`."""
    number = release_number(release)
    if defect["sampler"] != sampler or ("since" in defect and number < release_number(defect["since"])):
        return False
    return "fixed" not in defect or number < release_number(defect["fixed"])


@cache
def read_defects() -> list[Defect]:
    text = files("fairdraw._adapters").joinpath("known_defects.toml").read_text()
    defects: list[Defect] = tomllib.loads(text)["defect"]
    return defects


def release_number(release: str) -> tuple[int, ...]:
    """For comparison; words in a release (rc1, dev) count as nothing."""
    return tuple(int(part) for part in release.split(".") if part.isdigit())


def padded(rows: Sequence[Sequence[int]], batch: SpecDecodeBatch) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    """Rows of tokens as the contract's output."""
    width = batch.max_spec_len + 1
    filled = [[*row, *[PLACEHOLDER_TOKEN_ID] * (width - len(row))] for row in rows]
    return torch.tensor(filled, dtype=torch.int32, device=batch.device)


# vLLM, of whatever release is importable


def import_vllm(device: str, *modules: str) -> tuple[str, bool]:
    """Import vLLM and its `modules`; its release without local parts, and whether Triton interprets its kernels.

    Raises:
        ModuleNotFoundError: If vLLM, or a package that it imports, is missing.
        RuntimeError: If triton was imported for a GPU and there is none.
    """
    interpreted = triton_is_interpreted(device)  # vLLM imports triton, whose mode must be chosen before
    with quiet_upstream():
        release = str(importlib.import_module("vllm").__version__).partition("+")[0]
        for name in modules:
            vllm_module(name)
    return release, interpreted


def vllm_module(name: str) -> Upstream:
    """The module `vllm.v1.<name>`."""
    return importlib.import_module(f"vllm.v1.{name}")


@contextmanager
def quiet_upstream() -> Iterator[None]:
    """Import without a word: vLLM installs a log handler, and warns of the missing CUDA extension."""
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with quiet_imports():
            yield
    finally:
        logging.disable(level)


def unpin(device: str) -> None:
    """Without a GPU memory cannot be pinned, but vLLM's unspecified platform reports that it can.

    The patches are entered once and never left: a search through all modules takes longer than a step.
    """
    if device == "cpu" and not _UNPINNED:
        _UNPINNED.extend(unpinned())
        for patch in _UNPINNED:
            patch.__enter__()


_UNPINNED: list[AbstractContextManager[object]] = []


def unpinned() -> Iterator[AbstractContextManager[object]]:
    """Patches after which vLLM pins no memory. Until 0.23 modules ask at each call or in a default argument, later ones
    when they are imported."""
    for name, module in list(sys.modules.items()):
        if name.startswith("vllm.") and "is_pin_memory_available" in vars(module):
            yield mock.patch.object(module, "is_pin_memory_available", return_value=False)
        if name.startswith("vllm.") and "PIN_MEMORY" in vars(module):
            yield mock.patch.object(module, "PIN_MEMORY", False)
    copy = importlib.import_module("vllm.utils.torch_utils").async_tensor_h2d
    defaults = tuple(False if value is True else value for value in copy.__defaults__ or ())
    yield mock.patch.object(copy, "__defaults__", defaults or None)
