"""Penalties and thinking budget against the real vLLM 0.22.0, per decode step, on the CPU.

    python -m fairdraw.perf_regression._scanners --out perf_regression/records/scanners_cpu.json

Writes one JSON record; `tools/perf_table.py` makes the table in the docs from it. Takes about
ten minutes on two cores. Exit code 0 if every limit is kept, 1 if not, 3 if nothing could be measured.

Times are CPU time of one thread, so that other processes on the machine do not change the ratio. Every arm is timed
twice, because the time of a step depends on what used the caches before it:

    own     right after an untimed step of the same arm, as in a server that runs this code. The limits apply to it.
    cold    right after another arm: vLLM reads all ids ever generated, and removes our data from the caches.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from fairdraw.perf_regression import _scanner_arms as arms
from fairdraw.perf_regression._decision import Gate, Verdict, decide
from fairdraw.perf_regression._instructions import exponent, instructions_per_step
from fairdraw.perf_regression._named import NoVerdictError
from fairdraw.perf_regression._records import provenance, write_record
from fairdraw.perf_regression._rounds import Rounds, after_another_arm, after_own_step, thread_clock
from fairdraw.perf_regression._scanner_steps import VOCAB_SIZE, Outputs

if TYPE_CHECKING:
    from collections.abc import Sequence

BATCH_SIZE, LENGTH = 128, 12_000
"""Where the limits apply."""
LENGTHS = (1_000, 4_000, LENGTH, 32_000)
DRAFTS = (0, 3)
ROUNDS = {LENGTH: 40}
FEW_ROUNDS = 6
RATIO_LIMIT, ARITHMETIC_LIMIT, EXPONENT_LIMIT = 1 / 500, 1.0, 0.02
ALPHA = 0.01 / 6
"""One-sided, for each of six limits on times: 1 % for the run."""
COUNTED_BATCH_SIZE, COUNTED_LENGTHS = 16, (1_000, 2_000, 6_000, 12_000, 32_000)
SCANNERS = {"penalties": arms.penalties_arms, "thinking budget": arms.thinking_arms}
PROGRAMS = {"penalties": "penalties_program", "thinking budget": "thinking_program"}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Scanners against vLLM 0.22.0, per decode step.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit", default="", help="of the tree that runs; git is asked if omitted")
    options = parser.parse_args(argv)
    try:
        record = measured(options.commit)
    except NoVerdictError as error:
        print(f"NO VERDICT: {error}")
        return 3
    write_record(options.out, record)
    print(f"written: {options.out}")
    return 0 if all(limit["verdict"] == Verdict.PASS.value for limit in record["limits"]) else 1


def measured(commit: str) -> dict[str, Any]:  # Any: JSON
    """Everything, as one record."""
    arms.require_upstream()
    torch.set_num_threads(1)  # parallel regions would wait for cores that other processes use
    origin = provenance(commit)
    steps = [row for num_drafts in DRAFTS for row in _steps(num_drafts)]
    arithmetic = [_arithmetic(num_drafts) for num_drafts in DRAFTS]
    counts = _instructions()
    return {
        "what": "cost of a decode step on the host, microseconds; vLLM is the real one in the same process",
        "clock": "CPU time of the thread, median of interleaved rounds",
        "batch_size": BATCH_SIZE,
        "vocab_size": VOCAB_SIZE,
        "torch_threads": 1,
        **origin,
        "limits": [*map(_limit, (row for row in (*steps, *arithmetic) if row["length"] == LENGTH)), *_flat(counts)],
        "steps": steps,
        "arithmetic": arithmetic,
        "instructions": counts,
    }


def _steps(num_drafts: int) -> list[dict[str, Any]]:  # Any: JSON
    """Both scanners at all lengths, on lists that grow from one length to the next."""
    outputs = Outputs(BATCH_SIZE, num_drafts, max_length=max(LENGTHS) + 2_000)
    found = []
    for length in LENGTHS:
        outputs.grow(length - len(outputs.lists[0]))
        outputs.advance()
        for scanner, make in SCANNERS.items():
            found.append({"scanner": scanner, **_step(make(outputs), outputs, length)})
            print(_line(found[-1]), flush=True)
    return found


def _step(steps: Any, outputs: Outputs, length: int) -> dict[str, Any]:  # Any: arms, JSON
    own = Rounds(steps, clock=after_own_step(outputs.advance, thread_clock), drop_switched=False)
    cold = Rounds(steps, clock=after_another_arm(outputs.advance, thread_clock), drop_switched=False)
    own.run(ROUNDS.get(length, FEW_ROUNDS))
    cold.run(FEW_ROUNDS)
    decided = _decided(own, RATIO_LIMIT)
    return {"num_drafts": outputs.num_drafts, "length": length, **decided, "cold_us": _medians(cold)}


def _arithmetic(num_drafts: int) -> dict[str, Any]:  # Any: JSON
    outputs = Outputs(BATCH_SIZE, num_drafts)
    outputs.grow(LENGTH - 1)
    outputs.advance()
    rounds = Rounds(arms.arithmetic_arms(outputs), clock=thread_clock, drop_switched=False)
    rounds.run(20)
    row = {"scanner": "penalties on logits", "num_drafts": num_drafts, "length": LENGTH}
    row |= _decided(rounds, ARITHMETIC_LIMIT)
    print(_line(row), flush=True)
    return row


def _decided(rounds: Rounds, limit: float) -> dict[str, Any]:  # Any: JSON
    """Medians, and the verdict with its interval; `None` where too few rounds were run for one."""
    gate = Gate(limit, alpha=ALPHA, looks=(len(rounds.found),))
    decision = decide(rounds.pairs("ours", "vllm"), gate, num_dropped=rounds.num_dropped)
    return {
        "us": _medians(rounds),
        "limit": limit,
        "ratio": vars(decision.ratio) if decision.ratio else None,
        "verdict": decision.verdict.value,
        "reason": decision.reason,
        "rounds": decision.num_rounds,
        "dropped": decision.num_dropped,
    }


def _medians(rounds: Rounds) -> dict[str, float]:
    valid = [found.seconds for found in rounds.found if not found.problem] or [rounds.found[-1].seconds]
    return {name: round(1e6 * median(seconds[name] for seconds in valid), 2) for name in rounds.steps}


def _instructions() -> list[dict[str, Any]]:  # Any: JSON
    """Counts over lengths, two valgrinds at a time."""
    wanted = [(s, k, length) for s in PROGRAMS for k in DRAFTS for length in COUNTED_LENGTHS]
    with ThreadPoolExecutor(2) as pool:
        counted = dict(zip(wanted, pool.map(lambda key: _count(*key), wanted), strict=True))
    rows = []
    for scanner, num_drafts in product(PROGRAMS, DRAFTS):
        counts = {length: counted[scanner, num_drafts, length] for length in COUNTED_LENGTHS}
        row: dict[str, Any] = {"scanner": scanner, "num_drafts": num_drafts, "batch_size": COUNTED_BATCH_SIZE}
        row["per_step"] = {str(length): round(count) for length, count in counts.items()}
        row["exponent"] = round(exponent(counts), 5)
        print(f"{scanner}, {num_drafts} drafts: exponent {row['exponent']}", flush=True)
        rows.append(row)
    return rows


def _count(scanner: str, num_drafts: int, length: int) -> float:
    factory = f"fairdraw.perf_regression._scanner_steps:{PROGRAMS[scanner]}"
    return instructions_per_step(factory, length=length, batch_size=COUNTED_BATCH_SIZE, num_drafts=num_drafts)


def _limit(row: dict[str, Any]) -> dict[str, Any]:  # Any: JSON
    what = f"{row['scanner']}, {row['num_drafts']} drafts: time of ours / vLLM's"
    value = row["ratio"] and row["ratio"]["middle"]
    return {"what": what, "value": value, "limit": row["limit"], "verdict": row["verdict"]}


def _flat(counts: list[dict[str, Any]]) -> list[dict[str, Any]]:  # Any: JSON
    return [
        {
            "what": f"{row['scanner']}, {row['num_drafts']} drafts: exponent of instructions in length",
            "value": row["exponent"],
            "limit": EXPONENT_LIMIT,
            "verdict": (Verdict.PASS if row["exponent"] <= EXPONENT_LIMIT else Verdict.FAIL).value,
        }
        for row in counts
    ]


def _line(row: dict[str, Any]) -> str:  # Any: JSON
    times = ", ".join(f"{name} {value:.0f} us" for name, value in row["us"].items())
    return f"{row['scanner']}, {row['num_drafts']} drafts, length {row['length']}: {times}: {row['verdict']}"


if __name__ == "__main__":
    sys.exit(main())
