"""Which check catches which fault of a server: every fault of the stub, in each profile, with a fresh server each time.

    python tools/record.py server_faults --out statistical/records/server_faults.json
    python tools/record.py server_faults --profile ci --seeds 5 --fault "silent greedy"

The stub answers in this process, through the whole HTTP client. A fault is put to the checks that it names, and with
`--search` to all of them in the order of their codes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairdraw._core.checks import PROFILES
from fairdraw._core.failures import CapabilityUnsupported, CheckFailure, Inconclusive
from fairdraw._core.seeds import DEFAULT_SEED, derive_seed
from fairdraw._mutants._server.app import make_app
from fairdraw._mutants._server.faults import FAULTS
from fairdraw._mutants._server.in_process import in_process
from fairdraw._run.loading import all_checks
from fairdraw._server._http import HttpServer
from fairdraw.protocols import NoAnswer, ServerSettings
from records import ROOT, commit, machine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fairdraw._core.checks import AnyCheck
    from fairdraw._mutants._server.dialects import Settings
    from fairdraw._mutants._server.engine import Engine
    from fairdraw._mutants._server.fault import Fault

SEEDS = (DEFAULT_SEED, 0, 1, 2, 3)
RECORD = ROOT / "statistical" / "records" / "server_faults.json"


@dataclass(frozen=True)
class Caught:
    """What became of a fault in one run.

    Args:
        code: Of the first check that failed; empty if none did.
        requests: That the server had answered by then.
        others: What checks that did not fail said, if it was anything else than a pass.
    """

    code: str
    requests: int
    seconds: float
    others: dict[str, str]


@contextlib.contextmanager
def connected(engine: Engine, settings: Settings, **options: Any) -> Iterator[HttpServer]:  # Any: of ServerSettings
    """The suite's client of a stub in this process."""
    # A step takes a while: the requests of a batch arrive one after another, and shall find each other.
    with in_process(make_app(engine, settings, step_seconds=0.001)) as transport:
        yield HttpServer.found("http://stub/v1", ServerSettings(**options), transport)


def first_caught(fault: Fault, checks: Sequence[AnyCheck], profile: str, seed: int, **options: Any) -> Caught:
    """Run the checks one after another until one fails. Any: options of `ServerSettings`."""
    started, others = time.process_time(), dict[str, str]()
    engine = fault.engine(derive_seed("entropy", fault.name, seed))
    with connected(engine, fault.settings, **options) as server:
        for check in checks:
            try:
                why_not = check.why_not(server)
                if why_not is not None:
                    raise CapabilityUnsupported(why_not)
                check.run(server, profile=PROFILES[profile], seed=seed)
            except CheckFailure:
                return Caught(check.code, engine.arrived, time.process_time() - started, others)
            except (CapabilityUnsupported, Inconclusive, NoAnswer) as error:
                others[check.code] = f"{type(error).__name__}: {error}"
    return Caught("", engine.arrived, time.process_time() - started, others)


def named_first(fault: Fault, *, search: bool = False) -> list[AnyCheck]:
    """The checks that a fault names, in that order; with `search` all of them, by code."""
    known = {check.code: check for check in all_checks(contract="server")}
    return list(known.values()) if search else [known[code] for code in fault.caught_by if code in known]


def main(arguments: list[str] | None = None) -> int:
    """Run, write the record, print the table; 1 if a fault was missed at `ci`."""
    parser = argparse.ArgumentParser(description="Which check catches which fault of a server.")
    parser.add_argument("--profile", choices=["smoke", "ci"], action="append")
    parser.add_argument("--fault", choices=list(FAULTS), action="append")
    parser.add_argument("--seeds", type=int, default=1, help="of the five that controls use")
    parser.add_argument("--search", action="store_true", help="all checks by code, not those that a fault names")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args(arguments)
    rows = []
    for profile in options.profile or ["smoke", "ci"]:
        for fault in [FAULTS[name] for name in options.fault or FAULTS]:
            checks = named_first(fault, search=options.search)
            rows.append(row(fault, profile, [first_caught(fault, checks, profile, s) for s in SEEDS[: options.seeds]]))
            print("  ".join(str(value) for value in rows[-1].values()), flush=True)
    if options.out is not None:
        write(options.out, rows)
    return int(any(one["caught"] < options.seeds for one in rows if one["profile"] == "ci"))


def row(fault: Fault, profile: str, found: Sequence[Caught]) -> dict[str, Any]:  # Any: JSON
    """A fault in one profile."""
    caught = [one for one in found if one.code]
    return {
        "fault": fault.name,
        "profile": profile,
        "checks": sorted({one.code for one in caught}),
        "caught": len(caught),
        "runs": len(found),
        "requests": max((one.requests for one in caught), default=0),
        "seconds": round(sum(one.seconds for one in found), 1),
        "others": {} if caught else found[0].others,
    }


def write(path: Path, rows: Sequence[dict[str, Any]]) -> None:  # Any: JSON
    """The record, a row a line. Rows of other faults and profiles stay."""
    made_by = {"machine": machine(), "commit": commit(), "seeds": list(SEEDS)}
    before = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    known = {(one["profile"], one["fault"]): one for one in before}
    known |= {(one["profile"], one["fault"]): one | {"commit": made_by["commit"]} for one in rows}
    kept = [known[at] for at in ((p, fault) for p in ("smoke", "ci") for fault in FAULTS) if at in known]
    head = json.dumps(made_by)[:-1]
    lines = ",\n  ".join(json.dumps(one) for one in kept)
    path.write_text(f'{head}, "rows": [\n  {lines}\n]}}\n', encoding="utf-8")
