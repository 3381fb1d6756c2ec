"""Instructions per step, counted by valgrind: one run is enough, and a busy machine does not change the count.

Two runs of one program differ only in the steps, so their difference divided by the number of steps is one step.
Address space layout moves the count of a whole run by up to 5000 (measured; of 650 million): 50 per step of 100.
"""

from __future__ import annotations

import gc
import math
import re
import shutil
from statistics import linear_regression
from typing import TYPE_CHECKING, Any

from fairdraw.perf_regression._named import NoVerdictError, call_fresh, load

if TYPE_CHECKING:
    from collections.abc import Mapping


WARM_UP = 3

# Hash seeds and helper threads make counts differ between runs. NumPy and glibc choose code by processor, which makes
# counts differ between machines.
_SAME_EVERYWHERE = {
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2_Usable,-AVX2,-ERMS,-AVX512F",
    "PYTHONDONTWRITEBYTECODE": "1",  # the first process would compile what the second one loads
    "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL",
}


def instructions_per_step(factory: str, *, repeats: int = 100, timeout: float = 300, **arguments: int) -> float:
    """Mean instructions of one step.

    Args:
        factory: `package.module:function`; called with `arguments` it returns two functions, one that prepares a step
            and the step itself.

    Raises:
        NoVerdictError: If valgrind is absent, or the program fails or does not end within `timeout` seconds.
    """
    program = {"factory": factory, "arguments": arguments, "repeats": repeats}
    with_steps, without = (_count({**program, "with_steps": steps}, timeout) for steps in (True, False))
    return (with_steps - without) / repeats


def _count(program: dict[str, Any], timeout: float) -> int:  # Any: JSON
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise NoVerdictError("valgrind is not installed: nothing counts instructions. Install the package valgrind.")
    purpose = f"{program['factory']} under valgrind"
    settings = [f"{name}={value}" for name, value in _SAME_EVERYWHERE.items()]
    # The log goes to stdout, so that stderr has only the program's own last words.
    tool = [valgrind, "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", "--log-fd=1"]
    under = ["env", *settings, *tool]
    printed = call_fresh(f"{__name__}:_repeat", program, purpose=purpose, timeout=timeout, under=under)
    found = re.search(r"I\s+refs:\s+([\d,]+)", "\n".join(printed))
    if found is None:
        raise NoVerdictError(f"{purpose}: no count of instructions was printed")
    return int(found[1].replace(",", ""))


def _repeat(factory: str, arguments: dict[str, int], repeats: int, with_steps: bool) -> None:
    """Runs in the fresh process: warm up, then prepare `repeats` steps, and run each of them if `with_steps`."""
    advance, step = load(factory)(**arguments)
    gc.disable()
    for _ in range(WARM_UP):
        advance()
        step()
    for _ in range(repeats):
        advance()
        if with_steps:
            step()


def exponent(costs: Mapping[int, float]) -> float:
    """Slope of log cost over log size: 0 if size costs nothing, 1 if cost is proportional to it.

    Example:
        >>> round(exponent({1000: 5.0, 2000: 10.0, 4000: 20.0}), 6)
        1.0
    """
    return linear_regression(list(map(math.log, costs)), list(map(math.log, costs.values()))).slope
