"""A third-party module with samplers, correct and wrong, for the tests of plugin and command line; and a browser."""

import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import fairdraw
from fairdraw._core.interpreter import prepare_triton, speed_up_interpreter

# Batches are small: in torch's threads, two workers on two cores would wait for each other (`suite_state`).
os.environ["OMP_NUM_THREADS"] = "1"
# A test may import triton before any sampler is loaded; uninterpreted, it could not be used in this process again.
if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
else:  # perhaps without a card for this torch, which takes a second to import
    prepare_triton()


# No test depends on the speed of the machine, on chance, or on what an earlier run left.
settings.register_profile(
    "tests", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")

THIRD_PARTY = """
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


SCREENSHOTS = Path(__file__).resolve().parent.parent / ".cache" / "screenshots"
MEASURE = (Path(__file__).parent / "measure_page.js").read_text()


class Browser:
    """Chromium without a window (`apt-get install chromium`). Its pictures stay in .cache/screenshots."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program, self._folder = program, folder

    def measured(self, html: str, width: int, *, dark: bool = False) -> dict[str, Any]:  # Any: see measure_page.js
        """What a page looks like: texts, widths and contrasts."""
        # A window is never narrower than 500 pixels, a frame may be.
        frame = f'<iframe style="width: {width}px" srcdoc="{escape(f"{html}<script>{MEASURE}</script>")}"></iframe>'
        shown = self._run(frame, 1400, dark, "--dump-dom")
        found = re.search(r'<pre id="measured">(.*?)</pre>', shown, flags=re.DOTALL)
        assert found is not None, shown[-500:]
        measured: dict[str, Any] = json.loads(unescape(found[1]))
        assert measured["width"] == width
        return measured

    def picture(self, html: str, name: str, width: int, *, dark: bool = False, height: int = 1400) -> Path:
        """A PNG of the page."""
        path = self.pictures() / f"{name}-{width}{'-dark' if dark else ''}.png"
        self._run(html, width, dark, f"--screenshot={path}", height=height)
        return path

    def _run(self, html: str, width: int, dark: bool, option: str, height: int = 1400) -> str:
        page = self._folder / "page.html"
        page.write_text(html, encoding="utf-8")
        scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
        return self.open(page.as_uri(), option, scheme, f"--window-size={width},{height}")

    def pictures(self) -> Path:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        return SCREENSHOTS

    def open(self, address: str, *options: str) -> str:
        """What it prints."""
        words = [self._program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *options, address]
        return subprocess.run(words, check=True, capture_output=True, text=True, timeout=120).stdout


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    return Browser(program, tmp_path)


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """`fairdraw check` starts no workers, each of which would import torch; tests/cli/test_endings.py is about them.

    Kernels that a test calls without an adapter are as fast in the interpreter as those that `load` made.
    """
    speed_up_interpreter()
    monkeypatch.setenv("FAIRDRAW_WORKERS", "0")


@pytest.fixture
def signals_of_a_terminal() -> Iterator[None]:
    """Processes that a test starts die of the signals that `nohup` or a shell's `&` have this process ignore.

    A handler of this process is the default in its children, and this process still outlives the signal.
    """
    ignored = [one for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, lambda *_: None)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory holds `third_party.py`, as a user's does; subprocesses find fairdraw."""
    (tmp_path / "third_party.py").write_text(THIRD_PARTY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(fairdraw.__file__).parents[1]), str(tmp_path)]))
    sys.modules.pop("third_party", None)  # another test's module of that name
    yield tmp_path
    sys.modules.pop("third_party", None)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """What the plugin logs; vLLM's logger does not propagate it."""
    from fairdraw.sampler_impl.vllm_plugin._log import logger

    monkeypatch.setattr(logger, "parent", logging.getLogger())
    caplog.set_level("INFO", logger=logger.name)
    return caplog


@pytest.fixture
def no_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs without mutation controls, which have tests of their own and take seconds."""
    monkeypatch.setattr("fairdraw._cli.job.mutants_of", lambda *_: [])
