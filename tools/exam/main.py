"""The exam: correct samplers with one fault each, made by a generator that knows no check.

    python tools/exam --profile smoke --contract sampling --contract rejection --out statistical/records/exam.jsonl
    python tools/exam --seed 40 --members 0:50 -j 2
    python tools/exam --list

A fault is a random condition (see `exam.conditions`) times a random effect (`faults.toml`), put into a step of the
specification; `--seed` draws other ones. Each member is checked by the functions of the suite, in its order, until one
fails; each in a process of its own. What the report says is recorded, and whether it names the cause by this rule: its
title, its effect and its notes match the pattern of words that stands in `faults.toml` beside a feature of the
condition (`names_condition`), or beside the effect (`names_effect`). Rows are written at once, and those that are there
already are not run again.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from records import Json, appended, commit, machine, read_lines, results, table

from exam.members import CONTRACTS, correct, member_of, slots
from fairdraw._core.checks import PROFILES
from fairdraw._run.loading import all_checks
from fairdraw._run.runner import Session, run_check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from exam.members import Member

Task = tuple[int, str, str, str, int]
"""Seed, profile, contract, class, number; the class `correct` has no fault."""
CORRECT = "correct"


def sat(task: Task) -> Json:
    """Return the row of a member that was examined, in a process of its own: a fault may write what checks share."""
    seed, _, contract, kind, number = task
    assert all_checks(contract=contract)  # imported before the process is forked
    member = None if kind == CORRECT else member_of(seed, contract, kind, number)
    about = {"words": member.words if member else "nothing is wrong"}
    if member:
        about |= {"condition": member.condition.words, "effect": member.effect_words}
    with get_context("fork").Pool(1) as pool:
        return {**key_of(task), **about, **pool.apply(judged, (task, member)), "commit": commit()}


def key_of(task: Task) -> Json:
    """Return what a row is about."""
    seed, profile, contract, kind, number = task
    return {
        "member": f"{contract}/{kind.replace(' ', '-')}/{number}",
        "contract": contract,
        "class": kind,
        "profile": profile,
        "seed": seed,
    }


def judged(task: Task, member: Member | None) -> Json:
    """Run the suite on a member, or on a correct sampler, until a check fails."""
    _, profile, contract, _, number = task
    patterns = member.patterns() if member else ("$^", "$^")
    make = member.make if member else partial(correct, contract, own_noise=number == 1)
    session, started = Session(profile=PROFILES[profile], crash_folder=None, renew=make), time.perf_counter()
    sampler, found, said, matched = make(), None, "", (False, False)
    for check in all_checks(contract=contract):
        if check.differential:
            continue
        record = run_check(check, sampler, session)
        if record.status in ("failed", "error", "incomplete"):
            report = record.failure_report
            effect = report.effect.splitlines()[0] if report else record.reason
            found, said = record.code, f"{record.title}: {effect}"
            text = "\n".join([record.title, report.effect if report else "", *(report.notes if report else ())])
            condition, cause = (re.search(pattern, text, re.IGNORECASE) is not None for pattern in patterns)
            matched = condition, cause
            break
    seconds = round(time.perf_counter() - started, 1)
    return {
        "found": found,
        "first": said[:400],
        "names_condition": matched[0],
        "names_effect": matched[1],
        "seconds": seconds,
    }


def tasks(arguments: argparse.Namespace) -> list[Task]:
    """Return what is to be run: a member of each class first, then another of each."""
    chosen = arguments.contract or list(CONTRACTS)
    if arguments.correct:
        twice = [
            (name, CORRECT, number) for name in chosen for number in range(1 + (name in ("sampling", "rejection")))
        ]
        return [(arguments.seed, arguments.profile, *one) for one in twice]
    members = sorted((slot for name in chosen for slot in slots(name)), key=lambda slot: slot[2])
    first, _, last = arguments.members.partition(":")
    part = slice(int(first or 0), int(last) if last else None)
    return [(arguments.seed, arguments.profile, *slot) for slot in members[part]]


def read(path: Path) -> list[Json]:
    """Return the rows of a record; the first line says where it was made."""
    return read_lines(path)[1:]


def ran(arguments: argparse.Namespace) -> Iterator[Json]:
    """Yield the row of each task, after writing it; those that are there already come first."""
    names = ("member", "profile", "seed")
    kept = {tuple(row[name] for name in names): row for row in read(arguments.out)}
    todo = {tuple(key_of(task)[name] for name in names): task for task in tasks(arguments)}
    yield from (kept[key] for key in todo if key in kept)
    if not arguments.out.exists():
        head = {"commit": commit(), "machine": machine(), "seed": arguments.seed}
        arguments.out.write_text(json.dumps(head) + "\n", encoding="utf-8")
    rows = results(sat, [todo[key] for key in todo if key not in kept], arguments.jobs, arguments.seconds)
    for row in appended(arguments.out, rows):
        print(f"{row['seconds']:6.1f} s  {row['found'] or 'missed':8} {row['member']}: {row['words']}", flush=True)
        yield row


# -- the page -------------------------------------------------------------------------------------------------------


def groups(rows: list[Json], by: str) -> list[str]:
    """Return a table of found members by contract or by class."""
    found: dict[tuple[str, str], list[Json]] = {}
    for row in rows:
        for name in (row[by], "**all**"):
            found.setdefault((row["profile"], name), []).append(row)
    ordered = sorted(found.items(), key=lambda one: (one[0][0], one[0][1] == "**all**"))
    lines = [[name, f"`{profile}`", len(group), *counted(group)] for (profile, name), group in ordered]
    return table((by, "profile", "members", "found", "first report names it"), lines)


def counted(rows: list[Json]) -> tuple[str, str]:
    """Return how many were found, and how many of them were named."""
    found = [row for row in rows if row["found"]]
    named = sum(row["names_condition"] or row["names_effect"] for row in found)
    return f"{len(found)} ({round(100 * len(found) / len(rows))} %)", f"{named} of {len(found)}"


def missed(rows: list[Json]) -> list[str]:
    """Return a line for each member that was missed, in words."""
    return [f"* `{row['profile']}` {row['member']}: {row['words']}." for row in rows if not row["found"]]


def page(rows: list[Json]) -> str:
    """Return the tables of a record."""
    faulty = [row for row in rows if row["class"] != CORRECT]
    right = [row for row in rows if row["class"] == CORRECT]
    size = f"{len({row['member'] for row in faulty})} of {len(slots())} members, in {len(CONTRACTS)} contracts."
    last = f"Correct samplers: {len(right)} runs, {sum(bool(row['found']) for row in right)} of them red."
    tables = [*groups(faulty, "contract"), "", *groups(faulty, "class")]
    return "\n".join([size, "", *tables, "", last, "", "## Missed", "", *missed(faulty), ""])


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=39, help="Draw the faults from this number.")
    parser.add_argument("--contract", action="append", help="Examine this contract only; repeatable.")
    parser.add_argument("--profile", choices=("smoke", "ci"), default="smoke", help="Try as much as this profile does.")
    parser.add_argument("--members", default=":", metavar="A:B", help="Examine this part of the list only.")
    parser.add_argument("--correct", action="store_true", help="Examine the samplers without a fault.")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="Use so many processes.")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="Begin no member after so many seconds.")
    parser.add_argument("--out", type=Path, default=Path("exam.jsonl"), help="Write rows here, and go on from them.")
    parser.add_argument("--list", action="store_true", help="Print the members in words; examine none.")
    return parser.parse_args()


def main() -> int:
    arguments = parsed()
    if arguments.list:
        for task in tasks(arguments):
            seed, _, *slot = task
            print(f"{key_of(task)['member']}: {member_of(seed, *slot).words}", flush=True)
        return 0
    rows = list(ran(arguments))
    print("\n".join([*groups(rows, "contract"), "", *groups(rows, "class")]))
    return 0
