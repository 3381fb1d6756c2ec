"""No value in any tensor makes a call touch memory beside its own: pages there end the process.

Compiled kernels are asked by `compute-sanitizer`; the command is in `tools/tensor_calls.py`.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "tools" / "tensor_calls.py"
BESIDE = """
import ctypes, os
import torch
from tensor_calls import at_an_edge
for before, offset in ((True, -1), (False, 1024)):
    tensor = at_an_edge(torch.ones(1024), before=before)
    child = os.fork()
    if child == 0:
        assert tensor.sum() == 1024
        ctypes.c_float.from_address(tensor.data_ptr() + 4 * offset).value
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(PROGRAM.parents[1] / "src"), str(PROGRAM.parent)])
    command, environment = [sys.executable, *arguments], {**os.environ, "PYTHONPATH": paths}
    return subprocess.run(command, env=environment, text=True, capture_output=True, check=False)


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_values_that_lie_touch_nothing_else(backend: str) -> None:
    ended = run(str(PROGRAM), backend, "cpu", "2")
    assert ended.returncode == 0, (ended.stdout[-100:], ended.stderr[-2000:])


def test_the_memory_ends_at_the_tensor() -> None:
    """Before and behind it."""
    assert run("-c", BESIDE).stdout.split() == [str(-signal.SIGSEGV)] * 2
