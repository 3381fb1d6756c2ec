"""Ask drafter and verifier together on this GPU, and keep the answers as a JSON record: a row per sampler and check.

    python tools/pair_record.py --pack .cache/vllm .cache/vllm-pairs             # vLLM's files alone, to be carried
    python tools/pair_record.py --vllm .cache/vllm-pairs --out statistical/records/pairs_h200.json     # 1e7 rows each
    python tools/pair_record.py --rows 2000 --samplers rejection/counter --out /tmp/pairs.json
    python tools/pair_record.py --join A.json B.json --out BOTH.json       # one record; each row says its commit

A row is a step of one request: it drafts, verifies, and goes on at the next position. Every sampler runs in a process
of its own, and all at once. Of vLLM the files of the kernels run unmodified (`_upstream_arms`), called by the adapter
that `fairdraw check rejection/vllm-v2` uses; all else of the package is a stand-in. `expected` says whether this is
what a right suite finds: 0.22.0 draws recovered tokens with its drafter's noise (vLLM #54282).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import _upstream_arms as arms
from provenance import commit, gpu, machine, rows_as_json

Json = dict[str, Any]  # Any: JSON
OURS = ("rejection/counter", "rejection/triton", "rejection/step")
THEIRS = ("rejection/vllm-v2 0.22.0", "rejection/vllm-v2 0.33.0")
RED = {"rejection/vllm-v2 0.22.0": ["DIST803", "DIST805", "DIST806"]}
"""The others are green. Neighbouring steps and whole texts follow from `DIST803`: they hold recovered tokens."""


def pack(releases: Path, folder: Path) -> None:
    """Copy the few files that are run."""
    for name in THEIRS:
        release = name.split()[1]
        for module in arms.KEPT:
            file = Path(*module.split(".")).with_suffix(".py")
            if (releases / release / file).exists():
                (folder / release / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(releases / release / file, folder / release / file)


def load(name: str, folder: Path | None) -> Any:  # Any: a sampler with a drafter
    """The sampler; of vLLM by its adapter, from the files of a release."""
    from fairdraw._run.loading import load_sampler

    sampler, _, release = name.partition(" ")
    if release:
        from fairdraw._adapters import _vllm_v2

        assert folder is not None
        stand_ins = {"vllm": {"__version__": release}}
        sys.meta_path.insert(0, arms._Finder(folder / release, contents=stand_ins))
        vars(_vllm_v2)["trim_of"] = lambda _: None  # a module that is a stand-in
    return load_sampler(sampler)


def rows_of(name: str, folder: Path | None, num_rows: int) -> list[Json]:
    """A row for each check of the pair."""
    from fairdraw._core.checks import PROFILES
    from fairdraw._core.seeds import DEFAULT_SEED
    from fairdraw._run.loading import all_checks
    from fairdraw._run.runner import Session, run_check

    sampler = load(name, folder)
    checks = [check for check in all_checks(contract="rejection") if check.code in CODES]
    profile = PROFILES["ci"]
    share = checks[0].workload.share
    factor = num_rows / (share * checks[0].num_draws(sampler, profile))
    draws, slow_draws = (round(factor * most) for most in (profile.draws, profile.slow_draws))
    profile = dataclasses.replace(profile, draws=draws, slow_draws=slow_draws)
    session, rows = Session(profile=profile, seed=DEFAULT_SEED, crash_folder=None), []
    for check in checks:
        begin = time.monotonic()
        record = run_check(check, sampler, session)
        red = record.status in ("failed", "xfailed")
        rows.append(
            {
                "sampler": name,
                "name": sampler.name,
                "check": check.code,
                "status": record.status,
                "expected": (check.code in RED.get(name, ())) == red and record.status != "inconclusive",
                "rows": record.cases,
                "effect": record.failure_report.effect if record.failure_report else "",
                "seconds": round(time.monotonic() - begin, 1),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


CODES = tuple(f"DIST80{number}" for number in range(1, 7))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--vllm", type=Path, help="folder of releases, or what --pack has made of it")
    parser.add_argument("--pack", type=Path, nargs=2, metavar=("RELEASES", "FOLDER"))
    parser.add_argument("--join", type=Path, nargs="+", help="records that were made one by one on such a machine")
    parser.add_argument("--rows", type=int, default=10_400_000)
    parser.add_argument("--samplers", nargs="*", default=[*OURS, *THEIRS])
    parser.add_argument("--only", help="run this one here, and print its rows")
    options = parser.parse_args()
    if options.pack:
        pack(*options.pack)
        return 0
    if options.only:
        rows_of(options.only, options.vllm, options.rows)
        return 0
    if options.join:
        options.out.write_text(rows_as_json(joined(options.join)), encoding="utf-8")
        return 0
    rows = in_processes(options)
    head = {"commit": commit(), "machine": machine() | gpu(), "rows_each": options.rows}
    options.out.write_text(rows_as_json(head | {"rows": rows}), encoding="utf-8")
    wrong = [row for row in rows if not row["expected"]]
    complete = len(rows) == len(CODES) * len(options.samplers)
    print(f"{len(rows)} rows, {len(wrong)} not as expected")
    return int(bool(wrong) or not complete)


def joined(paths: list[Path]) -> Json:
    """One record of several, of which the first wins; every row names its commit."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    rows: dict[tuple[str, str], Json] = {}
    for record in records:
        for row in record["rows"]:
            rows.setdefault((row["sampler"], row["check"]), {"commit": record["commit"]} | row)
    return records[0] | {"rows": list(rows.values())}


def in_processes(options: argparse.Namespace) -> list[Json]:
    """All samplers beside each other."""
    given = ["--rows", str(options.rows)]
    given += ["--vllm", str(options.vllm)] if options.vllm else []
    started = [
        subprocess.Popen([sys.executable, __file__, *given, "--only", name], stdout=subprocess.PIPE, text=True)
        for name in options.samplers
    ]
    lines = [line for process in started for line in process.communicate()[0].splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


if __name__ == "__main__":
    sys.exit(main())
