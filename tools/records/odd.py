"""Run every odd but correct sampler as users do: every check must pass or be skipped. Prints what accuses, and the
processor's seconds; no record.

python tools/record.py odd --contract sampling --profile smoke --seeds 20 --jobs 14
"""

from __future__ import annotations

import argparse
import time

from fairdraw._core.seeds import DEFAULT_SEED
from fairdraw._run.runner import check_sampler
from odd.samplers import ODD
from records import results


def accused(task: tuple[str, int, str, int]) -> tuple[str, list[str]]:
    """Run all checks on a sampler (its contract, its number, the profile, the seed): a title, and what did not pass."""
    contract, number, profile, seed = task
    sampler = ODD[contract][number]
    began = time.process_time()
    records = check_sampler(sampler, profile=profile, seed=seed)
    wrong = [f"{record.id}: {record.status}" for record in records if record.status not in ("passed", "skipped")]
    return f"{contract}  {sampler.name}  seed {seed}  {time.process_time() - began:.0f} s", wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contract", choices=sorted(ODD), action="append")
    parser.add_argument("--profile", choices=("smoke", "ci"), default="ci")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--seeds", type=int, default=1, help="so many, from --seed on")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after so many")
    options = parser.parse_args()
    tasks = [
        (contract, number, options.profile, seed)
        for seed in range(options.seed, options.seed + options.seeds)
        for contract in options.contract or sorted(ODD)
        for number in range(len(ODD[contract]))
    ]
    red = 0
    for title, wrong in results(accused, tasks, options.jobs, options.seconds):
        red += bool(wrong)
        print(f"{title}  {', '.join(wrong) or 'green'}", flush=True)
    return int(red > 0)
