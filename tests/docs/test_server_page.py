"""docs/server.md can be followed: its commands, run on the stub, print what it shows; test_docs.py runs its Python."""

import contextlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairdraw._cli.main import main
from fairdraw._core.seeds import DEFAULT_SEED
from stub_server.app import make_app, serving
from stub_server.dialects import Settings
from stub_server.engine import Engine
from stub_server.faults import FAULTS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "server.md").read_text()
COMMANDS = re.findall(r"^\$ (fairdraw .*)$", PAGE, flags=re.MULTILINE)


def block(name: str) -> list[str]:
    """The lines of a block of the page, without its fence."""
    (found,) = re.findall(rf"<!-- {name}: begin -->\n```\w+\n(.*?)```\n<!-- {name}: end -->", PAGE, flags=re.DOTALL)
    return str(found).splitlines()


@contextlib.contextmanager
def stubs(*engines: Engine) -> Iterator[list[str]]:
    """Their addresses."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(serving(make_app(engine, Settings()))) for engine in engines]


def printed(command: str, addresses: list[str], *options: str) -> tuple[int, str]:
    """Exit code and output, with the addresses of the page."""
    pairs = [(f"http://127.0.0.1:{8000 + number}", address) for number, address in enumerate(addresses)]
    for shown, real in pairs:
        command = command.replace(shown, real)
    run = CliRunner().invoke(main, [*shlex.split(command)[1:], "-n", "0", *options])
    output = run.output
    for shown, real in pairs:
        output = output.replace(real, shown)
    return run.exit_code, output


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fairdraw._cli.job.mutants_of", lambda *_: [])


def test_first_command_runs_as_written() -> None:
    with stubs(Engine(DEFAULT_SEED)) as addresses:
        code, output = printed(COMMANDS[0], addresses)
    assert output.splitlines()[1:4] == block("header")
    assert re.search("^GREEN: ", output, flags=re.MULTILINE), output
    assert code == 0


def test_silently_greedy_server_fails_as_shown() -> None:
    command, *lines = block("failure")
    with stubs(FAULTS["silent greedy"].engine(DEFAULT_SEED)) as addresses:
        code, output = printed(command.removeprefix("$ "), addresses)
    assert [line for line in lines if line not in output.splitlines()] == []
    assert "note: the request: curl -s http://127.0.0.1:8000/v1/completions" in output
    assert code == 1


def test_two_servers_are_compared() -> None:
    (command,) = [one for one in COMMANDS if "--reference" in one]
    with stubs(Engine(0, num_drafts=2), Engine(1)) as addresses:
        code, output = printed(command, addresses, "-k", "SRV181", "-k", "SRV182", "--profile", "smoke", "-v")
    assert re.findall(r"^passed +(\w+)", output, flags=re.MULTILINE) == ["SRV181", "SRV182"], output
    assert code == 0
