"""The first screen says what the records and a real run say."""

import json
import re
from pathlib import Path

import pytest
from manual import first_minute

from fairdraw._run.loading import all_checks

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text()
MATRIX = json.loads((ROOT / "docs" / "records" / "matrix.json").read_text())["cells"]
SAMPLERS = json.loads((ROOT / "docs" / "records" / "samplers.json").read_text())


def test_has_at_most_800_words() -> None:
    assert len(TEXT.split()) <= 800


def test_first_screen_is_made_from_findings_a_run_and_records() -> None:
    """But for fractions, which the processor may round otherwise."""
    fractions = re.compile(r"\d+\.\d+(?!\.)")
    fresh, shown = (fractions.sub("N", text) for text in (first_minute.fresh(), TEXT))
    assert fresh == shown, "run: python tools/pages.py first_minute"


def test_report_has_at_most_twelve_lines() -> None:
    assert len(first_minute.report().splitlines()) <= 2 + 12


@pytest.mark.parametrize("name", first_minute.findings())
def test_defect_is_recorded(name: str) -> None:
    """Of the release that is named, the check that is named fails in a committed record."""
    about = first_minute.findings()[name]
    codes = about["checks"].split(", ")
    if codes[0].startswith("reading the "):  # no check of a contract sees it, the page's program does
        return
    assert set(codes) <= {check.code for check in all_checks()}
    if about["engine"] == "vLLM" and codes[0].startswith("REJ"):
        cells = [one for one in MATRIX if one["sampler"] == "rejection/vllm"]
        failing = [one["release"] for one in cells if codes[0] in failing_codes(one)]
        assert about["releases"].startswith(f"{failing[0]} to {failing[-1]},")
    elif codes[0].startswith("REJ"):
        sampler = f"{about['engine'].lower().partition(' (')[0]} {about['releases'].split(',')[0]}"
        assert any(set(codes) <= failing_codes(row) for row in SAMPLERS if row["sampler"] == sampler)


def failing_codes(record: dict[str, list[dict[str, str]]]) -> set[str]:
    return {row["code"] for row in record["failures"] if row["status"] in ("failed", "xfailed")}


def test_links_lead_to_files_and_sections() -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", TEXT)
    assert [target for target in targets if not (ROOT / target).exists()] == []
    linked = re.findall(r"\]\((docs/[\w-]+\.md)#([\w-]+)\)", TEXT)
    titles = {page: re.findall(r"^## (.+)$", (ROOT / page).read_text(), flags=re.MULTILINE) for page, _ in linked}
    for page, anchor in linked:
        assert anchor in {re.sub(r"[^\w-]", "", title.lower().replace(" ", "-")) for title in titles[page]}
    assert targets
    assert linked
