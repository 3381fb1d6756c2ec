"""The pictures of the docs are drawn by a command, from the committed records."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fairdraw.perf_regression._pictures import RECORDS, REJECTION, SCANNERS, digest, main

pytest.importorskip("matplotlib")
ROOT = Path(__file__).parents[2]
SOURCES = {
    "latency.svg": REJECTION,
    "roofline.svg": REJECTION,
    "length_penalties.svg": SCANNERS,
    "length_thinking_budget.svg": SCANNERS,
}


def test_command_draws_every_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--out", str(tmp_path)])
    assert {path.name for path in tmp_path.iterdir()} == set(SOURCES)
    assert capsys.readouterr().out.count("written: ") == len(SOURCES)
    assert "vLLM 0.22.0" in (tmp_path / "latency.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SOURCES)
def test_picture_of_the_docs_is_of_the_committed_record(name: str) -> None:
    """If not: python -m fairdraw.perf_regression._pictures --out docs/pictures"""
    drawn = (ROOT / "docs" / "pictures" / name).read_text(encoding="utf-8")
    assert digest(RECORDS / SOURCES[name]) in drawn


@pytest.mark.parametrize("name", SOURCES)
def test_picture_is_shown_in_the_docs(name: str) -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
    assert re.search(rf"!\[[^\]]+\]\(pictures/{re.escape(name)}\)", pages)
