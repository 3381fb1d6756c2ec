"""A fresh process that fails, or does not end, is no verdict: real processes, of a planted module and of the gate."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from fairdraw.perf_regression import _confirmation as confirmation
from fairdraw.perf_regression._compiled import compile_launches
from fairdraw.perf_regression._confirmation import Timed, confirmed
from fairdraw.perf_regression._counts import Launch
from fairdraw.perf_regression._decision import Decision, Verdict
from fairdraw.perf_regression._fresh import run_fresh
from fairdraw.perf_regression._instructions import instructions_per_step
from fairdraw.perf_regression._named import NoVerdictError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Plant = Callable[[str], None]


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plant:
    """A module called `planted`, with the program that a test gives it."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(program: str) -> None:
        (tmp_path / "planted.py").write_text(program, encoding="utf-8")

    return write


def test_fresh_process_is_told_and_tells(plant: Plant) -> None:
    plant("import sys, fairdraw; print(*sys.argv[1:], sys.stdin.read())")
    assert run_fresh("planted", "one", "two", purpose="the step", timeout=60, stdin="three") == "one two three\n"


def test_fresh_process_inherits_all_but_what_is_named(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant("import os; print('SHAPE' in os.environ, os.environ['COLOUR'])")
    monkeypatch.setenv("SHAPE", "round")
    monkeypatch.setenv("COLOUR", "red")
    assert run_fresh("planted", purpose="the step", timeout=60, not_inherited={"SHAPE"}) == "False red\n"


@pytest.mark.parametrize(
    ("ending", "message"),
    [
        ("raise ValueError('no such device')", "ValueError: no such device"),
        ("raise SystemExit(3)", "exit status 3, no message"),
    ],
    ids=["with a message", "without a word"],
)
def test_fresh_process_that_fails_is_caught(plant: Plant, ending: str, message: str) -> None:
    """Whatever it has printed before."""
    plant(f"print('0.7')\n{ending}")
    with pytest.raises(NoVerdictError, match=rf"^the step failed in a fresh process: {message}$"):
        run_fresh("planted", purpose="the step", timeout=60)


def test_fresh_process_that_sleeps_past_its_time_is_caught(plant: Plant) -> None:
    plant("import time\nprint('0.7', flush=True)\ntime.sleep(600)")
    with pytest.raises(NoVerdictError, match=r"^the step failed in a fresh process: no end after 0\.2 s$"):
        run_fresh("planted", purpose="the step", timeout=0.2)


def test_failure_whose_confirmation_does_not_end_stays(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant("import time\ndef rounds():\n    time.sleep(600)")
    monkeypatch.setattr(confirmation, "TIMEOUT_SECONDS", 0.2)
    decision = confirmed(Decision(Verdict.FAIL, "too slow"), 1.0, Timed("planted:rounds").in_fresh_process, 3)
    assert decision.verdict is Verdict.FAIL
    assert decision.reason.endswith("not measured again: planted:rounds failed in a fresh process: no end after 0.2 s")


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("exec sleep 600", r"failed in a fresh process: no end after 0\.5 s"),
        ("exit 0", "no count of instructions was printed"),
    ],
    ids=["no end", "no count"],
)
def test_instructions_that_valgrind_does_not_tell_are_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, message: str
) -> None:
    valgrind = tmp_path / "valgrind"
    valgrind.write_text(f"#!/bin/sh\n{program}\n", encoding="utf-8")
    valgrind.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(NoVerdictError, match=rf"^planted:steps under valgrind:? {message}$"):
        instructions_per_step("planted:steps", timeout=0.5)


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_instructions_are_those_of_the_steps_alone(plant: Plant) -> None:
    """Of a thousand turns of a loop, of 1 to 1000 instructions each; starting Python takes many more."""
    plant("def steps(length):\n    return (lambda: None), (lambda: sum(range(length)))\n")
    assert 1_000 < instructions_per_step("planted:steps", repeats=10, length=1_000) < 1_000_000


def test_compilation_without_an_end_is_no_verdict() -> None:
    with pytest.raises(NoVerdictError, match=r"^compiling kernels for sm_90 failed in a fresh process: no end after"):
        compile_launches([], timeout=0.01)


def test_kernel_that_cannot_be_compiled_is_no_verdict() -> None:
    launch = Launch("nowhere", "no_kernel", {}, {})
    with pytest.raises(NoVerdictError, match=r"ModuleNotFoundError: No module named 'nowhere'"):
        compile_launches([launch])
