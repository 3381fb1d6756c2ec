"""The command that validates a release: what it enters, and what it leaves out. Without a network."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import validate_vllm

from fairdraw._vllm_validation import validate
from fairdraw.sampler_impl.vllm_plugin._pieces import PIECES

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

NAMES = [piece.name for piece in PIECES]
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
    entry, problems = validate.judged(list(PIECES), soaked(), KEPT)
    assert problems == []
    assert entry["pieces"] == {name: {"calls": {"ours": 7}} for name in NAMES}
    assert entry["evidence"]["comparisons"] == 3
    assert entry["evidence"]["properties of the rejection piece"] == KEPT


def test_piece_that_differs_is_left_out_and_reported() -> None:
    entry, problems = validate.judged(list(PIECES), soaked(penalties=["step 3: plain logits differ"]), KEPT)
    assert list(entry["pieces"]) == [name for name in NAMES if name != "penalties"]
    assert problems == ["penalties: step 3: plain logits differ"]


def test_pieces_that_differ_together_are_all_left_out() -> None:
    entry, problems = validate.judged(list(PIECES), soaked(together=["step 1: tokens differ"]), KEPT)
    assert entry["pieces"] == {}
    assert problems == ["together: step 1: tokens differ"]


def test_broken_property_keeps_the_rejection_piece_out() -> None:
    entry, problems = validate.judged(list(PIECES), soaked(), {**KEPT, "broken": ["REJ104"]})
    assert "rejection" not in entry["pieces"]
    assert problems == ["rejection: broken properties: REJ104"]


def test_properties_that_ran_on_vllms_own_code_keep_the_rejection_piece_out() -> None:
    entry, problems = validate.judged(list(PIECES), soaked(), {**KEPT, "calls": {}})
    assert "rejection" not in entry["pieces"]
    assert problems == ["rejection: the properties never called it"]


def test_piece_that_never_served_is_left_out() -> None:
    result = soaked()
    result["pieces"]["thinking budget"]["calls"] = {"thinking budget, a reason": 5}
    entry, problems = validate.judged(list(PIECES), result, KEPT)
    assert "thinking budget" not in entry["pieces"]
    assert problems == ["thinking budget: it never served a call"]


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
