"""The program that `instructions` runs under valgrind: `python -m fairdraw.perf_regression._counted FACTORY ...`."""

from __future__ import annotations

import gc
import json
import sys

from fairdraw.perf_regression._named import load

WARM_UP = 3


def main(factory: str, arguments: str, repeats: str, with_steps: str) -> None:
    """Warm up, then `repeats` times what comes before a step, each followed by the step if `with_steps` is `1`."""
    advance, step = load(factory)(**json.loads(arguments))
    gc.disable()
    for _ in range(WARM_UP):
        advance()
        step()
    for _ in range(int(repeats)):
        advance()
        if with_steps == "1":
            step()


if __name__ == "__main__":
    main(*sys.argv[1:])
