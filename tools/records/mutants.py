"""Run the checks on every mutant of the project, with the numbers that `smoke` and `ci` really run, for five seeds.

    python tools/record.py mutants --out statistical/records/mutants_by_profile.json

One row per mutant, profile and seed: whether its own check (the first that it names) fails it, and otherwise which
other check does. The checks that a mutant names come first; all others of its contract are tried only if those miss.
Numbers are those of a fast sampler that supports everything. Rows are written at once, to a file beside the record, so
that `--resume` continues a run that was stopped; `--match TEXT` makes the rows of some mutants and keeps the others as
they are, recorded or not. The page counts those that are not.

Exits 1 if `ci` misses a mutant that its draws resolve.
"""

from __future__ import annotations

import argparse
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fairdraw._core.checks import PROFILES
from fairdraw._core.contracts import CONTRACTS, load_part
from fairdraw._core.seeds import DEFAULT_SEED
from fairdraw._run.controls import sees
from fairdraw._run.loading import all_checks
from records import Json, appended, commit, machine, read_lines, read_rows, results, table, write_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairdraw._core.checks import AnyCheck
    from fairdraw._mutants._mutant import Mutant

Task = tuple[int, str, int]
"""Number of the mutant, profile, seed."""
SEEDS = (DEFAULT_SEED, 0, 1, 2, 3)
PROFILE_NAMES = ("smoke", "ci")
_COMMIT = commit()


@cache
def mutants() -> list[tuple[str, Mutant]]:
    """Return every mutant with its contract."""
    return [(name, m) for name, contract in CONTRACTS.items() for path in contract.mutants for m in load_part(path)]


def checks_in_order(contract: str, mutant: Mutant) -> list[AnyCheck]:
    """Those that the mutant names, then the other properties, then the statistical checks, which cost most."""
    known = {check.code: check for check in all_checks(contract=contract)}
    others = [check for code, check in known.items() if code not in mutant.caught_by]
    return [known[code] for code in mutant.caught_by] + sorted(others, key=lambda check: check.suite)


def tried(task: Task) -> Json:
    """One row. The statistical checks share one sampler, and with it the draws, as in a run."""
    number, profile, seed = task
    contract, mutant = mutants()[number]
    shared = mutant.make()
    caught_by = None
    for check in checks_in_order(contract, mutant):
        wrong = shared if check.suite == "statistical" else mutant.make()
        # A run has a reference only where one is installed; checks that a mutant names compare with the specification.
        is_alone = check.differential and check.code not in mutant.caught_by
        if is_alone or (not check.differential and check.why_not(wrong) is not None):
            continue
        if sees(check, wrong, PROFILES[profile], seed)[0]:
            caught_by = check.code
            break
    return {
        "contract": contract,
        "mutant": mutant.name,
        "first": mutant.caught_by[0],
        "profile": profile,
        "seed": seed,
        "caught_by": caught_by,
        "resolved": mutant.min_draws <= PROFILES[profile].draws,
        "commit": _COMMIT[:10],
    }


def key(row: Json) -> tuple[object, ...]:
    """Mutants of the two suites may have one name; the check that they name first tells them apart."""
    return row["contract"], row["mutant"], row["first"], row["profile"], row["seed"]


def all_rows(kept: dict[tuple[object, ...], Json], part: Path, match: str, jobs: int, seconds: float) -> list[Json]:
    """The rows that are kept and those that match; the latter are made, and added to `part` at once."""
    tasks: dict[tuple[object, ...], Task] = {
        (contract, mutant.name, mutant.caught_by[0], profile, seed): (number, profile, seed)
        for number, (contract, mutant) in enumerate(mutants())
        for profile in PROFILE_NAMES
        for seed in SEEDS
    }
    todo = [task for about, task in tasks.items() if about not in kept and match in words(*about[:3])]
    rows = kept | {key(row): row for row in appended(part, results(tried, todo, jobs, seconds))}
    return [rows[about] for about in tasks if about in rows]


def words(contract: object, mutant: object, first: object) -> str:
    """What `--match` looks at."""
    return f"{contract} {first} {mutant}"


# -- the page -------------------------------------------------------------------------------------------------------


def page(record: Json) -> str:
    """Return the tables of a record."""
    groups: dict[tuple[str, str, str], list[Json]] = {}
    for row in record["rows"]:
        groups.setdefault((row["contract"], row["mutant"], row["first"]), []).append(row)
    seeds, counted = len(record["seeds"]), [(name, count) for name in PROFILE_NAMES for count in (_caught, _own)]
    each = (title for name in PROFILE_NAMES for title in (f"`{name}`: caught", "by its own check"))
    lines = (
        [m, c, first, *(f"{count(rows, name)}/{seeds}" for name, count in counted)]
        for (c, m, first), rows in groups.items()
    )
    text = [
        f"Seeds: {', '.join(map(str, record['seeds']))}.",
        "",
        *_totals(groups, seeds),
        "",
        *_unrecorded(groups),
        *(line for name in ("ci", "smoke") for line in _missing(groups, name, seeds)),
        "## All mutants",
        "",
        *table(("mutant", "contract", "own check", *each), lines),
    ]
    return "\n".join(text)


def _caught(rows: Iterable[Json], profile: str) -> int:
    return sum(row["caught_by"] is not None for row in rows if row["profile"] == profile)


def _own(rows: Iterable[Json], profile: str) -> int:
    return sum(row["caught_by"] == row["first"] for row in rows if row["profile"] == profile)


def _totals(groups: dict[tuple[str, str, str], list[Json]], seeds: int) -> list[str]:
    rows = [
        [
            f"`{name}`",
            len(groups),
            *(sum(count(r, name) == seeds for r in groups.values()) for count in (_caught, _own)),
        ]
        for name in PROFILE_NAMES
    ]
    return table(("profile", "mutants", "caught with every seed", "by their own check with every seed"), rows)


def _unrecorded(groups: dict[tuple[str, str, str], list[Json]]) -> list[str]:
    """Mutants of today that nobody ran here, counted by contract."""
    absent = [contract for contract, m in mutants() if (contract, m.name, m.caught_by[0]) not in groups]
    if not absent:
        return []
    counted = ", ".join(f"{absent.count(name)} of {name}" for name in dict.fromkeys(absent))
    return [f"{len(absent)} newer mutants are not in this record: {counted}. Every run tries them as controls.", ""]


def _missing(groups: dict[tuple[str, str, str], list[Json]], profile: str, seeds: int) -> list[str]:
    """A line for each mutant that some seed misses; why, where the numbers say it."""
    lines = []
    for (contract, name, first), rows in groups.items():
        if _caught(rows, profile) < seeds:
            resolved = all(row["resolved"] for row in rows if row["profile"] == profile)
            why = "" if resolved else ": too small for this profile's draws, by design"
            lines.append(f"* {name} ({contract}, {first}): caught with {_caught(rows, profile)} of {seeds} seeds{why}.")
    return [f"## What `{profile}` misses", "", *(lines or ["Nothing."]), ""]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", action="store_true", help="continue a run that was stopped")
    parser.add_argument("--match", help="only rows of mutants whose name or first check has this; others are kept")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after so many; then --resume")
    arguments = parser.parse_args()
    part = arguments.out.with_suffix(".part")
    kept = {key(row): row for row in read_lines(part)} if arguments.resume else {}
    if arguments.match:
        before = read_rows(arguments.out)["rows"]
        kept |= {key(r): r for r in before if arguments.match not in words(r["contract"], r["mutant"], r["first"])}
    if not arguments.resume:
        part.unlink(missing_ok=True)
    rows = all_rows(kept, part, arguments.match or "", arguments.jobs, arguments.seconds)
    head = {"commit": _COMMIT, "machine": machine(), "seeds": SEEDS, "profiles": PROFILE_NAMES}
    write_rows(arguments.out, head, rows, ("contract", "mutant", "first", "profile"))
    if arguments.seconds == float("inf"):
        part.unlink()
    missed = [row for row in rows if row["profile"] == "ci" and row["resolved"] and row["caught_by"] is None]
    print("\n".join(f"ci misses {row['mutant']} ({row['first']}) with seed {row['seed']}" for row in missed))
    return int(bool(missed))
