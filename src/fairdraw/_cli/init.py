"""`fairdraw init mypkg.kernels:verify`: the adapter, the test and the CI workflow that anybody would write anyway."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairdraw import __version__
from fairdraw._run.capability_words import glossary
from fairdraw._run.loading import CannotStart, last_line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from inspect import Parameter
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
    "synthetic_rates",
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

_OFFERED = {"explicit-noise": "we draw our own noise", "dense-drafts": "our drafts are one-hot"}
"""The reason that stands beside a question, should the answer be to decline."""

_CHOICES = {
    "token-verification": "we accept by another lossless scheme, for instance exact match or block verification",
    "reference-race": "we recover in another way, for instance from a cumulative sum",
    "reference-rounding": "we compute with log-probabilities, in float64, or by a Gumbel-max",
    "lowest-id-ties": "of equal logits, or equal scores of a race, another than the lowest id may come",
}
"""Where there are several right ways, and a signature does not say which one a sampler takes: word to reason."""

_COMMENT = "        # "

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
    # What your sampler does not promise, each with the reason; a unsupported capability is a visible, counted skip.
    # What a word means, and what declining it costs: fairdraw explain WORD
    unsupported = {{
{unsupported}{questions}        # Several ways are right here. Take the # away where the sentence is true of your sampler:
{choices}    }}
    return fairdraw.rejection_sampler(verify, name="{function}", device="cpu", unsupported=unsupported)
'''

_TEST = '''"""Every promise of the rejection contract, asked of our sampler; one test per check."""

import fairdraw
from {module} import make


@fairdraw.parametrize_with_checks([make()])
def test_sampler(sampler, check):
    check(sampler)
'''

_WORKFLOW = """# Properties and distributions with a fixed seed on every push, with fresh seeds at night. No GPU is needed.
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
      # torch first, so that you choose its build; one for CPUs is enough (PyTorch's installation page has the line).
      - run: pip install torch
      # PLACEHOLDER: fairdraw is on no package index yet. Commit its wheel (python -m build in a clone makes it), or
      # write git+https://YOUR.HOST/fairdraw@COMMIT here.
      - run: pip install ./fairdraw-{version}-py3-none-any.whl
      # PLACEHOLDER: your own package, so that {package} can be imported.
      - run: pip install .
      - if: github.event_name == 'push'
        run: fairdraw check {module}:make --profile ci
      - if: github.event_name == 'schedule'
        run: fairdraw check {module}:make --profile ci --seed fresh
"""


@dataclass(frozen=True)
class Skeleton:
    """What was written, and what is left to do.

    Args:
        unknown: Parameters of the callable that must be given and that the suite has no value for.
        unsupported: Capabilities that the adapter does not support.
        undecided: Capabilities that the names of the parameters do not decide: open, with a question in the adapter.
    """

    files: tuple[Path, ...]
    unknown: tuple[str, ...]
    unsupported: tuple[str, ...]
    undecided: tuple[str, ...]
    module: str

    def lines(self) -> list[str]:
        """What a person is told."""
        todo = {
            "fill in, in": self.unknown,
            "declared unsupported for you, check it in": _with_costs(self.unsupported),
            "left open, answer in": _with_costs(self.undecided),
        }
        return [
            *(f"written: {path}" for path in self.files),
            *(f"{what} {self.files[0]}: {', '.join(names)}" for what, names in todo.items() if names),
            f"other right ways to verify, to round and to break ties: take the # away in {self.files[0]}",
            "what a word means, and which checks are skipped without it: fairdraw explain WORD",
            f"then: fairdraw check {self.module}:make --profile smoke",
        ]


def write_skeleton(spec: str, folder: Path) -> Skeleton:
    """Write adapter, test and workflow for `pkg.module:callable` into `folder`; no existing file is touched.

    Raises:
        CannotStart: If the callable cannot be had, or a file exists.
    """
    package, _, function = spec.partition(":")
    signature = _signature(spec, _imported(spec, package, function))
    needed = [name for name, one in signature.items() if _is_passed(one)]
    unsupported, questions = _unsupported(signature)
    words = {"spec": spec, "package": package, "function": function, "module": f"fairdraw_{function}"}
    words |= {"arguments": _arguments(needed), "unsupported": _closed(unsupported), "questions": _questions(questions)}
    words["choices"] = "".join(f'{_COMMENT}"{word}": "{reason}",\n' for word, reason in _CHOICES.items())
    texts = {
        folder / f"{words['module']}.py": _ADAPTER,
        folder / f"test_{words['module']}.py": _TEST,
        folder / ".github" / "workflows" / "fairdraw.yml": _WORKFLOW,
    }
    present = [str(path) for path in texts if path.exists()]
    if present:
        raise CannotStart(f"{', '.join(present)} exists and is not overwritten. Remove it, or name another --folder.")
    for path, text in texts.items():
        _write(path, text.format(**words, version=__version__))
    unknown = tuple(name for name in needed if name not in _ARGUMENTS)
    return Skeleton(tuple(texts), unknown, tuple(unsupported), tuple(questions), words["module"])


def _signature(spec: str, found: Callable[..., object]) -> Mapping[str, Parameter]:
    try:
        return inspect.signature(found).parameters
    except (TypeError, ValueError) as error:
        raise CannotStart(f"{spec} has no readable signature: {last_line(error)}. Name a Python function.") from error


def _is_passed(parameter: Parameter) -> bool:
    """It has no default, or the suite has a value for it."""
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return False
    return parameter.default is parameter.empty or parameter.name in _ARGUMENTS


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


def _arguments(names: Iterable[str]) -> str:
    """One line per parameter; what the suite cannot know is `...`, which a person fills in."""
    lines = {name: f"{name}={_ARGUMENTS.get(name, '...')}," for name in names}
    return "".join(f"        {line}{'' if name in _ARGUMENTS else '  # fill in'}\n" for name, line in lines.items())


def _unsupported(names: Collection[str]) -> tuple[dict[str, str], dict[str, str]]:
    """What the names of the parameters decide, word to reason; and what they leave open, word to question.

    A name that is missing decides nothing, as long as another parameter may stand for it under a name of its own: a
    capability that is unsupported by mistake makes a wrong sampler green.
    """
    known = _ARGUMENTS.keys() & set(names)
    others = [name for name in names if name not in known]
    unsupported, questions = {"upstream-stream": "we do not draw in vLLM's order"}, {}
    if "synthetic_rates" not in known:
        unsupported["synthetic-rates"] = "we have no such mode"
    if known & _EXPLICIT:
        unsupported |= dict.fromkeys(("seeded-noise", "request-seeds"), "we are handed our noise")
    elif others and "seed" not in known:
        questions["explicit-noise"] = _question(others, "noise.uniforms or noise.exponentials")
    else:
        unsupported["explicit-noise"] = _OFFERED["explicit-noise"]
    if "draft_probs" not in known:
        questions["dense-drafts"] = _question(others, "batch.draft_probs")
    return unsupported, questions


def _question(names: list[str], value: str) -> str:
    if names:
        return f"Does any of {', '.join(names)} take {value}? If none does, declare it unsupported:"
    return f"No parameter is called after {value}. If none takes it, declare it unsupported:"


def _closed(unsupported: Mapping[str, str]) -> str:
    return "".join(f'        "{word}": "{reason}",\n' for word, reason in unsupported.items())


def _questions(questions: Mapping[str, str]) -> str:
    """Each as a comment, above the line that a person may take the `#` from."""
    lines = (
        f"{textwrap.fill(question, 100, initial_indent=_COMMENT, subsequent_indent=_COMMENT)}\n"
        f'{_COMMENT}"{word}": "{_OFFERED[word]}",\n'
        for word, question in questions.items()
    )
    return "".join(lines)


def _with_costs(words: Iterable[str]) -> list[str]:
    """Each with the checks that are skipped without it."""
    return [f"{word} ({len(glossary()[word].skipped['rejection'])} checks)" for word in words]


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise CannotStart(f"{path} cannot be written: {error.strerror}.") from None
