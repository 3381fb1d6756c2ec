"""The source of vLLM's functions, hashed without comments, docstrings and layout.

A release number is not enough: distributors backport changes under the same number.
"""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

HASH_LENGTH = 16


class UnknownSourceError(Exception):
    """A function is not where it should be."""


def source_hash(package: Path, target: str) -> str:
    """Of `vllm.v1.sample.sampler:Sampler.forward`, a function or class, read from the files below `package`.

    Raises:
        UnknownSourceError: If there is no such file or no such definition in it.
    """
    module, _, name = target.partition(":")
    path = package.joinpath(*module.split(".")[1:]).with_suffix(".py")
    definition: ast.AST = _parse(path)
    for part in name.split("."):
        definition = _member(definition, part, target)
    return hashlib.sha256(repr(_normalised(definition)).encode()).hexdigest()[:HASH_LENGTH]


@cache
def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError) as error:
        raise UnknownSourceError(f"{path.name} cannot be read ({error})") from None


def forget_sources() -> None:
    """Release the parsed files, about 9 MB."""
    _parse.cache_clear()


def _member(parent: ast.AST, name: str, target: str) -> ast.AST:
    for child in getattr(parent, "body", ()):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and child.name == name:
            return child
    raise UnknownSourceError(f"{target} is not defined")


def _normalised(node: object) -> object:
    """Nested tuples: kinds of nodes and their fields. Empty fields are left out, as Python releases add such."""
    if isinstance(node, ast.AST):
        fields = ((name, _without_docstring(value)) for name, value in ast.iter_fields(node))
        return (type(node).__name__, *((name, _normalised(value)) for name, value in fields if value not in (None, [])))
    if isinstance(node, list):
        return tuple(_normalised(item) for item in node)
    return repr(node)


def _without_docstring(value: object) -> object:
    """A body without the bare strings in it."""
    if not isinstance(value, list):
        return value
    return [item for item in value if not _is_bare_string(item)]


def _is_bare_string(item: object) -> bool:
    return isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) and isinstance(item.value.value, str)
