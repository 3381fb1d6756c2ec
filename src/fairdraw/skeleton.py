"""`fairdraw init mypkg.kernels:verify`: the adapter, the test and the CI workflow that anybody would write anyway."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairdraw.loading import CannotStart, last_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Skeleton", "write_skeleton"]

_BATCH_FIELDS = (
    "draft_token_ids",
    "num_draft_tokens",
    "max_spec_len",
    "cu_num_draft_tokens",
    "draft_probs",
    "target_logits",
    "bonus_token_ids",
    "temperature",
)

_ARGUMENTS = {
    **{name: f"batch.{name}" for name in _BATCH_FIELDS},
    "target_probs": "batch.target_probs()",
    "batch_size": "batch.batch_size",
    "vocab_size": "batch.vocab_size",
    "uniforms": "noise.uniforms",
    "exponentials": "noise.exponentials",
    "seed": "noise.seed",
}
"""Parameter name to what the suite hands over; other names are left for a person."""

_EXPLICIT = {"uniforms", "exponentials"}

_ADAPTER = '''"""{spec} as fairdraw meets it. Judge it with: fairdraw check {module}:make"""

from __future__ import annotations

from typing import TYPE_CHECKING

import fairdraw
import {package}

if TYPE_CHECKING:
    from torch import Tensor

    from fairdraw import Noise, RejectionSampler, SpecDecodeBatch


def verify(batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    """Accepted drafts, then one recovered or bonus token, then -1. The batch must not be modified."""
    return {package}.{function}(
{arguments}    )


def make() -> RejectionSampler:
    # What your sampler does not promise, each with the reason; a declined capability is a visible, counted skip.
    closed = {{
{closed}    }}
    return fairdraw.rejection_sampler(verify, name="{function}", device="cpu", closed=closed)
'''

_TEST = '''"""Every promise of the rejection contract, asked of our sampler; one test per check."""

import fairdraw
from {module} import make


@fairdraw.parametrize_with_checks([make()])
def test_sampler(sampler, check):
    check(sampler)
'''

_WORKFLOW = """# Properties on every push; fresh seeds at night. No GPU is needed.
name: fairdraw
on:
  push:
  schedule:
    - cron: "0 3 * * *"
jobs:
  sampler:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - run: pip install fairdraw
      - if: github.event_name == 'push'
        run: fairdraw check {module}:make --profile ci
      - if: github.event_name == 'schedule'
        run: fairdraw check {module}:make --profile ci --seed fresh
"""


@dataclass(frozen=True)
class Skeleton:
    """What was written, and what is left to do.

    Args:
        unknown: Parameters of the callable that the suite has no value for.
    """

    files: tuple[Path, ...]
    unknown: tuple[str, ...]
    module: str


def write_skeleton(spec: str, folder: Path) -> Skeleton:
    """Write adapter, test and workflow for `pkg.module:callable` into `folder`; no existing file is touched.

    Raises:
        CannotStart: If the callable cannot be had, or a file exists.
    """
    package, _, function = spec.partition(":")
    parameters = _parameters(spec, package, function)
    words = {"spec": spec, "package": package, "function": function, "module": f"fairdraw_{function}"}
    words |= {"arguments": _arguments(parameters), "closed": _closed(parameters)}
    texts = {
        folder / f"{words['module']}.py": _ADAPTER,
        folder / f"test_{words['module']}.py": _TEST,
        folder / ".github" / "workflows" / "fairdraw.yml": _WORKFLOW,
    }
    present = [str(path) for path in texts if path.exists()]
    if present:
        raise CannotStart(f"{', '.join(present)} exists and is not overwritten. Remove it, or name another --folder.")
    for path, text in texts.items():
        _write(path, text.format(**words))
    unknown = tuple(name for name in parameters if name not in _ARGUMENTS)
    return Skeleton(tuple(texts), unknown, words["module"])


def _parameters(spec: str, package: str, function: str) -> list[str]:
    """Names of the parameters without a default, and of those that the suite knows."""
    found = _imported(spec, package, function)
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError) as error:
        raise CannotStart(f"{spec} has no readable signature: {last_line(error)}. Name a Python function.") from error
    return [
        name
        for name, parameter in signature.parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and (parameter.default is parameter.empty or name in _ARGUMENTS)
    ]


def _imported(spec: str, package: str, function: str) -> Callable[..., object]:
    if not (package and function.isidentifier()):
        raise CannotStart(f"spec={spec!r}, but it must be pkg.module:callable. For instance: mypkg.kernels:verify")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as python -m does; the command does not
    try:
        found = getattr(importlib.import_module(package), function)
    except (Exception, SystemExit) as error:
        raise CannotStart(f"{spec} cannot be imported: {last_line(error)}") from error
    if not callable(found):
        raise CannotStart(f"{spec} is a {type(found).__name__}, but it must be callable. Name a function.")
    return found  # type: ignore[no-any-return]  # callable(found) has just been seen


def _arguments(parameters: list[str]) -> str:
    """One line per parameter; what the suite cannot know is `...`, which a person fills in."""
    return "".join(f"        {name}={_ARGUMENTS.get(name, '...,  # fill in').rstrip(',')},\n" for name in parameters)


def _closed(parameters: list[str]) -> str:
    """What the names of the parameters already tell."""
    closed = {"synthetic-rates": "we have no such mode", "upstream-stream": "we do not draw in vLLM's order"}
    if set(parameters) >= _EXPLICIT:
        closed["seeded-noise"] = "we are handed our noise"
        closed["request-seeds"] = "we are handed our noise"
    else:
        closed["explicit-noise"] = "we draw our own noise"
    if "draft_probs" not in parameters:
        closed["dense-drafts"] = "our drafts are one-hot"
    return "".join(f'        "{name}": "{reason}",\n' for name, reason in closed.items())


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise CannotStart(f"{path} cannot be written: {error.strerror}.") from None
