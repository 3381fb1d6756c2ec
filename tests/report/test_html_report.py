"""The page in a real browser: what a person sees is what the run found, on wide and narrow, light and dark screens."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairdraw._core.failures import FailureReport
from fairdraw._report.html import Shown, rendered, shown_from
from fairdraw._report.summary import Header, Summary
from fairdraw._report.verdict import Scope
from fairdraw._run.controls import Control
from fairdraw._run.coverage import Drawn
from fairdraw._run.runner import CheckRecord

page = partial(rendered, "html")
HEADER = Header(
    "mypkg.kernels:make", "cpu", "ci", 931389, "vllm 0.22.0", {"properties": 3, "statistical": 1},
    "alpha 1e-06 over 30 checks, power 0.999", started="2026-11-22 15:03 UTC", commit="5125bd8c0ffe",
)  # fmt: skip
CASES = Drawn(
    "properties",
    100,
    {"layout": {"contiguous": 100, "strided": 0}, "noise": {"one seed": 50, "per-request seed": 0}},
    {"vocabulary": {"2": 40, "3": 90}},
    ranges={"vocabulary": [(2, 3), (6, 7)]},
)
WORDS = {"layout": {"contiguous": 1000, "strided": 0}, "noise": {"one seed": 1000, "per-request seed": 500}}
ROWS = Drawn("small", 1000, WORDS, {"vocabulary": {"4": 1000}}, {}, {"vocabulary": [(8, 8)]}, 0.02)
PASSED = CheckRecord(
    "REJ101", "token ids lie in the vocabulary", "properties", "rejection", "passed", "", 100, 0.4, drawn=CASES
)
DRAWN = CheckRecord(
    "DIST101", "output rows follow the distribution", "statistical", "rejection", "passed", "", 499_712, 1.5, drawn=ROWS
)
SKIPPED = replace(
    PASSED, drawn=None, code="REJ201", title="greedy requests equal argmax", status="skipped",
    reason="greedy is unsupported: no",
)  # fmt: skip
FAILURE_REPORT = FailureReport(
    "REJ109",
    "recovered tokens have residual mass",
    "A recovered token has `target probability` above its draft probability.",
    "request 0 (drafts [2]) emitted [2]: the recovered token 2 has target probability 0.079, but its "
    "draft probability is 1",
    example="RejectionCase(vocab_size=4, requests=(RequestRecipe(drafts=(DraftRecipe(token='unlikely'),)),))",
    command="fairdraw replay .fairdraw/crashes/REJ109-694df705.json",
    usually="The token was drawn from the target distribution as it is.",
)
FAILED = CheckRecord("REJ109", FAILURE_REPORT.title, "properties", "rejection", "failed", "", 31, 0.2, FAILURE_REPORT)
GREEN = Summary([PASSED, SKIPPED, DRAWN], [Control("drops the tail", "DIST101", True, 0.1, 0.02)], seconds=41.0)
RED = Summary([PASSED, FAILED, SKIPPED, DRAWN], GREEN.controls, seconds=41.0)
SUMMARIES = {"green": GREEN, "red": RED}


def share_of_colour(path: Path, red: int, green: int, blue: int) -> float:
    """Share of pixels near a colour."""
    from matplotlib.image import imread

    wanted = np.array([red, green, blue]) / 255
    near: np.ndarray = (np.abs(np.asarray(imread(path))[..., :3] - wanted) < 0.02).all(axis=-1)
    return float(near.mean())


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("name", SUMMARIES)
def test_page_is_readable(name: str, width: int, dark: bool, browser: Any) -> None:
    """Nothing sticks out, texts have the contrast that WCAG asks for, and the verdict's colour is large."""
    long = replace(FAILED, failure_report=replace(FAILURE_REPORT, example="x" * 3000, effect="y" * 2000))
    measured = browser.measured(
        page(HEADER, replace(SUMMARIES[name], records=[*SUMMARIES[name].records, long])), width, dark=dark
    )
    assert measured["page"] <= width
    assert measured["sticking_out"] == []
    assert measured["low_contrast"] == []
    assert (sum(measured["background"][:3]) < 128) == dark
    picture = browser.picture(page(HEADER, SUMMARIES[name]), f"html-{name}", width, dark=dark)
    colours = {"green": (0x1A, 0x7F, 0x37), "red": (0xB3, 0x26, 0x1E)}
    assert share_of_colour(picture, *colours.pop(name)) > 0.01
    assert share_of_colour(picture, *colours.popitem()[1]) < 0.002


def test_filter_and_search_leave_the_checks_that_are_wanted(browser: Any) -> None:
    click = """<script>
      const shown = () => [...document.querySelectorAll("[data-status]")].filter(row => row.checkVisibility())
      document.querySelector("[data-show=failed]").click()
      const failed = shown().map(row => row.dataset.status)
      document.querySelector("[data-show='']").click()
      Object.assign(document.querySelector("[type=search]"), {value: "equal ARGMAX"}).dispatchEvent(new Event("input"))
      document.title = [...failed, ...shown().map(row => row.dataset.status)]
    </script>"""
    assert "<title>failed,skipped</title>" in browser._run(page(HEADER, RED) + click, 1280, False, "--dump-dom")


def test_page_says_what_a_team_lead_asks() -> None:
    text = page(HEADER, RED)
    for fact in (
        f'id="verdict">{RED.verdict}',
        'id="coverage">run 3 of 4 checks, skipped 1',
        "<dt>date</dt><dd>2026-11-22 15:03 UTC</dd>",
        "<dt>duration</dt><dd>41 s</dd>",
        "<dt>commit</dt><dd>5125bd8c0ffe</dd>",
        "<b>1 / 1</b>mutants caught",
        "<dt>tested</dt><dd>run 3 of 4 checks, skipped 1; 231 cases and 499,712 draws on cpu</dd>",
        "<dt>not tested</dt><dd>  1 skipped: greedy is unsupported: no<br>NOT judged: strided",
        "<title>RED: mypkg.kernels:make</title>",
    ):
        assert fact in text
    assert "not run 5" in page(HEADER, replace(GREEN, scope=Scope(not_run=5)))


def test_page_says_what_was_judged_and_what_was_not() -> None:
    text = page(HEADER, GREEN)
    for fact in (
        "  vocabulary: 2-3; 6-7 (draws 8)\n",
        "90 cases<br><small>faults in 3.3 % of such cases</small>",
        "499,712 draws<br><small>TV 0.02</small>",
        '<td class="what none">4-5: NOT judged</td>',
        '<td class="what none">strided: NOT judged</td>',
        "pairs of words on one request: 0 of 1 occurred",
    ):
        assert fact in text


def test_failure_is_shown_as_it_is_reported() -> None:
    text = page(HEADER, RED)
    own = FAILURE_REPORT
    for part in ("REJ109", "<code>target probability</code>", own.usually, own.effect, own.command):
        assert part in text
    assert text.count("data-copy>") == 2


def test_page_says_what_only_the_whole_run_shows() -> None:
    greedy = [replace(FAILED, code=code, needs=("greedy",)) for code in ("REJ201", "REJ202")]
    text = page(HEADER, Summary([PASSED, *greedy]))
    assert "note: needs greedy, which the sampler possibly does not support; also failed: REJ202" in text
    assert "&#34;greedy&#34;: &#34;say why&#34;,  # failed: REJ201, REJ202; checks that this skips: 2" in text


def test_page_needs_no_network() -> None:
    text = page(HEADER, RED, [Shown("S1", b"png")])
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", text)
    assert "http" not in text


def test_markup_of_a_sampler_is_shown_not_obeyed() -> None:
    text = page(replace(HEADER, sampler="<script>alert(1)</script>"), GREEN)
    assert "<script>alert" not in text
    assert "&lt;script&gt;" in text


def test_picture_stands_beside_its_failure(tmp_path: Path) -> None:
    for name in ("rej109-accepted-count", "dist101-output-row"):
        (tmp_path / f"{name}.png").write_bytes(b"png")
    pictures = shown_from(sorted(tmp_path.glob("*.png")))
    text = page(HEADER, RED, pictures)
    failure, rest = text[text.index("<article>") : text.index("</article>")], text[text.index("</article>") :]
    assert 'alt="REJ109 accepted count" src="data:image/png;base64,cG5n"' in failure
    assert 'alt="DIST101 output row"' in rest
    assert text.count("<figure>") == 2
