"""The page about scanners, made from their record and from nothing else.

python -m fairdraw.perf_regression._tables perf_regression/records/scanners_cpu.json docs/scanners.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

__all__ = ["scanners_page"]

Record = dict[str, Any]  # Any: JSON
HEAD = """# What a decode step costs on the host

Generated from `{record}` by `perf_regression/_tables.py`; measured by `perf_regression/_scanners.py`.

* {batch_size} requests, {vocab_size} entries in the vocabulary, lists grown token by token as a server does, and the
  real vLLM {vllm} in the same process. {clock}.
* {processor}, {cores} cores, {load} runnable processes per core; torch {torch} with {torch_threads} thread, Python
  {python}; {date}, commit `{commit}`.

*own*: after an untimed step of the same code, as in a server that runs it. *cold*: after vLLM's step, which reads every
token ever generated and leaves nothing of ours in the caches. The ratio is that of *own*, with its sign-test interval.
"""


def scanners_page(record: Record, name: str) -> str:
    """The page as Markdown."""
    parts = [
        _head(record, name),
        "## Promises\n",
        _promises(record["promises"]),
        "\n## Microseconds per step\n",
        _steps([*record["steps"]]),
        "\n## On the logits, which both sides pay\n",
        _steps(record["arithmetic"]),
        "\n## Instructions per step, by valgrind\n",
        f"{record['instructions'][0]['batch_size']} requests. The exponent is the slope of log count on log length.\n",
        _instructions(record["instructions"]),
    ]
    return "\n".join(parts) + "\n"


def _head(record: Record, name: str) -> str:
    machine, versions = record["machine"], record["versions"]
    fields = {key: record[key] for key in ("batch_size", "vocab_size", "clock", "torch_threads", "date", "commit")}
    load = {"load": machine["load_per_core"], "processor": machine["processor"], "cores": machine["cores"]}
    return HEAD.format(record=name, **fields, **load, **versions)


def _promises(promises: list[Record]) -> str:
    rows = [[one["what"], _short(one["value"]), _short(one["limit"]), one["verdict"]] for one in promises]
    return _table(["promise", "measured", "limit", "verdict"], rows)


def _steps(steps: list[Record]) -> str:
    rows = []
    for one in steps:
        us, cold = one["us"], one.get("cold_us", {})
        ratio = _ratio(one)
        stage_one = _micro(us["stage 1"]) if "stage 1" in us else "-"
        cells = [_micro(us["vllm"]), _micro(us["ours"]), _micro(cold.get("ours")), stage_one, ratio]
        rows.append([one["scanner"], str(one["num_drafts"]), str(one["length"]), *cells])
    return _table(["scanner", "drafts", "length", "vLLM", "ours, own", "ours, cold", "stage 1", "vLLM / ours"], rows)


def _ratio(one: Record) -> str:
    """How many times vLLM's cost is ours; with its interval where there were rounds enough for one."""
    if one["ratio"] is None:
        return _times(one["us"]["vllm"] / one["us"]["ours"])
    low, middle, high = (_times(1 / one["ratio"][bound]) for bound in ("high", "middle", "low"))
    return f"{middle} ({low} to {high})"


def _times(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2f}"


def _instructions(rows: list[Record]) -> str:
    lengths = list(rows[0]["per_step"])
    head = ["scanner", "drafts", *lengths, "exponent"]
    return _table(
        head,
        [[r["scanner"], str(r["num_drafts"]), *map(str, r["per_step"].values()), str(r["exponent"])] for r in rows],
    )


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _micro(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:3])
    target.write_text(
        scanners_page(json.loads(source.read_text(encoding="utf-8")), source.as_posix()), encoding="utf-8"
    )
    print(f"written: {target}")
