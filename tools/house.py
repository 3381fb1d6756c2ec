"""Measures the house: lines by package, lengths of functions, kernels, numeric accesses, cycles of imports, layers.

    python tools/house.py            # prints the table; tests/docs/test_house.py holds the limits
    python tools/house.py --lower    # lowers the limits of house.toml to what the folders have now

A line counts if it holds code: blank lines, comments and docstrings do not.
"""

from __future__ import annotations

import argparse
import ast
import io
import itertools
import statistics
import tokenize
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

import grimp

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src/fairdraw", "sampler_impl", "strategies", "properties", "statistical", "perf_regression")
"""The library. `src/fairdraw` holds links to the others, which are not followed."""
LIMITS = Path(__file__).with_name("house.toml")
SLACK = 50
"""Lines that a limit may be above what a folder has."""
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try)


def python_files(folder: str) -> Iterator[Path]:
    """Every module below `folder`; links to other folders are not followed."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        if not any(parent.is_symlink() for parent in path.parents if parent != ROOT):
            yield path


def _docstring_lines(tree: ast.Module) -> set[int]:
    """Return the lines of docstrings: of modules, classes, functions, and constants."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.update(range(node.lineno, (node.end_lineno or 0) + 1))
    return lines


def nodes(folder: str) -> Iterator[tuple[ast.AST, Path]]:
    """Yield every node of the modules below `folder`, and its file."""
    for path in python_files(folder):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield node, path.relative_to(ROOT)


@cache
def code_lines(text: str) -> set[int]:
    """Numbers of the lines of `text` that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines - _docstring_lines(ast.parse(text))


def lines_of(folder: str) -> int:
    """Return the lines of code below `folder`; a test module beside the library, which runs on any sampler, is none."""
    counted = (p for p in python_files(folder) if folder.startswith("tests") or not p.name.startswith("test_"))
    return sum(len(code_lines(path.read_text(encoding="utf-8"))) for path in counted)


def limits() -> dict[str, int]:
    """Return the limit of each folder in `house.toml`."""
    found: dict[str, int] = tomllib.loads(LIMITS.read_text(encoding="utf-8"))["lines"]
    return found


def lines_by_folder() -> dict[str, int]:
    """Return the lines of code of each folder that has a limit; a file counts in the innermost one."""
    folders = limits()
    inner = {folder: [one for one in folders if one.startswith(f"{folder}/")] for folder in folders}
    return {folder: lines_of(folder) - sum(map(lines_of, inner[folder])) for folder in folders}


def lower() -> None:
    """Rewrite the limits that a folder is below by more than the slack."""
    text, found = LIMITS.read_text(encoding="utf-8"), limits()
    for folder, lines in lines_by_folder().items():
        lowered = min(found[folder], -(-lines // SLACK) * SLACK)
        text = text.replace(f'"{folder}" = {found[folder]}\n', f'"{folder}" = {lowered}\n')
    LIMITS.write_text(text, encoding="utf-8")


def functions() -> list[tuple[int, str, Path]]:
    """(lines of code, name, file) of every function of the library and the tools."""
    found = []
    for path in (path for folder in (*FOLDERS, "engines/src", "tools") for path in python_files(folder)):
        text = path.read_text(encoding="utf-8")
        code = code_lines(text)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                span = range(node.lineno, (node.end_lineno or 0) + 1)
                found.append((len(code.intersection(span)), node.name, path.relative_to(ROOT)))
    return sorted(found, key=lambda one: (-one[0], one[1]))


def kernel_comments() -> tuple[int, int]:
    """Comment lines and all lines of the modules that hold Triton kernels."""
    comments = lines = 0
    for path in python_files("sampler_impl"):
        text = path.read_text(encoding="utf-8")
        if "@triton.jit" in text:
            comments += sum(line.lstrip().startswith("#") for line in text.splitlines())
            lines += len(text.splitlines())
    return comments, lines


def kernels() -> Iterator[tuple[ast.FunctionDef, Path]]:
    """Yield every Triton function, and its file."""
    for node, path in nodes("sampler_impl"):
        if isinstance(node, ast.FunctionDef) and "triton.jit" in "".join(map(ast.unparse, node.decorator_list)):
            yield node, path


def nesting(node: ast.AST) -> int:
    """Return how deep blocks of a function lie inside each other; `elif` is as deep as its `if`."""
    deepest = 0
    for name, value in ast.iter_fields(node):
        inside = [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, ast.AST)]
        is_elif = isinstance(node, ast.If) and name == "orelse" and len(inside) == 1 and isinstance(inside[0], ast.If)
        for one in inside:
            deepest = max(deepest, nesting(one) + (isinstance(one, _BLOCKS) and not is_elif))
    return deepest


def numeric_accesses() -> list[str]:
    """Return every place of `sampler_impl` that reads a member by its number, but for sizes of a shape."""
    found = []
    for node, path in nodes("sampler_impl"):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            is_size = isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
            if isinstance(node.slice.value, int) and not is_size:
                found.append(f"{path}:{node.lineno}: {ast.unparse(node)}")
    return found


def first_words(folder: str) -> Iterator[tuple[str, bool, str]]:
    """Yield place, whether it is a function's, and first word of each docstring of a function, class or constant."""
    for node, path in nodes(folder):
        body = getattr(node, "body", None)
        for before, one in itertools.pairwise([node, *body] if isinstance(body, list) else []):
            if isinstance(before, ast.Module) or not isinstance(one, ast.Expr):
                continue
            if isinstance(one.value, ast.Constant) and isinstance(one.value.value, str):
                word, is_function = one.value.value.split()[0], isinstance(before, ast.FunctionDef)
                yield f"{path}:{one.lineno}", is_function, word.strip(",.:;")


def import_cycle() -> list[str]:
    """Return modules that import each other, however far around. Imports for type checkers do not count."""
    graph = grimp.build_graph("fairdraw", exclude_type_checking_imports=True)
    try:
        TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules}).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def num_layers() -> int:
    """Layers that import-linter holds."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    return next(len(contract["layers"]) for contract in contracts if contract["type"] == "layers")


def _report() -> Iterator[str]:
    found = lines_by_folder()
    yield from (f"{lines:7,} of {limits()[folder]:,} {folder}" for folder, lines in found.items())
    yield f"{sum(found[folder] for folder in FOLDERS):7,} library"
    lengths = sorted(length for length, _, _ in functions())
    yield f"functions: {len(lengths):,}, median {statistics.median(lengths):g}, p90 {lengths[int(0.9 * len(lengths))]}"
    yield from (f"{length:7,} {name} in {path}" for length, name, path in functions()[:8])
    comments, lines = kernel_comments()
    yield f"comments in kernels: {comments} of {lines} lines ({comments / lines:.1%})"
    shapes = [(nesting(kernel), len(kernel.args.args), kernel.name) for kernel, _ in kernels()]
    deepest, longest = max(shapes), max(shapes, key=lambda one: one[1])
    yield f"kernels: {deepest[0]} blocks deep ({deepest[2]}), {longest[1]} parameters ({longest[2]})"
    yield f"numeric accesses: {len(numeric_accesses())}"
    yield f"layers: {num_layers()}; cycle of imports: {' '.join(import_cycle()) or 'none'}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lower", action="store_true", help="lower the limits in house.toml; none is ever raised")
    options = parser.parse_args()
    if options.lower:
        lower()
    print("\n".join(_report()))
