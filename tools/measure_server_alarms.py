"""How often do the checks of the contract `server` accuse a correct server? 200 runs on the stub, with fresh seeds.

    python tools/measure_server_alarms.py                # writes statistical/records/server_false_alarms.json
    python tools/measure_server_alarms.py --runs 8 --out /tmp/few.json

Every run is all properties and all distribution checks, at `--tokens` tokens, through the whole HTTP client to the stub
in this process. The stub is in turn vLLM without and with speculation, vLLM with processed log-probabilities, SGLang,
llama.cpp, and servers with OpenAI's fields alone. The p-values that stand beside decisions must be uniform, table by
table, as in `tools/measure_false_alarms.py`.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from measure_false_alarms import FEWEST_SAMPLES, Run, summary
from provenance import ROOT, commit, machine
from server_faults import connected

from fairdraw._core.checks import PROFILES
from fairdraw._core.failures import CapabilityUnsupported, CheckFailure, Inconclusive
from fairdraw._core.seeds import derive_seed
from fairdraw._mutants._server.dialects import Settings
from fairdraw._mutants._server.engine import Engine
from fairdraw._run.loading import all_checks
from fairdraw.statistical import _server_check
from fairdraw.statistical._decision import decide
from fairdraw.statistical._server_check import ServerDistributionCheck

if TYPE_CHECKING:
    from fairdraw._server._http import HttpServer
    from fairdraw.statistical._decision import Decision

SERVERS = (
    (Settings("vllm"), 0),
    (Settings("vllm"), 3),
    (Settings("vllm", processed=True), 0),
    (Settings("sglang"), 0),
    (Settings("llama.cpp"), 0),
    (Settings("openai"), 2),
    (Settings("chat"), 0),
)
"""How the stub is started, and the drafts of its speculation."""


def main(arguments: list[str] | None = None) -> int:
    """Run, write the record; 1 if there was an alarm."""
    parser = argparse.ArgumentParser(description="Count the false alarms of the checks of servers.")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=1300, help="of a run, for all distribution checks")
    parser.add_argument("--entropy", type=int, default=None, help="of the seeds; fresh if not given, and recorded")
    parser.add_argument("--out", type=Path, default=ROOT / "statistical" / "records" / "server_false_alarms.json")
    options = parser.parse_args(arguments)
    entropy = secrets.randbits(32) if options.entropy is None else options.entropy
    started, skipped = time.perf_counter(), Counter[str]()
    made_by = {"machine": machine(), "commit": commit()}
    runs = list[Run]()
    for number in range(options.runs):
        runs.append(one_run(number, entropy, options.tokens, skipped))
        print(f"{number + 1} runs, {time.perf_counter() - started:.0f} s", flush=True)
        if number % 10 == 9 or number == options.runs - 1:  # a run that is cut leaves what it has
            about = {"tokens": options.tokens, "entropy": entropy, "wall_seconds": time.perf_counter() - started}
            record = written(options.out, runs, skipped, about | made_by)
    print(f"{record['alarms']} alarms in {record['runs']} runs; {record['uniformity']['verdict']}: {options.out}")
    return 0 if record["alarms"] == 0 and record["uniformity"]["verdict"] == "uniform" else 1


def written(path: Path, runs: list[Run], skipped: Counter[str], about: dict[str, Any]) -> dict[str, Any]:  # Any: JSON
    """The record of the runs until now."""
    record = summary(runs, ("server",)) | {
        "checks": len(all_checks(contract="server")),
        "seldom": "",
        "sampler": "the stub: " + "; ".join(f"{settings}, {drafts} drafts" for settings, drafts in SERVERS),
        "not_judged": dict(sorted(skipped.items())),
        "cpu_seconds": round(sum(run.cpu_seconds for run in runs), 1),
        **about,
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


if __name__ == "__main__":
    sys.exit(main())
