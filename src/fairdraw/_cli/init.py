"""`fairdraw init mypkg.kernels:verify`: the adapter, the test and the CI workflow that anybody would write anyway.

What is known of each contract is data in `templates/`: parameter names, capabilities, and the files to be written.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import textwrap
import tomllib
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

from fairdraw import __version__
from fairdraw._core.contracts import CONTRACTS
from fairdraw._run.capability_words import glossary
from fairdraw._run.loading import CannotStart, last_line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from inspect import Parameter
    from pathlib import Path

    from fairdraw._core.policies import Choice

_NUMPY = '''
import numpy as np
import torch


def numpy(value: object) -> object:
    """A tensor as an array, in float32 instead of bfloat16, which NumPy lacks; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return (value.float() if value.dtype is torch.bfloat16 else value).numpy()

'''


_SIGN = "        # "  # begins a comment in the brackets of the adapter


@dataclass(frozen=True)
class Skeleton:
    """What was written, and what is left to do.

    Args:
        written, kept: Files; those that are kept existed before and were not touched.
        known: Parameters by which the contract was detected; empty if it was named.
        unknown: Parameters of the callable that must be passed and that the suite has no value for.
        dropped: Parameters with a default that the suite has no value for: they are not passed.
        unsupported: Capabilities that the adapter declares unsupported.
        undecided: Capabilities that the names of the parameters do not decide: open, with a question in the adapter.
        slow: The adapter declares itself slow, since its kernels may be interpreted.
    """

    contract: str
    module: str
    written: tuple[Path, ...]
    kept: tuple[Path, ...]
    known: tuple[str, ...]
    unknown: tuple[str, ...]
    dropped: tuple[str, ...]
    unsupported: tuple[str, ...]
    undecided: tuple[str, ...]
    slow: bool

    def lines(self) -> list[str]:
        """What is printed."""
        adapter = f"{self.module}.py"
        found = f", by the parameters {', '.join(self.known)}; --contract names another" if self.known else ""
        ways = _table()[self.contract].choices
        todo = {
            f"fill in, in {adapter}": self.unknown,
            "not passed, so that the default is used": self.dropped,
            f"declared unsupported, check it in {adapter}": self._with_costs(self.unsupported),
            f"left open, answer in {adapter}": [*self._with_costs(self.undecided), *_asked(self.contract)],
        }
        return [
            f"contract: {self.contract}{found}",
            *(f"written: {path}" for path in self.written),
            *(f"kept, it exists: {path}" for path in self.kept),
            *(f"{what}: {', '.join(names)}" for what, names in todo.items() if names),
            *([f"other correct ways: take the # away in {adapter}"] if ways else []),
            *(
                ["declared slow, for Triton's interpreter: take slow=True away where there is a GPU"]
                if self.slow
                else []
            ),
            "what a word means, and which checks are skipped without it: fairdraw explain WORD",
            f"then: fairdraw check {self.module}:make --profile smoke",
        ]

    def _with_costs(self, words: Iterable[str]) -> list[str]:
        """Each with the number of checks that are skipped without it."""
        return [f"{word} ({len(glossary()[word].skipped.get(self.contract, ()))} checks)" for word in words]


@dataclass(frozen=True)
class _Wiring:
    """One contract of `templates/contracts.toml`, whose head describes the fields."""

    hints: list[str]
    arguments: dict[str, str]
    unsupported: dict[str, str] = field(default_factory=dict)
    needs: dict[str, dict[str, Any]] = field(default_factory=dict)  # Any: names, a reason, and switches
    choices: dict[str, str] = field(default_factory=dict)
    drafter: dict[str, str] = field(default_factory=dict)

    def covers(self, wanted: str, names: Collection[str]) -> bool:
        """Whether `wanted`, or the batch, noise or setup that holds it, is among the parameters `names`."""
        root = self.arguments[wanted].partition(".")[0]
        return wanted in names or (root in names and root in self.arguments)


@cache
def _table() -> Mapping[str, _Wiring]:
    return {name: _Wiring(**row) for name, row in tomllib.loads(_text("contracts.toml")).items()}


def _text(name: str) -> str:
    return files("fairdraw._cli").joinpath("templates", name).read_text(encoding="utf-8")


class _Template(Template):
    delimiter = "%"  # `$` is GitHub's, `@` Python's


def write_skeleton(spec: str, folder: Path, contract: str | None = None) -> Skeleton:
    """Write those of adapter, test and workflow that do not exist in `folder` for `pkg.module:callable`.

    Args:
        contract: The contract of the callable; detected by the names of its parameters if `None`.

    Raises:
        CannotStart: If the callable cannot be had, its contract cannot be detected, or a file cannot be written.
    """
    package, _, function = spec.partition(":")
    found = _imported(spec, package, function)
    signature = _signature(spec, found)
    name, known = (contract, ()) if contract else _detected(spec, signature)
    wiring, module = _table()[name], f"fairdraw_{function}"
    needed = [one for one, parameter in signature.items() if _is_passed(parameter, wiring)]
    unsupported, questions = _declared(wiring, needed)
    words = {"spec": spec, "package": package, "function": function, "module": module, "contract": name}
    imported = _modules(found)
    as_arrays = "numpy" in imported and "torch" not in imported
    words |= {"version": __version__, "ledger": "", "option": "", "imports": f"import {package}\n"}
    words["slow"] = ", slow=True" if "triton" in imported else ""  # interpreted; a person takes it away for a GPU
    if CONTRACTS[name].has_distributions:
        words |= {"ledger": _text("ledger.txt"), "option": " --ledger ledger.json"}
    words["imports"] += _NUMPY if as_arrays else ""
    words |= _drafter(package, wiring, as_arrays=as_arrays)
    words["call"] = _call(f"{package}.{function}", needed, wiring, as_arrays=as_arrays)
    words["unsupported"] = _declarations(unsupported, questions, wiring.choices)
    words["policy"] = "".join(_questions(*one) for one in _asked(name).items())
    texts = {
        folder / f"{module}.py": f"{name}.txt",
        folder / f"test_{module}.py": "test.txt",
        folder / ".github" / "workflows" / "fairdraw.yml": "workflow.txt",
    }
    kept = tuple(path for path in texts if path.exists())
    written = tuple(path for path in texts if path not in kept)
    for path in written:
        _write(path, _Template(_text(texts[path])).safe_substitute(words))
    unknown = tuple(one for one in needed if one not in wiring.arguments)
    dropped = tuple(one for one in signature if one not in needed)
    left = (tuple(unsupported), tuple(questions), bool(words["slow"]))
    return Skeleton(name, module, written, kept, known, unknown, dropped, *left)


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


def _signature(spec: str, found: Callable[..., object]) -> Mapping[str, Parameter]:
    try:
        return inspect.signature(found).parameters
    except (TypeError, ValueError) as error:
        raise CannotStart(f"{spec} has no readable signature: {last_line(error)}. Name a Python function.") from error


def _detected(spec: str, names: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """The contract that most parameters speak for, and these parameters.

    Raises:
        CannotStart: If none does, or several contracts are equally near.
    """
    known = {one: [name for name in names if name in wiring.arguments] for one, wiring in _table().items()}
    hinted = {
        one: [name for name in names if any(hint in name for hint in wiring.hints)] for one, wiring in _table().items()
    }
    scores = {one: (len(known[one]), len(hinted[one])) for one in known}
    nearest = [one for one, score in scores.items() if score == max(scores.values())]
    if len(nearest) > 1:
        raise CannotStart(
            f"{spec}: parameters=({', '.join(names)}), but they must show one contract, and they are equally near to "
            f"{' and '.join(nearest)}. Add --contract NAME."
        )
    return nearest[0], tuple(known[nearest[0]] or hinted[nearest[0]])


def _is_passed(parameter: Parameter, wiring: _Wiring) -> bool:
    """It has no default, or the suite has a value for it."""
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return False
    return parameter.default is parameter.empty or parameter.name in wiring.arguments


def _modules(found: Callable[..., object]) -> set[str]:
    """Names of the modules that the function's module has imported."""
    return {getattr(value, "__name__", "") for value in getattr(found, "__globals__", {}).values()}


def _call(path: str, names: Iterable[str], wiring: _Wiring, *, as_arrays: bool) -> str:
    """The call, one line per parameter; what the suite cannot know is `...`, which a person fills in."""
    text = ""
    for name in names:
        value = wiring.arguments.get(name)
        given = f"numpy({value})" if as_arrays and value else value
        text += f"        {name}={given},\n" if value else f"        {name}=...,  # fill in\n"
    text = f"{path}(\n{text}    )"
    return f"torch.as_tensor({text})" if as_arrays else text


_DRAFTER = '''
def propose(step: DraftStep, noise: SeededNoise) -> fairdraw.Drafted:
    """A draft token per request, and the distribution that it was drawn from; None if drafts are one-hot."""
    found = %{call}
    return found if isinstance(found, fairdraw.Drafted) else fairdraw.Drafted(*found)

'''
_TYPES = "Noise, RejectionSampler"
_NO_DRAFTER = (
    "# If you draft, too: a function `propose` beside yours, and both are judged together (docs/rejection.md).\n"
)


def _drafter(package: str, wiring: _Wiring, *, as_arrays: bool) -> dict[str, str]:
    """What the adapter says of the drafter: the function `propose` of the same module, if there is one."""
    found = getattr(sys.modules[package], "propose", None)
    if not wiring.drafter or as_arrays or not callable(found):
        return {"drafter": _NO_DRAFTER if wiring.drafter else "", "types": _TYPES, "propose": ""}
    known = replace(wiring, arguments=wiring.drafter)
    needed = [one for one, parameter in _signature(f"{package}:propose", found).items() if _is_passed(parameter, known)]
    call = _call(f"{package}.propose", needed, known, as_arrays=False)
    text = _Template(_DRAFTER).safe_substitute(call=call)
    return {"drafter": text, "types": f"DraftStep, {_TYPES}, SeededNoise", "propose": ", propose=propose"}


def _declared(wiring: _Wiring, names: list[str]) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """What the names of the parameters decide, word to reason; and what they leave open, word to reason and question.

    A name that is missing decides nothing as long as another parameter may stand for it under a name of its own: a
    capability that is unsupported by mistake lets a wrong sampler pass.
    """
    others = [name for name in names if name not in wiring.arguments]
    unsupported, questions = dict(wiring.unsupported), {}
    if any(name in names for name in ("uniforms", "exponentials")):
        handed = [word for word in ("request-seeds", "counter-noise") if word in wiring.needs]
        unsupported |= dict.fromkeys(("seeded-noise", *handed), "we are handed our noise")
    for word, need in wiring.needs.items():
        if word in unsupported or any(wiring.covers(name, names) for name in need["names"]):
            continue
        if need.get("certain") or ("seed" in names and word == "explicit-noise") or not (others or need.get("ask")):
            unsupported[word] = need["reason"]
        else:
            questions[word] = (need["reason"], _question(others, [wiring.arguments[name] for name in need["names"]]))
    return unsupported, questions


def _question(others: list[str], values: list[str]) -> str:
    value = " or ".join(values)
    if others:
        return f"Does any of {', '.join(others)} take {value}? If none does, it is unsupported:"
    return f"No parameter is called after {value}. If none takes it, it is unsupported:"


def _asked(contract: str) -> dict[str, Choice]:
    """The choices of the contract's policy."""
    policy = CONTRACTS[contract].policy
    return {name: choice for name, choice in policy.choices().items() if choice.ways} if policy else {}


def _questions(name: str, choice: Choice) -> str:
    """Each way but the default, as comments of which a person may make an argument."""
    _, *others = choice.ways.items()
    return _comment(choice.meaning) + "".join(f"{_comment(line)}{_SIGN}{name}={way},\n" for way, line in others)


def _comment(text: str) -> str:
    """The lines of a comment in brackets of the adapter."""
    lines = textwrap.fill(text, 110, initial_indent=_SIGN, subsequent_indent=_SIGN, break_on_hyphens=False)
    return f"{lines}\n"


def _declarations(
    unsupported: Mapping[str, str], questions: Mapping[str, tuple[str, str]], ways: Mapping[str, str]
) -> str:
    """Entries of the dictionary; questions and choices are comments, which a person may turn into entries."""
    text = "".join(f'        "{word}": "{reason}",\n' for word, reason in unsupported.items())
    for word, (reason, question) in questions.items():
        text += f'{_comment(question)}{_SIGN}"{word}": "{reason}",\n'
    if ways:
        text += f"{_SIGN}Several ways are correct here. Take the # away where the sentence is true of your sampler:\n"
    return text + "".join(f'{_SIGN}"{word}": "{reason}",\n' for word, reason in ways.items())


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise CannotStart(f"{path} cannot be written: {error.strerror}.") from None
