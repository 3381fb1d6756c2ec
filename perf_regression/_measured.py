"""The program that `confirmation` runs in a fresh process: rounds by name, one number out."""

from __future__ import annotations

import json
import sys

from fairdraw.perf_regression._named import load


def main(factory: str, arguments: str, statistic: str, num_rounds: str) -> None:
    """The number is the last line of what is printed: what is measured may print, too."""
    rounds = load(factory)(**json.loads(arguments))
    rounds.warm_up()
    rounds.run(int(num_rounds))
    print(json.dumps(load(statistic)(rounds)))


if __name__ == "__main__":
    main(*sys.argv[1:])
