"""What a sampler's import or call changes of the process is its own: the suite's tensors stay, and nobody is blamed."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from fairdraw._core.checks import PROFILES
from fairdraw._core.failures import calling
from fairdraw._core.isolation import read_state, suite_state
from fairdraw._mutants.rejection import MUTANTS
from fairdraw._run.controls import sees
from fairdraw._run.loading import all_checks, load_sampler
from fairdraw._run.runner import Session, run_check

CHANGES = {
    "dtype": "torch.set_default_dtype(torch.float64)",
    "half": "torch.set_default_dtype(torch.bfloat16)",
    "device": "torch.set_default_device('meta')",
    "threads": "torch.set_num_threads(2)",
    "deterministic": "torch.use_deterministic_algorithms(True)",
    "inference": "global mode; mode = torch.inference_mode(); mode.__enter__()",
    "gradients": "torch.set_grad_enabled(False)",
    "denormals": "torch.set_flush_denormal(True)",
    "errors": "np.seterr(all='raise')",
    "warnings": "warnings.simplefilter('error')",
    "recursion": "sys.setrecursionlimit(220)",
    "locale": "locale.setlocale(locale.LC_ALL, 'C.UTF-8')",
    "environment": "os.environ['HOME'] = os.environ['TMPDIR'] = '/nowhere'",
    "folder": "os.chdir('/')",
    "generators": "random.seed(0); np.random.seed(0); torch.manual_seed(0)",
    "signals": "signal.signal(signal.SIGINT, signal.SIG_IGN)",
    "output": "sys.stdout = sys.stderr = io.StringIO()",
}
MODULE = """
import io, locale, os, random, signal, sys, warnings
import numpy as np, torch
from fairdraw import rejection_sampler
from fairdraw._oracles.rejection import verify

seen = []

def change():
    {change}

{at_import}
def make():
    def changing(batch, noise):
        tokens = verify(batch.replace(), noise)
        seen.append(torch.is_grad_enabled())
        {in_call}
        return tokens
    return rejection_sampler(changing, name="changing")
"""
CHECKS = [check for check in all_checks(contract="rejection") if check.code == "REJ101"]


@pytest.fixture(autouse=True)
def _everything_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test that fails must not change the process for all others."""
    for name in ("HOME", "TMPDIR"):
        monkeypatch.setenv(name, os.environ.get(name, "/tmp"))
    handler = signal.getsignal(signal.SIGINT)
    with suite_state(object()):
        yield
    signal.signal(signal.SIGINT, handler)


def written(name: str, when: str, folder: Path) -> str:
    """The spec of a sampler that makes the change at its import, or in each call."""
    change = CHANGES[name]
    text = MODULE.format(
        change=change, at_import="change()" * (when == "import"), in_call="change()" if when == "call" else "pass"
    )
    module = f"changes_{name}_{when}"
    (folder / f"{module}.py").write_text(text)
    sys.modules.pop(module, None)  # another test's
    return f"{module}:make"


@pytest.mark.parametrize("when", ["import", "call"])
@pytest.mark.parametrize("name", CHANGES)
def test_change_is_the_samplers_own(third_party: Path, name: str, when: str) -> None:
    before = read_state()
    sampler = load_sampler(written(name, when, third_party))
    session = Session(profile=PROFILES["smoke"].scaled(0.1), crash_folder=None)
    records = [run_check(check, sampler, session) for check in CHECKS]
    assert [(r.code, r.status, r.failure_report and r.failure_report.effect) for r in records if r.is_broken] == []
    assert read_state() == before


def test_state_that_the_run_was_started_in_is_the_samplers(third_party: Path) -> None:
    """A test module of the user's may have changed it before fairdraw was asked for anything."""
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    np.seterr(all="raise")
    with suite_state("one"), calling("another"):
        assert torch.get_default_dtype() == torch.float32
    sampler = load_sampler(written("gradients", "import", third_party))
    session = Session(profile=PROFILES["smoke"].scaled(0.1), crash_folder=None)
    drawn = [check for check in all_checks(contract="rejection") if check.code == "DIST203"]
    assert [record.code for check in drawn if (record := run_check(check, sampler, session)).is_broken] == []
    assert torch.get_default_dtype() == torch.float64
    assert set(sys.modules["changes_gradients_import"].seen) == {False}  # it finds again what it changed
    mutant = next(mutant for mutant in MUTANTS if mutant.caught_by[0] == "REJ107")
    (check,) = (check for check in all_checks(contract="rejection") if check.code == mutant.caught_by[0])
    assert sees(check, mutant.make(), PROFILES["ci"], 0)[0]
