"""Known defects of servers: strict expected failures, as `fairdraw check --xfails FILE` reads them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import Version

if TYPE_CHECKING:
    from servers.process import Server

DEFECTS = Path(__file__).with_name("known_defects.toml")


def known(server: Server, release: str) -> dict[str, list[dict[str, Any]]]:  # Any: TOML
    """Code to the entries that hold for this release."""
    found: dict[str, list[dict[str, Any]]] = {}
    for entry in tomllib.loads(DEFECTS.read_text())["defect"]:
        if server.name in entry["servers"] and _holds(entry, Version(release)):
            for code in entry["checks"]:
                found.setdefault(code, []).append(entry)
    return found


def _holds(entry: dict[str, Any], release: Version) -> bool:  # Any: TOML
    since, fixed = entry.get("since"), entry.get("fixed")
    return (since is None or release >= Version(since)) and (fixed is None or release < Version(fixed))


def write_xfails(server: Server, path: Path) -> Path:
    """The file for `--xfails`."""
    lines = []
    for code, entries in known(server, server.version).items():
        reasons = "; ".join(f"{entry['reason']} ({entry['link']})" for entry in entries)
        cases = max(entry.get("cases", 0) for entry in entries)
        number = f", cases = {cases}" if cases else ""
        lines.append(f"{code} = {{reason = {json.dumps(reasons)}{number}}}")  # a JSON string is a TOML string
    path.write_text("\n".join([*lines, ""]))
    return path
