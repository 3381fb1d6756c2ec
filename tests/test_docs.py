"""Prose is executed: every page's Python runs, every page of a check is true, and the site builds strictly."""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))


def python_blocks(text: str) -> str:
    """All ```python blocks of a page as one program."""
    return "\n\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))


@pytest.mark.parametrize("page", [p for p in PAGES if python_blocks(p.read_text())], ids=lambda path: path.name)
def test_python_of_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if ">>>" in python_blocks(page.read_text()):
        assert doctest.testfile(str(page), module_relative=False).failed == 0
        return
    exec(compile(python_blocks(page.read_text()), str(page), "exec"), {"__name__": page.stem})


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda path: path.name)
def test_commands_of_page_exist(page: Path) -> None:
    from fairdraw.cli import main

    words = set(re.findall(r"^\$ fairdraw (\w+)", page.read_text(), flags=re.MULTILINE))
    assert words <= set(main.commands)


def test_pages_of_checks_are_true() -> None:
    command = [sys.executable, str(ROOT / "tools" / "check_pages.py"), "--check"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("mkdocs", path=str(Path(sys.executable).parent)) is None, reason="pip install .[docs]")
def test_site_builds_strictly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "own-sampler" / "index.html").is_file()
