"""The exam: faults that no check was written for, by class; how many a run finds, whether its first report is right.

    python tools/exam --jobs 16 --out statistical/records/exam.json --docs docs/exam.md
    python tools/exam --profile smoke --match dependence --seeds 1 --out /tmp/exam.json
    python tools/exam --list

Each member is a correct sampler, built on the public protocols alone, with one fault; what exactly is wrong
(which row, which size, which period, which combination) is drawn from `--exam`, so another number is another exam. The
members without a fault show false alarms.

A member is checked as by `fairdraw check`: every check of its contract with the profile's numbers, without a reference
sampler. With the first seed the whole run is made, and its first report is compared with the area that the fault was
declared to lie in; with the others a run ends at the first check that fails, and begins with the check that found the
member before (`--hints`): whether a fault is found does not depend on the order. Rows are written at once to a file
beside the record, so that `--resume` continues.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from records import read_rows, results

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from exam.registry import Member
    from fairdraw._run.runner import CheckRecord

Row = dict[str, Any]  # Any: JSON
Task = tuple[str, str, int, int, bool, tuple[str, ...]]
"""Member, profile, seed, number of the exam, whether every check is run, the checks that come first."""
EXAM = 17
PROFILE_NAMES = ("smoke", "ci")


@cache
def known(exam: int) -> dict[str, Member]:
    """The members by name."""
    from exam.registry import members

    return {member.name: member for member in members(exam)}


def seeds() -> tuple[int, ...]:
    """The release's, and four others."""
    from fairdraw._core.seeds import DEFAULT_SEED

    return DEFAULT_SEED, 0, 1, 2, 3


# -- one run --------------------------------------------------------------------------------------------------------


def records_of(
    member: Member, profile: str, seed: int, hints: tuple[str, ...], *, whole: bool
) -> Iterator[CheckRecord]:
    """The records of a run, which ends at the first failed check unless it is to be whole."""
    from fairdraw._core.checks import PROFILES
    from fairdraw._run.loading import all_checks
    from fairdraw._run.runner import Session, run_check

    session, sampler = Session(profile=PROFILES[profile], seed=seed, crash_folder=None), member.make()
    checks = [check for check in all_checks(contract=member.contract) if not check.differential]
    for check in sorted(checks, key=lambda check: (check.code not in hints, check.suite == "statistical")):
        record = run_check(check, sampler, session)
        yield record
        if is_found(record) and not whole:
            return


def is_found(record: CheckRecord) -> bool:
    """Whether this check saw the fault. A check without a verdict did not."""
    return record.status in ("failed", "error", "incomplete")


def sat(task: Task) -> Row:
    """One row: a member that was examined."""
    name, profile, seed, exam, whole, hints = task
    member, started = known(exam)[name], time.process_time()
    records = list(records_of(member, profile, seed, hints, whole=whole))
    found = [record for record in records if is_found(record)]
    return {
        "member": name,
        "words": member.words,
        "class": member.kind,
        "contract": member.contract,
        "profile": profile,
        "seed": seed,
        "found": found[0].code if found else None,
        "failed": len(found) if whole else None,
        "undecided": [record.code for record in records if record.status == "inconclusive"],
        **(first_report(member, records) if whole and found else {}),
        "resolution": member.resolution,
        "seconds": round(time.process_time() - started, 1),
        "commit": _commit(),
    }


def first_report(member: Member, records: list[CheckRecord]) -> Row:
    """What the report of this run says first, and whether it is right."""
    from fairdraw._report.causes import find_causes

    cause = find_causes(records)[0]
    first = f"{cause.reported.id}{f' (lacks {cause.missing}?)' if cause.missing else ''}"
    return {"first": first, "right": member.area.is_right(cause), "area": member.area.words}


@cache
def _commit() -> str:
    from records import commit

    return commit()[:10]


# -- all runs -------------------------------------------------------------------------------------------------------


def key(row: Row) -> tuple[object, ...]:
    """What a row is about; the words hold the drawn parameters."""
    return row["member"], row["words"], row["profile"], row["seed"]


def tasks(arguments: argparse.Namespace) -> list[Task]:
    """What is to be run; the members that nothing found before come last, since theirs are whole runs."""
    pattern = re.compile(arguments.match)
    named = {f"{m.kind} {m.contract} {m.name} {m.words}": m for m in known(arguments.exam).values()}
    chosen = [member for text, member in named.items() if pattern.search(text)]
    profiles, hints = arguments.profile or PROFILE_NAMES, found_by(arguments.hints)
    chosen.sort(key=lambda member: member.name not in hints)
    return [
        (member.name, profile, seed, arguments.exam, number == 0 and not arguments.quick, hints.get(member.name, ()))
        for profile in sorted(profiles)
        for member in chosen
        for number, seed in enumerate(seeds()[: arguments.seeds])
    ]


def found_by(earlier: Iterable[Path]) -> dict[str, tuple[str, ...]]:
    """Member to the checks that found it in earlier records."""
    rows = [row for path in earlier for row in read_rows(path)["rows"] if row["found"]]
    return {
        name: tuple({row["found"] for row in rows if row["member"] == name}) for name in {r["member"] for r in rows}
    }


def all_rows(arguments: argparse.Namespace, part: Path) -> list[Row]:
    """A row for each task; those that are in `part` already are kept."""
    earlier = [*arguments.kept, *[part] * arguments.resume]
    lines = [line for path in earlier if path.exists() for line in path.read_text(encoding="utf-8").splitlines()]
    kept = {key(row): row for row in map(json.loads, lines)}
    wanted = {
        (name, known(arguments.exam)[name].words, profile, seed): (name, profile, seed, *rest)
        for name, profile, seed, *rest in tasks(arguments)
    }
    with part.open("a" if arguments.resume else "w", encoding="utf-8") as file:
        todo = [task for about, task in wanted.items() if about not in kept]
        for row in results(sat, todo, arguments.jobs, arguments.seconds):
            file.write(json.dumps(row) + "\n")
            file.flush()
            kept[key(row)] = row
            print(
                f"{row['profile']:5} {row['seed']:6} {row['seconds']:6.1f} s  {row['found'] or '-':8} {row['member']}",
                flush=True,
            )
    return [kept[about] for about in wanted if about in kept]


def write_record(path: Path, rows: Iterable[Row], exam: int, made_on: str) -> None:
    """Write the record; each row says the commit that made it."""
    from records import commit, machine, write_rows

    head = {
        "commit": commit(),
        "machine": machine(),
        "exam": exam,
        "members": len(known(exam)),
        "seeds": seeds(),
        "made_on": made_on,
    }
    write_rows(path, head, rows, ("member", "words", "profile"))


def prove(arguments: argparse.Namespace) -> int:
    """A line for each member; 1 if a correct sampler differs from itself."""
    from exam.proof import proof
    from exam.registry import CONTROL

    wrong = 0
    for name in dict.fromkeys(name for name, *_ in tasks(arguments)):
        member, shown = known(arguments.exam)[name], proof(known(arguments.exam)[name])
        wrong += member.kind == CONTROL and shown.startswith("differs")
        print(f"{shown:24} {name}: {member.words}", flush=True)
    return int(wrong > 0)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--docs", type=Path)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--profile", action="append", choices=PROFILE_NAMES)
    parser.add_argument("--seeds", type=int, default=5, help="how many of the seeds")
    parser.add_argument("--match", default="", help="only members whose class, contract, name and words have this")
    parser.add_argument("--exam", type=int, default=EXAM, help="draws the parameters of the faults")
    parser.add_argument("--resume", action="store_true", help="keep the rows of a run that was stopped")
    parser.add_argument("--quick", action="store_true", help="every run ends at its first failure: no first reports")
    parser.add_argument("--kept", type=Path, action="append", default=[], help="keep the rows of this .part file, too")
    parser.add_argument("--hints", type=Path, action="append", default=[], help="a record: what found a member before")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="begin no run after so many; write the rest"
    )
    parser.add_argument("--made-on", default="", help="a sentence about the machines, if there were several")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--prove", action="store_true", help="show that members are wrong: see exam.proof")
    parser.add_argument("--page-only", action="store_true", help="write the page of the record that is there")
    return parser.parse_args()


def main() -> int:
    from exam.page import page

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    arguments = parsed()
    if arguments.prove:
        return prove(arguments)
    if arguments.list:
        print("\n".join(f"{m.kind}: {m.name}: {m.words}" for m in known(arguments.exam).values()))
        return 0
    if not arguments.page_only:
        part = arguments.out.with_suffix(".part")
        write_record(arguments.out, all_rows(arguments, part), arguments.exam, arguments.made_on)
    text = page(read_rows(arguments.out))
    if arguments.docs:
        arguments.docs.write_text(text, encoding="utf-8")
    print(text)
    return 0
