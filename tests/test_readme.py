"""The README's Python runs, from top to bottom, in one namespace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import fairdraw

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).resolve().parent.parent


def python_blocks(text: str) -> str:
    """All ```python blocks of a page as one program."""
    return "\n\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))


def test_readme_example_runs_and_names_the_broken_promise(capsys: pytest.CaptureFixture[str]) -> None:
    program = python_blocks((ROOT / "README.md").read_text())
    exec(compile(program, "README.md", "exec"), {"__name__": "readme"})
    assert "REJ108" in capsys.readouterr().out


def test_readme_links_lead_to_files() -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text())
    assert targets
    missing = [target for target in targets if not (ROOT / target).exists()]
    assert not missing


def test_readme_names_every_capability() -> None:
    text = (ROOT / "README.md").read_text()
    assert [str(word) for word in fairdraw.Capability if f"`{word}`" not in text] == []
