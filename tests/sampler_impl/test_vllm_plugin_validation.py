"""The command that validates a release: what it enters, and what it leaves out. Without a network."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from helpers import fairdraw
from records import plugin as validate_vllm

from fairdraw.sampler_impl.vllm_plugin._pieces import PIECES
from fairdraw_engines._vllm_validation import validate

FOR_V1 = [piece for piece in PIECES if piece.runner == "V1"]
NAMES = [piece.name for piece in FOR_V1]
STEP = PIECES[-1]
KEPT: dict[str, Any] = {"profile": "ci", "calls": {"ours": 9}, "passed": 91, "broken": []}


def soaked(**differences: list[str]) -> dict[str, Any]:
    """What a soak says; differences by piece, or `together`."""
    pieces = {
        name: {"differences": differences.get(name.replace(" ", "_"), []), "calls": {f"{name}, ours": 7}}
        for name in NAMES
    }
    pieces["all"] = {"differences": differences.get("together", []), "calls": {}}
    return {"traces": 1, "steps": 2, "comparisons": 3, "forced": 4, "pieces": pieces}


def test_pieces_that_never_differ_are_entered_with_their_evidence() -> None:
    entry, problems = validate.judged(FOR_V1, soaked(), KEPT)
    assert problems == []
    assert entry["pieces"] == {name: {"calls": {"ours": 7}} for name in NAMES}
    assert entry["evidence"]["comparisons"] == 3
    assert entry["evidence"]["properties of the rejection piece"] == KEPT


def never(result: dict[str, Any]) -> dict[str, Any]:
    result["pieces"]["thinking budget"]["calls"] = {"thinking budget, a reason": 5}
    return result


@pytest.mark.parametrize(
    ("result", "suite", "left_out", "problem"),
    [
        (soaked(penalties=["step 3: logits differ"]), {}, ["penalties"], "penalties: step 3: logits differ"),
        (soaked(together=["step 1: tokens differ"]), {}, NAMES, "together: step 1: tokens differ"),
        (soaked(), {"broken": ["REJ104"]}, ["rejection"], "rejection: broken properties: REJ104"),
        (soaked(), {"calls": {}}, ["rejection"], "rejection: the properties never called it"),
        (never(soaked()), {}, ["thinking budget"], "thinking budget: it never served a call"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_piece_that_differs_or_never_served_is_left_out(
    result: dict[str, Any], suite: dict[str, Any], left_out: list[str], problem: str
) -> None:
    entry, problems = validate.judged(FOR_V1, result, KEPT | suite)
    assert list(entry["pieces"]) == [name for name in NAMES if name not in left_out]
    assert problems == [problem]


TOKENS = {"ours": {"tokens": 900, "verdict": "pass", "reason": "no evidence"}}
EVIDENCE: dict[str, Any] = {"differences": [], "counts": {"steps": 6}, "parameters": {"top_k": 9}, "tokens": TOKENS}
STEPPED: dict[str, Any] = {"calls": {"ours": 5}, **EVIDENCE}


def test_piece_for_v2_is_entered_with_its_evidence() -> None:
    entry, problems = validate.judged_v2(STEP, STEPPED, KEPT)
    assert problems == []
    assert entry["pieces"] == {"step": {"calls": {"ours": 5}}}
    assert entry["evidence"] == {"random steps": EVIDENCE, "properties of the step": KEPT}


@pytest.mark.parametrize(
    ("stepped", "suite", "problem"),
    [
        ({"differences": ["step 3: kept sets differ"]}, {}, "step 3: kept sets differ"),
        ({"tokens": {"ours": {"verdict": "inconclusive", "reason": "few"}}}, {}, "tokens: few"),
        ({"calls": {"thinking budgets": 3}}, {}, "it never served a step"),
        ({}, {"broken": ["REJ104"]}, "broken properties: REJ104"),
        ({}, {"calls": {}}, "it never served a property"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_piece_for_v2_that_differs_is_left_out(stepped: Any, suite: Any, problem: str) -> None:
    entry, problems = validate.judged_v2(STEP, STEPPED | stepped, KEPT | suite)
    assert entry["pieces"] == {}
    assert problems == [f"step: {problem}"]


def test_entries_stay_in_order_of_releases(tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    table.write_text("{}")
    for release in ("0.28.0", "0.9.2", "0.22.0"):
        validate.write_entry(table, release, {"pieces": {}})
    assert list(json.loads(table.read_text())) == ["0.9.2", "0.22.0", "0.28.0"]


def test_release_without_the_functions_is_reported(tmp_path: Path) -> None:
    found, problems = validate.hashed(tmp_path)
    assert found == []
    assert len(problems) == len(PIECES)
    assert all("cannot be read" in problem for problem in problems)


def test_release_that_cannot_be_installed_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(release: str, folder: Path) -> None:
        raise validate_vllm.InstallError("no such release")

    monkeypatch.setattr(validate_vllm, "install", refuse)
    assert validate_vllm.main(["9.9.9"]) == 1
    assert capsys.readouterr().err == "vLLM 9.9.9: no such release\n"


# What somebody runs who has no checkout.


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A site-packages folder with a fake vLLM."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    info = tmp_path / "vllm-0.23.0+acme.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.23.0+acme\n")
    return tmp_path


def command(*arguments: str) -> Result:
    return fairdraw("validate-vllm", *arguments)


@pytest.mark.parametrize(("problems", "code"), [([], 0), (["penalties: step 3: tokens differ"], 1)])
def test_installed_vllm_is_validated_into_a_table_of_its_own(
    installed: Path, monkeypatch: pytest.MonkeyPatch, problems: list[str], code: int
) -> None:
    asked: list[Any] = []

    def validated(*arguments: Any) -> tuple[dict[str, Any], list[str]]:
        asked.append(arguments)
        return {"pieces": {"rejection": {}}}, problems

    monkeypatch.setattr(validate, "validate", validated)
    table = installed / "own.json"
    ran = command("--folder", str(installed), "--table", str(table), "--profile", "smoke")
    assert (ran.exit_code, asked) == (code, [("0.23.0", installed, 100, "smoke")])
    assert json.loads(table.read_text()) == {"0.23.0": {"pieces": {"rejection": {}}}}
    assert ran.output.splitlines()[1:] == [
        *([f"left to vLLM: {text}" for text in problems] or ["no piece differed"]),
        f"validated: rejection. To use it: FAIRDRAW_VLLM_VALIDATED={table}",
    ]


def test_folder_without_vllm_is_refused_in_one_sentence(tmp_path: Path) -> None:
    ran = command("--folder", str(tmp_path))
    assert ran.exit_code == 2
    assert f"--folder {tmp_path} has no vLLM with its metadata. Name a site-packages folder." in ran.output


def test_source_without_the_functions_is_refused_in_one_sentence(installed: Path) -> None:
    ran = command("--folder", str(installed))
    assert ran.exit_code == 2
    assert "vLLM 0.23.0: no piece fits it: rejection: rejection_sampler.py cannot be read" in ran.output
