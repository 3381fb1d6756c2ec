"""The page of the record, which the build of the manual adds."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import matrix
from records import Json, save, table
from records.samplers import NAMED

from servers.process import SERVERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from servers.process import Server


def row_of(server: Server, profile: str, report: matrix.Report) -> Json:
    """One row: how many checks passed, were skipped and so on, every one that did not pass, and what the run sees."""
    header, records, summary = report
    return {
        "name": server.name,
        "engine": f"{server.packages[0]} {server.version}",
        "about": server.about,
        "dialect": _plain(header.get("about", [""])[0]).removeprefix("dialect: "),
        "sees": header["fairness"],
        "verdict": summary["verdict"],
        "counts": matrix.counts_of(records),
        "failures": [{key: one[key] for key in NAMED} for one in matrix.unclear(records)],
        "skipped": matrix.skipped_by_reason(records, _plain),
        "seconds": round(summary["seconds"]),
        "origin": matrix.describe_run(profile) | {"date": header["started"], "commit": header["commit"]},
    }


def _plain(text: str) -> str:
    """Without paths, addresses and numbers of this run."""
    text = re.sub(r"model \S*/(model[\w.]*)", r"model \1", text)
    return re.sub(r"decide \d+ of \d+ positions of '.*?'", "decide few positions", text)


def write(path: Path, row: Json) -> None:
    """The row replaces that of the same server; the others stay."""
    rows = {one["name"]: one for one in json.loads(path.read_text())} if path.exists() else {}
    rows[row["name"]] = row
    save(path, [rows[name] for name in SERVERS if name in rows])


def page(rows: Sequence[Json]) -> str:
    titles = ("server", "what it is", "run", "passed", "xfailed", "failed", "skipped", "sees TV")
    lines = table(titles, map(_cells, rows), [" --- "] * 2 + [" ---: "] * 6)
    return "\n".join([*lines, "", *(line for row in rows for line in _section(row))]).rstrip()


def _cells(row: Json) -> list[str]:
    counts = row["counts"]
    run = sum(count for status, count in counts.items() if status != "skipped")
    other = sum(count for status, count in counts.items() if status not in ("passed", "xfailed", "skipped"))
    sees = re.findall(r"sees TV >= ([\d.]+(?: to [\d.]+)?)", row["sees"])
    is_judged = "distributions not judged" not in row["verdict"]
    seen = sees[0] if sees and is_judged else "none"
    cells = [f"`{row['name']}`", f"{row['engine']}: {row['about']}", str(run)]
    cells += [str(counts.get("passed", 0)), str(counts.get("xfailed", 0)), str(other), str(counts.get("skipped", 0))]
    return [*cells, seen]


def _section(row: Json) -> Iterable[str]:
    origin = ", ".join(f"{key} {value}" for key, value in row["origin"].items())
    yield from (f"## `{row['name']}`", "", f"{row['verdict']}.", "", f"* dialect: {row['dialect']}")
    yield from (f"* {row['sees']}", f"* {origin}; {row['seconds']} s on a shared machine")
    for one in row["failures"]:
        reason = re.sub(r"\(docs/(findings/[\w-]+)\.md\)", r"([page](\1.md))", one["reason"])
        yield f"* {one['status']} {one['code']} {one['title']}: {reason}"
    for reason, codes in row["skipped"].items():
        yield f"* skipped {', '.join(codes)}: {reason}"
    yield ""
