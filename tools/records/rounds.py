"""Record real rounds on a busy machine, for the tests of the decision.

    python tools/record.py rounds --out perf_regression/records/samples_busy.json
    python tools/record.py rounds --processes --out perf_regression/records/samples_processes.json

As many processes as there are cores keep them busy. Each series is one run of a gate: `aa` compares ten passes over an
array with ten passes, `slower` eleven with ten. Each kind is recorded with both clocks, the wall's and the thread's.
With `--processes` it is one ratio for each of several fresh processes, by the thread's clock.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fairdraw.perf_regression._confirmation import Timed
from fairdraw.perf_regression._records import provenance, write_record
from fairdraw.perf_regression._rounds import Rounds, calibrate, cpu_clock, thread_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fairdraw.perf_regression._rounds import Clock

PASSES, ENTRIES = 10, 100_000
KINDS = {"aa": PASSES, "slower": PASSES + 1}
NUM_ROUNDS, NUM_SERIES, NUM_PROCESSES = 80, 10, 20
SHORTEST_SAMPLE = 1e-3
CLOCKS = {"wall": cpu_clock, "thread": thread_clock}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Record rounds with all cores busy.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit", default="")
    parser.add_argument("--processes", action="store_true", help="one ratio per fresh process")
    options = parser.parse_args(argv)
    with busy_neighbours(os.cpu_count() or 1):
        record = _of_processes() if options.processes else _of_rounds()
    write_record(options.out, {**provenance(options.commit), **record})


def _of_rounds() -> dict[str, object]:
    series = {
        f"{kind} {name}": [_series(passes, clock) for _ in range(NUM_SERIES)]
        for kind, passes in KINDS.items()
        for name, clock in CLOCKS.items()
    }
    return {"what": "nanoseconds per call of ours and reference, by round; no dropped rounds", "series": series}


def _of_processes() -> dict[str, object]:
    name = "records.rounds:rounds_of_work"  # this file, which a fresh process finds on the path
    ratios = {
        kind: [round(Timed(name, {"passes": passes}).in_fresh_process(), 5) for _ in range(NUM_PROCESSES)]
        for kind, passes in KINDS.items()
    }
    return {"what": "median ratio of each fresh process, by the thread's clock", "ratios": ratios}


def rounds_of_work(passes: int) -> Rounds:
    """So many passes, and `PASSES` of them; not yet measured."""
    return _rounds(passes, thread_clock)


def _rounds(passes: int, clock: Clock) -> Rounds:
    steps = {"ours": work(passes), "reference": work(PASSES)}
    inner = calibrate(steps, SHORTEST_SAMPLE, clock)
    return Rounds(steps, inner=inner, clock=clock, drop_switched=clock is cpu_clock)


def work(passes: int) -> Callable[[], object]:
    """So many passes over one array."""
    values = np.linspace(0.0, 1.0, ENTRIES)
    scratch = np.empty_like(values)

    def step() -> None:
        for _ in range(passes):
            np.sqrt(values, out=scratch)

    return step


def _series(passes: int, clock: Clock) -> dict[str, object]:
    rounds = _rounds(passes, clock)
    rounds.run(NUM_ROUNDS)
    pairs = [[round(1e9 * seconds) for seconds in pair] for pair in rounds.pairs("ours", "reference")]
    return {"pairs": pairs, "num_dropped": rounds.num_dropped}


@contextmanager
def busy_neighbours(count: int) -> Iterator[None]:
    """So many processes that do nothing but keep cores busy, until the end."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_spin, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _spin() -> None:
    values = np.linspace(0.0, 1.0, ENTRIES)
    while True:
        np.sqrt(values, out=values)
