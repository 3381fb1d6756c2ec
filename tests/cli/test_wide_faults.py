"""A sampler that cannot bear wide inputs is named with the size of the call, kept apart, and judged on all the rest."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import CHECKS, fairdraw

from fairdraw._core import pulse
from fairdraw._core.checks import PROFILES
from fairdraw._report.coverage import coverage_of
from fairdraw._run.loading import load_sampler
from fairdraw._run.runner import CheckRecord, Session, run_check
from fairdraw.contracts import rejection_sampler

RIGHT = load_sampler("rejection/torch")
CODES = ("REJ210", "REJ645", "REJ101")  # vocabularies from 151,936 tokens; small ones


def wide_calls(act: Callable[[], None]) -> tuple[Any, list[int]]:  # Any: a sampler
    """A correct sampler that acts first where the vocabulary is large, and the vocabularies that were."""
    wide: list[int] = []

    def verify(batch: Any, noise: Any) -> Any:  # Any: of the contract
        if batch.vocab_size > 100_000:
            wide.append(batch.vocab_size)
            act()
        return RIGHT.verify(batch, noise)  # type: ignore[union-attr]  # a rejection sampler

    return rejection_sampler(verify), wide


def run(sampler: Any) -> list[CheckRecord]:  # Any: as above
    return [run_check(CHECKS[code], sampler, Session(profile=PROFILES["smoke"], crash_folder=None)) for code in CODES]


def test_wide_call_that_hangs_costs_one_wait() -> None:
    def hang() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.01)  # this call's limit is over; the others' is as long as they need
        time.sleep(60)

    sampler, wide = wide_calls(hang)
    pulse.limit_calls(60)
    try:
        first, second, small = run(sampler)
        (again, _, _) = run(rejection_sampler(RIGHT.verify, name="another"))  # type: ignore[union-attr]  # as above
    finally:
        pulse.limit_calls(None)
    assert (first.status, second.status, small.status) == ("incomplete", "incomplete", "passed")
    assert "with a vocabulary of 151936" in first.reason
    assert second.reason.startswith("not called again with as much as in a call of ")
    assert wide == [151_936]
    assert again.status == "passed"  # another sampler gets every call
    assert max(high for _, high in coverage_of([first, second, small])[0].ranges["vocabulary"]["properties"]) < 131_072


def test_out_of_memory_on_wide_calls_is_reported_as_such_and_the_rest_is_judged() -> None:
    def no_memory() -> None:
        raise MemoryError("cannot allocate 40 GB")

    first, second, small = run(wide_calls(no_memory)[0])
    assert (first.status, second.status, small.status) == ("error", "error", "passed")
    assert "MemoryError: cannot allocate 40 GB" in (first.failure_report.effect if first.failure_report else "")


def test_process_that_dies_of_a_wide_call_is_not_given_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
import os, signal
from fairdraw._run.loading import load_sampler
from fairdraw import rejection_sampler
right = load_sampler("rejection/torch")
def verify(batch, noise):
    if batch.vocab_size > 100_000:
        os.kill(os.getpid(), signal.SIGKILL)
    return right.verify(batch, noise)
def make(): return rejection_sampler(verify)
"""
    (tmp_path / "eats_memory.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    words = ["check", "eats_memory:make", "-n", "1", "--profile", "smoke", "--reference", "none", "--no-controls", "-v"]
    found = fairdraw(*words, *(f"-k{code}" for code in CODES))
    assert found.exit_code == 11
    assert "killed by SIGKILL; the system may have run out of memory in a call of " in found.output
    assert "(not called again with as much as in a call of " in found.output
    assert "passed       REJ101" in found.output
    assert "INCOMPLETE: 2 of 3 checks did not finish: REJ210, REJ645; nothing else failed" in found.output
