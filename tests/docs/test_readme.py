"""The README's Python runs, from top to bottom, in one namespace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).resolve().parents[2]


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


def test_readme_leads_to_sections_of_the_manual() -> None:
    linked = re.findall(r"\]\(docs/own-sampler\.md#([\w-]+)\)", (ROOT / "README.md").read_text())
    titles = re.findall(r"^## (.+)$", (ROOT / "docs" / "own-sampler.md").read_text(), flags=re.MULTILINE)
    assert linked
    assert set(linked) <= {re.sub(r"[^\w-]", "", title.lower().replace(" ", "-")) for title in titles}


def test_readme_installs_before_it_judges() -> None:
    text = (ROOT / "README.md").read_text()
    commands = ["pip install torch", "pip install .  ", "fairdraw init", "fairdraw check", "make check"]
    assert [text.index(f"$ {command}") for command in commands] == sorted(text.index(f"$ {c}") for c in commands)
