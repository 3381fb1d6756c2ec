"""Run the checks of the stateful contracts at `nightly` on our scanners, with the real vLLM as reference; keep a
record.

    python tools/lifecycle_record.py --out perf_regression/records/lifecycle_nightly.json

With `--contract` the other contract keeps its entry in the record. Per check: events tried, seconds of processor time,
and the difference if there is one. Exits 1 on a difference.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from provenance import commit, machine

from fairdraw._core.checks import PROFILES
from fairdraw._core.failures import CapabilityUnsupported, CheckFailure
from fairdraw._core.seeds import DEFAULT_SEED
from fairdraw._run.runner import one_torch_thread
from fairdraw.adapters import load
from fairdraw.properties.penalties import CHECKS as PENALTIES
from fairdraw.properties.thinking_budget import CHECKS as THINKING


def live(check: Any, scanner: Any, reference: Any, profile: str) -> dict[str, Any]:  # Any: of either contract; JSON
    """One check, as one row of the record."""
    started, difference = time.process_time(), ""
    try:
        events = check.run(scanner, profile=PROFILES[profile], seed=DEFAULT_SEED, reference=reference)
    except CapabilityUnsupported as reason:
        events, difference = 0, f"skipped: {reason}"
    except CheckFailure as failure:
        events, difference = getattr(failure, "tried", 0), f"{failure.effect} in {getattr(failure, 'case', None)!r}"
    seconds = round(time.process_time() - started, 1)
    row = {"check": check.id, "events": events, "seconds": seconds, "difference": difference}
    print(json.dumps(row), flush=True)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--contract", choices=("penalties", "thinking_budget"))
    parser.add_argument("--profile", choices=sorted(PROFILES), default="nightly")
    arguments = parser.parse_args()
    scanners = (
        (PENALTIES, load("penalties/torch", "cpu"), load("penalties/vllm", "cpu")),
        (THINKING, load("thinking_budget/torch"), load("thinking_budget/vllm", "cpu")),
    )
    contracts: dict[str, Any] = json.loads(arguments.out.read_text())["contracts"] if arguments.out.exists() else {}
    with one_torch_thread():
        for checks, scanner, reference in scanners:
            if arguments.contract not in (None, scanner.contract):
                continue
            rows = [live(check, scanner, reference, arguments.profile) for check in checks]
            contracts[scanner.contract] = {
                "scanner": scanner.name,
                "reference": reference.name,
                "profile": arguments.profile,
                "commit": commit(),
                "machine": machine(),
                "events": sum(row["events"] for row in rows),
                "seconds": round(sum(row["seconds"] for row in rows), 1),
                "checks": rows,
            }
    arguments.out.write_text(json.dumps({"contracts": contracts}, indent=1) + "\n", encoding="utf-8")
    return int(any(row["difference"] for contract in contracts.values() for row in contract["checks"]))


if __name__ == "__main__":
    sys.exit(main())
