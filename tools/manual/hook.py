"""Hook of mkdocs: pages that are made by the build, so that none can be stale; none is committed.

The page of a check says what `fairdraw explain CODE` says; the others show records (`manual.made`). The link to the
repository comes from pyproject.toml.
"""

from __future__ import annotations

import re
import sys
import tomllib
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

from fairdraw._core.contracts import CONTRACTS
from fairdraw._core.release import ON_INDEX
from fairdraw._report.explanation import Explanation, explanation
from fairdraw._run.failure_reports import raised_meanings
from fairdraw._run.loading import all_questions

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.nav import Navigation
    from mkdocs.structure.pages import Page

    from fairdraw._core.checks import AnyCheck

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ROOT / "pyproject.toml"
OF_FINDINGS = """

Unless this page says otherwise, its program calls the released code on a CPU, without a server, and no issue about the
defect was found.
"""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Link to the repository if the project names one."""
    urls = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"].get("urls", {})
    config.repo_url = urls.get("Repository", config.repo_url)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for name, text in pages().items():
        files.append(File.generated(config, f"checks/{name}", content=text))
    sys.path.append(str(ROOT / "tools"))  # mkdocs loads this file by its path
    from manual.made import MADE

    for name, made in MADE.items():
        files.append(File.generated(config, name, content=made()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put tables where the page has marks for them, and end a finding with what holds for most."""
    from manual.made import filled

    return named(filled(markdown)) + (OF_FINDINGS if page.file.src_uri.startswith("findings/") else "")


def named(markdown: str) -> str:
    """Name packages in place of their wheels, from the day on which they are on an index."""
    if not ON_INDEX:
        return markdown
    found = re.sub(r"\./(fairdraw\w*)-[\d.]+-py3-none-any\.whl", lambda wheel: wheel[1].replace("_", "-"), markdown)
    return found.replace("fairdraw-*.whl", "fairdraw")


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Link the pages of the checks with each other: previous and next, in the order of their codes."""
    found = [files.get_file_from_path(f"checks/{name}") for name in pages()]
    for before, after in pairwise(file.page for file in found if file is not None and file.page is not None):
        before.next_page, after.previous_page = after, before
    return nav


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
    lines += ["## A failing example", ""]
    if about.failing is None:
        return "\n".join([*lines, "No mutant: this check compares with something outside of fairdraw.", ""])
    failing = about.failing
    lines += [f"The mutant **{failing.mutant}** fails this check. {about.fault}", ""]
    lines += ["```text", failing.effect, f"evidence: {failing.evidence}", "```", ""]
    if failing.example:
        lines += ["The smallest case that shows it:", "", "```python", failing.example, "```", ""]
    return "\n".join(lines)


def page_of_exceptions(contract: str) -> str:
    """What is reported under the contract's code of exceptions."""
    lines = [f"# {CONTRACTS[contract].raised} exceptions of the {contract.replace('_', ' ')} contract", ""]
    for title, meaning in raised_meanings(contract).items():
        lines += [f"## {_capital(title)}", "", meaning, ""]
    return "\n".join(lines)


def _fact(label: str, text: str) -> str:
    return f"{label}: `{text}`" if label == "run it alone" else f"{label}: {text}"
