"""What other repositories use in CI, run as their runner would: the action, GitLab's component, the pre-commit hook."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from helpers import SOURCE

ROOT = SOURCE.parent
OPTIONS = "-k REJ101 -k REJ103 --no-controls --profile smoke"


@pytest.fixture(autouse=True)
def repository(third_party: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of third-party samplers as a small repository, and a program `fairdraw`."""
    for name in (".git", "bin", "temp"):
        (third_party / name).mkdir()
    (third_party / "pyproject.toml").write_text('[tool.fairdraw]\nsampler = "third_party:make_right"\n')
    (third_party / "bin" / "fairdraw").write_text(f'#!/bin/sh\nexec {sys.executable} -m fairdraw "$@"\n')
    (third_party / "bin" / "fairdraw").chmod(0o755)
    monkeypatch.setenv("PATH", f"{third_party / 'bin'}:{os.environ['PATH']}")
    return third_party


def in_bash(script: str, folder: str = ".", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script as the runner of GitHub does."""
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    environment = {**os.environ, **environment}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def filled(text: str, values: Mapping[str, str]) -> str:
    """Replace expressions of GitHub and GitLab by what they stand for."""
    return re.sub(r"\$(?:\{\{|\[\[) (\S+) (?:\}\}|\]\])", lambda found: values[found[1]], text)


def use_action(here: Path, **inputs: str) -> tuple[int, str, str, dict[str, str]]:
    """Do the steps of the action, but for the installation and the upload: exit code, log, summary, kept files."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    values = {f"inputs.{name}": inputs.get(name, one["default"]) for name, one in action["inputs"].items()}
    files = {"GITHUB_OUTPUT": here / "output", "GITHUB_STEP_SUMMARY": here / "summary", "RUNNER_TEMP": here / "temp"}
    log, code = "", 0
    for step in action["runs"]["steps"]:
        if "uses" in step or step["name"] == "install":
            continue
        given = {"folder": step.get("working-directory", "."), **step["env"]}
        given = {name: filled(text, values) for name, text in given.items()}
        ran = in_bash(step["run"], **given, **{name: str(path) for name, path in files.items()})
        log, code = log + ran.stdout + ran.stderr, ran.returncode
        said = dict(line.split("=") for line in files["GITHUB_OUTPUT"].read_text().splitlines())
        values |= {f"steps.check.outputs.{name}": value for name, value in said.items()}
    out = files["RUNNER_TEMP"] / "fairdraw"
    kept = {str(path.relative_to(out)): path.read_text() for path in out.rglob("*") if path.is_file()}
    return code, log, files["GITHUB_STEP_SUMMARY"].read_text(), kept


def test_green_job_says_what_it_could_have_seen(repository: Path) -> None:
    code, log, summary, kept = use_action(repository, options=OPTIONS)
    assert code == 0, log
    assert re.search(r"^::notice file=third_party.py,line=\d+,title=fairdraw::GREEN", log, flags=re.MULTILINE)
    assert summary.startswith("## fairdraw: GREEN\n")
    for part in ("third_party:make_right (", ">power<", "run 2 of 2 checks", "What this run could have seen"):
        assert part in summary
    assert set(kept) == {"report.html", "run.jsonl", "junit.xml", "run.sarif", "badge.json"}
    assert json.loads(kept["badge.json"])["message"] == "green"


def test_red_job_points_to_the_adapter(repository: Path) -> None:
    code, log, summary, kept = use_action(repository, options=OPTIONS, sampler="third_party:make_beyond")
    assert code == 1
    (line,) = re.findall(r"\n::error file=third_party.py,line=(\d+),title=REJ101 .*%0Areproduce: ", log)
    assert Path("third_party.py").read_text().splitlines()[int(line) - 1].startswith("def make_beyond")
    assert "reproduce:\nfairdraw replay" in summary
    (run,) = json.loads(kept["run.sarif"])["runs"]
    place = {"artifactLocation": {"uri": "third_party.py"}, "region": {"startLine": int(line)}}
    assert run["results"][0]["locations"] == [{"physicalLocation": place}]
    (suite,) = ElementTree.fromstring(kept["junit.xml"])
    assert suite.findall("testcase/failure[@type='1']")
    assert not re.search(r'name="[^"]*\._', kept["junit.xml"]), "a private module"
    assert [name for name in kept if name.startswith("crashes/REJ101-")]


def test_usage_error_is_one_sentence(repository: Path) -> None:
    code, log, summary, _ = use_action(repository, sampler="third_party:make_rihgt")
    assert code == 2
    assert re.search(r"^::error title=fairdraw::Error: .* Did you mean make_right\?$", log, flags=re.MULTILINE)
    assert summary.startswith("## fairdraw: usage error\n")


@pytest.mark.parametrize(("sampler", "code"), [("third_party:make_right", 0), ("third_party:make_beyond", 1)])
def test_component_and_hook_run(sampler: str, code: int) -> None:
    head, body = yaml.safe_load_all((ROOT / "templates" / "fairdraw.yml").read_text())
    inputs = {f"inputs.{name}": one.get("default", "") for name, one in head["spec"]["inputs"].items()}
    inputs |= {"inputs.sampler": sampler, "inputs.options": OPTIONS}
    _, check = body["fairdraw"]["script"]
    ran = in_bash(filled(check, inputs))
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    hooked = in_bash(f"{hook['entry']} -k REJ101 --no-controls {sampler}")
    assert ran.returncode == hooked.returncode == code, ran.stderr + hooked.stderr
    assert Path(body["fairdraw"]["artifacts"]["reports"]["junit"]).exists()
