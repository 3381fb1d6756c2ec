"""A stranger's module with samplers, right and wrong, for the tests of plugin and command line."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import fairdraw

if TYPE_CHECKING:
    from collections.abc import Iterator

STRANGER = """
import fairdraw
from fairdraw._oracles.rejection import verify

calls = []

def beyond(batch, noise):
    output = verify(batch, noise)
    output[:, 0] = batch.vocab_size
    return output

def raising(batch, noise):
    if batch.vocab_size > 3:
        raise IndexError("lane out of range")
    return verify(batch, noise)

def leaving(batch, noise):
    raise SystemExit(0)

def unsteady(batch, noise):
    calls.append(batch)
    return beyond(batch, noise) if len(calls) == 5 else verify(batch, noise)

class WithDefects:
    name, device, capabilities = "with defects", "cpu", fairdraw.Capabilities()
    known_defects = {"REJ101": "one beyond the end, https://example.org/1"}

    def __init__(self, function, **changes):
        self.verify = function
        vars(self).update(changes)

def make_right(): return fairdraw.rejection_sampler(verify, name="right")
def make_beyond(): return fairdraw.rejection_sampler(beyond)
def make_raising(): return fairdraw.rejection_sampler(raising)
def make_leaving(): return fairdraw.rejection_sampler(leaving)
def make_exit(): raise SystemExit(0)
def make_unsteady(): return fairdraw.rejection_sampler(unsteady)
def make_list(): return fairdraw.rejection_sampler(lambda batch, noise: [], name="returns a list")
def make_known(): return WithDefects(beyond)
def make_mended(): return WithDefects(verify)
def make_unknown_defect(): return WithDefects(verify, known_defects={"REJ999": "no such check"})
def make_unsupported():
    return fairdraw.rejection_sampler(verify, unsupported={"explicit-noise": "the kernel draws inside"})
def make_nothing(): return None
def make_boom(): raise RuntimeError("no device")
"""


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """`fairdraw check` starts no workers, each of which would import torch; tests/cli/test_endings.py is about them."""
    monkeypatch.setenv("FAIRDRAW_WORKERS", "0")


@pytest.fixture(scope="session", autouse=True)
def _state_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The key that signs crash files is made beside the tests, not in the home of who runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory holds `stranger.py`, as a user's does; subprocesses find fairdraw."""
    (tmp_path / "stranger.py").write_text(STRANGER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(fairdraw.__file__).parents[1]), str(tmp_path)]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    sys.modules.pop("stranger", None)  # another test's module of that name
    yield tmp_path
    sys.modules.pop("stranger", None)
