"""Which check fails in which vLLM release: run the suite on seven releases and write the table.

    python tools/matrix.py                      # docs/matrix.md and docs/records/matrix.json
    python tools/matrix.py 0.22.0 0.33.0        # some releases only

Each release has a folder and a process of its own, in which `fairdraw check rejection/vllm` runs. A release that cannot
be installed, imported or tested keeps its column, which says why.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from provenance import ROOT, rows_as_json

from fairdraw._run.loading import all_checks

RELEASES = {
    "0.11.2": "the first with today's class interface; takes probabilities, one tile over the whole vocabulary",
    "0.16.0": "takes logits; ties that the softmax makes no longer change greedy tokens",
    "0.18.1": "recovers tile by tile, and multiplies by a reciprocal",
    "0.22.0": "the reference of this project; the first whose engine passes real draft probabilities",
    "0.25.1": "never accepts a placeholder; ids are bounded (GHSA-8wr5-jm2h-8r4f, 0.24.0)",
    "0.28.0": "the last but one in which this sampler, and not model runner V2, is the default for most models",
    "0.33.0": "the newest: kernels behind dispatchers (0.30.0), FLy acceptance",
}
"""Release to the reason why it is in the table."""

INSTALL_SECONDS, CHECK_SECONDS = 600, 1800

FAILED = ("failed", "xfailed")
WORDS = {
    "passed": "ok",
    "xpassed": "ok",
    "failed": "**fails**",
    "xfailed": "**fails**",
    "error": "**raises**",
    "skipped": "-",
}
"""Status of a record to the word in the table. Known failures are failures here."""

Record = Mapping[str, Any]  # Any: JSON, as fairdraw check --json writes it


@dataclass(frozen=True)
class Column:
    """One release under the suite.

    Args:
        problem: Why there are no records; empty if there are.
        records: What became of each check.
    """

    release: str
    problem: str = ""
    seconds: float = 0.0
    records: Sequence[Record] = field(default=())

    def status(self, code: str) -> str:
        return next((str(record["status"]) for record in self.records if record["code"] == code), "")

    def count(self, *statuses: str) -> int:
        return sum(record["status"] in statuses for record in self.records)


Tester = Callable[[str], Column]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Test several vLLM releases and write the table.")
    parser.add_argument("releases", nargs="*", default=list(RELEASES), help=f"default: {' '.join(RELEASES)}")
    parser.add_argument("--profile", default="ci", help="smoke, ci or nightly (default: ci)")
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache" / "vllm", help="where releases are installed")
    parser.add_argument("--table", type=Path, default=ROOT / "docs" / "matrix.md")
    parser.add_argument("--record", type=Path, default=ROOT / "docs" / "records" / "matrix.json")
    options = parser.parse_args(arguments)

    def tester(release: str) -> Column:
        return run_release(release, options.cache.resolve() / release, options.profile)

    columns = run_all(options.releases, tester)
    write(columns, options.profile, options.table, options.record)
    print(f"written: {options.table} and {options.record}")
    return 0 if any(column.records for column in columns) else 1


def run_all(releases: Sequence[str], tester: Tester) -> list[Column]:
    """One column per release. An exception ends one release only."""
    columns = []
    for number, release in enumerate(releases, start=1):
        print(f"[{number}/{len(releases)}] vLLM {release}", flush=True)
        started = time.perf_counter()
        try:
            column = tester(release)
        except Exception as error:
            column = Column(release, problem=f"{type(error).__name__}: {error}", seconds=time.perf_counter() - started)
        columns.append(column)
        print(f"    {column.problem or summary(column)}, {column.seconds:.0f} s", flush=True)
    return columns


def summary(column: Column) -> str:
    return (
        f"{column.count('passed', 'xpassed')} passed, {column.count(*FAILED)} failed, "
        f"{column.count('error')} raised, {column.count('skipped')} skipped"
    )


def run_release(release: str, folder: Path, profile: str) -> Column:
    """Install `release` into `folder` and run the suite on it."""
    started = time.perf_counter()
    problem, records = "", []
    try:
        install(release, folder)
        records = check(release, folder, profile)
    except (NoVerdictError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    return Column(release, problem, time.perf_counter() - started, records)


class NoVerdictError(Exception):
    """A release could not be tested; one sentence says why."""


def install(release: str, folder: Path) -> None:
    finished = _run(["tools/install_vllm.py", release, "--target", str(folder)], INSTALL_SECONDS, cwd=ROOT)
    if finished.returncode:
        raise NoVerdictError(f"not installed: {_last_line(finished)}")


def check(release: str, folder: Path, profile: str) -> list[Record]:
    """The records of `fairdraw check rejection/vllm`, after making sure that vLLM is the one in `folder`."""
    path = os.pathsep.join(filter(None, (str(folder), str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "PYTHONPATH": path}
    finished = _run(
        ["-c", "from fairdraw._adapters import load; print(load('rejection/vllm').name)"], CHECK_SECONDS, env=env
    )
    if finished.stdout.strip() != f"vllm {release}":
        raise NoVerdictError(f"not importable: {_last_line(finished)}")
    with tempfile.TemporaryDirectory() as scratch:
        # In a scratch folder, since nobody needs the crash files of known defects.
        report = Path(scratch) / "report.json"
        # Properties only: one example decides each, so that the table needs no interval.
        command = ["-m", "fairdraw", "check", "rejection/vllm", "--only", "properties", "--profile", profile]
        finished = _run([*command, "--json", str(report)], CHECK_SECONDS, cwd=scratch, env=env)
        if finished.returncode not in (0, 1) or not report.exists():
            raise NoVerdictError(f"not tested: {_last_line(finished)}")
        lines = [json.loads(line) for line in report.read_text().splitlines()]
        return [line for line in lines if line.pop("kind") == "check"]


def _run(
    arguments: Sequence[str],
    timeout: float,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Python, with its output kept."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, cwd=cwd, env=env)


def _last_line(finished: subprocess.CompletedProcess[str]) -> str:
    lines = (finished.stderr.strip() or finished.stdout.strip() or "no output").splitlines()
    return f"{lines[-1].strip()} (exit code {finished.returncode})"


def write(columns: Sequence[Column], profile: str, table: Path, record: Path) -> None:
    """The table for people, the record for machines."""
    origin = describe_run(profile)
    for path, text in ((table, as_markdown(columns, origin)), (record, as_json(columns, origin))):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def describe_run(profile: str) -> dict[str, str]:
    """Where, when and with what the table was made."""
    versions = {name: metadata.version(name) for name in ("torch", "triton", "numpy", "hypothesis")}
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "profile": profile,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPU cores",
        "python": platform.python_version(),
        **versions,
    }


def _commit() -> str:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    return f"{git('rev-parse', 'HEAD') or 'none'}{' with changes' if git('status', '--porcelain') else ''}"


def as_json(columns: Sequence[Column], origin: Mapping[str, str]) -> str:
    releases = [{**asdict(column), "seconds": round(column.seconds, 1)} for column in columns]
    return rows_as_json({"origin": dict(origin), "releases": releases})


def as_markdown(columns: Sequence[Column], origin: Mapping[str, str]) -> str:
    """The table: a row per check that some release fails, then totals."""
    titles = titles_of(record for column in columns for record in column.records)
    rows = [[f"{code} {titles[code]}", *cells] for code, cells in _cells(columns, sorted(titles)) if _is_shown(cells)]
    totals = [
        [name, *(str(column.count(*statuses)) if column.records else "" for column in columns)]
        for name, statuses in (
            ("passed", ("passed", "xpassed")),
            ("failed", (*FAILED, "error")),
            ("skipped", ("skipped",)),
        )
    ]
    lines = [
        "# Which check fails in which vLLM release",
        "",
        f"Written by `tools/matrix.py`: {', '.join(f'{name} {value}' for name, value in origin.items())}.",
        "",
        f"{len(titles)} checks ran. The table has a row for each check that some release fails. "
        "`-`: skipped, since the release does not support what the check needs.",
        "",
        *_table(["check", *(column.release for column in columns)], rows + totals),
        "",
        *_problems(columns),
        "## Releases",
        "",
        *(f"* {column.release}: {RELEASES.get(column.release, 'chosen on the command line')}." for column in columns),
        "",
        "## What each check found",
        "",
        *_effects(columns, titles),
    ]
    return "\n".join(lines) + "\n"


def titles_of(records: Iterable[Record]) -> dict[str, str]:
    """Code to the title of the check as it is today; a check that is gone keeps the recorded one."""
    today = {check.code: check.title for check in all_checks()}
    return {record["code"]: today.get(record["code"], record["title"]) for record in records}


def _cells(columns: Sequence[Column], codes: Sequence[str]) -> list[tuple[str, list[str]]]:
    return [(code, [WORDS.get(column.status(code), "?") for column in columns]) for code in codes]


def _is_shown(cells: Sequence[str]) -> bool:
    """Some release failed it, or skipped it although another ran it."""
    return any("**" in cell for cell in cells) or len({cell for cell in cells if cell != "?"}) > 1


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = ["---"] + [":---:"] * (len(header) - 1)
    return ["| " + " | ".join(row) + " |" for row in (header, rule, *rows)]


def _problems(columns: Sequence[Column]) -> list[str]:
    """`?` explained."""
    lines = [f"* {column.release}: {column.problem}" for column in columns if column.problem]
    return ["`?`: no answer.", "", *lines, ""] if lines else []


def _effects(columns: Sequence[Column], titles: Mapping[str, str]) -> list[str]:
    """The oldest release that fails a check, and how."""
    lines = []
    for code in sorted(titles):
        failing = [
            (c.release, r) for c in columns for r in c.records if r["code"] == code and "**" in WORDS[r["status"]]
        ]
        if failing:
            release, record = failing[0]
            effect = (record.get("failure_report") or {}).get("effect") or record["reason"]
            lines.append(f"* {code}, {release}: {' '.join(effect.split())}")
    return lines or ["Nothing: every release passed every check."]


if __name__ == "__main__":
    sys.exit(main())
