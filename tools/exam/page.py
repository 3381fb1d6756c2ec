"""`docs/exam.md`, from the record of the exam."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from exam.registry import CLASSES, CONTROL

if TYPE_CHECKING:
    from collections.abc import Iterable

Row = dict[str, Any]  # Any: JSON
Members = dict[tuple[str, str], list[Row]]
"""Member and profile to its rows."""

_HEAD = """\
# Exam by class

Written by `tools/exam` from `statistical/records/exam.json`. A member is a correct sampler, built on the public
protocols alone, with one fault that no check was written for. What exactly is wrong is drawn from a number, so that
`--exam 18` is another exam of the same classes. Each is checked as by `fairdraw check`, without a reference sampler.

*Found* counts members that at least one check fails: with every seed, and with any. *First report right* counts, among
the members that the first seed finds, those whose first report points at the area that was declared when the fault was
written (noise shared between rows, the temperature, an input of a certain size ...).
"""


def page(record: dict[str, Any]) -> str:  # Any: JSON
    """The whole page."""
    groups: Members = {}
    for row in record["rows"]:
        groups.setdefault((row["member"], row["profile"]), []).append(row)
    profiles = [name for name in ("smoke", "ci") if any(profile == name for _, profile in groups)]
    seeds = sorted({row["seed"] for row in record["rows"]}, key=list(record["seeds"]).index)
    recorded = len({row["member"] for row in record["rows"]})
    lines = [_HEAD, f"Seeds: {', '.join(map(str, seeds))}. The first is the release's."]
    runs = {name: sum(len(rows) for (_, profile), rows in groups.items() if profile == name) for name in profiles}
    of_all = ", ".join(f"{count} of {record['members'] * len(seeds)} runs of `{name}`" for name, count in runs.items())
    lines += [
        f"Of {record['members']} members, controls included, this record has {recorded}: {of_all}. Each row says its"
    ]
    lines += [f"commit. {record.get('made_on', '')}".strip(), ""]
    lines += table(groups, profiles)
    for profile in profiles:
        lines += ["", f"## What `{profile}` misses", "", *missed(groups, profile)]
    for profile in profiles:
        lines += ["", f"## First reports of `{profile}` that point elsewhere", "", *elsewhere(groups, profile)]
    lines += ["", "## Correct samplers", "", *false_alarms(groups)]
    lines += ["", "## All members", "", *all_members(groups, profiles)]
    return "\n".join(lines) + "\n"


def table(groups: Members, profiles: list[str]) -> list[str]:
    """By class and profile."""
    lines = [
        "| class | profile | members | found with every seed | with any seed | first report right |",
        "|---|---|---|---|---|---|",
    ]
    for profile in profiles:
        present = [kind for kind in CLASSES if any(rows[0]["class"] == kind for rows in _of(groups, profile))]
        lines += [_line(kind, profile, [g for g in _of(groups, profile) if g[0]["class"] == kind]) for kind in present]
        lines.append(_line("**all**", profile, [g for g in _of(groups, profile) if g[0]["class"] != CONTROL]))
    return lines


def _of(groups: Members, profile: str) -> list[list[Row]]:
    return [rows for (_, name), rows in groups.items() if name == profile]


def _line(kind: str, profile: str, groups: list[list[Row]]) -> str:
    every = sum(all(row["found"] for row in rows) for rows in groups)
    some = sum(any(row["found"] for row in rows) for rows in groups)
    judged = [row for rows in groups for row in rows if row.get("right") is not None]
    right = sum(row["right"] for row in judged)
    first = f"{right} of {len(judged)}" if judged else "not measured"
    shares = f"{_share(every, groups)} | {_share(some, groups)} | {first}"
    return f"| {kind} | `{profile}` | {len(groups)} | {shares} |"


def _share(count: int, groups: list[list[Row]]) -> str:
    return f"{count} ({round(100 * count / max(len(groups), 1))} %)"


def _faulty(groups: Members, profile: str) -> Iterable[list[Row]]:
    return (rows for rows in _of(groups, profile) if rows[0]["class"] != CONTROL)


def missed(groups: Members, profile: str) -> list[str]:
    """A line for each member that some seed misses."""
    lines = []
    for rows in _faulty(groups, profile):
        found = sum(row["found"] is not None for row in rows)
        if found < len(rows):
            first = rows[0]
            why = f" Resolution: {first['resolution']}." if first.get("resolution") else ""
            lines.append(
                f"* {first['words']} ({first['contract']}, {first['class']}): {found} of {len(rows)} seeds.{why}"
            )
    return lines or ["Nothing."]


def elsewhere(groups: Members, profile: str) -> list[str]:
    """A line for each first report that is not right."""
    wrong = [row for rows in _faulty(groups, profile) for row in rows if row.get("right") is False]
    judged = any(row.get("right") is not None for group in _of(groups, profile) for row in group)
    none = "None." if judged else "Not measured."
    return [f"* {row['words']} ({row['contract']}): {row['first']}. Right: {row['area']}." for row in wrong] or [none]


def false_alarms(groups: Members) -> list[str]:
    """What correct samplers fail."""
    rows = [row for group in groups.values() for row in group if row["class"] == CONTROL]
    red = [
        f"* {row['member']}, `{row['profile']}`, seed {row['seed']}: {row['found']}." for row in rows if row["found"]
    ]
    return [f"{len(rows)} runs on samplers without a fault, {len(red)} of them red.", *([""] if red else []), *red]


def all_members(groups: Members, profiles: list[str]) -> list[str]:
    """Every member, how many seeds find it, and the first report."""
    heads = "".join(f" `{profile}` |" for profile in profiles)
    lines = [f"| fault | contract | class |{heads} first report |", "|---|---|---|" + "---|" * len(profiles) + "---|"]
    for name in dict.fromkeys(name for name, _ in groups):
        own = {profile: groups.get((name, profile), []) for profile in profiles}
        one = next(rows[0] for rows in own.values() if rows)
        counts = "".join(f" {sum(r['found'] is not None for r in rows)}/{len(rows)} |" for rows in own.values())
        first = next((row["first"] for rows in reversed(own.values()) for row in rows if row.get("first")), "")
        lines.append(f"| {one['words']} | {one['contract']} | {one['class']} |{counts} {first} |")
    return lines
