"""The parts of `tools/engine` that need no engine."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np
import pytest
from engine import environment, inside, jobs, process, verdicts
from engine.environment import EngineError, Environment
from engine.main import main, write_record
from engine.page import on_a_card

ROOT = Path(__file__).parents[2]


# -- the environment --------------------------------------------------------------------------------------------------


def test_pins_of_the_project_hold_but_for_what_the_engine_sets() -> None:
    kept = environment.constraints("torch==2.13.0\nnumpy==2.4.6\npydantic==2.14.3\ntriton>=3\n")
    assert kept == "torch==2.13.0\npydantic==2.14.3\n"


def test_made_environment_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Environment("0.28.0", tmp_path)
    made.folder.mkdir()
    made.ready.write_text(made.fingerprint)
    monkeypatch.setattr(environment.subprocess, "run", lambda *_, **__: pytest.fail("pip was called"))

    made.make()


def test_failing_pip_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(command: list[str], *, stdout: IO[str], **_: object) -> subprocess.CompletedProcess[str]:
        print("ERROR: no such host", file=stdout, flush=True)
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(Environment.__init__, "__defaults__", (tmp_path,))
    monkeypatch.setattr(environment.venv, "create", lambda folder, **_: folder.mkdir())
    monkeypatch.setattr(environment.subprocess, "run", run)

    assert main(["tokens"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("engine: pip returned 1 for torch==2.13.0 (ERROR: no such host).")
    assert "set PIP_INDEX_URL or PIP_FIND_LINKS" in error


# -- processes --------------------------------------------------------------------------------------------------------


def test_process_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    child = "sleep 600 & echo $!; wait"  # a shell has printed that long before the two seconds are over
    log = tmp_path / "log"

    assert process.run_alone(["sh", "-c", child], log, os.environ, seconds=2) is None
    wait_until(lambda: not is_running(int(log.read_text())))


def test_engine_ends_with_a_caller_that_was_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    inner = "import inside, os, time; print(os.getpid(), flush=True); inside.end_with_the_caller()"
    caller = (
        "import os, sys; from pathlib import Path; from engine.process import run_alone; "
        f"run_alone([sys.executable, '-c', {inner!r}], Path({str(log)!r}), os.environ, 60)"
    )
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tools"), str(ROOT / "tools" / "engine")])
    killed = subprocess.Popen([sys.executable, "-c", caller], env={**os.environ, "PYTHONPATH": path})
    wait_until(lambda: log.exists() and log.read_text().endswith("\n"))
    killed.kill()
    killed.wait()
    wait_until(lambda: not is_running(int(log.read_text())))


def wait_until(condition: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def is_running(number: int) -> bool:
    """A process that ended and that nobody waits for is a zombie: not running."""
    try:
        os.kill(number, 0)
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_engine_that_fails_says_why_and_where_its_log_is(tmp_path: Path) -> None:
    made = Environment("0.28.0", tmp_path)
    made.python.parent.mkdir(parents=True)
    made.python.write_text("#!/bin/sh\necho 'ModuleNotFoundError: No module named einops'\nexit 3\n")
    made.python.chmod(0o755)

    with pytest.raises(EngineError, match=r"ended with code 3 \(ModuleNotFoundError: No module named einops\)"):
        process.run_job(made, jobs.tokens_job("tiny", drafts=False), plugin=True)
    assert "einops" in (made.folder / "engine.log").read_text()


def test_first_error_is_the_reason() -> None:
    text = "INFO 1\nERROR 1 [core.py:1] ValueError: too long\nRuntimeError: Engine core failed\n"
    assert process.reason(1, text, 5) == "ended with code 1 (ValueError: too long)"
    assert process.reason(None, text, 5) == "took longer than 5 s"
    assert process.reason(-signal.SIGKILL, "", 5) == "ended with code -9"


def test_lines_of_the_plugin_are_found() -> None:
    text = "INFO [_plugin.py:78] fairdraw: rejection is on.\nother\n(Worker) INFO fairdraw: rejection is on.\n"
    assert process.plugin_lines(text) == ("fairdraw: rejection is on.",)


# -- the model --------------------------------------------------------------------------------------------------------


def test_model_is_equal_in_every_run() -> None:
    one, other = inside.weights(16), inside.weights(16)
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert all(weight.dtype == np.float32 for weight in one.values())


def test_jobs_are_plain_data_with_distinct_seeds() -> None:
    job = jobs.tokens_job("tiny", drafts=True)
    assert json.loads(json.dumps(job)) == job
    seeds = [r["parameters"]["seed"] for r in job["requests"] if "seed" in r["parameters"]]
    assert len(seeds) == len(set(seeds)) == 16


# -- verdicts ---------------------------------------------------------------------------------------------------------


def answers(*rows: tuple[int, int, int]) -> dict[str, np.ndarray]:
    """Repetition, request and token of each row."""
    repeat, request, token = np.array(rows).T
    logprobs = -token[:, None].astype(np.float32)
    return {"repeat": repeat, "request": request, "token": token, "ids": token[:, None], "logprobs": logprobs}


def test_only_requests_that_equal_themselves_are_compared() -> None:
    off = answers((0, 0, 5), (0, 1, 6), (0, 2, 7), (1, 0, 5), (1, 1, 9), (1, 2, 7))
    on = answers((0, 0, 5), (0, 1, 1), (0, 2, 8), (1, 0, 5), (1, 1, 2), (1, 2, 7))

    found = verdicts.compare(off, off)
    assert (found.requests, found.tokens, found.itself, found.equal) == (3, 3, 2, 2)
    assert found.conclusion.startswith("equal; nothing is said of 1 requests")
    assert verdicts.compare(off, on).conclusion == "DIFFERENT in requests 2"


def test_log_probabilities_are_compared_too() -> None:
    off = answers((0, 0, 5), (1, 0, 5))
    on = {**off, "logprobs": off["logprobs"] + np.float32(1e-6)}
    assert verdicts.compare(off, on).different == (0,)


def test_nothing_is_concluded_from_an_engine_that_never_equals_itself() -> None:
    off = answers((0, 0, 5), (1, 0, 6))
    assert verdicts.compare(off, off).conclusion.startswith("nothing can be concluded")


def test_distribution_that_is_not_whole_is_refused() -> None:
    rows = {"ids": np.array([[0, 1]]), "logprobs": np.log(np.array([[0.5, 0.4]], np.float32))}
    with pytest.raises(ValueError, match=r"token 0: sum=0\.9, but returned probabilities must sum to 1"):
        verdicts.distributions(rows, 4)


@pytest.fixture(scope="module")
def drawn() -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Tokens of 8,000 rows, each with a distribution of its own; half of them filtered."""
    random = np.random.default_rng(5)
    logits = 2 * random.standard_normal((8000, 64))
    logits[::2][logits[::2] < 0] = -np.inf
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    tokens = (probs.cumsum(axis=1) < random.random((8000, 1))).sum(axis=1).astype(np.int32)
    return tokens, probs, ["top-k", "plain"] * 4000


def test_tokens_that_follow_their_distributions_are_green(drawn: tuple[np.ndarray, np.ndarray, list[str]]) -> None:
    tokens, probs, groups = drawn
    found = verdicts.judge(tokens, probs, groups)
    assert found.is_green
    assert found.tokens == 8000
    assert {name.partition(",")[0] for name in found.discrepancies} == {"all", "plain", "top-k"}
    assert 0.03 < found.discrepancies["all, by rank"] < 0.1


def test_controls_are_red(drawn: tuple[np.ndarray, np.ndarray, list[str]]) -> None:
    tokens, probs, groups = drawn
    assert not verdicts.judge(tokens, verdicts.at_temperature(probs, 1.25), groups).is_green
    assert not verdicts.judge(np.roll(tokens, 1), probs, groups).is_green
    impossible = verdicts.judge(np.where(np.arange(8000) == 4000, probs.argmin(axis=1), tokens), probs, groups)
    assert "impossible observations" in impossible.decision.reason


# -- the record and its page ------------------------------------------------------------------------------------------


def row(part: str, **fields: object) -> dict[str, object]:
    common = {
        "vllm": "0.28.0", "torch": "2.13.0", "runner": "CPUModelRunner", "commit": "abc", "repaired": ["a defect"],
    }  # fmt: skip
    return {"part": part, "processor": "a CPU", "python": "3.11", "date": "today", **common, **fields}


def test_rows_of_the_same_part_and_release_are_replaced(tmp_path: Path) -> None:
    record = tmp_path / "engine.json"
    write_record(record, [row("plugin", itself=1), row("tokens", tokens=2)])
    write_record(record, [row("plugin", itself=3), row("tokens", tokens=4, vllm="0.32.0")])
    rows = json.loads(record.read_text())
    assert [(r["part"], r.get("itself"), r.get("tokens")) for r in rows] == [
        ("plugin", 3, None),
        ("tokens", None, 2),
        ("tokens", None, 4),
    ]


def test_page_shows_medians_of_rounds_and_the_sampler_alone() -> None:
    kind = {"model": "8B", "drafts": "none", "eager": False, "sigma": 5.5, "set": "card", "batch": 64, "length": 100}
    rows = [{**kind, "arm": arm, "round": 0, "seconds": 0.6} for arm in ("off", "on")]
    rows += [{**kind, "arm": "on", "what": "span", "seconds": 1.0, "span_us": 102.5, "host_us": 598.0}]
    assert "| 8B, drafts: none | card | 64 | 6.00 | 6.00 | 1.00 | - | 102, 598 |" in on_a_card(rows)


def test_unknown_part_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["timing"])
    assert "no such part: timing; known: plugin, tokens" in capsys.readouterr().err
