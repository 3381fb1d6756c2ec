"""What was attacked is held by a test that exists, and a gate that sees nothing is reported."""

import ast
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gates
import pytest
from manual import made

ROOT = Path(__file__).resolve().parents[2]
TESTS = [test for _, _, tests in made.attacked() for test in tests]


@pytest.mark.parametrize("test", TESTS)
def test_line_is_held_by_a_test_that_exists(test: str) -> None:
    path, _, names = test.partition("::")
    tree: ast.AST = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    for name in names.split("::"):
        tree = next(one for one in ast.iter_child_nodes(tree) if getattr(one, "name", "") == name)


def test_gate_that_sees_nothing_is_reported(tmp_path: Path) -> None:
    blind = gates.Gate("blind", "true", (gates.Defect("README.md", "a defect", "defect"),))
    tree = gates.copied(tmp_path)
    before = (tree / "README.md").read_text()
    assert list(blind.problems(tree))[:2] == ["ended with exit code 0", "did not say 'defect' of README.md"]
    assert (tree / "README.md").read_text() == before


@pytest.fixture
def in_background() -> Iterator[None]:
    """Signals as `nohup make test &` finds them."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_processes_of_tests_die_of_signals_that_this_one_ignores(
    in_background: None, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("signals_of_a_terminal")
    words = "import signal as s; print(s.getsignal(s.SIGINT) is s.default_int_handler, s.getsignal(s.SIGHUP) == 0)"
    assert subprocess.run([sys.executable, "-c", words], capture_output=True, check=True).stdout == b"True True\n"
