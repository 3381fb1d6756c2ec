"""A newcomer's fault: the worked example, broken on purpose, fails with a text that explains itself."""

import re
import sys
from pathlib import Path

import pytest
from click.testing import Result
from helpers import fairdraw

from fairdraw.strategies import DraftRecipe, RejectionCase, RequestRecipe

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reading-a-failure.md").read_text()
RIGHT = "            residual = (target - drafter).clamp(min=0)\n"
WRONG = "            residual = target\n"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The output of `fairdraw check` on the broken copy, for the two checks of the page."""
    source = (ROOT / "examples" / "my_sampler.py").read_text()
    assert source.count(RIGHT) == 1
    folder = tmp_path_factory.mktemp("broken")
    (folder / "my_broken_sampler.py").write_text(source.replace(RIGHT, WRONG))
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setenv("FAIRDRAW_WORKERS", "0")  # a fixture of the module comes before the one that sets it
        patched.syspath_prepend(str(folder))
        words = ["check", "my_broken_sampler:make", "-k", "REJ107", "-k", "DIST213", "--profile", "smoke"]
        found = fairdraw(*words)
    sys.modules.pop("my_broken_sampler", None)
    assert found.exit_code == 1, found.output
    return found


@pytest.fixture(scope="module")
def failure_report(result: Result) -> dict[str, str]:
    """The first report, by its labels; the first line is its title."""
    lines = result.output[result.output.index("\nREJ107") + 1 :].split("\n\n")[0].splitlines()
    for label in ("reproduce", "search again"):  # the command is the next line
        at = lines.index(f"{label}:")
        lines[at : at + 2] = [f"{label}: {lines[at + 1]}"]
    return {"title": lines[0], **dict(line.split(": ", 1) for line in lines[1:])}


def test_effect_names_request_drafts_and_emitted_tokens(failure_report: dict[str, str]) -> None:
    found = re.fullmatch(
        r"request \d+ \(drafts \[(.*)\]\) emitted \[(.*)\]: the draft at position (\d+) was rejected, then emitted all "
        r"the same",
        failure_report["effect"],
    )
    assert found is not None, failure_report["effect"]
    drafts, emitted, position = found[1].split(", "), found[2].split(", "), int(found[3])
    assert emitted[-1] == drafts[position]


def test_smallest_example_is_code_that_builds_a_small_batch(failure_report: dict[str, str]) -> None:
    words = {"RejectionCase": RejectionCase, "RequestRecipe": RequestRecipe, "DraftRecipe": DraftRecipe}
    batch = eval(failure_report["smallest example"], words).batch()
    assert batch.batch_size == 1
    assert batch.vocab_size <= 3


def test_command_repeats_the_failure(failure_report: dict[str, str]) -> None:
    assert failure_report["reproduce"] == f"fairdraw replay {failure_report['crash file']} -y"
    assert failure_report["search again"].startswith("fairdraw check ")


def test_page_shows_this_very_text(result: Result) -> None:
    """But for fractions and times, which the processor may round otherwise, and the crash file's digest."""
    numbers = re.compile(r"-[0-9a-f]{8}\b|\d+\.\d+")
    shown = PAGE[PAGE.index("REJ107") : PAGE.index("```", PAGE.index("REJ107"))]
    output = result.output[result.output.index("REJ107", result.output.index("\n\n")) :]
    assert numbers.sub("N", shown).strip() == numbers.sub("N", output).strip()


def test_page_names_the_fault() -> None:
    assert RIGHT.strip() in PAGE
    assert WRONG.strip() in PAGE
