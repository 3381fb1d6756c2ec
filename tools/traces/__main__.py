"""Play serving traces on samplers, and judge every token by three general judges. Not a part of the suite yet.

    python tools/traces sampling/torch rejection/torch
    python tools/traces mypkg.kernels:make --profile ci --seed 5

A trace is what one sampler meets in an engine: some hundred calls, in which requests come, move, wait and go, every
batch size and number of drafts occurs, and dtypes, strides, noise, filters and neighbours change from call to call.

* *exact*: whatever is determined is compared in every row (`sampling_judges`, `rejection_judges`).
* *again*: requests with seeds are asked again, elsewhere; seeds of a family draw numbers of their own (`seed_judge`).
* *distribution*: every draw is counted by projections in slices that are made by machine (`slices`).

Before this takes the place of checks: `slices` pairs rows at distances that are powers of two only, so that noise which
rows 17 apart share, opposite rows, sums of three rows and strata are not seen. The dependence checks see them.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main() -> int:
    """Judge the samplers that are named; 1 if something was found."""
    import torch

    from fairdraw._core.checks import PROFILES
    from fairdraw._core.failures import CapabilityUnsupported, Ended
    from fairdraw._core.seeds import DEFAULT_SEED
    from fairdraw._run.loading import load_sampler
    from traces import rejection_draws, rejection_judges, sampling_draws, sampling_judges

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samplers", nargs="+")
    parser.add_argument("--profile", choices=tuple(PROFILES), default="smoke")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    options = parser.parse_args()
    torch.set_num_threads(1)
    num_failed = 0
    for name in options.samplers:
        sampler = load_sampler(name)
        judges = (
            (*rejection_judges.TRACES, rejection_draws.SLICES)
            if hasattr(sampler, "verify")
            else (*sampling_judges.TRACES, sampling_draws.SLICES)
        )
        for judge in judges:
            began = time.perf_counter()
            try:
                tried = judge.run(sampler, profile=PROFILES[options.profile], seed=options.seed)
                said = f"passed ({tried} traces or draws)"
            except CapabilityUnsupported as reason:
                said = f"skipped: {reason}"
            except Ended as failure:
                num_failed += 1
                said = f"FAILED: {failure}\n    on {failure.case!r}"
            print(f"{name}: {judge.title}: {said}, {time.perf_counter() - began:.1f} s", flush=True)
    return int(num_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
