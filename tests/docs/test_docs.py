"""The manual: its Python runs, its commands exist, a page per check is made, and the site is read in a real browser.

Screenshots of the site are left in .cache/screenshots; they need Debian's chromium (`apt-get install chromium`).
"""

import doctest
import os
import re
import time
import tomllib
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from helpers import CHECKS, fairdraw, printed_by
from manual import hook as check_pages
from manual import made
from mkdocs.config.defaults import MkDocsConfig
from records import examples as failing_examples

from fairdraw import contracts, strategies
from fairdraw._cli.main import main
from fairdraw._core.checks import PROFILES
from fairdraw._core.contracts import CONTRACTS, load_part
from fairdraw._core.failures import CheckFailure
from fairdraw._report.explanation import explanation
from fairdraw._report.explanation import failing_examples as recorded
from fairdraw._run.loading import all_checks, all_questions
from fairdraw.strategies import _trace_plans, filters, grammar, lifecycle, logits_plan, logprobs, matchers, watermarks

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
DIFFERS_FROM_CALL_TO_CALL = {
    "adds to its workspace", "draws from the operating system", "goes on with the seed of an earlier call",
    "keeps bits of the step before", "keeps the widest buffer", "swaps two buffers once in a thousand calls",
    "writes into two buffers in turn",
}  # fmt: skip
"""Mutants whose failure depends on the calls before, or on chance."""


def python_blocks(text: str) -> str:
    """All ```python blocks of a page as one program."""
    return "\n\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))


@pytest.mark.parametrize("page", [p for p in PAGES if python_blocks(p.read_text())], ids=lambda path: path.name)
def test_python_of_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # What a page shows does not depend on the number of cases; users have more.
    small = PROFILES["smoke"].scaled(0.25)
    for profile in ("smoke", "ci"):
        monkeypatch.setitem(PROFILES, profile, small)
    monkeypatch.setitem(_trace_plans._PLANS, "smoke", _trace_plans._SLOW_PLAN)  # one of many rows takes seconds
    assert not re.search(r"^(?:from|import) fairdraw\S*\._", page.read_text(), flags=re.MULTILINE), "private modules"
    if ">>>" in python_blocks(page.read_text()):
        assert doctest.testfile(str(page), module_relative=False).failed == 0
        return
    exec(compile(python_blocks(page.read_text()), f"<{page.name}>", "exec"), {"__name__": page.stem})


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_commands_of_page_exist(page: Path) -> None:
    words = set(re.findall(r"^\$ fairdraw (\w+)", page.read_text(), flags=re.MULTILINE))
    assert words <= set(main.commands)


def test_build_makes_every_table_that_a_page_has_a_mark_for() -> None:
    marks = [name for page in PAGES for name in made.MARK.findall(page.read_text())]
    assert sorted(set(marks)) == sorted(made.BLOCKS)
    page = made.filled("\n".join(f"<!-- made: {name} -->\n" for name in marks))
    assert "made:" not in page
    assert [name for name in made.BLOCKS if len(made.BLOCKS[name]()) < 100 or made.BLOCKS[name]() not in page] == []


# Pages of checks


def test_every_code_has_a_page_that_says_what_the_command_says() -> None:
    pages = check_pages.pages()
    checks = all_questions()
    codes = [*(check.code for check in checks), *(contract.raised for contract in CONTRACTS.values())]
    assert set(pages) == {"index.md", *(f"{code}.md" for code in codes)}
    for check in checks:
        page, about = pages[f"{check.code}.md"], explanation(check)
        said = [about.title, about.required, *about.cause, *about.facts.values(), about.fault]
        said += [] if about.failing is None else vars(about.failing).values()
        assert [text for text in said if text not in page] == []
    output = fairdraw("explain", checks[0].code).stdout
    assert output == "\n".join(explanation(checks[0]).lines()) + "\n"


def test_every_check_with_a_mutant_has_a_failing_example() -> None:
    # The mutant of PLAN134 shares a table between all of its instances, so no smallest example repeats its failure.
    wanted = {check.code for check in all_checks() if failing_examples.mutants_of(check)} - {"PLAN134"}
    assert set(recorded()) == wanted, "run: python tools/record.py examples"
    assert [check.code for check in all_checks() if check.code in wanted and not explanation(check).fault] == []


@pytest.mark.parametrize("contract", [name for name, contract in CONTRACTS.items() if not contract.is_remote])
def test_smallest_cases_fail_as_recorded(contract: str) -> None:
    own = matchers if contract == "matchers" else lifecycle  # both have drafts among their events
    parts = (contracts, strategies, logits_plan, logprobs, grammar, filters, watermarks, own)
    words = {name: getattr(part, name) for part in parts for name in part.__all__}
    for check in all_checks("properties", contract):
        row = recorded().get(check.code)
        if row is not None and row.mutant not in DIFFERS_FROM_CALL_TO_CALL:
            mutant = next(m for m in failing_examples.mutants_of(check) if m.name == row.mutant)
            with pytest.raises(CheckFailure) as failure:
                check.on_case(mutant.make(), eval(row.example, words), load_part(CONTRACTS[contract].right)())
            assert failure.value.effect == row.effect


@pytest.mark.parametrize("code", ["DIST203", "DIST701"])
def test_distribution_checks_fail_as_recorded(code: str) -> None:
    check = CHECKS[code]
    row, numbers = failing_examples.failing_example(check), re.compile(r"\d+")
    assert row["mutant"] == recorded()[code].mutant
    assert numbers.sub("N", row["effect"]) == numbers.sub("N", recorded()[code].effect)


# The site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it; CI hands in what that has built."""
    if "FAIRDRAW_SITE" in os.environ:
        return Path(os.environ["FAIRDRAW_SITE"])
    folder = tmp_path_factory.mktemp("site")
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "NO_MKDOCS_2_WARNING": "1"}
    printed_by("-m", "mkdocs", "build", "--strict", "--site-dir", str(folder), cwd=ROOT, env=environment)
    return folder


def test_site_loads_nothing_from_elsewhere(site: Path) -> None:
    # What a browser fetches by itself; an <a href> is followed by people only.
    fetched = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=[\"']?(?:https?:)?//", flags=re.IGNORECASE)
    assert [page.name for page in site.rglob("*.html") if fetched.search(page.read_text())] == []


def test_pages_of_checks_lead_to_the_next_and_the_previous(site: Path) -> None:
    text = (site / "checks" / "REJ104" / "index.html").read_text()
    assert re.search(r'href="\.\./REJ103/" class="md-footer__link md-footer__link--prev"', text)
    assert re.search(r'href="\.\./REJ105/" class="md-footer__link md-footer__link--next"', text)


def test_repository_is_linked_if_the_project_names_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_pages.on_config(MkDocsConfig()).edit_uri is None, "no link to a repository that nobody named"
    project = tmp_path / "pyproject.toml"
    project.write_text('[project.urls]\nRepository = "https://example.org/code"\n')
    monkeypatch.setattr(check_pages, "PROJECT", project)
    config = check_pages.on_config(MkDocsConfig())
    assert config.repo_url == "https://example.org/code"
    assert config.edit_uri == "https://example.org/code/edit/main/docs/"


def test_llms_txt_lists_pages_that_exist(site: Path) -> None:
    lines = (site / "llms.txt").read_text().splitlines()
    assert lines[0] == "# fairdraw"
    pages = re.findall(r"^- \[.+\]\((.+)\)$", "\n".join(lines), flags=re.MULTILINE)
    assert len(pages) > 70
    assert [page for page in pages if not (site / page / "index.html").exists()] == []


def test_identifiers_break_behind_underscores_and_dots_and_are_found_whole(site: Path) -> None:
    assert "<code>draft_<wbr>token_<wbr>ids</code>" in (site / "rejection" / "index.html").read_text()
    assert "<wbr>" not in (site / "search" / "search_index.json").read_text()


class Waiting(SimpleHTTPRequestHandler):
    """Serves a page that is loaded only after some seconds, so that a browser has looked for words until then."""

    def do_GET(self) -> None:
        time.sleep(10 * self.path.startswith("/wait"))
        super().do_GET()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_search_finds_pages(site: Path, browser: Any) -> None:
    page = site / "searched.html"
    page.write_text((site / "index.html").read_text().replace("</body>", '<img src="/wait.png"></body>'))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Waiting, directory=str(site))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/searched.html?q=residual"
        browser.open(address, "--window-size=1280,900", f"--screenshot={browser.pictures() / 'docs-search.png'}")
        found = re.search(r"(\d+) matching documents", browser.open(address, "--dump-dom"))
        server.shutdown()
    assert int(found[1]) > 10


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["index", "rejection/index", "findings/vllm-placeholder-draft/index"])
def test_site_is_light_and_dark_as_preferred(site: Path, name: str, dark: bool, width: int, browser: Any) -> None:
    from matplotlib.image import imread

    scheme = "dark" if dark else "light"
    png = browser.pictures() / f"docs-{name.split('/')[-2] if '/' in name else 'home'}-{scheme}-{width}.png"
    options = [f"--window-size={width},1600", f"--screenshot={png}", "--virtual-time-budget=4000"]
    browser.open(
        (site / f"{name}.html").as_uri(), *options, f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    )
    picture = np.asarray(imread(png))[..., :3]  # [height, width, 3]
    assert picture.shape[:2] == (1600, width)
    ground = float(np.median(picture))
    assert ground < 0.25 if dark else ground > 0.9
    assert picture.std() > 0.05, "there is text"


@pytest.mark.parametrize("name", ["index", "checks/REJ642/index", "reading-a-failure/index", "gallery/index"])
def test_output_wraps_on_a_narrow_screen(site: Path, name: str, browser: Any) -> None:
    """No block of code or output is wider than its frame, and no page wider than the screen."""
    measure = (
        "<script>addEventListener('load', () => setTimeout(() => { document.title = [document.documentElement, "
        "...document.querySelectorAll('pre > code')].filter(e => e.scrollWidth > e.clientWidth + 1).length + ' of ' + "
        "document.querySelectorAll('pre > code').length }, 500))</script></body>"
    )
    page = site / name.replace("index", "narrow.html")
    page.write_text((site / f"{name}.html").read_text().replace("</body>", measure))
    found = re.search(
        r"<title>(\d+) of (\d+)</title>",
        browser.open(page.as_uri(), "--window-size=500,900", "--dump-dom", "--virtual-time-budget=4000"),
    )
    assert (int(found[1]), int(found[2]) > 0) == (0, True)


def test_tools_of_the_project_have_an_exact_version() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pins = {canonical(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    assert {canonical(wanted) for wanted in [*extras["dev"], *extras["docs"]]} - pins == set()


def canonical(requirement: str) -> str:
    """The name of the package in `requirement`, as package indexes compare names."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=; ]", requirement)[0]).lower()
