"""Which vLLM release fails what: run the suite on every contract of every release, and write the table.

    python tools/matrix.py                                  # every cell: docs/records/matrix.json
    python tools/matrix.py 0.22.0 0.33.0 --contract penalties    # these cells anew, the others as recorded
    python tools/matrix.py --missing                        # only cells that are not in the record
    python tools/matrix.py --newer                          # checks that a recorded cell lacks, at its own profile

A cell is one sampler of one release. It is `fairdraw check NAME` in a process of its own, with a folder on PYTHONPATH
that holds the release. The record is written after every cell, so that a run can be stopped and completed later. The
exit code is 1 if a check fails that `known_defects.toml` does not list for that release, or if a listed one passes.
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
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from install import InstallError, install
from records import ROOT, commit, python_path, save, table

from fairdraw._report.verdict import NOTHING_RUN
from fairdraw._run.expected import UNSEEN
from fairdraw._run.loading import all_checks
from fairdraw.adapters import known_names
from fairdraw.adapters._catalogue import Defect, is_affected, read_defects

RELEASES = {
    "0.8.3": "too old to be installed; of it and 0.11.0 the rejection sampler's file alone is loaded",
    "0.11.0": "greedy requests have temperature 0 from here on",
    "0.16.0": "takes logits; ties that the softmax makes no longer change greedy tokens",
    "0.22.0": "the reference of this project; the first whose engine passes real draft probabilities",
    "0.25.1": "never accepts a placeholder; ids are bounded (GHSA-8wr5-jm2h-8r4f, 0.24.0)",
    "0.28.0": "the last but one in which model runner V1 is the default for most models",
    "0.31.0": "model runner V2 is the default for nearly every model (from 0.29.0)",
    "0.33.0": "the newest: kernels behind dispatchers (0.30.0), FLy acceptance",
}
"""Release to the reason why it is in the table."""

NOTES = {
    **RELEASES,
    "0.11.2": "the oldest that can be installed; takes probabilities, one tile over the whole vocabulary",
    "0.18.1": "recovers tile by tile, and multiplies by a reciprocal",
}

NAMES = """
rejection/vllm rejection/vllm-v2 rejection/vllm-v2-block sampling/vllm sampling/vllm-v2 penalties/vllm
penalties/vllm-v2 thinking_budget/vllm thinking_budget/vllm-v2 logits_plan/vllm logits_plan/vllm-v2
"""
SAMPLERS = NAMES.split()
"""Model runner V1 and V2 under every contract."""

CHECK_SECONDS = 3600

FAILED = ("failed", "xfailed", "error")
ABSENT, NOT_RUN = "not there", "not runnable"

Cell = dict[str, Any]  # Any: JSON, a row of the record
Record = Mapping[str, Any]  # Any: JSON, as fairdraw check --json writes it
Key = tuple[str, str]
"""Sampler and release."""


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    cells = read(options.record)
    for key in _chosen(options, cells):
        cell = run_newer(cells[key], options.only) if options.newer else run_cell(*key, options.profile, options.only)
        cells = read(options.record) | {key: cell}  # with those that another run has written meanwhile
        write(cells, options.record)  # a run that is stopped keeps its cells
    loud = [line for cell in cells.values() for line in surprises(cell)]
    print("\n".join([*loud, f"written: {options.record}, {len(cells)} cells"]))
    return 1 if loud else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="*", default=list(RELEASES), help=f"default: {' '.join(RELEASES)}")
    parser.add_argument("--contract", action="append", default=[], help="only its samplers; repeatable")
    parser.add_argument("--sampler", action="append", default=[], choices=SAMPLERS, help="only this one; repeatable")
    parser.add_argument("--missing", action="store_true", help="only cells that the record lacks")
    parser.add_argument("--newer", action="store_true", help="only checks that recorded cells lack, added to them")
    parser.add_argument("--profile", default="ci", help="smoke, ci or nightly (default: ci)")
    parser.add_argument("--only", default="properties", help="properties, statistical or both (default: properties)")
    parser.add_argument("--record", type=Path, default=ROOT / "docs" / "records" / "matrix.json")
    return parser


def _chosen(options: argparse.Namespace, cells: Mapping[Key, Cell]) -> list[Key]:
    """The cells to be run: release by release, so that a stopped run has whole columns."""
    wanted = [
        sampler
        for sampler in options.sampler or SAMPLERS
        if not options.contract or sampler.partition("/")[0] in options.contract
    ]
    keys = [(sampler, release) for release in options.releases for sampler in wanted]
    if options.newer:
        return [key for key in keys if key in cells and newer_checks(cells[key], options.only)]
    return [key for key in keys if not (options.missing and key in cells)]


def read(record: Path) -> dict[Key, Cell]:
    """Cells recorded before."""
    found = json.loads(record.read_text())["cells"] if record.exists() else []
    return {(cell["sampler"], cell["release"]): cell for cell in found}


# One cell


class NoVerdictError(Exception):
    """A cell could not be tested; one sentence says why."""


def run_newer(cell: Cell, only: str) -> Cell:
    """Return the cell with checks that it lacks, run at its profile; as it was if they cannot be run."""
    more = run_cell(cell["sampler"], cell["release"], cell["profile"], only, sorted(newer_checks(cell, only)))
    return cell if more["problem"] else completed(cell, more)


def completed(cell: Cell, more: Cell) -> Cell:
    """Return `cell`, and what `more` says of checks that it lacks; `later` says which, and where they were run."""
    new = codes_of(more) - codes_of(cell)
    skipped = {reason: [*codes] for reason, codes in cell["skipped"].items()}
    for reason, codes in more["skipped"].items():
        skipped.setdefault(reason, []).extend(code for code in codes if code in new)
    failures = [*cell["failures"], *(row for row in more["failures"] if row["code"] in new)]
    later = {**{key: more[key] for key in ("only", "seconds", "date", "commit")}, "codes": sorted(new)}
    return {
        **cell,
        **{key: sorted({*cell[key], *(new & {*more[key]})}) for key in ("passed", "unseen")},
        "skipped": {reason: sorted(codes) for reason, codes in skipped.items() if codes},
        "failures": sorted(failures, key=lambda row: str(row["code"])),
        "state": "red" if failures else "green",
        "later": [*cell.get("later", []), later],
    }


def run_cell(sampler: str, release: str, profile: str, only: str, codes: Sequence[str] = ()) -> Cell:
    """Install `release` and run the suite, or `codes` of it, on `sampler`. An exception ends this cell only."""
    print(f"{sampler} of vLLM {release} ...", flush=True)
    started, folder = time.perf_counter(), ROOT / ".cache" / "vllm" / release
    problem, records, header = "", [], {}
    try:
        if sampler not in known_names():
            raise NoVerdictError(f"fairdraw has no adapter {sampler} yet.")
        install(release, folder)
        header, records = check(sampler, release, folder, profile, only, codes)
    except (InstallError, NoVerdictError, subprocess.TimeoutExpired, OSError) as error:
        problem = " ".join(str(error).split())
    cell = as_cell(sampler, release, problem, records)
    cell |= {"profile": profile, "only": only, "seconds": round(time.perf_counter() - started, 1)}
    cell |= {"versions": header.get("versions", {}), **describe_cell()}
    print(f"    {cell['state']}: {problem or counted(cell)}, {cell['seconds']:.0f} s", flush=True)
    return cell


def as_cell(sampler: str, release: str, problem: str, records: Sequence[Record]) -> Cell:
    """A row of the record: codes of what passed, reasons of what was skipped, and everything about the rest."""
    kept = ("code", "title", "status", "cases", "seconds")
    failures = [{**{key: r[key] for key in kept}, "effect": effect_of(r) or r["reason"]} for r in unclear(records)]
    state = "red" if failures else "green"
    if problem:
        state = ABSENT if "has no module" in problem else NOT_RUN
    return {
        "sampler": sampler,
        "release": release,
        "state": state,
        "problem": problem,
        "passed": [r["code"] for r in records if r["status"] == "passed" and not r["reason"].startswith(UNSEEN)],
        "unseen": [r["code"] for r in records if r["status"] == "passed" and r["reason"].startswith(UNSEEN)],
        "skipped": skipped_by_reason(records),
        "failures": failures,
    }


def effect_of(record: Record) -> str:
    """Return what a failing check saw, on one line."""
    return " ".join(((record.get("failure_report") or {}).get("effect") or "").split())


def counted(cell: Cell) -> str:
    failing = [row["code"] for row in cell["failures"]]
    return f"{len(cell['passed'])} passed, {len(failing)} failed {' '.join(failing)}".rstrip()


def check(
    sampler: str, release: str, folder: Path, profile: str, only: str, codes: Sequence[str] = ()
) -> tuple[Record, list[Record]]:
    """Header and records of `fairdraw check`, of `codes` if there are any, by the vLLM that is in `folder`.

    Nothing is compared with another sampler: what the contract specifies decides each cell.
    """
    words = ["--profile", profile, "--reference", "none", *([] if only == "both" else ["--only", only])]
    decided = (0, 1, 10, 11, *([NOTHING_RUN] if codes else []))
    environment = {**python_path(folder), "OMP_NUM_THREADS": "1"}
    found = run_check(sampler, [*words, *selecting(codes)], CHECK_SECONDS, environment, decided)
    if release not in found.header["sampler"]:
        raise NoVerdictError(f"{found.header['sampler']} was tested, but {folder} must hold vLLM {release}. Remove it.")
    return found.header, found.records


def selecting(codes: Iterable[str]) -> list[str]:
    """Return the options that choose these checks."""
    return [word for code in codes for word in ("-k", code)]


class Report(NamedTuple):
    """What `fairdraw check --json` wrote: its first line, its checks, its last line."""

    header: Record
    records: list[Record]
    summary: Record


def run_check(
    name: str, words: Sequence[str], seconds: float, environment: Mapping[str, str], decided: Sequence[int] = (0, 1)
) -> Report:
    """Run `fairdraw check` in a scratch folder, since nobody needs the crash files of known defects.

    Raises:
        NoVerdictError: If its exit code is none of `decided`, or there is no report.
    """
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        command = [sys.executable, "-m", "fairdraw", "check", name, *words, "--json", str(report)]
        piped: dict[str, Any] = {"capture_output": True, "text": True, "timeout": seconds}
        finished = subprocess.run(command, cwd=scratch, env=environment, check=False, **piped)
        if finished.returncode not in decided or not report.exists():
            lines = (finished.stderr.strip() or finished.stdout.strip() or "no output").splitlines()
            raise NoVerdictError(lines[-1].strip().removeprefix("Error: "))
        return read_report(report)


def read_report(report: Path) -> Report:
    """Return what stands in a file of `fairdraw check --json`."""
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    return Report(lines[0], [one for one in lines if one["kind"] == "check"], lines[-1])


def counts_of(records: Iterable[Record]) -> dict[str, int]:
    """Return how many checks ended in which way."""
    return dict(Counter(record["status"] for record in records))


def skipped_by_reason(records: Iterable[Record], reason_of: Callable[[str], str] = str) -> dict[str, list[str]]:
    """Return the codes of the checks that were skipped, by the reason."""
    found: dict[str, list[str]] = {}
    for record in records:
        if record["status"] == "skipped":
            found.setdefault(reason_of(record["reason"]), []).append(record["code"])
    return found


def unclear(records: Iterable[Record]) -> list[Record]:
    """Return the checks that neither passed nor were skipped."""
    return [record for record in records if record["status"] not in ("passed", "skipped")]


# What known_defects.toml says about a cell


def defects_of(cell: Cell) -> list[Defect]:
    """Entries about this sampler and release."""
    return [one for one in read_defects("fairdraw_engines") if is_affected(one, cell["sampler"], cell["release"])]


def unknown_failures(cell: Cell) -> list[str]:
    """Return codes of today's checks that fail without an entry; a check that is no more needs none."""
    known = {code for defect in defects_of(cell) for code in defect["checks"]}
    open_codes = {check.code for check in all_checks()} - known
    return [row["code"] for row in cell["failures"] if row["status"] in FAILED and row["code"] in open_codes]


def unseen_failures(cell: Cell) -> set[str]:
    """Codes that passed in a run that was too small for the failure that an entry of today lists."""
    return {*cell["unseen"]} & {code for defect in defects_of(cell) for code in defect["checks"]}


def surprises(cell: Cell) -> list[str]:
    """What nobody wrote down, as lines."""
    where, lines = f"{cell['sampler']} of vLLM {cell['release']}", []
    if unknown := unknown_failures(cell):
        lines.append(f"NO ENTRY: {where} fails {', '.join(unknown)}, but known_defects.toml lists no reason.")
    # The run says itself that it could have seen them fail.
    if healed := [row["code"] for row in cell["failures"] if row["status"] == "xpassed"]:
        lines.append(f"GONE: {where} passes {', '.join(healed)}, but known_defects.toml lists them. Add `fixed`.")
    undecided = [row["code"] for row in cell["failures"] if row["status"] not in (*FAILED, "xpassed")]
    return [*lines, *(f"NOT DECIDED: {where}: {code}." for code in undecided)]


# Where, when and with what


def describe_run(profile: str) -> dict[str, str]:
    """Where, when and with what a table was made."""
    versions = {name: metadata.version(name) for name in ("torch", "triton", "numpy", "hypothesis")}
    return {**describe_cell(), "profile": profile, "python": platform.python_version(), **versions}


def describe_cell() -> dict[str, str]:
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPU cores",
    }


_commit = cache(commit)
"""The commit at the start: later the record is a change."""


# The page and the record


def write(cells: Mapping[Key, Cell], record: Path) -> None:
    """Write the cells in the order of `SAMPLERS` and of the releases."""
    names = [*SAMPLERS, *sorted({sampler for sampler, _ in cells} - set(SAMPLERS))]
    ordered = [cells[key] for name in names for key in sorted(cells, key=_release_order) if key[0] == name]
    save(record, {"cells": ordered})


def _release_order(key: Key) -> tuple[int, ...]:
    return tuple(int(part) for part in key[1].split("."))


def as_markdown(cells: Sequence[Cell]) -> str:
    """The table of states, then what fails by sampler, then the reasons of the rest."""
    releases = releases_of(cells)
    at = {(cell["sampler"], cell["release"]): cell for cell in cells}
    names = list(dict.fromkeys([*SAMPLERS, *(cell["sampler"] for cell in cells)]))
    rows = [[f"`{name}`", *(_state(at.get((name, release))) for release in releases)] for name in names]
    parts = [
        "\n".join(_centred(["", *releases], rows)) + "\n",
        _what_was_run(cells, len(names) * len(releases)),
        "## What fails\n",
        *[_section(name, [cell for cell in cells if cell["sampler"] == name]) for name in names],
        _not_runnable(cells),
    ]
    return "\n".join(part for part in parts if part)


def releases_of(cells: Iterable[Cell]) -> list[str]:
    """Return the releases of the table, and those of the record, the oldest first."""
    return sorted({*RELEASES, *(cell["release"] for cell in cells)}, key=lambda one: _release_order(("", one)))


def notes(cells: Iterable[Cell]) -> str:
    """Return why each release is in the table."""
    return "\n".join(f"* {one}: {NOTES.get(one, 'chosen on the command line')}." for one in releases_of(cells))


def _state(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    if cell["state"] in (ABSENT, NOT_RUN):
        return ABSENT if cell["state"] == ABSENT else "?"
    unknown = set(unknown_failures(cell))
    num_red, num_ran = len(cell["failures"]), len(cell["passed"]) + len(cell["unseen"])
    said = f"**{num_red} red** of {num_ran + num_red}" + " !" * bool(unknown) if num_red else f"green {num_ran}"
    return said + f", {cell['profile']}" * (cell["profile"] != "ci")


def _what_was_run(cells: Sequence[Cell], total: int) -> str:
    """Profiles, commits and time, counted: every cell's own are in the record."""
    ran = [cell for cell in cells if cell["state"] in ("green", "red")]
    seconds = sum(part["seconds"] for cell in ran for part in (cell, *cell.get("later", [])))
    lines = [
        f"{len(cells)} of {total} cells are recorded, {len(ran)} of them ran checks, in "
        f"{seconds / 60:.0f} minutes. Each cell of `docs/records/matrix.json` has its own commit, profile, seconds and "
        "versions:",
        "",
    ]
    runs = [run for cell in ran for run in _runs(cell)]
    for what in sorted({run[1:] for run in runs}):
        names = [name for name, *where in runs if where == [*what]]
        where = ", ".join(f"`{name}` ({names.count(name)})" for name in dict.fromkeys(names))
        commit, profile, only, date = what
        lines.append(f"* commit {commit}, profile `{profile}`, {only}, {date}: {where}")
    with_both = [f"`{c['sampler']}` {c['release']}" for c in ran if _suites(c) != "properties"]
    older = [f"`{c['sampler']}` {c['release']}: {count}" for c in ran if (count := len(newer_checks(c, _suites(c))))]
    unseen = [f"`{c['sampler']}` {c['release']}: {', '.join(sorted(u))}" for c in ran if (u := unseen_failures(c))]
    for said, found in (
        ("Distribution checks ran, too, in these cells", with_both),
        ("Checks that are newer than a recorded cell, and are missing in it", older),
        ("Known failures that a run was too small to show", unseen),
    ):
        lines += ["", f"{said}: {'; '.join(found)}."] if found else []
    return "\n".join(lines) + "\n"


def _runs(cell: Cell) -> list[tuple[str, ...]]:
    """Sampler, commit, profile, suite and day of each run that the cell is made of."""
    parts = [cell, *({**part, "only": f"{part['only']} that were added"} for part in cell.get("later", []))]
    return [(cell["sampler"], p["commit"][:12], cell["profile"], p["only"], p["date"][:10]) for p in parts]


def newer_checks(cell: Cell, only: str) -> set[str]:
    """Codes of the suite `only` that the cell lacks: of a cell that ran it, they came after it."""
    suite = None if only == "both" else only
    today = {check.code for check in all_checks(suite, cell["sampler"].partition("/")[0])}
    return today - codes_of(cell) if cell["state"] in ("green", "red") else set()


def _suites(cell: Cell) -> str:
    """The suite that its runs were of, or both."""
    suites = {cell["only"], *(part["only"] for part in cell.get("later", []))}
    return suites.pop() if len(suites) == 1 else "both"


def codes_of(cell: Cell) -> set[str]:
    """Checks that the cell says something of."""
    skipped = {code for codes in cell["skipped"].values() for code in codes}
    return {*cell["passed"], *cell["unseen"], *skipped, *(row["code"] for row in cell["failures"])}


def _section(name: str, cells: Sequence[Cell]) -> str:
    """The checks that fail by release, then the entries that explain them."""
    red = [cell for cell in cells if cell["state"] == "red"]
    ran = [cell for cell in cells if cell["state"] in ("green", "red")]
    if not red:
        return ""
    titles = titles_of(row for cell in red for row in cell["failures"])
    rows = [[f"{code} {title}", *(_word(cell, code) for cell in ran)] for code, title in sorted(titles.items())]
    lines = [f"### `{name}`", "", *_centred(["check", *(cell["release"] for cell in ran)], rows), ""]
    lines += [_defect_line(defect, red) for defect in read_defects("fairdraw_engines") if defect["sampler"] == name]
    for cell in red:
        effects = {row["code"]: row["effect"] for row in cell["failures"]}
        lines += [f"* **no entry**, {code}, {cell['release']}: {effects[code]}" for code in unknown_failures(cell)]
    return "\n".join(lines) + "\n"


def _word(cell: Cell, code: str) -> str:
    """What became of a check, in the table."""
    row = next((row for row in cell["failures"] if row["code"] == code), None)
    if row is not None:
        words = {"error": "**raises**", "xpassed": "passes", "inconclusive": "undecided", "incomplete": "undecided"}
        return words.get(row["status"], "**fails**")
    if code in unseen_failures(cell):
        return "not seen"
    if code in (*cell["passed"], *cell["unseen"]):
        return "ok"
    return "skipped" if any(code in codes for codes in cell["skipped"].values()) else "-"


def _defect_line(defect: Defect, red: Sequence[Cell]) -> str:
    """Which checks, where, why, and the link."""
    failing = [
        cell["release"]
        for cell in red
        if is_affected(defect, cell["sampler"], cell["release"])
        and set(defect["checks"]) & {row["code"] for row in cell["failures"] if row["status"] in FAILED}
    ]
    link = defect.get("link", "")
    shown = f" ([page]({link.removeprefix('docs/')}))" if link.startswith("docs/") else f" ({link})" if link else ""
    where = f"seen in {', '.join(failing)}" if failing else "not seen in this record"
    fixed = f", fixed in {defect['fixed']}" if "fixed" in defect else ""
    return f"* {', '.join(defect['checks'])}, {where}{fixed}: {defect['reason']}{shown}"


def _not_runnable(cells: Sequence[Cell]) -> str:
    reasons: dict[str, list[str]] = {}
    for cell in cells:
        if cell["state"] in (ABSENT, NOT_RUN):
            reasons.setdefault(cell["problem"], []).append(f"`{cell['sampler']}` {cell['release']}")
    lines = [f"* {', '.join(where)}: {problem}" for problem, where in reasons.items()]
    return "\n".join(["## Not runnable", "", *(lines or ["Nothing."]), ""])


def titles_of(records: Iterable[Record]) -> dict[str, str]:
    """Code to the title of the check as it is today; a check that is gone keeps the recorded one."""
    today = {check.code: check.title for check in all_checks()}
    return {record["code"]: today.get(record["code"], record["title"]) for record in records}


def _centred(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return table(header, rows, [" --- "] + [" :---: "] * (len(header) - 1))


if __name__ == "__main__":
    sys.exit(main())
