"""Text and JSON of others: a terminal never obeys them, they hold no secret, and no depth of theirs is a traceback."""

import base64
import json
from urllib.parse import quote

import pytest

from fairdraw._core import foreign
from fairdraw._core.failures import FailureReport
from fairdraw._report.files import FORMS
from fairdraw._report.html import rendered
from fairdraw._report.summary import Header, Summary
from fairdraw._run.runner import CheckRecord

EVIL = "\x1b[2J\x9b1m\u202e\u2028\ud800\nGREEN: 55 property checks passed"
KEY = "sk-0123/45+67 89ab"


def report(text: str) -> FailureReport:
    return FailureReport("SRV101", text, text, text, text, text, notes=(text,))


def test_records_headers_and_reports_hold_nothing_that_a_terminal_obeys() -> None:
    record = CheckRecord(
        "SRV101", EVIL, "properties", "server", "failed", EVIL, failure_report=report(EVIL), sampler=EVIL
    )
    header = Header(EVIL, EVIL, "ci", 0, EVIL, {}, about=(EVIL,))
    shown = [*header.lines(), *Summary([record]).lines(), *report(EVIL).lines()]
    lines = [line for text in shown for line in text.split("\n")]
    assert [line for line in lines if not line.isprintable() or line.startswith("GREEN")] == []
    for form in set(FORMS) - {"json"}:
        text = rendered(form, header, Summary([record]))
        assert all(line.isprintable() for line in text.split("\n")), form
        assert text.count("\n::") <= 1, "a line of somebody's text is a command of a CI system"
        text.encode()
    assert CheckRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


@pytest.mark.parametrize(
    "text",
    [
        KEY,
        quote(KEY, safe=""),
        quote(KEY, safe="").lower(),
        json.dumps(KEY),
        "".join(f"\\u{ord(letter):04x}" for letter in KEY),
        base64.b64encode(f"Bearer {KEY}".encode()).decode(),
        base64.urlsafe_b64encode(f"x{KEY}y".encode()).decode(),
        KEY.encode().hex(),
        KEY.replace("0", "\u200b0"),
        "sk-0123', '/45+', '67 89ab",
    ],
)
def test_a_secret_is_shown_in_no_form(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "_secrets", {})
    foreign.hide(KEY, "MY_KEY")
    shown = foreign.one_line(f"it said: {text}.", 200)
    assert "$MY_KEY" in shown
    assert not foreign.repeats_secret(shown)
    foreign.hide("EMPTY", "MY_KEY")  # vLLM's placeholder
    assert foreign.printable("nothing of it, EMPTY") == "nothing of it, EMPTY"


@pytest.mark.parametrize("depth", [65, 2_000, 100_000])
def test_deep_json_is_refused(depth: int) -> None:
    with pytest.raises(ValueError, match="nested more than 64 levels deep"):
        foreign.read_json("[" * depth + "]" * depth)
    assert foreign.read_json('{"a": [1, {"b": []}]}') == {"a": [1, {"b": []}]}
