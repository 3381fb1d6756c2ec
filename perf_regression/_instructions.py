"""Instructions per step, counted by valgrind: one run decides, and no neighbour disturbs.

Two runs of one program differ in nothing but the steps, so their difference over the number of steps is the step.
Address space layout moves the count of a whole run by up to 5000 (measured; of 650 million): 50 per step of 100.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from typing import TYPE_CHECKING

from fairdraw.perf_regression._fresh import run_fresh
from fairdraw.perf_regression._named import NoVerdictError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["exponent", "instructions_per_step"]

# Hash seeds and helper threads make counts differ between runs; NumPy and glibc choose their fastest code for the
# processor that they find, which makes them differ between machines.
_SAME_EVERYWHERE = {
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2_Usable,-AVX2,-ERMS,-AVX512F",
    "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL",
}


def instructions_per_step(factory: str, *, repeats: int = 100, timeout: float = 300, **arguments: int) -> float:
    """Mean instructions of one step.

    Args:
        factory: `package.module:function`; called with `arguments` it returns what comes before a step, and the step.

    Raises:
        NoVerdictError: If valgrind is absent, or the program fails or does not end within `timeout` seconds.
    """
    with_steps, without = (_count(factory, arguments, repeats, steps, timeout) for steps in ("1", "0"))
    return (with_steps - without) / repeats


def _count(factory: str, arguments: dict[str, int], repeats: int, with_steps: str, timeout: float) -> int:
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise NoVerdictError("valgrind is not installed: nothing counts instructions. Install the package valgrind.")
    settings = [f"{name}={value}" for name, value in _SAME_EVERYWHERE.items()]
    # The log goes where the program prints nothing, so that what is on stderr is the program's own last word.
    tool = [valgrind, "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", "--log-fd=1"]
    printed = run_fresh(
        "fairdraw.perf_regression._counted",
        *(factory, json.dumps(arguments), str(repeats), with_steps),
        purpose=f"{factory} under valgrind",
        timeout=timeout,
        under=["env", *settings, *tool],
    )
    found = re.search(r"I\s+refs:\s+([\d,]+)", printed)
    if found is None:
        raise NoVerdictError(f"{factory} under valgrind: no count of instructions was printed")
    return int(found[1].replace(",", ""))


def exponent(costs: Mapping[int, float]) -> float:
    """Slope of log cost over log size: 0 if size costs nothing, 1 if cost is proportional to it.

    Example:
        >>> round(exponent({1000: 5.0, 2000: 10.0, 4000: 20.0}), 6)
        1.0
    """
    sizes = [math.log(size) for size in costs]
    logs = [math.log(cost) for cost in costs.values()]
    mean_size, mean_log = sum(sizes) / len(sizes), sum(logs) / len(logs)
    covariance = sum((size - mean_size) * (log - mean_log) for size, log in zip(sizes, logs, strict=True))
    return covariance / sum((size - mean_size) ** 2 for size in sizes)
