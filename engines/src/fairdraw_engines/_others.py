"""What several adapters share: rows of a session, and quiet imports of vLLM."""

import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

from fairdraw.adapters import SamplerRow, UnusableRelease, quiet_imports, triton_is_interpreted
from fairdraw.contracts import Markers, Move, RowChanges, SessionSampler

Upstream = Any  # Any: vLLM's modules and objects, of whatever release


T = TypeVar("T")


USUAL_SIZES = 272, 9216
"""Requests, and tokens of one, for which an engine's buffers are made: zeroing larger ones takes long."""
_ROOM = 1024
"""Tokens that may follow those that a request enters with."""


def sizes_for(changes: RowChanges) -> tuple[int, int]:
    """Return how many requests, and tokens of one, there is room for, if the first step of a session is this."""
    lengths = (len(a.prompt_token_ids) + len(a.output_token_ids) + _ROOM for a in changes.added)
    most, longest = USUAL_SIZES
    return max(most, changes.batch_size), max(longest, *lengths, 0) // 16 * 16


def rows_after(rows: Mapping[int, T], changes: RowChanges, entering: Sequence[T]) -> dict[int, T]:
    """Return who is in which row once the changes are followed; `entering` in the order of `changes.added`."""
    found = {row: one for row, one in rows.items() if row not in changes.removed}
    found |= {added.row: one for added, one in zip(changes.added, entering, strict=True)}
    for source, target, direction in changes.moved:
        moving, replaced = found.pop(source), found.pop(target, None)
        found[target] = moving
        if direction is Move.SWAP and replaced is not None:
            found[source] = replaced
    return found


def session_sampler(
    row: SamplerRow, release: str, device: str, what: str, function: Callable[[Any], Any], **more: Any
) -> SessionSampler:  # Any: as the contract has it; other fields of the sampler
    """Return the sampler of a release, named after the row, the release, and what of it is called."""
    facts = row.facts(release, device, slow=more.pop("slow", False))
    name = f"{facts['name']} {what}"
    return SessionSampler(function=function, contract=row.contract, **{**facts, "name": name, **more})


# vLLM, of whatever release is importable


class VllmNotThere(UnusableRelease, ModuleNotFoundError):
    """vLLM, a package that it imports, or a module that only other releases of it have."""

    def __init__(self, error: ModuleNotFoundError) -> None:
        super().__init__(*_whats_missing(str(error.name)))
        self.name = error.name


def _whats_missing(module: str) -> tuple[str, str]:
    vllm = sys.modules.get("vllm")
    if vllm is None or not module.startswith("vllm."):
        remedy = "Run pip install vllm, or, without a GPU, python tools/install.py vllm in a clone of fairdraw"
        return f"it needs the package {module}, which is not installed", remedy
    release, _, local = str(getattr(vllm, "__version__", "")).partition("+")
    if local == "single.file":  # made by tools/single_file_vllm.py
        rule = f"of vLLM {release}, which cannot be installed, only the file of rejection/vllm is here"
        return rule, "Install 0.11.2 or later: python tools/install.py vllm RELEASE --target FOLDER"
    rule = f"vLLM {release} has no module {module}"
    return rule, "Put another release on PYTHONPATH: python tools/install.py vllm RELEASE --target FOLDER"


def import_vllm(device: str, *modules: str) -> tuple[str, bool]:
    """Import vLLM and its `modules`; return its release without local parts, and whether Triton interprets its kernels.

    Raises:
        VllmNotThere: If vLLM, a package that it imports, or one of the modules is missing.
        RuntimeError: If triton was imported for a GPU and there is none.
    """
    interpreted = triton_is_interpreted(device)  # vLLM imports triton, whose mode must be chosen before
    with quiet_upstream():
        try:
            release = str(importlib.import_module("vllm").__version__).partition("+")[0]
            for name in modules:
                vllm_module(name)
        except ModuleNotFoundError as error:
            raise VllmNotThere(error) from error
    return release, interpreted


def vllm_module(name: str) -> Upstream:
    """Return the module `vllm.v1.<name>`."""
    return importlib.import_module(f"vllm.v1.{name}")


def reasoning_config(markers: Markers) -> SimpleNamespace:
    """Return what vLLM reads of its `ReasoningConfig`: the marker that models emit at the end is the one that is
    forced."""
    start, end = list(markers.start), list(markers.end)
    return SimpleNamespace(
        reasoning_start_token_ids=start, reasoning_end_token_ids=end, natural_reasoning_end_token_ids=end, enabled=True
    )


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
    """Pin no memory: without a GPU that fails, but vLLM's unspecified platform reports that it can.

    The patches are entered once and never left: a search through all modules takes longer than a step.
    """
    if device == "cpu" and not _UNPINNED:
        _UNPINNED.extend(unpinned())
        for patch in _UNPINNED:
            patch.__enter__()


_UNPINNED: list[AbstractContextManager[object]] = []


def unpinned() -> Iterator[AbstractContextManager[object]]:
    """Yield patches after which vLLM pins no memory. Until 0.23 modules ask at each call or in a default argument,
    later ones when they are imported."""
    for name, module in list(sys.modules.items()):
        if name.startswith("vllm.") and "is_pin_memory_available" in vars(module):
            yield mock.patch.object(module, "is_pin_memory_available", return_value=False)
        if name.startswith("vllm.") and "PIN_MEMORY" in vars(module):
            yield mock.patch.object(module, "PIN_MEMORY", False)
    copy = importlib.import_module("vllm.utils.torch_utils").async_tensor_h2d
    defaults = tuple(False if value is True else value for value in copy.__defaults__ or ())
    yield mock.patch.object(copy, "__defaults__", defaults or None)
