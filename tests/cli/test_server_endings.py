"""Servers that answer badly, or not at all: one sentence says why, what was judged is said, and nothing is green."""

import contextlib
import html
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import fairdraw, printed_by

from fairdraw._core import foreign
from fairdraw._core.seeds import DEFAULT_SEED
from stub_server.app import make_app, serving
from stub_server.dialects import Settings
from stub_server.engine import Engine
from stub_server.faults import FAULTS
from stub_server.troubles import KEY, TROUBLES

pytestmark = pytest.mark.usefixtures("no_controls")

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in ("src", "tests"))}
ADDRESS = r"http://127\.0\.0\.1:\d+/v1"
JUDGED = r"(; \d+ of \d+ requests broke, too many to send them again)?; [1-9]\d* tokens were judged until then"


@contextlib.contextmanager
def served(trouble: str = "", **settings: Any) -> Iterator[str]:  # Any: fields of Settings
    """The stub on loopback."""
    app = make_app(Engine(DEFAULT_SEED), Settings(**settings))
    with serving(TROUBLES[trouble].around(app) if trouble else app) as address:
        yield f"{address}/v1"


def checked(address: str, *options: str) -> tuple[int, str]:
    """Exit code and output of a short run in this process."""
    usual = ("--profile", "smoke", "-n", "0", "--timeout", "60", "-v", "-k", "DIST911")
    run = fairdraw("check", address, *usual, *options)
    return run.exit_code, run.output


BAD = {
    "breaks in the middle": rf"{ADDRESS}/completions answered HTTP 500: .*EngineDeadError.*{JUDGED}",
    "sends a page of html": rf"{ADDRESS}/completions sent no JSON: <html>.*{JUDGED}",
    "sends half an answer": rf"{ADDRESS}/completions sent no JSON: {{.*{JUDGED}",
    "sends another shape": rf"an answer lists 1 tokens, 0 log-probabilities and 1 lists of them{JUDGED}",
    "sends nothing": rf"{ADDRESS}/completions sent no JSON: nothing at all{JUDGED}",
    "nests its answer": rf"{ADDRESS}/completions sent no JSON: \[+ \.\.\.{JUDGED}",
    "sends without end": rf"{ADDRESS}/completions sent more than 32 MiB for one request, and went on{JUDGED}",
}
"""What takes a while to be seen, tests/server/test_client.py shows with a clock of its own."""


WITHOUT_TORCH = """
import sys
class Refuse:
    def find_spec(name, *_):
        if name.partition(".")[0] in ("torch", "triton"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refuse)
from click.testing import CliRunner
from fairdraw._cli.main import main
for words in sys.argv[1:]:
    print(CliRunner().invoke(main, words).output)
"""


def test_a_server_is_tested_without_torch_and_nothing_else(tmp_path: Path) -> None:
    others = ("check rejection/oracle -n 0", "list", "explain SRV147")
    with served() as address:
        check = f"check {address} --profile smoke -k SRV10 -k DIST911 -n 0 --html run.html"
        said = printed_by("-c", WITHOUT_TORCH, check, *others, cwd=tmp_path, env=ENVIRONMENT)
    assert re.search(r"^mutation controls \(server\): (\d+)/\1 caught", said, flags=re.MULTILINE), said
    for words in (
        "^GREEN: 8 property checks and 1 distribution check passed",
        r"it needs the package torch, which is not installed\. Run pip install torch\.",
        r"^Left out: torch is not installed, but checks of rejection, .*, filters need it\. Use pip .*\[torch\]",
        "^contract: server",
    ):
        assert re.search(words, said, flags=re.MULTILINE), said


@pytest.mark.parametrize("trouble", BAD)
def test_a_run_that_breaks_off_is_incomplete(trouble: str) -> None:
    with served(trouble) as address:
        code, output = checked(address)
    assert code == 11
    assert re.search(rf"^incomplete +DIST911 .* \({BAD[trouble]}\)$", output, flags=re.MULTILINE), output
    assert output.splitlines()[-1].startswith("INCOMPLETE: 1 of 1 checks did not finish: DIST911")


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("is busy now and then", r"\(HTTP 429: \d+\)"),
        ("is loading at first", ""),
        ("breaks now and then", r"2 of \d+ \(.*: 1, .*: 1\); the answers that broke may hide a TV of 0.\d+"),
    ],
)
def test_a_server_that_recovers_is_judged(trouble: str, said: str) -> None:
    with served(trouble) as address:
        code, output = checked(address)
    assert (code, re.findall("^passed +DIST911", output, flags=re.MULTILINE)) == (0, ["passed       DIST911"])
    assert not said or re.search(f"^  requests sent again: .*{said}$", output, flags=re.MULTILINE), output


def test_half_a_stream_is_no_answer() -> None:
    with served("sends half a stream") as address:
        code, output = checked(address, "-k", "SRV171")
    assert code == 11
    assert re.search(rf"^incomplete +SRV171 .* \({ADDRESS}/completions sent (half a stream|no JSON).*\)$", output, re.M)


def test_a_server_that_dies_leaves_what_was_judged() -> None:
    command = [sys.executable, "-m", "stub_server", "--trouble", "dies", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as server:
        code, output = checked(f"{server.stdout.readline().strip()}/v1")
        assert server.wait() == 1
    assert code == 11
    assert re.search(rf"{ADDRESS} (broke off|cannot be reached): .*{JUDGED}", output), output


def test_no_server(tmp_path: Path) -> None:
    with served() as address:
        pass
    lines, page = tmp_path / "run.jsonl", tmp_path / "run.html"
    code, output = checked(address, "--json", str(lines), "--html", str(page))
    assert code == 11
    assert re.fullmatch(rf"INCOMPLETE: {ADDRESS} cannot be reached: .*", output.splitlines()[-1])
    assert json.loads(lines.read_text().splitlines()[-1])["verdict"] == output.splitlines()[-1]
    assert output.splitlines()[-1] in html.unescape(page.read_text())


def test_a_server_neither_forges_a_verdict_nor_shows_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STUB_KEY", KEY)
    files = ["--json", "run.jsonl", "--html", "run.html", "--journal", "answers"]
    with served("forges a verdict and repeats the key") as address:
        code, output = checked(address, "--key-variable", "STUB_KEY", *files)
    texts = [output, *(path.read_text() for path in tmp_path.rglob("*") if path.is_file())]
    assert (code, len(texts)) == (11, 4)
    assert all(line.isprintable() for text in texts for line in text.split("\n"))
    assert [line for line in output.splitlines() if line.startswith("GREEN")] == []
    assert not any(foreign.repeats_secret(text) for text in texts)


def test_a_journal_of_a_finished_run_is_used_on_request_only(tmp_path: Path) -> None:
    lines, sent, said = tmp_path / "run.jsonl", list[int](), list[str]()
    with served() as address:
        for options in (["--requests", "60"], [], [], ["--old-answers", "all"]):
            given = ("--concurrency", "1", "--journal", str(tmp_path / "answers"), "--json", str(lines), *options)
            _, output = checked(address, *given)  # one at a time: equal noise, so that no run needs another look
            record = json.loads(lines.read_text().splitlines()[1])
            sent.append(record["requests"].get("requests", 0))
            said.append(" ".join(re.findall(r"^GREEN.*|^  journal: .*", output, flags=re.MULTILINE)))
    assert 1 < sent[1] < sent[2] - 40, sent
    assert sent[3] == 1  # what the server is, is always asked
    old = r"up to \d+ answers are old ones of \S+, from .* on \(0.0 hours ago\)"
    left_out = r"\d+ answers of finished runs in \S+ are not used \(--old-answers all\)"
    assert said[0] == ""
    assert re.fullmatch(rf"  journal: {old} GREEN.*; {old}", said[1])
    assert re.fullmatch(rf"  journal: {left_out} GREEN[^;]*; 1 of \d+ checks\)", said[2])
    assert re.fullmatch(rf"  journal: {old} GREEN.*; {old}", said[3])


def test_commands_of_a_report_ask_the_server_as_the_run_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--concurrency", "3", "--unsupported", "greedy=it has none"]
    with serving(make_app(FAULTS["seed is ignored"].engine(DEFAULT_SEED), Settings())) as address:
        _, output = checked(f"{address}/v1", "-k", "SRV141", *options)
        commands = re.findall("^fairdraw (?:replay|check) .*", output, re.MULTILINE)
        replay, check = map(shlex.split, commands)
        run = fairdraw(*replay[1:])
    assert {*options} <= {*replay} & {*check}
    assert (run.exit_code, "FAILED" in run.output) == (1, True)


def test_wrong_model() -> None:
    with served() as address:
        code, output = checked(address, "--model", "other")
    assert code == 11
    assert re.fullmatch(rf"INCOMPLETE: {ADDRESS} has no model 'other'; it has toy \(--model\)", output.splitlines()[-1])


@pytest.mark.parametrize("keeps", [False, True])
def test_files_of_a_failure_hold_no_key_and_prompts_only_on_request(
    keeps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STUB_KEY", KEY)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("my own secret\nanother secret of mine\n")
    app = make_app(FAULTS["silent greedy"].engine(DEFAULT_SEED), Settings())
    options = ["--prompts", str(prompts), "--json", "run.jsonl", "--html", "run.html", *["--keep-prompts"] * keeps]
    options += ["--journal", "answers"]
    with serving(TROUBLES["wants a key"].around(app)) as address:
        code, output = checked(f"{address}/v1", "--key-variable", "STUB_KEY", "-k", "SRV123", *options)
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path != prompts]
    texts = [output, *(path.read_text() for path in files)]
    assert (code, any(".fairdraw" in str(path) for path in files)) == (1, True)
    assert any("secret" in text for text in texts) == keeps
    assert not any(KEY in text for text in texts)


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        ({"has_logprobs": False}, 3, "top-logprobs is unsupported: its answers hold no lists"),
        ({"max_logprobs": 5}, 0, "lists of 5 log-probabilities, token ids"),
        ({"max_logprobs": 5, "caps_silently": True}, 0, "lists of 5 log-probabilities, token ids"),
        ({"kind": "openai"}, 0, "lists of 20 log-probabilities, texts of tokens"),
    ],
    ids=["no log-probabilities", "capped", "capped in silence", "no ids"],
)
def test_what_a_server_lacks_is_said(settings: dict[str, Any], code: int, words: str) -> None:
    with served(**settings) as address:
        found, output = checked(address)
    assert found == code, output
    assert words in output
