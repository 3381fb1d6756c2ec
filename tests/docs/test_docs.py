"""Prose is executed: every page's Python runs, every page of a check is true, and the site builds strictly."""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
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
    from fairdraw._cli.main import main

    words = set(re.findall(r"^\$ fairdraw (\w+)", page.read_text(), flags=re.MULTILINE))
    assert words <= set(main.commands)


def test_pages_of_checks_are_true() -> None:
    command = [sys.executable, str(ROOT / "tools" / "check_pages.py"), "--check"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("mkdocs", path=str(Path(sys.executable).parent)) is None, reason="pip install .[docs]")
def test_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (site / "own-sampler" / "index.html").is_file()
    # What a browser fetches by itself; an <a href> is followed by people only.
    fetched = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=[\"']?(?:https?:)?//", flags=re.IGNORECASE)
    assert [page.name for page in site.rglob("*.html") if fetched.search(page.read_text())] == []


def test_make_test_builds_the_site_into_an_ignored_folder() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^test:(.*)$", makefile, flags=re.MULTILINE)
    folder = re.findall(r"^site_dir: ([^/\n]+/)", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    assert ["docs" in target.split() for target in targets] == [True]
    assert "mkdocs build --strict" in makefile
    assert set(folder) <= set((ROOT / ".gitignore").read_text().split())


def test_tools_of_the_project_have_an_exact_version() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pins = {canonical(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    assert {canonical(wanted) for wanted in [*extras["dev"], *extras["docs"]]} - pins == set()


def canonical(requirement: str) -> str:
    """The name of the package in `requirement`, as package indexes compare names."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=; ]", requirement)[0]).lower()
