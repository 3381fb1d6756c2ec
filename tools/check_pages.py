"""One page per check, made from its docstring: docs/checks/CODE.md, and docs/checks/index.md that lists them.

python tools/check_pages.py            # write
python tools/check_pages.py --check    # exit 1 if a page is missing or stale, as CI asks
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fairdraw._run.loading import all_checks
from fairdraw.protocols import Capability

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairdraw._core.checks import AnyCheck

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "checks"


def main() -> int:
    parser = argparse.ArgumentParser(description="Write a page per check.")
    parser.add_argument("--check", action="store_true", help="write nothing; complain about stale pages")
    options = parser.parse_args()
    pages = wanted_pages(all_checks())
    present = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    stale = sorted(name for name in pages | present if pages.get(name) != present.get(name))
    if options.check:
        remedy = f"stale: {', '.join(stale)}. Run: python tools/check_pages.py"
        print(remedy if stale else f"{len(pages)} pages are true")
        return bool(stale)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in stale:
        if name in pages:
            (FOLDER / name).write_text(pages[name], encoding="utf-8")
        else:
            (FOLDER / name).unlink()
    print(f"{len(pages)} pages, {len(stale)} changed")
    return 0


def wanted_pages(checks: Iterable[AnyCheck]) -> dict[str, str]:
    """File name to text."""
    listed = list(checks)
    return {"index.md": index_of(listed)} | {f"{check.code}.md": page_of(check) for check in listed}


def index_of(checks: list[AnyCheck]) -> str:
    """All checks, by contract and suite."""
    lines = ["# Checks", "", "Made from the checks themselves by `tools/check_pages.py`."]
    for place in sorted({(check.contract, check.suite) for check in checks}):
        own = [check for check in checks if (check.contract, check.suite) == place]
        lines += ["", f"## {place[0].replace('_', ' ')}: {place[1]} ({len(own)})", ""]
        lines += [f"* [{check.code}]({check.code}.md) {check.title}" for check in own]
    return "\n".join(lines) + "\n"


def page_of(check: AnyCheck) -> str:
    """What `fairdraw explain` says, as a page."""
    needs = [f"`{need}`" if need in set(Capability) else need for need in check.needed]
    return "\n".join(
        [
            f"# {check.code} {check.title}",
            "",
            check.meaning,
            "",
            f"* contract: {check.contract.replace('_', ' ')}; suite: {check.suite}",
            f"* needs: {', '.join(needs) or 'nothing'}",
            f"* alone: `fairdraw check SPEC -k {check.code}`",
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
