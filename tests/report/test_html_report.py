"""The page in a real browser: what a person sees is what the run found, on a wide screen and on a narrow one.

Needs Debian's chromium (`apt-get install chromium`). With FAIRDRAW_SCREENSHOTS set to a folder the pictures that are
checked here are kept there: those in docs/pictures are made so.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fairdraw._core.failures import FailureReport
from fairdraw._report.html import Shown, page
from fairdraw._report.summary import Header, Summary
from fairdraw._run.controls import Control
from fairdraw._run.runner import CheckRecord

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium")

HEADER = Header(
    "mypkg.kernels:make",
    "cpu",
    "ci",
    931389,
    "vllm 0.22.0",
    {"properties": 2, "statistical": 1},
    "alpha 1e-06 over 30 checks; sees TV >= 0.023",
)
PASSED = CheckRecord("REJ101", "token ids lie in the vocabulary", "properties", "rejection", "passed", "", 100, 0.4)
DISTRIBUTION = CheckRecord(
    "DIST101", "output rows follow the distribution", "statistical", "rejection", "passed", "", 499_712, 1.5
)
FAILURE_REPORT = FailureReport(
    "REJ109",
    "recovered tokens have residual mass",
    "A recovered token has target probability above its draft probability.",
    "request 0 (drafts [2]) emitted [2]: the recovered token 2 has target probability 0.079, but its "
    "draft probability is 1",
    example="RejectionCase(vocab_size=4, requests=(RequestRecipe(drafts=(DraftRecipe(token='unlikely'),)),))",
    command="fairdraw replay .fairdraw/crashes/REJ109-694df705.json",
    usually="It was drawn from the target as it is.",
)
FAILED = CheckRecord("REJ109", FAILURE_REPORT.title, "properties", "rejection", "failed", "", 31, 0.2, FAILURE_REPORT)
GREEN = Summary([PASSED, DISTRIBUTION], [Control("drops the tail", "DIST101", caught=True, seconds=0.1, distance=0.02)])
RED = Summary([PASSED, FAILED, DISTRIBUTION], GREEN.controls)


def browse(path: Path, *options: str) -> str:
    assert CHROMIUM is not None
    words = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *options, path.as_uri()]
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=120).stdout


def screenshot(summary: Summary, folder: Path, name: str, width: int = 1200) -> np.ndarray:  # [height, width, 3 or 4]
    from matplotlib.image import imread

    html, png = folder / f"{name}.html", folder / f"{name}.png"
    html.write_text(page(HEADER, summary), encoding="utf-8")
    browse(html, f"--window-size={width},1100", f"--screenshot={png}")
    kept = os.environ.get("FAIRDRAW_SCREENSHOTS")
    if kept:
        shutil.copy(png, Path(kept) / png.name)
    return np.asarray(imread(png))


def share_of_colour(picture: np.ndarray, red: int, green: int, blue: int) -> float:
    """Share of pixels near a colour."""
    wanted = np.array([red, green, blue]) / 255
    near: np.ndarray = (np.abs(picture[..., :3] - wanted) < 0.02).all(axis=-1)
    return float(near.mean())


@needs_chromium
def test_green_run_is_seen_green(tmp_path: Path) -> None:
    picture = screenshot(GREEN, tmp_path, "report-green")
    assert share_of_colour(picture, 0x1A, 0x7F, 0x37) > 0.01
    assert share_of_colour(picture, 0xB3, 0x26, 0x1E) < 0.0005


@needs_chromium
def test_red_run_is_seen_red(tmp_path: Path) -> None:
    picture = screenshot(RED, tmp_path, "report-red")
    assert share_of_colour(picture, 0xB3, 0x26, 0x1E) > 0.01


@needs_chromium
@pytest.mark.parametrize("width", [500, 1400])
def test_page_is_never_wider_than_the_screen(tmp_path: Path, width: int) -> None:
    long = replace(FAILED, failure_report=replace(FAILURE_REPORT, example="x" * 3000, effect="y" * 2000))
    path = tmp_path / "page.html"
    measure = (
        "<script>document.title = document.documentElement.scrollWidth + ' of ' + window.innerWidth</script></body>"
    )
    path.write_text(page(HEADER, Summary([PASSED, long])).replace("</body>", measure), encoding="utf-8")
    found = re.search(r"<title>(\d+) of (\d+)</title>", browse(path, f"--window-size={width},900", "--dump-dom"))
    assert found is not None
    assert int(found[1]) <= int(found[2])


@needs_chromium
def test_failure_is_read_in_the_browser_as_it_is_told(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page(HEADER, RED), encoding="utf-8")
    text = browse(path, "--dump-dom")
    assert f'id="verdict">{RED.verdict}' in text
    for part in (
        "REJ109",
        FAILURE_REPORT.meaning,
        FAILURE_REPORT.usually,
        FAILURE_REPORT.effect,
        FAILURE_REPORT.command,
    ):
        assert part in text


def test_page_says_what_only_the_whole_run_shows() -> None:
    greedy = [replace(FAILED, code=code, needs=("greedy",)) for code in ("REJ201", "REJ202")]
    text = page(HEADER, Summary([PASSED, *greedy]))
    assert "note: needs greedy, which the sampler may never have promised; broken, too: REJ202" in text
    assert "&#34;greedy&#34;: &#34;say why&#34;,  # broken: REJ201, REJ202; then not asked: 2" in text


def test_page_needs_no_network() -> None:
    text = page(HEADER, RED, [Shown("S1", b"png")])
    assert not re.search(r"(?:src|href)=\"(?!data:)", text)
    assert "http" not in text.replace("http-equiv", "")


def test_markup_of_a_sampler_is_shown_not_obeyed() -> None:
    text = page(replace(HEADER, sampler="<script>alert(1)</script>"), GREEN)
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


def test_pictures_are_part_of_the_page() -> None:
    assert "data:image/png;base64,cG5n" in page(HEADER, GREEN, [Shown("S1 tuple distribution", b"png")])
