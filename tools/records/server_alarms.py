"""How often do the checks of the contract `server` accuse a correct server? 200 runs on the stub, with fresh seeds.

    python tools/record.py server_alarms                # writes statistical/records/server_false_alarms.json
    python tools/record.py server_alarms --runs 8 --out /tmp/few.json --journal /tmp/few.jsonl

Every run is all properties and all distribution checks, at `--tokens` tokens, through the whole HTTP client to the stub
in this process. The stub is in turn vLLM without and with speculation, vLLM with processed log-probabilities, SGLang,
llama.cpp, and servers with OpenAI's fields alone. The p-values that stand beside decisions must be uniform, table by
table, as in `tools/record.py false_alarms`.

Each run is a line of the journal. A measurement that was cut goes on with it, as long as the checks are the same.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import secrets
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairdraw._core.checks import PROFILES
from fairdraw._core.failures import CapabilityUnsupported, CheckFailure, Inconclusive
from fairdraw._core.seeds import derive_seed
from fairdraw._mutants._server.dialects import Settings
from fairdraw._mutants._server.engine import Engine
from fairdraw._run.loading import all_checks
from fairdraw.statistical import _server_check
from fairdraw.statistical._decision import decide
from fairdraw.statistical._server_check import ServerDistributionCheck
from records import ROOT, commit, machine
from records.false_alarms import FEWEST_SAMPLES, Run, summary
from records.server_faults import connected

if TYPE_CHECKING:
    from fairdraw._server._http import HttpServer
    from fairdraw.statistical._decision import Decision

COMMIT = commit()
"""Of the code that this process runs, whatever happens to the tree meanwhile."""

SERVERS = (
    (Settings("vllm"), 0),
    (Settings("vllm"), 3),
    (Settings("vllm", stage="processed"), 0),
    (Settings("sglang"), 0),
    (Settings("llama.cpp"), 0),
    (Settings("openai"), 2),
    (Settings("openai", chats_only=True), 0),
    (Settings("vllm", chats_only=True), 0),
    (Settings("openai", stage="scaled"), 0),
)
"""How the stub is started, and the drafts of its speculation."""


def main(arguments: list[str] | None = None) -> int:
    """Run, write the record; 1 if there was an alarm."""
    parser = argparse.ArgumentParser(description="Count the false alarms of the checks of servers.")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=1300, help="of a run, for all distribution checks")
    parser.add_argument("--out", type=Path, default=ROOT / "statistical" / "records" / "server_false_alarms.json")
    parser.add_argument("--journal", type=Path, default=ROOT / ".cache" / "server_alarms.jsonl")
    options = parser.parse_args(arguments)
    lines = known(options.journal, options.tokens)
    entropy = lines[0]["entropy"] if lines else secrets.randbits(32)  # fresh seeds
    for number in range(len(lines), options.runs):
        lines.append(line(number, entropy, options.tokens))
        with options.journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(lines[-1]) + "\n")
        if number % 10 == 9 or number == options.runs - 1:
            print(f"{number + 1} runs, {sum(one['cpu_seconds'] for one in lines):.0f} s of CPU", flush=True)
    record = written(options.out, lines[: options.runs], options.tokens)
    print(f"{record['alarms']} alarms in {record['runs']} runs; {record['uniformity']['verdict']}: {options.out}")
    return 0 if record["alarms"] == 0 and record["uniformity"]["verdict"] == "uniform" else 1


def known(journal: Path, tokens: int) -> list[dict[str, Any]]:  # Any: JSON
    """The runs of the journal. Another size, or other checks, make a new journal."""
    journal.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(one) for one in journal.read_text().splitlines()] if journal.exists() else []
    if any((one["tokens"], one["checks"]) != (tokens, codes()) for one in lines):
        journal.unlink()
        return []
    return lines


def codes() -> list[str]:
    """Of all checks."""
    return [check.code for check in all_checks(contract="server")]


def line(number: int, entropy: int, tokens: int) -> dict[str, Any]:  # Any: JSON
    """One run, for the journal."""
    skipped, started = Counter[str](), time.perf_counter()
    run = one_run(number, entropy, tokens, skipped)
    about = {"tokens": tokens, "entropy": entropy, "checks": codes(), "commit": COMMIT}
    return dataclasses.asdict(run) | about | {"skipped": dict(skipped), "wall_seconds": time.perf_counter() - started}


def written(path: Path, lines: list[dict[str, Any]], tokens: int) -> dict[str, Any]:  # Any: JSON
    """The record of the runs."""
    fields = [field.name for field in dataclasses.fields(Run)]
    runs = [Run(**{name: one[name] for name in fields}) for one in lines]
    skipped = sum((Counter(one["skipped"]) for one in lines), Counter[str]())
    record = summary(runs, ("server",)) | {
        "checks": len(codes()),
        "seldom": "",
        "sampler": "the stub: " + "; ".join(f"{settings}, {drafts} drafts" for settings, drafts in SERVERS),
        "not_judged": dict(sorted(skipped.items())),
        "cpu_seconds": round(sum(run.cpu_seconds for run in runs), 1),
        "wall_seconds": round(sum(one["wall_seconds"] for one in lines), 1),
        "tokens": tokens,
        "entropy": lines[0]["entropy"],
        "machine": machine(),
        "commit": ", ".join(dict.fromkeys(one["commit"] for one in lines)),
    }
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return record


def one_run(number: int, entropy: int, tokens: int, skipped: Counter[str]) -> Run:
    """All checks on a fresh server; `skipped` counts those that did not judge it."""
    seed, started = derive_seed("server alarms", entropy, number), time.process_time()
    settings, drafts = SERVERS[number % len(SERVERS)]
    engine = Engine(derive_seed("entropy", entropy, number), drafts)
    alarms, p_values, evidence = list[str](), dict[str, float](), [0.0]
    with connected(engine, settings, tokens=tokens) as server:
        for check in all_checks(contract="server"):
            try:
                if (why_not := check.why_not(server)) is not None:
                    raise CapabilityUnsupported(why_not)
                check.run(server, profile=PROFILES["ci"], seed=seed)
            except CheckFailure as error:
                alarms.append(check.code)
                print(f"run {number}: {check.code} {error.effect}", flush=True)
            except (CapabilityUnsupported, Inconclusive):
                skipped[check.code] += 1
                continue
            if isinstance(check, ServerDistributionCheck):
                decision = decided(check, server, seed)
                evidence += [table.log_e_value / 2.302585 for table in decision.evidence]
                p_values |= {
                    f"{check.code} {table.name}": table.p_value
                    for table in decision.evidence
                    if table.num_samples >= FEWEST_SAMPLES and table.num_cells > 2
                }
    return Run("server", seed, tuple(alarms), (), p_values, max(evidence), time.process_time() - started)


def decided(check: ServerDistributionCheck, server: HttpServer, seed: int) -> Decision:
    """The check once more, on the answers that it has: with its evidence."""
    profile, rate = PROFILES["ci"], check.share * _server_check.false_fail_rate(seed)
    tables, plans = check.tables(server, profile), check.planned(server, profile, seed)
    return decide(tables, plans, check.checkpoints(server, profile, seed, []), rate)
