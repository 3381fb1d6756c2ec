"""The page of the record, which the build of the manual adds."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import matrix
from records import rows_as_json

from servers.process import SERVERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from servers.process import Server

Row = dict[str, Any]  # Any: JSON

HEAD = """# Servers that were tested

Written by `tools/servers` from the results of `fairdraw check URL`. Each server was started on loopback with a tiny
random model (a Llama of two layers, 98 tokens of one character), checked by its address, and stopped:

```bash
make server SERVER=llama.cpp PROFILE=smoke     # or transformers, mlx; PROFILE=ci
```

Where a server speculates with a draft model, the same server without one stands beside it as the reference. `xfailed`:
a known defect, named below; an entry that no longer fails makes the run red. `skipped`: the server returns nothing that
the check could judge, or refuses the request; the reasons are below. `sees TV`: the total variation that the strongest
and the weakest of the distribution checks see with power 0.999, at the error rate of the run.
"""


def row_of(server: Server, profile: str, report: Sequence[Row]) -> Row:
    """One row: how many checks passed, were skipped and so on, every one that did not pass, and what the run sees."""
    header, summary = report[0], report[-1]
    records = [one for one in report if one["kind"] == "check"]
    counts: dict[str, int] = {}
    for record in records:
        counts[record["status"]] = counts.get(record["status"], 0) + 1
    failures = [one for one in records if one["status"] not in ("passed", "skipped")]
    skipped: dict[str, list[str]] = {}
    for record in records:
        if record["status"] == "skipped":
            skipped.setdefault(_plain(record["reason"]), []).append(record["code"])
    return {
        "name": server.name,
        "engine": f"{server.packages[0]} {server.version}",
        "about": server.about,
        "dialect": _plain(header.get("about", [""])[0]).removeprefix("dialect: "),
        "sees": header["fairness"],
        "verdict": summary["verdict"],
        "counts": counts,
        "failures": [{key: one[key] for key in ("code", "title", "status", "reason")} for one in failures],
        "skipped": skipped,
        "seconds": round(summary["seconds"]),
        "origin": matrix.describe_run(profile) | {"date": header["started"], "commit": header["commit"]},
    }


def _plain(text: str) -> str:
    """Without paths, addresses and numbers of this run."""
    text = re.sub(r"model \S*/(model[\w.]*)", r"model \1", text)
    return re.sub(r"decide \d+ of \d+ positions of '.*?'", "decide few positions", text)


def write(path: Path, row: Row) -> None:
    """The row replaces that of the same server; the others stay."""
    rows = {one["name"]: one for one in json.loads(path.read_text())} if path.exists() else {}
    rows[row["name"]] = row
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(rows_as_json([rows[name] for name in SERVERS if name in rows]))


def page(rows: Sequence[Row]) -> str:
    titles = ("server", "what it is", "run", "passed", "xfailed", "failed", "skipped", "sees TV")
    lines = [HEAD, "| " + " | ".join(titles) + " |", "| --- | --- |" + " ---: |" * 6]
    lines += [_line(row) for row in rows]
    return "\n".join([*lines, "", *(line for row in rows for line in _section(row))]).rstrip() + "\n"


def _line(row: Row) -> str:
    counts = row["counts"]
    run = sum(count for status, count in counts.items() if status != "skipped")
    other = sum(count for status, count in counts.items() if status not in ("passed", "xfailed", "skipped"))
    sees = re.findall(r"sees TV >= ([\d.]+(?: to [\d.]+)?)", row["sees"])
    is_judged = "distributions not judged" not in row["verdict"]
    seen = sees[0] if sees and is_judged else "none"
    cells = [f"`{row['name']}`", f"{row['engine']}: {row['about']}", str(run)]
    cells += [str(counts.get("passed", 0)), str(counts.get("xfailed", 0)), str(other), str(counts.get("skipped", 0))]
    return "| " + " | ".join([*cells, seen]) + " |"


def _section(row: Row) -> Iterable[str]:
    origin = ", ".join(f"{key} {value}" for key, value in row["origin"].items())
    yield from (f"## `{row['name']}`", "", f"{row['verdict']}.", "", f"* dialect: {row['dialect']}")
    yield from (f"* {row['sees']}", f"* {origin}; {row['seconds']} s on a shared machine")
    for one in row["failures"]:
        reason = re.sub(r"\(docs/(findings/[\w-]+)\.md\)", r"([page](\1.md))", one["reason"])
        yield f"* {one['status']} {one['code']} {one['title']}: {reason}"
    for reason, codes in row["skipped"].items():
        yield f"* skipped {', '.join(codes)}: {reason}"
    yield ""
