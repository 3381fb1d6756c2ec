"""What programs that make records share: machine and commit, many tasks in processes, files with a row per line."""

from __future__ import annotations

import ast
import importlib
import json
import os
import resource
import sys
import time
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, ProcessPoolExecutor, wait
from contextlib import suppress
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fairdraw.perf_regression._records import commit as commit
from fairdraw_engines._vllm_validation.validate import machine as machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

T, R = TypeVar("T"), TypeVar("R")
Json = dict[str, Any]  # Any: JSON

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests"))  # for the odd samplers


def python_path(*folders: object) -> dict[str, str]:
    """Return this environment, in which Python looks into these folders first, and then into this checkout."""
    given = filter(None, [os.environ.get("PYTHONPATH")])
    search = [*folders, ROOT / "src", ROOT / "engines" / "src", *given]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, search))}


def cpu_seconds() -> float:
    """Return the processor time of all processes that have ended below this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def table(titles: Iterable[object], rows: Iterable[Iterable[object]], rules: str | Sequence[str] = "---") -> list[str]:
    """Return the lines of a table in Markdown; `rules` is what stands below the titles, of all columns or of each."""
    heads = [*titles]
    each = [rules] * len(heads) if isinstance(rules, str) else rules
    return [_line(heads), f"|{'|'.join(each)}|", *map(_line, rows)]


def _line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def gpu() -> dict[str, object]:
    """The current GPU and its CUDA; empty without one."""
    import torch

    if not torch.cuda.is_available():
        return {}
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "L2_MiB": properties.L2_cache_size >> 20,
        "cuda": torch.version.cuda,
    }


def save(path: Path, plain: Any) -> None:  # Any: JSON
    """Write a record: every object of a list has a line of its own, so that a diff shows which rows changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{_rows(plain)}\n", encoding="utf-8")


def _rows(plain: Any) -> str:  # Any: JSON
    if isinstance(plain, list) and plain and all(isinstance(row, dict) for row in plain):
        return "[\n" + ",\n".join(map(_rows, plain)) + "\n]"
    if isinstance(plain, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {_rows(value)}" for key, value in plain.items()) + "}"
    return json.dumps(plain, ensure_ascii=False)


def write_rows(path: Path, head: Json, rows: Iterable[Json], by: Iterable[str]) -> None:
    """Write a record of many alike rows: a line holds those that agree in the fields `by`, and each value once.

    A field that differs among them is a list below `each`, with `null` for a row that lacks it.
    """
    groups: dict[tuple[str, ...], list[Json]] = {}
    names = tuple(by)
    for row in rows:
        groups.setdefault(tuple(json.dumps(row.get(name)) for name in names), []).append(row)
    lines = []
    for group in groups.values():
        columns = {name: [row.get(name) for row in group] for name in dict.fromkeys(n for row in group for n in row)}
        once = {name: values[0] for name, values in columns.items() if all(value == values[0] for value in values)}
        each = {name: values for name, values in columns.items() if name not in once}
        lines.append(json.dumps({**once, "each": each} if each else once, ensure_ascii=False))
    text = json.dumps(head, ensure_ascii=False)[:-1] + ', "rows": [\n' + ",\n".join(lines) + "\n]}\n"
    path.write_text(text.replace("{, ", "{", 1), encoding="utf-8")


def read_rows(path: Path) -> Json:
    """Read what `write_rows` wrote, with a dictionary for each row again."""
    record: Json = json.loads(path.read_text(encoding="utf-8"))
    rows: list[Json] = []
    for group in record["rows"]:
        each = group.pop("each", {})
        length = len(next(iter(each.values()), [None]))
        rows += [{**group, **{name: values[i] for name, values in each.items()}} for i in range(length)]
    return {**record, "rows": rows}


def read_lines(path: Path) -> list[Json]:
    """Return the rows that `appended` wrote; none if there is no file."""
    return [*map(json.loads, path.read_text(encoding="utf-8").splitlines())] if path.exists() else []


def appended(path: Path, rows: Iterable[Json]) -> Iterator[Json]:
    """Yield rows as they come, each after it was written to the end of a file."""
    with path.open("a", encoding="utf-8") as file:
        for row in rows:
            print(json.dumps(row), file=file, flush=True)
            yield row


def results(function: Callable[[T], R], tasks: Iterable[T], jobs: int, seconds: float = float("inf")) -> Iterator[R]:
    """Results as they are ready. After `seconds` no task is begun.

    A task that raises, or whose process dies, is named on stderr and has no result. With one job everything runs in
    this process, and an error ends it.
    """
    ends_at = time.monotonic() + seconds
    if jobs <= 1:
        yield from (function(task) for task in tasks if time.monotonic() < ends_at)
        return
    waiting = iter(tasks)
    # Without `max_tasks_per_child`: in CPython 3.11 and 3.12 the workers that it ends are not all replaced. Without
    # `cancel_futures`: `as_completed` waits for a cancelled future without end.
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        running = {pool.submit(function, task): task for task in islice(waiting, jobs)}
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                task, error = running.pop(future), future.exception()
                if error is None:
                    yield future.result()
                else:
                    print(f"no result: {task}: {error!r}", file=sys.stderr, flush=True)
                if time.monotonic() < ends_at:
                    with suppress(BrokenExecutor):  # a process died, and so every task has no result
                        running |= {pool.submit(function, task): task for task in islice(waiting, 1)}


def run_named(package: str) -> int:
    """Run the program of this package that the command line names; without a name, print the first line of each."""
    folder, (_, *words) = Path(__file__).parents[1] / package, sys.argv
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))}
    programs = {name: text for name, text in texts.items() if "\ndef main(" in text}
    if not words or words[0] not in programs:
        heads = {name: (ast.get_docstring(ast.parse(text)) or "").splitlines()[0] for name, text in programs.items()}
        print("\n".join(f"{name:18} {head}" for name, head in heads.items()))
        return 0 if not words else 2
    sys.argv = [f"{sys.argv[0]} {words[0]}", *words[1:]]
    return importlib.import_module(f"{package}.{words[0]}").main() or 0
