"""However a run ends, terminal, HTML, JSON, JUnit and exit code say the same: one table, three ways in."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from pathlib import Path
from xml.etree import ElementTree

import pytest
from helpers import fairdraw

from fairdraw._cli import workers
from fairdraw._cli.job import Job
from fairdraw._run.loading import load_sampler
from fairdraw._run.pace import Turn

pytestmark = pytest.mark.usefixtures("signals_of_a_terminal", "no_controls")

# Loaded before pytester takes a snapshot of sys.modules: torch cannot be imported twice.
load_sampler("sampling")

SAMPLERS = """
import ctypes, os, signal, subprocess, threading, time
import fairdraw
from fairdraw.adapters import load

ours = load("sampling")
calls = 0

def made(name, act=None, **options):
    def sample(batch, noise):
        global calls
        calls += 1
        if act is not None and calls == 30:  # in the second check: the first one ended
            act()
        return ours.sample(batch, noise) + (batch.vocab_size if name == "beyond" else 0)
    return fairdraw.token_sampler(sample, name=name, **options)

def without_alarm():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])  # as native code that never looks
    time.sleep(600)

def right(): return made("right")
def beyond(): return made("beyond")
def seedless(): return made("seedless", unsupported={"seeded-noise": "we have none"})
def forks_and_dies():
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    return made("forks and dies", lambda: os.kill(os.getpid(), signal.SIGKILL))

def hangs(): return made("hangs", lambda: time.sleep(600))
def is_stuck(): return made("is stuck", without_alarm)
def dies(): return made("dies", lambda: os.kill(os.getpid(), signal.SIGKILL))
def leaves(): return made("leaves", lambda: os._exit(7))
def leaves_at_once(): os._exit(0)
def ends_parent(): return made("ends parent", lambda: os.kill(os.getppid(), getattr(signal, os.environ["SIGNAL"])))
def ends_itself(): return made("ends itself", lambda: os.kill(os.getpid(), getattr(signal, os.environ["SIGNAL"])))
def ends_parent_often():
    often = f"while kill -TERM {os.getppid()} 2>/dev/null; do sleep 0.01; done"  # until it has left
    return made("ends parent often", lambda: (subprocess.Popen(["sh", "-c", often]), time.sleep(60)))

def swallowed():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except BaseException:
        pass

def swallows(): return made("swallows", swallowed)
def forks(): return made("forks", os.fork)
def stuck_at_once():
    sampler = made("stuck", without_alarm)
    globals()["calls"] = 29
    return sampler

def exits(): return made("exits", lambda: ctypes.CDLL(None).exit(0))
def execs(): return made("execs", lambda: os.execv("/bin/true", ["true"]))
def exits_in_thread():
    return made("exits in a thread", lambda: (threading.Thread(target=os._exit, args=(0,)).start(), time.sleep(60)))
def closes(): return made("closes", lambda: (os.close(1), os.close(2), os.chdir("/")))
"""


@dataclass(frozen=True)
class Run:
    """A run and how it must end.

    Args:
        codes: The checks, by `-k`.
        options: As `fairdraw check` has them; pytest's begin with `--fairdraw-`.
        verdict: A pattern of the whole line.
    """

    factory: str
    codes: Sequence[str]
    verdict: str
    exit_code: int
    options: Sequence[str] = ()

    def for_pytest(self) -> list[str]:
        chosen = ["-k", " or ".join(self.codes), "--sampler", f"endings:{self.factory}"]
        return [*chosen, *(re.sub("^--", "--fairdraw-", option) for option in ("--profile=smoke", *self.options))]

    def for_cli(self) -> list[str]:
        chosen = [word for code in self.codes for word in ("-k", code)]
        return ["check", f"endings:{self.factory}", *chosen, "--profile=smoke", *self.options]


BOTH, TWO = ("SAM101", "DIST701"), ("SAM101", "SAM102")
HERE = {
    "green": Run("right", BOTH, "GREEN: 1 property check and 1 distribution check passed; 2 of .* checks: -k .*", 0),
    "red": Run("beyond", BOTH, "RED: checks failed: 2", 1),
    "only properties": Run(
        "right", BOTH, r"GREEN, distributions not judged: .*only properties.* \(1 property check passed.*\)", 0,
        ["--only=properties"],
    ),
    "only distributions": Run(
        "right", BOTH, r"GREEN, properties not judged: .*only statistical.* \(1 distribution check passed.*\)", 0,
        ["--only=statistical"],
    ),
    "distributions skipped": Run(
        "seedless", ("SAM101", "DIST775"),
        r"GREEN, distributions not judged: all 1 checks were skipped: seeded-noise is unsupported: we have none \(1.*",
        10,
    ),
    "nothing run": Run("seedless", ("DIST775",), "NOTHING MEASURED: every check was skipped", 3),
    "out of budget": Run(
        "right", BOTH, "INCOMPLETE: the time budget ended with 2 of 2 checks undecided; nothing else failed", 11,
        ["--time-budget=0"],
    ),
    "stale xfail": Run("right", BOTH, "RED: known failures gone: 1", 1, ["--xfails=xfails.toml"]),
    "hangs": Run(
        "hangs", TWO, r"INCOMPLETE: 1 of 2 checks did not finish: SAM10\d; nothing else failed", 11,
        ["--call-timeout=4"],
    ),
}  # fmt: skip
"""Runs that leave their process alive."""

INTERRUPTED = r"INCOMPLETE: interrupted by {} after 1 of 2 checks; nothing else failed"
LOST = r"INCOMPLETE: 1 of 2 checks did not finish: SAM10\d; nothing else failed"
LETHAL = {
    "interrupted": Run("ends_parent", TWO, INTERRUPTED, 130),
    "dies": Run("dies", TWO, LOST, 11),
    "forks and dies": Run("forks_and_dies", TWO, LOST, 11),
    "interrupted often": Run("ends_parent_often", TWO, INTERRUPTED, 130),
    "forks": Run("forks", TWO, "GREEN, distributions not judged: .*2 property checks passed.*", 0),
    "is stuck": Run("is_stuck", TWO, LOST, 11, ["--call-timeout=4"]),
}
"""Runs that kill their process, or the one above it."""


@pytest.fixture(autouse=True)
def folder(third_party: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (third_party / "endings.py").write_text(SAMPLERS)
    (third_party / "xfails.toml").write_text('SAM101 = {reason = "it never failed", cases = 2}\n')
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    sys.modules.pop("endings", None)
    return third_party


def require_agreement(run: Run, terminal: str, exit_code: int, *, junit: bool, own_code: int | None = None) -> None:
    """Every place says what the table says.

    Args:
        own_code: The process's exit code where pytest has another number for this end.
    """
    *_, summary = (json.loads(line) for line in Path("run.jsonl").read_text().splitlines())
    said = {"json": summary["verdict"], "html": _html_verdict(), "terminal": _last_verdict(terminal)}
    if junit:
        said["junit"] = _junit_property("fairdraw.verdict")
        assert _junit_property("fairdraw.exit_code") == str(exit_code)
    assert len(set(said.values())) == 1, said
    assert re.fullmatch(run.verdict, summary["verdict"])
    assert summary["exit_code"] == run.exit_code
    assert exit_code == (run.exit_code if own_code is None else own_code)


def _html_verdict() -> str:
    found = re.search(r'id="verdict">([^<]*)<', Path("run.html").read_text())
    return found[1].replace("&#39;", "'")


def _last_verdict(terminal: str) -> str:
    lines = [line for line in terminal.splitlines() if re.match("GREEN|RED|INCOMPLETE:|NOTHING|NOT GREEN", line)]
    assert len(lines) == 1, lines
    return lines[0]


def _junit_property(name: str) -> str | None:
    found = [p.get("value") for p in ElementTree.parse("junit.xml").iter("property") if p.get("name") == name]
    assert len(found) == 1
    return found[0]


CLI_FILES = ("--json=run.jsonl", "--html=run.html")
PYTEST = ("--pyargs", "fairdraw.properties.test_sampling", "fairdraw.statistical.test_sampling")
PYTEST_FILES = ("--fairdraw-json=run.jsonl", "--fairdraw-html=run.html", "--junitxml=junit.xml")
QUIET = ("-p", "no:cacheprovider", "-p", "no:benchmark", "--import-mode=importlib")


@pytest.mark.parametrize("name", HERE)
def test_cli_says_one_thing(name: str) -> None:
    run = HERE[name]
    result = fairdraw(*run.for_cli(), *CLI_FILES)
    require_agreement(run, result.output, result.exit_code, junit=False)


@pytest.mark.parametrize("name", HERE)
def test_pytest_says_one_thing(name: str, pytester: pytest.Pytester, folder: Path) -> None:
    run = HERE[name]
    os.chdir(folder)
    result = pytester.runpytest_inprocess(
        *QUIET, "-p", "fairdraw.pytest_plugin", *PYTEST, *run.for_pytest(), *PYTEST_FILES
    )
    own_code = int(pytest.ExitCode.NO_TESTS_COLLECTED) if name == "nothing run" else None
    require_agreement(run, result.stdout.str(), int(result.ret), junit=True, own_code=own_code)


def started(
    words: Sequence[str], signal_name: str = "SIGTERM", *, interrupt: signal.Handlers = signal.SIG_DFL
) -> subprocess.CompletedProcess[str]:
    """A process of its own, with workers as users have them.

    It writes to files: a pipe stays open for as long as the child that a sampler forked, a minute.

    Args:
        interrupt: What it does at SIGINT; a background process of a shell ignores it.
    """
    environment = {**os.environ, "FAIRDRAW_WORKERS": "1", "SIGNAL": signal_name}
    command = [sys.executable, "-m", *words]
    with Path("stdout").open("w") as out, Path("stderr").open("w") as err:
        files = {"stdout": out, "stderr": err, "preexec_fn": lambda: signal.signal(signal.SIGINT, interrupt)}
        done = subprocess.run(command, env=environment, timeout=300, check=False, **files)
    return subprocess.CompletedProcess(command, done.returncode, Path("stdout").read_text(), Path("stderr").read_text())


ENDED = {"interrupted": "SIGINT", "interrupted often": "SIGTERM", "forks": "", "forks and dies": "", "is stuck": ""}


@pytest.mark.parametrize(("name", "signal_name"), ENDED.items())
def test_cli_outlives_its_sampler(name: str, signal_name: str) -> None:
    """The other signals are those of `test_interrupts.py`; a process that leaves is lost like one that dies."""
    run = replace(LETHAL[name], verdict=LETHAL[name].verdict.format(signal_name))
    done = started(["fairdraw", *run.for_cli(), *CLI_FILES], signal_name)
    require_agreement(run, done.stdout, done.returncode, junit=False)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("factory", "signal_name", "interrupt"),
    [
        ("swallows", "SIGTERM", signal.SIG_DFL),
        ("ends_itself", "SIGINT", signal.SIG_DFL),
        ("ends_itself", "SIGTERM", signal.SIG_IGN),
    ],
)
def test_interrupted_pytest_keeps_what_it_found(factory: str, signal_name: str, interrupt: signal.Handlers) -> None:
    run = Run(factory, TWO, INTERRUPTED.format(signal_name), 130)
    done = started(["pytest", *QUIET, *PYTEST, *run.for_pytest(), *PYTEST_FILES], signal_name, interrupt=interrupt)
    require_agreement(run, done.stdout, done.returncode, junit=True)


LEFT = r"INCOMPLETE: the sampler ended the process by {} during SAM10\d after 1 of 2 checks; nothing else failed"
LEFT_BY = {
    "leaves": r"os\._exit\(7\)",
    "exits_in_thread": r"os\._exit\(0\)",
    "exits": r"a C library's exit\(\)",
    "execs": r"os\.execv\('/bin/true'\)",
}
IN_ONE_PROCESS = {factory: Run(factory, TWO, LEFT.format(how), 11) for factory, how in LEFT_BY.items()}
AT_ONCE = r"INCOMPLETE: the sampler ended the process by os\._exit\(0\) after 0 of 0 checks; nothing else failed"
IN_ONE_PROCESS["leaves_at_once"] = Run("leaves_at_once", TWO, AT_ONCE, 11)
IN_ONE_PROCESS |= {factory: replace(LETHAL["forks"], factory=factory) for factory in ("forks", "closes")}


@pytest.mark.parametrize("name", IN_ONE_PROCESS)
def test_sampler_in_the_same_process_loses_no_verdict(name: str) -> None:
    run = IN_ONE_PROCESS[name]
    done = started(["pytest", *QUIET, *PYTEST, *run.for_pytest(), *PYTEST_FILES])
    require_agreement(run, done.stdout, done.returncode, junit=run.verdict != AT_ONCE)  # pytest's session has not begun
    # The ways out are watched alike; what is said then is the command's own.
    if name in ("leaves", "leaves_at_once", "closes"):
        done = started(["fairdraw", *run.for_cli(), "-n0", *CLI_FILES])
        require_agreement(run, done.stdout, done.returncode, junit=False)


def test_other_commands_end_with_a_sentence() -> None:
    done = started(["fairdraw", "bench", "endings:exits", "--against", "sampling/oracle"])
    assert done.returncode == 11, done.stderr
    assert "the sampler ended the process by a C library's exit(), before there was a verdict" in done.stdout


def test_output_that_cannot_be_written_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # with it nothing is left to fail at the end
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "fairdraw", *HERE["green"].for_cli(), *CLI_FILES, "-n0"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert re.search("^Error: standard output cannot be written: No space left .*: GREEN: 1 property", done.stderr)
    assert json.loads(Path("run.jsonl").read_text().splitlines()[-1])["exit_code"] == 0


def test_first_check_of_a_fresh_worker_waits_for_the_call_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading has another limit, ten minutes."""
    monkeypatch.setattr(workers, "_GRACE_SECONDS", 0.5)
    worker = workers._Worker(Job("endings:stuck_at_once", profile="smoke"), 0.5)
    worker.order("run", Turn("SAM101"))

    def watch() -> None:
        for _ in range(600):
            worker.require_trace()
            time.sleep(0.1)

    with pytest.raises(workers._Lost, match="did not answer within 1 s; its process was ended in a call of"):
        watch()


def test_answer_of_another_process_is_refused() -> None:
    """A child that a sampler forked has its parent's pipe."""
    worker = workers._Worker(Job("sampling", profile="smoke"), 60.0)
    worker.order("load")
    worker.pipe.close()
    worker.pipe, theirs = Pipe()
    for sent in ((os.getpid(), 1), (worker._process.pid, 0), (worker._process.pid, 1)):
        theirs.send((*sent, True, sent))
    for _ in range(2):
        with pytest.raises(workers._NotAnswered):
            worker.answer()
    assert worker.answer() == (worker._process.pid, 1)
    worker.end()


@pytest.mark.parametrize("name", ["green", "interrupted", "dies"])
def test_xdist_says_one_thing(name: str) -> None:
    run = {**HERE, **LETHAL}[name]
    run = replace(run, verdict=run.verdict.format("SIGTERM"))
    done = started(["pytest", *QUIET, "-n1", *PYTEST, *run.for_pytest(), *PYTEST_FILES])
    require_agreement(run, done.stdout, done.returncode, junit=True)


def test_killed_pytest_leaves_files_that_say_so() -> None:
    """Nobody can report after SIGKILL: the files were written before it."""
    done = started(["pytest", *QUIET, *PYTEST, *LETHAL["dies"].for_pytest(), *PYTEST_FILES])
    assert done.returncode == -9
    assert _html_verdict() == "INCOMPLETE: written when the run began; it has not ended"
    kinds = [json.loads(line)["kind"] for line in Path("run.jsonl").read_text().splitlines()]
    assert kinds == ["header", "check"]
