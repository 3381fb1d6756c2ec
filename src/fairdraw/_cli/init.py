"""`fairdraw init mypkg.kernels:verify`: the adapter, the test and the CI workflow that anybody would write anyway.

What is known of each contract is data in `templates/`: parameter names, capabilities, and the files to be written. What
a signature does not say stands in the adapter behind `QUESTION:`, at its place; what is printed is read from there.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import textwrap
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from inspect import Parameter
from pathlib import Path
from typing import Any

from fairdraw import __version__
from fairdraw._core.contracts import CONTRACTS
from fairdraw._run.capability_words import glossary
from fairdraw._run.loading import CannotStart, is_address, last_line

_SIGN = "        # "  # begins a comment in the brackets of the adapter
_SEEDS = {"seed", "key", "rng_key", "rng", "generators", "request_seeds"}
_PADDED = re.compile(r"\bpadded\b|\[(?:B|N|bs|batch\w*), ?(?:K|max_\w+|num_\w+)[\],]")


@dataclass(frozen=True)
class _Wiring:
    """One contract of `templates/contracts.toml`, whose head describes the fields."""

    hints: list[str]
    arguments: dict[str, str]
    unsupported: dict[str, str] = field(default_factory=dict)
    needs: dict[str, dict[str, Any]] = field(default_factory=dict)  # Any: names, a reason, and switches
    choices: dict[str, str] = field(default_factory=dict)
    drafter: dict[str, str] = field(default_factory=dict)
    off: dict[str, str] = field(default_factory=dict)
    padded: dict[str, str] = field(default_factory=dict)

    def covers(self, wanted: str, names: Collection[str]) -> bool:
        """Whether `wanted`, or the batch, noise or setup that holds it, is among the parameters `names`."""
        return bool({wanted, self.arguments[wanted].partition(".")[0]} & {*self.arguments} & {*names})

    def passes(self, parameter: Parameter) -> bool:
        """Whether it has no default, or the suite has a value for it."""
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            return False
        return parameter.default is parameter.empty or parameter.name in self.arguments

    def value(self, parameter: Parameter) -> str | None:
        """Return what the suite passes, without None unless the parameter takes it; nothing if it knows no value."""
        takes_none = parameter.default is None or "None" in str(parameter.annotation)
        return (self.arguments if takes_none else self.arguments | self.off).get(parameter.name)


@cache
def _data(name: str) -> Mapping[str, Any]:  # Any: tables of strings, as the head of the file says
    return tomllib.loads(_text(f"{name}.toml"))


def _wiring(contract: str) -> _Wiring:
    own = dict(_data("contracts")[contract])
    like = _data("contracts").get(own.pop("like", ""), {})
    return _Wiring(**{**like, **own, "arguments": like.get("arguments", {}) | own["arguments"]})


def _text(name: str, words: Mapping[str, str] | None = None) -> str:
    """Return a template, with `%{word}` replaced: `$` is GitHub's, `{` Python's."""
    text = files("fairdraw._cli").joinpath("templates", name).read_text(encoding="utf-8")
    return re.sub(r"%\{(\w+)\}", lambda found: words[found[1]], text) if words else text


@dataclass(frozen=True)
class _Target:
    """The function or the class that is to be tested, and how it is called under a contract.

    Args:
        made: How the adapter names it: what calls the function, or makes an object of the class.
        answer: The method of a class that answers; empty for a function.
        library: The module whose arrays it takes; empty for tensors.
    """

    made: str
    found: Callable[..., object]
    wiring: _Wiring
    answer: str = ""
    library: str = ""

    def signature(self, method: str = "") -> dict[str, Parameter]:
        """Return the parameters of the callable, or of a method without its object."""
        found = getattr(self.found, method) if method else self.found
        return dict(list(_signature(self.made, found).items())[bool(method) :])

    def call(self, path: str, method: str = "", arguments: Mapping[str, str] | None = None, deep: int = 0) -> str:
        """Return the call, one line for each parameter; what the suite cannot know is `...`, below a question."""
        wiring = self.wiring if arguments is None else replace(self.wiring, arguments=dict(arguments), off={})
        passed = {one: wiring.value(one) for one in self.signature(method).values() if wiring.passes(one)}
        near = {*wiring.padded.values()} & {*wiring.arguments.values()} or {*wiring.arguments.values()}
        left = sorted(near - {*passed.values(), "batch", "noise"})
        text = ""
        for one, value in passed.items():
            if value is None:
                text += _comment(f"QUESTION: what is {one.name}? Perhaps {', '.join(left) or 'a constant'}")
            text += f"        {'' if one.kind is one.POSITIONAL_ONLY else f'{one.name}='}{value or '...'},\n"
        if self.library and method == self.answer:
            path = f"fairdraw.with_arrays({self.library})({path})"
        return f"{path}(\n{text}    )".replace("\n", "\n" + " " * deep) if text else f"{path}()"

    def events(self, own: str) -> dict[str, str]:
        """Return the calls of methods whose names say when they are meant: by the kind of the event."""
        found = dict.fromkeys(_data("state")["events"], "")
        for kind, about in _data("state")["events"].items():
            for name in _methods(self.found):
                if name != self.answer and name.startswith(tuple(about["words"])):
                    call = self.call(f"{own}.{name}", name, about["arguments"], about["deep"] - 4)
                    found[kind] += f"{about['loop']}{' ' * about['deep']}{call}\n"
        return found


def write_skeleton(spec: str, folder: Path, contract: str | None = None) -> list[str]:
    """Write those of adapter, test and workflow that do not exist in `folder` for `pkg.module:callable`.

    Args:
        contract: The contract of the callable; detected by the names of its parameters if `None`.

    Returns:
        What is printed: the files, and the questions that are open in the adapter.

    Raises:
        CannotStart: If the callable cannot be had, its contract cannot be detected, or a file cannot be written.
    """
    package, _, function = spec.partition(":")
    found = _imported(spec, package, function)
    methods = _methods(found)
    names = dict.fromkeys([*methods, *(name for one in (found, *methods.values()) for name in _signature(spec, one))])
    name, known = (contract, ()) if contract else _detected(spec, function, list(names))
    wiring, module = _wiring(name), f"fairdraw_{function}"
    library = "" if name in _data("state")["made"] else _library(found)  # a matcher's methods get tensors
    if "seed" in wiring.arguments:
        wiring = replace(wiring, arguments=wiring.arguments | _data("state")["libraries"].get(library, {}))
    words = _words(_Target(f"{package}.{function}", found, wiring, _answer(methods, wiring, name), library), name)
    words |= {"spec": spec, "package": package, "function": function, "module": module, "contract": name}
    draws = CONTRACTS[name].has_distributions
    words |= {"ledger": _text("ledger.txt") * draws, "option": " --ledger ledger.json" * draws, "version": __version__}
    workflow = folder / ".github" / "workflows" / "fairdraw.yml"
    adapter, test = folder / f"{module}.py", folder / f"test_{module}.py"
    lines = [f"contract: {name}" + f", by the parameters {', '.join(known)}; --contract names another" * bool(known)]
    for path, template in ((adapter, words["template"]), (test, "test.txt"), (workflow, "workflow.txt")):
        lines.append(f"kept, it exists: {path}" if path.exists() else f"written: {path}")
        if not path.exists():
            _write(path, _text(template, words))
    return [*lines, *_left(adapter, name, words["dropped"]), f"then: fairdraw check {module}:make --profile smoke"]


def _left(adapter: Path, contract: str, dropped: str) -> list[str]:
    """Return what a person has to look at in the adapter, as it stands in its folder now."""
    text = adapter.read_text(encoding="utf-8", errors="replace")
    known, words = glossary(), re.findall(r'^ +"([\w-]+)": "', text, re.MULTILINE)
    costs = [f"{word} ({len(known[word].skipped.get(contract, ()))} checks)" for word in words if word in known]
    lines = [(i, line.partition("QUESTION: ")[2]) for i, line in enumerate(text.splitlines(), 1)]
    asked = "".join(f"\n  line {i}: {question}" for i, question in lines if question)
    left = {
        "not passed, so that the default is used: ": dropped,
        f"declared unsupported, check it in {adapter.name}: ": ", ".join(costs),
        "what a word means, and which checks are skipped without it: ": "fairdraw explain WORD",
        f"questions, each at its place in {adapter.name}:": asked,
    }
    return [f"{what}{value}" for what, value in left.items() if value]


def _words(target: _Target, contract: str) -> dict[str, str]:
    """Return the words of the adapter's template, and which template it is."""
    wiring, signature = target.wiring, target.signature(target.answer)
    returned = _data("state")["returned"].get(contract, {}).get(target.library, "")
    words = {"before": returned, "template": f"{contract}.txt", **_drafter(target)}
    if wiring.padded and not {"batch", "cu_num_draft_tokens", "max_spec_len"} & set(signature):
        is_padded = _PADDED.search(inspect.getdoc(target.found) or "")
        words["before"] = f"    {_data('state')['padded']['sure' if is_padded else 'open']}\n"
        if is_padded:
            unsupported = wiring.unsupported | _data("state")["padded"]["unsupported"]
            wiring = replace(wiring, arguments=wiring.arguments | wiring.padded, off={}, unsupported=unsupported)
            target = replace(target, wiring=wiring)
    needed = [name for name, one in signature.items() if wiring.passes(one)]
    unsupported, questions = _declared(wiring, needed)
    if contract in _data("state")["sessions"] and target.answer:
        unsupported |= _data("state")["unsupported"]
        del unsupported["new-tokens-only"]
    words["dropped"] = ", ".join(name for name in signature if name not in needed)
    words["slow"] = _data("state")["slow"] * ("triton" in _modules(target.found))
    words["unsupported"] = _declarations(unsupported, questions, wiring.choices)
    policy = CONTRACTS[contract].policy
    words["policy"] = "".join(_questions(name, *one) for name, one in (policy.choices() if policy else {}).items())
    return words | _calls(target, contract)


def _calls(target: _Target, contract: str) -> dict[str, str]:
    """Return imports and calls; of a class, how and when an object is made, and what its other methods get."""
    roots = target.library.partition(".")[0], target.made.rpartition(".")[0]
    imports = "".join(f"import {name}\n" for name in roots if name)
    if CONTRACTS[contract].method == target.answer:
        parts = ("name", "device", "capabilities")
        lacking = ", ".join(part for part in parts if not hasattr(target.found, part)) or "nothing"
        made = target.call("Sampler", arguments={})
        sign = "" if lacking == "name, device, capabilities" else "# "  # it does not hide what the class has
        return {"imports": imports, "template": "object.txt", "lacking": lacking, "sign": sign, "made": made}
    if (made := _data("state")["made"].get(contract)) is not None:
        return {"imports": imports} | _made(target, made)
    if not target.answer:
        return {"imports": imports, "call": target.call(target.made)}
    if (session := _data("state")["sessions"].get(contract)) is None:
        made = target.call(target.made, arguments={})
        call = target.call(f"own.{target.answer}", target.answer)
        imports += f"\nown = {made}  # one object for the whole run, as in an engine\n{_uncalled(target, call)}"
        return {"imports": imports, "call": call}
    entering = _data("state")["events"]["added"]["arguments"]
    by_row = any(entering.get(name, "").startswith("added.") for name in target.signature())
    own, kind = ("self.rows[row][0]", "row") if by_row else ("self.own", "batch")
    made = target.call(target.made, arguments=entering if by_row else session["opening"], deep=4)
    words = {"entering": made, "own": ""} if by_row else {"entering": own, "own": f"        {own} = {made}\n"}
    call = target.call(f"{own}.{target.answer}", target.answer, session[kind], session[f"deep_{kind}"])
    words |= target.events(own) | {"answer": session[f"each_{kind}"].replace("CALL", call)}
    uncalled = textwrap.indent(_uncalled(target, "".join(words.values())), "    ")
    return words | {"imports": imports, "template": f"{contract}_state.txt", "uncalled": uncalled}


def _made(target: _Target, about: Mapping[str, str]) -> dict[str, str]:
    """Return how the object is made that the contract walks: it is of the class, or its method `open` returns it."""
    call = target.call(target.made, deep=4)
    if "open" in _methods(target.found):
        return {"kept": f"compiled = {call}", "call": "return self.compiled.open()"}
    lacking = [part for part in (*about["walked"], *about["asked"]) if not hasattr(target.found, part)]
    asked = about["lacks" if inspect.isclass(target.found) else "returns"].format(", ".join(lacking)) * bool(lacking)
    return {"kept": about["kept"], "call": asked + about["call"].format(call)}


def _uncalled(target: _Target, text: str) -> str:
    """Return the question when the methods are called that neither the adapter nor the class calls."""
    try:
        source = inspect.getsource(target.found)
    except OSError:  # a program made the class
        source = ""
    others = [name for name in _methods(target.found) if f"self.{name}(" not in source]
    names = [name for name in others if not re.search(rf"\.{name}\b", text)]
    return f"# QUESTION: when is each of {', '.join(names)} called? Nothing here calls it.\n" if names else ""


def _imported(spec: str, package: str, function: str) -> Callable[..., object]:
    if is_address(spec):
        raise CannotStart(f"spec={spec!r}, but a server needs no adapter. Run fairdraw check {spec}")
    if not (package and function.isidentifier()):
        raise CannotStart(f"spec={spec!r}, but it must be pkg.module:callable. For instance: mypkg.kernels:verify")
    try:
        found = importlib.import_module("fairdraw.adapters").find(spec)  # by name, as in `load_sampler`
    except (Exception, SystemExit) as error:
        raise CannotStart(f"{spec} cannot be imported: {error}") from error
    if not callable(found):
        raise CannotStart(f"{spec} is a {type(found).__name__}, but it must be callable. Name a function or a class.")
    return found  # type: ignore[no-any-return]  # callable(found) has just been seen


def _methods(found: Callable[..., object]) -> dict[str, Callable[..., object]]:
    """Return the public methods of a class, in their order, and `__call__`; a function has none."""
    kinds = reversed(inspect.getmro(found)) if inspect.isclass(found) else ()
    named = {name: one for kind in kinds for name, one in vars(kind).items()}
    return {n: one for n, one in named.items() if inspect.isfunction(one) and (n == "__call__" or n[0] != "_")}


def _answer(methods: Mapping[str, Callable[..., object]], wiring: _Wiring, contract: str) -> str:
    """Return the method that answers: the contract's own, or the one with most parameters that the contract knows."""
    if CONTRACTS[contract].method in methods:
        return CONTRACTS[contract].method
    if contract in _data("state")["made"]:
        return ""
    events = tuple(word for event in _data("state")["events"].values() for word in event["words"])
    may = {name: one for name, one in methods.items() if not name.startswith(events)}
    return max(may, key=lambda name: sum(one in wiring.arguments for one in _signature(name, may[name])), default="")


def _signature(spec: str, found: Callable[..., object]) -> dict[str, Parameter]:
    try:
        return dict(inspect.signature(found).parameters)
    except (TypeError, ValueError) as error:
        raise CannotStart(f"{spec} has no readable signature: {last_line(error)}. Name a Python function.") from error


def _detected(spec: str, function: str, names: list[str]) -> tuple[str, tuple[str, ...]]:
    """The contract that most parameters speak for, and these parameters; of two equally near, the function's name says.

    Raises:
        CannotStart: If none does, or several contracts are equally near.
    """
    known = {one: [name for name in names if name in _wiring(one).arguments] for one in CONTRACTS}
    hinted = {one: [name for name in names if any(hint in name for hint in _wiring(one).hints)] for one in CONTRACTS}
    says = {one: (_has_methods(one, names), CONTRACTS[one].method == function) for one in CONTRACTS}
    scores = {one: (says[one][0], len(known[one]), len(hinted[one]), says[one][1]) for one in CONTRACTS}
    nearest = [one for one, score in scores.items() if score == max(scores.values())]
    if len(nearest) > 1:
        given, near = f"{spec}: parameters=({', '.join(names)})", " and ".join(nearest)
        rule = f"they must show one contract, and they are equally near to {near}"
        raise CannotStart(f"{given}, but {rule}. Add --contract NAME.")
    return nearest[0], tuple(known[nearest[0]] or hinted[nearest[0]])


def _has_methods(contract: str, names: Collection[str]) -> bool:
    """Whether the contract's method is there, or those of the objects that it walks, as in `accept_token`."""
    walked = _data("state")["made"].get(contract, {"walked": ()})["walked"]
    begun = [one for one in walked if any(name.startswith(one) for name in names)]
    return CONTRACTS[contract].method in names or (bool(walked) and begun == walked)


def _modules(found: Callable[..., object]) -> set[str]:
    """Names of the modules that the function's module has imported."""
    return {getattr(value, "__name__", "") for value in vars(sys.modules[found.__module__]).values()}


def _library(found: Callable[..., object]) -> str:
    """Return the library whose arrays it takes: that of its module, unless the module has torch, too."""
    known = [library for library in ("torch", "jax", "jax.numpy", "numpy") if library in _modules(found)]
    return {"torch": "", "jax": "jax.numpy"}.get(known[0], known[0]) if known else ""


def _drafter(target: _Target) -> dict[str, str]:
    """What the adapter says of the drafter: the function `propose` of the same module, if there is one."""
    module = target.made.rpartition(".")[0]
    found, known = getattr(sys.modules[module], "propose", None), target.wiring.drafter
    if not known or not callable(found):
        return {"drafter": _text("no_propose.txt") if known else "", "propose": ""}
    drafter = replace(target, made=f"{module}.propose", found=found, answer="")
    words = {"call": drafter.call(drafter.made, arguments=known)}
    return {"drafter": _text("propose.txt", words), "propose": ", propose=propose"}


def _declared(wiring: _Wiring, names: list[str]) -> tuple[dict[str, str], str]:
    """What the names of the parameters decide, word to reason; and what they leave open, as one question.

    A name that is missing decides nothing as long as another parameter may stand for it under a name of its own: a
    capability that is unsupported by mistake lets a wrong sampler pass.
    """
    others = [name for name in names if name not in wiring.arguments]
    unsupported, open_words = dict(wiring.unsupported), ""
    if any(wiring.arguments.get(name) in ("noise.uniforms", "noise.exponentials") for name in names):
        handed = [word for word in ("request-seeds", "counter-noise") if word in wiring.needs]
        unsupported |= dict.fromkeys(("seeded-noise", *handed), "we are handed our noise")
    for word, need in wiring.needs.items():
        if word in unsupported or any(wiring.covers(name, names) for name in need["names"]):
            continue
        is_drawing = word == "explicit-noise" and _SEEDS & set(names)
        if need.get("certain") or is_drawing or not (others or need.get("ask")):
            unsupported[word] = need["reason"]
        else:
            values = " or ".join(wiring.arguments[name] for name in need["names"])
            open_words += f'{_SIGN}"{word}": "{need["reason"]}",  # {values}\n'
    rule = f"does any of {', '.join(others)} take these?" if others else "does a parameter take these?"
    asked = _comment(f"QUESTION: {rule} Take the # away where none does:") if open_words else ""
    return unsupported, asked + open_words


def _questions(name: str, meaning: str, ways: Mapping[str, str]) -> str:
    """Each way but the default, as comments of which a person may make an argument."""
    others = "".join(f"{_comment(line)}{_SIGN}{name}={way},\n" for way, line in list(ways.items())[1:])
    return others and _comment(f"QUESTION: another way than vLLM's? {meaning}") + others


def _comment(text: str) -> str:
    """The lines of a comment in brackets of the adapter."""
    return textwrap.fill(text, 110, initial_indent=_SIGN, subsequent_indent=_SIGN, break_on_hyphens=False) + "\n"


def _declarations(unsupported: Mapping[str, str], questions: str, ways: Mapping[str, str]) -> str:
    """Entries of the dictionary; questions and choices are comments, which a person may turn into entries."""
    text = "".join(f'        "{word}": "{reason}",\n' for word, reason in unsupported.items()) + questions
    text += f"{_SIGN}QUESTION: which is true of yours? Take its # away; all others are tested:\n" * bool(ways)
    return text + "".join(f'{_SIGN}"{word}": "{ways[word]}",\n' for word in ways if word not in unsupported)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CannotStart(f"{path} cannot be written: {error.strerror}.") from None
