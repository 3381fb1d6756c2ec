"""Hook of mkdocs: pages that are made by the build, so that none can be stale; none is committed.

The page of a check says what `fairdraw explain CODE` says; tables show records (`manual.made`). Addresses of the
site and of the repository come from pyproject.toml: without them there are no links to edit a page.
"""

from __future__ import annotations

import re
import sys
import tomllib
from itertools import groupby, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

from fairdraw import __version__
from fairdraw._core.contracts import CONTRACTS
from fairdraw._core.release import ON_INDEX
from fairdraw._report.explanation import Explanation, explanation
from fairdraw._run.failure_reports import raised_meanings
from fairdraw._run.loading import all_questions

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools"))  # mkdocs loads this file by its path
from manual.gallery import failure  # noqa: E402
from manual.made import PICTURES, filled  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure import StructureItem
    from mkdocs.structure.files import Files
    from mkdocs.structure.nav import Navigation
    from mkdocs.structure.pages import Page

    from fairdraw._core.checks import AnyCheck

PROJECT = ROOT / "pyproject.toml"
IDENTIFIER = re.compile(r"(?<!<pre>)<code>[^<\s]+</code>")
OF_FINDINGS = """

Unless this page says otherwise, its program calls the released code on a CPU, without a server, and no issue about the
defect was found.
"""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Say which version the manual is of, and link to the site and the repository if the project names them."""
    urls = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"].get("urls", {})
    config.site_url = urls.get("Documentation", config.site_url)
    if repository := urls.get("Repository"):
        config.repo_url, config.edit_uri = repository, f"{repository}/edit/main/docs/"
    config.copyright = f"The manual of fairdraw {__version__}. Each release has its own."
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of checks, and pictures."""
    made: dict[str, str | bytes] = {f"checks/{name}": text for name, text in pages().items()}
    with TemporaryDirectory() as folder:
        made |= {f"pictures/{name}": draw(Path(folder, name)).read_bytes() for name, draw in PICTURES.items()}
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put tables where the page has marks for them, and end a finding with what holds for most."""
    return named(filled(markdown)) + (OF_FINDINGS if page.file.src_uri.startswith("findings/") else "")


def named(markdown: str) -> str:
    """Name packages in place of their wheels, from the day on which they are on an index."""
    if not ON_INDEX:
        return markdown
    found = re.sub(r"\./(fairdraw\w*)-[\d.]+-py3-none-any\.whl", lambda wheel: wheel[1].replace("_", "-"), markdown)
    return found.replace("fairdraw-*.whl", "fairdraw")


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Link the pages of the checks with each other, in the order of their codes, and list all pages in llms.txt."""
    head = f"# {config.site_name}\n\n> {config.site_description}\n"
    files.append(File.generated(config, "llms.txt", content="\n".join([head, *listed(nav.items)])))
    found = [files.get_file_from_path(f"checks/{name}") for name in pages()]
    for before, after in pairwise(file.page for file in found if file is not None and file.page is not None):
        before.next_page, after.previous_page = after, before
    return nav


def listed(items: list[StructureItem], depth: int = 2) -> Iterator[str]:
    """Yield lines of llms.txt (llmstxt.org): a heading for each section, a link for each page."""
    for item in items:
        if item.children is None:
            yield f"- [{item.title}]({getattr(item, 'url', '') or './'})"
        else:
            yield f"\n{'#' * depth} {item.title}\n"
            yield from listed(item.children, depth + 1)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Let identifiers in text break behind underscores and dots; style.css says that they break nowhere else."""
    return IDENTIFIER.sub(lambda found: re.sub(r"(?<=\w)[_.](?=\w)", r"\g<0><wbr>", found[0]), output)


def pages() -> dict[str, str]:
    """File name to text, the index first."""
    checks = all_questions()
    made = {f"{check.code}.md": page_of(explanation(check)) for check in checks}
    made |= {f"{contract.raised}.md": page_of_exceptions(contract.name) for contract in CONTRACTS.values()}
    return {"index.md": index_of(checks), **dict(sorted(made.items()))}


def index_of(checks: tuple[AnyCheck, ...]) -> str:
    """All checks, by contract and suite."""
    lines = [
        "# Checks",
        "",
        "Each page says what is required, what a failure usually means, and shows a failing example: a mutant that the "
        "check catches, with the smallest case. `fairdraw explain CODE` prints the same.",
    ]
    for (_, contract, suite), own in groupby(sorted(checks, key=_place), key=_place):
        listed = list(own)
        lines += ["", f"## {_capital(contract.replace('_', ' '))}: {suite} ({len(listed)})", ""]
        lines += [f"* [{check.code}]({check.code}.md) {check.title}" for check in listed]
    lines += ["", "## Exceptions", "", "Reported where a sampler raises instead of answering:", ""]
    lines += [f"* [{c.raised}]({c.raised}.md) {c.name.replace('_', ' ')}" for c in CONTRACTS.values()]
    return "\n".join(lines) + "\n"


def _place(check: AnyCheck) -> tuple[int, str, str]:
    """Contracts stand in the order of `CONTRACTS`."""
    return list(CONTRACTS).index(check.contract), check.contract, check.suite


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def page_of(about: Explanation) -> str:
    """What `fairdraw explain` says, as a page."""
    lines = [f"# {about.title}", "", " · ".join(_fact(label, text) for label, text in about.facts.items())]
    lines += ["{ .facts }", "", "## Required", "", about.required, ""]
    if about.cause:
        lines += ["## Usual cause", "", "\n\n".join(about.cause), ""]
    return "\n".join([*lines, "## A failing example", "", *failure(about)])


def page_of_exceptions(contract: str) -> str:
    """What is reported under the contract's code of exceptions."""
    lines = [f"# {CONTRACTS[contract].raised} exceptions of the {contract.replace('_', ' ')} contract", ""]
    for title, meaning in raised_meanings(contract).items():
        lines += [f"## {_capital(title)}", "", meaning, ""]
    return "\n".join(lines)


def _fact(label: str, text: str) -> str:
    return f"{label}: `{text}`" if label == "run it alone" else f"{label}: {text}"
